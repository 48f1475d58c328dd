/*
** Settling: from verdicts to rows.
**
** The batch is sorted by (id, run). Plain acks in long stretches go first
** (ns_settle_fast_acks). Of the rest settle_lock locks every job with an (id, run) that still
** stands and that no other transaction holds. Each of them is decided in memory: ended or
** returned, with which budgets and when. Then everything is written array-bound in the order of
** the keys. Rows of adopted tables that the handle serves are held before that, and written
** with the rest (source/pay.c).
**
** Invariant: a verdict changes rows only while its (id, run) stands, and each
** return makes run grow, so no token is ever accepted twice.
*/
#include "settle/settle.h"

#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "claim/claim.h"
#include "db/db.h"
#include "finish/finish.h"
#include "handle.h"
#include "push/push.h"
#include "source/source.h"

/* --------------------------------------------------------------- locking */

/* A batch may bring verdicts on several runs of one job: cancelled and retried while one ran. */
static int by_token(const void *a, const void *b) {
  const ns_verdict *x = ((const ns_outcome *)a)->v;
  const ns_verdict *y = ((const ns_outcome *)b)->v;
  return x->id != y->id ? (x->id > y->id) - (x->id < y->id)
                        : (x->run > y->run) - (x->run < y->run);
}

static ns_outcome *find_outcome(ns_outcome *outcomes, size_t n, int64_t id, int64_t run) {
  ns_verdict v = {.id = id, .run = run};
  ns_outcome *key = &(ns_outcome){.v = &v};
  return bsearch(key, outcomes, n, sizeof *outcomes, by_token);
}

enum { L_ID, L_RUN, L_QUEUE, L_RANK, L_ATTEMPTS, L_POLLS, L_CRASHES, L_LOST,
       L_MISSED, L_MISSING_SINCE, L_MAX_ATTEMPTS, L_MAX_POLLS, L_MAX_CRASHES, L_BACKOFF,
       L_DEADLINE, L_ROOT, L_UKEY, L_NOW, L_DECAY, L_PAUSED, L_DUE,
       L_KIND, L_PHASES, L_MAX_PHASES, L_TAGGED };

/* NULL for NULL. False: out of memory. */
static bool copy_text(const ns_value *v, char **out, size_t *n) {
  if (v->type != NS_TEXT)
    return true;
  *n = v->s.n;
  if ((*out = malloc(*n + 1)) != NULL)
    memcpy(*out, v->s.p, *n);
  return *out != NULL;
}

static ns_status fill_outcome(ns_outcome *f, const ns_value *r, ns_err *err) {
  f->locked = true;
  f->v->status = NS_OK;
  f->queue_id = r[L_QUEUE].i;
  f->rank = r[L_RANK].i;
  f->attempts = r[L_ATTEMPTS].i;
  f->polls = r[L_POLLS].i;
  f->crashes = r[L_CRASHES].i;
  f->lost = r[L_LOST].i;
  f->missed = r[L_MISSED].i;
  f->missing_since = ns_int_or(&r[L_MISSING_SINCE], 0);
  f->max_attempts = r[L_MAX_ATTEMPTS].i;
  f->max_polls = ns_int_or(&r[L_MAX_POLLS], -1);
  f->max_crashes = r[L_MAX_CRASHES].i;
  f->backoff = r[L_BACKOFF].i;
  f->deadline = ns_int_or(&r[L_DEADLINE], 0);
  f->root = ns_int_or(&r[L_ROOT], 0);
  f->paused = ns_int_or(&r[L_PAUSED], 0);
  f->now = r[L_NOW].i;
  f->decay = r[L_DECAY].i;
  f->due = r[L_DUE].i;
  f->phases = r[L_PHASES].i;
  f->max_phases = ns_int_or(&r[L_MAX_PHASES], -1);
  f->kind = r[L_KIND].i;
  f->tagged = r[L_TAGGED].i != 0;
  return copy_text(&r[L_UKEY], &f->key, &f->keylen) ? NS_OK : ns_no_memory(err);
}

