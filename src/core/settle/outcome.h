/*
** What becomes of a job whose run has a verdict.
*/
#ifndef NS_SETTLE_OUTCOME_H
#define NS_SETTLE_OUTCOME_H

#include "nightshift_host.h"
#include "ns_time.h"

#define NS_DELAY_MAX (INT64_C(3155760000) * NS_SECOND) /* as of a push */

/* What the server knows of a job, and what becomes of it. */
typedef struct ns_outcome {
  ns_verdict *v;
  int64_t queue_id, rank, kind, attempts, polls, crashes, lost, missed, missing_since;
  int64_t max_attempts, max_polls, max_crashes, backoff, deadline, root, paused, now;
  int64_t phases;      /* waits since the push or the last signal, this one included */
  int64_t max_phases;  /* of them, as its push has said; -1: it has not; 0: no limit */
  int64_t decay;       /* of its priority, with each return that sinks it */
  char *key;           /* its unique key, owned; NULL: none */
  size_t keylen;
  bool plain;          /* done, and nothing else to be written: see ns_fast_ack */
  bool gone;           /* so settled; nothing else is known */
  bool locked;
  bool ends;           /* else it returns at 'due', or: */
  bool parks;          /* it waits for its children: */
  bool keeps;          /* it returns at once, to the place that it had */
  bool kin;            /* there are older ones, or somebody waits for it */
  bool waited, waits;  /* somebody waits for it; a child of it waits */
  int64_t live, held;  /* children; those of them that wait for its end */
  const char *outcome, *reason;
  const char *attempt; /* kind of the attempt row; NULL: none */
  char why[200];       /* the error of an end that is not the holder's; empty */
  int64_t due;         /* at first: as it was before this run */
} ns_outcome;

/* Fills in what becomes of it; 'v' and what the server knows are there. */
void ns_outcome_decide(ns_outcome *f);

/* It ends; the texts outlive it. 'reason' may be NULL. */
void ns_outcome_end(ns_outcome *f, const char *outcome, const char *reason);

/* Nothing is written of it in this batch: its verdict is BUSY. */
void ns_outcome_put_off(ns_outcome *f);

#endif
