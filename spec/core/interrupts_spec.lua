-- Waits that end: at Ctrl-C, when a program is to end, and when a session keeps something locked.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

-- Ctrl-C ended a program that waited for a job, or for the server, only when that wait was
-- over. The interpreter raises its error in a debug hook, and no hook ran meanwhile.
describe("interrupts:", function()
  local START = [[
  local nightshift = require "nightshift"
  local url = %q
  local db = assert(nightshift.open(url))
  local q = db:queue "q"
  local function waits() io.stdout:write "waits\n" io.stdout:flush() end
]]

  describe("Ctrl-C", function()
    local url, name
    before_each(function() url, name = db.fresh() end)

    local function start(program)
      local p = proc.start { proc.lua, "-e", START:format(url) .. program }
      p:wait_line "^waits"
      return p
    end

    local function sleeps(what)
      eventually(function()
        local found = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND " .. what
        return db.sql(found, name) ~= "0"
      end)
    end

    local LISTENS = "info LIKE 'BEGIN NOT ATOMIC /* nightshift-wait%' AND state = 'User lock'"

    local function ends(p)
      local since = nightshift.clock()
      p:signal "INT"
      assert.not_equal(0, p:wait())
      local took = nightshift.clock() - since
      local _, err = p:text()
      assert.is_truthy(err:find("interrupted!", 1, true), err)
      assert.is_true(took < proc.limit(6), took) -- when the wait is over: 10 s, or 60
    end

    it("ends a wait for a job", function()
      local p = start "waits() q:claim{ wait = 60 }"
      sleeps(LISTENS)
      ends(p)
    end)

    it("ends one in a coroutine", function()
      local p = start "waits() print(coroutine.wrap(function() return q:claim{ wait = 60 } end)())"
      sleeps(LISTENS)
      ends(p)
    end)

    it("ends a loop over jobs", function()
      local p = start "waits() for job in q:jobs{ wait = 60 } do print(job) end"
      sleeps(LISTENS)
      ends(p)
    end)

    it("ends a statement of one's own, and the program's session with it", function()
      local p = start "waits() db:execute 'DO SLEEP(60)'"
      sleeps "info LIKE 'DO SLEEP%'"
      ends(p)
    end)

    it("ends a statement that is being prepared behind a table's lock", function()
      local other <close> = assert(nightshift.open(url))
      assert(other:execute "CREATE TABLE t (a INT) ENGINE=InnoDB")
      assert(other:execute "LOCK TABLES t WRITE")
      local p = start "waits() db:execute('SELECT a FROM t WHERE a = ?', 1)"
      sleeps "state LIKE 'Waiting for table%'"
      ends(p)
    end)

    it("ends a wait for a lock across hosts", function()
      local other <close> = assert(nightshift.open(url))
      local held <close> = assert(other:lock "l":acquire()) -- luacheck: ignore 211
      local p = start "waits() db:lock 'l':acquire(60)"
      ends(p)
    end)

    it("ends a wait for a row of an adopted table", function()
      db.sql("CREATE TABLE a (id INT AUTO_INCREMENT PRIMARY KEY, state VARCHAR(10) DEFAULT 'open')", name)
      local p = start [[
      local a = assert(db:adopt{ table = "a", id = "id", status = { column = "state", open = "open",
        processing = "busy", done = "done", failed = "failed" }, name = "a" })
      waits()
      a:claim{ wait = 60 }]]
      ends(p)
    end)

    it("ends a wait for a lock on this host", function()
      ends(start [[
      local m = nightshift.mutex "m"
      local nst = require "nst"
      nightshift.shared:keys() -- the memory is there before
      nst.fork(function()
        assert(m:acquire())
        nst.sleep(60)
      end)
      while m:acquire(0) do
        m:release()
        nst.sleep(0.01)
      end
      waits()
      m:acquire(60)]])
    end)

    it("leaves a handle that goes on", function()
      local p = start [[
      waits()
      local ok, message = pcall(q.claim, q, { wait = 60 })
      assert(not ok and message:find "interrupted!", message)
      assert(q:push("a", 1))
      assert(assert(q:claim()):ack())
      io.stdout:write "went on\n"]]
      sleeps(LISTENS)
      p:signal "INT"
      p:wait_line "^went on"
      assert.equal(0, p:wait())
    end)
  end)

  describe("debug hooks", function()
    local handle, q

    with_database(function(opened, queue) handle, q = opened, queue end)
    after_each(function() debug.sethook() end)

    it("run while a claim waits", function()
      for _, count in ipairs { 1, 1000 } do
        local n = 0
        debug.sethook(function() n = n + 1 end, "", count)
        assert.is_nil(q:claim { wait = 2 })
        debug.sethook()
        assert.is_true(n >= 4, n)
      end
    end)

    it("may not use the handle that waits", function()
      local message
      debug.sethook(function()
        if not debug.traceback():find("claim", 1, true) then return end
        debug.sethook()
        for _, verb in ipairs { "push", "close" } do
          local object = verb == "push" and q or handle
          local _
          _, message = pcall(object[verb], object, "a", 1)
          if not message then return end
        end
      end, "", 1000)
      assert.is_nil(q:claim { wait = 1 })
      assert.is_truthy(message:find("in a hook", 1, true), message)
      assert(q:push("a", 1))
    end)
  end)
end)

