/*
** Making Lua states. The Lua files are looked for where an installation puts
** them beside the program (<bin>/../share/lua/5.4) and where a source tree has
** them (a folder `lua` above the build folder).
**
** What a job may change in its process, and the next one is not to find: the current
** folder, umask, signal mask, locale and interval timers.
*/
#include "worker/worker.h"

#include <fcntl.h>
#include <lauxlib.h>
#include <limits.h>
#include <link.h>
#include <locale.h>
#include <lualib.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "nsl.h"
#include "worker/channel.h"

static lua_CFunction host_module;

void nsh_lua_offer(lua_CFunction host) {
  host_module = host;
}

/* The folder of the running program, in front of which "/.." may follow. */
static bool program_folder(char out[PATH_MAX]) {
  ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - 1);
  char *slash;
  if (n <= 0)
    return false;
  out[n] = '\0';
  slash = strrchr(out, '/');
  if (slash == NULL)
    return false;
  *slash = '\0';
  return true;
}

static bool has_our_files(lua_State *L, const char *folder) {
  const char *file =
      lua_pushfstring(L, "%s/nightshift/init.lua", folder);
  bool there = access(file, R_OK) == 0;
  lua_pop(L, 1);
  return there;
}

/* package[field] = text .. package[field]; pops the text. */
static void prefix(lua_State *L, const char *field) {
  lua_getglobal(L, "package");
  lua_insert(L, -2);         /* stack: package; text */
  lua_getfield(L, -2, field);
  lua_concat(L, 2);
  lua_setfield(L, -2, field);
  lua_pop(L, 1);
}

static void set_paths(lua_State *L) {
  static const char *const places[] = {"../share/lua/5.4", "../../lua",
                                       "../../../lua"};
  char bin[PATH_MAX];
  if (!program_folder(bin))
    return;
  lua_pushfstring(L, "%s/../lib/lua/5.4/?.so;", bin);
  prefix(L, "cpath");
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
    const char *folder = lua_pushfstring(L, "%s/%s", bin, places[i]);
    if (has_our_files(L, folder)) {
      lua_pushfstring(L, "%s/?.lua;%s/?/init.lua;", folder, folder);
      prefix(L, "path");
      lua_pop(L, 1);
      return;
    }
    lua_pop(L, 1);
  }
}

static int fill(lua_State *L) {
  luaL_openlibs(L);
  luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_PRELOAD_TABLE);
  lua_pushcfunction(L, luaopen_nightshift_core);
  lua_setfield(L, -2, "nightshift.core");
  if (host_module != NULL) {
    lua_pushcfunction(L, host_module);
    lua_setfield(L, -2, "nightshift.host");
  }
  set_paths(L);
  return 0;
}

lua_State *nsh_lua_new(void) {
  lua_State *L = luaL_newstate();
  if (L == NULL)
    return NULL;
  lua_pushcfunction(L, fill);
  if (lua_pcall(L, 0, 0, 0) == LUA_OK)
    return L;
  lua_close(L);
  return NULL;
}

ns_bytes nsh_lua_text(lua_State *L, int idx) {
  ns_bytes text = NS_NONE;
  text.p = lua_tolstring(L, idx, &text.n);
  return text;
}

/* luaL_traceback would cut the text at its first NUL. */
int nsh_lua_traceback(lua_State *L) {
  luaL_tolstring(L, 1, NULL);
  lua_pushliteral(L, "\n");
  luaL_traceback(L, L, NULL, 1);
  lua_concat(L, 3);
  return 1;
}

/* ----------------------------------------------------- what a job may change */

static struct {
  unsigned long long libraries; /* that have been loaded in all, before any script */
  int folder;                   /* -1: it could not be opened, or is gone */
  mode_t mask;
  sigset_t signals;
  char *locale;
} was;

/* The first object knows how many have been loaded so far. */
static int read_loaded(struct dl_phdr_info *info, size_t size, void *arg) {
  *(unsigned long long *)arg = info->dlpi_adds;
  return (int)size;
}

static unsigned long long loaded(void) {
  unsigned long long n = 0;
  dl_iterate_phdr(read_loaded, &n);
  return n;
}

void nsh_restore_begin(void) {
  was.libraries = loaded();
}

void nsh_restore_note(void) {
  const char *locale = setlocale(LC_ALL, NULL);
  was.folder = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
  was.mask = umask(0);
  umask(was.mask);
  sigprocmask(SIG_SETMASK, NULL, &was.signals);
  was.locale = locale != NULL ? strdup(locale) : NULL;
}

static void restore_locale(void) {
  const char *now = setlocale(LC_ALL, NULL);
  uselocale(LC_GLOBAL_LOCALE); /* of this thread there is none */
  if (was.locale != NULL && (now == NULL || strcmp(now, was.locale) != 0))
    setlocale(LC_ALL, was.locale);
}

bool nsh_restore(void) {
  static const struct itimerval none;
  restore_locale();
  if (loaded() == was.libraries)
    return true;
  setitimer(ITIMER_REAL, &none, NULL); /* alarm() is this one */
  setitimer(ITIMER_VIRTUAL, &none, NULL);
  setitimer(ITIMER_PROF, &none, NULL);
  sigprocmask(SIG_SETMASK, &was.signals, NULL);
  umask(was.mask);
  return was.folder < 0 || fchdir(was.folder) == 0;
}
