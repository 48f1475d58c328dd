/*
** The processes a host starts: a seed, which forks a keeper, which forks a
** zygote per generation of the scripts, which loads the handlers and forks the
** workers.
**
** Invariants: all of them descend from the host as it was before it had a
** thread, a loop or a connection; seed and keeper stay in that state, so that
** a later generation starts as clean as the first. Each level clears away what
** a dead child leaves: the zygote a worker's process group, the keeper the
** orphans of a zygote, the seed a keeper's whole session. The seed is there
** only so that a job that kills its keeper does not end the host; a keeper
** lives on without it.
*/
#ifndef NSH_PROCESS_ZYGOTE_H
#define NSH_PROCESS_ZYGOTE_H

#include <sys/types.h>

#include "config.h"
#include "ipc/shared_slot.h"

#define NSH_ZYGOTES 32 /* generations that may exist at the same time */

/* Forks the seed; '*ctl' is the host's socket to it, 'bell' the workers' end of
** theirs. Errors: NOMEM. */
ns_status nsh_seed_start(const nsh_config *cfg, nsh_slots *slots, int bell,
                         pid_t *pid, int *ctl, ns_err *err);

#endif
