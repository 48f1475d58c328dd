/*
** Lua values and C: option tables, boxes and small pushes; Lua values from JSON, the value for its
** null, and the mark of its arrays. Tables are read raw, in one pass over their keys. So no code of
** the caller runs in the middle, and the same pass finds a misspelt key. Reading JSON is jansson's;
** its tree lives in a box while it is copied into Lua.
*/
#include "nsl.h"

#include "base.h"

#include <jansson.h>
#include <lauxlib.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define NSL_BOX "nightshift.box"

/* ------------------------------------------------------------------ boxes */

typedef struct box {
  void (*release)(void *); /* NULL: released */
  max_align_t data[];
} box;

static void release(box *b) {
  void (*fn)(void *) = b->release;
  b->release = NULL;
  if (fn != NULL)
    fn(b->data);
}

void *nsl_box(lua_State *L, size_t size, void (*fn)(void *)) {
  box *b = lua_newuserdatauv(L, sizeof *b + size, 0);
  memset(b->data, 0, size);
  b->release = fn;
  luaL_setmetatable(L, NSL_BOX);
  return b->data;
}

void nsl_unbox(void *p) {
  release((box *)(void *)((char *)p - offsetof(box, data)));
}

static int box_gc(lua_State *L) {
  release(luaL_checkudata(L, 1, NSL_BOX));
  return 0;
}

void nsl_openboxes(lua_State *L) {
  /* set again when it exists: an earlier attempt may have died half-way */
  luaL_newmetatable(L, NSL_BOX);
  lua_pushcfunction(L, box_gc);
  lua_setfield(L, -2, "__gc");
  lua_pop(L, 1);
}

static void free_buf(void *p) {
  ns_buf_free(p);
}

ns_buf *nsl_newbuf(lua_State *L) {
  return nsl_box(L, sizeof(ns_buf), free_buf);
}

/* ---------------------------------------------------------------- options */

/* Raises; the message lists the known names. */
static void unknown(lua_State *L, int key, const nsl_field *fields,
                    const char *what) {
  luaL_Buffer b;
  const char *name;
  if (lua_type(L, key) != LUA_TSTRING)
    luaL_error(L, "%soption names are strings, got a %s", what,
               luaL_typename(L, key));
  name = lua_tostring(L, key);
  luaL_buffinit(L, &b);
  for (const nsl_field *f = fields; f->name != NULL; f++) {
    if (f != fields)
      luaL_addstring(&b, ", ");
    luaL_addstring(&b, f->name);
  }
  luaL_pushresult(&b);
  luaL_error(L, "%sunknown option '%s' (known: %s)", what, name,
             lua_tostring(L, -1));
}

static void wrongtype(lua_State *L, const nsl_field *f, const char *what,
                      const char *expected) {
  luaL_error(L, "%sbad option '%s' (%s expected, got %s)", what, f->name,
             expected, luaL_typename(L, -1));
}

static const nsl_field *findfield(lua_State *L, int key,
                                  const nsl_field *fields, const char *what) {
  if (lua_type(L, key) == LUA_TSTRING) {
    size_t n;
    const char *name = lua_tolstring(L, key, &n);
    for (const nsl_field *f = fields; f->name != NULL; f++)
      if (*f->name == *name && strlen(f->name) == n && memcmp(f->name, name, n) == 0)
        return f;
  }
  unknown(L, key, fields, what);
  return NULL; /* not reached */
}

static void readint(lua_State *L, const nsl_field *f, const char *what,
                    void *slot) {
  int ok;
  int64_t i = lua_tointegerx(L, -1, &ok);
  char text[NS_NUMBER_SIZE];
  if (!ok && lua_type(L, -1) == LUA_TNUMBER)
    luaL_error(L, "%sbad option '%s' (%s is no integer)", what, f->name,
               ns_number(lua_tonumber(L, -1), text));
  if (!ok)
    wrongtype(L, f, what, "integer");
  memcpy(slot, &i, sizeof i);
}

static void readbool(lua_State *L, const nsl_field *f, const char *what,
                     void *slot) {
  bool b = lua_toboolean(L, -1);
  if (!lua_isboolean(L, -1))
    wrongtype(L, f, what, "boolean");
  memcpy(slot, &b, sizeof b);
}

/* Numbers are refused: converting one makes a string without a reference. */
static ns_bytes readbytes(lua_State *L, const nsl_field *f, const char *what) {
  ns_bytes s;
  if (lua_type(L, -1) != LUA_TSTRING)
    wrongtype(L, f, what, "string");
  s.p = lua_tolstring(L, -1, &s.n);
  return s;
}

/* The value is on top. */
static ns_status readfield(lua_State *L, const nsl_field *f, const char *what,
                           void *slot, ns_err *err) {
  ns_bytes s;
  switch (f->kind) {
  case NSL_INT:
    readint(L, f, what, slot);
    break;
  case NSL_BOOL:
    readbool(L, f, what, slot);
    break;
  case NSL_CSTR:
    s = readbytes(L, f, what);
    if (strlen(s.p) != s.n)
      return ns_fail(err, NS_EINVALID, "%soption '%s' contains a NUL byte",
                     what, f->name);
    memcpy(slot, &s.p, sizeof s.p);
    break;
  case NSL_BYTES:
    s = readbytes(L, f, what);
    memcpy(slot, &s, sizeof s);
    break;
  case NSL_TABLE:
    if (!lua_istable(L, -1))
      wrongtype(L, f, what, "table");
    break;
  case NSL_ANY:
    break;
  }
  return NS_OK;
}

