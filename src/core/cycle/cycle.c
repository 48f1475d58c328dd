/*
** The cycle: settle + promote + claim in one transaction. Its verdicts are in
** cycle/verdicts.c, the claim of a single handle is in cycle/single.c.
**
** Invariant: memory (lanes, verdict statuses, settled claims) changes only after the commit is
** known. A claim's lease is remembered before, while it can still be refused, and forgotten
** again when its transaction fails. Each cycle that writes puts its number into the holder's
** row; after a cut at COMMIT that row says whether it happened. When the row cannot be read,
** the claims stay in doubt until the next cycle looks for the lease. The verdicts stay in doubt
** until the next cycle has read the number, before it writes anything. A written verdict is
** then OK, not STALE, when its caller comes with it again.
*/
#include "cycle/cycle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "claim/claim.h"
#include "db/db.h"
#include "finish/finish.h"
#include "handle.h"
#include "holder/holder.h"
#include "push/push.h"
#include "settle/settle.h"
#include "wake/wake.h"

#define MANY 16 /* verdicts: then dependents that they release may wait for the next cycle */

static bool has_written(const ns_cycle_work *w) {
  for (size_t i = 0; i < w->nverdicts; i++)
    if (w->verdicts[i].status == NS_OK)
      return true;
  return w->takes.n > 0;
}

/* Has asked for the queues; makes the choice when they are there. */
static ns_status choose_queues(ns_db *db, ns_cycle_work *w, ns_err *err) {
  ns_queue_row *rows;
  size_t n;
  ns_status st;
  if (w->want.choose == NULL)
    return NS_OK;
  if ((st = ns_db_queues_read(db, &rows, &n, err)) == NS_OK &&
      (st = ns_claim_obey(db, err)) == NS_OK)
    w->want.choose(&w->want, rows, n);
  free(rows);
  return st;
}

static ns_status take_rows(ns_db *db, ns_cycle_work *w, ns_err *err) {
  const ns_want *want = &w->want;
  ns_status st = ns_claim_take_alone(db, want->queues, want->nqueues, want->limit, &w->takes, err);
  if (st != NS_OK || w->takes.n > 0)
    return st;
  st = ns_claim_take(db, want->queues, want->nqueues, want->limit, &w->takes, err);
  if (st == NS_OK)
    st = ns_claim_separate(db, &w->takes, err);
  return st == NS_OK && want->nbatched > 0 && w->takes.n >= want->limit
             ? ns_claim_take_more(db, want, &w->takes, err)
             : st;
}

/* The claim's half. When a cycle settles nothing, its first statement is the look at scheduled
** or at the queues: either goes out with the BEGIN. A handle that serves no queue yet looks at
** the queues first. */
static ns_status claim_half(ns_db *db, ns_cycle_work *w, ns_err *err) {
  bool served = w->want.nqueues > 0;
  int64_t began = ns_mono_us();
  ns_status st = served ? ns_claim_promote(db, &w->next_due, err) : NS_OK;
  ns_claim_undo(db, w->lease); /* of an earlier try */
  ns_claim_lanes_end(&db->claim.lanes, false);
  ns_claim_moved(db, false);
  w->takes.n = 0;
  w->lease = 0;
  if (st == NS_OK)
    st = choose_queues(db, w, err);
  if (st == NS_OK && !served && w->want.limit > 0)
    st = ns_claim_promote(db, &w->next_due, err);
  if (st == NS_OK)
    st = ns_db_begun(db, err);
  if (st == NS_OK && w->want.limit > 0)
    st = take_rows(db, w, err);
  if (st == NS_OK && w->takes.n > 0)
    st = ns_claim_lease(db, &w->takes, w->span, &w->lease, err);
  if (st == NS_OK && w->takes.n < w->want.limit)
    ns_claim_next_look(db, w->want.queues, w->want.nqueues, w->takes.n == 0, began,
                       &w->next_due);
  return st;
}

/* A single ack in the caller's transaction takes one statement, where that can be. */
static ns_status settle_half(ns_db *db, ns_cycle_work *w, ns_err *err) {
  bool written = false;
  ns_status st = NS_OK;
  if (db->user_tx && w->nverdicts == 1 && ns_settle_one_open(db, w->verdicts))
    st = ns_settle_one_joined(db, w->verdicts, &written, err);
  return st != NS_OK || written ? st : ns_settle_batch(db, w->verdicts, w->nverdicts, err);
}

