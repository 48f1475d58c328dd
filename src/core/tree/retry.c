/*
** The verb "retry" over a tree: failed jobs run again; jobs that were cancelled or died because
** of them wait for them again.
**
** It goes through the tree three times. First every failed job lives again, held as by a pause,
** under the negative id of the tree's top. Then each gets its edges, as far as the targets
** live. They are the jobs that it was pushed to wait for, or its children when it was parked.
** At last all are released. So none runs before all have their edges; and a retry that was cut
** off is made again. No other verb releases jobs that it holds: no other verb knows their
** edges.
**
** Invariant: a job that lives again is held, under the tree's id, until all of its tree have
** their edges. No assert: the three passes are transactions of their own, and jobs held between
** them stand in the tables. Specs of retry cut each of them off.
*/
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "db/db.h"
#include "finish/finish.h"
#include "push/push.h"
#include "source/source.h"
#include "tree/tree.h"

#define FALLS_MAX_US 2000000 /* a retry's wait for jobs that are still failing */

/* ---------------------------------------------------------- living again */

void ns_tree_pasts_cut(ns_tree_pasts *p, size_t n) {
  while (p->n > n)
    free(p->items[--p->n].key);
}

void ns_tree_pasts_free(ns_tree_pasts *p) {
  ns_tree_pasts_cut(p, 0);
  free(p->items);
}

static bool add_past(ns_tree_pasts *p, const ns_value *r) {
  ns_tree_past *x;
  if (!ns_grow(&p->items, &p->cap, p->n + 1, sizeof *p->items))
    return false;
  x = &p->items[p->n++];
  *x = (ns_tree_past){
      .id = r[0].i, .queue_id = r[1].i, .priority = r[3].i, .run = r[4].i, .kind = r[5].i};
  if (r[2].type != NS_TEXT)
    return true;
  x->keylen = r[2].s.n;
  if ((x->key = malloc(x->keylen + 1)) != NULL)
    memcpy(x->key, r[2].s.p, x->keylen);
  return x->key != NULL;
}

ns_status ns_tree_pasts_read(ns_db *db, ns_sql sql, ns_tree_pasts *out, ns_err *err) {
  const ns_value *row = NULL;
  ns_status st;
  while ((st = ns_db_row(db, sql, &row, err)) == NS_OK && row != NULL)
    if (!add_past(out, row))
      return ns_no_memory(err);
  return st;
}

static ns_status read_pasts(ns_db *db, ns_tree *t, ns_tree_pasts *out, ns_err *err) {
  ns_value param;
  ns_status st = ns_tree_ids(t, &param, err);
  if (st == NS_OK)
    st = ns_db_run(db, NS_SQL_ADMIN_TREE_PAST, &param, err);
  return st == NS_OK ? ns_tree_pasts_read(db, NS_SQL_ADMIN_TREE_PAST, out, err) : st;
}

/* Takes the keys back; a job with a key that another has stays as it is. */
static ns_status take_keys(ns_db *db, ns_tree *t, ns_tree_pasts *p, ns_err *err) {
  ns_status st = NS_OK;
  size_t kept = 0;
  for (size_t i = 0; st == NS_OK && i < p->n; i++) {
    ns_tree_past x = p->items[i];
    const ns_key key = {x.queue_id, {x.key, x.keylen}, x.id, 0};
    ns_key_owner owner;
    if (x.key != NULL)
      st = ns_push_key_take(db, &key, &owner, err);
    if (st == NS_OK) {
      p->items[i] = p->items[kept];
      p->items[kept++] = x;
    } else if (st == NS_EDUPLICATE) {
      t->taken = x.id;
      ns_err_clear(err);
      st = NS_OK;
    }
  }
  ns_tree_pasts_cut(p, kept);
  return st;
}

ns_status ns_tree_leave_past(ns_db *db, ns_value list, ns_err *err) {
  const ns_value params[] = {list, list, list};
  const ns_value *row = NULL;
  ns_status st = ns_db_run(db, NS_SQL_ADMIN_TREE_UNLINKED, params, err);
  do {
    if (st == NS_OK)
      st = ns_db_row(db, NS_SQL_ADMIN_TREE_UNLINKED, &row, err);
  } while (st == NS_OK && row != NULL);
  if (st == NS_OK)
    st = ns_db_run(db, NS_SQL_ADMIN_TREE_ERRORS, params, err);
  return st == NS_OK ? ns_db_run(db, NS_SQL_ADMIN_TREE_UNLINK, params, err) : st;
}

