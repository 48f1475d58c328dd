/*
** JSON from Lua values, and the functions of the module for both ways.
**
** Encoding walks the Lua value and writes straight into the caller's buffer. It writes
** brackets, commas, integers and plain ASCII by itself. Every other string and every float is
** written by jansson, which checks UTF-8, escapes, and keeps the locale out. A float gets the
** fewest digits that read back as the same float, which a tree dumped by jansson in one go
** could not have.
**
** Invariants of the walk: tables are read raw, so no code of the caller runs. One frame per
** open table has the data for the path of an error message. The size is counted on after the
** limit, so that the message can name it.
*/
#include "nsl.h"

#include "base.h"

#include <inttypes.h>
#include <jansson.h>
#include <lauxlib.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Beyond this many times the limit a value is not even counted. */
#define COUNT_FACTOR 16

typedef struct frame {
  const void *table;
  int key;       /* stack index of the key being encoded; 0: none yet */
  lua_Integer i; /* index being encoded; 0: none yet, or an object */
} frame;

typedef struct walk {
  lua_State *L;
  ns_buf *out;
  size_t start;    /* where our text begins in 'out' */
  int64_t size;    /* of the text so far, written or not */
  int64_t max;
  const char *what;
  ns_err *err;
  int depth;
  frame frames[NSL_JSON_DEPTH];
} walk;

/* -------------------------------------------------- the path of a message */

static bool isidentifier(const char *s, size_t n) {
  static const char letters[] =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
  size_t i;
  for (i = 0; i < n; i++)
    if (s[i] == '\0' || strchr(letters, s[i]) == NULL)
      return false;
  return n > 0 && (s[0] < '0' || s[0] > '9');
}

/* Adds ["a key"]; characters that would spoil a line are escaped, a long key is cut. */
static void quotekey(ns_buf *b, const char *s, size_t n) {
  ns_buf_adds(b, "[\"");
  for (size_t i = 0; i < n && i < 60; i++) {
    unsigned char c = (unsigned char)s[i];
    if (c < ' ' || c >= 0x7f || c == '"' || c == '\\')
      ns_buf_addf(b, "\\x%02x", (unsigned)c);
    else
      ns_buf_addc(b, s[i]);
  }
  ns_buf_adds(b, n > 60 ? "...\"]" : "\"]");
}

static void addstep(walk *w, const frame *f, ns_buf *b) {
  size_t n;
  const char *s;
  if (f->i > 0)
    ns_buf_addf(b, "[%lld]", (long long)f->i);
  else if (f->key != 0) {
    s = lua_tolstring(w->L, f->key, &n); /* a string: converts nothing */
    if (isidentifier(s, n) && n <= 60) {
      ns_buf_addc(b, '.');
      ns_buf_add(b, s, n);
    } else
      quotekey(b, s, n);
  }
}

/* Writes the path where the text would have gone; the middle of a long one
** is left out. */
static ns_bytes pathof(walk *w) {
  ns_buf *b = w->out;
  ns_bytes path;
  b->n = w->start;
  b->oom = false;
  ns_buf_adds(b, w->what);
  for (int i = 0; i < w->depth; i++)
    addstep(w, &w->frames[i], b);
  if (!b->oom && b->n - w->start > 240) {
    memmove(b->p + w->start + 123, b->p + b->n - 117, 117);
    memcpy(b->p + w->start + 120, "...", 3);
    b->n = w->start + 240;
  }
  path = (ns_bytes){b->oom ? "" : b->p + w->start, b->n - w->start};
  b->n = w->start;
  return path;
}

