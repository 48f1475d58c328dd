/*
** Loading the handler scripts: one look a second follows the load, and kills one that is out of
** date. And HUP for other hosts: the signals that another process handles are in its status, in
** hexadecimal masks.
*/
#include "host.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base.h"
#include "ipc/ipc.h"
#include "wake/wake.h"

#define LOAD_FIRST 100000 /* after a zygote's death, doubling */
#define LOAD_LAST (10 * NS_SECOND)
#define LOOK_MS 1000 /* at the scripts that are being read */
#define SLOW_S 5     /* it takes long */
#define SLOW_AGAIN_S 60

void nsh_scripts_open(nsh_scripts *s, uv_loop_t *loop, nsh_family *family) {
  s->family = family;
  uv_timer_init(loop, &s->look);
  s->look.data = s;
}

/* Scripts that are being read when HUP comes may be old, and may never end. The load has a
** second, so that many HUPs in a row do not keep each other from being obeyed. */
static void on_look(uv_timer_t *timer) {
  nsh_scripts *s = timer->data;
  int64_t seconds = (ns_mono_us() - s->since) / NS_SECOND;
  if (s->again) {
    ns_log(NS_LOG_WARN, "load.restart", NS_FIELDS(ns_fi("seconds", seconds)));
    s->dropped = true;
    nsh_zygote_signal(s->loading, SIGKILL);
  } else if (seconds == SLOW_S || (seconds > 0 && seconds % SLOW_AGAIN_S == 0))
    ns_log(NS_LOG_WARN, "load.slow", NS_FIELDS(ns_fi("seconds", seconds)));
}

void nsh_scripts_load(nsh_scripts *s) {
  s->due = 0;
  if (s->loading != NULL) {
    s->again = true;
    return;
  }
  ns_assert(!uv_is_active((uv_handle_t *)&s->look)); /* one generation is read at a time */
  s->again = s->dropped = false;
  s->loading = nsh_family_load(s->family);
  s->since = ns_mono_us();
  if (s->loading != NULL) {
    s->refused = false;
    uv_timer_start(&s->look, on_look, LOOK_MS, LOOK_MS);
    return;
  }
  if (!s->refused)
    ns_log(NS_LOG_ERROR, "reload.refused",
           NS_FIELDS(ns_fs("why", "too many generations are still alive; it is tried "
                                  "again when one has ended")));
  s->refused = true;
  nsh_scripts_load_later(s);
}

void nsh_scripts_over(nsh_scripts *s) {
  s->loading = NULL;
  uv_timer_stop(&s->look);
}

void nsh_scripts_load_later(nsh_scripts *s) {
  if (s->loading != NULL)
    return; /* its end will tell what comes next */
  s->wait = s->wait == 0 ? LOAD_FIRST : s->wait * 2;
  if (s->wait > LOAD_LAST)
    s->wait = LOAD_LAST;
  s->due = ns_mono_us() + s->wait;
}

ns_bytes nsh_scripts_why(char text[160], ns_bytes message, int status) {
  char how[96];
  if (message.p != NULL)
    return message;
  nsh_exit_describe(how, status);
  snprintf(text, 160, "the process that loads the handlers died: %s", how);
  return ns_str(text);
}

/* ------------------------------------------------------------ of other hosts */

/* Is the signal caught, or kept until it is unblocked? */
static bool listens_to_hup(pid_t pid) {
  const unsigned long long bit = 1ULL << (SIGHUP - 1);
  char line[256];
  char name[16];
  unsigned long long mask;
  bool found = false;
  FILE *f;
  snprintf(line, sizeof line, "/proc/%d/status", (int)pid);
  if ((f = fopen(line, "re")) == NULL)
    return false;
  while (!found && fgets(line, sizeof line, f) != NULL)
    found = sscanf(line, "%15[A-Za-z]: %llx", name, &mask) == 2 && (mask & bit) != 0 &&
            (strcmp(name, "SigCgt") == 0 || strcmp(name, "SigBlk") == 0);
  fclose(f);
  return found;
}

static nsh_hup send_to(int handle, pid_t pid) {
  int failed = handle >= 0 ? (int)syscall(SYS_pidfd_send_signal, handle, SIGHUP, NULL, 0)
                           : kill(pid, SIGHUP);
  return failed == 0 ? NSH_HUP_SENT : errno == ESRCH ? NSH_HUP_GONE : NSH_HUP_FAILED;
}

nsh_hup nsh_hup_send(pid_t pid, ns_bytes place, int64_t age) {
  char here[NS_PLACE];
  nsh_hup how;
  int handle;
  int why;
  ns_wake_place(here);
  if (place.n != strlen(here) || memcmp(place.p, here, place.n) != 0)
    return NSH_HUP_AWAY;
  handle = (int)syscall(SYS_pidfd_open, pid, 0); /* not every kernel lets us */
  how = !ns_wake_process_is(pid, age) ? NSH_HUP_GONE
        : !listens_to_hup(pid)        ? NSH_HUP_DEAF
                                      : send_to(handle, pid);
  why = errno;
  if (handle >= 0)
    close(handle);
  errno = why;
  return how;
}
