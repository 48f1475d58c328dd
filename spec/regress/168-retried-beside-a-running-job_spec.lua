-- A job had been cancelled while another that it waited for still ran. Somebody's
-- open transaction ran it again, and so had deleted its edge: the host on which
-- the other ended waited for that transaction, with all its jobs.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local host = require "spec.support.host"

local HANDLERS = [[return {
  other = function() end,
}]]

describe("an open transaction that has retried a job", function()
  it("does not hold up the host on which another ends that it waited for", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local other <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local first = assert(q:push "other")
    local second = assert(q:push("other", nil, { delay = 1 }))
    local job = assert(q:claim())
    local id = assert(q:push("other", nil, { after = { first, second } }))
    assert(job:discard "no")
    assert.equal("cancelled", handle:job(id).state)
    local h = host.start(url, HANDLERS)
    assert(other:transaction(function()
      assert(other:retry(id))
      local slow = 0
      for _ = 1, 100 do
        local begun, more = nightshift.clock(), assert(q:push "other")
        eventually(function() return handle:job(more).state == "done" end)
        slow = slow + (nightshift.clock() - begun < 2.5 and 0 or 1)
      end
      assert.is_true(slow <= 2, slow) -- each waits for a lock: 3 s
      return true
    end))
    for _, each in ipairs { id, second } do
      eventually(function() return handle:job(each).state == "done" end)
    end
    h:signal "TERM"
    assert.equal(0, h:wait())
    assert.equal(0, handle:execute("SELECT COUNT(*) AS n FROM nightshift_edge")[1].n)
  end)
end)
