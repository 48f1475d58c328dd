/*
** A Lua interpreter whose memory runs out, or whose collector runs, when a spec
** says so. Linked with spec/c/run.c, and with the module itself instead of
** core.so.
**
** Two heaps can fail: that of the Lua state (its allocator), and the C heap as
** seen by our own objects and by jansson (the linker's --wrap, so libmariadb
** and the sanitizers keep theirs). mysql_init and mysql_stmt_init count as
** allocations of the C heap. Invariant: nothing fails outside heap.call, and
** 'live' counts the blocks of the C heap that have not been freed.
**
** Lua answers an allocation that fails with a full collection and tries again.
** So an allocator that fails every first try, while a function of the module
** runs, makes it collect at each allocation: whatever the function uses without
** an anchor is gone then, and AddressSanitizer sees the use.
*/
#include <jansson.h>
#include <lauxlib.h>
#include <lualib.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/lua/nsl.h"

/* A heap that fails at its 'nth' allocation from the start of a call, and
** also at all later ones when 'forever'. */
typedef struct gate {
  bool on, forever;
  lua_Integer count, nth;
} gate;

static gate lua_heap, c_heap;
static lua_Integer live;

/* While 'inside' a watched function every 'stride'th allocation collects. */
static struct stress {
  bool inside, again;
  unsigned stride, count;
} stress;

static bool fails(gate *g) {
  if (!g->on)
    return false;
  g->count++;
  return g->forever ? g->count >= g->nth : g->count == g->nth;
}

/* --------------------------------------------------------------- the C heap */

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
char *__real_strdup(const char *s);
void __real_free(void *p);
void *__real_mysql_init(void *my);
void *__real_mysql_stmt_init(void *my);

void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
char *__wrap_strdup(const char *s);
void __wrap_free(void *p);
void *__wrap_mysql_init(void *my);
void *__wrap_mysql_stmt_init(void *my);

static void *born(void *p) {
  live += p != NULL;
  return p;
}

void *__wrap_malloc(size_t n) {
  return fails(&c_heap) ? NULL : born(__real_malloc(n));
}

void *__wrap_calloc(size_t n, size_t size) {
  return fails(&c_heap) ? NULL : born(__real_calloc(n, size));
}

void *__wrap_realloc(void *p, size_t n) {
  void *q = fails(&c_heap) ? NULL : __real_realloc(p, n);
  if (p == NULL)
    born(q);
  return q;
}

char *__wrap_strdup(const char *s) {
  return fails(&c_heap) ? NULL : born(__real_strdup(s));
}

void __wrap_free(void *p) {
  live -= p != NULL;
  __real_free(p);
}

void *__wrap_mysql_init(void *my) {
  return fails(&c_heap) ? NULL : __real_mysql_init(my);
}

void *__wrap_mysql_stmt_init(void *my) {
  return fails(&c_heap) ? NULL : __real_mysql_stmt_init(my);
}

/* --------------------------------------------------------------- Lua's heap */

/* Whether this allocation is to fail, so that Lua collects and tries again. */
static bool collects(void) {
  if (!stress.inside || stress.stride == 0)
    return false;
  if (stress.again) {
    stress.again = false;
    return false;
  }
  return stress.again = ++stress.count % stress.stride == 0;
}

/* Shrinking never fails: Lua relies on it. */
static void *lua_alloc(void *ud, void *p, size_t osize, size_t nsize) {
  (void)ud;
  if (nsize == 0) {
    __real_free(p);
    return NULL;
  }
  if ((p == NULL || nsize > osize) && (fails(&lua_heap) || collects()))
    return NULL;
  return __real_realloc(p, nsize);
}

/* ------------------------------------------------------------------ for Lua */

static gate *check_heap(lua_State *L, int arg) {
  static const char *const names[] = {"lua", "c", NULL};
  return luaL_checkoption(L, arg, NULL, names) == 0 ? &lua_heap : &c_heap;
}

