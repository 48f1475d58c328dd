/*
** Settling a batch of verdicts on an open transaction.
*/
#ifndef NS_SETTLE_SETTLE_H
#define NS_SETTLE_SETTLE_H

#include "base.h"
#include "claim/claim.h"
#include "finish/finish.h"
#include "nightshift_host.h"

/* Writes the verdicts and their children; each gets its status: OK, STALE, or BUSY when another
** transaction holds its row. The BEGIN of the transaction may still be on its way: see
** ns_db_begun. Errors: failures of the whole batch. */
ns_status ns_settle_batch(ns_db *db, ns_verdict *v, size_t n, ns_err *err);

/* May this verdict, alone, be written in one statement (ns_settle_one)? It is the ack of a program's
** job that leaves nothing else behind but its unique key, or the row of an adopted table. */
bool ns_settle_one_open(ns_db *db, const ns_verdict *v);

/* Writes it and commits: it is OK. 'cycle': the number for the holder's row. '*cut': it may have
** been written all the same; else what fails is to be settled with all that it takes. Errors: those
** of the statement; GONE. */
ns_status ns_settle_one(ns_db *db, ns_verdict *v, int64_t cycle, bool *cut, ns_err *err);

/* The same in the caller's transaction, which goes on. Not '*written': nothing is, and it is to be
** settled with all that it takes. Errors: those of the statement; GONE. */
ns_status ns_settle_one_joined(ns_db *db, ns_verdict *v, bool *written, ns_err *err);

/* After the commit: claims are forgotten in memory. */
void ns_settle_done(ns_db *db, const ns_verdict *v, size_t n);

/* Turns a verdict that the server refuses into a failure of its job. 'text'
** must outlive the verdict. */
void ns_settle_refuse(ns_verdict *v, const char *text);

/* Verdicts of a cycle that was cut at its commit and could not be asked about. */
typedef struct ns_settle_in_doubt {
  ns_verdict *items; /* tokens and statuses only; no bytes */
  size_t n, cap;
  size_t written;        /* the first ones are known to be written; their caller got GONE, and will
                         ** ask again */
  int64_t holder, cycle; /* the cycle that sent them, and its holder */
} ns_settle_in_doubt;

/* A handle's state of its verdicts: db->settle. */
typedef struct ns_settle_state {
  ns_settle_in_doubt doubt;
  ns_verdict *joined; /* written in the caller's transaction; owned */
  size_t njoined, capjoined;
  bool forgets;   /* done jobs without a parent leave no history */
  int64_t blamed; /* another holder: its claims are being settled; 0 */
  unsigned rest;  /* acks that are not tried in one statement, */
  unsigned back_off; /* and how many there were after the last failure */
} ns_settle_state;

/* --------------------- between the files of settle/: outcome.c and its steps */

/*
** Outcomes of runs that have verdicts, and the steps of settling a batch of them.
*/
#define NS_DELAY_MAX (INT64_C(3155760000) * NS_SECOND) /* as of a push */

/* The server's row of a job, and the outcome of its run. */
typedef struct ns_outcome {
  ns_verdict *v;
  int64_t queue_id, rank, kind, attempts, polls, crashes, lost, missed, missing_since;
  int64_t max_attempts, max_polls, max_crashes, backoff, deadline, root, paused, now;
  int64_t phases;      /* waits since the push or the last signal, this one included */
  int64_t max_phases;  /* of them, as its push has said; -1: it has not; 0: no limit */
  bool tagged;         /* the job may have tags */
  int64_t decay;       /* of its priority, with each return that sinks it */
  char *key;           /* its unique key, owned; NULL: none */
  size_t keylen;
  ns_key_row key_row;  /* ... when it is done */
  bool plain;          /* done, and nothing else to be written: see ns_settle_fast_acks */
  bool gone;           /* so settled; nothing else is known */
  bool locked;
  bool ends;           /* else it returns at 'due', or: */
  bool parks;          /* it waits for its children: */
  bool keeps;          /* it returns at once, to the place that it had */
  bool rowless;        /* another program has the row that it stands for: it is cancelled */
  bool has_dependents; /* earlier children, or jobs that wait for this one */
  bool waited, waits;  /* a job waits for it; a child of it waits */
  int64_t live, held;  /* children; 'held': children that wait for its end */
  const char *outcome, *reason;
  const char *attempt; /* kind of the attempt row; NULL: none */
  char why[200];       /* the error of an end that is not the holder's; empty */
  int64_t due;         /* at first: as it was before this run */
} ns_outcome;

