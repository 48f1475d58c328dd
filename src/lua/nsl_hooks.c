/*
** Hooks in waits. The core asks between two looks at its socket. The hooks run in a protected
** call. Their error is kept in the registry until the core has come back: nothing jumps over
** its frames.
**
** Invariant: nothing here allocates, except the hooks themselves. (Not asserted: as nsl.h says,
** spec/oom shows it.)
*/
#include "nsl_db.h"

#include <lauxlib.h>

/* A count hook of so many instructions has its turn each time; of more, as they
** add up. */
#define INSTRUCTIONS 10000

static const char spin_key;  /* the function, in the registry */
static const char error_key; /* the error that a hook has raised */

void nsl_openhooks(lua_State *L) {
  static const char spin[] = "for _ = 1, ... do end";
  if (luaL_loadbufferx(L, spin, sizeof spin - 1, "=(waiting)", "t") != LUA_OK)
    lua_error(L);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &spin_key);
  lua_pushboolean(L, 0); /* so that there is a place for it */
  lua_rawsetp(L, LUA_REGISTRYINDEX, &error_key);
}

/* Runs the hooks of one coroutine; false: one has raised an error, which is kept. */
static bool run(lua_State *L) {
  int n = lua_gethookcount(L);
  bool ok;
  if (!lua_checkstack(L, 4))
    return true;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &spin_key);
  lua_pushinteger(L, n > INSTRUCTIONS ? INSTRUCTIONS : n);
  ok = lua_pcall(L, 1, 0, 0) == LUA_OK;
  if (!ok)
    lua_rawsetp(L, LUA_REGISTRYINDEX, &error_key);
  return ok;
}

static lua_State *main_of(lua_State *L) {
  lua_State *main = NULL;
  if (lua_checkstack(L, 1)) {
    lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_MAINTHREAD);
    main = lua_tothread(L, -1);
    lua_pop(L, 1);
  }
  return main;
}

bool nsl_hooks(void *wait) {
  nsl_wait *w = wait;
  lua_State *L = w->L;
  if (w->stopped || L == NULL || w->inside)
    return w->stopped;
  if (lua_gethook(L) == NULL && (L = main_of(L)) == NULL)
    return false;
  if (lua_gethook(L) == NULL)
    return false;
  w->inside = true;
  w->stopped = !run(L);
  w->inside = false;
  return w->stopped;
}

void nsl_raise(lua_State *L, nsl_wait *w) {
  if (!w->stopped)
    return;
  w->stopped = false;
  luaL_checkstack(L, 2, NULL);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &error_key);
  lua_pushboolean(L, 0);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &error_key);
  lua_error(L);
}
