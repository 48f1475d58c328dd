/*
** Verdicts in doubt: their cycle was cut at its commit, and their caller was told GONE.
**
** Invariant: no cycle writes before it is known what became of the one in doubt.
*/
#include "cycle/in_doubt.h"

#include "ns_buf.h"

void ns_in_doubt_add(ns_db *db, const ns_doubtful *c) {
  ns_settle_doubt *d = &db->settling;
  d->holder = c->holder;
  d->cycle = c->number;
  for (size_t i = 0; i < c->n; i++) {
    const ns_verdict *v = &c->verdicts[i];
    if (v->status == NS_OK &&
        ns_grow(&d->items, &d->cap, d->n + 1, sizeof *d->items))
      d->items[d->n++] =
          (ns_verdict){.id = v->id, .run = v->run, .lease = v->lease,
                       .kind = v->kind, .status = NS_OK, .dead = v->dead};
  }
}

ns_status ns_in_doubt_resolve(ns_db *db, ns_err *err) {
  ns_settle_doubt *d = &db->settling;
  bool yes;
  ns_status st;
  if (d->written == d->n)
    return NS_OK;
  if ((st = ns_db_ready(db, err)) != NS_OK ||
      (st = ns_holder_committed(
           db, &(ns_doubtful){d->holder, d->cycle, d->items + d->written, d->n - d->written}, &yes,
           err)) != NS_OK)
    return st;
  if (!yes)
    d->n = d->written;
  for (; d->written < d->n; d->written++) {
    const ns_verdict *v = &d->items[d->written];
    if (ns_claim_leases_settle(&db->claim.leases, v->lease, v->id, v->run))
      ns_claim_leases_drop(&db->claim.leases, v->lease);
  }
  return NS_OK;
}

void ns_in_doubt_own_up(ns_db *db, ns_verdict *v) {
  ns_settle_doubt *d = &db->settling;
  for (size_t i = 0; v->status == NS_ESTALE && i < d->written; i++) {
    const ns_verdict *w = &d->items[i];
    if (w->id != v->id || w->run != v->run || w->kind != v->kind)
      continue;
    v->status = NS_OK;
    v->dead = w->dead;
    d->items[i] = d->items[--d->written];
    d->n--;
  }
}