/* Runs a statement about all outcomes, or only the ones that could not be locked. */
static ns_status ask_about(ns_db *db, ns_sql sql, const ns_outcome *outcomes, size_t n,
                           bool unlocked_only, ns_err *err) {
  ns_buf tokens = NS_BUF_INIT;
  for (size_t i = 0; i < n; i++)
    if (!unlocked_only || !outcomes[i].locked)
      ns_db_list_add_pair(&tokens, outcomes[i].v->id, outcomes[i].v->run);
  return ns_db_list_run(db, sql, NULL, &tokens, err);
}

/* Finds the rows that were not locked but still stand. They are BUSY. */
static ns_status mark_locked_by_others_busy(ns_db *db, ns_outcome *outcomes, size_t n,
                                            ns_err *err) {
  const ns_value *row;
  ns_status st = ask_about(db, NS_SQL_SETTLE_STANDS, outcomes, n, true, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_SETTLE_STANDS, &row, err)) == NS_OK &&
         row != NULL) {
    ns_outcome *f = find_outcome(outcomes, n, row[0].i, row[1].i);
    if (f != NULL && !f->locked)
      f->v->status = NS_EBUSY;
  }
  return st;
}

static ns_status lock_jobs(ns_db *db, ns_outcome *outcomes, size_t n, ns_err *err) {
  const ns_value *row;
  size_t locked = 0;
  ns_status st = ask_about(db, NS_SQL_SETTLE_LOCK, outcomes, n, false, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_SETTLE_LOCK, &row, err)) == NS_OK &&
         row != NULL) {
    ns_outcome *f = find_outcome(outcomes, n, row[L_ID].i, row[L_RUN].i);
    if (f == NULL || f->locked)
      continue;
    ns_assert(row[L_RUN].i == f->v->run);
    st = fill_outcome(f, row, err);
    locked++;
  }
  return st == NS_OK && locked < n ? mark_locked_by_others_busy(db, outcomes, n, err) : st;
}

static ns_bytes key_of(const ns_outcome *f) {
  return (ns_bytes){f->key, f->keylen};
}

/* Has the job a key, and may it end, or its children's failure end it? No push meets the key of
** a row that a program has in work, so such a key is not locked first. */
static bool frees_key(const ns_db *db, const ns_outcome *f) {
  return f->locked && (f->ends || f->parks) && f->key != NULL &&
         !ns_source_is_served(db, key_of(f));
}

/* Locks the unique keys of jobs that end: a key that another transaction holds puts its job off. */
static ns_status lock_keys(ns_db *db, ns_outcome *outcomes, size_t n, ns_err *err) {
  ns_end *ends = calloc(n, sizeof *ends);
  bool *held = calloc(n, sizeof *held);
  ns_status st = ends == NULL || held == NULL ? ns_no_memory(err) : NS_OK;
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (frees_key(db, &outcomes[i]))
      ends[i] = (ns_end){.id = outcomes[i].v->id,
                         .queue_id = outcomes[i].queue_id,
                         .unique = key_of(&outcomes[i])};
  if (st == NS_OK)
    st = ns_finish_keys(db, ends, n, held, err);
  for (size_t i = 0; st == NS_OK && i < n; i++) {
    outcomes[i].key_row = ends[i].key_row;
    if (held[i])
      ns_settle_put_off(&outcomes[i]);
  }
  free(held);
  free(ends);
  return st;
}

/* --------------------------------------------------- rows of adopted tables */

/* Another program has the row that it stands for: it ends, and its verdict is STALE. */
static void end_without_row(ns_outcome *f) {
  f->rowless = true;
  ns_settle_end(f, "cancelled", "the row was taken or changed");
  f->v->status = NS_ESTALE;
}

/* Locks the rows of these jobs, of tables that this handle serves. */
static ns_status hold_rows(ns_db *db, ns_outcome *outcomes, size_t n, ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (outcomes[i].locked)
      st = ns_source_add(db, key_of(&outcomes[i]), outcomes[i].v->id, err);
  return st == NS_OK ? ns_source_hold(db, err) : st;
}

/* --------------------------------------------------------------- writing */

