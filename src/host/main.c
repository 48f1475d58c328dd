/*
** The program `nightshift`: a Lua state, the command line in Lua, an exit code. And the module
** nightshift.host, by which the command line uses the program.
*/
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <lauxlib.h>
#include <lua.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../lua/nsl.h"
#include "base.h"
#include "host.h"
#include "worker/worker.h"

/* ------------------------------------------------- the module nightshift.host */

static void free_known(void *p) {
  ns_buf_free(p);
}

/***
Runs a host until it is told to stop. Messages go to stderr.
@function work
@tparam table config files, workers, queues, drain, drain_within (µs),
drain_timeout (µs), progress (jobs that a drain has before it), memory (bytes per job),
recycle (jobs), recycle_memory (bytes), max_children, isolation, user, log, output, log_done,
http (ADDRESS:PORT), url, connection
@treturn integer exit code
@treturn string|nil with `drain`, and when nothing was left to do: the names it can run,
a line each
@raise for an unknown key or a wrong type
*/
static int host_work(lua_State *L) {
  nsh_config cfg;
  ns_err err;
  ns_buf *known;
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  known = nsl_box(L, sizeof *known, free_known);
  if (nsh_config_read(L, 1, &cfg, &err) != NS_OK) {
    fprintf(stderr, "nightshift: %s\n", err.message);
    lua_pushinteger(L, NSH_EXIT_USAGE);
  } else {
    if (cfg.http != NULL)
      nsh_web_load(L);
    lua_pushinteger(L, nsh_host_run(&cfg, known));
  }
  if (known->n > 0)
    lua_pushlstring(L, known->p, known->n);
  else
    lua_pushnil(L);
  nsl_unbox(known);
  return 2;
}

/***
Takes a name for this process, until it ends.
@function single
@tparam string name
@treturn[1] boolean whether it is ours; false: another process of this machine has it
@treturn[2] nil
@treturn[2] string message
*/
static int host_single(lua_State *L) {
  ns_bytes name;
  int taken;
  name.p = luaL_checklstring(L, 1, &name.n);
  if ((taken = nsh_single_take(name)) < 0) {
    lua_pushnil(L);
    lua_pushstring(L, strerror(errno));
    return 2;
  }
  lua_pushboolean(L, taken);
  return 1;
}

/***
Has another host of this machine read its scripts again: sends it HUP.
@function hup
@tparam integer pid
@tparam string place its machine and container, as its row has it
@tparam integer age µs that it has been known for: a younger process is another one
@treturn[1] boolean true
@treturn[2] nil
@treturn[2] string `away`: it is of another place; `gone`; or what is wrong
*/
static int host_hup(lua_State *L) {
  lua_Integer pid = luaL_checkinteger(L, 1);
  lua_Integer age = luaL_checkinteger(L, 3);
  ns_bytes place;
  nsh_hup how;
  place.p = luaL_checklstring(L, 2, &place.n);
  luaL_argcheck(L, pid > 1 && pid <= INT32_MAX, 1, "not a process id");
  how = nsh_hup_send((pid_t)pid, place, age);
  if (how == NSH_HUP_SENT) {
    lua_pushboolean(L, 1);
    return 1;
  }
  lua_pushnil(L);
  lua_pushstring(L, how == NSH_HUP_AWAY   ? "away"
                    : how == NSH_HUP_GONE ? "gone"
                    : how == NSH_HUP_DEAF ? "the process does not listen to HUP"
                                          : strerror(errno));
  return 2;
}

/***
Asks the server of a host (`work --http`).
@function get
@tparam string address
@tparam string path
@tparam number seconds to wait for the answer
@treturn[1] integer status of HTTP
@treturn[1] string text
@treturn[2] nil
@treturn[2] string message
*/
static int host_get(lua_State *L) {
  const char *address = luaL_checkstring(L, 1);
  const char *path = luaL_checkstring(L, 2);
  int64_t timeout = (int64_t)(luaL_checknumber(L, 3) * NS_SECOND);
  ns_buf *text = nsl_newbuf(L);
  ns_err err;
  int status;
  if (nsh_http_get(address, path, timeout, &status, text, &err) != NS_OK) {
    lua_pushnil(L);
    lua_pushstring(L, err.message);
    return 2;
  }
  lua_pushinteger(L, status);
  lua_pushlstring(L, text->p, text->n);
  return 2;
}

static int is_lua_file(const struct dirent *e) {
  size_t n = strlen(e->d_name);
  return e->d_name[0] != '.' && n > 4 && strcmp(e->d_name + n - 4, ".lua") == 0;
}

static void free_entries(struct dirent **entries, int n) {
  for (int i = 0; i < n; i++)
    free(entries[i]);
  free(entries);
}

/* Protected: fills the table. Arguments: path, entries, their number. */
static int push_entries(lua_State *L) {
  struct dirent **entries = lua_touserdata(L, 2);
  lua_Integer n = lua_tointeger(L, 3);
  lua_createtable(L, (int)n, 0);
  for (lua_Integer i = 0; i < n; i++) {
    lua_pushfstring(L, "%s/%s", lua_tostring(L, 1), entries[i]->d_name);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/***
The Lua files of a folder, sorted.
@function scan
@tparam string path
@treturn[1] {string,...}
@treturn[2] nil when the path is not a folder
@treturn[3] nil
@treturn[3] string message when it cannot be read
*/
static int host_scan(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  struct dirent **entries;
  struct stat st;
  int n;
  if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) {
    lua_pushnil(L);
    return 1;
  }
  lua_settop(L, 1);
  lua_pushcfunction(L, push_entries);
  lua_pushvalue(L, 1);
  n = scandir(path, &entries, is_lua_file, alphasort);
  if (n < 0) {
    lua_pushnil(L);
    lua_pushfstring(L, "%s: %s", path, strerror(errno));
    return 2;
  }
  lua_pushlightuserdata(L, (void *)entries);
  lua_pushinteger(L, n);
  n = lua_pcall(L, 3, 1, 0) == LUA_OK ? n : -n - 1;
  free_entries(entries, n < 0 ? -n - 1 : n);
  return n < 0 ? lua_error(L) : 1;
}

static int open_module(lua_State *L) {
  static const luaL_Reg functions[] = {{"work", host_work},
                                       {"scan", host_scan},
                                       {"single", host_single},
                                       {"hup", host_hup},
                                       {"get", host_get},
                                       {"listen", nsh_web_listen},
                                       {NULL, NULL}};
  luaL_newlib(L, functions);
  return 1;
}

/* ---------------------------------------------------------------- the program */

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

/* Protected. Result: the value that nightshift.cli's main returned. */
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
** value of an option that stands before commands. */
static bool is_work(int argc, char **argv) {
  int i = 1;
  while (i < argc && argv[i][0] == '-')
    i += strcmp(argv[i], "--url") == 0 || strcmp(argv[i], "--config") == 0 ||
                 strcmp(argv[i], "--shard") == 0
             ? 2
             : 1;
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
    nsh_loop_hold_signals(false);
  nsh_lua_offer(open_module);
  nsh_title_find(argv);
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
