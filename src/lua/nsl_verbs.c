/*
** The metatable of database handles: every verb that a handle has, from all files.
**
** Invariant: a verb that may wait runs by nsl_runverb; close, which may be called inside a
** hook only to be refused, does not.
*/
#include <stddef.h>

#include "nsl_db.h"

/* Adds verbs that may wait to the table on top. [-0, +0, m] */
static void add_verbs(lua_State *L, const luaL_Reg *list) {
  for (; list->name != NULL; list++) {
    lua_pushcfunction(L, list->func);
    lua_pushcclosure(L, nsl_runverb, 1);
    lua_setfield(L, -2, list->name);
  }
}

void nsl_opendb(lua_State *L) {
  const luaL_Reg *const lists[] = {nsl_dbverbs,    nsl_adminverbs,   nsl_pushverbs,
                                   nsl_claimverbs, nsl_verdictverbs, nsl_adoptverbs,
                                   nsl_jobverbs,   nsl_slotverbs,    nsl_sqlverbs};
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
