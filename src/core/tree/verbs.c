/*
** Verbs over a job and all below it: cancel, pause, resume, priority, run now,
** deadline. A verb is a step that tree/tree.c does with each batch on its way down.
**
** A claim takes a job's row out of ready and locks no job; its lease cannot be seen before it
** commits. So a verb that is to move a job locks the job's row in scheduled or ready first. A
** claim that has the row is waited for; a later claim finds it locked and goes on without it.
** The key of ready begins with the lane, and the job is its end. So a lane is read once per
** batch, without locks, and the rows that were found are locked by key.
**
** Invariant: a job that a verb moves has another run, or no row yet. So at most one of its rows
** in ready and scheduled is not stale. A job that is running, or being claimed, is not moved:
** the change is written into its job, and its holder is told.
*/
#include "admission/admission.h"
#include "tree/tree.h"

#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "db/db.h"
#include "push/push.h"
#include "source/source.h"

/* ---------------------------------------------------- jobs that no claim has */

static bool is_sought(const ns_node *x) {
  return x->asks && !x->placed;
}

static bool same_lane(const ns_node *a, const ns_node *b) {
  return a->queue_id == b->queue_id && a->rank == b->rank;
}

static ns_node *next_id(ns_db *db, ns_tree *t, ns_sql sql, const ns_value **row, ns_status *st,
                        ns_err *err) {
  *st = ns_db_row(db, sql, row, err);
  return *st == NS_OK && *row != NULL ? ns_tree_node(t, (*row)[0].i) : NULL;
}

/* Locks the rows of a list, the statement's one parameter: their jobs have their place. */
static ns_status lock_rows(ns_db *db, ns_tree *t, ns_sql sql, ns_buf *list, ns_err *err) {
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

static ns_status lock_scheduled(ns_db *db, ns_tree *t, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  for (size_t i = 0; i < t->nnodes; i++) {
    const ns_node *x = &t->nodes[i];
    if (is_sought(x))
      ns_buf_addf(&list, "%s[%lld,%lld,%lld]", list.n > 0 ? "," : "[", (long long)x->was_due,
                  (long long)x->id, (long long)x->was_run);
  }
  return lock_rows(db, t, NS_SQL_ADMIN_TREE_HOLD_SCHEDULED, &list, err);
}

/* Where in their lane the jobs of one lane lie: 'like' is the first of them. */
static ns_status look_at_lane(ns_db *db, ns_tree *t, ns_node *like, ns_err *err) {
  const ns_value *row = NULL;
  ns_buf list = NS_BUF_INIT;
  bool known = t->many != NULL && t->many->to > 0;
  ns_value params[] = {ns_vint(like->queue_id), ns_vint(like->rank),
                       ns_vint(known ? t->many->from : 0),
                       ns_vint(known ? t->many->to : INT64_MAX - 1), ns_vnull};
  ns_node *x;
  ns_status st;
  for (ns_node *y = like; y < t->nodes + t->nnodes; y++)
    if (is_sought(y) && same_lane(y, like)) {
      ns_db_list_add_id(&list, y->id);
      y->seen = true;
    }
  params[4] = ns_db_list_end(&list);
  st = list.oom ? ns_no_memory(err) : ns_db_run(db, NS_SQL_ADMIN_TREE_READY_AT, params, err);
  while (st == NS_OK && (x = next_id(db, t, NS_SQL_ADMIN_TREE_READY_AT, &row, &st, err)) != NULL)
    if (row[1].i == x->was_run)
      x->ready_at = row[2].i;
  ns_buf_free(&list);
  return st;
}

static ns_status lock_ready(ns_db *db, ns_tree *t, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < t->nnodes; i++)
    if (is_sought(&t->nodes[i]) && !t->nodes[i].seen)
      st = look_at_lane(db, t, &t->nodes[i], err);
  for (size_t i = 0; i < t->nnodes; i++) {
    const ns_node *x = &t->nodes[i];
    if (is_sought(x) && x->ready_at != 0)
      ns_buf_addf(&list, "%s[%lld,%lld,%lld,%lld]", list.n > 0 ? "," : "[", (long long)x->queue_id,
                  (long long)x->rank, (long long)x->ready_at, (long long)x->id);
  }
  if (st == NS_OK)
    return lock_rows(db, t, NS_SQL_ADMIN_TREE_HOLD_READY, &list, err);
  ns_buf_free(&list);
  return st;
}

