/*
** Pruning: history that is old enough goes, in small batches, each its own
** transaction, so that nobody waits for it. Slots of the dead go, too.
*/
#include "ns_handle.h"
#include "ns_slot.h"

#define BATCH 1000 /* rows per transaction */

/* One batch of one outcome. */
typedef struct work {
  const char *outcome;
  int64_t age;
  size_t n; /* rows of the last batch */
} work;

/* "[id,…]" of the oldest rows, locked. */
static ns_status find_old(ns_db *db, work *w, ns_buf *ids, ns_err *err) {
  const ns_value *row;
  ns_status st = ns_run(db, NS_SQL_PRUNE_SELECT,
                        (ns_value[]){ns_vtext(ns_str(w->outcome)),
                                     ns_vint(w->age), ns_vint(BATCH)},
                        err);
  w->n = 0;
  while (st == NS_OK &&
         (st = ns_row(db, NS_SQL_PRUNE_SELECT, &row, err)) == NS_OK &&
         row != NULL)
    ns_buf_addf(ids, "%c%lld", w->n++ > 0 ? ',' : '[', (long long)row[0].i);
  ns_buf_addc(ids, ']');
  return st == NS_OK && ids->oom ? ns_fail(err, NS_ENOMEM, "out of memory") : st;
}

static ns_status prune_run(ns_db *db, ns_tx *tx, ns_err *err) {
  work *w = tx->arg;
  ns_buf ids = NS_BUF_INIT;
  ns_status st = find_old(db, w, &ids, err);
  if (st == NS_OK && w->n > 0) {
    ns_value param = ns_vtext(ns_buf_bytes(&ids));
    if ((st = ns_run(db, NS_SQL_PRUNE_ATTEMPTS, &param, err)) == NS_OK)
      st = ns_run(db, NS_SQL_PRUNE_FINISHED, &param, err);
  }
  ns_buf_free(&ids);
  return st;
}

/* '*left' batches may still be spent (NULL: any number). */
static ns_status prune_outcome(ns_db *db, work *w, size_t *left,
                               int64_t *deleted, ns_err *err) {
  ns_tx tx = {prune_run, w, false, false};
  ns_status st = NS_OK;
  if (w->age < 0)
    return NS_OK;
  do {
    if (left != NULL && (*left)-- == 0) {
      *left = 0;
      return NS_OK;
    }
    if ((st = ns_transact(db, &tx, err)) == NS_OK)
      *deleted += (int64_t)w->n;
  } while (st == NS_OK && w->n == BATCH);
  return st;
}

ns_status ns_prune(ns_db *db, int64_t keep_done, int64_t keep_dead,
                   size_t max_batches, int64_t *deleted, ns_err *err) {
  const struct {
    const char *outcome;
    int64_t age;
  } kinds[] = {{"done", keep_done}, {"dead", keep_dead}, {"cancelled", keep_dead}};
  size_t left = max_batches;
  ns_status st = NS_OK;
  *deleted = 0;
  for (size_t i = 0; st == NS_OK && i < 3; i++) {
    work w = {kinds[i].outcome, kinds[i].age, 0};
    st = prune_outcome(db, &w, max_batches > 0 ? &left : NULL, deleted, err);
  }
  return st == NS_OK ? ns_slots_prune(db, err) : st;
}
