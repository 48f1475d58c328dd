/*
** Ending jobs: the one way from a live job to a row of history, shared by verdicts, cancelling
** and failed dependencies. And the jobs that waited for a job that has ended.
*/
#ifndef NS_FINISH_FINISH_H
#define NS_FINISH_FINISH_H

#include "nightshift_host.h"

/* The row of a unique key when the job that was pushed with it ends. FREED: it goes. STAYS: the job
** is done, and the period of its push is not over. LOST: it is another job's by now. */
typedef enum ns_key_row { NS_KEY_FREED, NS_KEY_STAYS, NS_KEY_LOST } ns_key_row;

/* A job that ends on the open transaction, which has locked its row. */
typedef struct ns_end {
  int64_t id, queue_id;
  const char *outcome;  /* "done", "dead", "cancelled" */
  const char *reason;   /* NULL: none */
  ns_bytes result, error;
  int64_t attempts, polls, crashes; /* -1: as the job has them */
  int64_t max_attempts;             /* 0: as the job has them */
  ns_bytes unique;      /* its key; absent: none */
  ns_key_row key_row;   /* ... and its row */
  bool failed;          /* ... by another failure, which its row does not know of */
  bool forgotten;       /* it leaves no history, */
  bool tried;           /* and had earlier runs, which may have left rows, */
  bool tagged;          /* and may leave tags */
  int64_t holder;       /* of the run that it ends with; 0: it did not run */
  int64_t ago, worker;  /* ... µs since its start, 0: not known; as of ns_verdict */
  int64_t lease;        /* ... in place of the holder: the lease, -1: to be looked for; 0: none */
  ns_bytes said;        /* a person's reason, in place of 'reason'; absent: none. A text that is too
                        ** long for that is the error as well */
} ns_end;

/* As much of a person's text as a reason has room for: 255 characters. An empty text is absent. */
ns_bytes ns_finish_reason(ns_bytes text);

int ns_finish_by_id(const void *a, const void *b); /* for qsort and bsearch */

/* Locks the unique keys of jobs that are about to end. 'held' has room for 'n':
** which keys another transaction holds, so that ending their jobs would wait for that.
** Sets 'key_row', as if all of them were done. Waits for no lock. Errors: GONE, NOMEM. */
ns_status ns_finish_keys(ns_db *db, ns_end *ends, size_t n, bool *held, ns_err *err);

/*
** Writes history, frees unique keys, deletes the jobs, and resolves the edges of their
** dependents. A met edge makes a dependent claimable. A dead or cancelled job cancels its
** dependents (or lets them run, as their on_fail says), and so on down the tree. 'ends' are
** sorted by id. Errors: BUSY, GONE.
*/
ns_status ns_finish(ns_db *db, const ns_end *ends, size_t n, ns_err *err);

/* The last part of that, for jobs with rows that are gone. */
ns_status ns_finish_gone(ns_db *db, const ns_end *ends, size_t n, ns_err *err);

/*
** A transaction with much other work tells the dependents last. So it holds their rows, which
** may be rows of other hosts' jobs, no longer than it must. From ns_finish_late(db, true) on
** ns_finish only remembers the jobs to tell.
*/
void ns_finish_late(ns_db *db, bool on);
ns_status ns_finish_notify(ns_db *db, ns_err *err);

/* --------------------------------------- jobs pushed for dead ones: on_dead.c */

#define NS_FINISH_PREFIX "dead:" /* of the keys of such jobs; no other key begins so */

/* Pushes the jobs that the handlers of the dead ones of 'ends' name. Their history is written.
** Errors: BUSY, GONE, NOMEM. */
ns_status ns_finish_on_dead(ns_db *db, const ns_end *ends, size_t n, ns_err *err);

struct ns_failed_dependents;

/* Ends these jobs, and all jobs that fail with them; frees them. */
ns_status ns_finish_from(ns_db *db, struct ns_failed_dependents *level, ns_err *err);

/* ---------------------------------------------- dependents: dependents.c */

/* Jobs that end because a job that they waited for has failed; the memory is ours. */
typedef struct ns_failed_dependents {
  ns_end *ends; /* sorted by id */
  size_t n;
  struct ns_waiter *waiters; /* where their texts are */
  size_t nwaiters;
} ns_failed_dependents;

void ns_finish_failed_free(ns_failed_dependents *f);

/*
** Tells the dependents of jobs that have ended on the open transaction. Jobs that wait for no
** job any more become claimable. Jobs that fail are locked and come back in '*next' (also after
** an error, for ns_finish_failed_free). '*held' says of each of 'ends' whether another
** transaction holds a dependent of it: the edge stays (NULL: none does); the caller frees it.
** Waits for no lock. Errors: GONE, NOMEM.
*/
ns_status ns_finish_resolve(ns_db *db, const ns_end *ends, size_t n, bool **held,
                            ns_failed_dependents *next, ns_err *err);

/* A locked job that waits for no job any more. */
typedef struct ns_released {
  int64_t queue_id, rank, id, run, kind;
  int64_t due; /* µs, in the future; 0: now */
} ns_released;

/* Makes them claimable, or scheduled. Errors: GONE, NOMEM. */
ns_status ns_finish_release(ns_db *db, const ns_released *jobs, size_t n, ns_err *err);

/* Writes that jobs have fewer edges: "[[edges,job],…" in 'met', which is emptied. 'jobs' are
** the ones of them that had no other. Errors: GONE, NOMEM. */
ns_status ns_finish_edges_met(ns_db *db, ns_buf *met, size_t nmet, const ns_released *jobs,
                              size_t n, ns_err *err);

/* ------------------------------------------------ pending ends: finish.c */

/* Records jobs that have ended on the open transaction: the picked ones (NULL: all), as far as
** jobs wait for them. Errors: GONE, NOMEM. */
ns_status ns_finish_pending_add(ns_db *db, const ns_end *ends, size_t n, const bool *picked,
                                ns_err *err);

/*
** Notifies the dependents of all pending ends, on the open transaction. Afterwards
** db->finish.pending_due says whether to come back soon. Errors: GONE, NOMEM.
*/
ns_status ns_finish_pending_notify(ns_db *db, ns_err *err);

/* As ns_finish_pending_add, in a transaction of its own, if there is anything. Errors: GONE,
** BUSY, NOMEM. */
ns_status ns_finish_pending_look(ns_db *db, ns_err *err);

/* Finishes the rest of a handle's own verb: rings programs that wait for the ends, and tells
** dependents. It tries for an eighth of a second, then other holders do it. Best effort. */
void ns_finish_pending_retry(ns_db *db);

/* Looks at the next edges for targets that are no jobs, as a person's DELETE may leave them,
** and has them told. A cursor in the handle goes round. */
ns_status ns_finish_pending_repair(ns_db *db, ns_err *err);

/* Jobs that have ended on the open transaction, and are to be told of last. */
typedef struct ns_ended {
  ns_end *items; /* ids and outcomes */
  size_t n, cap;
  bool on;
} ns_ended;

/* A handle's state of jobs that have ended: db->finish. */
typedef struct ns_finish_state {
  ns_ended late;
  bool pending_due;     /* nightshift_met has something for us */
  int64_t pending_from; /* the target in it where the next look begins */
  int64_t edges_from;   /* the edge where the look for dangling ones goes on */
} ns_finish_state;

#endif
