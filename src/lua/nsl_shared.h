/*
** nightshift.shared as a part of the module, and the memory it shares with the
** locks.
*/
#ifndef NSL_SHARED_H
#define NSL_SHARED_H

#include <lua.h>

#include "shared/shared.h"

/* The region; NULL: nil, message and code are pushed. [-0, +(0|3), m] */
ns_region *nsl_region(lua_State *L);

/* Pushes the table with the verbs of nightshift.shared. [-0, +1, m] */
void nsl_pushshared(lua_State *L);

#endif
