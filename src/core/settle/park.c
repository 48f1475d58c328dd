/*
** Parking: jobs that wait for their children, or for a signal.
**
** Invariant: while a parent is being parked its row and the rows of its live children are
** locked. So no child ends unseen between the count and the commit. No assert: only the server
** knows the locks.
*/
#include "settle/settle.h"

#include <stdio.h>
#include <stdlib.h>

#include "claim/claim.h"
#include "db/db.h"
#include "finish/finish.h"
#include "handle.h"

static bool is_parking_parent(const ns_outcome *f) {
  return f->locked && f->parks && f->v->signal.p == NULL;
}

/* False: out of memory. The caller frees the items. */
static bool pick_parents(ns_outcome *outcomes, size_t n, ns_parents *p) {
  size_t k = 0;
  for (size_t i = 0; i < n; i++)
    k += is_parking_parent(&outcomes[i]);
  *p = (ns_parents){0};
  if (k == 0)
    return true;
  p->items = malloc(k * sizeof(ns_outcome *));
  for (size_t i = 0; p->items != NULL && i < n; i++)
    if (is_parking_parent(&outcomes[i]))
      p->items[p->n++] = &outcomes[i];
  return p->items != NULL;
}

/* When the signal that this run was given was sent; 0: it was given none. */
static int64_t signal_sent_at(ns_db *db, const ns_outcome *f) {
  const ns_claimed *c = ns_claim_leases_find(&db->claim.leases, f->v->lease, f->v->id, f->v->run);
  return c != NULL ? c->heard : f->v->heard;
}

void ns_settle_park_bound(ns_db *db, ns_outcome *f) {
  int64_t max = f->max_phases >= 0      ? f->max_phases
                : f->v->most >= 0 ? f->v->most
                                        : NS_MAX_PHASES;
  if (!f->parks)
    return;
  f->phases = signal_sent_at(db, f) != 0 ? 1 : f->phases + 1;
  if (max == 0 || f->phases <= max)
    return;
  snprintf(f->why, sizeof f->why,
           "it has waited %lld times since it was pushed or got a signal: let its "
           "handler ask `if job.phase == 0` before it spawns, or push it with a "
           "larger max_phases",
           (long long)max);
  ns_settle_end(f, "dead", "too many phases");
}

/* A parent is put off to the next cycle, with nothing written, if another transaction is ending
** a child of it. So is a parent that might close a circle beside another. */
ns_status ns_settle_park_lock(ns_db *db, ns_outcome *outcomes, size_t n, ns_err *err) {
  ns_parents p;
  ns_status st = NS_OK;
  if (!pick_parents(outcomes, n, &p))
    return ns_no_memory(err);
  if (p.n > 0)
    st = ns_settle_children_lock(db, &p, err);
  free(p.items);
  return st;
}

/* The writes for parked jobs. */
typedef struct parking {
  ns_buf list; /* "[[waits,unmet,id,phases],…" */
  size_t n;
  ns_released *free;
  size_t nfree;
} parking;

/* A parent with children that have all ended is not parked but claimable. */
static void parking_add(parking *k, const ns_outcome *f) {
  int64_t unmet = f->live + (f->paused != 0);
  ns_buf_adds(&k->list, k->n++ > 0 ? ",[" : "[[");
  ns_buf_adds(&k->list, f->live == 0     ? "null"
                        : f->v->go_on    ? "\"continue\""
                                         : "\"fail\"");
  ns_buf_addf(&k->list, ",%lld,%lld,%lld]", (long long)unmet,
              (long long)f->v->id, (long long)f->phases);
  if (unmet == 0)
    k->free[k->nfree++] = (ns_released){.queue_id = f->queue_id, .rank = f->rank, .kind = f->kind,
                                        .id = f->v->id, .run = f->v->run + 1};
}

static ns_status write_parking(ns_db *db, parking *k, ns_err *err) {
  ns_status st;
  if (k->n == 0)
    return NS_OK;
  st = ns_db_list_change(db, NS_SQL_SETTLE_PARKED, NULL, &k->list, k->n, err);
  return st == NS_OK ? ns_finish_release(db, k->free, k->nfree, err) : st;
}

/* Few have one. */
static ns_status write_state(ns_db *db, const ns_verdict *v, ns_err *err) {
  if (v->state.p == NULL)
    return NS_OK;
  return ns_db_bulk_changing(
      db, NS_SQL_SETTLE_STATE, /* the same again changes nothing */
      (ns_column[]){{NS_TEXT, NULL, &v->state, NULL}, {NS_INT, &v->id, NULL, NULL}}, 1, 0, err);
}

