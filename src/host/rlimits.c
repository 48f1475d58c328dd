/*
** Limits. Each is a file or a call that tells how much is left. Its row in the table below has
** the amount needed and the place to raise it.
*/
#include "host.h"

#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define SPARE_FILES 64 /* a host's open files, and its handlers' connections */
#define SPARE_TASKS 16 /* threads of the host, seed, keeper, zygotes */
/* A worker that has run small jobs: its own pages, and the kernel's for it. */
#define WORKER_BYTES (INT64_C(400) << 10)

#define CAP_ADMIN 21    /* CAP_SYS_ADMIN and CAP_SYS_RESOURCE: a user with one of them is not
                        ** limited */
#define CAP_RESOURCE 24 /* is not held to a user's number of processes */

/* ---------------------------------------------------------------- reading */

/* The first number of a file; UNLIMITED: it has none ("max"), or is not there. */
static int64_t number_in(const char *path) {
  int64_t n = NSH_UNLIMITED;
  FILE *f = fopen(path, "re");
  if (f == NULL)
    return n;
  if (fscanf(f, "%" SCNd64, &n) != 1 || n < 0)
    n = NSH_UNLIMITED;
  fclose(f);
  return n;
}

static int64_t number_below(const char *root, const char *path) {
  char full[PATH_MAX];
  snprintf(full, sizeof full, "%s%s", root, path);
  return number_in(full);
}

/* The number behind 'key' in a file of lines "key: number". */
static int64_t field_of(const char *root, const char *path, const char *key,
                        int base) {
  char full[PATH_MAX];
  char line[256];
  int64_t n = NSH_UNLIMITED;
  size_t len = strlen(key);
  FILE *f;
  snprintf(full, sizeof full, "%s%s", root, path);
  if ((f = fopen(full, "re")) == NULL)
    return n;
  while (fgets(line, sizeof line, f) != NULL)
    if (strncmp(line, key, len) == 0 && line[len] == ':')
      n = (int64_t)strtoll(line + len + 1, NULL, base);
  fclose(f);
  return n;
}

static int64_t limit_left(int64_t most, int64_t used) {
  return most == NSH_UNLIMITED ? most
         : used == NSH_UNLIMITED || used < 0 ? most
         : most > used                       ? most - used
                                             : 0;
}

/* Threads that exist: "0.1 0.2 0.3 running/all last". */
static int64_t tasks_now(const char *root) {
  char full[PATH_MAX];
  int64_t n = 0;
  FILE *f;
  snprintf(full, sizeof full, "%s/proc/loadavg", root);
  if ((f = fopen(full, "re")) == NULL)
    return 0;
  if (fscanf(f, "%*s %*s %*s %*d/%" SCNd64, &n) != 1)
    n = 0;
  fclose(f);
  return n;
}

/* ---------------------------------------------------------- control groups */

/* The least that a controller's file lets a group and its parents have. */
static int64_t group_left(const char *folder, char *path, const char *most,
                          const char *used) {
  int64_t least = NSH_UNLIMITED;
  for (;;) {
    char file[2 * PATH_MAX];
    int64_t limit;
    char *slash;
    int64_t there;
    snprintf(file, sizeof file, "%s%s/%s", folder, path, most);
    limit = number_in(file);
    snprintf(file, sizeof file, "%s%s/%s", folder, path, used);
    there = limit_left(limit, number_in(file));
    if (there < least)
      least = there;
    if ((slash = strrchr(path, '/')) == NULL)
      return least;
    *slash = '\0';
  }
}

/* Is 'name' among the words of "a,b,c"? An empty list is that of version 2. */
static bool has_controller(const char *list, const char *name) {
  size_t n = strlen(name);
  const char *at = strstr(list, name);
  return *list == '\0' ||
         (at != NULL && (at == list || at[-1] == ',') &&
          (at[n] == '\0' || at[n] == ','));
}

/* Reads one line of /proc/self/cgroup: "7:pids:/path", or "0::/path" of version 2. */
static void read_group(nsh_limits *have, const char *root, char *line) {
  char *list = strchr(line, ':');
  char *path = list != NULL ? strchr(list + 1, ':') : NULL;
  char folder[PATH_MAX];
  char copy[PATH_MAX];
  bool second;
  int64_t n;
  if (path == NULL)
    return;
  list++;
  *path++ = '\0';
  path[strcspn(path, "\n")] = '\0';
  second = *list == '\0';
  if (has_controller(list, "pids")) {
    snprintf(folder, sizeof folder, "%s/sys/fs/cgroup%s", root,
             second ? "" : "/pids");
    snprintf(copy, sizeof copy, "%s", path);
    n = group_left(folder, copy, "pids.max", "pids.current");
    have->group_tasks = n < have->group_tasks ? n : have->group_tasks;
  }
  if (has_controller(list, "memory")) {
    snprintf(folder, sizeof folder, "%s/sys/fs/cgroup%s", root,
             second ? "" : "/memory");
    snprintf(copy, sizeof copy, "%s", path);
    n = group_left(folder, copy, second ? "memory.max" : "memory.limit_in_bytes",
                   second ? "memory.current" : "memory.usage_in_bytes");
    have->group_memory = n < have->group_memory ? n : have->group_memory;
  }
}

