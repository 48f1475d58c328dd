/*
** Dependents: the jobs that waited for a job that has ended. Each dependent that can be locked
** loses its edges, and is released or fails, too. Edges of the rest stay, and finish/finish.c
** sees to them.
**
** Invariant: no lock on a dependent is waited for; a dependent that another transaction holds
** is not touched, nor are its edges. No assert: only the server knows the locks.
*/
#include "finish/finish.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "db/db.h"
#include "handle.h"
#include "wake/wake.h"

#define CLOSE 4 /* ids, and edges, per target: as many are read in a range */

typedef struct edge {
  int64_t on, job;
} edge;

typedef struct edges {
  edge *items; /* sorted by job, and then by target */
  size_t n, cap;
} edges;

/* A job that waits, locked. */
typedef struct ns_waiter {
  int64_t id, queue_id, rank, run, unmet, due, now, kind;
  bool locked;  /* else another transaction holds it, or: */
  bool gone;    /* cancelled, perhaps retried since */
  bool cancels; /* ends when its target failed */
  bool parked;  /* waits for its children, and is dead when it ends so */
  char error[64];
  char *key;    /* its unique key, owned; NULL: none */
  size_t keylen;
  bool keyless; /* another job has that key by now */
} ns_waiter;

/* The state of one resolving. */
typedef struct work {
  const ns_end *ended;
  size_t nended;
  edges edges;
  ns_waiter *waiters; /* one per job that has edges, in their order */
  size_t n;
} work;

/* ----------------------------------------------------------------- lists */

static ns_waiter *find_waiter(const work *w, int64_t id) {
  size_t low = 0;
  size_t high = w->n;
  while (low < high) {
    size_t mid = low + (high - low) / 2;
    if (w->waiters[mid].id < id)
      low = mid + 1;
    else
      high = mid;
  }
  return low < w->n && w->waiters[low].id == id ? &w->waiters[low] : NULL;
}

static bool has_failed(const work *w, int64_t id) {
  ns_end key = {.id = id};
  const ns_end *e = bsearch(&key, w->ended, w->nended, sizeof key, ns_finish_by_id);
  return e != NULL && strcmp(e->outcome, "done") != 0;
}

/* --------------------------------------------------------------- reading */

static int by_job(const void *a, const void *b) {
  const edge *x = a;
  const edge *y = b;
  return x->job != y->job ? (x->job > y->job) - (x->job < y->job)
                          : (x->on > y->on) - (x->on < y->on);
}

static bool has_ended(const work *w, int64_t id) {
  ns_end key = {.id = id};
  return bsearch(&key, w->ended, w->nended, sizeof key, ns_finish_by_id) != NULL;
}

/* Collects the edges that a statement has found, without edges of other jobs. '*rows': of both. */
static ns_status collect_edges(ns_db *db, ns_sql sql, work *w, size_t *rows,
                               ns_err *err) {
  const ns_value *row;
  edges *e = &w->edges;
  ns_status st = NS_OK;
  e->n = *rows = 0;
  while (st == NS_OK && (st = ns_db_row(db, sql, &row, err)) == NS_OK && row != NULL) {
    ++*rows;
    if (!has_ended(w, row[0].i))
      continue;
    if (!ns_grow(&e->items, &e->cap, e->n + 1, sizeof *e->items))
      return ns_no_memory(err);
    e->items[e->n++] = (edge){row[0].i, row[1].i};
  }
  return st;
}

/* The ids of most batches stand close together: one range is read much faster than
** many keys. '*all': it was not too much. */
static ns_status read_between(ns_db *db, work *w, bool *all, ns_err *err) {
  int64_t first = w->ended[0].id;
  int64_t last = w->ended[w->nended - 1].id;
  size_t most = CLOSE * w->nended;
  size_t rows = 0;
  ns_status st = NS_OK;
  *all = last - first < (int64_t)most;
  if (!*all)
    return NS_OK;
  st = ns_db_run(db, NS_SQL_DEPEND_EDGES_BETWEEN,
                 (ns_value[]){ns_vint(first), ns_vint(last), ns_vint((int64_t)most)}, err);
  if (st == NS_OK)
    st = collect_edges(db, NS_SQL_DEPEND_EDGES_BETWEEN, w, &rows, err);
  *all = rows < most;
  return st;
}