static ns_status cycle_run(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_cycle_work *w = tx->arg;
  bool claims = w->want.limit > 0;
  ns_status st = NS_OK;
  if (tx->replay && w->holder != 0) {
    st = ns_holder_committed(
        db, &(ns_doubtful){w->holder, w->number, w->verdicts, w->nverdicts}, &tx->done, err);
    if (st != NS_OK || tx->done)
      return st; /* the transaction is committed; memory has its results */
  }
  if (claims && db->holder == 0) { /* declared dead in an earlier try */
    if ((st = ns_db_begun(db, err)) == NS_OK)
      st = ns_register(db, db->is_host, err);
  }
  if (st == NS_OK && claims && w->want.nqueues > 0)
    st = ns_claim_admission_enter(db, w->want.queues[0].queue_id, err);
  w->holder = db->holder;
  ns_finish_late(db, claims && w->nverdicts >= MANY);
  if (st == NS_OK && claims && w->want.choose != NULL)
    st = ns_db_send_query(db, NS_SQL_QUEUE_LIST, NULL, err);
  if (st == NS_OK && !claims && w->nverdicts == 0)
    st = ns_db_begun(db, err);
  if (st == NS_OK)
    st = settle_half(db, w, err);
  if (st == NS_OK && claims)
    st = claim_half(db, w, err);
  if (st == NS_OK)
    st = ns_finish_notify(db, err);
  if (st == NS_OK && w->tells)
    st = ns_finish_pending_notify(db, err);
  if (st == NS_OK && db->holder != 0 && !db->user_tx && has_written(w))
    st = ns_holder_cycle(db, w->number, err);
  return st;
}

/* Verdicts inside the caller's transaction count when it commits. */
static void note_joined(ns_db *db, const ns_verdict *v, size_t n) {
  for (size_t i = 0; i < n; i++)
    db->settle.joined[db->settle.njoined++] =
        (ns_verdict){.id = v[i].id, .run = v[i].run, .lease = v[i].lease, .status = v[i].status};
}

/* Room for that is made before anything is written. */
static ns_status reserve_joined(ns_db *db, size_t n, ns_err *err) {
  return !db->user_tx || ns_grow(&db->settle.joined, &db->settle.capjoined, db->settle.njoined + n,
                                 sizeof *db->settle.joined)
             ? NS_OK
             : ns_no_memory(err);
}

/* ------------------------------------------------------------------ a cycle */

static void read_ahead(ns_db *db, ns_tx *tx) {
  const ns_cycle_work *w = tx->arg;
  ns_claim_admission_leave_ahead(db);
  if (w->takes.n > 0)
    ns_claim_read_ahead(db, &w->takes);
}

/* Marks all verdicts as not written, or not known to be. */
void ns_cycle_put_off(ns_verdict *v, size_t n) {
  for (size_t i = 0; i < n; i++) {
    v[i].status = NS_EBUSY;
    v[i].trouble = false;
  }
}

/* Counts a verdict that was written in one statement, though its answer was lost. */
static void count_one(ns_db *db, const ns_cycle_work *w) {
  const ns_verdict *v = w->verdicts;
  ns_settle_count(db, &(ns_outcome){.v = w->verdicts, .gone = true},
                  ns_claim_leases_find(&db->claim.leases, v->lease, v->id, v->run));
}

/* The session is alive and rolled back, so the number of the cycle tells what a statement that was
** cut has done. */
static bool was_written(ns_db *db, const ns_cycle_work *w, bool *cut) {
  ns_err none;
  bool yes = false;
  bool lives = db->link != NULL && !ns_link_dead(db->link);
  if (*cut && lives)
    *cut = ns_holder_committed(db, &(ns_doubtful){w->holder, w->number, w->verdicts, w->nverdicts},
                               &yes, &none) != NS_OK;
  return yes;
}

/* A single verdict, in one statement, if that can be. What is still in doubt then is looked for by
** 'tx'. */
static bool settles_at_once(ns_db *db, ns_cycle_work *w, ns_tx *tx, ns_err *err) {
  bool cut = false;
  if (db->user_tx || w->nverdicts != 1 || w->want.limit > 0 ||
      !ns_settle_one_open(db, w->verdicts))
    return false;
  w->holder = db->holder;
  if (ns_settle_one(db, w->verdicts, w->number, &cut, err) == NS_OK)
    return true;
  if (was_written(db, w, &cut)) {
    count_one(db, w);
    return true;
  }
  tx->replay = cut;
  return false;
}

static ns_status write_cycle(ns_db *db, ns_cycle_work *w, ns_tx *tx, ns_err *err) {
  ns_status st;
  bool cut;
  if (settles_at_once(db, w, tx, err))
    return NS_OK;
  cut = tx->replay;
  st = ns_db_transact(db, tx, err);
  if (st == NS_OK && cut && tx->done)
    count_one(db, w);
  return st;
}

