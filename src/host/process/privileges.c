/*
** What a zygote and its workers may not do: gain rights (unless that is allowed), outlive the
** host when memory is short, and, when the host is root, be root. None of them dumps core.
**
** Secrets that came with the command line and the environment. Every user of
** the machine can read the arguments of a process (ps), and its user the
** environment it was started with (/proc/PID/environ): both are overwritten
** in place, and the program goes on with copies of its own. What stood there
** until then can be seen during those first milliseconds.
*/
#include "process/process.h"
#include "process/spawner.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

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

static ns_status become(const char *user, ns_err *err) {
  pid_t parent = getppid();
  const struct passwd *p = getpwnam(user);
  if (p == NULL || initgroups(user, p->pw_gid) != 0 ||
      setgid(p->pw_gid) != 0 || setuid(p->pw_uid) != 0)
    return ns_fail(err, NS_EDENIED, "cannot become the user '%s': %s", user,
                   p == NULL ? "there is none" : strerror(errno));
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
    _exit(0);
  setenv("HOME", p->pw_dir, 1);
  setenv("USER", user, 1);
  setenv("LOGNAME", user, 1);
  return NS_OK;
}

/* One byte is too little for a file. For a program that core_pattern pipes to
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
  return cfg->user != NULL ? become(cfg->user, err) : NS_OK;
}
