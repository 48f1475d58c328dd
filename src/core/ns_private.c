/*
** The private server: a MariaDB of its own for the working directory, for
** development. This file is the side of the user: it prepares the home
** (.nightshift), joins or starts the server, and waits until it answers. The
** guardian (ns_guard.c) is the other side.
**
** Order of the locks: start.lock (one starter at a time; held until the
** server answers), then a share of users.lock. The share is kept until the
** process ends: it is what keeps the server alive, so no handle owns it. A
** forked child inherits the share, and the server then lives until that child
** ends too; programs that are executed do not inherit it.
**
** A socket path may have 107 bytes, and the installation script does not
** quote. So the server gets to know its home by 'base': the real path when it
** is short and plain, else a symlink in a private folder under /tmp.
*/
#include "nightshift.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <pwd.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../base/ns_time.h"
#include "ns_guard.h"
#include "ns_url.h"

#define PATIENCE (120 * NS_SECOND) /* for locks and for the server */
#define MAX_BASE 100               /* with /s.sock: 107 */
#define MAX_REAL 400               /* mariadbd has 512 for a whole path */
#define MAX_LOG 1048576            /* the log starts anew above this */
#define PLAIN                                                                  \
  "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/"

typedef struct place {
  const char *shown;   /* how messages call the home */
  char real[PATH_MAX]; /* its path */
  char base[MAX_BASE + 1];   /* its path for the server */
  char folder[MAX_BASE + 1]; /* of the symlink; "": none */
  char user[64];       /* database user */
  bool by_socket;      /* it is the system user and logs in as such */
  int home;            /* directory fd */
  int start, users;    /* lock fds; -1: none */
  off_t log_from;      /* size of the log before this start */
} place;

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

/* -------------------------------------------------------------- the home */

static ns_status no_home(const place *p, const char *what, ns_err *err) {
  bool denied = errno == EACCES || errno == EPERM || errno == EROFS;
  return ns_fail(err, denied ? NS_EDENIED : NS_EGONE,
                 "private server: cannot %s %s: %s", what, p->shown,
                 strerror(errno));
}

static bool write_file(int home, const char *name, ns_bytes text) {
  char temporary[64];
  bool good;
  int fd;
  snprintf(temporary, sizeof temporary, "%s.new", name);
  fd = openat(home, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0)
    return false;
  good = write(fd, text.p, text.n) == (ssize_t)text.n;
  return close(fd) == 0 && good &&
         renameat(home, temporary, home, name) == 0;
}

