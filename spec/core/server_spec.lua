-- The server's own trouble: it spends nothing of a job, is waited for, and is named.

local core = require "nightshift.core"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

-- A full disk, a full table or a killed query counted as the fault of the verdict. A host
-- turned results into failures, or dropped them.
describe("a verdict that meets the server's own trouble", function()
  for number, trouble in pairs { [1021] = "a full disk", [1114] = "a full table", [1317] = "a killed query" } do
    it("is BUSY and can be given again: " .. trouble, function()
      local url, name = db.fresh()
      local handle <close> = assert(nightshift.open(url))
      local id = assert(handle:queue("q"):push("job", 1))
      local job = assert(handle:queue("q"):claim())
      db.sql(([[CREATE TRIGGER trouble BEFORE INSERT ON nightshift_finished FOR EACH ROW
        SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = %d]]):format(number), name)
      local none, _, code = job:ack "result"
      assert.is_nil(none)
      assert.equal("BUSY", code)
      db.sql("DROP TRIGGER trouble", name)
      assert.is_true((job:ack "result"))
      assert.equal("result", assert(handle:job(id)).result)
    end)
  end
end)

-- A host with a user that may not run every statement said it was ready, logged one
-- error and then worked nothing, for ever.
describe("a host whose user lacks a privilege", function()
  for _, granted in ipairs { "SELECT", "SELECT, INSERT, UPDATE, EXECUTE" } do
    it("ends at once with 78 and names what is denied: only " .. granted, function()
      local url = db.fresh()
      local handle <close> = assert(nightshift.open(url))
      assert(handle:queue("q"):push("a", 1))
      local file = fixture.file("jobs.lua", "return { a = function() end }")
      local status, _, err = proc.nightshift({ "work", file, "--drain" }, (db.user(url, granted)))
      assert.equal(78, status)
      assert.is_truthy(err:find("command denied", 1, true), err)
      assert.equal("ready", assert(handle:jobs {})[1].state)
    end)
  end
end)

