/*
** The private server: a MariaDB of its own for the working directory, for
** development. This file is the side of the user. It joins the server or starts it, with programs
** that fit the data that is there, and waits until it answers. The folder is home.c; the guardian
** (guardian.c) is the other side.
**
** Order of the locks: start.lock (one starter at a time; held until the server answers), then a
** share of users.lock. The share is kept until the process ends: it keeps the server alive, so
** no handle owns it. A forked child inherits the share, and the server then lives until that
** child ends too; programs that are executed do not inherit it.
*/
#include "private.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base.h"

#define PATIENCE (120 * NS_SECOND) /* for locks and for the server */

/* ---------------------------------------------- programs and their arguments */

/* Everything the guardian of a private server needs, in one block that is made before the fork. */
typedef struct ns_plan {
  ns_guard guard; /* borrows from the rest and from the home */
  char title[PATH_MAX + 32], path[PATH_MAX + 128];
  char install_db[PATH_MAX], mariadbd[PATH_MAX];
  char defaults[160], datadir[160], owner[128];
} ns_plan;

static bool find_in(const char *folders, const char *name, char *path,
                    size_t size) {
  while (*folders != '\0') {
    size_t len = strcspn(folders, ":");
    int n = snprintf(path, size, "%.*s/%s", (int)len, folders, name);
    if (len > 0 && folders[0] == '/' && n > 0 && (size_t)n < size &&
        access(path, X_OK) == 0)
      return true;
    folders += len;
    folders += *folders == ':';
  }
  return false;
}

/* The PATH of a user often lacks sbin. */
static ns_status find_program(const char *name, char *path, size_t size,
                              ns_err *err) {
  const char *own = getenv("PATH");
  if ((own != NULL && find_in(own, name, path, size)) ||
      find_in("/usr/sbin:/usr/bin:/usr/libexec:/usr/local/sbin:/usr/local/bin:"
              "/usr/local/libexec",
              name, path, size))
    return NS_OK;
  return ns_fail(err, NS_EGONE,
                 "private server: %s is not installed: apt-get install "
                 "mariadb-server-core mariadb-client-core; or name a server: "
                 "NIGHTSHIFT_URL=mysql://user@host/database",
                 name);
}

/* The output of 'mariadbd --version'; "" when it fails. */
static void ask_version(char *mariadbd, char *text, size_t size) {
  char *args[] = {mariadbd, "--no-defaults", "--version", NULL};
  char *env[] = {"LC_ALL=C", NULL};
  posix_spawn_file_actions_t files;
  int ends[2];
  pid_t pid;
  size_t n = 0;
  ssize_t got = 1;
  text[0] = '\0';
  if (pipe2(ends, O_CLOEXEC) != 0)
    return;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, ends[1], STDOUT_FILENO);
  if (posix_spawn(&pid, mariadbd, &files, NULL, args, env) != 0)
    pid = -1;
  posix_spawn_file_actions_destroy(&files);
  close(ends[1]);
  while (n < size - 1 && got > 0)
    if ((got = read(ends[0], text + n, size - 1 - n)) > 0)
      n += (size_t)got;
  close(ends[0]);
  text[n] = '\0';
  if (pid > 0)
    waitpid(pid, NULL, 0);
}

/* 1011 for "… Ver 10.11.19-MariaDB …", 0 when there is none. */
static int series(const char *text) {
  int major;
  int minor;
  const char *at = strstr(text, "Ver ");
  if (at == NULL || sscanf(at + 4, "%d.%d", &major, &minor) != 2)
    return 0;
  return major * 100 + minor;
}

