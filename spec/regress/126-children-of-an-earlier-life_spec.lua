-- A job that was retried still had the children of its earlier life in
-- job.results, so what a handler finds there is not what it has spawned: the
-- failed child that ended the first life came first.

local db = require "spec.support.db"
local nightshift = require "nightshift"

describe("a parent that is retried", function()
  it("has the children of this life in job.results", function()
    local handle = assert(nightshift.open(db.fresh()))
    local q = handle:queue "q"
    local id = assert(q:push "parent")
    local job = q:claim()
    assert(job:spawn "kid")
    assert(job:wait())
    assert(q:claim():discard "no")
    assert.equal("dead", handle:job(id).state)
    assert(handle:retry(id))
    job = q:claim()
    assert.equal(0, #job.results)
    assert(job:spawn "kid")
    assert(job:wait())
    assert(q:claim():ack "yes")
    job = q:claim()
    assert.same({ 1, "yes" }, { #job.results, job.results[1].result })
    handle:close()
  end)
end)