/* Returns false, always: `return refuse(w, "…");` */
static bool refuse(walk *w, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static bool refuse(walk *w, const char *fmt, ...) {
  char reason[200];
  ns_bytes path = pathof(w);
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(reason, sizeof reason, fmt, ap);
  va_end(ap);
  ns_fail(w->err, NS_EINVALID, "%.*s: %s", (int)path.n, path.p, reason);
  return false;
}

static bool nomemory(walk *w) {
  ns_fail(w->err, NS_ENOMEM, "%s: out of memory", w->what);
  return false;
}

static bool toobig(walk *w, const char *more) {
  ns_fail(w->err, NS_ETOOBIG,
          "%s is %s%" PRId64 " bytes of JSON, over the limit of %" PRId64
          " (max_payload when the database is opened)",
          w->what, more, w->size, w->max);
  return false;
}

/* ---------------------------------------------------------------- scalars */

static bool emit(walk *w, const char *p, size_t n) {
  w->size += (int64_t)n;
  if (w->size <= w->max)
    ns_buf_add(w->out, p, n);
  else if (w->size / COUNT_FACTOR > w->max)
    return toobig(w, "more than ");
  return true;
}

static int sink(const char *p, size_t n, void *w) {
  return emit(w, p, n) ? 0 : -1;
}

/* Dumps and frees 'j'. No call here can raise. */
static bool emitjson(walk *w, json_t *j, size_t flags) {
  int rc;
  w->err->status = NS_OK;
  rc = json_dump_callback(j, sink, w, flags | JSON_ENCODE_ANY);
  json_decref(j);
  return rc == 0 || (w->err->status == NS_OK ? nomemory(w) : false);
}

static bool emitint(walk *w, lua_Integer i) {
  char s[24];
  int n = snprintf(s, sizeof s, "%lld", (long long)i);
  return emit(w, s, (size_t)n);
}

static bool emitfloat(walk *w, double d) {
  char text[NS_NUMBER_SIZE];
  ns_number_real(d, text);
  return isfinite(d) ? emit(w, text, strlen(text)) : refuse(w, "cannot encode %s", text);
}

#define EIGHT(c) (UINT64_C(0x0101010101010101) * (c))

/* Marks, in eight bytes at once, the ones that are no plain text by their top bits. A borrow
** may mark more, but only above a byte that is marked rightly. */
static uint64_t notplain(uint64_t v) {
  uint64_t quote = v ^ EIGHT('"');
  uint64_t slash = v ^ EIGHT('\\');
  uint64_t delete = v ^ EIGHT(127);
  return (v | (v - EIGHT(' ')) | (quote - EIGHT(1)) | (slash - EIGHT(1)) |
          (delete - EIGHT(1))) & EIGHT(128);
}

static bool isplain(const char *s, size_t n) {
  uint64_t v;
  for (; n >= sizeof v; s += sizeof v, n -= sizeof v) {
    memcpy(&v, s, sizeof v);
    if (notplain(v) != 0)
      return false;
  }
  v = EIGHT(' ');
  memcpy(&v, s, n);
  return notplain(v) == 0;
}

/* Writes a string; 'kind' names it in the message. */
static bool emitstring(walk *w, const char *s, size_t n, const char *kind) {
  json_t *j;
  if (isplain(s, n))
    return emit(w, "\"", 1) && emit(w, s, n) && emit(w, "\"", 1);
  if (!ns_utf8_valid((ns_bytes){s, n}))
    return refuse(w, "%s is not valid UTF-8; encode bytes as base64 or hex",
                  kind);
  if ((j = json_stringn_nocheck(s, n)) == NULL)
    return nomemory(w);
  return emitjson(w, j, 0);
}

/* ----------------------------------------------------------------- tables */

static bool encode(walk *w, int idx);

/* Checks that the keys are 1..n and nothing else. */
static bool countitems(walk *w, int t, lua_Integer *n) {
  lua_State *L = w->L;
  lua_Integer count = 0;
  lua_Integer top = 0;
  lua_pushnil(L);
  while (lua_next(L, t)) {
    lua_Integer i = lua_isinteger(L, -2) ? lua_tointeger(L, -2) : 0;
    bool isstring = lua_type(L, -2) == LUA_TSTRING;
    lua_pop(L, i >= 1 ? 1 : 2);
    if (i < 1)
      return isstring
                 ? refuse(w, "both list items and named fields in one table")
                 : refuse(w, "a list has keys 1 to n only");
    count++;
    top = i > top ? i : top;
  }
  if (count != top)
    return refuse(w, "a list with holes: %lld items, the last at %lld (use "
                     "null for a hole)", (long long)count, (long long)top);
  *n = count;
  return true;
}

static bool encodearray(walk *w, int t) {
  lua_State *L = w->L;
  frame *f = &w->frames[w->depth - 1];
  lua_Integer n = 0;
  if (!countitems(w, t, &n) || !emit(w, "[", 1))
    return false;
  for (f->i = 1; f->i <= n; f->i++) {
    lua_rawgeti(L, t, f->i);
    if ((f->i > 1 && !emit(w, ",", 1)) || !encode(w, lua_gettop(L)))
      return false;
    lua_pop(L, 1);
  }
  return emit(w, "]", 1);
}

/* The key is at stack index 'key'; its frame names it once it is known good. */
static bool encodekey(walk *w, frame *f, int key) {
  size_t n;
  const char *s;
  f->key = 0;
  if (lua_isinteger(w->L, key))
    return refuse(w, "both list items and named fields in one table");
  if (lua_type(w->L, key) != LUA_TSTRING)
    return refuse(w, "a %s as a key; keys are strings, or 1 to n",
                  luaL_typename(w->L, key));
  s = lua_tolstring(w->L, key, &n);
  if (memchr(s, '\0', n) != NULL)
    return refuse(w, "a key with a NUL byte");
  if (!emitstring(w, s, n, "a key") || !emit(w, ":", 1))
    return false;
  f->key = key;
  return true;
}

static bool encodeobject(walk *w, int t) {
  lua_State *L = w->L;
  frame *f = &w->frames[w->depth - 1];
  bool first = true;
  if (!emit(w, "{", 1))
    return false;
  lua_pushnil(L);
  while (lua_next(L, t)) {
    int value = lua_gettop(L);
    if ((!first && !emit(w, ",", 1)) || !encodekey(w, f, value - 1) ||
        !encode(w, value))
      return false;
    lua_pop(L, 1);
    first = false;
  }
  return emit(w, "}", 1);
}

/* An unmarked table is an array when its first key is an integer. */
static bool isarray(lua_State *L, int t) {
  nsl_mark m = nsl_getmark(L, t);
  bool yes;
  if (m != NSL_MARK_NONE)
    return m == NSL_MARK_ARRAY;
  lua_pushnil(L);
  if (!lua_next(L, t))
    return false;
  yes = lua_isinteger(L, -2);
  lua_pop(L, 2);
  return yes;
}

static bool encodetable(walk *w, int t) {
  const void *p = lua_topointer(w->L, t);
  bool ok;
  luaL_checkstack(w->L, 6, "value nested too deep");
  for (int i = 0; i < w->depth; i++)
    if (w->frames[i].table == p)
      return refuse(w, "cannot encode a table that contains itself");
  if (w->depth == NSL_JSON_DEPTH)
    return refuse(w, "nested deeper than %d tables", NSL_JSON_DEPTH);
  ns_assert(w->depth >= 0 && w->depth < NSL_JSON_DEPTH); /* a frame per open table */
  w->frames[w->depth++] = (frame){p, 0, 0};
  ok = isarray(w->L, t) ? encodearray(w, t) : encodeobject(w, t);
  ns_assert(w->depth > 0);
  if (ok) /* else the message is made; leave the walk as it is */
    w->depth--;
  return ok;
}

/* The value at the absolute index 'idx'. Leaves garbage on failure only. */
static bool encode(walk *w, int idx) {
  lua_State *L = w->L;
  const char *s;
  size_t n;
  switch (lua_type(L, idx)) {
  case LUA_TNIL:
    return emit(w, "null", 4);
  case LUA_TBOOLEAN:
    return lua_toboolean(L, idx) ? emit(w, "true", 4) : emit(w, "false", 5);
  case LUA_TNUMBER:
    return lua_isinteger(L, idx) ? emitint(w, lua_tointeger(L, idx))
                                 : emitfloat(w, lua_tonumber(L, idx));
  case LUA_TSTRING:
    s = lua_tolstring(L, idx, &n);
    return emitstring(w, s, n, "a string");
  case LUA_TTABLE:
    return encodetable(w, idx);
  case LUA_TLIGHTUSERDATA:
    if (lua_touserdata(L, idx) == NULL)
      return emit(w, "null", 4);
    break;
  default:
    break;
  }
  return refuse(w, "cannot encode a %s", lua_typename(L, lua_type(L, idx)));
}

ns_status nsl_encode(lua_State *L, int idx, const char *what, int64_t max,
                     ns_buf *out, ns_err *err) {
  walk w;
  int top = lua_gettop(L);
  bool ok;
  w.L = L;
  w.out = out;
  w.start = out->n;
  w.size = 0;
  w.max = max;
  w.what = what;
  w.err = err;
  w.depth = 0;
  ok = encode(&w, lua_absindex(L, idx)) && (w.size <= max || toobig(&w, "")) &&
       (!out->oom || nomemory(&w));
  lua_settop(L, top);
  if (ok)
    return NS_OK;
  out->n = w.start;
  return err->status;
}

/* ---------------------------------------------------------------- for Lua */

/***
The JSON text of a value. Integers are exact; floats keep their value and stay floats. A
table with the keys 1 to n is an array, one with string keys an object. An empty one is `{}`
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
    luaL_argcheck(L, nsl_getmark(L, 1) == NSL_MARK_ARRAY, 1, "the table has a metatable already");
    lua_pop(L, 1);
    return 1;
  }
  luaL_setmetatable(L, NSL_ARRAY);
  return 1;
}
