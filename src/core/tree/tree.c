/*
** A job and all jobs below it: walking through them, locking a batch, writing it back. And how
** far a tree has come. The verbs of such a walk are in tree/verbs.c, and "retry" in
** tree/retry.c.
**
** Invariant: a tree is worked through from its top. A batch is locked, changed and committed
** before its children are looked for. A job that it spawns later, or that is pushed below it,
** inherits the batch's changes (paused, deadline) or is dropped with it. So nothing new appears
** behind the walk. Memory is eight bytes for each job that has been found and not yet been
** worked on. No assert: the server decides which jobs are spawned and pushed meanwhile.
*/
#include "tree/tree.h"

#include <stdlib.h>
#include <string.h>

#include "db/db.h"
#include "finish/finish.h"

/* ---------------------------------------------------------------- the walk */

static int by_id(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a;
  int64_t y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

ns_status ns_tree_ids(ns_tree *t, ns_value *param, ns_err *err) {
  ns_buf_reset(&t->list);
  for (size_t i = 0; i < t->nids; i++)
    ns_db_list_add_id(&t->list, t->ids[i]);
  *param = ns_db_list_end(&t->list);
  return t->list.oom ? ns_no_memory(err) : NS_OK;
}

/* Jobs that have been found; the ones before 'at' have been worked on. */
typedef struct found {
  int64_t *ids;
  size_t n, cap, at;
} found;

static bool add_found(found *f, int64_t id) {
  if (f->at > NS_TREE_BATCH && f->at > f->n / 2) {
    f->n -= f->at;
    memmove(f->ids, f->ids + f->at, f->n * sizeof *f->ids);
    f->at = 0;
  }
  if (!ns_grow(&f->ids, &f->cap, f->n + 1, sizeof *f->ids))
    return false;
  f->ids[f->n++] = id;
  return true;
}

/* The next of them; false: there are none. */
static bool next_batch(ns_tree *t, const found *f) {
  t->ids = f->ids + f->at;
  t->nids = f->n - f->at < NS_TREE_BATCH ? f->n - f->at : NS_TREE_BATCH;
  return t->nids > 0;
}

/* The children of the batch. */
static ns_status look_below(ns_db *db, ns_tree *t, found *f, ns_err *err) {
  const ns_value *row = NULL;
  ns_value param;
  ns_status st = ns_tree_ids(t, &param, err);
  if (st == NS_OK && (st = ns_db_ready(db, err)) == NS_OK)
    st = ns_db_run(db, NS_SQL_REPORT_TREE_BELOW, &param, err);
  f->at += t->nids;
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_REPORT_TREE_BELOW, &row, err)) == NS_OK &&
         row != NULL)
    if (!add_found(f, row[0].i))
      st = ns_no_memory(err);
  return st;
}

static void drop_nodes(ns_tree *t) {
  for (size_t i = 0; i < t->nnodes; i++)
    free(t->nodes[i].key);
  t->nnodes = 0;
}

void ns_tree_tell(ns_db *db, const char *kind, ns_bytes why, ns_bytes tokens) {
  ns_value params[] = {ns_vtext(ns_str(kind)), ns_vtext(ns_finish_reason(why)), ns_vtext(tokens)};
  const ns_value *row = NULL;
  ns_err none;
  int64_t holder = 0;
  if (ns_db_run(db, NS_SQL_ADMIN_TREE_HELD, &params[2], &none) != NS_OK ||
      ns_db_row(db, NS_SQL_ADMIN_TREE_HELD, &row, &none) != NS_OK || row == NULL ||
      ns_db_run(db, NS_SQL_ADMIN_TREE_NOTICE, params, &none) != NS_OK)
    return;
  while (row != NULL) {
    if (row[1].i != holder)
      ns_db_run(db, NS_SQL_LISTEN_NUDGE, (ns_value[]){row[1], ns_vint(0)}, &none);
    holder = row[1].i;
    if (ns_db_row(db, NS_SQL_ADMIN_TREE_HELD, &row, &none) != NS_OK)
      return;
  }
}

static bool is_revoked(const ns_node *x) {
  return x->revoked;
}

static bool is_suspended(const ns_node *x) {
  return x->suspended;
}

