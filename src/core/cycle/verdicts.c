/*
** The verdicts of a cycle: verdicts in doubt, after a cycle that was cut at its commit, and
** refused verdicts. And the settle of a single handle, a cycle of one half.
**
** Invariant: no cycle writes before it is known whether the cycle in doubt was written. A
** verdict that cannot be written together with the rest is written apart, or put off: it delays
** no other. A message in place of the caller's words lives no longer than the call. The first
** is asserted where a cycle begins (cycle/cycle.c).
*/
#include "cycle/cycle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "db/db.h"
#include "finish/finish.h"
#include "push/push.h"
#include "settle/settle.h"

#define BUSY_MAX (10 * NS_SECOND)  /* ns_settle tries a locked row this long */
#define APART_MAX (NS_SECOND / 20) /* for verdicts that cannot be written together */

/* ------------------------------------------------------------------ in doubt */

void ns_cycle_in_doubt_add(ns_db *db, const ns_doubtful *c) {
  ns_settle_in_doubt *d = &db->settle.doubt;
  d->holder = c->holder;
  d->cycle = c->number;
  for (size_t i = 0; i < c->n; i++) {
    const ns_verdict *v = &c->verdicts[i];
    if (v->status == NS_OK && ns_grow(&d->items, &d->cap, d->n + 1, sizeof *d->items))
      d->items[d->n++] = (ns_verdict){.id = v->id,
                                      .run = v->run,
                                      .lease = v->lease,
                                      .kind = v->kind,
                                      .status = NS_OK,
                                      .dead = v->dead,
                                      .reason = v->reason};
  }
}

