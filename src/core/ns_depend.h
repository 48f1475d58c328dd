/*
** Dependents: the jobs that waited for one that has ended.
*/
#ifndef NS_DEPEND_H
#define NS_DEPEND_H

#include "ns_finish.h"

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
** and come back in '*next' (also after an error, for ns_fallen_free). Those
** that somebody holds are left for ns_depend_look. Waits for nobody.
** Errors: GONE, NOMEM.
*/
ns_status ns_depend_resolve(ns_db *db, const ns_end *ends, size_t n,
                            ns_fallen *next, ns_err *err);

/* Leaves all of them for ns_depend_look. */
ns_status ns_depend_later(ns_db *db, const ns_end *ends, size_t n, ns_err *err);

/*
** Tells what was left, by whomever, on the open transaction. Afterwards
** db->met_due says whether to come back soon. Errors: GONE, NOMEM.
*/
ns_status ns_depend_tell(ns_db *db, ns_err *err);

/* The same in a transaction of its own, if there is anything. Errors: GONE,
** BUSY, NOMEM. */
ns_status ns_depend_look(ns_db *db, ns_err *err);

/* A locked job that waits for nobody any more. */
typedef struct ns_released {
  int64_t queue_id, rank, id, run;
  int64_t due; /* µs, in the future; 0: now */
} ns_released;

/* Makes them claimable, or scheduled. Errors: GONE, NOMEM. */
ns_status ns_depend_release(ns_db *db, const ns_released *jobs, size_t n,
                            ns_err *err);

/* Writes that jobs have edges less, "[[edges,job],…" in 'met', which is emptied;
** 'jobs' are those of them that had no other. Errors: GONE, NOMEM. */
ns_status ns_depend_meet(ns_db *db, ns_buf *met, const ns_released *jobs, size_t n,
                         ns_err *err);

/* What a handle's own verb has left: tries for an eighth of a second, then it is
** others'. Best effort. */
void ns_depend_rest(ns_db *db);

/* Looks at the next edges for some whose target is no job, as a person's DELETE
** may leave them, and has them resolved; a cursor in the handle goes round. */
ns_status ns_depend_sweep(ns_db *db, ns_err *err);

#endif
