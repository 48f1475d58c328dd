/*
** The verbs on slots; lua/nightshift/lock.lua makes locks and semaphores of them. A slot is its
** token here, an integer; the core remembers the slots it holds, so nothing is lost when Lua
** raises.
*/
#include "nsl.h"

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
