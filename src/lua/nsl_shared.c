/*
** nightshift.shared, the dict that all workers of a host see, and the locks beneath mutexes and
** semaphores. Here such a lock is a name and a number of units; lua/nightshift/lock.lua makes
** objects of them. And the verbs on slots, which are locks across hosts.
**
** Bytes from shared memory are copied before they become Lua values: no latch is held while Lua
** allocates, raises or runs a finaliser.
*/
#include <lauxlib.h>
#include <math.h>

#include "base.h"
#include "nsl.h"
#include "shared/shared.h"

#define SELF 1 /* verbs are methods: nightshift.shared:get(key) */
#define KEY 2
#define VALUE 3
#define SCRATCH_KEPT 65536 /* bytes */

ns_region *nsl_region(lua_State *L) {
  ns_err err;
  ns_region *r = ns_region_get(&err);
  if (r == NULL)
    nsl_fail(L, &err);
  return r;
}

static ns_bytes checkkey(lua_State *L) {
  luaL_checktype(L, SELF, LUA_TTABLE);
  luaL_checktype(L, KEY, LUA_TSTRING);
  return nsl_checkbytes(L, KEY);
}

/* --------------------------------------------------------------------- values */

/*
** Reads the value at 'idx'; nil is NONE. Bytes are borrowed from it, or for a
** table from a box that is pushed. [-0, +(0|1), m]
*/
static ns_status toitem(lua_State *L, int idx, ns_item *item, ns_err *err) {
  ns_status st = NS_OK;
  ns_buf *json;
  *item = (ns_item){.type = NS_ITEM_NONE};
  switch (lua_type(L, idx)) {
  case LUA_TNONE:
  case LUA_TNIL:
    break;
  case LUA_TBOOLEAN:
    item->type = NS_ITEM_BOOL;
    item->i = lua_toboolean(L, idx);
    break;
  case LUA_TNUMBER:
    item->type = lua_isinteger(L, idx) ? NS_ITEM_INT : NS_ITEM_REAL;
    item->i = lua_isinteger(L, idx) ? lua_tointeger(L, idx) : 0;
    item->d = lua_tonumber(L, idx);
    break;
  case LUA_TSTRING:
    item->type = NS_ITEM_BYTES;
    item->s.p = lua_tolstring(L, idx, &item->s.n);
    break;
  default:
    json = nsl_newbuf(L);
    st = nsl_encode(L, idx, "value", NSL_JSON_MAX, json, err);
    item->type = NS_ITEM_JSON;
    item->s = ns_buf_bytes(json);
  }
  return st;
}

/* Pushes a value and returns 1; or nil, message, code. */
static int pushitem(lua_State *L, const ns_item *item) {
  ns_err err;
  ns_bytes text;
  switch (item->type) {
  case NS_ITEM_NONE:
    lua_pushnil(L);
    break;
  case NS_ITEM_BOOL:
    lua_pushboolean(L, item->i != 0);
    break;
  case NS_ITEM_INT:
    lua_pushinteger(L, item->i);
    break;
  case NS_ITEM_REAL:
    lua_pushnumber(L, item->d);
    break;
  case NS_ITEM_BYTES:
    lua_pushlstring(L, item->s.p, item->s.n);
    break;
  case NS_ITEM_JSON: /* a finaliser may use the scratch buffer meanwhile */
    lua_pushlstring(L, item->s.p, item->s.n);
    text.p = lua_tolstring(L, -1, &text.n);
    if (nsl_decode(L, text, &err) != NS_OK)
      return nsl_fail(L, &err);
  }
  return 1;
}

/* Argument 'arg' as an instant to expire at; none: never. */
static ns_status toexpiry(lua_State *L, int arg, int64_t *at, ns_err *err) {
  int64_t us = 0;
  ns_status st;
  *at = 0;
  if (lua_isnoneornil(L, arg))
    return NS_OK;
  if ((st = nsl_toduration(L, arg, &us, err)) != NS_OK)
    return st;
  if (us < 1)
    return ns_fail(err, NS_EINVALID, "a ttl of 0 would keep nothing");
  *at = ns_mono_us() + us;
  return NS_OK;
}

static int pushdone(lua_State *L, ns_status st, bool done, const ns_err *err) {
  if (st != NS_OK)
    return nsl_fail(L, err);
  lua_pushboolean(L, done);
  return 1;
}

/* ---------------------------------------------------------------------- verbs */

