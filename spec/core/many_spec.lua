-- Verbs on all jobs of a filter: which jobs they are done to, batches, and workers that claim the
-- same jobs meanwhile.

local crew = require "spec.support.crew"
local db = require "spec.support.db"
local filter = require "nightshift.filter"
local nightshift = require "nightshift"

local handle, q, url, name

with_database(function(...) handle, q, url, name = ... end)
after_each(crew.clean)

local function counts(found, changed, refused)
  return { found = found, changed = changed or found, refused = refused or 0 }
end

local function state(id) return assert(handle:job(id)).state end

--- Pushes a job for each error and lets it die of that; their ids.
local function dead(errors, options)
  local ids = {}
  for i, text in ipairs(errors) do
    ids[i] = assert(q:push("job", i, options))
    assert(assert(q:claim()):discard(text))
  end
  return ids
end

describe("a filter", function()
  it("retries the dead jobs of an error, of its first line, or of its kind", function()
    local ids = dead { "disk 1 is full\nat 2", "disk 2 is full", "no route", "disk 1 is full" }
    assert.same(counts(2), handle:retry { state = "dead", error = "disk 1 is full" })
    assert.same({ "ready", "dead", "dead", "ready" }, { state(ids[1]), state(ids[2]), state(ids[3]), state(ids[4]) })
    assert.same(counts(1), handle:retry { error = "disk # is full" })
    assert.same(counts(0), handle:retry { error = "disk # is full" })
    assert.same(counts(1), handle:retry { name = "job", queue = "q" })
    assert.same(counts(0), handle:retry { queue = "no such queue" })
    local info = handle:job(ids[1])
    assert.same({ 0, 2 }, { info.attempts, info.run })
    for _ = 1, 4 do assert(assert(q:claim()):ack()) end
    assert.is_nil((q:claim()))
    assert.same(counts(1), handle:retry { state = "done", name = "job", since = handle:job(ids[3]).finished_at })
  end)

  it("leaves a job whose unique key another has, and counts it", function()
    local ids = dead({ "a" }, { unique = "k" })
    local other = assert(q:push("other", 1, { unique = "k", delay = 60 }))
    dead { "a" }
    assert.same(counts(2, 1, 1), handle:retry { error = "a" })
    assert.same({ "dead", "scheduled" }, { state(ids[1]), state(other) })
  end)

  it("retries jobs that waited for others, with signals and children, as an id does", function()
    local first = assert(q:push("first", 1))
    local second = assert(q:push("second", 1, { after = { first }, unique = "s" }))
    assert(handle:cancel(first))
    assert.equal("cancelled", state(second))
    assert.same(counts(2), handle:retry { state = "cancelled", queue = "q" })
    assert.same({ "ready", "ready" }, { state(first), state(second) })
    assert.equal("DUPLICATE", select(3, q:push("x", 1, { unique = "s" })))
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_edge", name))
  end)

  it("cancels live jobs wherever they are, and tells the running ones", function()
    local running = assert(q:push("a", 1, { priority = 200 }))
    local job = assert(q:claim())
    local ready = assert(q:push("a", 2))
    local later = assert(q:push("a", 3, { delay = 60 }))
    local waiting = assert(q:push("b", 4, { after = { later } }))
    assert.same(counts(1), handle:cancel { state = "scheduled", name = "a", reason = "not needed" })
    assert.same({ "not needed", "cancelled" }, { handle:job(later).reason, state(waiting) })
    assert.same({ "ready", "running" }, { state(ready), state(running) })
    assert.same(counts(2), handle:cancel { queue = "q" })
    assert.equal("STALE", select(3, job:ack()))
    assert.same({ "cancelled", "cancelled" }, { state(ready), state(running) })
    assert.is_nil((q:claim()))
  end)

  it("makes scheduled jobs ready, but not jobs that wait for a signal", function()
    local a, b = assert(q:push("a", 1, { delay = 60 })), assert(q:push("b", 1, { delay = 60 }))
    local parked = assert(q:push("a", 1))
    assert(assert(q:claim()):wait { signal = "go", deadline = 60 })
    assert.same(counts(1), handle:run_now { name = "a" })
    assert.same({ "ready", "scheduled", "waiting" }, { state(a), state(b), state(parked) })
    assert.equal(a, assert(q:claim()).id)
  end)

  it("gives a priority to ready, scheduled, waiting and running jobs", function()
    assert(q:push("a", 1))
    local running = assert(q:claim())
    local later = assert(q:push("a", 2, { delay = 60 }))
    local waiting = assert(q:push("a", 3, { after = { later } }))
    local other = assert(q:push("b", 4, { priority = 150 }))
    local ready = { assert(q:push("a", 5)), assert(q:push("a", 6)) }
    assert.same(counts(5), handle:reprioritise({ name = "a" }, 200))
    assert.same(counts(2, 0), handle:reprioritise({ name = "a", state = "ready" }, 200))
    for _, id in ipairs { running.id, later, waiting, ready[1], ready[2] } do
      assert.equal(200, handle:job(id).priority)
    end
    assert.same({ ready[1], ready[2], other }, { q:claim().id, q:claim().id, q:claim().id })
    assert.equal("INVALID", select(3, handle:reprioritise({ name = "a" }, 256)))
  end)

  it("moves jobs that do not run, with their unique keys", function()
    assert(q:push("a", 1))
    local running = assert(q:claim())
    local later = assert(q:push("a", 2, { delay = 60, unique = "k" }))
    local waiting = assert(q:push("a", 3, { after = { later } }))
    local ready = assert(q:push("a", 4))
    local to = assert(handle:queue "to")
    assert.same(counts(3), handle:move { queue = "q", to = "to" })
    assert.equal("q", handle:job(running.id).queue)
    for _, id in ipairs { later, waiting, ready } do assert.equal("to", handle:job(id).queue) end
    assert.is_nil((q:claim()))
    assert.equal(ready, assert(to:claim()).id)
    assert(q:push("a", 5, { unique = "k" }))
    assert.equal("DUPLICATE", select(3, to:push("a", 6, { unique = "k" })))
    assert.same(counts(1, 0, 1), handle:move { queue = "q", to = "to" })
    assert(handle:run_now(later))
    local moved = assert(to:claim())
    assert.equal(later, moved.id)
    assert(moved:ack())
    assert.same(counts(1), handle:move { queue = "q", to = "to" }) -- the key is free there
    assert(running:ack())
    assert.equal("0", db.sql([[SELECT COUNT(*) FROM nightshift_ready r JOIN nightshift_job j
      ON j.id = r.job_id AND j.run = r.run WHERE j.queue_id <> r.queue_id]], name))
  end)

  it("moves a unique key with its period", function()
    local to = assert(handle:queue "to")
    local old = assert(q:push("a", 1, { unique = { key = "k", period = "10m" } }))
    assert.same(counts(1), handle:move { queue = "q", to = "to" })
    assert(assert(to:claim()):ack())
    assert.equal("DUPLICATE", select(3, to:push("a", 2, { unique = "k" })))
    assert(q:push("a", 3, { unique = "k", delay = 60 }))
    assert.same(counts(1, 0, 1), handle:move { queue = "q", to = "to" })
    assert.same(counts(1), handle:retry { state = "done", queue = "to" })
    assert.equal(old, assert(to:claim()).id)
  end)

  it("moves ended jobs, and they run again there", function()
    local ids = dead({ "a", "b" }, { unique = "k" })
    assert.same(counts(1), handle:move { state = "dead", error = "a", to = "to" })
    assert.same({ "to", "q" }, { handle:job(ids[1]).queue, handle:job(ids[2]).queue })
    assert.same(counts(1), handle:retry { state = "dead", queue = "to" })
    assert.equal(ids[1], assert(handle:queue("to"):claim()).id)
  end)

  it("deletes no job that has ended, or lives again, since the filter was asked", function()
    local lives, ended = assert(q:push "a"), assert(q:push "b")
    for _ = 1, 2 do
      local job = assert(q:claim())
      assert(job.id == ended and job:ack() or job:release())
    end
    local _, _, code = handle._handle:delete(lives, true)
    assert.equal("NOT_FOUND", code)
    _, _, code = handle._handle:delete(ended, false)
    assert.equal("NOT_FOUND", code)
    assert.same({ "ready", "done" }, { handle:job(lives).state, handle:job(ended).state })
  end)

  it("deletes jobs that do not run", function()
    local ids = dead { "a", "b" }
    local ready = assert(q:push("a", 1))
    assert.same(counts(1), handle:delete { error = "a" })
    assert.same(counts(1), handle:delete { state = "ready", queue = "q" })
    assert.equal("NOT_FOUND", select(3, handle:job(ids[1])))
    assert.equal("NOT_FOUND", select(3, handle:job(ready)))
    assert.equal("dead", state(ids[2]))
  end)

  it("finds children by their parent, of whatever state", function()
    local top, kids = assert(q:push("top", 1)), {}
    for i = 1, 3 do kids[i] = assert(q:push("kid", i, { parent = top, delay = 60 })) end
    assert.same(counts(3), handle:run_now { parent = top })
    assert.same(counts(3), handle:cancel { parent = top })
    assert.same(counts(3), handle:retry { parent = top, state = "cancelled" })
    assert.equal("ready", state(kids[1]))
  end)

  it("finds jobs by a tag, which they keep", function()
    local ids = {}
    for i, tags in ipairs { { "a" }, { "a", "b" }, { "b" } } do ids[i] = assert(q:push("job", i, { tags = tags })) end
    local function list(given)
      local found = {}
      for i, row in ipairs(assert(handle:jobs(given))) do found[i] = row.id end
      return found
    end
    assert.same({ ids[2], ids[1] }, list { tag = "a" })
    assert.same({ ids[1] }, list { tag = "a", state = "ready", after = ids[2] })
    assert.same({ ids[2] }, list { tag = "b", name = "job", limit = 1, after = ids[3] })
    assert.same(counts(2), handle:cancel { tag = "a" })
    assert.same({ ids[2], ids[1] }, list { tag = "a", state = "cancelled" })
    assert.same({}, list { tag = "%" })
    assert.same(counts(2), handle:retry { tag = "a", state = "cancelled" })
    assert.same({ ids[3], ids[2] }, list { tag = "b", state = "ready" })
    for job in q:jobs() do assert(job:ack()) end
    assert.same({ ids[2], ids[1] }, list { tag = "a", state = "done" })
  end)

  it("finds jobs of a group, wherever they are", function()
    local ids = {}
    for i, group in ipairs { "a", "a ", "A", "a", "b" } do
      ids[i] = assert(q:push(i == 4 and "late" or "job", i, { group = group, delay = i == 4 and 60 or nil }))
    end
    assert(q:push("job", 6))
    local function list(given)
      local found = {}
      for i, row in ipairs(assert(handle:jobs(given))) do
        assert.equal(given.group, row.group)
        found[i] = row.id
      end
      return found
    end
    assert.same({ ids[4], ids[1] }, list { group = "a" })
    assert.same({ ids[1] }, list { group = "a", state = "ready", queue = "q" })
    assert.same({ ids[4] }, list { group = "a", state = "scheduled" })
    assert.same({ ids[2] }, list { group = "a " })
    assert.same({}, list { group = "%" })
    assert.same(counts(1), handle:run_now { group = "a" })
    assert.same(counts(2), handle:reprioritise({ group = "a" }, 7))
    assert.same(counts(2), handle:move { group = "a", to = "there" })
    local job = assert(handle:queue "there":claim())
    assert.same({ job.id }, list { group = "a", state = "running" })
    assert.same(counts(2), handle:cancel { group = "a" })
    assert.same({ ids[4], ids[1] }, list { group = "a" })
    assert.same({ ids[4], ids[1] }, list { group = "a", queue = "there" })
    assert.equal(2, #list { group = "a", state = "cancelled" })
    assert.same(counts(2), handle:retry { group = "a", state = "cancelled" })
    assert.equal(1, handle:delete({ group = "a", state = "ready", name = "late" }).changed)
    assert.same({ ids[1] }, list { group = "a" })
    assert.same(counts(1), handle:update({ group = "b" }, { group = "c" }))
    assert.same({ ids[5] }, list { group = "c" })
  end)

  it("is refused without a condition, with a state that cannot be, in a transaction", function()
    for _, verb in ipairs { "retry", "cancel", "run_now", "delete" } do
      assert.error_matches(function() handle[verb](handle, {}) end, verb .. " wants a job's id, or a filter with")
    end
    assert.error_matches(function() handle:move { queue = "q" } end, "move: to is missing")
    assert.error_matches(function() handle:reprioritise { queue = "q" } end, "reprioritise: priority is missing")
    assert.error_matches(function() handle:cancel({ queue = "q" }, { reason = "x" }) end, "cancel takes a filter")
    assert.error_matches(function() handle:retry { eror = "x" } end, "unknown option 'eror'; did you mean 'error'")
    for _, bad in ipairs { { "retry", { state = "ready" } }, { "cancel", { state = "dead" } },
      { "move", { state = "running", to = "x" } }, { "retry", { queue = "q", rate = 0 } },
      { "move", { queue = "q", to = "" } }, { "retry", { error = "\xff" } } } do
      local none, message, code = handle[bad[1]](handle, bad[2])
      assert.same({ nil, "INVALID" }, { none, code }, message)
    end
    assert(handle:transaction(function(tx)
      tx:try(function() assert.equal("STATE", select(3, handle:cancel { queue = "q" })) end)
      return true
    end))
  end)

  it("is asked again under the locks", function()
    local core = handle._handle
    local ids = { assert(q:push("a", 1)), assert(q:push("b", 2)), assert(q:push("a", 3, { delay = 60 })) }
    local wanted, claims = assert(filter.bind(core, { queue = "q", name = "a" })), filter.claims(ids[1], ids[3])
    assert(handle:pause(ids[2]))
    assert.same({ 1, 0 }, { core:many("cancel", ids, 0, nil, 0, 0, "ready", wanted, claims) })
    assert.same({ "cancelled", "waiting", "scheduled" }, { state(ids[1]), state(ids[2]), state(ids[3]) })
    assert.equal(1, handle:resume(ids[2])) -- its pause is there still
    assert.same({ 0, 0 }, { core:many("retry", { ids[1] }, 0, nil, 0, 0, "dead", wanted, claims) })
    assert.equal("cancelled", state(ids[1]))
  end)
end)

describe("update of a filter", function()
  local function payload(id) return (handle:job(id).payload) end

  it("mends the payloads of dead jobs by a function, and has them run again", function()
    local ids = dead { "no route", "no route", "full", "no route" }
    local seen = {}
    local function mend(old, job)
      seen[#seen + 1] = { job.id, job.name, job.queue, job.state, job.error, old, math.type(job.finished_at) }
      if job.id == ids[2] then return nil end
      return { to = "mx" .. old }
    end
    assert.same(counts(3, 2), handle:update({ state = "dead", error = "no route" }, { payload = mend, priority = 7 },
      { retry = true }))
    assert.same({ "ready", "dead", "dead", "ready" }, { state(ids[1]), state(ids[2]), state(ids[3]), state(ids[4]) })
    assert.same({ { to = "mx1" }, 2, { to = "mx4" } }, { payload(ids[1]), payload(ids[2]), payload(ids[4]) })
    assert.equal(7, handle:job(ids[4]).priority)
    assert.equal(3, #seen)
    assert.same({ ids[1], "job", "q", "dead", "no route", 1, "float" }, seen[1])
    assert.equal(ids[1], assert(q:claim()).id)
  end)

  it("merges a patch into each payload, exactly", function()
    local id = assert(q:push("a", { to = "x", n = 9007199254740993, list = nightshift.array {},
      deep = { a = 1, b = nightshift.null } }))
    local plain, null = assert(q:push("a", 5)), assert(q:push("a", nil))
    local patch = { to = nightshift.null, deep = { c = { 1 } }, new = {} }
    assert.same(counts(3), handle:update({ name = "a", state = "ready" }, { set = patch }))
    assert.same({ deep = { a = 1, b = nightshift.null, c = { 1 } }, list = {}, n = 9007199254740993, new = {} },
      payload(id))
    assert.equal("1", db.sql([[SELECT payload LIKE '%"list":[]%' AND payload LIKE '%"new":{}%'
      FROM nightshift_job WHERE id = ]] .. id, name))
    for _, other in ipairs { plain, null } do assert.same({ deep = { c = { 1 } }, new = {} }, payload(other)) end
    assert.is_true(handle:update(id, { set = { n = 1 } }))
    assert.is_true(handle:update(id, { payload = function(old) return old.n + 1 end }))
    assert.equal(2, payload(id))
    assert.is_true(handle:update(id, { payload = function() return nil end }))
    assert.equal(2, payload(id))
  end)

  it("takes jobs that wait, unless a state is said, and leaves the running ones", function()
    local gone = dead({ "no" })[1]
    assert(q:push("a", 1))
    local running = assert(q:claim())
    local later = assert(q:push("a", 2, { delay = 60 }))
    local ready = assert(q:push("a", 3))
    assert.same(counts(2), handle:update({ queue = "q", rate = 1000 }, { payload = nightshift.null, tags = { "t" } }))
    assert.is_nil(payload(later))
    assert.same({ "t" }, { table.unpack(handle:job(ready).tags) })
    assert.equal(1, payload(gone))
    assert(running:ack())
    assert.same(counts(0), handle:update({ state = "cancelled" }, { priority = 1 }))
  end)

  it("leaves a job that has gone on, or was changed by another, since it was looked at", function()
    local id = dead { "no" }[1]
    local core = handle._handle
    local function refused(ended, run, text)
      local ok, _, code = core:update(id, { json = "9" }, ended, run, text)
      assert.same({ nil, "STATE" }, { ok, code })
    end
    refused(false)
    refused(true, 2)
    refused(true, 1, "2")
    assert.is_true(core:update(id, { json = "9" }, true, 1, "1"))
    assert.same(counts(1, 0), handle:update({ state = "dead" }, { payload = function(old)
      assert(handle:update(id, { payload = old + 1 }))
      return 0
    end }))
    assert.equal(10, payload(id))
    local looks = 0
    assert.is_true(handle:update(id, { payload = function(old) -- of one job: again, from what it is then
      looks = looks + 1
      if looks == 1 then assert(handle:update(id, { payload = 20 })) end
      return old + 1
    end }))
    assert.same({ 2, 21 }, { looks, payload(id) })
    assert.same(counts(1, 0), handle:update({ state = "dead" }, { payload = function()
      assert(handle:retry(id))
      return 0
    end }, { retry = true }))
    assert.same({ "ready", 21 }, { state(id), payload(id) })
    local _, _, code = handle:update(id + 50, { set = { a = 1 } })
    assert.equal("NOT_FOUND", code)
  end)

  it("mends nothing of a job that cannot run again, because another has its unique key", function()
    local id = dead({ "a" }, { unique = "k" })[1]
    assert(q:push("other", 1, { unique = "k", delay = 60 }))
    assert.same(counts(1, 0, 1), handle:update({ state = "dead" }, { payload = 9 }, { retry = true }))
    assert.same({ "dead", 1 }, { state(id), payload(id) })
    assert.is_false(handle._handle:in_transaction())
  end)

  it("says what cannot be", function()
    dead { "a" }
    for _, bad in ipairs { { { state = "running" }, { priority = 1 } }, { { state = "done" }, { priority = 1 } },
      { { state = "dead" }, {} }, { { state = "dead" }, { priority = 256 } },
      { { state = "dead", rate = 0 }, { set = {} } }, { { state = "dead" }, { set = { a = 0 / 0 } } },
      { { state = "dead" }, { payload = function() return 0 / 0 end } } } do
      local none, message, code = handle:update(bad[1], bad[2])
      assert.same({ nil, "INVALID" }, { none, code }, message)
    end
    for pattern, call in pairs {
      ["either payload or set"] = function() handle:update({ state = "dead" }, { payload = 1, set = {} }) end,
      ["set must be a table"] = function() handle:update({ state = "dead" }, { set = 1 }) end,
      ["retry wants the state"] = function() handle:update({ queue = "q" }, { set = {} }, { retry = true }) end,
      ["unknown option 'again'"] = function() handle:update({ queue = "q" }, { set = {} }, { again = true }) end,
      ["wants a job's id, or a filter"] = function() handle:update({}, { set = {} }) end,
      ["mine"] = function() handle:update({ state = "dead" }, { payload = function() error "mine" end }) end,
      ["the changes must be a table"] = function() handle:update { state = "dead" } end,
      ["a job's id and the changes"] = function() handle:update(1, { set = {} }, {}) end,
    } do
      assert.error_matches(call, pattern)
    end
    assert.equal("STATE", select(3, handle:transaction(function()
      return handle:update({ queue = "q" }, { set = {} })
    end)))
    assert.equal("TOO_BIG", select(3, handle:update({ state = "dead" }, { payload = ("x"):rep(1 << 20) })))
  end)

  it("is done once to each, by programs at one moment and beside one that is killed", function()
    local errors = {}
    for i = 1, 120 do errors[i] = "disk " .. i end
    local ids = dead(errors)
    local c = crew.fork(5, function(i)
      local own <close> = eventually(function() return nightshift.open(url) end)
      own:update({ state = "dead", error = "disk #" }, { payload = function(old) return old + 1000 end },
        { retry = true, rate = i == 1 and 40 or nil })
    end)
    eventually(function() return db.sql("SELECT COUNT(*) > 0 FROM nightshift_job", name) == "1" end)
    c:kill(1)
    c:wait(60)
    assert(handle:update({ state = "dead", error = "disk #" }, { payload = function(old) return old + 1000 end },
      { retry = true }))
    for i, id in ipairs(ids) do assert.equal(1000 + i, payload(id)) end
    assert.equal("120", db.sql("SELECT COUNT(*) FROM nightshift_ready WHERE job_id > 0", name))
  end)
end)

describe("many jobs of a filter", function()
  local N = 1203

  local function push_all(options)
    local items = {}
    for i = 1, N do items[i] = { "job", i, options } end
    return assert(q:push_many(items))
  end

  local function one(sql) return tonumber((db.sql(sql, name))) end

  it("are changed in batches, and a lane is not read anew for each", function()
    push_all()
    assert.same(counts(N), handle:reprioritise({ queue = "q" }, 50))
    assert.same(counts(N), handle:move { queue = "q", to = "to" })
    assert.equal(N, one [[SELECT COUNT(*) FROM nightshift_ready r JOIN nightshift_job j
      ON j.id = r.job_id AND j.run = r.run AND j.rank = r.rank AND j.queue_id = r.queue_id]])
    assert.same(counts(N), handle:cancel { queue = "to" })
    assert.same(counts(N), handle:retry { state = "cancelled", queue = "to" })
    assert.equal(N, one "SELECT COUNT(*) FROM nightshift_job")
    assert.equal(0, one "SELECT COUNT(*) FROM nightshift_finished")
    local order, last = assert(handle:queue("to"):claim_many(100)), 0
    for _, job in ipairs(order) do
      assert.is_true(job.id > last)
      last = job.id
    end
  end)

  it("go at a rate", function()
    local items = {}
    for i = 1, 30 do items[i] = { "job", i, { delay = 60 } } end
    assert(q:push_many(items))
    local began = nightshift.clock()
    assert.same(counts(30), handle:run_now { queue = "q", rate = 100 })
    assert.is_true(nightshift.clock() - began >= 0.1)
  end)

  -- Dead jobs that are retried and die again at once would be met again and again.
  it("are met once, though they die again meanwhile", function()
    dead { "a", "b", "c" }
    local c = crew.fork(1, function()
      local own <close> = assert(nightshift.open(url))
      for _ = 1, 3 do assert(assert(own:queue("q"):claim { wait = 20 }):discard "again") end
    end)
    assert.same(counts(3), handle:retry { state = "dead", rate = 20 })
    c:wait(30)
    assert.equal(3, one "SELECT COUNT(*) FROM nightshift_finished WHERE error = 'again'")
  end)

  it("are all changed or as before, when the program is killed in between", function()
    local N_DEAD = 60
    local errors = {}
    for i = 1, N_DEAD do errors[i] = "disk " .. i end
    dead(errors)
    local c = crew.fork(1, function()
      local own <close> = assert(nightshift.open(url))
      own:retry { error = "disk #", rate = 100 }
    end)
    eventually(function() return one "SELECT COUNT(*) FROM nightshift_job" > 0 end)
    c:kill(1)
    local live, ended = one "SELECT COUNT(*) FROM nightshift_job", one "SELECT COUNT(*) FROM nightshift_finished"
    assert.same({ N_DEAD, true }, { live + ended, ended > 0 })
    assert.equal(live, one "SELECT COUNT(*) FROM nightshift_ready r JOIN nightshift_job j ON j.id = r.job_id")
    assert.same(counts(ended), handle:retry { error = "disk #" })
    assert.equal(N_DEAD, #assert(q:claim_many(100)))
  end)

  it("are changed once by 20 programs that say the same at one moment", function()
    local errors = {}
    for i = 1, 200 do errors[i] = "disk " .. i end
    dead(errors)
    db.sql("CREATE TABLE told (found INT, changed INT)", name)
    local c = crew.fork(20, function()
      local own <close> = eventually(function() return nightshift.open(url) end)
      local told = assert(own:retry { error = "disk #", queue = "q" })
      assert(own:execute("INSERT INTO told VALUES (?, ?)", told.found, told.changed))
    end)
    c:wait(60)
    assert.same({ 20, 200 }, { one "SELECT COUNT(*) FROM told", one "SELECT SUM(changed) FROM told" })
    assert.equal(200, one "SELECT COUNT(*) FROM nightshift_ready WHERE job_id > 0")
  end)

  -- Each job is run once, by a worker that claims it before or after it is moved.
  it("are run once each beside workers that claim them", function()
    local ids = push_all()
    local folder = fixture.dir()
    local c = crew.fork(4, function(i)
      local own <close> = assert(nightshift.open(url))
      local seen <close> = assert(io.open(folder .. "/ids" .. i, "w"))
      local idle = 0 -- rounds without a job, behind the last move
      while idle < 10 do
        local n = 0
        local function run(jobs)
          for _, job in ipairs(jobs) do
            n = n + 1
            seen:write(job.id, "\n")
            assert(job:ack())
          end
        end
        for _, from in ipairs { "q", "to" } do run(assert(own:queue(from):claim_many(7))) end
        if n == 0 then run { own:queue("to"):claim { wait = 0.05 } } end
        local moved <close> = io.open(folder .. "/moved")
        idle = n == 0 and moved and idle + 1 or 0
      end
    end)
    for _, priority in ipairs { 50, 150 } do
      assert(handle:reprioritise({ name = "job", state = "ready" }, priority))
      assert(handle:move { queue = "q", to = "to" })
      assert(handle:move { queue = "to", to = "q" })
    end
    assert(io.open(folder .. "/moved", "w")):close()
    c:wait(60)
    local seen = {}
    for i = 1, 4 do
      for line in io.lines(folder .. "/ids" .. i) do
        assert.is_nil(seen[line], "a job ran twice")
        seen[line] = true
      end
    end
    for _, id in ipairs(ids) do assert.is_true(seen[tostring(id)], "a job is lost") end
    assert.same({ N, 0, 0 }, { one "SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'",
      one "SELECT COUNT(*) FROM nightshift_job", one "SELECT COUNT(*) FROM nightshift_lease" })
  end)
end)
