-- `prune{tree = id}` of a job that had ended took it from below a parent that still
-- waited: its results had a child without an outcome. What was not there, a job that
-- nobody knew or one that had been pruned before, was counted as deleted.

describe("pruning a tree", function()
  local handle, q

  with_database(function(...) handle, q = ... end)

  it("is refused for a part of it while another lives", function()
    local top = assert(q:push "top")
    local job = assert(q:claim())
    local first, second = job:spawn "child", job:spawn "child"
    assert(job:wait())
    assert(q:claim():ack(1))
    local deleted, message, code = handle:prune { tree = first }
    assert.same({ nil, "STATE" }, { deleted, code })
    assert.matches("has not finished", message)
    assert(q:claim():ack(2))
    local parent = assert(q:claim())
    assert.same({ top, "done", "done" }, { parent.id, parent.results[1].outcome, parent.results[2].outcome })
    assert(parent:ack())
    assert.equal(1, handle:prune { tree = second })
    assert.equal(2, handle:prune { tree = top })
  end)

  it("says what it does not know", function()
    local deleted, _, code = handle:prune { tree = 4711 }
    assert.same({ nil, "NOT_FOUND" }, { deleted, code })
  end)
end)
