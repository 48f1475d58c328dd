-- Somebody's open transaction held the job that a child was to wait for: the
-- host waited for it, with all its other jobs.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local host = require "spec.support.host"

describe("a child after a job that an open transaction holds", function()
  it("keeps its parent's verdict waiting, and nothing else", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local other <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local held = assert(q:push("other", nil, { delay = 3600 }))
    local h = host.start(url, [[return {
      parent = function(job) job:spawn("other", 1, { after = { job.payload } }) end,
      other = function() end,
    }]])
    local parent
    other:transaction(function(tx)
      assert(tx:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", held))
      parent = assert(q:push("parent", held))
      local begun = nightshift.clock()
      for _ = 1, 20 do
        local id = assert(q:push "other")
        eventually(function() return handle:job(id).state == "done" end, 3)
      end
      assert.is_true(nightshift.clock() - begun < 3)
      assert.equal("running", handle:job(parent).state)
      return true
    end)
    eventually(function() return handle:job(parent).state == "done" end, 5)
    assert(handle:cancel(held))
    h:signal "TERM"
    assert.equal(0, h:wait())
    assert.equal(0, #handle:jobs { state = "running" })
  end)
end)
