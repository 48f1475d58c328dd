/*
** The HTTP server of `nightshift web` as an object of Lua: nightshift.host has `listen`, which
** gives one. The pages themselves are in lua/nightshift/web.
**
** Invariant: no error of Lua passes the frames of the server. A request is answered under
** lua_pcall, and what it raises is a line on stderr and status 500.
*/
#include <lauxlib.h>
#include <lua.h>
#include <stdio.h>
#include <string.h>

#include "base.h"
#include "host.h"
#include "http/http.h"
#include "nsl.h"
#include "worker/worker.h"

#define SERVER "nightshift.server"
#define BODY_MAX (256 * 1024) /* bytes, unless told */

typedef struct web {
  nsh_server *server; /* NULL: it is closed */
  bool inside;        /* it is in a step */
} web;

/* What a handler returns in place of a body. */
static const char stream_mark;

static web *check(lua_State *L) {
  web *w = luaL_checkudata(L, 1, SERVER);
  if (w->server == NULL)
    luaL_error(L, "nightshift: the server is closed");
  return w;
}

/* ------------------------------------------------------------------- requests */

/* The headers; those of one name are joined. [-0, +1, m] */
static void push_heads(lua_State *L, ns_bytes heads) {
  const char *at = heads.p;
  const char *end = heads.p + heads.n;
  lua_newtable(L);
  while (at < end) {
    const char *value = at + strlen(at) + 1;
    if (lua_getfield(L, -1, at) == LUA_TSTRING) {
      lua_pushfstring(L, ", %s", value);
      lua_concat(L, 2);
    } else {
      lua_pop(L, 1);
      lua_pushstring(L, value);
    }
    lua_setfield(L, -2, at);
    at = value + strlen(value) + 1;
  }
}

/* [-0, +1, m] */
static void push_request(lua_State *L, const nsh_request *r) {
  ns_bytes target = nsh_request_target(r);
  const char *query = memchr(target.p, '?', target.n);
  size_t n = query != NULL ? (size_t)(query - target.p) : target.n;
  lua_createtable(L, 0, 8);
  nsl_setint(L, "stream", nsh_request_id(r));
  lua_pushstring(L, nsh_request_method(r));
  lua_setfield(L, -2, "method");
  nsl_setbytes(L, "path", (ns_bytes){target.p, n});
  nsl_setbytes(L, "query", query != NULL ? (ns_bytes){query + 1, target.n - n - 1}
                                         : (ns_bytes){"", 0});
  nsl_setbytes(L, "body", nsh_request_body(r));
  push_heads(L, nsh_request_heads(r));
  lua_setfield(L, -2, "headers");
}

static void take_headers(lua_State *L, int idx, nsh_request *r) {
  lua_pushnil(L);
  while (lua_next(L, idx) != 0) {
    nsh_request_header(r, luaL_checkstring(L, -2), luaL_checkstring(L, -1));
    lua_pop(L, 1);
  }
}

/* Protected. Arguments: the handler, the request. */
static int run_handler(lua_State *L) {
  nsh_request *r = lua_touserdata(L, 2);
  lua_Integer status;
  lua_pushvalue(L, 1);
  push_request(L, r);
  lua_call(L, 1, 3); /* status, headers, body: 3, 4, 5 */
  status = luaL_checkinteger(L, 3);
  luaL_checktype(L, 4, LUA_TTABLE);
  take_headers(L, 4, r);
  if (lua_touserdata(L, 5) == (const void *)&stream_mark)
    nsh_request_stream(r, (unsigned)status);
  else
    nsh_request_reply(r, (unsigned)status, nsl_checkbytes(L, 5));
  return 0;
}

static void answer(void *arg, nsh_request *r) {
  lua_State *L = arg;
  int top = lua_gettop(L);
  if (!lua_checkstack(L, 20))
    return;
  lua_pushcfunction(L, run_handler);
  lua_pushvalue(L, 3);
  lua_pushlightuserdata(L, r);
  if (lua_pcall(L, 2, 0, 0) != LUA_OK) {
    ns_bytes why = nsh_lua_text(L, -1);
    fprintf(stderr, "nightshift: web: %.*s\n", (int)why.n, why.p);
  }
  lua_settop(L, top);
}

