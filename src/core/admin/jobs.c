/*
** Verbs from outside: cancel, retry, run-now, priorities, queues, signals.
**
** Invariant: each verb locks the job's row before it looks at anything else, so it is
** serialised with verdicts. A row that it leaves in ready or in a lease is stale by its run;
** the claim that meets it drops it. No assert: only the server knows the locks.
*/
#include "admin/admin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "db/db.h"
#include "finish/finish.h"
#include "push/push.h"
#include "source/source.h"
#include "tree/tree.h"

/* --------------------------------------------------------------- the row */

ns_status ns_admin_lock_live(ns_db *db, int64_t id, ns_live *l, ns_err *err) {
  const ns_value *r = NULL;
  ns_value param = ns_vint(id);
  ns_status st = ns_db_run(db, NS_SQL_ADMIN_LOCK, &param, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_ADMIN_LOCK, &r, err);
  l->found = st == NS_OK && r != NULL;
  ns_buf_reset(&l->key);
  if (!l->found)
    return st;
  l->queue_id = r[0].i;
  l->rank = r[1].i;
  l->run = r[2].i;
  l->unmet = r[3].i;
  l->due = r[4].i;
  if (r[5].type == NS_TEXT)
    ns_buf_add(&l->key, r[5].s.p, r[5].s.n);
  l->now = r[6].i;
  l->paused = r[7].type != NS_NULL;
  l->kind = r[8].i;
  l->parent = ns_int_or(&r[9], 0);
  l->awaits = r[10].i != 0;
  l->deadline = ns_int_or(&r[11], 0);
  l->attempts = r[12].i;
  l->max_attempts = r[13].i;
  ns_admission_leaves(db, l->queue_id, &r[14]);
  return l->key.oom ? ns_no_memory(err) : NS_OK;
}

ns_status ns_admin_lock_past(ns_db *db, int64_t id, ns_past *p, ns_err *err) {
  const ns_value *r = NULL;
  ns_value param = ns_vint(id);
  ns_status st = ns_db_run(db, NS_SQL_ADMIN_FINISHED, &param, err);
  p->outcome[0] = '\0';
  ns_buf_reset(&p->key);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_ADMIN_FINISHED, &r, err);
  if (st != NS_OK || r == NULL)
    return st;
  snprintf(p->outcome, sizeof p->outcome, "%.*s", (int)r[0].s.n, r[0].s.p);
  p->run = r[1].i;
  p->queue_id = r[2].i;
  if (r[3].type == NS_TEXT)
    ns_buf_add(&p->key, r[3].s.p, r[3].s.n);
  p->priority = r[4].i;
  p->parent = ns_int_or(&r[5], 0);
  p->kind = r[6].i;
  return p->key.oom ? ns_no_memory(err) : NS_OK;
}

/* Best effort: a row that cannot be locked at once stays, and is stale. */
static void unschedule(ns_db *db, int64_t id, int64_t due) {
  ns_err none;
  if (!db->never_fast)
    ns_db_run(db, NS_SQL_ADMIN_UNSCHEDULE, (ns_value[]){ns_vint(due), ns_vint(id)}, &none);
}

ns_status ns_admin_run(ns_db *db, ns_admin_work *w, ns_status (*run)(ns_db *, ns_tx *, ns_err *),
                       ns_err *err) {
  ns_tx tx = {.run = run, .arg = w};
  bool begun = ns_action_begin(db, w->verb, w->id, w->detail, 0);
  ns_status st = ns_db_transact(db, &tx, err);
  ns_action_end(db, begun);
  ns_buf_free(&w->now.key);
  ns_buf_free(&w->then.key);
  if (db->user_tx)
    return st;
  ns_admission_pass(db, st == NS_OK);
  if (st != NS_OK)
    return st;
  if (db->ring_due)
    ns_ring(db, NULL);
  db->ring_due = false;
  ns_finish_pending_retry(db);
  return st;
}

/* ---------------------------------------------------------------- cancel */

