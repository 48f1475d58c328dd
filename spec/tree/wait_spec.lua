-- Jobs that wait: for jobs that were pushed, for their children, and never for each other.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"

-- Jobs that wait: for jobs that were pushed, for their children.
describe("waits:", function()
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
end)

-- A child that waited for its parent, was cancelled and retried, kept its edge. The parent's
-- end then counted its unmet jobs below zero and was refused.
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

-- A parent that waits for its children, one of which waits for the parent: none was ever to run
-- again.
describe("a parent and a child that wait for each other", function()
  local handle, q

  with_database(function(...) handle, q = ... end)

  local function state(id) return handle:job(id).state end

  it("do not: a child of an earlier run is claimable once its parent waits for it", function()
    local parent = assert(q:push "parent")
    local job = q:claim()
    local child = job:spawn("child", 1)
    local later = job:spawn("child", 2, { delay = 60 })
    assert(job:again(0))
    assert.same({ "waiting", "waiting" }, { state(child), state(later) })
    assert(q:claim():wait())
    assert.same({ "waiting", "ready", "scheduled" }, { state(parent), state(child), state(later) })
    assert(q:claim():ack())
    assert(handle:run_now(later))
    assert(q:claim():ack())
    assert.equal(1, q:claim().phase)
  end)

  it("do not: a child that is spawned after its parent, or pushed", function()
    local parent = assert(q:push "parent")
    local job = q:claim()
    local pushed = assert(q:push("child", nil, { parent = parent, after = { parent } }))
    local child = job:spawn("child", 1, { after = { parent } })
    assert(job:wait())
    local late = assert(q:push("child", nil, { parent = parent, after = { parent } }))
    assert.same({ "ready", "ready", "ready" }, { state(pushed), state(child), state(late) })
    for _ = 1, 3 do assert(q:claim():ack()) end
    assert.equal(parent, q:claim().id)
  end)

  it("by a third: the verdict is refused, and says so", function()
    local parent = assert(q:push "parent")
    local third = assert(q:push("third", nil, { after = { parent } }))
    local job = q:claim()
    local child = job:spawn("child", 1, { after = { third } })
    local ok, message, code = job:wait()
    assert.same({ nil, "INVALID" }, { ok, code })
    assert.equal(("job %d would wait for itself: its child, job %d, waits for a job that waits for it")
      :format(parent, child), message)
    assert(job:ack())
    assert(q:claim():ack())
    assert.equal("ready", state(child))
  end)

  it("by a third, through a late push: it is refused", function()
    local parent = assert(q:push "parent")
    local third = assert(q:push("third", nil, { after = { parent } }))
    local job = q:claim()
    job:spawn("child", 1)
    assert(job:wait())
    local ok, _, code = q:push("late", nil, { parent = parent, after = { third } })
    assert.same({ nil, "INVALID" }, { ok, code })
    assert(q:claim():ack())
    assert.equal(parent, q:claim().id)
  end)

  it("as a grandchild that is to wait for its grandparent: refused", function()
    local parent = assert(q:push "parent")
    local job = q:claim()
    job:spawn("child", 1)
    assert(job:wait())
    job = q:claim()
    job:spawn("grandchild", 1, { after = { parent } })
    assert.equal("INVALID", select(3, job:wait()))
    assert(job:ack())
    assert.equal(parent, q:claim().id)
  end)
end)

-- A job that was cancelled while it waited left behind what it waited for. Retried, and waiting
-- anew, it was told of the end of jobs it no longer waited for, and ran before its children had
-- ended. Or it could not wait at all, because it "waited" already.
describe("a job that waited, was cancelled and retried", function()
  local handle, q, name

  before_each(function()
    local url
    url, name = db.fresh()
    handle = assert(nightshift.open(url))
    q = handle:queue "q"
  end)
  after_each(function() handle:close() end)

  it("waits for its children, not for what it waited for before", function()
    local first = assert(q:push("first", nil, { priority = 1 }))
    local parent = assert(q:push("parent", nil, { after = { first } }))
    assert(handle:cancel(parent))
    assert(handle:retry(parent))
    local job = assert(q:claim())
    assert.equal(parent, job.id)
    job:spawn("child", 1, { priority = 0 })
    assert(job:wait())
    job = assert(q:claim())
    assert.equal(first, job.id)
    assert(job:ack())
    assert.equal("waiting", handle:job(parent).state)
    assert(q:claim():ack())
    assert.equal(parent, q:claim().id)
  end)

  it("can wait for the same child again", function()
    local parent = assert(q:push("parent", nil, { priority = 200 }))
    local job = q:claim()
    local child = job:spawn("child", 1)
    assert(job:wait())
    assert(handle:cancel(parent))
    assert(handle:retry(parent))
    job = assert(q:claim())
    assert.equal(parent, job.id)
    assert(job:wait())
    assert.equal("waiting", handle:job(parent).state)
    job = assert(q:claim())
    assert.equal(child, job.id)
    assert(job:ack())
    assert.equal(parent, q:claim().id)
    assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_edge", name)))
  end)
end)

-- A child that was spawned after a job that had failed was cancelled as it was written. And its
-- parent, which was to be dead when a child fails, ran again. So it did when a child that it
-- had pushed failed faster than its own verdict came.
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

