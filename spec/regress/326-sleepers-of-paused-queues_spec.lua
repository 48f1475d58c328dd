-- Consumers whose queues were paused were one kind of sleeper, whatever their queues: a
-- resume ended the sleep of the oldest and the newest of them, and the one whose queue it was
-- slept on for up to ten seconds.

local db = require "spec.support.db"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local CONSUMER = [[
  local db = assert(require "nightshift".open(%q))
  for job in db:queue %q:jobs { wait = 60 } do
    assert(job:ack())
    break
  end]]

describe("consumers of paused queues", function()
  it("are woken by the resume of their own queue, the middle one, too", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local all = {}
    local function asleep(n, ms) -- so many consumers, for so long
      eventually(function()
        return db.sql("SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE 'User %' AND time_ms > "
          .. ms, name) == tostring(n)
      end)
    end
    for i, queue in ipairs { "one", "two", "three" } do
      assert(handle:queue(queue):push "noop")
      assert(handle:queue(queue):pause())
      all[i] = proc.start { proc.lua, "-e", CONSUMER:format(url, queue) }
      asleep(i, 0)
    end
    asleep(3, 3000) -- a sleep looks again in its first two seconds
    assert(handle:queue "two":resume())
    local resumed = nightshift.clock()
    assert.equal(0, all[2]:wait(60))
    local late = nightshift.clock() - resumed
    for _, consumer in ipairs(all) do consumer:signal "KILL" end
    assert.is_true(late < proc.limit(5), ("%.1f s late"):format(late))
  end)
end)