/* The home is used with the series of MariaDB that made it: an older one
** cannot read it, a newer one would want mariadb-upgrade first. */
static ns_status check_version(const ns_home *h, char *mariadbd, ns_err *err) {
  char now[256];
  char then[256];
  ask_version(mariadbd, now, sizeof now);
  ns_home_read(h, "version", 0, then, sizeof then);
  if (ns_home_has(h, "data") && series(then) != 0) {
    if (series(now) == 0 || series(now) == series(then))
      return NS_OK;
    return ns_fail(err, NS_ESERVER,
                   "private server: %s was made by MariaDB %d.%d, installed "
                   "is %d.%d; install that one again, or remove the folder "
                   "and with it its jobs",
                   h->shown, series(then) / 100, series(then) % 100,
                   series(now) / 100, series(now) % 100);
  }
  if (!ns_home_write(h, "version", ns_str(now)))
    return ns_home_fail(h, "write in", err);
  return NS_OK;
}

static void set_texts(const ns_home *h, ns_plan *t) {
  const char *path = getenv("PATH");
  char **env = t->guard.env;
  snprintf(t->title, sizeof t->title, "nightshift-db %s", h->real);
  snprintf(t->path, sizeof t->path, "PATH=%.*s%s/usr/sbin:/usr/bin:/sbin:/bin",
           PATH_MAX, path != NULL ? path : "", path != NULL ? ":" : "");
  snprintf(t->defaults, sizeof t->defaults, "--defaults-file=%s/my.cnf",
           h->base);
  snprintf(t->datadir, sizeof t->datadir, "--datadir=%s/data.new", h->base);
  snprintf(t->owner, sizeof t->owner, "--auth-root-socket-user=%s", h->user);
  t->guard.home = h->dir;
  t->guard.title = t->title;
  t->guard.link = h->folder[0] != '\0' ? h->base : NULL;
  t->guard.folder = h->folder;
  *env++ = t->path;
  *env = "LC_ALL=C";
}

/* Fills the zeroed '*t'. Errors: GONE (not installed), SERVER (the home was
** made by another version), DENIED. */
static ns_status make_plan(ns_plan *t, const ns_home *h, ns_err *err) {
  char **install = t->guard.install;
  char **serve = t->guard.serve;
  ns_status st = find_program("mariadbd", t->mariadbd, sizeof t->mariadbd, err);
  if (st == NS_OK)
    st = find_program("mariadb-install-db", t->install_db,
                      sizeof t->install_db, err);
  if (st == NS_OK)
    st = check_version(h, t->mariadbd, err);
  if (st != NS_OK)
    return st;
  set_texts(h, t);
  *install++ = t->install_db;
  *install++ = t->defaults;
  *install++ = t->datadir;
  *install++ = "--skip-test-db";
  *install++ = "--skip-name-resolve";
  *install++ = "--force"; /* even if this host has no name */
  if (h->by_socket) {
    *install++ = "--auth-root-authentication-method=socket";
    *install = t->owner;
  } else
    *install = "--auth-root-authentication-method=normal";
  *serve++ = t->mariadbd;
  *serve++ = t->defaults;
  /* not in my.cnf: the installation would chown parts of the system */
  if (geteuid() == 0)
    *serve = "--user=root";
  return NS_OK;
}

/* ------------------------------------------------------ shares of users */

/* One entry per home this process uses; never freed, see above. */
static struct share {
  dev_t dev;
  ino_t ino; /* of users.lock */
  int fd;    /* holds the share */
} shares[16];
static size_t nshares;
static pthread_mutex_t shares_lock = PTHREAD_MUTEX_INITIALIZER;

static bool has_share(int users) {
  struct stat st;
  bool found = false;
  if (fstat(users, &st) != 0)
    return false;
  pthread_mutex_lock(&shares_lock);
  for (size_t i = 0; i < nshares; i++)
    found = found || (shares[i].dev == st.st_dev && shares[i].ino == st.st_ino);
  pthread_mutex_unlock(&shares_lock);
  return found;
}

