/*
** Dependents: the jobs that waited for one that has ended.
*/
#ifndef NS_FINISH_DEPENDENTS_H
#define NS_FINISH_DEPENDENTS_H

#include "finish/finish.h"

/* Jobs that end because what they waited for has failed; the memory is ours. */
typedef struct ns_fallen {
  ns_end *ends; /* sorted by id */
  size_t n;
  struct ns_waiter *waiters; /* where their texts are */
  size_t nwaiters;
} ns_fallen;

void ns_fallen_free(ns_fallen *f);

/*
** Tells the dependents of jobs that have ended on the open transaction: those
** that wait for nobody any more become claimable; those that fall are locked
** and come back in '*next' (also after an error, for ns_fallen_free). '*held' says
** of each of 'ends' whether somebody holds a dependent of it, whose edge stays
** (NULL: nobody does); the caller frees it. Waits for nobody. Errors: GONE, NOMEM.
*/
ns_status ns_depend_resolve(ns_db *db, const ns_end *ends, size_t n, bool **held,
                            ns_fallen *next, ns_err *err);

/* A locked job that waits for nobody any more. */
typedef struct ns_released {
  int64_t queue_id, rank, id, run, kind;
  int64_t due; /* µs, in the future; 0: now */
} ns_released;

/* Makes them claimable, or scheduled. Errors: GONE, NOMEM. */
ns_status ns_depend_release(ns_db *db, const ns_released *jobs, size_t n,
                            ns_err *err);

/* Writes that jobs have edges less, "[[edges,job],…" in 'met', which is emptied;
** 'jobs' are those of them that had no other. Errors: GONE, NOMEM. */
ns_status ns_depend_meet(ns_db *db, ns_buf *met, size_t nmet, const ns_released *jobs,
                         size_t n, ns_err *err);

#endif