ns_status nsl_readfields(lua_State *L, int idx, const nsl_field *fields,
                         const char *what, void *into, ns_err *err) {
  ns_status st = NS_OK;
  idx = lua_absindex(L, idx);
  luaL_checkstack(L, 8, NULL); /* also for the message of unknown */
  lua_pushnil(L);
  while (st == NS_OK && lua_next(L, idx)) { /* stack: key; value */
    const nsl_field *f = findfield(L, lua_absindex(L, -2), fields, what);
    st = readfield(L, f, what, (char *)into + f->offset, err);
    lua_pop(L, st == NS_OK ? 1 : 2);
  }
  return st;
}

int nsl_rawfield(lua_State *L, int idx, const char *name) {
  idx = lua_absindex(L, idx);
  lua_pushstring(L, name);
  return lua_rawget(L, idx);
}

/* -------------------------------------------------------------- arguments */

ns_bytes nsl_checkbytes(lua_State *L, int arg) {
  ns_bytes s;
  s.p = luaL_checklstring(L, arg, &s.n);
  return s;
}

ns_bytes nsl_optbytes(lua_State *L, int arg) {
  return lua_isnoneornil(L, arg) ? NS_NONE : nsl_checkbytes(L, arg);
}

ns_status nsl_toduration(lua_State *L, int arg, int64_t *us, ns_err *err) {
  if (lua_type(L, arg) == LUA_TNUMBER)
    return ns_duration_seconds(lua_tonumber(L, arg), us, err);
  if (lua_type(L, arg) != LUA_TSTRING)
    luaL_typeerror(L, arg, "number of seconds or string like \"5m\"");
  return ns_duration_parse(nsl_checkbytes(L, arg), us, err);
}

int64_t nsl_optmicros(lua_State *L, int arg) {
  lua_Integer us = luaL_optinteger(L, arg, 0);
  luaL_argcheck(L, us >= 0, arg, "must not be negative");
  return us < NS_DURATION_MAX ? us : NS_DURATION_MAX;
}

/* ------------------------------------------------------------------- views */

ns_bytes nsl_view(size_t at, size_t n) {
  return (ns_bytes){(const char *)(uintptr_t)(at + 1), n};
}

ns_bytes nsl_keep(ns_buf *b, ns_bytes s) {
  size_t at = b->n;
  if (s.p == NULL)
    return s;
  ns_buf_add(b, s.p, s.n);
  return nsl_view(at, s.n);
}

ns_bytes nsl_kept(const ns_buf *b, ns_bytes view) {
  if (view.p == NULL)
    return NS_NONE;
  return view.n > 0 ? (ns_bytes){b->p + ((uintptr_t)view.p - 1), view.n}
                    : ns_str("");
}

/* ----------------------------------------------------------------- pushes */

void nsl_setint(lua_State *L, const char *name, int64_t i) {
  lua_pushinteger(L, i);
  lua_setfield(L, -2, name);
}

void nsl_setseconds(lua_State *L, const char *name, int64_t us) {
  lua_pushnumber(L, (lua_Number)us / 1000000);
  lua_setfield(L, -2, name);
}

void nsl_setbytes(lua_State *L, const char *name, ns_bytes s) {
  if (s.p == NULL)
    return;
  lua_pushlstring(L, s.p, s.n);
  lua_setfield(L, -2, name);
}

void nsl_setbool(lua_State *L, const char *name, bool b) {
  lua_pushboolean(L, b);
  lua_setfield(L, -2, name);
}

void nsl_setpositive(lua_State *L, const char *name, int64_t i) {
  if (i > 0)
    nsl_setint(L, name, i);
}

/* Pushes a message. It repeats the caller's text, which may be cut, or be no UTF-8 at all. */
static void pushmessage(lua_State *L, const char *message) {
  ns_bytes text = ns_str(message);
  ns_buf *clean;
  if (ns_utf8_valid(text)) {
    lua_pushstring(L, message);
    return;
  }
  clean = nsl_newbuf(L);
  ns_buf_add_utf8(clean, text);
  text = ns_buf_bytes(clean);
  lua_pushlstring(L, text.p, text.n);
  nsl_unbox(clean);
  lua_remove(L, -2);
}

int nsl_fail(lua_State *L, const ns_err *err) {
  luaL_checkstack(L, 5, NULL);
  luaL_pushfail(L);
  pushmessage(L, err->message);
  lua_pushstring(L, ns_code(err->status));
  if (err->job == 0)
    return 3;
  lua_pushinteger(L, err->job);
  return 4;
}

int nsl_result(lua_State *L, ns_status st, const ns_err *err) {
  if (st != NS_OK)
    return nsl_fail(L, err);
  lua_pushboolean(L, 1);
  return 1;
}

/* ---------------------------------------------------------------- JSON to Lua */

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
static void clean_line(char *s) {
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
  clean_line(e->text);
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