static void tell_claimers(ns_db *db, ns_tree *t, const char *kind,
                          bool (*picks)(const ns_node *)) {
  ns_buf_reset(&t->list);
  for (size_t i = 0; i < t->nnodes; i++)
    if (picks(&t->nodes[i]))
      ns_db_list_add_pair(&t->list, t->nodes[i].id, t->nodes[i].was_run);
  if (t->list.n == 0)
    return;
  ns_db_list_end(&t->list);
  if (!t->list.oom)
    ns_tree_tell(db, kind, t->text, ns_buf_bytes(&t->list));
}

void ns_tree_told(ns_db *db, ns_tree *t) {
  if (db->user_tx)
    return;
  tell_claimers(db, t, "cancelled", is_revoked);
  tell_claimers(db, t, "paused", is_suspended);
  ns_admission_pass(db, true);
  if (db->ring_due)
    ns_ring(db, NULL);
  db->ring_due = false;
  ns_finish_pending_retry(db);
}

ns_status ns_tree_walk(ns_db *db, ns_tree *t,
                       ns_status (*step)(ns_db *, ns_tx *, ns_err *),
                       ns_err *err) {
  found f = {0};
  ns_status st = add_found(&f, t->id) ? NS_OK : ns_no_memory(err);
  while (st == NS_OK && next_batch(t, &f)) {
    ns_tx tx = {.run = step, .arg = t};
    qsort(f.ids + f.at, t->nids, sizeof *f.ids, by_id);
    if ((st = ns_db_transact(db, &tx, err)) == NS_OK)
      ns_tree_told(db, t);
    drop_nodes(t);
    if (st == NS_OK)
      st = look_below(db, t, &f, err);
  }
  free(f.ids);
  return st;
}

void ns_tree_free(ns_tree *t) {
  drop_nodes(t);
  free(t->wanted);
  free(t->nodes);
  ns_buf_free(&t->list);
}

/* ---------------------------------------------------------------- the batch */

enum { N_ID, N_QUEUE, N_RANK, N_RUN, N_UNMET, N_DUE, N_LOST, N_PAUSED,
       N_DEADLINE, N_AWAITS, N_WAITS, N_UKEY, N_NOW, N_WISH, N_PRIORITY,
       N_KIND, N_GROUP };

static bool add_node(ns_tree *t, const ns_value *r) {
  ns_node *x;
  if (!ns_grow(&t->nodes, &t->capnodes, t->nnodes + 1, sizeof *t->nodes))
    return false;
  x = &t->nodes[t->nnodes++];
  *x = (ns_node){.id = r[N_ID].i, .queue_id = r[N_QUEUE].i, .rank = r[N_RANK].i,
                 .run = r[N_RUN].i, .unmet = r[N_UNMET].i, .due = r[N_DUE].i,
                 .lost = r[N_LOST].i, .paused = ns_int_or(&r[N_PAUSED], 0),
                 .deadline = ns_int_or(&r[N_DEADLINE], 0),
                 .wish = r[N_WISH].i, .priority = r[N_PRIORITY].i,
                 .was_due = r[N_DUE].i, .was_run = r[N_RUN].i, .was_queue = r[N_QUEUE].i,
                 .was_rank = r[N_RANK].i, .now = r[N_NOW].i,
                 .awaits = r[N_AWAITS].i != 0, .waits = r[N_WAITS].i != 0,
                 .kind = r[N_KIND].i};
  if (r[N_UKEY].type != NS_TEXT)
    return true;
  x->keylen = r[N_UKEY].s.n;
  if ((x->key = malloc(x->keylen + 1)) != NULL)
    memcpy(x->key, r[N_UKEY].s.p, x->keylen);
  return x->key != NULL;
}

ns_value ns_tree_pairs(ns_tree *t, bool held_only) {
  ns_buf_reset(&t->list);
  for (size_t i = 0; i < t->nnodes; i++)
    if (!held_only || t->nodes[i].holder != 0)
      ns_db_list_add_pair(&t->list, t->nodes[i].id, t->nodes[i].run);
  return ns_db_list_end(&t->list);
}

static int node_by_id(const void *key, const void *node) {
  int64_t id = *(const int64_t *)key;
  int64_t other = ((const ns_node *)node)->id;
  return (id > other) - (id < other);
}

ns_node *ns_tree_node(ns_tree *t, int64_t id) {
  return bsearch(&id, t->nodes, t->nnodes, sizeof *t->nodes, node_by_id);
}

