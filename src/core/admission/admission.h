/*
** Limits of queues and of groups of jobs, from a claim's side. Claims of a limited queue move its
** ready rows into the backlog, by group. Then they admit jobs of groups that have a place and a
** token. Each of these has a grant until its verdict, or until its lease is gone.
**
** A queue may also have a bound, with other limits or without: while so many of its jobs wait,
** pushes are refused.
**
** Invariant: all that is written here is written under the lock of the queue's row of
** nightshift_limit, but for the ends of grants. No claim waits for that lock.
*/
#ifndef NS_ADMISSION_ADMISSION_H
#define NS_ADMISSION_ADMISSION_H

#include "base.h"
#include "link/link.h"
#include "nightshift_host.h"

/* ------------------------------------------------------- a claim: claim.c */

/* What sorting has in mind, beside claims, where groups take turns. Instants are monotonic. */
typedef struct ns_admission_sorting {
  int64_t at;          /* when a host moves more, between claims; 0: it does not, */
  int64_t rest;        /* ... after so many µs */
  int64_t newest_at;   /* no look at the newest rows of ready before; */
  int64_t newest_from; /* ... which came since then (server's time); 0: no look yet */
} ns_admission_sorting;

/* A claimer's memory of a queue. Instants are monotonic. */
typedef struct ns_admission_memory {
  bool limited;       /* as the last look at the queues has said; else the rest is 0 */
  bool backlog;       /* jobs waited in the backlog after the last claim */
  size_t move_most;   /* rows that are moved there at once; 0: not known */
  size_t wanted;      /* jobs, by the claim under way */
  bool sated;         /* the last one has got all that it wanted, and the backlog has more */
  int64_t again_at;   /* when another job may start; 0: that is not known */
  int64_t rest_until; /* no look before, as nothing could start */
  bool starts;         /* it is known when another may start */
  int64_t admitted_at; /* when the last one was admitted, or the first look; 0: none yet */
  size_t moved;       /* rows, by the claim under way; */
  bool more;          /* ... and there may be more in ready */
  ns_admission_sorting sorting;
} ns_admission_memory;

/* What a claim wants of a limited queue, and does for it. */
typedef struct ns_admission_claim {
  int64_t queue_id;
  size_t want;
  int64_t lease; /* the claim's, not written yet */
  bool alone;    /* may the first job be one that is to be claimed alone? */
  ns_bytes text; /* admission_take, for the kinds that are wanted */
  /* Takes up to 'want' rows of any name out of ready; they are added to the list, as
  ** ns_admission_move wants it. */
  ns_status (*take)(ns_db *db, void *arg, size_t want, ns_buf *list, size_t *n, ns_err *err);
  void *arg;
} ns_admission_claim;

/* Moves rows of ready into the backlog, and admits jobs of it: '*s' has their rows, see
** ns_admission_take. NULL: another claim is at it, or nothing could start a moment ago. Or the
** limit was taken away ('*lifted'), and the claim goes on as of any other queue. */
ns_status ns_admission_run(ns_db *db, ns_admission_memory *m, const ns_admission_claim *c,
                           ns_stmt **s, bool *lifted, ns_err *err);

/* The last row of that answer has been read. 'in': when to look again (µs, -1: not known); 'more':
** there are more groups to be looked at; 'n': jobs that were admitted. */
void ns_admission_learn(ns_admission_memory *m, int64_t in, bool backlog, bool more, size_t n);

/* 'in' (µs, -1: any time), or less: when a job of this queue may start. */
int64_t ns_admission_next(const ns_admission_memory *m, int64_t in);

/* Will jobs of its backlog start within a minute, as others did a minute ago at most? */
bool ns_admission_waits(const ns_admission_memory *m);

/* ------------------------------------------- its statements: admission.c */

/* A limited queue, as a claim finds it. */
typedef struct ns_admission {
  int64_t queue_id;
  bool locked;  /* by this transaction; else another claim admits, or there is no limit */
  bool ordered; /* its groups are */
  bool fair;    /* they take turns */
  bool lifted;  /* the limit was taken away, and rows go back to ready */
} ns_admission;

/* Locks the limit of a queue, if no other claim has it, until the transaction ends. */
ns_status ns_admission_lock(ns_db *db, int64_t queue_id, ns_admission *a, ns_err *err);