/* Parents without failed children. */
static ns_status park_rest(ns_db *db, const ns_parents *p, ns_err *err) {
  parking k = {NS_BUF_INIT, 0, malloc(p->n * sizeof *k.free), 0};
  ns_status st = k.free != NULL ? ns_settle_children_wait(db, p, err) : ns_no_memory(err);
  for (size_t i = 0; st == NS_OK && i < p->n; i++)
    if (p->items[i]->parks) {
      parking_add(&k, p->items[i]);
      st = write_state(db, p->items[i]->v, err);
    }
  if (st == NS_OK)
    st = write_parking(db, &k, err);
  ns_buf_free(&k.list);
  free(k.free);
  return st;
}

static ns_status park_parents(ns_db *db, ns_outcome *outcomes, size_t n, ns_err *err) {
  ns_parents p;
  ns_status st = NS_OK;
  if (!pick_parents(outcomes, n, &p))
    return ns_no_memory(err);
  if (p.n > 0 && (st = ns_settle_children_failed(db, &p, err)) == NS_OK)
    st = park_rest(db, &p, err);
  free(p.items);
  return st;
}

static bool has_used_signal(const ns_outcome *f) {
  return f->ends || f->parks || f->v->kind == NS_AGAIN;
}

static int64_t parked_for(const ns_verdict *v) {
  return v->delay < 0 || v->delay > NS_DELAY_MAX ? NS_DELAY_MAX : v->delay;
}

static ns_status schedule_deadline(ns_db *db, const ns_outcome *f, ns_err *err) {
  ns_buf ids = NS_BUF_INIT;
  ns_db_list_add_pair(&ids, f->v->id, f->kind);
  db->claim.promote_at = 0;
  return ns_db_list_change(db, NS_SQL_PUSH_SCHEDULED, NULL, &ids, 1, err);
}

/* A signal that was sent before we look is found here. A signal that is sent later waits for
** our lock on the job's row, and then finds it scheduled. A job that has had a run after the
** deadline, and finds none, would be run again at once, for ever. */
static ns_status park_for_signal(ns_db *db, ns_outcome *f, ns_err *err) {
  const ns_verdict *v = f->v;
  const ns_value *row = NULL;
  int64_t wish = parked_for(v);
  int64_t span;
  bool sent = false;
  ns_status st =
      ns_db_run(db, NS_SQL_SIGNAL_FIND, (ns_value[]){ns_vint(v->id), ns_vtext(v->signal)}, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_SIGNAL_FIND, &row, err);
  sent = st == NS_OK && row != NULL;
  if (st == NS_OK && !sent && f->deadline != 0 && f->now >= f->deadline) {
    snprintf(f->why, sizeof f->why, "its deadline had passed as it waited");
    ns_settle_end(f, "dead", "deadline");
    return NS_OK;
  }
  span = sent ? 0 : wish;
  if (st == NS_OK)
    st = ns_db_run(db, NS_SQL_SIGNAL_PARK,
                   (ns_value[]){ns_vint(f->phases), ns_vtext(v->signal), ns_vint(span),
                                ns_vint(span), ns_vint(wish),
                                v->state.p != NULL ? ns_vtext(v->state) : ns_vnull, ns_vint(v->id)},
                   err);
  if (st != NS_OK || f->paused != 0)
    return st;
  if (!sent)
    return schedule_deadline(db, f, err);
  db->ring_due = true;
  return ns_claim_promote_one(db, f->queue_id, f->rank, v->id, v->run + 1, f->kind, err);
}

/* A run that was given a signal, and went on, needs it no more; neither does an ended job. */
ns_status ns_settle_signals_forget(ns_db *db, const ns_outcome *outcomes, size_t n, ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < n; i++) {
    const ns_outcome *f = &outcomes[i];
    int64_t sent = f->locked && has_used_signal(f) ? signal_sent_at(db, f) : 0;
    if (sent != 0)
      st = ns_db_run(db, NS_SQL_SIGNAL_FORGET,
                     (ns_value[]){ns_vint(f->v->id), ns_vint(sent), ns_vint(f->ends)}, err);
  }
  return st;
}

ns_status ns_settle_park(ns_db *db, ns_outcome *outcomes, size_t n, ns_err *err) {
  ns_status st = park_parents(db, outcomes, n, err);
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (outcomes[i].locked && outcomes[i].parks && !is_parking_parent(&outcomes[i]))
      st = park_for_signal(db, &outcomes[i], err);
  return st;
}
