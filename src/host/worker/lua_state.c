/*
** Making Lua states. The Lua files are looked for where an installation puts them beside the
** program (<bin>/../share/lua/5.4). A source tree has them in a folder `lua` above the build
** folder.
**
** Changes of a job to its process that the next job must not find: the current folder, umask,
** signal mask, locale and interval timers.
**
** The memory that a job may use, in a worker: how much the Lua state may grow while the job
** runs. And, as a back-stop for C code, how much the process may have.
**
** Invariant: without a limit the allocator is Lua's own. Memory from one allocator may be given
** back to the other.
**
** The limit. For its own objects Lua asks twice before it gives up: after the first refusal it
** collects garbage and repeats the request. So only a second refusal in a row means that the
** job needs too much. The buffers of the library (string.rep, table.concat, file:read) ask
** once: such a refusal is final. It is known by the next request being another one. It counts
** when the job fails of it, or at once when no garbage collection could help.
**
** One worker per process: the state is static.
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
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "base.h"
#include "nsl.h"

static lua_CFunction host_module;

void nsh_lua_offer(lua_CFunction host) {
  host_module = host;
}

/* The folder of the running program, with room behind it for "/..". */
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
static void prefix_path(lua_State *L, const char *field) {
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
  prefix_path(L, "cpath");
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
    const char *folder = lua_pushfstring(L, "%s/%s", bin, places[i]);
    if (has_our_files(L, folder)) {
      lua_pushfstring(L, "%s/?.lua;%s/?/init.lua;", folder, folder);
      prefix_path(L, "path");
      if (i > 0) {
        lua_pushfstring(L, "%s/../?.so;", bin);
        prefix_path(L, "cpath");
      }
      lua_pop(L, 1);
      return;
    }
    lua_pop(L, 1);
  }
}

static int open_libraries(lua_State *L) {
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
  lua_pushcfunction(L, open_libraries);
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

/* ----------------------------------------------------- changes of a job */

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

static unsigned long long count_loaded(void) {
  unsigned long long n = 0;
  dl_iterate_phdr(read_loaded, &n);
  return n;
}

void nsh_restore_begin(void) {
  was.libraries = count_loaded();
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
  if (count_loaded() == was.libraries)
    return true;
  setitimer(ITIMER_REAL, &none, NULL); /* alarm() is this one */
  setitimer(ITIMER_VIRTUAL, &none, NULL);
  setitimer(ITIMER_PROF, &none, NULL);
  sigprocmask(SIG_SETMASK, &was.signals, NULL);
  umask(was.mask);
  return was.folder < 0 || fchdir(was.folder) == 0;
}

/* ---------------------------------------------------------- the memory limit */

#define SLACK (INT64_C(64) << 20) /* for C code, beside twice the limit */

static struct {
  bool on;
  lua_Alloc alloc; /* the state's own */
  void *ud;
  int64_t grown, limit; /* bytes */
  bool refused;         /* the last request for more */
  void *p;              /* that request */
  size_t old, size;
  bool denied; /* one was refused for good */
  bool over;
  int64_t base; /* data of the process beside its Lua state; 0: ? */
  struct rlimit before;
  char text[64];
  nsh_slot *slot;
  uint32_t seq;
} q;

static bool is_repeated(const void *p, size_t old, size_t size) {
  return q.refused && p == q.p && old == q.old && size == q.size;
}

static void *refuse_memory(void *p, size_t old, size_t size, int64_t more) {
  if (!q.over && (is_repeated(p, old, size) || more > q.limit)) {
    q.over = true;
    nsh_slot_say(q.slot, q.seq, q.text);
    atomic_store(&q.slot->over, q.seq + 1);
  }
  q.refused = true;
  q.p = p;
  q.old = old;
  q.size = size;
  return NULL;
}

static void *allocate(void *ud, void *p, size_t old, size_t size) {
  int64_t more = (int64_t)size - (p != NULL ? (int64_t)old : 0);
  (void)ud;
  if (more > 0 && q.refused && !is_repeated(p, old, size)) {
    q.denied = true;
    q.refused = false;
  }
  if (more > 0 && q.grown + more > q.limit)
    return refuse_memory(p, old, size, more);
  void *got = q.alloc(q.ud, p, old, size);
  if (got == NULL && size > 0)
    return refuse_memory(p, old, size, more);
  q.grown += more;
  q.refused = q.refused && more <= 0;
  return got;
}

/* Bytes of data this process has, stacks included. */
static int64_t data_bytes(void) {
  long pages = 0;
  FILE *f = fopen("/proc/self/statm", "re");
  if (f == NULL)
    return 0;
  if (fscanf(f, "%*d %*d %*d %*d %*d %ld", &pages) != 1)
    pages = 0;
  fclose(f);
  return (int64_t)pages * sysconf(_SC_PAGESIZE);
}

/* Programs that the job starts inherit this. */
static void limit_process(lua_State *L, int64_t bytes) {
  int64_t heap = (int64_t)lua_gc(L, LUA_GCCOUNT) * 1024;
  struct rlimit r;
  if (q.base == 0)
    q.base = data_bytes() - heap;
  if (getrlimit(RLIMIT_DATA, &q.before) != 0)
    return;
  r = q.before;
  r.rlim_cur = (rlim_t)(q.base + heap + 2 * bytes + SLACK);
  if (r.rlim_cur < q.before.rlim_cur)
    setrlimit(RLIMIT_DATA, &r);
}

void nsh_memory_limit_forget(void) {
  q.over = q.denied = q.refused = false;
}

void nsh_memory_limit_begin(lua_State *L, int64_t bytes, nsh_slot *slot, uint32_t seq) {
  const char *unit = bytes % (1 << 20) == 0 ? "MiB" : bytes % 1024 == 0 ? "KiB" : "bytes";
  int64_t size = *unit == 'M' ? bytes >> 20 : *unit == 'K' ? bytes >> 10 : bytes;
  nsh_memory_limit_end(L);
  limit_process(L, bytes);
  snprintf(q.text, sizeof q.text, "memory limit of %lld %s", (long long)size, unit);
  q.grown = 0;
  q.limit = bytes;
  q.slot = slot;
  q.seq = seq;
  nsh_memory_limit_forget();
  q.on = true;
  q.alloc = lua_getallocf(L, &q.ud);
  ns_assert(q.alloc != allocate); /* without a limit it is Lua's own */
  lua_setallocf(L, allocate, NULL);
}

bool nsh_memory_limit_end(lua_State *L) {
  bool over = q.over;
  if (!q.on)
    return false;
  lua_setallocf(L, q.alloc, q.ud);
  setrlimit(RLIMIT_DATA, &q.before);
  q.on = false;
  return over;
}

bool nsh_memory_limit_blamed(ns_bytes error) {
  static const char words[] = "not enough memory";
  return (q.over || q.denied || q.refused) && error.p != NULL &&
         memmem(error.p, error.n, words, sizeof words - 1) != NULL;
}

ns_bytes nsh_memory_limit_text(void) {
  return ns_str(q.text);
}