/* No lease of the job's run was seen. A lease that is there by now is of a holder that may have
** read the job before our commit. */
static void tell_claimer(ns_db *db, const ns_admin_work *w) {
  char token[64];
  const ns_value *row = NULL;
  const ns_value params[] = {ns_vint(w->id), ns_vint(w->now.run)};
  ns_err none;
  if (db->user_tx || !w->now.found || ns_db_run(db, NS_SQL_ADMIN_HELD, params, &none) != NS_OK ||
      ns_db_row(db, NS_SQL_ADMIN_HELD, &row, &none) != NS_OK || row == NULL)
    return;
  snprintf(token, sizeof token, "[[%lld,%lld]]", (long long)w->id, (long long)w->now.run);
  ns_tree_tell(db, "cancelled", w->reason, ns_str(token));
}

/* No live row: finished already, or never there. After a cut at the commit
** "cancelled" is our own doing. */
static ns_status cancel_late(ns_db *db, ns_admin_work *w, bool replay, ns_err *err) {
  ns_status st = ns_admin_lock_past(db, w->id, &w->then, err);
  if (st != NS_OK)
    return st;
  if (w->then.outcome[0] == '\0')
    return ns_db_no_job(w->id, err);
  if (replay && strcmp(w->then.outcome, "cancelled") == 0)
    return NS_OK;
  return ns_fail(err, NS_ESTATE, "job %lld has finished already: %s", (long long)w->id,
                 w->then.outcome);
}

static ns_status cancel_run(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_admin_work *w = tx->arg;
  ns_end end = {.id = w->id,
                .outcome = "cancelled",
                .reason = "cancelled",
                .attempts = -1,
                .polls = -1,
                .crashes = -1,
                .lease = -1,
                .said = w->reason};
  ns_status st = ns_admin_lock_live(db, w->id, &w->now, err);
  if (st != NS_OK)
    return st;
  if (!w->now.found)
    return cancel_late(db, w, tx->replay, err);
  end.queue_id = w->now.queue_id;
  if (w->now.key.n > 0)
    end.unique = ns_buf_bytes(&w->now.key);
  if (w->now.due > w->now.now)
    unschedule(db, w->id, w->now.due);
  st = ns_db_run(db, NS_SQL_ADMIN_NOTICE,
                 (ns_value[]){ns_vtext(ns_str("cancelled")), ns_vtext(ns_finish_reason(w->reason)),
                              ns_vint(w->id), ns_vint(w->now.run)},
                 err);
  w->noticed = st == NS_OK && ns_db_affected(db, NS_SQL_ADMIN_NOTICE) > 0;
  tx->jobs = 1;
  if (st == NS_OK)
    st = ns_finish(db, &end, 1, err);
  return st == NS_OK ? ns_db_bulk_changing(db, NS_SQL_SETTLE_HIDDEN,
                                           (ns_column[]){{NS_INT, &w->id, NULL, NULL}}, 1, 0, err)
                     : st;
}

/* Best effort: a host that is not woken reads its notices within 10 s. */
static void nudge_holder(ns_db *db, int64_t id) {
  const ns_value *row = NULL;
  ns_value param = ns_vint(id);
  ns_err none;
  if (ns_db_run(db, NS_SQL_ADMIN_NOTIFIED, &param, &none) == NS_OK &&
      ns_db_row(db, NS_SQL_ADMIN_NOTIFIED, &row, &none) == NS_OK && row != NULL)
    ns_db_run(db, NS_SQL_LISTEN_NUDGE, (ns_value[]){row[0], ns_vint(0)}, &none);
}

ns_status ns_cancel(ns_db *db, int64_t id, ns_bytes reason, ns_err *err) {
  ns_admin_work w = {.verb = "cancel", .detail = reason, .id = id, .reason = reason};
  ns_status st = ns_admin_run(db, &w, cancel_run, err);
  if (st == NS_OK && w.noticed && !db->user_tx)
    nudge_holder(db, id);
  else if (st == NS_OK)
    tell_claimer(db, &w);
  return st;
}

/* ----------------------------------------------------------------- retry */

static ns_status key_taken(const ns_admin_work *w, const ns_key_owner *owner, ns_err *err) {
  ns_bytes key = ns_buf_bytes(&w->then.key);
  ns_fail(err, NS_EDUPLICATE,
          "job %lld cannot run again: job %lld, which %s, has its unique key '%.*s'",
          (long long)w->id, (long long)owner->job,
          owner->done ? "is done within its period" : "has not finished", (int)key.n, key.p);
  if (err != NULL)
    err->job = owner->job;
  return NS_EDUPLICATE;
}

