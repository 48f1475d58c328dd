/*
** A Lua interpreter for specs under sanitizers and valgrind: `run FILE ARG…`, `run - ARG…` for
** standard input, `run -e TEXT ARG…`. Stock Lua will not do. The sanitizer's runtime must come
** first in a program; LD_PRELOAD would put it into every program that a spec starts as well.
** Ctrl-C raises an error in a debug hook, as there.
*/
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static lua_State *running;

static void raise_interrupted(lua_State *L, lua_Debug *ar) {
  (void)ar;
  lua_sethook(L, NULL, 0, 0);
  luaL_error(L, "interrupted!");
}

/* lua_sethook may be called at any moment. */
static void on_interrupt(int sig) {
  signal(sig, SIG_DFL);
  lua_sethook(running, raise_interrupted,
              LUA_MASKCALL | LUA_MASKRET | LUA_MASKLINE | LUA_MASKCOUNT, 1);
}

static int traceback(lua_State *L) {
  luaL_traceback(L, L, luaL_tolstring(L, 1, NULL), 1);
  return 1;
}

/* Pushes the function to run; '*first' is the index of its first argument. */
static int load(lua_State *L, int argc, char **argv, int *first) {
  const char *name = argc > 1 ? argv[1] : "-";
  *first = argc > 1 ? 2 : 1;
  if (strcmp(name, "-e") == 0 && argc > 2) {
    *first = 3;
    return luaL_loadstring(L, argv[2]);
  }
  return luaL_loadfile(L, strcmp(name, "-") == 0 ? NULL : name);
}

int main(int argc, char **argv) {
  lua_State *L = luaL_newstate();
  int status = 1;
  int first;
  if (L == NULL)
    return 1;
  luaL_openlibs(L);
  lua_pushcfunction(L, traceback);
  if (load(L, argc, argv, &first) == LUA_OK) {
    lua_createtable(L, argc, first);
    for (int i = 0; i < argc; i++) { /* arg[0] is the script */
      lua_pushstring(L, argv[i]);
      lua_seti(L, -2, i - first + 1);
    }
    lua_setglobal(L, "arg");
    for (int i = first; i < argc; i++)
      lua_pushstring(L, argv[i]);
    running = L;
    signal(SIGINT, on_interrupt);
    status = lua_pcall(L, argc - first, 0, 1) != LUA_OK;
    signal(SIGINT, SIG_DFL);
  }
  if (status != 0)
    fprintf(stderr, "%s\n", lua_tostring(L, -1));
  lua_close(L);
  return status;
}
