-- Ways for a worker to die, what the job's history says of each, and that no process of a worker
-- outlives it.

local host = require "spec.support.host"
local nst = require "nst"
local proc = require "spec.support.proc"

-- No process of a worker outlives it, its zygote, its keeper or its host,
-- unless it was put into a session of its own.
describe("orphans:", function()
  local url, handle, q

  with_database(function(...) handle, q, url = ... end)

  -- Each starts processes that print "sleeper PID", one way or another. The
  -- second run of a job returns.
  local SCRIPT = [=[
local function shell(text)
  return function(job)
    print "started"
    if job.crashes == 0 then os.execute(text) end
  end
end
local function once(text) -- there is a file then
  return function(job)
    if io.open(job.payload) then return end
    io.open(job.payload, "w"):close()
    os.execute(text)
  end
end
local SLEEP = "sh -c 'echo sleeper $$; exec sleep 300'"
return {
  child = shell(SLEEP .. "; true"),
  orphan = shell("(" .. SLEEP .. " &); sleep 300"),
  grouped = shell([[exec bash -c "set -m; sh -c 'echo sleeper \$\$; exec sleep 300' & sleep 300"]]),
  pipe = function(job)
    print "started"
    if job.crashes == 0 then io.popen(SLEEP .. "; true"):read "n" os.execute "sleep 300" end
  end,
  daemon = shell("setsid " .. SLEEP .. " & wait"),
  left = shell(SLEEP .. " >&2 &"),
  files = shell("setsid sh -c 'ls -l /proc/self/fd >&2; echo listed $$; exec sleep 300' & wait"),
  parent = once "kill -9 $(ps -o ppid= -p $PPID); sleep 300",
  grandparent = once "kill -9 $(ps -o ppid= -p $(ps -o ppid= -p $PPID)); sleep 300",
  noop = function() end,
}]=]

  local function gone(pids)
    eventually(function()
      for _, pid in ipairs(pids) do
        if host.name(pid) then return false end
      end
      return true
    end)
  end

  local function sleeper(h, n) return (math.tointeger(tonumber((h:wait_line("^sleeper (%d+)", 20, n))))) end

  local function stop(h, how)
    h:signal(how or "TERM")
    assert.equal(0, h:wait())
  end

  local function done(id) eventually(function() return handle:job(id).state == "done" end) end

  -- The worker that is busy: the one with children.
  local function busy(h)
    return eventually(function()
      for _, pid in ipairs(host.members(h.pid)) do
        if #host.children(pid) > 0 then return pid end
      end
    end)
  end

  describe("kill -9 of a worker takes with it", function()
    for _, name in ipairs { "child", "orphan" } do
      it("a grandchild: " .. name, function()
        local h = host.start(url, SCRIPT)
        local id = q:push(name)
        local pid = sleeper(h)
        nst.kill(busy(h), "KILL")
        gone { pid }
        done(id)
        assert.equal(1, handle:job(id).crashes)
        stop(h)
      end)
    end

    it("what io.popen started", function()
      local h = host.start(url, SCRIPT)
      local id = q:push "pipe"
      local worker = busy(h)
      local below = eventually(function()
        local family = host.family(worker)
        for _, pid in ipairs(family) do
          if host.name(pid) == "sleep" then return family end
        end
      end)
      nst.kill(worker, "KILL")
      gone(below)
      done(id)
      stop(h)
    end)

    it("what an earlier job left running", function()
      local h = host.start(url, SCRIPT, { "--workers", "1" })
      done(q:push "left")
      local pid = sleeper(h)
      assert.equal("sleep", eventually(function() return host.name(pid) == "sleep" and "sleep" end))
      nst.kill(host.member(h.pid), "KILL")
      gone { pid }
      stop(h)
    end)
  end)

  describe("a process in a session of its own", function()
    it("survives its worker and its host, and has nothing of theirs open", function()
      local h = host.start(url, SCRIPT)
      q:push "files"
      nst.kill(tonumber(h:wait_line "^listed (%d+)"), "KILL")
      local _, err = h:text()
      local open = {}
      for fd in err:gmatch " (%d+) %-> %S+" do open[#open + 1] = tonumber(fd) end
      table.sort(open)
      assert.same({ 0, 1, 2, 3 }, open, err) -- 3 is the folder that ls reads
      assert.is_nil(err:find("socket:", 1, true), err)
      q:push "daemon"
      local daemon = sleeper(h)
      h:signal "KILL"
      h:wait()
      nst.sleep(0.2)
      eventually(function() return host.name(daemon) == "sleep" end)
      nst.kill(daemon, "KILL")
    end)
  end)

  describe("kill -9 of the host", function()
    it("leaves no process of its workers", function()
      local h = host.start(url, SCRIPT, { "--workers", "5" })
      local pids = {}
      for n, name in ipairs { "child", "orphan", "grouped", "left" } do
        q:push(name)
        pids[n] = sleeper(h, n)
      end
      for _, pid in ipairs(host.family(h.pid)) do pids[#pids + 1] = pid end
      h:signal "KILL"
      h:wait()
      gone(pids)
    end)
  end)

  describe("a job that kills its zygote", function()
    it("ends the processes of all its workers; the host goes on and blames nobody for sure", function()
      local h = host.start(url, SCRIPT, { "--workers", "3" })
      local others = { q:push "orphan", q:push "grouped" }
      local pids = { sleeper(h), (sleeper(h, 2)) }
      local id = q:push("parent", fixture.dir() .. "/once")
      h:wait_line "zygote.died"
      gone(pids)
      done(id)
      for _, other in ipairs { id, table.unpack(others) } do
        local row = eventually(function()
          return handle:execute("SELECT kind, error FROM nightshift_attempt WHERE job_id = ?", other)[1]
        end)
        assert.same({ "lost", "worker lost together with the process that forked it" }, { row.kind, row.error })
        assert.equal(0, handle:job(other).crashes)
      end
      done(q:push "noop")
      stop(h, "QUIT")
    end)

    it("is blamed when it was the only one that ran", function()
      local h = host.start(url, SCRIPT)
      local id = q:push("parent", fixture.dir() .. "/once")
      done(id)
      assert.equal(1, handle:job(id).crashes)
      stop(h)
    end)
  end)

  describe("a job that kills its keeper", function()
    it("ends the processes of all its workers and the host goes on", function()
      local h = host.start(url, SCRIPT)
      q:push "grouped"
      local pid = sleeper(h)
      local keeper = host.member(h.pid, "ns-keeper")
      q:push("grandparent", fixture.dir() .. "/once")
      h:wait_line "keeper.died"
      gone { pid, keeper }
      done(q:push "noop")
      eventually(function() return #host.members(h.pid, "ns-keeper") == 1 end) -- its first fork bears that name, too
      stop(h, "QUIT")
    end)
  end)

  describe("kill -9 of the seed", function()
    it("is not noticed; a keeper that dies after it ends the host, and the jobs are given back", function()
      local h = host.start(url, SCRIPT)
      local keeper = host.member(h.pid, "ns-keeper")
      local seed = host.member(h.pid, "ns-seed")
      nst.kill(seed, "KILL")
      gone { seed }
      done(q:push "noop")
      local id = q:push "child"
      local pid = sleeper(h)
      nst.kill(keeper, "KILL")
      assert.equal(1, h:wait())
      gone { pid }
      assert.equal("ready", handle:job(id).state)
    end)
  end)
end)

-- Ways for a worker to die, and what the job's history says of each.
describe("causes of death:", function()
  local url, handle, q, cpath

  with_database(function(...) handle, q, url = ... end)

  local MODULE = [[
#include <lua.h>
#include <lauxlib.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
static volatile int depth;
static int segv(lua_State *L) { *(volatile int *)8 = 1; return 0; }
static int deep(int n) { volatile char a[4096]; a[0] = (char)n; return n < 0 ? 0 : deep(n + 1) + a[0]; }
static int overflow(lua_State *L) { lua_pushinteger(L, deep(depth)); return 1; }
static int aborts(lua_State *L) { abort(); return 0; }
static int exits(lua_State *L) { exit((int)luaL_checkinteger(L, 1)); return 0; }
static int babbles(lua_State *L) {
  for (int fd = 3; fd < 64; fd++) if (write(fd, "\377\1\7nonsense", 11) < 0) continue;
  return 0;
}
static int hangs_up(lua_State *L) {
  for (int fd = 3; fd < 64; fd++) close(fd);
  return 0;
}
int luaopen_fault(lua_State *L) {
  static const luaL_Reg all[] = {{"segv", segv}, {"overflow", overflow}, {"abort", aborts}, {"exit", exits},
                                 {"babble", babbles}, {"hang_up", hangs_up},
                                 {NULL, NULL}};
  luaL_newlib(L, all);
  return 1;
}]]

  setup(function() cpath = fixture.module("fault", MODULE) end)

  -- `long` is an innocent in the next seat; `kin` kills an ancestor of its shell.
  local SCRIPT = [[
local fault = require "fault"
local function worker() return (io.open "/proc/self/stat":read "a"):match "^%d+" end
local function kill(signal) return function() os.execute("kill -" .. signal .. " " .. worker()) end end
local deaths = {
  sigkill = kill(9), sigbus = kill(7), segv = fault.segv, overflow = fault.overflow, abort = fault.abort,
  exit3 = function() fault.exit(3) end, exit0 = function() fault.exit(0) end,
  os_exit = function() os.exit(4, true) end,
}
local handlers = {
  noop = function() end,
  babbles = function() fault.babble() return "said" end,
  hangs_up = function() fault.hang_up() return "said" end,
  kin = function(job)
    local up = "p=$PPID; for i in $(seq %d); do p=$(ps -o ppid= -p $p); done; kill -9 $p; sleep 60"
    os.execute(up:format(job.payload))
  end,
  long = function() print "started" os.execute "sleep 2" return "undisturbed" end,
}
for name, die in pairs(deaths) do
  handlers[name] = function(job)
    if job.crashes > 0 and job.payload ~= "always" then return job.crashes end
    job:log "last words"
    job:log(name)
    die()
  end
end
return handlers]]

  local function start(args) return host.start(url, SCRIPT, args, { LUA_CPATH = proc.build .. "/?.so;" .. cpath }) end

  local function stop(h)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end

  local signal = os.getenv "SAN" and "killed by signal %d+ %b()" or nil -- a sanitizer aborts where others fault

  local causes = {
    sigkill = "killed by signal 9 %(Killed%)",
    sigbus = signal or "killed by signal 7 %(Bus error%)",
    segv = signal or "killed by signal 11 %(Segmentation fault%)",
    overflow = signal or "killed by signal 11 %(Segmentation fault%)",
    abort = "killed by signal 6 %(Aborted%)",
    exit3 = "exited with status 3",
    exit0 = "exited with status 0",
    os_exit = "exited with status 4",
  }

  describe("a worker that dies of its job", function()
    it("is replaced at once; the job runs again and its history has the cause and the last lines", function()
      local h = start { "--workers", "4" }
      local long = q:push "long"
      h:wait_line "^started"
      for name, cause in pairs(causes) do
        local from = nst.clock()
        local id = q:push(name)
        local job = eventually(function()
          local job = handle:job(id)
          return job.state == "done" and job
        end)
        assert.is_true(nst.clock() - from < proc.limit(9), name) -- by the round: 10 s
        assert.same({ 1, 1, 0 }, { job.result, job.crashes, job.attempts }, name)
        local rows = handle:execute("SELECT error, log FROM nightshift_attempt WHERE job_id = ?", id)
        assert.equal(1, #rows, name)
        assert.matches("^worker " .. cause .. "$", rows[1].error)
        assert.equal("last words\n" .. name .. "\n", (rows[1].log:gsub("os.exit called.*", "")))
      end
      assert.equal("undisturbed", eventually(function() return handle:job(long).result end))
      assert.equal(0, handle:job(long).crashes)
      eventually(function() return #host.members(h.pid) == 4 end)
      stop(h)
    end)

    it("over and over makes the job dead as poison with every attempt, while others run on", function()
      local h = start()
      local bad = q:push("segv", "always", { max_crashes = 3 })
      eventually(function() return handle:job(bad).state == "dead" end)
      local row = handle:execute("SELECT reason, crashes FROM nightshift_finished WHERE id = ?", bad)[1]
      assert.same({ "poison", 3 }, { row.reason, row.crashes })
      assert.equal(3, #handle:execute("SELECT run FROM nightshift_attempt WHERE job_id = ?", bad))
      local id = q:push "noop"
      eventually(function() return handle:job(id).state == "done" end)
      stop(h)
    end)
  end)

  describe("a handler that writes into whatever descriptors it finds, or closes them,", function()
    it("harms neither its own job nor the host", function()
      local h = start { "--workers", "2" }
      for _ = 1, 20 do
        for _, name in ipairs { "babbles", "hangs_up", "noop" } do assert(q:push(name)) end
      end
      local rows = eventually(function()
        local rows = handle:execute [[SELECT name, result, crashes, attempts FROM nightshift_finished
        WHERE outcome = 'done']]
        return #rows == 60 and rows
      end)
      for _, row in ipairs(rows) do
        assert.same({ row.name, row.name ~= "noop" and '"said"' or nil, 0, 0 },
          { row.name, row.result, row.crashes, row.attempts })
      end
      stop(h)
    end)
  end)

  for up, who in ipairs { "zygote", "keeper", "seed" } do
    describe("a job that kills its " .. who .. " whenever it runs", function()
      it(up < 3 and "is poison; the host lives on" or "does not end the host", function()
        local h = start()
        local id = q:push("kin", up, up < 3 and { max_crashes = 2 } or { timeout = 1, max_attempts = 1 })
        eventually(function() return handle:job(id).state == "dead" end, 30)
        if up < 3 then
          local row = handle:execute("SELECT reason, crashes FROM nightshift_finished WHERE id = ?", id)[1]
          assert.same({ "poison", 2 }, { row.reason, row.crashes })
        end
        id = q:push "noop"
        eventually(function() return handle:job(id).state == "done" end)
        stop(h)
      end)
    end)
  end
end)
