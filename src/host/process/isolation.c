/*
** Isolation of processes: sessions that end as a whole, one host of a name, privileges, and
** secrets hidden from other users.
**
** A process that a handler starts stays in its keeper's session unless it asks for one of its
** own (setsid). No process can be moved into a session from outside. So a session is the one
** mark that orphans cannot lose by accident. Every process in it goes with the keeper; a
** process that left it did so on purpose.
**
** Sweeping a session: /proc is read, the victims are killed, and again, until there are none.
** So a process that forks during a look is found in the next round.
**
** Also: one host of a kind on this machine, by the name of a socket.
**
** A zygote and its workers may not gain rights (unless that is allowed), nor outlive the host
** when memory is short. When the host is root, they may not be root. None of them dumps core.
**
** Secrets that came with the command line and the environment. Every user of the machine can
** read the arguments of a process (ps), and its user the environment it was started with
** (/proc/PID/environ). Both are overwritten in place, and the program goes on with copies of
** its own. The originals can be seen during those first milliseconds.
*/
#include "process/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base.h"

/* ------------------------------------------------------------------ sessions */

#define END_MAX (5 * NS_SECOND)
#define PAUSE 500 /* µs between rounds, doubling */
#define PAUSE_MAX 50000
#define KIN 64 /* steps up to a spared ancestor */

/* A living process of the session. */
typedef struct proc {
  pid_t pid, parent, group;
} proc;

typedef struct procs {
  proc *items; /* ascending by pid, once read */
  size_t n, cap;
} procs;

/* ------------------------------------------------------------------- /proc */

/* Reads "pid (any name) state ppid pgrp session …"; false: it is gone, dead or
** of another session. */
static bool read_proc(int dir, const char *name, pid_t session, proc *p) {
  char path[32];
  char text[512];
  char state;
  int of;
  const char *rest;
  int fd;
  ssize_t n;
  snprintf(path, sizeof path, "%.16s/stat", name);
  if ((fd = openat(dir, path, O_RDONLY | O_CLOEXEC)) < 0)
    return false;
  n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0)
    return false;
  text[n] = '\0';
  p->pid = (pid_t)strtol(text, NULL, 10);
  rest = strrchr(text, ')');
  return rest != NULL &&
         sscanf(rest + 1, " %c %d %d %d", &state, &p->parent, &p->group, &of) == 4 &&
         of == session && state != 'Z' && state != 'X';
}

static int by_pid(const void *a, const void *b) {
  pid_t x = ((const proc *)a)->pid;
  pid_t y = ((const proc *)b)->pid;
  return (x > y) - (x < y);
}

static void read_procs(procs *all, pid_t session) {
  DIR *dir = opendir("/proc");
  const struct dirent *e;
  proc p;
  all->n = 0;
  if (dir == NULL)
    return;
  while ((e = readdir(dir)) != NULL)
    if (e->d_name[0] >= '1' && e->d_name[0] <= '9' &&
        read_proc(dirfd(dir), e->d_name, session, &p) &&
        ns_grow(&all->items, &all->cap, all->n + 1, sizeof *all->items))
      all->items[all->n++] = p;
  closedir(dir);
  if (all->n > 0)
    qsort(all->items, all->n, sizeof *all->items, by_pid);
}

/* ----------------------------------------------------------------- victims */

static const proc *find_process(const procs *all, pid_t pid) {
  proc key = {pid, 0, 0};
  return all->n == 0 ? NULL : bsearch(&key, all->items, all->n, sizeof key, by_pid);
}

static bool is_spared(const pid_t *spared, size_t n, pid_t pid) {
  for (size_t i = 0; i < n; i++)
    if (spared[i] == pid)
      return true;
  return false;
}

static bool has_kin(const procs *all, pid_t pid, const pid_t *spared, size_t n) {
  for (int step = 0; step < KIN; step++) {
    const proc *p = find_process(all, pid);
    if (is_spared(spared, n, pid))
      return true;
    if (p == NULL)
      return false;
    pid = p->parent;
  }
  return false;
}

/* Kills in one round; returns how many were found alive. */
static size_t kill_all(const procs *all, pid_t session, const pid_t *spared, size_t n) {
  size_t found = 0;
  for (size_t i = 0; i < all->n; i++) {
    const proc *p = &all->items[i];
    if (p->pid == getpid() || has_kin(all, p->pid, spared, n) || has_kin(all, p->group, spared, n))
      continue;
    if (getsid(p->pid) != session)
      continue; /* its number may have been reused by now */
    kill(p->pid, SIGKILL);
    found++;
  }
  return found;
}

