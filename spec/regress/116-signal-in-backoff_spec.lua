-- A job that had waited for a signal and then failed, or polled, ran at once when
-- another signal of that name came: whoever sent them could undo its backoff. It
-- was shown as waiting, too.

describe("a job that has waited for a signal", function()
  local handle, q, id

  with_database(function(...)
    handle, q = ...
    id = assert(q:push "job")
    assert(q:claim():wait { signal = "a" })
    assert(handle:signal(id, 1, "a"))
  end)

  it("keeps to its backoff, and is given the newest afterwards", function()
    assert(q:claim():fail("oh", { retry_in = "1h" }))
    assert(handle:signal(id, 2, "a"))
    assert.is_nil(q:claim())
    assert.equal("scheduled", handle:job(id).state)
    assert(handle:run_now(id))
    assert.equal(2, assert(q:claim()).signal)
  end)

  it("keeps to its pace, and hears it at its next wait", function()
    assert(q:claim():again "1h")
    assert(handle:signal(id, 2, "a"))
    assert.is_nil(q:claim())
    assert.equal("scheduled", handle:job(id).state)
    assert(handle:run_now(id))
    local job = assert(q:claim())
    assert.is_nil(job.signal)
    assert(job:wait { signal = "a" })
    assert.equal(2, assert(q:claim()).signal)
  end)
end)
