/*
** Shared declarations of the files of cycle/.
*/
#ifndef NS_CYCLE_CYCLE_H
#define NS_CYCLE_CYCLE_H

#include "handle.h"
#include "holder/holder.h"

/* The work and results of one cycle. */
typedef struct ns_cycle_work {
  ns_verdict *verdicts;
  size_t nverdicts;
  ns_want want; /* limit 0: nothing is to be claimed */
  ns_claim_rows takes;
  int64_t lease;  /* of takes; 0: nothing was taken */
  int64_t span;   /* µs that lease lasts untouched; 0: as its holder */
  bool released;  /* jobs that the claim came too early for */
  bool tells;     /* also tells the rows that earlier cycles have left in nightshift_met */
  int64_t number; /* of this cycle */
  int64_t holder; /* the holder that tried it last: another may be registered since */
  int64_t next_due;
} ns_cycle_work;

/* Runs one cycle: its verdicts, and its claim if there is a limit. Errors: as of a transaction;
** then its verdicts are BUSY. */
ns_status ns_cycle_run(ns_db *db, ns_cycle_work *w, ns_err *err);

/* Claims one job in one statement, if there is nothing else to be looked at: see ns_claim_one. */
ns_status ns_cycle_one(ns_db *db, int64_t queue_id, ns_jobs *out, ns_err *err);

/* Makes verdicts BUSY: none of them is written, or known to be. */
void ns_cycle_put_off(ns_verdict *v, size_t n);

/* Like ns_cycle_run, but verdicts that are too big or refused are sorted out; all of them come
** back as they were given. */
ns_status ns_cycle_with_verdicts(ns_db *db, ns_cycle_work *w, ns_err *err);

/* ----------------------------------------- verdicts in doubt: verdicts.c */

/* Remembers the verdicts in doubt; without memory a repeat is STALE. */
void ns_cycle_in_doubt_add(ns_db *db, const ns_doubtful *c);

/* Asks whether the cycle in doubt was written. No other cycle can have been written since.
** Errors: GONE, BUSY. */
ns_status ns_cycle_in_doubt_resolve(ns_db *db, ns_err *err);

/* A verdict that comes again, and is STALE because it was written the first time, is OK. */
void ns_cycle_recognise_repeat(ns_db *db, ns_verdict *v);

#endif
