-- Ways for a worker to die, and what the job's history says of each.

local host = require "spec.support.host"
local nst = require "nst"
local proc = require "spec.support.proc"

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
