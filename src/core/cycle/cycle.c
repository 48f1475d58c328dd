/*
** The cycle: settle + promote + claim in one transaction, and the settle of a
** single handle, which is a cycle of one half. The other one is in cycle/wait.c.
**
** Invariant: memory (lanes, verdict statuses, settled claims) changes only after
** the commit is known; a claim's lease is remembered before, while it can still
** be refused, and forgotten again when its transaction fails. Each cycle that writes
** puts its number into the holder's row; after a cut at COMMIT that row says whether it
** happened. When it cannot
** be asked, the claims stay in doubt until the next cycle looks for the lease,
** and the verdicts until the next cycle, before it writes anything, has read
** the number: a verdict that was written is OK when its caller comes with it
** again, not STALE.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claim/claim.h"
#include "cycle/in_doubt.h"
#include "db/db.h"
#include "finish/finish.h"
#include "finish/pending.h"
#include "handle.h"
#include "holder/holder.h"
#include "ns_time.h"
#include "push/insert.h"
#include "settle/settle.h"

#define BUSY_MAX (10 * NS_SECOND) /* ns_settle tries a locked row this long */
#define APART_MAX (NS_SECOND / 20) /* for verdicts that cannot be written together */
#define MANY 16 /* verdicts: then what they release may wait for the next cycle */

/* One cycle on its way. */
typedef struct work {
  ns_verdict *verdicts;
  size_t nverdicts;
  ns_want want;     /* limit 0: nothing is to be claimed */
  ns_claim_rows takes;
  int64_t lease;    /* of takes; 0: nothing was taken */
  int64_t span;     /* µs that lease lasts untouched; 0: as its holder */
  bool released;    /* jobs that the claim came too early for */
  bool tells;       /* what earlier cycles have left in nightshift_met */
  int64_t number;   /* of this cycle */
  int64_t holder;   /* who tried it last: a later one may be registered since */
  int64_t next_due;
} work;

static bool wrote(const work *w) {
  for (size_t i = 0; i < w->nverdicts; i++)
    if (w->verdicts[i].status == NS_OK)
      return true;
  return w->takes.n > 0;
}

/* Has asked for the queues; makes the choice when they are there. */
static ns_status choose(ns_db *db, work *w, ns_err *err) {
  ns_queue_row *rows;
  size_t n;
  ns_status st;
  if (w->want.choose == NULL)
    return NS_OK;
  if ((st = ns_db_queues_read(db, &rows, &n, err)) == NS_OK)
    w->want.choose(&w->want, rows, n);
  free(rows);
  return st;
}

static ns_status take(ns_db *db, work *w, ns_err *err) {
  const ns_want *want = &w->want;
  ns_status st = ns_claim_take_alone(db, want->feeds, want->nfeeds, want->limit, &w->takes, err);
  if (st != NS_OK || w->takes.n > 0)
    return st;
  st = ns_claim_take(db, want->feeds, want->nfeeds, want->limit, &w->takes, err);
  return st == NS_OK ? ns_claim_separate(db, &w->takes, err) : st;
}

/* The first statement of a cycle that settles nothing is the look at scheduled or
** that at the queues: both go out with the one that begins. Who serves no queue yet
** looks at those first. */
static ns_status claim_half(ns_db *db, work *w, ns_err *err) {
  bool served = w->want.nfeeds > 0;
  ns_status st = served ? ns_claim_promote(db, &w->next_due, err) : NS_OK;
  ns_claim_undo(db, w->lease); /* of an earlier try */
  ns_claim_lanes_end(&db->claim.lanes, false);
  w->takes.n = 0;
  w->lease = 0;
  if (st == NS_OK)
    st = choose(db, w, err);
  if (st == NS_OK && !served && w->want.limit > 0)
    st = ns_claim_promote(db, &w->next_due, err);
  if (st == NS_OK)
    st = ns_db_begun(db, err);
  if (st == NS_OK && w->want.limit > 0)
    st = take(db, w, err);
  if (st == NS_OK && w->takes.n > 0)
    st = ns_claim_lease(db, &w->takes, w->span, &w->lease, err);
  if (st == NS_OK && w->takes.n < w->want.limit)
    ns_claim_next_look(db, w->want.feeds, w->want.nfeeds, w->takes.n == 0, &w->next_due);
  return st;
}

