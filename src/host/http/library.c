/*
** libmicrohttpd for the program, as the Lua module nightshift.host.http: a library of its own. With
** it a process loads a dozen others, which take longer than the rest of a command's start. So only
** what listens asks for it: `work --http`, and `web`.
**
** Invariant: what the module gives is for the program alone, which was built with the same header.
*/
#define NSH_LIBRARY
#include "http/http.h"

#include <lauxlib.h>

__attribute__((visibility("default"))) int luaopen_nightshift_host_http(lua_State *L);

int luaopen_nightshift_host_http(lua_State *L) {
#ifdef HAS_SERVER
  static const nsh_mhd_calls calls = {
#define CALL(name) .name = MHD_##name,
      NSH_MHD_CALLS(CALL)};
  lua_pushlightuserdata(L, (void *)&calls);
  return 1;
#else
  return luaL_error(L, "built without libmicrohttpd");
#endif
}
