/*
** What a run leaves behind with its verdict: its row among the running jobs, and its place under a
** limit. A limit gives places to jobs that run already, too. The last of a batch leaves the lease.
** A verdict that stops its group or its queue does so here.
**
** Invariant: a place is given up in the transaction that writes the verdict, also when that is
** STALE. Jobs that wait for a place are rung for after the commit. A lease is deleted only with
** all of its claims settled.
*/
#include "admission/admission.h"
#include "db/db.h"
#include "handle.h"
#include "settle/settle.h"

bool ns_settle_is_over(const ns_verdict *v) {
  return v->status == NS_OK || v->status == NS_ESTALE;
}

/* Deletes lease rows with last open claims that are all among these verdicts. */
ns_status ns_settle_delete_leases(ns_db *db, const ns_outcome *outcomes, size_t n, ns_err *err) {
  ns_status st = NS_OK;
  if (db->user_tx)
    return NS_OK; /* after the caller's commit */
  for (size_t i = 0; st == NS_OK && i < db->claim.leases.n; i++) {
    ns_lease *b = &db->claim.leases.items[i];
    size_t over = 0;
    for (size_t k = 0; k < n; k++)
      over += outcomes[k].v->lease == b->id && ns_settle_is_over(outcomes[k].v) &&
              ns_claim_leases_find(&db->claim.leases, b->id, outcomes[k].v->id,
                                   outcomes[k].v->run) != NULL;
    if (over > 0 && over == b->open)
      st = ns_claim_lease_delete(db, b, err);
  }
  return st;
}

/* A job that comes back may keep the others of its group, or of its queue, from starting. */
static ns_status stop_others(ns_db *db, const ns_outcome *f, ns_err *err) {
  const ns_verdict *v = f->v;
  if (v->stop == 0 || v->kind != NS_AGAIN || v->status != NS_OK || !f->locked || f->ends)
    return NS_OK;
  return ns_admission_stop(db, f->queue_id, v->id, f->due - f->now, v->stop == 2, err);
}

static ns_status hide(ns_db *db, const ns_verdict *v, ns_err *err) {
  return ns_db_bulk_changing(db, NS_SQL_SETTLE_HIDDEN, (ns_column[]){{NS_INT, &v->id, NULL, NULL}},
                             1, 0, err);
}

/* Also a claim that its holder, which is us, does not know: its lease, and so its place, stays. */
static bool may_have_place(const ns_db *db, const ns_claimed *c) {
  return c != NULL ? ns_claim_may_have_place(db, c)
                   : db->settle.blamed != 0 && db->settle.blamed == db->holder;
}

ns_status ns_settle_leave_runs(ns_db *db, const ns_outcome *outcomes, size_t n, ns_err *err) {
  ns_buf places = NS_BUF_INIT;
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < n; i++) {
    const ns_verdict *v = outcomes[i].v;
    const ns_claimed *c = ns_claim_leases_find(&db->claim.leases, v->lease, v->id, v->run);
    ns_settle_count(db, &outcomes[i], c);
    if (c != NULL && c->shown && ns_settle_is_over(v))
      st = hide(db, v, err);
    if (ns_settle_is_over(v) && may_have_place(db, c)) {
      ns_db_list_add_pair(&places, v->id, v->run);
      ns_claim_place_freed(db, c != NULL ? c->queue_id : outcomes[i].queue_id);
    }
    if (st == NS_OK)
      st = stop_others(db, &outcomes[i], err);
  }
  if (!ns_db_list_is_empty(&places) && st == NS_OK) {
    st = ns_admission_release(db, &places, err);
    db->ring_due = true;
  }
  ns_buf_free(&places);
  return st;
}
