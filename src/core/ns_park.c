/*
** Parking: jobs that wait for their children, or for a signal.
**
** Invariant: while a parent is being parked its row and those of its live
** children are locked, so no child ends unseen between the count and the commit.
*/
#include "ns_park.h"

#include <stdio.h>

#include "ns_claim.h"
#include "ns_edge.h"
#include "ns_handle.h"

static ns_status no_memory(ns_err *err) {
  return ns_fail(err, NS_ENOMEM, "out of memory");
}

static ns_status lock_brood(ns_db *db, ns_fate *f, ns_err *err) {
  bool all = true;
  ns_status st = ns_brood_lock(db, f->v->id, &all, err);
  for (size_t i = 0; i < f->v->nchildren; i++)
    f->tied = f->tied || f->v->children[i].after.p != NULL;
  if (st == NS_OK && all)
    st = ns_brood_turn(db, f->v->id, &f->tied, &all, err);
  if (st == NS_OK && !all)
    ns_fate_put_off(f);
  return st;
}

/* A parent whose child somebody is ending, or that might close a circle beside
** another, comes with the next cycle: nothing is written of it now. */
ns_status ns_park_lock(ns_db *db, ns_fate *fates, size_t n, ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (fates[i].locked && fates[i].parks && fates[i].v->signal.p == NULL)
      st = lock_brood(db, &fates[i], err);
  return st;
}

/* A child that failed while this run went on, or as it was spawned after one
** that had failed, counts as one that fails later. */
static ns_status fail_with_child(ns_db *db, ns_fate *f, ns_err *err) {
  int64_t child = 0;
  ns_status st = f->v->go_on ? NS_OK
                             : ns_brood_failed(db, f->v->id, f->v->lease, &child, err);
  if (child == 0)
    return st;
  snprintf(f->why, sizeof f->why, "its child, job %lld, failed", (long long)child);
  ns_fate_end(f, "dead", "child failed");
  return st;
}

/* One whose children have all ended is not parked but claimable. */
static ns_status park(ns_db *db, ns_fate *f, ns_err *err) {
  int64_t live = 0;
  int64_t unmet;
  ns_status st = fail_with_child(db, f, err);
  if (st != NS_OK || f->ends)
    return st;
  if ((st = ns_brood_let_go(db, f->v->id, err)) == NS_OK)
    st = ns_brood_wait(db, f->v->id, f->tied, &live, err);
  unmet = live + (f->paused != 0);
  if (st == NS_OK)
    st = ns_run(db, NS_SQL_SETTLE_PARKED,
                (ns_value[]){live == 0       ? ns_vnull
                             : f->v->go_on ? ns_vtext(ns_str("continue"))
                                             : ns_vtext(ns_str("fail")),
                             ns_vint(unmet),
                             f->v->state.p != NULL ? ns_vtext(f->v->state)
                                                   : ns_vnull,
                             ns_vint(f->v->id)},
                err);
  if (st != NS_OK || unmet > 0)
    return st;
  db->ring_due = true;
  return ns_promote_one(db, f->queue_id, f->rank, f->v->id, f->v->run + 1, err);
}

static bool went_on(const ns_fate *f) {
  return f->ends || f->parks || f->v->kind == NS_AGAIN;
}

static int64_t parked_for(const ns_verdict *v) {
  return v->delay < 0 || v->delay > NS_DELAY_MAX ? NS_DELAY_MAX : v->delay;
}

static ns_status schedule(ns_db *db, int64_t id, ns_err *err) {
  ns_buf ids = NS_BUF_INIT;
  ns_value list;
  ns_status st;
  ns_buf_addf(&ids, "[%lld]", (long long)id);
  list = ns_vtext(ns_buf_bytes(&ids));
  st = ids.oom ? no_memory(err) : ns_run(db, NS_SQL_PUSH_SCHEDULED, &list, err);
  ns_buf_free(&ids);
  db->look_at = 0;
  return st;
}

/* What was sent before we look is found here; whoever sends later waits for our
** lock on the job's row, and then finds it scheduled. Who has had a run after the
** deadline, and finds nothing, would be run again at once, for ever. */
static ns_status park_for_signal(ns_db *db, ns_fate *f, ns_err *err) {
  const ns_verdict *v = f->v;
  const ns_value *row = NULL;
  int64_t wish = parked_for(v);
  int64_t span;
  bool sent = false;
  ns_status st = ns_run(db, NS_SQL_SIGNAL_FIND,
                        (ns_value[]){ns_vint(v->id), ns_vtext(v->signal)}, err);
  if (st == NS_OK)
    st = ns_row(db, NS_SQL_SIGNAL_FIND, &row, err);
  sent = st == NS_OK && row != NULL;
  if (st == NS_OK && !sent && f->deadline != 0 && f->now >= f->deadline) {
    snprintf(f->why, sizeof f->why, "its deadline had passed as it waited");
    ns_fate_end(f, "dead", "deadline");
    return NS_OK;
  }
  span = sent ? 0 : wish;
  if (st == NS_OK)
    st = ns_run(db, NS_SQL_SIGNAL_PARK,
                (ns_value[]){ns_vtext(v->signal), ns_vint(span),
                             ns_vint(span), ns_vint(wish),
                             v->state.p != NULL ? ns_vtext(v->state) : ns_vnull,
                             ns_vint(v->id)},
                err);
  if (st != NS_OK || f->paused != 0)
    return st;
  if (!sent)
    return schedule(db, v->id, err);
  db->ring_due = true;
  return ns_promote_one(db, f->queue_id, f->rank, v->id, v->run + 1, err);
}

/* A run that was given a signal, and went on, needs it no more; who has ended
** needs none. */
ns_status ns_park_forget(ns_db *db, const ns_fate *fates, size_t n,
                                ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < n; i++) {
    const ns_fate *f = &fates[i];
    const ns_claimed *c =
        ns_leases_find(&db->leases, f->v->lease, f->v->id, f->v->run);
    if (f->locked && c != NULL && c->heard != 0 && went_on(f))
      st = ns_run(db, NS_SQL_SIGNAL_FORGET,
                  (ns_value[]){ns_vint(f->v->id), ns_vint(c->heard),
                               ns_vint(f->ends)},
                  err);
  }
  return st;
}

ns_status ns_park(ns_db *db, ns_fate *fates, size_t n, ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (fates[i].locked && fates[i].parks)
      st = fates[i].v->signal.p != NULL ? park_for_signal(db, &fates[i], err)
                                        : park(db, &fates[i], err);
  return st;
}
