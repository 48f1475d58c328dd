/*
** More jobs of a name that is run in batches, behind rows that a claim has taken.
**
** Invariants: rows are looked for in the lanes of those taken, a bounded number, and their floors
** stay. In a limited queue nothing is taken, as each job needs a place of its own.
*/
#include "claim/inner.h"

#include "db/db.h"

#define LOOK_MORE 2000 /* rows of other names among them are passed over */

static bool is_alike(const ns_claim_row *a, const ns_claim_row *b) {
  return a->kind == b->kind && a->queue_id == b->queue_id;
}

/* Is it the first of its queue and name? */
static bool is_first(const ns_claim_rows *rows, size_t i) {
  size_t k = 0;
  while (!is_alike(&rows->items[k], &rows->items[i]))
    k++;
  return k == i;
}

static ns_status take_behind(ns_db *db, const ns_claim_row row, size_t want, ns_claim_rows *out,
                             ns_err *err) {
  ns_claim_queue *s = ns_claim_queue_of(&db->claim.lanes, row.queue_id);
  size_t before = out->n;
  ns_status st = ns_db_run(db, NS_SQL_CLAIM_MORE,
                           (ns_value[]){ns_vint(row.queue_id), ns_vint(row.rank),
                                        ns_vint(row.ready_at), ns_vint(LOOK_MORE),
                                        ns_vint(row.kind), ns_vint(row.queue_id),
                                        ns_vint((int64_t)want)},
                           err);
  if (st == NS_OK)
    st = ns_claim_collect_rows(db, db->stmts[NS_SQL_CLAIM_MORE], row.queue_id, out, err);
  for (size_t i = before; i < out->n; i++)
    out->items[i].beyond = true;
  if (s != NULL)
    s->credit -= (double)(out->n - before); /* shares are of jobs */
  if (st == NS_OK)
    st = ns_claim_delete_rows(db, out->items + before, out->n - before, err);
  return st;
}

ns_status ns_claim_take_more(ns_db *db, const ns_want *want, ns_claim_rows *out, ns_err *err) {
  size_t n = out->n;
  ns_status st = NS_OK;
  for (size_t k = 0; k < want->nbatched; k++) {
    int64_t kind = ns_db_kind_of(want->batched[k].name);
    for (size_t i = 0; st == NS_OK && i < n; i++) {
      size_t last = i;
      size_t rest = want->batched[k].most - 1; /* for each of them that was taken */
      if (out->items[i].limited || out->items[i].kind != kind || !is_first(out, i))
        continue;
      for (size_t j = i + 1; j < n; j++)
        if (is_alike(&out->items[i], &out->items[j])) {
          last = j;
          rest += want->batched[k].most - 1;
        }
      st = take_behind(db, out->items[last], rest < want->more ? rest : want->more, out, err);
    }
  }
  return st;
}
