/*
** The program `nightshift`: a Lua state, the command line in Lua, an exit
** code.
*/
#include <fcntl.h>
#include <lauxlib.h>
#include <lua.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host.h"
#include "process/process.h"
#include "signals.h"
#include "worker/worker.h"

typedef struct arguments {
  int n;
  char **items;
} arguments;

/* The table `arg`, as the stand-alone interpreter makes it. [-0, +1, m] */
static void push_arguments(lua_State *L, const arguments *a) {
  lua_createtable(L, a->n, 1);
  for (int i = 0; i < a->n; i++) {
    lua_pushstring(L, a->items[i]);
    lua_rawseti(L, -2, i);
  }
}

/* Protected. Result: what nightshift.cli's main returned. */
static int run(lua_State *L) {
  const arguments *a = lua_touserdata(L, 1);
  push_arguments(L, a);
  lua_pushvalue(L, -1);
  lua_setglobal(L, "arg");
  lua_getglobal(L, "require");
  lua_pushliteral(L, "nightshift.cli");
  lua_call(L, 1, 1);
  lua_getfield(L, -1, "main");
  lua_pushvalue(L, 2);
  lua_call(L, 1, 1);
  return 1;
}

static int exit_code(lua_State *L) {
  if (lua_isinteger(L, -1))
    return (int)lua_tointeger(L, -1);
  return lua_isnil(L, -1) || lua_toboolean(L, -1) ? NSH_EXIT_OK
                                                  : NSH_EXIT_FAILURE;
}

/* Nothing else may get the numbers of the standard streams. */
static void open_streams(void) {
  int fd;
  do
    fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= 2);
  if (fd > 2)
    close(fd);
}

/* Is the command `work`? It is the first argument that is neither an option nor the
** value of --url, the one option that stands before commands. */
static bool is_work(int argc, char **argv) {
  int i = 1;
  while (i < argc && argv[i][0] == '-')
    i += strcmp(argv[i], "--url") == 0 ? 2 : 1;
  return i < argc && strcmp(argv[i], "work") == 0;
}

int main(int argc, char **argv) {
  arguments a = {argc, argv};
  int code;
  lua_State *L;
  nsh_no_core();
  nsh_restore_begin();
  open_streams();
  if (is_work(argc, argv))
    nsh_signals_hold(false);
  nsh_lua_offer(nsh_module_open);
  L = nsh_secrets_hide(argc, argv) ? nsh_lua_new() : NULL;
  if (L == NULL) {
    fprintf(stderr, "nightshift: not enough memory\n");
    return NSH_EXIT_FAILURE;
  }
  lua_pushcfunction(L, nsh_lua_traceback);
  lua_pushcfunction(L, run);
  lua_pushlightuserdata(L, &a);
  if (lua_pcall(L, 1, 1, 1) == LUA_OK)
    code = exit_code(L);
  else {
    ns_bytes text = nsh_lua_text(L, -1);
    fprintf(stderr, "nightshift: %.*s\n", (int)text.n, text.p);
    code = NSH_EXIT_FAILURE;
  }
  lua_close(L);
  if (fflush(stdout) != 0 && code == NSH_EXIT_OK)
    code = NSH_EXIT_FAILURE;
  return code;
}