/* Reads at most size - 1 bytes from 'at'; always terminated. */
static void read_file(int home, const char *name, off_t at, char *text,
                      size_t size) {
  int fd = openat(home, name, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd >= 0 ? pread(fd, text, size - 1, at) : -1;
  text[n > 0 ? n : 0] = '\0';
  if (fd >= 0)
    close(fd);
}

static bool exists(int home, const char *name) {
  return faccessat(home, name, F_OK, 0) == 0;
}

/* Creates .nightshift in 'dir' when it is not there, and opens it. */
static ns_status open_home(place *p, const char *dir, ns_err *err) {
  struct stat st;
  int parent = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (parent < 0)
    return no_home(p, "open the folder of", err);
  if (mkdirat(parent, ".nightshift", 0700) != 0 && errno != EEXIST) {
    close(parent);
    return no_home(p, "create", err);
  }
  p->home = openat(parent, ".nightshift", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  close(parent);
  if (p->home < 0 || fstat(p->home, &st) != 0)
    return no_home(p, "open", err);
  if (st.st_uid != geteuid())
    return ns_fail(err, NS_EDENIED,
                   "private server: %s belongs to user %ld, and only that "
                   "user can use it (this is user %ld)",
                   p->shown, (long)st.st_uid, (long)geteuid());
  if (!exists(p->home, ".gitignore") &&
      !write_file(p->home, ".gitignore", ns_str("*\n")))
    return no_home(p, "write in", err);
  return NS_OK;
}

static ns_status find_real(place *p, const char *dir, ns_err *err) {
  char path[PATH_MAX];
  int n = snprintf(path, sizeof path, "%s/.nightshift", dir);
  errno = ENAMETOOLONG;
  if (n < 0 || (size_t)n >= sizeof path || realpath(path, p->real) == NULL)
    return no_home(p, "find the path of", err);
  if (strlen(p->real) > MAX_REAL)
    return ns_fail(err, NS_EINVALID,
                   "private server: the path of %s is %zu bytes long, and a "
                   "MariaDB server cannot use more than %d",
                   p->shown, strlen(p->real), MAX_REAL);
  return NS_OK;
}

/* ---------------------------------------------------------- settings */

/* A server that starts wipes the temporary tables in its tmpdir, whosever
** they are: so it needs one of its own. */
static bool write_settings(const place *p) {
  ns_buf text = NS_BUF_INIT;
  bool good;
  if (mkdirat(p->home, "tmp", 0700) != 0 && errno != EEXIST)
    return false;
  ns_buf_addf(&text,
              "# Written at each start. `mariadb --defaults-file=THIS` opens "
              "a prompt.\n"
              "[client]\nsocket=%s/s.sock\nuser=%s\n"
              "[mariadb-client]\ndatabase=nightshift\n"
              "[mariadbd]\nsocket=%s/s.sock\ndatadir=%s/data\n"
              "pid-file=%s/server.pid\nlog-error=%s/server.log\n"
              "tmpdir=%s/tmp\n",
              p->base, p->user, p->base, p->base, p->base, p->base, p->base);
  ns_buf_adds(&text, "skip-networking\nskip-name-resolve\nskip-log-bin\n"
                     "performance-schema=OFF\nevent-scheduler=OFF\nlog-warnings=1\n"
                     "character-set-server=utf8mb4\n"
                     "collation-server=utf8mb4_bin\n"
                     "max-connections=1000\nmax-allowed-packet=64M\n"
                     "thread-cache-size=32\ntable-open-cache=400\n"
                     "innodb-flush-log-at-trx-commit=1\n"
                     "innodb-buffer-pool-size=64M\n"
                     "innodb-log-file-size=32M\n"
                     "aria-log-file-size=8M\n"
                     "aria-pagecache-buffer-size=8M\n"
                     "key-buffer-size=1M\n");
  good = !text.oom && write_file(p->home, "my.cnf", ns_buf_bytes(&text));
  ns_buf_free(&text);
  return good;
}

static bool is_plain(const char *path) {
  return strlen(path) <= MAX_BASE && path[strspn(path, PLAIN)] == '\0';
}

/* The database user is the system user, known by its socket. A user without
** a name gets the account root; only the owner can enter the home. */
static void find_user(place *p) {
  char space[2048];
  struct passwd entry;
  struct passwd *found = NULL;
  getpwuid_r(geteuid(), &entry, space, sizeof space, &found);
  p->by_socket = found != NULL && strlen(entry.pw_name) < sizeof p->user &&
                 is_plain(entry.pw_name);
  snprintf(p->user, sizeof p->user, "%.63s",
           p->by_socket ? entry.pw_name : "root");
}

/* ------------------------------------------------- base: plain and short */

/* Whether 'path' leads to our home, by whatever way. */
static bool leads_home(const place *p, const char *path) {
  struct stat a;
  struct stat b;
  return stat(path, &a) == 0 && fstat(p->home, &b) == 0 &&
         a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* The link of the last start stands in my.cnf, before the socket's name. Only
** a link of make_link will do, for the guardian removes it. */
static bool recall_link(place *p) {
  static const char key[] = "\nsocket=";
  char text[2048];
  char *at;
  char *end;
  read_file(p->home, "my.cnf", 0, text, sizeof text);
  if ((at = strstr(text, key)) == NULL)
    return false;
  at += sizeof key - 1;
  end = strstr(at, "/home/s.sock\n");
  if (end == NULL || (size_t)(end - at) > MAX_BASE - sizeof "/home")
    return false;
  *end = '\0';
  if ((end = strrchr(at, '/')) == NULL || strncmp(end, "/nightshift-", 12) != 0)
    return false;
  snprintf(p->folder, sizeof p->folder, "%s", at);
  snprintf(p->base, sizeof p->base, "%.94s/home", at);
  return leads_home(p, p->base);
}

/* /tmp/nightshift-XXXXXX/home -> the real path; only we may enter. */
static bool make_link(place *p, const char *under) {
  int n = snprintf(p->folder, sizeof p->folder, "%s/nightshift-XXXXXX", under);
  if (n < 0 || (size_t)n > MAX_BASE - sizeof "/home" || !is_plain(p->folder) ||
      mkdtemp(p->folder) == NULL)
    return false;
  snprintf(p->base, sizeof p->base, "%.94s/home", p->folder);
  return symlink(p->real, p->base) == 0;
}

static ns_status find_base(place *p, ns_err *err) {
  const char *runtime = getenv("XDG_RUNTIME_DIR");
  if (is_plain(p->real)) {
    memcpy(p->base, p->real, strlen(p->real) + 1);
    return NS_OK;
  }
  if (recall_link(p))
    return NS_OK;
  if (make_link(p, "/tmp") || (runtime != NULL && make_link(p, runtime)))
    return write_settings(p) ? NS_OK : no_home(p, "write in", err);
  return ns_fail(err, NS_EDENIED,
                 "private server: the path of %s is longer than %d bytes or "
                 "has unusual characters, and a short link to it in /tmp "
                 "cannot be made: %s",
                 p->shown, MAX_BASE, strerror(errno));
}

/* -------------------------------------------------------------- programs */

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

/* What 'mariadbd --version' prints; "" when it fails. */
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
static ns_status check_version(const place *p, char *mariadbd, ns_err *err) {
  char now[256];
  char then[256];
  ask_version(mariadbd, now, sizeof now);
  read_file(p->home, "version", 0, then, sizeof then);
  if (exists(p->home, "data") && series(then) != 0) {
    if (series(now) == 0 || series(now) == series(then))
      return NS_OK;
    return ns_fail(err, NS_ESERVER,
                   "private server: %s was made by MariaDB %d.%d, installed "
                   "is %d.%d; install that one again, or remove the folder "
                   "and with it its jobs",
                   p->shown, series(then) / 100, series(then) % 100,
                   series(now) / 100, series(now) % 100);
  }
  if (!write_file(p->home, "version", ns_str(now)))
    return no_home(p, "write in", err);
  return NS_OK;
}

/* ---------------------------------------------------------------- start */

static void note_log(place *p) {
  struct stat st;
  p->log_from = 0;
  if (fstatat(p->home, "server.log", &st, 0) != 0)
    return;
  p->log_from = st.st_size;
  if (st.st_size > MAX_LOG && unlinkat(p->home, "server.log", 0) == 0)
    p->log_from = 0;
}

/* Adds a line to 'out' as far as there is room. */
static void add_line(char *out, size_t size, const char *line) {
  size_t used = strlen(out);
  snprintf(out + used, size - used, "%s%s", used > 0 ? "; " : "", line);
}

/* What this start wrote into the log: its first errors, which are the causes
** of later ones; without any its last lines. */
static void read_log(const place *p, char *out, size_t size) {
  char text[32768];
  char *lines[3];
  char *rest = text;
  size_t n = 0;
  size_t errors = 0;
  out[0] = '\0';
  read_file(p->home, "server.log", p->log_from, text, sizeof text);
  for (char *line; (line = strtok_r(rest, "\n", &rest)) != NULL;) {
    char *error = strstr(line, "[ERROR]");
    lines[n++ % 3] = line;
    if (error != NULL && errors++ < 3)
      add_line(out, size, error + 8);
  }
  for (size_t i = n > 3 ? n - 3 : 0; i < n && errors == 0; i++)
    add_line(out, size, lines[i % 3]);
}

static ns_status no_start(const place *p, const ns_guard_report *r,
                          ns_err *err) {
  static const char *const stages[] = {"", "setting it up", "installing it",
                                       "mariadbd"};
  char log[260];
  char how[64];
  if (r->stage == NS_GUARD_SETUP)
    return ns_fail(err, NS_EGONE, "private server: setting up %s failed: %s",
                   p->shown, strerror(r->status));
  read_log(p, log, sizeof log);
  if (WIFSIGNALED(r->status))
    snprintf(how, sizeof how, "killed by signal %d", WTERMSIG(r->status));
  else
    snprintf(how, sizeof how, "exit status %d", WEXITSTATUS(r->status));
  return ns_fail(err, NS_EGONE,
                 "private server: %s did not start (%s: %s); its server.log "
                 "says: %s",
                 p->shown, stages[r->stage], how, log);
}

static bool answers(const place *p) {
  char path[MAX_BASE + 8];
  snprintf(path, sizeof path, "%s/s.sock", p->base);
  return ns_guard_answers(path);
}

static ns_status too_late(const place *p, ns_err *err) {
  return ns_fail(err, NS_EGONE,
                 "private server: %s does not answer within %d s; see its "
                 "server.log",
                 p->shown, (int)(PATIENCE / NS_SECOND));
}

/* After a start: until the server answers or the guardian says why not.
** '*again' when another guardian was quicker, or it was killed. */
static ns_status wait_started(const place *p, int pipe, bool *again,
                              ns_err *err) {
  int64_t end = ns_mono_us() + PATIENCE;
  struct pollfd wait = {.fd = pipe, .events = POLLIN};
  while (!answers(p)) {
    ns_guard_report r;
    if (ns_mono_us() > end)
      return too_late(p, err);
    if (poll(&wait, 1, 5) != 1)
      continue;
    *again = read(pipe, &r, sizeof r) != sizeof r ||
             (r.stage == NS_GUARD_SETUP && r.status == EWOULDBLOCK);
    return *again ? ns_fail(err, NS_EGONE,
                            "private server: the guardian of %s was killed",
                            p->shown)
                  : no_start(p, &r, err);
  }
  return NS_OK;
}

/* The lock is free, or held: by a process that lives, or by none. */
static bool is_locked(const place *p, const char *name, int64_t patience) {
  int fd = openat(p->home, name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  bool locked = fd >= 0 && !lock_within(fd, LOCK_EX, patience);
  if (fd >= 0)
    close(fd);
  return locked;
}

/* A guardian runs: until its server answers. '*again' when it ended. */
static ns_status wait_running(const place *p, bool *again, ns_err *err) {
  int64_t end = ns_mono_us() + PATIENCE;
  while (!answers(p)) {
    if (!is_locked(p, "guard.lock", 0)) {
      *again = true;
      return ns_fail(err, NS_EGONE, "private server: %s ended", p->shown);
    }
    if (ns_mono_us() > end)
      return too_late(p, err);
    ns_sleep_us(10000);
  }
  return NS_OK;
}

/* Everything the guardian needs, in one block. */
typedef struct plan {
  ns_guard guard;
  char title[PATH_MAX + 32], path[PATH_MAX + 128];
  char install_db[PATH_MAX], mariadbd[PATH_MAX];
  char defaults[160], datadir[160], owner[128];
} plan;

static void make_plan(const place *p, plan *t) {
  const char *path = getenv("PATH");
  char **env = t->guard.env;
  snprintf(t->title, sizeof t->title, "nightshift-db %s", p->real);
  snprintf(t->path, sizeof t->path, "PATH=%.*s%s/usr/sbin:/usr/bin:/sbin:/bin",
           PATH_MAX, path != NULL ? path : "", path != NULL ? ":" : "");
  snprintf(t->defaults, sizeof t->defaults, "--defaults-file=%s/my.cnf",
           p->base);
  snprintf(t->datadir, sizeof t->datadir, "--datadir=%s/data.new", p->base);
  snprintf(t->owner, sizeof t->owner, "--auth-root-socket-user=%s", p->user);
  t->guard.home = p->home;
  t->guard.title = t->title;
  t->guard.link = p->folder[0] != '\0' ? p->base : NULL;
  t->guard.folder = p->folder;
  *env++ = t->path;
  *env = "LC_ALL=C";
}

static ns_status make_commands(const place *p, plan *t, ns_err *err) {
  char **install = t->guard.install;
  char **serve = t->guard.serve;
  if (find_program("mariadbd", t->mariadbd, sizeof t->mariadbd, err) !=
          NS_OK ||
      find_program("mariadb-install-db", t->install_db, sizeof t->install_db,
                   err) != NS_OK)
    return err->status;
  *install++ = t->install_db;
  *install++ = t->defaults;
  *install++ = t->datadir;
  *install++ = "--skip-test-db";
  *install++ = "--skip-name-resolve";
  *install++ = "--force"; /* even if this host has no name */
  if (p->by_socket) {
    *install++ = "--auth-root-authentication-method=socket";
    *install = t->owner;
  } else
    *install = "--auth-root-authentication-method=normal";
  *serve++ = t->mariadbd;
  *serve++ = t->defaults;
  /* not in my.cnf: the installation would chown parts of the system */
  if (geteuid() == 0)
    *serve = "--user=root";
  return check_version(p, t->mariadbd, err);
}

/* No guardian runs: starts one and waits. */
static ns_status start(place *p, plan *t, bool *again, ns_err *err) {
  ns_status st;
  int pipe;
  if (is_locked(p, "server.lock", PATIENCE))
    return ns_fail(err, NS_EGONE,
                   "private server: a mariadbd whose guardian was killed "
                   "still runs in %s",
                   p->shown);
  make_plan(p, t);
  if (make_commands(p, t, err) != NS_OK)
    return err->status;
  if (!write_settings(p))
    return no_home(p, "write in", err);
  note_log(p);
  if ((pipe = ns_guard_start(&t->guard)) < 0)
    return ns_fail(err, NS_EGONE, "private server: no process for it: %s",
                   strerror(errno));
  st = wait_started(p, pipe, again, err);
  close(pipe);
  if (st == NS_OK)
    fprintf(stderr,
            "nightshift: started a private MariaDB in %s (for development)\n",
            p->shown);
  return st;
}

static ns_status start_or_join(place *p, ns_err *err) {
  ns_status st = NS_EGONE;
  bool again = true;
  plan *t;
  for (int round = 0; again && round < 5; round++) {
    again = false;
    if (is_locked(p, "guard.lock", 0)) {
      st = wait_running(p, &again, err);
      continue;
    }
    if ((t = calloc(1, sizeof *t)) == NULL)
      return ns_fail(err, NS_ENOMEM, "private server: out of memory");
    st = start(p, t, &again, err);
    free(t);
  }
  return st;
}

/* With start.lock held: a share of users.lock, then the server. */
static ns_status enter(place *p, ns_err *err) {
  ns_status st;
  bool shared;
  p->users = openat(p->home, "users.lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (p->users < 0)
    return no_home(p, "write in", err);
  shared = has_share(p->users);
  if (!shared && !lock_within(p->users, LOCK_SH, PATIENCE))
    return ns_fail(err, NS_EGONE,
                   "private server: the server in %s does not end", p->shown);
  if ((st = find_base(p, err)) != NS_OK ||
      (st = start_or_join(p, err)) != NS_OK)
    return st;
  if (!shared) {
    keep_share(p->users);
    p->users = -1; /* not ours to close any more */
  }
  return NS_OK;
}

static ns_status make_url(const place *p, char **url, ns_err *err) {
  ns_buf text = NS_BUF_INIT;
  ns_buf_adds(&text, "mysql://");
  ns_url_encode(&text, p->user);
  ns_buf_adds(&text, "@localhost/nightshift?unix_socket=");
  ns_url_encode(&text, p->base);
  ns_buf_adds(&text, "/s.sock");
  ns_buf_addc(&text, '\0');
  if (text.oom) {
    ns_buf_free(&text);
    return ns_fail(err, NS_ENOMEM, "private server: out of memory");
  }
  *url = text.p;
  return NS_OK;
}

static ns_status enter_alone(place *p, const char *dir, ns_err *err) {
  ns_status st = open_home(p, dir, err);
  if (st != NS_OK || (st = find_real(p, dir, err)) != NS_OK)
    return st;
  p->start = openat(p->home, "start.lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (p->start < 0)
    return no_home(p, "write in", err);
  if (!lock_within(p->start, LOCK_EX, PATIENCE))
    return ns_fail(err, NS_EGONE,
                   "private server: another process has been starting %s for "
                   "%d s",
                   p->shown, (int)(PATIENCE / NS_SECOND));
  find_user(p);
  return enter(p, err);
}

static void close_if_open(int fd) {
  if (fd >= 0)
    close(fd);
}

ns_status ns_private_start(const char *dir, char **url, ns_err *err) {
  char shown[256];
  place *p = calloc(1, sizeof *p);
  ns_status st;
  *url = NULL;
  if (p == NULL)
    return ns_fail(err, NS_ENOMEM, "private server: out of memory");
  snprintf(shown, sizeof shown, "%.200s/.nightshift", dir != NULL ? dir : ".");
  p->shown = shown;
  p->home = p->start = p->users = -1;
  st = enter_alone(p, dir != NULL ? dir : ".", err);
  close_if_open(p->users);
  close_if_open(p->start);
  if (st == NS_OK)
    st = make_url(p, url, err);
  close_if_open(p->home);
  free(p);
  return st;
}
