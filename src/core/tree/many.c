/*
** A verb on many jobs, which their ids name: some hundred in one transaction.
**
** The ids were found without locks. So the rows are locked first, and then the filter is asked
** again. A job that it does not hold for any more stays as it is. A verb on live jobs is the step
** that tree/verbs.c does with a batch of a tree.
**
** Invariant: a job is changed only if the filter holds for it under its lock. No assert: only the
** server knows the rows.
*/
#include <stdlib.h>
#include <string.h>

#include "db/db.h"
#include "push/push.h"
#include "source/source.h"
#include "tree/tree.h"

static ns_status begin_batch(ns_tree *t, ns_value *list, ns_err *err) {
  t->ids = t->many->ids;
  t->nids = t->many->n;
  t->changed = t->live = t->refused = 0;
  return ns_tree_ids(t, list, err);
}

/* ------------------------------------------------------------------- ended */

static ns_status lock_pasts(ns_db *db, ns_tree *t, ns_value list, ns_tree_pasts *out, ns_err *err) {
  ns_status st = ns_tree_ask(db, NS_SQL_ADMIN_MANY_PAST, list, NULL, 0, t->many, err);
  return st == NS_OK ? ns_tree_pasts_read(db, NS_SQL_ADMIN_MANY_PAST, out, err) : st;
}

/* Takes the job's key back. A row of an adopted table is owed to it instead, and becomes another
** job. '*lives': the job itself runs again. */
static ns_status take_back(ns_db *db, ns_tree *t, const ns_tree_past *x, bool *lives, ns_err *err) {
  const ns_key key = {x->queue_id, {x->key, x->keylen}, x->id, 0};
  ns_key_owner owner;
  bool is_row = false;
  ns_status st = NS_OK;
  *lives = true;
  if (x->key == NULL)
    return NS_OK;
  if ((st = ns_source_retry(db, x->id, &is_row, err)) == NS_OK && !is_row)
    st = ns_push_key_take(db, &key, &owner, err);
  *lives = st == NS_OK && !is_row;
  t->changed += st == NS_OK && is_row;
  if (st != NS_EDUPLICATE && st != NS_ESTATE)
    return st;
  t->refused += st == NS_EDUPLICATE;
  ns_err_clear(err);
  return NS_OK;
}

/* Leaves the jobs that live again. */
static ns_status take_all_back(ns_db *db, ns_tree *t, ns_tree_pasts *p, ns_err *err) {
  ns_status st = NS_OK;
  size_t kept = 0;
  for (size_t i = 0; st == NS_OK && i < p->n; i++) {
    ns_tree_past x = p->items[i];
    bool lives;
    if ((st = take_back(db, t, &x, &lives, err)) == NS_OK && lives) {
      p->items[i] = p->items[kept];
      p->items[kept++] = x;
    }
  }
  ns_tree_pasts_cut(p, kept);
  return st;
}

enum { R_QUEUE, R_RANK, R_OFFSET, R_ID, R_RUN, R_ALONE, R_KIND, R_COUNT };

static ns_status make_ready(ns_db *db, const ns_tree_pasts *p, ns_err *err) {
  ns_column cols[R_COUNT];
  int64_t *ints = malloc(R_COUNT * p->n * sizeof *ints);
  ns_status st;
  if (ints == NULL)
    return ns_no_memory(err);
  for (size_t i = 0; i < p->n; i++) {
    const ns_tree_past *x = &p->items[i];
    const int64_t values[R_COUNT] = {x->queue_id, 255 - x->priority, (int64_t)i, x->id,
                                     x->run + 1,  0,                 x->kind};
    for (size_t c = 0; c < R_COUNT; c++)
      ints[c * p->n + i] = values[c];
  }
  for (size_t c = 0; c < R_COUNT; c++)
    cols[c] = (ns_column){NS_INT, ints + c * p->n, NULL, NULL};
  st = ns_db_bulk(db, NS_SQL_CLAIM_READY, cols, p->n, err);
  free(ints);
  return st;
}

