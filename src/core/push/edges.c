/*
** Finding the jobs that new jobs wait for.
**
** Invariant: an edge is written only while its target's row is locked by us, or is our own. So
** a transaction that ends the target later sees the edge, and one that ended it before left a
** row of history that we see. No assert: only the server knows the locks.
*/
#include "push/push.h"

#include <stdlib.h>
#include <string.h>

#include "handle.h"

/* A row and one of the jobs that it waits for. */
typedef struct wish {
  int64_t on;
  size_t row;
} wish;

typedef struct wishes {
  wish *items;
  size_t n, cap;
} wishes;

static bool add_wish(wishes *w, int64_t on, size_t row) {
  if (!ns_grow(&w->items, &w->cap, w->n + 1, sizeof *w->items))
    return false;
  w->items[w->n++] = (wish){on, row};
  return true;
}

static int by_target(const void *a, const void *b) {
  const wish *x = a;
  const wish *y = b;
  return x->on != y->on ? (x->on > y->on) - (x->on < y->on)
                        : (x->row > y->row) - (x->row < y->row);
}

/* The ids in "[1,2,…]", as the binding writes them. */
static ns_status read_after(wishes *w, ns_bytes list, size_t row, ns_err *err) {
  const char *p = list.p;
  const char *end = list.p + list.n;
  while (p < end && *p != ']') {
    int64_t id = 0;
    p++; /* [ or , */
    for (; p < end && *p >= '0' && *p <= '9' && id < INT64_MAX / 10 - 1; p++)
      id = id * 10 + (*p - '0');
    if (id == 0 || p == end || (*p != ',' && *p != ']'))
      return ns_fail(err, NS_EINVALID,
                     "'after' must be a list of job ids, got %.*s",
                     list.n < 40 ? (int)list.n : 40, list.p);
    if (!add_wish(w, id, row))
      return ns_no_memory(err);
  }
  return NS_OK;
}

static ns_status collect_targets(const ns_insert *rows, size_t n, wishes *w, ns_err *err) {
  ns_status st = NS_OK;
  size_t kept = 0;
  for (size_t i = 0; st == NS_OK && i < n; i++) {
    if ((rows[i].waits && !add_wish(w, rows[i].parent, i)) ||
        (rows[i].behind != 0 && !add_wish(w, rows[i].behind, i)))
      st = ns_no_memory(err);
    if (st == NS_OK && rows[i].push->after.p != NULL)
      st = read_after(w, rows[i].push->after, i, err);
  }
  if (w->n > 1)
    qsort(w->items, w->n, sizeof *w->items, by_target);
  for (size_t i = 0; i < w->n; i++) /* named twice is named */
    if (kept == 0 || by_target(&w->items[kept - 1], &w->items[i]) != 0)
      w->items[kept++] = w->items[i];
  w->n = kept;
  return st;
}

static int row_by_id(const void *key, const void *row) {
  int64_t id = *(const int64_t *)key;
  int64_t other = ((const ns_insert *)row)->id;
  return (id > other) - (id < other);
}

static bool is_in_push(const ns_insert *rows, size_t n, int64_t id) {
  return bsearch(&id, rows, n, sizeof *rows, row_by_id) != NULL;
}

/* Runs a statement about one job; '*row': its row, NULL: none. */
static ns_status ask_about_job(ns_db *db, ns_sql sql, int64_t id, const ns_value **row,
                               ns_err *err) {
  ns_value param = ns_vint(id);
  ns_status st = ns_db_run(db, sql, &param, err);
  *row = NULL;
  return st == NS_OK ? ns_db_row(db, sql, row, err) : st;
}

/* A job that is named. */
typedef struct target {
  bool live, failed;
  bool held; /* by another transaction; nothing else is known of it */
} target;

/* Locked, or held when no lock is to be waited for, or its end is known. */
static ns_status find_target_once(ns_db *db, int64_t id, bool nowait, target *t, bool *found,
                                  ns_err *err) {
  const ns_value *row;
  ns_status st =
      ask_about_job(db, nowait ? NS_SQL_EDGE_LOCK_FREE : NS_SQL_EDGE_LOCK, id, &row, err);
  *t = (target){.live = row != NULL};
  if (st == NS_OK && row == NULL && nowait) {
    st = ask_about_job(db, NS_SQL_EDGE_THERE, id, &row, err);
    t->held = row != NULL;
  }
  *found = row != NULL;
  if (st != NS_OK || *found)
    return st;
  st = ask_about_job(db, NS_SQL_EDGE_ENDED, id, &row, err);
  *found = row != NULL;
  t->failed = st == NS_OK && *found && row[0].i != 0;
  return st;
}

