-- A child that was pushed while its parent was parked was not waited for.

describe("a child that is pushed while its parent waits for its children", function()
  local handle, q, parent

  with_database(function(...)
    handle, q = ...
    parent = assert(q:push "parent")
  end)

  local function park(policy)
    local job = q:claim()
    job:spawn("child", 1)
    assert(job:wait { on_fail = policy })
  end

  it("is waited for, too", function()
    park()
    local late = assert(q:push("late", nil, { parent = parent }))
    assert(q:claim():ack())
    assert.equal("waiting", handle:job(parent).state)
    local job = q:claim()
    assert.equal(late, job.id)
    assert(job:ack "late")
    job = q:claim()
    assert.equal(parent, job.id)
    assert.same({ 2, "late" }, { #job.results, job.results[2].result })
  end)

  it("and fails: as its policy says, also when it fails at once", function()
    local bad = assert(q:push("bad", nil, { priority = 200 }))
    assert(q:claim():discard "bad")
    for policy, expected in pairs { fail = "dead", continue = "waiting" } do
      park(policy)
      assert(q:push("late", nil, { parent = parent, after = { bad } }))
      assert.equal(expected, handle:job(parent).state)
      assert(q:claim():ack())
      if policy == "continue" then assert(q:claim():ack()) end
      parent = assert(q:push "parent")
    end
  end)

  it("is not waited for when the parent waits for something else, or runs", function()
    local job = q:claim()
    assert(q:push("early", nil, { parent = parent }))
    assert(job:wait { signal = "go" })
    assert(q:push("late", nil, { parent = parent }))
    assert(handle:signal(parent, 1, "go"))
    assert.equal("early", q:claim().name)
    assert.equal("late", q:claim().name)
    assert.equal(parent, q:claim().id)
  end)

  it("with a parent that has ended: NOT_FOUND", function()
    assert(q:claim():ack())
    local ok, message, code = q:push("late", nil, { parent = parent })
    assert.same({ nil, "NOT_FOUND" }, { ok, code })
    assert.matches("job " .. parent, message)
  end)
end)
