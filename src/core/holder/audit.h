/*
** Memory of a handle about live jobs that are in no place.
*/
#ifndef NS_HOLDER_AUDIT_H
#define NS_HOLDER_AUDIT_H

#include "handle.h"

/* What is wrong with a job, or with a row. */
typedef enum ns_wrong {
  NS_NOWHERE, /* a job neither ready nor scheduled, waiting or claimed */
  NS_WAITS,   /* one that waits for more than there is, or was told already */
  NS_TWICE,   /* a row of ready of a job that is claimed */
  NS_ROW,     /* a row of ready of no job */
  NS_DUE,     /* a row of scheduled of no job that is due then */
  NS_SIGNAL,  /* a signal to a job that is neither live nor in the history */
  NS_KEY      /* a unique key of no job */
} ns_wrong;

/* Not of a row that a cancel leaves behind, or a job that leaves no history: nobody meets
** it, and that it goes is no news. */
bool ns_is_fault(ns_wrong wrong);

typedef struct ns_stray {
  ns_wrong wrong;
  int64_t id, run;      /* of the job; run 0: a key */
  int64_t unmet;        /* as it was seen */
  int64_t queue_id, rank, ready_at; /* of the row; run_at */
  char *key;            /* or the signal's name; owned; NULL: none */
  size_t nkey;
} ns_stray;

typedef struct ns_strays {
  ns_stray *items;
  size_t n, cap;
} ns_strays;

typedef struct ns_census ns_census;

void ns_census_free(ns_census *c);

/* µs between two looks at the same job. */
ns_status ns_mend_every(ns_db *db, int64_t *every, ns_err *err);

/* Mends what was seen twice; what cannot be mended now is seen again. '*sum' grows.
** Errors: as those of the statements. */
ns_status ns_mend(ns_db *db, const ns_stray *list, size_t n, ns_mended *sum,
                  ns_err *err);

#endif
