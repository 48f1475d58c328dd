/*
** A lock between processes that the death of its holder opens.
**
** Invariant: a latch lives in memory that all its users share. Who dies with
** it leaves what it guards half changed, so whoever takes it next repairs that
** first; who dies while repairing leaves the repair to the one after.
*/
#ifndef NS_LATCH_H
#define NS_LATCH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "ns_err.h"

typedef struct ns_latch {
  pthread_mutex_t mutex;
  _Atomic uint32_t taken; /* how often, mod 2^32 */
} ns_latch;

/* False: the system does not offer such locks. */
bool ns_latch_init(ns_latch *l);

/*
** Waits for the latch and takes it. If its last holder died in possession,
** repair(arg) is called first. Not for callers that have it already.
** Errors: BUSY when one holder keeps it for seconds, a stopped process that is.
** A latch that changes hands is waited for, however many want it.
*/
ns_status ns_latch_take(ns_latch *l, void (*repair)(void *), void *arg,
                        ns_err *err);
void ns_latch_drop(ns_latch *l);

/* Takes it if nobody living has it; there is nothing to repair. */
bool ns_latch_try(ns_latch *l);

#endif
