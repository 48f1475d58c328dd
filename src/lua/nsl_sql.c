/*
** db:execute: the caller's own SQL with bound parameters and exact types.
**
** Rows of the core are borrowed from the handle until its next call, and making Lua values may
** run finalisers that use the same handle. So all rows are copied into a box first and become
** Lua values from there.
*/
#include "nsl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A whole result. Names and texts are views of 'bytes'. */
typedef struct rows {
  size_t ncols, nvalues, cap;
  ns_value *values; /* owned; row by row */
  ns_bytes *names;  /* owned; ncols */
  ns_buf bytes;
  int64_t affected, insert_id;
} rows;

static void free_rows(void *p) {
  rows *r = p;
  free(r->values);
  free(r->names);
  ns_buf_free(&r->bytes);
}

/* ------------------------------------------------------------- parameters */

void nsl_readparam(lua_State *L, int arg, ns_value *v) {
  switch (lua_type(L, arg)) {
  case LUA_TNIL:
    v->type = NS_NULL;
    return;
  case LUA_TBOOLEAN:
    v->type = NS_INT;
    v->i = lua_toboolean(L, arg);
    return;
  case LUA_TNUMBER:
    v->type = lua_isinteger(L, arg) ? NS_INT : NS_REAL;
    v->i = lua_isinteger(L, arg) ? lua_tointeger(L, arg) : 0;
    v->d = lua_tonumber(L, arg);
    return;
  case LUA_TSTRING:
    v->type = NS_TEXT;
    v->s.p = lua_tolstring(L, arg, &v->s.n);
    return;
  case LUA_TLIGHTUSERDATA:
    if (lua_touserdata(L, arg) == NULL) {
      v->type = NS_NULL;
      return;
    }
    break;
  default:
    break;
  }
  luaL_typeerror(L, arg, "nil, boolean, number or string as a parameter");
}

/* Pushes a box with the arguments from 3 to 'top'. */
static const ns_value *readparams(lua_State *L, int top) {
  size_t n = top > 2 ? (size_t)top - 2 : 0;
  ns_value *v = nsl_box(L, n * sizeof *v, NULL);
  for (size_t i = 0; i < n; i++)
    nsl_readparam(L, (int)i + 3, &v[i]);
  return v;
}

/* ------------------------------------------------------------ copying rows */

static bool copyhead(rows *r, const ns_result *result) {
  r->ncols = result->ncols;
  r->affected = result->affected;
  r->insert_id = result->insert_id;
  if (r->ncols == 0)
    return true;
  r->names = calloc(r->ncols, sizeof *r->names);
  if (r->names == NULL)
    return false;
  for (size_t i = 0; i < r->ncols; i++)
    r->names[i] = nsl_keep(&r->bytes, ns_str(result->names[i]));
  return true;
}

static bool copyrow(rows *r, const ns_value *row) {
  if (!ns_grow(&r->values, &r->cap, r->nvalues + r->ncols, sizeof *row))
    return false;
  for (size_t i = 0; i < r->ncols; i++) {
    ns_value *v = &r->values[r->nvalues++];
    *v = row[i];
    if (v->type == NS_TEXT)
      v->s = nsl_keep(&r->bytes, v->s);
  }
  return !r->bytes.oom;
}

static ns_status run(ns_db *db, ns_bytes sql, const ns_value *params, size_t n,
                     rows *r, ns_err *err) {
  ns_result result;
  const ns_value *row;
  bool fits;
  ns_status st = ns_execute(db, sql, params, n, &result, err);
  if (st != NS_OK)
    return st;
  fits = copyhead(r, &result);
  while (fits && r->ncols > 0) {
    if ((st = ns_fetch(db, &row, err)) != NS_OK)
      return st;
    if (row == NULL)
      break;
    fits = copyrow(r, row);
  }
  return fits && !r->bytes.oom
             ? NS_OK
             : ns_fail(err, NS_ENOMEM, "execute: out of memory for the rows");
}

/* ----------------------------------------------------------- pushing them */

static void pushvalue(lua_State *L, const rows *r, const ns_value *v) {
  char digits[24];
  ns_bytes s;
  switch (v->type) {
  case NS_INT:
    lua_pushinteger(L, v->i);
    break;
  case NS_UINT:
    snprintf(digits, sizeof digits, "%" PRIu64, (uint64_t)v->i);
    lua_pushstring(L, digits);
    break;
  case NS_REAL:
    lua_pushnumber(L, v->d);
    break;
  case NS_TEXT:
  case NS_BYTES:
    s = nsl_kept(&r->bytes, v->s);
    lua_pushlstring(L, s.p, s.n);
    break;
  case NS_NULL:
    lua_pushnil(L);
    break;
  }
}

/* The names of the columns are on the stack from 'names' on. */
static void pushrow(lua_State *L, const rows *r, const ns_value *row,
                    int names) {
  lua_createtable(L, 0, (int)r->ncols);
  for (size_t i = 0; i < r->ncols; i++)
    if (row[i].type != NS_NULL) {
      lua_pushvalue(L, names + (int)i);
      pushvalue(L, r, &row[i]);
      lua_rawset(L, -3);
    }
}

static void pushrows(lua_State *L, const rows *r) {
  int names = lua_gettop(L) + 1;
  size_t n = r->nvalues / r->ncols;
  luaL_checkstack(L, (int)r->ncols + 6, "too many columns");
  for (size_t i = 0; i < r->ncols; i++) {
    ns_bytes name = nsl_kept(&r->bytes, r->names[i]);
    lua_pushlstring(L, name.p, name.n);
  }
  lua_createtable(L, n < INT32_MAX ? (int)n : 0, 0);
  for (size_t i = 0; i < n; i++) {
    pushrow(L, r, r->values + i * r->ncols, names);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
}

static void pushchange(lua_State *L, const rows *r) {
  lua_createtable(L, 0, 2);
  nsl_setint(L, "affected", r->affected);
  nsl_setint(L, "insert_id", r->insert_id);
}

/***
Runs one SQL statement. Integers come back exact, DOUBLE and FLOAT as floats,
everything else as strings: decimals, dates, text, blobs, and BIGINT UNSIGNED
above 2^63 - 1. A NULL column is absent from its row.
@function db:execute
@tparam string sql with `?` for parameters; `"@name"`: a statement of sql/query;
`"@:text"`: one made of a template there
@param ... nil, `null`, boolean (1 or 0), integer, float or string
@treturn[1] table rows, each a table by column name; or {affected=, insert_id=}
when the statement has no rows
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `SQL`, `INVALID`, `DENIED`, `GONE`, `BUSY`
*/
static int db_execute(lua_State *L) {
  ns_err err;
  int top = lua_gettop(L);
  ns_bytes sql;
  const ns_value *params;
  rows *r;
  nsl_checkdb(L);
  sql = nsl_checkbytes(L, 2);
  luaL_checkstack(L, 8, NULL);
  params = readparams(L, top);
  r = nsl_box(L, sizeof *r, free_rows);
  if (run(nsl_checkdb(L), sql, params, top > 2 ? (size_t)top - 2 : 0, r,
          &err) != NS_OK) {
    nsl_unbox(r);
    return nsl_fail(L, &err);
  }
  if (r->ncols > 0)
    pushrows(L, r);
  else
    pushchange(L, r);
  nsl_unbox(r);
  return 1;
}

const luaL_Reg nsl_sqlverbs[] = {{"execute", db_execute}, {NULL, NULL}};
