-- A host in a database without queues listened for no queue, and for no new one either:
-- the greatest id that it knew was 0, which stood for "new ones do not matter". A first
-- job whose ring came before the host had put its name down started ten seconds late.

local host = require "spec.support.host"
local nst = require "nst"

local SLEEPER = [[SELECT time_ms / 1000 AS age FROM information_schema.processlist
  WHERE db = DATABASE() AND info LIKE 'BEGIN NOT ATOMIC /* nightshift-wait%' AND state = 'User lock']]

describe("a host that has seen no queue yet", function()
  local handle, url
  with_database(function(h, _, u) handle, url = h, u end)

  it("finds the first job without a ring", function()
    local h = host.start(url, "return { job = function() end }")
    eventually(function()
      return handle:execute("SELECT MAX(workers) AS n FROM nightshift_holder")[1].n == 2
    end)
    eventually(function() return handle:execute(SLEEPER)[1] end)
    local rung = nst.clock()
    assert(handle:execute "CALL nightshift_ring()")
    eventually(function() -- so that it looks often
      local sleeper = handle:execute(SLEEPER)[1]
      return sleeper and tonumber(sleeper.age) < nst.clock() - rung
    end)
    assert(handle:execute "CALL nightshift_push('q', 'job', 'null', '{}')")
    eventually(function() return handle:execute("SELECT COUNT(*) AS n FROM nightshift_finished")[1].n == 1 end, 8)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)