static ns_status find_holders(ns_db *db, ns_tree *t, ns_err *err) {
  const ns_value *row = NULL;
  ns_value param = ns_tree_pairs(t, false);
  ns_status st =
      t->list.oom ? ns_no_memory(err) : ns_db_run(db, NS_SQL_ADMIN_TREE_HELD, &param, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_ADMIN_TREE_HELD, &row, err)) == NS_OK &&
         row != NULL) {
    ns_node *x = ns_tree_node(t, row[0].i);
    if (x != NULL)
      x->holder = row[1].i;
  }
  return st;
}

ns_status ns_tree_ask(ns_db *db, ns_sql sql, ns_value list, const ns_value *more, size_t nmore,
                      const ns_many *m, ns_err *err) {
  ns_value params[NS_FILTER_MAX + 4] = {list};
  if (m->nfilter > NS_FILTER_MAX || nmore > 3)
    return ns_fail(err, NS_EINVALID, "a filter has at most %d values", NS_FILTER_MAX);
  for (size_t i = 0; i < nmore; i++)
    params[1 + i] = more[i];
  for (size_t i = 0; i < m->nfilter; i++)
    params[1 + nmore + i] = m->filter[i];
  return ns_db_run(db, sql, params, err);
}

/* Leaves the nodes that the filter holds for, now that they are locked. */
static ns_status keep_wanted(ns_db *db, ns_tree *t, ns_value list, ns_err *err) {
  const ns_value *row = NULL;
  bool any = t->many->filter[0].type == NS_NULL; /* state: then no lease has to be read */
  const ns_value more[] = {ns_vint(any ? 1 : t->many->ids[0]),
                           ns_vint(any ? 0 : t->many->ids[t->many->n - 1]),
                           ns_vtext(t->many->claims)};
  size_t n = 0;
  ns_status st;
  if (t->wanted == NULL && (t->wanted = malloc(NS_TREE_BATCH * sizeof *t->wanted)) == NULL)
    return ns_no_memory(err);
  st = ns_tree_ask(db, NS_SQL_FILTER_LIVE, list, more, 3, t->many, err);
  while (st == NS_OK && n < NS_TREE_BATCH &&
         (st = ns_db_row(db, NS_SQL_FILTER_LIVE, &row, err)) == NS_OK && row != NULL)
    t->wanted[n++] = row[0].i;
  if (st != NS_OK)
    return st;
  qsort(t->wanted, n, sizeof *t->wanted, by_id);
  t->ids = t->wanted;
  t->nids = n;
  n = 0;
  for (size_t i = 0; i < t->nnodes; i++) {
    if (bsearch(&t->nodes[i].id, t->ids, t->nids, sizeof *t->ids, by_id) != NULL)
      t->nodes[n++] = t->nodes[i];
    else
      free(t->nodes[i].key);
  }
  t->nnodes = n;
  return NS_OK;
}

ns_status ns_tree_lock(ns_db *db, ns_tree *t, bool held, ns_err *err) {
  const ns_value *row = NULL;
  ns_value param;
  ns_status st = ns_tree_ids(t, &param, err);
  drop_nodes(t);
  if (st == NS_OK)
    st = ns_db_run(db, NS_SQL_ADMIN_TREE_LOCK, &param, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_ADMIN_TREE_LOCK, &row, err)) == NS_OK &&
         row != NULL)
    if (!add_node(t, row))
      st = ns_no_memory(err);
    else
      ns_admission_leaves(db, row[N_QUEUE].i, &row[N_GROUP]);
  if (st == NS_OK && t->many != NULL && t->nnodes > 0) {
    if ((st = ns_tree_ids(t, &param, err)) == NS_OK)
      st = keep_wanted(db, t, param, err);
  }
  return st == NS_OK && held && t->nnodes > 0 ? find_holders(db, t, err) : st;
}

/* ------------------------------------------------------------------ writing */

enum { W_RUN, W_RANK, W_PRIORITY, W_DUE, W_UNMET, W_PAUSED, W_DEADLINE, W_WISH,
       W_ID, W_QUEUE, W_WAS_DUE, W_OFFSET, W_ALONE, W_KIND, W_WAS_QUEUE, W_WAS_RANK, W_READY_AT,
       W_COUNT };

/* Columns of the nodes that 'picks' picks. */
typedef struct rows {
  int64_t *ints;
  char *nulls; /* of paused, then of deadline */
  size_t n, cap;
} rows;

