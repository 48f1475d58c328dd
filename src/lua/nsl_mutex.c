/*
** The locks beneath mutexes and semaphores, of which lua/nightshift/mutex.lua makes
** objects. A lock is a name and a number of units here.
*/
#include "nsl_mutex.h"

#include <lauxlib.h>

#include "nsl_conv.h"
#include "nsl_hooks.h"
#include "nsl_shared.h"
#include "shared/shared.h"

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
