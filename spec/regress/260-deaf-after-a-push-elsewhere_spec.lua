-- Whoever waited for jobs of a queue did not listen for a while after a push into another
-- one: the longer that push lay back, up to five seconds.

local db = require "spec.support.db"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

local WAITER = [[
  local nightshift = require "nightshift"
  local db = assert(nightshift.open(%q))
  for job in db:queue "mine":jobs{ wait = 30 } do
    print(("late %%.3f"):format(nightshift.clock() - job.payload))
    io.flush()
    assert(job:ack())
  end]]

describe("a waiting claim", function()
  local url, name
  before_each(function() url, name = db.fresh() end)

  local function sleepers()
    return tonumber(db.sql([[SELECT COUNT(*) FROM information_schema.processlist
      WHERE db = DATABASE() AND info LIKE 'BEGIN NOT ATOMIC /* nightshift-wait%' AND state = 'User lock']], name))
  end

  for lapse, bound in pairs { [0.5] = 1, [1.8] = 3, [2.6] = 3 } do
    it(("hears of a push %g s after one into another queue"):format(lapse), function()
      local handle <close> = assert(nightshift.open(url))
      local waiter = proc.start { proc.lua, "-e", WAITER:format(url) }
      eventually(function() return sleepers() == 1 end)
      assert(handle:queue "other":push("a", 1))
      nst.sleep(lapse)
      assert(handle:queue "mine":push("b", nightshift.clock()))
      local late = tonumber(waiter:wait_line "^late (%S+)")
      assert.is_true(late < proc.limit(bound), late)
    end)
  end
end)