static ns_status write_revived(ns_db *db, ns_tree *t, const ns_tree_pasts *p, ns_err *err) {
  ns_value list;
  ns_status st;
  if (p->n == 0)
    return NS_OK;
  ns_buf_reset(&t->list);
  for (size_t i = 0; i < p->n; i++)
    ns_db_list_add_id(&t->list, p->items[i].id);
  list = ns_db_list_end(&t->list);
  st = t->list.oom ? ns_no_memory(err) : ns_tree_leave_past(db, list, err);
  if (st == NS_OK)
    st = ns_db_run(db, NS_SQL_ADMIN_TREE_UNMET, &list, err);
  if (st == NS_OK)
    st = ns_db_run(db, NS_SQL_ADMIN_TREE_RETRY, (ns_value[]){ns_vint(-t->id), list}, err);
  return st == NS_OK ? ns_db_run(db, NS_SQL_ADMIN_TREE_FORGET, &list, err) : st;
}

static ns_status step_revive(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_tree *t = tx->arg;
  ns_tree_pasts p = {0};
  ns_status st = ns_tree_lock(db, t, false, err);
  for (size_t i = 0; i < t->nnodes; i++)
    t->was_paused = t->was_paused || t->nodes[i].paused == t->id;
  if (st == NS_OK && (st = read_pasts(db, t, &p, err)) == NS_OK &&
      (st = take_keys(db, t, &p, err)) == NS_OK)
    st = write_revived(db, t, &p, err);
  if (st == NS_OK)
    t->changed += (int64_t)p.n;
  if (st == NS_OK && p.n > 0)
    tx->jobs = (int64_t)p.n;
  ns_tree_pasts_free(&p);
  return st;
}

/* ------------------------------------------------------------------- edges */

/* "job waits for on". */
typedef struct tie {
  int64_t job, on;
  bool there; /* before: the job's unmet has counted it */
} tie;

typedef struct new_edges {
  tie *items;
  size_t n, cap;
} new_edges;

static int by_job(const void *a, const void *b) {
  const tie *x = a;
  const tie *y = b;
  return x->job != y->job ? (x->job > y->job) - (x->job < y->job)
                          : (x->on > y->on) - (x->on < y->on);
}

static bool is_held(const ns_tree *t, const ns_node *x) {
  return x->paused == -t->id;
}

/* Does it get edges by this statement? */
static bool gets_edges(const ns_tree *t, const ns_node *x, ns_sql sql) {
  return sql == NS_SQL_ADMIN_TREE_CHILDREN ? x->waits : !x->waits && is_held(t, x);
}

static ns_status read_new_edges(ns_db *db, ns_tree *t, ns_sql sql, new_edges *out, ns_err *err) {
  const ns_value *row = NULL;
  ns_status st;
  ns_buf_reset(&t->list);
  for (size_t i = 0; i < t->nnodes; i++)
    if (gets_edges(t, &t->nodes[i], sql))
      ns_db_list_add_id(&t->list, t->nodes[i].id);
  if (ns_db_list_is_empty(&t->list))
    return NS_OK;
  st = ns_db_list_run(db, sql, NULL, &t->list, err);
  while (st == NS_OK && (st = ns_db_row(db, sql, &row, err)) == NS_OK && row != NULL) {
    if (!ns_grow(&out->items, &out->cap, out->n + 1, sizeof *out->items))
      return ns_no_memory(err);
    out->items[out->n++] = (tie){row[0].i, row[1].i, row[2].type == NS_INT};
  }
  return st;
}

/* Sorts the edges; two with the same jobs become one. */
static void sort_new_edges(new_edges *l) {
  size_t kept = 0;
  if (l->n > 1)
    qsort(l->items, l->n, sizeof *l->items, by_job);
  for (size_t i = 0; i < l->n; i++)
    if (kept == 0 || by_job(&l->items[kept - 1], &l->items[i]) != 0)
      l->items[kept++] = l->items[i];
  l->n = kept;
}

