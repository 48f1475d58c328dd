-- Verbs on a job and all below it; and it is paused and resumed. Priorities of live jobs, and
-- aging: jobs below a saturated priority are claimed all the same, within a number of claims that
-- can be counted.

local core = require "nightshift.core"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

describe("trees:", function()
  local url, name, handle, q

  with_database(function(...) handle, q, url, name = ... end)

  local function state(id) return handle:job(id).state end

  local function states(ids)
    local found = {}
    for i, id in ipairs(ids) do found[i] = state(id) end
    return found
  end

  -- A parent that waits for its children: their ids.
  local function family(n, opts, spawn)
    local parent = assert(q:push("parent"))
    local job = assert(q:claim())
    assert.equal(parent, job.id)
    local kids = {}
    for i = 1, n do kids[i] = assert(job:spawn("kid", i, spawn)) end
    assert(job:wait(opts))
    return parent, kids
  end

  local function job_of(id)
    local job = assert(q:claim())
    assert.equal(id, job.id)
    return job
  end

  describe("cancel of a tree", function()
    it("ends all below, with the reason and whose cancel it was", function()
      local parent, kids = family(3)
      assert(job_of(kids[1]):ack())
      local grandchild = assert(q:push("deep", nil, { parent = kids[2], delay = 60 }))
      assert.equal(4, handle:cancel(parent, { tree = true, reason = "wrong file" }))
      assert.same({ "cancelled", "done", "cancelled", "cancelled", "cancelled" },
        states { parent, kids[1], kids[2], kids[3], grandchild })
      local top, deep = handle:job(parent), handle:job(grandchild)
      assert.same({ "wrong file" }, { top.reason, top.error })
      assert.same({ ("with job %d: wrong file"):format(parent) }, { deep.reason, deep.error })
      assert.is_nil(q:claim())
      assert.equal("0", (db.sql([[SELECT (SELECT COUNT(*) FROM nightshift_job) +
      (SELECT COUNT(*) FROM nightshift_scheduled) + (SELECT COUNT(*) FROM nightshift_edge)]], name)))
    end)

    it("refuses the verdict of what runs, and drops what that spawned", function()
      local parent, kids = family(1)
      local kid = job_of(kids[1])
      assert(kid:spawn("late"))
      assert.equal(2, handle:cancel(parent, { tree = true }))
      local done, _, code = kid:ack()
      assert.same({ nil, "STALE" }, { done, code })
      assert.same({ total = 2, cancelled = 2, done = 0, dead = 0, running = 0, waiting = 0, scheduled = 0, ready = 0 },
        handle:progress(parent))
    end)

    it("ends what lives below a job that has finished", function()
      local parent = assert(q:push "parent")
      local job = q:claim()
      local kid = assert(job:spawn("kid"))
      assert(job:ack())
      assert.equal(1, handle:cancel(parent, { tree = true }))
      assert.same({ "done", "cancelled" }, states { parent, kid })
      assert.equal("STATE", select(3, handle:cancel(parent, { tree = true })))
      assert.equal("NOT_FOUND", select(3, handle:cancel(4711, { tree = true })))
    end)

    it("stops a handler that does not listen, after telling it", function()
      local folder = fixture.dir()
      local h = host.start(url, ([[return {
      deaf = function(job)
        local file = io.open("%s/" .. job.id, "w")
        file:close()
        while true do
          pcall(function() while true do if job:cancelled() then told = true end end end)
        end
      end,
      parent = function(job)
        for i = 1, 2 do job:spawn "deaf" end
        return job:wait()
      end,
      after = function() return 1 end,
    }]]):format(folder))
      local parent = assert(q:push "parent")
      eventually(function() return io.popen("ls " .. folder .. " | wc -l"):read "n" == 2 end)
      assert.equal(3, handle:cancel(parent, { tree = true, reason = "enough" }))
      local id = assert(q:push "after")
      eventually(function() return state(id) == "done" end)
      assert.equal(2, handle:progress(parent).cancelled - 1)
      h:signal "TERM"
      assert.equal(0, h:wait(30))
    end)

    it("takes back what the host has claimed and not begun", function()
      local folder = fixture.dir()
      local h = host.start(url, ([[return {
      slow = function(job)
        io.open("%s/" .. job.id, "w"):close()
        while not job:cancelled() do require "nightshift.core".sleep(0.02) end
      end,
      parent = function(job) for i = 1, 200 do job:spawn "slow" end return job:wait() end,
    }]]):format(folder))
      local parent = assert(q:push "parent")
      local function begun() return io.popen("ls " .. folder .. " | wc -l"):read "n" end
      eventually(function() return begun() == 2 end)
      assert(handle:cancel(parent, { tree = true }))
      eventually(function() return tonumber((db.sql("SELECT COUNT(*) FROM nightshift_lease", name))) == 0 end)
      assert.equal(2, begun())
      h:signal "TERM"
      assert.equal(0, h:wait(30))
    end)
  end)

  describe("priority of a tree", function()
    it("changes for what lives, wherever it is", function()
      local parent, kids = family(3)
      local later = assert(q:push("late", nil, { parent = parent, delay = 60 }))
      local held = job_of(kids[1])
      assert(held:ack())
      assert.equal(4, handle:reprioritise(parent, 200, { tree = true }))
      local other = assert(q:push("other", nil, { priority = 150 }))
      assert.equal(kids[2], assert(q:claim()).id)
      assert.equal(kids[3], assert(q:claim()).id)
      assert.equal(other, assert(q:claim()).id)
      assert.same({ 200, 200 }, { handle:job(later).priority, handle:job(parent).priority })
      assert.equal("INVALID", select(3, handle:reprioritise(parent, 256, { tree = true })))
    end)
  end)

  describe("run_now of a tree", function()
    it("starts what is scheduled, and leaves what waits for a signal", function()
      local parent, kids = family(2, nil, { delay = 60 })
      local waits = assert(q:push("asks", nil, { parent = parent }))
      assert(job_of(waits):wait { signal = "yes" })
      assert.equal(2, handle:run_now(parent, { tree = true }))
      assert.same({ "ready", "ready", "waiting" }, states { kids[1], kids[2], waits })
      assert(job_of(kids[1]):ack())
    end)
  end)

  describe("deadline", function()
    it("of a tree: what has not begun by then is dead, and its parent hears of it", function()
      local parent, kids = family(3, { on_fail = "continue" })
      assert(job_of(kids[1]):ack())
      assert.equal(3, handle:deadline(parent, 0, { tree = true }))
      nst.sleep(0.1) -- a claim goes by the server's clock as its handle reckons it
      assert.equal(parent, assert(q:claim()).id)
      local info = handle:job(kids[2])
      assert.same({ "dead", "deadline", "its deadline had passed before it was started" },
        { info.state, info.reason, info.error })
      assert.equal("dead", state(kids[3]))
    end)

    it("is inherited by what is spawned or pushed below later", function()
      local parent = assert(q:push "parent")
      assert(handle:deadline(parent, "2h"))
      local limit = handle:job(parent).deadline
      local job = job_of(parent)
      local kid, own = assert(job:spawn("kid")), assert(job:spawn("kid", nil, { deadline = 5 }))
      assert(job:wait())
      local pushed = assert(q:push("kid", nil, { parent = kid }))
      assert.same({ limit, limit }, { handle:job(kid).deadline, handle:job(pushed).deadline })
      assert.is_true(handle:job(own).deadline < limit)
      local id, ids = assert(handle:flow { name = "top", deadline = 60, children = { { name = "low" } } })
      assert.equal(handle:job(id).deadline, handle:job(ids.children[1].id).deadline)
      assert(handle:deadline(kid, false))
      assert.is_nil(handle:job(kid).deadline)
    end)

    it("ends a failing job whose retry would come too late", function()
      local id = assert(q:push("job", nil, { deadline = 60 }))
      assert(job_of(id):fail("oh", { retry_in = "2m" }))
      assert.same({ "dead", "deadline", "oh" }, { state(id), handle:job(id).reason, handle:job(id).error })
    end)

    it("gives a job that polls its last look, and one that waits for a signal its end", function()
      local polls, asks = assert(q:push "polls"), assert(q:push "asks")
      assert(job_of(polls):again(3600))
      assert(job_of(asks):wait { signal = "yes" })
      assert(handle:deadline(polls, 0.1))
      assert(assert(q:claim { wait = 20 }):again(1))
      assert.same({ "dead", "poll deadline" }, { state(polls), handle:job(polls).reason })
      assert(handle:deadline(asks, 0.1))
      local job = assert(q:claim { wait = 20 })
      assert.same({ asks }, { job.id, job.signal })
    end)

    it("keeps a host from starting what is late, and its drain from ending before the rest", function()
      local late, fine = {}, {}
      for i = 1, 300 do late[i] = { "job", i, { deadline = 0 } } end
      for i = 1, 50 do fine[i] = { "job", i } end
      late, fine = assert(q:push_many(late)), assert(q:push_many(fine))
      local status, log = host.drain(url, "return { job = function(job) return job.payload end }")
      assert.equal(0, status, log)
      for _, id in ipairs(fine) do assert.equal("done", state(id)) end
      for _, id in ipairs(late) do assert.equal("deadline", handle:job(id).reason) end
    end)
  end)

  describe("retry of a tree", function()
    it("runs what failed again, and what waited for it waits again", function()
      local parent, kids = family(3)
      local after = assert(q:push("after", nil, { parent = parent, after = { kids[1], kids[2] } }))
      assert(job_of(kids[1]):ack "one")
      assert(job_of(kids[2]):discard "broken")
      assert.same({ "dead", "done", "dead", "ready", "cancelled" },
        states { parent, kids[1], kids[2], kids[3], after })
      assert.equal(3, handle:retry(parent, { tree = true }))
      assert.same({ "waiting", "done", "ready", "ready", "waiting" },
        states { parent, kids[1], kids[2], kids[3], after })
      assert(job_of(kids[3]):ack "three")
      assert(job_of(kids[2]):ack "two")
      assert(job_of(after):ack "last")
      local job = job_of(parent)
      assert.equal(1, job.phase)
      local got = {}
      for i, child in ipairs(job.results) do got[i] = child.result end
      assert.same({ "one", "two", "three", "last" }, got)
      assert(job:ack())
      assert.equal("STATE", select(3, handle:retry(parent, { tree = true })))
    end)

    it("keeps the reason of a discard among the failures, as does any retry", function()
      local ERRORS = "SELECT run, error FROM nightshift_attempt WHERE job_id = ? ORDER BY run"
      local retries = {
        function(id) return handle:retry(id) end,
        function(id) return handle:retry(id, { tree = true }) end,
        function() return handle:retry { state = "dead" } end,
      }
      for _, retry in ipairs(retries) do
        local id = assert(q:push "kid")
        assert(job_of(id):discard "no such user")
        assert(retry(id))
        local job = job_of(id)
        assert(job:fail("smtp down", { retry_in = 0 }))
        local runs = {}
        for i, failure in ipairs(handle:execute(ERRORS, id)) do runs[i] = { failure.run, failure.error } end
        assert.same({ { job.run - 1, "no such user" }, { job.run, "smtp down" } }, runs)
        assert(handle:cancel(id))
      end
    end)

    it("goes on where a parent failed, with its state", function()
      local parent = assert(q:push("parent", nil, { max_attempts = 1 }))
      local job = job_of(parent)
      local kid = assert(job:spawn "kid")
      assert(job:wait { state = { page = 7 } })
      assert(job_of(kid):ack(5))
      assert(job_of(parent):fail "disk full")
      assert.equal(1, handle:retry(parent, { tree = true }))
      job = job_of(parent)
      assert.same({ 1, { page = 7 }, 5 }, { job.phase, job.state, job.results[1].result })
      assert(job:ack())
    end)

    it("waits for a failed child that lives again, where the parent had gone on and failed", function()
      local parent, kids = family(2, { on_fail = "continue", state = { page = 7 } })
      assert(job_of(kids[1]):discard "broken")
      assert(job_of(kids[2]):ack "two")
      assert(job_of(parent):discard "a child failed")
      assert.equal(2, handle:retry(parent, { tree = true }))
      assert.same({ "waiting", "ready", "done" }, states { parent, kids[1], kids[2] })
      assert(job_of(kids[1]):discard "broken again")
      local job = job_of(parent)
      assert.same({ 1, { page = 7 }, "dead", "done" },
        { job.phase, job.state, job.results[1].outcome, job.results[2].outcome })
      assert(job:ack())
      assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_edge", name)))
    end)

    it("runs a child that was to follow its parent behind it, and one that it had waited for before it", function()
      local parent = assert(q:push "parent")
      local job = job_of(parent)
      local early = assert(job:spawn "early") -- waits for its parent, until that waits for it
      assert(job:again(0))
      job = job_of(parent)
      assert(job:wait { on_fail = "continue" })
      local pushed = assert(q:push("pushed", nil, { parent = parent, after = { early, parent }, on_fail = "run" }))
      local options = ('{"parent": %d, "after": [%d, %d], "on_fail": "run"}'):format(parent, parent, early)
      assert(handle:execute("CALL nightshift_push('q', 'sql', 'null', ?)", options))
      local from_sql = handle:execute("SELECT id FROM nightshift_job WHERE name = 'sql'")[1].id
      assert(job_of(early):discard "broken")
      assert(job_of(pushed):discard "broken")
      assert(job_of(from_sql):discard "broken")
      job = job_of(parent)
      local late = assert(job:spawn "late")
      assert(job:again(0))
      assert(job_of(parent):discard "a child failed")
      assert.equal("cancelled", state(late))
      assert.equal(5, handle:retry(parent, { tree = true }))
      assert.same({ "waiting", "ready", "waiting", "waiting", "waiting" },
        states { parent, early, pushed, from_sql, late })
      for _, id in ipairs { early, pushed, from_sql, parent, late } do assert(job_of(id):ack()) end
      assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_edge", name)))
    end)

    it("builds a flow's edges again", function()
      local id, ids = assert(handle:flow { name = "top", queue = "q", children = {
        { name = "a", as = "a" }, { name = "b", after = { "a" }, children = { { name = "c" } } } } })
      local a, b, c = ids.children[1].id, ids.children[2].id, ids.children[2].children[1].id
      assert.equal(4, handle:cancel(id, { tree = true }))
      assert.equal(4, handle:retry(id, { tree = true }))
      assert.same({ "waiting", "ready", "waiting", "ready" }, states { id, a, b, c })
      assert(job_of(a):ack())
      assert.equal("waiting", state(b))
      assert(job_of(c):ack())
      assert(job_of(b):ack())
      assert(job_of(id):ack())
      assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_edge", name)))
    end)

    it("leaves a job alone whose unique key is taken, and says so", function()
      local parent, kids = family(2, { on_fail = "continue" }, { unique = "x" and nil })
      assert(job_of(kids[1]):discard "no")
      local keyed = assert(q:push("k", nil, { parent = parent, unique = "key" }))
      assert(handle:cancel(keyed))
      assert(q:push("k", nil, { unique = "key" }))
      local changed, message, code = handle:retry(parent, { tree = true })
      assert.same({ nil, "DUPLICATE" }, { changed, code })
      assert.matches(("1 jobs run again; job %d cannot"):format(keyed), message)
      assert.same({ "ready", "cancelled" }, states { kids[1], keyed })
    end)
  end)

  describe("a single retry", function()
    it("leaves no edges of before behind", function()
      local a = assert(q:push("a", nil, { delay = 60 }))
      local b = assert(q:push "b")
      local c = assert(q:push("c", nil, { after = { a, b } }))
      assert(job_of(b):discard "no")
      assert.equal("cancelled", state(c))
      assert(handle:retry(c))
      assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_edge", name)))
    end)
  end)

  describe("a large tree", function()
    it("is worked through in parts", function()
      local job = (function() assert(q:push "parent") return assert(q:claim()) end)()
      local items = {}
      for i = 1, 1000 do items[i] = { "kid", i, { parent = job.id } } end
      local kids = assert(q:push_many(items))
      for i = 1, 1000 do items[i] = { "kid", i, { parent = kids[i], delay = 60 } } end
      assert(q:push_many(items))
      assert.equal(2001, handle:progress(job.id).total)
      assert.equal(2001, handle:pause(job.id))
      assert.is_nil(q:claim())
      assert.equal(2001, handle:resume(job.id))
      assert.equal(1000, handle:progress(job.id).ready)
      assert.equal(2001, handle:cancel(job.id, { tree = true }))
      assert.equal(2001, handle:retry(job.id, { tree = true }))
      assert.equal(2001, handle:progress(job.id).ready)
    end)
  end)
end)