-- A program that held a job with a server that had stopped answering never ended: closing its
-- handle waited for the server, without end. A host's listeners could keep it, too.
describe("while the server is frozen", function()
  local START = [[
  local nightshift = require "nightshift"
  local db = assert(nightshift.open(%q))
  local q = db:queue "q"
  local function go()
    io.stdout:write "go\n"
    io.stdout:flush()
    io.read()
  end
]]

  local server, url
  setup(function() server = db.server() end)
  teardown(function() server:remove() end)
  before_each(function() url = server:fresh() end)
  after_each(function() server:thaw() end)

  -- Runs a program up to its go(), freezes the server, and lets it go on; s until it ended.
  local function frozen_from(program, options)
    local fifo = fixture.dir() .. "/fifo"
    assert(os.execute("mkfifo " .. fifo))
    local text = START:format(url .. (options or "")) .. program
    local p = proc.start { "sh", "-c", 'exec "$@" < "$0"', fifo, proc.lua, "-e", text }
    local go <close> = assert(io.open(fifo, "w"))
    p:wait_line("^go", 20)
    server:freeze()
    local since = nightshift.clock()
    go:write "\n"
    go:flush()
    local how = p:wait(25)
    local _, err = p:text()
    return nightshift.clock() - since, how, err
  end

  for what, program in pairs {
    ["with a claim"] = "assert(q:push 'a') local job = assert(q:claim()) go()",
    ["by os.exit"] = "assert(q:push 'a') local job = assert(q:claim()) go() os.exit(0, true)",
    ["that closes"] = "assert(q:push 'a') local job = assert(q:claim()) go() db:close()",
    ["with a lock"] = "local l = assert(db:lock 'l':acquire()) go()",
    ["after a wait"] = "q:claim{ wait = 0.1 } go()",
  } do
    it("a program ends " .. what, function()
      local took, how, err = frozen_from(program)
      assert.is_true(took < proc.limit(20), took)
      assert.equal(0, how, err)
    end)
  end

  it("a program ends that would commit", function()
    local took, how, err = frozen_from([[
      local ok, message, code = db:transaction(function(tx)
        assert(tx:execute "INSERT INTO nightshift_meta VALUES ('x', 'y')")
        go()
        return true
      end)
      assert(code == "GONE", message)]], "&read_timeout=2s")
    assert.is_true(took < proc.limit(20), took)
    assert.equal(0, how, err)
  end)

  it("a wait for a job ends at Ctrl-C, and so does a verb", function()
    for _, program in ipairs { "go() q:claim{ wait = 60 }", "go() q:push 'a'" } do
      local p = proc.start { "sh", "-c", 'exec "$@"', "sh", proc.lua, "-e",
        (START:format(url):gsub("io.read%(%)", "require 'nst'.sleep(0.5)")) .. program }
      p:wait_line("^go", 20)
      server:freeze()
      os.execute "sleep 2"
      local since = nightshift.clock()
      p:signal "INT"
      p:wait()
      local took = nightshift.clock() - since
      local _, err = p:text()
      server:thaw()
      assert.is_truthy(err:find("interrupted!", 1, true), err)
      assert.is_true(took < proc.limit(15), took)
    end
  end)

  it("a host that is told to end does", function()
    local h = host.start(url, "return { a = function() end }", { "--drain-timeout", "1s" })
    server:freeze()
    local since = nightshift.clock()
    h:signal "TERM"
    h:wait(40)
    local took = nightshift.clock() - since
    assert.is_true(took < proc.limit(19), took)
  end)
end)