ns_status ns_cycle_run(ns_db *db, ns_cycle_work *w, ns_err *err) {
  ns_tx tx = {.run = cycle_run, .ahead = read_ahead, .arg = w, .looks = true};
  bool claims = w->want.limit > 0;
  ns_status st = ns_cycle_in_doubt_resolve(db, err);
  if (st == NS_OK)
    st = reserve_joined(db, w->nverdicts, err);
  if (st != NS_OK)
    return st;
  ns_assert(db->settle.doubt.written == db->settle.doubt.n);
  w->number = ++db->cycle;
  w->tells = db->finish.pending_due && db->is_host;
  st = write_cycle(db, w, &tx, err);
  ns_claim_admission_leave(db, st == NS_OK && !tx.replay);
  ns_finish_late(db, false); /* a cycle that failed must not delay the ends of other jobs */
  db->finish.pending_due = db->finish.pending_due || (st != NS_OK && w->tells);
  if (st != NS_OK) {
    db->ahead = 0;
    if (tx.replay)
      ns_cycle_in_doubt_add(db, &(ns_doubtful){w->holder, w->number, w->verdicts, w->nverdicts});
    ns_cycle_put_off(w->verdicts, w->nverdicts);
    if (tx.replay && w->lease != 0)
      ns_claim_in_doubt(db, w->lease);
    else
      ns_claim_undo(db, w->lease);
    return st;
  }
  ns_assert(!db->in_tx);
  if (w->holder != db->holder)
    w->takes.n = 0; /* written, but declared dead since: they are another holder's */
  for (size_t i = 0; i < w->nverdicts; i++)
    ns_cycle_recognise_repeat(db, &w->verdicts[i]);
  if (db->user_tx) {
    note_joined(db, w->verdicts, w->nverdicts);
    return NS_OK;
  }
  ns_settle_done(db, w->verdicts, w->nverdicts);
  if (claims) {
    ns_claim_promoted(db);
    ns_claim_moved(db, true);
    ns_claim_lanes_end(&db->claim.lanes, true);
  }
  if (w->takes.n > 0) {
    db->count.claimed += (int64_t)w->takes.n;
    ns_claim_committed(db, &w->takes);
  }
  if (db->ring_due && !db->is_host)
    ns_ring(db, NULL);
  w->released = db->ring_due && (w->tells || w->nverdicts >= MANY);
  db->ring_due = false;
  return st;
}

/* ---------------------------------------------------------------- verbs */

/* The batch that an earlier call committed but could not read. It takes the
** place of a claim. */
static ns_status read_unread(ns_db *db, ns_cycle_work *w, ns_jobs *out, ns_err *err) {
  size_t before = out->n;
  ns_status st = ns_claim_resolve(db, err);
  if (st != NS_OK || db->claim.unread == 0)
    return st;
  if ((st = ns_db_ready(db, err)) == NS_OK)
    st = ns_claim_read(db, db->claim.unread, NULL, out, err);
  if (out->n > before) {
    w->want.limit = 0;
    w->next_due = 0; /* claim at once */
  }
  return st;
}

static ns_status read_claimed(ns_db *db, const ns_cycle_work *w, ns_jobs *out, ns_err *err) {
  ns_status st = ns_claim_read(db, w->lease, &w->takes, out, err);
  for (int tries = 0; st == NS_EGONE && tries < 3; tries++)
    if ((st = ns_db_ready(db, err)) == NS_OK)
      st = ns_claim_read(db, w->lease, &w->takes, out, err);
  if (st != NS_OK)
    db->claim.unread = w->lease;
  return st;
}

/* '*missed': some rows were of jobs that are gone, cancelled say, and gave nothing; the rows
** behind them are to be claimed at once. */
static ns_status read_taken(ns_db *db, const ns_cycle_work *w, ns_jobs *out, bool *missed,
                            ns_err *err) {
  size_t before = out->n;
  ns_status st = read_claimed(db, w, out, err);
  *missed = st == NS_OK && out->n - before < w->takes.n;
  return st;
}

/* After its deadline a job is not started any more. A job that polls, is meant to (max_polls),
** or has been parked, has its last look. */
static bool is_expired(const ns_job *j, int64_t now) {
  return j->deadline != 0 && now >= j->deadline && j->polls == 0 &&
         j->phase == 0 && j->max_polls < 0;
}