/* Jobs that have no place so far may be in a backlog: then they are in ready from now on. */
static ns_status return_from_backlogs(ns_db *db, ns_tree *t, ns_err *err) {
  ns_buf ids = NS_BUF_INIT;
  int64_t returned = 0;
  ns_status st = NS_OK;
  for (size_t i = 0; i < t->nnodes; i++)
    if (is_sought(&t->nodes[i])) {
      ns_db_list_add_id(&ids, t->nodes[i].id);
      t->nodes[i].seen = false;
    }
  if (!ns_db_list_is_empty(&ids))
    st = ns_admission_return(db, &ids, &returned, err);
  ns_buf_free(&ids);
  return st == NS_OK && returned > 0 ? lock_ready(db, t, err) : st;
}

static ns_status find_unclaimed(ns_db *db, ns_tree *t, ns_err *err) {
  ns_status st = lock_scheduled(db, t, err);
  if (st == NS_OK)
    st = lock_ready(db, t, err);
  if (st == NS_OK)
    st = return_from_backlogs(db, t, err);
  for (size_t i = 0; i < t->nnodes; i++)
    if (is_sought(&t->nodes[i]))
      t->nodes[i].holder = NS_UNSEEN_HOLDER;
  return st;
}

/* -------------------------------------------------------------- small verbs */

/* The job does not run and waits for no job: it has a row in ready or scheduled. */
static bool is_free(const ns_node *x) {
  return x->unmet == 0 && x->holder == 0;
}

/* The job's row, if it has one, is stale from now on, and it gets another. */
static void move_node(ns_node *x) {
  x->changed = true;
  if (!is_free(x))
    return;
  x->moves = x->revoked = true;
  x->run++;
  ns_assert(x->run > x->was_run);
}

static void pause_one(const ns_tree *t, ns_node *x) {
  if (x->paused == 0) {
    x->suspended = x->holder != 0;
    move_node(x);
    x->unmet++;
  } else if (t->outer == 0 || x->paused != t->outer)
    return;
  x->changed = true;
  x->paused = t->id;
}

static void resume_one(const ns_tree *t, ns_node *x) {
  if (x->paused != t->id)
    return;
  x->changed = true;
  x->paused = t->outer;
  if (t->outer != 0)
    return;
  x->unmet--;
  x->moves = is_free(x); /* its run is new enough: there is no row of it */
}

static void rank_one(const ns_tree *t, ns_node *x) {
  x->changed = x->priority != t->n;
  x->priority = t->n;
  if (x->rank == 255 - t->n)
    return;
  x->rank = 255 - t->n;
  move_node(x);
}

/* A job that waits for a signal goes on waiting. */
static void run_one_now(const ns_tree *t, ns_node *x) {
  (void)t;
  if (x->due <= x->now || x->awaits)
    return;
  x->due = x->now;
  move_node(x);
}

/* Nothing is due after its deadline: then it would be too late. A job that an earlier deadline
** has brought forward goes back. */
static void limit_one(const ns_tree *t, ns_node *x) {
  int64_t due = x->wish;
  x->changed = true;
  x->deadline = t->n < 0 ? 0 : x->now + t->n;
  if (x->deadline != 0 && due > x->deadline)
    due = x->deadline;
  if (due == x->due || x->holder != 0)
    return;
  x->due = due;
  move_node(x);
}

/* Jobs that run, or are about to, stay: their claims name the queue. */
static void move_one(const ns_tree *t, ns_node *x) {
  if (x->queue_id == t->n || x->holder != 0 || x->stays)
    return;
  x->queue_id = t->n;
  move_node(x);
}

typedef void (*small)(const ns_tree *t, ns_node *x);

/* Would it get another row, if no claim is taking it? */
static bool would_move(const ns_tree *t, small verb, const ns_node *x) {
  ns_node then = *x;
  verb(t, &then);
  return is_free(x) && then.moves;
}

