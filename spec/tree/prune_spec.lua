-- History of trees: it goes when the whole tree has finished, a bounded number of rows at a time.

local core = require "nightshift.core"
local db = require "spec.support.db"
local host = require "spec.support.host"
local lab = require "spec.support.db".lab
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

-- History of trees: it goes when the whole tree has finished, not before.
describe("history of a tree", function()
  local database, q

  setup(lab.fresh)
  before_each(function()
    database = lab.open { max_children = 10000 }
    q = assert(database:queue "trees")
  end)
  after_each(function() database:close() end)

  local function take(name)
    local job = assert(q:claim())
    assert.equal(name, job.name)
    return job
  end

  -- A parent with children; those in `open` stay live.
  local function tree(children, open)
    local id = assert(q:push "parent")
    local parent = take "parent"
    local ids = {}
    for i = 1, children do ids[i] = assert(parent:spawn("child", i, { delay = i <= open and 3600 or nil })) end
    assert(parent:ack())
    while children > open do
      for _, child in ipairs(assert(q:claim_many(children - open))) do
        assert(child.name == "child" and child:ack(1))
        children = children - 1
      end
    end
    return id, ids
  end

  local function is_known(id) return database:job(id) ~= nil end

  it("stays while one of it lives, and then goes as a whole", function()
    local id, children = tree(3, 1)
    local lonely = assert(q:push "alone")
    assert(take "alone":ack())
    assert.equal(1, database:prune { done = 0 })
    assert.is_false(is_known(lonely))
    assert.is_true(is_known(id))
    for _, child in ipairs(children) do assert.is_true(is_known(child)) end
    assert(database:cancel(children[1]))
    assert.equal(0, database:prune { done = 0, dead = "1d" }) -- the cancelled one is not old enough
    assert.equal(4, database:prune { done = 0, dead = 0 })
    assert.equal(0, #database:execute("SELECT * FROM nightshift_child WHERE parent = ?", id))
  end)

  it("of a parent that waits stays for its results", function()
    assert(q:push "parent")
    local parent = take "parent"
    assert(parent:spawn("child", 1))
    assert(parent:spawn("child", 2))
    assert(parent:wait())
    assert(take "child":ack "first")
    assert.equal(0, database:prune { done = 0, dead = 0 })
    assert(take "child":ack "second")
    parent = take "parent"
    assert.equal("first", parent.results[1].result)
    assert.equal("second", parent.results[2].result)
    assert(parent:ack())
    assert.equal(3, database:prune { done = 0, dead = 0 })
  end)

  it("goes in batches when there is much of it", function()
    tree(2500, 0)
    assert.equal(2501, database:prune { done = 0 })
    assert.equal(0, database:execute "SELECT COUNT(*) AS n FROM nightshift_finished"[1].n)
  end)

  it("is found behind thousands of rows that stay", function()
    tree(2200, 1)
    local last = assert(q:push "alone")
    assert(take "alone":ack())
    assert.equal(1, database:prune { done = 0 })
    assert.is_false(is_known(last))
  end)

  it("goes at once when asked for by its root, if all of it has finished", function()
    local id, children = tree(2, 1)
    local deleted, message, code = database:prune { tree = id }
    assert.is_nil(deleted)
    assert.equal("STATE", code)
    assert.matches("has not finished", message)
    assert(database:cancel(children[1]))
    assert.equal(3, database:prune { tree = id })
    assert.is_false(is_known(id))
    assert.has_error(function() database:prune { tree = id, done = 0 } end)
  end)
end)

-- `prune{tree = id}` of a job that had ended took it from below a parent that still
-- waited: its results had a child without an outcome. What was not there, an unknown job
-- or one that had been pruned before, was counted as deleted.
describe("pruning a tree", function()
  local handle, q

  with_database(function(...) handle, q = ... end)

  it("is refused for a part of it while another lives", function()
    local top = assert(q:push "top")
    local job = assert(q:claim())
    local first, second = job:spawn "child", job:spawn "child"
    assert(job:wait())
    assert(q:claim():ack(1))
    local deleted, message, code = handle:prune { tree = first }
    assert.same({ nil, "STATE" }, { deleted, code })
    assert.matches("has not finished", message)
    assert(q:claim():ack(2))
    local parent = assert(q:claim())
    assert.same({ top, "done", "done" }, { parent.id, parent.results[1].outcome, parent.results[2].outcome })
    assert(parent:ack())
    assert.equal(1, handle:prune { tree = second })
    assert.equal(2, handle:prune { tree = top })
  end)

  it("says what it does not know", function()
    local deleted, _, code = handle:prune { tree = 4711 }
    assert.same({ nil, "NOT_FOUND" }, { deleted, code })
  end)
end)

-- A host that pruned the history of trees took each of a thousand in a transaction of its own,
-- all in one go. Its jobs waited for a second and more, once a second.
describe("the history of many small trees", function()
  it("goes a bounded number of rows at a time beside a host's jobs", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local jobs = {}
    for i = 1, 1500 do jobs[i] = { "top" } end
    local tops = assert(q:push_many(jobs))
    for i, id in ipairs(tops) do jobs[i] = { "child", nil, { parent = id, priority = 50 } } end
    assert(q:push_many(jobs))
    db.sql([[INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, run, attempts, polls,
        crashes, lost, max_attempts, max_crashes, backoff, timeout, created, finished_at, parent, root, on_fail, nonce)
      SELECT id, queue_id, name, payload, priority, 'done', run, 0, 0, 0, 0, 1, 1, 1, 1, created,
        created - 2 * 86400000000 + id, parent, root, on_fail, nonce
      FROM nightshift_job; DELETE FROM nightshift_job; DELETE FROM nightshift_ready]], name)
    local h <close> = assert(core.open { url = url })
    local total, calls = 0, 0
    repeat
      local deleted = assert(h:prune(86400, 86400, 1))
      assert.is_true(deleted <= 1001, deleted)
      total, calls = total + deleted, calls + 1
    until deleted == 0
    assert.equal(3000, total)
    assert.is_true(calls <= 500, calls) -- on a slow machine each ends before it has 1,000
    assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_child", name)))
  end)
end)

