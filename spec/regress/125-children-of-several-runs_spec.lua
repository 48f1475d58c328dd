-- job.results was in the order of the children's ids. Whoever ran the parent
-- takes ids from a block of its own, so children of a later run, spawned on
-- another host or by another worker, could stand before those of an earlier one.

local db = require "spec.support.db"
local nightshift = require "nightshift"

describe("job.results", function()
  it("is in the order of spawning, whoever ran the parent", function()
    local url = db.fresh()
    local a, b = assert(nightshift.open(url)), assert(nightshift.open(url))
    assert(a:queue "q":push "parent")              -- a has the lower block
    local job = b:queue "q":claim()
    assert(job:spawn("kid", "first"))
    assert(job:wait())
    assert(b:queue "q":claim():ack "first")
    job = a:queue "q":claim()
    assert(job:spawn("kid", "second"))
    assert(job:wait())
    assert(a:queue "q":claim():ack "second")
    job = a:queue "q":claim()
    assert.same({ "first", "second" }, { job.results[1].result, job.results[2].result })
    a:close()
    b:close()
  end)
end)
