/*
** Shared declarations of the files of admin/: one job from outside, its row locked.
*/
#ifndef NS_ADMIN_INNER_H
#define NS_ADMIN_INNER_H

#include "db/db.h"
#include "handle.h"

/* A live job's row, locked. */
typedef struct ns_live {
  bool found;
  bool paused;
  bool awaits; /* parked for a signal */
  int64_t queue_id, rank, run, unmet, due, now, kind;
  int64_t parent, deadline; /* 0: none */
  int64_t attempts, max_attempts;
  ns_buf key; /* its unique key; empty: none */
} ns_live;

/* A finished job's row, locked. 'outcome' is empty when there is none. */
typedef struct ns_past {
  char outcome[16];
  int64_t run, queue_id, priority, kind;
  int64_t parent; /* 0: none */
  ns_buf key;
} ns_past;

/* The state of one verb on one job. */
typedef struct ns_admin_work {
  int64_t id;
  int64_t rank; /* its new one */
  ns_bytes reason;
  ns_live now;
  ns_past then;
  bool noticed; /* its holder is to be told */
  void *arg;    /* of the verb */
} ns_admin_work;

/* Each waits for the row's lock. Errors: GONE, BUSY, NOMEM. */
ns_status ns_admin_lock_live(ns_db *db, int64_t id, ns_live *l, ns_err *err);
ns_status ns_admin_lock_past(ns_db *db, int64_t id, ns_past *p, ns_err *err);

/* Takes the row of w->now out of scheduled or ready: then no claim has it, or will. When there
** is none it is claimed, maybe since a moment ago. Waits for a session that claims or promotes
** it; a claim waits for no lock. Errors: GONE, BUSY. */
ns_status ns_admin_take(ns_db *db, const ns_admin_work *w, bool *taken, ns_err *err);

/* Puts the job of w->now where it waits, under its next run; the row of this run is stale.
** Errors: GONE, BUSY. */
ns_status ns_admin_queue_again(ns_db *db, const ns_admin_work *w, ns_err *err);

/* No live row: STATE, or NOT_FOUND. */
ns_status ns_admin_ended(ns_db *db, ns_admin_work *w, ns_err *err);

/* Runs a verb in a transaction, frees the keys, and rings after the commit. */
ns_status ns_admin_run(ns_db *db, ns_admin_work *w, ns_status (*run)(ns_db *, ns_tx *, ns_err *),
                       ns_err *err);

#endif
