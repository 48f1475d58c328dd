/*
** What is left to be told: dependents that somebody held when their target ended.
**
** Many siblings that end at once on several hosts all have the same dependent.
** Nobody waits for its row: who finds it held writes the ended job down in
** nightshift_met, in the same transaction, and tells it later.
**
** Invariant: an edge whose target has ended is there only while nightshift_met
** has that target; and only who has locked that row, or has just ended the
** target, deletes the edge.
*/
#include "finish/pending.h"

#include <stdlib.h>
#include <string.h>

#include "db/db.h"
#include "finish/dependents.h"
#include "handle.h"
#include "ns_time.h"

#define AT_ONCE 1000 /* targets per look */
#define TRIES 8      /* of a handle: an eighth of a second */

/* --------------------------------------------------------- writing it down */

/* Those that have failed, or those that have not. */
static ns_status leave(ns_db *db, const ns_end *ends, size_t n, const bool *picked,
                       bool failures, ns_err *err) {
  ns_value failure = ns_vint(failures);
  ns_buf ids = NS_BUF_INIT;
  for (size_t i = 0; i < n; i++)
    if ((picked == NULL || picked[i]) &&
        (strcmp(ends[i].outcome, "done") != 0) == failures)
      ns_db_list_add_id(&ids, ends[i].id);
  if (ns_db_list_is_empty(&ids))
    return NS_OK;
  db->met_due = true;
  return ns_db_list_run(db, NS_SQL_DEPEND_LATER, &failure, &ids, err);
}

ns_status ns_pending_note(ns_db *db, const ns_end *ends, size_t n, const bool *picked,
                          ns_err *err) {
  ns_status st = leave(db, ends, n, picked, false, err);
  return st == NS_OK ? leave(db, ends, n, picked, true, err) : st;
}

/* ------------------------------------------------------------- telling it */

typedef struct look {
  ns_end *ends; /* AT_ONCE of them */
  size_t n;
  bool held;    /* something could not be told this time either */
} look;

static ns_status read_left(ns_db *db, look *l, ns_err *err) {
  const ns_value *row;
  ns_status st =
      ns_db_run(db, NS_SQL_DEPEND_LEFT, (ns_value[]){ns_vint(db->met_to), ns_vint(AT_ONCE)}, err);
  l->n = 0;
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_DEPEND_LEFT, &row, err)) == NS_OK &&
         row != NULL && l->n < AT_ONCE)
    l->ends[l->n++] = (ns_end){.id = row[0].i,
                               .outcome = row[1].i != 0 ? "dead" : "done"};
  return st;
}

/* Targets without an edge that stays are resolved. */
static ns_status forget(ns_db *db, const look *l, const bool *held, ns_err *err) {
  ns_buf ids = NS_BUF_INIT;
  size_t n = 0;
  for (size_t i = 0; i < l->n; i++)
    if (held == NULL || !held[i]) {
      ns_db_list_add_id(&ids, l->ends[i].id);
      n++;
    }
  return ns_db_list_change(db, NS_SQL_DEPEND_RESOLVED, NULL, &ids, n, err);
}

static ns_status look_run(ns_db *db, look *l, ns_err *err) {
  ns_fallen next = {0};
  bool *held = NULL;
  ns_status st = read_left(db, l, err);
  if (st != NS_OK || l->n == 0)
    return st;
  st = ns_depend_resolve(db, l->ends, l->n, &held, &next, err);
  l->held = held != NULL;
  if (st == NS_OK)
    st = forget(db, l, held, err);
  free(held);
  if (st == NS_OK)
    return ns_finish_from(db, &next, err);
  ns_fallen_free(&next);
  return st;
}

ns_status ns_pending_tell(ns_db *db, ns_err *err) {
  look l = {.ends = malloc(AT_ONCE * sizeof *l.ends)};
  ns_status st = l.ends == NULL ? ns_no_memory(err) : NS_OK;
  db->met_due = false;
  if (st == NS_OK)
    st = look_run(db, &l, err);
  db->met_due = db->met_due || st != NS_OK || l.held || l.n == AT_ONCE ||
                db->met_to != 0; /* those before it have been held */
  db->met_to = st == NS_OK && l.n == AT_ONCE ? l.ends[l.n - 1].id : 0;
  free(l.ends);
  return st;
}

static ns_status tell_run(ns_db *db, ns_tx *tx, ns_err *err) {
  (void)tx;
  return ns_pending_tell(db, err);
}

ns_status ns_pending_look(ns_db *db, ns_err *err) {
  ns_tx tx = {.run = tell_run};
  const ns_value *row = NULL;
  ns_status st = NS_OK;
  if (!db->met_due && (st = ns_db_run(db, NS_SQL_DEPEND_ANY, NULL, err)) == NS_OK)
    st = ns_db_row(db, NS_SQL_DEPEND_ANY, &row, err);
  if (st != NS_OK || (!db->met_due && row == NULL))
    return st;
  st = ns_db_transact(db, &tx, err);
  if (st == NS_OK && db->ring_due && !db->is_host) {
    ns_ring(db, NULL);
    db->ring_due = false;
  }
  return st;
}

void ns_pending_rest(ns_db *db) {
  ns_err none;
  int64_t pause = 1000;
  for (int tries = 0; db->met_due && !db->is_host && !ns_in_transaction(db) &&
                      tries < TRIES; tries++) {
    if (tries > 0)
      ns_sleep_us(ns_jitter(pause, 0.5));
    pause *= tries > 0 ? 2 : 1;
    if (ns_pending_look(db, &none) != NS_OK)
      break;
  }
  if (db->met_due)
    db->peers_at = 0; /* a claim that waits looks again */
}

bool ns_unfinished(const ns_db *db) {
  return db->met_due;
}

/* ---------------------------------------------------------------- sweeping */

static ns_status sweep_run(ns_db *db, ns_tx *tx, ns_err *err) {
  int64_t *at = tx->arg;
  const ns_value *row;
  ns_buf ids[2] = {NS_BUF_INIT, NS_BUF_INIT}; /* done; failed, or unknown */
  size_t n = 0;
  ns_status st =
      ns_db_run(db, NS_SQL_DEPEND_DANGLING, (ns_value[]){ns_vint(*at), ns_vint(AT_ONCE)}, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_DEPEND_DANGLING, &row, err)) == NS_OK &&
         row != NULL) {
    n++;
    *at = row[0].i;
    if (row[1].i != 0)
      ns_db_list_add_id(&ids[row[2].i != 0], row[0].i);
  }
  if (n < AT_ONCE)
    *at = 0;
  for (int k = 0; k < 2; k++) {
    ns_value failure = ns_vint(k);
    bool any = !ns_db_list_is_empty(&ids[k]);
    db->met_due = db->met_due || any;
    if (st == NS_OK && any)
      st = ns_db_list_run(db, NS_SQL_DEPEND_LATER, &failure, &ids[k], err);
    ns_buf_free(&ids[k]);
  }
  return st;
}

ns_status ns_pending_sweep(ns_db *db, ns_err *err) {
  ns_tx tx = {.run = sweep_run, .arg = &db->swept_to};
  return ns_db_transact(db, &tx, err);
}

/* ------------------------------------------------------------------- hooks */

static void committed(ns_db *db, bool written) {
  if (written)
    ns_pending_rest(db);
}

const ns_hooks ns_pending_hooks = {.committed = committed};
