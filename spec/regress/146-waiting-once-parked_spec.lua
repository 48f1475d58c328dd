-- A job that had once waited for a signal looked as if it still did, whenever it
-- was due later: as "waiting" while it polled or stood in its backoff; and any
-- further signal cut its delay short.

describe("a job that has waited for a signal", function()
  local handle, q, id
  with_database(function(...)
    handle, q = ...
    id = assert(q:push "job")
    assert(q:claim():wait { signal = "go" })
    assert(handle:signal(id, 1, "go"))
  end)

  for verb, give in pairs {
    again = function(job) return job:again(3600) end,
    fail = function(job) return job:fail("no", { retry_in = 3600 }) end,
  } do
    it("is scheduled after " .. verb .. ", and another signal does not hurry it", function()
      assert(give(assert(q:claim())))
      assert.equal("scheduled", handle:job(id).state)
      assert.equal("scheduled", handle:jobs({})[1].state)
      assert(handle:signal(id, 2, "go"))
      assert.equal("scheduled", handle:job(id).state)
      assert.is_nil(q:claim())
      assert.equal(id, handle:jobs({ state = "scheduled" })[1].id)
      assert.same({}, handle:jobs { state = "waiting" })
    end)
  end
end)
