/*
** Ending jobs. Rows of history come from the job rows on the server, so a
** payload never travels twice; results go as one JSON list, everything else is
** array-bound, one key per row.
**
** Invariant: when a job's row goes, its unique key and the edges that wait for
** it go in the same transaction, and every dependent is decided.
*/
#include "ns_finish.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ns_handle.h"

static ns_status no_memory(ns_err *err) {
  return ns_fail(err, NS_ENOMEM, "out of memory");
}

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

static void add_end(ns_buf *list, const ns_end *e) {
  ns_buf_addf(list, "%c{\"i\":%lld", list->n > 0 ? ',' : '[', (long long)e->id);
  add_text(list, "o", ns_str(e->outcome));
  add_text(list, "r", ns_str(e->reason));
  add_text(list, "x", e->result);
  add_text(list, "e", e->error);
  add_count(list, "a", e->attempts);
  add_count(list, "p", e->polls);
  add_count(list, "c", e->crashes);
  ns_buf_addc(list, '}');
}

static ns_status write_history(ns_db *db, const ns_end *ends, size_t n,
                               ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  ns_status st = no_memory(err);
  for (size_t i = 0; i < n; i++)
    add_end(&list, &ends[i]);
  ns_buf_addc(&list, ']');
  if (!list.oom)
    st = ns_run(db, NS_SQL_SETTLE_FINISH,
                (ns_value[]){ns_claimant(db) != 0 ? ns_vint(ns_claimant(db))
                                                  : ns_vnull,
                             ns_vtext(ns_buf_bytes(&list))},
                err);
  ns_buf_free(&list);
  return st;
}

static ns_status free_keys(ns_db *db, const ns_end *ends, size_t n,
                           ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (ends[i].unique.p != NULL)
      st = ns_bulk(db, NS_SQL_SETTLE_UNIQUE,
                   (ns_column[]){{NS_INT, &ends[i].queue_id, NULL, NULL},
                                 {NS_TEXT, NULL, &ends[i].unique, NULL},
                                 {NS_INT, &ends[i].id, NULL, NULL}},
                   1, err);
  return st;
}

/* "[id,…]" */
static ns_value list_ids(const ns_end *ends, size_t n, ns_buf *list) {
  for (size_t i = 0; i < n; i++)
    ns_buf_addf(list, "%c%lld", i > 0 ? ',' : '[', (long long)ends[i].id);
  ns_buf_addc(list, ']');
  return ns_vtext(ns_buf_bytes(list));
}

static ns_status delete_jobs(ns_db *db, const ns_end *ends, size_t n,
                             ns_err *err) {
  ns_buf ids = NS_BUF_INIT;
  ns_value param = list_ids(ends, n, &ids);
  ns_status st =
      ids.oom ? no_memory(err) : ns_run(db, NS_SQL_SETTLE_GONE, &param, err);
  ns_buf_free(&ids);
  return st;
}

/* ----------------------------------------------------------- dependents */

/* One edge whose target has ended, with the job that waited. */
typedef struct dependent {
  int64_t on, id, queue_id, rank, run, unmet, due, now;
  bool gone;    /* nobody waits: cancelled, perhaps retried since */
  bool cancels; /* cancelled when the target failed, or, as it waits for it as
                ** its child, dead */
  bool parked;
  char error[64];
  char *key;    /* its unique key, owned; NULL: none */
  size_t keylen;
} dependent;

typedef struct dependents {
  dependent *items;
  size_t n, cap;
} dependents;

static void dependents_free(dependents *d) {
  for (size_t i = 0; i < d->n; i++)
    free(d->items[i].key);
  free(d->items);
  *d = (dependents){0};
}

enum { D_ON, D_JOB, D_ID, D_QUEUE, D_RANK, D_RUN, D_UNMET, D_DUE, D_ON_FAIL,
       D_UKEY, D_NOW, D_WAITS };

static bool add_dependent(dependents *d, const ns_value *r) {
  dependent *x;
  if (!ns_grow(&d->items, &d->cap, d->n + 1, sizeof *d->items))
    return false;
  x = &d->items[d->n++];
  *x = (dependent){.on = r[D_ON].i, .id = r[D_JOB].i,
                   .gone = r[D_ID].type == NS_NULL || r[D_UNMET].i == 0,
                   .now = r[D_NOW].i};
  if (x->gone)
    return true;
  x->queue_id = r[D_QUEUE].i;
  x->rank = r[D_RANK].i;
  x->run = r[D_RUN].i;
  x->unmet = r[D_UNMET].i;
  x->due = r[D_DUE].i;
  x->parked = r[D_WAITS].type == NS_TEXT;
  x->cancels = x->parked ? r[D_WAITS].s.n == strlen("fail")
                         : r[D_ON_FAIL].s.n == strlen("cancel");
  if (r[D_UKEY].type == NS_TEXT) {
    x->keylen = r[D_UKEY].s.n;
    if ((x->key = malloc(x->keylen + 1)) == NULL)
      return false;
    memcpy(x->key, r[D_UKEY].s.p, x->keylen);
  }
  return true;
}

