-- A run could spawn any number of children. 300,000 were written in one transaction by the
-- host's only dispatcher, which was taken for dead meanwhile, as was the next host.

local nightshift = require "nightshift"
local host = require "spec.support.host"

local handle, q, url
with_database(function(...) handle, q, url = ... end)

local SCRIPT = [[
return {
  parent = function(job)
    for i = 1, job.payload do
      local id, message = job:spawn("child", i)
      if not id then
        job:log(message)
        break
      end
    end
  end,
  child = function() end,
  tick = function() end,
}]]

describe("a run that spawns more children than it may", function()
  local function ends(id)
    return eventually(function()
      local job = handle:job(id)
      return job.state:match "^d" and job
    end, 60)
  end

  it("is told at the one that is too many, and fails", function()
    local h = host.start(url, SCRIPT)
    local ids = {}
    for i = 1, 20 do ids[i] = assert(q:push "tick") end
    local id = assert(q:push("parent", 300000, { max_attempts = 1 }))
    local job = ends(id)
    assert.equal("dead", job.state)
    assert.matches("a run may spawn 2000 children.*%-%-max%-children N", job.error)
    assert.equal(0, handle:execute("SELECT COUNT(*) AS n FROM nightshift_child")[1].n)
    for _, tick in ipairs(ids) do assert.equal("done", ends(tick).state) end
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("may have more when the host says so", function()
    local h = host.start(url, SCRIPT, { "--max-children", "2500" })
    assert.equal("done", ends(assert(q:push("parent", 2500, { max_attempts = 1 }))).state)
    assert.equal("dead", ends(assert(q:push("parent", 2501, { max_attempts = 1 }))).state)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("in a program cannot end as if it had them", function()
    local small <close> = assert(nightshift.open { url = url, max_children = 3 })
    assert(q:push "parent")
    local job = assert(small:queue("q"):claim())
    for i = 1, 3 do assert(job:spawn("child", i)) end
    local id, message, code = job:spawn("child", 4)
    assert.is_nil(id)
    assert.equal("TOO_BIG", code)
    assert.matches("a run may spawn 3 children.*max_children = N", message)
    local ok, _, why = job:ack()
    assert.same({ nil, "TOO_BIG" }, { ok, why })
    assert(job:fail "too many")
  end)
end)
