/*
** Plain acks: jobs that are done and leave nothing behind but their row of history.
** Nothing is read before that is written: the count of the rows tells whether all
** claims stood. Where the ids come in stretches, as they were pushed, and there are
** no results, two statements move a whole stretch. The single ack of a program is a whole
** transaction in one statement, where that can be.
**
** Invariant: a stretch holds claims of ours only, so no other transaction touches its range of
** keys. A row that another transaction holds, or has taken from us, is not written and is left
** to be settled one by one.
*/

#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "claim/claim.h"
#include "db/db.h"
#include "finish/finish.h"
#include "handle.h"
#include "settle/settle.h"
#include "source/source.h"

void ns_forget_done(ns_db *db, bool yes) {
  db->settle.forgets = yes;
}

static bool is_plain(ns_db *db, const ns_outcome *f) {
  const ns_verdict *v = f->v;
  const ns_claimed *c;
  if (v->kind != NS_ACK || v->nchildren > 0 || v->printed)
    return false;
  c = ns_claim_leases_find(&db->claim.leases, v->lease, v->id, v->run);
  return c != NULL && c->plain && !(db->settle.forgets && (c->child || v->run > 1));
}

static void mark_settled(ns_outcome *f) {
  f->gone = true;
  f->v->status = NS_OK;
  f->v->dead = false;
}

static void mark_all_settled(ns_outcome *const *outcomes, size_t n) {
  for (size_t i = 0; i < n; i++)
    mark_settled(outcomes[i]);
}

static int by_token(const void *key, const void *element) {
  const ns_token *x = key;
  const ns_verdict *y = (*(ns_outcome *const *)element)->v;
  return x->id != y->id ? (x->id > y->id) - (x->id < y->id)
                        : (x->run > y->run) - (x->run < y->run);
}

/* Of these, sorted by id and run, not all could be written: which were? */
static ns_status find_ours(ns_db *db, ns_outcome *const *outcomes, size_t n, ns_err *err) {
  ns_buf ids = NS_BUF_INIT;
  const ns_value *row = NULL;
  ns_status st;
  for (size_t i = 0; i < n; i++)
    ns_db_list_add_pair(&ids, outcomes[i]->v->id, outcomes[i]->v->run);
  st = ns_db_list_run(db, NS_SQL_SETTLE_DONE_OURS, NULL, &ids, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_SETTLE_DONE_OURS, &row, err)) == NS_OK &&
         row != NULL) {
    ns_token token = {row[0].i, row[1].i, false};
    ns_outcome *const *f = bsearch(&token, outcomes, n, sizeof *outcomes, by_token);
    if (f != NULL)
      mark_settled(*f);
  }
  return st;
}

/* Notes the verdicts that a statement was to write. */
static ns_status note_written(ns_db *db, ns_sql sql, ns_outcome *const *outcomes, size_t n,
                              ns_err *err) {
  if (ns_db_affected(db, sql) < (int64_t)n)
    return find_ours(db, outcomes, n, err);
  mark_all_settled(outcomes, n);
  return NS_OK;
}

static ns_value claimant_value(const ns_db *db) {
  return ns_db_claimant(db) != 0 ? ns_vint(ns_db_claimant(db)) : ns_vnull;
}

/* ------------------------------------------------------------- stretches */

/* For assertions: ids in a row, of one run. */
static bool is_stretch(ns_outcome *const *outcomes, size_t n) {
  for (size_t i = 1; i < n; i++)
    if (outcomes[i]->v->id != outcomes[0]->v->id + (int64_t)i ||
        outcomes[i]->v->run != outcomes[0]->v->run)
      return false;
  return true;
}

/* So many digits of a number that has no more. */
static void add_digits(ns_buf *text, int64_t n, size_t digits) {
  char *at = ns_buf_room(text, digits);
  if (at == NULL)
    return;
  for (size_t i = digits; i-- > 0; n /= 10)
    at[i] = (char)('0' + n % 10);
  text->n += digits;
}

/* The start and the worker of each job of a stretch, as settle_done takes them. */
typedef struct runs {
  ns_buf starts, workers;
} runs;

static runs list_runs(ns_db *db, ns_outcome *const *outcomes, size_t n) {
  runs r = {NS_BUF_INIT, NS_BUF_INIT};
  for (size_t i = 0; i < n; i++) {
    const ns_verdict *v = outcomes[i]->v;
    add_digits(&r.starts, ns_claim_run_age(db, v->lease, v->began), 14);
    add_digits(&r.workers, v->worker, 5);
  }
  return r;
}