static ns_status read_edges(ns_db *db, work *w, ns_err *err) {
  ns_buf ids = NS_BUF_INIT;
  size_t rows;
  bool all;
  ns_status st = read_between(db, w, &all, err);
  if (st == NS_OK && !all) {
    for (size_t i = 0; i < w->nended; i++)
      ns_db_list_add_id(&ids, w->ended[i].id);
    st = ns_db_list_run(db, NS_SQL_DEPEND_EDGES, NULL, &ids, err);
    if (st == NS_OK)
      st = collect_edges(db, NS_SQL_DEPEND_EDGES, w, &rows, err);
  }
  if (w->edges.n > 1)
    qsort(w->edges.items, w->edges.n, sizeof *w->edges.items, by_job);
  return st;
}

static ns_status name_waiters(ns_db *db, work *w, ns_err *err) {
  if ((w->waiters = calloc(w->edges.n, sizeof *w->waiters)) == NULL)
    return ns_no_memory(err);
  for (size_t i = 0; i < w->edges.n; i++)
    if (i == 0 || w->edges.items[i].job != w->edges.items[i - 1].job)
      w->waiters[w->n++].id = w->edges.items[i].job;
  for (size_t i = 0; i < w->n && w->waiters[i].id < 0; i++)
    ns_wake_note(db, w->waiters[i].id);
  return NS_OK;
}

enum { D_ID, D_QUEUE, D_RANK, D_RUN, D_UNMET, D_DUE, D_ON_FAIL, D_UKEY, D_NOW,
       D_WAITS, D_KIND };

static bool fill_waiter(ns_waiter *x, const ns_value *r) {
  x->locked = true;
  x->gone = r[D_UNMET].i == 0;
  x->queue_id = r[D_QUEUE].i;
  x->rank = r[D_RANK].i;
  x->run = r[D_RUN].i;
  x->unmet = r[D_UNMET].i;
  x->due = r[D_DUE].i;
  x->now = r[D_NOW].i;
  x->kind = r[D_KIND].i;
  x->parked = r[D_WAITS].type == NS_TEXT;
  x->cancels = x->parked ? r[D_WAITS].s.n == strlen("fail")
                         : r[D_ON_FAIL].s.n == strlen("cancel");
  if (r[D_UKEY].type != NS_TEXT)
    return true;
  x->keylen = r[D_UKEY].s.n;
  if ((x->key = malloc(x->keylen + 1)) == NULL)
    return false;
  memcpy(x->key, r[D_UKEY].s.p, x->keylen);
  return true;
}

/* Which of the jobs that were not locked exist? The rest are gone. */
static ns_status tell_gone(ns_db *db, work *w, ns_err *err) {
  const ns_value *row;
  ns_buf ids = NS_BUF_INIT;
  ns_status st;
  for (size_t i = 0; i < w->n; i++) {
    w->waiters[i].gone = w->waiters[i].gone || !w->waiters[i].locked;
    if (!w->waiters[i].locked)
      ns_db_list_add_id(&ids, w->waiters[i].id);
  }
  st = ns_db_list_run(db, NS_SQL_DEPEND_THERE, NULL, &ids, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_DEPEND_THERE, &row, err)) == NS_OK &&
         row != NULL) {
    ns_waiter *x = find_waiter(w, row[0].i);
    if (x != NULL)
      x->gone = false;
  }
  return st;
}

static ns_status lock_waiters(ns_db *db, work *w, ns_err *err) {
  const ns_value *row;
  ns_buf ids = NS_BUF_INIT;
  size_t locked = 0;
  ns_status st;
  for (size_t i = 0; i < w->n; i++)
    ns_db_list_add_id(&ids, w->waiters[i].id);
  st = ns_db_list_run(db, NS_SQL_DEPEND_LOCK, NULL, &ids, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_DEPEND_LOCK, &row, err)) == NS_OK &&
         row != NULL) {
    ns_waiter *x = find_waiter(w, row[D_ID].i);
    if (x == NULL || x->locked)
      continue;
    locked++;
    if (!fill_waiter(x, row))
      st = ns_no_memory(err);
  }
  return st == NS_OK && locked < w->n ? tell_gone(db, w, err) : st;
}

