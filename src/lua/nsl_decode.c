/*
** Lua values from JSON, the value for its null, and the mark of its arrays. Reading is
** jansson's; its tree lives in a box while it is copied into Lua.
*/
#include "nsl.h"

#include "base.h"

#include <jansson.h>
#include <lauxlib.h>
#include <stdlib.h>
#include <string.h>

static void free_json(void *p) {
  json_decref(*(json_t **)p);
}

static void pushvalue(lua_State *L, json_t *j);

static void pusharray(lua_State *L, json_t *j) {
  size_t n = json_array_size(j);
  lua_createtable(L, n < INT32_MAX ? (int)n : INT32_MAX, 0);
  for (size_t i = 0; i < n; i++) {
    pushvalue(L, json_array_get(j, i));
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  luaL_setmetatable(L, NSL_ARRAY);
}

static void pushobject(lua_State *L, json_t *j) {
  size_t n = json_object_size(j);
  void *it;
  lua_createtable(L, 0, n < INT32_MAX ? (int)n : INT32_MAX);
  for (it = json_object_iter(j); it; it = json_object_iter_next(j, it)) {
    lua_pushlstring(L, json_object_iter_key(it), json_object_iter_key_len(it));
    pushvalue(L, json_object_iter_value(it));
    lua_rawset(L, -3);
  }
}

/* The recursion is as deep as the text, which jansson limits to 2048. */
static void pushvalue(lua_State *L, json_t *j) {
  luaL_checkstack(L, 4, "JSON nested too deep");
  switch (json_typeof(j)) {
  case JSON_OBJECT:
    pushobject(L, j);
    break;
  case JSON_ARRAY:
    pusharray(L, j);
    break;
  case JSON_STRING:
    lua_pushlstring(L, json_string_value(j), json_string_length(j));
    break;
  case JSON_INTEGER:
    lua_pushinteger(L, json_integer_value(j));
    break;
  case JSON_REAL:
    lua_pushnumber(L, json_real_value(j));
    break;
  case JSON_TRUE:
  case JSON_FALSE:
    lua_pushboolean(L, json_is_true(j));
    break;
  case JSON_NULL:
    lua_pushlightuserdata(L, NULL);
    break;
  }
}

/* jansson quotes the text it could not read: keep that on one line of UTF-8. */
static void clean(char *s) {
  size_t n = strlen(s);
  size_t len;
  for (; n > 0; s += len, n -= len) {
    len = ns_utf8(s, n);
    if (len == 0 || (len == 1 && ((unsigned char)*s < ' ' || *s == 0x7f))) {
      *s = '?';
      len = 1;
    }
  }
}

static ns_status badjson(json_error_t *e, ns_err *err) {
  clean(e->text);
  if (json_error_code(e) == json_error_out_of_memory)
    return ns_fail(err, NS_ENOMEM, "decoding JSON: out of memory");
  if (json_error_code(e) == json_error_numeric_overflow)
    return ns_fail(err, NS_EINVALID,
                   "not JSON we can keep exactly: line %d, column %d: %s "
                   "(send numbers beyond 64 bits as strings)",
                   e->line, e->column, e->text);
  return ns_fail(err, NS_EINVALID, "not JSON: line %d, column %d: %s", e->line,
                 e->column, e->text);
}

/* Where memory is short jansson mostly calls the text invalid. So that a good
** payload is never condemned, a bad one is read once more when there is room
** for a copy of it. */
static json_t *load(ns_bytes text, json_error_t *e) {
  const size_t flags = JSON_DECODE_ANY | JSON_ALLOW_NUL;
  json_t *j = json_loadb(text.p, text.n, flags, e);
  void *room;
  if (j != NULL || json_error_code(e) == json_error_out_of_memory)
    return j;
  if ((room = malloc(text.n + sizeof *e)) == NULL) {
    e->text[sizeof e->text - 1] = (char)json_error_out_of_memory;
    return NULL;
  }
  free(room);
  return json_loadb(text.p, text.n, flags, e);
}

ns_status nsl_decode(lua_State *L, ns_bytes text, ns_err *err) {
  json_error_t e;
  json_t **root;
  luaL_checkstack(L, 4, NULL);
  root = nsl_box(L, sizeof *root, free_json);
  if ((*root = load(text, &e)) == NULL) {
    lua_pop(L, 1);
    return badjson(&e, err);
  }
  pushvalue(L, *root);
  nsl_unbox(root);
  lua_remove(L, -2);
  return NS_OK;
}

void nsl_setjson(lua_State *L, const char *name, ns_bytes text, bool nulls) {
  ns_err err;
  if (text.p == NULL)
    return;
  if (nsl_decode(L, text, &err) != NS_OK) {
    if (err.status == NS_ENOMEM) /* says nothing about the text */
      luaL_error(L, "%s", err.message);
    lua_pushfstring(L, "%s_error", name);
    lua_pushfstring(L, "%s: %s", name, err.message);
    lua_rawset(L, -3);
  } else if (lua_islightuserdata(L, -1) && !nulls)
    lua_pop(L, 1);
  else
    lua_setfield(L, -2, name);
}

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

/* Gives null its metatable. All light userdata share one; an existing one is left alone. */
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