/* Behind a single failure comes settle_return alone, which does nothing in a transaction that this
** row has ended: both take one wait. */
static bool goes_ahead(const ns_outcome *outcomes, size_t n) {
  const ns_outcome *f = outcomes;
  return n == 1 && f->locked && f->attempt != NULL && f->v->kind == NS_FAIL && !f->ends &&
         !f->parks && f->paused == 0 && f->key == NULL;
}

/* Errors and logs come from handlers: whatever bytes they are, the attempt is recorded. With
** 'ahead' its row is only sent. */
static ns_status write_attempt(ns_db *db, const ns_outcome *f, const char *kind, bool ahead,
                               ns_err *err) {
  ns_buf error = NS_BUF_INIT;
  ns_buf log = NS_BUF_INIT;
  int64_t age = ns_claim_run_age(db, f->v->lease, f->v->began);
  ns_status st = NS_ENOMEM;
  ns_buf_add_utf8(&error, f->v->error);
  ns_buf_add_utf8(&log, f->v->log);
  const ns_value row[] = {ns_vint(f->v->id), ns_vint(f->v->run), ns_vtext(ns_str(kind)),
                          ns_vint(ns_db_claimant(db)), ns_vpositive(age), ns_vpositive(f->v->worker),
                          f->v->error.p != NULL ? ns_vtext(ns_buf_bytes(&error)) : ns_vnull,
                          f->v->log.p != NULL ? ns_vtext(ns_buf_bytes(&log)) : ns_vnull};
  if (error.oom || log.oom)
    ns_no_memory(err);
  else if (ahead)
    st = ns_db_send_query(db, NS_SQL_SETTLE_ATTEMPT, row, err);
  else
    st = ns_db_run(db, NS_SQL_SETTLE_ATTEMPT, row, err);
  if (st == NS_OK && f->v->kind == NS_AGAIN)
    st = ns_db_run(db, NS_SQL_SETTLE_OUTPUTS, (ns_value[]){ns_vint(f->v->id)}, err);
  ns_buf_free(&error);
  ns_buf_free(&log);
  return st;
}

/* Writes attempts. A failure that does not end its job is owed to the row of an adopted table. */
static ns_status write_attempts(ns_db *db, const ns_outcome *outcomes, size_t n, ns_err *err) {
  ns_source_owed owed = {0};
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < n; i++) {
    const ns_outcome *f = &outcomes[i];
    const char *kind = ns_settle_keeps_output(db, f) ? "printed" : f->attempt;
    if (!f->locked || kind == NULL)
      continue;
    st = write_attempt(db, f, kind, goes_ahead(outcomes, n), err);
    if (!f->ends && f->attempt != NULL)
      ns_source_note(&owed, key_of(f), f->v->id, true, f->due, NULL);
  }
  if (st == NS_OK)
    return ns_source_owe(db, &owed, err);
  ns_source_owed_free(&owed);
  return st;
}

static ns_status write_ends(ns_db *db, const ns_outcome *outcomes, size_t n, ns_err *err) {
  ns_end *ends = calloc(n, sizeof *ends);
  size_t k = 0;
  ns_status st;
  if (ends == NULL)
    return ns_no_memory(err);
  for (size_t i = 0; i < n; i++) {
    const ns_outcome *f = &outcomes[i];
    bool done = f->v->kind == NS_ACK && !f->rowless;
    if (!f->locked || !f->ends)
      continue;
    ends[k++] = (ns_end){.id = f->v->id,
                         .queue_id = f->queue_id,
                         .outcome = f->outcome,
                         .reason = f->reason,
                         .result = done ? f->v->result : NS_NONE,
                         .error = done || f->rowless  ? NS_NONE
                                  : f->why[0] != '\0' ? ns_str(f->why)
                                                      : f->v->error,
                         .attempts = f->attempts,
                         .max_attempts = done ? 0 : f->max_attempts, /* only a failure sets it */
                         .polls = f->polls,
                         .crashes = f->crashes,
                         .unique = key_of(f),
                         .key_row = done || f->key_row == NS_KEY_LOST ? f->key_row : NS_KEY_FREED,
                         .failed = f->attempt != NULL,
                         .holder = f->v->began >= 0 ? ns_db_claimant(db) : 0,
                         .lease = ns_claim_lease_of_other(db, f->v->lease),
                         .ago = ns_claim_run_age(db, f->v->lease, f->v->began),
                         .worker = f->v->worker,
                         .forgotten = done && db->settle.forgets && f->root == 0,
                         .tried = f->v->run > 1, .tagged = f->tagged};
  }
  st = ns_finish(db, ends, k, err);
  free(ends);
  return st;
}

