/*
** A Lua interpreter for specs under sanitizers and valgrind: `run FILE ARG…`.
** Stock Lua will not do: the sanitizer's runtime must come first in a
** program, and putting it there with LD_PRELOAD would put it into every
** program a spec starts as well.
*/
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdio.h>

static int traceback(lua_State *L) {
  luaL_traceback(L, L, luaL_tolstring(L, 1, NULL), 1);
  return 1;
}

int main(int argc, char **argv) {
  lua_State *L = luaL_newstate();
  int status = 1;
  if (L == NULL || argc < 2)
    return 1;
  luaL_openlibs(L);
  lua_createtable(L, argc, 2);
  for (int i = 0; i < argc; i++) {
    lua_pushstring(L, argv[i]);
    lua_seti(L, -2, i - 1);
  }
  lua_setglobal(L, "arg");
  lua_pushcfunction(L, traceback);
  if (luaL_loadfile(L, argv[1]) == LUA_OK) {
    for (int i = 2; i < argc; i++)
      lua_pushstring(L, argv[i]);
    status = lua_pcall(L, argc - 2, 0, 1) != LUA_OK;
  }
  if (status != 0)
    fprintf(stderr, "%s\n", lua_tostring(L, -1));
  lua_close(L);
  return status;
}
