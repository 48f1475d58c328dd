/*
** Looking at jobs and changing them, for people and programs. Verbs on a job, on a tree, on all
** jobs of a filter; waits for ends. The Lua module calls them. Claims, verdicts, holders and what
** hosts do by themselves are in nightshift_host.h.
**
** Ownership and errors are as there.
*/
#ifndef NIGHTSHIFT_ADMIN_H
#define NIGHTSHIFT_ADMIN_H

#include "nightshift_host.h"

/*
** Actions of people. Each leaves a row in nightshift_audit. The verbs below, and those of
** nightshift.h that change a job or a queue, are actions. A push, a claim and a verdict are none. A
** signal is one from the shell and from the page alone: those of programs are traffic.
*/

/* Who acts on a handle. HANDLER: code of a host. Its verbs on one job, or on a job and all below it,
** leave no row. */
typedef enum ns_via { NS_VIA_C, NS_VIA_LUA, NS_VIA_SHELL, NS_VIA_PAGE, NS_VIA_HANDLER } ns_via;

/* From now on; NS_VIA_C at first. */
void ns_act_as(ns_db *db, ns_via via);

/*
** Begins an action. All that the handle does until its end shares one row, which is written in the
** first transaction that changes something. 'job' 0: it is not about one. 'what': what else is to
** be known, cut to 255 bytes; may be absent for a job. 'row': the row of an earlier part, 0: none.
** False: an action is under way, and this is a part of it.
*/
bool ns_action_begin(ns_db *db, const char *verb, int64_t job, ns_bytes what, int64_t row);

/* 'begun' is what ns_action_begin gave; nothing happens for a part. Gives the id of the row; 0:
** none was written. */
int64_t ns_action_end(ns_db *db, bool begun);

/* Writes the row of the action under way, or adds 'jobs' to it, in an open transaction. Without an
** action nothing happens. Errors: DENIED, GONE, BUSY. */
ns_status ns_action_note(ns_db *db, int64_t jobs, ns_err *err);

/* A live job gets another priority, 0 to 255; in its new lane it is the last. A running job
** keeps its worker. Errors: NOT_FOUND, STATE (finished), INVALID. */
ns_status ns_reprioritise(ns_db *db, int64_t id, int64_t priority, ns_err *err);

/* A live job is not started after this, µs from now (-1: no limit any more); a polling job has
** its last look then. Errors: NOT_FOUND, STATE. */
ns_status ns_deadline(ns_db *db, int64_t id, int64_t deadline, ns_err *err);

/* Verbs on a job and all below it, live or not itself. */
typedef enum ns_verb {
  NS_TREE_CANCEL,   /* 'text': the reason; absent: none */
  NS_TREE_PAUSE,    /* none of its jobs starts; running jobs run on, and are held when they come
                    ** back */
  NS_TREE_RESUME,
  NS_TREE_PRIORITY, /* 'n' */
  NS_TREE_RUN_NOW,  /* scheduled jobs become ready; jobs that wait for a signal wait on */
  NS_TREE_DEADLINE, /* 'n' µs from now; -1: none any more */
  NS_TREE_RETRY     /* failed jobs run again, each waiting for the same jobs as before */
} ns_verb;

/* Works through the tree from its top, some hundred jobs a transaction: when it
** fails in between it may be made again. '*changed' counts jobs.
** Errors: NOT_FOUND, STATE (nothing there to do it to), INVALID, DUPLICATE (retry:
** all but the job that is named run again), GONE, BUSY. */
ns_status ns_tree_do(ns_db *db, ns_verb verb, int64_t id, int64_t n,
                     ns_bytes text, int64_t *changed, ns_err *err);

/* Verbs on many jobs. */
typedef enum ns_many_verb {
  NS_MANY_CANCEL,    /* 'text': the reason; absent: none */
  NS_MANY_PRIORITY,  /* 'arg' */
  NS_MANY_RUN_NOW,   /* as NS_TREE_RUN_NOW */
  NS_MANY_MOVE,      /* 'arg': the queue's id; jobs that run stay */
  NS_MANY_RETRY,     /* ended jobs run again */
  NS_MANY_MOVE_ENDED /* ended jobs are of another queue, 'arg' */
} ns_many_verb;

#define NS_FILTER_MAX 24 /* values of a filter */

typedef struct ns_many {
  const int64_t *ids; /* ascending, at most 500 */
  size_t n;
  int64_t arg;
  ns_bytes text;
  int64_t from, to;       /* when all are ready in one lane, the bounds of their ready_at; else 0 */
  const ns_value *filter; /* values of the marks filter_live or filter_ended, behind a state twice */
  size_t nfilter;
  ns_bytes claims; /* a pattern that leases with any of these jobs match (filter.claims) */
} ns_many;

/* What a job is to be, under its lock, for a change. */
typedef struct ns_expected {
  bool either;      /* it may have ended, or not */
  bool ended;       /* else it has to have, or not to have */
  int64_t run;      /* 0: any */
  ns_bytes payload; /* absent: any */
} ns_expected;

/* As ns_update; STATE: the job is not as expected. */
ns_status ns_update_if(ns_db *db, int64_t id, const ns_change *change, const ns_expected *expected,
                       ns_err *err);

/* As ns_delete, of a job that has ended, or of one that has not: else NOT_FOUND. */
ns_status ns_delete_if(ns_db *db, int64_t id, bool ended, ns_err *err);

/* One transaction. A job that the filter does not hold for any more stays as it is. '*refused'
** counts jobs that stay because another live job has their unique key (retry, move). After a cut
** at the commit '*changed' may be too low.
** Errors: INVALID, GONE, BUSY. */
ns_status ns_many_do(ns_db *db, ns_many_verb verb, const ns_many *many, int64_t *changed,
                     int64_t *refused, ns_err *err);

/*
** Waits up to 'wait' µs until none of the jobs "[id,…]" lives; '*left': how many do. It looks
** every ten seconds meanwhile, and who ends one wakes it. Errors: STATE (in a transaction), GONE,
** BUSY.
*/
ns_status ns_wait(ns_db *db, ns_bytes ids, int64_t wait, size_t *left, ns_err *err);

/* How many jobs of a tree are in which state; pruned jobs are not counted. */
typedef struct ns_progress {
  int64_t done, dead, cancelled, running, waiting, scheduled, ready, total;
} ns_progress;

/* Errors: NOT_FOUND, GONE. */
ns_status ns_tree_progress(ns_db *db, int64_t id, ns_progress *progress,
                           ns_err *err);

/* A scheduled job becomes ready now. Errors: NOT_FOUND, STATE. */
ns_status ns_run_now(ns_db *db, int64_t id, ns_err *err);

/* Deletes the history of a job and of all below it. Errors: STATE (some of it
** has not finished). */
ns_status ns_prune_tree(ns_db *db, int64_t id, int64_t *deleted, ns_err *err);

/* From now on 'fn' is called behind each transaction of a prune, with the number of deleted jobs so
** far. It does not use the handle. NULL: nothing is called. */
void ns_prune_tell(ns_db *db, void (*fn)(void *arg, int64_t deleted), void *arg);

#endif