/* Finds the targets one by one in ascending order. A target in neither table may have been
** retried meanwhile. */
static ns_status find_target(ns_db *db, int64_t id, bool nowait, target *t, ns_err *err) {
  bool found = false;
  ns_status st = find_target_once(db, id, nowait, t, &found, err);
  if (st == NS_OK && !found)
    st = find_target_once(db, id, nowait, t, &found, err);
  if (st == NS_OK && !found)
    return ns_fail(err, NS_ENOTFOUND,
                   "job %lld, which another is to wait for, is unknown",
                   (long long)id);
  return st;
}

bool ns_push_edges_add(ns_edges *e, int64_t on, int64_t job) {
  if (!ns_grow(&e->on, &e->cap, e->n + 1, sizeof *e->on) ||
      !ns_grow(&e->job, &e->capjob, e->n + 1, sizeof *e->job))
    return false;
  e->on[e->n] = on;
  e->job[e->n++] = job;
  return true;
}

/* Many that are pushed together have the parent of the row before. */
static bool has_same(const ns_insert *rows, const ns_insert *row) {
  const ns_insert *before = row - 1;
  return row > rows && !before->child && before->push->parent == row->push->parent;
}

/* A child in the ordered group of its parent waits for the parent's end, and the parent may wait for
** the child's. */
static ns_status refuse_own_group(ns_db *db, const ns_insert *row, ns_err *err) {
  const ns_push *p = row->push;
  const ns_value params[] = {ns_vint(p->parent), ns_vtext(p->group), ns_vint(row->queue_id)};
  const ns_value *found = NULL;
  ns_status st = ns_db_run(db, NS_SQL_EDGE_ORDERED, params, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_EDGE_ORDERED, &found, err);
  if (st != NS_OK || found == NULL)
    return st;
  return ns_fail(err, NS_EINVALID,
                 "the parent, job %lld, is in the same ordered group, and would wait for this job, "
                 "which waits for it; give another group, or no parent", (long long)p->parent);
}

/* The parent that a push names has to live, or to be pushed with it. */
static ns_status find_parent(ns_db *db, ns_insert *rows, size_t n,
                             ns_insert *row, ns_err *err) {
  const ns_push *p = row->push;
  const ns_insert *with = bsearch(&p->parent, rows, n, sizeof *rows, row_by_id);
  const ns_value *found = NULL;
  ns_status st;
  row->parent = row->root = p->parent;
  if (with != NULL)
    return NS_OK;
  if (p->group.p != NULL && (st = refuse_own_group(db, row, err)) != NS_OK)
    return st;
  if (has_same(rows, row)) {
    const ns_insert *before = row - 1;
    row->root = before->root;
    row->joins = before->joins;
    row->seq = before->seq;
    row->paused = before->paused;
    row->deadline = before->deadline;
    return NS_OK;
  }
  st = ask_about_job(db, NS_SQL_EDGE_PARENT, p->parent, &found, err);
  if (st == NS_OK && found == NULL)
    return ns_fail(err, NS_ENOTFOUND, "the parent, job %lld, is no live job",
                   (long long)p->parent);
  if (st != NS_OK)
    return st;
  row->root = ns_int_or(&found[0], p->parent);
  row->joins = found[1].type == NS_TEXT;
  row->seq = ns_seq(found[4].i, NS_SEQ_RUN); /* behind the children that the run spawns */
  row->paused = ns_int_or(&found[2], 0);
  row->deadline = ns_int_or(&found[3], 0);
  return NS_OK;
}

/* Inherits from a row above this one that is pushed with it. */
static void inherit_from(ns_insert *row, const ns_insert *up) {
  row->root = up->root;
  if (row->paused == 0)
    row->paused = up->paused;
  if (row->deadline_in < 0)
    row->deadline_in = up->push->deadline;
  if (row->deadline == 0)
    row->deadline = up->deadline;
}

/* The same from a row that has already inherited from all above. */
static void inherit_all(ns_insert *row, const ns_insert *up) {
  inherit_from(row, up);
  if (row->deadline_in < 0)
    row->deadline_in = up->deadline_in;
}

/* Sets the row back to its state before an earlier try of the same transaction. */
static void start_over(ns_insert *row) {
  row->unmet = row->doomed = 0;
  row->joins = false;
  if (row->child)
    return;
  if (row->push->parent != 0)
    row->parent = row->root = 0;
  row->paused = row->deadline = 0;
  row->deadline_in = -1;
}

/* Rows with parents that are pushed with them have their parents' root. */
static ns_status find_parents(ns_db *db, ns_insert *rows, size_t n,
                              ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; i < n; i++)
    start_over(&rows[i]);
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (rows[i].push->parent != 0 && !rows[i].child)
      st = find_parent(db, rows, n, &rows[i], err);
  for (size_t i = 0; st == NS_OK && i < n; i++) {
    const ns_insert *up = &rows[i];
    for (size_t steps = 0; up != NULL && up->parent != 0 && steps < n; steps++) {
      if (up < &rows[i]) { /* as all parents in a flow: a deep one takes no longer */
        inherit_all(&rows[i], up);
        up = NULL;
        break;
      }
      inherit_from(&rows[i], up);
      up = bsearch(&up->parent, rows, n, sizeof *rows, row_by_id);
    }
    if (up != NULL && up != &rows[i] && rows[i].deadline_in < 0)
      rows[i].deadline_in = up->push->deadline;
    rows[i].unmet = rows[i].paused != 0;
  }
  return st;
}