static void read_groups(nsh_limits *have, const char *root) {
  char full[PATH_MAX];
  char line[PATH_MAX];
  FILE *f;
  snprintf(full, sizeof full, "%s/proc/self/cgroup", root);
  if ((f = fopen(full, "re")) == NULL)
    return;
  while (fgets(line, sizeof line, f) != NULL)
    read_group(have, root, line);
  fclose(f);
}

/* -------------------------------------------------------------- processes */

static int64_t processes_of(const char *root, uid_t user) {
  char full[PATH_MAX];
  int64_t n = 0;
  const struct dirent *e;
  struct stat st;
  DIR *dir;
  snprintf(full, sizeof full, "%s/proc", root);
  if ((dir = opendir(full)) == NULL)
    return 0;
  while ((e = readdir(dir)) != NULL)
    n += isdigit((unsigned char)e->d_name[0]) &&
         fstatat(dirfd(dir), e->d_name, &st, 0) == 0 && st.st_uid == user;
  closedir(dir);
  return n;
}

static bool is_exempt(const char *root) {
  int64_t caps = field_of(root, "/proc/self/status", "CapEff", 16);
  return caps != NSH_UNLIMITED &&
         (caps & (INT64_C(1) << CAP_ADMIN | INT64_C(1) << CAP_RESOURCE)) != 0;
}

/* A process that takes on another user leaves the exemption behind. */
static int64_t user_tasks(const char *root, const nsh_config *cfg) {
  const struct passwd *p = cfg->user != NULL ? getpwnam(cfg->user) : NULL;
  struct rlimit r;
  if (getrlimit(RLIMIT_NPROC, &r) != 0 || r.rlim_max == RLIM_INFINITY ||
      (cfg->user == NULL && is_exempt(root)))
    return NSH_UNLIMITED;
  return limit_left((int64_t)r.rlim_max, processes_of(root, p != NULL ? p->pw_uid : getuid()));
}

static int64_t open_files(void) {
  struct rlimit r;
  return getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_max == RLIM_INFINITY
             ? NSH_UNLIMITED
             : (int64_t)r.rlim_max;
}

void nsh_limits_read(nsh_limits *have, const char *root,
                     const nsh_config *cfg) {
  int64_t now = tasks_now(root);
  int64_t kib = field_of(root, "/proc/meminfo", "MemAvailable", 10);
  *have = (nsh_limits){.files = open_files(),
                       .user_tasks = user_tasks(root, cfg),
                       .group_tasks = NSH_UNLIMITED,
                       .pids = limit_left(number_below(root, "/proc/sys/kernel/pid_max"), now),
                       .tasks = limit_left(number_below(root, "/proc/sys/kernel/threads-max"), now),
                       .memory = kib == NSH_UNLIMITED ? kib : kib * 1024,
                       .group_memory = NSH_UNLIMITED};
  read_groups(have, root);
}

/* --------------------------------------------------------------- checking */

static ns_status too_few(ns_err *err, size_t workers, int64_t need,
                         const char *what, int64_t have, const char *raise) {
  return ns_fail(err, NS_EINVALID,
                 "%zu workers need %" PRId64 " %s, there %s %" PRId64
                 ": raise %s, or have fewer workers",
                 workers, need, what, have == 1 ? "is" : "are", have, raise);
}

ns_status nsh_limits_check(const nsh_limits *have, size_t workers,
                           ns_err *err) {
  int64_t tasks = (int64_t)workers + SPARE_TASKS;
  int64_t mib = (int64_t)workers * WORKER_BYTES >> 20;
  const struct {
    int64_t need, have;
    const char *what, *raise;
  } rows[] = {
      {SPARE_FILES, have->files, "open files",
       "the limit of open files (ulimit -Hn; LimitNOFILE= of a service)"},
      {tasks, have->user_tasks, "more processes of their user",
       "the user's limit (ulimit -Hu; LimitNPROC= of a service)"},
      {tasks, have->group_tasks, "more processes in this control group",
       "pids.max (TasksMax= of a service, --pids-limit of a container)"},
      {tasks, have->pids, "process numbers", "sysctl kernel.pid_max"},
      {tasks, have->tasks, "more threads", "sysctl kernel.threads-max"},
      {mib, have->memory >> 20, "MiB of memory", "what is free of it"},
      {mib, have->group_memory >> 20, "MiB of memory in this control group",
       "memory.max (MemoryMax= of a service, --memory of a container)"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
    if (rows[i].have < rows[i].need)
      return too_few(err, workers, rows[i].need, rows[i].what, rows[i].have,
                     rows[i].raise);
  return NS_OK;
}

void nsh_limits_raise(void) {
  struct rlimit r;
  if (getrlimit(RLIMIT_NPROC, &r) != 0)
    return;
  r.rlim_cur = r.rlim_max;
  setrlimit(RLIMIT_NPROC, &r);
}
