-- Jobs that are in no place are found and mended; none is in two places, whatever verb meets a
-- claim under way.

local core = require "nightshift.core"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"

-- A live job that was in no place stayed there for ever: not ready, not scheduled, not
-- claimed, and nothing that it waited for. Nothing looked for such jobs. Hosts now do,
-- and mend what they see twice.
describe("in no place:", function()
  local url, name, handle, q

  local function sql(text) return db.sql(text, name) end

  local function id_of(job) return assert(q:push(job)) end

  -- What is planted, by SQL; the job that is to run then, or nil.
  local PLANTS = {
    { "a job in no place", function()
      local id = id_of "plain"
      sql("DELETE FROM nightshift_ready WHERE job_id = " .. id)
      return id
    end },
    { "a job that was signalled, and is still scheduled far ahead", function()
      local id = id_of "waits"
      assert(q:claim():wait { signal = "go" })
      sql(([[UPDATE nightshift_job SET due = created WHERE id = %d]]):format(id))
      sql(([[INSERT INTO nightshift_signal VALUES (%d, 'go', '1', 1)]]):format(id))
      return id
    end },
    { "a job whose signal is there, and that still waits for it", function()
      local id = id_of "waits"
      assert(q:claim():wait { signal = "go" })
      sql(([[INSERT INTO nightshift_signal VALUES (%d, 'go', '1', 1)]]):format(id))
      return id
    end },
    { "a job that waits for nothing", function()
      local on = id_of "target"
      local id = assert(q:push("after", 1, { after = { on } }))
      sql("DELETE FROM nightshift_edge WHERE job_id = " .. id)
      assert(q:claim():ack())
      return id
    end },
    { "a parent whose children have all ended", function()
      local id = id_of "parent"
      local parent = assert(q:claim())
      parent:spawn("kid", 1)
      assert(parent:wait())
      sql("DELETE FROM nightshift_edge WHERE job_id = " .. id)
      assert(q:claim():ack())
      return id
    end },
    { "a job that a pause holds that is over", function()
      local id = id_of "paused"
      assert(handle:pause(id))
      sql "DELETE FROM nightshift_pause"
      return id
    end },
  }

  local LEFT = {
    { "a row of a job that is gone", function()
      sql("DELETE FROM nightshift_job WHERE id = " .. id_of "gone")
    end, "nightshift_ready WHERE job_id > 0" },
    { "a row of a claim", function()
      local id = id_of "claimed"
      local at = sql("SELECT CONCAT_WS(',', queue_id, rank, ready_at, job_id, run) FROM nightshift_ready "
        .. "WHERE job_id > 0")
      assert.equal(id, assert(q:claim()).id)
      sql("INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run) VALUES (" .. at .. ")")
    end, "nightshift_ready WHERE job_id > 0", "a fault" },
    { "a scheduled row of a job that is gone", function()
      sql("DELETE FROM nightshift_job WHERE id = " .. assert(q:push("gone", 1, { delay = 3600 })))
    end, "nightshift_scheduled" },
    { "a signal to a job that left no history", function()
      local forgets <close> = assert(nightshift.open { url = url, history = "failed" })
      local id = id_of "told"
      assert(handle:signal(id, 1, "never"))
      assert(forgets:queue "q":claim():ack())
    end, "nightshift_signal" },
    { "a unique key of a job that is gone", function()
      sql("DELETE FROM nightshift_job WHERE id = " .. assert(q:push("gone", 1, { delay = 3600, unique = "k" })))
      sql "DELETE FROM nightshift_scheduled"
    end, "nightshift_unique_key", "a fault" },
  }

  --- A host that serves another queue, with looks a few hundred milliseconds apart.
  local function look()
    sql "INSERT INTO nightshift_meta VALUES ('mend_every', '200000') ON DUPLICATE KEY UPDATE value = value"
    return host.start(url, "return {}", { "--queues", "other", "--workers", "1" })
  end

  before_each(function()
    url, name = db.fresh()
    handle = assert(nightshift.open(url))
    q = handle:queue "q"
  end)
  after_each(function() handle:close() end)

  for _, plant in ipairs(PLANTS) do
    it(plant[1] .. " runs again", function()
      local id = plant[2]()
      assert.is_nil(q:claim())
      look()
      local job = assert(q:claim { wait = 90 }) -- looks take a hundredth of the time, however slow it is
      assert.equal(id, job.id)
      assert(job:ack())
      eventually(function()
        return sql "SELECT SUM(n) FROM nightshift_mended WHERE what IN ('nowhere', 'waits')" == "1"
      end)
    end)
  end

  for _, plant in ipairs(LEFT) do
    it(plant[1] .. " goes", function()
      plant[2]()
      assert.equal("1", sql("SELECT COUNT(*) FROM " .. plant[3]))
      local h = look()
      eventually(function() return sql("SELECT COUNT(*) FROM " .. plant[3]) == "0" end, 90)
      if plant[4] then
        eventually(function() return sql "SELECT SUM(n) FROM nightshift_mended" == "1" end)
      else -- what a cancel leaves behind is no damage
        h:signal "TERM"
        assert.equal(0, h:wait())
        assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_mended")
        assert.is_nil(h:transcript():find("mended", 1, true))
      end
    end)
  end

  it("a claim that its holder does not know of comes back, while the holder lives", function()
    sql "INSERT INTO nightshift_meta VALUES ('mend_every', '200000')"
    local id = id_of "mine"
    local other = id_of "not known"
    assert.equal(id, assert(q:claim()).id)
    sql(("DELETE FROM nightshift_ready WHERE job_id = %d"):format(other))
    sql(([=[INSERT INTO nightshift_lease (id, holder, claimed, jobs)
    SELECT id + 1, holder, claimed, '[[%d,1]]' FROM nightshift_lease]=]):format(other))
    local back = eventually(function()
      assert(handle._handle:look(0))
      return q:claim()
    end, 90)
    assert.equal(other, back.id)
    assert.equal("unknown\t1", sql "SELECT what, n FROM nightshift_mended")
  end)

  it("a claim that its holder does not know of comes back with its place in a limited queue", function()
    sql "INSERT INTO nightshift_meta VALUES ('mend_every', '200000')"
    assert(q:limit { group = { ordered = true, running = 1 } })
    local first = assert(q:push("first", 1, { group = "g" }))
    assert(q:push("second", 1, { group = "g" }))
    local id = assert(handle:queue "mine":push "mine")
    assert.equal(id, assert(handle:queue "mine":claim()).id)
    local other <close> = assert(nightshift.open(url))
    assert.equal(first, assert(other:queue "q":claim()).id)
    sql "UPDATE nightshift_lease SET holder = (SELECT MIN(holder) FROM nightshift_lease)"
    eventually(function()
      assert(handle._handle:look(0))
      return sql "SELECT COUNT(*) FROM nightshift_mended" == "1"
    end, 90)
    assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_grant")
    local back = assert(q:claim())
    assert.equal(first, back.id)
    assert(back:ack())
    assert.equal("second", assert(q:claim()).name)
  end)

  it("nothing is mended that is where it is to be", function()
    local kids = id_of "kids"
    local parent = assert(q:claim())
    parent:spawn("kid", 1, { delay = 60 })
    assert(parent:wait())
    id_of "waits"
    assert(q:claim():wait { signal = "go", deadline = 60 })
    id_of "fails"
    assert(q:claim():fail("no", { retry_in = 60 }))
    assert(q:push("held", 1, { unique = "k", delay = 60, after = { kids } }))
    assert(handle:pause(id_of "paused"))
    assert(q:push("late", 1, { delay = 60, deadline = 90 }))
    id_of "claimed"
    local claimed = assert(q:claim())
    assert(handle:reprioritise(id_of "moved", 7))
    id_of "ready"
    local before = sql "SELECT * FROM nightshift_job ORDER BY id"
    for _ = 1, 3 do
      local found = assert(handle._handle:mend(false))
      assert.same({ 0, 0, 0 }, { found.jobs, found.rows, found.twice })
    end
    assert.equal(before, sql "SELECT * FROM nightshift_job ORDER BY id")
    assert(claimed:ack())
  end)

  it("the doctor names what is nowhere, and rescue mends it", function()
    local proc = require "spec.support.proc"
    sql "INSERT INTO nightshift_meta VALUES ('mend_every', '200000')"
    local id = id_of "plain"
    sql("DELETE FROM nightshift_ready WHERE job_id = " .. id)
    local _, out = proc.nightshift({ "doctor", "--json" }, url)
    local found
    for _, check in ipairs(nightshift.decode(out).findings) do found = check.name == "lost" and check or found end
    assert.equal("fail", found.status)
    assert.is_truthy(found.says:find("1 ", 1, true), found.says)
    local exit, text = proc.nightshift({ "rescue", "--wait", "0" }, url)
    assert.equal(0, exit)
    assert.is_truthy(text:find("1 job", 1, true), text)
    assert.equal(id, assert(q:claim()).id)
  end)
end)

