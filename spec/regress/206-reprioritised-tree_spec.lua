-- Another priority for a whole tree moved its jobs and was forgotten when they
-- ended: the history had the old one, and so had who ran again.

describe("the priority of a tree", function()
  local handle, q

  with_database(function(...) handle, q = ... end)

  local function priority(id) return handle:job(id).priority end

  it("is that of its jobs when they have ended, and when they run again", function()
    local root, ids = assert(handle:flow {
      name = "root", queue = "q", children = { { name = "child", priority = 30 } },
    })
    local child = ids.children[1].id
    assert.equal(2, handle:reprioritise(root, 7, { tree = true }))
    assert(q:claim():ack())
    assert(q:claim():discard "no")
    assert.same({ 7, 7 }, { priority(root), priority(child) })
    assert(handle:retry(root))
    assert.same({ 7, 7 }, { priority(root), assert(q:claim()).priority })
  end)

  it("counts for a job that has sunk to it", function()
    local id = assert(q:push("job", nil, { priority = 100, decay = 8 }))
    assert(q:claim():fail("no", { retry_in = 3600 }))
    assert.equal(92, priority(id))
    assert(handle:reprioritise(id, 92, { tree = true }))
    assert(handle:run_now(id))
    assert(q:claim():ack())
    assert.equal(92, priority(id))
  end)

  it("stays what it was with the other verbs", function()
    local id = assert(q:push("job", nil, { priority = 100, decay = 8 }))
    assert(q:claim():fail("no", { retry_in = 3600 }))
    assert(handle:pause(id))
    assert(handle:deadline(id, "2h", { tree = true }))
    assert(handle:resume(id))
    assert(handle:run_now(id, { tree = true }))
    assert.equal(92, priority(id))
    assert(q:claim():ack())
    assert.equal(100, priority(id))
  end)
end)
