/*
** Pruning: history that is old enough goes, in small batches, each its own
** transaction, so that nobody waits for it.
*/
#include <stdlib.h>

#include "ns_handle.h"

#define BATCH 1000 /* rows per transaction */

/* One batch of one outcome. */
typedef struct work {
  const char *outcome;
  int64_t age;
  int64_t ids[BATCH];
  size_t n;
} work;

static ns_status prune_run(ns_db *db, ns_tx *tx, ns_err *err) {
  work *w = tx->arg;
  const ns_value *row;
  ns_status st = ns_run(db, NS_SQL_PRUNE_FINISHED,
                        (ns_value[]){ns_vtext(ns_str(w->outcome)),
                                     ns_vint(w->age), ns_vint(BATCH)},
                        err);
  w->n = 0;
  while (st == NS_OK && w->n < BATCH &&
         (st = ns_row(db, NS_SQL_PRUNE_FINISHED, &row, err)) == NS_OK &&
         row != NULL)
    w->ids[w->n++] = row[0].i;
  if (st == NS_OK)
    st = ns_bulk(db, NS_SQL_PRUNE_ATTEMPTS,
                 (ns_column[]){{NS_INT, w->ids, NULL, NULL}}, w->n, err);
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
  work *w = malloc(sizeof *w);
  ns_status st = NS_OK;
  *deleted = 0;
  if (w == NULL)
    return ns_fail(err, NS_ENOMEM, "out of memory");
  for (size_t i = 0; st == NS_OK && i < 3; i++) {
    w->outcome = kinds[i].outcome;
    w->age = kinds[i].age;
    st = prune_outcome(db, w, max_batches > 0 ? &left : NULL, deleted, err);
  }
  free(w);
  return st;
}
