-- A parent and its child that were parked in one batch, each with its half of a
-- circle: both looked before either had written, nobody was refused, and all of them
-- waited for ever.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"

-- Each says that it runs, goes on when its file is there, and says so.
local HANDLERS = [[
local function pass(job)
  io.stderr:write("runs " .. job.name .. "\n")
  repeat os.execute "sleep 0.01" until io.open(os.getenv "GATE" .. job.name)
  io.stderr:write("leaves " .. job.name .. "\n")
end
return {
  first = pass,
  parent = function(job)
    pass(job)
    return job:wait()
  end,
  child = function(job)
    job:spawn("last", nil, { after = { job.payload } })
    pass(job)
    return job:wait()
  end,
}]]

describe("a circle that a parent and its child close at one moment", function()
  it("is refused to one of them, and all come to an end", function()
    local server = db.server()
    local url = server:fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    assert(q:push "first")
    local parent = assert(q:push("parent", nil, { max_attempts = 1 }))
    local between = assert(q:push("between", nil, { after = { parent } }))
    local child = assert(q:push("child", between, { parent = parent, max_attempts = 1 }))
    local gate = fixture.dir() .. "/"
    local h = host.start(url, HANDLERS, { "--workers", "3" }, { GATE = gate })
    h:wait_line("runs ", 20, 3)
    server:freeze() -- while the first's verdict is on its way the others' gather
    for i, name in ipairs { "first", "parent", "child" } do
      assert(io.open(gate .. name, "w")):close()
      h:wait_line("leaves ", 20, i)
    end
    server:thaw()
    eventually(function() return handle:execute("SELECT COUNT(*) AS n FROM nightshift_job")[1].n == 0 end, 20)
    assert.same({ "dead", "dead", "cancelled" },
      { handle:job(parent).state, handle:job(child).state, handle:job(between).state })
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)