/* -------------------------------------------------------------------- the object */

/***
Waits for something to do, and does it. A request is answered by the handler.
@function step
@tparam number seconds to wait at most
@tparam function handler gets {method, path and query as they were sent, headers by lower-case name,
body, stream = a number}; returns status, headers, and a body or server.STREAM
@raise for a closed server, and inside a handler
*/
static int web_step(lua_State *L) {
  web *w = check(L);
  lua_Number seconds = luaL_checknumber(L, 2);
  luaL_checktype(L, 3, LUA_TFUNCTION);
  luaL_argcheck(L, seconds >= 0 && seconds <= 86400, 2, "0 to 86400 s are expected");
  if (w->inside)
    return luaL_error(L, "nightshift: the server is in a step");
  lua_settop(L, 3);
  w->inside = true;
  nsh_server_step(w->server, (int64_t)(seconds * NS_SECOND), answer, L);
  w->inside = false;
  return 0;
}

/***
Sends a text on a stream.
@function send
@tparam integer stream of the request that it answers
@tparam string text
@treturn boolean false: it has closed
*/
static int web_send(lua_State *L) {
  const web *w = check(L);
  lua_Integer stream = luaL_checkinteger(L, 2);
  lua_pushboolean(L, nsh_server_send(w->server, stream, nsl_checkbytes(L, 3)));
  return 1;
}

/***
Where it listens: ADDRESS:PORT, in numbers.
@function address
@treturn string
*/
static int web_address(lua_State *L) {
  lua_pushstring(L, nsh_server_address(check(L)->server));
  return 1;
}

/***
Closes it, with its connections. Twice is harmless.
@function close
*/
static int web_close(lua_State *L) {
  web *w = luaL_checkudata(L, 1, SERVER);
  if (w->inside)
    return luaL_error(L, "nightshift: the server is in a step");
  nsh_server_close(w->server);
  w->server = NULL;
  return 0;
}

static void push_meta(lua_State *L) {
  static const luaL_Reg methods[] = {{"step", web_step},
                                     {"send", web_send},
                                     {"address", web_address},
                                     {"close", web_close},
                                     {"__gc", web_close},
                                     {NULL, NULL}};
  if (luaL_newmetatable(L, SERVER)) {
    luaL_setfuncs(L, methods, 0);
    lua_pushlightuserdata(L, (void *)&stream_mark);
    lua_setfield(L, -2, "STREAM");
    lua_pushvalue(L, -1);
    lua_setfield(L, -2, "__index");
  }
}

void nsh_web_load(lua_State *L) {
  lua_getglobal(L, "require");
  lua_pushliteral(L, "nightshift.host.http");
  if (lua_pcall(L, 1, 1, 0) == LUA_OK)
    nsh_mhd = lua_touserdata(L, -1);
  lua_pop(L, 1);
}

int nsh_web_listen(lua_State *L) {
  web *w;
  ns_err err;
  const char *address;
  lua_Integer most = BODY_MAX;
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_getfield(L, 1, "address");
  address = luaL_checkstring(L, -1);
  if (lua_getfield(L, 1, "body_max") != LUA_TNIL)
    most = luaL_checkinteger(L, -1);
  w = lua_newuserdatauv(L, sizeof *w, 0);
  *w = (web){NULL, false};
  push_meta(L);
  lua_setmetatable(L, -2);
  nsh_web_load(L);
  if (nsh_server_open(&w->server, address, (size_t)most, &err) != NS_OK)
    return nsl_fail(L, &err);
  if (lua_getfield(L, 1, "headers") == LUA_TTABLE) {
    lua_pushnil(L);
    while (lua_next(L, -2) != 0) {
      nsh_server_header(w->server, luaL_checkstring(L, -2), luaL_checkstring(L, -1));
      lua_pop(L, 1);
    }
  }
  lua_pop(L, 1);
  return 1;
}