static ns_status cycle_run(ns_db *db, ns_tx *tx, ns_err *err) {
  work *w = tx->arg;
  bool claims = w->want.limit > 0;
  ns_status st = NS_OK;
  if (tx->replay && w->holder != 0) {
    st = ns_holder_committed(
        db, &(ns_doubtful){w->holder, w->number, w->verdicts, w->nverdicts}, &tx->done, err);
    if (st != NS_OK || tx->done)
      return st; /* all of it happened; memory has what it did */
  }
  if (claims && db->holder == 0) { /* declared dead in an earlier try */
    if ((st = ns_db_begun(db, err)) == NS_OK)
      st = ns_register(db, db->is_host, err);
  }
  if (st == NS_OK && claims && w->want.nfeeds > 0)
    st = ns_claim_admission_enter(db, w->want.feeds[0].queue_id, err);
  w->holder = db->holder;
  ns_finish_late(db, claims && w->nverdicts >= MANY);
  if (st == NS_OK && claims && w->want.choose != NULL)
    st = ns_db_send_query(db, NS_SQL_QUEUE_LIST, NULL, err);
  if (st == NS_OK && (!claims || w->nverdicts > 0))
    st = ns_db_begun(db, err);
  if (st == NS_OK)
    st = ns_settle_batch(db, w->verdicts, w->nverdicts, err);
  if (st == NS_OK && claims)
    st = claim_half(db, w, err);
  if (st == NS_OK)
    st = ns_finish_tell(db, err);
  if (st == NS_OK && w->tells)
    st = ns_pending_tell(db, err);
  if (st == NS_OK && db->holder != 0 && !db->user_tx && wrote(w))
    st = ns_holder_cycle(db, w->number, err);
  return st;
}

/* Verdicts inside the caller's transaction count when it commits. */
static void note_settled(ns_db *db, const ns_verdict *v, size_t n) {
  for (size_t i = 0; i < n; i++)
    db->tx_settled[db->ntx++] =
        (ns_verdict){.id = v[i].id, .run = v[i].run, .lease = v[i].lease,
                     .status = v[i].status};
}

/* Room for that is made before anything is written. */
static ns_status make_notes(ns_db *db, size_t n, ns_err *err) {
  return !db->user_tx || ns_grow(&db->tx_settled, &db->captx, db->ntx + n,
                                 sizeof *db->tx_settled)
             ? NS_OK
             : ns_no_memory(err);
}

/* ------------------------------------------------------------------ a cycle */

static void read_ahead(ns_db *db, ns_tx *tx) {
  const work *w = tx->arg;
  ns_claim_admission_leave_ahead(db);
  if (w->takes.n > 0)
    ns_claim_read_ahead(db, &w->takes);
}

/* None of them is written, or known to be. */
static void wait_for_another(ns_verdict *v, size_t n) {
  for (size_t i = 0; i < n; i++) {
    v[i].status = NS_EBUSY;
    v[i].trouble = false;
  }
}