-- A prune was run again, because a row of it was locked. It went on behind the rows that its
-- first try had read, and left up to 1,000 of them.
describe("a prune whose transaction is run again", function()
  it("deletes all that it was asked to", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url .. (url:find "?" and "&" or "?") .. "read_timeout=9s"))
    local q, ids = handle:queue "q", {}
    for i = 1, 20 do ids[i] = assert(q:push("job", i, { max_attempts = 2 })) end
    for _, job in ipairs(q:claim_many(20)) do assert(job:fail("no", { retry_in = 0 })) end
    for _, job in ipairs(q:claim_many(20)) do assert(job:fail "no") end
    assert.equal("20", db.sql("SELECT COUNT(*) FROM nightshift_finished", name))
    local holder = proc.start { "mariadb", "--no-defaults", "--socket=" .. db.shared().socket, "--user=root",
      "--unbuffered", "--skip-column-names", "--init-command=" .. nst.session, "-e",
      ("USE `%s`; START TRANSACTION; SELECT job_id FROM nightshift_attempt WHERE job_id = %d FOR UPDATE; %s"):format(
        name, ids[10], "SELECT SLEEP(4); ROLLBACK") }
    holder:wait_line(tostring(ids[10]))
    local deleted = assert(handle:prune { dead = 0, done = 0 })
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_finished", name))
    assert.is_truthy(deleted)
    assert.is_true(handle:stats().counters.lock_waits > 0)
    holder:wait()
  end)
end)

