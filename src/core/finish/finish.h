/*
** Ending jobs: the one way from a live job to a row of history, shared by
** verdicts, cancelling and the failure of something that was waited for.
*/
#ifndef NS_FINISH_FINISH_H
#define NS_FINISH_FINISH_H

#include "nightshift_host.h"

/* A job that ends on the open transaction, which has locked its row. */
typedef struct ns_end {
  int64_t id, queue_id;
  const char *outcome;  /* "done", "dead", "cancelled" */
  const char *reason;   /* NULL: none */
  ns_bytes result, error;
  int64_t attempts, polls, crashes; /* -1: as the job has them */
  ns_bytes unique;      /* its key; absent: none */
  bool forgotten;       /* it leaves no history */
  ns_bytes said;        /* a person's reason, in place of 'reason'; absent: none. What is
                        ** too long for that is the error as well */
} ns_end;

/* As much of a person's words as a reason has room for: 255 characters. Nothing is absent. */
ns_bytes ns_said(ns_bytes text);

int ns_end_by_id(const void *a, const void *b); /* for qsort and bsearch */

/* Locks the unique keys of jobs that are about to end. 'held' has room for 'n':
** which keys somebody else holds, so that ending their jobs would wait for him.
** Waits for nobody. Errors: GONE, NOMEM. */
ns_status ns_finish_keys(ns_db *db, const ns_end *ends, size_t n, bool *held,
                         ns_err *err);

/*
** Writes history, frees unique keys, deletes the jobs, and resolves whatever
** waited for them: met edges make dependents claimable, a dead or cancelled
** job cancels its dependents (or lets them run, as their on_fail says), and so
** on down the tree. 'ends' are sorted by id. Errors: BUSY, GONE.
*/
ns_status ns_finish(ns_db *db, const ns_end *ends, size_t n, ns_err *err);

/* The last part of that, for jobs whose rows are gone. */
ns_status ns_finish_gone(ns_db *db, const ns_end *ends, size_t n, ns_err *err);

/*
** A transaction with much else to do tells the dependents last, so that it holds
** their rows, which may be those of other hosts' jobs too, no longer than it must:
** from ns_finish_late(db, true) on ns_finish only remembers whom to tell.
*/
void ns_finish_late(ns_db *db, bool on);
ns_status ns_finish_tell(ns_db *db, ns_err *err);

struct ns_fallen;

/* Ends these, and whatever falls with them; frees them. */
ns_status ns_finish_from(ns_db *db, struct ns_fallen *level, ns_err *err);

#endif