/* move: takes the jobs' unique keys in their new queue, and frees the old ones. */
static ns_status move_keys(ns_db *db, ns_tree *t, ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < t->nnodes; i++) {
    ns_node *x = &t->nodes[i];
    const ns_key to = {t->n, {x->key, x->keylen}, x->id, 0};
    ns_value key = ns_vtext(to.text);
    ns_key_owner owner;
    ns_origin row;
    if (x->key == NULL || x->queue_id == t->n || x->holder != 0)
      continue;
    if ((x->stays = ns_source_origin(key.s, &row)))
      continue;
    st = ns_push_key_take(db, &to, &owner, err);
    if (st == NS_EDUPLICATE) {
      x->stays = true;
      t->refused++;
      ns_err_clear(err);
      st = NS_OK;
    } else if (st == NS_OK &&
               (st = ns_db_run(db, NS_SQL_ADMIN_MANY_HELD,
                               (ns_value[]){ns_vint(t->n), key, ns_vint(x->queue_id)}, err)) == NS_OK)
      st = ns_db_run(db, NS_SQL_SETTLE_UNIQUE,
                     (ns_value[]){ns_vint(x->queue_id), key, ns_vint(x->id)}, err);
  }
  return st;
}

static ns_status step_small(ns_db *db, ns_tree *t, small verb, ns_err *err) {
  int64_t changed = t->changed;
  int64_t live = t->live;
  ns_status st = ns_tree_lock(db, t, true, err);
  for (size_t i = 0; st == NS_OK && i < t->nnodes; i++)
    t->nodes[i].asks = would_move(t, verb, &t->nodes[i]);
  if (st == NS_OK)
    st = find_unclaimed(db, t, err);
  if (st == NS_OK && verb == move_one)
    st = move_keys(db, t, err);
  for (size_t i = 0; st == NS_OK && i < t->nnodes; i++) {
    verb(t, &t->nodes[i]);
    changed += t->nodes[i].changed;
    live++;
  }
  if (st == NS_OK)
    st = ns_tree_write(db, t, err);
  if (st == NS_OK) {
    t->changed = changed;
    t->live = live;
  }
  return st;
}

/* A small verb, and what it has changed, for the audit. */
static ns_status step_noted(ns_db *db, ns_tx *tx, small verb, ns_err *err) {
  const ns_tree *t = tx->arg;
  int64_t before = t->changed;
  ns_status st = step_small(db, tx->arg, verb, err);
  if (t->changed > before && !t->noted)
    tx->jobs = t->changed - before;
  return st;
}

#define STEP(name, verb)                                                \
  static ns_status name(ns_db *db, ns_tx *tx, ns_err *err) {           \
    return step_noted(db, tx, verb, err);                              \
  }

STEP(step_rank, rank_one)
STEP(step_now, run_one_now)
STEP(step_limit, limit_one)
STEP(step_move, move_one)

/* Gives back the jobs that the pause of the tree's id holds. */
static ns_status step_release(ns_db *db, ns_tx *tx, ns_err *err) {
  return step_noted(db, tx, resume_one, err);
}

static ns_status step_pause(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_tree *t = tx->arg;
  bool first = t->changed == 0;
  ns_value id = ns_vint(t->id);
  ns_status st = step_noted(db, tx, pause_one, err);
  return st == NS_OK && first && t->changed > 0
             ? ns_db_run(db, NS_SQL_ADMIN_TREE_PAUSE, &id, err)
             : st;
}

/* The batch's own pauses are over: nothing is left that they could hold. */
static ns_status forget_pauses(ns_db *db, ns_tree *t, ns_err *err) {
  ns_value param;
  ns_status st = ns_tree_ids(t, &param, err);
  return st == NS_OK ? ns_db_run(db, NS_SQL_ADMIN_TREE_RESUME, &param, err) : st;
}

static ns_status end_pause(ns_db *db, ns_tx *tx, ns_err *err) {
  return forget_pauses(db, tx->arg, err);
}

/* Ends the pause before the walk: a job spawned below a finished top meanwhile is in no walk.
** Inside another pause there is a walk before that, too. A job that is not reached when we are
** cut off is held by its pause, and is not taken for lost. */
static ns_status resume_tree(ns_db *db, ns_tree *t, ns_err *err) {
  ns_tx tx = {.run = end_pause, .arg = t};
  ns_status st = t->outer != 0 ? ns_tree_walk(db, t, step_release, err) : NS_OK;
  if (st != NS_OK)
    return st;
  t->ids = &t->id;
  t->nids = 1;
  st = ns_db_transact(db, &tx, err);
  return st == NS_OK ? ns_tree_walk(db, t, step_release, err) : st;
}