/* Keeps 'users' open for good. When the list is full it is kept all the same,
** only the next handle takes another share. */
static void keep_share(int users) {
  struct stat st;
  if (fstat(users, &st) != 0)
    return;
  pthread_mutex_lock(&shares_lock);
  if (nshares < sizeof shares / sizeof shares[0])
    shares[nshares++] = (struct share){st.st_dev, st.st_ino, users};
  pthread_mutex_unlock(&shares_lock);
}

/* flock() with patience: a process that was stopped may hold the lock. */
static bool lock_within(int fd, int how, int64_t patience) {
  int64_t end = ns_mono_us() + patience;
  int64_t pause = 500;
  while (flock(fd, how | LOCK_NB) != 0) {
    if ((errno != EWOULDBLOCK && errno != EINTR) || ns_mono_us() > end)
      return false;
    ns_sleep_us(pause);
    if (pause < 20000)
      pause *= 2;
  }
  return true;
}

static int open_lock(const ns_home *h, const char *name) {
  return openat(h->dir, name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

static void close_if_open(int fd) {
  if (fd >= 0)
    close(fd);
}

/* ---------------------------------------------------------------- start */

static ns_status no_start(const ns_home *h, const ns_guard_report *r,
                          ns_err *err) {
  static const char *const stages[] = {"", "setting it up", "installing it",
                                       "mariadbd"};
  char log[260];
  char how[64];
  if (r->stage == NS_GUARD_SETUP)
    return ns_fail(err, NS_EGONE, "private server: setting up %s failed: %s",
                   h->shown, strerror(r->status));
  ns_home_read_log(h, log, sizeof log);
  if (WIFSIGNALED(r->status))
    snprintf(how, sizeof how, "killed by signal %d", WTERMSIG(r->status));
  else
    snprintf(how, sizeof how, "exit status %d", WEXITSTATUS(r->status));
  return ns_fail(err, NS_EGONE,
                 "private server: %s did not start (%s: %s); its server.log "
                 "says: %s",
                 h->shown, stages[r->stage], how, log);
}

static bool answers(const ns_home *h) {
  char path[NS_HOME_BASE + 8];
  snprintf(path, sizeof path, "%s/s.sock", h->base);
  return ns_guard_answers(path);
}

static ns_status too_late(const ns_home *h, ns_err *err) {
  return ns_fail(err, NS_EGONE,
                 "private server: %s does not answer within %d s; see its "
                 "server.log",
                 h->shown, (int)(PATIENCE / NS_SECOND));
}

/* After a start: until the server answers or the guardian says why not.
** '*again' when another guardian was quicker, or it was killed. */
static ns_status wait_started(const ns_home *h, int pipe, bool *again,
                              ns_err *err) {
  int64_t end = ns_mono_us() + PATIENCE;
  struct pollfd wait = {.fd = pipe, .events = POLLIN};
  while (!answers(h)) {
    ns_guard_report r;
    if (ns_mono_us() > end)
      return too_late(h, err);
    if (poll(&wait, 1, 5) != 1)
      continue;
    *again = read(pipe, &r, sizeof r) != sizeof r ||
             (r.stage == NS_GUARD_SETUP && r.status == EWOULDBLOCK);
    return *again ? ns_fail(err, NS_EGONE,
                            "private server: the guardian of %s was killed",
                            h->shown)
                  : no_start(h, &r, err);
  }
  return NS_OK;
}

/* Whether a process holds the lock for longer than 'patience'. */
static bool is_locked(const ns_home *h, const char *name, int64_t patience) {
  int fd = open_lock(h, name);
  bool locked = fd >= 0 && !lock_within(fd, LOCK_EX, patience);
  close_if_open(fd);
  return locked;
}

/* A guardian runs: until its server answers. '*again' when it ended. */
static ns_status wait_running(const ns_home *h, bool *again, ns_err *err) {
  int64_t end = ns_mono_us() + PATIENCE;
  while (!answers(h)) {
    if (!is_locked(h, "guard.lock", 0)) {
      *again = true;
      return ns_fail(err, NS_EGONE, "private server: %s ended", h->shown);
    }
    if (ns_mono_us() > end)
      return too_late(h, err);
    ns_sleep_us(10000);
  }
  return NS_OK;
}

/* No guardian runs: starts one and waits. */
static ns_status start(ns_home *h, ns_plan *t, bool *again, ns_err *err) {
  ns_status st;
  int pipe;
  if (is_locked(h, "server.lock", PATIENCE))
    return ns_fail(err, NS_EGONE,
                   "private server: a mariadbd whose guardian was killed "
                   "still runs in %s",
                   h->shown);
  if ((st = make_plan(t, h, err)) != NS_OK ||
      (st = ns_home_settings(h, err)) != NS_OK)
    return st;
  ns_home_note_log(h);
  if ((pipe = ns_guard_start(&t->guard)) < 0)
    return ns_fail(err, NS_EGONE, "private server: no process for it: %s",
                   strerror(errno));
  st = wait_started(h, pipe, again, err);
  close(pipe);
  if (st == NS_OK && !h->fast)
    fprintf(stderr,
            "nightshift: started a private MariaDB in %s (for development)\n",
            h->shown);
  return st;
}

static ns_status start_or_join(ns_home *h, ns_err *err) {
  ns_status st = NS_EGONE;
  bool again = true;
  ns_plan *t;
  for (int round = 0; again && round < 5; round++) {
    again = false;
    if (is_locked(h, "guard.lock", 0)) {
      st = wait_running(h, &again, err);
      continue;
    }
    if ((t = calloc(1, sizeof *t)) == NULL)
      return ns_fail(err, NS_ENOMEM, "private server: out of memory");
    st = start(h, t, &again, err);
    free(t);
  }
  return st;
}

/* With start.lock held: a share of users.lock, then the server. */
static ns_status enter(ns_home *h, ns_err *err) {
  int users = open_lock(h, "users.lock");
  bool shared = users >= 0 && has_share(users);
  ns_status st = NS_OK;
  if (users < 0)
    return ns_home_fail(h, "write in", err);
  if (!shared && !lock_within(users, LOCK_SH, PATIENCE))
    st = ns_fail(err, NS_EGONE, "private server: the one in %s does not end",
                 h->shown);
  if (st == NS_OK && (st = ns_home_prepare(h, err)) == NS_OK)
    st = start_or_join(h, err);
  if (st == NS_OK && !shared)
    keep_share(users);
  else
    close(users);
  return st;
}

static ns_status enter_alone(ns_home *h, ns_err *err) {
  ns_status st;
  int start_lock = open_lock(h, "start.lock");
  if (start_lock >= 0 && lock_within(start_lock, LOCK_EX, PATIENCE))
    st = enter(h, err);
  else if (errno != EWOULDBLOCK)
    st = ns_home_fail(h, "lock a file in", err);
  else
    st = ns_fail(err, NS_EGONE,
                 "private server: another process has been starting %s for "
                 "%d s",
                 h->shown, (int)(PATIENCE / NS_SECOND));
  close_if_open(start_lock);
  return st;
}

static ns_status start_in(const char *dir, bool fast, char **url, ns_err *err) {
  ns_home *h = malloc(sizeof *h);
  ns_status st;
  *url = NULL;
  if (h == NULL)
    return ns_fail(err, NS_ENOMEM, "private server: out of memory");
  st = ns_home_open(h, dir != NULL ? dir : ".", err);
  h->fast = fast;
  if (st == NS_OK)
    st = enter_alone(h, err);
  if (st == NS_OK)
    st = ns_home_url(h, url, err);
  ns_home_close(h);
  free(h);
  return st;
}

ns_status ns_private_start(const char *dir, char **url, ns_err *err) {
  return start_in(dir, false, url, err);
}

ns_status ns_private_start_fast(const char *dir, char **url, ns_err *err) {
  return start_in(dir, true, url, err);
}