-- CALL nightshift_push and nightshift_signal, outside a transaction, committed row by row. A
-- KILL or a crash of the server in between left a job in no place, with its unique key taken
-- for ever. Or it left a job with a written signal, which would never start.
describe("half a call:", function()
  local proc = require "spec.support.proc"

  -- Says its thread, then makes one call and says how that ended.
  local CALLER = [[
  local db = assert(require "nightshift.core".open { url = %q, no_schema = true })
  print("thread " .. db:execute "SELECT CONNECTION_ID() AS n"[1].n)
  io.flush()
  local ok, message, code = db:execute(%q)
  print("told " .. (ok and "OK" or code))]]

  local TABLES = { "child", "edge", "finished", "job", "met", "ready", "scheduled", "signal", "unique_key" }

  --- All rows of all tables, as a text.
  local function rows(server, name)
    local asked = {}
    for _, tab in ipairs(TABLES) do
      asked[#asked + 1] = ("SELECT '%s', t.* FROM nightshift_%s t ORDER BY 2, 3"):format(tab, tab)
    end
    return server:sql(table.concat(asked, ";"), name)
  end

  --- Jobs to push beside: one that is dead, one that lives, one that waits for a child,
  -- one that waits for a signal.
  local function furnish(url, queue)
    local handle <close> = assert(nightshift.open(url))
    local q, ids = handle:queue(queue or "q"), {}
    ids.dead = assert(q:push "dead")
    assert(q:claim():discard "no")
    ids.waits = assert(q:push "waits")
    assert(q:claim():wait { signal = "go" })
    ids.parent = assert(q:push "parent")
    local parent = assert(q:claim())
    parent:spawn("kid", 1)
    assert(parent:wait())
    ids.lives = assert(q:push "lives")
    return ids
  end

  local PUSH = "CALL nightshift_push('q', 'late', '1', '%s')"
  -- What is called, and a table that another session holds: the call waits there.
  local CASES = {
    { "unique_key", function() return PUSH:format '{"unique":"k"}' end },
    { "job", function() return PUSH:format '{"unique":"k"}' end },
    { "ready", function() return PUSH:format '{"unique":"k"}' end },
    { "scheduled", function() return PUSH:format '{"unique":"k","delay":60}' end },
    { "edge", function(id) return PUSH:format('{"unique":"k","parent":' .. id.parent .. "}") end },
    { "child", function(id) return PUSH:format(('{"after":[%d],"parent":%d}'):format(id.lives, id.parent)) end },
    { "met", function(id) return PUSH:format(('{"after":[%d],"parent":%d}'):format(id.dead, id.parent)) end },
    { "finished", function(id) return PUSH:format(('{"after":[%d],"unique":"k"}'):format(id.dead)) end },
    { "signal", function(id) return ("CALL nightshift_signal(%d, '1', 'go')"):format(id.waits) end },
    { "scheduled", function(id) return ("CALL nightshift_signal(%d, '1', 'go')"):format(id.waits) end },
    { "ready", function(id) return ("CALL nightshift_signal(%d, '1', 'go')"):format(id.waits) end },
  }

  --- A call that waits in the middle; what it waits for goes with 'holder'.
  local function stuck(server, case, url, queue)
    local ids = furnish(url, queue)
    local holder = assert(core.open { url = url, no_schema = true })
    assert(holder:execute "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    assert(holder:begin())
    assert(holder:execute("SELECT * FROM nightshift_" .. case[1] .. " FOR UPDATE"))
    local name = db.name(url)
    local before, call = rows(server, name), case[2](ids)
    local caller = proc.start { proc.lua, "-e", CALLER:format(url, call) }
    local thread = caller:wait_line "thread (%d+)"
    eventually(function()
      return server:sql("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' AND"
        .. " trx_mysql_thread_id = " .. thread) ~= ""
    end)
    return { holder = holder, before = before, call = call, caller = caller, thread = thread, name = name }
  end

  --- Nothing of the call is there, and it works when it is made again.
  local function check(server, at)
    assert.equal(at.before, rows(server, at.name))
    server:sql(at.call, at.name)
    assert.not_equal(at.before, rows(server, at.name))
    server:sql("DELETE FROM nightshift_unique_key", at.name)
  end

  for _, kill in ipairs { "KILL QUERY", "KILL" } do
    local url
    setup(function() url = url or db.fresh() end)
    for i, case in ipairs(CASES) do
      local what = case[2] { parent = 1, dead = 1, lives = 1, waits = 1 }:match "nightshift_(%a+)"
      it(("a %s that %s hits at nightshift_%s leaves nothing"):format(what, kill, case[1]), function()
        local server = db.shared()
        local at = stuck(server, case, url, "q" .. i)
        db.sql(kill .. " " .. at.thread)
        at.caller:wait_line(kill == "KILL" and "told GONE" or "told BUSY")
        at.holder:close()
        check(server, at)
      end)
    end
  end

  it("a call that the end of the server hits leaves nothing", function()
    local server = db.spare()
    local all = {}
    for i = 1, #CASES, 2 do all[#all + 1] = stuck(server, CASES[i], (server:fresh())) end
    server:kill()
    server:start()
    for _, at in ipairs(all) do
      at.holder:close()
      check(server, at)
    end
  end)

  describe("the calls", function()
    local url, name, handle
    before_each(function()
      url, name = db.fresh()
      handle = assert(core.open { url = url })
    end)
    after_each(function() handle:close() end)

    it("are all or none in a trigger, with the statement that fires it", function()
      local ids = furnish(url)
      assert(handle:execute "CREATE TABLE ours (id INT PRIMARY KEY) ENGINE=InnoDB")
      assert(handle:execute(([[CREATE TRIGGER pushes AFTER INSERT ON ours FOR EACH ROW BEGIN
      CALL nightshift_push('q', 'late', '1', '{"after":[%d,%d],"on_fail":"run"}');
      CALL nightshift_signal(%d, '1', 'go'); END]]):format(ids.dead, ids.lives, ids.waits)))
      local before = rows(db.shared(), name)
      assert.is_nil((handle:execute "INSERT INTO ours VALUES (1), (1)"))
      assert(handle:begin())
      assert(handle:execute "INSERT INTO ours VALUES (1)")
      assert(handle:rollback())
      assert.equal(before, rows(db.shared(), name))
      assert(handle:execute "INSERT INTO ours VALUES (1)")
      assert.equal("1", db.sql("SELECT COUNT(*) FROM nightshift_edge WHERE on_id = " .. ids.lives, name))
      assert.equal("1", db.sql("SELECT COUNT(*) FROM nightshift_ready WHERE job_id = " .. ids.waits, name))
    end)

    it("go with the transaction that they are in", function()
      local ids = furnish(url)
      local before = rows(db.shared(), name)
      assert(handle:begin())
      assert(handle:execute "CALL nightshift_push('new', 'late', '1', NULL)")
      assert(handle:execute("CALL nightshift_signal(?, '1', 'go')", ids.waits))
      assert.is_nil((handle:execute "CALL nightshift_push('q', 'late', '1', '{\"after\":[5]}')"))
      assert(handle:rollback())
      assert.equal(before, rows(db.shared(), name))
    end)

    it("take more targets than a concatenation usually has bytes", function()
      local other <close> = assert(nightshift.open(url))
      local list = {}
      for i = 1, 300 do list[i] = { "a", i } end
      local ids = assert(other:queue "q":push_many(list))
      assert(handle:execute "SET group_concat_max_len = 4")
      assert(handle:execute("CALL nightshift_push('q', 'late', '1', ?)", (core.encode { after = ids })))
      assert.equal("300", db.sql("SELECT unmet FROM nightshift_job WHERE name = 'late'", name))
    end)
  end)

  it("what a server with a binary log reads for a push in REPEATABLE READ holds up nobody", function()
    local server = db.server "log-bin=log\n"
    local url, name = server:fresh()
    local ids = furnish(url)
    local other <close> = assert(core.open { url = url })
    assert(other:execute "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    assert(other:begin())
    assert(other:execute("CALL nightshift_push('q', 'late', '1', ?)", ('{"after":[%d]}'):format(ids.lives)))
    server:sql("SET innodb_lock_wait_timeout = 2; CALL nightshift_push('q', 'beside', '1', NULL)", name)
    local handle <close> = assert(nightshift.open(url))
    assert(handle:execute "SET innodb_lock_wait_timeout = 2")
    local kid = assert(handle:queue "q":claim { wait = 20 })
    assert(kid:ack())
    assert(other:rollback())
  end)

  it("without the right to make functions on a server with a binary log, init says what to do", function()
    local server = db.server "log-bin=log\n"
    local url = server:user((server:empty()), "ALL")
    local exit, _, err = proc.nightshift({ "init" }, url)
    assert.not_equal(0, exit)
    assert.is_truthy(err:find("log_bin_trust_function_creators", 1, true), err)
    server:sql "SET GLOBAL log_bin_trust_function_creators = ON"
    assert.equal(0, (proc.nightshift({ "init" }, url)))
  end)
end)

-- A claim does not lock the job, and its lease cannot be seen before it commits. A verb that
-- gave the job another priority in between found no lease. So it queued the job again under its
-- next run: it was started a second time, beside the first.
describe("reprioritise beside a claim:", function()
  local proc = require "spec.support.proc"

  local MOVER = [[
  local db = assert(require "nightshift".open(%q))
  io.write("moves\n") io.flush()
  print("told", db:reprioritise(%d, 7))]]

  it("a job that is being claimed while its priority changes is not queued again", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local id = assert(handle:queue "q":push("job", 1))
    local claimer <close> = assert(core.open { url = url })
    assert(claimer:begin()) -- what a claim writes, step by step
    assert(claimer:execute("DELETE FROM nightshift_ready WHERE job_id = ?", id))
    assert(claimer:execute("INSERT INTO nightshift_lease (id, holder, claimed, jobs) VALUES (7, 7, 1, ?)",
      ("[[%d,1]]"):format(id)))
    local mover = proc.start { proc.lua, "-e", MOVER:format(url, id) }
    mover:wait_line "moves"
    eventually(function()
      return mover:ended()
        or db.sql("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'") ~= ""
    end)
    assert(claimer:commit())
    mover:wait_line "told%s+true"
    assert.equal("1\t248", db.sql("SELECT run, rank FROM nightshift_job", name))
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_ready WHERE job_id > 0", name))
  end)

  it("one that nobody claims moves, from ready and from scheduled", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local ready, later = assert(q:push("ready", 1)), assert(q:push("later", 1, { delay = 60 }))
    assert(handle:reprioritise(ready, 7))
    assert(handle:reprioritise(later, 8))
    assert.equal(("%d\t2\t248"):format(ready),
      db.sql("SELECT job_id, run, rank FROM nightshift_ready WHERE job_id > 0", name))
    assert.equal(("%d\t2\t247"):format(later), db.sql("SELECT job_id, run, rank FROM nightshift_scheduled", name))
  end)
end)

-- A claim does not lock the job, and its lease cannot be seen before it commits. A verb over a
-- tree that met a claim under way took its job for an unclaimed one. It gave the job a row of
-- its next run: it was started a second time, beside the first.
describe("verbs over a tree beside a claim:", function()
  local proc = require "spec.support.proc"

  local VERBS = {
    pause = "handle:pause(id)",
    reprioritise = "handle:reprioritise(id, 7, { tree = true })",
    deadline = "handle:deadline(id, 3600, { tree = true })",
  }
  local ASKER = [[
  local id = %d
  local handle = assert(require "nightshift".open(%q))
  io.write("asks\n") io.flush()
  print("told", %s)]]

  local url, name, handle, q
  before_each(function()
    url, name = db.fresh()
    handle = assert(nightshift.open(url))
    q = handle:queue "q"
  end)
  after_each(function() handle:close() end)

  local function ready() return db.sql("SELECT job_id, run, rank FROM nightshift_ready WHERE job_id > 0", name) end

  for verb, call in pairs(VERBS) do
    it("a job that is being claimed is not queued again: " .. verb, function()
      local id = assert(q:push("job", 1, verb == "deadline" and { delay = 7200 } or nil))
      local claimer <close> = assert(core.open { url = url })
      assert(claimer:begin()) -- what a claim writes, step by step
      assert(claimer:execute("DELETE FROM nightshift_ready WHERE job_id = ?", id))
      assert(claimer:execute("DELETE FROM nightshift_scheduled WHERE job_id = ?", id))
      assert(claimer:execute("INSERT INTO nightshift_lease (id, holder, claimed, jobs) VALUES (7, 7, 1, ?)",
        ("[[%d,1]]"):format(id)))
      local asker = proc.start { proc.lua, "-e", ASKER:format(id, url, call) }
      asker:wait_line "asks"
      eventually(function()
        return asker:ended()
          or db.sql("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'") ~= ""
      end)
      assert(claimer:commit())
      asker:wait_line "told%s+1"
      assert.equal("1", db.sql("SELECT run FROM nightshift_job", name))
      assert.equal("", ready())
      assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_scheduled", name))
    end)
  end

  it("jobs that nobody claims move, from ready and from scheduled, from all lanes and queues", function()
    local root = assert(handle:flow { name = "root", queue = "q", children = {
      { name = "a", priority = 1 }, { name = "b", priority = 2 }, { name = "c", queue = "p" },
      { name = "d", delay = 3600 } } })
    assert.equal(5, handle:pause(root))
    assert.is_nil(q:claim())
    assert.equal(5, handle:resume(root))
    assert.equal(5, handle:reprioritise(root, 7, { tree = true }))
    assert.equal("3", db.sql("SELECT COUNT(*) FROM nightshift_job j JOIN nightshift_ready r ON r.job_id = j.id "
      .. "AND r.run = j.run AND r.rank = 248", name))
    assert.equal("1", db.sql("SELECT COUNT(*) FROM nightshift_job j JOIN nightshift_scheduled r ON r.job_id = j.id "
      .. "AND r.run = j.run AND r.rank = 248", name))
  end)
end)

-- run_now of a job that was promoted and claimed in the same moment made it ready once more. It
-- was started a second time, beside the first.
describe("run_now beside a claim:", function()
  local proc = require "spec.support.proc"

  local ASKER = [[
  local handle = assert(require "nightshift".open(%q))
  io.write("asks\n") io.flush()
  print("told", handle:run_now(%d))]]

  it("a job that is being claimed is not made ready again by run_now", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local id = assert(handle:queue("q"):push("job", 1, { delay = 3 }))
    local claimer <close> = assert(core.open { url = url })
    assert(claimer:begin()) -- what promotes and claims, step by step
    assert(claimer:execute("DELETE FROM nightshift_scheduled WHERE job_id = ?", id))
    assert(claimer:execute("INSERT INTO nightshift_lease (id, holder, claimed, jobs) VALUES (7, 7, 1, ?)",
      ("[[%d,1]]"):format(id)))
    local asker = proc.start { proc.lua, "-e", ASKER:format(url, id) }
    asker:wait_line "asks"
    eventually(function()
      return asker:ended()
        or db.sql("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'") ~= ""
    end)
    eventually(function()
      return db.sql("SELECT due < UNIX_TIMESTAMP(NOW(6)) * 1000000 FROM nightshift_job", name) == "1"
    end)
    assert(claimer:commit())
    asker:wait_line "told%s+nil.*ready or running"
    assert.equal("1", db.sql("SELECT run FROM nightshift_job", name))
    assert.equal("", db.sql("SELECT job_id FROM nightshift_ready WHERE job_id > 0", name))
  end)

  it("a job without a row before its time is made ready", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local id = assert(q:push("job", 1, { delay = 3600 }))
    db.sql("DELETE FROM nightshift_scheduled", name)
    assert.is_true(handle:run_now(id))
    assert.equal(id, q:claim().id)
  end)
end)

-- A retry of a tree that was cut off holds its jobs until it is made again. What looks for jobs
-- that are nowhere took that for a pause that is over, and let them go. They ran before what
-- they wait for. And the retry that was made again let them go, but said that nothing had
-- failed.
it("jobs that a retry has left held stay so until it is made again", function()
  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local q = handle:queue "q"
  local top = assert(q:push "top")
  local low = assert(q:push("low", nil, { parent = top, after = { top } }))
  db.sql(([[UPDATE nightshift_job SET run = run + 1, paused = -%d, unmet = 1;
    DELETE FROM nightshift_edge; DELETE FROM nightshift_ready WHERE job_id > 0]]):format(top), name)
  for _ = 1, 3 do
    local found = assert(handle._handle:mend(true))
    assert.same({ 0, 0, 0 }, { found.jobs, found.rows, found.twice })
  end
  assert.is_nil(q:claim())
  assert.equal(2, handle:retry(top, { tree = true }))
  local job = assert(q:claim())
  assert.equal(top, job.id)
  assert.is_nil(q:claim())
  assert(job:ack())
  assert.equal(low, assert(q:claim()).id)
  assert.equal("STATE", select(3, handle:retry(top, { tree = true })))
end)

-- A parked parent that was put back, as it waited for no job, was still marked as parked. A
-- child pushed below it then was waited for, by a job that was ready or ran.
it("a parent that was put back waits for no child that is pushed then", function()
  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local q = handle:queue "q"
  local id = assert(q:push "parent")
  local parent = assert(q:claim())
  parent:spawn "kid"
  assert(parent:wait())
  db.sql("DELETE FROM nightshift_edge", name)
  assert(q:claim():ack())
  assert.is_nil(q:claim())
  assert.equal(1, assert(handle._handle:mend(true)).jobs + assert(handle._handle:mend(true)).jobs)
  assert(q:push("late", nil, { parent = id }))
  assert.equal("0\tNULL", db.sql(("SELECT unmet, waits FROM nightshift_job WHERE id = %d"):format(id), name))
  local first, second = assert(q:claim()), assert(q:claim())
  assert.same({ [id] = true, [second.id] = true }, { [first.id] = true, [second.id] = true })
  assert(second:ack())
  assert.equal("", db.sql("SELECT job_id FROM nightshift_ready WHERE job_id > 0", name))
  assert(first:ack())
end)

-- resume of a job inside another pause first ended its own pause, and then gave its jobs to the
-- other one. Jobs that it had not reached when it was cut off were held by a pause that was
-- over, and were released for that. They ran, though the other pause was still on.
it("a resume that is cut off inside another pause lets nothing go", function()
  local proc = require "spec.support.proc"

  local RESUMER = [[
  local handle = assert(require "nightshift".open(%q))
  handle:resume(%d)]]

  local url = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local q = handle:queue "q"
  local outer = assert(q:push "outer")
  local inner = assert(q:push("inner", nil, { parent = outer }))
  local low = assert(q:push("low", nil, { parent = inner }))
  assert(handle:pause(outer))
  assert(handle:pause(inner))
  assert.equal(inner, handle:job(low).paused)
  local holder <close> = assert(nightshift.open(url))
  assert(holder:transaction(function(tx)
    assert(tx:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", low))
    local resumer = proc.start { proc.lua, "-e", RESUMER:format(url, inner) }
    eventually(function()
      return handle:job(inner).paused == outer
        and db.sql("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'") ~= ""
    end)
    resumer:signal "KILL"
    eventually(function() return resumer:ended() end)
    return true
  end))
  eventually(function() return db.sql("SELECT trx_id FROM information_schema.innodb_trx") == "" end)
  for _ = 1, 3 do assert.equal(0, assert(handle._handle:mend(true)).jobs) end
  assert.is_nil(q:claim())
  assert(handle:resume(inner))
  assert.same({ outer, outer }, { handle:job(inner).paused, handle:job(low).paused })
  assert.equal(3, handle:resume(outer))
  for _ = 1, 3 do assert(assert(q:claim()):ack()) end
end)
