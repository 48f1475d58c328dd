/*
** Ending jobs. Rows of history come from the job rows on the server, so a
** payload never travels twice; results go as one JSON list, everything else is
** array-bound, one key per row.
**
** Invariant: when a job's row goes, its unique key goes in the same transaction,
** and every dependent is decided, or its target noted down in nightshift_met.
*/
#include "finish/finish.h"

#include <stdlib.h>
#include <string.h>

#include "db/db.h"
#include "finish/dependents.h"
#include "finish/pending.h"
#include "handle.h"
#include "ns_log.h"

#define SAID 255 /* characters of a reason */
#define DEEP 32 /* levels of a tree that fall in one transaction */

static void add_text(ns_buf *list, const char *key, ns_bytes text) {
  if (text.p == NULL)
    return;
  ns_buf_addf(list, ",\"%s\":", key);
  ns_buf_add_json(list, text);
}

static void add_count(ns_buf *list, const char *key, int64_t n) {
  if (n >= 0)
    ns_buf_addf(list, ",\"%s\":%lld", key, (long long)n);
}

ns_bytes ns_said(ns_bytes text) {
  size_t n = 0;
  for (size_t chars = 0; n < text.n && chars < SAID; chars++) {
    size_t one = ns_utf8(text.p + n, text.n - n);
    n += one > 0 ? one : 1;
  }
  return n > 0 ? (ns_bytes){text.p, n} : NS_NONE;
}

static void add_reason(ns_buf *list, const ns_end *e) {
  ns_bytes said = ns_said(e->said);
  add_text(list, "r", said.p != NULL ? said : ns_str(e->reason));
  add_text(list, "e", said.n < e->said.n ? e->said : e->error);
}

static void add_end(ns_buf *list, const ns_end *e) {
  ns_buf_addf(list, "%c{\"i\":%lld", list->n > 0 ? ',' : '[', (long long)e->id);
  add_text(list, "o", ns_str(e->outcome));
  add_reason(list, e);
  add_text(list, "x", e->result);
  add_count(list, "a", e->attempts);
  add_count(list, "p", e->polls);
  add_count(list, "c", e->crashes);
  ns_buf_addc(list, '}');
}

static ns_status write_history(ns_db *db, const ns_end *ends, size_t n,
                               ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  ns_value who = ns_db_claimant(db) != 0 ? ns_vint(ns_db_claimant(db)) : ns_vnull;
  size_t k = 0;
  for (size_t i = 0; i < n; i++)
    if (!ends[i].forgotten) {
      add_end(&list, &ends[i]);
      k++;
    }
  return k > 0 ? ns_db_list_change(db, NS_SQL_SETTLE_FINISH, &who, &list, k, err) : NS_OK;
}

/* Is the key the job's own, and only held by somebody else? */
static ns_status is_held(ns_db *db, const ns_end *e, bool *yes, ns_err *err) {
  const ns_value *row = NULL;
  ns_status st = ns_db_run(db, NS_SQL_PUSH_UNIQUE_OWNER,
                           (ns_value[]){ns_vint(e->queue_id), ns_vtext(e->unique)}, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_PUSH_UNIQUE_OWNER, &row, err);
  *yes = row != NULL && row[0].i == e->id;
  return st;
}

/* 'missing' is true for those with a key, and becomes false for those whose
** key's row could be locked. */
static ns_status lock_keys(ns_db *db, const ns_end *ends, size_t n,
                           bool *missing, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  const ns_value *row;
  ns_status st;
  for (size_t i = 0; i < n; i++)
    if (missing[i]) {
      ns_buf_addf(&list, "%c[%zu,%lld,", list.n > 0 ? ',' : '[', i,
                  (long long)ends[i].queue_id);
      ns_buf_add_json(&list, ends[i].unique);
      ns_buf_addc(&list, ']');
    }
  st = ns_db_list_run(db, NS_SQL_SETTLE_KEYS, NULL, &list, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_SETTLE_KEYS, &row, err)) == NS_OK && row != NULL)
    missing[row[0].i] = false;
  return st;
}

ns_status ns_finish_keys(ns_db *db, const ns_end *ends, size_t n, bool *held,
                         ns_err *err) {
  bool any = false;
  ns_status st = NS_OK;
  for (size_t i = 0; i < n; i++)
    any = (held[i] = ends[i].unique.p != NULL) || any;
  if (any)
    st = lock_keys(db, ends, n, held, err);
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (held[i])
      st = is_held(db, &ends[i], &held[i], err);
  return st;
}

