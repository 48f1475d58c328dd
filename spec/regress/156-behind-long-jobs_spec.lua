-- A host whose jobs had been short and then were long claimed further ones ahead,
-- sent them behind the long ones, took them back after 20 ms and claimed them again:
-- fifty commits a second and as many runs of each job, for as long as the long ones
-- took; db:why said that it "has been running for 0.0s".

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"

local SCRIPT = [[return { short = function() end, long = function() os.execute "sleep 600" end }]]

describe("a host whose workers all have a long job", function()
  it("leaves what it would claim ahead to others", function()
    local url <const> = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    for i = 1, 300 do assert(q:push("short", i)) end
    local h = host.start(url, SCRIPT)
    eventually(function() return #handle:jobs { state = "done", limit = 300 } == 300 end)
    for _ = 1, 2 do assert(q:push "long") end
    eventually(function() return #handle:execute "SELECT 1 FROM nightshift_running" == 2 end)
    local id = assert(q:push "short")
    eventually(function() return handle:job(id).state == "ready" end)
    local run = handle:job(id).run
    for _ = 1, 5 do
      assert(q:push "short")
      nst.sleep(0.2)
      eventually(function()
        return handle:why(id):find("is ready, but all 2 workers for it are busy; it comes next", 1, true)
      end)
    end
    assert.is_true(handle:job(id).run - run <= 1, ("%d runs"):format(handle:job(id).run))
    h:signal "QUIT"
    h:wait(20)
  end)
end)