static ns_status write_stretch(ns_db *db, ns_outcome *const *outcomes, size_t n, ns_err *err) {
  runs r = list_runs(db, outcomes, n);
  ns_value first = ns_vint(outcomes[0]->v->id);
  ns_status st;
  ns_assert(is_stretch(outcomes, n));
  st = r.starts.oom || r.workers.oom
           ? ns_no_memory(err)
           : ns_db_run(db, NS_SQL_SETTLE_DONE,
                       (ns_value[]){claimant_value(db), ns_vbytes(ns_buf_bytes(&r.starts)), first,
                                    ns_vbytes(ns_buf_bytes(&r.workers)), first, first,
                                    ns_vint(outcomes[n - 1]->v->id), ns_vint(outcomes[0]->v->run),
                                    ns_vint((int64_t)n)},
                       err);
  ns_buf_free(&r.starts);
  ns_buf_free(&r.workers);
  return st == NS_OK ? note_written(db, NS_SQL_SETTLE_DONE, outcomes, n, err) : st;
}

static ns_status delete_stretch(ns_db *db, ns_sql sql, ns_outcome *const *outcomes, size_t n,
                                ns_err *err) {
  ns_assert(is_stretch(outcomes, n));
  return ns_db_run(db, sql,
                   (ns_value[]){ns_vint(outcomes[0]->v->id), ns_vint(outcomes[n - 1]->v->id),
                                ns_vint(outcomes[0]->v->run), ns_vint((int64_t)n)},
                   err);
}

/* The jobs of a stretch that was written. */
static ns_status drop_stretch(ns_db *db, ns_outcome *const *outcomes, size_t n, ns_err *err) {
  ns_status st = delete_stretch(db, NS_SQL_SETTLE_DONE_GONE, outcomes, n, err);
  return st == NS_OK
             ? ns_db_check_changed(ns_db_affected(db, NS_SQL_SETTLE_DONE_GONE), (int64_t)n, err)
             : st;
}

/* Writes no history. If another transaction holds one of the rows, all of them are settled
** singly. */
static ns_status forget_stretch(ns_db *db, ns_outcome *const *outcomes, size_t n, ns_err *err) {
  ns_outcome **gone = malloc(n * sizeof *gone);
  const ns_value *row = NULL;
  size_t k = 0;
  ns_status st = gone == NULL ? ns_no_memory(err)
                              : delete_stretch(db, NS_SQL_SETTLE_DONE_FORGET, outcomes, n, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_SETTLE_DONE_FORGET, &row, err)) == NS_OK &&
         row != NULL)
    gone[k++] = outcomes[row[0].i - outcomes[0]->v->id];
  if (st == NS_OK)
    mark_all_settled(gone, k);
  free(gone);
  if (st != NS_EBUSY || err->sqlerr != NS_LOCK_WAIT)
    return st;
  ns_err_clear(err);
  return NS_OK;
}

/* ------------------------------------------------------------------ lists */

/* "17," or, of 0, "null,". */
static void add_or_null(ns_buf *list, int64_t n) {
  if (n > 0)
    ns_buf_addf(list, "%lld,", (long long)n);
  else
    ns_buf_adds(list, "null,");
}

/* Of none there is no statement. */
static ns_status write_list(ns_db *db, ns_outcome *const *outcomes, size_t n, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  ns_value who = claimant_value(db);
  ns_status st;
  if (n == 0)
    return NS_OK;
  for (size_t i = 0; i < n; i++) {
    const ns_verdict *v = outcomes[i]->v;
    ns_buf_addf(&list, "%c[%lld,%lld,", i > 0 ? ',' : '[', (long long)v->id,
                (long long)v->run);
    add_or_null(&list, ns_claim_run_age(db, v->lease, v->began));
    add_or_null(&list, v->worker);
    if (v->result.p != NULL)
      ns_buf_add_json(&list, v->result);
    else
      ns_buf_adds(&list, "null");
    ns_buf_addc(&list, ']');
  }
  st = ns_db_list_run(db, NS_SQL_SETTLE_DONE_LIST, &who, &list, err);
  return st == NS_OK ? note_written(db, NS_SQL_SETTLE_DONE_LIST, outcomes, n, err) : st;
}

/* ------------------------------------------------------------------- both */

/* Some of the plain acks, in their order. */
typedef struct acks {
  ns_outcome **items;
  ns_token *tokens; /* as many */
  size_t n;
} acks;

static bool make_acks(acks *a, size_t cap) {
  *a = (acks){malloc(cap * sizeof *a->items), malloc(cap * sizeof *a->tokens), 0};
  return a->items != NULL && a->tokens != NULL;
}

static void free_acks(acks *a) {
  free(a->items);
  free(a->tokens);
}

static void add_ack(acks *a, ns_outcome *f) {
  a->tokens[a->n] = (ns_token){f->v->id, f->v->run, false};
  a->items[a->n++] = f;
}