/* A job that is to end, with a unique key that another transaction holds, is as good as held
** itself. */
static ns_status lock_keys(ns_db *db, work *w, ns_err *err) {
  ns_end *ends = calloc(w->n, sizeof *ends);
  bool *held = calloc(w->n, sizeof *held);
  ns_status st = ends == NULL || held == NULL ? ns_no_memory(err) : NS_OK;
  for (size_t i = 0; st == NS_OK && i < w->edges.n; i++) {
    const ns_waiter *x = find_waiter(w, w->edges.items[i].job);
    if (x->locked && !x->gone && x->cancels && has_failed(w, w->edges.items[i].on))
      ends[x - w->waiters] = (ns_end){.id = x->id, .queue_id = x->queue_id,
                                      .unique = {x->key, x->keylen}};
  }
  if (st == NS_OK)
    st = ns_finish_keys(db, ends, w->n, held, err);
  for (size_t i = 0; st == NS_OK && i < w->n; i++) {
    w->waiters[i].keyless = ends[i].key_row == NS_KEY_LOST;
    if (held[i])
      w->waiters[i].locked = false;
  }
  free(held);
  free(ends);
  return st;
}

/* -------------------------------------------------------------- deciding */

/* Another transaction holds it: its edges stay. */
static bool is_held(const work *w, size_t i) {
  const ns_waiter *x = find_waiter(w, w->edges.items[i].job);
  return !x->locked && !x->gone;
}

/* The fates of the edges of one target. */
enum { NONE, GO, STAY };

static size_t ended_index(const work *w, int64_t on) {
  ns_end key = {.id = on};
  const ns_end *e = bsearch(&key, w->ended, w->nended, sizeof key, ns_finish_by_id);
  return (size_t)(e - w->ended);
}

typedef struct mark {
  int state;
  int64_t edges;
} mark;

/* Makes one mark per target; NULL: out of memory. */
static mark *mark_targets(const work *w) {
  mark *marks = calloc(w->nended, sizeof *marks);
  for (size_t i = 0; marks != NULL && i < w->edges.n; i++) {
    mark *m = &marks[ended_index(w, w->edges.items[i].on)];
    m->edges++;
    if (is_held(w, i))
      m->state = STAY;
    else if (m->state == NONE)
      m->state = GO;
  }
  return marks;
}

/* Targets in a row that all go, from 'i' on; the index behind them. */
static size_t end_of_row(const work *w, const mark *marks, size_t i) {
  size_t end = i + 1;
  while (end < w->nended && marks[end].state == GO && w->ended[end].id == w->ended[end - 1].id + 1)
    end++;
  return end;
}

/* 'cols': room for three columns. */
static ns_status cut_rows(ns_db *db, const work *w, const mark *marks,
                          int64_t *cols, ns_err *err) {
  int64_t *first = cols;
  int64_t *last = first + w->nended;
  int64_t *counts = last + w->nended;
  int64_t all = 0;
  size_t n = 0;
  for (size_t i = 0; i < w->nended;) {
    size_t end = end_of_row(w, marks, i);
    if (marks[i].state != GO) {
      i++;
      continue;
    }
    first[n] = w->ended[i].id;
    last[n] = w->ended[end - 1].id;
    for (counts[n] = 0; i < end; i++)
      counts[n] += marks[i].edges;
    all += counts[n++];
  }
  return ns_db_bulk_changing(db, NS_SQL_DEPEND_CUT,
                             (ns_column[]){{NS_INT, first, NULL, NULL},
                                           {NS_INT, last, NULL, NULL},
                                           {NS_INT, counts, NULL, NULL}},
                             n, all, err);
}

/* Of targets that stay, the edges to jobs that are told. */
static ns_status cut_singly(ns_db *db, const work *w, const mark *marks,
                            ns_err *err) {
  int64_t *cols = malloc(2 * w->edges.n * sizeof *cols);
  size_t n = 0;
  ns_status st;
  if (cols == NULL)
    return ns_no_memory(err);
  for (size_t i = 0; i < w->edges.n; i++) {
    const edge *e = &w->edges.items[i];
    if (marks[ended_index(w, e->on)].state != STAY || is_held(w, i))
      continue;
    cols[n] = e->on;
    cols[w->edges.n + n++] = e->job;
  }
  st = ns_db_bulk(
      db, NS_SQL_DEPEND_CUT_ONE,
      (ns_column[]){{NS_INT, cols, NULL, NULL}, {NS_INT, cols + w->edges.n, NULL, NULL}}, n, err);
  free(cols);
  return st;
}

