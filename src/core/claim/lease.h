/*
** The batches a handle holds: which jobs of each are still unsettled, so that
** the lease row can be deleted with its last verdict. Pure memory.
*/
#ifndef NS_CLAIM_LEASE_H
#define NS_CLAIM_LEASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nightshift.h"

typedef struct ns_claimed {
  int64_t id, run;
  bool settled;
  bool shown; /* has a row in running */
  int64_t heard; /* when the signal it was given was sent; 0: none */
  bool child;    /* read, and somebody's child */
  bool plain;    /* read, and without a unique key or a signal: when it is done
                 ** only its row moves */
} ns_claimed;

typedef struct ns_lease {
  int64_t id;
  ns_claimed *jobs; /* sorted by (id, run); old runs may be among them */
  size_t n, open;   /* how many, how many unsettled */
  int64_t span;     /* µs it lasts untouched; 0: as long as its holder */
  bool alone;       /* its one job was lost with holders before */
} ns_lease;

typedef struct ns_leases {
  ns_lease *items;
  size_t n, cap;
} ns_leases;

void ns_leases_free(ns_leases *l);

/* Is there no claim in them that waits for its verdict? */
bool ns_leases_settled(const ns_leases *l);

/* Adds a batch; copies 'jobs'. False: out of memory. */
bool ns_leases_add(ns_leases *l, int64_t id, const ns_claimed *jobs, size_t n);

/* A batch by its id; NULL when there is none. */
ns_lease *ns_leases_batch(ns_leases *l, int64_t lease);

/* Is a job held that has to be claimed alone? */
bool ns_leases_alone(const ns_leases *l);

/* An unsettled claim of a batch; NULL when there is none. */
ns_claimed *ns_leases_find(ns_leases *l, int64_t lease, int64_t id, int64_t run);

/* The same in whichever batch, which '*batch' (may be NULL) gets. */
ns_claimed *ns_leases_find_any(ns_leases *l, int64_t id, int64_t run,
                               ns_lease **batch);

/* Marks a claim settled. True when it was its batch's last one: then the
** caller deletes the row and calls ns_leases_drop. */
bool ns_leases_settle(ns_leases *l, int64_t lease, int64_t id, int64_t run);
void ns_leases_drop(ns_leases *l, int64_t lease);

/* How many tokens, of 'n' > 0, make the stretch that begins with the first: ids in
** a row, of the same run. A range of a key is read, and deleted, in a third of the
** time that so many single keys take. */
#define NS_STRETCH_LEAST 8 /* a shorter one is not worth a statement */
size_t ns_stretch(const ns_token *tokens, size_t n);

/* Deletes the row of a batch of ours. */
ns_status ns_lease_delete(ns_db *db, const ns_lease *b, ns_err *err);

#endif
