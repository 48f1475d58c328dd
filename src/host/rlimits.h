/*
** The resources that the machine lets a host have: processes, files, memory. Asked before
** anything is started, so that a limit is named in one message and not met by
** the ten-thousandth worker.
**
** Invariant: a limit that cannot be read is none. (Not asserted: each reader says so by
** itself.)
*/
#ifndef NSH_RLIMITS_H
#define NSH_RLIMITS_H

#include "config.h"

#define NSH_UNLIMITED INT64_MAX

/* The room that is left. */
typedef struct nsh_limits {
  int64_t files;       /* descriptors of one process */
  int64_t user_tasks;  /* processes and threads of the workers' user */
  int64_t group_tasks; /* of our control group and its parents */
  int64_t pids;        /* numbers for processes */
  int64_t tasks;       /* of the kernel */
  int64_t memory;      /* bytes that are available */
  int64_t group_memory; /* bytes, of our control group */
} nsh_limits;

/* Reads them; 'root' is in front of /proc and /sys, "" on a machine. */
void nsh_limits_read(nsh_limits *have, const char *root, const nsh_config *cfg);

/* Do 'workers' workers fit? Errors: INVALID, with the amount needed, the amount there is and
** the limit to raise. */
ns_status nsh_limits_check(const nsh_limits *have, size_t workers, ns_err *err);

/* Raises our own soft limit of processes as far as we may; workers inherit it. */
void nsh_limits_raise(void);

#endif
