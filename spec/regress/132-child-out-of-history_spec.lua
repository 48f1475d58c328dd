-- A job that waited once more after some of its children had been pruned: its
-- verdict was never written, because those were neither live nor ended.

local nightshift = require "nightshift"
local db = require "spec.support.db"

describe("a job whose earlier children are in no history any more", function()
  it("can wait for others", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local parent = assert(q:push "parent")
    local job = q:claim()
    for i = 1, 2 do job:spawn("child", i) end
    assert(job:wait())
    for _ = 1, 2 do assert(q:claim():ack()) end
    job = q:claim()
    db.sql("DELETE FROM nightshift_finished", name)
    job:spawn("child", 3)
    assert(job:wait())
    assert.equal("waiting", handle:job(parent).state)
    assert(q:claim():ack())
    assert.equal(2, q:claim().phase)
  end)
end)
