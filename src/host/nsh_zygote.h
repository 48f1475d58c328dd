/*
** The processes a host starts: a keeper, which forks a zygote per generation
** of the scripts, which loads the handlers and forks the workers.
**
** Invariant: all of them descend from the host as it was before it had a
** thread, a loop or a connection; the keeper stays in that state, so that a
** later generation starts as clean as the first.
*/
#ifndef NSH_ZYGOTE_H
#define NSH_ZYGOTE_H

#include <sys/types.h>

#include "nsh_config.h"
#include "nsh_slot.h"

#define NSH_ZYGOTES 32 /* generations that may exist at the same time */

/* Forks the keeper; '*ctl' is the host's socket to it. Errors: NOMEM. */
ns_status nsh_keeper_start(const nsh_config *cfg, nsh_slot *slots,
                           pid_t *pid, int *ctl, ns_err *err);

#endif
