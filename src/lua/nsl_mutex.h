/*
** The locks beneath mutexes and semaphores, as parts of the module.
*/
#ifndef NSL_MUTEX_H
#define NSL_MUTEX_H

#include <lua.h>

/* The Lua functions lock, unlock and unlock_all. */
int nsl_lib_lock(lua_State *L);
int nsl_lib_unlock(lua_State *L);
int nsl_lib_unlock_all(lua_State *L);

#endif
