/*
** The private server: a MariaDB of its own for the working directory, for
** development. This file is the side of the user: it joins or starts the
** server and waits until it answers. The folder is home.c, the command
** lines plan.c; the guardian (guardian.c) is the other side.
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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"

#define PATIENCE (120 * NS_SECOND) /* for locks and for the server */

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
  if ((st = ns_plan_make(t, h, err)) != NS_OK ||
      (st = ns_home_settings(h, err)) != NS_OK)
    return st;
  ns_home_note_log(h);
  if ((pipe = ns_guard_start(&t->guard)) < 0)
    return ns_fail(err, NS_EGONE, "private server: no process for it: %s",
                   strerror(errno));
  st = wait_started(h, pipe, again, err);
  close(pipe);
  if (st == NS_OK)
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

ns_status ns_private_start(const char *dir, char **url, ns_err *err) {
  ns_home *h = malloc(sizeof *h);
  ns_status st;
  *url = NULL;
  if (h == NULL)
    return ns_fail(err, NS_ENOMEM, "private server: out of memory");
  st = ns_home_open(h, dir != NULL ? dir : ".", err);
  if (st == NS_OK)
    st = enter_alone(h, err);
  if (st == NS_OK)
    st = ns_home_url(h, url, err);
  ns_home_close(h);
  free(h);
  return st;
}
