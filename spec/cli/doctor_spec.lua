-- `nightshift doctor`: each finding on a real server that is made ill, and that the line is well
-- again after its fix. Findings of hosts, schedules, scripts and lost jobs stand with those.

local core = require "nightshift.core"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

local EXITS = { ok = 0, note = 0, warn = 4, fail = 1 }
local WORSE = { ok = 1, note = 2, warn = 3, fail = 4 }

describe("nightshift doctor", function()
  --- Runs it. Gives its findings by name, the exit code, and the text.
  local function examine(url, more)
    local exit, json, err = proc.nightshift({ "doctor", "--json" }, url, more)
    assert.equal("", err)
    local report = assert(nightshift.decode(json))
    local found, worst = {}, "ok"
    for _, check in ipairs(report.findings) do
      found[check.name] = check
      if WORSE[check.status] > WORSE[worst] then worst = check.status end
      assert.equal(check.status ~= "ok", check.fix ~= nil, check.name)
    end
    assert.equal(worst, report.worst)
    if exit ~= 69 then assert.equal(EXITS[worst], exit, json) end
    return found, exit, json
  end

  local function expect(check, status, ...)
    assert.equal(status, check.status, check.name .. ": " .. check.says)
    local text = check.says .. " → " .. (check.fix or "")
    for _, part in ipairs { ... } do assert.is_truthy(text:find(part, 1, true), text) end
  end

  local server, url, name, port

  setup(function()
    port = proc.free_port()
    server = db.server(([[
innodb-flush-log-at-trx-commit=1
log-bin
log-bin-trust-function-creators=1
sync-binlog=1
binlog-format=MIXED
binlog-expire-logs-seconds=86400
skip-networking=0
bind-address=127.0.0.1
port=%d
]]):format(port))
    server.reuses = true
  end)
  before_each(function() url, name = server:fresh() end)

  --- Sets variables of the server for the moment, and sees what is found. `wanted`: {name of a
  -- check, status, text…}.
  local function while_set(variables, ...)
    local before = {}
    for variable, value in pairs(variables) do
      before[variable] = server:sql("SELECT @@GLOBAL." .. variable)
      server:sql(("SET GLOBAL %s=%s"):format(variable, value))
    end
    local ok, found = pcall(examine, url)
    for variable, value in pairs(before) do
      server:sql(("SET GLOBAL %s=%s"):format(variable, tonumber(value) and value or "'" .. value .. "'"))
    end
    assert(ok, found)
    for _, wanted in ipairs { ... } do expect(found[wanted[1]], table.unpack(wanted, 2)) end
  end

  --- Sees that these checks find nothing.
  local function is_well(...)
    local well = examine(url)
    for _, name_of_check in ipairs { ... } do expect(well[name_of_check], "ok") end
  end

  it("finds nothing wrong where nothing is, a line per check", function()
    local exit, out, err = proc.nightshift({ "doctor" }, url)
    assert.same({ db.odd and 4 or 0, "" }, { exit, err }, out)
    local names = {}
    for line in out:gmatch "[^\n]+" do
      if db.odd then line = line:gsub("^warn  (settings) .*", "ok    %1 are odd") end
      local check, says = line:match "^ok    ([%l_]+) +(%S.*)$"
      assert.is_truthy(check, line)
      assert.is_nil(says:find("→", 1, true))
      names[#names + 1] = check
    end
    assert.same({ "server", "versions", "connection", "socket", "clock", "isolation", "sql_mode", "settings",
      "durability", "binlog", "writable", "schema", "tables", "drift", "write", "ids", "procedures", "grants", "ring",
      "locks", "plans", "timeouts", "connections", "statements", "limits", "files", "tmpdir", "disk", "redo",
      "replication", "transactions", "waits", "deadlocks", "handlers", "paused", "holders", "scripts", "lost",
      "adopted", "schedules" }, names)
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

  it("says what a crash would lose, and which settings are too tight", function()
    while_set({ innodb_flush_log_at_trx_commit = "0", wait_timeout = "20", innodb_log_file_size = "16777216" },
      { "durability", "warn", "crash of the server loses", "SET GLOBAL innodb_flush_log_at_trx_commit=1" },
      { "timeouts", "warn", "wait_timeout=20" }, { "redo", "note", "16 MiB", "SET GLOBAL innodb_log_file_size=" })
    while_set({ innodb_flush_log_at_trx_commit = "2", max_statement_time = "5", binlog_expire_logs_seconds = "0" },
      { "durability", "warn", "crash of the machine loses" }, { "timeouts", "warn", "max_statement_time" },
      { "binlog", "note", "none is ever deleted", "SET GLOBAL binlog_expire_logs_seconds=" })
    while_set({ sync_binlog = "0", max_allowed_packet = "1048576" },
      { "durability", "warn", "replicas", "SET GLOBAL sync_binlog=1" },
      { "timeouts", "warn", "max_allowed_packet=16M" })
    is_well("durability", "timeouts", "redo", "binlog")
  end)

  it("sees what refuses writes", function()
    while_set({ binlog_format = "STATEMENT" }, { "binlog", "fail", "1665", "binlog_format=ROW" })
    while_set({ read_only = "1" }, { "writable", "fail", "read-only", "SET GLOBAL read_only=0" })
    is_well("binlog", "writable")
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
    expect(found.procedures, "ok", "7 of 7")
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
    assert.equal(4, doctor:wait())
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
    for _, check in ipairs(nightshift.decode((doctor:text())).findings) do found[check.name] = check end
    expect(found.write, "fail", "not written within 5.", "no replica has acknowledged it", "semi-sync")
    expect(found.ring, "note", "no write comes through", "see write")
    expect(found.connections, "ok", "in use")
    expect(found.adopted, "ok")
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
    local ended, exit = pcall(doctor.wait, doctor, 90)
    server:thaw()
    assert.is_true(ended)
    assert.equal(69, exit)
    local out = doctor:text()
    assert.is_truthy(out:find "fail  server +the server has not answered for 5 s.*frozen", out)
    assert.is_nil(out:find("does not write", 1, true))
  end)

  it("sees tables that are missing, older or newer", function()
    local empty = server:empty()
    local found = examine(empty)
    expect(found.schema, "fail", "no Nightshift tables", "nightshift init")
    expect(found.grants, "note", "see schema")
    server:sql("UPDATE nightshift_meta SET value = '0' WHERE name = 'schema'", name)
    expect((examine(url)).schema, "fail", "older", "nightshift migrate")
    server:sql("UPDATE nightshift_meta SET value = '99' WHERE name = 'schema'", name)
    expect((examine(url)).schema, "fail", "newer", "upgrade this program")
  end)

  it("names what of the schema is not there", function()
    local reach, user = server:user(url, "")
    local _, text = proc.command_line { "doctor", "--grants", "worker", "--user", user .. "@localhost" }
    -- an account that may not look says nothing of what it cannot see: views, and a table
    for _, case in ipairs { { "ok", "nightshift migrate", "VIEW nightshift_jobs", "VIEW nightshift_history" },
      { "ok", "nightshift init --print", "TABLE nightshift_listener" }, { "fail", "nightshift init --print",
      "TABLE nightshift_slot", "TABLE nightshift_expiry", "SEQUENCE nightshift_id" } } do
      local place, database = server:fresh()
      server:sql(text, database)
      for i = 3, #case do server:sql("DROP " .. case[i], database) end
      local worker = reach:gsub("localhost/[^?]*", "localhost/" .. database)
      local found, exit = examine(place)
      local hidden = examine(worker)
      assert.equal(1, exit)
      for i = 3, #case do
        local says = case[i]:match "%S+$" .. " is not there"
        expect(found.tables, "fail", says, case[2])
        expect(hidden.tables, case[1], case[1] == "fail" and says or "")
      end
      assert.is_nil(hidden.tables.says:find("nightshift_attempt", 1, true))
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

  --- An account with the rights of a role, and its name.
  local function account_of(role)
    local reach, user = server:user(url, "")
    local _, text = proc.command_line { "doctor", "--grants", role, "--user", user .. "@localhost" }
    server:sql(text, name)
    return reach, user
  end

  local by_role = {} -- what accounts have found, and the exit code

  --- What an account with the rights of a role finds, looked at once for all tests; the exit code.
  local function found_by(role)
    by_role[role] = by_role[role] or { examine((account_of(role))) }
    return by_role[role][1], by_role[role][2]
  end

  it("tells each role what it is enough for", function()
    for role, ring in pairs { pusher = "ok", worker = "ok", dashboard = "note" } do
      local found, exit = found_by(role)
      assert.equal(0, exit)
      expect(found.grants, "ok", "lacks ")
      assert.is_truthy(found.grants.says:find("enough for [^;]*" .. role), found.grants.says)
      expect(found.ring, ring)
    end
    local nobody = server:user(url, "INSERT")
    expect((examine(nobody)).schema, "fail", "SELECT command denied", "doctor --grants")
    local reader = server:user(url, "CREATE TEMPORARY TABLES")
    expect((examine(reader)).schema, "fail")
  end)

  it("is content with an account that may only call the procedures", function()
    local reach, user = account_of "caller"
    local found, exit = examine(reach)
    by_role.caller = { found, exit }
    assert.equal(0, exit)
    expect(found.schema, "note", "may only call the procedures")
    expect(found.tables, "note", "may only call the procedures")
    expect(found.grants, "ok", "enough for caller", "pusher lacks SELECT")
    expect(found.ring, "ok")
    expect(found.holders, "note", "not looked at")
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
      return found.status == "warn" and found
    end), "warn", "handle", "holds 1 batches", "nightshift rescue")
  end)

  --- Runs one check on a handle, as if the server's clock were so many seconds ahead.
  local function examine_later(check, seconds)
    local handle <close> = assert(nightshift.open(url))
    assert(handle:execute(("SET timestamp = UNIX_TIMESTAMP() + %d"):format(seconds)))
    local seen = { handle = handle._handle, status = {}, server = { account = "root@localhost" } }
    for line in server:sql("SHOW GLOBAL STATUS LIKE 'Innodb%'"):gmatch "[^\n]+" do
      local key, value = line:match "^(%S+)\t(.*)"
      seen.status[key:lower()] = value
    end
    nst.sleep(0.2) -- the server keeps an answer about transactions until it was not asked for 0.1 s
    local status, says, fix = require "nightshift.doctor.jobs"[check](seen)
    return { name = check, status = status, says = says, fix = fix }
  end

  it("names the oldest transaction, and who may not see it", function()
    local other <close> = assert(nightshift.open(url))
    local done = other:transaction(function(tx)
      assert(tx:execute("INSERT INTO nightshift_queue (name, created) VALUES ('secret', 1)"))
      expect(examine_later("transactions", 0), "ok", "none is older than 60 s", "changes wait for purge")
      local found = examine_later("transactions", 3600)
      expect(found, "warn", "@localhost has had a transaction open for 36", "idle_transaction_timeout")
      assert.is_nil(found.says:find("secret", 1, true))
      server:sql(found.fix:match "KILL %d+")
      expect(eventually(function()
        found = examine_later("transactions", 3600)
        return found.status == "ok" and found
      end), "ok")
      return true
    end)
    assert.is_nil(done)
    local weak, user = server:user(url, "ALL")
    local found = examine(weak)
    for _, check in ipairs { "transactions", "waits" } do
      expect(found[check], "note", "lacks PROCESS", ("GRANT PROCESS ON *.* TO '%s'@'localhost'"):format(user))
    end
    server:sql(found.waits.fix)
    expect((examine(weak)).transactions, "ok")
  end)

  -- A program that locks rows of nightshift_queue in one transaction: those of a list of names.
  local LOCKS = [[
    local h = assert(require "nightshift".open(%q))
    assert(h:execute "SET SESSION innodb_lock_wait_timeout = 50, lock_wait_timeout = 50")
    print(h:transaction(function(tx)
      for _, name in ipairs(arg) do
        local done, message = tx:execute("UPDATE nightshift_queue SET created = created + 1 WHERE name = '" ..
          name .. "'")
        if not done then return nil, message end
        print("has " .. name)
        io.stdout:flush()
      end
      return true
    end))]]

  local function locks(...)
    return proc.start { proc.lua, fixture.file("locks.lua", LOCKS:format(url)), ... }
  end

  local function waiting(seconds)
    return server:sql(([[SELECT COUNT(*) FROM information_schema.innodb_trx
      WHERE trx_wait_started <= NOW() - INTERVAL %d SECOND]]):format(seconds)) == "1"
  end

  it("says who waits for a row, and who holds it", function()
    server:sql("INSERT INTO nightshift_queue (name, created) VALUES ('a', 1), ('b', 1)", name)
    local holder <close> = assert(nightshift.open(url))
    holder:transaction(function(tx)
      assert(tx:execute "UPDATE nightshift_queue SET created = 2 WHERE name = 'a'")
      local waiter = locks "a"
      eventually(function() return waiting(1) end)
      local found = examine(url)
      expect(found.waits, "warn", "UPDATE nightshift_queue SET created = created + ? WHERE name = …", "@localhost",
        "(Sleep)")
      server:sql(found.waits.fix:match "KILL %d+")
      waiter:wait_line "has a"
      assert.equal(0, waiter:wait())
      expect((examine(url)).waits, "ok", "no session waits")
      return true
    end)
  end)

  it("tells of the latest deadlock, and between which statements", function()
    expect((examine(url)).deadlocks, "ok", "none since")
    server:sql("INSERT INTO nightshift_queue (name, created) VALUES ('a', 1), ('b', 1)", name)
    local first <close> = assert(nightshift.open(url))
    first:transaction(function(tx)
      assert(tx:execute "UPDATE nightshift_queue SET created = 7 WHERE name = 'a'")
      local second = locks("b", "a")
      second:wait_line "has b"
      eventually(function() return waiting(0) end)
      local done, message = tx:execute "UPDATE nightshift_queue SET created = 7 WHERE name = 'b'"
      return done, message
    end)
    local words = "UPDATE nightshift_queue SET created = "
    expect((examine(url)).deadlocks, "note", "1 since the server's start, the last one", words .. "? WHERE name = …",
      words .. "created + ? WHERE name = …", " against ", "in one order")
    expect(examine_later("deadlocks", 7200), "ok", "none within the hour")
  end)

  it("compares connections, statements and files with what the server allows", function()
    local handles = {}
    for i = 1, 30 do
      handles[i] = assert(core.open { url = url })
      for k = 1, 8 do assert(handles[i]:execute("SELECT " .. k)) end -- it keeps as many open
    end
    while_set({ max_prepared_stmt_count = "280" }, { "statements", "warn", "of 280 prepared statements are open",
      "SET GLOBAL max_prepared_stmt_count=16382" })
    for i = 16, 30 do handles[i]:close() end
    local files = tonumber(server:sql "SELECT @@open_files_limit")
    local program <close> = assert(nightshift.open(url))
    assert(program:queue "q":push("a", 1))
    local _ <close> = assert(program:queue "q":claim())
    while_set({ max_connections = "20" }, { "connections", "warn", "of 20 in use", "here need 1",
      "SET GLOBAL max_connections=40" })
    for i = 1, 15 do handles[i]:close() end
    if files < 100000 then
      while_set({ max_connections = "100000" }, { "files", "warn", "connections are refused", "open_files_limit=" })
    end
    is_well("statements", "connections", "files")
  end)

  it("sees that this shell may have too few files for a host", function()
    local few = { proc.program, "doctor", "--json" }
    local exit, json = proc.run { "sh", "-c", 'ulimit -n 50; exec "$@"', "sh", few[1], few[2], few[3],
      env = { NIGHTSHIFT_URL = url } }
    assert.equal(4, exit)
    for _, check in ipairs(nightshift.decode(json).findings) do
      if check.name == "limits" then expect(check, "warn", "may have 50 files", "LimitNOFILE=") end
    end
    expect((examine(url)).limits, "ok")
  end)

  it("sees a disk that is full, where the server runs here", function()
    local folder = server.folder .. "/tmp"
    if not os.execute(("mount -t tmpfs -o size=64m none %s 2>/dev/null"):format(folder)) then
      pending "no tmpfs can be mounted here"
    end
    local ok, found = pcall(examine, url)
    os.execute("umount " .. folder)
    assert(ok, found)
    expect(found.disk, "fail", "tmpdir " .. folder .. " has 64 MiB of 64 MiB free", "nightshift prune")
    expect((examine(url)).disk, "ok", "datadir")
  end)

  it("prefers the socket of a server that runs here", function()
    server:sql(("CREATE OR REPLACE USER tcp@127.0.0.1; GRANT ALL ON `%s`.* TO tcp@127.0.0.1"):format(name))
    local found = examine(("mysql://tcp@127.0.0.1:%d/%s"):format(port, name))
    expect(found.socket, "note", "over TCP", "the server runs here and has a socket")
    local way = found.socket.fix:gsub("USER", "root")
    expect((examine(way)).socket, "ok", "by the socket " .. server.socket)
    found = examine(("mysql://root@localhost/%s?unix_socket=/tmp/%s"):format(name, ("x"):rep(110)))
    expect(found.server, "fail", "107 bytes")
  end)

  it("tells a far server, and a clock that is off", function()
    local p = proc.proxy.start(server)
    local handle <close> = assert(nightshift.open(p:url(url)))
    local function connection()
      local seen = { handle = handle._handle, status = {} }
      local status, says, fix = require "nightshift.doctor.server".connection(seen)
      return { name = "connection", status = status, says = says, fix = fix }
    end
    p:tell "delay 25"
    expect(connection(), "warn", "a round trip takes", "run hosts near the server")
    p:tell "delay 0"
    expect(connection(), "ok")
    local off = fixture.file("clock", ("i8"):pack(100))
    local ahead = { LD_PRELOAD = proc.build .. "/meddle.so", MEDDLE_CLOCK = off }
    expect((examine(url, { env = ahead })).clock, "warn", "this machine's clock is ", "ahead of the server's", "NTP")
    local h = host.start(url, "return { a = function() end }", nil, ahead)
    expect((examine(url)).clock, "warn", "(host ", "s ahead of the server's", "NTP")
    h:signal "TERM"
    assert.equal(0, h:wait())
    h = host.start(url, "return { a = function() end }")
    expect((examine(url)).clock, "ok")
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("tells of a replica that does not follow, and of one that does not acknowledge", function()
    server:sql "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=1, MASTER_USER='x'"
    expect((examine(url)).replication, "warn", "is a replica of 127.0.0.1, and does not follow it", "RESET REPLICA ALL")
    server:sql "STOP REPLICA; RESET REPLICA ALL"
    expect((examine(url)).replication, "ok", "0 replicas, asynchronous")
    server:sql "SET GLOBAL rpl_semi_sync_master_timeout=1; SET GLOBAL rpl_semi_sync_master_enabled=1"
    server:sql("INSERT INTO nightshift_queue (name, created) VALUES ('a', 1)", name)
    local ok, found = pcall(examine, url)
    server:sql "SET GLOBAL rpl_semi_sync_master_enabled=0"
    assert(ok, found)
    expect(found.replication, "warn", "stopped to wait", "SET GLOBAL rpl_semi_sync_master_enabled=0")
    expect((examine(url)).replication, "ok")
  end)

  it("sees tables, keys and procedures that have been changed, and gives the statements back", function()
    server:sql([[ALTER TABLE nightshift_on_dead MODIFY queue VARCHAR(10) NULL, DROP CONSTRAINT on_dead_name_plain,
        ADD COLUMN theirs INT NOT NULL;
      ALTER TABLE nightshift_tag DROP KEY tag; ALTER TABLE nightshift_past_holder DROP PRIMARY KEY;
      ALTER TABLE nightshift_schedule DROP COLUMN lacked_at]], name)
    local found = examine(url)
    expect(found.drift, "fail", "nightshift_on_dead has queue as varchar(10) NULL, not varchar(64) NULL",
      "has a column theirs that is not ours, and no row without it", "nightshift_tag lacks the key tag",
      "nightshift_past_holder lacks the key PRIMARY", "and 2 more")
    assert.equal(6, found.drift.value)
    server:sql(found.drift.fix, name)
    found = examine(url)
    expect(found.drift, "fail", "nightshift_on_dead lacks the check on_dead_name_plain",
      "nightshift_schedule lacks the column lacked_at")
    server:sql(found.drift.fix, name)
    expect((examine(url)).drift, "ok", "tables are as the schema makes them")
    server:sql("ALTER TABLE nightshift_tag ADD COLUMN note VARCHAR(10) NULL", name)
    expect((examine(url)).drift, "note", "nightshift_tag has a column note that is not ours", "DROP COLUMN note")
    local handle <close> = assert(core.open { url = url })
    local row = assert(handle:execute "SHOW CREATE PROCEDURE nightshift_ring")[1]
    assert(handle:execute "SET sql_mode = ''")
    local other = row["Create Procedure"]:gsub("^CREATE ", "CREATE OR REPLACE "):gsub("END%s*$", "DO 1; END")
    assert(handle:execute(other))
    found = examine(url)
    expect(found.sql_mode, "warn", "nightshift_ring", "nightshift migrate")
    expect(found.drift, "warn", "nightshift_ring have another text")
    assert.equal(0, (proc.nightshift({ "migrate" }, url)))
    found = examine(url)
    expect(found.sql_mode, "ok")
    expect(found.drift, "note", "nightshift_tag has a column note")
  end)

  it("names queues that are paused with jobs in them, and jobs that no host is there for", function()
    local handle <close> = assert(nightshift.open(url))
    expect((examine(url)).handlers, "ok", "no job is ready")
    assert(handle:queue "mail":push("a", 1))
    assert(handle:queue "it's":push("a", 1, { delay = 60 }))
    assert(handle:queue "it's":pause())
    local found = examine(url)
    expect(found.handlers, "note", "no host lives; 1 job ready", "nightshift work")
    expect(found.paused, "note", "queue 'it's' (no job ready)")
    assert(handle:queue "mail":pause())
    assert(handle:pause_name "a b")
    found = examine(url)
    expect(found.paused, "warn", "queue 'mail' (1 job ready)", "jobs named 'a b'")
    assert.equal(1, found.paused.value)
    assert.equal(0, (proc.run { "sh", "-c", '"$@" ' .. found.paused.fix:match "^nightshift (.*)", "sh", proc.program,
      env = { NIGHTSHIFT_URL = url } }))
    expect((examine(url)).paused, "ok", "no queue is paused")
  end)

  it("names hosts and programs of another version", function()
    local handle <close> = assert(nightshift.open(url))
    assert(handle:queue "q":push("a", 1))
    local _ <close> = assert(handle:queue "q":claim())
    expect((examine(url)).versions, "ok", "nightshift " .. nightshift._VERSION, "client library")
    server:sql("UPDATE nightshift_holder SET version = '0.0.1'", name)
    expect((examine(url)).versions, "warn", "is 0.0.1", "install one version")
    server:sql(("UPDATE nightshift_holder SET version = '%s'"):format(nightshift._VERSION), name)
    expect((examine(url)).versions, "ok")
  end)

  it("does not wait long where tables are locked, and says what locks them", function()
    local locker <close> = assert(nightshift.open(url))
    assert(locker:execute "LOCK TABLES nightshift_meta WRITE, nightshift_running WRITE, nightshift_job WRITE")
    local before = nst.clock()
    local found = examine(url)
    local took = nst.clock() - before
    assert(locker:execute "UNLOCK TABLES")
    expect(found.write, "fail", "LOCK TABLES or an ALTER TABLE keeps writes back", "SHOW PROCESSLIST")
    expect(found.schema, "note", "not looked at", "see write")
    assert.is_true(took < proc.limit(12), took)
    expect((examine(url)).write, "ok")
  end)

  it("says what it cannot see as a note, and fails for nothing of it", function()
    for _, role in ipairs { "caller", "pusher", "worker", "dashboard" } do
      local found, exit = found_by(role)
      assert.equal(0, exit, role)
      expect(found.deadlocks, found.deadlocks.value == 0 and "ok" or "note")
      expect(found.binlog, "note", "GRANT BINLOG MONITOR ON *.*")
      expect(found.replication, "note", "GRANT REPLICA MONITOR ON *.*")
      expect(found.disk, "ok")
    end
  end)

  it("asks for --grants when a user is named, and for a role it knows", function()
    assert.equal(2, (proc.nightshift({ "doctor", "--user", "x" }, url)))
    assert.equal(2, (proc.nightshift({ "doctor", "--grants", "king" }, url)))
  end)
end)

-- Doctor's ring came while its listener still put its name down, in a procedure that runs by
-- the rights of its definer. The ring ended that call, and doctor said that rings arrive, by
-- rights that cannot end the sleep of other accounts.
it("a listener that is rung before it sleeps does not count for doctor", function()
  local server = db.spare()
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
  for _, check in ipairs(nightshift.decode(json).findings) do found[check.name] = check end
  assert.equal("fail", found.ring.status, found.ring.says)
  assert.is_truthy(found.ring.says:find("slept through", 1, true), found.ring.says)
end)
