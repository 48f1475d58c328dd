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

/* ------------------------------------------------ with memory that runs out */
#ifdef HEAP

/*
** With HEAP it runs out of memory, or runs its collector, when a spec says so. It is linked with
** the module itself instead of core.so.
**
** Two heaps can fail: the Lua state's (its allocator), and the C heap of our own objects and of
** jansson. The linker's --wrap sees to that, so libmariadb and the sanitizers keep theirs.
** mysql_init and mysql_stmt_init count as allocations of the C heap. Invariant: nothing fails
** outside heap.call, and 'live' counts the blocks of the C heap that have not been freed.
**
** A collector that never rests finds values that the module uses without an anchor: such a
** value is gone then, and AddressSanitizer sees the use. Inside the module's functions, which a
** hook tells apart, Lua is made to collect in two ways. It answers a failing allocation with a
** collection and tries again, so the allocator fails at first tries. That hits every allocation
** but runs no finaliser. And a pause of zero makes every check of the collector's a whole
** cycle, finalisers included.
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

/* While 'inside' a function of the module every 'stride'th allocation
** collects, and all of every 'stride'th call is 'hurried'. */
static struct stress {
  bool inside, again, hurried;
  unsigned stride, count, calls;
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
Opens the module in a state of its own with a heap that fails, and closes the state.
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

/* Adds the C functions in the table on top, and in tables in it, to the set at
** index 1; pops it. */
static void watch(lua_State *L, int depth) {
  lua_pushnil(L);
  while (lua_next(L, -2)) {
    if (lua_istable(L, -1) && depth > 0)
      watch(L, depth - 1);
    else if (lua_iscfunction(L, -1)) {
      lua_pushboolean(L, 1);
      lua_rawset(L, 1); /* set[function] = true */
    } else
      lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

/* A set of all functions of the module on the stack, and nothing else: of the
** module's table and of its metatables. */
static void watch_module(lua_State *L) {
  lua_settop(L, 0);
  lua_newtable(L);
  luaL_requiref(L, "nightshift.core", luaopen_nightshift_core, 0);
  watch(L, 1);
  lua_pushnil(L);
  while (lua_next(L, LUA_REGISTRYINDEX))
    if (lua_type(L, -2) == LUA_TSTRING && lua_istable(L, -1) &&
        strncmp(lua_tostring(L, -2), "nightshift.", 11) == 0)
      watch(L, 1);
    else
      lua_pop(L, 1);
}

/* Cycle after cycle, as fast as memory is asked for, or as it was before. */
static void hurry(lua_State *L, bool on) {
  static int pause, stepmul;
  if (on && !stress.hurried) {
    pause = lua_gc(L, LUA_GCSETPAUSE, 0);
    stepmul = lua_gc(L, LUA_GCSETSTEPMUL, 1000);
    lua_gc(L, LUA_GCINC, 0, 0, 40);
    lua_gc(L, LUA_GCCOLLECT); /* the next cycle is due at once */
  } else if (!on && stress.hurried) {
    lua_gc(L, LUA_GCINC, pause, stepmul, 13);
  }
  stress.hurried = on;
}

static void hook(lua_State *L, lua_Debug *ar) {
  lua_getinfo(L, "f", ar);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &watched);
  lua_insert(L, -2);
  stress.inside = lua_rawget(L, -2) != LUA_TNIL && ar->event != LUA_HOOKRET;
  lua_pop(L, 2);
  hurry(L, stress.inside && ++stress.calls % stress.stride == 0);
}

/***
Makes the collector run inside the functions of the module from now on, until
the hook of this coroutine is changed.
@function collect
@tparam integer stride in every call and at every allocation: 1; every second: 2
*/
static int l_collect(lua_State *L) {
  lua_Integer stride = luaL_checkinteger(L, 1);
  luaL_argcheck(L, stride > 0 && stride < 1000000, 1, "out of range");
  watch_module(L);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &watched);
  stress.stride = (unsigned)stride;
  lua_sethook(L, hook, LUA_MASKCALL | LUA_MASKRET, 0);
  return 0;
}

/***
Ends that.
@function rest
*/
static int l_rest(lua_State *L) {
  lua_sethook(L, NULL, 0, 0);
  stress.inside = false;
  hurry(L, false);
  return 0;
}

static const luaL_Reg functions[] = {{"call", l_call},
                                     {"collect", l_collect},
                                     {"live", l_live},
                                     {"rest", l_rest},
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

#endif
