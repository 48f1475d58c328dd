/*
** Verdicts on rows of an adopted table that had better be written later, and, with
** --drain, which rows have failed here and since when.
**
** Invariant: 'next_at' is the first of the instants in 'terms', NEVER when there is
** none; 'failed' is sorted by id.
*/
#ifndef NSH_DISPATCHER_DEFERRED_H
#define NSH_DISPATCHER_DEFERRED_H

#include "dispatcher/batch.h"

typedef struct nsh_failed {
  int64_t id;
  int64_t since; /* monotonic µs: its first failure */
} nsh_failed;

typedef struct nsh_term {
  int64_t until; /* monotonic µs */
  bool kept;     /* ... or until the host ends, which need not wait for it */
} nsh_term;

typedef struct nsh_deferred {
  nsh_batch batch; /* those that wait, ... */
  nsh_term *terms; /* ... each so long */
  size_t capterms;
  int64_t next_at;
  nsh_failed *failed;
  size_t nfailed, capfailed;
} nsh_deferred;

#define NSH_DEFERRED_INIT ((nsh_deferred){.batch = NSH_BATCH_INIT, .next_at = INT64_MAX})

/* A copy of 'v' waits. */
void nsh_deferred_hold(nsh_deferred *p, const ns_verdict *v, nsh_term term);

/* Those whose time has come, or all, go to 'out'. */
void nsh_deferred_take(nsh_deferred *p, nsh_batch *out, int64_t now, bool all);

/* When the first is over that is not kept; NEVER: there is none. */
int64_t nsh_deferred_over(const nsh_deferred *p);

/* The row has failed. µs since it did so for the first time. */
int64_t nsh_deferred_failing(nsh_deferred *p, int64_t id, int64_t now);

/* The same of one that has failed before; -1: it has not. */
int64_t nsh_deferred_failed(const nsh_deferred *p, int64_t id, int64_t now);

void nsh_deferred_free(nsh_deferred *p);

#endif
