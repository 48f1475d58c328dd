/*
** Seed, keeper and zygote. All are spawners; the zygote has a Lua state with
** the handlers in it, which its children find in their memory.
**
** The keeper leads a session of its own. So a ^C at the host's terminal reaches the host alone,
** and processes that handlers leave behind can be told from all other ones. Seed and keeper
** adopt orphans (subreaper). Seed and keeper see the host's death by the end of their sockets,
** zygotes and workers are bound to their parents.
**
** Sockets that scripts have opened while they were loaded. All workers would inherit
** them, and read and write on one connection.
*/
#include "process/process.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <lauxlib.h>
#include <malloc.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base.h"
#include "nsl.h"
#include "worker/worker.h"

/* -------------------------------------------------------- sockets of scripts */

#define NSH_SOCKETS_MAX 256

/* The sockets of this process by their inodes. */
typedef struct nsh_sockets {
  ino_t items[NSH_SOCKETS_MAX];
  size_t n;
} nsh_sockets;

/* Calls 'fn' for each socket except standard input and output. */
static void each_socket(void (*fn)(void *arg, int fd, ino_t inode), void *arg) {
  DIR *folder = opendir("/proc/self/fd");
  const struct dirent *entry;
  while (folder != NULL && (entry = readdir(folder)) != NULL) {
    struct stat st;
    int fd = atoi(entry->d_name);
    if (fd > 2 && fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode))
      fn(arg, fd, st.st_ino);
  }
  if (folder != NULL)
    closedir(folder);
}

static void note_socket(void *arg, int fd, ino_t inode) {
  nsh_sockets *s = arg;
  (void)fd;
  if (s->n < NSH_SOCKETS_MAX)
    s->items[s->n++] = inode;
}

static void note_sockets(nsh_sockets *s) {
  s->n = 0;
  each_socket(note_socket, s);
}

/* Where it leads to, as far as can be said. */
static void describe_socket(int fd, ns_buf *text) {
  union {
    struct sockaddr_storage any;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
    struct sockaddr_un un;
  } to = {0};
  char host[INET6_ADDRSTRLEN] = "?";
  socklen_t n = sizeof to;
  if (getpeername(fd, (struct sockaddr *)&to, &n) != 0)
    ns_buf_addf(text, "descriptor %d (not connected)", fd);
  else if (to.any.ss_family == AF_INET)
    ns_buf_addf(text, "descriptor %d (%s:%u)", fd,
                inet_ntop(AF_INET, &to.in.sin_addr, host, sizeof host), ntohs(to.in.sin_port));
  else if (to.any.ss_family == AF_INET6)
    ns_buf_addf(text, "descriptor %d ([%s]:%u)", fd,
                inet_ntop(AF_INET6, &to.in6.sin6_addr, host, sizeof host), ntohs(to.in6.sin6_port));
  else
    ns_buf_addf(text, "descriptor %d (%.100s)", fd,
                to.un.sun_path[0] != '\0' ? to.un.sun_path : "unix socket");
}

typedef struct search {
  const nsh_sockets *then;
  bool (*ours)(int fd);
  ns_buf *text;
} search;

static void compare_socket(void *arg, int fd, ino_t inode) {
  const search *s = arg;
  for (size_t i = 0; i < s->then->n; i++)
    if (s->then->items[i] == inode)
      return;
  if (s->ours(fd))
    return;
  if (s->text->n > 0)
    ns_buf_adds(s->text, ", ");
  describe_socket(fd, s->text);
}

/* Sockets that are open now, were not then, and are not 'ours':
** "descriptor 7 (127.0.0.1:3306), …". Empty: there are none. */
static void list_new_sockets(const nsh_sockets *then, bool (*ours)(int fd), ns_buf *text) {
  search s = {then, ours, text};
  each_socket(compare_socket, &s);
}

/* ------------------------------------------------------------- shared memory */

#define HOLE_MAX 65536 /* bytes; larger ones are worth being used */
#define SMALL 1024     /* from here on every size a block can have */

#ifdef __GLIBC__