ns_status ns_cycle_in_doubt_resolve(ns_db *db, ns_err *err) {
  ns_settle_in_doubt *d = &db->settle.doubt;
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

void ns_cycle_recognise_repeat(ns_db *db, ns_verdict *v) {
  ns_settle_in_doubt *d = &db->settle.doubt;
  for (size_t i = 0; v->status == NS_ESTALE && i < d->written; i++) {
    const ns_verdict *w = &d->items[i];
    if (w->id != v->id || w->run != v->run || w->kind != v->kind)
      continue;
    v->status = NS_OK;
    v->dead = w->dead;
    v->reason = w->reason;
    d->items[i] = d->items[--d->written];
    d->n--;
  }
}

/* ------------------------------------------------------- refused verdicts */

/* Is one of its values at fault? We refuse some values, the server refuses more. */
static bool is_refusal(ns_status st, const ns_err *err) {
  bool ours = st == NS_EINVALID || st == NS_ETOOBIG || st == NS_EDUPLICATE || st == NS_ENOTFOUND;
  return st != NS_OK && err->sqlerr != 0 ? ns_link_blames_value(err) : ours;
}

/* The server's own trouble with a statement, while the rest of it works. */
static bool is_trouble(ns_status st, const ns_err *err) {
  bool asked = st == NS_ESQL || st == NS_EBUSY || st == NS_EINVALID || st == NS_ETOOBIG ||
               st == NS_EDUPLICATE;
  return st == NS_ESQL ||
         (asked && err->sqlerr != 0 && !is_refusal(st, err) && !ns_link_retryable(err));
}

const ns_err *ns_trouble(const ns_db *db) {
  return &db->trouble;
}

static void put_off_for_trouble(ns_db *db, ns_verdict *v, const ns_err *err) {
  db->trouble = *err;
  v->status = NS_EBUSY;
  v->trouble = true;
}

/* A verdict with values that the server refuses: its job fails with the server's words instead.
** Those words are no handler's, so a second refusal puts the verdict off. */
static ns_status settle_refused(ns_db *db, ns_verdict *v, ns_err *err) {
  ns_cycle_work w = {.verdicts = v, .nverdicts = 1};
  char text[sizeof err->message];
  ns_status st;
  snprintf(text, sizeof text, "the verdict was refused: %.400s", err->message);
  ns_settle_refuse(v, text);
  st = ns_cycle_run(db, &w, err);
  if (!is_refusal(st, err) && !is_trouble(st, err))
    return st;
  put_off_for_trouble(db, v, err);
  return NS_OK;
}

/* Verdicts that failed together are tried in halves, and so on down to the single ones that
** fail; the rest are written. */
typedef struct apart {
  int64_t until; /* monotonic: then the rest stays BUSY, as other sessions wait for us … */
  bool found;    /* … but at least one failing verdict is found each time */
} apart;

/* 'st' and 'err': how they failed. */
static ns_status settle_apart(ns_db *db, apart *a, ns_verdict *v, size_t n, ns_status st,
                              ns_err *err) {
  size_t half = n / 2;
  if (n == 1) {
    a->found = true;
    if (is_refusal(st, err))
      return settle_refused(db, v, err);
    put_off_for_trouble(db, v, err);
    return NS_OK;
  }
  st = NS_OK;
  for (size_t from = 0; st == NS_OK && from < n; from = from == 0 ? half : n) {
    ns_cycle_work w = {.verdicts = v + from, .nverdicts = from == 0 ? half : n - half};
    if (a->found && ns_mono_us() > a->until)
      break;
    st = ns_cycle_run(db, &w, err);
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
  snprintf(text, size, "the %s has %zu bytes of JSON; the limit is %zu (max_payload)", what, n,
           max);
  ns_settle_refuse(v, text);
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
static void restore_verdicts(ns_verdict *v, const ns_verdict *given, size_t n) {
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

/* --------------------------------------------------------------------- verbs */

/* Remembers verdicts that are written although their call fails. A single handle's caller comes
** with them again; a host sorts them out by their statuses. */
static void remember_written(ns_db *db, const ns_verdict *v, size_t n) {
  ns_settle_in_doubt *d = &db->settle.doubt;
  if (db->is_host)
    return;
  for (size_t i = 0; i < n; i++) {
    if (v[i].status != NS_OK || !ns_grow(&d->items, &d->cap, d->n + 1, sizeof *d->items))
      continue;
    d->items[d->n++] = d->items[d->written];
    d->items[d->written++] = (ns_verdict){.id = v[i].id,
                                          .run = v[i].run,
                                          .lease = v[i].lease,
                                          .kind = v[i].kind,
                                          .status = NS_OK,
                                          .dead = v[i].dead};
  }
}

/* Settles and claims; verdicts that cannot be settled together are settled apart. */
static ns_status settle_and_claim(ns_db *db, ns_cycle_work *w, ns_err *err) {
  size_t n = w->nverdicts;
  ns_status st = ns_cycle_run(db, w, err);
  if (w->nverdicts == 0 || db->user_tx || (!is_refusal(st, err) && !is_trouble(st, err)))
    return st;
  st = settle_apart(db, &(apart){ns_mono_us() + APART_MAX, false}, w->verdicts, w->nverdicts, st,
                    err);
  w->nverdicts = 0;
  if (st == NS_OK && w->want.limit > 0)
    st = ns_cycle_run(db, w, err);
  if (st != NS_OK)
    remember_written(db, w->verdicts, n);
  return st;
}

/* The verdicts' half of a call: values that are too big are replaced, and all verdicts come
** back as they were given. */
ns_status ns_cycle_with_verdicts(ns_db *db, ns_cycle_work *w, ns_err *err) {
  ns_verdict *v = w->verdicts;
  size_t n = w->nverdicts;
  ns_verdict *given;
  char *texts;
  ns_status st;
  if (n == 0)
    return ns_cycle_run(db, w, err);
  if ((given = malloc(n * sizeof *given)) == NULL)
    return ns_no_memory(err);
  memcpy(given, v, n * sizeof *given);
  texts = check_sizes(db, v, n);
  st = settle_and_claim(db, w, err);
  restore_verdicts(v, given, n);
  free(texts);
  free(given);
  return st;
}

/* Only the verdict that brought a child can have made it. */
static ns_status was_written(ns_db *db, const ns_verdict *v, bool *yes, ns_err *err) {
  const ns_value *row = NULL;
  ns_status st = ns_db_run(
      db, NS_SQL_SETTLE_CHILD_EXISTS,
      (ns_value[]){ns_vint(v->id), ns_vint(ns_seq(v->run, 0)), ns_vint(v->children[0].id)}, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_SETTLE_CHILD_EXISTS, &row, err);
  *yes = row != NULL;
  return st;
}

/* No cycle of a holder's says whether a commit that was cut has happened. */
ns_status ns_settle_for(ns_db *db, int64_t holder, ns_verdict *v, ns_err *err) {
  ns_cycle_work w = {.verdicts = v, .nverdicts = 1};
  bool yes = false;
  ns_status st;
  ns_err_clear(err);
  ns_cycle_put_off(v, 1);
  db->settle.blamed = holder;
  st = ns_cycle_with_verdicts(db, &w, err);
  db->settle.blamed = 0;
  if (st == NS_OK && v->status == NS_ESTALE && v->nchildren > 0)
    st = was_written(db, v, &yes, err);
  if (yes)
    v->status = NS_OK;
  if (st == NS_OK)
    ns_finish_pending_retry(db);
  else
    ns_cycle_put_off(v, 1);
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
    ns_cycle_work w = {.verdicts = v, .nverdicts = 1};
    ns_err_clear(err);
    st = ns_cycle_run(db, &w, err);
    if (is_trouble(st, err))
      err->status = NS_EBUSY; /* the claim stands: it may be given again */
    if (st != NS_OK)
      return err->status;
    ns_finish_pending_retry(db);
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
    return ns_fail(err, NS_EBUSY, "another transaction has held what job %lld needs for 10 s",
                   (long long)v->id);
  return NS_OK;
}
