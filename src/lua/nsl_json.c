/*
** JSON as Lua sees it: the mark that makes a table an array, the null, and the
** functions.
*/
#include "nsl_conv.h"

#include <lauxlib.h>
#include <string.h>

/* ------------------------------------------------------------ array and null */

nsl_mark nsl_getmark(lua_State *L, int t) {
  nsl_mark m = NSL_MARK_NONE;
  if (!lua_getmetatable(L, t))
    return NSL_MARK_NONE;
  if (nsl_rawfield(L, -1, "__jsontype") == LUA_TSTRING) {
    const char *s = lua_tostring(L, -1);
    m = strcmp(s, "array") == 0    ? NSL_MARK_ARRAY
        : strcmp(s, "object") == 0 ? NSL_MARK_OBJECT
                                   : NSL_MARK_NONE;
  }
  lua_pop(L, 2);
  return m;
}

static int null_tostring(lua_State *L) {
  if (lua_touserdata(L, 1) == NULL)
    lua_pushliteral(L, "null");
  else
    lua_pushfstring(L, "userdata: %p", lua_topointer(L, 1));
  return 1;
}

/* All light userdata share one metatable; one that exists is left alone. */
static void opennull(lua_State *L) {
  lua_pushlightuserdata(L, NULL);
  if (!lua_getmetatable(L, -1)) {
    lua_createtable(L, 0, 1);
    lua_pushcfunction(L, null_tostring);
    lua_setfield(L, -2, "__tostring");
    lua_setmetatable(L, -2);
  } else
    lua_pop(L, 1);
  lua_pop(L, 1);
}

void nsl_openjson(lua_State *L) {
  luaL_newmetatable(L, NSL_ARRAY);
  lua_pushliteral(L, "array");
  lua_setfield(L, -2, "__jsontype");
  lua_pushnil(L); /* such a table is still just a table in messages */
  lua_setfield(L, -2, "__name");
  lua_pop(L, 1);
  opennull(L);
}

/* ---------------------------------------------------------------- for Lua */

/***
The JSON text of a value.
Integers are exact; floats keep their value and stay floats; a table with the
keys 1 to n is an array, one with string keys an object, an empty one `{}`
unless it is marked by `array`. Metamethods are not consulted.
@function encode
@param value nil, boolean, number, string, table or `null`
@tparam[opt] integer max_bytes refuse a longer text
@tparam[opt="payload"] string what the name of the value in messages
@treturn[1] string
@treturn[2] nil
@treturn[2] string message, with the path of the bad value
@treturn[2] string code `INVALID`, `TOO_BIG`
@usage core.encode({to = "a@example.com", ids = {1, 2}})
*/
int nsl_lib_encode(lua_State *L) {
  ns_err err;
  ns_buf *out;
  int64_t max = luaL_optinteger(L, 2, NSL_JSON_MAX);
  const char *what = luaL_optstring(L, 3, "payload");
  int nresults = 1;
  luaL_checkany(L, 1);
  luaL_argcheck(L, max > 0, 2, "must be positive");
  out = nsl_newbuf(L);
  if (nsl_encode(L, 1, what, max, out, &err) == NS_OK)
    lua_pushlstring(L, out->p, out->n);
  else
    nresults = nsl_fail(L, &err);
  nsl_unbox(out);
  return nresults;
}

/***
The value of a JSON text. Every `null` in it becomes `core.null`, every array
carries the metatable that `array` sets, so that `[]` stays `[]`.
@function decode
@tparam string text
@return[1] the value
@treturn[2] nil
@treturn[2] string message, with line and column
@treturn[2] string code `INVALID`
*/
int nsl_lib_decode(lua_State *L) {
  ns_err err;
  ns_bytes text = nsl_checkbytes(L, 1);
  if (nsl_decode(L, text, &err) != NS_OK)
    return nsl_fail(L, &err);
  return 1;
}

/***
Marks a table as a JSON array, so that it encodes as `[]` when it is empty.
@function array
@tparam[opt] table t a new one when absent
@treturn table the same table
@raise when `t` has a metatable of its own
*/
int nsl_lib_array(lua_State *L) {
  if (lua_isnoneornil(L, 1)) {
    lua_settop(L, 0);
    lua_newtable(L);
  }
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  if (lua_getmetatable(L, 1)) {
    luaL_argcheck(L, nsl_getmark(L, 1) == NSL_MARK_ARRAY, 1,
                  "the table has a metatable already");
    lua_pop(L, 1);
    return 1;
  }
  luaL_setmetatable(L, NSL_ARRAY);
  return 1;
}