enum { T_RANK, T_ATTEMPTS, T_POLLS, T_CRASHES, T_LOST, T_MISSED, T_SINCE, T_DUE,
       T_STATE, T_HEARS, T_MOST, T_ID, T_QUEUE, T_RUN, T_OFFSET, T_ALONE, T_KIND, T_COUNT };

/* The columns of all jobs that return, as far as 'later' picks them. */
typedef struct returns {
  int64_t *ints;   /* T_COUNT * n */
  ns_bytes *states;
  char *nulls;
  size_t n, cap;   /* rows, columns' stride */
} returns;

static bool returns_make(returns *r, size_t cap) {
  r->ints = calloc(T_COUNT * cap, sizeof *r->ints);
  r->states = calloc(cap, sizeof *r->states);
  r->nulls = calloc(cap, 1);
  r->n = 0;
  r->cap = cap;
  return r->ints != NULL && r->states != NULL && r->nulls != NULL;
}

static void returns_free(returns *r) {
  free(r->ints);
  free(r->states);
  free(r->nulls);
}

static void returns_add(returns *r, const ns_outcome *f) {
  int64_t values[T_COUNT] = {
      [T_RANK] = f->rank, [T_ATTEMPTS] = f->attempts, [T_POLLS] = f->polls,
      [T_CRASHES] = f->crashes, [T_LOST] = f->lost, [T_MISSED] = f->missed,
      [T_ALONE] = f->lost >= NS_LOST_TOGETHER, [T_SINCE] = f->missing_since,
      [T_DUE] = f->due, [T_ID] = f->v->id,
      [T_HEARS] = f->v->kind != NS_AGAIN, [T_MOST] = f->max_attempts,
      [T_QUEUE] = f->queue_id, [T_RUN] = f->v->run + 1,
      [T_OFFSET] = (int64_t)r->n, [T_KIND] = f->kind};
  for (size_t c = 0; c < T_COUNT; c++)
    r->ints[c * r->cap + r->n] = values[c];
  r->states[r->n] = f->v->kind == NS_AGAIN ? f->v->state : NS_NONE;
  r->nulls[r->n] = f->missed == 0;
  r->n++;
}

static ns_column column_of(const returns *r, size_t c) {
  return (ns_column){c == T_STATE ? NS_TEXT : NS_INT, &r->ints[c * r->cap],
                     r->states, c == T_SINCE ? r->nulls : NULL};
}

static ns_status update_jobs(ns_db *db, const returns *r, ns_err *err) {
  return ns_db_bulk(db, NS_SQL_SETTLE_RETURN,
                    (ns_column[]){column_of(r, T_RANK), column_of(r, T_ATTEMPTS),
                                  column_of(r, T_POLLS), column_of(r, T_CRASHES),
                                  column_of(r, T_LOST), column_of(r, T_MISSED),
                                  column_of(r, T_SINCE), column_of(r, T_DUE), column_of(r, T_STATE),
                                  column_of(r, T_HEARS), column_of(r, T_MOST), column_of(r, T_ID)},
                    r->n, err);
}

static ns_status insert_later(ns_db *db, const returns *r, ns_err *err) {
  if (r->n > 0)
    db->claim.promote_at = 0;
  return ns_db_bulk(db, NS_SQL_SETTLE_SCHEDULED,
                    (ns_column[]){column_of(r, T_DUE), column_of(r, T_ID), column_of(r, T_QUEUE),
                                  column_of(r, T_RANK), column_of(r, T_RUN), column_of(r, T_KIND)},
                    r->n, err);
}

static ns_status insert_now(ns_db *db, const returns *r, ns_err *err) {
  return ns_db_bulk(db, NS_SQL_CLAIM_READY,
                    (ns_column[]){column_of(r, T_QUEUE), column_of(r, T_RANK),
                                  column_of(r, T_OFFSET), column_of(r, T_ID), column_of(r, T_RUN),
                                  column_of(r, T_ALONE), column_of(r, T_KIND)},
                    r->n, err);
}

