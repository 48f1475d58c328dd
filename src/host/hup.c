/*
** What a process does with a signal is in its status, in hexadecimal masks.
*/
#include "hup.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "wake/wake.h"

/* Is the signal caught, or kept until it is unblocked? */
static bool listens(pid_t pid) {
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
        : !listens(pid)               ? NSH_HUP_DEAF
                                      : send_to(handle, pid);
  why = errno;
  if (handle >= 0)
    close(handle);
  errno = why;
  return how;
}