static ns_status free_keys(ns_db *db, const ns_end *ends, size_t n,
                           ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (ends[i].unique.p != NULL)
      st = ns_db_bulk_changing(db, NS_SQL_SETTLE_UNIQUE,
                               (ns_column[]){{NS_INT, &ends[i].queue_id, NULL, NULL},
                                             {NS_TEXT, NULL, &ends[i].unique, NULL},
                                             {NS_INT, &ends[i].id, NULL, NULL}},
                               1, 0, err);
  return st;
}

static ns_status delete_jobs(ns_db *db, const ns_end *ends, size_t n,
                             ns_err *err) {
  ns_buf ids = NS_BUF_INIT;
  for (size_t i = 0; i < n; i++)
    ns_db_list_add_id(&ids, ends[i].id);
  return ns_db_list_change(db, NS_SQL_SETTLE_GONE, NULL, &ids, n, err);
}

static ns_status end_jobs(ns_db *db, const ns_end *ends, size_t n, ns_err *err) {
  ns_status st;
  if ((st = write_history(db, ends, n, err)) != NS_OK ||
      (st = free_keys(db, ends, n, err)) != NS_OK)
    return st;
  return delete_jobs(db, ends, n, err);
}

/* Tells the dependents of these, and notes down what cannot be told now. */
static ns_status resolve(ns_db *db, const ns_end *ends, size_t n, ns_fallen *next,
                         ns_err *err) {
  bool *held = NULL;
  ns_status st = ns_depend_resolve(db, ends, n, &held, next, err);
  if (st == NS_OK && held != NULL)
    st = ns_pending_note(db, ends, n, held, err);
  free(held);
  return st;
}

/* Jobs that fall with others are the next level; very deep trees are left to be
** felled in pieces, each its own transaction. */
ns_status ns_finish_from(ns_db *db, struct ns_fallen *level, ns_err *err) {
  ns_status st = NS_OK;
  for (int depth = 0; st == NS_OK && level->n > 0; depth++) {
    ns_fallen next = {0};
    st = end_jobs(db, level->ends, level->n, err);
    if (st == NS_OK && depth < DEEP)
      st = resolve(db, level->ends, level->n, &next, err);
    else if (st == NS_OK)
      st = ns_pending_note(db, level->ends, level->n, NULL, err);
    ns_fallen_free(level);
    *level = next;
  }
  ns_fallen_free(level);
  return st;
}

static ns_status tell(ns_db *db, const ns_end *ends, size_t n, ns_err *err) {
  ns_fallen next = {0};
  ns_status st = resolve(db, ends, n, &next, err);
  if (st == NS_OK)
    return ns_finish_from(db, &next, err);
  ns_fallen_free(&next);
  return st;
}

/* Ids and outcomes only: the bytes are the caller's. */
static ns_status remember(ns_db *db, const ns_end *ends, size_t n, ns_err *err) {
  ns_ended *late = &db->late;
  if (!ns_grow(&late->items, &late->cap, late->n + n, sizeof *late->items))
    return ns_no_memory(err);
  for (size_t i = 0; i < n; i++)
    late->items[late->n++] = (ns_end){.id = ends[i].id, .outcome = ends[i].outcome};
  return NS_OK;
}

ns_status ns_finish_gone(ns_db *db, const ns_end *ends, size_t n, ns_err *err) {
  return db->late.on ? remember(db, ends, n, err) : tell(db, ends, n, err);
}

ns_status ns_finish(ns_db *db, const ns_end *ends, size_t n, ns_err *err) {
  ns_status st;
  if (n == 0)
    return NS_OK;
  st = end_jobs(db, ends, n, err);
  return st == NS_OK ? ns_finish_gone(db, ends, n, err) : st;
}

void ns_finish_late(ns_db *db, bool on) {
  db->late.on = on;
  db->late.n = 0;
}

int ns_end_by_id(const void *a, const void *b) {
  int64_t x = ((const ns_end *)a)->id;
  int64_t y = ((const ns_end *)b)->id;
  return (x > y) - (x < y);
}

/* Children that fell as they were spawned have come before their elders. */
ns_status ns_finish_tell(ns_db *db, ns_err *err) {
  ns_status st = NS_OK;
  if (db->late.n > 1)
    qsort(db->late.items, db->late.n, sizeof *db->late.items, ns_end_by_id);
  if (db->late.n > 0)
    st = tell(db, db->late.items, db->late.n, err);
  ns_finish_late(db, false);
  return st;
}

static void closing(ns_db *db) {
  free(db->late.items);
  db->late = (ns_ended){0};
}

const ns_hooks ns_finish_hooks = {.closing = closing};
