-- The private server: made when no URL is given, shared by all processes of a folder, gone with
-- the last of them, however they end. Replicas, clusters and copies of a server.
-- A list of servers: connecting takes the one that can write, and a promotion is followed. The
-- commands are those of doc/failover.md, which run here as they stand there, but for addresses.
-- NIGHTSHIFT_ROUNDS says how many promotions there are.

local core = require "nightshift.core"
local crew = require "spec.support.crew"
local db = require "spec.support.db"
local host = require "spec.support.host"
local http = require "socket.http"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proc".proxy

local PROGRAM = [[
local nst = require "nst"
local db, message, code = require "nightshift".open()
if not db then
  print(("failed %s: %s"):format(code, message))
  os.exit(1)
end
print(("open %d %s"):format(nst.ids(), db:execute("SELECT @@datadir AS at")[1].at))
io.stdout:flush()
nst.sleep(tonumber(arg[1]))
]]

local STARTED = "nightshift: started a private MariaDB in ./.nightshift (for development)\n"

local NOBODY = { "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups" }

-- With the real mariadb-install-db, and no copy of what it has made: `path` of command.
local REAL = db.path

-- The program comes by stdin, so that any user can read it.
local function command(seconds, dir, prefix, path)
  local list = { cwd = dir, env = { NIGHTSHIFT_URL = false, PATH = path }, stdin = PROGRAM, timeout = 60 }
  table.move(prefix or {}, 1, #(prefix or {}), 1, list)
  table.move({ proc.lua, "-", tostring(seconds) }, 1, 3, #list + 1, list)
  return list
end

-- A process that opens the private server of 'dir' and stays.
local function user(dir, prefix, path)
  local p = proc.start(command(100, dir, prefix, path))
  p:wait_line("^open", 60)
  return p
end

-- One that opens it and ends.
local function visit(dir, prefix, path) return proc.run(command(0, dir, prefix, path)) end

-- Runs a program of its own in 'dir'.
local function script(dir, text)
  return proc.start { proc.lua, "-", stdin = text, cwd = dir, env = { NIGHTSHIFT_URL = false } }
end

local function exists(path)
  local file <close> = io.open(path)
  return file ~= nil
end

local function read(path)
  local file <close> = io.open(path)
  return file and file:read "a"
end

local function write(path, text)
  local file <close> = assert(io.open(path, "w"))
  file:write(text)
end

-- A process that is there and no zombie.
local function lives(pid)
  local stat = pid and read("/proc/" .. pid .. "/stat")
  return stat and not stat:find "%) Z "
end

local function server_pid(dir) return tonumber(read(dir .. "/.nightshift/server.pid") or "") end

local function guardian(dir)
  for pid in io.popen "ls /proc":read "a":gmatch "%d+" do
    if read("/proc/" .. pid .. "/comm") == "nightshift-db\n" then
      local link = io.popen("readlink /proc/" .. pid .. "/cwd 2>/dev/null"):read "l"
      if link == dir .. "/.nightshift" then return tonumber(pid) end
    end
  end
end

--- Waits until it has ended. All of /proc is looked through only when one that was seen is gone.
local function await_no_guardian(dir)
  local pid
  eventually(function()
    if lives(pid) then return false end
    pid = guardian(dir)
    return not pid
  end)
end

local function gone(dir, pid)
  return not lives(pid) and not exists(dir .. "/.nightshift/server.pid") and not guardian(dir)
end

describe("the private server", function()
  local dir

  before_each(function() dir = fixture.dir() end)
  after_each(function()
    await_no_guardian(dir) -- its users are dead by now
  end)

  it("is made in .nightshift, says so once, and is there for the next at once", function()
    local first = user(dir, nil, REAL)
    local _, err = first:text()
    assert.equal(STARTED, err)
    assert.equal("*\n", read(dir .. "/.nightshift/.gitignore"))
    assert.is_truthy(read(dir .. "/.nightshift/version"):find "MariaDB")
    local status, out
    status, out, err = visit(dir)
    assert.equal(0, status)
    assert.equal("", err)
    assert.is_truthy(out:find(dir .. "/.nightshift/data/", 1, true), out)
  end)

  it("lets nobody else in, opens no port, and is durable", function()
    local p = user(dir)
    assert.equal("700", io.popen("stat -c %a " .. dir .. "/.nightshift"):read "l")
    local settings = read(dir .. "/.nightshift/my.cnf")
    for _, line in ipairs { "skip-networking", "innodb-flush-log-at-trx-commit=1", "max-connections=1000" } do
      assert.is_truthy(settings:find(line, 1, true))
    end
    assert.equal(0, (proc.run { "mariadb", "--defaults-file=" .. dir .. "/.nightshift/my.cnf", "-e",
      "SELECT * FROM nightshift_jobs" }))
    p:forget()
  end)

  it("ends when its last user leaves", function()
    local first, second = user(dir), user(dir)
    local pid = server_pid(dir)
    first:signal "TERM"
    first:wait()
    nst.sleep(0.2)
    assert.is_truthy(lives(pid))
    second:signal "TERM"
    eventually(function() return gone(dir, pid) end)
    assert.is_false(exists(dir .. "/.nightshift/s.sock"))
  end)

  it("ends when its last user is killed", function()
    local p = user(dir)
    local pid = server_pid(dir)
    p:signal "KILL"
    eventually(function() return gone(dir, pid) end)
  end)

  it("is not kept by programs that a user started", function()
    local p = script(dir, [[
      local db = assert(require "nightshift".open())
      os.execute "sleep 100 & echo open $!"
    ]])
    local sleeper = tonumber(p:wait_line("^open (%d+)", 60))
    assert.equal(0, p:wait())
    await_no_guardian(dir)
    assert.is_truthy(lives(sleeper))
  end)

  it("is kept by a forked child", function()
    local p = script(dir, [[
      local nst = require "nst"
      local db = assert(require "nightshift".open())
      print("open", nst.fork(function() nst.sleep(100) end))
      io.stdout:flush()
      nst.sleep(100)
    ]])
    p:wait_line("^open", 60)
    assert.is_truthy(guardian(dir))
  end)

  it("is started once by many at the same time", function()
    local users = {}
    for i = 1, 5 do users[i] = proc.start(command(100, dir)) end
    local lines = 0
    for _, p in ipairs(users) do
      p:wait_line("^open", 60)
      local _, err = p:text()
      if err == STARTED then lines = lines + 1 else assert.equal("", err) end
    end
    assert.equal(1, lines)
  end)

  it("survives a storm of short visits", function()
    visit(dir)
    local visitors = {}
    for _ = 1, 4 do
      for i = 1, 4 do visitors[i] = proc.start(command(0, dir)) end
      for _, p in ipairs(visitors) do assert.equal(0, p:wait(60), p:transcript()) end
    end
  end)

  it("is started again when it dies while it is used", function()
    local p = user(dir)
    local pid = server_pid(dir)
    assert(nst.kill(pid, "KILL"))
    eventually(function() return server_pid(dir) ~= pid and lives(server_pid(dir)) end)
    local status, out, err = visit(dir)
    assert.same({ 0, "" }, { status, err }, out)
    p:forget()
  end)

  it("is started again by the next user when its guardian was killed too", function()
    local p = user(dir)
    local pid = server_pid(dir)
    assert(nst.kill(guardian(dir), "KILL"))
    eventually(function() return not lives(pid) end)
    local status, _, err = visit(dir)
    assert.same({ 0, STARTED }, { status, err })
    p:forget()
  end)

  it("is started again by a handle that has it open, wherever its process has gone", function()
    assert(os.execute("mkfifo " .. dir .. "/go"))
    local program = [[
      local nst = require "nst"
      local db = assert(require "nightshift".open())
      local q = db:queue "mail"
      assert(q:push("a", 1))
      nst.chdir "/"
      print "open"
      io.stdout:flush()
      io.open("GO"):read "a"
      assert(q:push("b", 2))
      print(#db:jobs{ queue = "mail" } .. " jobs")
    ]]
    local p = script(dir, (program:gsub("GO", dir .. "/go")))
    p:wait_line("^open", 60)
    local pid = server_pid(dir)
    assert(nst.kill(guardian(dir), "KILL"))
    eventually(function() return not lives(pid) end)
    write(dir .. "/go", "")
    p:wait_line("^2 jobs", 60)
    assert.equal(0, p:wait())
  end)

  it("keeps what was written when everything is killed", function()
    local p = script(dir, [[
      local nst = require "nst"
      local db = assert(require "nightshift".open())
      print("pushed " .. assert(db:queue "mail":push("a", 1)))
      io.stdout:flush()
      nst.sleep(100)
    ]])
    local id = p:wait_line("^pushed (%d+)", 60)
    nst.kill(guardian(dir), "KILL")
    nst.kill(server_pid(dir), "KILL")
    p:signal "KILL"
    p:wait()
    p = script(dir, ([[
      local db = assert(require "nightshift".open())
      print("found", assert(db:job(%s)).state)
    ]]):format(id))
    assert.equal("ready", p:wait_line("^found\t(%a+)", 60))
  end)

  it("is made anew when its making was killed", function()
    for _, delay in ipairs { 0.05, 0.2, 0.4 } do -- each in what the one before has left
      local p = proc.start(command(100, dir, nil, REAL))
      nst.sleep(delay)
      local pid = guardian(dir)
      if pid then nst.kill(pid, "KILL") end
      p:signal "KILL"
      p:wait()
    end
    local status, out = visit(dir, nil, REAL)
    assert.equal(0, status, out)
  end)

  it("works wherever the folder is", function()
    local long = ("a long name "):rep(12):sub(1, -2)
    for _, name in ipairs { "two words quo'te\"s", "a#b%41$HOME caf\u{e9}\nline", long .. "/" .. long } do
      local here = dir .. "/" .. name
      assert.equal(0, (proc.run { "mkdir", "-p", here }))
      local status, out, err = visit(here, nil, REAL)
      assert.equal(0, status, out .. err)
      await_no_guardian(here)
    end
    assert.equal("", io.popen("find /tmp -maxdepth 2 -name home -lname '" .. dir .. "*'"):read "a")
  end)

  it("refuses a path that MariaDB cannot use", function()
    local here = dir .. ("/" .. ("x"):rep(200)):rep(3)
    assert.equal(0, (proc.run { "mkdir", "-p", here }))
    local status, out = visit(here)
    assert.equal(1, status)
    assert.is_truthy(out:find("failed INVALID: private server: the path of ./.nightshift is", 1, true), out)
  end)

  it("says why it cannot start", function()
    visit(dir)
    await_no_guardian(dir)
    write(dir .. "/.nightshift/data/ibdata1", ("nonsense"):rep(100000))
    local status, out = visit(dir)
    assert.equal(1, status)
    assert.is_truthy(out:find("failed GONE: private server: ./.nightshift did not start (mariadbd: exit status 1)", 1,
      true), out)
    assert.is_truthy(out:find("InnoDB", 1, true), out)
  end)

  it("refuses the folder of another version of MariaDB, untouched", function()
    visit(dir)
    await_no_guardian(dir)
    write(dir .. "/.nightshift/version", "mariadbd  Ver 12.3.1-MariaDB for Linux\n")
    local status, out = visit(dir)
    assert.equal(1, status)
    assert.is_truthy(out:find("failed SERVER: private server: ./.nightshift was made by MariaDB 12.3", 1, true), out)
  end)

  describe("of an ordinary user", function()
    local closed = proc.closed_to_nobody()
    if closed then return pending(closed) end

    before_each(function() os.execute("chown 65534 " .. dir) end)

    it("needs no rights", function()
      user(dir, NOBODY, REAL)
      assert.equal("65534", io.popen("stat -c %u /proc/" .. server_pid(dir)):read "l")
    end)

    it("is closed to others, root too", function()
      assert(os.execute("install -d -o 65534 -m 700 " .. dir .. "/.nightshift"))
      local status, out = visit(dir)
      assert.equal(1, status)
      assert.is_truthy(out:find("failed DENIED: private server: ./.nightshift belongs to user 65534", 1, true), out)
    end)

    it("says DENIED where it may not write", function()
      os.execute("chown 0 " .. dir .. " && chmod 755 " .. dir)
      local status, out = visit(dir, NOBODY)
      assert.equal(1, status)
      assert.is_truthy(out:find("failed DENIED: private server: cannot create ./.nightshift: Permission", 1, true), out)
    end)
  end)
end)

-- The list of listeners is in memory, and was replicated row by row. A replica that was
-- restarted, or seeded by a copy of files, had none of its rows. It stopped for good at the
-- first one that left (error 1032); nothing of any database of that server came after it.
describe("replication:", function()
  local HANDLERS = [[return { a = function(job) return job.payload end }]]
  local BINLOG = "log-bin=bin\nserver-id=%d\nbinlog-format=%s\nlog-slave-updates\ngtid-strict-mode=1\n"
    .. "relay-log=relay\n"

  local function status(server)
    local handle <close> = assert(core.open { url = server:url "mysql", no_schema = true })
    local row = assert(handle:execute "SHOW SLAVE STATUS")[1]
    return { row.Slave_SQL_Running, row.Last_SQL_Error, row.Last_IO_Error }
  end

  local function done(handle) return assert(handle:execute "SELECT COUNT(*) AS n FROM nightshift_finished")[1].n end

  -- Replicas connect by TCP alone, so the way leads through a proxy's port.
  local function follow(replica, way, gtid)
    replica:sql(("SET GLOBAL gtid_slave_pos='%s'; CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=%d, "
      .. "MASTER_USER='repl', MASTER_PASSWORD='repl', MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1; START SLAVE")
      :format(gtid, way.port))
  end

  local function caught_up(from, to)
    local gtid = from:sql "SELECT @@gtid_binlog_pos"
    local waited = to:sql(("SELECT MASTER_GTID_WAIT('%s', 20)"):format(gtid))
    assert.same({ "Yes", "", "" }, status(to))
    assert.equal("0", waited)
  end

  -- Both have the same rows of all our tables but the one in memory.
  local function assert_same(from, to, name)
    caught_up(from, to)
    local tables = from:sql(("SELECT GROUP_CONCAT(table_name) FROM information_schema.tables WHERE table_schema = '%s' "
      .. "AND table_type = 'BASE TABLE' AND engine = 'InnoDB' AND table_name NOT LIKE '%%_holder'"):format(name))
    local sums = "CHECKSUM TABLE " .. tables
    assert.equal(from:sql(sums, name), to:sql(sums, name))
  end

  for _, format in ipairs { "ROW", "MIXED" } do
    describe("a replica, binlog_format=" .. format .. ",", function()
      local from, to, way, url, name, h

      setup(function() -- for both: the second begins with other files
        from, to = db.server(BINLOG:format(1, format)), db.server(BINLOG:format(2, format))
        from:sql "CREATE USER repl@'%' IDENTIFIED BY 'repl'; GRANT REPLICATION SLAVE ON *.* TO repl@'%'"
        way = proxy.start(from, "tcp")
      end)

      local function work()
        h = host.start(url, HANDLERS)
        local handle = assert(nightshift.open(url))
        for i = 1, 5 do
          local id = assert(handle:queue("q"):push("a", i))
          eventually(function() return handle:job(id).state == "done" end)
          nst.sleep(0.05) -- so that the host falls asleep, and is rung
        end
        return handle
      end

      it("goes on after its restart, with hosts asleep at that time", function()
        follow(to, way, from:sql "SELECT @@gtid_binlog_pos")
        url, name = from:fresh()
        local handle <close> = work()
        caught_up(from, to)
        to:stop()
        to:start()
        for i = 1, 3 do assert(handle:queue("q"):push("a", i)) end
        eventually(function() return done(handle) == 8 end)
        h:signal "TERM"
        assert.equal(0, h:wait())
        assert_same(from, to, name)
      end)

      it("goes on from a copy of files, taken while hosts sleep", function()
        url, name = from:fresh()
        local handle <close> = work()
        local gtid = from:sql "SELECT @@gtid_binlog_pos"
        to:stop()
        from:sql "SET GLOBAL innodb_fast_shutdown=1"
        h:signal "STOP"
        from:stop()
        assert(os.execute(("rm -rf '%s/data' && cp -r '%s/data' '%s/data' && rm -f '%s'/data/bin.* '%s'/data/relay*"
          .. " '%s'/data/*.info"):format(to.folder, from.folder, to.folder, to.folder, to.folder, to.folder)))
        from:start()
        to:start()
        h:signal "CONT"
        follow(to, way, gtid)
        for i = 1, 3 do
          eventually(function() return (handle:queue("q"):push("a", i)) end)
        end
        eventually(function() return done(handle) == 8 end, 30)
        h:signal "TERM"
        assert.equal(0, h:wait())
        assert_same(from, to, name)
      end)
    end)
  end
end)

-- A node of a Galera cluster was taken like any server, with a warning about locks. There jobs
-- ran twice, or were left for ever, and nothing told of it.
describe("a node of a Galera cluster without a binary log", function()
  local LIBRARY = "/usr/lib/galera/libgalera_smm.so"

  local function there()
    local file = io.open(LIBRARY)
    return file and file:close()
  end

  local server

  -- A cluster of one. Its port is the kernel's choice of a moment before.
  setup(function()
    if not there() then return end
    server = db.server(("wsrep_on=ON\nwsrep_provider=%s\nwsrep_cluster_address=gcomm://\nbinlog_format=ROW\n"
      .. "innodb_autoinc_lock_mode=2\nwsrep_sst_method=rsync\nwsrep_node_address=127.0.0.1\n"
      .. "wsrep_provider_options=gmcast.listen_addr=tcp://127.0.0.1:0;ist.recv_addr=127.0.0.1:0\n"):format(LIBRARY))
    eventually(function() return server:sql "SHOW STATUS LIKE 'wsrep_ready'":find "ON" end, 30)
  end)

  local function on_node(fn)
    return function()
      if server then return fn() end
      pending "no Galera library is installed (galera-4)"
    end
  end

  it("is refused at connect, and the message says what to set", on_node(function()
    server:sql "CREATE DATABASE IF NOT EXISTS n"
    for _, open in ipairs { nightshift.open, core.open } do
      local none, message, code = open { url = server:url "n", no_schema = open == core.open or nil }
      assert.same({ nil, "SERVER" }, { none, code })
      assert.is_truthy(message:find("Galera: log_bin is OFF", 1, true), message)
    end
  end))

  it("is refused by init, work and doctor", on_node(function()
    server:sql "CREATE DATABASE IF NOT EXISTS n"
    local url = server:url "n"
    local exit, _, err = proc.nightshift({ "init" }, url)
    assert.equal(78, exit)
    assert.is_truthy(err:find("Galera: log_bin is OFF", 1, true), err)
    assert.equal("", server:sql "SHOW TABLES FROM n LIKE 'nightshift%'")
    exit, _, err = proc.nightshift({ "work", fixture.file("a.lua", "return { a = function() end }") }, url)
    assert.equal(78, exit)
    assert.is_truthy(err:find("Galera: log_bin is OFF", 1, true), err)
    local out
    exit, out = proc.nightshift({ "doctor" }, url)
    assert.equal(1, exit)
    assert.is_truthy(out:find("fail  server", 1, true) and out:find("Galera: log_bin is OFF", 1, true), out)
  end))
end)

-- The primary dies under load, with one host and one program beside it, and its semi-synchronous
-- replica takes its place behind a forwarder. What was acknowledged is there, and nothing that
-- was done runs again; a minute later no row of nightshift_holder is left of who had died.
it("a promoted replica has all that was acknowledged, and the dead leave", function()
  local BINLOG = "log-bin=bin\nserver-id=%d\nbinlog-format=ROW\nlog-slave-updates\ngtid-strict-mode=1\n"
    .. "relay-log=relay\nsync-binlog=1\n"
  local PRIMARY = "rpl-semi-sync-master-wait-point=AFTER_SYNC\nrpl-semi-sync-master-timeout=600000\n"
  local REPLICA = "rpl-semi-sync-slave-enabled=ON\n"

  -- Each says what it was told, in a file that is only appended to.
  local HANDLERS = [[
  local file
  return { a = function(job)
    file = file or assert(io.open(%q, "ab"))
    file:setvbuf "no"
    file:write(job.id .. "\n")
    require "nst".sleep(0.003)
  end }]]
  local PUSHER = [[
  local url, queue, path, stop = table.unpack(arg)
  local handle = assert(require "nightshift".open(url))
  local file = assert(io.open(path, "ab"))
  file:setvbuf "no"
  while not io.open(stop) do
    local id, why, code = handle:queue(queue):push("a", 1)
    if id then file:write(id .. "\n") else assert(code == "GONE" or code == "BUSY", why) end
    require "nst".sleep(0.01) -- what waits is worked off in the end
  end]]
  local CLAIMER = [[
  local nst = require "nst"
  local url, begun, acked, hold, stop = table.unpack(arg)
  local handle = assert(require "nightshift".open(url))
  local starts, ends = assert(io.open(begun, "ab")), assert(io.open(acked, "ab"))
  starts:setvbuf "no"
  ends:setvbuf "no"
  while true do
    local job, why, code = handle:queue "e":claim { wait = 1 }
    if job then
      starts:write(job.id .. "\n")
      while hold ~= "" and io.open(hold) do nst.sleep(1) end
      local ok
      repeat ok, why, code = job:ack() until ok or code ~= "GONE" and code ~= "BUSY"
      if ok then ends:write(job.id .. "\n") else print(job.id, why, code) end
    else
      assert(not why or code == "GONE" or code == "BUSY", why)
      if not why and io.open(stop) then break end
      if why then nst.sleep(0.02) end -- until the other server leads
    end
  end
  handle:close()]]

  local function lines(path)
    local list = {}
    for id in io.open(path):read "a":gmatch "(%d+)\n" do list[#list + 1] = math.tointeger(tonumber(id)) end
    return list
  end

  local function follow(replica, way)
    replica:sql(("CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=%d, MASTER_USER='repl', "
      .. "MASTER_PASSWORD='repl', MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1; START SLAVE"):format(way.port))
  end

  local function promote(replica)
    local handle <close> = assert(core.open { url = replica:url "mysql", no_schema = true })
    replica:sql "STOP SLAVE IO_THREAD"
    local received = assert(handle:execute "SHOW SLAVE STATUS")[1].Gtid_IO_Pos
    assert.equal("0", replica:sql(("SELECT MASTER_GTID_WAIT('%s', 20)"):format(received)))
    replica:sql "STOP SLAVE; RESET SLAVE ALL"
  end

  -- Of jobs, as a set; where: words of SQL.
  local function ids(server, name, where)
    local set = {}
    for id in server:sql("SELECT id FROM " .. where, name):gmatch "%d+" do set[math.tointeger(tonumber(id))] = true end
    return set
  end

  local from, to = db.server(BINLOG:format(1) .. PRIMARY), db.server(BINLOG:format(2) .. REPLICA)
  from:sql [[CREATE USER repl@'%' IDENTIFIED BY 'repl'; GRANT REPLICATION SLAVE ON *.* TO repl@'%';
    SET GLOBAL rpl_semi_sync_master_enabled=ON]]
  follow(to, proxy.start(from, "tcp"))
  local url, name = from:fresh()
  eventually(function() return from:sql "SHOW STATUS LIKE 'Rpl_semi_sync_master_status'":find "ON" end)
  local dir = fixture.dir()
  local function file(which) return dir .. "/" .. which end
  local function program(text, ...) return proc.start { proc.lua, "-e", text, "/dev/null", ... } end
  local function lead_to(server) assert(os.execute(("ln -sfn '%s' '%s'"):format(server.socket, file "way"))) end
  lead_to(from)
  url = proxy.start({ socket = file "way" }):url(url)
  for _, which in ipairs { "pushed", "begun", "first", "acked", "hold" } do io.open(file(which), "w"):close() end
  local hosts = { host.start(url, HANDLERS:format(file "first")), host.start(url, HANDLERS:format(file "begun")) }
  local pushers = {}
  for i, queue in ipairs { "q", "e" } do pushers[i] = program(PUSHER, url, queue, file "pushed", file "stop") end
  local holding = program(CLAIMER, url, file "first", file "acked", file "hold", file "idle")
  local claimer = program(CLAIMER, url, file "begun", file "acked", "", file "idle")
  eventually(function() return #lines(file "acked") > 30 and #lines(file "begun") > 60 end, 60)

  local pushed, acked = lines(file "pushed"), lines(file "acked")
  from:kill()
  for _, p in ipairs { hosts[1], holding } do
    p:signal "KILL"
    p:wait(10)
  end
  promote(to)
  local done, live = ids(to, name, "nightshift_finished WHERE outcome = 'done'"), ids(to, name, "nightshift_job")
  for _, id in ipairs(acked) do assert(done[id], id .. " was acknowledged and is lost") end
  for _, id in ipairs(pushed) do assert(done[id] or live[id], id .. " was pushed and is lost") end
  local before, more = #lines(file "begun"), #lines(file "pushed")
  lead_to(to)
  eventually(function() return #lines(file "pushed") > more + 30 and #lines(file "begun") > before + 60 end, 60)
  io.open(file "stop", "w"):close()
  for _, p in ipairs(pushers) do assert.equal(0, p:wait(60)) end
  eventually(function() return to:sql("SELECT COUNT(*) FROM nightshift_job", name) == "0" end, 60)
  eventually(function() -- for most of a minute
    nst.sleep(0.5)
    return to:sql("SELECT pid FROM nightshift_holder ORDER BY pid", name)
      == table.concat({ math.min(hosts[2].pid, claimer.pid), math.max(hosts[2].pid, claimer.pid) }, "\n")
  end, 60)
  io.open(file "idle", "w"):close()
  assert.equal(0, claimer:wait(60))
  assert.equal("", (claimer:text()))
  hosts[2]:signal "TERM"
  assert.equal(0, hosts[2]:wait(20))

  local twice, ended = {}, ids(to, name, "nightshift_finished WHERE outcome = 'done'")
  for i, id in ipairs(lines(file "begun")) do
    assert(not twice[id], id .. " ran twice")
    assert(i <= before or not done[id], id .. " was done and ran again")
    twice[id] = true
  end
  for _, which in ipairs { "pushed", "acked" } do
    for _, id in ipairs(lines(file(which))) do assert(ended[id], id .. " is lost: " .. which) end
  end
end)

-- A dump names its database in the view. Restored under another name, the view showed
-- the jobs of the original, and the doctor found nothing.
it("a view that reads another database is found by the doctor, and made anew by migrate", function()
  local function tables(url)
    local _, out = proc.nightshift({ "doctor", "--json" }, url)
    for _, check in ipairs(nightshift.decode(out).findings) do
      if check.name == "tables" then return check end
    end
  end

  local url, name = db.fresh()
  local copy_url, copy = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  assert(handle:queue "q":push("original", 1))
  assert.equal("ok", tables(copy_url).status)
  local text = db.sql(("SELECT view_definition FROM information_schema.views "
    .. "WHERE table_schema = '%s' AND table_name = 'nightshift_jobs'"):format(name))
  db.sql("CREATE OR REPLACE SQL SECURITY INVOKER VIEW nightshift_jobs AS " .. text, copy)
  assert.equal("original", db.sql("SELECT name FROM nightshift_jobs", copy))
  local check = tables(copy_url)
  assert.equal("fail", check.status)
  assert.is_truthy(check.says:find("another database", 1, true), check.says)
  assert.is_truthy(check.fix:find("nightshift migrate", 1, true), check.fix)
  assert.equal(0, (proc.nightshift({ "migrate" }, copy_url)))
  assert.equal("", db.sql("SELECT name FROM nightshift_jobs", copy))
  assert.equal("ok", tables(copy_url).status)
end)

-- ----- a list of servers, and promotions

local ROUNDS = tonumber(os.getenv "NIGHTSHIFT_ROUNDS") or 1

local page
do
  local file <close> = assert(io.open "doc/failover.md")
  page = file:read "a"
end

-- The block of the page that has these words.
local function block(words, kind)
  for found, text in page:gmatch "\n```(%l+)\n(.-)\n```" do
    if found == (kind or "sh") and text:find(words, 1, true) then return text end
  end
  error("doc/failover.md has no block with " .. words)
end

local pair -- servers and the ways of replicas to them, which are TCP
local URL  -- of both

local function encoded(server) return (server.socket:gsub("/", "%%2F")) end

local function settings(id)
  return (block("init-rpl-role", "ini"):gsub("^%[mariadbd%]", ""):gsub("server%-id = 1", "server-id = " .. id)) .. "\n"
end

-- Runs a block; `a` and `b` are numbers of servers.
local function run(words, a, b)
  local text = block "--host=a.example" .. "\n" .. block(words)
  for name, i in pairs { a = a, b = b } do
    text = text:gsub("mariadb %-%-host=" .. name .. "%.example %-%-user=admin",
      ("mariadb --no-defaults --socket=%s --user=root"):format(pair[i].server.socket))
    text = text:gsub("MASTER_HOST='" .. name .. "%.example'",
      ("MASTER_HOST='127.0.0.1', MASTER_PORT=%d, MASTER_CONNECT_RETRY=1"):format(pair[i].way.port))
  end
  text = text:gsub("a%.example,b%.example", function()
    return encoded(pair[1].server) .. "," .. encoded(pair[2].server)
  end)
  local status, out, err = proc.run { "sh", "-e", "-c", text, timeout = 100,
    env = { PATH = proc.build .. "/bin:" .. db.path, NIGHTSHIFT_URL = false } }
  assert(status == 0, ("%s\n%s%s"):format(text, out, err))
  return out
end

local function is_semi_sync(i)
  return pair[i].server:sql("SHOW STATUS LIKE 'Rpl_semi_sync_master_%'"):find "clients\t1.*status\tON"
end

local function start_pair()
  if pair then return end
  pair = {}
  for i = 1, 2 do
    local server = db.server(settings(i))
    pair[i] = { server = server, way = proxy.start(server, "tcp") }
  end
  run("REPLICATION SLAVE", 1, 2)
  eventually(function() return is_semi_sync(1) end, 20)
  run("nightshift init", 1, 2)
  URL = ("mysql://shop:Shop-1@%s,%s/shop"):format(encoded(pair[1].server), encoded(pair[2].server))
end

local function open(options) return assert(nightshift.open(options or URL)) end

local function server_of(handle) return assert(handle:execute "SELECT @@server_id AS id")[1].id end

describe("a list of servers", function()
  setup(start_pair)

  it("has its first job where the page has pushed it, on both", function()
    for i = 1, 2 do
      eventually(function() -- the view itself arrives later on the other one
        local ok, name = pcall(pair[i].server.sql, pair[i].server, "SELECT name FROM nightshift_jobs", "shop")
        return ok and name == "hello.say"
      end)
    end
  end)

  it("is read in order; what does not answer and what cannot write is passed over", function()
    local first, second = encoded(pair[1].server), encoded(pair[2].server)
    for _, list in ipairs { second .. "," .. first, "%2Fnone%2Fs.sock," .. first, "127.0.0.1:1,[::1]:1," .. first } do
      local handle <close> = open(("mysql://shop:Shop-1@%s/shop"):format(list))
      assert.equal(1, server_of(handle))
    end
    for _, list in ipairs { { pair[2].server.socket, pair[1].server.socket }, { pair[1].server.socket } } do
      local handle <close> = open { host = list, user = "shop", password = "Shop-1", database = "shop" }
      assert.equal(1, server_of(handle))
    end
  end)

  it("that has none to write says what is wrong with each", function()
    local none, message, code = nightshift.open(("mysql://shop:Shop-1@127.0.0.1:1,%s/shop")
      :format(encoded(pair[2].server)))
    assert.same({ nil, "GONE" }, { none, code })
    assert.is_truthy(message:find("no server of the list can be used: 127.0.0.1: cannot connect", 1, true), message)
    assert.is_truthy(message:find("s.sock: it is read-only", 1, true), message)
    none, message, code = nightshift.open(("mysql://shop:no@%s,%s/shop")
      :format(encoded(pair[1].server), encoded(pair[2].server)))
    assert.same({ nil, "DENIED" }, { none, code }, message)
  end)

  it("a server that is cut off delays the next by a second at most", function()
    local frozen <close> = assert(core.open { url = pair[2].server:url "mysql", no_schema = true })
    assert.is_true(frozen:is_open())
    pair[2].server:freeze()
    local began = nst.clock()
    local handle = nightshift.open(("mysql://shop:Shop-1@%s,%s/shop"):format(encoded(pair[2].server),
      encoded(pair[1].server)))
    local took = nst.clock() - began
    pair[2].server:thaw()
    assert.equal(1, server_of(assert(handle)))
    handle:close()
    assert.is_true(took < proc.limit(2), took)
  end)

  it("the doctor asks that the primary waits before it shows what it has committed", function()
    local function replication()
      local _, out = proc.nightshift({ "doctor", "--json" }, (URL:gsub("shop:Shop%-1", "root")))
      for _, check in ipairs(nightshift.decode(out).findings) do
        if check.name == "replication" then return check end
      end
    end

    assert.equal("ok", replication().status)
    pair[1].server:sql "SET GLOBAL rpl_semi_sync_master_wait_point = AFTER_COMMIT"
    local check = replication()
    pair[1].server:sql "SET GLOBAL rpl_semi_sync_master_wait_point = AFTER_SYNC"
    assert.equal("warn", check.status)
    assert.is_truthy(check.says:find("AFTER_COMMIT: hosts see what the replica may never get", 1, true), check.says)
  end)

  it("is a table of names", function()
    for _, bad in ipairs { {}, { "a,b" }, { 1 }, { "" } } do
      assert.has_error(function() nightshift.open { host = bad, database = "x" } end)
    end
  end)
end)

local dir
local function file(name) return dir .. "/" .. name end

-- The lines of a file: numbers by id, and how many there are.
local function lines(name)
  local found, n = {}, 0
  for id, number in io.open(file(name)):read "a":gmatch "(%d+) (%d+)\n" do
    n = n + 1
    found[n] = { id = math.tointeger(tonumber(id)), number = number }
  end
  return found
end

local function assert_follows()
  local pushed, begun = #lines "pushed", #lines "begun"
  eventually(function() return #lines "pushed" > pushed + 10 and #lines "begun" > begun + 10 end, 3)
end

describe("a promotion", function()
  local h, pusher
  local primary, replica = 1, 2

  local function change_roles() primary, replica = replica, primary end

  setup(function()
    start_pair()
    dir = fixture.dir()
    for _, name in ipairs { "pushed", "begun" } do io.open(file(name), "w"):close() end
    h = host.start(URL, host.telling(file "begun"))
    pusher = proc.start { proc.lua, "spec/support/crew.lua", "pusher", URL, file "pushed", file "stop" }
    eventually(function() return #lines "begun" > 50 end, 30)
  end)

  it("after kill -9 of the primary loses nothing, doubles nothing, and is followed in 3 s", function()
    for _ = 1, ROUNDS do
      eventually(function() return is_semi_sync(primary) end, 20)
      local before = #lines "begun"
      eventually(function() return #lines "begun" > before + 30 end, 20)
      pair[primary].server:kill()
      run("Gtid_IO_Pos", primary, replica)
      assert_follows()
      pair[primary].server:start()
      run("gtid_current_pos", primary, replica)
      change_roles()
    end
  end)

  it("that was planned is followed by handles, hosts and pages in 3 s", function()
    local handle <close> = open()
    local web = proc.start { proc.program, "web", "--listen", "127.0.0.1:0", env = { NIGHTSHIFT_URL = URL } }
    local at = web:wait_line "the pages are at (http://[^%s]+)"
    local function is_seen(text)
      return (http.request(at .. "jobs?queue=other") or ""):find(text, 1, true)
    end
    assert.equal(primary, server_of(handle))
    assert.is_nil(is_seen "after.change")
    eventually(function() return is_semi_sync(primary) end, 20)
    run("written=", primary, replica)
    local began = nst.clock()
    assert_follows()
    assert(pair[replica].server:sql([[CALL nightshift_push('other', 'after.change', '1', NULL)]], "shop"))
    eventually(function() return handle:queue("other"):stats().ready == 1 end, 3)
    eventually(function() return is_seen "after.change" end, 3)
    assert.is_true(nst.clock() - began < proc.limit(3))
    assert.equal(replica, server_of(handle))
    web:forget()
    run("gtid_current_pos", primary, replica)
    change_roles()
  end)

  -- It used to stay for half a minute: its process lived.
  it("frees a lock of a handle that is closed before it", function()
    local holder, other <close> = open(), open()
    local held = assert(holder:lock("closed"):acquire())
    local server = pair[primary].server
    server:sql "SET GLOBAL read_only = ON"
    local none, _, code = held:release()
    assert.same({ nil, "GONE" }, { none, code })
    local later = crew.fork(1, function()
      nst.sleep(0.3)
      server:sql "SET GLOBAL read_only = OFF"
    end)
    holder:close()
    later:wait()
    assert(other:lock("closed"):acquire(5)):release()
  end)

  it("leaves every acknowledged push done once, or live", function()
    io.open(file "stop", "w"):close()
    assert.equal(0, pusher:wait(30), pusher:transcript())
    local server = pair[primary].server
    eventually(function()
      return server:sql("SELECT COUNT(*) FROM nightshift_job WHERE name = 'a'", "shop") == "0"
    end, 30)
    host.stop(h)
    local done = {}
    for id in server:sql("SELECT id FROM nightshift_finished WHERE outcome = 'done'", "shop"):gmatch "%d+" do
      done[math.tointeger(tonumber(id))] = true
    end
    local ids, numbers = {}, {}
    for _, line in ipairs(lines "begun") do
      assert(not ids[line.id], line.id .. " ran twice")
      assert(not numbers[line.number], line.number .. " was pushed twice")
      ids[line.id], numbers[line.number] = true, true
    end
    for _, line in ipairs(lines "pushed") do
      assert(done[line.id], line.id .. " is lost")
      assert(ids[line.id], line.id .. " never ran")
    end
  end)
end)
