-- A job that had killed three holders waited a second before its next run, as one whose
-- worker has died, and was claimed after that like any other. What was beside it then,
-- and had lost two holders before, was condemned in its place.

local proc = require "spec.support.proc"

local handle, q, url

with_database(function(...) handle, q, url = ... end)

-- A program that claims a job, and is killed with it.
local function claimed_and_lost()
  local p = proc.start { proc.lua, "-e", ([[
    local db = assert(require "nightshift".open(%q))
    assert(db:queue "q":claim())
    io.stdout:write "holds\n":flush()
    io.read()
    os.execute "sleep 60"]]):format(url), stdin = "x\n" }
  p:wait_line "holds"
  p:signal "KILL"
end

-- How it is claimed next, when that may be now.
local function ready(id)
  return handle:execute("SELECT alone FROM nightshift_ready WHERE job_id = ?", id)[1]
end

describe("a job that was lost with its holders", function()
  it("is claimed alone, and at once, until it is dead", function()
    local id = assert(q:push("killer", nil, { max_crashes = 3 }))
    for deaths = 1, 5 do
      claimed_and_lost()
      local job = eventually(function()
        assert(handle:rescue())
        local job = handle:job(id)
        return (job.run > deaths or job.state == "dead") and job
      end, 20)
      assert.equal(deaths < 5 and "ready" or "dead", job.state, deaths .. " holders died")
      local row = ready(id)
      assert.equal(deaths < 5 and (deaths < 2 and 0 or 1) or nil, row and row.alone, deaths .. " holders died")
    end
    assert.equal("poison", handle:job(id).reason)
  end)
end)