static ns_status add_wait(const wish *x, ns_insert *row, const target *t,
                          ns_edges *edges, ns_err *err) {
  if (t->held)
    edges->held = x->row + 1;
  else if (row->joins && x->on == row->parent)
    return NS_OK; /* 'row' is not to wait for a job that waits for it */
  else if (t->live) {
    row->unmet++;
    return ns_push_edges_add(edges, x->on, row->id) ? NS_OK : ns_no_memory(err);
  } else if (t->failed && !row->push->on_fail_run)
    row->doomed = x->on;
  return NS_OK;
}

ns_status ns_push_edges_find(ns_db *db, ns_insert *rows, size_t n, ns_edges *edges, ns_err *err) {
  wishes w = {0};
  target t = {0};
  ns_status st = find_parents(db, rows, n, err);
  if (st == NS_OK)
    st = collect_targets(rows, n, &w, err);
  for (size_t i = 0; st == NS_OK && edges->held == 0 && i < w.n; i++) {
    const wish *x = &w.items[i];
    if (i == 0 || w.items[i - 1].on != x->on) {
      t = (target){.live = is_in_push(rows, n, x->on)};
      if (!t.live)
        st = find_target(db, x->on, edges->nowait, &t, err);
    }
    if (st == NS_OK)
      st = add_wait(x, &rows[x->row], &t, edges, err);
  }
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (rows[i].joins && !ns_push_edges_add(edges, rows[i].id, rows[i].parent))
      st = ns_no_memory(err);
  free(w.items);
  return st;
}

ns_status ns_push_edges_write(ns_db *db, const ns_edges *edges, ns_err *err) {
  if (edges->n == 0) /* a push of plain jobs needs no right to write edges */
    return NS_OK;
  return ns_db_bulk(
      db, NS_SQL_PUSH_EDGE,
      (ns_column[]){{NS_INT, edges->on, NULL, NULL}, {NS_INT, edges->job, NULL, NULL}}, edges->n,
      err);
}

void ns_push_edges_free(ns_edges *edges) {
  free(edges->on);
  free(edges->job);
  *edges = (ns_edges){0};
}

/* ------------------------------------------------------- a parent that waits */

static ns_status add_unmet(ns_db *db, int64_t by, int64_t job, ns_err *err) {
  return ns_db_bulk(db, NS_SQL_EDGE_MORE,
                    (ns_column[]){{NS_INT, &by, NULL, NULL}, {NS_INT, &job, NULL, NULL}}, 1, err);
}

ns_status ns_push_refuse_circle(ns_db *db, int64_t parent, ns_err *err) {
  const ns_value *row = NULL;
  ns_status st =
      ns_db_run(db, NS_SQL_EDGE_CIRCLE, (ns_value[]){ns_vint(parent), ns_vint(parent)}, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_EDGE_CIRCLE, &row, err);
  if (st == NS_OK && row != NULL && row[0].type != NS_NULL)
    return ns_fail(err, NS_EINVALID,
                   "job %lld would wait for itself: its child, job %lld, waits "
                   "for a job that waits for it",
                   (long long)parent, (long long)row[0].i);
  return st;
}

ns_status ns_push_circle_turn(ns_db *db, ns_sql turn, bool *mine, ns_err *err) {
  const ns_value *row = NULL;
  ns_status st = ns_db_run(db, turn, NULL, err);
  if (st == NS_OK)
    st = ns_db_row(db, turn, &row, err);
  *mine = row != NULL;
  return st;
}

ns_status ns_push_edges_join(ns_db *db, const ns_insert *rows, size_t n, ns_err *err) {
  ns_status st = NS_OK;
  bool mine;
  for (size_t i = 0, end; st == NS_OK && i < n; i = end) {
    bool waits = rows[i].unmet > 0;
    end = i + 1;
    if (!rows[i].joins)
      continue;
    for (; end < n && rows[end].joins && rows[end].parent == rows[i].parent; end++)
      waits = waits || rows[end].unmet > 0;
    st = add_unmet(db, (int64_t)(end - i), rows[i].parent, err);
    if (st == NS_OK && waits &&
        (st = ns_push_circle_turn(db, NS_SQL_EDGE_CIRCLE_WAIT, &mine, err)) == NS_OK)
      st = ns_push_refuse_circle(db, rows[i].parent, err);
  }
  return st;
}
