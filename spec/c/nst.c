/*
** nst: the functions of the system that the specs need and plain Lua lacks. Processes, waiting
** for events instead of sleeping, the environment, SQL as an administrator. Test-only: built to
** build/nst.so, never installed. Times are seconds as floats; failures are nil, message.
*/
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <lauxlib.h>
#include <lua.h>
#include <mysql.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_ARGS 200

extern char **environ;

__attribute__((visibility("default"))) int luaopen_nst(lua_State *L);

static int fail(lua_State *L, const char *what) {
  lua_pushnil(L);
  lua_pushfstring(L, "%s: %s", what, strerror(errno));
  return 2;
}

static int done(lua_State *L, int good, const char *what) {
  if (!good)
    return fail(L, what);
  lua_pushboolean(L, 1);
  return 1;
}

/* ----------------------------------------------------------------- spawn */

typedef struct job {
  const char *args[MAX_ARGS + 1];
  const char *own_env[MAX_ARGS + 1];
  const char *const *env; /* own_env, or ours */
  const char *cwd, *in, *out, *err;
  int report; /* gets errno when the program cannot be started */
} job;

/* Strings of the list at 'index'; they live as long as the list. */
static void strings(lua_State *L, int index, const char **out) {
  lua_Integer n = luaL_len(L, index);
  luaL_argcheck(L, n <= MAX_ARGS, 1, "list too long");
  for (lua_Integer i = 1; i <= n; i++) {
    luaL_argcheck(L, lua_geti(L, index, i) == LUA_TSTRING, 1,
                  "a list of strings expected");
    out[i - 1] = lua_tostring(L, -1);
    lua_pop(L, 1);
  }
  out[n] = NULL;
}

static const char *option(lua_State *L, const char *name) {
  const char *value = NULL;
  if (lua_getfield(L, 1, name) != LUA_TNIL)
    value = luaL_checkstring(L, -1);
  lua_pop(L, 1);
  return value;
}

static int redirect(const char *path, int flags, int to) {
  int fd = open(path != NULL ? path : "/dev/null", flags, 0600);
  return fd >= 0 && dup2(fd, to) == to && (fd == to || close(fd) == 0);
}

/* valgrind does not know close_range. */
static void close_from(int first) {
  if (close_range((unsigned)first, ~0u, 0) != 0)
    for (int fd = first; fd < 1024; fd++)
      close(fd);
}

/* In the child. Its own process group, and no life after the runner's. */
static void run(const job *j, pid_t runner) {
  int error;
  int report = fcntl(j->report, F_DUPFD, 10);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  signal(SIGPIPE, SIG_DFL);
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(report, 3);
  fcntl(3, F_SETFD, FD_CLOEXEC);
  close_from(4);
  if (getppid() == runner && redirect(j->in, O_RDONLY, 0) &&
      redirect(j->out, O_WRONLY | O_CREAT | O_APPEND, 1) &&
      redirect(j->err, O_WRONLY | O_CREAT | O_APPEND, 2) &&
      (j->cwd == NULL || chdir(j->cwd) == 0))
    execvpe(j->args[0], (char *const *)j->args, (char *const *)j->env);
  error = errno;
  if (write(3, &error, sizeof error) < 0)
    _exit(126);
  _exit(127);
}

/* The child borrows our memory until its program runs. A fork would write-protect the pages of a
** large heap of Lua's, and each page would cost a fault when it is written to again. */
static pid_t start(const job *j, pid_t runner) {
  pid_t pid = vfork();
  if (pid == 0)
    run(j, runner);
  return pid;
}

/***
Starts a program with nothing open but its standard files.
@function spawn
@tparam table options the list of program and arguments, and `env` (list of
"NAME=value"; default: ours), `cwd`, `stdin`, `stdout`, `stderr` (paths)
@treturn integer process id, also of its process group
*/
static int l_spawn(lua_State *L) {
  job j;
  int ends[2];
  int error = 0;
  pid_t self = getpid();
  pid_t pid;
  luaL_checktype(L, 1, LUA_TTABLE);
  strings(L, 1, j.args);
  luaL_argcheck(L, j.args[0] != NULL, 1, "no program");
  j.env = (const char *const *)environ;
  if (lua_getfield(L, 1, "env") != LUA_TNIL) { /* stays on the stack */
    strings(L, lua_gettop(L), j.own_env);
    j.env = j.own_env;
  }
  j.cwd = option(L, "cwd");
  j.in = option(L, "stdin");
  j.out = option(L, "stdout");
  j.err = option(L, "stderr");
  if (pipe2(ends, O_CLOEXEC) != 0)
    return fail(L, "pipe");
  j.report = ends[1];
  pid = start(&j, self);
  close(ends[1]);
  if (pid > 0 && read(ends[0], &error, sizeof error) > 0) {
    waitpid(pid, NULL, 0);
    errno = error;
    pid = -1;
  }
  close(ends[0]);
  if (pid < 0)
    return fail(L, j.args[0]);
  lua_pushinteger(L, pid);
  return 1;
}

