-- A signal that came while the run was at work that the one before it had woken
-- was deleted with that run's verdict: a job that waits for one after the other
-- missed it and slept until its deadline.

local db = require "spec.support.db"
local nightshift = require "nightshift"

describe("a signal that comes while the one before is dealt with", function()
  it("satisfies the next wait", function()
    local handle <close> = assert(nightshift.open((db.fresh())))
    local q = handle:queue "q"
    local id = assert(q:push "job")
    assert(q:claim():wait { signal = "message" })
    for i = 1, 5 do
      if i == 1 then assert(handle:signal(id, 1, "message")) end
      local job = assert(q:claim())
      assert.equal(i, job.signal)
      assert(handle:signal(id, i + 1, "message"))
      assert(job:wait { signal = "message" })
    end
  end)
end)