-- A host deleted old history, and gave back claims of dead holders, in its main thread. That
-- thread starts jobs, settles them and tells that the host lives. The bound on a prune was
-- looked at between two trees. So one tree of 100,000 jobs kept the jobs of all queues waiting
-- for more than a second. A session that locked a row of it did so for as long as it held that.
describe("a host that deletes a large tree of old jobs", function()
  local CHILDREN = tonumber(os.getenv "CHILDREN") or 12000 -- 300000 takes some minutes

  local SCRIPT = "return { tick = function() end }"

  --- One tree, all of it done two days ago; the id of its root.
  local function old_tree(sql, q)
    local root = assert(q:push "root")
    sql(([[INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, run, attempts, polls,
      crashes, lost, max_attempts, max_crashes, backoff, timeout, created, finished_at, parent, root, on_fail, nonce)
    SELECT id + IF(seq = 0, 0, 1000000000 + seq), queue_id, name, payload, priority, 'done', run, 0, 0, 0, 0, 1, 1,
      1, 1, created, created - 2 * 86400000000, IF(seq = 0, NULL, id), IF(seq = 0, NULL, id), on_fail, nonce
    FROM nightshift_job JOIN seq_0_to_%d;
    INSERT INTO nightshift_child SELECT id, seq, id + 1000000000 + seq FROM nightshift_job JOIN seq_1_to_%d;
    DELETE FROM nightshift_job; DELETE FROM nightshift_ready]]):format(CHILDREN, CHILDREN))
    return root
  end

  local handle, q, url, sql
  with_database(function(...)
    handle, q, url = ...
    local name = select(4, ...)
    sql = function(text) return (db.sql(text, name)) end
  end)

  local function left() return tonumber((sql "SELECT COUNT(*) FROM nightshift_child")) end
  local function tick() return assert(q:push "tick") end

  it("goes on with jobs while somebody holds a row of it", function()
    local root = old_tree(sql, handle:queue "old")
    local h = host.start(url, SCRIPT)
    local holder <close> = assert(nightshift.open(url))
    assert(holder:transaction(function(tx)
      assert(tx:execute("SELECT id FROM nightshift_finished WHERE id IN (?, ?) FOR UPDATE", root + 1000000007,
        root + 1000000000 + CHILDREN // 2))
      eventually(function() return left() < CHILDREN end, 30)
      for _ = 1, 20 do
        local id = tick()
        eventually(function() return assert(handle:job(id)).state == "done" end)
      end
      assert.is_true(left() >= CHILDREN // 2)
    end))
    eventually(function() return left() == 0 end, 60)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("goes on with jobs of other queues before it is gone", function()
    old_tree(sql, handle:queue "old")
    local h = host.start(url, SCRIPT)
    eventually(function() return left() < CHILDREN end, 30)
    local done = 0
    while sql "SELECT id FROM nightshift_child LIMIT 1" ~= "" do
      local id = tick()
      eventually(function() return assert(handle:job(id)).state == "done" end, 60)
      done = done + 1
    end
    assert.is_true(done > 5, done) -- by the thread that starts jobs: 1; `make bench` has how late they are
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

-- A prune read all children of a job in one statement, 300,000 of them in seconds. What waited
-- for the same connection of the host, a large verdict for one, waited for its end.
describe("a prune of a large tree", function()
  local MOST = 6000 -- rows that a statement of a prune reads
  local CHILDREN = 9000

  local server, handle, root, name, url
  before_each(function()
    server = db.server()
    url, name = server:fresh()
    local first <close> = assert(nightshift.open(url))
    root = assert(first:queue("q"):push "root")
    server:sql(([[
      INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, run, attempts, polls, crashes,
        lost, max_attempts, max_crashes, backoff, timeout, created, finished_at, parent, root, on_fail, nonce)
      SELECT id + IF(seq = 0, 0, 1000000 + seq), queue_id, name, payload, priority, 'done', run, 0, 0, 0, 0, 1, 1, 1, 1,
        created, created - 2 * 86400000000, NULL, IF(seq = 0, NULL, id), on_fail, nonce
      FROM nightshift_job JOIN seq_0_to_%d;
      INSERT INTO nightshift_child SELECT CASE WHEN seq <= 3500 THEN id WHEN seq <= 5500 THEN id + 1000003
        WHEN seq <= 5600 THEN id + 1003500 ELSE id + 1000000 + seq - 5600 END, seq, id + 1000000 + seq
      FROM nightshift_job JOIN seq_1_to_%d; UPDATE nightshift_finished f JOIN nightshift_child c ON c.id = f.id
      SET f.parent = c.parent; DELETE FROM nightshift_job; DELETE FROM nightshift_ready;
      SET GLOBAL log_output = 'TABLE', long_query_time = 0, min_examined_row_limit = %d, slow_query_log = 1]])
      :format(CHILDREN, CHILDREN, MOST), name)
    handle = assert(nightshift.open(url))
  end)
  after_each(function() handle:close() end)

  local function count(what) return tonumber((server:sql("SELECT COUNT(*) FROM " .. what, name))) end

  it("reads it page by page", function()
    assert.equal(CHILDREN + 1, assert(handle:prune { done = "1d" }))
    assert.equal(0, count "nightshift_finished")
    assert.equal(0, count "nightshift_child")
    assert.equal(0, count "mysql.slow_log WHERE sql_text LIKE '%nightshift_child%'")
  end)

  it("leaves it alone when a job at its very end is younger, whatever page that is on", function()
    for _, seq in ipairs { 3500, 5500, 5600, 5601, CHILDREN } do
      server:sql(("UPDATE nightshift_finished SET finished_at = created WHERE id = %d"):format(root + 1000000 + seq),
        name)
      assert.equal(0, assert(handle:prune { done = "1d" }), seq)
      server:sql(("UPDATE nightshift_finished SET finished_at = created - 2 * 86400000000 WHERE id = %d")
        :format(root + 1000000 + seq), name)
    end
    assert.equal(CHILDREN + 1, count "nightshift_finished")
    assert.equal(CHILDREN + 1, assert(handle:prune { tree = root }))
  end)
end)

-- A prune looked through a whole tree for each thousand of its jobs, only to find each time
-- that its last job is younger. A tree of 300,000 was read three hundred times.
describe("a prune of a large tree whose last job is younger", function()
  local CHILDREN = 12000

  it("looks through it once", function()
    local server = db.server()
    local url, name = server:fresh()
    local handle <close> = assert(nightshift.open(url))
    assert(handle:queue("q"):push "root")
    server:sql(([[
      INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, run, attempts, polls, crashes,
        lost, max_attempts, max_crashes, backoff, timeout, created, finished_at, parent, root, on_fail, nonce)
      SELECT id + IF(seq = 0, 0, 1000000 + seq), queue_id, name, payload, priority, 'done', run, 0, 0, 0, 0, 1, 1, 1, 1,
        created, created - IF(seq = %d, 0, 2 * 86400000000), IF(seq = 0, NULL, id), IF(seq = 0, NULL, id), on_fail,
        nonce
      FROM nightshift_job JOIN seq_0_to_%d;
      INSERT INTO nightshift_child SELECT id, seq, id + 1000000 + seq FROM nightshift_job JOIN seq_1_to_%d;
      DELETE FROM nightshift_job; DELETE FROM nightshift_ready]]):format(CHILDREN, CHILDREN, CHILDREN), name)
    local function read()
      return tonumber((server:sql([[SELECT SUM(variable_value) FROM information_schema.global_status
        WHERE variable_name IN ('Handler_read_key', 'Handler_read_next')]])))
    end
    local before = read()
    assert.equal(0, assert(handle:prune { done = "1d" }))
    local rows = (read() - before) / CHILDREN
    assert.is_true(rows < 12, ("%.1f rows were read for each job"):format(rows))
  end)
end)

-- A host's prune waited, a minute and more, for a session that held a row of what it was to
-- delete. So did what is written and given back on the same connection: large verdicts, claims
-- of the dead.
describe("a host whose prune meets a row that somebody holds", function()
  local CHILDREN = 4000

  local SCRIPT = [[
return { parent = function(job)
  for i = 1, 200 do job:spawn("child", i, { queue = "nobody" }) end
end }]]

  local handle, q, url, name
  with_database(function(...) handle, q, url, name = ... end)

  local function count(what) return tonumber((db.sql("SELECT COUNT(*) FROM nightshift_" .. what, name))) end

  --- One tree, all of it done two days ago; the id of its root.
  local function old_tree()
    local root = assert(handle:queue "old":push "root")
    db.sql(([[INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, run, attempts, polls,
        crashes, lost, max_attempts, max_crashes, backoff, timeout, created, finished_at, parent, root, on_fail, nonce)
      SELECT id + IF(seq = 0, 0, 1000000 + seq), queue_id, name, payload, priority, 'done', run, 0, 0, 0, 0, 1, 1, 1, 1,
        created, created - 2 * 86400000000, IF(seq = 0, NULL, id), IF(seq = 0, NULL, id), on_fail, nonce
      FROM nightshift_job JOIN seq_0_to_%d;
      INSERT INTO nightshift_child SELECT id, seq, id + 1000000 + seq FROM nightshift_job JOIN seq_1_to_%d;
      DELETE FROM nightshift_job; DELETE FROM nightshift_ready]]):format(CHILDREN, CHILDREN), name)
    return root
  end

  it("writes large verdicts meanwhile, and deletes the rest when it is free", function()
    local root = old_tree()
    local h = host.start(url, SCRIPT, { "--queues", "q" })
    local holder <close> = assert(nightshift.open(url))
    assert(holder:transaction(function(tx)
      assert(tx:execute("SELECT id FROM nightshift_finished WHERE id = ? FOR UPDATE", root + 1000000 + CHILDREN // 2))
      eventually(function() return count "finished" < CHILDREN end, 30)
      for i = 1, 10 do
        local id = assert(q:push "parent")
        eventually(function() return handle:job(id).state == "done" end)
        assert.equal(200 * i, count "job")
      end
      assert.is_true(count "finished" >= CHILDREN // 2)
    end))
    eventually(function() return count "finished" == 10 end, 40)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

-- A prune lists a tree, and then deletes it. A job of the list that was retried in between
-- lost its attempts and its place below its parent, while it ran again.
it("a job that is retried while its tree is pruned keeps what it has", function()
  local PRUNER = [[
  local handle = assert(require "nightshift".open(%q))
  print("pruned", handle:prune { tree = %d })]]

  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local q = handle:queue "q"
  local top = assert(q:push "top")
  local parent = assert(q:claim())
  local kid = assert(parent:spawn("kid", nil, { max_attempts = 1 }))
  assert(parent:ack())
  assert(q:claim():fail "no")
  assert.equal("dead", handle:job(kid).state)
  local pruner
  assert(handle:transaction(function()
    assert(handle:retry(kid))
    pruner = proc.start { proc.lua, "-e", PRUNER:format(url, top) }
    eventually(function()
      return pruner:ended()
        or db.sql("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'") ~= ""
    end)
    return true
  end))
  pruner:wait_line "pruned%s+0"
  assert.equal("1\t1", db.sql(([[SELECT (SELECT COUNT(*) FROM nightshift_attempt WHERE job_id = %d),
    (SELECT COUNT(*) FROM nightshift_child WHERE id = %d)]]):format(kid, kid), name))
  assert.equal("done", handle:job(top).state)
  assert(q:claim():ack())
  assert.equal(2, handle:prune { tree = top })
end)
