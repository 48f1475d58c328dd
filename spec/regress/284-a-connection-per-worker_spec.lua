-- What a script connected to while it was loaded was one connection for all workers, which
-- read each other's answers, and there was no place to open one per worker.

local host = require "spec.support.host"

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
    assert.is_true(starts >= 6, starts)
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
    "nightshift: on: the event must be 'worker.start' or 'worker.stop', got 'worker.begin'")
  assert.has_error(function() nightshift.on("worker.stop", 1) end,
    "nightshift: on: 'worker.stop' wants a function, got number")
end)