/* ------------------------------------------------------------------- cancel */

/* Holders are told after the commit, all at once, including the ones that have claimed jobs
** meanwhile. A worker that is told is free for the next job. In a transaction of the caller
** nothing of ours comes after the commit. */
static ns_status notify_holder(ns_db *db, ns_tree *t, ns_err *err) {
  ns_value list;
  if (!db->user_tx)
    return NS_OK;
  list = ns_tree_pairs(t, true);
  return t->list.oom ? ns_no_memory(err)
                     : ns_db_run(db, NS_SQL_ADMIN_TREE_NOTICE,
                                 (ns_value[]){ns_vtext(ns_str("cancelled")),
                                              ns_vtext(ns_finish_reason(t->text)), list},
                                 err);
}

/* Jobs that show themselves as running, and scheduled rows, go. */
static ns_status hide_node(ns_db *db, ns_tree *t, ns_err *err) {
  for (size_t i = 0; i < t->nnodes; i++) {
    t->nodes[i].moves = t->nodes[i].unmet++ == 0 && t->nodes[i].holder == 0;
    t->nodes[i].revoked = true;
  }
  return ns_tree_write(db, t, err);
}

static ns_status end_nodes(ns_db *db, ns_tree *t, ns_err *err) {
  ns_end *ends = calloc(t->nnodes, sizeof *ends);
  ns_buf why = NS_BUF_INIT;
  ns_status st;
  ns_buf_addf(&why, "with job %lld", (long long)t->id);
  if (t->text.p != NULL) {
    ns_buf_adds(&why, ": ");
    ns_buf_add(&why, t->text.p, t->text.n);
  }
  for (size_t i = 0; ends != NULL && i < t->nnodes; i++)
    ends[i] = (ns_end){.id = t->nodes[i].id, .queue_id = t->nodes[i].queue_id,
                       .outcome = "cancelled", .reason = "cancelled",
                       .said = t->many != NULL || t->nodes[i].id == t->id ? t->text
                                                                          : ns_buf_bytes(&why),
                       .attempts = -1, .polls = -1, .crashes = -1,
                       .holder = t->nodes[i].holder,
                       .unique = {t->nodes[i].key, t->nodes[i].keylen}};
  st = ends != NULL && !why.oom ? ns_finish(db, ends, t->nnodes, err)
                                : ns_no_memory(err);
  ns_buf_free(&why);
  free(ends);
  return st;
}

static ns_status hide_running(ns_db *db, const ns_tree *t, ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < t->nnodes; i++)
    if (t->nodes[i].holder != 0)
      st = ns_db_bulk_changing(db, NS_SQL_SETTLE_HIDDEN,
                               (ns_column[]){{NS_INT, &t->nodes[i].id, NULL, NULL}}, 1, 0, err);
  return st;
}

static ns_status step_cancel(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_tree *t = tx->arg;
  ns_status st = ns_tree_lock(db, t, true, err);
  if (st != NS_OK || t->nnodes == 0)
    return st;
  if ((st = notify_holder(db, t, err)) != NS_OK || (st = hide_node(db, t, err)) != NS_OK ||
      (st = forget_pauses(db, t, err)) != NS_OK || (st = end_nodes(db, t, err)) != NS_OK ||
      (st = hide_running(db, t, err)) != NS_OK)
    return st;
  t->live += (int64_t)t->nnodes;
  t->changed += (int64_t)t->nnodes;
  tx->jobs = (int64_t)t->nnodes;
  return NS_OK;
}

/* ----------------------------------------------------------------- the verb */

/* Finds the pause, other than its own, that holds the tree: the nearest job above that lives or
** has a pause of its own tells. '*paused': the pause that holds its top itself. */
static ns_status look_outside(ns_db *db, ns_tree *t, int64_t *paused,
                              ns_err *err) {
  int64_t up = 0;
  bool sure = false;
  ns_status st = ns_tree_up(db, t->id, &up, &sure, paused, err);
  t->outer = 0;
  sure = false;
  while (st == NS_OK && up != 0 && !sure) {
    ns_err none;
    if (ns_tree_up(db, up, &up, &sure, &t->outer, &none) != NS_OK)
      break; /* pruned */
  }
  return st;
}

