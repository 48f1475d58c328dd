-- A job that was cancelled while a host had claimed it and not begun it was begun
-- all the same, and ran until its first sign of life; so did one behind it.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"

describe("a job that is cancelled while it waits in a host", function()
  it("is not begun", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local folder = fixture.dir()
    local h = host.start(url, ([[return { slow = function(job)
      io.open("%s/" .. job.id, "w"):close()
      while not io.open "%s/go" do os.execute "sleep 0.02" end
    end }]]):format(folder, folder), { "--workers", "1" })
    local ids = {}
    for i = 1, 3 do ids[i] = assert(q:push("slow", i)) end
    local function begun(id) return io.open(folder .. "/" .. id) ~= nil end
    eventually(function() return begun(ids[1]) end)
    assert(handle:cancel(ids[2]))
    io.open(folder .. "/go", "w"):close()
    eventually(function() return handle:job(ids[3]).state == "done" end)
    assert.is_false(begun(ids[2]))
    h:signal "TERM"
    assert.equal(0, h:wait(20))
  end)
end)