/* Claims that are over, or in memory's way, are not kept. */
static void keep_unsettled(ns_db *db) {
  size_t kept = 0;
  for (size_t i = 0; i < db->claim.nexpired; i++)
    if (db->claim.expired[i].status == NS_EBUSY)
      db->claim.expired[kept++] = db->claim.expired[i];
  db->claim.nexpired = kept;
}

/* Best effort: a job that cannot be ended now is ended with the next claim, or goes back when
** the handle is closed. */
static void end_expired(ns_db *db) {
  ns_cycle_work w = {.verdicts = db->claim.expired, .nverdicts = db->claim.nexpired};
  ns_err none;
  if (db->claim.nexpired > 0 && ns_cycle_run(db, &w, &none) == NS_OK)
    keep_unsettled(db);
}

/* Its row did not tell its name, which is paused; or a program has no use for it. Of a name
** that is not wanted a host's worker says so itself. */
static bool is_foreign(const ns_db *db, const ns_job *j) {
  return db->is_host ? ns_claim_filter_pauses(&db->claim.filter, j->name)
                     : !ns_claim_filter_has(&db->claim.filter, j->name);
}

/* Takes jobs that are too late or of other names out of the jobs claimed from 'first' on. */
static bool drop_expired(ns_db *db, ns_jobs *out, size_t first) {
  int64_t now = ns_now(db);
  size_t kept = first;
  for (size_t i = first; i < out->n; i++) {
    const ns_job j = out->items[i];
    bool late = is_expired(&j, now);
    if ((late || is_foreign(db, &j)) && ns_grow(&db->claim.expired, &db->claim.capexpired,
                                                db->claim.nexpired + 1, sizeof *db->claim.expired))
      db->claim.expired[db->claim.nexpired++] =
          (ns_verdict){.id = j.id,
                       .run = j.run,
                       .lease = j.lease,
                       .kind = late ? NS_EXPIRE : NS_MISSING,
                       .began = -1,
                       .error = ns_str(late ? "its deadline had passed before it was started"
                                            : "it was claimed where its name is not wanted")};
    else
      out->items[kept++] = j;
  }
  if (kept == out->n)
    return false;
  out->n = kept;
  end_expired(db);
  return true;
}

ns_status ns_cycle(ns_db *db, ns_verdict *verdicts, size_t nverdicts,
                   const ns_want *want, ns_jobs *out, int64_t *next_due,
                   ns_err *err) {
  ns_cycle_work w = {.verdicts = verdicts,
                     .nverdicts = nverdicts,
                     .span = db->claim.span,
                     .want = want != NULL ? *want : (ns_want){0},
                     .next_due = -1};
  bool claims = w.want.limit > 0;
  int64_t unread = 0;
  size_t before = out != NULL ? out->n : 0;
  bool again = false;
  ns_status st = NS_OK;
  ns_err_clear(err);
  ns_cycle_put_off(verdicts, nverdicts);
  if (claims && ns_in_transaction(db))
    return ns_fail(err, NS_ESTATE,
                   "claiming inside a transaction is not possible; claim "
                   "first, then begin");
  if (claims && db->holder == 0)
    st = ns_register(db, db->is_host, err);
  if (st == NS_OK && claims) {
    end_expired(db);
    st = read_unread(db, &w, out, err);
    unread = db->claim.unread;
  }
  if (st != NS_OK)
    return st;
  st = ns_cycle_with_verdicts(db, &w, err);
  if (st == NS_OK && unread != 0)
    db->claim.unread = 0; /* a call that fails keeps it: the caller drops 'out' */
  if (st == NS_OK && w.takes.n > 0)
    st = read_taken(db, &w, out, &again, err);
  for (size_t i = 0; st == NS_OK && db->nremoved > 0 && i < w.takes.n; i++)
    ns_db_queue_used(db, w.takes.items[i].queue_id);
  if (st == NS_OK && out != NULL)
    again = drop_expired(db, out, before) || again;
  if (st == NS_OK && !ns_in_transaction(db))
    ns_holder_absolve(db);
  ns_wake_ended(db);
  if (next_due != NULL)
    *next_due =
        again || w.released || ns_claim_alone_next(db, w.want.queues, w.want.nqueues, w.want.limit)
            ? 0
            : w.next_due;
  free(w.takes.items);
  return st;
}

ns_status ns_cycle_one(ns_db *db, int64_t queue_id, ns_jobs *out, ns_err *err) {
  size_t before = out->n;
  const ns_settle_in_doubt *d = &db->settle.doubt;
  ns_status st;
  if (d->written != d->n || !ns_claim_one_open(db, queue_id))
    return NS_OK;
  st = ns_claim_one(db, queue_id, out, err);
  if (out->n > before)
    drop_expired(db, out, before);
  return st;
}