void nsh_session_kill(pid_t session, const pid_t *spared, size_t n) {
  procs all = {NULL, 0, 0};
  int64_t end = ns_mono_us() + END_MAX;
  int64_t pause = PAUSE;
  for (;;) {
    read_procs(&all, session);
    if (kill_all(&all, session, spared, n) == 0 || ns_mono_us() > end)
      break;
    ns_sleep_us(pause);
    pause = pause * 2 < PAUSE_MAX ? pause * 2 : PAUSE_MAX;
  }
  free(all.items);
}

/* ----------------------------------------------------- one host on a machine */

int nsh_single_take(ns_bytes name) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  int n = snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "nightshift-single-%016" PRIx64,
                   ns_hash(name));
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int why;
  if (fd < 0)
    return -1;
  if (bind(fd, (struct sockaddr *)&at,
           (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) == 0)
    return 1;
  why = errno;
  close(fd);
  errno = why;
  return why == EADDRINUSE ? 0 : -1;
}

/* ------------------------------------------------------------------- secrets */

static const char *const names[] = {"NIGHTSHIFT_URL", "MYSQL_PWD"};
#define NNAMES (sizeof names / sizeof names[0])

static void blank_url(char *url) {
  char *at = strrchr(url, '@');
  char *start = strstr(url, "://");
  size_t n = at != NULL ? (size_t)(at - url) : strlen(url);
  size_t kept = start != NULL && start + 3 <= url + n ? (size_t)(start + 3 - url) : 0;
  memset(url + kept, '*', n - kept);
}

/* Where the value of --url begins in argument 'i'; NULL: it is not there. */
static char *url_in(int i, char **argv) {
  static const char option[] = "--url";
  size_t n = sizeof option - 1;
  if (strncmp(argv[i], option, n) == 0 && argv[i][n] == '=')
    return argv[i] + n + 1;
  return i > 1 && strcmp(argv[i - 1], option) == 0 ? argv[i] : NULL;
}

static bool hide_arguments(int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    char *url = url_in(i, argv);
    char *copy;
    if (url == NULL)
      continue;
    if ((copy = strdup(argv[i])) == NULL)
      return false;
    blank_url(url);
    argv[i] = copy;
  }
  return true;
}

static bool hide_variable(const char *name) {
  char *shown = getenv(name);
  char *copy = shown != NULL ? strdup(shown) : NULL;
  bool good;
  if (shown == NULL || copy == NULL)
    return shown == NULL;
  memset(shown, '*', strlen(shown));
  good = setenv(name, copy, 1) == 0; /* on the heap: the kernel shows the old block */
  free(copy);
  return good;
}

bool nsh_secrets_hide(int argc, char **argv) {
  for (size_t i = 0; i < NNAMES; i++)
    if (!hide_variable(names[i]))
      return false;
  return hide_arguments(argc, argv);
}

void nsh_secrets_drop(void) {
  for (size_t i = 0; i < NNAMES; i++)
    unsetenv(names[i]);
}

/* ---------------------------------------------------------------- privileges */

#define OOM_MORE 300 /* above the host: of -1000 to 1000 */

/* When memory is short the kernel is to take a worker, not the host. */
static void offer_ourselves(void) {
  FILE *f = fopen("/proc/self/oom_score_adj", "r+e");
  int score;
  if (f == NULL)
    return;
  if (fscanf(f, "%d", &score) == 1) {
    score = score + OOM_MORE < 1000 ? score + OOM_MORE : 1000;
    rewind(f);
    fprintf(f, "%d", score);
  }
  fclose(f);
}

static ns_status become_user(const char *user, ns_err *err) {
  pid_t parent = getppid();
  const struct passwd *p = getpwnam(user);
  if (p == NULL || initgroups(user, p->pw_gid) != 0 || setgid(p->pw_gid) != 0 ||
      setuid(p->pw_uid) != 0)
    return ns_fail(err, NS_EDENIED, "cannot become the user '%s': %s", user,
                   p == NULL ? "there is none" : strerror(errno));
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
    _exit(0);
  setenv("HOME", p->pw_dir, 1);
  setenv("USER", user, 1);
  setenv("LOGNAME", user, 1);
  return NS_OK;
}

/* A limit of one byte is too little for a file. For a program that core_pattern pipes to
** the limit says nothing, except that the kernel takes 1 for its own sign to
** dump nothing. */
void nsh_no_core(void) {
  struct rlimit none = {1, 1};
  setrlimit(RLIMIT_CORE, &none);
}

ns_status nsh_confine(const nsh_config *cfg, ns_err *err) {
  if (!cfg->allow_setuid)
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  offer_ourselves();
  return cfg->user != NULL ? become_user(cfg->user, err) : NS_OK;
}
