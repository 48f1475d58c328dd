-- A child that a handler forked, and that returned from the handler or raised
-- an error in it, went on as a second worker on the same socket, and what it
-- said counted.

local host = require "spec.support.host"

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

describe("a child that a handler forks", function()
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
    assert.is_nil(h:transcript():find "worker.died", h:transcript())
  end)
end)