/* Puts rows that were taken out of ready into the backlog: 'n' of them in the list
** [[queue,rank,ready_at,job,run,alone,kind],…]. Rows without a job that stands are dropped. */
ns_status ns_admission_move(ns_db *db, const ns_admission *a, ns_buf *rows, size_t n, ns_err *err);

/* Takes the newest rows of ready out of it that came since then: at most so many of each lane. They
** are added to the list, and to 'n'. Not in an ordered queue: older ones of their groups stay. */
ns_status ns_admission_newest(ns_db *db, const ns_admission *a, int64_t since, size_t most,
                              ns_buf *list, size_t *n, ns_err *err);

/* Moves up to 'n' rows of a lifted limit back to ready. '*more': there may be more; else the limit
** is gone. */
ns_status ns_admission_lift(ns_db *db, const ns_admission *a, size_t n, bool *more, ns_err *err);

/* Admits up to 'want' jobs for the claim with this lease. 'text' is admission_take for the kinds
** that are wanted. 'alone': may the first be one that is to be claimed alone? '*s' has the rows:
** rank, ready_at, job, run, alone, kind; the last, of job 0, says when to look again. */
ns_status ns_admission_take(ns_db *db, const ns_admission *a, ns_bytes text, size_t want,
                            int64_t lease, bool alone, ns_stmt **s, ns_err *err);

/* Takes the row of a job that is locked out of a backlog, if it is in one. Waits for a claim that
** admits it. */
ns_status ns_admission_withdraw(ns_db *db, int64_t job, bool *taken, ns_err *err);

/* Moves the rows of these jobs, which are locked, out of backlogs and back to ready. '*n': how many
** were there. */
ns_status ns_admission_return(ns_db *db, ns_buf *ids, int64_t *n, ns_err *err);

/* Ends the grants of settled claims: [[id,run],…]; an empty list costs nothing. */
ns_status ns_admission_release(ns_db *db, ns_buf *tokens, ns_err *err);

/* No job of the group of this job, or of all of its queue, starts for so many µs. Does nothing in
** a queue without a limit, or for a job without a group. Errors: BUSY while a claim admits. */
ns_status ns_admission_stop(ns_db *db, int64_t queue_id, int64_t job, int64_t span, bool all,
                            ns_err *err);

/* A job that is locked may be about to leave the ordered group that it holds, by itself or with its
** queue. Notes the group (no text: it holds none) for ns_admission_pass, best effort. */
void ns_admission_leaves(ns_db *db, int64_t queue_id, const ns_value *group);

/* Behind the transaction. 'written': the next claim looks at the groups that were noted, and a ring
** is due; else they are forgotten. Best effort: they are looked at within a second anyway. Waits
** for a claim that admits, a second at most. Costs nothing when none was noted. In a transaction of
** the caller it comes by itself. */
void ns_admission_pass(ns_db *db, bool written);

extern const struct ns_hooks ns_admission_hooks;

/* ------------------------------------------------------- sorting: sort.c */

/* Moves rows of ready into the backlog, with the limit locked: as many as a claim has time for. */
ns_status ns_admission_sort_for(ns_db *db, const ns_admission *a, ns_admission_memory *m,
                                const ns_admission_claim *c, ns_err *err);

/* A claim has met another one: a host's sorting is put off. */
void ns_admission_sort_crowd(ns_admission_memory *m);

/* The same without a claim, for a host between its claims. No row is taken of a
** limit that is gone, or that another claim has locked. */
ns_status ns_admission_sort(ns_db *db, ns_admission_memory *m, const ns_admission_claim *c,
                            ns_err *err);

/* The sorting is over, and began at 'start', monotonic µs: it rests as long. */
void ns_admission_sorted(ns_admission_memory *m, int64_t start);

/* When that is worth it, monotonic µs; 0: it is not. */
int64_t ns_admission_sort_at(const ns_admission_memory *m);

/* -------------------------------------- a queue with a bound: admission.c */

/* A push wants to add 'n' jobs to a queue. Where it has a bound its jobs are counted first, or were
** a moment ago. Costs nothing while no queue that the handle has met has one. Errors: FULL,
** GONE. */
ns_status ns_admission_room(ns_db *db, int64_t queue_id, size_t n, ns_err *err);

#endif