static ns_status read_dependents(ns_db *db, const ns_end *ends, size_t n,
                                 dependents *out, ns_err *err) {
  ns_buf ids = NS_BUF_INIT;
  const ns_value *row;
  ns_value param = list_ids(ends, n, &ids);
  ns_status st = ids.oom
                     ? no_memory(err)
                     : ns_run(db, NS_SQL_SETTLE_DEPENDENTS, &param, err);
  while (st == NS_OK &&
         (st = ns_row(db, NS_SQL_SETTLE_DEPENDENTS, &row, err)) == NS_OK &&
         row != NULL)
    if (!add_dependent(out, row))
      st = no_memory(err);
  ns_buf_free(&ids);
  return st;
}

static int end_by_id(const void *a, const void *b) {
  int64_t x = ((const ns_end *)a)->id;
  int64_t y = ((const ns_end *)b)->id;
  return (x > y) - (x < y);
}

static bool failed(const ns_end *ends, size_t n, int64_t id) {
  ns_end key = {.id = id};
  const ns_end *e = bsearch(&key, ends, n, sizeof key, end_by_id);
  return e != NULL && strcmp(e->outcome, "done") != 0;
}

static ns_status cut_edges(ns_db *db, const dependents *d, ns_err *err) {
  int64_t *cols = malloc(2 * d->n * sizeof *cols);
  ns_status st;
  if (cols == NULL)
    return no_memory(err);
  for (size_t i = 0; i < d->n; i++) {
    cols[i] = d->items[i].on;
    cols[d->n + i] = d->items[i].id;
  }
  st = ns_bulk(db, NS_SQL_SETTLE_EDGE,
               (ns_column[]){{NS_INT, cols, NULL, NULL},
                             {NS_INT, cols + d->n, NULL, NULL}},
               d->n, err);
  free(cols);
  return st;
}

/* A job whose last edge is met becomes claimable, or scheduled. */
static ns_status release(ns_db *db, const dependent *x, ns_err *err) {
  if (x->due > x->now) {
    db->look_at = 0;
    return ns_bulk(db, NS_SQL_SETTLE_SCHEDULED,
                   (ns_column[]){{NS_INT, &x->due, NULL, NULL},
                                 {NS_INT, &x->id, NULL, NULL},
                                 {NS_INT, &x->queue_id, NULL, NULL},
                                 {NS_INT, &x->rank, NULL, NULL},
                                 {NS_INT, &x->run, NULL, NULL}},
                   1, err);
  }
  db->ring_due = true;
  return ns_promote_one(db, x->queue_id, x->rank, x->id, x->run, err);
}

static ns_status meet(ns_db *db, const dependent *x, int64_t met, ns_err *err) {
  ns_status st = ns_bulk(db, NS_SQL_SETTLE_MET,
                         (ns_column[]){{NS_INT, &met, NULL, NULL},
                                       {NS_INT, &x->id, NULL, NULL}},
                         1, err);
  return st == NS_OK && met == x->unmet ? release(db, x, err) : st;
}

/* The end of a job that waited for one that failed. */
static ns_end end_of(dependent *x, int64_t culprit) {
  snprintf(x->error, sizeof x->error, x->parked ? "its child, job %lld, failed"
                                                : "job %lld, which it waited for, failed",
           (long long)culprit);
  return (ns_end){.id = x->id, .queue_id = x->queue_id,
                  .outcome = x->parked ? "dead" : "cancelled",
                  .reason = x->parked ? "child failed" : "dependency",
                  .error = ns_str(x->error), .attempts = -1, .polls = -1,
                  .crashes = -1, .unique = {x->key, x->keylen}};
}

/* Decides each waiting job (its edges stand together in 'd'): met, or
** cancelled, which goes into 'ends'. */
static ns_status decide(ns_db *db, const dependents *d, const ns_end *ended,
                        size_t nended, ns_end *ends, size_t *nends,
                        ns_err *err) {
  ns_status st = NS_OK;
  size_t i = 0;
  while (st == NS_OK && i < d->n) {
    dependent *x = &d->items[i];
    int64_t culprit = 0;
    int64_t met = 0;
    for (; i < d->n && d->items[i].id == x->id; i++, met++)
      if (x->cancels && failed(ended, nended, d->items[i].on))
        culprit = d->items[i].on;
    if (!x->gone && culprit == 0)
      st = meet(db, x, met, err);
    else if (!x->gone)
      ends[(*nends)++] = end_of(x, culprit);
  }
  return st;
}

static ns_status resolve(ns_db *db, const ns_end *ends, size_t n, ns_err *err) {
  dependents d = {0};
  ns_end *next = NULL;
  size_t nnext = 0;
  ns_status st = read_dependents(db, ends, n, &d, err);
  if (st == NS_OK && d.n > 0) {
    next = calloc(d.n, sizeof *next);
    st = next != NULL ? cut_edges(db, &d, err) : no_memory(err);
    if (st == NS_OK)
      st = decide(db, &d, ends, n, next, &nnext, err);
    if (st == NS_OK && nnext > 0)
      st = ns_finish(db, next, nnext, err);
  }
  free(next);
  dependents_free(&d);
  return st;
}

ns_status ns_finish(ns_db *db, const ns_end *ends, size_t n, ns_err *err) {
  ns_status st;
  if (n == 0)
    return NS_OK;
  if ((st = write_history(db, ends, n, err)) != NS_OK ||
      (st = free_keys(db, ends, n, err)) != NS_OK ||
      (st = delete_jobs(db, ends, n, err)) != NS_OK)
    return st;
  return resolve(db, ends, n, err);
}
