-- Jobs that wait for other jobs: for those they were pushed after, for their children, and never
-- for each other. And waiting jobs with a row that another transaction has locked: no host waits
-- for it, and none of them is missed.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local lab = require "spec.support.db".lab

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
      for i = 1, 620 do assert(job:spawn("kid", i)) end
      assert(job:wait { on_fail = "continue" })
      for _, kid in ipairs(q:claim_many(620)) do
        if kid.payload == 570 then assert(kid:discard "not this") else assert(kid:ack { kid.payload }) end
      end
      job = assert(q:claim())
      assert.equal(620, #job.results)
      local n = 0
      for i, child in ipairs(job.results) do
        n = n + 1
        if i == 570 then
          assert.same({ "dead", "discarded", "not this" }, { child.outcome, child.reason, child.error })
        else
          assert.same({ "done", { i }, "kid" }, { child.outcome, child.result, child.name })
        end
      end
      assert.equal(620, n)
      assert.equal(5, job.results[5].result[1])
      assert.is_nil(job.results[621])
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
    local server = db.spare()
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

-- ----- rows that are locked

-- Gives each test a database of its own, opened twice, and its queue "q".
local function with_two_handles(take)
  local other
  with_database(function(handle, q, url, name)
    other = assert(nightshift.open(url))
    take(handle, other, q, url, name)
  end)
  after_each(function() other:close() end)
end

describe("a job that waits, while somebody's transaction holds its row", function()
  local database, q, other

  setup(lab.fresh)
  before_each(function()
    database, other = lab.open(), lab.open()
    q = assert(database:queue "held")
  end)
  after_each(function()
    for _, job in ipairs(assert(database:jobs { queue = "held" })) do database:cancel(job.id) end
    other:close()
    database:close()
  end)

  local function hold(id)
    assert(other._handle:begin())
    assert(other:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", id))
  end

  local function two_with_join(on_fail)
    local first, second = assert(q:push "first"), assert(q:push "second")
    return assert(q:push("join", nil, { after = { first, second }, on_fail = on_fail }))
  end

  local function finish_two(outcome)
    for _ = 1, 2 do
      local job = assert(q:claim())
      assert(job[outcome](job, outcome == "discard" and "no" or nil))
    end
  end

  it("does not stop those it waits for, and starts when it is let go", function()
    local join = two_with_join()
    hold(join)
    local start = nightshift.clock()
    finish_two "ack"
    assert.is_true(nightshift.clock() - start < proc.limit(2.5)) -- it waits for a lock: 3 s
    assert.equal("waiting", database:job(join).state)
    assert.is_nil(q:claim())
    other._handle:rollback()
    assert.equal(join, assert(q:claim { wait = 20 }).id)
    assert.equal(0, database:execute "SELECT COUNT(*) AS n FROM nightshift_met"[1].n)
    assert.equal(0, database:execute "SELECT COUNT(*) AS n FROM nightshift_edge"[1].n)
  end)

  it("is cancelled with the failed ones' name when it is let go", function()
    local join = two_with_join()
    local behind = assert(q:push("behind", nil, { after = { join } }))
    hold(join)
    finish_two "discard"
    other._handle:rollback()
    assert(database:rescue())
    local info = assert(database:job(join))
    assert.equal("cancelled", info.state)
    assert.matches("which it waited for, failed", info.error)
    assert.equal("cancelled", assert(database:job(behind)).state)
  end)

  it("is told by another handle when the one that ended the others is gone", function()
    local join = two_with_join()
    hold(join)
    finish_two "ack"
    database:close()
    other._handle:rollback()
    assert(other:rescue())
    assert.equal(join, assert(other:queue "held":claim()).id)
    database = lab.open()
    q = assert(database:queue "held")
  end)

  it("waits again for one that was retried before it could be told", function()
    local first = assert(q:push "first")
    local join = assert(q:push("join", nil, { after = { first } }))
    hold(join)
    assert(assert(q:claim()):discard "no")
    assert(database:retry(first))
    other._handle:rollback()
    assert(database:rescue())
    assert.equal("waiting", assert(database:job(join)).state)
    assert(assert(q:claim()):ack())
    assert.equal(join, assert(q:claim()).id)
  end)
end)

describe("more ended jobs than are looked at together", function()
  setup(lab.fresh)

  it("do not hide others behind one whose row is held", function()
    local database <close> = lab.open()
    local other <close> = lab.open()
    local q = assert(database:queue "many")
    local items = {}
    for i = 1, 1200 do items[i] = { "piece" } end
    local held = assert(q:push("held", nil, { after = assert(q:push_many(items)) }))
    local free = assert(q:push("free", nil, { after = { assert(q:push "piece") } }))
    assert(other._handle:begin())
    assert(other:execute("SELECT id FROM nightshift_job WHERE id IN (?, ?) FOR UPDATE", held, free))
    local jobs = assert(q:claim_many(1201))
    assert(database:transaction(function()
      for _, job in ipairs(jobs) do assert(job:ack()) end
      return true
    end))
    assert.equal(1201, database:execute "SELECT COUNT(*) AS n FROM nightshift_met"[1].n)
    other._handle:rollback()
    assert(other._handle:begin())
    assert(other:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", held))
    assert.equal(free, assert(q:claim { wait = 20 }).id)
    other._handle:rollback()
    assert.equal(held, assert(q:claim { wait = 20 }).id)
  end)
end)

describe("a long chain of jobs that wait for each other", function()
  setup(lab.fresh)

  it("falls as a whole when its first one fails, in pieces", function()
    local database <close> = lab.open()
    local q = assert(database:queue "chain")
    local ids = { assert(q:push "link") }
    for i = 2, 100 do ids[i] = assert(q:push("link", nil, { after = { ids[i - 1] } })) end
    assert(assert(q:claim()):discard "no")
    for _ = 1, 4 do assert(database:rescue()) end
    for i = 2, #ids do assert.equal("cancelled", assert(database:job(ids[i])).state) end
  end)
end)

describe("a job that waits for one that somebody deleted by hand", function()
  setup(lab.fresh)

  it("falls with the next prune, however it was deleted", function()
    local database <close> = lab.open()
    local q = assert(database:queue "gone")
    local target = assert(q:push("target", nil, { delay = 3600 }))
    local strict = assert(q:push("strict", nil, { after = { target } }))
    local easy = assert(q:push("easy", nil, { after = { target }, on_fail = "run" }))
    assert(database:execute("DELETE FROM nightshift_job WHERE id = ?", target))
    assert(database:prune())
    assert.equal("cancelled", assert(database:job(strict)).state)
    assert.equal(easy, assert(q:claim()).id)
  end)
end)

-- An open transaction held the job that a child was to wait for: the
-- host waited for it, with all its other jobs. It has to wait for no such lock.
describe("an open transaction", function()
  local url, handle, other, q

  with_two_handles(function(...) handle, other, q, url = ... end)

  -- While it holds a job, other jobs run; the job that `begin` gives does not end.
  local function stalls_only(held, begin)
    local id
    other:transaction(function(tx)
      assert(tx:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", held))
      id = begin()
      local slow = 0
      for _ = 1, 10 do
        local begun, one = nightshift.clock(), assert(q:push "other")
        eventually(function() return handle:job(one).state == "done" end)
        slow = slow + (nightshift.clock() - begun < 2.5 and 0 or 1)
      end
      assert.is_true(slow <= 2, slow) -- each waits for a lock: 3 s
      assert.equal("running", handle:job(id).state)
      return true
    end)
    return id
  end

  it("that holds what a child is to wait for keeps its parent's verdict waiting, and nothing else", function()
    local held = assert(q:push("other", nil, { delay = 3600 }))
    local h = host.start(url, [[return {
      parent = function(job) job:spawn("other", 1, { after = { job.payload } }) end,
      other = function() end,
    }]])
    local parent = stalls_only(held, function() return assert(q:push("parent", held)) end)
    eventually(function() return handle:job(parent).state == "done" end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("that holds a child keeps its parent from being parked, and nothing else", function()
    local h = host.start(url, [[return {
      parent = function(job)
        if job.phase > 0 then return #job.results end
        if job.polls > 0 then return job:wait() end
        job:spawn("other", 1)
        return job:again(3600)
      end,
      other = function() end,
    }]])
    local parent = assert(q:push "parent")
    local child = eventually(function()
      local rows = handle:execute("SELECT id FROM nightshift_child WHERE parent = ?", parent)
      return rows[1] and rows[1].id
    end)
    stalls_only(child, function()
      assert(handle:run_now(parent))
      eventually(function() return handle:job(parent).state == "running" end)
      return parent
    end)
    eventually(function() return handle:job(parent).result == 1 end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

-- An open transaction held a job that waited, for another or for its children. The host that
-- ended what it waited for waited, too, with all its other jobs, until that transaction ended.
describe("an open transaction", function()
  local HANDLERS = [[return {
  parent = function(job)
    if job.phase > 0 then return #job.results end
    job:spawn("child", 1)
    return job:wait()
  end,
  child = function() end,
  other = function() end,
}]]

  local url, name, handle, other, q, h

  with_two_handles(function(...) handle, other, q, url, name = ... end)

  -- How many of 10 other jobs, one by one, take as long as a wait for a lock: 3 s.
  local function stalled()
    local slow = 0
    for _ = 1, 10 do
      local begun, id = nightshift.clock(), assert(q:push "other")
      eventually(function() return handle:job(id).state == "done" end)
      slow = slow + (nightshift.clock() - begun < 2.5 and 0 or 1)
    end
    return slow
  end

  -- Runs other jobs while a transaction, which is rolled back, has done
  -- `verb` to a job.
  local function while_held(verb, what)
    stalled() -- the host has learnt how long they take
    local ok, why = pcall(other.transaction, other, function()
      assert(verb())
      what()
      assert.is_true(stalled() <= 2)
      error "as planned"
    end)
    if not ok and not tostring(why):find "as planned" then error(why, 0) end
  end

  local function held(what, verb)
    it("that has " .. what .. " a dependent stalls no other job", function()
      h = host.start(url, HANDLERS)
      local first = assert(q:push("other", nil, { delay = 3600 }))
      local second = assert(q:push("other", nil, { after = { first } }))
      while_held(function() return verb(second) end, function() assert(handle:run_now(first)) end)
      eventually(function() return handle:job(second).state == "done" end)
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)

    it("that has " .. what .. " a parked parent stalls no other job", function()
      assert(handle:queue("slow"):push("other", nil, { delay = 3600 }))
      assert(handle:queue("slow"):pause())
      h = host.start(url, (HANDLERS:gsub('"child", 1', '"child", 1, { queue = "slow" }')))
      local parent = assert(q:push "parent")
      eventually(function() return handle:job(parent).state == "waiting" end)
      while_held(function() return verb(parent) end, function() assert(handle:queue("slow"):resume()) end)
      eventually(function() return handle:job(parent).state == "done" end)
      assert.equal(1, handle:job(parent).result)
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)
  end

  held("cancelled", function(id) return other:cancel(id) end)
  held("reprioritised", function(id) return other:reprioritise(id, 7) end)
  held("signalled", function(id) return other:signal(id, 1) end)

  it("outlives the host that found a parent held: the other one goes on", function()
    local parent = assert(q:push "parent")
    local job = q:claim()
    job:spawn("child", 1, { queue = "slow", delay = 3600 })
    assert(job:wait())
    h = host.start(url, HANDLERS, { "--queues", "slow" })
    local second = host.start(url, HANDLERS, { "--queues", "q" })
    assert(other:transaction(function(tx)
      assert(tx:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", parent))
      for _, child in ipairs(handle:jobs { queue = "slow" }) do assert(handle:run_now(child.id)) end
      eventually(function() return db.sql("SELECT COUNT(*) FROM nightshift_met", name) ~= "0" end)
      h:signal "KILL"
      h:wait()
      return true
    end))
    eventually(function() return handle:job(parent).state == "done" end, 20)
    assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_met", name)))
    second:signal "TERM"
    assert.equal(0, second:wait())
  end)
end)

-- An open transaction had been refused a unique key, and so held its
-- row: the host that ended the key's job waited for it.
describe("an open transaction that was refused a unique key", function()
  it("stalls no other job", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local other <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local h = host.start(url, [[return { job = function() end }]])
    local first = assert(q:push("job", nil, { unique = "key", delay = 3600 }))
    local ok, why = pcall(other.transaction, other, function(tx)
      assert.equal("DUPLICATE", select(3, tx:queue("q"):push("job", nil, { unique = "key" })))
      assert(handle:run_now(first))
      local slow = 0
      for _ = 1, 10 do
        local begun, id = nightshift.clock(), assert(q:push "job")
        eventually(function() return handle:job(id).state == "done" end)
        slow = slow + (nightshift.clock() - begun < 2.5 and 0 or 1)
      end
      assert.is_true(slow <= 2, slow) -- each waits for a lock: 3 s
      error "as planned"
    end)
    if not ok and not tostring(why):find "as planned" then error(why, 0) end
    eventually(function() return handle:job(first).state == "done" end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

-- A job that runs is followed by another, which has its key. An open transaction has replaced that
-- one, and so holds the row of the key.
it("an open transaction that replaces a job does not hold up the one that it follows", function()
  local url = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local other <close> = assert(nightshift.open(url))
  local q = handle:queue "q"
  local latest = { unique = { key = "key", on_conflict = "replace" } }
  for _, ends in ipairs { "ack", "discard", "wait" } do
    assert(q:push("first", nil, latest))
    local first = assert(q:claim())
    local second = assert(q:push("second", nil, latest))
    if ends == "wait" then
      first:spawn("kid", 1)
      assert(first:wait())
      first = assert(q:claim()) -- when it is dead, its parent is
      ends = "discard"
    end
    assert(other:transaction(function(tx)
      assert.equal(second, (tx:queue("q"):push("third", nil, latest)))
      local begun = nightshift.clock()
      assert(first[ends](first, "no"))
      assert.is_true(nightshift.clock() - begun < 2.5)
      return true
    end))
    assert.equal("third", assert(q:claim { wait = 30 }).name) -- a claim that waits tells it, too
    assert(handle:cancel(second))
    assert.equal(0, handle:execute "SELECT COUNT(*) AS n FROM nightshift_unique_key"[1].n)
  end
end)

-- An open transaction had been refused the unique key of a dependent that fell, or had pushed a
-- dependent of the next job. The session that ended what they waited for, a host too, waited
-- for that transaction, though it held none of the jobs.
describe("an open transaction", function()
  local handle, other, q

  with_two_handles(function(...) handle, other, q = ... end)

  -- Discards a job while a transaction, which is rolled back, has done `what`.
  local function discard_while(job, what)
    local ok, why = pcall(other.transaction, other, function(tx)
      what(tx)
      assert(handle:execute "SET innodb_lock_wait_timeout = 10")
      local begun = nightshift.clock()
      assert(job:discard "no")
      assert.is_true(nightshift.clock() - begun < 9)
      error "as planned"
    end)
    if not ok and not tostring(why):find "as planned" then error(why, 0) end
  end

  it("that was refused a unique key does not hold up what makes its job fall", function()
    local first = assert(q:push "job")
    local second = assert(q:push("job", nil, { after = { first }, unique = "key" }))
    local third = assert(q:push("job", nil, { after = { second } }))
    discard_while(assert(q:claim()), function(tx)
      assert.equal("DUPLICATE", select(3, tx:queue("q"):push("job", nil, { unique = "key" })))
    end)
    assert.is_nil(q:claim { wait = 1 })
    assert.same({ "cancelled", "cancelled" }, { handle:job(second).state, handle:job(third).state })
    assert(q:push("job", nil, { unique = "key" }))
  end)

  it("that has pushed a dependent of the next job does not hold up what falls before it", function()
    local first = assert(q:push("job", nil, { priority = 200 }))
    local job = assert(q:claim())
    local ids = assert(q:push_many { { "job", nil, { after = { first } } },
      { "job", nil, { after = { first } } }, { "job" } })
    assert.same({ ids[1] + 1, ids[1] + 2 }, { ids[2], ids[3] })
    local below = {}
    for i = 1, 2 do below[i] = assert(q:push("job", nil, { after = { ids[i] } })) end
    discard_while(job, function(tx) assert(tx:queue("q"):push("job", nil, { after = { ids[3] } })) end)
    for i = 1, 2 do assert.equal("cancelled", handle:job(below[i]).state) end
  end)
end)

-- A long chain of jobs, each waiting for the one before. As the first failed, all of it was
-- cancelled by a function that called itself, and the stack ended.
describe("a long chain of jobs", function()
  local LENGTH = 800

  local FAIL = [[
local nightshift = require "nightshift"
local db = assert(nightshift.open(arg[1]))
assert(assert(db:queue "q":claim()):discard "no")
while db:job(tonumber(arg[2])).state == "waiting" do db:queue "q":claim() end
db:close()]]

  it("is cancelled when its first fails, by a program with a small stack", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local last = assert(handle:queue "q":push "first")
    assert(handle:transaction(function(tx)
      for _ = 1, LENGTH do last = assert(tx:queue "q":push("next", nil, { after = { last } })) end
      return true
    end))
    local status, _, err = proc.run { "sh", "-c", 'ulimit -s 512; exec "$@"', "sh", proc.lua,
      fixture.file("fail.lua", FAIL), url, last, timeout = 60 }
    assert.equal(0, status, err)
    assert.equal("cancelled", handle:job(last).state)
    assert.matches("^job %d+, which it waited for, failed$", handle:job(last).error)
  end)
end)

-- Another priority took the job's row out of scheduled only if it was not locked, and then put
-- in a new one. With the old one still there that was DUPLICATE.
it("a job due later gets its priority though somebody holds its row for a moment", function()
  local url = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local q = handle:queue "q"
  local id = assert(q:push("job", 1, { delay = 3600 }))
  local path = fixture.file("hold.lua", [[
    local h = assert(require "nightshift".open(arg[1]))
    h:transaction(function(tx)
      assert(tx:execute "SELECT * FROM nightshift_scheduled FOR UPDATE")
      print "holds"
      io.stdout:flush()
      tx:execute "SELECT SLEEP(0.5)"
    end)
  ]])
  local p = proc.start { proc.lua, path, url }
  p:wait_line "holds"
  assert(handle:reprioritise(id, 7))
  assert.equal(0, p:wait())
  assert.same({ 7, "scheduled" }, { handle:job(id).priority, handle:job(id).state })
  assert(handle:run_now(id))
  assert.equal(7, assert(q:claim()).priority)
end)
