-- A job's current folder, umask, signal mask, locale, timers and stopped collector were
-- those of the next job in that worker: an alarm killed whoever ran when it rang.

local host = require "spec.support.host"

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
  struct itimerval soon = {{0, 0}, {0, 300000}};
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

local SCRIPT = [[
local changing = require "changing"
return {
  state = function() return changing.state() end,
  change = function() changing.change() end,
  fail = function() changing.change() error "failed" end,
  busy = function()
    local stop = os.clock() + 0.4
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
  assert.is_nil(h:transcript():find "worker.died", h:transcript())
end

it("what a job changes in its process is not there for the next one", function()
  check(host.start(url, SCRIPT, { "--workers", "1" }, { LUA_CPATH = fixture.module("changing", MODULE) }))
end)

it("nor when the host itself has loaded the library, with a mapping", function()
  assert(handle:execute "CREATE TABLE task (id BIGINT PRIMARY KEY, status VARCHAR(10))")
  local mapping = fixture.file("mapping.lua", [[require "changing"
    return { table = "task", strategy = "skip_locked", name = "task",
      status = { column = "status", open = "open", processing = "busy", done = "done" } }]])
  check(host.start(url, SCRIPT, { "--workers", "1", "--queues", "q", "--adopt", mapping },
    { LUA_CPATH = fixture.module("changing", MODULE) }))
end)