static ns_status write_again(ns_db *db, ns_tree *t, const ns_tree_pasts *p, ns_err *err) {
  static const ns_sql before[] = {NS_SQL_ADMIN_TREE_UNMET, NS_SQL_PRUNE_SIGNALS};
  static const ns_sql after[] = {NS_SQL_ADMIN_MANY_RETRY, NS_SQL_ADMIN_TREE_FORGET};
  ns_value list;
  ns_status st = NS_OK;
  ns_buf_reset(&t->list);
  for (size_t i = 0; i < p->n; i++)
    ns_db_list_add_id(&t->list, p->items[i].id);
  list = ns_db_list_end(&t->list);
  if (t->list.oom)
    return ns_no_memory(err);
  for (size_t i = 0; st == NS_OK && i < 2; i++)
    st = ns_db_run(db, before[i], &list, err);
  if (st == NS_OK)
    st = ns_tree_leave_past(db, list, err);
  for (size_t i = 0; st == NS_OK && i < 2; i++)
    st = ns_db_run(db, after[i], &list, err);
  return st == NS_OK ? make_ready(db, p, err) : st;
}

static ns_status step_again(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_tree *t = tx->arg;
  ns_tree_pasts p = {0};
  ns_value list;
  ns_status st = begin_batch(t, &list, err);
  if (st == NS_OK && (st = lock_pasts(db, t, list, &p, err)) == NS_OK)
    st = take_all_back(db, t, &p, err);
  if (st == NS_OK && p.n > 0) {
    st = write_again(db, t, &p, err);
    db->ring_due = true;
  }
  if (st == NS_OK)
    t->changed += (int64_t)p.n;
  if (t->changed > 0)
    tx->jobs = t->changed;
  ns_tree_pasts_free(&p);
  return st;
}

static ns_status step_move_ended(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_tree *t = tx->arg;
  ns_value list;
  const ns_value to[] = {ns_vint(t->n), ns_vint(t->n)};
  ns_status st = begin_batch(t, &list, err);
  if (st == NS_OK)
    st = ns_tree_ask(db, NS_SQL_ADMIN_MANY_MOVE, list, to, 2, t->many, err);
  if (st == NS_OK)
    t->changed = ns_db_affected(db, NS_SQL_ADMIN_MANY_MOVE);
  if (t->changed > 0)
    tx->jobs = t->changed;
  return st;
}

/* -------------------------------------------------------------------- live */

static ns_status step_live(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_tree *t = tx->arg;
  ns_value list;
  ns_status st = begin_batch(t, &list, err);
  return st == NS_OK ? t->step(db, tx, err) : st;
}

/* -------------------------------------------------------------------- verb */

ns_status ns_many_do(ns_db *db, ns_many_verb verb, const ns_many *m, int64_t *changed,
                     int64_t *refused, ns_err *err) {
  ns_tree t = {.n = m->arg, .text = m->text, .many = m, .step = ns_tree_many_step(verb)};
  ns_tx tx = {.arg = &t,
              .run = verb == NS_MANY_RETRY        ? step_again
                     : verb == NS_MANY_MOVE_ENDED ? step_move_ended
                                                  : step_live};
  ns_status st;
  ns_err_clear(err);
  *changed = *refused = 0;
  if (m->n == 0 || m->n > NS_TREE_BATCH)
    return m->n == 0 ? NS_OK
                     : ns_fail(err, NS_EINVALID, "at most %d jobs at once, got %zu", NS_TREE_BATCH,
                               m->n);
  if (verb == NS_MANY_PRIORITY && (m->arg < 0 || m->arg > 255))
    return ns_fail(err, NS_EINVALID, "the priority must be 0 to 255, got %lld", (long long)m->arg);
  if ((st = ns_db_transact(db, &tx, err)) == NS_OK) {
    ns_tree_told(db, &t);
    *changed = t.changed;
    *refused = t.refused;
  }
  ns_tree_free(&t);
  return st;
}
