/*
** nightshift.shared and the locks beneath mutexes and semaphores, as parts of
** the module.
*/
#ifndef NSL_SHARED_H
#define NSL_SHARED_H

#include <lua.h>

/* Pushes the table with the verbs of nightshift.shared. [-0, +1, m] */
void nsl_pushshared(lua_State *L);

/* The Lua functions lock, unlock and unlock_all. */
int nsl_lib_lock(lua_State *L);
int nsl_lib_unlock(lua_State *L);
int nsl_lib_unlock_all(lua_State *L);

#endif
