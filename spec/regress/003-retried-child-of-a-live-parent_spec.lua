-- A child that waited for its parent, was cancelled and retried, kept its edge:
-- the parent's end then counted its unmet jobs below zero and was refused.

local nightshift = require "nightshift"
local db = require "spec.support.db"

describe("a waiting child that is cancelled and retried", function()
  it("runs, and its parent can end", function()
    local handle <close> = assert(nightshift.open((db.fresh())))
    local q = handle:queue "q"
    assert(q:push("parent", 1))
    local parent = assert(q:claim())
    local id = parent:spawn("child", 1)
    assert(parent:again(0.1))
    assert(handle:cancel(id))
    assert(handle:retry(id))
    local child = assert(q:claim())
    assert.equal(id, child.id)
    parent = assert(q:claim { wait = 20 })
    assert.is_true((parent:ack()))
    assert.is_true((child:ack()))
  end)
end)