static void rows_add(rows *r, const ns_node *x) {
  int64_t values[W_COUNT] = {
      [W_RUN] = x->run, [W_RANK] = x->rank, [W_PRIORITY] = x->priority,
      [W_DUE] = x->due, [W_UNMET] = x->unmet, [W_PAUSED] = x->paused,
      [W_DEADLINE] = x->deadline, [W_WISH] = x->wish,
      [W_ID] = x->id, [W_QUEUE] = x->queue_id, [W_WAS_DUE] = x->was_due,
      [W_OFFSET] = (int64_t)r->n, [W_KIND] = x->kind,
      [W_WAS_QUEUE] = x->was_queue, [W_WAS_RANK] = x->was_rank, [W_READY_AT] = x->ready_at,
      [W_ALONE] = x->lost >= NS_LOST_TOGETHER};
  for (size_t c = 0; c < W_COUNT; c++)
    r->ints[c * r->cap + r->n] = values[c];
  r->nulls[r->n] = x->paused == 0;
  r->nulls[r->cap + r->n] = x->deadline == 0;
  r->n++;
}

static void pick_rows(rows *r, const ns_tree *t, bool (*picks)(const ns_node *)) {
  r->n = 0;
  for (size_t i = 0; i < t->nnodes; i++)
    if (picks(&t->nodes[i]))
      rows_add(r, &t->nodes[i]);
}

static ns_column column_of(const rows *r, size_t c) {
  return (ns_column){NS_INT, &r->ints[c * r->cap], NULL,
                     c == W_PAUSED     ? r->nulls
                     : c == W_DEADLINE ? r->nulls + r->cap
                                         : NULL};
}

static bool has_changed(const ns_node *x) {
  return x->changed;
}

static bool leaves_scheduled(const ns_node *x) {
  return x->moves && x->was_due > x->now;
}

/* Its row was found and locked. A row that stays is stale, and goes with the claim that meets it. */
static bool leaves_ready(const ns_node *x) {
  return x->moves && x->placed && x->ready_at != 0;
}

static bool goes_later(const ns_node *x) {
  return x->moves && x->unmet == 0 && x->due > x->now;
}

static bool goes_now(const ns_node *x) {
  return x->moves && x->unmet == 0 && x->due <= x->now;
}

/* Runs a statement about the rows, as a list of lists. An array-bound statement could not tell
** a step that a KILL has cut, if some rows may be right already, or gone. */
static ns_status run_rows(ns_db *db, ns_sql sql, const rows *r, const int *columns,
                          size_t n, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  if (r->n == 0)
    return NS_OK;
  for (size_t i = 0; i < r->n; i++) {
    ns_buf_adds(&list, i > 0 ? ",[" : "[[");
    for (size_t k = 0; k < n; k++) {
      ns_column c = column_of(r, (size_t)columns[k]);
      ns_buf_adds(&list, k > 0 ? "," : "");
      if (c.null != NULL && c.null[i])
        ns_buf_adds(&list, "null");
      else
        ns_buf_addf(&list, "%lld", (long long)c.ints[i]);
    }
    ns_buf_addc(&list, ']');
  }
  return ns_db_list_run(db, sql, NULL, &list, err);
}

static ns_status write_rows(ns_db *db, rows *r, const ns_tree *t, ns_err *err) {
  static const int job[] = {W_RUN, W_RANK, W_PRIORITY, W_DUE, W_UNMET, W_PAUSED,
                            W_DEADLINE, W_WISH, W_ID, W_QUEUE};
  static const int place[] = {W_WAS_DUE, W_ID};
  static const int lane[] = {W_WAS_QUEUE, W_WAS_RANK, W_READY_AT, W_ID};
  ns_status st;
  pick_rows(r, t, has_changed);
  st = run_rows(db, NS_SQL_ADMIN_TREE_JOB, r, job, sizeof job / sizeof job[0], err);
  pick_rows(r, t, leaves_scheduled);
  if (st == NS_OK)
    st = run_rows(db, NS_SQL_ADMIN_TREE_UNSCHEDULE, r, place,
                  sizeof place / sizeof place[0], err);
  pick_rows(r, t, leaves_ready);
  if (st == NS_OK)
    st = run_rows(db, NS_SQL_ADMIN_TREE_UNREADY, r, lane, sizeof lane / sizeof lane[0], err);
  pick_rows(r, t, goes_later);
  if (st == NS_OK)
    st = ns_db_bulk_changing(db, NS_SQL_ADMIN_TREE_SCHEDULED, /* a row that is there may stay so */
                             (ns_column[]){column_of(r, W_DUE), column_of(r, W_ID),
                                           column_of(r, W_QUEUE), column_of(r, W_RANK),
                                           column_of(r, W_RUN), column_of(r, W_KIND)},
                             r->n, 0, err);
  db->ring_due = db->ring_due || r->n > 0;
  pick_rows(r, t, goes_now);
  if (st == NS_OK)
    st = ns_db_bulk(db, NS_SQL_CLAIM_READY,
                    (ns_column[]){column_of(r, W_QUEUE), column_of(r, W_RANK),
                                  column_of(r, W_OFFSET), column_of(r, W_ID), column_of(r, W_RUN),
                                  column_of(r, W_ALONE), column_of(r, W_KIND)},
                    r->n, err);
  db->ring_due = db->ring_due || r->n > 0;
  return st;
}