/* Moves, or forgets, the long stretches. */
static ns_status settle_stretches(ns_db *db, const acks *a, ns_err *err) {
  ns_status st = NS_OK;
  if (db->settle.forgets && db->never_fast)
    return NS_OK; /* a row that is held would cost the whole transaction */
  for (size_t i = 0, len; st == NS_OK && i < a->n; i += len) {
    len = ns_claim_stretch(a->tokens + i, a->n - i);
    if (len >= NS_STRETCH_LEAST)
      st = db->settle.forgets ? forget_stretch(db, a->items + i, len, err)
                              : write_stretch(db, a->items + i, len, err);
  }
  return st;
}

/* The rows of jobs that have been written. */
static ns_status delete_jobs(ns_db *db, const acks *a, ns_err *err) {
  ns_buf ids = NS_BUF_INIT;
  size_t singly = 0;
  ns_status st = NS_OK;
  for (size_t i = 0, len; st == NS_OK && i < a->n; i += len) {
    len = ns_claim_stretch(a->tokens + i, a->n - i);
    if (len >= NS_STRETCH_LEAST) {
      st = drop_stretch(db, a->items + i, len, err);
      continue;
    }
    for (size_t k = i; k < i + len; k++)
      ns_db_list_add_id(&ids, a->tokens[k].id);
    singly += len;
  }
  if (st == NS_OK && singly > 0)
    st = ns_db_list_change(db, NS_SQL_SETTLE_GONE, NULL, &ids, singly, err);
  ns_buf_free(&ids);
  return st;
}

/* Finds the plain verdicts among 'outcomes', in 'a': without a result where that is to be
** kept. */
static void find_stretches(ns_db *db, ns_outcome *outcomes, size_t n, acks *a) {
  a->n = 0;
  for (size_t i = 0; i < n; i++) {
    outcomes[i].plain = is_plain(db, &outcomes[i]);
    if (outcomes[i].plain && (db->settle.forgets || outcomes[i].v->result.p == NULL))
      add_ack(a, &outcomes[i]);
  }
}

static bool has_plain(const ns_outcome *outcomes, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (outcomes[i].plain)
      return true;
  return false;
}

static void find_left(ns_outcome *outcomes, size_t n, acks *a) {
  a->n = 0;
  for (size_t i = 0; i < n; i++)
    if (outcomes[i].plain && !outcomes[i].gone)
      add_ack(a, &outcomes[i]);
}

static void find_gone(ns_outcome *outcomes, size_t n, acks *a) {
  a->n = 0;
  for (size_t i = 0; i < n; i++)
    if (outcomes[i].gone)
      add_ack(a, &outcomes[i]);
}

static ns_status notify_dependents(ns_db *db, const acks *gone, ns_err *err) {
  ns_end *ends = calloc(gone->n + 1, sizeof *ends);
  ns_status st;
  if (ends == NULL)
    return ns_no_memory(err);
  for (size_t i = 0; i < gone->n; i++)
    ends[i] = (ns_end){.id = gone->tokens[i].id, .outcome = "done"};
  st = ns_finish_gone(db, ends, gone->n, err);
  free(ends);
  return st;
}

/* 'a' is room. Verdicts that are no plain acks are looked at first: then the transaction has
** begun. */
static ns_status settle_acks(ns_db *db, ns_outcome *outcomes, size_t n, acks *a, ns_err *err) {
  ns_status st;
  find_stretches(db, outcomes, n, a);
  if (has_plain(outcomes, n) && (st = ns_db_begun(db, err)) != NS_OK)
    return st;
  if ((st = settle_stretches(db, a, err)) != NS_OK)
    return st;
  find_left(outcomes, n, a);
  if (!db->settle.forgets && (st = write_list(db, a->items, a->n, err)) != NS_OK)
    return st;
  find_gone(outcomes, n, a);
  if (!db->settle.forgets && (st = delete_jobs(db, a, err)) != NS_OK)
    return st;
  return a->n > 0 ? notify_dependents(db, a, err) : NS_OK;
}

/* Settled verdicts go to the end. */
static ns_status move_settled_to_end(ns_outcome *outcomes, size_t n, size_t *rest, ns_err *err) {
  ns_outcome *gone = malloc(n * sizeof *gone);
  size_t k = 0;
  if (gone == NULL)
    return ns_no_memory(err);
  *rest = 0;
  for (size_t i = 0; i < n; i++)
    if (outcomes[i].gone)
      gone[k++] = outcomes[i];
    else
      outcomes[(*rest)++] = outcomes[i];
  memcpy(outcomes + *rest, gone, k * sizeof *gone);
  free(gone);
  return NS_OK;
}

ns_status ns_settle_fast_acks(ns_db *db, ns_outcome *outcomes, size_t n, size_t *rest,
                              ns_err *err) {
  acks room;
  ns_status st = make_acks(&room, n) ? settle_acks(db, outcomes, n, &room, err) : ns_no_memory(err);
  free_acks(&room);
  return st == NS_OK ? move_settled_to_end(outcomes, n, rest, err) : st;
}