/***
Maps the shared memory. Without this it is mapped at its first use.
@function shared:open
@tparam[opt] string size `"4M"`, `"4M,evict"`; default $NIGHTSHIFT_SHARED, 1M
@treturn[1] boolean true
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `STATE` when it is there already, `INVALID`, `NOMEM`
*/
static int shared_open(lua_State *L) {
  ns_err err;
  ns_status st;
  luaL_checktype(L, SELF, LUA_TTABLE);
  st = ns_region_open(luaL_optstring(L, 2, NULL), &err);
  return pushdone(L, st, true, &err);
}

/***
The value of a key.
@function shared:get
@tparam string key
@return[1] the value, nil when there is none
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `BUSY`, `INVALID`
*/
static int shared_get(lua_State *L) {
  ns_bytes key = checkkey(L);
  ns_buf *scratch = lua_touserdata(L, lua_upvalueindex(2));
  ns_region *r = nsl_region(L);
  ns_item item;
  ns_err err;
  int n;
  if (r == NULL)
    return 3;
  ns_buf_reset(scratch);
  if (ns_shared_get(&r->shared, key, &item, scratch, &err) != NS_OK)
    return nsl_fail(L, &err);
  n = pushitem(L, &item);
  if (scratch->cap > SCRATCH_KEPT)
    ns_buf_free(scratch);
  return n;
}

static int store(lua_State *L, bool absent) {
  ns_bytes key = checkkey(L);
  ns_region *r = nsl_region(L);
  ns_item item;
  ns_err err;
  int64_t expires;
  ns_status st;
  bool done = false;
  if (r == NULL)
    return 3;
  luaL_argcheck(L, !lua_isnoneornil(L, VALUE), VALUE,
                "a value expected; delete removes a key");
  if ((st = toexpiry(L, VALUE + 1, &expires, &err)) == NS_OK &&
      (st = toitem(L, VALUE, &item, &err)) == NS_OK) {
    item.expires = expires;
    st = ns_shared_set(&r->shared, key, &item, absent, &done, &err);
  }
  return pushdone(L, st, done, &err);
}

/***
Sets the value of a key.
@function shared:set
@tparam string key 1 to 255 bytes
@param value string, integer, float, boolean, or what JSON can express
@tparam[opt] number|string ttl how long it is kept
@treturn[1] boolean true
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `FULL`, `TOO_BIG`, `INVALID`, `BUSY`
*/
static int shared_set(lua_State *L) {
  return store(L, false);
}

/***
Sets the value of a key that has none.
@function shared:add
@tparam string key
@param value
@tparam[opt] number|string ttl
@treturn[1] boolean false when the key has a value, which stays
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code as of set
*/
static int shared_add(lua_State *L) {
  return store(L, true);
}

static ns_item optnumber(lua_State *L, int arg, lua_Integer otherwise) {
  ns_item item = {.type = NS_ITEM_INT, .i = otherwise};
  ns_err err;
  if (lua_isnoneornil(L, arg))
    return item;
  luaL_checktype(L, arg, LUA_TNUMBER);
  toitem(L, arg, &item, &err);
  return item;
}

/***
Adds to the number of a key.
@function shared:incr
@tparam string key
@tparam[opt=1] number by
@tparam[opt=0] number init what a key without a value starts from
@treturn[1] number the sum
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `INVALID` for another type or an overflow, `FULL`
*/
static int shared_incr(lua_State *L) {
  ns_bytes key = checkkey(L);
  ns_item by = optnumber(L, 3, 1);
  ns_item init = optnumber(L, 4, 0);
  ns_region *r = nsl_region(L);
  ns_item sum;
  ns_err err;
  if (r == NULL)
    return 3;
  if (ns_shared_incr(&r->shared, key, &by, &init, &sum, &err) != NS_OK)
    return nsl_fail(L, &err);
  return pushitem(L, &sum);
}

/***
Sets the value of a key if it is `old`; nil stands for no value.
@function shared:cas
@tparam string key
@param old string, number, boolean or nil
@param new
@treturn[1] boolean whether it was
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code as of set
*/
static int shared_cas(lua_State *L) {
  ns_bytes key = checkkey(L);
  ns_region *r = nsl_region(L);
  ns_item old;
  ns_item new;
  ns_err err;
  ns_status st;
  bool done = false;
  if (r == NULL)
    return 3;
  luaL_argexpected(L, lua_type(L, 3) != LUA_TTABLE, 3,
                   "string, number, boolean or nil");
  lua_settop(L, 4);
  if ((st = toitem(L, 3, &old, &err)) == NS_OK &&
      (st = toitem(L, 4, &new, &err)) == NS_OK)
    st = ns_shared_cas(&r->shared, key, &old, &new, &done, &err);
  return pushdone(L, st, done, &err);
}

