-- A child that was spawned after a job that had failed was cancelled as it was
-- written, and its parent, which was to be dead when a child fails, ran again. So
-- it did when a child that it had pushed failed faster than its own verdict came.

local host = require "spec.support.host"

describe("a child that fails before its parent waits", function()
  local url, handle, q

  with_database(function(...) handle, q, url = ... end)

  local function failed()
    local id = assert(q:push "bad")
    assert(q:claim():discard "bad")
    return id
  end

  for policy, expected in pairs { fail = "dead", continue = "ready" } do
    it(("counts as one that fails later (%s): as it is spawned"):format(policy), function()
      local bad = failed()
      local parent = assert(q:push "parent")
      local job = q:claim()
      local child = job:spawn("child", 1, { after = { bad } })
      assert(job:wait { on_fail = policy })
      local info = handle:job(child)
      assert.same({ "cancelled", "dependency", ("job %d, which it waited for, failed"):format(bad) },
        { info.state, info.reason, info.error })
      info = handle:job(parent)
      assert.equal(expected, info.state)
      if policy == "fail" then
        assert.same({ "child failed", ("its child, job %d, failed"):format(child) }, { info.reason, info.error })
      end
    end)

    it(("counts as one that fails later (%s): pushed by its parent"):format(policy), function()
      local parent = assert(q:push "parent")
      local job = q:claim()
      assert(q:push("child", nil, { parent = parent }))
      assert(q:claim():discard "bad")
      assert(job:wait { on_fail = policy })
      assert.equal(expected, handle:job(parent).state)
    end)
  end

  it("counts on a host, too", function()
    local bad = failed()
    local parents = {}
    for i, policy in ipairs { "fail", "continue" } do
      parents[i] = assert(q:push("parent", { after = bad, policy = policy }))
    end
    local status, log = host.drain(url, [[return { parent = function(job)
      if job.phase > 0 then return #job.results end
      job:spawn("child", 1, { after = { job.payload.after } })
      return job:wait { on_fail = job.payload.policy }
    end }]])
    assert.equal(0, status, log)
    assert.same({ "dead", "child failed" }, { handle:job(parents[1]).state, handle:job(parents[1]).reason })
    assert.same({ "done", 1 }, { handle:job(parents[2]).state, handle:job(parents[2]).result })
  end)

  it("and was seen by an earlier run does not count again", function()
    local parent = assert(q:push "parent")
    local job = q:claim()
    job:spawn("child", 1)
    assert(job:wait { on_fail = "continue" })
    assert(q:claim():discard "bad")
    job = q:claim()
    job:spawn("child", 2)
    assert(job:wait())
    assert(q:claim():ack())
    assert.equal(parent, q:claim().id)
  end)

  it("and belongs to a run before a retry does not count again", function()
    local parent = assert(q:push "parent")
    local job = q:claim()
    job:spawn("child", 1)
    assert(job:wait())
    assert(q:claim():discard "bad")
    assert(handle:retry(parent))
    job = q:claim()
    job:spawn("child", 2)
    assert(job:wait())
    assert(q:claim():ack())
    assert.equal(parent, q:claim().id)
  end)
end)