-- What falls with a failed job falls in pieces. A tree of many levels that was
-- retried before all were told had its top cancelled while the rest ran again.
describe("a deep tree that is retried while it falls", function()
  local LEVELS = 300 -- more than one piece

  local url, handle, q

  with_database(function(...) handle, q, url = ... end)

  local function fallen()
    local node = { name = "leaf" }
    for _ = 1, LEVELS do node = { name = "node", children = { node } } end
    node.queue = "q"
    local root = assert(handle:flow(node))
    assert(q:claim():discard "no")
    assert.equal("waiting", handle:job(root).state) -- it has not fallen yet
    return root
  end

  local function runs(root)
    for _ = 0, LEVELS do assert(assert(q:claim()):ack()) end
    local counts = handle:progress(root)
    assert.same({ LEVELS + 1, "done" }, { counts.done, handle:job(root).state })
  end

  it("runs again up to its top", function()
    local root = fallen()
    assert.equal(LEVELS + 1, handle:retry(root, { tree = true }))
    runs(root)
  end)

  it("also when another program says so", function()
    local root = fallen()
    local other <close> = assert(nightshift.open(url))
    assert.equal(LEVELS + 1, other:retry(root, { tree = true }))
    runs(root)
  end)
end)

-- A retry of a tree counted anew the jobs that a parked parent waits for. It left out a child
-- that had ended and of which the parent was not told yet. Once it was, the parent ran beside
-- the children that were left. Or its last edges were more than it waited for, and no cycle
-- that came with them could be written.
describe("a parent whose tree is retried while a child ends", function()
  local handle, q, url, parent

  with_database(function(...) handle, q, url = ... end)

  -- A session holds the parent while 'act' is at work.
  local function held(act)
    local other <close> = assert(nightshift.open(url))
    assert(other._handle:begin())
    assert(other:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", parent))
    act()
    other._handle:rollback()
  end

  -- Of 'n' claimed children of a parked parent the first one fails, the second ends while the
  -- parent cannot be told. Then the tree is retried. Returns them.
  local function family(n)
    parent = assert(q:push "parent")
    local job = assert(q:claim())
    for i = 1, n do assert(job:spawn("child", i)) end
    assert(job:wait { on_fail = "continue" })
    local kids = assert(q:claim_many(n))
    assert(kids[1]:discard "no")
    held(function() assert(kids[2]:ack()) end)
    -- in a transaction it does not look first whether a job is to be told
    assert(handle._handle:begin())
    assert.equal(1, handle:retry(parent, { tree = true }))
    assert(handle._handle:commit())
    return kids
  end

  it("waits for those that are left", function()
    local kids = family(3)
    assert(assert(q:claim()):ack()) -- the first one again
    assert.is_nil(q:claim())
    assert.equal("waiting", handle:job(parent).state)
    assert(kids[3]:ack())
    assert.equal(parent, assert(q:claim()).id)
  end)

  it("runs when it is told of the last two together", function()
    family(2)
    held(function() assert(assert(q:claim()):ack()) end)
    assert.equal(parent, assert(q:claim()).id)
    assert.equal(0, handle:execute "SELECT COUNT(*) AS n FROM nightshift_met"[1].n)
  end)
end)

-- A job had been cancelled while another that it waited for still ran. An open transaction ran
-- it again, and so had deleted its edge. The host on which the other ended waited for that
-- transaction, with all its jobs.
describe("an open transaction that has retried a job", function()
  local HANDLERS = [[return {
  other = function() end,
}]]

  it("does not hold up the host on which another ends that it waited for", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local other <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local first = assert(q:push "other")
    local second = assert(q:push("other", nil, { delay = 0.2 }))
    local job = assert(q:claim())
    local id = assert(q:push("other", nil, { after = { first, second } }))
    assert(job:discard "no")
    assert.equal("cancelled", handle:job(id).state)
    local h = host.start(url, HANDLERS)
    assert(other:transaction(function()
      assert(other:retry(id))
      local slow = 0
      for _ = 1, 40 do
        local begun, more = nightshift.clock(), assert(q:push "other")
        eventually(function() return handle:job(more).state == "done" end)
        slow = slow + (nightshift.clock() - begun < 2.5 and 0 or 1)
      end
      assert.is_true(slow <= 2, slow) -- each waits for a lock: 3 s
      return true
    end))
    for _, each in ipairs { id, second } do
      eventually(function() return handle:job(each).state == "done" end)
    end
    h:signal "TERM"
    assert.equal(0, h:wait())
    assert.equal(0, handle:execute("SELECT COUNT(*) AS n FROM nightshift_edge")[1].n)
  end)
end)

describe("pauses:", function()
  local url, name, handle, q

  with_database(function(...) handle, q, url, name = ... end)

  local function state(id) return handle:job(id).state end

  local function job_of(id)
    local job = assert(q:claim())
    assert.equal(id, job.id)
    return job
  end

  local function family(n, opts, spawn)
    local parent = assert(q:push "parent")
    local job = job_of(parent)
    local kids = {}
    for i = 1, n do kids[i] = assert(job:spawn("kid", i, spawn)) end
    assert(job:wait(opts))
    return parent, kids
  end

  describe("pause", function()
    it("keeps what is ready or scheduled from starting, until resume", function()
      local id, late = assert(q:push "job"), assert(q:push("late", nil, { delay = 0.1 }))
      assert.equal(1, handle:pause(id))
      assert.equal(1, handle:pause(late))
      assert.is_nil(q:claim { wait = 0.3 })
      local info = handle:job(id)
      assert.same({ "waiting", id }, { info.state, info.paused })
      assert.equal(0, handle:pause(id))
      assert.equal(1, handle:resume(id))
      assert(job_of(id):ack())
      assert.equal(1, handle:resume(late))
      assert(job_of(late):ack())
    end)

    it("keeps the time of a scheduled job", function()
      local id = assert(q:push("late", nil, { delay = 3600 }))
      local due = handle:job(id).due
      handle:pause(id)
      handle:resume(id)
      assert.same({ "scheduled", due }, { state(id), handle:job(id).due })
      handle:pause(id)
      assert.equal(1, handle:run_now(id, { tree = true }))
      assert.equal("waiting", state(id))
      handle:resume(id)
      assert(job_of(id):ack())
    end)

    for verb, settle in pairs {
      fail = function(job) return job:fail("oh", { retry_in = 0 }) end,
      again = function(job) return job:again(0) end,
      release = function(job) return job:release() end,
    } do
      it("holds a running job that returns by " .. verb, function()
        local id = assert(q:push "job")
        local job = job_of(id)
        assert.equal(1, handle:pause(id))
        assert.equal("running", state(id))
        assert(settle(job))
        assert.equal("waiting", state(id))
        assert.is_nil(q:claim())
        assert.equal(1, handle:resume(id))
        assert(job_of(id):ack())
        assert.equal("done", state(id))
      end)
    end

    it("holds a running job that returns by wait", function()
      local id = assert(q:push "job")
      local job = job_of(id)
      local kid = assert(job:spawn "kid")
      assert.equal(1, handle:pause(id))
      assert(job:wait())
      assert.equal("waiting", state(id))
      assert.is_nil(q:claim())
      assert(handle:resume(id))
      assert(job_of(kid):ack())
      assert(job_of(id):ack())
      assert.equal("done", state(id))
    end)

    it("of a running job that ends is over, and one resumed meanwhile runs on", function()
      local a, b = assert(q:push "a"), assert(q:push "b")
      local ja, jb = job_of(a), job_of(b)
      handle:pause(a)
      handle:pause(b)
      assert(ja:ack())
      assert.equal(1, handle:resume(b))
      assert.is_nil(q:claim())
      assert(jb:fail("oh", { retry_in = 0 }))
      assert(assert(q:claim { wait = 20 }):ack())
      assert.same({ "done", "done" }, { state(a), state(b) })
    end)

    it("reaches what is spawned, or pushed below, later", function()
      local parent = assert(q:push "parent")
      local job = job_of(parent)
      handle:pause(parent)
      local kid = assert(job:spawn "kid")
      assert(job:wait())
      local pushed = assert(q:push("kid", nil, { parent = kid }))
      local flow = assert(handle:flow { name = "top", queue = "q", parent = kid, children = { { name = "low" } } })
      assert.is_nil(q:claim())
      assert.same({ parent, parent, parent }, { handle:job(kid).paused, handle:job(pushed).paused,
        handle:job(flow).paused })
      assert.equal(5, handle:resume(parent))
      for _ = 1, 5 do assert(assert(q:claim()):ack()) end
      assert.equal("done", state(parent))
    end)

    it("and a deadline reach what SQL pushes below", function()
      local parent, kids = family(1)
      assert(handle:deadline(parent, 60))
      handle:pause(parent)
      local both = { ('{"parent":%d}'):format(parent), ('{"parent":%d,"after":[%d]}'):format(parent, kids[1]) }
      for i, options in ipairs(both) do
        db.sql(("CALL nightshift_push('q', 'sql', '%d', '%s')"):format(i, options), name)
      end
      assert.is_nil(q:claim())
      local pushed = handle:execute("SELECT id, paused, deadline FROM nightshift_job WHERE name = 'sql' ORDER BY id")
      local limit = handle:job(parent).deadline
      for _, row in ipairs(pushed) do assert.same({ parent, limit }, { row.paused, row.deadline / 1e6 }) end
      assert.equal(4, handle:resume(parent))
      assert.same({ "ready", "waiting" }, { state(pushed[1].id), state(pushed[2].id) })
      assert(job_of(kids[1]):ack())
      assert.equal("ready", state(pushed[2].id))
    end)

    it("of a child that was paused by itself outlives that of its parent", function()
      local parent, kids = family(2)
      local deep = assert(q:push("deep", nil, { parent = kids[1] }))
      assert.equal(2, handle:pause(kids[1]))
      assert.equal(2, handle:pause(parent))
      assert.equal("STATE", select(3, handle:resume(deep)))
      assert.matches(("is paused with job %d"):format(parent), (select(2, handle:resume(kids[2]))))
      assert.equal(2, handle:resume(parent))
      assert.same({ "waiting", "waiting", "ready" }, { state(kids[1]), state(deep), state(kids[2]) })
      assert.equal(2, handle:resume(kids[1]))
      assert.same({ "ready", "ready" }, { state(kids[1]), state(deep) })
      assert.equal("STATE", select(3, handle:resume(kids[1])))
    end)

    it("of a child in a paused tree, and its resume, leave it to the outer one", function()
      local parent, kids = family(2)
      handle:pause(parent)
      assert.equal(1, handle:pause(kids[1]))
      handle:resume(parent)
      assert.same({ "waiting", "ready" }, { state(kids[1]), state(kids[2]) })
      handle:pause(parent)
      handle:resume(kids[1])
      assert.same({ "waiting", parent }, { state(kids[1]), handle:job(kids[1]).paused })
      handle:resume(parent)
      assert.equal("ready", state(kids[1]))
    end)

    it("of a tree whose top has finished holds what is below", function()
      local parent = assert(q:push "parent")
      local job = job_of(parent)
      local kids = { assert(job:spawn "kid"), assert(job:spawn "kid") }
      assert(job:ack())
      handle:pause(kids[1])
      assert.equal(1, handle:pause(parent))
      handle:resume(kids[1])
      assert.same({ parent, parent }, { handle:job(kids[1]).paused, handle:job(kids[2]).paused })
      assert.equal(2, handle:resume(parent))
      assert.same({ "ready", "ready" }, { state(kids[1]), state(kids[2]) })
    end)

    it("is no end of waiting for others", function()
      local parent, kids = family(2)
      local kid = job_of(kids[1])
      handle:pause(parent)
      assert(kid:ack())
      assert(handle:execute("SELECT 1 FROM nightshift_job WHERE id = ? AND unmet = 2", parent)[1])
      handle:resume(parent)
      kid = job_of(kids[2])
      handle:pause(parent)
      assert(kid:ack())
      assert.is_nil(q:claim())
      handle:resume(parent)
      assert.equal(1, job_of(parent).phase)
    end)

    it("keeps a signal for later, and a deadline", function()
      local a, b = assert(q:push "a"), assert(q:push "b")
      assert(job_of(a):wait { signal = "yes" })
      assert(job_of(b):wait { signal = "yes", deadline = 0.1 })
      handle:pause(a)
      handle:pause(b)
      assert(handle:signal(a, 7, "yes"))
      assert.is_nil(q:claim { wait = 0.3 })
      handle:resume(a)
      handle:resume(b)
      local first, second = assert(q:claim { wait = 20 }), assert(q:claim { wait = 20 })
      if first.id == b then first, second = second, first end
      assert.same({ a, 7, b }, { first.id, first.signal, second.id })
    end)

    it("holds what a dead holder gives back", function()
      local id = assert(q:push "job")
      local other = assert(nightshift.open(url))
      assert(other:queue "q":claim())
      handle:pause(id)
      other:close()
      assert.equal("waiting", state(id))
      assert.is_nil(q:claim())
      handle:resume(id)
      assert(job_of(id):ack())
    end)

    it("and resume of what is not there, or has ended", function()
      assert.equal("NOT_FOUND", select(3, handle:pause(4711)))
      local id = assert(q:push "job")
      assert.equal("STATE", select(3, handle:resume(id)))
      assert(job_of(id):ack())
      assert.equal("STATE", select(3, handle:pause(id)))
    end)

    it("lists each job once, where it is", function()
      local parent, kids = family(2)
      local kid = job_of(kids[1])
      handle:pause(parent)
      local seen = {}
      for _, row in ipairs(handle:execute "SELECT id, state FROM nightshift_jobs ORDER BY id") do
        seen[#seen + 1] = row.state
      end
      assert.same({ "waiting", "running", "waiting" }, seen)
      local listed = {}
      for _, row in ipairs(handle:jobs { state = "waiting" }) do listed[#listed + 1] = row.id end
      table.sort(listed)
      assert.same({ parent, kids[2] }, listed)
      assert(kid:ack())
    end)
  end)

  describe("a host", function()
    it("gives back what it has claimed and not begun", function()
      local folder = fixture.dir()
      local h = host.start(url, ([[return {
      slow = function(job)
        io.open("%s/" .. job.id, "w"):close()
        while not io.open "%s/go" do require "nightshift.core".sleep(0.02) end
      end,
      parent = function(job)
        if job.phase > 0 then return end
        for i = 1, 100 do job:spawn "slow" end
        return job:wait()
      end,
    }]]):format(folder, folder))
      local parent = assert(q:push "parent")
      local function begun() return io.popen("ls " .. folder .. " | grep -vc go"):read "n" end
      eventually(function() return begun() == 2 end)
      assert.equal(101, handle:pause(parent))
      eventually(function() return handle:progress(parent).running == 2 end)
      io.open(folder .. "/go", "w"):close()
      eventually(function() return handle:progress(parent).done == 2 end)
      assert.same({ 2, 0 }, { begun(), handle:progress(parent).running })
      assert.equal(99, handle:resume(parent))
      eventually(function() return state(parent) == "done" end, 60)
      h:signal "TERM"
      assert.equal(0, h:wait(20))
    end)
  end)

  -- A tree that fans out twice, run by two hosts while parts of it are paused and
  -- resumed at random.
  describe("pauses at random", function()
    it("lose nothing, double nothing, and start nothing", function()
      local script = [[return {
      top = function(job)
        if job.phase > 0 then return #job.results end
        for i = 1, 6 do job:spawn("mid", i) end
        return job:wait()
      end,
      mid = function(job)
        if job.phase > 0 then return #job.results end
        for i = 1, 8 do job:spawn("leaf", i) end
        return job:wait()
      end,
      leaf = function(job)
        local rows = assert(job:db():execute("INSERT INTO seen (id, run) VALUES (?, ?)", job.id, job.run))
        require "nightshift.core".sleep(0.01)
        if job.polls < job.payload % 3 then return job:again(0.01) end
        return 1
      end,
    }]]
      db.sql("CREATE TABLE seen (id BIGINT, run INT, at BIGINT DEFAULT (" ..
        "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))))", name)
      local seed = tonumber(os.getenv "SEED") or nst.ids()
      math.randomseed(seed)
      local first, second = host.start(url, script), host.start(url, script)
      local tops = {}
      for i = 1, 2 do tops[i] = assert(q:push "top") end
      local paused = {}
      local function any()
        local rows = handle:execute "SELECT id FROM nightshift_job ORDER BY id"
        return #rows > 0 and rows[math.random(#rows)].id
      end
      for _ = 1, 60 do
        local id = any()
        if id and math.random(2) == 1 then
          if handle:pause(id) then paused[#paused + 1] = id end
        elseif #paused > 0 then
          handle:resume(table.remove(paused, math.random(#paused)))
        end
        nst.sleep(math.random() * 0.02)
      end
      -- all of it still: what runs comes back, and then nothing starts
      for _, top in ipairs(tops) do
        local n = handle:pause(top)
        if n then paused[#paused + 1] = top end
      end
      eventually(function() return #handle:jobs { state = "running" } == 0 end)
      local function count() return tonumber((db.sql("SELECT COUNT(*) FROM seen", name))) end
      local still = count()
      local before = handle:stats().queues[1]
      assert.same({ 0, 0 }, { before.ready, before.running })
      nst.sleep(0.3)
      assert.equal(still, count())
      -- inner ones first, outer ones last
      table.sort(paused, function(a, b) return a > b end)
      for _, id in ipairs(paused) do handle:resume(id) end
      for _, top in ipairs(tops) do
        eventually(function() return state(top) == "done" or nil end, 90)
        assert.same({ 55, 55 }, { handle:progress(top).done, handle:progress(top).total })
      end
      assert.equal("0", (db.sql("SELECT COUNT(*) FROM "
        .. "(SELECT id, run FROM seen GROUP BY id, run HAVING COUNT(*) > 1) x",
        name)), "seed " .. seed)
      for _, h in ipairs { first, second } do
        h:signal "TERM"
        assert.equal(0, h:wait(30))
      end
    end)
  end)
end)

-- run_now of a job that was paused was refused because it "is waiting for other
-- jobs"; there were none.
describe("run_now", function()
  it("says that it is a pause that holds the job", function()
    local handle <close> = assert(nightshift.open((db.fresh())))
    local id = assert(handle:queue("q"):push("job", nil, { delay = 60 }))
    assert(handle:pause(id))
    local ok, message, code = handle:run_now(id)
    assert.same({ nil, ("job %d is not scheduled: it is paused"):format(id), "STATE" }, { ok, message, code })
    assert(handle:resume(id))
    assert.is_true(handle:run_now(id))
  end)
end)

-- Jobs borrowed the name of their queue from an array that grew when another queue was met.
-- Those that waited in a host, in another thread, were left with the name in freed memory.
it("jobs that wait in a host keep their queue's name while queues appear", function()
  local HANDLERS = [[
  local nst = require "nst"
  return { quick = function()  end, hold = function(job)
    while not io.open(%q) do nst.sleep(0.01) end
    return job.queue
  end }]]

  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local go = fixture.dir() .. "/go"
  local h = host.start(url, HANDLERS:format(go), { "--workers", "2", "--reserve", "extra=1" },
    { GLIBC_TUNABLES = "glibc.malloc.perturb=165:glibc.malloc.arena_max=1" }) -- what is freed is written over
  local q, warm, held = handle:queue "the first of all", {}, {}
  for i = 1, 1000 do warm[i] = { "quick" } end -- jobs are claimed ahead of quick handlers only
  assert(q:push_many(warm))
  eventually(function() return db.sql("SELECT COUNT(*) FROM nightshift_job", name) == "0" end, 30)
  for i = 1, 200 do held[i] = { "hold" } end
  local ids = assert(q:push_many(held))
  eventually(function()
    return tonumber(db.sql("SELECT COALESCE(SUM(JSON_LENGTH(jobs)), 0) FROM nightshift_lease", name)) > 1
  end)
  for step = 1, 4 do -- the host reads the queues again, for one that has a worker of its own
    db.sql(("INSERT INTO nightshift_queue (name, created) SELECT CONCAT('q-%d-', seq), 1 FROM seq_1_to_%d"):format(step,
      10 * 3 ^ step), name)
    local extra = assert(handle:queue("extra"):push "quick")
    eventually(function() return handle:job(extra).state == "done" end)
  end
  io.open(go, "w"):close()
  eventually(function() return db.sql("SELECT COUNT(*) FROM nightshift_job", name) == "0" end, 20)
  for _, id in ipairs(ids) do assert.equal("the first of all", handle:job(id).result) end
  h:signal "TERM"
  assert.equal(0, h:wait())
end)

-- ----- priorities

-- Priorities of live jobs.
describe("priorities:", function()
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

    it("shows in listings and the view as everywhere", function()
      local id = assert(q:push("a", nil, { priority = 200, decay = 40 }))
      assert(q:claim():again(3600))
      for _, filter in ipairs { {}, { state = "scheduled" }, { queue = q.name, name = "a" }, { after = id + 1 } } do
        assert.same({ id, 160 }, { handle:jobs(filter)[1].id, handle:jobs(filter)[1].priority })
      end
      assert.equal(160, priority(id))
      assert.equal(160, handle:execute("SELECT priority FROM nightshift_jobs WHERE id = ?", id)[1].priority)
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
end)

-- Aging: what lies below a saturated priority is claimed all the same, within a
-- number of claims that can be counted.
describe("aging", function()
  local TURN = 16 -- rows in true order for one that is aged

  local handle, q, url

  with_database(function(...) handle, q, url = ... end)

  local function pushed(n, priority)
    local items = {}
    for i = 1, n do items[i] = { "job", nil, { priority = priority } } end
    return assert(q:push_many(items))
  end

  --- Claims one after the other until all of `wanted` have come; how many that took,
  -- and how many of them were wanted.
  local function claims_until(wanted, claim)
    local missing, n = 0, 0
    for _ in pairs(wanted) do missing = missing + 1 end
    local found = {}
    while missing > 0 do
      local jobs = claim()
      assert.is_true(#jobs > 0, "the load has run out")
      for _, job in ipairs(jobs) do
        n = n + 1
        if wanted[job.id] and not found[job.id] then
          found[job.id], missing = n, missing - 1
        end
        assert(job:ack())
      end
    end
    return n, found
  end

  local function one() return { q:claim() } end

  it("starts a job at the bottom within 16 claims", function()
    pushed(200, 200)
    local low = assert(q:push("low", nil, { priority = 0 }))
    assert.is_true(claims_until({ [low] = true }, one) <= TURN + 1)
  end)

  it("costs one claim in 16, oldest first", function()
    local low = pushed(20, 0)
    pushed(400, 200)
    local came = {}
    for n = 1, 170 do
      local job = assert(q:claim())
      if job.priority == 0 then came[#came + 1] = { n, job.id } end
      assert(job:ack())
    end
    assert.equal(10, #came)
    for i, pair in ipairs(came) do assert.same({ i * (TURN + 1), low[i] }, pair) end
  end)

  it("reaches every lower priority in turn, however many jobs lie at the bottom", function()
    pushed(3000, 200)
    pushed(100, 0)
    local wanted = {}
    for _, priority in ipairs { 4, 12, 20, 84, 92, 100, 199 } do wanted[pushed(1, priority)[1]] = true end
    -- every other turn is the lowest lane's; the rest go round the eight of them
    assert.is_true(claims_until(wanted, one) <= 2 * 8 * (TURN + 1))
  end)

  it("goes on in batches, as a part of them", function()
    pushed(6000, 200)
    local low = pushed(30, 0)
    local wanted = {}
    for _, id in ipairs(low) do wanted[id] = true end
    local n = claims_until(wanted, function() return assert(q:claim_many(100)) end)
    assert.is_true(n >= 30 * TURN - 100, "not before their time: " .. n)
    assert.is_true(n <= 30 * TURN + 2000, n)
  end)

  it("finds a lane that comes up later, and what was committed late", function()
    pushed(10, 200)
    local other <close> = assert(nightshift.open(url))
    local late
    assert(other:transaction(function(tx)
      late = assert(tx:queue("q"):push("low", nil, { priority = 0 }))
      assert(q:push("low", nil, { priority = 0 })) -- claimed first, and so the floor rises
      for _ = 1, 11 do assert(q:claim():ack()) end
      pushed(4 * TURN, 200)
      for _ = 1, 2 * TURN do assert(q:claim():ack()) end
      return true
    end))
    local low = assert(q:push("middle", nil, { priority = 50 }))
    local wanted, deadline = { [late] = true, [low] = true }, nightshift.clock() + 60
    while next(wanted) do
      assert.is_true(nightshift.clock() < deadline, "never found")
      pushed(2 * TURN, 200)
      for _ = 1, 2 * TURN do
        local job = assert(q:claim())
        wanted[job.id] = nil
        assert(job:ack())
      end
    end
  end)

  it("is each queue's own", function()
    local other = handle:queue "other"
    local low = assert(other:push("low", nil, { priority = 0 }))
    pushed(2 * TURN, 200)
    for _ = 1, 2 * TURN do assert(q:claim():ack()) end
    assert.equal("ready", handle:job(low).state)
  end)

  it("does not exist for a strict claim", function()
    pushed(5 * TURN, 200)
    local low = assert(q:push("low", nil, { priority = 0 }))
    for _ = 1, 5 * TURN do
      local job = assert(q:claim { strict = true })
      assert.equal(200, job.priority)
      assert(job:ack())
    end
    assert.equal(low, q:claim({ strict = true }).id)
  end)

  it("leaves those below alone while nothing has to wait", function()
    for _ = 1, 3 * TURN do
      pushed(1, 200)
      assert(q:claim():ack())
      assert.is_nil(q:claim())
    end
    local low = assert(q:push("low", nil, { priority = 0 }))
    local high = pushed(1, 200)[1]
    assert.same({ high, low }, { q:claim().id, q:claim().id })
  end)
end)

-- Another priority for a whole tree moved its jobs and was forgotten when they ended. The
-- history had the old one, and so had who ran again.
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

-- Priorities under real hosts: aging under a load that never ends, shares of
-- queues between two hosts, order across pushers, new priorities of live jobs.
describe("priorities under hosts:", function()
  local SCRIPT = [[
  return {
    brief = function() end,
    nap = function() os.execute "exec sleep 0.05" end,
    gate = function(job)
      job:progress(0.5)
      while not io.open(job.payload) do os.execute "exec sleep 0.02" end
    end,
    once = function(job)
      job:progress(0.5)
      while job.attempt == 1 and job:db():job(job.id).priority ~= job.payload do os.execute "exec sleep 0.02" end
      if job.attempt == 1 then return job:fail("again", { retry_in = 0 }) end
    end }]]

  local url, name, handle, q, hosts

  before_each(function()
    url, name = db.fresh()
    handle = assert(nightshift.open(url))
    q, hosts = handle:queue "q", {}
  end)

  after_each(function()
    for _, h in ipairs(hosts) do h:signal "QUIT" end
    for _, h in ipairs(hosts) do h:wait() end
    handle:close()
  end)

  local function start(...)
    hosts[#hosts + 1] = host.start(url, SCRIPT, { ... })
    return hosts[#hosts]
  end

  local function state(id) return handle:job(id).state end

  local function items(n, job, opts)
    local list = {}
    for i = 1, n do list[i] = { job, nil, opts } end
    return list
  end

  --- Keeps the queue of priority 200 full until `done` says so; false: that took
  -- longer than `seconds`.
  local function saturate(job, backlog, seconds, done)
    local from = nightshift.clock()
    repeat
      local ready = tonumber((db.sql("SELECT COUNT(*) FROM nightshift_ready WHERE job_id > 0 AND rank = 55", name)))
      if ready < backlog then assert(q:push_many(items(backlog, job, { priority = 200 }))) end
      if done() then return nightshift.clock() - from end
      core.sleep(0.02)
    until nightshift.clock() - from > seconds
    return false
  end

  describe("a job of priority 0 under a saturating load of priority 200", function()
    for job, backlog in pairs { brief = 8000, nap = 400 } do
      it(("starts in time, 8 workers busy with %s jobs"):format(job), function()
        assert(q:push_many(items(backlog, job, { priority = 200 })))
        start("--workers", "8")
        local first = assert(q:push("brief", nil, { priority = 0 }))
        local took = saturate(job, backlog, 60, function() return state(first) == "done" end)
        assert.is_truthy(took, "not within 60 s")
        -- and so do more, at each priority that jobs sink to
        local low = {}
        for i, priority in ipairs { 0, 4, 12, 20, 100 } do
          low[i] = assert(q:push("brief", nil, { priority = priority }))
        end
        assert.is_truthy(saturate(job, backlog, 60, function()
          for _, id in ipairs(low) do
            if state(id) ~= "done" then return false end
          end
          return true
        end))
      end)
    end

    it("has to wait with --strict", function()
      assert(q:push_many(items(2500, "brief", { priority = 200 })))
      local low = assert(q:push("brief", nil, { priority = 0 }))
      start("--strict", "--queues", "q")
      eventually(function() return state(low) == "done" end, 60)
      local before = db.sql(([[SELECT COUNT(*) FROM nightshift_finished WHERE priority = 200 AND finished_at <=
      (SELECT finished_at FROM nightshift_finished WHERE id = %d)]]):format(low), name)
      assert.is_true(tonumber(before) >= 2300, before)
    end)
  end)

  describe("queues with weights", function()
    it("get their shares of what two hosts do together", function()
      for _, queue in ipairs { "a", "b" } do assert(handle:queue(queue):push_many(items(4000, "brief"))) end
      start("--queues", "a=3,b=1")
      start("--queues", "a=3,b=1")
      local function done() return tonumber((db.sql("SELECT COUNT(*) FROM nightshift_finished", name))) end
      eventually(function() return done() >= 4000 end, 60)
      local a = tonumber((db.sql([[SELECT SUM(name = 'a') FROM (SELECT q.name FROM nightshift_finished f
      JOIN nightshift_queue q ON q.id = f.queue_id ORDER BY f.finished_at, f.id LIMIT 4000) x]], name)))
      assert.is_true(a > 2700 and a < 3300, a .. " of 4000")
    end)
  end)

  describe("within a priority", function()
    it("first come is first served, whoever pushes and whoever claims", function()
      local pushers, expected = { handle }, {}
      for i = 2, 3 do pushers[i] = assert(nightshift.open(url)) end
      for i = 1, 60 do expected[i] = assert(pushers[i % 3 + 1]:queue("q"):push("brief", i)) end
      for i = 61, 66 do
        local status, out = proc.run { proc.program, "push", "q", "brief", tostring(i), env = { NIGHTSHIFT_URL = url } }
        assert.equal(0, status)
        expected[i] = math.tointeger(tonumber(out))
      end
      local ascending = true
      for i = 2, 66 do ascending = ascending and expected[i] > expected[i - 1] end
      assert.is_false(ascending, "ids come in blocks, so their order is not the order of coming")
      local came = {}
      for i = 1, 66 do
        local job = assert(pushers[i % 3 + 1]:queue("q"):claim())
        came[i] = job.id
        assert(job:ack())
      end
      assert.same(expected, came)
      for i = 2, 3 do pushers[i]:close() end
    end)
  end)

  describe("a new priority of a live job, under two hosts,", function()
    local go

    --- The workers of both hosts wait for the file `go`.
    local function hold()
      go = fixture.dir() .. "/go"
      start("--workers", "1")
      start("--workers", "1")
      for _ = 1, 2 do assert(q:push("gate", go, { priority = 255 })) end
      eventually(function() return db.sql("SELECT COUNT(*) FROM nightshift_running", name) == "2" end)
    end

    local function finished(id)
      eventually(function() return state(id) == "done" end)
      return tonumber((db.sql("SELECT finished_at FROM nightshift_finished WHERE id = " .. id, name)))
    end

    it("counts for ready, scheduled and waiting ones", function()
      hold()
      local parent = assert(q:push("elsewhere", nil, { priority = 254 })) -- which no host has a handler for
      local naps = assert(q:push_many(items(40, "nap", { priority = 150 })))
      local ready = assert(q:push("brief", nil, { priority = 10 }))
      local scheduled = assert(q:push("brief", nil, { priority = 10, delay = 0.1 }))
      local waiting = assert(q:push("brief", nil, { priority = 10, after = { parent } }))
      for _, id in ipairs { ready, scheduled, waiting } do assert(handle:reprioritise(id, 200)) end
      -- so that none of them depends on what a host is just about to write
      local first = assert(q:claim { names = { "elsewhere" } })
      assert.equal(parent, first.id)
      assert(first:ack())
      core.sleep(0.2)
      assert(io.open(go, "w")):close()
      local last = finished(naps[40])
      for _, id in ipairs { ready, scheduled, waiting } do
        assert.is_true(finished(id) < last)
        assert.equal(200, handle:job(id).priority)
      end
    end)

    it("counts for a running one when it comes back", function()
      start("--workers", "1")
      start("--workers", "1")
      local id = assert(q:push("once", 240, { priority = 20, decay = 5 }))
      eventually(function() return db.sql("SELECT COUNT(*) FROM nightshift_running", name) == "1" end)
      assert(handle:reprioritise(id, 240))
      finished(id)
      local attempts = tonumber((db.sql("SELECT COUNT(*) FROM nightshift_attempt WHERE job_id = " .. id, name)))
      assert.same({ 1, 240 }, { attempts, handle:job(id).priority })
    end)
  end)
end)