/***
Removes a key.
@function shared:delete
@tparam string key
@treturn[1] boolean whether it was there
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `BUSY`, `INVALID`
*/
static int shared_delete(lua_State *L) {
  ns_bytes key = checkkey(L);
  ns_region *r = nsl_region(L);
  ns_err err;
  ns_status st;
  bool done = false;
  if (r == NULL)
    return 3;
  st = ns_shared_delete(&r->shared, key, &done, &err);
  return pushdone(L, st, done, &err);
}

/***
Seconds until a key expires.
@function shared:ttl
@tparam string key
@treturn[1] number `math.huge` when it never does, nil when there is no such key
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `BUSY`, `INVALID`
*/
static int shared_ttl(lua_State *L) {
  ns_bytes key = checkkey(L);
  ns_region *r = nsl_region(L);
  int64_t us;
  bool there;
  ns_err err;
  if (r == NULL)
    return 3;
  if (ns_shared_ttl(&r->shared, key, &us, &there, &err) != NS_OK)
    return nsl_fail(L, &err);
  if (!there)
    lua_pushnil(L);
  else
    lua_pushnumber(L, us < 0 ? (lua_Number)INFINITY : (lua_Number)us / 1e6);
  return 1;
}

/***
The keys, in no order.
@function shared:keys
@tparam[opt=""] string prefix
@treturn[1] {string,...}
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `BUSY`, `NOMEM`
*/
static int shared_keys(lua_State *L) {
  ns_bytes prefix = {"", 0};
  ns_region *r;
  ns_buf *out;
  ns_err err;
  lua_Integer n = 0;
  luaL_checktype(L, SELF, LUA_TTABLE);
  if (!lua_isnoneornil(L, 2))
    prefix = nsl_checkbytes(L, 2);
  if ((r = nsl_region(L)) == NULL)
    return 3;
  out = nsl_newbuf(L);
  if (ns_shared_keys(&r->shared, prefix, out, &err) != NS_OK)
    return nsl_fail(L, &err);
  lua_newtable(L);
  for (size_t at = 0; at < out->n;) {
    size_t length = (unsigned char)out->p[at];
    lua_pushlstring(L, out->p + at + 1, length);
    lua_rawseti(L, -2, ++n);
    at += 1 + length;
  }
  nsl_unbox(out);
  return 1;
}

static const luaL_Reg verbs[] = {
    {"open", shared_open},     {"get", shared_get}, {"set", shared_set},
    {"add", shared_add},       {"incr", shared_incr}, {"cas", shared_cas},
    {"delete", shared_delete}, {"ttl", shared_ttl}, {"keys", shared_keys},
    {NULL, NULL}};

void nsl_pushshared(lua_State *L) {
  ns_buf *scratch;
  luaL_newlibtable(L, verbs);
  scratch = nsl_newbuf(L); /* where get copies bytes to; kept by the box */
  lua_pushlightuserdata(L, scratch);
  luaL_setfuncs(L, verbs, 2);
}

/* ----------------------------------------------------------------------- locks */

/* The name and the number of units, 0 for a mutex. */
static ns_bytes checklock(lua_State *L, unsigned *units) {
  lua_Integer n = luaL_checkinteger(L, 2);
  luaL_argcheck(L, n >= 0 && n <= INT32_MAX, 2, "out of range");
  *units = (unsigned)n;
  return nsl_checkbytes(L, 1);
}

/***
Takes a unit of a mutex or semaphore.
@function lock
@tparam string name
@tparam integer units of a semaphore, 0 for a mutex
@tparam integer timeout µs
@treturn[1] integer the unit, for unlock
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `BUSY` after the timeout, `STATE` when this process has
one, `INVALID`, `FULL`
*/
int nsl_lib_lock(lua_State *L) {
  unsigned units;
  unsigned unit = 0;
  ns_bytes name = checklock(L, &units);
  int64_t timeout = luaL_checkinteger(L, 3);
  ns_region *r = nsl_region(L);
  nsl_wait wait = {.L = L};
  ns_err err;
  ns_status st;
  if (r == NULL)
    return 3;
  st = ns_mutex_lock(r->locks, name, units, timeout, nsl_hooks, &wait, &unit, &err);
  if (st == NS_OK && wait.stopped)
    ns_mutex_unlock(r->locks, name, units, unit, &err);
  nsl_raise(L, &wait);
  if (st != NS_OK)
    return nsl_fail(L, &err);
  lua_pushinteger(L, unit);
  return 1;
}