static ns_status cut_edges(ns_db *db, const work *w, ns_err *err) {
  mark *marks = mark_targets(w);
  int64_t *cols = malloc(3 * w->nended * sizeof *cols);
  ns_status st = marks == NULL || cols == NULL ? ns_no_memory(err) : NS_OK;
  if (st == NS_OK)
    st = cut_rows(db, w, marks, cols, err);
  if (st == NS_OK)
    st = cut_singly(db, w, marks, err);
  free(cols);
  free(marks);
  return st;
}

enum { N_QUEUE, N_RANK, N_OFFSET, N_ID, N_RUN, N_ALONE, N_KIND, N_COUNT };

/* 'cols': room for N_COUNT columns of 'n' rows. */
static ns_status release_now(ns_db *db, const ns_released *jobs, size_t n,
                             int64_t *cols, ns_err *err) {
  ns_column c[N_COUNT];
  size_t k = 0;
  for (size_t i = 0; i < n; i++)
    if (jobs[i].due == 0) {
      cols[N_QUEUE * n + k] = jobs[i].queue_id;
      cols[N_RANK * n + k] = jobs[i].rank;
      cols[N_OFFSET * n + k] = (int64_t)k;
      cols[N_ID * n + k] = jobs[i].id;
      cols[N_RUN * n + k] = jobs[i].run;
      cols[N_ALONE * n + k] = 0;
      cols[N_KIND * n + k++] = jobs[i].kind;
    }
  for (size_t i = 0; i < N_COUNT; i++)
    c[i] = (ns_column){NS_INT, cols + i * n, NULL, NULL};
  db->ring_due = db->ring_due || k > 0;
  return ns_db_bulk(db, NS_SQL_CLAIM_READY, c, k, err);
}

enum { S_DUE, S_ID, S_QUEUE, S_RANK, S_RUN, S_KIND, S_COUNT };

static ns_status release_later(ns_db *db, const ns_released *jobs, size_t n,
                               int64_t *cols, ns_err *err) {
  ns_column c[S_COUNT];
  size_t k = 0;
  for (size_t i = 0; i < n; i++)
    if (jobs[i].due > 0) {
      cols[S_DUE * n + k] = jobs[i].due;
      cols[S_ID * n + k] = jobs[i].id;
      cols[S_QUEUE * n + k] = jobs[i].queue_id;
      cols[S_RANK * n + k] = jobs[i].rank;
      cols[S_RUN * n + k] = jobs[i].run;
      cols[S_KIND * n + k++] = jobs[i].kind;
    }
  for (size_t i = 0; i < S_COUNT; i++)
    c[i] = (ns_column){NS_INT, cols + i * n, NULL, NULL};
  if (k > 0)
    db->claim.promote_at = 0;
  return ns_db_bulk(db, NS_SQL_SETTLE_SCHEDULED, c, k, err);
}

ns_status ns_finish_release(ns_db *db, const ns_released *jobs, size_t n, ns_err *err) {
  int64_t *cols;
  ns_status st;
  if (n == 0)
    return NS_OK;
  if ((cols = malloc(N_COUNT * n * sizeof *cols)) == NULL)
    return ns_no_memory(err);
  if ((st = release_later(db, jobs, n, cols, err)) == NS_OK)
    st = release_now(db, jobs, n, cols, err);
  free(cols);
  return st;
}

/* The jobs that lose edges, and the ones of them that had no other. */
typedef struct meeting {
  ns_buf met; /* "[[edges,id],…" */
  size_t n;
  ns_released *released;
  size_t nreleased;
} meeting;

static void add_met(meeting *m, const ns_waiter *x, int64_t met) {
  ns_db_list_add_pair(&m->met, met, x->id);
  m->n++;
  if (met >= x->unmet)
    m->released[m->nreleased++] =
        (ns_released){.queue_id = x->queue_id, .rank = x->rank, .id = x->id,
                      .run = x->run, .kind = x->kind,
                      .due = x->due > x->now ? x->due : 0};
}

