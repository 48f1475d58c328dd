/*
** How a private server is started: which programs, with which arguments, and whether their
** version fits the data.
*/
#include "private.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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

ns_status ns_plan_make(ns_plan *t, const ns_home *h, ns_err *err) {
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
