/*
** Holders of claims and locks: our own, and other holders that may be dead.
*/
#ifndef NS_HOLDER_HOLDER_H
#define NS_HOLDER_HOLDER_H

#include <sys/types.h>

#include "nightshift_host.h"

/* ----------------------------------------------------- our own: holder.c */

/* We live, so none of the jobs that we lost has killed us: they lose the blame,
** best effort. Outside transactions; costs nothing when nothing was lost. */
void ns_holder_absolve(ns_db *db);

/* Writes the number of this cycle, inside its transaction. A holder that finds
** itself declared dead says BUSY, to be run again without its claims. */
ns_status ns_holder_cycle(ns_db *db, int64_t number, ns_err *err);

/* A holder's cycle, and the verdicts that it brought: verdicts with OK were to be written. */
typedef struct ns_doubtful {
  int64_t holder, number;
  const ns_verdict *verdicts;
  size_t n;
} ns_doubtful;

/* Deletes past holders that no job of the history is of any more. Errors: GONE, BUSY. */
ns_status ns_holder_past_prune(ns_db *db, ns_err *err);

/* Finds out whether a cycle in doubt was committed. The holder may be this handle's, from
** before it was declared dead. */
ns_status ns_holder_committed(ns_db *db, const ns_doubtful *c, bool *yes, ns_err *err);

/* ------------------------------------------------------ other holders: rescue.c */

/* The findings of earlier looks at a holder; instants are monotonic µs. */
typedef struct ns_suspect {
  int64_t id, beat;
  int64_t beat_since; /* this beat has stood since then */
  int64_t free_since; /* its lock has been free since then; 0: it is not */
  bool ours;          /* we have declared it dead, and give back its claims */
} ns_suspect;

typedef struct ns_suspects {
  ns_suspect *items;
  size_t n, cap;
} ns_suspects;

/* Results of the looks at holders: db->rescue. */
typedef struct ns_rescue_state {
  int64_t look_at;      /* monotonic: an embedded handle's next look */
  int64_t assisted;     /* the holder that we look around for; 0: our own */
  ns_rescued rescued;   /* by the look at opening, not told yet */
  ns_suspects suspects; /* results of earlier looks at other holders */
  ns_token *unknown;    /* claims of ours that the last look did not know; owned */
  size_t nunknown;
  int64_t own_at;           /* monotonic: no look at our own claims before */
  struct ns_audit *audit;   /* of jobs that are in no place; owned; NULL: none yet */
  ns_token *wronged;        /* claims that we lost while we lived, to be absolved; owned */
  size_t nwronged, capwronged;
} ns_rescue_state;

/* For handles that wait: looks at other holders, when it is time. A handle that may not do so,
** or finds the server away, leaves it to other holders. */
void ns_holder_look_around(ns_db *db);

/* Has the next look come when the next lease ends, if that is earlier. */
void ns_holder_look_when_due(ns_db *db);

/* ------------------------------------------ locks and semaphores: slot.c */

/* A slot that is ours, or that is still to be given back. */
typedef struct ns_held {
  int64_t token;
  int64_t slot;
  int64_t job, run; /* its owner; job 0: the holder is */
  int64_t holder;
  ns_bytes name; /* owned */
  bool dropped;  /* to be deleted once the server can be asked */
} ns_held;

typedef struct ns_slots {
  ns_held *items;
  size_t n, cap;
  int64_t job, run; /* the running job, which owns the slots taken; job 0: none */
  bool next;        /* we may own the named lock of the next in line */
  bool suspect;     /* the owner of the slot that we wait for may be dead, and was looked at */
  int64_t look_at;  /* monotonic: look at other holders again */
  pid_t process;    /* a forked child has no slots */
} ns_slots;

/* Deletes rows of owners that are gone. Errors: GONE, BUSY. */
ns_status ns_holder_slots_prune(ns_db *db, ns_err *err);

/* --------------------------------------- jobs in no place: audit.c, repair.c */

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

/* Copies 'x' with its key. False: out of memory. */
bool ns_holder_strays_add(ns_strays *s, const ns_stray *x);
void ns_holder_strays_clear(ns_strays *s);
void ns_holder_strays_free(ns_strays *s);

typedef struct ns_audit ns_audit;

void ns_holder_audit_free(ns_audit *c);

/* µs between two looks at the same job. */
ns_status ns_holder_audit_period(ns_db *db, int64_t *every, ns_err *err);

/* Repairs findings that were seen twice; a finding that cannot be repaired now is seen again.
** '*sum' grows. Errors: as of the statements. */
ns_status ns_holder_repair(ns_db *db, const ns_stray *list, size_t n, ns_audited *sum, ns_err *err);

/* A list of unique keys of jobs that are done, and their deletion, which frees the list: keys
** whose periods are over. Where another transaction holds one of them they stay until the next
** round. Errors: as of the statement. */
void ns_holder_add_key(ns_buf *list, int64_t queue, ns_bytes key);
ns_status ns_holder_free_keys(ns_db *db, ns_buf *list, ns_err *err);

#endif
