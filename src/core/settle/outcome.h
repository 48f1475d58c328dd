/*
** Outcomes: what becomes of jobs with runs that have verdicts; and the steps of settling a batch
** of them.
*/
#ifndef NS_SETTLE_OUTCOME_H
#define NS_SETTLE_OUTCOME_H

#include "clock.h"
#include "handle.h"

#define NS_DELAY_MAX (INT64_C(3155760000) * NS_SECOND) /* as of a push */

/* The server's row of a job, and the outcome of its run. */
typedef struct ns_outcome {
  ns_verdict *v;
  int64_t queue_id, rank, kind, attempts, polls, crashes, lost, missed, missing_since;
  int64_t max_attempts, max_polls, max_crashes, backoff, deadline, root, paused, now;
  int64_t phases;      /* waits since the push or the last signal, this one included */
  int64_t max_phases;  /* of them, as its push has said; -1: it has not; 0: no limit */
  int64_t decay;       /* of its priority, with each return that sinks it */
  char *key;           /* its unique key, owned; NULL: none */
  size_t keylen;
  bool plain;          /* done, and nothing else to be written: see ns_settle_fast_acks */
  bool gone;           /* so settled; nothing else is known */
  bool locked;
  bool ends;           /* else it returns at 'due', or: */
  bool parks;          /* it waits for its children: */
  bool keeps;          /* it returns at once, to the place that it had */
  bool rowless;        /* another program has the row that it stands for: it is cancelled */
  bool has_dependents; /* earlier children, or jobs that wait for this one */
  bool waited, waits;  /* a job waits for it; a child of it waits */
  int64_t live, held;  /* children; those of them that wait for its end */
  const char *outcome, *reason;
  const char *attempt; /* kind of the attempt row; NULL: none */
  char why[200];       /* the error of an end that is not the holder's; empty */
  int64_t due;         /* at first: as it was before this run */
} ns_outcome;

/* Fills in what becomes of it; 'v' and what the server knows are there. */
void ns_settle_decide(ns_outcome *f);

/* It ends; the texts outlive it. 'reason' may be NULL. */
void ns_settle_end(ns_outcome *f, const char *outcome, const char *reason);

/* Nothing is written of it in this batch: its verdict is BUSY. */
void ns_settle_put_off(ns_outcome *f);

/* ------------------------------------------------ plain acks: fast_ack.c */

/*
** Settles those of 'outcomes', sorted by token, that are plain acks (no children, no
** unique key, no signal) and that no other transaction holds: their status is OK. They are moved
** behind the rest; '*rest': how many are left, in their order.
** Errors: GONE, NOMEM, SQL.
*/
ns_status ns_settle_fast_acks(ns_db *db, ns_outcome *outcomes, size_t n, size_t *rest, ns_err *err);

/* ------------------------------------------------ jobs that wait: park.c */

/* Counts a wait, which ends a job that has waited too often since it was pushed or
** given a signal. */
void ns_settle_park_bound(ns_db *db, ns_outcome *f);

/* Before anything is written: a parent of a child that another transaction is ending, or that
** might close a circle beside another, is put off. */
ns_status ns_settle_park_lock(ns_db *db, ns_outcome *outcomes, size_t n, ns_err *err);

/* Writes those that wait; one with a failed child ends instead. After the
** children of this batch have been written. */
ns_status ns_settle_park(ns_db *db, ns_outcome *outcomes, size_t n, ns_err *err);

/* A run that was given a signal, and went on, needs it no more; who has ended
** needs none. */
ns_status ns_settle_signals_forget(ns_db *db, const ns_outcome *outcomes, size_t n, ns_err *err);

/* -------------------------------------------------- children: children.c */

/* Parents with verdicts that are to park them, locked, sorted by id; borrowed. Those
** that are put off, or end, stay among them and are passed over. */
typedef struct ns_parents {
  ns_outcome **items;
  size_t n;
} ns_parents;

/*
** Before anything is written: locks their live children. A parent is put off while
** another transaction is ending one of them, or holds one that is to be let go; or while
** another transaction has the turn of those that might close a circle.
** Waits for no lock. Errors: GONE, NOMEM.
*/
ns_status ns_settle_children_lock(ns_db *db, const ns_parents *p, ns_err *err);

/* After the children of this batch have been written. Ends parents with a child that has failed
** since
** their run was claimed. Errors: GONE, NOMEM. */
ns_status ns_settle_children_failed(ns_db *db, const ns_parents *p, ns_err *err);

/* Has them wait for their live children, which are locked or new, and lets go those
** that wait for their parent's end: children of runs that said "again"; they and the
** parent would wait for each other for ever. 'live' of each says how many there are.
** Errors: INVALID (one waits for something that waits for the parent), GONE, NOMEM. */
ns_status ns_settle_children_wait(ns_db *db, const ns_parents *p, ns_err *err);

/* Writes the children that the verdicts bring. A parent with a child that is to wait for
** a locked job is put off. Errors: INVALID, TOO_BIG, DUPLICATE, GONE, NOMEM. */
ns_status ns_settle_children_write(ns_db *db, ns_outcome *outcomes, size_t n, ns_err *err);

#endif
