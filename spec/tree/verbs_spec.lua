-- Verbs on a job and all below it.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"

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
        while not job:cancelled() do os.execute "sleep 0.02" end
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
      for i = 1, 3000 do items[i] = { "kid", i, { parent = job.id } } end
      local kids = assert(q:push_many(items))
      for i = 1, 3000 do items[i] = { "kid", i, { parent = kids[i], delay = 60 } } end
      assert(q:push_many(items))
      assert.equal(6001, handle:progress(job.id).total)
      assert.equal(6001, handle:pause(job.id))
      assert.is_nil(q:claim())
      assert.equal(6001, handle:resume(job.id))
      assert.equal(3000, handle:progress(job.id).ready)
      assert.equal(6001, handle:cancel(job.id, { tree = true }))
      assert.equal(6001, handle:retry(job.id, { tree = true }))
      assert.equal(6001, handle:progress(job.id).ready)
    end)
  end)
end)

-- What falls with a failed job falls in pieces. A tree of many levels that was
-- retried before all were told had its top cancelled while the rest ran again.
describe("a deep tree that is retried while it falls", function()
  local LEVELS = 320 -- more than one piece

  local url, handle, q

  with_database(function(...) handle, q, url = ... end)

  local function fallen()
    local node = { name = "leaf" }
    for _ = 1, LEVELS do node = { name = "node", children = { node } } end
    node.queue = "q"
    local root = assert(handle:flow(node))
    assert(q:claim():discard "no")
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

-- A retry of a tree counted what a parked parent waits for anew, and left out a child that
-- had ended and of which the parent was not told yet. Once it was, the parent ran beside
-- the children that were left; or its last edges were more than it waited for, and no
-- cycle that came with them could be written.
describe("a parent whose tree is retried while a child ends", function()
  local handle, q, url, parent

  with_database(function(...) handle, q, url = ... end)

  -- Somebody holds the parent while 'act' is at work.
  local function held(act)
    local other <close> = assert(nightshift.open(url))
    assert(other._handle:begin())
    assert(other:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", parent))
    act()
    other._handle:rollback()
  end

  -- Of 'n' claimed children of a parked parent the first one fails, the second ends while
  -- the parent cannot be told, and the tree is retried. Returns them.
  local function family(n)
    parent = assert(q:push "parent")
    local job = assert(q:claim())
    for i = 1, n do assert(job:spawn("child", i)) end
    assert(job:wait { on_fail = "continue" })
    local kids = assert(q:claim_many(n))
    assert(kids[1]:discard "no")
    held(function() assert(kids[2]:ack()) end)
    -- in a transaction it does not look first whether anybody is to be told
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

-- A job had been cancelled while another that it waited for still ran. Somebody's
-- open transaction ran it again, and so had deleted its edge: the host on which
-- the other ended waited for that transaction, with all its jobs.
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
    local second = assert(q:push("other", nil, { delay = 1 }))
    local job = assert(q:claim())
    local id = assert(q:push("other", nil, { after = { first, second } }))
    assert(job:discard "no")
    assert.equal("cancelled", handle:job(id).state)
    local h = host.start(url, HANDLERS)
    assert(other:transaction(function()
      assert(other:retry(id))
      local slow = 0
      for _ = 1, 100 do
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
