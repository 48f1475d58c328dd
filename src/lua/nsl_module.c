/*
** The module nightshift.core: the functions that need no database, and the metatable of
** database handles with the verbs of all files. It is private to lua/nightshift, which adds
** defaults, units and objects on top.
**
** Invariant: a verb that may wait runs by nsl_runverb; close, which may be called inside a
** hook only to be refused, does not. (That is how the table below is made.)
*/
#include <inttypes.h>
#include <lauxlib.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base.h"
#include "nsl.h"
#include "private.h"

/***
Seconds of a monotonic clock with an unknown start, for measuring.
@function clock
@treturn number
*/
static int lib_clock(lua_State *L) {
  lua_pushnumber(L, (lua_Number)ns_mono_us() / 1e6);
  return 1;
}

/***
Sleeps; less when a signal arrives.
@function sleep
@tparam number seconds up to a day
*/
static int lib_sleep(lua_State *L) {
  lua_Number seconds = luaL_checknumber(L, 1);
  luaL_argcheck(L, seconds >= 0 && seconds <= 86400, 1, "0 to 86400 expected");
  ns_sleep_us((int64_t)(seconds * 1e6));
  return 0;
}

/***
Microseconds of a duration.
@function duration
@tparam number|string x seconds, or a text like `"5m"`, `"1h30m"`, `"500ms"`
@treturn[1] integer
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `INVALID`
*/
static int lib_duration(lua_State *L) {
  ns_err err;
  int64_t us;
  if (nsl_toduration(L, 1, &us, &err) != NS_OK)
    return nsl_fail(L, &err);
  lua_pushinteger(L, us);
  return 1;
}

/***
A short hash of a text.
@function hash
@tparam string text
@treturn string eight hexadecimal digits
*/
static int lib_hash(lua_State *L) {
  ns_bytes text;
  char digits[16];
  text.p = luaL_checklstring(L, 1, &text.n);
  snprintf(digits, sizeof digits, "%08" PRIx32, ns_hash_short(text));
  lua_pushstring(L, digits);
  return 1;
}

/***
Writes a warning about a file to the log, which is stderr.
@function warn
@tparam string event
@tparam string file
@tparam string advice
*/
static int lib_warn(lua_State *L) {
  ns_log(NS_LOG_WARN, luaL_checkstring(L, 1),
         NS_FIELDS(ns_fs("file", luaL_checkstring(L, 2)),
                   ns_fs("advice", luaL_checkstring(L, 3))));
  return 0;
}

/***
The statements that create the tables, in order.
@function schema
@treturn {{version=integer,name=string,text=string},...}
*/
static int lib_schema(lua_State *L) {
  int version;
  const char *name;
  const char *text;
  lua_newtable(L);
  for (size_t i = 0; (text = ns_schema_text(i, &version, &name)) != NULL; i++) {
    lua_createtable(L, 0, 3);
    nsl_setint(L, "version", version);
    nsl_setbytes(L, "name", ns_str(name));
    nsl_setbytes(L, "text", ns_str(text));
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

/***
Version of the client library.
@function client
@treturn string
*/
static int lib_client(lua_State *L) {
  lua_pushstring(L, ns_client_version());
  return 1;
}

/***
The text of a named statement of sql/query.
@function sql
@tparam string name
@treturn string|nil
*/
static int lib_sql(lua_State *L) {
  lua_pushstring(L, ns_sql_text(luaL_checkstring(L, 1)));
  return 1;
}

/***
The names of all statements of sql/query.
@function statements
@treturn {string,...}
*/
static int lib_statements(lua_State *L) {
  const char *name;
  lua_newtable(L);
  for (size_t i = 0; (name = ns_sql_name(i)) != NULL; i++) {
    lua_pushstring(L, name);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  return 1;
}

/***
The terminal behind a descriptor.
@function terminal
@tparam integer fd
@treturn integer|nil its columns, 80 when it does not say; nil: it is no terminal
*/
static int lib_terminal(lua_State *L) {
  struct winsize size;
  int fd = (int)luaL_checkinteger(L, 1);
  if (!isatty(fd))
    lua_pushnil(L);
  else
    lua_pushinteger(L, ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80);
  return 1;
}

static void free_url(void *box) {
  free(*(char **)box);
}

/***
Starts or joins the private server of a folder, for tests: see ns_private_start_fast.
@function private_server
@tparam string folder
@treturn[1] string URL
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `GONE`, `DENIED`, `INVALID`, `SERVER`
*/
static int lib_private_server(lua_State *L) {
  ns_err err;
  const char *folder = luaL_checkstring(L, 1);
  char **url = nsl_box(L, sizeof *url, free_url);
  if (ns_private_start_fast(folder, url, &err) != NS_OK)
    return nsl_fail(L, &err);
  lua_pushstring(L, *url);
  return 1;
}

static const luaL_Reg functions[] = {
    {"open", nsl_lib_open},     {"encode", nsl_lib_encode},
    {"decode", nsl_lib_decode}, {"array", nsl_lib_array},
    {"client", lib_client},
    {"clock", lib_clock},       {"duration", lib_duration},
    {"hash", lib_hash},
    {"schema", lib_schema},     {"sleep", lib_sleep},
    {"sql", lib_sql},
    {"private_server", lib_private_server},
    {"lock", nsl_lib_lock},     {"unlock", nsl_lib_unlock},
    {"unlock_all", nsl_lib_unlock_all},
    {"statements", lib_statements},
    {"terminal", lib_terminal},
    {"warn", lib_warn},
    {NULL, NULL}};

/* Adds verbs that may wait to the table on top. [-0, +0, m] */
static void add_verbs(lua_State *L, const luaL_Reg *list) {
  for (; list->name != NULL; list++) {
    lua_pushcfunction(L, list->func);
    lua_pushcclosure(L, nsl_runverb, 1);
    lua_setfield(L, -2, list->name);
  }
}

/* Makes the handle's metatable. [-0, +0, m] */
static void open_handles(lua_State *L) {
  const luaL_Reg *const lists[] = {nsl_dbverbs,      nsl_adminverbs, nsl_pushverbs,
                                   nsl_claimverbs,   nsl_jobverbs,
                                       nsl_slotverbs,  nsl_sqlverbs};
  nsl_openhooks(L);
  luaL_newmetatable(L, NSL_DB); /* filled again when it exists: harmless */
  luaL_setfuncs(L, nsl_dbmeta, 0);
  lua_newtable(L);
  for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
    add_verbs(L, lists[i]);
  lua_getfield(L, -2, "__close");
  lua_setfield(L, -2, "close");
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
}

int luaopen_nightshift_core(lua_State *L) {
  luaL_checkversion(L);
  ns_use_private(ns_private_start);
  nsl_openboxes(L);
  nsl_openjson(L);
  open_handles(L);
  luaL_newlib(L, functions);
  lua_pushlightuserdata(L, NULL);
  lua_setfield(L, -2, "null");
  nsl_pushshared(L);
  lua_setfield(L, -2, "shared");
  lua_pushliteral(L, NS_VERSION);
  lua_setfield(L, -2, "_VERSION");
  return 1;
}