static ns_status run_cycle(ns_db *db, work *w, ns_err *err) {
  ns_tx tx = {.run = cycle_run, .ahead = read_ahead, .arg = w, .looks = true};
  bool claims = w->want.limit > 0;
  ns_status st = ns_in_doubt_resolve(db, err);
  if (st == NS_OK)
    st = make_notes(db, w->nverdicts, err);
  if (st != NS_OK)
    return st;
  w->number = ++db->cycle;
  w->tells = db->met_due && db->is_host;
  st = ns_db_transact(db, &tx, err);
  ns_claim_admission_leave(db, st == NS_OK && !tx.replay);
  ns_finish_late(db, false); /* a cycle that failed must not keep others' ends */
  db->met_due = db->met_due || (st != NS_OK && w->tells);
  if (st != NS_OK) {
    db->ahead = 0;
    if (tx.replay)
      ns_in_doubt_add(db, &(ns_doubtful){w->holder, w->number, w->verdicts, w->nverdicts});
    wait_for_another(w->verdicts, w->nverdicts);
    if (tx.replay && w->lease != 0)
      ns_claim_in_doubt(db, w->lease);
    else
      ns_claim_undo(db, w->lease);
    return st;
  }
  if (w->holder != db->holder)
    w->takes.n = 0; /* written, but declared dead since: they are others' */
  for (size_t i = 0; i < w->nverdicts; i++)
    ns_in_doubt_own_up(db, &w->verdicts[i]);
  if (db->user_tx) {
    note_settled(db, w->verdicts, w->nverdicts);
    return NS_OK;
  }
  ns_settle_done(db, w->verdicts, w->nverdicts);
  if (claims) {
    ns_claim_promoted(db);
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

/* ------------------------------------------------------- refused verdicts */

/* Its values are at fault: those that we refuse, and those that the server does. */
static bool is_refusal(ns_status st, const ns_err *err) {
  bool ours = st == NS_EINVALID || st == NS_ETOOBIG || st == NS_EDUPLICATE ||
              st == NS_ENOTFOUND;
  return st != NS_OK && err->sqlerr != 0 ? ns_link_blames_value(err) : ours;
}

/* The server's own trouble with a statement, while the rest of it works. */
static bool is_trouble(ns_status st, const ns_err *err) {
  bool asked = st == NS_ESQL || st == NS_EBUSY || st == NS_EINVALID ||
               st == NS_ETOOBIG || st == NS_EDUPLICATE;
  return st == NS_ESQL || (asked && err->sqlerr != 0 && !is_refusal(st, err) &&
                           !ns_link_retryable(err));
}

const ns_err *ns_trouble(const ns_db *db) {
  return &db->trouble;
}

static void put_off(ns_db *db, ns_verdict *v, const ns_err *err) {
  db->trouble = *err;
  v->status = NS_EBUSY;
  v->trouble = true;
}

/* One whose values the server will not have: its job fails with the server's words
** instead. Those are no handler's, so what is refused then is put off. */
static ns_status settle_refused(ns_db *db, ns_verdict *v, ns_err *err) {
  work w = {.verdicts = v, .nverdicts = 1};
  char text[sizeof err->message];
  ns_status st;
  snprintf(text, sizeof text, "the verdict was refused: %.400s", err->message);
  ns_settle_refused(v, text);
  st = run_cycle(db, &w, err);
  if (!is_refusal(st, err) && !is_trouble(st, err))
    return st;
  put_off(db, v, err);
  return NS_OK;
}

/* Verdicts that failed together go in halves, and so on down to those that fail by
** themselves; the others are written. */
typedef struct apart {
  int64_t until; /* monotonic: then the rest stays BUSY, as others wait for us … */
  bool found;    /* … but one at least is found each time */
} apart;

/* 'st' and 'err': how they failed. */
static ns_status settle_apart(ns_db *db, apart *a, ns_verdict *v, size_t n,
                              ns_status st, ns_err *err) {
  size_t half = n / 2;
  if (n == 1) {
    a->found = true;
    if (is_refusal(st, err))
      return settle_refused(db, v, err);
    put_off(db, v, err);
    return NS_OK;
  }
  st = NS_OK;
  for (size_t from = 0; st == NS_OK && from < n; from = from == 0 ? half : n) {
    work w = {.verdicts = v + from, .nverdicts = from == 0 ? half : n - half};
    if (a->found && ns_mono_us() > a->until)
      break;
    st = run_cycle(db, &w, err);
    if (is_refusal(st, err) || is_trouble(st, err))
      st = settle_apart(db, a, w.verdicts, w.nverdicts, st, err);
  }
  return st;
}

/* Results and states over the limit become failures before the server sees
** them. 'texts' holds one message per verdict. */
static void check_size(const ns_db *db, ns_verdict *v, char *text, size_t size) {
  size_t max = db->max_payload;
  const char *what = v->result.n > max ? "result" : "state";
  size_t n = v->result.n > max ? v->result.n : v->state.n;
  if (n <= max)
    return;
  snprintf(text, size,
           "the %s has %zu bytes of JSON; the limit is %zu (max_payload)", what,
           n, max);
  ns_settle_refused(v, text);
}

#define SIZE_TEXT 128

/* Room for one message per verdict that is too big; NULL when none is. */
static char *check_sizes(const ns_db *db, ns_verdict *v, size_t n) {
  char *texts = NULL;
  size_t max = db->max_payload;
  for (size_t i = 0; i < n; i++)
    if (v[i].result.n > max || v[i].state.n > max) {
      if (texts == NULL && (texts = calloc(n, SIZE_TEXT)) == NULL)
        return NULL; /* then the server refuses, or takes, them */
      check_size(db, &v[i], texts + i * SIZE_TEXT, SIZE_TEXT);
    }
  return texts;
}

/* A message in place of the caller's words lives no longer than the call: a
** verdict that comes again is the caller's again. */
static void give_back(ns_verdict *v, const ns_verdict *given, size_t n) {
  for (size_t i = 0; i < n; i++) {
    ns_verdict now = v[i];
    if (now.error.p == given[i].error.p)
      continue;
    v[i].error = ns_str("the verdict was refused; its attempt says why");
    if (now.status == NS_OK)
      continue;
    v[i] = given[i];
    v[i].status = now.status;
    v[i].trouble = now.trouble;
    v[i].dead = now.dead;
  }
}

/* ---------------------------------------------------------------- verbs */

/* The batch that an earlier call committed but could not read. It takes the
** place of a claim. */
static ns_status read_unread(ns_db *db, work *w, ns_jobs *out, ns_err *err) {
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

static ns_status read_claimed(ns_db *db, const work *w, ns_jobs *out,
                              ns_err *err) {
  ns_status st = ns_claim_read(db, w->lease, &w->takes, out, err);
  for (int tries = 0; st == NS_EGONE && tries < 3; tries++)
    if ((st = ns_db_ready(db, err)) == NS_OK)
      st = ns_claim_read(db, w->lease, &w->takes, out, err);
  if (st != NS_OK)
    db->claim.unread = w->lease;
  return st;
}

/* '*missed': some rows were of jobs that are gone, cancelled say, and gave nothing; those
** behind them are to be claimed at once. */
static ns_status read_taken(ns_db *db, const work *w, ns_jobs *out, bool *missed,
                               ns_err *err) {
  size_t before = out->n;
  ns_status st = read_claimed(db, w, out, err);
  *missed = st == NS_OK && out->n - before < w->takes.n;
  return st;
}

/* Verdicts that are written, of a call that fails all the same: its caller comes with
** them again, but a host sorts them out by their statuses. */
static void remember_written(ns_db *db, const ns_verdict *v, size_t n) {
  ns_settle_doubt *d = &db->settling;
  if (db->is_host)
    return;
  for (size_t i = 0; i < n; i++) {
    if (v[i].status != NS_OK ||
        !ns_grow(&d->items, &d->cap, d->n + 1, sizeof *d->items))
      continue;
    d->items[d->n++] = d->items[d->written];
    d->items[d->written++] =
        (ns_verdict){.id = v[i].id, .run = v[i].run, .lease = v[i].lease,
                     .kind = v[i].kind, .status = NS_OK, .dead = v[i].dead};
  }
}

/* Settles and claims; what cannot be settled together is settled apart. */
static ns_status settle_and_claim(ns_db *db, work *w, ns_err *err) {
  size_t n = w->nverdicts;
  ns_status st = run_cycle(db, w, err);
  if (w->nverdicts == 0 || db->user_tx ||
      (!is_refusal(st, err) && !is_trouble(st, err)))
    return st;
  st = settle_apart(db, &(apart){ns_mono_us() + APART_MAX, false}, w->verdicts,
                    w->nverdicts, st, err);
  w->nverdicts = 0;
  if (st == NS_OK && w->want.limit > 0)
    st = run_cycle(db, w, err);
  if (st != NS_OK)
    remember_written(db, w->verdicts, n);
  return st;
}

/* The verdicts' half of a call: what is too big is replaced, and all of it
** comes back as it was given. */
static ns_status with_verdicts(ns_db *db, work *w, ns_err *err) {
  ns_verdict *v = w->verdicts;
  size_t n = w->nverdicts;
  ns_verdict *given;
  char *texts;
  ns_status st;
  if (n == 0)
    return run_cycle(db, w, err);
  if ((given = malloc(n * sizeof *given)) == NULL)
    return ns_no_memory(err);
  memcpy(given, v, n * sizeof *given);
  texts = check_sizes(db, v, n);
  st = settle_and_claim(db, w, err);
  give_back(v, given, n);
  free(texts);
  free(given);
  return st;
}

/* After its deadline a job is not started any more; one that polls, is meant to
** (max_polls), or has been parked, has its last look. */
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

/* Best effort: what cannot be ended now is ended with the next claim, or goes
** back when the handle is closed. */
static void end_expired(ns_db *db) {
  work w = {.verdicts = db->claim.expired, .nverdicts = db->claim.nexpired};
  ns_err none;
  if (db->claim.nexpired > 0 && run_cycle(db, &w, &none) == NS_OK)
    keep_unsettled(db);
}

/* A program has no use for a job of another name; a host's worker says so itself. */
static bool is_foreign(const ns_db *db, const ns_job *j) {
  return !db->is_host && !ns_claim_filter_has(&db->claim.filter, j->name);
}

/* Takes jobs that are too late, and those of other names, out of those that were
** claimed from 'first' on. */
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
  work w = {.verdicts = verdicts,
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
  wait_for_another(verdicts, nverdicts);
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
  st = with_verdicts(db, &w, err);
  if (st == NS_OK && unread != 0)
    db->claim.unread = 0; /* a call that fails keeps it: the caller drops 'out' */
  if (st == NS_OK && w.takes.n > 0)
    st = read_taken(db, &w, out, &again, err);
  if (st == NS_OK && out != NULL)
    again = drop_expired(db, out, before) || again;
  if (st == NS_OK && !ns_in_transaction(db))
    ns_holder_absolve(db);
  if (next_due != NULL)
    *next_due =
        again || w.released || ns_claim_alone_next(db, w.want.feeds, w.want.nfeeds, w.want.limit)
            ? 0
            : w.next_due;
  free(w.takes.items);
  return st;
}

/* Only the verdict that brought a child can have made it. */
static ns_status was_written(ns_db *db, const ns_verdict *v, bool *yes, ns_err *err) {
  const ns_value *row = NULL;
  ns_status st = ns_db_run(
      db, NS_SQL_SETTLE_BORN,
      (ns_value[]){ns_vint(v->id), ns_vint(ns_seq(v->run, 0)), ns_vint(v->children[0].id)}, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_SETTLE_BORN, &row, err);
  *yes = row != NULL;
  return st;
}

/* No cycle of a holder's says whether a commit that was cut has happened. */
ns_status ns_settle_for(ns_db *db, int64_t holder, ns_verdict *v, ns_err *err) {
  work w = {.verdicts = v, .nverdicts = 1};
  bool yes = false;
  ns_status st;
  ns_err_clear(err);
  wait_for_another(v, 1);
  db->blamed = holder;
  st = with_verdicts(db, &w, err);
  db->blamed = 0;
  if (st == NS_OK && v->status == NS_ESTALE && v->nchildren > 0)
    st = was_written(db, v, &yes, err);
  if (yes)
    v->status = NS_OK;
  if (st == NS_OK)
    ns_pending_rest(db);
  else
    wait_for_another(v, 1);
  return st;
}

ns_status ns_settle(ns_db *db, ns_verdict *v, ns_err *err) {
  int64_t give_up = ns_mono_us() + BUSY_MAX;
  int64_t pause = 2000;
  size_t max = db->max_payload;
  ns_status st;
  if (v->result.n > max || v->state.n > max)
    return ns_fail(err, NS_ETOOBIG,
                   "the %s has %zu bytes of JSON; the limit is %zu "
                   "(max_payload)",
                   v->result.n > max ? "result" : "state",
                   v->result.n > max ? v->result.n : v->state.n, max);
  do {
    work w = {.verdicts = v, .nverdicts = 1};
    ns_err_clear(err);
    st = run_cycle(db, &w, err);
    if (is_trouble(st, err))
      err->status = NS_EBUSY; /* the claim stands: it may be given again */
    if (st != NS_OK)
      return err->status;
    ns_pending_rest(db);
    if (v->status != NS_EBUSY)
      break;
    ns_sleep_us(ns_jitter(pause, 0.5));
    pause = pause < 100000 ? pause * 2 : pause;
  } while (ns_mono_us() < give_up);
  if (v->status == NS_ESTALE)
    return ns_fail(err, NS_ESTALE,
                   "the claim of job %lld, run %lld, is lost: it was settled, "
                   "cancelled or given to somebody else",
                   (long long)v->id, (long long)v->run);
  if (v->status == NS_EBUSY)
    return ns_fail(err, NS_EBUSY,
                   "another transaction has held what job %lld needs for 10 s",
                   (long long)v->id);
  return NS_OK;
}