-- Under TLS, too, a wait ends at Ctrl-C, and a program with a frozen server ends. There the
-- library reads more than it is asked for, so what has been read is not waited for.
describe("under TLS", function()
  local START = [[
  local nightshift = require "nightshift"
  local db = assert(nightshift.open{ host = "127.0.0.1", port = %d, user = "u", password = "hunter2", database = %q,
    tls = "trust" })
  assert(assert(db:execute "SHOW STATUS LIKE 'Ssl_cipher'")[1].Value ~= "")
  local q = db:queue "q"
  local function waits() io.stdout:write "waits\n" io.stdout:flush() end
]]

  local function read(path)
    local file <close> = assert(io.open(path, "rb"))
    return file:read "a"
  end

  local server, port, name

  setup(function()
    local folder = fixture.dir()
    local status, _, err = proc.run { "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
      "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", folder .. "/key.pem", "-out", folder .. "/cert.pem",
      "-days", "2", "-subj", "/CN=spec" }
    assert.equal(0, status, err)
    port = proc.free_port()
    server = db.server(([[
skip-networking=0
bind-address=127.0.0.1
port=%d
ssl-cert=FOLDER/cert.pem
ssl-key=FOLDER/key.pem
]]):format(port), { ["cert.pem"] = read(folder .. "/cert.pem"), ["key.pem"] = read(folder .. "/key.pem") })
    local _
    _, name = server:fresh()
    server:sql(("CREATE USER u IDENTIFIED BY 'hunter2'; GRANT ALL ON `%s`.* TO u"):format(name))
  end)
  teardown(function() server:remove() end)
  after_each(function() server:thaw() end)

  local function start(program)
    local p = proc.start { proc.lua, "-e", START:format(port, name) .. program }
    p:wait_line("^waits", 20)
    return p
  end

  local function sleeps(what)
    eventually(function()
      return server:sql(("SELECT COUNT(*) FROM information_schema.processlist WHERE db = '%s' AND %s"):format(name,
        what)) ~= "0"
    end)
  end

  local function ends(p, within)
    local since = nightshift.clock()
    p:signal "INT"
    p:wait()
    local took = nightshift.clock() - since
    local _, err = p:text()
    assert.is_truthy(err:find("interrupted!", 1, true), err)
    assert.is_true(took < proc.limit(within), took)
  end

  it("waits end at Ctrl-C", function()
    local p = start "waits() q:claim{ wait = 60 }"
    sleeps "state = 'User lock'"
    ends(p, 6)
    p = start "waits() db:execute 'DO SLEEP(60)'"
    sleeps "info LIKE 'DO SLEEP%'"
    ends(p, 6)
  end)

  it("large answers, batches and pushes in pieces come whole", function()
    local handle <close> = assert(nightshift.open { host = "127.0.0.1", port = port, user = "u", password = "hunter2",
      database = name, tls = "trust" })
    local q = handle:queue "large"
    local items = {}
    for i = 1, 200 do items[i] = { "a", ("x"):rep(i * 300) } end
    assert(q:push_many(items))
    for _ = 1, 4 do
      local jobs = assert(q:claim_many(50))
      assert.equal(50, #jobs)
      for _, job in ipairs(jobs) do assert(job:ack { n = #job.payload }) end
    end
    assert.equal(3000000, #assert(handle:execute "SELECT REPEAT('x', 3000000) AS x")[1].x)
  end)

  it("a program ends while the server is frozen", function()
    for _, wait in ipairs { "", "q:claim{ wait = 0.1 }" } do
      local p = start(wait .. "assert(q:push 'a') local job = assert(q:claim()) waits() os.execute 'sleep 0.7'")
      server:freeze()
      local since = nightshift.clock()
      p:wait(20)
      local took = nightshift.clock() - since
      server:thaw()
      assert.is_true(took < proc.limit(15), took)
    end
  end)

  it("a wait ends at Ctrl-C while the server is frozen", function()
    local p = start "waits() db:queue 'none':claim{ wait = 60 }"
    sleeps "state = 'User lock'"
    server:freeze()
    ends(p, 15)
  end)
end)

-- A verb that met a locked table or row began anew twenty times, each for as long as a lock is
-- waited for. A push beside LOCK TABLES took seven minutes to say BUSY. A look at dead holders
-- that a KILL QUERY met was logged as an error, and waited ten seconds to come again.
describe("locked for minutes:", function()
  local PATIENCE = 3 -- s: read_timeout

  describe("what somebody keeps locked", function()
    local url, locker, handle, q

    before_each(function()
      url = db.fresh()
      locker = assert(nightshift.open(url))
      handle = assert(nightshift.open(("%s&read_timeout=%ds"):format(url, PATIENCE)))
      q = handle:queue "q"
    end)
    after_each(function()
      locker:close()
      handle:close()
    end)

    local function busy(verb)
      local since = nightshift.clock()
      local none, message, code = verb()
      local took = nightshift.clock() - since
      assert.same({ nil, "BUSY" }, { none, code }, message)
      assert.is_true(took >= PATIENCE / 2 and took < proc.limit(3 * PATIENCE), took)
    end

    it("is waited for like a reply: a table", function()
      local id = assert(q:push "first")
      local job = assert(q:claim())
      assert(locker:execute "LOCK TABLES nightshift_job WRITE, nightshift_ready WRITE")
      busy(function() return q:push "a" end)
      busy(function() return q:push_many { { "a" }, { "b" } } end)
      busy(function() return job:ack() end)
      assert(locker:execute "UNLOCK TABLES")
      assert(job:ack())
      assert.equal("done", handle:job(id).state)
      assert(q:push "a")
      assert.equal(1, #assert(q:claim_many(10)))
    end)

    it("is waited for like a reply: a row", function()
      local id = assert(q:push "first")
      assert(locker:transaction(function(tx)
        assert(tx:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", id))
        busy(function() return handle:cancel(id) end)
        return true
      end))
      assert(handle:cancel(id))
    end)
  end)

  it("a look at the dead that is hit by a KILL comes again soon, and is no error", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local id = assert(handle:queue "q":push "a")
    local holder = proc.start { proc.lua, "-e", ([[
    assert(require "nightshift".open(%q):queue "q":claim())
    print "holds"
    io.flush()
    os.execute "sleep 60"]]):format(url) }
    holder:wait_line("^holds", 20)
    local h = host.start(url, "return { a = function() end }")
    db.sql([[CREATE TRIGGER trouble BEFORE UPDATE ON nightshift_holder FOR EACH ROW
    IF NEW.dead IS NOT NULL THEN SIGNAL SQLSTATE '70100' SET MYSQL_ERRNO = 1317; END IF]], name)
    holder:signal "KILL"
    h:wait_line("level=warn event=rescue.failed code=BUSY", 20)
    db.sql("DROP TRIGGER trouble", name)
    local since = nightshift.clock()
    eventually(function() return handle:job(id).state == "done" end, 20)
    local took = nightshift.clock() - since
    assert.is_true(took < proc.limit(9), took) -- by the round: 10 s
    h:signal "TERM"
    assert.equal(0, h:wait(20))
    assert.is_nil(h:transcript():find("level=error", 1, true), h:transcript())
  end)
end)