/***
Forks. The child runs the function and ends by _exit: 0, or 1 when it raised
(its message goes to stderr). Its collector rests, because it would write to each page of the
heap, and so copy the heap.
@function fork
@treturn integer process id
*/
static int l_fork(lua_State *L) {
  pid_t pid;
  luaL_checktype(L, 1, LUA_TFUNCTION);
  if ((pid = fork()) < 0)
    return fail(L, "fork");
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    lua_sethook(L, NULL, 0, 0); /* of `make test-gc` */
    lua_gc(L, LUA_GCSTOP);
    lua_settop(L, 1);
    if (lua_pcall(L, 0, 0, 0) == LUA_OK)
      _exit(0);
    dprintf(2, "%s\n", luaL_tolstring(L, -1, NULL));
    _exit(1);
  }
  lua_pushinteger(L, pid);
  return 1;
}

/* --------------------------------------------------------------- signals */

static const struct {
  const char *name;
  int number;
} signals[] = {{"TERM", SIGTERM}, {"KILL", SIGKILL}, {"INT", SIGINT},
               {"QUIT", SIGQUIT}, {"HUP", SIGHUP},   {"STOP", SIGSTOP},
               {"CONT", SIGCONT}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2},
               {"TSTP", SIGTSTP}, {"TTIN", SIGTTIN}, {"TTOU", SIGTTOU}, {"0", 0}};

/***
Sends a signal by name; "0" only asks whether the process is there.
@function kill
@tparam integer pid negative: a process group
@tparam string name "TERM", "KILL", …
*/
static int l_kill(lua_State *L) {
  pid_t pid = (pid_t)luaL_checkinteger(L, 1);
  const char *name = luaL_checkstring(L, 2);
  for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
    if (strcmp(signals[i].name, name) == 0)
      return done(L, kill(pid, signals[i].number) == 0, "kill");
  return luaL_argerror(L, 2, "unknown signal");
}

/* --------------------------------------------------------------- waiting */

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int l_clock(lua_State *L) {
  lua_pushnumber(L, now());
  return 1;
}

static int l_sleep(lua_State *L) {
  double end = now() + luaL_checknumber(L, 1);
  double left;
  while ((left = end - now()) > 0) {
    struct timespec t = {(time_t)left,
                         (long)((left - (double)(time_t)left) * 1e9)};
    nanosleep(&t, NULL);
  }
  return 0;
}

/***
A descriptor that is ready when the process has ended. Close it.
@function pidfd
*/
static int l_pidfd(lua_State *L) {
  long fd = syscall(SYS_pidfd_open, (pid_t)luaL_checkinteger(L, 1), 0);
  if (fd < 0)
    return fail(L, "pidfd_open");
  fcntl((int)fd, F_SETFD, FD_CLOEXEC);
  lua_pushinteger(L, fd);
  return 1;
}

/***
A descriptor that is ready when one of the files was written to. Close it.
@function watch
@tparam string ... paths of files that exist
*/
static int l_watch(lua_State *L) {
  int n = lua_gettop(L);
  int fd;
  for (int i = 1; i <= n; i++)
    luaL_checkstring(L, i);
  if ((fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) < 0)
    return fail(L, "inotify");
  for (int i = 1; i <= n; i++)
    if (inotify_add_watch(fd, lua_tostring(L, i), IN_MODIFY) < 0) {
      int error = errno;
      close(fd);
      errno = error;
      return fail(L, lua_tostring(L, i));
    }
  lua_pushinteger(L, fd);
  return 1;
}

/***
Waits until a descriptor is ready.
@function poll
@tparam number seconds
@tparam integer ... descriptors of watch and pidfd
@treturn boolean whether one is; events of watches are consumed
*/
static int l_poll(lua_State *L) {
  struct pollfd fds[8];
  char events[4096];
  double end = now() + luaL_checknumber(L, 1);
  int n = lua_gettop(L) - 1;
  int ready = 0;
  luaL_argcheck(L, n <= 8, 1, "too many descriptors");
  for (int i = 0; i < n; i++)
    fds[i] = (struct pollfd){(int)luaL_checkinteger(L, i + 2), POLLIN, 0};
  while (ready == 0) {
    double left = end - now();
    ready = poll(fds, (nfds_t)n, left > 0 ? (int)(left * 1e3) + 1 : 0);
    if ((ready < 0 && errno != EINTR) || (ready == 0 && left <= 0))
      break;
    ready = ready < 0 ? 0 : ready;
  }
  for (int i = 0; i < n; i++)
    while (fds[i].revents & POLLIN &&
           read(fds[i].fd, events, sizeof events) > 0)
      ;
  lua_pushboolean(L, ready > 0);
  return 1;
}

