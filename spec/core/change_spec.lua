-- Changing jobs from outside: deleting and updating them; tags; the audit of who did what. Beside a
-- claim exactly one has the job. And such verbs on all jobs of a filter: which jobs they are done
-- to, batches, and workers that claim the same jobs meanwhile.

local crew = require "spec.support.crew"
local db = require "spec.support.db"
local filter = require "nightshift.filter"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local handle, q, url, name

local function rows_of(id)
  local found = {}
  for _, where in ipairs { "job:id", "finished:id", "ready:job_id", "scheduled:job_id", "attempt:job_id",
    "signal:job_id", "child:id", "pause:id", "unique_key:job_id", "running:job_id" } do
    local tab, column = where:match "(.*):(.*)"
    local n = db.sql(("SELECT COUNT(*) FROM nightshift_%s WHERE %s = %d"):format(tab, column, id), name)
    if n ~= "0" then found[#found + 1] = tab end
  end
  return found
end

describe("delete", function()
  with_database(function(...) handle, q, url, name = ... end)
  after_each(crew.clean)

  local function refuses(code, pattern, id, opts)
    local ok, message, why = handle:delete(id, opts)
    assert.same({ nil, code }, { ok, why })
    assert.matches(pattern, message)
  end

  it("leaves nothing of a job that has ended, whatever its end", function()
    for _, ending in ipairs { "ack", "discard", "cancel", "fail" } do
      local id = assert(q:push("secret", { card = "4111" }, { unique = "k", max_attempts = 1 }))
      local job = assert(q:claim())
      job:log "card 4111"
      if ending == "cancel" then assert(handle:cancel(id)) else assert(job[ending](job, "4111")) end
      assert.is_true(handle:delete(id))
      assert.same({}, rows_of(id))
      refuses("NOT_FOUND", "no job " .. id, id)
    end
    assert.is_nil(handle:job(1))
  end)

  it("ends a live job first, from wherever it waits, and frees its key", function()
    local places = {
      ready = function() return q:push("a", 1, { unique = "k" }) end,
      scheduled = function() return q:push("a", 1, { delay = 60, unique = "k" }) end,
      waiting = function()
        return q:push("a", 1, { after = { assert(q:push("b", 1, { delay = 60 })) }, unique = "k" })
      end,
      paused = function()
        local id = q:push("a", 1, { unique = "k" })
        assert(handle:pause(id))
        return id
      end,
      signalled = function()
        local id = q:push("a", 1, { unique = "k", priority = 200 })
        assert(handle:signal(id, "early", "other"))
        assert(q:claim():wait { signal = "go", deadline = 60 })
        return id
      end,
      failed = function()
        local id = q:push("a", 1, { unique = "k", priority = 200 })
        assert(q:claim():fail "no luck")
        return id
      end,
    }
    for place, push in pairs(places) do
      local id = assert(push())
      assert.is_true(handle:delete(id), place)
      assert.is_nil((q:claim())) -- a paused job's row, which is stale, goes with the next claim
      assert.same({}, rows_of(id), place)
      local again = assert(q:push("a", 1, { unique = "k", delay = 60 }), place)
      assert(handle:delete(again))
    end
  end)

  it("refuses a job that runs, until it is cancelled", function()
    local id = assert(q:push("a", 1))
    local job = assert(q:claim())
    refuses("STATE", "is running: cancel it first", id)
    assert(handle:pause(id)) -- it runs on
    refuses("STATE", "is running: cancel it first", id)
    assert(handle:cancel(id))
    assert.is_true(handle:delete(id))
    assert.equal("STALE", select(3, job:ack()))
    assert.same({}, rows_of(id))
  end)

  it("refuses a child while its parent lives, and then takes it out of its tree", function()
    local top = assert(q:push("top", 1))
    local job = assert(q:claim())
    local kid = job:spawn("kid", 1)
    assert(job:wait())
    refuses("STATE", ("child of job %d, which has not finished"):format(top), kid)
    assert(q:claim():ack "result")
    refuses("STATE", "wait for that one's end, or cancel it", kid)
    assert(q:claim():ack())
    assert.is_true(handle:delete(kid))
    assert.same({}, rows_of(kid))
    assert.equal(1, handle:progress(top).total)
    assert.equal(1, handle:prune { done = 0 })
  end)

  it("leaves what is below it to be pruned with the tree", function()
    local top = assert(q:push("top", 1))
    local job = assert(q:claim())
    job:spawn("middle", 1)
    assert(job:ack())
    local middle = assert(q:claim())
    local leaf = middle:spawn("leaf", 1)
    assert(middle:ack())
    assert(q:claim():ack())
    assert.is_true(handle:delete(middle.id))
    assert.is_nil(handle:job(middle.id))
    assert.equal("done", handle:job(leaf).state)
    assert.equal(2, handle:prune { done = 0 })
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_child", name))
    assert.is_nil(handle:job(top))
  end)

  it("with tree takes all of a tree that has ended", function()
    local top = assert(q:push("top", 1))
    local job = assert(q:claim())
    job:spawn("kid", 1)
    assert(job:ack())
    refuses("STATE", "has not finished", top, { tree = true })
    assert(q:claim():ack())
    assert.equal(2, handle:delete(top, { tree = true }))
    refuses("NOT_FOUND", "no job", top)
  end)

  it("of a live job cancels the ones that wait for it, as its failure would", function()
    local first = assert(q:push("first", 1, { delay = 60 }))
    local cancels = assert(q:push("second", 1, { after = { first } }))
    local runs = assert(q:push("third", 1, { after = { first }, on_fail = "run" }))
    assert.is_true(handle:delete(first))
    assert.same({ "cancelled", "ready" }, { handle:job(cancels).state, handle:job(runs).state })
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_edge", name))
  end)

  it("in a transaction counts when that commits", function()
    local id = assert(q:push("a", 1))
    assert.has_error(function()
      handle:transaction(function()
        assert(handle:delete(id))
        error "no"
      end)
    end)
    assert.equal("ready", handle:job(id).state)
    assert(handle:transaction(function() return handle:delete(id) end))
    assert.is_nil(handle:job(id))
  end)

  it("of a done job frees the key that it has for a period", function()
    local id = assert(q:push("a", 1, { unique = { key = "k", period = "1h" } }))
    assert(q:claim():ack())
    assert.equal("DUPLICATE", select(3, q:push("a", 1, { unique = "k" })))
    assert(handle:delete(id))
    assert.same({}, rows_of(id))
    id = assert(q:push("a", 1, { unique = { key = "k", period = "1h" }, delay = 60 }))
    assert(handle:update(id, { queue = "other" }))
    assert(q:push("a", 1, { unique = "k", delay = 60 }))
    assert.equal("1", db.sql("SELECT held IS NOT NULL FROM nightshift_unique_key WHERE job_id = " .. id, name))
  end)

  it("by 6 connections beside 6 claimers: each job is either claimed or deleted", function()
    local items = {}
    for i = 1, 120 do items[i] = { "n", i, { delay = i % 5 == 0 and 0.3 or nil } } end
    local ids = assert(q:push_many(items))
    db.sql("CREATE TABLE told (id BIGINT, what TEXT); CREATE TABLE stop (n INT)", name)
    local function note(own, id, what) assert(own:execute("INSERT INTO told VALUES (?, ?)", id, what)) end
    local function open() -- not all are heard at once
      return eventually(function() return nightshift.open(url) end)
    end
    local claimers = crew.fork(6, function()
      local own <close> = open()
      local mine, jobs = own:queue "q", {}
      repeat
        for _, job in ipairs(assert(mine:claim_many(3, { wait = 0.02 }))) do
          jobs[#jobs + 1] = job
          note(own, job.id, "claimed")
        end
      until #assert(own:execute "SELECT 1 FROM stop") > 0 and #assert(mine:claim_many(1)) == 0
      for _, job in ipairs(jobs) do assert(job:ack()) end
    end)
    local deleters = crew.fork(6, function(i)
      local own <close> = open()
      for k = #ids - i + 1, 1, -6 do
        local ok, message, code = own:delete(ids[k])
        assert(ok or code == "STATE", message)
        note(own, ids[k], ok and "deleted" or "refused")
      end
    end)
    deleters:wait()
    db.sql("INSERT INTO stop VALUES (1)", name)
    claimers:wait()
    local both = db.sql([[SELECT GROUP_CONCAT(id) FROM (SELECT id, SUM(what <> 'refused') AS n FROM told
      GROUP BY id) t WHERE n <> 1]], name)
    assert.equal("NULL", both)
    assert.equal("120", db.sql("SELECT COUNT(DISTINCT id) FROM told WHERE what <> 'refused'", name))
    assert.equal(db.sql("SELECT COUNT(*) FROM told WHERE what = 'claimed'", name),
      db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'", name))
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_job", name))
  end)

  it("beside a host: a deleted job never starts, and a started one is not deleted", function()
    local path = fixture.dir() .. "/ran"
    local h = host.start(url, ([[return { n = function(job)
      local file <close> = io.open(%q, "a")
      file:write(job.id, "\n")
    end }]]):format(path), { "--workers", "2", "--history", "failed" })
    local deleted = {}
    for i = 1, 100 do
      local id = assert(q:push("n", i))
      local ok, message, code = handle:delete(id)
      assert(ok or code == "STATE" or code == "NOT_FOUND", message)
      deleted[id] = ok
    end
    eventually(function() return db.sql("SELECT COUNT(*) FROM nightshift_job", name) == "0" end)
    for line in io.lines(path) do assert.is_nil(deleted[math.tointeger(line)]) end
    h:signal "TERM"
    assert.equal(0, h:wait(30))
  end)
end)

-- What may be changed, and of which jobs.
describe("update", function()
  with_database(function(...) handle, q, url, name = ... end)
  after_each(crew.clean)

  local function refuses(code, pattern, id, change)
    local ok, message, why = handle:update(id, change)
    assert.same({ nil, code }, { ok, why })
    assert.matches(pattern, message)
  end

  it("changes all that a push has said, wherever the job waits", function()
    local at = os.time() + 3600
    local places = {
      ready = function() return q:push("a", 1, { unique = "k" }) end,
      scheduled = function() return q:push("a", 1, { delay = 60, unique = "k" }) end,
      paused = function()
        local id = q:push("a", 1, { unique = "k" })
        assert(handle:pause(id))
        return id
      end,
      waiting = function()
        return q:push("a", 1, { after = { assert(q:push("b", 1, { delay = 60 })) }, unique = "k" })
      end,
    }
    for place, push in pairs(places) do
      local id = assert(push())
      assert.is_true(handle:update(id, { payload = { x = place }, queue = "other", priority = 200, max_attempts = 3,
        tags = { "b", "a", "b" }, group = "g", due = at }), place)
      local info = handle:job(id)
      assert.same({ { x = place }, "other", 200, 3, at + 0.0, { "a", "b" }, "g" },
        { info.payload, info.queue, info.priority, info.max_attempts, info.due, { table.unpack(info.tags) },
          info.group }, place)
      assert.equal("DUPLICATE", select(3, handle:queue "other":push("a", 1, { unique = "k" })))
      assert(handle:delete(assert(q:push("a", 1, { unique = "k", delay = 60 })))) -- the key is free in the old one
      if place == "paused" then assert(handle:resume(id)) end
      if place ~= "waiting" then
        assert.equal("scheduled", handle:job(id).state, place)
        assert(handle:update(id, { due = 1 }))
        local job = assert(handle:queue "other":claim(), place)
        assert.same({ id, { x = place }, 3, { "a", "b" } }, { job.id, job.payload, job.max_attempts, job.tags })
        assert(job:ack())
      end
      assert(handle:delete(id))
      assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_tag", name))
    end
  end)

  it("mends a dead letter for its retry, but changes no done job", function()
    local id = assert(q:push("a", { to = "wrong" }, { max_attempts = 1, tags = { "old" } }))
    assert(q:claim():fail "no such address")
    refuses("STATE", "it is due when it is retried", id, { due = 1 })
    assert(handle:update(id, { payload = { to = "right" }, queue = "mended", priority = 7, tags = { "new" } }))
    assert(handle:retry(id))
    local job = assert(handle:queue "mended":claim())
    assert.same({ id, { to = "right" }, 7, { "new" } }, { job.id, job.payload, job.priority, job.tags })
    assert(job:ack())
    refuses("STATE", "is done", id, { payload = 1 })
    refuses("NOT_FOUND", "no job", id + 77, { payload = 1 })
  end)

  it("refuses a running job, a wait for a signal, spent attempts, a taken key and bad values", function()
    local id = assert(q:push("a", 1, { unique = "k" }))
    assert(handle:queue "there":push("a", 1, { unique = "k", delay = 60 }))
    local ok, _, code, holder = handle:update(id, { queue = "there" })
    assert.same({ nil, "DUPLICATE" }, { ok, code })
    assert.equal(1, handle:job(holder).run)
    assert.equal("q", handle:job(id).queue)
    local job = assert(q:claim())
    refuses("STATE", "is running", id, { priority = 1 })
    assert(job:fail("no", { retry_in = 60 }))
    refuses("INVALID", "has failed 1 times already", id, { max_attempts = 1 })
    assert(handle:run_now(id))
    assert(q:claim():wait { signal = "go" })
    refuses("STATE", "waits for a signal", id, { due = 5 })
    assert(handle:update(id, { payload = nightshift.null }))
    assert.is_nil(handle:job(id).payload)
    assert.equal("waiting", handle:job(id).state)
    refuses("INVALID", "nothing to change", id, {})
    refuses("INVALID", "year 3000", id, { due = 1e12 })
    refuses("TOO_BIG", "limit", id, { payload = ("x"):rep(1 << 20) })
    assert.has_error(function() handle:update(id, { name = "b" }) end)
    assert.has_error(function() handle:update(id) end)
  end)

  it("by 6 connections beside 6 claimers: who has claimed a job has its last payload", function()
    local items = {}
    for i = 1, 96 do items[i] = { "n", 0 } end
    local ids = assert(q:push_many(items))
    db.sql("CREATE TABLE told (id BIGINT, n INT); CREATE TABLE ran (id BIGINT, n INT)", name)
    local function open()
      return eventually(function() return nightshift.open(url) end)
    end
    local updaters = crew.fork(6, function(i)
      local own <close> = open()
      for k = #ids - i + 1, 1, -6 do
        local ok, message, code = own:update(ids[k], { payload = i, priority = k % 3 == 0 and 90 or nil })
        assert(ok or code == "STATE", message)
        if ok then assert(own:execute("INSERT INTO told VALUES (?, ?)", ids[k], i)) end
      end
    end)
    local claimers = crew.fork(6, function()
      local own <close> = open()
      for job in own:queue "q":jobs { wait = 0.3 } do
        assert(own:execute("INSERT INTO ran VALUES (?, ?)", job.id, job.payload))
        assert(job:ack())
      end
    end)
    updaters:wait()
    claimers:wait()
    assert.equal("96\t96", db.sql("SELECT COUNT(*), COUNT(DISTINCT id) FROM ran", name))
    assert.equal("0", db.sql("SELECT COUNT(*) FROM told JOIN ran USING (id) WHERE told.n <> ran.n", name))
  end)
end)

describe("tags and at", function()
  with_database(function(...) handle, q, url, name = ... end)

  local function statements(fn)
    local function count()
      return tonumber(handle:execute([[SELECT VARIABLE_VALUE AS n FROM information_schema.SESSION_STATUS
        WHERE VARIABLE_NAME = 'QUESTIONS']])[1].n)
    end
    local before = count()
    fn()
    return count() - before
  end

  it("tags are kept through retry and history, and pruned with that", function()
    local hostile = { "'; DROP TABLE nightshift_tag; --", "\u{1F600}\u{202E}", '"\\', "a,b", ("\u{e9}"):rep(64), "%_" }
    local id = assert(q:push("a", 1, { tags = hostile }))
    local sorted = { table.unpack(hostile) }
    table.sort(sorted)
    local job = assert(q:claim())
    assert.same(sorted, job.tags)
    assert(job:discard "no")
    assert.same(sorted, { table.unpack(handle:job(id).tags) })
    assert(handle:retry(id))
    job = assert(q:claim())
    assert.same(sorted, job.tags)
    assert(job:ack())
    assert.equal(1, handle:prune { done = 0 })
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_tag", name))
    assert.is_nil(handle:job(id))
  end)

  it("come with push_many, children and flows, and go with what leaves no history", function()
    local ids = assert(q:push_many { { "a", 1, { tags = { "x" } } }, { "b", 2 }, { "c", 3, { tags = { "x", "y" } } } })
    assert.same({ "x", "y" }, { table.unpack(handle:job(ids[3]).tags) })
    assert.is_nil(handle:job(ids[2]).tags)
    local top = assert(q:claim())
    local kid = top:spawn("kid", 1, { tags = { "kid" }, delay = 60 })
    assert(top:ack())
    assert.same({ "kid" }, { table.unpack(handle:job(kid).tags) })
    local root, shape = assert(handle:flow { name = "top", queue = "f", tags = { "t" }, children = {
      { name = "n", tags = { "u" } } } })
    assert.same({ "t", "u" }, { handle:job(root).tags[1], handle:job(shape.children[1].id).tags[1] })
    assert.same({}, assert(q:claim()).tags)
    assert(handle:queue "w":push("parent", 1))
    assert.equal(0, (host.drain(url, [[return { parent = function(job)
      job:spawn("by worker", 1, { tags = { "w" }, at = 4102441199 })
    end }]], { "--drain", "--queues", "w" })))
    assert.equal("w\t4102441199000000", db.sql([[SELECT tag, due FROM nightshift_tag
      JOIN nightshift_job j ON id = job_id WHERE j.name = 'by worker']], name))
    local brief <close> = assert(nightshift.open { url = url, history = "failed" })
    local mine = brief:queue "brief"
    for i = 1, 20 do assert(mine:push("n", i, i % 2 == 0 and { tags = { "gone" } } or nil)) end
    for job in mine:jobs() do assert(job:ack()) end
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_tag WHERE tag = 'gone'", name))
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE name = 'n'", name))
  end)

  it("are those of the push that replaces a job", function()
    local id = assert(q:push("a", 1, { unique = { key = "k", period = "1h" }, tags = { "old" }, delay = 60 }))
    local replace = { key = "k", on_conflict = "replace" }
    assert.equal(id, q:push("a", 2, { unique = replace, tags = { "new" }, at = 4102441199 }))
    assert.same({ 2, 4102441199.0, { "new" } },
      { handle:job(id).payload, handle:job(id).due, { table.unpack(handle:job(id).tags) } })
    assert.equal(id, q:push("a", 3, { unique = replace }))
    assert.is_nil(handle:job(id).tags)
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_tag", name))
  end)

  it("cost a push without them nothing", function()
    assert(q:push("a", 1)) -- connects, prepares
    assert(q:push("a", 1))
    local plain = statements(function() assert(q:push("a", 1)) end)
    db.sql("RENAME TABLE nightshift_tag TO elsewhere", name) -- none of the verbs looks there
    assert.equal(plain, statements(function() assert(q:push("a", 1)) end))
    assert(q:push_many { { "a", 1 }, { "b", 2, { delay = 60, unique = "k" } } })
    for job in q:jobs() do assert(job:ack()) end
    db.sql("RENAME TABLE elsewhere TO nightshift_tag", name)
  end)

  it("are refused when they are no tags", function()
    for what, bad in pairs { ["17 tags"] = {}, ["65 characters"] = { ("a"):rep(65) }, ["0 characters"] = { "" },
      ["control character"] = { "a\nb" }, ["UTF%-8"] = { "\xff" } } do
      if what == "17 tags" then for i = 1, 17 do bad[i] = "t" .. i end end
      local id, message, code = q:push("a", 1, { tags = bad })
      assert.same({ nil, "INVALID" }, { id, code })
      assert.matches(what, message)
    end
    assert.has_error(function() q:push("a", 1, { tags = "x" }) end)
    assert.has_error(function() q:push("a", 1, { tags = { 1 } }) end)
    assert.is_nil(handle:job(assert(q:push("a", 1, { tags = {} }))).tags)
  end)

  it("at is the due instant, exactly, and a past one means now", function()
    local at = os.time() + 3600.25
    local id = assert(q:push("a", 1, { at = at }))
    assert.same({ "scheduled", at }, { handle:job(id).state, handle:job(id).due })
    id = assert(q:push("b", 1, { at = "2099-12-31T23:59:59.5+01:00" }))
    assert.equal(4102441199.5, handle:job(id).due)
    id = assert(q:push("c", 1, { at = 1 }))
    assert.equal(id, assert(q:claim { wait = 5 }).id)
    assert.equal("INVALID", select(3, q:push("a", 1, { at = at, delay = 1 })))
    for _, bad in ipairs { -1, 0, 1e30, 0 / 0, "tomorrow", "2025-13-01T00:00:00Z", "2025-01-01T00:00:00Z+01:00" } do
      assert.equal("INVALID", select(3, q:push("a", 1, { at = bad })), tostring(bad))
    end
  end)

  it("are options of CALL nightshift_push, too", function()
    local function call(options)
      return handle:execute("CALL nightshift_push('q', 'sql', 'null', ?)", options)
    end
    assert(call '{"at": 4102441199.5, "tags": ["b", "a", "b"]}')
    local id = handle:execute("SELECT @nightshift_id AS id")[1].id
    local info = handle:job(id)
    assert.same({ "scheduled", 4102441199.5, { "a", "b" } }, { info.state, info.due, { table.unpack(info.tags) } })
    assert(call '{"at": 7, "tags": []}')
    assert.equal("sql", assert(q:claim()).name)
    for _, bad in ipairs { '{"at": 1, "delay": 2}', '{"at": -1}', '{"at": "x"}', '{"tags": "a"}', '{"tags": [1]}',
      '{"tags": [""]}', '{"tags": ["a\\u0001"]}', '{"at": 1e30}' } do
      local ok, message = call(bad)
      assert.is_nil(ok, bad)
      assert.matches("nightshift_push: INVALID", message)
    end
  end)
end)

describe("groups", function()
  with_database(function(...) handle, q, url, name = ... end)

  local function group_of(id) return assert(handle:job(id)).group end

  it("come with every way in, whatever a job waits for", function()
    local first = assert(q:push("a", 1, { group = "one" }))
    local ids = assert(q:push_many { { "b", 1 }, { "c", 2, { group = "many" } }, { "d", 3, { group = "Many" } } })
    local last = assert(q:push("e", 1, { group = "late", delay = 60, unique = "k", max_phases = 3, tags = { "t" } }))
    local behind = assert(q:push("f", 1, { group = "behind", after = { last } }))
    local root, shape = assert(handle:flow { name = "top", queue = "f", group = "root", children = {
      { name = "n", group = "node" }, { name = "m" } } })
    assert.same({ "one", "many", "Many", "late", "behind", "root", "node" }, { group_of(first), group_of(ids[2]),
      group_of(ids[3]), group_of(last), group_of(behind), group_of(root), group_of(shape.children[1].id) })
    assert.same({}, { group_of(ids[1]), group_of(shape.children[2].id) })
    local top = assert(q:claim())
    assert.equal("one", top.group)
    local kid, plain = top:spawn("kid", 1, { group = "kid", delay = 60 }), top:spawn("kid", 2)
    assert(top:ack())
    assert.same({ "kid" }, { group_of(kid), group_of(plain) })
    assert.is_nil(assert(q:claim()).group)
    assert(handle:queue "w":push("parent", 1, { group = "g" }))
    assert.equal(0, (host.drain(url, [[return { parent = function(job)
      for i = 1, 200 do job:spawn("kid", ("x"):rep(2000), { group = job.group .. i, tags = { "t" .. i } }) end
    end, kid = function(job) return { job.group, job.tags[1] } end }]], { "--drain", "--queues", "w" })))
    assert.equal("200\t200", db.sql([[SELECT COUNT(DISTINCT group_key), COUNT(DISTINCT result) FROM nightshift_history
      WHERE queue = 'w' AND result = CONCAT('["', group_key, '","t', SUBSTRING(group_key, 2), '"]')]], name))
  end)

  it("stay to the end and through every retry", function()
    local function lives(id)
      local job = assert(q:claim())
      assert.same({ id, "g" }, { job.id, job.group })
      return job
    end
    local id = assert(q:push("a", 1, { group = "g", max_attempts = 2 }))
    assert(lives(id):fail "no")
    assert(handle:run_now(id))
    assert(lives(id):discard "no")
    assert.equal("g", group_of(id))
    assert(handle:retry(id))
    assert(lives(id):discard "no")
    assert.equal(1, handle:retry { name = "a" }.changed)
    assert(handle:cancel(id))
    assert.equal(1, handle:retry(id, { tree = true }))
    local job = lives(id)
    assert(job:wait { signal = "go" })
    assert(handle:signal(id, 1, "go"))
    assert(lives(id):ack { 1 })
    assert.equal("g", group_of(id))
    local failed = assert(q:push("a", 1, { group = "h", delay = 60 }))
    local doomed = assert(q:push("b", 1, { group = "i", after = { failed } }))
    assert(handle:cancel(failed))
    assert(handle:execute("CALL nightshift_push('q', 'c', 'null', ?)",
      ('{"group": "j", "after": [%d]}'):format(failed)))
    assert.same({ "h", "i" }, { group_of(failed), group_of(doomed) })
    assert.equal("j", group_of(handle:execute("SELECT @nightshift_id AS id")[1].id))
  end)

  it("are those of the push that replaces a job; a job for a dead one has none", function()
    local replace = { key = "k", on_conflict = "replace" }
    local id = assert(q:push("a", 1, { unique = "k", group = "old", delay = 60 }))
    assert.equal(id, q:push("a", 2, { unique = replace, group = "new" }))
    assert.equal("new", group_of(id))
    assert.equal(id, q:push("a", 3, { unique = replace }))
    assert.is_nil(group_of(id))
    assert(handle:queue "w":push("dies", 1, { group = "g", max_attempts = 1 }))
    assert.equal(0, (host.drain(url, [[local nightshift = require "nightshift"
      return { dies = { run = function() error "no" end, on_dead = "told" },
        told = function(job) return job.group == nil end }
    ]], { "--drain", "--queues", "w" })))
    assert.equal("true\tNULL", db.sql("SELECT result, group_key FROM nightshift_history WHERE name = 'told'", name))
  end)

  it("are changed, and taken away, while a job waits and for its retry", function()
    local after = { assert(q:push("x", 1)) }
    for place, given in pairs { ready = {}, later = { delay = 60 }, behind = { after = after } } do
      given.group = "old"
      local id = assert(q:push("a", 1, given))
      assert(handle:update(id, { priority = 7 }))
      assert.equal("old", group_of(id), place)
      assert(handle:update(id, { group = "new" }))
      assert.equal("new", group_of(id), place)
      assert(handle:update(id, { group = false }))
      assert.is_nil(group_of(id), place)
      assert(handle:cancel(id))
      assert(handle:update(id, { group = " " }))
      assert(handle:update(id, { priority = 9 }))
      assert(handle:retry(id))
      assert.equal(" ", group_of(id), place)
    end
    assert(handle:update({ name = "a", state = "ready" }, { group = "of many" }))
    assert.equal("3", db.sql("SELECT COUNT(*) FROM nightshift_jobs WHERE group_key = 'of many'", name))
    for _, bad in ipairs { "", "a\nb", ("x"):rep(191) } do
      assert.equal("INVALID", select(3, handle:update(1, { group = bad })))
    end
    assert.has_error(function() handle:update(1, { group = true }) end)
    assert.matches("%d: group$", handle:audit({ verb = "update" })[3].what)
  end)

  it("cost no statement, and a push without one what it did", function()
    local function count()
      return tonumber(handle:execute([[SELECT VARIABLE_VALUE AS n FROM information_schema.SESSION_STATUS
        WHERE VARIABLE_NAME = 'QUESTIONS']])[1].n)
    end
    local nothing = -(count() - count())
    local function asked(fn)
      fn() -- connects, prepares
      local before = count()
      fn()
      return count() - before - nothing
    end
    local function one(given) return function() assert(q:push("a", 1, given)) end end
    local function two(given) return function() assert(q:push_many { { "a", 1, given }, { "b", 2 } }) end end
    assert.same({ 1, 1, 1 }, { asked(one()), asked(one { group = "g" }), asked(one { group = "g", delay = 60 }) })
    assert.equal(asked(two()), asked(two { group = "g" }))
  end)

  it("are compared byte by byte, and refused when they are none", function()
    for _, group in ipairs { "a ", "a", "A", "\u{e1}", ("\u{1F600}"):rep(190), "'; --", '"\\' } do
      assert.equal(group, group_of(assert(q:push("a", 1, { group = group }))))
      assert(q:push_many { { "b", 1, { group = group } }, { "b", 2 } })
    end
    assert.equal("7\t7", db.sql([[SELECT COUNT(DISTINCT group_key), COUNT(group_key)
      FROM nightshift_job WHERE name = 'b']], name))
    for what, bad in pairs { ["191 characters; it must have 1 to 190"] = ("\u{e9}"):rep(191), ["0 characters"] = "",
      ["control character"] = "a\u{85}b", ["UTF%-8"] = "\xff" } do
      local id, message, code = q:push("a", 1, { group = bad })
      assert.same({ nil, "INVALID" }, { id, code })
      assert.matches(what, message)
    end
    assert.has_error(function() q:push("a", 1, { group = 7 }) end)
  end)
end)

-- Who did what. One database serves all of these; each looks at the rows that are new to it.
describe("the audit", function()
  local seen

  setup(function()
    url, name = db.fresh()
    handle = assert(nightshift.open(url))
    q = handle:queue "q"
  end)

  teardown(function() handle:close() end)

  local function all(given) return assert(handle:audit(given)) end

  --- The rows since the last call, the oldest first, as "verb what jobs".
  local function told()
    local list = {}
    for _, row in ipairs(all { limit = 1000 }) do
      if row.id <= seen then break end
      table.insert(list, 1, ("%s %s %d"):format(row.verb, row.what, row.jobs))
    end
    local newest = all { limit = 1 }[1]
    seen = newest and newest.id or 0
    return list
  end

  before_each(function()
    local newest = all { limit = 1 }[1]
    seen = newest and newest.id or 0
  end)

  local function later() return assert(q:push("n", { secret = "4111" }, { delay = 3600 })) end

  it("has a row of each verb, with account, machine, process and time", function()
    local id, tree = later(), later()
    assert(q:push("kid", 1, { parent = tree, delay = 3600 }))
    local before = os.time()
    assert(handle:reprioritise(id, 7))
    assert(handle:update(id, { payload = { secret = "4222" }, max_attempts = 3, queue = "other" }))
    assert(handle:deadline(id, "2h"))
    assert(handle:run_now(id))
    assert(handle:cancel(id, { reason = "ordered twice" }))
    assert(handle:retry(id))
    assert(handle:delete(id))
    assert(handle:pause(tree))
    assert(handle:resume(tree))
    assert(handle:reprioritise(tree, 9, { tree = true }))
    assert(handle:cancel(tree, { tree = true }))
    assert(handle:retry(tree, { tree = true }))
    assert(handle:cancel(tree, { tree = true }))
    assert(handle:delete(tree, { tree = true }))
    local tops = ("job %d: with all below it"):format(tree)
    assert.same({
      ("reprioritise job %d: priority 7 1"):format(id),
      ("update job %d: payload, queue other, max_attempts 3 1"):format(id),
      ("deadline job %d 1"):format(id), ("run_now job %d 1"):format(id),
      ("cancel job %d: ordered twice 1"):format(id), ("retry job %d 1"):format(id), ("delete job %d 1"):format(id),
      ("pause %s 2"):format(tops), ("resume %s 2"):format(tops), ("reprioritise %s 2"):format(tops),
      ("cancel %s 2"):format(tops), ("retry %s 2"):format(tops), ("cancel %s 2"):format(tops),
      ("delete %s 2"):format(tops),
    }, told())
    local row = all { limit = 1 }[1]
    local pid = io.open "/proc/self/stat":read "n"
    local machine = io.open "/proc/sys/kernel/hostname":read "l"
    assert.same({ tree, handle:execute("SELECT USER() AS u")[1].u, machine, pid, "lua" },
      { row.job, row.account, row.host, row.pid, row.via })
    assert.is_true(row.at >= before - 2 and row.at <= os.time() + 2, row.at)
  end)

  it("has rows of what is done to queues, names, schedules, history", function()
    assert(q:pause())
    assert(q:pause()) -- it is paused: nothing changes
    assert(q:resume())
    assert.is_true(handle:pause_name "n")
    assert.is_false(handle:pause_name "n")
    assert(handle:resume_name "n")
    assert(handle:pause_all())
    assert(handle:resume_all())
    for _ = 1, 2 do assert(handle:schedule { name = "s", every = "1h", push = { "tick", 1 } }) end
    assert(handle:schedule_pause "s")
    assert(handle:schedule_resume "s")
    local id = assert(handle:schedule_run "s")
    assert(handle:schedule_remove "s")
    assert.equal("NOT_FOUND", select(3, handle:schedule_remove "s"))
    assert(handle:cancel(id))
    assert(handle:retain("q", { done = "7d", dead = { count = 10 } }))
    assert(handle:queue "empty":pause())
    assert(handle:remove_queue "empty")
    assert.equal("NOT_FOUND", select(3, handle:remove_queue "empty"))
    assert.equal(1, handle:prune { done = 0, dead = 0 })
    assert.same({
      "pause queue q 0", "resume queue q 0", "pause jobs named n 0", "resume jobs named n 0",
      "pause every queue 0", "resume every queue 0", "schedule schedule s 0", "schedule_pause schedule s 0",
      "schedule_resume schedule s 0", "schedule_run schedule s 1", "schedule_remove schedule s 0",
      ("cancel job %d 1"):format(id), "retain queue q: done age 7d0h, dead count 10 0", "pause queue empty 0",
      "remove_queue queue empty 0", "prune history: done kept 0.0s, dead and cancelled 0.0s 1",
    }, told())
  end)

  it("has one row of a verb on a filter, which counts all batches", function()
    local crowd, items = handle:queue "crowd", {}
    for i = 1, 505 do items[i] = { i <= 5 and "few" or "n", i, { delay = 3600 } } end
    assert(crowd:push_many(items))
    assert(handle:update({ queue = "crowd", name = "few" }, { set = { more = 1 } }))
    assert(handle:move { queue = "crowd", to = "second" })
    assert(handle:reprioritise({ queue = "second" }, 5))
    assert(handle:run_now { queue = "second" })
    assert(handle:cancel { queue = "second", reason = ("ü"):rep(300) })
    assert(handle:retry { queue = "second", state = "cancelled", since = "1h" })
    assert(handle:cancel { queue = "second" })
    assert(handle:update({ name = "few", state = "cancelled", since = "1h" }, { priority = 6 }, { retry = true }))
    assert(handle:delete { name = "few", state = "ready" })
    local list = told()
    assert.equal("cancel queue=second: " .. ("ü"):rep(120) .. " 505", table.remove(list, 5))
    assert.same({
      "update queue=crowd name=few: payload 5", "move queue=crowd: to queue second 505",
      "reprioritise queue=second: priority 5 505", "run_now queue=second 505",
      "retry state=cancelled queue=second since=1h0m ago 505", "cancel queue=second 505",
      "update state=cancelled name=few since=1h0m ago: priority, and run again 5",
      "delete state=ready name=few 5",
    }, list)
    assert.equal(0, handle:cancel { queue = "second" }.found)
    assert.same({}, told())
  end)

  it("gives each of two verbs that take turns on a handle its own row", function()
    local list, threads = {}, {}
    for k, queue in ipairs { "first", "second" } do
      for i = 1, 600 do list[i] = { "n", i } end
      assert(handle:queue(queue):push_many(list))
      threads[k] = coroutine.create(function()
        local checked = assert(filter.read("cancel", { queue = queue }))
        checked.told = function() coroutine.yield() end
        assert(filter.run(handle._handle, "cancel", checked))
      end)
    end
    local id = later()
    for _ = 1, 20 do
      for _, thread in ipairs(threads) do
        if coroutine.status(thread) ~= "dead" then assert(coroutine.resume(thread)) end
      end
      if id then assert(handle:cancel(id)) end -- the page has other requests meanwhile
      id = nil
    end
    local rows = told()
    table.sort(rows)
    assert.matches("^cancel job %d+ 1$", rows[1])
    assert.same({ "cancel queue=first 600", "cancel queue=second 600" }, { table.unpack(rows, 2) })
  end)

  it("goes with the transaction of the action", function()
    local id = later()
    assert.has_error(function()
      handle:transaction(function()
        assert(handle:cancel(id))
        assert(handle:pause_name "gone")
        assert(q:pause())
        error "no"
      end)
    end)
    assert.same({ {}, "scheduled" }, { told(), handle:job(id).state })
    assert(handle:transaction(function(tx)
      tx:try(function()
        assert(handle:cancel(id))
        return nil, "not this"
      end)
      return handle:reprioritise(id, 3)
    end))
    assert.same({ ("reprioritise job %d: priority 3 1"):format(id) }, told())
    assert.equal("STATE", select(3, handle:retry(id)))
    assert.equal("NOT_FOUND", select(3, handle:cancel(999999999)))
    assert(handle:reprioritise(id, 3)) -- it has that priority
    assert.same({}, told())
    assert(handle:delete(id))
  end)

  it("costs and knows nothing of pushes, claims, verdicts and signals of programs", function()
    db.sql("RENAME TABLE nightshift_audit TO elsewhere", name)
    local id = assert(q:push("n", 1))
    assert(q:claim { names = { "n" } }:ack())
    local waits = assert(q:push("w", 1))
    assert(handle:signal(waits, 1, "go"))
    assert(q:claim { names = { "w" } }:fail "no")
    local ok, message, code = handle:cancel(waits)
    db.sql("RENAME TABLE elsewhere TO nightshift_audit", name)
    assert.same({ nil, "SCHEMA" }, { ok, code }, message)
    assert.same({ "done", "scheduled" }, { handle:job(id).state, handle:job(waits).state })
    assert(handle:cancel(waits))
  end)

  it("has no row of a handler's verbs on single jobs, and rows of what else it does", function()
    local one, two = later(), later()
    assert(q:push("acts", { one, two }, { priority = 200 }))
    local status, log = host.drain(url, [[return { acts = function(job)
      assert(job:db():cancel(job.payload[1]))
      local own <close> = assert(require "nightshift".open())
      assert(own:cancel(job.payload[2], { tree = true }))
      assert(own:pause_name "later")
      assert(job:db():resume_name "later")
      assert(job:db():cancel { queue = "q", name = "nobody" })
    end }]], { "--drain", "--only", "acts", "--workers", "1" })
    assert.equal(0, status, log)
    assert.same({ "cancelled", "cancelled" }, { handle:job(one).state, handle:job(two).state })
    assert.same({ "pause jobs named later 0", "resume jobs named later 0" }, told())
    assert.equal("handler", all { limit = 1 }[1].via)
  end)

  it("is read in the shell, and has what the shell does", function()
    local id = later()
    proc.succeeds({ "signal", tostring(id), "1", "--name", "go" }, url)
    proc.succeeds({ "cancel", tostring(id), "--reason", "no\27[31m" }, url)
    local rows = nightshift.decode(proc.succeeds({ "audit", "--json", "--since", "1h", "--limit", "2" }, url))
    assert.same({ "cancel", "signal", id, "shell", 1 }, { rows[1].verb, rows[2].verb, rows[1].job, rows[1].via,
      rows[1].jobs })
    assert.matches("^%d+%-%d+%-%d+T.*Z$", rows[1].at)
    local text = proc.succeeds({ "audit", "--verb", "signal" }, url)
    assert.matches("^WHEN +VERB +WHAT +JOBS +ACCOUNT +HOST +PID +VIA\n[^\n]+ signal +job " .. id
      .. ": go +1 [^\n]+ shell\n$", text)
    assert.matches("no\\x1b%[31m", (proc.succeeds({ "audit", "--limit", "1" }, url)))
    assert.equal("no actions\n", (proc.succeeds({ "audit", "--verb", "none" }, url)))
    assert.equal(2, (proc.nightshift({ "audit", "--since", "yesterday" }, url)))
  end)

  it("is read page by page", function()
    local newest = all { limit = 3 }
    local first, second = all { limit = 2 }, all { limit = 1, before = newest[2].id }
    assert.same({ newest[1].id, newest[2].id, newest[3].id }, { first[1].id, first[2].id, second[1].id })
    assert.same({}, all { since = os.time() + 3600 })
    assert.equal("INVALID", select(3, handle:audit { limit = 0 }))
  end)

  it("keeps 90 days, and the newest 100,000", function()
    db.sql("UPDATE nightshift_audit SET at = at - 7776000000000 WHERE id <= 3", name)
    local n = tonumber(db.sql("SELECT COUNT(*) FROM nightshift_audit", name))
    assert.equal(0, handle:prune { done = false, dead = false })
    assert.same(tostring(n - 3), db.sql("SELECT COUNT(*) FROM nightshift_audit WHERE id > 3", name))
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_audit WHERE id <= 3", name))
    db.sql("UPDATE nightshift_audit SET id = 100000 + 5 ORDER BY id DESC LIMIT 1", name)
    assert.equal(0, handle:prune { done = false, dead = false })
    assert.equal("6", db.sql("SELECT MIN(id) FROM nightshift_audit", name))
  end)
end)

-- ----- all jobs of a filter

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
  with_database(function(...) handle, q, url, name = ... end)
  after_each(crew.clean)

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
  with_database(function(...) handle, q, url, name = ... end)
  after_each(crew.clean)

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
    for i = 1, 60 do errors[i] = "disk " .. i end
    local ids = dead(errors)
    local c = crew.fork(4, function(i)
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
    assert.equal("60", db.sql("SELECT COUNT(*) FROM nightshift_ready WHERE job_id > 0", name))
  end)
end)

describe("many jobs of a filter", function()
  with_database(function(...) handle, q, url, name = ... end)
  after_each(crew.clean)

  local N = 1203

  local function push_all(n)
    local items = {}
    for i = 1, n or N do items[i] = { "job", i } end
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

  it("are changed once by 8 programs that say the same at one moment", function()
    local errors = {}
    for i = 1, 120 do errors[i] = "disk " .. i end
    dead(errors)
    db.sql("CREATE TABLE told (found INT, changed INT)", name)
    local c = crew.fork(8, function()
      local own <close> = eventually(function() return nightshift.open(url) end)
      local told = assert(own:retry { error = "disk #", queue = "q" })
      assert(own:execute("INSERT INTO told VALUES (?, ?)", told.found, told.changed))
    end)
    c:wait(60)
    assert.same({ 8, 120 }, { one "SELECT COUNT(*) FROM told", one "SELECT SUM(changed) FROM told" })
    assert.equal(120, one "SELECT COUNT(*) FROM nightshift_ready WHERE job_id > 0")
  end)

  local N_RUN = 603

  -- Each job is run once, by a worker that claims it before or after it is moved.
  it("are run once each beside workers that claim them", function()
    local ids = push_all(N_RUN)
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
    assert.same({ N_RUN, 0, 0 }, { one "SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'",
      one "SELECT COUNT(*) FROM nightshift_job", one "SELECT COUNT(*) FROM nightshift_lease" })
  end)
end)
