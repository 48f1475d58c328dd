-- Faults that keep a host from starting. How signals stop it, reload its scripts and pause it,
-- at good moments and at bad ones.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

-- What keeps a host from starting: each with its exit code and a message.
describe("starts:", function()
  local url

  setup(function() url = db.fresh() end)

  -- Runs `nightshift work` until it ends.
  local function work(args, where)
    local status, out, err = proc.nightshift({ "work", table.unpack(args) }, where or url)
    assert.equal("", out)
    return status, err
  end

  local function refuses(exit, text, args, where)
    local status, err = work(args, where)
    assert.equal(exit, status, err)
    assert.matches(text, err, 1, true)
    assert.is_nil(err:find "host.ready", err)
  end

  local function script(text) return fixture.file("jobs.lua", text) end

  describe("handlers that cannot be loaded end the host with 78:", function()
    it("a syntax error, with file and line", function()
      local path = script "return {\n  a = function( end\n}"
      refuses(78, path .. ":2: ", { path })
    end)

    it("a raise, with file and line", function()
      local path = script "local x\nx.y = 1\nreturn {}"
      refuses(78, path .. ":2: attempt to index a nil value", { path })
    end)

    it("a raise of a table", function()
      local path = script "error { code = 7 }"
      refuses(78, '{"code":7}', { path })
    end)

    it("os.exit", function()
      local path = script "\nos.exit(0)"
      refuses(78, path .. ":2: os.exit called", { path })
    end)

    it("a file that returns nothing", function()
      local path = script "local t = {}\n"
      refuses(78, path .. ":1: a handler file must return a table of handlers, this one returns nothing", { path })
    end)

    it("a file that returns a number", function()
      local path = script "\n\nreturn 42"
      refuses(78, path .. ":3: a handler file must return a table of handlers, this one returns a number", { path })
    end)

    it("a handler that is no handler", function()
      local path = script "return { a = 42 }"
      refuses(78, path .. ": handler 'a' is a number; it must be a function, a table with run", { path })
    end)

    it("a handler without a usable name", function()
      refuses(78, "a handler's name is empty", { script "return { [''] = function() end }" })
      refuses(78, "a handler's name must be a string, got the number 1", { script "return { function() end }" })
      refuses(78, "has 101 bytes, the limit is 100", { script "return { [('n'):rep(101)] = function() end }" })
    end)

    it("two files with one name, naming both", function()
      local one = script "return {\n  a = function() end\n}"
      local two = script "return {\n\n  a = function() end\n}"
      refuses(78, ("%s:3: handler 'a' is already defined in %s:2"):format(two, one), { one, two })
    end)

    it("a background handler whose poll has the name of another", function()
      local path = script [[return {
      ["a:poll"] = function() end,
      a = require "nightshift".background { start = print, poll = print } }]]
      refuses(78, "'a:poll' is already defined", { path })
    end)

    it("a file that does not exist", function() refuses(78, "/nowhere/x.lua", { "/nowhere/x.lua" }) end)

    it("a folder without Lua files", function() refuses(78, "has no Lua files", { fixture.dir() }) end)

    it("a file that kills the process that loads it", function()
      local path = script [[os.execute "kill -9 $PPID" os.execute "sleep 1"]]
      refuses(78, "the process that loads the handlers died: killed by signal 9 (Killed)", { path })
    end)

    it("bytecode", function()
      local path = script(string.dump(load "return {}"))
      refuses(78, "compiled Lua; handlers are loaded as text only", { path })
    end)
  end)

  describe("a folder", function()
    it("stands for the Lua files in it", function()
      local dir = fixture.dir()
      for _, name in ipairs { "a", "b" } do
        local file <close> = io.open(("%s/%s.lua"):format(dir, name), "w")
        file:write(("return { %s = function() end }"):format(name))
      end
      io.open(dir .. "/notes.txt", "w"):close()
      local p = proc.start { proc.program, "work", dir, "--drain", env = { NIGHTSHIFT_URL = url } }
      assert.equal("a, b", p:wait_line 'host.ready .*handlers=2 names="([^"]*)"')
      assert.equal(0, p:wait())
    end)
  end)

  describe("the database", function()
    local path
    before_each(function() path = script "return { a = function() end }" end)

    it("that is not there: 69", function()
      refuses(69, "", { path }, "mysql://root@localhost/x?unix_socket=/nowhere/s.sock")
    end)

    it("on a host that is not there: 69", function()
      refuses(69, "", { path }, "mysql://root@127.0.0.1:1/x?tls=off")
    end)

    it("that refuses the password: 78", function()
      local user = db.user(url, "SELECT")
      refuses(78, "denied", { path }, (user:gsub("Pass%-word_1", "wrong")))
    end)

    it("without our tables: 78", function() refuses(78, "nightshift init", { path }, (db.empty())) end)

    it("that allows too little: 78", function() refuses(78, "denied", { path }, (db.user(url, "SELECT"))) end)
  end)

  describe("bad arguments", function()
    it("are refused with 2", function()
      local path = script "return {}"
      refuses(2, "workers", { path, "--workers", "0" })
      refuses(2, "weight", { path, "--queues", "a=0" })
      refuses(2, "twice", { path, "--queues", "a,a" })
      refuses(2, "argument", {})
    end)
  end)

  describe("a handler file without handlers", function()
    it("is named in a warning, and the others are served", function()
      local folder = proc.folder()
      for name, text in pairs { empty = "return {}", jobs = "return { a = function() end }" } do
        local file <close> = assert(io.open(folder .. "/" .. name .. ".lua", "w"))
        file:write(text)
      end
      proc.run { "chmod", "-R", "go+rX", folder }
      local h = host.spawn(url, folder .. "/empty.lua", { folder .. "/jobs.lua" })
      h:wait_line("host.ready", 20)
      local log = select(2, h:text())
      local told = host.events(log, "handlers.none")
      assert.equal(1, #told)
      assert.same({ "warn", folder .. "/empty.lua" }, { told[1].level, told[1].file })
      assert.equal("1", host.events(log, "host.ready")[1].handlers)
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)

    it("is told of in JSON when the log is", function()
      local path = script "return {}"
      local h = host.spawn(url, path, { "--log", "json" })
      h:wait_line("host.ready", 20)
      assert.matches('"event":"handlers.none","file":"' .. path .. '"', select(2, h:text()), 1, true)
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)
  end)

  it("the host says when it is ready, with its pid", function()
    local h = host.start(url, "return { a = function() end }", { "--workers", "3" })
    local ready = host.events(select(2, h:text()), "host.ready")[1]
    assert.equal(tostring(h.pid), ready.pid)
    assert.equal("3", ready.workers)
    eventually(function() return #host.members(h.pid) == 3 end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

-- How a host stops, reloads and pauses.
describe("signals:", function()
  local url, handle, q

  with_database(function(...) handle, q, url = ... end)

  -- "started" comes from the shell: a fork that has not become one yet still
  -- bears the worker's name.
  local SLEEP = [[return {
  sleep = function(job) os.execute("echo started; sleep " .. job.payload) return "slept" end,
  wait = function(job)
    os.execute("echo started; while ! test -e " .. job.payload .. "; do sleep 0.02; done")
    return "slept"
  end,
  quick = function() return "quick" end,
}]]

  local function state(id) return handle:job(id).state end

  local function assert_nobody(pids)
    host.await_gone(pids)
  end

  describe("SIGTERM", function()
    it("lets running handlers finish, gives back what has not started, and exits 0", function()
      local h = host.start(url, SLEEP, { "--workers", "1" })
      local go = fixture.dir() .. "/go"
      local running = q:push("wait", go)
      h:wait_line "^started"
      local waiting = q:push "quick"
      local family = host.family(h.pid)
      h:signal "TERM"
      h:wait_line "host.drain"
      assert(io.open(go, "w")):close()
      assert.equal(0, h:wait())
      assert.equal("done", state(running))
      assert.equal("ready", state(waiting))
      assert.equal(0, handle:job(waiting).attempts)
      assert_nobody(family)
      assert.equal(0, #handle:execute "SELECT id FROM nightshift_lease")
      assert.equal(0, #handle:execute "SELECT id FROM nightshift_holder WHERE kind = 'host'")
    end)

    it("gives up waiting after the drain timeout; the job is given back unhurt", function()
      local h = host.start(url, SLEEP, { "--drain-timeout", "300ms" })
      local id = q:push("sleep", 60)
      h:wait_line "^started"
      h:signal "TERM"
      assert.equal(0, h:wait(20))
      local job = handle:job(id)
      assert.same({ "ready", 0, 0 }, { job.state, job.attempts, job.crashes })
    end)

    it("twice does not wait", function()
      local h = host.start(url, SLEEP)
      local id = q:push("sleep", 60)
      h:wait_line "^started"
      h:signal "TERM"
      h:wait_line "host.drain"
      h:signal "TERM"
      assert.equal(0, h:wait(20))
      assert.equal("ready", state(id))
    end)

    it("ends an idle host at once", function()
      local h = host.start(url, SLEEP)
      h:signal "TERM"
      assert.equal(0, h:wait(8)) -- who waits for something waits 10 s, or 30
    end)

    it("to all processes, as a service manager sends it, is the same", function()
      local h = host.start(url, SLEEP)
      local id = q:push("sleep", 0.5)
      h:wait_line "^started"
      for _, pid in ipairs(host.family(h.pid)) do
        if (host.name(pid) or ""):find "^ns%-" then nst.kill(pid, "TERM") end
      end
      h:signal "TERM"
      assert.equal(0, h:wait())
      assert.same({ "done", 0 }, { state(id), handle:job(id).crashes })
    end)
  end)

  describe("SIGQUIT", function()
    it("stops now and gives running jobs back", function()
      local h = host.start(url, SLEEP)
      local id = q:push("sleep", 60)
      h:wait_line "^started"
      local workers = host.members(h.pid)
      h:signal "QUIT"
      assert.equal(0, h:wait(20))
      local job = handle:job(id)
      assert.same({ "ready", 0, 0 }, { job.state, job.attempts, job.crashes })
      assert_nobody(workers)
    end)
  end)

  local function version(n)
    return ([[return {
    which = function() return %d end,
    slow = function() print "started" os.execute "sleep 1" return %d end,
  }]]):format(n, n)
  end

  local function rewrite(h, text)
    local file <close> = io.open(h.script, "w")
    file:write(text)
  end

  describe("SIGHUP", function()
    local function result(name)
      local id = q:push(name)
      return eventually(function() return handle:job(id).result end)
    end

    it("runs new jobs with the scripts as they are now; running ones finish with the old", function()
      local h = host.start(url, version(1))
      assert.equal(1, result "which")
      local slow = q:push "slow"
      h:wait_line "^started"
      rewrite(h, version(2))
      h:signal "HUP"
      h:wait_line "reload.done"
      assert.equal(2, result "which")
      assert.equal(1, eventually(function() return handle:job(slow).result end))
      eventually(function() return #host.members(h.pid, "ns-zygote") == 1 and #host.members(h.pid) == 2 end)
      assert.equal(2, result "which")
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)

    it("with a broken script changes nothing", function()
      local h = host.start(url, version(1))
      rewrite(h, "return {")
      h:signal "HUP"
      h:wait_line "reload.failed .*jobs.lua:1:"
      assert.equal(1, result "which")
      rewrite(h, version(3))
      h:signal "HUP"
      h:wait_line "reload.done"
      assert.equal(3, result "which")
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)

    it("many times in a row ends with the last", function()
      local h = host.start(url, version(1))
      for n = 2, 20 do
        rewrite(h, version(n))
        h:signal "HUP"
        nst.sleep(0.01)
      end
      eventually(function() return result "which" == 20 end)
      eventually(function() return #host.members(h.pid, "ns-zygote") == 1 and #host.members(h.pid) == 2 end)
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)
  end)

  describe("SIGTSTP", function()
    it("stops claiming until SIGCONT", function()
      local h = host.start(url, SLEEP)
      h:signal "TSTP"
      h:wait_line "host.quiet"
      local id = q:push "quick"
      nst.sleep(0.3)
      assert.equal("ready", state(id))
      h:signal "CONT"
      eventually(function() return state(id) == "done" end)
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)
  end)

  describe("SIGUSR1", function()
    it("writes to the log what the host is doing", function()
      local h = host.start(url, SLEEP)
      local id = q:push("sleep", 20)
      h:wait_line "^started"
      h:signal "USR1"
      h:wait_line "dump.host workers=2 outstanding=1"
      h:wait_line("dump.worker pid=%d+ id=" .. id .. " name=sleep")
      h:signal "QUIT"
      assert.equal(0, h:wait())
    end)
  end)
end)

-- ps showed the same arguments for each of a dozen processes.
describe("the processes of a host", function()
  local url, handle, q

  with_database(function(...) handle, q, url = ... end)

  local function title(pid)
    local file <close> = io.open(("/proc/%d/cmdline"):format(pid), "rb")
    return file and (file:read "a" or ""):gsub("%z+$", ""):gsub("%z", "|")
  end

  local function shows(pid, text)
    eventually(function() return title(pid) == text end)
  end

  local function holder() return handle:stats().holders[1] end

  it("are told apart by their titles", function()
    local go = fixture.dir() .. "/go"
    local h = host.start(url, host.holding(go))
    shows(h.pid, ("nightshift: host %s %d work %s --workers 2"):format(holder().host, holder().id, h.script))
    for _, name in ipairs { "seed", "keeper", "zygote" } do
      shows(host.member(h.pid, "ns-" .. name), "nightshift: " .. name)
    end
    local id = assert(q:push "hold")
    h:wait_line "^holds"
    local titles = {}
    for _, pid in ipairs(host.members(h.pid)) do titles[#titles + 1] = title(pid) end
    table.sort(titles)
    local busy = titles[1]:find "hold" and 1 or 2
    local expected = { "nightshift: worker 1 idle", "nightshift: worker 2 idle" }
    expected[busy] = ("nightshift: worker %d hold %d"):format(busy, id)
    assert.same(expected, titles)
    io.open(go, "w"):close()
    for _, pid in ipairs(host.members(h.pid)) do
      eventually(function() return title(pid):find " idle$" end)
    end
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("have titles longer than their arguments, and the variables that were there", function()
    local names = {}
    for i = 1, 30 do names["V" .. i] = ("%d-"):format(i):rep(i) end
    local dir = fixture.dir()
    local file <close> = assert(io.open(dir .. "/j.lua", "w"))
    local name = ("long"):rep(25)
    file:write(([[return { %s = function(job)
      print("holds")
      while not io.open %q do require "nightshift.core".sleep(0.02) end
      local all = {}
      for i = 1, 30 do all[i] = os.getenv("V" .. i) or "" end
      return all
    end }]]):format(name, dir .. "/go"))
    file:close()
    names.NIGHTSHIFT_URL = url
    local h = proc.start { proc.program, "work", "j.lua", "--workers", "2", cwd = dir, env = names }
    h:wait_line("host.ready", 60)
    local id = assert(q:push(name))
    h:wait_line "^holds"
    local seen = {}
    for _, pid in ipairs(host.members(h.pid)) do seen[title(pid):gsub("worker %d+", "worker N")] = true end
    assert.is_true(seen["nightshift: worker N " .. name .. " " .. id], require "nightshift".encode(seen))
    io.open(dir .. "/go", "w"):close()
    local result = eventually(function() return handle:job(id).result end)
    for i = 1, 30 do assert.equal(names["V" .. i], result[i]) end
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

-- What a host tells the service manager that has started it, by the socket that systemd names.
describe("a service manager", function()
  local url, handle, q, socket, name

  with_database(function(...) handle, q, url = ... end)

  after_each(function() nst.close(socket) end)

  -- A socket of ours, and what the environment says of it.
  local function listen(at, more)
    name = at or fixture.dir() .. "/notify"
    socket = assert(nst.datagrams(name))
    local env = more or {}
    env.NOTIFY_SOCKET = name
    return env
  end

  -- The next datagram with this text, at its beginning.
  local function hear(text, timeout)
    return eventually(function()
      local said = nst.datagram(socket)
      while said do
        if said:find(text, 1, true) == 1 then return said end
        said = nst.datagram(socket)
      end
    end, timeout)
  end

  -- How many beats come in a time; the ones that have come already do not count.
  local function beats(seconds)
    while nst.datagram(socket) do end
    nst.sleep(seconds)
    local n, said = 0, nst.datagram(socket)
    while said do
      n = n + (said:find("WATCHDOG=1", 1, true) == 1 and 1 or 0)
      said = nst.datagram(socket)
    end
    return n
  end

  local function write(path, text)
    local file <close> = assert(io.open(path, "w"))
    file:write(text)
  end

  for kind, at in pairs { path = false, abstract = ("@nightshift-%d"):format((nst.ids())) } do
    it("is told when the host is ready, reads its scripts, and ends: " .. kind, function()
      local go, done = fixture.dir() .. "/go", fixture.dir() .. "/done"
      local h = host.spawn(url, ("while not io.open %q do require 'nightshift.core'.sleep(0.01) end\n"):format(go) ..
        host.holding(done), { "--drain-timeout", "70s" }, listen(at))
      assert.equal("STATUS=reads its scripts", hear "STATUS=")
      nst.sleep(0.2)
      assert.is_nil(nst.datagram(socket)) -- not ready while they are read
      write(go, "")
      assert.matches("^READY=1\nSTATUS=2 workers, 0 at work; 0 done, 0 failed$", hear "READY=1")
      h:wait_line "host.ready"

      local before = nst.clock()
      h:signal "HUP"
      local reads = tonumber(hear("RELOADING=1"):match "\nMONOTONIC_USEC=(%d+)\n")
      assert.is_true(reads >= before * 1e6 - 1 and reads <= nst.clock() * 1e6)
      assert.is_nil(hear("READY=1"):find "could not")
      write(h.script, "return {\n hold = = 1 }")
      h:signal "HUP"
      hear "RELOADING=1"
      assert.is_truthy(hear("READY=1"):find("could not read its scripts again: " .. h.script .. ":2:", 1, true))

      assert(q:push "hold")
      h:wait_line "^holds"
      h:signal "TERM"
      local stops = hear "STOPPING=1"
      local extended = tonumber(stops:match "\nEXTEND_TIMEOUT_USEC=(%d+)\n")
      assert.is_true(extended > 70e6 and extended < 130e6, stops)
      assert.is_truthy(stops:find("2 workers, 1 at work", 1, true))
      write(done, "")
      assert.equal(0, h:wait())
    end)
  end

  it("hears a beat while the claim loop moves, and none while it does not", function()
    local h = host.start(url, "return { say = function() return 1 end }", nil, listen(nil, { WATCHDOG_USEC = 300000 }))
    assert.is_true(beats(0.5) >= 2)
    local thread
    for path in io.popen(("ls -d /proc/%d/task/*"):format(h.pid)):lines() do
      if io.open(path .. "/comm"):read "l" == "ns-dispatcher" then thread = tonumber(path:match "%d+$") end
    end
    assert(nst.hold(thread))
    assert.is_true(beats(1) <= 1)
    assert(nst.hold(thread, false))
    hear "WATCHDOG=1"
    local id = assert(q:push "say")
    eventually(function() return handle:job(id).state == "done" end)
    eventually(function() return hear("WATCHDOG=1\nSTATUS="):find("1 done", 1, true) end) -- older beats come first
    host.stop(h)
  end)

  it("hears beats while the database is away or frozen, and the status says so", function()
    local server = db.server()
    local h = host.start(server:fresh(), "return {}", nil, listen(nil, { WATCHDOG_USEC = 300000 }))
    server:freeze()
    assert.is_true(beats(1) >= 2)
    server:thaw()
    server:kill()
    eventually(function() return hear("STATUS="):find("waits for the database", 1, true) end)
    assert.is_true(beats(1) >= 2)
    h:signal "QUIT"
    hear "STOPPING=1"
    h:wait()
  end)

  it("hears no beats that were asked of another process", function()
    local h = host.start(url, "return {}", nil, listen(nil, { WATCHDOG_USEC = 100000, WATCHDOG_PID = 1 }))
    hear "READY=1"
    assert.equal(0, beats(0.3))
    host.stop(h)
  end)

  it("is not known to handlers and the programs that they start", function()
    local h = host.start(url, [[return { look = function()
      return { io.popen "env":read "a":match "NOTIFY_SOCKET=" or io.popen "env":read "a":match "WATCHDOG_%u+=" or "" }
    end }]], nil, listen(nil, { WATCHDOG_USEC = 60000000 }))
    local id = assert(q:push "look")
    assert.same({ "" }, eventually(function() return handle:job(id).result end))
    host.stop(h)
  end)

  it("that has gone costs a line of the log, and nothing else", function()
    local env = listen()
    nst.close(socket)
    nst.remove(name)
    local h = host.start(url, "return { say = function() return 1 end }", nil, env)
    h:wait_line 'event=service.unheard error="No such file or directory"'
    local id = assert(q:push "say")
    eventually(function() return handle:job(id).state == "done" end)
    host.stop(h)
    assert.equal(1, #host.events(h:transcript(), "service.unheard"))
    socket = assert(nst.datagrams(name)) -- for after_each
  end)
end)

-- Signals at bad moments: in the first milliseconds, again and again, and in
-- the middle of every system call.
describe("bad moments:", function()
  local url, name

  before_each(function() url, name = db.fresh() end)

  local function sql(text) return db.sql(text, name) end

  -- Processes with this text in their arguments or in their environment.
  local function with_text(text)
    local list = {}
    for path in io.popen "ls -d /proc/[0-9]* 2>/dev/null":lines() do
      for _, what in ipairs { "/cmdline", "/environ" } do
        local file <close> = io.open(path .. what, "rb")
        local line = file and file:read "a"
        if line and line:find(text, 1, true) then list[#list + 1] = path end
      end
    end
    return list
  end

  describe("SIGTERM to a host that is being born", function()
    local function leaves_nothing(delay, script)
      local path = fixture.file("jobs.lua", script)
      local h = host.spawn(url, path, nil, { ZZ_SCRIPT = path })
      nst.sleep(delay)
      h:signal "TERM"
      local how = h:wait(20)
      assert.is_true(how == 0 or how == "signal 15", how)
      eventually(function() return #with_text(path) == 0 end)
      return how
    end

    it("at any moment leaves no process, no job and nobody who holds one", function()
      local handle <close> = assert(nightshift.open(url))
      local id = assert(handle:queue "q":push "noop")
      for i = 0, 15 do leaves_nothing(i * i * 0.0005, "return { other = function() end }") end
      eventually(function() -- the server hears of an end a moment later
        return handle:rescue { wait = 0 } and sql "SELECT COUNT(*) FROM nightshift_holder WHERE dead IS NULL" == "0"
      end)
      assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_lease")
      assert(handle:cancel(id))
    end)

    it("while its handlers take for ever to load ends it at once", function()
      local start = nst.clock()
      assert.equal("signal 15", leaves_nothing(0.2, "while true do end"))
      assert.is_true(nst.clock() - start < proc.limit(20))
    end)
  end)

  describe("SIGTERM five times", function()
    it("in a row gives the running job back, whole, and leaves nobody", function()
      local handle <close> = assert(nightshift.open(url))
      local q = handle:queue "q"
      local h = host.start(url, [[return { sleep = function() os.execute "echo started; sleep 60" end }]])
      local id = q:push "sleep"
      h:wait_line "^started"
      local family = host.family(h.pid)
      h:signal "TERM" -- the kernel makes one of several that are not seen yet
      h:wait_line "host.drain"
      for _ = 1, 4 do
        h:signal "TERM"
        nst.sleep(0.002)
      end
      local how = h:wait(20)
      assert.is_true(how == 0 or how == 1, how) -- 1: it did not wait for its last verdicts
      host.await_gone(family)
      eventually(function() return handle:rescue { wait = 0 } and handle:job(id).state == "ready" end)
      local job = handle:job(id)
      assert.same({ 0, 0 }, { job.attempts, job.crashes })
      assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_lease")
    end)
  end)

  describe("a deployment under load", function()
    -- Version `n` of the scripts: it knows the jobs that version n - 1 knows, and `new n`.
    local function version(n, ran)
      return ([[local function note(job)
        local file <close> = io.open(%q, "a")
        file:write(job.id, " %d\n")
        require "nightshift.core".sleep(0.002)
      end
      local handlers = { note = note }
      for i = 1, %d do handlers["new " .. i] = note end
      return handlers]]):format(ran, n, n)
    end

    it("of five hosts, one after the other, loses nothing and runs nothing twice", function()
      local handle <close> = assert(nightshift.open(url))
      local q = handle:queue "q"
      local ran = fixture.file("ran", "")
      local ids, least = {}, {}
      -- Fifty jobs, the last five of which are for scripts from version `n` on.
      local function push(n)
        local items = {}
        for i = 1, 50 do items[i] = { i > 45 and "new " .. n or "note", i } end
        for i, id in ipairs(assert(q:push_many(items))) do
          ids[#ids + 1], least[tostring(id)] = id, i > 45 and n or 0
        end
      end
      push(1)
      local old = { host.start(url, version(1, ran)), host.start(url, version(1, ran)) }
      for n = 2, 4 do -- two hosts side by side, replaced one by one
        push(n) -- programs are deployed first: no old host takes what it does not know
        for i = 1, 2 do
          local new = host.start(url, version(n, ran))
          push(n)
          eventually(function() return tonumber((sql "SELECT COUNT(*) FROM nightshift_finished")) > n * 20 end, 60)
          old[i]:signal "TERM"
          assert.equal(0, old[i]:wait())
          old[i] = new
        end
      end
      eventually(function() return sql "SELECT COUNT(*) FROM nightshift_job" == "0" end, 60)
      for _, h in ipairs(old) do host.stop(h) end
      local seen = {}
      for line in io.lines(ran) do
        local id, by = line:match "^(%d+) (%d)$"
        seen[id] = (seen[id] or 0) + 1
        assert.is_true(tonumber(by) >= least[id], id)
      end
      for _, id in ipairs(ids) do assert.equal(1, seen[tostring(id)], id) end
      assert.equal(tostring(#ids), (sql "SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'"))
      assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_attempt")
    end)
  end)

  describe("a signal in every other system call", function()
    it("makes no verb of a program fail", function()
      local status, out, err = proc.run { proc.lua, "-e", ([[
      require "meddle"
      local nightshift = require "nightshift"
      local db = assert(nightshift.open(%q))
      local q = db:queue "q"
      local n = 0
      for i = 1, 150 do
        assert(q:push("job", { n = i }))
        assert(q:push("later", ("x"):rep(100000), { delay = 60 }))
        local job = assert(q:claim())
        assert(job:progress(0.5))
        assert(db:transaction(function(tx) return assert(tx:execute "SELECT 1 AS n")[1].n end) == 1)
        assert(job:ack(job.payload))
        n = n + 1
      end
      assert(not q:claim { wait = 0.5 })
      assert(db:lock "l"(function() return true end))
      assert(db:stats().counters.reconnects == 0)
      print(n)]]):format(url), timeout = 180 }
      assert.same({ 0, "150\n" }, { status, out }, err)
    end)

    local STORMY = [[
    local nightshift = require "nightshift"
    return {
      child = function(job) return job.payload end,
      work = function(job)
        require "meddle"
        job:log(("x"):rep(5000))
        job:spawn("child", ("y"):rep(200000))
        job:progress(0.5, "half")
        assert(job:db():execute "SELECT 1")
        local n = 0
        for i = 1, 1e6 do n = n + i % 2 end
        return { n, ("z"):rep(300000) }
      end,
    }]]

    local function works(env)
      local handle <close> = assert(nightshift.open(url))
      local items = {}
      for i = 1, 20 do items[i] = { "work", i, { max_attempts = 1 } } end
      assert(handle:queue "q":push_many(items))
      local h = host.start(url, STORMY, nil, env)
      eventually(function()
        return sql "SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done' AND crashes = 0" == "40"
      end, 180)
      h:signal "TERM"
      assert.equal(0, h:wait())
      assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_attempt")
      assert.is_nil(h:transcript():find "level=error", h:transcript())
    end

    it("makes no worker fail", function() works {} end)

    it("makes no host fail", function()
      if os.getenv "SAN" then return pending "sanitizers want to be loaded first" end
      works { LD_PRELOAD = proc.build .. "/meddle.so", MEDDLE_STORM = 1 }
    end)
  end)
end)
