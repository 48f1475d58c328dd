-- Jobs that wait: for others that were pushed, for their children.

local host = require "spec.support.host"

local url, handle, q

with_database(function(...) handle, q, url = ... end)

local function state(id) return handle:job(id).state end

describe("a push after others", function()
  it("is claimable when all of them are done", function()
    local a, b = assert(q:push "a"), assert(q:push "b")
    local c = assert(q:push("c", nil, { after = { a, b } }))
    assert.equal("waiting", state(c))
    assert(q:claim():ack())
    assert.equal("waiting", state(c))
    assert(q:claim():ack())
    assert.equal("ready", state(c))
    assert.equal(c, q:claim().id)
  end)

  it("of one that is done already does not wait", function()
    local a = assert(q:push "a")
    assert(q:claim():ack())
    assert.equal("ready", state(assert(q:push("b", nil, { after = { a } }))))
  end)

  it("of one that has failed is cancelled, or runs if it says so", function()
    local a = assert(q:push "a")
    assert(q:claim():discard "no")
    local b = assert(q:push("b", nil, { after = { a } }))
    assert.same({ "cancelled", "dependency" }, { handle:job(b).state, handle:job(b).reason })
    assert.equal("ready", state(assert(q:push("c", nil, { after = { a }, on_fail = "run" }))))
  end)

  it("is cancelled when one of them fails later, or runs", function()
    local a = assert(q:push "a")
    local b = assert(q:push("b", nil, { after = { a } }))
    local c = assert(q:push("c", nil, { after = { a }, on_fail = "run" }))
    local d = assert(q:push("d", nil, { after = { b } }))
    assert(q:claim():discard "no")
    assert.same({ "cancelled", "ready", "cancelled" }, { state(b), state(c), state(d) })
    assert.equal(("job %d, which it waited for, failed"):format(a), handle:job(b).error)
  end)

  it("of one that nobody knows is refused", function()
    local id, message, code = q:push("b", nil, { after = { 4711 } })
    assert.same({ nil, "NOT_FOUND" }, { id, code })
    assert.matches("job 4711", message)
  end)
end)

describe("job.results", function()
  it("has all children in the order of spawning, with their ends", function()
    assert(q:push "parent")
    local job = q:claim()
    for i = 1, 1200 do assert(job:spawn("kid", i)) end
    assert(job:wait { on_fail = "continue" })
    for _, kid in ipairs(q:claim_many(1200)) do
      if kid.payload == 700 then assert(kid:discard "not this") else assert(kid:ack { kid.payload }) end
    end
    job = assert(q:claim())
    assert.equal(1200, #job.results)
    local n = 0
    for i, child in ipairs(job.results) do
      n = n + 1
      if i == 700 then
        assert.same({ "dead", "discarded", "not this" }, { child.outcome, child.reason, child.error })
      else
        assert.same({ "done", { i }, "kid" }, { child.outcome, child.result, child.name })
      end
    end
    assert.equal(1200, n)
    assert.equal(5, job.results[5].result[1])
    assert.is_nil(job.results[1201])
  end)
end)

describe("job:wait", function()
  it("parks the parent until its children have ended", function()
    local parent = assert(q:push "parent")
    local job = q:claim()
    local kids = {}
    for i = 1, 3 do kids[i] = assert(job:spawn("kid", i)) end
    assert(job:wait())
    assert.equal("waiting", state(parent))
    for i = 1, 3 do
      assert.equal("waiting", state(parent))
      local kid = assert(q:claim())
      assert.equal(kids[i], kid.id)
      assert.equal(parent, kid.parent)
      assert(kid:ack(i * 10))
    end
    job = assert(q:claim())
    assert.same({ parent, 2, 1, 1 }, { job.id, job.run, job.phase, job.attempt })
    assert(job:ack())
    assert.equal("done", state(parent))
  end)

  it("with children that have all ended comes back at once", function()
    assert(q:push "parent")
    local job = assert(q:claim())
    assert(job:spawn "kid")
    assert(job:wait())
    assert(q:claim():ack())
    assert(q:claim():wait())
    assert.equal(2, assert(q:claim()).phase)
  end)

  it("waits for children of earlier runs, too", function()
    local parent = assert(q:push "parent")
    local job = q:claim()
    assert(job:spawn("kid", 1))
    assert(job:wait())
    local kid = assert(q:claim())
    assert(kid:ack())
    job = assert(q:claim())
    assert(job:spawn("kid", 2))
    assert(job:wait())
    kid = assert(q:claim())
    assert.equal(2, kid.payload)
    assert.equal("waiting", state(parent))
    assert(kid:ack())
    assert.equal(2, assert(q:claim()).phase)
  end)

  it("ends as dead when a child fails, or goes on", function()
    for _, policy in ipairs { "fail", "continue" } do
      local parent = assert(q:push "parent")
      local job = q:claim()
      assert(job:spawn("kid", 1))
      assert(job:wait { on_fail = policy })
      local kid = assert(q:claim())
      assert(kid:discard "broken")
      if policy == "fail" then
        local info = handle:job(parent)
        assert.same({ "dead", "child failed", ("its child, job %d, failed"):format(kid.id) },
          { info.state, info.reason, info.error })
      else
        assert.equal(parent, assert(q:claim()).id)
      end
    end
  end)

  it("works in a handler", function()
    local id = assert(q:push("sum", { 1, 2, 3 }))
    local status, log = host.drain(url, [[return {
      sum = function(job)
        if job.phase == 0 then
          for _, n in ipairs(job.payload) do job:spawn("double", n) end
          return job:wait()
        end
        local sum = 0
        for _, child in ipairs(job.results) do sum = sum + child.result end
        return { #job.results, sum }
      end,
      double = function(job) return job.payload * 2 end,
    }]])
    assert.equal(0, status, log)
    assert.same({ "done", { 3, 12 } }, { handle:job(id).state, handle:job(id).result })
  end)
end)
