/*
** Memory of a handle about live jobs that are in no place.
*/
#ifndef NS_HOLDER_AUDIT_H
#define NS_HOLDER_AUDIT_H

#include "handle.h"

/* The damage of a job, or of a row. */
typedef enum ns_wrong {
  NS_UNPLACED,          /* a job neither ready nor scheduled, waiting or claimed */
  NS_WAITS_TOO_LONG,    /* one that waits for more jobs than there are, or was told already */
  NS_READY_TWICE,       /* a row of ready of a job that is claimed */
  NS_READY_OF_NONE,     /* a row of ready of no job */
  NS_SCHEDULED_OF_NONE, /* a row of scheduled of no job that is due then */
  NS_SIGNAL_OF_NONE,    /* a signal to a job that is neither live nor in the history */
  NS_KEY_OF_NONE        /* a unique key of no job */
} ns_wrong;

/* Rows that a cancel leaves behind are no fault, nor are jobs without history: no verb meets
** them, and their deletion is no news. */
static inline bool ns_holder_is_fault(ns_wrong wrong) {
  return wrong < NS_READY_OF_NONE || wrong == NS_KEY_OF_NONE;
}

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

typedef struct ns_audit ns_audit;

void ns_holder_audit_free(ns_audit *c);

/* µs between two looks at the same job. */
ns_status ns_holder_audit_period(ns_db *db, int64_t *every, ns_err *err);

/* Repairs findings that were seen twice; a finding that cannot be repaired now is seen again.
** '*sum' grows. Errors: as of the statements. */
ns_status ns_holder_repair(ns_db *db, const ns_stray *list, size_t n, ns_audited *sum, ns_err *err);

#endif
