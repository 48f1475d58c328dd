/*
** Mappings of adopted tables, as Lua gives them; the host reads its configuration
** with this too.
*/
#ifndef NSL_ADOPT_H
#define NSL_ADOPT_H

#include "nsl_conv.h"

/* Reads the flat table at 'idx' (lua/nightshift/adopt/init.lua makes it), whose texts are
** borrowed. Raises for an unknown key or a wrong type. [-0, +0, v] Errors: INVALID. */
ns_status nsl_tomapping(lua_State *L, int idx, ns_mapping *map, ns_err *err);

#endif
