/*
** Children: the ones that come with a verdict, and the ones that a parked parent waits for. A
** batch of parents costs as many statements as one parent.
**
** Most parents are new: they have the children that come with their verdict, and no job waits
** for them. One look tells. Only parents with dependents or older children have their children
** locked and counted.
**
** Invariant: the parents' rows are locked, so no transaction adds a child, or comes to wait for
** one of them. Their live children are locked, so none ends unseen between the count and the
** commit. No assert: only the server knows the locks.
*/
#include "settle/settle.h"

#include <stdio.h>
#include <stdlib.h>

#include "db/db.h"
#include "finish/finish.h"
#include "handle.h"
#include "push/push.h"

/* ----------------------------------------------------------------- parents */

static bool parks_with_dependents(const ns_outcome *f) {
  return f->locked && f->parks && f->has_dependents;
}

/* A child that waits for something may have failed as it was spawned. */
static bool brings_waiters(const ns_outcome *f) {
  for (size_t i = 0; i < f->v->nchildren; i++)
    if (f->v->children[i].after.p != NULL)
      return true;
  return false;
}

/* All its live children come with its verdict. */
static bool is_new(const ns_outcome *f) {
  return !f->has_dependents && !brings_waiters(f);
}

static bool is_known(const ns_outcome *f) {
  return f->locked && f->parks && !is_new(f);
}

/* A new child, too, may be told to wait for its parent. */
static bool has_held(const ns_outcome *f) {
  return is_known(f) && (f->held > 0 || brings_waiters(f));
}

static bool is_parking(const ns_outcome *f) {
  return f->locked && f->parks;
}

/* NULL: it is none of them, or is not parked any more. */
static ns_outcome *find_parent(const ns_parents *p, int64_t id) {
  size_t low = 0;
  size_t high = p->n;
  while (low < high) {
    size_t mid = low + (high - low) / 2;
    if (p->items[mid]->v->id < id)
      low = mid + 1;
    else
      high = mid;
  }
  return low < p->n && p->items[low]->v->id == id && is_parking(p->items[low]) ? p->items[low]
                                                                               : NULL;
}

/* Runs a statement about the picked parents, given as "[id,…]". '*rows': it was run; without
** picked parents it is not. */
static ns_status ask_about(ns_db *db, ns_sql sql, const ns_parents *p,
                           bool (*picks)(const ns_outcome *), bool *rows, ns_err *err) {
  ns_buf ids = NS_BUF_INIT;
  for (size_t i = 0; i < p->n; i++)
    if (picks(p->items[i]))
      ns_db_list_add_id(&ids, p->items[i]->v->id);
  *rows = !ns_db_list_is_empty(&ids);
  return *rows ? ns_db_list_run(db, sql, NULL, &ids, err) : NS_OK;
}

/* Reads the next row of 'sql', and finds its parent; '*f' is NULL after the last. */
static ns_status next_parent_row(ns_db *db, ns_sql sql, const ns_parents *p, ns_outcome **f,
                                 const ns_value **row, ns_err *err) {
  ns_status st;
  *f = NULL;
  while ((st = ns_db_row(db, sql, row, err)) == NS_OK && *row != NULL)
    if ((*f = find_parent(p, (*row)[0].i)) != NULL)
      break;
  return st;
}

/* ----------------------------------------------------------------- locking */

static ns_status find_dependents(ns_db *db, const ns_parents *p, bool *found, ns_err *err) {
  const ns_value *row;
  ns_outcome *f = NULL;
  bool rows;
  ns_status st = ask_about(db, NS_SQL_EDGE_DEPENDENTS, p, is_parking, &rows, err);
  *found = false;
  while (st == NS_OK && rows &&
         (st = next_parent_row(db, NS_SQL_EDGE_DEPENDENTS, p, &f, &row, err)) == NS_OK && f != NULL)
    *found = f->has_dependents = true;
  return st;
}

/* The children that wait for their parent, as far as they can be locked. */
static ns_status lock_held(ns_db *db, const ns_parents *p, ns_err *err) {
  const ns_value *row;
  ns_outcome *f = NULL;
  bool rows;
  ns_status st = ask_about(db, NS_SQL_EDGE_HELD, p, parks_with_dependents, &rows, err);
  while (st == NS_OK && rows &&
         (st = next_parent_row(db, NS_SQL_EDGE_HELD, p, &f, &row, err)) == NS_OK && f != NULL)
    f->held++;
  return st;
}

