/*
** Confining. The order matters: the user comes last, since only root may take
** on another; and a change of user makes the kernel forget that we are to die
** with our parent.
*/
#include "process/privileges.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

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