static ns_status retry_key(ns_db *db, ns_admin_work *w, ns_err *err) {
  const ns_key key = {w->then.queue_id, ns_buf_bytes(&w->then.key), w->id, 0};
  ns_key_owner owner;
  ns_status st;
  if (w->then.key.n == 0)
    return NS_OK;
  st = ns_push_key_take(db, &key, &owner, err);
  return st == NS_EDUPLICATE ? key_taken(w, &owner, err) : st;
}

static ns_status retry_run(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_admin_work *w = tx->arg;
  int64_t rank, run;
  char text[32];
  ns_value id = ns_vint(w->id);
  ns_value list;
  const ns_value all_signals[] = {id, ns_vint(0), ns_vint(1)};
  bool is_row;
  ns_status st = ns_source_retry(db, w->id, &is_row, err);
  if (is_row)
    tx->jobs = 1;
  if (st != NS_OK || is_row)
    return st;
  st = ns_admin_lock_past(db, w->id, &w->then, err);
  if (st == NS_OK && w->then.outcome[0] == '\0') {
    if ((st = ns_admin_lock_live(db, w->id, &w->now, err)) != NS_OK || !w->now.found)
      return st == NS_OK ? ns_db_no_job(w->id, err) : st;
    return tx->replay ? NS_OK
                      : ns_fail(err, NS_ESTATE,
                                "job %lld has not finished; only finished jobs "
                                "are retried",
                                (long long)w->id);
  }
  snprintf(text, sizeof text, "[%lld]", (long long)w->id);
  list = ns_vtext(ns_str(text));
  if (st == NS_OK && (st = retry_key(db, w, err)) == NS_OK &&
      (st = ns_db_run(db, NS_SQL_ADMIN_UNMET, &id, err)) == NS_OK &&
      (st = ns_db_run(db, NS_SQL_SIGNAL_FORGET, all_signals, err)) == NS_OK &&
      (st = ns_tree_leave_past(db, list, err)) == NS_OK &&
      (st = ns_db_run(db, NS_SQL_ADMIN_RETRY, &id, err)) == NS_OK)
    st = ns_db_run(db, NS_SQL_ADMIN_FORGET, &id, err);
  if (st != NS_OK)
    return st;
  tx->jobs = 1;
  rank = 255 - w->then.priority;
  run = w->then.run + 1;
  db->ring_due = true;
  return ns_claim_promote_one(db, w->then.queue_id, rank, w->id, run, w->then.kind, err);
}

ns_status ns_retry(ns_db *db, int64_t id, ns_err *err) {
  ns_admin_work w = {.verb = "retry", .id = id};
  return ns_admin_run(db, &w, retry_run, err);
}

/* --------------------------------------------------------------- run now */

ns_status ns_admin_ended(ns_db *db, ns_admin_work *w, ns_err *err) {
  ns_status st = ns_admin_lock_past(db, w->id, &w->then, err);
  if (st != NS_OK || w->then.outcome[0] == '\0')
    return st == NS_OK ? ns_db_no_job(w->id, err) : st;
  return ns_fail(err, NS_ESTATE, "job %lld has finished already: %s", (long long)w->id,
                 w->then.outcome);
}

/* Did the statement take a row? */
static ns_status delete_row(ns_db *db, ns_sql sql, const ns_value *params, bool *taken,
                            ns_err *err) {
  ns_status st = ns_db_run(db, sql, params, err);
  *taken = st == NS_OK && ns_db_affected(db, sql) > 0;
  return st;
}

/* Is it scheduled, or has it just been promoted? Waits for the session that promotes it. A job
** with a row that is missing before its time is in no place, and goes on from here. */
static ns_status leave_schedule(ns_db *db, ns_admin_work *w, bool *promoted, ns_err *err) {
  const ns_value at[] = {ns_vint(w->now.due), ns_vint(w->id)};
  bool taken;
  ns_status st = delete_row(db, NS_SQL_ADMIN_TAKE_SCHEDULED, at, &taken, err);
  if (st == NS_OK && !taken)
    st = ns_admin_lock_live(db, w->id, &w->now, err);
  *promoted = st == NS_OK && !taken && w->now.due <= w->now.now;
  return st;
}