/* A child that is to be parked in this batch, too, waits, and is waited for. */
static ns_status lock_live(ns_db *db, const ns_parents *p, ns_err *err) {
  const ns_value *row;
  ns_outcome *f = NULL;
  bool rows;
  ns_status st = ask_about(db, NS_SQL_EDGE_CHILDREN_LOCK, p, parks_with_dependents, &rows, err);
  while (st == NS_OK && rows &&
         (st = next_parent_row(db, NS_SQL_EDGE_CHILDREN_LOCK, p, &f, &row, err)) == NS_OK &&
         f != NULL) {
    ns_outcome *child = find_parent(p, row[1].i);
    f->live++;
    if (child != NULL)
      f->waits = child->waited = true;
  }
  return st;
}

enum { T_ID, T_HELD, T_LIVE, T_WAITED, T_WAITS };

/* Counts the dependents now that they are locked: are these all? */
static ns_status count_dependents(ns_db *db, const ns_parents *p, ns_err *err) {
  const ns_value *row;
  ns_outcome *f = NULL;
  bool rows;
  ns_status st = ask_about(db, NS_SQL_EDGE_COUNTS, p, parks_with_dependents, &rows, err);
  while (st == NS_OK && rows &&
         (st = next_parent_row(db, NS_SQL_EDGE_COUNTS, p, &f, &row, err)) == NS_OK && f != NULL) {
    f->waited = f->waited || row[T_WAITED].i != 0;
    f->waits = f->waits || row[T_WAITS].i != 0;
    if (row[T_HELD].i > f->held || row[T_LIVE].i != f->live)
      ns_settle_put_off(f);
  }
  return st;
}

/* A circle may close where a job waits for the parent, and a child of it for another job. Such
** parents take turns, each until its commit. */
static bool is_tied_to_parent(const ns_outcome *f) {
  return is_parking(f) && f->waited && f->waits;
}

static ns_status take_turn(ns_db *db, const ns_parents *p, ns_err *err) {
  bool tied = false;
  bool mine = true;
  ns_status st = NS_OK;
  for (size_t i = 0; i < p->n; i++) {
    ns_outcome *f = p->items[i];
    f->waits = f->waits || (f->waited && brings_waiters(f));
    tied = tied || is_tied_to_parent(f);
  }
  if (tied)
    st = ns_push_circle_turn(db, NS_SQL_EDGE_CIRCLE_TURN, &mine, err);
  for (size_t i = 0; st == NS_OK && !mine && i < p->n; i++)
    if (is_tied_to_parent(p->items[i]))
      ns_settle_put_off(p->items[i]);
  return st;
}

ns_status ns_settle_children_lock(ns_db *db, const ns_parents *p, ns_err *err) {
  bool has_dependents;
  ns_status st = find_dependents(db, p, &has_dependents, err);
  if (st != NS_OK || !has_dependents)
    return st;
  if ((st = lock_held(db, p, err)) == NS_OK && (st = lock_live(db, p, err)) == NS_OK &&
      (st = count_dependents(db, p, err)) == NS_OK)
    st = take_turn(db, p, err);
  return st;
}

/* ----------------------------------------------------------------- failing */

/* "[[parent,lease],…]" of the parents that fail with a child. */
static void list_runs(const ns_parents *p, ns_buf *list) {
  for (size_t i = 0; i < p->n; i++)
    if (is_known(p->items[i]) && !p->items[i]->v->go_on)
      ns_db_list_add_pair(list, p->items[i]->v->id, p->items[i]->v->lease);
}

static void end_parent(ns_outcome *f, int64_t child) {
  snprintf(f->why, sizeof f->why, "its child, job %lld, failed", (long long)child);
  ns_settle_end(f, "dead", "child failed");
}

/* A child may have failed while the run went on, or been spawned after a failed one. It counts
** as a child that fails later. */
ns_status ns_settle_children_failed(ns_db *db, const ns_parents *p, ns_err *err) {
  const ns_value *row;
  ns_outcome *f = NULL;
  ns_buf list = NS_BUF_INIT;
  ns_status st;
  list_runs(p, &list);
  if (ns_db_list_is_empty(&list))
    return NS_OK;
  st = ns_db_list_run(db, NS_SQL_EDGE_CHILDREN_FAILED, NULL, &list, err);
  while (st == NS_OK &&
         (st = next_parent_row(db, NS_SQL_EDGE_CHILDREN_FAILED, p, &f, &row, err)) == NS_OK &&
         f != NULL)
    end_parent(f, row[1].i); /* the first of its children; then it is found no more */
  return st;
}

/* ----------------------------------------------------------------- waiting */

enum { H_PARENT, H_ID, H_QUEUE, H_RANK, H_RUN, H_UNMET, H_DUE, H_NOW, H_KIND };

