/*
** The verdicts that are still to be written: those of the cycle under way, and
** those whose row somebody held when they were to be.
**
** Invariant: a verdict leaves only when the database has answered for it. One
** that it refuses is softened until it takes it, so no job stays claimed.
*/
#ifndef NSH_UNSETTLED_H
#define NSH_UNSETTLED_H

#include "nsh_batch.h"

typedef struct nsh_unsettled {
  nsh_batch batch;  /* of this cycle; kept until it succeeds */
  nsh_batch later;  /* those whose row was locked */
  int64_t again_at; /* monotonic µs: time for those; INT64_MAX: there is no need */
} nsh_unsettled;

#define NSH_UNSETTLED_INIT \
  ((nsh_unsettled){NSH_BATCH_INIT, NSH_BATCH_INIT, INT64_MAX})

void nsh_unsettled_free(nsh_unsettled *u);

/* Before a cycle: takes what has come in, which is empty afterwards, unless the
** last cycle has failed and is repeated with the same verdicts. */
void nsh_unsettled_take(nsh_unsettled *u, nsh_batch *fresh);

/* After a cycle that succeeded: logs what became of each; how many are done
** with. The others are for a later cycle. */
size_t nsh_unsettled_sort(nsh_unsettled *u, int64_t now);

#endif
