/*
** HUP for another host of this machine. A process that does not expect that signal dies of
** it, so it is sent to one that is known to be a host only: the kernel's handle on the
** process is taken first, so that its number cannot go to another meanwhile.
*/
#ifndef NSH_HUP_H
#define NSH_HUP_H

#include <stdint.h>
#include <sys/types.h>

#include "buf.h"

typedef enum nsh_hup {
  NSH_HUP_SENT,
  NSH_HUP_AWAY, /* it is not of this place: another machine, or container */
  NSH_HUP_GONE, /* there is no such process any more */
  NSH_HUP_DEAF, /* it does not listen to that signal */
  NSH_HUP_FAILED /* errno says why */
} nsh_hup;

/* 'place': of the host, as ns_wake_place has it; 'age': µs that it has been known for. */
nsh_hup nsh_hup_send(pid_t pid, ns_bytes place, int64_t age);

#endif
