-- Priorities of live jobs.

local db = require "spec.support.db"
local nightshift = require "nightshift"

local handle, q

before_each(function()
  handle = assert(nightshift.open((db.fresh())))
  q = handle:queue "q"
end)

after_each(function() handle:close() end)

describe("reprioritise", function()
  it("moves a ready job", function()
    local a, b = assert(q:push "a"), assert(q:push "b")
    assert(handle:reprioritise(b, 200))
    assert.equal(200, handle:job(b).priority)
    assert.same({ b, a }, { q:claim().id, q:claim().id })
    assert.is_nil(q:claim())
  end)

  it("moves a scheduled job, which stays due", function()
    local a = assert(q:push("a", nil, { delay = 0.2 }))
    assert(handle:reprioritise(a, 10))
    assert.equal("scheduled", handle:job(a).state)
    local job = assert(q:claim { wait = 5 })
    assert.same({ a, 10 }, { job.id, job.priority })
  end)

  it("leaves a running job to its holder, and counts when it comes back", function()
    local a = assert(q:push "a")
    local job = q:claim()
    assert(handle:reprioritise(a, 50))
    assert(job:release())
    assert.equal(50, q:claim().priority)
  end)

  it("counts for a waiting job when it is met", function()
    local a = assert(q:push "a")
    local b = assert(q:push("b", nil, { after = { a } }))
    assert(handle:reprioritise(b, 7))
    assert.equal("waiting", handle:job(b).state)
    assert(q:claim():ack())
    assert.equal(7, q:claim().priority)
  end)

  it("refuses what is no priority, and jobs that have ended or never were", function()
    local a = assert(q:push "a")
    assert.equal("INVALID", select(3, handle:reprioritise(a, 256)))
    assert(q:claim():ack())
    assert.equal("STATE", select(3, handle:reprioritise(a, 1)))
    assert.equal("NOT_FOUND", select(3, handle:reprioritise(4711, 1)))
  end)
end)