static int l_close(lua_State *L) {
  return done(L, close((int)luaL_checkinteger(L, 1)) == 0, "close");
}

/***
Takes the end of a child that has ended, without waiting.
@function reap
@treturn[1] string "exit" or "signal"
@treturn[1] integer exit status or signal number
@treturn[2] nil it still runs
*/
static int l_reap(lua_State *L) {
  int status;
  pid_t pid = waitpid((pid_t)luaL_checkinteger(L, 1), &status, WNOHANG);
  if (pid < 0)
    return fail(L, "waitpid");
  if (pid == 0)
    return 0;
  lua_pushstring(L, WIFEXITED(status) ? "exit" : "signal");
  lua_pushinteger(L,
                  WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
  return 2;
}

/* ------------------------------------------------------------- the rest */

/***
A new folder that only we may enter.
@function mkdtemp
@tparam string prefix
*/
static int l_mkdtemp(lua_State *L) {
  char path[4096];
  const char *prefix = luaL_checkstring(L, 1);
  luaL_argcheck(L, strlen(prefix) < sizeof path - 7, 1, "too long");
  strcpy(path, prefix);
  strcat(path, "XXXXXX");
  if (mkdtemp(path) == NULL)
    return fail(L, path);
  lua_pushstring(L, path);
  return 1;
}

static int l_setenv(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  const char *value = luaL_optstring(L, 2, NULL);
  int status = value != NULL ? setenv(name, value, 1) : unsetenv(name);
  return done(L, status == 0, "setenv");
}

/***
The environment as a list of "NAME=value".
@function environ
*/
static int l_environ(lua_State *L) {
  lua_newtable(L);
  for (lua_Integer i = 0; environ[i] != NULL; i++) {
    lua_pushstring(L, environ[i]);
    lua_seti(L, -2, i + 1);
  }
  return 1;
}

static int l_getcwd(lua_State *L) {
  char path[4096];
  if (getcwd(path, sizeof path) == NULL)
    return fail(L, "getcwd");
  lua_pushstring(L, path);
  return 1;
}

static int l_chdir(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  return done(L, chdir(path) == 0, path);
}

static int l_ids(lua_State *L) {
  lua_pushinteger(L, getpid());
  lua_pushinteger(L, geteuid());
  return 2;
}

/* --------------------------------------------------------------- folders */

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at) {
  (void)st;
  (void)kind;
  (void)at;
  remove(path); /* what another process has removed meanwhile is gone, too */
  return 0;
}

/* remove(path): a file, or a folder with all that is in it, if it is there. */
static int l_remove(lua_State *L) {
  nftw(luaL_checkstring(L, 1), remove_one, 20, FTW_DEPTH | FTW_PHYS);
  return 0;
}