-- A host that had lost a privilege never noticed that it was granted again. The server looks
-- rights up when a connection is made, and the host kept its own.
describe("a running host whose right is taken away", function()
  it("says so, and works on when it is given back", function()
    local url, name = db.fresh()
    local where, user = db.user(url, "SELECT, INSERT, UPDATE, DELETE, EXECUTE")
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local go = fixture.dir() .. "/go"
    local h = host.start(where, host.holding(go))
    local id = q:push "hold"
    h:wait_line "^holds"
    db.sql(("REVOKE DELETE ON `%s`.* FROM %s@localhost"):format(name, user))
    for thread in db.sql("SELECT id FROM information_schema.PROCESSLIST WHERE user = '" .. user .. "'"):gmatch "%d+" do
      pcall(db.sql, "KILL " .. thread)
    end
    assert(io.open(go, "w")):close()
    h:wait_line("event=db.error code=DENIED", 20, 2)
    local waiting = q:push "hold"
    db.sql(("GRANT DELETE ON `%s`.* TO %s@localhost"):format(name, user))
    for _, one in ipairs { id, waiting } do
      eventually(function() return handle:job(one).state == "done" end)
      assert.equal(1, handle:job(one).run)
    end
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

-- A verdict that could not be written because a column of ours was missing was taken for
-- refused. The job failed without a line in the log and ran again, until its attempts were
-- spent.
describe("a column that is gone", function()
  local TABLE = "ALTER TABLE nightshift_finished "

  local url, name, handle

  with_database(function(opened, _, at, database) handle, url, name = opened, at, database end)

  it("is waited for by a host, which keeps its verdicts", function()
    local go = fixture.dir() .. "/go"
    local h = host.start(url, host.holding(go))
    local id = handle:queue "q":push "hold"
    h:wait_line "^holds"
    db.sql(TABLE .. "RENAME COLUMN holder TO gone", name)
    assert(io.open(go, "w")):close()
    h:wait_line("event=db.error code=SCHEMA", 20, 2)
    db.sql(TABLE .. "RENAME COLUMN gone TO holder", name)
    eventually(function() return handle:job(id).state == "done" end)
    assert.same({ "held", 1 }, { handle:job(id).result, handle:job(id).run })
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("is SCHEMA to a handle, whose claim stands", function()
    assert(handle:queue "q":push "job")
    local job = assert(handle:queue "q":claim())
    db.sql(TABLE .. "RENAME COLUMN holder TO gone", name)
    assert.equal("SCHEMA", select(3, job:ack "result"))
    db.sql(TABLE .. "RENAME COLUMN gone TO holder", name)
    assert(job:ack "result")
    assert.equal("SQL", select(3, handle:execute "SELECT nothing_of_ours FROM nightshift_job"))
  end)
end)

-- An error of the server that no table knew counted as the fault of the verdict it met. A full
-- tmpdir, a limit or a setting ended finished jobs as dead, spent attempts, or had them run
-- again and again.
describe("trouble with a verdict:", function()
  -- Full file (3), no table of a descriptor (20, 23), record of another file (1026), old key
  -- file (1034), no memory to sort (1038). Rows not to be updated (1175). Transaction over its
  -- cache (1197), too many statements (1461), statement to be prepared again (1615), too many
  -- transactions (1637), STATEMENT (1665). Read-only transaction (1792) or table (1836), index
  -- of another making (1874), table lost by its engine (1932), and one that is not known yet.
  local TROUBLES = { 3, 20, 23, 1026, 1034, 1038, 1175, 1197, 1461, 1615, 1637, 1665, 1792, 1836, 1874, 1932, 4999 }
  local VALUES = { 1048, 1264, 1265, 1292, 1366, 1406, 1644, 4025, 4038, 4078 }

  local HANDLERS = [[
  local function wait(path)
    while not io.open(path) do require "nightshift.core".sleep(0.01) end
  end
  return {
    quick = function() return 1 end,
    slow = function(job) wait(job.payload.go) return ("x"):rep(job.payload.size) end,
  }
]]

  -- What is written of a job that ends so fails with an error of our choice.
  local function plant(name, number)
    db.sql(([[CREATE TABLE trouble (number INT, sort VARCHAR(20) COLLATE utf8mb4_nopad_bin);
    INSERT INTO trouble VALUES (%d, 'done');
    DELIMITER $$
    CREATE TRIGGER trouble BEFORE INSERT ON nightshift_finished FOR EACH ROW BEGIN
      DECLARE v_number INT DEFAULT NULL;
      SELECT MAX(number) INTO v_number FROM trouble WHERE sort = NEW.outcome AND NEW.name <> 'quick';
      IF v_number IS NOT NULL THEN
        SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = v_number, MESSAGE_TEXT = 'planted';
      END IF;
    END$$]]):format(number), name)
  end

  local function runs(handle, id)
    local job = assert(handle:job(id))
    return { job.state, job.run, job.attempts }
  end

  describe("the server's own trouble with a verdict", function()
    local handle, q, url, name
    with_database(function(...) handle, q, url, name = ... end)

    it("is BUSY for a program, spends nothing, and the verdict can be given again", function()
      plant(name, 0)
      for _, number in ipairs(TROUBLES) do
        assert(handle:execute("UPDATE trouble SET number = ?", number))
        local id = assert(q:push("job", 1, { max_attempts = 1 }))
        local job = assert(q:claim())
        local none, message, code = job:ack "result"
        assert.same({ nil, "BUSY" }, { none, code }, message)
        assert.is_truthy(message:find("(" .. number .. ")", 1, true), message)
        assert(handle:execute "UPDATE trouble SET number = NULL")
        assert(job:ack "result")
        assert.same({ "done", 1, 0 }, runs(handle, id))
      end
    end)

    it("is waited for by a host, which goes on with all else", function()
      plant(name, 0)
      local h = host.start(url, HANDLERS)
      local go = fixture.file("go", "")
      for _, number in ipairs(TROUBLES) do
        assert(handle:execute("UPDATE trouble SET number = ?", number))
        local ill = assert(q:push("slow", { go = go, size = 10 }, { max_attempts = 1 }))
        h:wait_line("event=db.error .*number=" .. number .. " ")
        local well = assert(q:push "quick")
        eventually(function() return handle:job(well).state == "done" end)
        assert.same({ "running", 1, 0 }, runs(handle, ill))
        assert(handle:execute "UPDATE trouble SET number = NULL")
        eventually(function() return handle:job(ill).state == "done" end)
        assert.same({ "done", 1, 0 }, runs(handle, ill))
      end
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)

    it("is not what a value causes: then the job fails, and the failure says why", function()
      plant(name, 0)
      local h = host.start(url, HANDLERS)
      local go = fixture.file("go", "")
      for _, number in ipairs(VALUES) do
        assert(handle:execute("UPDATE trouble SET number = ?", number))
        local id = assert(q:push("slow", { go = go, size = 10 }, { max_attempts = 1 }))
        eventually(function() return handle:job(id).state == "dead" end)
        assert.matches("the verdict was refused: .*%(" .. number .. "%)", handle:job(id).error)
      end
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)

    it("keeps what was refused twice, and does not run it again", function()
      plant(name, 1644)
      db.sql("INSERT INTO trouble VALUES (1644, 'dead')", name)
      local h = host.start(url, HANDLERS)
      local id = assert(q:push("slow", { go = fixture.file("go", ""), size = 10 }, { max_attempts = 1 }))
      h:wait_line "event=db.error .*number=1644 .*verdicts=1"
      assert.same({ "running", 1, 0 }, runs(handle, id))
      -- A try says first done, then dead: it must find dead refused to the end.
      db.sql("DELETE FROM trouble WHERE sort = 'done'", name)
      eventually(function() return handle:job(id).state == "done" end)
      assert.same({ "done", 1, 0 }, runs(handle, id))
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)

    it("is one line at a time for many verdicts, and all are written in the end", function()
      plant(name, 1175)
      local begun = fixture.dir() .. "/"
      local h = host.start(url, ([[
        local function begin(job)
          local file <close> = io.open(%q .. job.id, "a")
          file:write "x"
        end
        return {
          quick = function(job) begin(job) return 1 end,
          slow = function(job) begin(job) return ("x"):rep(job.payload.size) end,
        }]]):format(begun))
      local jobs = {}
      for i = 1, 300 do jobs[i] = { i % 3 == 0 and "slow" or "quick", { size = 10 }, { max_attempts = 1 } } end
      local ids = assert(q:push_many(jobs))
      h:wait_line "event=db.error .*number=1175 "
      eventually(function()
        return db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'", name) == "200"
      end)
      db.sql("DELETE FROM trouble", name)
      eventually(function()
        return db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'", name) == "300"
      end)
      -- one that was given back before it began has another run
      for _, id in ipairs(ids) do
        local job = assert(handle:job(id))
        assert.same({ "done", 0, "x" }, { job.state, job.attempts, io.open(begun .. id):read "a" })
      end
      h:signal "TERM"
      assert.equal(0, h:wait())
      assert.same({}, host.events(select(2, h:text()), "job.stale"))
    end)
  end)

  describe("a full tmpdir of a server with a binary log", function()
    local server, folder

    setup(function()
      folder = fixture.dir() .. "/small"
      if not os.execute(("mkdir %s && mount -t tmpfs -o size=3m none %s 2>/dev/null"):format(folder, folder)) then
        folder = nil
        return
      end
      server = db.server("log-bin\nbinlog-format=ROW\ntmpdir=" .. folder .. "\n")
    end)
    teardown(function()
      if not folder then return end
      server:remove()
      os.execute("umount " .. folder)
    end)

    it("has large results wait, with nothing spent; small ones are written", function()
      if not folder then
        pending "no tmpfs can be mounted here"
        return
      end
      local url = server:fresh()
      local handle <close> = assert(nightshift.open(url))
      local q = handle:queue "q"
      local h = host.start(url, HANDLERS)
      local go = fixture.dir() .. "/go"
      local once = assert(q:push("slow", { go = go, size = 300000 }, { max_attempts = 1 }))
      local often = assert(q:push("slow", { go = go, size = 300000 }, { max_attempts = 10 }))
      eventually(function() return runs(handle, often)[1] == "running" end)
      os.execute(("head -c 10M /dev/zero > %s/filler 2>/dev/null"):format(folder))
      assert(io.open(go, "w")):close()
      h:wait_line "event=db.error .*number=3 .*verdicts="
      local small = assert(q:push("slow", { go = go, size = 10 }))
      eventually(function() return handle:job(small).state == "done" end)
      assert.same({ { "running", 1, 0 }, { "running", 1, 0 } }, { runs(handle, once), runs(handle, often) })
      assert(os.remove(folder .. "/filler"))
      eventually(function() return handle:job(once).state == "done" and handle:job(often).state == "done" end)
      assert.same({ { "done", 1, 0 }, { "done", 1, 0 } }, { runs(handle, once), runs(handle, often) })
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)
  end)
end)

-- A variable that the server had set for all sessions lost jobs (completion_type=CHAIN), left
-- them ready (sql_select_limit), or kept a host from working at all. Doctor ended with an
-- internal error, and what other options refuse was taken for a read-only server.
describe("under what a server sets for all sessions,", function()
  local server, url

  setup(function() server = db.server() end)
  before_each(function() url = server:fresh() end)

  -- The setting, and what puts it back.
  local SETTINGS = {
    { "completion_type=CHAIN", "completion_type=NO_CHAIN" },
    { "completion_type=2", "completion_type=NO_CHAIN" },
    { "sql_select_limit=1", "sql_select_limit=18446744073709551615" },
    { "sql_safe_updates=1", "sql_safe_updates=0" },
    { "tx_read_only=1", "tx_read_only=0" },
    { "sort_buffer_size=1024", "sort_buffer_size=2097152" },
    { "max_join_size=10, GLOBAL sql_big_selects=0", "max_join_size=18446744073709551615, GLOBAL sql_big_selects=1" },
    { "max_recursive_iterations=0", "max_recursive_iterations=1000" },
    { "sql_auto_is_null=1", "sql_auto_is_null=0" },
    { "unique_checks=0, GLOBAL foreign_key_checks=0", "unique_checks=1, GLOBAL foreign_key_checks=1" },
    { "check_constraint_checks=0", "check_constraint_checks=1" },
  }

  local HANDLERS = [[return {
  quick = function(job) return job.payload end,
  flaky = function(job) if job.attempts == 0 then job:fail("once", { retry_in = 0 }) end end,
  parent = function(job)
    if job.phase > 0 then return #job.results end
    for i = 1, 20 do job:spawn("quick", i) end
    return job:wait()
  end,
}]]

  local function with(setting, fn)
    server:sql("SET GLOBAL " .. setting[1])
    local ok, why = pcall(fn)
    server:sql("SET GLOBAL " .. setting[2])
    if not ok then error(why, 0) end
  end

  for _, setting in ipairs(SETTINGS) do
    it("all kinds of jobs are done, and doctor names it: " .. setting[1], function()
      with(setting, function()
        local handle <close> = assert(nightshift.open(url))
        local q = handle:queue "q"
        local jobs = {}
        for i = 1, 250 do jobs[i] = { "quick", i } end
        assert(q:push_many(jobs))
        assert(q:push "flaky")
        local parent = assert(q:push "parent")
        assert(handle:execute("CALL nightshift_push('q', 'quick', '1', NULL)"))
        local other <close> = assert(nightshift.open(url)) -- sees only what is committed
        assert.equal(253, other:execute("SELECT COUNT(*) AS n FROM nightshift_job")[1].n)
        local status, log = host.drain(url, HANDLERS)
        assert.equal(0, status, log)
        assert.equal(0, other:execute("SELECT COUNT(*) AS n FROM nightshift_job")[1].n)
        assert.equal(20, handle:job(parent).result)
        local exit, json, err = proc.nightshift({ "doctor", "--json" }, url)
        assert.same({ 4, "" }, { exit, err })
        assert.is_truthy(json:find(setting[1]:match "^[%l_]+", 1, true), json)
      end)
    end)
  end

  -- An old piece of advice, which undoes the character set that the client has asked for.
  for _, first in ipairs { "SET NAMES utf8", "SET NAMES latin1, collation_connection = latin1_german1_ci",
    "SET timestamp = 1, autocommit = 0, sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES', group_concat_max_len = 4" } do
    it("texts stay what they are, and doctor names it: init_connect=" .. first, function()
      local name = db.name(url)
      server:sql(("CREATE OR REPLACE USER plain@localhost; GRANT ALL ON `%s`.* TO plain@localhost"):format(name))
      local setting = { ('init_connect="%s"'):format(first), "init_connect=''" }
      with(setting, function()
        local plain = server:url(name, "plain")
        local handle <close> = assert(nightshift.open(plain))
        local q = assert(handle:queue "emoji 😀")
        local id = assert(q:push("smile 😀", { text = "ü 😀" }, { unique = "key 😀" }))
        local before = handle:job(id)
        assert.is_true(before.created > 1.7e9)
        assert.equal(0, (host.drain(plain, [[return { ["smile 😀"] = function(job)
          job:log "log 😀"
          if job.attempts == 0 then return job:fail("error 😀", { retry_in = 0 }) end
          return { was = job.payload.text, row = job:db():execute("SELECT '😀' AS s")[1].s }
        end }]])))
        local info = handle:job(id)
        assert.same({ "done", "smile 😀", "emoji 😀" }, { info.state, info.name, info.queue })
        assert.same({ was = "ü 😀", row = "😀" }, info.result)
        local other <close> = assert(nightshift.open(url)) -- an account that is spared
        assert.same(info, other:job(id))
        local _, json = proc.nightshift({ "doctor", "--json" }, plain)
        assert.is_truthy(json:find("init_connect=SET", 1, true), json)
      end)
    end)
  end

  it("a limit of memory is the server's trouble, and named", function()
    server:sql "SET GLOBAL max_session_mem_used=8192"
    local none, message, code = nightshift.open(url)
    local exit, json, err = proc.nightshift({ "doctor", "--json" }, url)
    server:sql "SET GLOBAL max_session_mem_used=9223372036854775807"
    assert.same({ nil, "BUSY" }, { none, code }, message)
    assert.is_truthy(message:find("max-session-mem-used", 1, true), message)
    assert.same({ 1, "" }, { exit, err })
    assert.is_truthy(json:find("max_session_mem_used", 1, true), json)
    server:sql "SET GLOBAL max_session_mem_used=2097152"
    exit, json = proc.nightshift({ "doctor", "--json" }, url)
    server:sql "SET GLOBAL max_session_mem_used=9223372036854775807"
    assert.is_truthy(json:find("max_session_mem_used", 1, true), exit .. json)
  end)

  it("an engine for all tables keeps init from making ours, and is named", function()
    local empty = server:empty()
    server:sql "SET GLOBAL enforce_storage_engine=Aria"
    local exit, _, err = proc.nightshift({ "init" }, empty)
    local _, json = proc.nightshift({ "doctor", "--json" }, empty)
    server:sql "SET GLOBAL enforce_storage_engine=NULL"
    assert.not_equal(0, exit)
    assert.is_nil(err:find("read%-only"), err)
    assert.is_nil(err:find("start the server", 1, true), err)
    assert.is_truthy(json:find("enforce_storage_engine", 1, true), json)
    exit, _, err = proc.nightshift({ "init" }, empty)
    assert.same({ 0, "" }, { exit, err })
  end)
end)

-- A host kept 182 prepared statements open and a program 26 to 40, of the 16,382 that a server
-- has for all. The 91st host or the 631st handle took them from every program of that server,
-- and ended with "bad configuration".
describe("the prepared statements of a server", function()
  local HANDLES, HOSTS = tonumber(os.getenv "NIGHTSHIFT_HANDLES") or 20, tonumber(os.getenv "NIGHTSHIFT_HOSTS") or 3
  local PER_HANDLE, PER_HOST = 9, 50
  local HANDLERS = [[return {
  a = function(job)
    if job.payload == "fails" and job.attempts == 0 then job:fail("once", { retry_in = 0 }) return end
    if job.payload == "parent" and job.phase == 0 then
      job:spawn("a", 1)
      return job:wait()
    end
    return job.payload
  end }]]

  local server

  setup(function() server = db.server "max-connections=3000\n" end)

  local function status(name)
    return math.tointeger(tonumber((server:sql(("SHOW GLOBAL STATUS LIKE '%s'"):format(name)):match "%d+$")))
  end

  local url, name

  before_each(function() url, name = server:fresh() end)

  it("are few of each program, which does all kinds of things", function()
    local handles = {}
    local before = status "Prepared_stmt_count"
    for i = 1, HANDLES do
      local handle = assert(nightshift.open(url))
      local q = handle:queue("q" .. i % 5)
      assert(q:push("a", i))
      assert(assert(q:claim()):ack(i))
      handles[i] = handle
    end
    local handle = handles[1]
    local q = handle:queue "q"
    assert(q:push_many { { "a", 1 }, { "a", 2, { priority = 200 } }, { "a", 3, { delay = "1h" } } })
    assert(q:push("a", 4, { unique = "u" }))
    assert(handle:execute("SELECT ? AS x", 1))
    assert(q:claim():fail "no")
    local parent = assert(q:claim())
    parent:spawn("a", 1)
    assert(parent:wait())
    assert(handle:signal(parent.id, "x"))
    assert(handle:stats())
    assert(handle:lock "l"(function() return true end))
    assert(handle:prune { done = 0 })
    local after = status "Prepared_stmt_count"
    assert.is_true(after - before <= HANDLES * PER_HANDLE, ("%d of %d handles"):format(after - before, HANDLES))
    assert.equal("1", server:sql "PREPARE s FROM 'select 1'; EXECUTE s")
    for _, h in ipairs(handles) do h:close() end
  end)

  it("stay prepared in a loop that pushes, claims and acks", function()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local function round(n)
      for i = 1, n do
        assert(q:push("a", i))
        assert(assert(q:claim()):ack(i))
      end
    end
    round(50)
    local before = status "Com_stmt_prepare"
    round(400)
    local more = status "Com_stmt_prepare" - before
    assert.is_true(more <= 200, more .. " prepared anew for 400 jobs")
  end)

  it("are few of each host", function()
    local before = status "Prepared_stmt_count"
    local hosts = {}
    for i = 1, HOSTS do hosts[i] = host.spawn(url, HANDLERS, { "--workers", "1" }) end
    for _, h in ipairs(hosts) do h:wait_line("host.ready", 120) end
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    for i = 1, 40 * HOSTS do assert(q:push("a", ({ "fails", "parent", "plain", i })[i % 4 + 1])) end
    eventually(function() return server:sql("SELECT COUNT(*) FROM nightshift_job", name) == "0" end, 60)
    local open = status "Prepared_stmt_count" - before
    assert.is_true(open <= HOSTS * PER_HOST + PER_HANDLE, ("%d of %d hosts"):format(open, HOSTS))
    assert.equal("1", server:sql "PREPARE s FROM 'select 1'; EXECUTE s")
    for _, h in ipairs(hosts) do h:signal "TERM" end
    for _, h in ipairs(hosts) do assert.equal(0, h:wait(120), h:transcript()) end
  end)

  it("that are all taken are waited for, and doctor says so", function()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local id = assert(q:push("a", 1))
    local job = assert(q:claim())
    local limit = server:sql "SELECT @@max_prepared_stmt_count"
    server:sql "SET GLOBAL max_prepared_stmt_count=1"
    local none, message, code = job:fail "not yet"
    local late <close> = assert(nightshift.open(url)) -- prepares nothing
    local pushed, why, which = late:queue("q"):push("b", 1)
    local exit, json = proc.nightshift({ "doctor", "--json" }, url)
    server:sql("SET GLOBAL max_prepared_stmt_count=" .. limit)
    assert.same({ nil, "BUSY" }, { none, code }, message)
    assert.same({ nil, "BUSY" }, { pushed, which }, why)
    assert.is_truthy(why:find("(1461)", 1, true), why)
    assert.equal(1, exit)
    assert.is_truthy(json:find("raise max_prepared_stmt_count", 1, true), json)
    assert(job:ack())
    assert.equal("done", handle:job(id).state)
  end)
end)

-- With innodb_rollback_on_timeout a row that another session holds costs the whole transaction.
-- A host without history passed over such a row among the jobs of a stretch, and went on. Half
-- of its cycle was undone, the rest written at once, and it took itself for dead.
describe("where a lock wait ends the transaction", function()
  local LENGTH, STRETCHES = 9, 3

  local server, url, handle

  setup(function()
    server = db.server "innodb_rollback_on_timeout=ON\n"
    url = server:fresh()
    handle = assert(nightshift.open(url))
  end)
  teardown(function() handle:close() end)

  local function live(ids)
    local list = table.concat(ids, ",")
    return handle:execute(("SELECT COUNT(*) AS n FROM nightshift_job WHERE id IN (%s)"):format(list))[1].n
  end

  it("a host that keeps failures only ends all jobs but the one that is held", function()
    local ids = {}
    for _ = 1, STRETCHES do
      assert(handle:transaction(function(tx)
        for i = 1, LENGTH do ids[#ids + 1] = assert(tx:queue "q":push("job", i)) end
        assert(tx:queue "gap":push "job")
      end))
    end
    local others <close> = assert(core.open { url = url })
    local its <close> = assert(core.open { url = url })
    local last = ids[#ids]
    assert(others:begin())
    assert(others:execute("SELECT id FROM nightshift_job WHERE id < ? FOR UPDATE", last))
    assert(its:begin())
    assert(its:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", last))
    local trace = fixture.file("trace", "")
    local h = host.start(url, ([[return { job = function(job)
      local file <close> = assert(io.open(%q, "a"))
      file:write(job.id, "\n")
    end }]]):format(trace), { "--history", "failed", "--queues", "q=1" })
    eventually(function()
      local n = 0
      for _ in io.lines(trace) do n = n + 1 end
      return n == #ids
    end)
    local holder = its:execute("SELECT id FROM nightshift_holder WHERE kind = 'host'")
    assert(others:rollback())
    eventually(function() return live(ids) == 1 end)
    assert.same(holder, its:execute("SELECT id FROM nightshift_holder WHERE kind = 'host' AND dead IS NULL"))
    assert(its:rollback())
    eventually(function() return live(ids) == 0 end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)
