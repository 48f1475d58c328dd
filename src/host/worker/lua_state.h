/*
** Lua states as the program makes them: all standard libraries, the modules
** nightshift.core and nightshift.host built in, and package.path in front of
** which stands the folder of our Lua files, found relative to the program.
*/
#ifndef NSH_WORKER_LUA_STATE_H
#define NSH_WORKER_LUA_STATE_H

#include <lua.h>

#include "ns_buf.h"

/* NULL: no memory. */
lua_State *nsh_lua_new(void);

/* The string or number at 'idx', NUL and all; else absent. Borrowed. [-0, +0, m] */
ns_bytes nsh_lua_text(lua_State *L, int idx);

/* Message handler: error object -> text with traceback. [-1, +1] */
int nsh_lua_traceback(lua_State *L);

/* What `require "nightshift.host"` gives in states that are made from here on, in this
** process and those forked from it. */
void nsh_lua_offer(lua_CFunction host);

#endif
