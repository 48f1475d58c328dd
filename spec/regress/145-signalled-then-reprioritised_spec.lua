-- A signal moved the job's row in scheduled and left its due time at the
-- deadline: until it was promoted the job was "waiting", and another priority in
-- between scheduled it for the deadline again, without a second signal for ever.

describe("a job whose signal has come", function()
  local handle, q
  with_database(function(...) handle, q = ... end)

  it("is ready, and stays so with another priority", function()
    local id = assert(q:push "job")
    assert(q:claim():wait { signal = "go" })
    assert.equal("waiting", handle:job(id).state)
    assert(handle:signal(id, 1, "go"))
    assert.equal("ready", handle:job(id).state)
    assert(handle:reprioritise(id, 7))
    local job = assert(q:claim())
    assert.same({ id, 7, 1 }, { job.id, job.priority, job.signal })
  end)
end)