/* Children that are released, and the rows written for that. */
typedef struct leaving {
  int64_t *on, *ids;
  ns_buf met, left; /* both: "[[1,id],…" */
  ns_released *free;
  size_t n, nfree;
} leaving;

static bool leaving_make(leaving *l, size_t n) {
  *l = (leaving){.on = malloc(n * sizeof *l->on),
                 .ids = malloc(n * sizeof *l->ids),
                 .met = NS_BUF_INIT,
                 .left = NS_BUF_INIT,
                 .free = malloc(n * sizeof *l->free)};
  return l->on != NULL && l->ids != NULL && l->free != NULL;
}

static void leaving_free(leaving *l) {
  free(l->on);
  free(l->ids);
  ns_buf_free(&l->met);
  ns_buf_free(&l->left);
  free(l->free);
}

static void leaving_add(leaving *l, const ns_value *r) {
  l->on[l->n] = r[H_PARENT].i;
  l->ids[l->n++] = r[H_ID].i;
  ns_db_list_add_pair(&l->met, 1, r[H_ID].i);
  ns_db_list_add_pair(&l->left, 1, r[H_ID].i);
  if (r[H_UNMET].i <= 1)
    l->free[l->nfree++] = (ns_released){.queue_id = r[H_QUEUE].i,
                                        .rank = r[H_RANK].i,
                                        .id = r[H_ID].i,
                                        .run = r[H_RUN].i,
                                        .due = r[H_DUE].i > r[H_NOW].i ? r[H_DUE].i : 0,
                                        .kind = r[H_KIND].i};
}

static ns_status write_leaving(ns_db *db, leaving *l, ns_err *err) {
  ns_status st;
  if (l->n == 0)
    return NS_OK;
  st = ns_db_bulk(
      db, NS_SQL_DEPEND_CUT_ONE,
      (ns_column[]){{NS_INT, l->on, NULL, NULL}, {NS_INT, l->ids, NULL, NULL}}, l->n, err);
  if (st == NS_OK)
    st = ns_db_list_run(db, NS_SQL_EDGE_LEAVE, NULL, &l->left, err);
  return st == NS_OK ? ns_finish_edges_met(db, &l->met, l->n, l->free, l->nfree, err) : st;
}

/* Children that were locked before, and new ones: so there is room for all. */
static ns_status release_leaving(ns_db *db, const ns_parents *p, ns_err *err) {
  const ns_value *row;
  ns_outcome *f = NULL;
  leaving l;
  size_t n = 0;
  bool rows;
  ns_status st;
  for (size_t i = 0; i < p->n; i++)
    if (has_held(p->items[i]))
      n += (size_t)p->items[i]->held + p->items[i]->v->nchildren;
  if (n == 0)
    return NS_OK;
  st = leaving_make(&l, n) ? ask_about(db, NS_SQL_EDGE_HELD, p, has_held, &rows, err)
                           : ns_no_memory(err);
  while (st == NS_OK && (st = next_parent_row(db, NS_SQL_EDGE_HELD, p, &f, &row, err)) == NS_OK &&
         f != NULL && l.n < n)
    leaving_add(&l, row);
  if (st == NS_OK)
    st = write_leaving(db, &l, err);
  leaving_free(&l);
  return st;
}

static ns_status add_new_edges(const ns_parents *p, ns_edges *edges, ns_err *err) {
  for (size_t i = 0; i < p->n; i++) {
    ns_outcome *f = p->items[i];
    bool news = is_parking(f) && is_new(f); /* looks at all children, so once */
    if (!is_parking(f))
      continue;
    f->live = 0;
    for (size_t c = 0; news && c < f->v->nchildren; c++, f->live++)
      if (!ns_push_edges_add(edges, f->v->children[c].id, f->v->id))
        return ns_no_memory(err);
  }
  return NS_OK;
}

static ns_status add_known(ns_db *db, const ns_parents *p, ns_edges *edges, ns_err *err) {
  const ns_value *row;
  ns_outcome *f = NULL;
  bool rows;
  ns_status st = ask_about(db, NS_SQL_EDGE_CHILDREN, p, is_known, &rows, err);
  while (st == NS_OK && rows &&
         (st = next_parent_row(db, NS_SQL_EDGE_CHILDREN, p, &f, &row, err)) == NS_OK && f != NULL) {
    f->live++;
    if (!ns_push_edges_add(edges, row[1].i, f->v->id))
      st = ns_no_memory(err);
  }
  return st;
}