-- Children of a run that said "again" wait for their parent's end. When a later
-- run of it said "wait", the parent waited for them, and they for it, for ever.
-- Found by the torture.
describe("a parent that waits after it has said again", function()
  local handle, q
  with_database(function(...) handle, q = ... end)

  -- The parent's second run, claimed; its first had these children.
  local function second_run(...)
    assert(q:push("parent", 1, { priority = 200, backoff = 0 }))
    local job = assert(q:claim())
    local ids = {}
    for i, options in ipairs { ... } do ids[i] = assert(job:spawn("child", i, options)) end
    assert(job:again(0))
    assert.equal("waiting", handle:job(ids[1]).state)
    return assert(q:claim()), ids
  end

  it("lets the earlier children go", function()
    local job, ids = second_run({}, { delay = 3600 })
    local after = assert(job:spawn("child", 3, { after = { ids[1] } }))
    assert(job:wait())
    assert.same({ "ready", "scheduled", "waiting" },
      { handle:job(ids[1]).state, handle:job(ids[2]).state, handle:job(after).state })
    assert.equal(3, handle:job(job.id).unmet)
    assert(assert(q:claim()):ack "first")
    assert(handle:run_now(ids[2]))
    for _ = 1, 2 do assert(assert(q:claim()):ack()) end
    local last = assert(q:claim())
    assert.same({ job.id, 1, "first" }, { last.id, last.phase, last.results[1].result })
    assert(last:ack())
    assert.equal(0, assert(handle:execute "SELECT COUNT(*) AS n FROM nightshift_edge")[1].n)
  end)

  it("leaves those that wait for its end for another reason", function()
    local job = second_run {}
    local join = assert(q:push("join", 1, { after = { job.id } }))
    assert(job:wait())
    assert.equal("waiting", handle:job(join).state)
    assert(assert(q:claim()):ack())
    assert(assert(q:claim()):ack())
    assert.equal("join", assert(q:claim()).name)
  end)
end)

-- Two parents that parked in overlapping transactions, with children that waited crosswise for
-- jobs behind the other parent. Each alone was refused, together they waited for each other for
-- ever.
describe("two waits that would close a circle together", function()
  local url, one, two

  before_each(function()
    url = db.fresh()
    one, two = assert(nightshift.open(url)), assert(nightshift.open(url))
  end)

  after_each(function()
    one:close()
    two:close()
  end)

  -- A claimed parent, and the end of a chain behind it.
  local function chain(handle, queue)
    local q = handle:queue(queue)
    local parent = assert(q:push "parent")
    local job = assert(q:claim())
    local x = assert(q:push("x", nil, { after = { parent } }))
    return job, assert(q:push("y", nil, { after = { x } }))
  end

  it("wait one after the other, and the second is refused", function()
    local p1, y1 = chain(one, "a")
    local p2, y2 = chain(two, "b")
    assert(p1:spawn("child", nil, { after = { y2 } }))
    assert(p2:spawn("child", nil, { after = { y1 } }))
    assert(one:transaction(function()
      assert(p1:wait())
      local ok, _, code = p2:wait()
      assert.same({ nil, "BUSY" }, { ok, code })
    end))
    local ok, message, code = p2:wait()
    assert.same({ nil, "INVALID" }, { ok, code })
    assert.matches("would wait for itself", message)
    assert(p2:ack())
    local ended = {}
    eventually(function()
      local job = two:queue("b"):claim() or one:queue("a"):claim()
      if not job then return false end
      ended[#ended + 1] = job.name
      return assert(job:ack()) and #ended == 7
    end)
    assert.equal("done", one:job(p1.id).state)
    assert.same({ "x", "y", "child", "parent", "x", "y", "child" }, ended)
  end)

  it("do not hold each other up where no circle can be", function()
    local p1 = chain(one, "a")
    local p2 = chain(two, "b")
    assert(p1:spawn "child")
    assert(p2:spawn "child")
    assert(one:transaction(function()
      assert(p1:wait())
      assert(p2:wait())
    end))
  end)
end)

-- A parent and its child that were parked in one batch, each with its half of a circle. Both
-- looked before either had written, neither was refused, and all of them waited for ever.
describe("a circle that a parent and its child close at one moment", function()
  -- Each says that it runs, goes on when its file is there, and says so.
  local HANDLERS = [[
local function pass(job)
  io.stderr:write("runs " .. job.name .. "\n")
  repeat require "nightshift.core".sleep(0.01) until io.open(os.getenv "GATE" .. job.name)
  io.stderr:write("leaves " .. job.name .. "\n")
end
return {
  first = pass,
  parent = function(job)
    pass(job)
    return job:wait()
  end,
  child = function(job)
    job:spawn("last", nil, { after = { job.payload } })
    pass(job)
    return job:wait()
  end,
}]]

  it("is refused to one of them, and all come to an end", function()
    local server = db.server()
    local url = server:fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    assert(q:push "first")
    local parent = assert(q:push("parent", nil, { max_attempts = 1 }))
    local between = assert(q:push("between", nil, { after = { parent } }))
    local child = assert(q:push("child", between, { parent = parent, max_attempts = 1 }))
    local gate = fixture.dir() .. "/"
    local h = host.start(url, HANDLERS, { "--workers", "3" }, { GATE = gate })
    h:wait_line("runs ", 20, 3)
    server:freeze() -- while the first's verdict is on its way the rest gather
    for i, name in ipairs { "first", "parent", "child" } do
      assert(io.open(gate .. name, "w")):close()
      h:wait_line("leaves ", 20, i)
    end
    server:thaw()
    eventually(function() return handle:execute("SELECT COUNT(*) AS n FROM nightshift_job")[1].n == 0 end, 20)
    assert.same({ "dead", "dead", "cancelled" },
      { handle:job(parent).state, handle:job(child).state, handle:job(between).state })
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)
