/*
** Which form of a claiming statement runs. The fast one, until it meets a row
** that somebody holds; then the other, in the same cycle and for a growing
** number of cycles. Where a lock wait would end the whole transaction the fast
** one is never tried.
*/
#include "claim/paths.h"

#define PENALTY_MAX 64 /* cycles on the slow path */
#define ER_LOCK_WAIT 1205

/* A statement in its two forms, run on whichever path is open. */
typedef struct ns_paths {
  ns_stmt *fast, *skip;
} ns_paths;

static bool collided(ns_db *db, const ns_err *err) {
  if (err->sqlerr != ER_LOCK_WAIT)
    return false;
  db->lanes.penalty = db->lanes.penalty * 2 + 1;
  if (db->lanes.penalty > PENALTY_MAX)
    db->lanes.penalty = PENALTY_MAX;
  db->lanes.backoff = db->lanes.penalty;
  return true;
}

/* True while the fast path is worth a try in this cycle: in a crowd it is not. */
static bool fast_open(ns_db *db) {
  if (db->never_fast || db->gate.wary > 0)
    return false;
  if (db->lanes.backoff == 0)
    return true;
  db->lanes.backoff--;
  return false;
}

static ns_status prepare_paths(ns_db *db, ns_paths *p, ns_bytes fast,
                               ns_bytes skip, bool want_fast, ns_err *err) {
  p->fast = p->skip = NULL;
  return want_fast ? ns_prepared(db, &p->fast, fast, err)
                   : ns_prepared(db, &p->skip, skip, err);
}

ns_status ns_paths_run(ns_db *db, ns_bytes fast, ns_bytes skip,
                           const ns_value *params, ns_stmt **ran, bool *slow,
                           ns_err *err) {
  ns_paths p;
  bool try_fast = fast_open(db);
  ns_status st = prepare_paths(db, &p, fast, skip, try_fast, err);
  *slow = !try_fast;
  if (st == NS_OK && try_fast) {
    *ran = p.fast;
    st = ns_stmt_run(db->link, p.fast, params, err);
    if (st == NS_OK && db->lanes.penalty > 0)
      db->lanes.penalty--;
    if (st != NS_EBUSY || !collided(db, err))
      return st;
    *slow = true;
    st = ns_prepared(db, &p.skip, skip, err);
  }
  if (st == NS_OK) {
    *ran = p.skip;
    st = ns_stmt_run(db->link, p.skip, params, err);
  }
  return st;
}