ns_status ns_finish_edges_met(ns_db *db, ns_buf *met, size_t nmet, const ns_released *jobs,
                              size_t n, ns_err *err) {
  ns_status st = NS_OK;
  if (nmet > 0)
    st = ns_db_list_change(db, NS_SQL_DEPEND_MET, NULL, met, nmet, err);
  return st == NS_OK ? ns_finish_release(db, jobs, n, err) : st;
}

/* The end of a job that waited for a failed job. */
static ns_end failure_of(ns_waiter *x, int64_t culprit) {
  snprintf(x->error, sizeof x->error, x->parked ? "its child, job %lld, failed"
                                                : "job %lld, which it waited for, failed",
           (long long)culprit);
  return (ns_end){.id = x->id, .queue_id = x->queue_id,
                  .outcome = x->parked ? "dead" : "cancelled",
                  .reason = x->parked ? "child failed" : "dependency",
                  .error = ns_str(x->error), .attempts = -1, .polls = -1,
                  .crashes = -1, .unique = {x->key, x->keylen},
                  .key_row = x->keyless ? NS_KEY_LOST : NS_KEY_FREED};
}

/* Each job that was locked is released, or fails. Its edges stand together. */
static void decide_waiters(work *w, meeting *m, ns_failed_dependents *next) {
  size_t i = 0;
  for (size_t k = 0; k < w->n; k++) {
    ns_waiter *x = &w->waiters[k];
    int64_t culprit = 0;
    int64_t met = 0;
    for (; i < w->edges.n && w->edges.items[i].job == x->id; i++, met++)
      if (x->cancels && has_failed(w, w->edges.items[i].on))
        culprit = w->edges.items[i].on;
    if (x->gone || !x->locked)
      continue;
    if (culprit == 0)
      add_met(m, x, met);
    else
      next->ends[next->n++] = failure_of(x, culprit);
  }
}

static ns_status tell_all(ns_db *db, work *w, ns_failed_dependents *next, ns_err *err) {
  meeting m = {NS_BUF_INIT, 0, malloc(w->n * sizeof *m.released), 0};
  ns_status st = ns_no_memory(err);
  next->ends = calloc(w->n, sizeof *next->ends);
  if (m.released != NULL && next->ends != NULL) {
    decide_waiters(w, &m, next);
    st = ns_finish_edges_met(db, &m.met, m.n, m.released, m.nreleased, err);
  }
  free(m.released);
  return st;
}

void ns_finish_failed_free(ns_failed_dependents *f) {
  for (size_t i = 0; i < f->nwaiters; i++)
    free(f->waiters[i].key);
  free(f->waiters);
  free(f->ends);
  *f = (ns_failed_dependents){0};
}

/* 'w' is freed by the caller, without its waiters, which belong to '*next'. */
static ns_status resolve_all(ns_db *db, work *w, ns_failed_dependents *next, ns_err *err) {
  ns_status st = read_edges(db, w, err);
  if (st != NS_OK || w->edges.n == 0)
    return st;
  st = name_waiters(db, w, err);
  next->waiters = w->waiters;
  if (st == NS_OK)
    st = lock_waiters(db, w, err);
  next->nwaiters = w->n;
  if (st == NS_OK)
    st = lock_keys(db, w, err);
  if (st == NS_OK)
    st = cut_edges(db, w, err);
  return st == NS_OK ? tell_all(db, w, next, err) : st;
}

/* Finds the targets that have an edge that stays; NULL: none has. */
static ns_status find_held(const work *w, bool **held, ns_err *err) {
  for (size_t i = 0; i < w->edges.n; i++) {
    if (!is_held(w, i))
      continue;
    if (*held == NULL && (*held = calloc(w->nended, sizeof **held)) == NULL)
      return ns_no_memory(err);
    (*held)[ended_index(w, w->edges.items[i].on)] = true;
  }
  return NS_OK;
}

ns_status ns_finish_resolve(ns_db *db, const ns_end *ends, size_t n, bool **held,
                            ns_failed_dependents *next, ns_err *err) {
  work w = {.ended = ends, .nended = n};
  ns_status st = resolve_all(db, &w, next, err);
  *held = NULL;
  if (st == NS_OK)
    st = find_held(&w, held, err);
  free(w.edges.items);
  return st;
}