/* definitions(folder) -> the files with the definitions of a database's tables (.frm, .TRG,
** .TRN, .opt). Each has size, inode and time of change, in any order; nil: no such folder. */
static int l_definitions(lua_State *L) {
  const char *folder = luaL_checkstring(L, 1);
  DIR *dir = opendir(folder);
  luaL_Buffer b;
  struct dirent *entry;
  struct stat st;
  if (dir == NULL)
    return fail(L, folder);
  luaL_buffinit(L, &b);
  while ((entry = readdir(dir)) != NULL) {
    const char *kind = strrchr(entry->d_name, '.');
    char line[400];
    if (kind == NULL || strcmp(kind, ".ibd") == 0 || kind[1] == '\0' ||
        fstatat(dirfd(dir), entry->d_name, &st, 0) != 0)
      continue;
    snprintf(line, sizeof line, "%s %lld %lld %lld.%09ld\n", entry->d_name, (long long)st.st_size,
             (long long)st.st_ino, (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
    luaL_addstring(&b, line);
  }
  closedir(dir);
  luaL_pushresult(&b);
  return 1;
}

/* ------------------------------------------------------- datagrams, threads */

/* datagrams(name) -> the descriptor of a socket that gets them; "@name": an abstract one. */
static int l_datagrams(lua_State *L) {
  size_t n;
  const char *name = luaL_checklstring(L, 1, &n);
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  luaL_argcheck(L, n < sizeof at.sun_path, 1, "too long");
  memcpy(at.sun_path, name, n);
  if (name[0] == '@')
    at.sun_path[0] = '\0';
  if (bind(fd, (struct sockaddr *)&at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) != 0)
    return fail(L, name);
  lua_pushinteger(L, fd);
  return 1;
}

/* datagram(fd) -> the next one; nil: none has come. */
static int l_datagram(lua_State *L) {
  char text[4096];
  ssize_t n = recv((int)luaL_checkinteger(L, 1), text, sizeof text, 0);
  if (n < 0)
    return fail(L, "recv");
  lua_pushlstring(L, text, (size_t)n);
  return 1;
}

/* hold(thread) stops one thread of another process; hold(thread, false) lets it go on. */
static int l_hold(lua_State *L) {
  pid_t thread = (pid_t)luaL_checkinteger(L, 1);
  if (lua_gettop(L) > 1)
    return done(L, ptrace(PTRACE_DETACH, thread, NULL, NULL) == 0, "ptrace");
  return done(L, ptrace(PTRACE_SEIZE, thread, NULL, NULL) == 0 &&
                     ptrace(PTRACE_INTERRUPT, thread, NULL, NULL) == 0 &&
                     waitpid(thread, NULL, __WALL) == thread, "ptrace");
}

/* ------------------------------------------------------------------- SQL */

/* Adds the rows of a result: columns between tabs, a newline behind each row. */
static void add_rows(luaL_Buffer *b, MYSQL_RES *rows) {
  unsigned columns = mysql_num_fields(rows);
  MYSQL_ROW row;
  while ((row = mysql_fetch_row(rows)) != NULL) {
    const unsigned long *lengths = mysql_fetch_lengths(rows);
    for (unsigned i = 0; i < columns; i++) {
      if (row[i] != NULL)
        luaL_addlstring(b, row[i], lengths[i]);
      else
        luaL_addstring(b, "NULL");
      luaL_addchar(b, i + 1 < columns ? '\t' : '\n');
    }
  }
}

/* Runs all statements of a text; false: the connection has the error. */
static int run_all(MYSQL *c, luaL_Buffer *b, const char *text, size_t n) {
  int more = mysql_real_query(c, text, n);
  while (more == 0) {
    MYSQL_RES *rows = mysql_store_result(c);
    if (rows != NULL)
      add_rows(b, rows);
    mysql_free_result(rows);
    more = mysql_errno(c) != 0 ? 1 : mysql_next_result(c);
  }
  return more < 0; /* -1: there is no more */
}

/* What our sessions have, whatever a server gives them. */
#define SESSION \
  "SET NAMES utf8mb4, sql_mode='STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO," \
  "NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION', time_zone=SYSTEM, completion_type=0, " \
  "group_concat_max_len=1048576, div_precision_increment=4, " \
  "explicit_defaults_for_timestamp=1, lc_time_names=en_US"

/* sql(socket, database, text) -> the rows of all statements, as text. */
static int l_sql(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  const char *database = luaL_checkstring(L, 2);
  size_t n;
  const char *text = luaL_checklstring(L, 3, &n);
  MYSQL *c = mysql_init(NULL);
  luaL_Buffer b;
  int good;
  if (c == NULL)
    return fail(L, "mysql_init");
  luaL_buffinit(L, &b);
  good = mysql_real_connect(c, NULL, "root", NULL, NULL, 0, path,
                            CLIENT_MULTI_STATEMENTS) != NULL &&
         mysql_query(c, SESSION) == 0 && mysql_select_db(c, database) == 0 &&
         run_all(c, &b, text, n);
  luaL_pushresult(&b);
  if (!good) {
    lua_pushnil(L);
    lua_pushfstring(L, "ERROR %d (%s): %s", (int)mysql_errno(c), mysql_sqlstate(c),
                    mysql_error(c));
  }
  mysql_close(c);
  return good ? 1 : 2;
}

static const luaL_Reg functions[] = {{"spawn", l_spawn},
                                     {"fork", l_fork},
                                     {"kill", l_kill},
                                     {"clock", l_clock},
                                     {"sleep", l_sleep},
                                     {"pidfd", l_pidfd},
                                     {"watch", l_watch},
                                     {"poll", l_poll},
                                     {"close", l_close},
                                     {"reap", l_reap},
                                     {"mkdtemp", l_mkdtemp},
                                     {"setenv", l_setenv},
                                     {"environ", l_environ},
                                     {"getcwd", l_getcwd},
                                     {"chdir", l_chdir},
                                     {"ids", l_ids},
                                     {"sql", l_sql},
                                     {"remove", l_remove},
                                     {"definitions", l_definitions},
                                     {"datagrams", l_datagrams},
                                     {"datagram", l_datagram},
                                     {"hold", l_hold},
                                     {NULL, NULL}};

int luaopen_nst(lua_State *L) {
  luaL_newlib(L, functions);
  lua_pushliteral(L, SESSION);
  lua_setfield(L, -2, "session");
  return 1;
}
