/*
** Shared declarations of the files of admin/: one job from outside, its row locked.
*/
#ifndef NS_ADMIN_ADMIN_H
#define NS_ADMIN_ADMIN_H

#include "db/db.h"
#include "handle.h"
#include "nightshift_admin.h"

/* A live job's row, locked. */
typedef struct ns_live {
  bool found;
  bool paused;
  bool awaits; /* parked for a signal */
  int64_t queue_id, rank, run, unmet, due, now, kind;
  int64_t parent, deadline; /* 0: none */
  int64_t attempts, max_attempts;
  ns_buf key; /* its unique key; empty: none */
} ns_live;

/* A finished job's row, locked. 'outcome' is empty when there is none. */
typedef struct ns_past {
  char outcome[16];
  int64_t run, queue_id, priority, kind;
  int64_t parent; /* 0: none */
  ns_buf key;
} ns_past;

/* The state of one verb on one job. */
typedef struct ns_admin_work {
  const char *verb; /* for the audit, */
  ns_bytes detail;  /* with what else it is to have; may be absent */
  int64_t id;
  int64_t rank; /* its new one */
  ns_bytes reason;
  ns_live now;
  ns_past then;
  bool noticed; /* its holder is to be told */
  void *arg;    /* of the verb */
} ns_admin_work;

/* ------------------------------------------------ retention: retention.c */

#define NS_OUTCOMES 3 /* done, dead, cancelled */
#define NS_PAST_PAGE 10000 /* rows of the history that are looked at in one go */

/* How long ended jobs of one outcome and queue are kept. */
typedef struct ns_keep {
  int64_t queue_id; /* 0: of all queues that have no rule of their own */
  int64_t age;      /* µs; negative: for ever */
  int64_t most;     /* so many, the newest; negative: all */
  int64_t seen;     /* counted so far */
  ns_past_row cut;  /* the newest that is one too many; id 0: not found */
} ns_keep;

/* The rules of one outcome, by queue; the first is that of the others. */
typedef struct ns_keeps {
  ns_keep *items; /* owned */
  size_t n, cap;
  ns_past_row at; /* how far the rows are counted, from the newest down */
  bool counted;   /* every cut is found that there is */
} ns_keeps;

typedef struct ns_retention {
  ns_keeps of[NS_OUTCOMES];
  ns_buf text; /* the rules, to tell others from them */
} ns_retention;

extern const char *const ns_admin_outcomes[NS_OUTCOMES];

/* '*keep': ages that the caller gives, by outcome, and rules where that is NS_KEEP_BY_RULE. With
** 'bounded' and rules alone it stays with the handle, so that counting goes on where it was; else
** it is 'own'. Errors: GONE, DENIED, NOMEM. */
ns_status ns_admin_rules_take(ns_db *db, const int64_t *given, bool bounded, ns_retention *own,
                              ns_retention **keep, ns_err *err);
void ns_admin_rules_free(ns_retention *r);

/* Is it one age for all queues? */
bool ns_admin_rules_is_plain(const ns_keeps *k);

/* Does a row go? 'age': µs since its end. */
bool ns_admin_rules_goes(const ns_keeps *k, int64_t queue_id, int64_t age, ns_past_row row);

/* A row that goes is older than '*age', or no newer than '*cut'. */
void ns_admin_rules_bounds(const ns_keeps *k, int64_t *age, int64_t *cut);

/* Counts the next page of rows. Errors: GONE, NOMEM. */
ns_status ns_admin_rules_count(ns_db *db, const char *outcome, ns_keeps *k, ns_err *err);

/* From here on the cuts are looked for again. */
void ns_admin_rules_recount(ns_keeps *k);

/* Each waits for the row's lock. Errors: GONE, BUSY, NOMEM. */
ns_status ns_admin_lock_live(ns_db *db, int64_t id, ns_live *l, ns_err *err);
ns_status ns_admin_lock_past(ns_db *db, int64_t id, ns_past *p, ns_err *err);

/* Takes the row of w->now out of scheduled or ready: then no claim has it, or will. When there
** is none it is claimed, maybe since a moment ago. Waits for a session that claims or promotes
** it; a claim waits for no lock. Errors: GONE, BUSY. */
ns_status ns_admin_take(ns_db *db, const ns_admin_work *w, bool *taken, ns_err *err);

/* Puts the job of w->now where it waits, under its next run; the row of this run is stale.
** Errors: GONE, BUSY. */
ns_status ns_admin_queue_again(ns_db *db, const ns_admin_work *w, ns_err *err);

/* No live row: STATE, or NOT_FOUND. */
ns_status ns_admin_ended(ns_db *db, ns_admin_work *w, ns_err *err);

/* Deletes rows of the audit that are too old, or too many. Errors: GONE, BUSY, DENIED. */
ns_status ns_admin_audit_prune(ns_db *db, ns_err *err);

/* Runs a verb in a transaction, as an action of people, frees the keys, and rings after the
** commit. */
ns_status ns_admin_run(ns_db *db, ns_admin_work *w, ns_status (*run)(ns_db *, ns_tx *, ns_err *),
                       ns_err *err);

#endif