/* Our next claim looks at those rows; other holders find them with their next sweep. */
static ns_status insert_back(ns_db *db, const returns *r, ns_err *err) {
  for (size_t i = 0; i < r->n; i++)
    ns_claim_lanes_lower(&db->claim.lanes, r->ints[T_QUEUE * r->cap + i],
                         r->ints[T_RANK * r->cap + i], r->ints[T_DUE * r->cap + i]);
  return ns_db_bulk(db, NS_SQL_SETTLE_BACK,
                    (ns_column[]){column_of(r, T_QUEUE), column_of(r, T_RANK), column_of(r, T_DUE),
                                  column_of(r, T_ID), column_of(r, T_RUN), column_of(r, T_ALONE),
                                  column_of(r, T_KIND)},
                    r->n, err);
}

/* Where a job that returns waits: BACK is its place before the claim. A paused job gets no row:
** the resume writes it. */
typedef enum place { LATER, AT_ONCE, BACK, NO_ROW, PLACES } place;

static bool returns_to(const ns_outcome *f, place p) {
  place its = f->paused != 0 ? NO_ROW : f->due > f->now ? LATER : f->keeps ? BACK : AT_ONCE;
  return f->locked && !f->ends && !f->parks && its == p;
}

/* Jobs that return to 'p': their rows change, and where they wait. */
static ns_status write_returns(ns_db *db, const ns_outcome *outcomes, size_t n, place p,
                               ns_err *err) {
  returns r;
  size_t k = 0;
  ns_status st = NS_OK;
  for (size_t i = 0; i < n; i++)
    k += returns_to(&outcomes[i], p);
  if (k == 0)
    return NS_OK;
  if (!returns_make(&r, k))
    st = ns_no_memory(err);
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (returns_to(&outcomes[i], p))
      returns_add(&r, &outcomes[i]);
  if (st == NS_OK)
    st = update_jobs(db, &r, err);
  if (st == NS_OK && p == LATER)
    st = insert_later(db, &r, err);
  if (st == NS_OK && p == AT_ONCE)
    st = insert_now(db, &r, err);
  if (st == NS_OK && p == BACK)
    st = insert_back(db, &r, err);
  db->ring_due = db->ring_due || p == AT_ONCE || p == BACK;
  returns_free(&r);
  return st;
}

/* The failure of an attempt that was sent ahead comes before those behind it. */
static ns_status judge_ahead(ns_db *db, ns_status st, ns_err *err) {
  ns_err why;
  ns_status first = ns_db_read_answer(db, NS_SQL_SETTLE_ATTEMPT, &why);
  if (first == NS_OK)
    return st;
  if (err != NULL)
    *err = why;
  return first;
}

static ns_status write_all(ns_db *db, ns_outcome *outcomes, size_t n, ns_err *err) {
  ns_status st;
  if ((st = ns_settle_children_write(db, outcomes, n, err)) != NS_OK ||
      (st = ns_settle_signals_forget(db, outcomes, n, err)) != NS_OK ||
      (st = ns_settle_park(db, outcomes, n, err)) != NS_OK ||
      (st = write_attempts(db, outcomes, n, err)) != NS_OK ||
      (st = write_ends(db, outcomes, n, err)) != NS_OK)
    return st;
  for (place p = LATER; st == NS_OK && p < PLACES; p++)
    st = write_returns(db, outcomes, n, p, err);
  return goes_ahead(outcomes, n) ? judge_ahead(db, st, err) : st;
}