static ns_status write_edges(ns_db *db, const ns_parents *p, ns_err *err) {
  ns_edges edges = {0};
  ns_status st = add_new_edges(p, &edges, err);
  if (st == NS_OK)
    st = add_known(db, p, &edges, err);
  if (st == NS_OK)
    st = ns_push_edges_write(db, &edges, err);
  ns_push_edges_free(&edges);
  return st;
}

/* With all edges there, so that two of one batch that close a circle are seen. */
ns_status ns_settle_children_wait(ns_db *db, const ns_parents *p, ns_err *err) {
  ns_status st = release_leaving(db, p, err);
  if (st == NS_OK)
    st = write_edges(db, p, err);
  for (size_t i = 0; st == NS_OK && i < p->n; i++)
    if (is_tied_to_parent(p->items[i]))
      st = ns_push_refuse_circle(db, p->items[i]->v->id, err);
  return st;
}

/* ----------------------------------------------------- children of a verdict */

static bool brings_children(const ns_outcome *f) {
  return f->locked && ((f->v->kind == NS_ACK && !f->rowless) ||
                       (f->v->kind == NS_WAIT && !f->ends) || (f->v->kind == NS_AGAIN && !f->ends));
}

static size_t count_children(const ns_outcome *outcomes, size_t n) {
  size_t k = 0;
  for (size_t i = 0; i < n; i++)
    if (brings_children(&outcomes[i]))
      k += outcomes[i].v->nchildren;
  return k;
}

static int insert_by_id(const void *a, const void *b) {
  int64_t x = ((const ns_insert *)a)->id;
  int64_t y = ((const ns_insert *)b)->id;
  return (x > y) - (x < y);
}

static ns_status child_row(ns_db *db, const ns_outcome *f, size_t c, ns_insert *row, ns_err *err) {
  const ns_push *child = &f->v->children[c];
  ns_status st = ns_push_check(child, (int64_t)db->max_payload, err);
  *row = (ns_insert){.push = child,
                     .id = child->id,
                     .queue_id = f->queue_id,
                     .nonce = (int64_t)(ns_random() >> 1),
                     .parent = f->v->id,
                     .seq = ns_seq(f->v->run, c),
                     .root = f->root != 0 ? f->root : f->v->id,
                     .waits = f->v->kind == NS_AGAIN,
                     .child = true,
                     .paused = f->paused,
                     .deadline = f->deadline,
                     .deadline_in = -1};
  if (st == NS_OK && child->id <= 0)
    st = ns_fail(err, NS_EINVALID, "a spawned child has no id");
  if (st == NS_OK && child->queue.p != NULL)
    st = ns_queue_id(db, child->queue, true, &row->queue_id, err);
  return st;
}

/* A verdict is put off to the next cycle when its child is to wait for a job that another
** transaction holds. */
static void put_off_parent(ns_outcome *outcomes, size_t n, int64_t id) {
  for (size_t i = 0; i < n; i++)
    if (outcomes[i].locked && outcomes[i].v->id == id)
      ns_settle_put_off(&outcomes[i]);
}

/* '*held': a row for which a lock would have to be waited for; 0: all is written. */
static ns_status try_children(ns_db *db, ns_outcome *outcomes, size_t n, ns_insert *rows,
                              size_t total, size_t *held, ns_err *err) {
  size_t k = 0;
  ns_status st = NS_OK;
  *held = 0;
  for (size_t i = 0; i < n; i++)
    for (size_t c = 0; st == NS_OK && brings_children(&outcomes[i]) && c < outcomes[i].v->nchildren;
         c++)
      st = child_row(db, &outcomes[i], c, &rows[k++], err);
  if (st != NS_OK)
    return st;
  qsort(rows, total, sizeof *rows, insert_by_id);
  st = ns_push_write(db, rows, total, held, err);
  if (*held != 0)
    put_off_parent(outcomes, n, rows[*held - 1].parent);
  else if (st == NS_OK)
    db->ring_due = db->ring_due || ns_push_starts_soon(rows, total);
  for (size_t i = 0; st == NS_OK && *held == 0 && i < total; i++)
    ns_db_tally_one(db, rows[i].queue_id, NS_N_PUSHED);
  return st;
}

ns_status ns_settle_children_write(ns_db *db, ns_outcome *outcomes, size_t n, ns_err *err) {
  size_t total = count_children(outcomes, n);
  size_t held = 0;
  ns_insert *rows;
  ns_status st = NS_OK;
  if (total == 0)
    return NS_OK;
  if ((rows = calloc(total, sizeof *rows)) == NULL)
    return ns_no_memory(err);
  do {
    total = count_children(outcomes, n);
    st = try_children(db, outcomes, n, rows, total, &held, err);
  } while (st == NS_OK && held != 0);
  free(rows);
  return st;
}
