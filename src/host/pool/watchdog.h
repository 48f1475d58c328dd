/*
** The watch over the table: what no event tells, but time. Jobs over their timeout
** or their memory, jobs stuck behind long ones, signs of life that are due, workers
** that do not start what they have, jobs that nobody is there to start.
**
** Invariant: it runs only while there is a job in the house or a seat to be filled;
** a host that is idle sleeps.
*/
#ifndef NSH_POOL_WATCHDOG_H
#define NSH_POOL_WATCHDOG_H

#include "pool/pool.h"

/* Looks at everybody, and forks where nobody sits. */
void nsh_watch_tick(nsh_pools *t, int64_t now);

/* µs until the next tick or fork is due; -1: nothing to look after. */
int64_t nsh_watch_next(const nsh_pools *t, int64_t now);

#endif
