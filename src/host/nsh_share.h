/*
** Keeping memory shared: what the zygote does to its heap before it forks, so
** that its workers write to as few of the common pages as can be.
*/
#ifndef NSH_SHARE_H
#define NSH_SHARE_H

#include <lua.h>

/* Everything is loaded. From now on the state collects by generations. */
void nsh_share(lua_State *L);

#endif