/* Takes blocks of 'size' until there is no hole for one; they are never freed. Memory at 'top'
** and above is no hole. Not more than 'most' bytes. */
static void fill_holes(size_t size, uintptr_t top, size_t most) {
  for (size_t taken = 0; taken < most; taken += size) {
    void *p = malloc(size);
    if (p == NULL)
      return;
    if ((uintptr_t)p >= top) {
      free(p);
      return;
    }
  }
}

static void fill_heap(void) {
  struct mallinfo2 now;
  uintptr_t top;
  malloc_trim(0);
  now = mallinfo2();
  top = (uintptr_t)sbrk(0) - now.keepcost;
  for (size_t size = HOLE_MAX; size > SMALL; size /= 2)
    fill_holes(size, top, now.arena);
  for (size_t size = SMALL; size > 0; size -= 16)
    fill_holes(size, top, now.arena);
}

#else
static void fill_heap(void) {
}
#endif

#define TEXT_MAX 32768  /* bytes of a report to the host */

/* The state that all workers of a zygote share. */
typedef struct family {
  const nsh_config *cfg;
  nsh_slots *slots;
  int wakeup; /* of the workers */
} family;

/* ----------------------------------------------------------------- zygote */

/* Loads worker and handlers. Arguments: family. Results: the loaded scripts (a table), or nil
** and a message. */
static int load_scripts(lua_State *L) {
  const family *fam = lua_touserdata(L, 1);
  nsh_interrupt_install(L); /* before a script can keep the old functions */
  lua_getglobal(L, "require");
  lua_pushliteral(L, "nightshift.worker");
  lua_call(L, 1, 1);
  lua_getfield(L, -1, "prepare");
  lua_createtable(L, (int)fam->cfg->nfiles, 0);
  for (size_t i = 0; i < fam->cfg->nfiles; i++) {
    lua_pushstring(L, fam->cfg->files[i]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  nsh_worker_pushapi(L);
  nsh_config_pushdb(L, fam->cfg);
  lua_pushinteger(L, fam->cfg->memory);
  lua_pushinteger(L, fam->cfg->max_children);
  lua_call(L, 5, 6); /* loaded, begin, run, run_batch, reset, finish; or nil, message */
  if (lua_isnil(L, -6)) {
    lua_pop(L, 4);
    return 2;
  }
  nsh_worker_keep(L); /* takes all but the first */
  return 1;
}

static size_t begin_report(ns_buf *out, nsh_type type, int64_t count, ns_bytes text) {
  size_t start = nsh_begin(out, type);
  nsh_put_int(out, count);
  nsh_put_bytes(out, (ns_bytes){text.p, text.n < TEXT_MAX ? text.n : TEXT_MAX});
  return start;
}

static void send_report(int ctl, ns_buf *out, size_t start) {
  if (nsh_end(out, start))
    nsh_control_send(ctl, out, -1, true);
  ns_buf_free(out);
}

static void send_text_report(int ctl, nsh_type type, int64_t count, ns_bytes text) {
  ns_buf out = NS_BUF_INIT;
  size_t start = begin_report(&out, type, count, text);
  send_report(ctl, &out, start);
}

/* The names of a table, a line each, as many as a report takes: no name has a
** line break. Protected. */
static int join_names(lua_State *L) {
  luaL_Buffer b;
  lua_Integer n = luaL_len(L, 1);
  size_t total = 0;
  luaL_buffinit(L, &b);
  for (lua_Integer i = 1; i <= n; i++) {
    lua_rawgeti(L, 1, i);
    total += lua_rawlen(L, -1) + 1;
    if (total > TEXT_MAX) {
      lua_pop(L, 1);
      break;
    }
    if (i > 1) { /* behind the name, for it must not lie on top of the buffer */
      lua_pushliteral(L, "\n");
      lua_insert(L, -2);
      lua_concat(L, 2);
    }
    luaL_addvalue(&b);
  }
  luaL_pushresult(&b);
  return 1;
}

static ns_bytes message_of(lua_State *L) {
  return lua_type(L, -1) == LUA_TSTRING ? nsh_lua_text(L, -1)
                                        : ns_str("the handlers cannot be loaded");
}

/* Tells the host the declarations of scripts, one by one: a list of the table of load, which is at
** 1. */
static void tell_declared(lua_State *L, int ctl, const char *list, nsh_type type) {
  lua_Integer n;
  lua_getfield(L, 1, list);
  n = luaL_len(L, -1);
  for (lua_Integer i = 1; i <= n; i++) {
    lua_rawgeti(L, -1, i);
    send_text_report(ctl, type, 0, nsh_lua_text(L, -1));
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

/* Tells the host which scripts were loaded. Arguments: the table of load, ctl. Protected. */
static int tell_loaded(lua_State *L) {
  ns_buf out = NS_BUF_INIT;
  const char *version;
  const char *files;
  size_t start;
  tell_declared(L, (int)lua_tointeger(L, 2), "schedules", NSH_SCHEDULE);
  tell_declared(L, (int)lua_tointeger(L, 2), "on_dead", NSH_ON_DEAD);
  tell_declared(L, (int)lua_tointeger(L, 2), "batches", NSH_BATCHED);
  lua_getfield(L, 1, "version");
  version = luaL_checkstring(L, -1);
  lua_getfield(L, 1, "files");
  files = luaL_checkstring(L, -1);
  lua_pushcfunction(L, join_names);
  lua_getfield(L, 1, "names");
  lua_pushvalue(L, -1);
  lua_replace(L, 1); /* the names themselves */
  lua_call(L, 1, 1);
  start = begin_report(&out, NSH_LOADED, (int64_t)lua_rawlen(L, 1), nsh_lua_text(L, -1));
  nsh_put_bytes(&out, ns_str(version));
  nsh_put_bytes(&out, ns_str(files));
  send_report((int)lua_tointeger(L, 2), &out, start);
  return 0;
}

/* True when the handlers are there; the host has been told either way. */
static bool load_handlers(lua_State *L, family *fam, int ctl) {
  bool loaded;
  lua_pushcfunction(L, nsh_lua_traceback);
  lua_pushcfunction(L, load_scripts);
  lua_pushlightuserdata(L, fam);
  loaded = lua_pcall(L, 1, LUA_MULTRET, 1) == LUA_OK && !lua_isnil(L, 2);
  if (loaded) {
    lua_pushcfunction(L, tell_loaded);
    lua_insert(L, 2);
    lua_pushinteger(L, ctl);
    loaded = lua_pcall(L, 2, 0, 0) == LUA_OK;
  }
  if (!loaded)
    send_text_report(ctl, NSH_LOADERR, 0, message_of(L));
  lua_settop(L, 0);
  return loaded;
}

/* A connection of the scripts' own, which all workers would use at once. A handle opens
** another in each process. */
static void report_sockets(const nsh_sockets *before, int ctl) {
  ns_buf text = NS_BUF_INIT;
  list_new_sockets(before, ns_owns_socket, &text);
  if (!text.oom && text.n > 0)
    send_text_report(ctl, NSH_SOCKETS, 0, ns_buf_bytes(&text));
  ns_buf_free(&text);
}

/* Processes that a worker started go with it, unless it left its process group. */
static void clear_worker(pid_t dead, const pid_t *others, size_t n) {
  (void)others;
  (void)n;
  kill(-dead, SIGKILL);
}

/* A library's function is looked up when it is called for the first time, which
** costs a process several pages. All workers read JSON, and most write some: it is
** looked up here for all of them. Protected. */
static int use_json_once(lua_State *L) {
  ns_buf *text = nsl_newbuf(L);
  ns_err err;
  if (nsl_decode(L, ns_str("{\"a\":[1,2.5,\"b\",true]}"), &err) == NS_OK)
    nsl_encode(L, -1, "rehearsal", NS_MAX_PAYLOAD, text, &err);
  return 0;
}

/* Workers share this memory as long as none of them writes to it: they begin with a heap
** without garbage and without holes. (The generational collector was tried: no less
** memory after a thousand jobs, and an eighth fewer jobs per second.) */
static void be_shared(lua_State *L) {
  lua_pushcfunction(L, use_json_once);
  lua_pcall(L, 0, 0, 0);
  lua_settop(L, 0);
  lua_gc(L, LUA_GCCOLLECT);
  fill_heap();
}

static void zygote(void *arg, uint32_t index, int ctl) {
  family *fam = arg;
  nsh_worker_setup setup = {NULL, fam->cfg, fam->slots, fam->wakeup};
  nsh_spawner n = {.ctl = ctl,
                   .max = fam->cfg->most_workers,
                   .name = "ns-worker",
                   .child = nsh_worker_main,
                   .arg = &setup,
                   .mute = true,
                   .bound = true,
                   .clear = clear_worker};
  nsh_sockets before;
  lua_State *L;
  bool loaded = false;
  ns_err err;
  (void)index;
  nsh_output_install();
  L = setup.L = nsh_lua_new();
  note_sockets(&before);
  nsh_child_ignore_signals();
  if (!fam->cfg->keep_env)
    nsh_secrets_drop();
  if (nsh_confine(fam->cfg, &err) != NS_OK)
    send_text_report(ctl, NSH_LOADERR, 0, ns_str(err.message));
  else if (L == NULL)
    send_text_report(ctl, NSH_LOADERR, 0, ns_str("not enough memory"));
  else
    loaded = load_handlers(L, fam, ctl);
  if (!loaded)
    _exit(1);
  report_sockets(&before, ctl);
  be_shared(L);
  nsh_spawner_serve(&n);
}

/* ----------------------------------------------------------------- keeper */

/* Clears up after a zygote: its workers are dead or dying; their children came to us, or will. */
static void clear_zygote(pid_t dead, const pid_t *others, size_t n) {
  kill(-dead, SIGKILL);
  nsh_session_kill(getpid(), others, n);
}

static void keeper(void *arg, uint32_t index, int ctl) {
  nsh_spawner n = {.ctl = ctl,
                   .max = NSH_ZYGOTES,
                   .name = "ns-zygote",
                   .child = zygote,
                   .arg = arg,
                   .bound = true,
                   .clear = clear_zygote};
  (void)index;
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  nsh_spawner_serve(&n);
}

/* ------------------------------------------------------------------- seed */

/* The session keeps the keeper's number. */
static void clear_keeper(pid_t dead, const pid_t *others, size_t n) {
  (void)others;
  (void)n;
  nsh_session_kill(dead, NULL, 0);
}

/* Nothing of the host's stays open but output, the control socket and the wake-up pipe. */
static void close_others(int ctl, int wakeup) {
  int low = ctl < wakeup ? ctl : wakeup;
  int high = ctl < wakeup ? wakeup : ctl;
  int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null >= 0)
    dup2(null, STDIN_FILENO);
  if (low > 3)
    close_range(3, (unsigned)low - 1, 0);
  if (high > low + 1)
    close_range((unsigned)low + 1, (unsigned)high - 1, 0);
  close_range((unsigned)high + 1, ~0U, 0);
}

static void seed(family *fam, int ctl) {
  nsh_spawner n = {.ctl = ctl,
                   .max = 1,
                   .name = "ns-keeper",
                   .child = keeper,
                   .arg = fam,
                   .clear = clear_keeper};
  nsh_child_begin(0, "ns-seed");
  setsid();
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  close_others(n.ctl, fam->wakeup);
  nsh_spawner_serve(&n);
}

ns_status nsh_seed_start(const nsh_config *cfg, nsh_slots *slots, int wakeup, pid_t *pid, int *ctl,
                         ns_err *err) {
  family fam = {cfg, slots, wakeup};
  int pair[2];
  if (geteuid() == 0 && cfg->user == NULL)
    ns_log(NS_LOG_WARN, "host.root",
           NS_FIELDS(ns_fs("advice", "handlers run as root; --user NAME makes "
                                     "them run as somebody else")));
  if (!nsh_control_pair(pair))
    return ns_fail(err, NS_ENOMEM, "socketpair: %s", strerror(errno));
  *pid = fork();
  if (*pid == 0)
    seed(&fam, pair[1]);
  close(pair[1]);
  *ctl = pair[0];
  if (*pid > 0)
    return NS_OK;
  close(pair[0]);
  return ns_fail(err, NS_ENOMEM, "fork: %s", strerror(errno));
}
