-- Priorities of live jobs.

local handle, q

with_database(function(...) handle, q = ... end)

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
    local job = assert(q:claim { wait = 20 })
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

describe("decay", function()
  local function priority(id) return handle:job(id).priority end

  it("takes 8 of the priority with each failure, crash or poll, and ends at 0", function()
    local id = assert(q:push("a", nil, { priority = 20, max_attempts = 20 }))
    for _, expected in ipairs { 12, 4, 0, 0 } do
      assert(q:claim { wait = 20 }:fail("no", { retry_in = 0 }))
      assert.equal(expected, priority(id))
    end
    assert(handle:reprioritise(id, 100))
    assert(q:claim():again(0))
    assert.equal(92, priority(id))
    assert(q:claim():release())
    assert.equal(92, priority(id), "what is given back untouched stays where it was")
  end)

  it("is what the push says: 0 never sinks, 255 sinks at once", function()
    local stays = assert(q:push("a", nil, { decay = 0, priority = 255 }))
    local falls = assert(q:push("b", nil, { decay = 255, priority = 254 }))
    for _ = 1, 3 do assert(q:claim():again(0)) end
    assert.equal(255, priority(stays))
    assert(q:claim():ack())
    assert(q:claim():fail("no", { retry_in = 0 }))
    assert.equal(0, priority(falls))
    assert(q:claim():fail("no", { retry_in = 0 }))
    assert.equal(0, priority(falls))
  end)

  it("outlives the end and the retry of a job, as its priority does", function()
    local id = assert(q:push("a", nil, { decay = 3, priority = 9 }))
    assert(handle:reprioritise(id, 50))
    assert(q:claim():discard "no")
    assert.same({ 3, 50 }, { handle:job(id).decay, priority(id) })
    assert(handle:retry(id))
    assert(q:claim():again(0))
    assert.same({ 3, 47 }, { handle:job(id).decay, priority(id) })
  end)

  it("goes with children, and through the procedure", function()
    assert(q:push "parent")
    local job = assert(q:claim())
    local child = assert(job:spawn("child", nil, { decay = 1 }))
    assert(job:ack())
    assert.equal(1, handle:job(child).decay)
    assert(handle:execute "CALL nightshift_push('p', 'n', '1', '{\"decay\": 0}')")
    assert(handle:execute "CALL nightshift_push('p', 'n', '1', NULL)")
    local p = handle:queue "p"
    for _ = 1, 3 do assert(p:claim():again(0)) end
    assert.same({ 100, 92 }, { p:claim().priority, p:claim().priority })
  end)

  it("refuses what is no decay", function()
    for _, bad in ipairs { -1, 256, 1.5 } do
      assert.equal("INVALID", select(3, q:push("a", nil, { decay = bad })))
    end
    local ok, message = handle:execute "CALL nightshift_push('q', 'n', '1', '{\"decay\": 256}')"
    assert.is_nil(ok)
    assert.matches("out of range: decay", message)
  end)
end)
