/*
** nightshift.shared as a part of the module, the locks beneath mutexes and semaphores, and the
** memory that both share.
*/
#ifndef NSL_SHARED_H
#define NSL_SHARED_H

#include <lua.h>

#include "shared/shared.h"

/* The region; NULL: nil, message and code are pushed. [-0, +(0|3), m] */
ns_region *nsl_region(lua_State *L);

/* Pushes the table with the verbs of nightshift.shared. [-0, +1, m] */
void nsl_pushshared(lua_State *L);

/* The Lua functions lock, unlock and unlock_all. */
int nsl_lib_lock(lua_State *L);
int nsl_lib_unlock(lua_State *L);
int nsl_lib_unlock_all(lua_State *L);

#endif
