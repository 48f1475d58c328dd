/*
** The folder of a private server. Files are replaced as a whole, and named
** relative to the folder's descriptor, so that no path is ever too long.
*/
#include "private.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "link/link.h"

#define MAX_REAL 400    /* bytes; mariadbd has 512 for a path of its own */
#define MAX_LOG 1048576 /* bytes */
#define PLAIN                                                                  \
  "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/"

ns_status ns_home_fail(const ns_home *h, const char *what, ns_err *err) {
  bool denied = errno == EACCES || errno == EPERM || errno == EROFS;
  return ns_fail(err, denied ? NS_EDENIED : NS_EGONE,
                 "private server: cannot %s %s: %s", what, h->shown,
                 strerror(errno));
}

bool ns_home_write(const ns_home *h, const char *name, ns_bytes text) {
  char temporary[64];
  bool good;
  int fd;
  snprintf(temporary, sizeof temporary, "%s.new", name);
  fd = openat(h->dir, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC,
              0600);
  if (fd < 0)
    return false;
  good = write(fd, text.p, text.n) == (ssize_t)text.n;
  return close(fd) == 0 && good &&
         renameat(h->dir, temporary, h->dir, name) == 0;
}

void ns_home_read(const ns_home *h, const char *name, off_t at, char *text,
                  size_t size) {
  int fd = openat(h->dir, name, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd >= 0 ? pread(fd, text, size - 1, at) : -1;
  text[n > 0 ? n : 0] = '\0';
  if (fd >= 0)
    close(fd);
}

bool ns_home_has(const ns_home *h, const char *name) {
  return faccessat(h->dir, name, F_OK, 0) == 0;
}

/* Creates .nightshift in 'dir' when it is not there, and opens it. */
static ns_status open_folder(ns_home *h, const char *dir, ns_err *err) {
  struct stat st;
  int parent = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (parent < 0)
    return ns_home_fail(h, "open the folder of", err);
  if (mkdirat(parent, ".nightshift", 0700) != 0 && errno != EEXIST) {
    close(parent);
    return ns_home_fail(h, "create", err);
  }
  h->dir = openat(parent, ".nightshift", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  close(parent);
  if (h->dir < 0 || fstat(h->dir, &st) != 0)
    return ns_home_fail(h, "open", err);
  if (st.st_uid != geteuid())
    return ns_fail(err, NS_EDENIED,
                   "private server: %s belongs to user %ld, and only that "
                   "user can use it (this is user %ld)",
                   h->shown, (long)st.st_uid, (long)geteuid());
  return NS_OK;
}

static ns_status find_real(ns_home *h, const char *dir, ns_err *err) {
  char path[PATH_MAX];
  int n = snprintf(path, sizeof path, "%s/.nightshift", dir);
  errno = ENAMETOOLONG;
  if (n < 0 || (size_t)n >= sizeof path || realpath(path, h->real) == NULL)
    return ns_home_fail(h, "find the path of", err);
  if (strlen(h->real) > MAX_REAL)
    return ns_fail(err, NS_EINVALID,
                   "private server: the path of %s is %zu bytes long, and a "
                   "MariaDB server cannot use more than %d",
                   h->shown, strlen(h->real), MAX_REAL);
  return NS_OK;
}

static bool is_plain(const char *path) {
  return strlen(path) <= NS_HOME_BASE && path[strspn(path, PLAIN)] == '\0';
}

/* The database user is the system user, known by its socket. A user without
** a name gets the account root; only the owner can enter the home. */
static void find_user(ns_home *h) {
  char space[2048];
  struct passwd entry;
  struct passwd *found = NULL;
  getpwuid_r(geteuid(), &entry, space, sizeof space, &found);
  h->by_socket = found != NULL && strlen(entry.pw_name) < sizeof h->user &&
                 is_plain(entry.pw_name);
  snprintf(h->user, sizeof h->user, "%.63s",
           h->by_socket ? entry.pw_name : "root");
}

ns_status ns_home_open(ns_home *h, const char *dir, ns_err *err) {
  ns_status st;
  memset(h, 0, sizeof *h);
  h->dir = -1;
  snprintf(h->shown, sizeof h->shown, "%.200s/.nightshift", dir);
  if ((st = open_folder(h, dir, err)) == NS_OK)
    st = find_real(h, dir, err);
  find_user(h);
  return st;
}

void ns_home_close(ns_home *h) {
  if (h->dir >= 0)
    close(h->dir);
  h->dir = -1;
}

/* ---------------------------------------------------------- settings */

/* A starting server wipes all temporary tables in its tmpdir, tables of other servers too. So
** it needs a tmpdir of its own. */
ns_status ns_home_settings(const ns_home *h, ns_err *err) {
  ns_buf text = NS_BUF_INIT;
  bool good;
  if (mkdirat(h->dir, "tmp", 0700) != 0 && errno != EEXIST)
    return ns_home_fail(h, "write in", err);
  ns_buf_addf(&text,
              "# Written at each start. `mariadb --defaults-file=THIS` opens "
              "a prompt.\n"
              "[client]\nsocket=%s/s.sock\nuser=%s\n"
              "[mariadb-client]\ndatabase=nightshift\n"
              "[mariadbd]\nsocket=%s/s.sock\ndatadir=%s/data\n"
              "pid-file=%s/server.pid\nlog-error=%s/server.log\n"
              "tmpdir=%s/tmp\n",
              h->base, h->user, h->base, h->base, h->base, h->base, h->base);
  ns_buf_adds(&text, "skip-networking\nskip-name-resolve\nskip-log-bin\n"
                     "performance-schema=OFF\nevent-scheduler=OFF\n"
                     "log-warnings=1\n"
                     "character-set-server=utf8mb4\n"
                     "collation-server=utf8mb4_bin\n"
                     "max-connections=1000\nmax-allowed-packet=64M\n"
                     "thread-cache-size=32\ntable-open-cache=400\n"
                     "innodb-buffer-pool-size=64M\n"
                     "innodb-log-file-size=32M\n"
                     "aria-log-file-size=8M\n"
                     "aria-pagecache-buffer-size=8M\n"
                     "key-buffer-size=1M\n");
  ns_buf_adds(&text, h->fast ? "innodb-flush-log-at-trx-commit=0\nloose-innodb-flush-method=nosync\n"
                               "innodb-doublewrite=OFF\nloose-sync-frm=OFF\n"
                             : "innodb-flush-log-at-trx-commit=1\n");
  good = !text.oom && ns_home_write(h, "my.cnf", ns_buf_bytes(&text));
  ns_buf_free(&text);
  return good ? NS_OK : ns_home_fail(h, "write in", err);
}

/* ------------------------------------------------- base: plain and short */

/* Whether 'path' leads to our home, by whatever way. */
static bool leads_home(const ns_home *h, const char *path) {
  struct stat a;
  struct stat b;
  return stat(path, &a) == 0 && fstat(h->dir, &b) == 0 &&
         a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* The link of the last start stands in my.cnf, before the socket's name. Only
** a link of make_link will do, for the guardian removes it. */
static bool recall_link(ns_home *h) {
  static const char key[] = "\nsocket=";
  struct stat st;
  char text[2048];
  char *at;
  char *end;
  ns_home_read(h, "my.cnf", 0, text, sizeof text);
  if ((at = strstr(text, key)) == NULL)
    return false;
  at += sizeof key - 1;
  end = strstr(at, "/home/s.sock\n");
  if (end == NULL || (size_t)(end - at) > NS_HOME_BASE - sizeof "/home")
    return false;
  *end = '\0';
  if ((end = strrchr(at, '/')) == NULL || strncmp(end, "/nightshift-", 12) != 0)
    return false;
  snprintf(h->folder, sizeof h->folder, "%s", at);
  snprintf(h->base, sizeof h->base, "%.94s/home", at);
  return lstat(h->folder, &st) == 0 && st.st_uid == geteuid() &&
         leads_home(h, h->base);
}

/* /tmp/nightshift-XXXXXX/home -> the real path; only we may enter. */
static bool make_link(ns_home *h, const char *under) {
  int n = snprintf(h->folder, sizeof h->folder, "%s/nightshift-XXXXXX", under);
  if (n < 0 || (size_t)n > NS_HOME_BASE - sizeof "/home" ||
      !is_plain(h->folder) || mkdtemp(h->folder) == NULL)
    return false;
  snprintf(h->base, sizeof h->base, "%.94s/home", h->folder);
  return symlink(h->real, h->base) == 0;
}

static ns_status find_base(ns_home *h, ns_err *err) {
  const char *runtime = getenv("XDG_RUNTIME_DIR");
  if (is_plain(h->real)) {
    memcpy(h->base, h->real, strlen(h->real) + 1);
    return NS_OK;
  }
  if (recall_link(h))
    return NS_OK;
  if (make_link(h, "/tmp") || (runtime != NULL && make_link(h, runtime)))
    return ns_home_settings(h, err);
  return ns_fail(err, NS_EDENIED,
                 "private server: the path of %s is longer than %d bytes or "
                 "has unusual characters, and a short link to it in /tmp "
                 "cannot be made: %s",
                 h->shown, NS_HOME_BASE, strerror(errno));
}

ns_status ns_home_prepare(ns_home *h, ns_err *err) {
  if (!ns_home_has(h, ".gitignore") &&
      !ns_home_write(h, ".gitignore", ns_str("*\n")))
    return ns_home_fail(h, "write in", err);
  return find_base(h, err);
}

/* --------------------------------------------------------------- log, URL */

void ns_home_note_log(ns_home *h) {
  struct stat st;
  h->log_from = 0;
  if (fstatat(h->dir, "server.log", &st, 0) != 0)
    return;
  h->log_from = st.st_size;
  if (st.st_size > MAX_LOG && unlinkat(h->dir, "server.log", 0) == 0)
    h->log_from = 0;
}

/* Adds a line to 'out' as far as there is room. */
static void add_line(char *out, size_t size, const char *line) {
  size_t used = strlen(out);
  snprintf(out + used, size - used, "%s%s", used > 0 ? "; " : "", line);
}

void ns_home_read_log(const ns_home *h, char *out, size_t size) {
  char text[32768];
  char *lines[3];
  char *rest = text;
  size_t n = 0;
  size_t errors = 0;
  out[0] = '\0';
  ns_home_read(h, "server.log", h->log_from, text, sizeof text);
  for (char *line; (line = strtok_r(rest, "\n", &rest)) != NULL;) {
    char *error = strstr(line, "[ERROR]");
    lines[n++ % 3] = line;
    if (error != NULL && errors++ < 3)
      add_line(out, size, error + strspn(error, "[ERROR] "));
  }
  for (size_t i = n > 3 ? n - 3 : 0; i < n && errors == 0; i++)
    add_line(out, size, lines[i % 3]);
}

ns_status ns_home_url(const ns_home *h, char **url, ns_err *err) {
  ns_buf text = NS_BUF_INIT;
  ns_buf_adds(&text, "mysql://");
  ns_url_encode(&text, h->user);
  ns_buf_adds(&text, "@localhost/nightshift?unix_socket=");
  ns_url_encode(&text, h->base);
  ns_buf_adds(&text, "/s.sock");
  ns_buf_addc(&text, '\0');
  if (text.oom) {
    ns_buf_free(&text);
    return ns_fail(err, NS_ENOMEM, "private server: out of memory");
  }
  *url = text.p;
  return NS_OK;
}
