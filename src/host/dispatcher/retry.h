/*
** The verdicts that are still to be written: those of the cycle under way, those whose
** row somebody held when they were to be, and those whose children are too many for it.
**
** Invariant: a verdict leaves only when the database has answered for it. One
** that it refuses is softened until it takes it, so no job stays claimed. What those of
** one cycle write has a bound, whatever comes in: others' jobs wait for its end.
*/
#ifndef NSH_DISPATCHER_RETRY_H
#define NSH_DISPATCHER_RETRY_H

#include "dispatcher/batch.h"

typedef struct nsh_retry {
  nsh_batch batch;  /* of this cycle; kept until it says something of one */
  nsh_batch broods; /* those with children; each comes into 'batch' in its turn, and its … */
  size_t nturns;    /* … bytes stay here until all of these have had theirs */
  size_t children;  /* of those in 'batch' … */
  size_t most;      /* … and how many there may be, but for the last one */
  nsh_batch later;  /* those whose row was locked */
  nsh_batch ill;    /* those that met the server's own trouble */
  int64_t ill_at;   /* monotonic µs: when they are tried again */
  int64_t ill_wait; /* µs: how long they wait; grows; 0: they have none */
  int64_t again_at; /* monotonic µs: time for some; INT64_MAX: there is no need */
} nsh_retry;

#define NSH_RETRY_INIT                                                                             \
  ((nsh_retry){.batch = NSH_BATCH_INIT,                                                            \
               .broods = NSH_BATCH_INIT,                                                           \
               .later = NSH_BATCH_INIT,                                                            \
               .ill = NSH_BATCH_INIT,                                                              \
               .most = 500,                                                                        \
               .again_at = INT64_MAX})

void nsh_retry_free(nsh_retry *u);

/* Before a cycle: takes what has come in, which is empty afterwards, unless the
** last cycle has failed and is repeated with the same verdicts. Of 'broods' (may be NULL),
** those with children, some come into this cycle; how many. */
size_t nsh_retry_take(nsh_retry *u, nsh_batch *fresh, nsh_batch *broods, int64_t now);

/* How long the cycle took: as many children may come into the next as are soon written. */
void nsh_retry_took(nsh_retry *u, int64_t micros);

/* How many wait for a cycle because of their children. */
size_t nsh_retry_waiting(const nsh_retry *u);

/* After a cycle: logs what became of each; how many are done with. The others are for
** a later cycle. 'trouble': the server's, with those it had trouble with. */
size_t nsh_retry_sort(nsh_retry *u, const ns_err *trouble, int64_t now);

/* The same after one that failed; when it says nothing of any, they are kept. */
size_t nsh_retry_failed(nsh_retry *u, const ns_err *trouble, int64_t now);

#endif