static ns_status not_scheduled(const ns_admin_work *w, ns_err *err) {
  return ns_fail(err, NS_ESTATE, "job %lld is not scheduled: it is %s", (long long)w->id,
                 w->now.paused      ? "paused"
                 : w->now.unmet > 0 ? "waiting for other jobs"
                                    : "ready or running");
}

static ns_status run_now_run(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_admin_work *w = tx->arg;
  int64_t run;
  bool promoted;
  ns_value id = ns_vint(w->id);
  ns_status st = ns_admin_lock_live(db, w->id, &w->now, err);
  if (st != NS_OK)
    return st;
  if (!w->now.found)
    return ns_admin_ended(db, w, err);
  if (w->now.unmet > 0 || w->now.due <= w->now.now)
    return tx->replay ? NS_OK : not_scheduled(w, err);
  if ((st = leave_schedule(db, w, &promoted, err)) != NS_OK)
    return st;
  if (promoted)
    return not_scheduled(w, err);
  if ((st = ns_db_run(db, NS_SQL_ADMIN_DUE_NOW, &id, err)) != NS_OK)
    return st;
  tx->jobs = 1;
  run = w->now.run + 1;
  db->ring_due = true;
  return ns_claim_promote_one(db, w->now.queue_id, w->now.rank, w->id, run, w->now.kind, err);
}

ns_status ns_run_now(ns_db *db, int64_t id, ns_err *err) {
  ns_admin_work w = {.verb = "run_now", .id = id};
  return ns_admin_run(db, &w, run_now_run, err);
}

/* ----------------------------------------------------------- reprioritise */

ns_status ns_admin_take(ns_db *db, const ns_admin_work *w, bool *taken, ns_err *err) {
  const ns_live *j = &w->now;
  const ns_claim_place at = {j->queue_id, j->rank, w->id, j->run, j->due};
  return ns_claim_withdraw(db, &at, taken, err);
}

ns_status ns_admin_queue_again(ns_db *db, const ns_admin_work *w, ns_err *err) {
  int64_t rank = w->now.rank;
  int64_t run = w->now.run + 1;
  if (w->now.due <= w->now.now) {
    db->ring_due = true;
    return ns_claim_promote_one(db, w->now.queue_id, rank, w->id, run, w->now.kind, err);
  }
  return ns_db_run(db, NS_SQL_ADMIN_SCHEDULE,
                   (ns_value[]){ns_vint(w->now.due), ns_vint(w->id), ns_vint(w->now.queue_id),
                                ns_vint(rank), ns_vint(run), ns_vint(w->now.kind)},
                   err);
}

static ns_status reprioritise_run(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_admin_work *w = tx->arg;
  int64_t rank = w->rank;
  bool moves = false;
  ns_status st = ns_admin_lock_live(db, w->id, &w->now, err);
  if (st != NS_OK)
    return st;
  if (!w->now.found)
    return ns_admin_ended(db, w, err);
  if (w->now.rank == rank)
    return NS_OK;
  if (w->now.unmet == 0)
    st = ns_admin_take(db, w, &moves, err);
  if (st == NS_OK)
    st = ns_db_run(db, NS_SQL_ADMIN_RANK,
                   (ns_value[]){ns_vint(moves), ns_vint(rank), ns_vint(w->id)}, err);
  tx->jobs = 1;
  w->now.rank = rank;
  return st == NS_OK && moves ? ns_admin_queue_again(db, w, err) : st;
}

ns_status ns_reprioritise(ns_db *db, int64_t id, int64_t priority, ns_err *err) {
  ns_admin_work w = {.verb = "reprioritise", .id = id};
  char text[32];
  if (priority < 0 || priority > 255)
    return ns_fail(err, NS_EINVALID, "the priority must be 0 to 255, got %lld",
                   (long long)priority);
  snprintf(text, sizeof text, "priority %d", (int)priority);
  w.detail = ns_str(text);
  w.rank = 255 - priority;
  return ns_admin_run(db, &w, reprioritise_run, err);
}

/* ----------------------------------------------------------------- queues */

typedef struct pausing {
  ns_bytes queue;
  bool paused;
} pausing;