/* Decides the outcome; 'v' and the server's facts are filled in. */
void ns_settle_decide(ns_outcome *f);

/* The job ends; the texts are constants. 'reason' may be NULL, unless the job is dead. */
void ns_settle_end(ns_outcome *f, const char *outcome, const char *reason);

/* Is what the run has printed kept? It is done, or has said "not yet", and its job leaves a row of
** history. */
bool ns_settle_keeps_output(const ns_db *db, const ns_outcome *f);

/* Counts what a verdict that is written has done in its job's queue. The end of a job that is not
** 'gone' is left out: ns_finish counts it. 'c': the claim; NULL: it is not ours. */
void ns_settle_count(ns_db *db, const ns_outcome *f, const ns_claimed *c);

/* --------------------------------- what a run leaves behind: outcome.c */

/* Is it written, or too late to be? */
bool ns_settle_is_over(const ns_verdict *v);

/* Ends what the runs show of themselves, their places under limits, and their counts. */
ns_status ns_settle_leave_runs(ns_db *db, const ns_outcome *outcomes, size_t n, ns_err *err);

/* Deletes leases with all claims settled; in the caller's transaction, none yet. */
ns_status ns_settle_delete_leases(ns_db *db, const ns_outcome *outcomes, size_t n, ns_err *err);

/* Nothing is written of it in this batch: its verdict is BUSY. */
void ns_settle_put_off(ns_outcome *f);

/* ------------------------------------------------ plain acks: fast_ack.c */

/*
** Settles the plain acks of 'outcomes', sorted by token, that no other transaction holds: their
** status is OK. A plain ack has no children, no unique key and no signal. They are moved behind
** the rest; '*rest': the number of the rest, in their order. Errors: GONE, NOMEM, SQL.
*/
ns_status ns_settle_fast_acks(ns_db *db, ns_outcome *outcomes, size_t n, size_t *rest, ns_err *err);

/* ------------------------------------------------ jobs that wait: park.c */

/* Counts a wait, which ends a job that has waited too often since it was pushed or
** given a signal. */
void ns_settle_park_bound(ns_db *db, ns_outcome *f);

/* Before anything is written: a parent of a child that another transaction is ending, or that
** might close a circle beside another, is put off. */
ns_status ns_settle_park_lock(ns_db *db, ns_outcome *outcomes, size_t n, ns_err *err);

/* Writes the parents and jobs that park; one with a failed child ends instead. Runs after the
** children of this batch have been written. */
ns_status ns_settle_park(ns_db *db, ns_outcome *outcomes, size_t n, ns_err *err);

/* Deletes used signals: a run that was given a signal, and went on, needs it no more; neither
** does an ended job. */
ns_status ns_settle_signals_forget(ns_db *db, const ns_outcome *outcomes, size_t n, ns_err *err);

/* -------------------------------------------------- children: children.c */

/* Parents with verdicts that are to park them, locked, sorted by id; borrowed. Parents that are
** put off, or end, stay among them and are passed over. */
typedef struct ns_parents {
  ns_outcome **items;
  size_t n;
} ns_parents;

/*
** Locks the live children of the parents, before anything is written. A parent is put off while
** another transaction is ending one of them, or holds one that is to be released. It is put
** off, too, while another transaction has the turn of parents that might close a circle. Waits
** for no lock. Errors: GONE, NOMEM.
*/
ns_status ns_settle_children_lock(ns_db *db, const ns_parents *p, ns_err *err);

/* After the children of this batch have been written. Ends parents with a child that has failed
** since
** their run was claimed. Errors: GONE, NOMEM. */
ns_status ns_settle_children_failed(ns_db *db, const ns_parents *p, ns_err *err);

/* The parents wait for their live children, which are locked or new. Children of runs that said
** "again" may wait for their parent's end. They are released, since they and the parent would
** wait for each other for ever. 'live' of each is their number. Errors: INVALID (a child waits
** for a job that waits for the parent), GONE, NOMEM. */
ns_status ns_settle_children_wait(ns_db *db, const ns_parents *p, ns_err *err);

/* Writes the children that the verdicts bring. A parent with a child that is to wait for
** a locked job is put off. Errors: INVALID, TOO_BIG, DUPLICATE, GONE, NOMEM. */
ns_status ns_settle_children_write(ns_db *db, ns_outcome *outcomes, size_t n, ns_err *err);

#endif
