-- Somebody's open transaction had been refused a unique key, and so held its
-- row: the host that ended the key's job waited for it.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local host = require "spec.support.host"

describe("an open transaction that was refused a unique key", function()
  it("stalls no other job", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local other <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local h = host.start(url, [[return { job = function() end }]])
    local first = assert(q:push("job", nil, { unique = "key", delay = 3600 }))
    local ok, why = pcall(other.transaction, other, function(tx)
      assert.equal("DUPLICATE", select(3, tx:queue("q"):push("job", nil, { unique = "key" })))
      assert(handle:run_now(first))
      local slow = 0
      for _ = 1, 20 do
        local begun, id = nightshift.clock(), assert(q:push "job")
        eventually(function() return handle:job(id).state == "done" end)
        slow = slow + (nightshift.clock() - begun < 2.5 and 0 or 1)
      end
      assert.is_true(slow <= 2, slow) -- each waits for a lock: 3 s
      error "as planned"
    end)
    if not ok and not tostring(why):find "as planned" then error(why, 0) end
    eventually(function() return handle:job(first).state == "done" end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)