static ns_status refuse_resume(const ns_tree *t, int64_t paused, ns_err *err) {
  if (paused > 0 && paused != t->id)
    return ns_fail(err, NS_ESTATE,
                   "job %lld is paused with job %lld: resume that one",
                   (long long)t->id, (long long)paused);
  return ns_fail(err, NS_ESTATE, "job %lld is not paused", (long long)t->id);
}

static ns_status (*const steps[])(ns_db *, ns_tx *, ns_err *) = {
    [NS_TREE_CANCEL] = step_cancel, [NS_TREE_PAUSE] = step_pause, [NS_TREE_RESUME] = step_release,
    [NS_TREE_PRIORITY] = step_rank, [NS_TREE_RUN_NOW] = step_now, [NS_TREE_DEADLINE] = step_limit};

ns_tree_step *ns_tree_many_step(ns_many_verb verb) {
  static ns_tree_step *const many[] = {
      [NS_MANY_CANCEL] = step_cancel, [NS_MANY_PRIORITY] = step_rank,
      [NS_MANY_RUN_NOW] = step_now,   [NS_MANY_MOVE] = step_move,
      [NS_MANY_RETRY] = NULL,         [NS_MANY_MOVE_ENDED] = NULL};
  return many[verb];
}

static ns_status run_verb(ns_db *db, ns_tree *t, ns_verb verb, ns_err *err) {
  int64_t paused = 0;
  ns_status st = look_outside(db, t, &paused, err);
  if (st != NS_OK)
    return st;
  if (verb == NS_TREE_RETRY)
    return ns_tree_retry(db, t, step_release, err);
  st = verb == NS_TREE_RESUME ? resume_tree(db, t, err) : ns_tree_walk(db, t, steps[verb], err);
  if (st != NS_OK)
    return st;
  if (verb == NS_TREE_RESUME && t->changed == 0)
    return refuse_resume(t, paused, err);
  if (t->live == 0)
    return ns_fail(err, NS_ESTATE,
                   "job %lld has finished already, and all below it",
                   (long long)t->id);
  return NS_OK;
}

ns_status ns_tree_do(ns_db *db, ns_verb verb, int64_t id, int64_t n,
                     ns_bytes text, int64_t *changed, ns_err *err) {
  static const char *const names[] = {
      [NS_TREE_CANCEL] = "cancel",         [NS_TREE_PAUSE] = "pause",
      [NS_TREE_RESUME] = "resume",         [NS_TREE_PRIORITY] = "reprioritise",
      [NS_TREE_RUN_NOW] = "run_now",       [NS_TREE_DEADLINE] = "deadline",
      [NS_TREE_RETRY] = "retry"};
  ns_tree t = {.id = id, .n = n, .text = text};
  bool begun;
  ns_status st;
  ns_err_clear(err);
  if (verb == NS_TREE_PRIORITY && (n < 0 || n > 255))
    return ns_fail(err, NS_EINVALID, "the priority must be 0 to 255, got %lld",
                   (long long)n);
  begun = ns_action_begin(db, names[verb], id, ns_str("with all below it"), 0);
  st = run_verb(db, &t, verb, err);
  ns_action_end(db, begun);
  *changed = t.changed;
  ns_tree_free(&t);
  return st;
}

/* A limit of one job. */
ns_status ns_deadline(ns_db *db, int64_t id, int64_t deadline, ns_err *err) {
  ns_tree t = {.id = id, .n = deadline, .ids = &id, .nids = 1};
  ns_tx tx = {.run = step_limit, .arg = &t};
  int64_t up;
  int64_t paused;
  bool sure;
  bool begun;
  ns_status st = ns_tree_up(db, id, &up, &sure, &paused, err);
  if (st == NS_OK) {
    begun = ns_action_begin(db, "deadline", id, NS_NONE, 0);
    st = ns_db_transact(db, &tx, err);
    ns_action_end(db, begun);
  }
  if (st == NS_OK) {
    ns_tree_told(db, &t);
    if (t.live == 0)
      st = ns_fail(err, NS_ESTATE, "job %lld has finished already",
                   (long long)id);
  }
  ns_tree_free(&t);
  return st;
}