/***
Gives a unit back.
@function unlock
@tparam string name
@tparam integer units
@tparam integer unit
@treturn[1] boolean true
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `STATE` when this process does not hold it, `BUSY`
*/
int nsl_lib_unlock(lua_State *L) {
  unsigned units;
  ns_bytes name = checklock(L, &units);
  lua_Integer unit = luaL_checkinteger(L, 3);
  ns_region *r = nsl_region(L);
  ns_err err;
  ns_status st;
  if (r == NULL)
    return 3;
  luaL_argcheck(L, unit >= 0 && unit < NS_MUTEX_UNITS_MAX, 3, "out of range");
  st = ns_mutex_unlock(r->locks, name, units, (unsigned)unit, &err);
  return nsl_result(L, st, &err);
}

/***
Gives back whatever this process holds.
@function unlock_all
@treturn[1] boolean true
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `BUSY`
*/
int nsl_lib_unlock_all(lua_State *L) {
  ns_region *r = ns_region_get(NULL);
  ns_err err;
  ns_status st = NS_OK;
  if (r != NULL)
    st = ns_mutex_unlock_all(r->locks, &err);
  return nsl_result(L, st, &err);
}

/* -------------------------------------------------------- locks across hosts */

/* lua/nightshift/lock.lua makes locks and semaphores of slots. A slot is its token here, an integer.
** What is held is in the core's memory, so nothing is lost when Lua raises. */

/***
Takes a free slot of a name; never waits.
@function db:slot_acquire
@tparam string name up to 190 characters
@tparam integer n how many slots there are, 1 to 10,000
@tparam[opt=-1] integer waited µs since the first try; -1: will not wait
@return token, or nil, message, code `BUSY`, `STALE`, `STATE`, `INVALID`, `GONE`
@treturn integer with a code: µs until another try pays
*/
static int db_slot_acquire(lua_State *L) {
  ns_err err;
  int64_t token;
  int64_t again_in;
  ns_db *db = nsl_checkdb(L);
  ns_bytes name = nsl_checkbytes(L, 2);
  lua_Integer n = luaL_checkinteger(L, 3);
  lua_Integer waited = luaL_optinteger(L, 4, -1);
  if (ns_slot_acquire(db, name, n, waited, &token, &again_in, &err) != NS_OK) {
    nsl_fail(L, &err);
    lua_pushinteger(L, again_in);
    return 4;
  }
  lua_pushinteger(L, token);
  return 1;
}

/***
Ends a wait that has come to nothing.
@function db:slot_give_up
@tparam string name
*/
static int db_slot_give_up(lua_State *L) {
  ns_db *db = nsl_checkdb(L);
  ns_slot_give_up(db, nsl_checkbytes(L, 2));
  return 0;
}

/***
Gives a slot back; inside a transaction, when that ends.
@function db:slot_release
@tparam integer token
@return true, or nil, message, code `STALE`, `GONE`, `BUSY`
*/
static int db_slot_release(lua_State *L) {
  ns_err err;
  ns_db *db = nsl_checkdb(L);
  lua_Integer token = luaL_checkinteger(L, 2);
  return nsl_result(L, ns_slot_release(db, token, &err), &err);
}

/***
Whether a slot is held, as far as this handle knows.
@function db:slot_holds
@tparam integer token
@treturn boolean
*/
static int db_slot_holds(lua_State *L) {
  ns_db *db = nsl_checkdb(L);
  lua_pushboolean(L, ns_slot_holds(db, luaL_checkinteger(L, 2)));
  return 1;
}

/***
The owner of the slots that are taken from now on.
@function db:slot_owner
@tparam[opt=0] integer id of the job that runs; 0: this handle's holder
@tparam[opt=0] integer run
*/
static int db_slot_owner(lua_State *L) {
  ns_db *db = nsl_checkdb(L);
  lua_Integer id = luaL_optinteger(L, 2, 0);
  ns_slot_owner(db, id, luaL_optinteger(L, 3, 0));
  return 0;
}

const luaL_Reg nsl_slotverbs[] = {{"slot_acquire", db_slot_acquire},
                                  {"slot_give_up", db_slot_give_up},
                                  {"slot_holds", db_slot_holds},
                                  {"slot_owner", db_slot_owner},
                                  {"slot_release", db_slot_release},
                                  {NULL, NULL}};
