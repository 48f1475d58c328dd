/*
** Lua states as the program makes them: all standard libraries, the modules
** nightshift.core and nightshift.host built in, and package.path in front of
** which stands the folder of our Lua files, found relative to the program.
*/
#ifndef NSH_LUA_H
#define NSH_LUA_H

#include <lua.h>

#include "ns_buf.h"

/* NULL: no memory. */
lua_State *nsh_lua_new(void);

/* The string or number at 'idx', NUL and all; else absent. Borrowed. [-0, +0, m] */
ns_bytes nsh_lua_text(lua_State *L, int idx);

/* Message handler: error object -> text with traceback. [-1, +1] */
int nsh_lua_traceback(lua_State *L);

/* Opens nightshift.host (nsh_module.c). [-0, +1, m] */
int nsh_lua_openhost(lua_State *L);

#endif