/***
Calls a function while one heap fails.
@function call
@tparam string heap "lua" or "c"
@tparam integer nth of the allocations during the call, from 1
@tparam boolean forever whether the later ones fail as well
@tparam function fn
@param ... its arguments
@treturn integer allocations asked for; below `nth`: none has failed
@treturn boolean whether fn returned
@return what it returned, or raised
*/
static int l_call(lua_State *L) {
  gate *g = check_heap(L, 1);
  gate armed = {true, lua_toboolean(L, 3), 0, luaL_checkinteger(L, 2)};
  int status;
  luaL_checktype(L, 4, LUA_TFUNCTION);
  luaL_checkstack(L, 40, NULL);
  *g = armed;
  status = lua_pcall(L, lua_gettop(L) - 4, LUA_MULTRET, 0);
  g->on = false;
  lua_pushinteger(L, g->count); /* stack: heap; nth; forever; results; count */
  lua_replace(L, 2);
  lua_pushboolean(L, status == LUA_OK);
  lua_replace(L, 3);
  return lua_gettop(L) - 1;
}

/***
Blocks of the C heap that were not freed.
@function live
*/
static int l_live(lua_State *L) {
  lua_pushinteger(L, live);
  return 1;
}

static int require_core(lua_State *L) {
  luaL_requiref(L, "nightshift.core", luaopen_nightshift_core, 0);
  return 0;
}

/***
Opens the module in a state of its own whose heap fails, and closes the state.
@function open
@tparam integer nth
@treturn boolean whether an allocation failed
@treturn boolean whether the module could be opened
*/
static int l_open(lua_State *L) {
  lua_State *S = lua_newstate(lua_alloc, NULL);
  bool ok;
  if (S == NULL)
    return luaL_error(L, "no memory for a state");
  lua_heap = (gate){true, true, 0, luaL_checkinteger(L, 1)};
  lua_pushcfunction(S, require_core);
  ok = lua_pcall(S, 0, 0, 0) == LUA_OK;
  lua_heap.on = false;
  lua_pushboolean(L, lua_heap.count >= lua_heap.nth);
  lua_pushboolean(L, ok);
  if (!ok) { /* memory is back: what is half there does not stand in the way */
    lua_settop(S, 0);
    lua_pushcfunction(S, require_core);
    if (lua_pcall(S, 0, 0, 0) != LUA_OK)
      luaL_error(L, "cannot open it after that: %s", lua_tostring(S, -1));
  }
  lua_close(S);
  return 2;
}

static const char watched; /* its address: the registry's key of a set */

/* Also collects on the way in and out, where finalisers may run. */
static void hook(lua_State *L, lua_Debug *ar) {
  lua_getinfo(L, "f", ar);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &watched);
  lua_insert(L, -2);
  lua_rawget(L, -2);
  stress.inside = lua_toboolean(L, -1) && ar->event != LUA_HOOKRET;
  if (lua_toboolean(L, -1) && ++stress.count % stress.stride == 0)
    lua_gc(L, LUA_GCCOLLECT);
  lua_pop(L, 2);
}

/***
Makes the collector run inside some functions from now on, until the hook of
this coroutine is changed.
@function collect
@tparam table functions a set: function = true
@tparam integer stride at every allocation: 1; at every second: 2; …
*/
static int l_collect(lua_State *L) {
  lua_Integer stride = luaL_checkinteger(L, 2);
  luaL_checktype(L, 1, LUA_TTABLE);
  luaL_argcheck(L, stride > 0 && stride < 1000000, 2, "out of range");
  lua_settop(L, 1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &watched);
  stress = (struct stress){.stride = (unsigned)stride, .count = stress.count};
  lua_sethook(L, hook, LUA_MASKCALL | LUA_MASKRET, 0);
  return 0;
}

static const luaL_Reg functions[] = {{"call", l_call},
                                     {"collect", l_collect},
                                     {"live", l_live},
                                     {"open", l_open},
                                     {NULL, NULL}};

static int open_heap(lua_State *L) {
  luaL_newlib(L, functions);
  return 1;
}

lua_State *__wrap_luaL_newstate(void);

/* The interpreter's state: this allocator, and both modules preloaded. */
lua_State *__wrap_luaL_newstate(void) {
  lua_State *L = lua_newstate(lua_alloc, NULL);
  json_set_alloc_funcs(__wrap_malloc, __wrap_free);
  if (L == NULL)
    return NULL;
  luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_PRELOAD_TABLE);
  lua_pushcfunction(L, luaopen_nightshift_core);
  lua_setfield(L, -2, "nightshift.core");
  lua_pushcfunction(L, open_heap);
  lua_setfield(L, -2, "heap");
  lua_pop(L, 1);
  return L;
}
