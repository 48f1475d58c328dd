-- db:why counted a worker that is reserved for another queue as free: a job that it
-- would never take "is ready, and it comes next" for as long as the others were busy.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"

local NAP = [[return { nap = function() os.execute "sleep 600" end }]]

describe("why, with workers that are reserved,", function()
  it("counts those who may take the job", function()
    local url <const> = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local slow, fast = handle:queue "slow", handle:queue "fast"
    local h = host.start(url, NAP, { "--workers", "3", "--queues", "slow,fast", "--reserve", "fast=2" })
    local function running(n)
      eventually(function() return #handle:execute "SELECT 1 FROM nightshift_running" == n end)
    end
    local function says(id, words, workers, free)
      local fact = eventually(function()
        local text, fact = handle:why(id)
        return text:find(words, 1, true) and fact, text
      end)
      assert.same({ "busy", workers, free }, { fact.kind, fact.workers, fact.free })
    end
    assert(slow:push "nap")
    running(1)
    says(assert(slow:push "nap"), "the only worker for it is busy; it comes next", 1, 0)
    for _ = 1, 2 do assert(fast:push "nap") end
    running(3)
    says(assert(fast:push "nap"), "all 3 workers for it are busy; it comes next", 3, 0)
    h:signal "QUIT"
    h:wait(20)
  end)
end)