static ns_status pause_run(ns_db *db, ns_tx *tx, ns_err *err) {
  const pausing *p = tx->arg;
  ns_status st = ns_db_run(db, NS_SQL_ADMIN_PAUSE,
                           (ns_value[]){ns_vint(p->paused), ns_vtext(p->queue)}, err);
  if (st == NS_OK && ns_db_affected(db, NS_SQL_ADMIN_PAUSE) > 0)
    tx->jobs = 0;
  return st;
}

ns_status ns_pause(ns_db *db, ns_bytes queue, bool paused, ns_err *err) {
  pausing p = {queue, paused};
  ns_tx tx = {.run = pause_run, .arg = &p};
  char what[8 + NS_MAX_QUEUE];
  bool begun;
  int64_t id;
  ns_status st = ns_queue_id(db, queue, paused, &id, err);
  if (st != NS_OK)
    return st;
  snprintf(what, sizeof what, "queue %.*s", (int)queue.n, queue.p);
  begun = ns_action_begin(db, paused ? "pause" : "resume", 0, ns_str(what), 0);
  st = ns_db_transact(db, &tx, err);
  ns_action_end(db, begun);
  if (st == NS_OK)
    ns_ring(db, NULL);
  return st;
}

/* ------------------------------------------------------------------- signals */

/* Values sent to jobs from outside, which a parked job waits for. */

#define USUAL_MAX (1 << 20) /* bytes that the procedure takes unless told */

static ns_status check_signal_name(ns_bytes name, ns_err *err) {
  return name.p == NULL || name.n == 0 ? NS_OK
                                       : ns_db_name_check(name, "signal name", NS_MAX_SIGNAL, err);
}

static ns_status check_live(ns_db *db, int64_t id, ns_err *err) {
  ns_value param = ns_vint(id);
  const ns_value *row = NULL;
  ns_status st = ns_db_run(db, NS_SQL_SIGNAL_LIVE, &param, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_SIGNAL_LIVE, &row, err);
  if (st == NS_OK && row == NULL)
    return ns_fail(err, NS_ENOTFOUND, "no live job has the id %lld", (long long)id);
  return st;
}

typedef struct signal_work {
  int64_t id;
  ns_bytes value, name;
} signal_work;

static ns_status signal_run(ns_db *db, ns_tx *tx, ns_err *err) {
  const signal_work *w = tx->arg;
  ns_value limit = ns_vint((int64_t)db->max_payload);
  ns_status st = check_live(db, w->id, err);
  if (st == NS_OK && w->value.n > USUAL_MAX)
    st = ns_db_run(db, NS_SQL_SIGNAL_LIMIT, &limit, err);
  if (st == NS_OK)
    st = ns_db_run(db, NS_SQL_SIGNAL_CALL,
                   (ns_value[]){ns_vint(w->id), ns_vtext(w->value),
                                w->name.p != NULL ? ns_vtext(w->name) : ns_vnull},
                   err);
  tx->jobs = 1;
  return st;
}

/* Programs signal all the time: theirs are traffic, and no actions of people. */
static bool begin_signal(ns_db *db, int64_t id, ns_bytes name) {
  ns_via via = db->action.via;
  return (via == NS_VIA_SHELL || via == NS_VIA_PAGE) && ns_action_begin(db, "signal", id, name, 0);
}

ns_status ns_signal(ns_db *db, int64_t id, ns_bytes value, ns_bytes name, ns_err *err) {
  signal_work w = {id, value, name};
  ns_tx tx = {.run = signal_run, .arg = &w};
  bool begun = false;
  ns_status st = check_signal_name(name, err);
  if (st == NS_OK && value.n > db->max_payload)
    st = ns_fail(err, NS_ETOOBIG, "the value has %zu bytes of JSON; the limit is %zu (max_payload)",
                 value.n, db->max_payload);
  if (st == NS_OK) {
    begun = begin_signal(db, id, name);
    st = ns_db_transact(db, &tx, err);
  }
  ns_action_end(db, begun);
  db->claim.promote_at = 0; /* a look at due jobs: this one may be due by now */
  if (st == NS_OK && db->user_tx)
    db->ring_due = true;
  else if (st == NS_OK)
    ns_ring(db, NULL);
  return st;
}
