-- A job that was cancelled while it waited left behind what it waited for.
-- Retried, and waiting anew, it was told of the end of those it no longer waited
-- for, and ran before its children had ended; or could not wait at all, because
-- it "waited" already.

local nightshift = require "nightshift"
local db = require "spec.support.db"

describe("a job that waited, was cancelled and retried", function()
  local handle, q, name

  before_each(function()
    local url
    url, name = db.fresh()
    handle = assert(nightshift.open(url))
    q = handle:queue "q"
  end)
  after_each(function() handle:close() end)

  it("waits for its children, not for what it waited for before", function()
    local first = assert(q:push("first", nil, { priority = 1 }))
    local parent = assert(q:push("parent", nil, { after = { first } }))
    assert(handle:cancel(parent))
    assert(handle:retry(parent))
    local job = assert(q:claim())
    assert.equal(parent, job.id)
    job:spawn("child", 1, { priority = 0 })
    assert(job:wait())
    job = assert(q:claim())
    assert.equal(first, job.id)
    assert(job:ack())
    assert.equal("waiting", handle:job(parent).state)
    assert(q:claim():ack())
    assert.equal(parent, q:claim().id)
  end)

  it("can wait for the same child again", function()
    local parent = assert(q:push("parent", nil, { priority = 200 }))
    local job = q:claim()
    local child = job:spawn("child", 1)
    assert(job:wait())
    assert(handle:cancel(parent))
    assert(handle:retry(parent))
    job = assert(q:claim())
    assert.equal(parent, job.id)
    assert(job:wait())
    assert.equal("waiting", handle:job(parent).state)
    job = assert(q:claim())
    assert.equal(child, job.id)
    assert(job:ack())
    assert.equal(parent, q:claim().id)
    assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_edge", name)))
  end)
end)
