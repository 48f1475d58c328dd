-- What the doctor finds, on a server that is made ill on purpose.

local core = require "nightshift.core"
local db = require "spec.support.db"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

describe("nightshift doctor", function()
  --- Runs it. Gives its findings by name, the exit code, and the text.
  local function examine(url)
    local exit, json, err = proc.nightshift({ "doctor", "--json" }, url)
    assert.equal("", err)
    local report = assert(nightshift.decode(json))
    local found, fails, warns = {}, 0, 0
    for _, check in ipairs(report.checks) do
      found[check.name] = check
      if check.level == "fail" then fails = fails + 1 elseif check.level == "warn" then warns = warns + 1 end
      assert.is_truthy(check.level == "ok" or check.advice, check.name .. " gives no advice")
    end
    assert.same({ fails, warns }, { report.fail, report.warn })
    if exit ~= 69 then assert.equal(fails > 0 and 1 or 0, exit) end
    return found, exit, json
  end

  local function expect(check, level, ...)
    assert.equal(level, check.level, check.found)
    local text = check.found .. " → " .. (check.advice or "")
    for _, part in ipairs { ... } do assert.is_truthy(text:find(part, 1, true), text) end
  end

  local server, url, name

  setup(function()
    server = db.server("innodb-flush-log-at-trx-commit=1\nlog-bin\nlog-bin-trust-function-creators=1\n"
      .. "sync-binlog=1\nbinlog-format=MIXED\n")
  end)
  before_each(function() url, name = server:fresh() end)

  --- With a variable of the server set for the moment.
  local function with(variable, value, fn)
    local before = server:sql("SELECT @@GLOBAL." .. variable)
    server:sql(("SET GLOBAL %s=%s"):format(variable, value))
    local ok, err = pcall(fn, (examine(url)))
    server:sql(("SET GLOBAL %s=%s"):format(variable, tonumber(before) and before or "'" .. before .. "'"))
    assert(ok, err)
  end

  it("finds nothing wrong where nothing is, a line per check", function()
    local exit, out, err = proc.nightshift({ "doctor" }, url)
    assert.same({ 0, "" }, { exit, err })
    local names = {}
    for line in out:gmatch "[^\n]+" do
      if db.odd then line = line:gsub("^warn  (settings) .*", "ok    %1 are odd") end
      local check, found = line:match "^ok    (%l+) +(%S.*)$"
      assert.is_truthy(check, line)
      assert.is_nil(found:find("→", 1, true))
      names[#names + 1] = check
    end
    assert.same({ "server", "connection", "clock", "isolation", "settings", "durability", "binlog", "writable",
      "schema", "tables", "write", "ids", "procedures", "grants", "ring", "locks", "plans", "timeouts", "connections",
      "statements", "tmpdir", "transactions", "handlers", "holders", "scripts", "lost", "drains" }, names)
  end)

  it("exits 69 when the server is away, and 1 when it does not let us in", function()
    local found, exit = examine "mysql://u:hunter2@127.0.0.1:1/x"
    assert.equal(69, exit)
    expect(found.server, "fail", "127.0.0.1", "start the server")
    local json
    found, exit, json = examine((server:user(url, "ALL"):gsub("Pass%-word_1", "hunter2")))
    assert.equal(1, exit)
    expect(found.server, "fail", "access denied", "password")
    assert.is_nil(json:find("hunter2", 1, true))
    expect((examine(server:url "no_such_database")).server, "fail", "create the database")
  end)

  it("says what a crash would lose", function()
    with("innodb_flush_log_at_trx_commit", "0", function(found)
      expect(found.durability, "warn", "crash of the server loses", "innodb_flush_log_at_trx_commit=1")
    end)
    with("innodb_flush_log_at_trx_commit", "2", function(found)
      expect(found.durability, "warn", "crash of the machine loses")
    end)
    with("sync_binlog", "0", function(found) expect(found.durability, "warn", "replicas", "sync_binlog=1") end)
  end)

  it("sees what refuses writes", function()
    with("binlog_format", "STATEMENT", function(found) expect(found.binlog, "fail", "1665", "binlog_format=ROW") end)
    with("read_only", "1", function(found) expect(found.writable, "fail", "read-only") end)
  end)

  it("says of a read-only server that it is, and looks at the rest", function()
    local empty = server:empty()
    local maker = server:user(empty, "ALL") -- an administrator's procedures write all the same
    local made <close> = assert(core.open { url = maker, no_schema = true })
    assert(made:migrate())
    server:sql "SET GLOBAL read_only=1"
    local ok, found, exit = pcall(examine, maker)
    server:sql "SET GLOBAL read_only=0"
    assert(ok, found)
    assert.equal(1, exit)
    expect(found.writable, "fail", "read-only")
    expect(found.ring, "fail", "the server is read-only", "see writable")
    expect(found.procedures, "ok", "5 of 5")
    assert.is_truthy(found.holders)
  end)

  it("writes a row and says how long that took, or what it waited for", function()
    expect((examine(url)).write, "ok", "written and committed in ")
    local locker <close> = assert(nightshift.open(url))
    assert(locker:execute "FLUSH TABLES WITH READ LOCK")
    local doctor = proc.start { proc.program, "doctor", env = { NIGHTSHIFT_URL = url } }
    eventually(function()
      return server:sql([[SELECT COUNT(*) FROM information_schema.processlist
        WHERE time_ms > 1500 AND info LIKE '%INSERT INTO nightshift_running%' AND id <> CONNECTION_ID()]]) == "1"
    end)
    assert(locker:execute "UNLOCK TABLES")
    assert.equal(0, doctor:wait())
    local out = doctor:text()
    local ms = tonumber(out:match "warn  write +a row was written and committed in ([%d.]+) ms, and so is every claim")
    assert.is_true(ms and ms >= 1500, out)
    assert.is_truthy(out:find("'Waiting for backup lock'", 1, true), out)
    assert.equal("0", server:sql("SELECT COUNT(*) FROM nightshift_running", name))
  end)

  it("ends when no write comes through, and says what it can without", function()
    server:sql "SET GLOBAL rpl_semi_sync_master_timeout=600000; SET GLOBAL rpl_semi_sync_master_enabled=1"
    local doctor = proc.start { proc.program, "doctor", "--json", env = { NIGHTSHIFT_URL = url } }
    local ended, exit = pcall(doctor.wait, doctor, 20)
    server:sql "SET GLOBAL rpl_semi_sync_master_enabled=0"
    assert.is_true(ended)
    assert.equal(1, exit)
    local found = {}
    for _, check in ipairs(nightshift.decode((doctor:text())).checks) do found[check.name] = check end
    expect(found.write, "fail", "not written within 5.", "no replica has acknowledged it", "semi-sync")
    expect(found.ring, "warn", "no write comes through", "see write")
    expect(found.connections, "ok", "in use")
    expect(found.drains, "ok")
  end)

  it("tells a frozen server from one that is away or slow", function()
    server:freeze()
    local ok, found, exit = pcall(examine, url)
    server:thaw()
    assert(ok, found)
    assert.equal(69, exit)
    expect(found.server, "fail", "takes connections and does not answer", "frozen", "restart")
  end)

  it("tells a server that freezes while it looks from a slow one", function()
    local locker <close> = assert(nightshift.open(url))
    assert(locker:execute "FLUSH TABLES WITH READ LOCK")
    local doctor = proc.start { proc.program, "doctor", env = { NIGHTSHIFT_URL = url } }
    eventually(function()
      return server:sql([[SELECT COUNT(*) FROM information_schema.processlist
        WHERE info LIKE '%INSERT INTO nightshift_running%' AND id <> CONNECTION_ID()]]) == "1"
    end)
    server:freeze()
    local ended, exit = pcall(doctor.wait, doctor, 30)
    server:thaw()
    assert.is_true(ended)
    assert.equal(69, exit)
    local out = doctor:text()
    assert.is_truthy(out:find "fail  server +the server has not answered for 5 s.*frozen", out)
    assert.is_nil(out:find("does not write", 1, true))
  end)

  it("sees limits that are too tight", function()
    with("wait_timeout", "20", function(found) expect(found.timeouts, "warn", "wait_timeout=20") end)
    with("max_statement_time", "5", function(found) expect(found.timeouts, "warn", "max_statement_time") end)
    with("max_allowed_packet", "1048576", function(found) expect(found.timeouts, "warn", "max_allowed_packet=16M") end)
    with("max_connections", "10", function(found)
      assert.is_truthy(found.connections.found:find("of 10 in use", 1, true), found.connections.found)
    end)
  end)

  it("sees tables that are missing, older or newer", function()
    local empty = server:empty()
    local found = examine(empty)
    expect(found.schema, "fail", "no Nightshift tables", "nightshift init")
    expect(found.grants, "warn", "see schema")
    server:sql("UPDATE nightshift_meta SET value = '0' WHERE name = 'schema'", name)
    expect((examine(url)).schema, "fail", "older", "nightshift migrate")
    server:sql("UPDATE nightshift_meta SET value = '99' WHERE name = 'schema'", name)
    expect((examine(url)).schema, "fail", "newer", "upgrade this program")
  end)

  it("names what of the schema is not there", function()
    for _, gone in ipairs { "TABLE nightshift_slot", "TABLE nightshift_listener", "TABLE nightshift_expiry",
      "VIEW nightshift_jobs", "VIEW nightshift_history", "SEQUENCE nightshift_id" } do
      local kind, thing = gone:match "^(%u+) (%S+)$"
      local place, database = server:fresh()
      local worker, user = server:user(place, "")
      local _, text = proc.nightshift { "doctor", "--grants", "worker", "--user", user .. "@localhost" }
      server:sql(text, database)
      server:sql("DROP " .. gone, database)
      local found, exit = examine(place)
      assert.equal(1, exit)
      expect(found.tables, "fail", thing .. " is not there",
        kind == "VIEW" and "nightshift migrate" or "nightshift init --print")
      -- whoever may not look says nothing of what he cannot see
      found = examine(worker)
      local hidden = thing == "nightshift_listener" or kind == "VIEW"
      expect(found.tables, hidden and "ok" or "fail", hidden and "" or thing .. " is not there")
      assert.is_nil(found.tables.found:find("nightshift_attempt", 1, true))
    end
  end)

  it("sees a table of another engine", function()
    server:sql("ALTER TABLE nightshift_notice ENGINE=MyISAM", name)
    expect((examine(url)).tables, "fail", "nightshift_notice is MyISAM")
  end)

  it("sees a statement that reads a whole table", function()
    server:sql([[ALTER TABLE nightshift_ready DROP PRIMARY KEY;
      INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run)
      SELECT 1, 155, seq, seq, 1 FROM seq_1_to_3000; ANALYZE TABLE nightshift_ready]], name)
    expect((examine(url)).plans, "warn", "claim_fast reads all of nightshift_ready", "ANALYZE TABLE")
  end)

  it("tells each role what it is enough for", function()
    for role, ring in pairs { pusher = "ok", worker = "ok", dashboard = "warn" } do
      local reach, user = server:user(url, "")
      local _, text = proc.nightshift { "doctor", "--grants", role, "--user", user .. "@localhost" }
      server:sql(text, name)
      local found, exit = examine(reach)
      assert.equal(0, exit)
      expect(found.grants, "ok", "lacks ")
      assert.is_truthy(found.grants.found:find("enough for [^;]*" .. role), found.grants.found)
      expect(found.ring, ring)
    end
    local nobody = server:user(url, "INSERT")
    expect((examine(nobody)).schema, "fail", "SELECT command denied", "doctor --grants")
    local reader = server:user(url, "CREATE TEMPORARY TABLES")
    assert.is_truthy((examine(reader)).schema.level == "fail")
  end)

  it("is content with an account that may only call the procedures", function()
    local reach, user = server:user(url, "")
    local _, text = proc.nightshift { "doctor", "--grants", "caller", "--user", user .. "@localhost" }
    server:sql(text, name)
    local found, exit = examine(reach)
    assert.equal(0, exit)
    expect(found.schema, "ok", "may only call the procedures")
    expect(found.tables, "ok", "may only call the procedures")
    expect(found.grants, "ok", "enough for caller", "pusher lacks SELECT")
    expect(found.ring, "ok")
    expect(found.holders, "ok", "not looked at")
    -- one of the two procedures is not enough
    server:sql(("REVOKE EXECUTE ON PROCEDURE nightshift_push FROM %s@localhost"):format(user), name)
    found, exit = examine(reach)
    assert.equal(1, exit)
    expect(found.grants, "fail", "caller lacks EXECUTE on nightshift_push", "doctor --grants")
  end)

  it("tries whether a ring arrives: its definer gone, or too weak", function()
    local empty, database = server:empty()
    local maker, definer = server:user(empty, "ALL")
    local made = assert(core.open { url = maker, no_schema = true })
    assert(made:migrate())
    made:close()
    local worker = server:user(empty, "SELECT, INSERT, UPDATE, DELETE, EXECUTE")
    expect((examine(worker)).ring, "fail", "slept through", "GRANT CONNECTION ADMIN ON *.* TO '" .. definer)
    expect((examine(maker)).ring, "warn", "other users", "GRANT CONNECTION ADMIN")
    server:sql(("GRANT CONNECTION ADMIN ON *.* TO %s@localhost"):format(definer))
    expect((examine(worker)).ring, "ok", "ended a listener's sleep", definer .. "@localhost")
    expect((examine(maker)).ring, "ok")
    server:sql(("DROP USER %s@localhost"):format(definer))
    expect((examine(worker)).ring, "fail", definer .. "@localhost", "no such user")
    assert.equal("", server:asleep(database))
  end)

  it("sees that named locks are switched off", function()
    local handle <close> = assert(nightshift.open(url))
    assert(handle:queue("q"):push("a", 1))
    local _ <close> = assert(handle:queue("q"):claim())
    server:sql("INSERT INTO nightshift_meta (name, value) VALUES ('named_locks', 'off')", name)
    local found = examine(url)
    expect(found.locks, "warn", "switched off", "named_locks")
    expect(found.holders, "ok", "1 hold")
  end)

  it("names the dead that hold jobs", function()
    local handle <close> = assert(nightshift.open(url))
    assert(handle:queue("q"):push("a", 1))
    expect((examine(url)).holders, "ok")
    local program = fixture.file("hold.lua", [[
      local h = assert(require "nightshift".open(arg[1]))
      local job = assert(h:queue "q":claim())
      print "holds"
      io.stdout:flush()
      io.read()
      require "nightshift".clock(h, job)
    ]])
    local p = proc.start { "sh", "-c", "sleep 100 | exec " .. proc.lua .. " " .. program .. " '" .. url .. "'" }
    p:wait_line "holds"
    expect((examine(url)).holders, "ok", "1 hold")
    p:forget()
    -- the server hears of its end a moment later
    expect(eventually(function()
      local found = examine(url).holders
      return found.level == "warn" and found
    end), "warn", "handle", "holds 1 batches", "nightshift rescue")
  end)

  it("names old transactions, but not what they run", function()
    local handle <close> = assert(core.open { url = url })
    local other <close> = assert(nightshift.open(url))
    -- the server keeps an answer until nobody has asked for 0.1 s
    local function open_ones()
      nst.sleep(0.2)
      return assert(handle:execute("@doctor_transactions", 0))
    end
    other:transaction(function(tx)
      assert(tx:execute("INSERT INTO nightshift_queue (name, created) VALUES ('secret', 1)"))
      local rows = open_ones()
      assert.equal(1, #rows)
      assert.is_true(rows[1].age >= 0 and rows[1].age < 3600)
      for _, value in pairs(rows[1]) do assert.is_nil(tostring(value):find "secret") end
    end)
    assert.same({}, open_ones())
    expect((examine((server:user(url, "ALL")))).transactions, "ok", "PROCESS")
  end)

  it("asks for --grants when a user is named, and for a role it knows", function()
    assert.equal(2, (proc.nightshift({ "doctor", "--user", "x" }, url)))
    assert.equal(2, (proc.nightshift({ "doctor", "--grants", "king" }, url)))
  end)
end)

-- Doctor's ring came while its listener still put its name down, in a procedure that
-- runs by the rights of whoever made it: the ring ended that call, and doctor said that
-- rings arrive, by rights that cannot end the sleep of anybody else.
it("a listener that is rung before it sleeps does not count for doctor", function()
  local server = db.server()
  local empty = server:empty()
  local maker = server:user(empty, "ALL")
  local made <close> = assert(core.open { url = maker, no_schema = true })
  assert(made:migrate())
  local row = assert(made:execute "SHOW CREATE PROCEDURE nightshift_listen")[1]
  local slow, n = row["Create Procedure"]:gsub("^CREATE (.*)END%s*$",
    "CREATE OR REPLACE %1SELECT SUM(seq) INTO @n FROM seq_1_to_300000 WHERE seq %% 7 = 1; END", 1)
  assert.equal(1, n)
  assert(made:execute(slow))
  local worker = server:user(empty, "SELECT, INSERT, UPDATE, DELETE, EXECUTE")
  local _, json = proc.nightshift({ "doctor", "--json" }, worker)
  local found = {}
  for _, check in ipairs(nightshift.decode(json).checks) do found[check.name] = check end
  assert.equal("fail", found.ring.level, found.ring.found)
  assert.is_truthy(found.ring.found:find("slept through", 1, true), found.ring.found)
end)