/* Settles verdicts with outcomes that depend on the job row: all but plain acks. */
static ns_status settle_rest(ns_db *db, ns_outcome *outcomes, size_t n, ns_err *err) {
  ns_status st;
  if (n == 0)
    return NS_OK;
  if ((st = lock_jobs(db, outcomes, n, err)) != NS_OK ||
      (st = hold_rows(db, outcomes, n, err)) != NS_OK)
    return st;
  for (size_t i = 0; i < n; i++)
    if (outcomes[i].locked && ns_source_has_lost(db, outcomes[i].v->id)) {
      end_without_row(&outcomes[i]);
    } else if (outcomes[i].locked) {
      ns_settle_decide(&outcomes[i]);
      ns_settle_park_bound(db, &outcomes[i]);
    }
  if ((st = lock_keys(db, outcomes, n, err)) != NS_OK ||
      (st = ns_settle_park_lock(db, outcomes, n, err)) != NS_OK)
    return st;
  return write_all(db, outcomes, n, err);
}

/* Jobs that another handle has scheduled are not known here yet. */
static void look_for_written(ns_db *db, const ns_verdict *v) {
  if (v->kind == NS_RELEASE && ns_verdict_written(v))
    db->claim.promote_at = 0;
}

ns_status ns_settle_batch(ns_db *db, ns_verdict *v, size_t n, ns_err *err) {
  size_t rest;
  ns_outcome *outcomes;
  ns_status st;
  if (n == 0)
    return NS_OK;
  ns_assert(db->in_tx || db->user_tx);
  if ((outcomes = calloc(n, sizeof *outcomes)) == NULL)
    return ns_no_memory(err);
  for (size_t i = 0; i < n; i++) {
    outcomes[i].v = &v[i];
    v[i].status = NS_ESTALE;
    look_for_written(db, &v[i]);
  }
  qsort(outcomes, n, sizeof *outcomes, by_token);
  if ((st = ns_settle_fast_acks(db, outcomes, n, &rest, err)) == NS_OK &&
      (st = settle_rest(db, outcomes, rest, err)) == NS_OK &&
      (st = ns_settle_leave_runs(db, outcomes, n, err)) == NS_OK)
    st = ns_settle_delete_leases(db, outcomes, n, err);
  ns_source_forget(db);
  for (size_t i = 0; i < n; i++)
    free(outcomes[i].key);
  free(outcomes);
  return st;
}

void ns_settle_done(ns_db *db, const ns_verdict *v, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (!ns_settle_is_over(&v[i]))
      continue;
    if (v[i].status == NS_OK)
      db->count.settled++;
    else if (!ns_verdict_written(&v[i]))
      db->count.stale++;
    if (ns_claim_leases_settle(&db->claim.leases, v[i].lease, v[i].id, v[i].run))
      ns_claim_leases_drop(&db->claim.leases, v[i].lease);
  }
}

/* The verdicts that joined the caller's commit. Best effort: a lease row that
** stays behind names no live claim. All leases take one wait. */
static void settle_joined(ns_db *db) {
  for (size_t i = 0; i < db->settle.njoined; i++) {
    const ns_verdict *v = &db->settle.joined[i];
    db->count.settled += v->status == NS_OK;
    if (ns_settle_is_over(v) && ns_claim_leases_settle(&db->claim.leases, v->lease, v->id, v->run)) {
      ns_claim_lease_leave(db, ns_claim_leases_batch(&db->claim.leases, v->lease));
      ns_claim_leases_drop(&db->claim.leases, v->lease);
    }
  }
  if (db->link != NULL)
    ns_link_answers(db->link, NULL, NULL);
}

void ns_settle_refuse(ns_verdict *v, const char *text) {
  if (v->kind != NS_DISCARD && v->kind != NS_CRASH)
    v->kind = NS_FAIL;
  v->error = ns_str(text);
  v->delay = -1;
  v->result = v->state = v->log = NS_NONE;
  v->children = NULL;
  v->nchildren = 0;
}

/* ------------------------------------------------------------------- hooks */

static void committed(ns_db *db, bool written) {
  if (written)
    settle_joined(db);
  db->settle.njoined = 0;
}

static void forked(ns_db *db) {
  db->settle.doubt.n = db->settle.doubt.written = 0;
  db->settle.njoined = 0;
}

static void closing(ns_db *db) {
  forked(db);
  free(db->settle.joined);
  free(db->settle.doubt.items);
  db->settle.joined = NULL;
  db->settle.doubt = (ns_settle_in_doubt){0};
}

const ns_hooks ns_settle_hooks = {
    .forked = forked, .committed = committed, .closing = closing};
