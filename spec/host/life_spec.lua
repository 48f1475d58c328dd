-- A host's start and its end. Faults that keep a host from starting. How signals stop it, reload
-- its scripts and pause it, at good moments and at bad ones. `work --drain`: the jobs it waits for,
-- the jobs it leaves, and how a host ends.

local core = require "nightshift.core"
local db = require "spec.support.db"
local designs = require "spec.support.designs"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proc".proxy

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
    local server = db.spare()
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

    it("of hosts, one after the other, loses nothing and runs nothing twice", function()
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
      for n = 2, 3 do -- two hosts side by side, replaced one by one
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
      for i = 1, 50 do
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
      assert.same({ 0, "50\n" }, { status, out }, err)
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
        for i = 1, 3e5 do n = n + i % 2 end
        return { n, ("z"):rep(300000) }
      end,
    }]]

    local function works(env)
      local handle <close> = assert(nightshift.open(url))
      local items = {}
      for i = 1, 8 do items[i] = { "work", i, { max_attempts = 1 } } end
      assert(handle:queue "q":push_many(items))
      local h = host.start(url, STORMY, nil, env)
      eventually(function()
        return sql "SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done' AND crashes = 0" == "16"
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

-- ----- drains

-- `work --drain` is about what this host may run: its queues that are not paused, the names
-- that it claims, its tables. Of those it waits for what is due soon, and says so. What it
-- leaves because no script here can run it has exit status 3.
describe("drains:", function()
  local SCRIPT <const> = "return { a = function() end, b = function() end, c = function() end }"
  local AWAY <const> = 40 -- seconds: within what a drain waits for, and longer than a test waits
  local PROMPT <const> = 15

  local handle, q, url, name
  with_database(function(...) handle, q, url, name = ... end)

  local function push(queue, job, delay)
    return assert(handle:queue(queue):push(job, nil, { delay = delay or nil }))
  end

  --- Drains with these arguments; exit status and host. Raises when it takes long.
  local function drain(args)
    local h = host.spawn(url, SCRIPT, { "--drain", "--log", "json", table.unpack(args) })
    return h:wait(PROMPT), h
  end

  local function stderr(h) return (select(2, h:text())) end

  describe("a drain does not wait for", function()
    before_each(function()
      push("still", "a")
      assert(handle:queue("still"):pause())
    end)

    -- arguments, the jobs that are left as queue and name, exit status with them
    local CASES <const> = {
      { "another queue than those of --queues", { "--queues", "q" }, { { "other", "a" } }, 0 },
      { "a name without handler in another queue", { "--queues", "q" }, { { "other", "x" } }, 0 },
      { "a paused queue", {}, { { "still", "a" } }, 0 },
      { "a name without handler in a paused queue", {}, { { "still", "x" } }, 0 },
      { "a paused queue among --queues", { "--queues", "q,still" }, { { "still", "a" } }, 0 },
      { "a name without handler", {}, { { "q", "x" } }, 3 },
      { "a name without handler in --queues", { "--queues", "q" }, { { "q", "x" } }, 3 },
      { "a name that is not among --only", { "--only", "a" }, { { "q", "b" } }, 3 },
      { "both, without handler and not among --only", { "--only", "a" }, { { "q", "b" }, { "q", "x" } }, 3 },
      { "names and queues of others", { "--only", "a", "--queues", "q" }, { { "other", "a" }, { "other", "b" } }, 0 },
      { "all of it together", { "--only", "a", "--queues", "q,still" },
        { { "q", "b" }, { "q", "x" }, { "other", "a" }, { "other", "x" }, { "still", "a" } }, 3 },
    }

    -- The names that stand for these among jobs that are scheduled, so that both kinds are in one run.
    local LATER <const> = { a = "a", b = "c", x = "y" }

    local function run(args, left)
      local own = push("q", "a")
      for _, job in ipairs(left) do
        push(job[1], job[2])
        push(job[1], LATER[job[2]], AWAY)
      end
      local status, h = drain(args)
      return { status = status, own = handle:job(own).state, waits = host.logged(h, "drain.waits"), log = stderr(h) }
    end

    for _, case in ipairs(CASES) do
      local what, args, left, code = table.unpack(case)
      local ran
      for when, later in pairs { ready = false, scheduled = true } do
        it(("%s, %s, beside a job of its own"):format(what, when), function()
          ran = ran or run(args, left)
          assert.equal(code, ran.status, ran.log)
          assert.equal("done", ran.own)
          assert.same({}, ran.waits)
          for _, job in ipairs(left) do
            local named = later and ("'%s' (1 in queue '%s', due soon"):format(LATER[job[2]], job[1])
              or ("'%s' (1 in queue '%s'"):format(job[2], job[1])
            assert.equal(code == 3 and job[1] == "q", ran.log:find(named, 1, true) ~= nil, ran.log)
          end
        end)
      end
    end

    it("what is due later than --drain-within, whoever could run it", function()
      for _, job in ipairs { "a", "x" } do push("q", job, AWAY) end
      assert.equal(0, (drain { "--drain-within", "5s" }))
    end)

    it("a scheduled job that was cancelled", function()
      assert(handle:cancel(push("q", "a", AWAY)))
      assert.equal(0, (drain {}))
    end)

    it("a cancelled one that it has been waiting for, longer than for the next", function()
      local late, soon = push("q", "a", AWAY), push("q", "a", 1)
      local h = host.spawn(url, SCRIPT, { "--drain", "--log", "json" })
      eventually(function() return host.logged(h, "drain.waits")[1] end)
      assert(handle:cancel(late))
      assert.equal(0, h:wait(PROMPT))
      assert.equal("done", handle:job(soon).state)
    end)

    it("jobs of queues, when it serves tables only", function()
      db.sql("CREATE TABLE mails (id INT PRIMARY KEY AUTO_INCREMENT, state VARCHAR(9) NOT NULL DEFAULT 'new')", name)
      db.sql("INSERT INTO mails () VALUES (), ()", name)
      local away = push("q", "a", AWAY)
      push("q", "x", AWAY)
      local map = fixture.file("map.lua", [[return { table = "mails", name = "a",
      status = { column = "state", open = "new", processing = "busy", done = "sent" } }]])
      assert.equal(0, (drain { "--adopt", map }))
      assert.equal("2", db.sql("SELECT COUNT(*) FROM mails WHERE state = 'sent'", name))
      assert(handle:cancel(away))
      local own = push("q", "a", 1)
      assert.equal(3, (drain { "--adopt", map, "--queues", "q" }))
      assert.equal("done", handle:job(own).state)
    end)
  end)

  --- µs since 1970 of "2025-01-31T12:00:00.000Z", by the server.
  local function instant(text)
    local s = text:match "^(%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%d%.%d+)Z$"
    return s and tonumber(db.sql(("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', '%s')"):format(s)))
  end

  describe("a drain waits for", function()
    it("what it may run and is due soon, and says what and until when", function()
      local first, last = push("q", "a", 1), push("other", "b", 1.5)
      push("q", "x", 1.2)
      push("q", "a", 600)
      local due = db.sql(("SELECT MIN(run_at), MAX(run_at) FROM nightshift_scheduled WHERE job_id IN (%d, %d)")
        :format(first, last), name)
      local status, h = drain {}
      assert.equal(3, status)
      for _, id in ipairs { first, last } do assert.equal("done", handle:job(id).state) end
      local waits = host.logged(h, "drain.waits")
      assert.equal(1, #waits)
      local said = waits[1]
      assert.same({ 2, "a", "q" }, { said.jobs, said.name, said.queue })
      local from, to = due:match "(%d+)\t(%d+)"
      assert.same({ from // 1000, to // 1000 }, { instant(said.next) // 1000, instant(said["until"]) // 1000 })
    end)

    it("jobs behind more cancelled ones than it claims at once", function()
      local gone = {}
      for i = 1, 25 do gone[i] = push("q", "a") end
      local own = push("q", "a")
      for _, id in ipairs(gone) do assert(handle:cancel(id)) end
      assert.equal(0, (drain { "--workers", "1" }))
      assert.equal("done", handle:job(own).state)
    end)

    it("a retry of its own", function()
      assert(q:push("flaky", nil, { backoff = "1s" }))
      local h = host.spawn(url, [[return { flaky = function(job)
      if job.attempt == 1 then error "no" end end }]], { "--drain", "--log", "json" })
      assert.equal(0, h:wait(PROMPT))
      assert.equal(1, host.logged(h, "drain.waits")[1].jobs)
    end)

    -- The look below the floor began behind the last job that came back, and passed for a whole
    -- one.
    it("all jobs that came back from behind a long one, among rows of other names", function()
      local others, short = {}, {}
      for n = 1, 1000 do others[n] = { "x", n } end
      for _ = 1, 40 do assert(q:push_many(others)) end
      for n = 1, 15 do short[n] = { "a" } end
      assert(q:push_many(short))
      local over = fixture.dir() .. "/over"
      assert(q:push("stay", over))
      local h = host.spawn(url, [[
        local nst = require "nst"
        return {
          a = function() end,
          long = function(job)
            nst.sleep(0.2)
            io.open(job.payload, "w"):close()
          end,
          stay = function(job) while not io.open(job.payload) do nst.sleep(0.01) end end,
        }]], { "--drain", "--workers", "2", "--only", "a,long,stay" })
      eventually(function() return #handle:jobs { name = "a", state = "done" } == 15 end)
      assert(q:pause()) -- so that jobs with an instant each are claimed together
      assert(q:push("long", over))
      for _ = 1, 15 do assert(q:push "a") end
      assert(q:resume())
      assert.equal(3, h:wait(60), stderr(h))
      assert.same({ { n = 0 } }, handle:execute "SELECT COUNT(*) AS n FROM nightshift_job WHERE name <> 'x'")
    end)

    it("rows of its tables", function()
      db.sql([[CREATE TABLE mails (id INT PRIMARY KEY AUTO_INCREMENT, state VARCHAR(9) NOT NULL DEFAULT 'new',
      due DATETIME(6) NULL)]], name)
      db.sql("INSERT INTO mails (due) VALUES (UTC_TIMESTAMP(6) + INTERVAL 4 SECOND)", name)
      local map = fixture.file("map.lua", [[return { table = "mails", name = "a",
      retry_after = "due", status = { column = "state", open = "new", processing = "busy", done = "sent" } }]])
      local status, h = drain { "--adopt", map }
      assert.equal(0, status, stderr(h))
      assert.equal("1", db.sql("SELECT COUNT(*) FROM mails WHERE state = 'sent'", name))
    end)
  end)

  describe("what a drain asks", function()
    before_each(function()
      db.sql "SET GLOBAL log_output = 'TABLE'; TRUNCATE mysql.general_log; SET GLOBAL general_log = ON"
    end)
    after_each(function() db.sql "SET GLOBAL general_log = OFF" end)

    local function looks()
      return tonumber(db.sql [[SELECT COUNT(*) FROM mysql.general_log
      WHERE command_type = 'Execute' AND argument LIKE '%AS upcoming%']])
    end

    it("is nothing more when nothing is due soon", function()
      push("q", "a")
      push("q", "a", 600)
      assert.equal(0, (drain {}))
      assert.equal(0, looks())
    end)

    it("is a look when what is due soon is others', however much it is", function()
      push("q", "a")
      push("other", "a") -- makes the queue
      db.sql([[INSERT INTO nightshift_scheduled (run_at, job_id, queue_id, `rank`, run, kind)
      SELECT (UNIX_TIMESTAMP() + 30) * 1000000 + s.seq, 900000000 + s.seq, k.id, 155, 1, CRC32('a')
      FROM seq_1_to_100000 s JOIN nightshift_queue k ON k.name = 'other']], name)
      assert.equal(0, (drain { "--queues", "q" }))
      local n = looks() -- a second one when the first is more than a second old
      assert.is_true(n == 1 or n == 2, n)
    end)
  end)
end)

local SLOW <const> = 25 -- ms for each answer of the server

-- `work --drain` ended with 0, "nothing left to do", while rows of an adopted table were open.
-- A claim had looked just before they were due, at the full second, and the question what comes
-- due later was asked just after it. Slow answers make that moment long. And where answers take
-- more than 3 ms it never ended once jobs of a queue had come back. The next look for late
-- commits then counted as a job that is due soon.
describe("a drain", function()
  local handle, q, url
  with_database(function(...) handle, q, url = ... end)

  local RETURNS <const> = 3 -- of each row

  -- Each job comes back a second later until it has run often enough.
  local function script(folder)
    return ([[
    local function run(job)
      local path = %q .. "/" .. (job.payload and job.payload.tag or job.id)
      local file <close> = assert(io.open(path, "a+"))
      local n = select(2, file:read("a"):gsub("x", ""))
      file:write "x"
      file:flush()
      if n < %d then return job:again(1) end
    end
    return { queue_table = run, resize = run }]]):format(folder, RETURNS)
  end

  local function drain(...)
    local way = proxy.start(db.shared())
    way:tell("delay " .. SLOW)
    local h = host.spawn(way:url(url), script(fixture.dir()), { "--drain", ... })
    local status = h:wait(120)
    return status, (select(2, h:text()))
  end

  it("ends when all rows are done that came due while it looked", function()
    designs.create(handle, "queue_table", 2)
    local status, log = drain("--adopt", designs.file "queue_table")
    assert.equal(0, status, log)
    local rows = assert(handle:execute "SELECT status, COUNT(*) AS n FROM queue_table GROUP BY status")
    assert.same({ { status = "processed", n = 2 } }, rows, log)
  end)

  it("ends when all jobs of a queue are done that did", function()
    for i = 1, 2 do assert(q:push("resize", { tag = "job" .. i })) end
    local status, log = drain()
    assert.equal(0, status, log)
    assert.equal(2, #assert(handle:jobs { state = "done" }), log)
  end)
end)

-- Where answers take more than a millisecond a look for due jobs below the floor rests, and is open
-- until then. It goes on with the next claim, and a host whose queues are all paused makes none:
-- its drain never ended.
describe("a drain whose only queue is paused", function()
  local handle, q, url
  with_database(function(...) handle, q, url = ... end)

  it("ends, also when it had not looked everywhere yet", function()
    local go = fixture.dir() .. "/go"
    local way = proxy.start(db.shared())
    way:tell("delay " .. SLOW)
    local long = assert(q:push("long", go))
    local h = host.start(way:url(url), [[return {
      noop = function() end,
      long = function(job) while not io.open(job.payload) do require "nightshift.core".sleep(0.01) end end,
    }]], { "--drain", "--queues", "q" })
    local last
    for _ = 1, 4 do last = assert(q:push "noop") end
    eventually(function() return handle:job(last).state == "done" end)
    assert(q:pause())
    assert(io.open(go, "w")):close()
    assert.equal(0, h:wait(30), h:transcript())
    assert.equal("done", handle:job(long).state)
  end)
end)

-- While the only worker of a queue was forked anew, claims for the other queues found nothing
-- twice. So the drain ended without the job that had crashed.
describe("a drain whose workers are all reserved", function()
  local handle, q, url
  with_database(function(...) handle, q, url = ... end)

  it("ends when the queue of a worker that dies is empty, too", function()
    for i = 1, 9 do assert(q:push("crash", i, { max_crashes = 100 })) end
    assert(handle:queue("p"):push "noop")
    local h = host.spawn(url, ([[return {
      noop = function() end,
      crash = function(job)
        local path = ("%s/%%d"):format(job.id)
        if io.open(path) then return end
        io.open(path, "w"):close()
        os.execute "kill -9 $PPID"
      end,
    }]]):format(fixture.dir()), { "--drain", "--queues", "q,p", "--reserve", "q=1", "--reserve", "p=1" })
    assert.equal(0, h:wait(60), h:transcript())
    assert.same({}, handle:jobs { state = "ready" })
    assert.equal(10, #handle:jobs { state = "done" })
  end)
end)

-- `work --drain` over more than eight queues never ended when the last row of one of them had
-- been committed late. The look that found it was to be followed by another, which no queue
-- gets that one question for all has told to be empty.
describe("a drain of many queues", function()
  local handle, q, url
  with_database(function(...) handle, q, url = ... end)

  local QUEUES <const> = 12
  local SCRIPT = [[return {
  noop = function() end,
  long = function(job)
    local sleep = require "nightshift.core".sleep
    while not io.open(job.payload) do sleep(0.02) end
  end }]]

  it("ends though one of them had a row that was committed late", function()
    for i = 1, QUEUES do assert(handle:queue("other" .. i):push "noop") end
    local go = fixture.dir() .. "/go"
    assert(handle:queue("other1"):push("long", go))
    local other <close> = assert(nightshift.open(url))
    local early, h
    assert(other:transaction(function(tx)
      early = assert(tx:queue("q"):push "noop")
      local later = assert(q:push "noop")
      h = host.spawn(url, SCRIPT, { "--drain", "--workers", "2" })
      eventually(function() return handle:job(later).state == "done" end)
      core.sleep(0.1) -- the floor of the queue is above the early row now
      return true
    end))
    eventually(function() return handle:job(early).state == "done" end, 60)
    assert(io.open(go, "w")):close()
    assert.equal(0, h:wait(30), (select(2, h:text())))
  end)
end)

-- A second TERM that came when a host had written everything and was leaving made it end with
-- 1. That is the status of a host that has given verdicts up.
describe("a host that is told to stop again and again", function()
  it("ends with 0 when there is nothing to give up", function()
    local h = host.start(db.fresh(), "return { noop = function() end }")
    for _ = 1, 100 do
      if h:ended() then break end
      h:signal "TERM"
      nst.sleep(0.001)
    end
    assert.equal(0, h:wait())
  end)
end)

-- A host that was told to end had five seconds for its last statements, whatever its drain
-- timeout. A server that was busy with 300 hosts at once took longer: "host.give_up" and exit
-- code 1, though everything was written.
describe("while the server is frozen a host without jobs", function()
  local SCRIPT = "return { a = function() end }"
  local FROZEN = 7 -- s: longer than that

  local server, url, name
  setup(function() server = db.spare() end)
  before_each(function() url, name = server:fresh() end)
  after_each(function() server:thaw() end)

  -- The log may say that the server is frozen, which it is; no other error.
  local function no_error(h)
    for line in h:transcript():gmatch "[^\n]+" do
      assert.is_true(not line:find("level=error", 1, true) or line:find("event=db.frozen", 1, true) ~= nil, line)
    end
  end

  local function told_to_end(...)
    local h = host.start(url, SCRIPT, { ... })
    eventually(function() -- no claim is under way
      return server:sleepers(name) == 1 and server:sql("SELECT workers FROM nightshift_holder", name) == "2"
    end)
    server:freeze()
    h:signal "TERM"
    h:wait_line("host.drain", 20)
    return h
  end

  it("waits for it to say goodbye, and ends with 0", function()
    local h = told_to_end()
    nst.sleep(FROZEN)
    assert.is_nil(h:transcript():find("host.end", 1, true))
    server:thaw()
    assert.equal(0, h:wait(20), h:transcript())
    no_error(h)
    h:wait_line "host.end code=0"
    assert.equal("0", server:sql("SELECT COUNT(*) FROM nightshift_holder", name))
  end)

  it("ends with 0 when its drain timeout is over, for nothing is lost", function()
    local h = told_to_end("--drain-timeout", "1s")
    local since = nightshift.clock()
    assert.equal(0, h:wait(40), h:transcript())
    local took = nightshift.clock() - since
    assert.is_true(took < proc.limit(25), took) -- without it: 30 s
    no_error(h)
  end)

  it("ends sooner when it is told again", function()
    local h = told_to_end()
    local since = nightshift.clock()
    h:signal "TERM"
    assert.equal(0, h:wait(40), h:transcript())
    local took = nightshift.clock() - since
    assert.is_true(took < proc.limit(25), took) -- not told again: 30 s
  end)
end)

-- A host that is to end while its server is away used to crash. What it did after a reconnect
-- that was given up (the look for claims that its memory has lost) took the connection for
-- granted. And its upkeep's thread, which was about to try to connect again, was left alone
-- with memory that was freed.
describe("hosts that have lost their server for seconds", function()
  local HOSTS = 6

  it("end well", function()
    local server = db.spare()
    local url = server:fresh()
    local hosts = {}
    for i = 1, HOSTS do hosts[i] = host.start(url, "return {}", { "--workers", "1" }) end
    server:kill() -- the last ones are about to write what they serve
    for _, h in ipairs(hosts) do h:wait_line("db.lost", 20) end
    nst.sleep(2.5) -- from now on seconds lie between two tries
    for _, h in ipairs(hosts) do h:signal "TERM" end
    for _, h in ipairs(hosts) do assert.equal(0, h:wait(60), h:transcript()) end
  end)
end)
