/*
** Lua states as the program makes them: all standard libraries, the modules
** nightshift.core and nightshift.host built in, and package.path in front of
** which stands the folder of our Lua files, found relative to the program.
*/
#ifndef NSH_LUA_H
#define NSH_LUA_H

#include <lua.h>

/* NULL: no memory. */
lua_State *nsh_lua_new(void);

/* Message handler: error object -> text with traceback. [-1, +1] */
int nsh_lua_traceback(lua_State *L);

/* Opens nightshift.host (nsh_module.c). [-0, +1, m] */
int nsh_lua_openhost(lua_State *L);

#endif