static ns_status write_new_edges(ns_db *db, const new_edges *l, ns_err *err) {
  int64_t *cols;
  ns_status st;
  if (l->n == 0)
    return NS_OK;
  if ((cols = malloc(2 * l->n * sizeof *cols)) == NULL)
    return ns_no_memory(err);
  for (size_t i = 0; i < l->n; i++) {
    cols[i] = l->items[i].on;
    cols[l->n + i] = l->items[i].job;
  }
  st = ns_db_bulk_changing(
      db, NS_SQL_ADMIN_TREE_EDGE,
      (ns_column[]){{NS_INT, cols, NULL, NULL}, {NS_INT, cols + l->n, NULL, NULL}}, l->n, 0, err);
  free(cols);
  return st;
}

/* Counts the jobs that each node waits for now, and a pause. For a node that is not held, edges
** to ended jobs that it has not been told of count as before. */
static void count_new_edges(ns_tree *t, const new_edges *l) {
  size_t at = 0;
  for (size_t i = 0; i < t->nnodes; i++) {
    ns_node *x = &t->nodes[i];
    bool held = is_held(t, x);
    int64_t unmet = held ? 1 : x->unmet;
    for (; at < l->n && l->items[at].job <= x->id; at++)
      unmet += l->items[at].job == x->id && (held || !l->items[at].there);
    x->changed = held || unmet != x->unmet;
    x->unmet = unmet;
    if (held)
      x->paused = t->id;
  }
}

static ns_status step_link(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_tree *t = tx->arg;
  new_edges l = {0};
  ns_status st = ns_tree_lock(db, t, false, err);
  if (st == NS_OK && (st = read_new_edges(db, t, NS_SQL_ADMIN_TREE_CHILDREN, &l, err)) == NS_OK)
    st = read_new_edges(db, t, NS_SQL_ADMIN_TREE_AFTER, &l, err);
  if (st == NS_OK) {
    sort_new_edges(&l);
    st = write_new_edges(db, &l, err);
  }
  if (st == NS_OK) {
    count_new_edges(t, &l);
    st = ns_tree_write(db, t, err);
  }
  free(l.items);
  return st;
}

/* --------------------------------------------------------------------- verb */

/* Jobs that fail with other jobs do so in pieces, from below: the top could be seen alive, and
** be cancelled after that. So all dependents are told first, by us or by another session. In a
** transaction of the caller we would wait for ourselves. */
static ns_status finish_failures(ns_db *db, ns_err *err) {
  int64_t end = ns_mono_us() + FALLS_MAX_US;
  const ns_value *row = NULL;
  ns_status st = NS_OK;
  while (st == NS_OK && !ns_in_transaction(db) && ns_mono_us() < end) {
    st = ns_finish_pending_look(db, err);
    if (st == NS_OK && !db->finish.pending_due &&
        (st = ns_db_run(db, NS_SQL_DEPEND_PENDING_ANY, NULL, err)) == NS_OK &&
        (st = ns_db_row(db, NS_SQL_DEPEND_PENDING_ANY, &row, err)) == NS_OK && row == NULL)
      break;
    ns_sleep_us(1000);
  }
  return st;
}

/* A row of an adopted table that is at the top gets another job, which has children of its own. */
static ns_status step_row(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_tree *t = tx->arg;
  bool is_row;
  ns_status st = ns_source_retry(db, t->id, &is_row, err);
  t->changed = is_row;
  if (is_row)
    tx->jobs = 1;
  return st;
}

ns_status ns_tree_retry(ns_db *db, ns_tree *t, ns_tree_step *release, ns_err *err) {
  int64_t revived;
  ns_tx row = {.run = step_row, .arg = t};
  ns_status st = ns_db_transact(db, &row, err);
  if (st == NS_OK && t->changed > 0)
    return NS_OK;
  if (st == NS_OK)
    st = finish_failures(db, err);
  if (st == NS_OK)
    st = ns_tree_walk(db, t, step_revive, err);
  revived = t->changed;
  t->noted = revived > 0;
  if (st == NS_OK)
    st = ns_tree_walk(db, t, step_link, err);
  if (st == NS_OK && !t->was_paused)
    st = ns_tree_walk(db, t, release, err);
  if (revived > 0)
    t->changed = revived; /* else the jobs that an earlier retry has left held */
  if (st == NS_OK && t->taken != 0)
    return ns_fail(err, NS_EDUPLICATE,
                   "%lld jobs run again; job %lld cannot: another live job has "
                   "its unique key",
                   (long long)revived, (long long)t->taken);
  if (st == NS_OK && t->changed == 0)
    return ns_fail(err, NS_ESTATE, "nothing has failed of job %lld and all below it",
                   (long long)t->id);
  return st;
}