ns_status ns_tree_write(ns_db *db, ns_tree *t, ns_err *err) {
  rows r = {NULL, NULL, 0, t->nnodes};
  ns_status st;
  if (t->nnodes == 0)
    return NS_OK;
  r.ints = malloc(W_COUNT * r.cap * sizeof *r.ints);
  r.nulls = malloc(2 * r.cap);
  st = r.ints != NULL && r.nulls != NULL ? write_rows(db, &r, t, err)
                                         : ns_no_memory(err);
  free(r.ints);
  free(r.nulls);
  db->claim.promote_at = 0;
  return st;
}

/* ------------------------------------------------------------------ upwards */

ns_status ns_tree_up(ns_db *db, int64_t id, int64_t *parent, bool *sure,
                     int64_t *paused, ns_err *err) {
  const ns_value *row = NULL;
  ns_status st = ns_db_ready(db, err);
  if (st == NS_OK)
    st = ns_db_run(db, NS_SQL_REPORT_TREE_UP, (ns_value[]){ns_vint(id), ns_vint(id)}, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_REPORT_TREE_UP, &row, err);
  if (st == NS_OK && row == NULL)
    st = ns_fail(err, NS_ENOTFOUND,
                 "there is no job %lld, live or in the history", (long long)id);
  if (st != NS_OK)
    return st;
  *parent = ns_int_or(&row[0], 0);
  *sure = row[1].i != 0;
  *paused = ns_int_or(&row[2], 0);
  return NS_OK;
}

/* ----------------------------------------------------------------- progress */

static int64_t *counter_of(ns_progress *p, ns_bytes state) {
  const struct {
    const char *name;
    int64_t *n;
  } all[] = {{"done", &p->done},       {"dead", &p->dead},
             {"cancelled", &p->cancelled}, {"running", &p->running},
             {"waiting", &p->waiting}, {"scheduled", &p->scheduled},
             {"ready", &p->ready}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (strlen(all[i].name) == state.n && memcmp(all[i].name, state.p, state.n) == 0)
      return all[i].n;
  return NULL; /* pruned */
}

static ns_status count_batch(ns_db *db, ns_tree *t, ns_progress *p, ns_err *err) {
  const ns_value *row = NULL;
  ns_value param;
  ns_status st = ns_tree_ids(t, &param, err);
  if (st == NS_OK && (st = ns_db_ready(db, err)) == NS_OK)
    st = ns_db_run(db, NS_SQL_REPORT_TREE_STATES, &param, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_REPORT_TREE_STATES, &row, err)) == NS_OK &&
         row != NULL) {
    int64_t *n = counter_of(p, row[0].s);
    if (n == NULL)
      continue;
    *n += row[1].i;
    p->total += row[1].i;
  }
  return st;
}

ns_status ns_tree_progress(ns_db *db, int64_t id, ns_progress *p, ns_err *err) {
  ns_tree t = {.id = id};
  found f = {0};
  int64_t up;
  int64_t paused;
  bool sure;
  ns_status st;
  *p = (ns_progress){0};
  ns_err_clear(err);
  if ((st = ns_tree_up(db, id, &up, &sure, &paused, err)) == NS_OK)
    st = add_found(&f, id) ? NS_OK : ns_no_memory(err);
  while (st == NS_OK && next_batch(&t, &f))
    if ((st = count_batch(db, &t, p, err)) == NS_OK)
      st = look_below(db, &t, &f, err);
  free(f.ids);
  ns_tree_free(&t);
  return st;
}
