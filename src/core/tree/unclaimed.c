/*
** Which of a batch's jobs nobody is claiming. A claim takes a job's row out of ready and
** locks no job; its lease cannot be seen before it commits. So a verb that is to move a job
** locks the job's row in scheduled or ready first: who has it is waited for, and who comes
** later finds it locked and goes on without it.
**
** The key of ready begins with the lane, and the job is its end. So a lane is read once per
** batch, without locks, and what was found there is locked by key.
*/
#include "tree/unclaimed.h"

#include "db/db.h"

static bool is_sought(const ns_node *x) {
  return x->asks && !x->placed;
}

static bool same_lane(const ns_node *a, const ns_node *b) {
  return a->queue_id == b->queue_id && a->rank == b->rank;
}

static ns_node *next_id(ns_db *db, ns_tree *t, ns_sql sql, const ns_value **row,
                        ns_status *st, ns_err *err) {
  *st = ns_db_row(db, sql, row, err);
  return *st == NS_OK && *row != NULL ? ns_tree_node(t, (*row)[0].i) : NULL;
}

/* Locks the rows of a list, the statement's one parameter: their jobs have their place. */
static ns_status hold(ns_db *db, ns_tree *t, ns_sql sql, ns_buf *list, ns_err *err) {
  const ns_value *row = NULL;
  ns_node *x;
  ns_status st;
  if (ns_db_list_is_empty(list))
    return NS_OK;
  st = ns_db_list_run(db, sql, NULL, list, err);
  while (st == NS_OK && (x = next_id(db, t, sql, &row, &st, err)) != NULL)
    x->placed = true;
  return st;
}

static ns_status hold_scheduled(ns_db *db, ns_tree *t, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  for (size_t i = 0; i < t->nnodes; i++) {
    const ns_node *x = &t->nodes[i];
    if (is_sought(x))
      ns_buf_addf(&list, "%s[%lld,%lld,%lld]", list.n > 0 ? "," : "[",
                  (long long)x->was_due, (long long)x->id, (long long)x->was_run);
  }
  return hold(db, t, NS_SQL_ADMIN_TREE_HOLD_SCHEDULED, &list, err);
}

/* Where in their lane the jobs of one lane lie: 'like' is the first of them. */
static ns_status look_at_lane(ns_db *db, ns_tree *t, ns_node *like, ns_err *err) {
  const ns_value *row = NULL;
  ns_buf list = NS_BUF_INIT;
  ns_value params[] = {ns_vint(like->queue_id), ns_vint(like->rank), ns_vnull};
  ns_node *x;
  ns_status st;
  for (ns_node *y = like; y < t->nodes + t->nnodes; y++)
    if (is_sought(y) && same_lane(y, like)) {
      ns_db_list_add_id(&list, y->id);
      y->seen = true;
    }
  params[2] = ns_db_list_end(&list);
  st = list.oom ? ns_no_memory(err) : ns_db_run(db, NS_SQL_ADMIN_TREE_READY_AT, params, err);
  while (st == NS_OK &&
         (x = next_id(db, t, NS_SQL_ADMIN_TREE_READY_AT, &row, &st, err)) != NULL)
    if (row[1].i == x->was_run)
      x->ready_at = row[2].i;
  ns_buf_free(&list);
  return st;
}

static ns_status hold_ready(ns_db *db, ns_tree *t, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < t->nnodes; i++)
    if (is_sought(&t->nodes[i]) && !t->nodes[i].seen)
      st = look_at_lane(db, t, &t->nodes[i], err);
  for (size_t i = 0; i < t->nnodes; i++) {
    const ns_node *x = &t->nodes[i];
    if (is_sought(x) && x->ready_at != 0)
      ns_buf_addf(&list, "%s[%lld,%lld,%lld,%lld]", list.n > 0 ? "," : "[",
                  (long long)x->queue_id, (long long)x->rank, (long long)x->ready_at,
                  (long long)x->id);
  }
  if (st == NS_OK)
    return hold(db, t, NS_SQL_ADMIN_TREE_HOLD_READY, &list, err);
  ns_buf_free(&list);
  return st;
}

ns_status ns_unclaimed(ns_db *db, ns_tree *t, ns_err *err) {
  ns_status st = hold_scheduled(db, t, err);
  if (st == NS_OK)
    st = hold_ready(db, t, err);
  for (size_t i = 0; i < t->nnodes; i++)
    if (is_sought(&t->nodes[i]))
      t->nodes[i].holder = NS_SOMEBODY;
  return st;
}