/* ------------------------------------------------------------- in one statement */

#define REST_MOST 63 /* acks that take more than one statement, until one is tried again */

/* A row of an adopted table goes with its job, where it can. Other jobs are not tried for a while
** after a failure: in some programs jobs wait for each of them. */
static bool is_one(ns_db *db, const ns_claimed *c) {
  if (c->row.source != 0)
    return ns_source_ends(db, &c->row);
  if ((!c->plain && !c->keyed) || c->child)
    return false;
  if (db->settle.rest == 0)
    return true;
  db->settle.rest--;
  return false;
}

bool ns_settle_one_open(ns_db *db, const ns_verdict *v) {
  const ns_lease *b = ns_claim_leases_batch(&db->claim.leases, v->lease);
  const ns_claimed *c = ns_claim_leases_find(&db->claim.leases, v->lease, v->id, v->run);
  bool is_plain = v->kind == NS_ACK && v->nchildren == 0 && !v->printed && !ns_verdict_written(v);
  bool is_ours = !db->is_host && db->settle.blamed == 0 && !db->settle.forgets;
  return c != NULL && is_plain && is_ours && b->span == 0 && c->heard == 0 && !c->shown &&
         !ns_claim_may_have_place(db, c) && (c->row.source == 0 || !db->user_tx) && is_one(db, c);
}

static ns_status end_row(ns_db *db, const ns_verdict *v, const ns_claimed *c, int64_t lease,
                         int64_t cycle, bool *cut, ns_err *err) {
  const ns_source_last e = {.row = c->row,
                            .job = v->id,
                            .run = v->run,
                            .queue_id = c->queue_id,
                            .lease = lease,
                            .cycle = cycle,
                            .ago = ns_claim_run_age(db, v->lease, v->began),
                            .result = v->result};
  return ns_source_end(db, &e, cut, err);
}

/* 'cycle': 0 in the caller's transaction. */
static ns_status end_job(ns_db *db, const ns_verdict *v, const ns_claimed *c, int64_t lease,
                         int64_t cycle, bool *cut, ns_err *err) {
  int64_t ago = ns_claim_run_age(db, v->lease, v->began);
  const ns_value params[] = {ns_vint(v->id), ns_vint(v->run), ns_vint(db->holder),
                             ns_vpositive(ago), ns_vpositive(v->worker), ns_vopt(v->result),
                             ns_vint(c->keyed), ns_vpositive(lease), ns_vpositive(cycle)};
  ns_status st = cycle != 0 ? ns_db_run_whole(db, NS_SQL_SETTLE_ONE, params, cut, err)
                            : ns_db_run(db, NS_SQL_SETTLE_ONE, params, err);
  db->settle.back_off = st == NS_OK ? 0 : 2 * db->settle.back_off + 1;
  if (db->settle.back_off > REST_MOST)
    db->settle.back_off = REST_MOST;
  db->settle.rest = db->settle.back_off;
  if (st != NS_OK && ns_link_retryable(err))
    ns_db_count_retry(db, err);
  return st;
}

ns_status ns_settle_one(ns_db *db, ns_verdict *v, int64_t cycle, bool *cut, ns_err *err) {
  const ns_lease *b = ns_claim_leases_batch(&db->claim.leases, v->lease);
  const ns_claimed *c = ns_claim_leases_find(&db->claim.leases, v->lease, v->id, v->run);
  int64_t lease = b->open == 1 ? v->lease : 0;
  ns_status st;
  v->status = NS_OK;
  v->dead = false;
  st = c->row.source != 0 ? end_row(db, v, c, lease, cycle, cut, err)
                          : end_job(db, v, c, lease, cycle, cut, err);
  if (st == NS_OK)
    ns_settle_count(db, &(ns_outcome){.v = v, .gone = true}, c);
  return st;
}

#define REFUSED_ITSELF 1644 /* by SIGNAL */

ns_status ns_settle_one_joined(ns_db *db, ns_verdict *v, bool *written, ns_err *err) {
  const ns_claimed *c = ns_claim_leases_find(&db->claim.leases, v->lease, v->id, v->run);
  bool cut; /* of the caller's transaction: nothing is sent again */
  ns_status st = end_job(db, v, c, 0, 0, &cut, err);
  *written = st == NS_OK;
  if (st != NS_OK && err->sqlerr == REFUSED_ITSELF) {
    ns_err_clear(err);
    return ns_db_unjoin(db, err);
  }
  if (st != NS_OK)
    return st;
  v->status = NS_OK;
  v->dead = false;
  ns_settle_count(db, &(ns_outcome){.v = v, .gone = true}, c);
  return NS_OK;
}
