-- Effects of handlers on their worker, their host and their neighbours: finalisers that go
-- wrong, floods, leaks, forks, and changes left behind in a process. Batch handlers: many jobs in
-- one call, a verdict for each. How a batch is put together, and the jobs of one that is stopped,
-- whose worker or host dies, or whose queue is paused.

local handlers = require "nightshift.handlers"
local host = require "spec.support.host"
local nst = require "nst"
local proc = require "spec.support.proc"

-- What handlers do to their worker, their host and their neighbours: finalisers
-- that go wrong, floods, leaks, forks without end.
describe("handlers:", function()
  local url, handle, q

  with_database(function(...) handle, q, url = ... end)

  local ONCE = { max_attempts = 1 }

  local function ended(id, timeout)
    return eventually(function()
      local job = handle:job(id)
      return (job.state == "done" or job.state == "dead") and job
    end, timeout)
  end

  local function stop(h)
    h:signal "TERM"
    assert.equal(0, h:wait(), h:transcript())
  end

  -- A host below a shell that sets limits first; its process is the host.
  local function limited(limits, script, args)
    local path = fixture.file("jobs.lua", script)
    assert(os.execute(("chmod 755 '%s' && chmod 644 '%s'"):format(path:match "^(.*)/", path)))
    local options = { "bash", "-c", limits .. [[; exec "$@"]], "bash", proc.program, "work", path, "--workers", "1",
      table.unpack(args or {}) }
    options.env = { NIGHTSHIFT_URL = url }
    local h = proc.start(options)
    h:wait_line("host.ready", 20)
    return h
  end

  describe("a finaliser of a handler", function()
    local SCRIPT = [[
    local function with(meta) return setmetatable({}, meta) end
    return {
      gc_error = function()
        with { __gc = function() error "from __gc" end }
        collectgarbage()
        collectgarbage()
        return "fine"
      end,
      close_error = function()
        local _ <close> = with { __close = function() error "from __close" end }
        return "fine"
      end,
      close_over_error = function()
        local _ <close> = with { __close = function(_, e) error("after " .. tostring(e), 0) end }
        error("first", 0)
      end,
      gc_loop = function()
        with { __gc = function() while true do end end }
        collectgarbage()
        collectgarbage()
      end,
      leaves = function()
        kept = with { __gc = function() while true do end end }
        return "left"
      end,
      noop = function() return "ran" end,
    }]]

    it("that raises in __gc harms nobody", function()
      local h = host.start(url, SCRIPT)
      assert.equal("fine", ended(q:push("gc_error", nil, ONCE)).result)
      assert.equal("ran", ended(q:push("noop", nil, ONCE)).result)
      assert.is_nil(host.death(h:transcript()))
      stop(h)
    end)

    it("that raises in __close fails the job, with what it raised", function()
      local h = host.start(url, SCRIPT)
      local job = ended(q:push("close_error", nil, ONCE))
      assert.equal("dead", job.state)
      assert.matches("jobs.lua:%d+: from __close", job.error)
      assert.matches("^after first", ended(q:push("close_over_error", nil, ONCE)).error)
      stop(h)
    end)

    it("that loops in __gc, where no hook reaches, ends at the timeout with its worker", function()
      local h = host.start(url, SCRIPT, { "--workers", "1" })
      local start = nst.clock()
      local job = ended(q:push("gc_loop", nil, { timeout = 0.2, max_attempts = 1 }))
      assert.is_true(nst.clock() - start < proc.limit(20))
      assert.same({ "dead", 0 }, { job.state, job.crashes })
      assert.matches("^timeout after 0.2 s", job.error)
      assert.equal("ran", ended(q:push("noop", nil, ONCE)).result)
      stop(h)
    end)

    it("that would loop at the end of its worker is not run", function()
      local h = host.start(url, SCRIPT, { "--workers", "1" })
      assert.equal("left", ended(q:push("leaves", nil, ONCE)).result)
      local start = nst.clock()
      stop(h)
      assert.is_true(nst.clock() - start < proc.limit(5)) -- waited for: 6 s
      assert.is_nil(h:transcript():find "host.stop")
    end)
  end)

  describe("a flood of a handler", function()
    local function peak(pid) -- KiB
      local file <close> = io.open(("/proc/%d/status"):format(pid))
      return tonumber(file:read("a"):match "VmHWM:%s*(%d+)")
    end

    it("in job:log is kept to its last lines, and delays nobody else's job", function()
      local h = host.start(url, [[return {
      flood = function(job)
        print "floods"
        local i = 0
        repeat
          i = i + 1
          job:log(("line %d "):format(i) .. ("x"):rep(100))
        until i >= 40000 and i % 1000 == 0 and io.open(job.payload)
        error("enough " .. i, 0)
      end,
      noop = function() end }]])
      ended(q:push("noop", nil, ONCE))
      local before, enough = peak(h.pid), fixture.dir() .. "/enough"
      local id = q:push("flood", enough, ONCE)
      h:wait_line "^floods"
      ended(q:push("noop", nil, ONCE))
      assert.equal("running", handle:job(id).state)
      assert(io.open(enough, "w")):close()
      local lines = assert(ended(id, 120).error:match "^enough (%d+)")
      assert.is_true(os.getenv "SAN" ~= nil or peak(h.pid) - before < 16 * 1024, peak(h.pid) - before)
      local log = handle:execute("SELECT log FROM nightshift_attempt WHERE job_id = ?", id)[1].log
      assert.is_true(#log <= 16384 and log:find("line " .. lines .. " ", 1, true) ~= nil)
      stop(h)
    end)

    it("on stdout and stderr passes the host by", function()
      local path = fixture.file("jobs.lua", [[return {
      flood = function()
        io.stderr:write "floods\n"
        local line = ("x"):rep(1000) .. "\n"
        for _ = 1, 40000 do io.write(line) end
        return "done"
      end,
      noop = function() end }]])
      local h = proc.start { "sh", "-c", [[exec "$@" >/dev/null]], "sh", proc.program, "work", path,
        "--workers", "2", env = { NIGHTSHIFT_URL = url } }
      h:wait_line("host.ready", 20)
      local before = peak(h.pid)
      local id = q:push("flood", nil, ONCE)
      h:wait_line "^floods"
      local start = nst.clock()
      ended(q:push("noop", nil, ONCE))
      assert.is_true(nst.clock() - start < proc.limit(10))
      assert.equal("done", ended(id, 120).result)
      assert.is_true(os.getenv "SAN" ~= nil or peak(h.pid) - before < 16 * 1024, peak(h.pid) - before)
      stop(h)
    end)
  end)

  describe("a C module that takes memory without end", function()
    if os.getenv "SAN" then return pending "sanitizers have an allocator of their own" end

    local MODULE = [[
  #include <lua.h>
  #include <stdlib.h>
  #include <string.h>
  static int hog(lua_State *L) {
    int n = 0;
    for (char *p; n < 2000 && (p = malloc(1 << 20)) != NULL; n++) memset(p, 1, 1 << 20);
    lua_pushinteger(L, n);
    return 1;
  }
  int luaopen_hog(lua_State *L) { lua_pushcfunction(L, hog); return 1; }]]

    it("gets none beyond the limit; its worker goes on", function()
      local cpath = fixture.module("hog", MODULE)
      local h = host.start(url, [[return {
      hog = function() return require "hog"() end,
      noop = function() return "ran" end,
    }]], { "--workers", "1", "--memory", "8M" }, { LUA_CPATH = proc.build .. "/?.so;" .. cpath })
      local job = ended(q:push("hog", nil, ONCE))
      assert.same({ "done", 0 }, { job.state, job.crashes }, job.error)
      assert.is_true(job.result < 300, job.result)
      assert.equal("ran", ended(q:push("noop", nil, ONCE)).result)
      stop(h)
    end)
  end)

  describe("a handler that opens files without end", function()
    local SCRIPT = [[
    local function open(keep)
      local list = {}
      if keep then leaked = list end
      while true do list[#list + 1] = assert(io.open "/dev/null") end
    end
    return {
      leak = function() open(true) end,
      waste = function() open(false) end,
      some = function()
        local list = {}
        for i = 1, 4 do list[i] = assert(io.open "/dev/null") end
        return #list
      end,
    }]]

    it("fails by itself; the next job has files again", function()
      local h = limited("ulimit -n 80", SCRIPT)
      for _, name in ipairs { "waste", "leak" } do
        local job = ended(q:push(name, nil, ONCE))
        assert.same({ "dead", 0 }, { job.state, job.crashes })
        assert.matches("Too many open files", job.error)
        assert.equal(4, ended(q:push("some", nil, ONCE)).result)
      end
      assert.is_nil(host.death(h:transcript()))
      stop(h)
    end)
  end)

  describe("a handler that forks without end", function()
    local closed = proc.closed_to_nobody() -- for --user
    if closed then return pending(closed) end

    it("is ended at its timeout with all it forked; the host forks workers again", function()
      local h = limited("ulimit -u 60", [[return {
      bomb = function() os.execute "echo started; b() { b | b & sleep 1; }; b 2>/dev/null; sleep 60"
        while true do end end, -- when even the sleep could not be forked
      noop = function() return "ran" end,
    }]], { "--user", "nobody" })
      local id = q:push("bomb", nil, { timeout = 3, max_attempts = 1 })
      h:wait_line "^started"
      eventually(function() return #host.family(h.pid) > 20 end)
      assert.matches("^timeout after 3 s", ended(id, 40).error)
      assert.equal("ran", ended(q:push("noop", nil, { max_attempts = 5 }), 40).result)
      eventually(function()
        for _, pid in ipairs(host.family(h.pid)) do
          local name = host.name(pid)
          if name and not name:find "^ns%-" then return false end
        end
        return true
      end)
      stop(h)
    end)
  end)
end)

-- A handler printed after the reader of its output had gone, or wrote to a program that had
-- ended: SIGPIPE killed its worker. That was a crash of the job, and poison the third time.
describe("a handler that writes to nobody", function()
  local url, handle, q

  with_database(function(...) handle, q, url = ... end)

  local function result(id)
    local job = eventually(function()
      local job = handle:job(id)
      return (job.state == "done" or job.state == "dead") and job
    end)
    assert.same({ "done", 0 }, { job.state, job.crashes }, job.error)
    return job.result
  end

  it("goes on when the reader of standard output has gone", function()
    local path = fixture.dir() .. "/pipe"
    assert(os.execute("mkfifo " .. path))
    local reader = proc.start { "cat", path }
    local h = proc.start { "sh", "-c", [[exec "$@" >]] .. path, "sh", proc.program, "work",
      fixture.file("jobs.lua", [[return { print = function() print "hello" return "printed" end }]]),
      env = { NIGHTSHIFT_URL = url } }
    h:wait_line("host.ready", 20)
    reader:signal "KILL"
    reader:wait()
    assert.equal("printed", result(q:push("print", nil, { max_attempts = 1 })))
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("is told by its pipe, while programs it starts end by SIGPIPE as ever", function()
    local h = host.start(url, [[return {
      pipe = function()
        local p = io.popen("exec true", "w")
        os.execute "sleep 0.1"
        local ok, message
        repeat
          ok, message = p:write(("x"):rep(1000))
          if ok then ok, message = p:flush() end
        until not ok
        return message
      end,
      child = function() return select(2, os.execute "yes | head -n 1 >/dev/null; kill -PIPE $$") end,
    }]])
    assert.equal("Broken pipe", result(q:push("pipe", nil, { max_attempts = 1 })))
    assert.equal("signal", result(q:push("child", nil, { max_attempts = 1 })))
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

-- A child that a handler forked, and that returned from the handler or raised an error in it,
-- went on as a second worker. It was on the same socket, and its frames counted.
describe("a child that a handler forks", function()
  local url, handle, q, cpath

  with_database(function(...) handle, q, url = ... end)

  local MODULE = [[
#include <lua.h>
#include <lauxlib.h>
#include <unistd.h>
#include <sys/wait.h>
static int forks(lua_State *L) { lua_pushinteger(L, fork()); return 1; }
static int waits(lua_State *L) {
  int status = 0;
  waitpid((pid_t)luaL_checkinteger(L, 1), &status, 0);
  lua_pushinteger(L, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  return 1;
}
int luaopen_forking(lua_State *L) {
  static const luaL_Reg all[] = {{"fork", forks}, {"wait", waits}, {NULL, NULL}};
  luaL_newlib(L, all);
  return 1;
}]]

  setup(function() cpath = fixture.module("forking", MODULE) end)

  local SCRIPT = [[
local forking = require "forking"
local function both(child)
  return function(job)
    local pid = forking.fork()
    if pid == 0 then return child(job) end
    return "the parent's, of a child that ended with " .. forking.wait(pid)
  end
end
local function refused(...)
  if pcall(...) then os.exit(9) end
end
return {
  returns = both(function() return "the child's" end),
  raises = both(function() error "in the child" end),
  settles = both(function(job) job:fail "by the child" end),
  exits = both(function() os.exit(7) end),
  speaks = both(function(job)
    refused(job.touch, job)
    refused(job.progress, job, 0.5)
    refused(job.log, job, "by the child")
    refused(job.spawn, job, "noop")
  end),
  noop = function() end,
}]]

  it("has no say in how the job ends", function()
    local h = host.start(url, SCRIPT, { "--workers", "1" }, { LUA_CPATH = cpath })
    local worker = host.member(h.pid)
    local ends = { returns = 0, raises = 1, settles = 1, exits = 7, speaks = 0 }
    for name, status in pairs(ends) do
      local id = assert(q:push(name, nil, { max_attempts = 1 }))
      eventually(function() return handle:job(id).state:match "^d" end)
      assert.same({ name, "done", "the parent's, of a child that ended with " .. status },
        { name, handle:job(id).state, handle:job(id).result })
    end
    local ids = {}
    for i = 1, 200 do ids[i] = assert(q:push "noop") end
    eventually(function() return handle:job(ids[200]).state == "done" end)
    assert.same({ worker }, host.members(h.pid))
    assert.is_nil(h:transcript():find("by the child", 1, true), h:transcript())
    h:signal "TERM"
    assert.equal(0, h:wait())
    assert.is_nil(host.death(h:transcript()), h:transcript())
  end)
end)

-- No program that a handler started could gain rights, and there was no way to allow it. So
-- sendmail, with a helper of a group of its own, did not work in handlers.
describe("--allow-setuid", function()
  local url, handle, q
  with_database(function(...) handle, q, url = ... end)

  local SCRIPT = [[return {
  status = function() return io.open "/proc/self/status":read "a" end,
  helper = function(job) return io.popen(job.payload):read "l" end,
}]]

  local function ask(name, payload)
    local id = assert(q:push(name, payload))
    return eventually(function() return handle:job(id).result end, 20)
  end

  it("lets programs that handlers start gain rights", function()
    local h = host.start(url, SCRIPT, { "--allow-setuid" })
    assert.matches("NoNewPrivs:\t0", ask "status", 1, true)
    h:signal "TERM"
    assert.equal(0, h:wait(20))
  end)

  local closed = proc.closed_to_nobody()
  if closed then return pending(closed) end

  it("does so for those of another group, when workers run as somebody else", function()
    local file = fixture.file("jobs.lua", SCRIPT)
    local folder = file:match "^(.*)/"
    assert(os.execute(("chmod 755 '%s' && chmod 644 '%s' && cp /usr/bin/id '%s/helper'"
      .. " && chgrp mail '%s/helper' && chmod 2755 '%s/helper'"):format(folder, file, folder, folder, folder)))
    for group, args in pairs { mail = { "--user", "nobody", "--allow-setuid" }, nogroup = { "--user", "nobody" } } do
      local h = host.start(url, file, args)
      assert.equal(group, ask("helper", folder .. "/helper -gn"))
      h:signal "TERM"
      assert.equal(0, h:wait(20))
    end
  end)
end)

-- A job's current folder, umask, signal mask, locale, timers and stopped collector were those
-- of the next job in that worker. An alarm killed the job that ran when it rang.
describe("left in a process:", function()
  local handle, q, url
  with_database(function(...) handle, q, url = ... end)

  local MODULE = [[
#define _GNU_SOURCE
#include <lua.h>
#include <lauxlib.h>
#include <locale.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>
static int change(lua_State *L) {
  struct itimerval soon = {{0, 0}, {0, 100000}};
  sigset_t all;
  sigfillset(&all);
  sigdelset(&all, SIGALRM);
  sigprocmask(SIG_SETMASK, &all, NULL);
  umask(0);
  if (chdir("/") != 0) return luaL_error(L, "chdir");
  setlocale(LC_ALL, "C.UTF-8");
  lua_gc(L, LUA_GCSTOP);
  setitimer(ITIMER_REAL, &soon, NULL);
  setitimer(ITIMER_PROF, &soon, NULL);
  return 0;
}
static int state(lua_State *L) {
  struct itimerval real, prof;
  sigset_t mask;
  mode_t now = umask(0);
  char folder[4096];
  int blocked = 0;
  umask(now);
  getitimer(ITIMER_REAL, &real);
  getitimer(ITIMER_PROF, &prof);
  sigprocmask(SIG_SETMASK, NULL, &mask);
  for (int i = 1; i < 32; i++) blocked += sigismember(&mask, i) == 1;
  lua_pushfstring(L, "folder %s umask %d blocked %d locale %s collects %d timers %d",
    getcwd(folder, sizeof folder), (int)now, blocked, setlocale(LC_ALL, NULL), lua_gc(L, LUA_GCISRUNNING),
    (real.it_value.tv_sec | real.it_value.tv_usec | prof.it_value.tv_sec | prof.it_value.tv_usec) != 0);
  return 1;
}
int luaopen_changing(lua_State *L) {
  static const luaL_Reg all[] = {{"change", change}, {"state", state}, {NULL, NULL}};
  luaL_newlib(L, all);
  return 1;
}]]

  local cpath
  setup(function() cpath = fixture.module("changing", MODULE) end)

  local SCRIPT = [[
local changing = require "changing"
return {
  state = function() return changing.state() end,
  change = function() changing.change() end,
  fail = function() changing.change() error "failed" end,
  busy = function()
    local stop = os.clock() + 0.2
    while os.clock() < stop do end
    return changing.state()
  end,
}]]

  -- Runs jobs that change what they can in one worker of such a host, and looks after each.
  local function check(h)
    local function run(name)
      local id = assert(q:push(name, nil, { max_attempts = 1 }))
      eventually(function() return handle:job(id).state:match "^d" end)
      return handle:job(id).result
    end
    local before = run "state"
    for _, name in ipairs { "change", "fail" } do
      run(name)
      assert.equal(before, run "busy") -- an alarm would have rung meanwhile
    end
    h:signal "TERM"
    assert.equal(0, h:wait())
    assert.is_nil(host.death(h:transcript()), h:transcript())
  end

  it("what a job changes in its process is not there for the next one", function()
    check(host.start(url, SCRIPT, { "--workers", "1" }, { LUA_CPATH = cpath }))
  end)

  it("nor when the host itself has loaded the library, with a mapping", function()
    assert(handle:execute "CREATE TABLE task (id BIGINT PRIMARY KEY, status VARCHAR(10))")
    local mapping = fixture.file("mapping.lua", [[require "changing"
    return { table = "task", name = "task",
      status = { column = "status", open = "open", processing = "busy", done = "done" } }]])
    check(host.start(url, SCRIPT, { "--workers", "1", "--queues", "q", "--adopt", mapping },
      { LUA_CPATH = cpath }))
  end)
end)

-- What a script connected to while it was loaded was one connection for all workers, which read
-- each other's answers. And there was no place to open one per worker.
describe("connections of scripts:", function()
  local handle, q, url
  with_database(function(...) handle, q, url = ... end)

  local MODULE = [[
#include <lua.h>
#include <lauxlib.h>
#include <sys/socket.h>
#include <unistd.h>
static int opens(lua_State *L) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return luaL_error(L, "socketpair");
  lua_pushinteger(L, pair[0]);
  lua_pushinteger(L, pair[1]);
  return 2;
}
int luaopen_sockets(lua_State *L) {
  lua_newtable(L);
  lua_pushcfunction(L, opens);
  lua_setfield(L, -2, "open");
  return 1;
}]]

  local HOOKS = [[
local nightshift = require "nightshift"
local started, first = 0, nil
local function note(what)
  local file <close> = io.open(%q, "a")
  file:write(what, " ", io.open "/proc/self/stat":read "n", "\n")
end
nightshift.on("worker.start", function() started = started + 1 note "start" end)
nightshift.on("worker.start", function() error "not today" end)
nightshift.on("worker.start", function() started = started + 1 end)
nightshift.on("worker.stop", function() note "stop" end)
nightshift.on("worker.stop", function() error "nor tomorrow" end)
return { started = function() return started end }]]

  describe("a script", function()
    it("has functions run in each worker, at its start and at its orderly end", function()
      local path = fixture.file("notes", "")
      local h = host.start(url, HOOKS:format(path), { "--workers", "2", "--recycle", "4" })
      for _ = 1, 20 do
        local id = assert(q:push "started")
        eventually(function() return handle:job(id).state == "done" end)
        assert.equal(2, handle:job(id).result)
      end
      h:signal "TERM"
      assert.equal(0, h:wait())
      local seen, starts, stops = {}, 0, 0
      for line in io.lines(path) do
        local what, pid = line:match "^(%a+) (%d+)$"
        assert.equal(what == "stop", seen[pid] == "start", line)
        seen[pid] = what
        starts, stops = starts + (what == "start" and 1 or 0), stops + (what == "stop" and 1 or 0)
      end
      assert.is_true(starts >= 5, starts) -- 20 jobs, four at most in each
      assert.equal(starts, stops)
      local _, log = h:text()
      local errors = host.events(log, "worker.hook_failed")
      assert.is_true(#errors >= starts, log)
      assert.is_truthy(log:find "not today" and log:find "nor tomorrow", log)
    end)

    it("is told which sockets it left open as it was loaded", function()
      local script = [[
      local left, right = require "sockets".open()
      local db = assert(require "nightshift".open())
      return { ask = function() return db ~= nil and left .. " " .. right end }]]
      local h = host.start(url, script, nil, { LUA_CPATH = fixture.module("sockets", MODULE) })
      h:wait_line "event=script.sockets"
      local line = h:transcript():match "event=script.sockets[^\n]*"
      h:signal "TERM"
      assert.equal(0, h:wait())
      local _, count = line:gsub("descriptor %d+", "")
      assert.equal(2, count, line) -- and not the handle's
    end)

    it("that opens none is not", function()
      local h = host.start(url, "return { ask = function() end }")
      h:signal "TERM"
      assert.equal(0, h:wait())
      assert.is_nil(h:transcript():find "script.sockets", h:transcript())
    end)
  end)

  it("nightshift.on wants an event that there is, and a function", function()
    local nightshift = require "nightshift"
    assert.has_error(function() nightshift.on("worker.begin", print) end,
      "nightshift: on: the event must be 'worker.start', 'worker.stop', 'job.start', "
        .. "'job.done', 'job.failed' or 'job.dead', got 'worker.begin'")
    assert.has_error(function() nightshift.on("worker.stop", 1) end,
      "nightshift: on: 'worker.stop' wants a function, got number")
  end)
end)

-- What goes around handlers: checks of payloads, wrappers, pauses, hooks, verdicts that are raised,
-- and the end of the host.
describe("around a handler:", function()
  local nightshift = require "nightshift"
  local handle, q, url

  local function take(...) handle, q, url = ... end

  describe("in one host,", function()
    local serve = host.lend(take)

    before_each(function() assert(q:pause()) end)

    -- Runs what the test has pushed, with these scripts.
    local function drain(script)
      local h = serve(script)
      assert(q:resume())
      eventually(function() return #handle:jobs { state = "ready" } + #handle:jobs { state = "running" } == 0 end)
      return h
    end

    it("check ends jobs with payloads that it refuses, before anything runs", function()
      local ids = {}
      for i, payload in ipairs { { to = "a" }, {}, { to = 5 }, { to = "raise" }, { to = "silent" } } do
        ids[i] = q:push("m", payload)
      end
      drain [[return { m = {
        check = function(p)
          if p.to == "silent" then return end
          if p.to == "raise" then error("so not") end
          if p.to == nil then return nil, "no address" end
          return type(p.to) == "string"
        end,
        run = function(job) return "ran" end,
      } }]]
      local jobs = {}
      for i, id in ipairs(ids) do jobs[i] = handle:job(id) end
      assert.same({ "done", "dead", "dead", "dead", "done" },
        { jobs[1].state, jobs[2].state, jobs[3].state, jobs[4].state, jobs[5].state })
      assert.same({ "discarded", "payload refused: no address" }, { jobs[2].reason, jobs[2].error })
      assert.equal("payload refused: its check says false", jobs[3].error)
      assert.matches("payload refused: .*so not", jobs[4].error)
    end)

    it("around is called in the handler's place", function()
      local id = q:push("m", 5)
      local failed = q:push("m", 6, { max_attempts = 1 })
      drain [[return { m = {
        around = function(job, run) return "<" .. assert(run(job)) .. ">" end,
        run = function(job) if job.payload == 6 then return nil, "no" end return job.payload end,
      } }]]
      assert.equal("<5>", handle:job(id).result)
      assert.matches("no", handle:job(failed).error)
    end)

    it("backoff says when the next attempt comes", function()
      local fn, text = q:push "f", q:push("t", nil, { backoff = 500 })
      local told = q:push "r"
      drain [[return {
        f = { backoff = function(n, err) return err:find "no" and 100 * n end, run = function() return nil, "no" end },
        t = { backoff = "2m", run = function() return nil, "no" end },
        r = { backoff = 7, run = function(job) return job:fail("x", { retry_in = 1000 }) end },
      }]]
      local now = handle:execute "SELECT UNIX_TIMESTAMP(NOW(6)) AS t"[1].t
      local function wait(id) return handle:job(id).due - now end
      assert.is_true(wait(fn) > 90 - proc.limit(5) and wait(fn) <= 100)
      assert.is_true(wait(text) > 96 - proc.limit(5) and wait(text) <= 144)
      assert.is_true(wait(told) > 900)
    end)

    it("a backoff that fails leaves the job its own", function()
      local id = q:push("f", nil, { backoff = 100 })
      local h = drain [[return {
        f = { backoff = function() error "oh" end, run = function() return nil, "no" end } }]]
      assert.equal("scheduled", handle:job(id).state)
      h:wait_line "worker.hook_failed pid=%d+ on=backoff.*oh"
    end)

    it("an error in a hook changes nothing", function()
      q:push "ok"
      local h = drain [[
        require "nightshift".on("job.done", function() error "oh" end)
        return { ok = function() return "fine" end }]]
      assert.equal("done", handle:jobs { name = "ok" }[1].state)
      h:wait_line "worker.hook_failed.*oh"
    end)

    it("children and schedules are pushed with the queue and priority of their handler", function()
      q:push "parent"
      drain [[return {
        parent = function(job) job:spawn "kid" job:spawn("kid", nil, { queue = "own", priority = 3 }) end,
        kid = { queue = "kids", priority = 7, max_attempts = 3, every = "1h",
          run = function(job) return nil, "no" end },
      }]]
      local kids = {}
      for i, job in ipairs(handle:jobs { name = "kid" }) do
        local info = handle:job(job.id)
        kids[i] = ("%s %d"):format(info.queue, info.max_attempts)
      end
      table.sort(kids)
      assert.same({ "kids 3", "own 3" }, kids)
      local row = handle:schedules()[1]
      assert.same({ "kids", { priority = 7, max_attempts = 3 } }, { row.queue, row.options })
    end)

    it("discard and retry_in are raised from anywhere below", function()
      local gone, later, rolled = q:push "gone", q:push "later", q:push "rolled"
      drain [[
        local nightshift = require "nightshift"
        local function deep(fn, ...) local t = table.pack(fn(...)) return t end
        return {
          gone = function() deep(nightshift.discard, "no such user") return "never" end,
          later = function() deep(nightshift.retry_in, "10m", "greylisted") return "never" end,
          rolled = function(job)
            job:db():transaction(function(tx)
              tx:queue "q":push "child"
              nightshift.discard "half way"
            end)
          end,
        }]]
      local job = handle:job(gone)
      assert.same({ "dead", "discarded", "no such user" }, { job.state, job.reason, job.error })
      job = handle:job(later)
      assert.same({ "scheduled", 1 }, { job.state, job.attempts })
      assert.is_true(job.due - job.created > 590)
      assert.equal("discarded", handle:job(rolled).reason)
      assert.same({}, handle:jobs { name = "child" })
    end)
  end)

  describe("by itself,", function()
    with_database(take)

    local function drain(script, args) return host.drain(url, script, args) end

    it("max_attempts and timeout of a handler count where the push says nothing", function()
      local few, more, said = q:push "few", q:push "more", q:push("few", nil, { max_attempts = 4 })
      local slow, long = q:push "slow", q:push("slow", nil, { timeout = 30 })
      local stuck = q:push "stuck"
      drain([[
        local sleep = require "nightshift.core".sleep
        return {
          few = { max_attempts = 2, backoff = function() return 0.01 end, run = function() return nil, "no" end },
          more = { max_attempts = 12, backoff = function() return 0.01 end, run = function() return nil, "no" end },
          slow = { timeout = "300ms", max_attempts = 1, run = function()
            for _ = 1, 15 do sleep(0.1) end
            return "slow"
          end },
          stuck = { timeout = 0.2, max_attempts = 1, run = function() os.execute "exec sleep 60" end },
        }]], { "--drain-within", "1s", "--workers", "5" })
      local function of(id)
        local job = handle:job(id)
        return { job.state, job.attempts, job.max_attempts }
      end
      assert.same({ "dead", 2, 2 }, of(few))
      assert.same({ "dead", 12, 12 }, of(more))
      assert.same({ "dead", 4, 4 }, of(said))
      assert.same({ "dead", 1, 1 }, of(slow))
      assert.matches("timeout after 0.3 s", handle:job(slow).error)
      assert.same({ "dead", 1, 1 }, of(stuck))
      assert.matches("timeout after 0.2 s", handle:job(stuck).error)
      assert.equal("slow", handle:job(long).result)
    end)

    it("hooks run in order, beside the job", function()
      q:push "ok"
      q:push("no", nil, { max_attempts = 1 })
      q:push "bad"
      local h = host.start(url, [[
        local nightshift = require "nightshift"
        for _, event in ipairs { "job.start", "job.done", "job.failed", "job.dead" } do
          nightshift.on(event, function(job, a, b)
            print(("%s %s %s %s"):format(event, job.name, a, math.type(b) or tostring(b)))
            io.stdout:flush()
          end)
        end
        return {
          ok = function() return "fine" end,
          no = function() return nil, "broken" end,
          bad = function(job) return job:discard "never" end,
        }]])
      for _, line in ipairs { "job.start ok nil nil", "job.done ok fine float", "job.failed no broken float",
        "job.dead no failed broken", "job.dead bad discarded never" } do
        h:wait_line(line, 20)
      end
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)

    it("they end jobs of programs, too", function()
      local gone, later = q:push "gone", q:push "later"
      for job in q:jobs() do
        local ok, err = pcall(function()
          local claimed <close> = job
          if claimed.name == "gone" then nightshift.discard "no" end
          nightshift.retry_in(1000)
        end)
        assert.is_false(ok)
        assert.is_string(tostring(err))
      end
      assert.equal("discarded", handle:job(gone).reason)
      assert.equal("scheduled", handle:job(later).state)
      local ERROR = "SELECT error FROM nightshift_attempt WHERE job_id = ?"
      assert.equal("to be retried in 1000 s", handle:execute(ERROR, later)[1].error)
    end)

    it("they are verdicts of nightshift run", function()
      local script = fixture.file("jobs.lua", [[local n = require "nightshift"
        return { gone = function() n.discard "no" end, later = { run = function() n.retry_in("10m", "wait") end } }]])
      local _, out = proc.nightshift { "run", "gone", "--script", script }
      assert.matches("discard: no", out)
      _, out = proc.nightshift { "run", "later", "--script", script }
      assert.matches("fail, retry in 10m.*: wait", out)
    end)

    it("a long handler sees that its host drains", function()
      local id = q:push "long"
      local h = host.start(url, [[return { long = function(job)
        local n = 0
        while not job:stopping() do
          n = n + 1
          if n == 1 then
            print "begun"
            io.stdout:flush()
          end
          require "nightshift.core".sleep(0.01)
        end
        return job:again(0, { n = n })
      end }]])
      h:wait_line("begun", 20)
      h:signal "TERM"
      assert.equal(0, h:wait())
      local job = handle:job(id)
      assert.same({ "ready", 0 }, { job.state, job.attempts })
      assert.is_true(job.kept.n > 0)
    end)

    it("a checkpoint is there in the next run, whatever ended the last", function()
      local crash, fail, stop = q:push "crash", q:push "fail", q:push("stuck", nil, { timeout = 0.2 })
      drain([[
        local function go(how)
          return function(job)
            if job.state then return { job.state.n, job.attempt, job.crashes } end
            assert(job:checkpoint { n = 1 })
            assert(job:checkpoint { n = 7 })
            assert(job:checkpoint { n = 7 })
            return how(job)
          end
        end
        return {
          crash = go(function() os.execute "kill -9 $PPID" end),
          fail = { run = go(function() error "no" end), backoff = function() return 0 end },
          stuck = { run = go(function() while true do end end), backoff = function() return 0 end },
        }]], { "--drain-within", "8s" })
      assert.same({ 7, 1, 1 }, handle:job(crash).result)
      assert.same({ 7, 2, 0 }, handle:job(fail).result)
      assert.same({ 7, 2, 0 }, handle:job(stop).result)
    end)

    it("a checkpoint of a program is part of its transaction, and of a lost claim it is STALE", function()
      q:push "a"
      local job = q:claim()
      handle:transaction(function()
        assert(job:checkpoint "half")
        return nil, "no"
      end)
      assert.is_nil(handle:job(job.id).kept)
      assert.is_true(job:checkpoint { list = nightshift.array {} })
      assert.equal("running", handle:job(job.id).state)
      handle:cancel(job.id)
      assert.equal("STALE", select(3, job:checkpoint "late"))
      assert.has_error(function() job:checkpoint(print) end)
    end)

    it("mistakes are told when scripts are loaded", function()
      for body, message in pairs {
        ["check = 5"] = "check must be a function, got number",
        ["around = {}"] = "around must be a function, got table",
        ["backoff = true"] = "backoff must be seconds",
        ["backoff = 'soon'"] = "backoff: ",
        ["bakoff = 5"] = "unknown field 'bakoff'; known: around, backoff, batch, check",
      } do
        local script = fixture.file("jobs.lua", "return { x = { run = print, " .. body .. " } }")
        local status, _, err = proc.nightshift({ "run", "x", "--script", script })
        assert.not_equal(0, status)
        assert.matches(message, err, 1, true)
      end
      assert.has_error(function() nightshift.on("job.never", print) end)
    end)
  end)
end)

-- ----- batches

describe("a batch handler", function()
  local url, handle, q
  local function take(...) handle, q, url = ... end

  -- Handlers by name: `sizes` says in each result how many jobs there were, `pid` is of the worker.
  local SCRIPT = [[
    local core = require "nightshift.core"
    local function pid() return io.open "/proc/self/stat":read "a":match "^%d+" end
    local function has(jobs, word)
      for _, job in ipairs(jobs) do if job.payload == word then return true end end
    end
    local function sizes(jobs)
      local results = {}
      for i in ipairs(jobs) do results[i] = #jobs end
      return results
    end
  ]]

  local function start(text, args)
    return host.start(url, SCRIPT .. text, args or { "--workers", "1" })
  end

  local function stop(h)
    h:signal "TERM"
    assert.equal(0, h:wait(), h:transcript())
  end

  --- Pushes jobs with these payloads, in one commit.
  local function push(payloads, opts, name, queue)
    local list = {}
    for i, payload in ipairs(payloads) do list[i] = { name or "many", payload, opts } end
    return assert((queue or q):push_many(list))
  end

  local function numbers(n)
    local list = {}
    for i = 1, n do list[i] = i end
    return list
  end

  local function state(id) return handle:job(id).state end

  local function ended(ids, timeout)
    eventually(function()
      for _, id in ipairs(ids) do
        local now = state(id)
        if now ~= "done" and now ~= "dead" and now ~= "cancelled" then return false end
      end
      return true
    end, timeout)
    local jobs = {}
    for i, id in ipairs(ids) do jobs[i] = handle:job(id) end
    return jobs
  end

  --- Its first attempt that failed.
  local function attempt(id)
    return handle:execute("SELECT error, log FROM nightshift_attempt WHERE job_id = ? ORDER BY run", id)[1]
  end

  --- How many of the jobs were called together with how many.
  local function counts(jobs)
    local n = {}
    for _, job in ipairs(jobs) do n[job.result] = (n[job.result] or 0) + 1 end
    return n
  end

  describe("is called", function()
    local serve = host.lend(take, { "--workers", "1" })
    local function begin(text) return serve(SCRIPT .. text) end

    it("with full batches at once, and with the rest after `within`", function()
      begin "return { many = { run = sizes, batch = 10, within = 0.1 } }"
      local ids = push(numbers(25))
      assert.same({ [10] = 20, [5] = 5 }, counts(ended(ids)))
    end)

    it("with jobs that come while the first one waits, and with no other queue's or name's", function()
      begin "return { many = { run = sizes, batch = 4, within = 60 }, few = { run = sizes, batch = 3 } }"
      local other = handle:queue "other"
      local ids = push { 1 }
      local rest = push({ 1, 2 }, nil, nil, other)
      local few = push({ 1, 2, 3 }, nil, "few")
      assert.same({ [3] = 3 }, counts(ended(few)))
      for i = 2, 4 do
        assert.equal("running", eventually(function() return state(ids[1]) == "running" and "running" end))
        ids[i] = push { i }[1]
      end
      assert.same({ [4] = 4 }, counts(ended(ids)))
      assert.equal("running", state(rest[1]))
      push({ 3, 4 }, nil, nil, other)
      assert.same({ [4] = 2 }, counts(ended(rest)))
    end)

    it("by a worker that does other jobs meanwhile", function()
      begin "return { many = { run = sizes, batch = 4, within = 60 }, one = function() return 1 end }"
      local ids = push(numbers(3))
      eventually(function() return state(ids[3]) == "running" end)
      assert.same({ [1] = 3 }, counts(ended(push(numbers(3), nil, "one"))))
      ids[4] = push { 4 }[1]
      assert.same({ [4] = 4 }, counts(ended(ids)))
    end)
  end)

  describe("is called", function()
    with_database(take)

    it("with jobs of one claim, past those of other names, which keep their turn", function()
      local list = {}
      for i = 1, 100 do list[i] = { i % 2 == 0 and "many" or "one", i, { timeout = 60 } } end
      local ids = assert(q:push_many(list))
      local many, one = {}, {}
      for i, id in ipairs(ids) do table.insert(i % 2 == 0 and many or one, id) end
      local h = start [[return { one = function() return 1 end, many = { batch = 50, within = 60, run = function(jobs)
        print "holds"
        io.stdout:flush()
        while not jobs[1]:stopping() do core.sleep(0.01) end
      end } }]]
      h:wait_line("holds", 20)
      -- a lease is of a claim: the one that has found the first of them has taken the rest
      local leases = {}
      for _, row in ipairs(handle:execute "SELECT jobs FROM nightshift_lease") do
        for _, id in ipairs(many) do
          if row.jobs:find("[" .. id .. ",", 1, true) then leases[row.jobs] = true end
        end
      end
      assert.is_nil(next(leases, (next(leases))))
      assert.equal("running", state(many[1]))
      local second = start "return { one = function() return 1 end }"
      assert.same({ [1] = 50 }, counts(ended(one)))
      stop(h)
      stop(second)
    end)

    it("in each of its workers, also reserved ones and a process for each", function()
      for _, args in ipairs { { "--workers", "2", "--reserve", "q=1" }, { "--workers", "2", "--isolation", "job" } } do
        local ids = push(numbers(20))
        local h = start("return { many = { run = sizes, batch = 10, within = 60 } }", args)
        assert.same({ [10] = 20 }, counts(ended(ids)))
        stop(h)
      end
    end)
  end)

  describe("ends each job", function()
    local serve = host.lend(take, { "--workers", "1" })
    local function begin(text) return serve(SCRIPT .. text) end

    it("by its verb; the rest are done, with a table of results", function()
      begin [[return { many = { batch = 10, within = 60, run = function(jobs)
        local results = {}
        for i, job in ipairs(jobs) do
          local p = job.payload
          if p == "ack" then job:ack "by ack" end
          if p == "fail" then job:fail "no" end
          if p == "discard" then job:discard "never" end
          if p == "spawn" then job:spawn("child", i) end
          if p == "again" and job.polls == 0 then job:again(0, "kept") end
          if p == "again" and job.polls == 1 then job:ack(job.state) end
          if p == "log" then job:log "a line" job:fail "with a log" end
          results[i] = "by " .. p
        end
        return results
      end }, child = function() return "born" end }]]
      local ids = push({ "ack", "fail", "discard", "spawn", "again", "log", "return", "a", "b", "c" },
        { max_attempts = 1 })
      -- the one that comes again waits for a batch of its own
      eventually(function() return handle:job(ids[5]).polls == 1 and state(ids[5]) == "running" end)
      push(numbers(9))
      local jobs = ended(ids)
      local results = {}
      for i = 1, 8 do results[i] = jobs[i].result or false end
      assert.same({ "by ack", false, false, "by spawn", "kept", false, "by return", "by a" }, results)
      assert.same({ "no", "never", "with a log" }, { jobs[2].error, jobs[3].error, jobs[6].error })
      assert.equal("discarded", jobs[3].reason)
      assert.equal("a line\n", attempt(ids[6]).log)
      eventually(function()
        return handle:execute("SELECT COUNT(*) AS n FROM nightshift_finished WHERE parent = ?", ids[4])[1].n == 1
      end)
    end)

    it("as failed when it raises, or does not return results, but for verdicts that were given", function()
      begin [[
        local function ends(how)
          return { batch = 3, within = 60, run = function(jobs)
            jobs[2]:ack "mine"
            return how(jobs)
          end }
        end
        return {
          raises = ends(function() error "all of it" end),
          none = ends(function() return nil, "nothing" end),
          odd = ends(function() return 7 end),
          asks = ends(function() require "nightshift".discard "all of them" end),
          open = ends(function(jobs)
            assert(jobs[1]:db():transaction(function(tx) return tx:ack(jobs[1], "written") end))
            coroutine.wrap(function() jobs[1]:db():transaction(coroutine.yield) end)()
          end),
        }]]
      local texts = { raises = "all of it\n", none = "^nothing$", odd = "must return a table of results",
        asks = "^all of them$", open = "it was rolled back" }
      local ids = {}
      for name in pairs(texts) do ids[name] = push(numbers(3), { max_attempts = 1 }, name) end
      for name, text in pairs(texts) do
        local jobs = ended(ids[name])
        assert.matches(text, jobs[3].error, nil, name)
        if name == "open" then -- what was left behind undoes all but what was written
          assert.equal("written", jobs[1].result)
          assert.matches(text, jobs[2].error)
        else
          assert.equal("mine", jobs[2].result)
          assert.matches(text, jobs[1].error)
        end
      end
    end)

    it("with checks, hooks and functions around it for every job", function()
      local h = begin [[
        require "nightshift".on("job.start", function(job) print("starts " .. job.payload) end)
        require "nightshift".on("job.done", function(job, result) print("done " .. job.payload .. " " .. result) end)
        require "nightshift".on("job.dead", function(job, why) print("dead " .. job.payload .. " " .. why) end)
        return { many = { batch = 3, within = 60, check = function(p) return p ~= "b", "bad letter" end,
          around = function(jobs, run) print("around " .. #jobs) return run(jobs) end,
          run = function(jobs)
            local results = {}
            for i, job in ipairs(jobs) do results[i] = job.payload:upper() end
            return results
          end } }]]
      local jobs = ended(push { "a", "b", "c" })
      assert.same({ "A", "C" }, { jobs[1].result, jobs[3].result })
      assert.equal("payload refused: bad letter", jobs[2].error)
      for _, line in ipairs { "starts a", "starts b", "starts c", "around 2", "done a A", "dead b discarded",
        "done c C" } do
        h:wait_line("^" .. line)
      end
    end)
  end)

  describe("that goes wrong", function()
    with_database(take)

    local function runs(jobs, field)
      local list = {}
      for i, job in ipairs(jobs) do list[i] = job[field] end
      return list
    end

    it("has its jobs run alone, so that a bad one fails alone", function()
      local h = start [[
        local function bad(how, timeout)
          return { batch = 4, within = 60, timeout = timeout, memory = "4M", run = function(jobs)
            if jobs[2] then jobs[2]:ack "told" end
            if has(jobs, "bad") then how(jobs) end
            return sizes(jobs)
          end }
        end
        return {
          raises = bad(function() error "bad one" end),
          dies = bad(function() os.execute("kill -9 " .. pid()) end),
          slow = bad(function() while true do end end, 0.2),
          fat = bad(function()
            local kept = {}
            for i = 1, 1e7 do kept[i] = { i } end
          end),
        }]]
      local ids = {}
      for _, name in ipairs { "raises", "dies", "slow", "fat" } do
        ids[name] = push({ 1, 2, "bad", 4 }, { max_attempts = 2, max_crashes = 2, backoff = 0.01 }, name)
      end
      for name, text in pairs { raises = "bad one", slow = "timeout after 0%.2 s", fat = "memory limit of 4 MiB" } do
        local jobs = ended(ids[name])
        assert.same({ 1, "told", nil, 1 }, { jobs[1].result, jobs[2].result, jobs[3].result, jobs[4].result }, name)
        assert.same({ 1, 0, 2, 1 }, runs(jobs, "attempts"), name)
        assert.matches(text, attempt(jobs[1].id).error)
        assert.matches(text, jobs[3].error)
      end
      -- the verdicts of a worker that died were not told
      local jobs = ended(ids.dies)
      assert.same({ 1, 1, nil, 1 }, { jobs[1].result, jobs[2].result, jobs[3].result, jobs[4].result })
      assert.same({ 1, 1, 2, 1 }, runs(jobs, "crashes"))
      assert.same({ 0, 0, 0, 0 }, runs(jobs, "attempts"))
      assert.equal("poison", jobs[3].reason)
      stop(h)
    end)

    it("and loses its host: another has the jobs, once each", function()
      local mark = fixture.file("mark", "")
      assert(os.remove(mark))
      local script = ([[return { many = { batch = 3, within = 0.1, run = function(jobs)
        if not io.open(%q) then
          print "holds"
          io.stdout:flush()
          core.sleep(60)
        end
        return sizes(jobs)
      end } }]]):format(mark)
      local first = start(script)
      local ids = push(numbers(3))
      first:wait_line("holds", 20)
      assert(io.open(mark, "w")):close()
      nst.kill(first.pid, "KILL")
      local second = start(script)
      local jobs = ended(ids)
      assert.same({ 0, 0, 0 }, runs(jobs, "crashes"))
      assert.same({ 2, 2, 2 }, runs(jobs, "run"))
      stop(second)
    end)
  end)

  describe("is told", function()
    with_database(take)

    it("which one of its jobs is cancelled; the rest go on", function()
      local mark = fixture.file("mark", "")
      assert(os.remove(mark))
      local h = start(([[return { many = { batch = 3, within = 60, run = function(jobs)
        print "holds"
        io.stdout:flush()
        while not jobs[2]:cancelled() do core.sleep(0.01) end
        local told = {}
        for i, job in ipairs(jobs) do told[i] = { job:cancelled(), job:stopping() } end
        while not io.open %q do core.sleep(0.01) end
        return { told[1], told[2], told[3] }
      end } }]]):format(mark))
      local ids = push(numbers(3))
      h:wait_line("holds", 20)
      assert(handle:cancel(ids[2], { reason = "not this one" }))
      -- A sign of life may tell first, without the reason, which then follows while the batch runs.
      h:wait_line('event=job.stop id=' .. ids[2] .. ' .*not this one')
      assert(io.open(mark, "w")):close()
      local jobs = ended(ids)
      assert.equal("cancelled", jobs[2].state)
      for _, i in ipairs { 1, 3 } do assert.same({ false, false }, jobs[i].result) end
      stop(h)
    end)

    it("that the host drains, and shows the progress of each job", function()
      local h = start [[return { many = { batch = 3, within = 60, run = function(jobs)
        for i, job in ipairs(jobs) do job:progress(i / 10, "part " .. i) end
        print "holds"
        io.stdout:flush()
        while not jobs[3]:stopping() do core.sleep(0.01) end
        for _, job in ipairs(jobs) do job:again(0) end
      end } }]]
      local ids = push(numbers(3))
      h:wait_line("holds", 20)
      eventually(function()
        for i, id in ipairs(ids) do
          local job = handle:job(id)
          if job.status ~= "part " .. i or job.progress ~= i / 10 then return false end
        end
        return true
      end)
      stop(h)
      for _, id in ipairs(ids) do assert.same({ 1, 0 }, { handle:job(id).polls, handle:job(id).attempts }) end
    end)
  end)

  describe("that waits for more jobs", function()
    with_database(take)

    local WAITS = "return { many = { run = sizes, batch = 10, within = 60 } }"

    local function waiting(h, n)
      local ids = push(numbers(n))
      eventually(function() return state(ids[n]) == "running" end)
      return ids, h
    end

    local function untouched(ids)
      eventually(function()
        for _, id in ipairs(ids) do
          if state(id) == "running" then return false end
        end
        return true
      end)
      for _, id in ipairs(ids) do assert.same({ 0, 0 }, { handle:job(id).attempts, handle:job(id).crashes }) end
    end

    it("is given back when the host ends or rests; a job of it that is paused is", function()
      local h = start(WAITS)
      local ids = waiting(h, 3)
      assert(handle:execute "UPDATE nightshift_lease SET claimed = claimed - 5000000") -- as if it had waited
      local says, fact = handle:why(ids[1])
      assert.equal("batch", fact.kind)
      assert.matches("^#?.*was taken .* ago by .*, and waits there for more jobs of its batch", says)
      assert(handle:pause(ids[1]))
      untouched { ids[1] }
      assert.equal("running", state(ids[2]))
      assert(handle:resume(ids[1]))
      eventually(function() return state(ids[1]) == "running" end)
      h:signal "TSTP"
      untouched(ids)
      h:signal "CONT"
      eventually(function() return state(ids[3]) == "running" end)
      stop(h)
      untouched(ids)
    end)

    it("is given back when its queue or its name is paused, also by a host that drains", function()
      local h = start(WAITS)
      local ids = waiting(h, 3)
      assert(q:pause())
      untouched(ids)
      assert(q:resume())
      eventually(function() return state(ids[3]) == "running" end)
      assert(handle:pause_name "many")
      untouched(ids)
      stop(h)
      assert(handle:resume_name "many")
      local second = start(WAITS, { "--workers", "1", "--drain" })
      eventually(function() return state(ids[3]) == "running" end)
      assert(q:pause())
      assert.equal(0, second:wait(20), second:transcript())
      untouched(ids)
    end)

    it("is given back from behind jobs that keep every worker busy", function()
      local go = fixture.dir() .. "/go"
      local h = start(([[return {
        many = { run = sizes, batch = 10, within = 1 },
        hold = function() while not io.open(%q) do core.sleep(0.01) end end }]]):format(go))
      local ids = waiting(h, 3)
      local held = assert(q:push "hold")
      eventually(function() return state(held) == "running" end)
      nst.sleep(1.1) -- the batch waits for the worker now
      assert(q:pause())
      untouched(ids)
      assert.equal("running", state(held))
      assert(io.open(go, "w")):close()
      assert.equal("done", ended({ held })[1].state)
      stop(h)
    end)

    it("loses a job that is cancelled, and its host", function()
      local h = start(WAITS)
      local ids = waiting(h, 3)
      assert(handle:cancel(ids[1]))
      nst.kill(h.pid, "KILL")
      local second = start("return { many = { run = sizes, batch = 10, within = 0.1 } }")
      local jobs = ended(ids)
      assert.same({ "cancelled", 2, 2 }, { jobs[1].state, jobs[2].result, jobs[3].result })
      assert.same({ 0, 0 }, { jobs[2].crashes, jobs[3].crashes })
      stop(second)
    end)

    it("is called by scripts that are loaded anew, whether these take batches or not", function()
      local h = start(WAITS)
      local function reload(text)
        local file <close> = assert(io.open(h.script, "w"))
        file:write(SCRIPT, text)
        file:close()
        h:signal "HUP"
      end
      local ids = waiting(h, 3)
      reload "return { many = function() return 'single' end }"
      assert.same({ single = 3 }, counts(ended(ids)))
      h:wait_line("reload.done", 20)
      reload "return { many = { run = sizes, batch = 2, within = 60 } }"
      h:wait_line("reload.done", 20, 2)
      eventually(function() return #host.members(h.pid, "ns-worker") == 1 end)
      assert.same({ [2] = 4 }, counts(ended(push(numbers(4)))))
      stop(h)
    end)
  end)

  it("is run by hand with one job", function()
    local script = fixture.file("jobs.lua", SCRIPT .. "return { many = { run = sizes, batch = 10 } }")
    assert.equal("ack 1\n", proc.succeeds { "run", "many", "7", "--script", script })
  end)

  it("has its fields checked when it is loaded", function()
    local function fault(fields)
      local path = fixture.file("jobs.lua", ("return { many = { run = function() end, %s } }"):format(fields))
      local set, message = handlers.load { path }
      assert.is_nil(set)
      return message
    end
    assert.matches("batch must be an integer from 1 to 1000", fault "batch = 0")
    assert.matches("batch must be an integer from 1 to 1000", fault "batch = 1001")
    assert.matches("batch must be an integer from 1 to 1000", fault "batch = '10'")
    assert.matches("within goes with batch", fault "within = 1")
    assert.matches("within must be at most 60 s", fault "batch = 2, within = '2m'")
    assert.matches("within", fault "batch = 2, within = 'soon'")
    assert.matches("within must be seconds", fault "batch = 2, within = {}")
  end)
end)
