-- A retried job had no deadline any more: a poll that had given up at its deadline
-- and was retried polled for ever, and its on_timeout was never called.

local db = require "spec.support.db"
local nightshift = require "nightshift"

describe("a job that is retried", function()
  it("has as long as it had at first", function()
    local handle <close> = assert(nightshift.open((db.fresh())))
    local q = handle:queue "q"
    local id = assert(q:push("job", nil, { deadline = 2 }))
    local first = assert(q:claim())
    local stop = first.deadline - first.created
    assert.is_true(stop >= 2000000 and stop < 2001000)
    assert(first:again(0.01))
    eventually(function()
      local polling = q:claim { wait = 5 }
      return polling == nil or select(2, polling:again(0.01)) == true
    end)
    assert.equal("poll deadline", handle:job(id).reason)
    assert(handle:retry(id))
    local job = assert(q:claim())
    assert.equal(stop, job.deadline - job.created)
    assert(job:again(0))
    assert.equal("ready", handle:job(id).state)
  end)
end)
