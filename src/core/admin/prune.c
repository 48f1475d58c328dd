/*
** Pruning: history that is old enough goes, in small batches, each its own
** transaction, so that no transaction waits long for it. Slots of the dead go, too.
**
** One age for all queues is a range of the key by outcome and end. Where queues have rules of
** their own, the key is read page by page, without locks, and rows that go are then locked.
**
** Invariant: a job of a tree goes with all of its tree. By then none of it lives, and every job may
** go by its own rule. The leaves go first, so that a prune that is cut short can be gone on with.
** A job older than NS_KEEP_TREE does not wait for a tree that never ends, except below a parent
** that lives. A row of nightshift_child goes with its child, so no row has to be looked for when
** the parent goes. No assert: the server knows the ages of rows.
*/
#include <stdlib.h>
#include <string.h>

#include "admin/admin.h"
#include "base.h"
#include "db/db.h"
#include "finish/finish.h"
#include "handle.h"
#include "holder/holder.h"

#define BATCH 1000    /* rows per transaction */
#define BARREN 20     /* batches without a job that may go, per one that counts */
#define PAGES 100     /* pages of a key that are looked at, likewise */
#define AT_A_TIME (NS_SECOND / 10) /* for trees, when the caller counts batches */
#define WALK 1000000  /* jobs of a tree that are looked at, at most */
#define LEVELS 1000   /* and how deep */

/* A job, and its row of nightshift_child; parent 0: it has none, or that stays. */
typedef struct member {
  int64_t id, parent, seq;
} member;

typedef struct members {
  member *items;
  size_t n, cap;
} members;

static bool add_member(members *list, member k) {
  if (!ns_grow(&list->items, &list->cap, list->n + 1, sizeof *list->items))
    return false;
  list->items[list->n++] = k;
  return true;
}

static ns_value as_json(const member *items, size_t n, ns_buf *text) {
  ns_buf_reset(text);
  for (size_t i = 0; i < n; i++)
    ns_db_list_add_id(text, items[i].id);
  return ns_db_list_end(text);
}

/* "[[parent,seq,id],…]" of the items that are children. */
static ns_value links_json(const member *items, size_t n, ns_buf *text) {
  ns_buf_reset(text);
  for (size_t i = 0; i < n; i++)
    if (items[i].parent != 0)
      ns_buf_addf(text, "%s[%lld,%lld,%lld]", text->n > 0 ? "," : "[", (long long)items[i].parent,
                  (long long)items[i].seq, (long long)items[i].id);
  return ns_db_list_end(text);
}

/* Between two transactions: is the prune to go on? */
static bool may_go_on(ns_db *db) {
  return db->goes_on == NULL || db->goes_on(db->goes_on_arg);
}

static void tell(const ns_db *db, int64_t deleted) {
  if (db->pruned != NULL && deleted > 0)
    db->pruned(db->pruned_arg, deleted);
}

/* -------------------------------------------------------------- deleting */

typedef struct batch {
  const member *items;
  size_t n;
  bool tree;       /* each goes with all jobs below it */
  bool lives;      /* one of them lives again: then all of these stay */
  int64_t deleted; /* rows of history deleted for them */
} batch;

/* The links of a tree are deleted together with its jobs. */
static ns_status delete_links(ns_db *db, const batch *b, ns_err *err) {
  ns_buf text = NS_BUF_INIT;
  ns_value param = (b->tree ? links_json : as_json)(b->items, b->n, &text);
  ns_sql sql = b->tree ? NS_SQL_PRUNE_LINKS : NS_SQL_PRUNE_CHILDREN;
  ns_status st = text.oom ? ns_no_memory(err) : ns_db_run(db, sql, &param, err);
  ns_buf_free(&text);
  return st;
}

/* From here on none of the batch can be retried. Jobs retried since the walk are seen. A caller
** with other work to do does not wait for rows that another transaction holds. */
static ns_status lock_batch(ns_db *db, batch *b, const ns_value *ids, ns_err *err) {
  ns_sql sql = db->goes_on == NULL ? NS_SQL_PRUNE_HOLD : NS_SQL_PRUNE_HOLD_NOW;
  const ns_value *row = NULL;
  ns_status st = ns_db_run(db, sql, ids, err);
  if (st == NS_OK)
    st = ns_db_row(db, sql, &row, err);
  b->lives = st == NS_OK && row != NULL && row[1].i > 0;
  return st;
}

static ns_status delete_rows(ns_db *db, batch *b, const ns_value *ids, ns_err *err) {
  ns_status st = ns_db_run(db, NS_SQL_PRUNE_ATTEMPTS, ids, err);
  if (st == NS_OK)
    st = ns_db_run(db, NS_SQL_PRUNE_FINISHED, ids, err);
  if (st != NS_OK)
    return st;
  b->deleted = ns_db_affected(db, NS_SQL_PRUNE_FINISHED);
  if ((st = delete_links(db, b, err)) == NS_OK)
    st = ns_db_run(db, NS_SQL_PRUNE_PAUSES, ids, err);
  if (st == NS_OK)
    st = ns_db_run(db, NS_SQL_PRUNE_TAGS, ids, err);
  return st == NS_OK ? ns_db_run(db, NS_SQL_PRUNE_SIGNALS, ids, err) : st;
}

static ns_status delete_run(ns_db *db, ns_tx *tx, ns_err *err) {
  batch *b = tx->arg;
  ns_buf text = NS_BUF_INIT;
  ns_value param = as_json(b->items, b->n, &text);
  ns_status st = text.oom  ? ns_no_memory(err)
                 : b->tree ? lock_batch(db, b, &param, err)
                           : NS_OK; /* prune_select holds them */
  b->deleted = 0;
  if (st == NS_OK && !b->lives)
    st = delete_rows(db, b, &param, err);
  if (b->deleted > 0)
    tx->jobs = b->deleted;
  ns_buf_free(&text);
  return st;
}

/* Deletes from the end: the leaves stand there. The jobs above a job that lives again stay,
** too: another prune looks at them. */
static ns_status delete_all(ns_db *db, const members *list, int64_t *deleted, ns_err *err) {
  ns_status st = NS_OK;
  bool lives = false;
  for (size_t left = list->n; st == NS_OK && !lives && left > 0 && may_go_on(db);) {
    batch b = {.n = left < BATCH ? left : BATCH, .tree = true};
    ns_tx tx = {.run = delete_run, .arg = &b, .once = db->goes_on != NULL};
    left -= b.n;
    b.items = list->items + left;
    if ((st = ns_db_transact(db, &tx, err)) == NS_OK)
      *deleted += b.deleted;
    tell(db, *deleted);
    lives = b.lives;
  }
  return st;
}

/* ----------------------------------------------------------------- trees */

typedef enum tree_state { GOES, LIVES, YOUNG, ENDLESS, STOPPED } tree_state;

enum { K_ID, K_LIVES, K_OUTCOME, K_AGE, K_PARENT, K_SEQ, K_QUEUE, K_ENDED };

/* 'keep' NULL: whatever its age. */
static tree_state state_of(const ns_value *r, const ns_retention *keep) {
  if (r[K_LIVES].i != 0)
    return LIVES;
  if (keep == NULL || r[K_AGE].type == NS_NULL) /* not in the history any more */
    return GOES;
  return ns_admin_rules_goes(&keep->of[r[K_OUTCOME].i - 1], r[K_QUEUE].i, r[K_AGE].i,
                           (ns_past_row){r[K_ENDED].i, r[K_ID].i})
             ? GOES
             : YOUNG;
}

/* Reads the rows of a statement: jobs of the tree. */
static ns_status read_members(ns_db *db, ns_sql sql, const ns_retention *keep, members *tree,
                              tree_state *f, ns_err *err) {
  const ns_value *row;
  ns_status st = NS_OK;
  while (*f == GOES && (st = ns_db_row(db, sql, &row, err)) == NS_OK && row != NULL) {
    *f = state_of(row, keep);
    if (*f == GOES && !add_member(tree, (member){row[K_ID].i, row[K_PARENT].i, row[K_SEQ].i}))
      return ns_no_memory(err);
    if (tree->n >= WALK)
      *f = ENDLESS;
  }
  return st;
}

/* Reads one page of a level; '*more': there are further pages. Other sessions wait for one page
** at most. */
static ns_status read_page(ns_db *db, ns_sql sql, const ns_value *params, const ns_retention *keep,
                           members *tree, tree_state *f, bool *more, ns_err *err) {
  size_t before = tree->n;
  ns_status st;
  *more = false;
  if (!may_go_on(db)) {
    *f = STOPPED;
    return NS_OK;
  }
  if ((st = ns_db_run(db, sql, params, err)) == NS_OK)
    st = read_members(db, sql, keep, tree, f, err);
  *more = st == NS_OK && *f == GOES && tree->n == before + BATCH;
  return st;
}

/* The siblings behind the last job of the tree. */
static ns_status read_siblings(ns_db *db, const ns_retention *keep, members *tree, tree_state *f,
                               ns_err *err) {
  bool more = true;
  ns_status st = NS_OK;
  while (st == NS_OK && more) {
    member last = tree->items[tree->n - 1];
    st = read_page(db, NS_SQL_PRUNE_SIBLINGS,
                   (ns_value[]){ns_vint(last.parent), ns_vint(last.seq), ns_vint(last.seq),
                                ns_vint(last.id), ns_vint(BATCH)},
                   keep, tree, f, &more, err);
  }
  return st;
}

/* The children of tree[from…to), behind them. A full page may end among the children of one
** parent; all parents before that one are read. */
static ns_status read_level(ns_db *db, const ns_retention *keep, members *tree, size_t from,
                            size_t to, tree_state *f, ns_err *err) {
  ns_buf text = NS_BUF_INIT;
  ns_status st = NS_OK;
  while (st == NS_OK && *f == GOES && from < to) {
    size_t n = to - from < BATCH ? to - from : BATCH;
    const ns_value params[] = {as_json(tree->items + from, n, &text), ns_vint(BATCH)};
    bool more;
    st = text.oom ? ns_no_memory(err)
                  : read_page(db, NS_SQL_PRUNE_MEMBERS, params, keep, tree, f, &more, err);
    if (st == NS_OK && more) {
      while (tree->items[from].id != tree->items[tree->n - 1].parent)
        from++;
      n = 1;
      st = read_siblings(db, keep, tree, f, err);
    }
    from += n;
  }
  ns_buf_free(&text);
  return st;
}

/* Reads all jobs of a tree, level by level, behind the ones that 'tree' has; '*f' tells whether
** they go. A job that does not go is not added. */
static ns_status walk_tree(ns_db *db, int64_t root, const ns_retention *keep, members *tree,
                           tree_state *f, ns_err *err) {
  ns_value param = ns_vint(root);
  size_t start = tree->n;
  size_t from = start;
  ns_status st = ns_db_run(db, NS_SQL_PRUNE_SELF, &param, err);
  *f = GOES;
  if (st == NS_OK)
    st = read_members(db, NS_SQL_PRUNE_SELF, keep, tree, f, err);
  for (int level = 0; st == NS_OK && *f == GOES && from < tree->n; level++) {
    size_t to = tree->n;
    st = read_level(db, keep, tree, from, to, f, err);
    from = to;
    if (level == LEVELS)
      *f = ENDLESS;
  }
  if (*f != GOES)
    tree->n = start;
  return st;
}

static ns_status find_root(ns_db *db, int64_t id, int64_t *root, ns_err *err) {
  const ns_value *row = NULL;
  ns_status st = ns_db_run(db, NS_SQL_PRUNE_ROOT, (ns_value[]){ns_vint(id), ns_vint(id)}, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_PRUNE_ROOT, &row, err);
  if (st == NS_OK && row == NULL)
    return ns_db_no_job(id, err);
  if (st == NS_OK)
    *root = ns_int_or(&row[0], id);
  return st;
}

/* A live job anywhere in the tree may want the results of the jobs below it. */
ns_status ns_prune_tree(ns_db *db, int64_t id, int64_t *deleted, ns_err *err) {
  members tree = {0};
  tree_state f = GOES;
  int64_t root = id;
  ns_status st;
  *deleted = 0;
  ns_err_clear(err);
  if ((st = ns_db_ready(db, err)) == NS_OK && (st = find_root(db, id, &root, err)) == NS_OK)
    st = walk_tree(db, root, NULL, &tree, &f, err);
  if (st == NS_OK && f == GOES && root != id) {
    tree.n = 0; /* the part that has ended */
    st = walk_tree(db, id, NULL, &tree, &f, err);
  }
  if (st == NS_OK && f == LIVES)
    st = ns_fail(err, NS_ESTATE, "the tree of job %lld has not finished: only whole finished trees "
                 "are pruned", (long long)id);
  else if (st == NS_OK && f == ENDLESS)
    st = ns_fail(err, NS_ESTATE, "the tree of job %lld has more than %d jobs or %d levels",
                 (long long)id, WALK, LEVELS);
  else if (st == NS_OK) {
    bool begun = ns_action_begin(db, "delete", id, ns_str("with all below it"), 0);
    st = delete_all(db, &tree, deleted, err);
    ns_action_end(db, begun);
  }
  free(tree.items);
  return st;
}

/* ----------------------------------------------------------------- batches */

/* A tree that some of a batch belong to. */
typedef struct top {
  int64_t root;
  ns_past_row before; /* the row in front of the first that does */
} top;

/* One outcome's pass: its oldest rows, read in parts that begin behind 'at'. */
typedef struct pass {
  const char *outcome;
  ns_retention *keep; /* of all outcomes; trees have jobs of several */
  ns_keeps *rules;    /* of this one */
  bool plain;   /* one age for all queues */
  bool bounded; /* jobs of this host wait meanwhile */
  bool cut;     /* the rest of the batch is for another time */
  ns_past_row at;
  ns_past_row from; /* where the batch under way begins, in each try */
  size_t n;     /* rows of the last batch */
  bool more;    /* there may be rows behind it */
  members chosen; /* not plain: rows that go; 'seq' is the end of each */
  members alone; /* they go by themselves */
  top *tops;
  size_t ntops, captops;
  int64_t stays; /* the tree that was last found to, by its root: it may be in all batches */
} pass;

static bool add_row(pass *p, const ns_value *row) {
  ns_past_row before = p->at;
  p->n++;
  p->at = (ns_past_row){row[1].i, row[0].i};
  if (row[2].type == NS_NULL)
    return add_member(&p->alone, (member){.id = row[0].i});
  for (size_t i = 0; i < p->ntops; i++)
    if (p->tops[i].root == row[2].i)
      return true;
  if (!ns_grow(&p->tops, &p->captops, p->ntops + 1, sizeof *p->tops))
    return false;
  p->tops[p->ntops++] = (top){row[2].i, before};
  return true;
}

/* Looks at the rows behind 'from' up to a page, or to a whole batch of rows that go. */
static ns_status choose(ns_db *db, pass *p, ns_past_row *end, ns_err *err) {
  const ns_value *row = NULL;
  size_t n = 0;
  int64_t age;
  int64_t cut;
  ns_status st;
  *end = p->from;
  p->chosen.n = 0;
  ns_admin_rules_bounds(p->rules, &age, &cut);
  st = ns_db_run(db, NS_SQL_PRUNE_PAGE,
                 (ns_value[]){ns_vtext(ns_str(p->outcome)), ns_vint(p->from.finished_at),
                              ns_vint(p->from.finished_at), ns_vint(p->from.id), ns_vint(age),
                              ns_vint(cut), ns_vint(NS_PAST_PAGE)},
                 err);
  while (st == NS_OK && p->chosen.n < BATCH &&
         (st = ns_db_row(db, NS_SQL_PRUNE_PAGE, &row, err)) == NS_OK && row != NULL) {
    *end = (ns_past_row){row[1].i, row[0].i};
    n++;
    if (ns_admin_rules_goes(p->rules, row[2].i, row[3].i, *end) &&
        !add_member(&p->chosen, (member){.id = end->id, .seq = end->finished_at}))
      st = ns_no_memory(err);
  }
  p->more = n == NS_PAST_PAGE || p->chosen.n == BATCH;
  return st;
}

static ns_status select_chosen(ns_db *db, const pass *p, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  ns_status st;
  for (size_t i = 0; i < p->chosen.n; i++)
    ns_db_list_add_pair(&list, p->chosen.items[i].id, p->chosen.items[i].seq);
  st = list.oom ? ns_no_memory(err)
                : ns_db_run(db, NS_SQL_PRUNE_CHOSEN,
                            (ns_value[]){ns_vint(NS_KEEP_TREE), ns_db_list_end(&list),
                                         ns_vtext(ns_str(p->outcome))},
                            err);
  ns_buf_free(&list);
  return st;
}

static ns_status select_range(ns_db *db, const pass *p, ns_err *err) {
  return ns_db_run(db, NS_SQL_PRUNE_SELECT,
                   (ns_value[]){ns_vint(NS_KEEP_TREE), ns_vtext(ns_str(p->outcome)),
                                ns_vint(p->from.finished_at), ns_vint(p->from.finished_at),
                                ns_vint(p->from.id), ns_vint(p->rules->items[0].age),
                                ns_vint(BATCH)},
                   err);
}

static ns_status batch_run(ns_db *db, ns_tx *tx, ns_err *err) {
  pass *p = tx->arg;
  const ns_value *row;
  ns_sql sql = p->plain ? NS_SQL_PRUNE_SELECT : NS_SQL_PRUNE_CHOSEN;
  ns_status st = p->plain ? select_range(db, p, err) : select_chosen(db, p, err);
  p->at = p->from;
  p->n = p->alone.n = p->ntops = 0;
  while (st == NS_OK && (st = ns_db_row(db, sql, &row, err)) == NS_OK && row != NULL)
    if (!add_row(p, row))
      st = ns_no_memory(err);
  if (p->plain)
    p->more = p->n == BATCH;
  if (st == NS_OK && p->alone.n > 0) {
    batch b = {.items = p->alone.items, .n = p->alone.n};
    ns_tx here = {.run = delete_run, .arg = &b, .jobs = tx->jobs};
    st = delete_run(db, &here, err);
    tx->jobs = here.jobs;
  }
  return st;
}

/* The trees of a batch, several a transaction. A bounded pass goes on with the rest another
** time. */
static ns_status prune_trees(ns_db *db, pass *p, int64_t *deleted, ns_err *err) {
  int64_t until = ns_mono_us() + AT_A_TIME;
  members going = {0};
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < p->ntops; i++) {
    tree_state f;
    if (p->tops[i].root == p->stays)
      continue;
    if (p->bounded && (going.n >= BATCH || ns_mono_us() > until)) {
      p->at = p->tops[i].before;
      p->more = true;
      p->cut = true;
      break;
    }
    st = walk_tree(db, p->tops[i].root, p->keep, &going, &f, err);
    if (st == NS_OK && f != GOES)
      p->stays = p->tops[i].root;
    if (st == NS_OK && !p->bounded && going.n >= BATCH) {
      st = delete_all(db, &going, deleted, err);
      going.n = 0;
    }
  }
  if (st == NS_OK)
    st = delete_all(db, &going, deleted, err);
  free(going.items);
  return st;
}

static ns_status prune_batch(ns_db *db, pass *p, int64_t *deleted, ns_err *err) {
  ns_tx tx = {.run = batch_run, .arg = p, .once = db->goes_on != NULL};
  ns_past_row end = {0, 0};
  ns_status st = NS_OK;
  p->from = p->at;
  p->cut = false;
  if (!p->plain && (st = choose(db, p, &end, err)) != NS_OK)
    return st;
  if (p->plain || p->chosen.n > 0) {
    if ((st = ns_db_transact(db, &tx, err)) != NS_OK)
      return st;
    *deleted += (int64_t)p->alone.n;
    tell(db, *deleted);
    st = prune_trees(db, p, deleted, err);
  }
  if (!p->plain && !p->cut)
    p->at = end;
  return st;
}

/* Finds the rows from which on queues have too many. A bounded pass looks at so many pages. */
static ns_status count_rows(ns_db *db, const pass *p, ns_err *err) {
  ns_status st = NS_OK;
  for (int n = 0; st == NS_OK && !p->rules->counted && may_go_on(db); n++) {
    if (p->bounded && n == PAGES)
      break;
    st = ns_admin_rules_count(db, p->outcome, p->rules, err);
  }
  return st;
}

/* '*left' batches may still be spent (NULL: any number); then '*at' is where
** the next call goes on. */
static ns_status prune_outcome(ns_db *db, pass *p, size_t *left, ns_past_row *at, int64_t *deleted,
                               ns_err *err) {
  ns_status st = NS_OK;
  int barren = 0;
  p->plain = ns_admin_rules_is_plain(p->rules);
  p->bounded = left != NULL;
  if ((p->plain && p->rules->items[0].age < 0) || (p->bounded && *left == 0) ||
      (st = count_rows(db, p, err)) != NS_OK || !p->rules->counted)
    return st;
  p->at = *at;
  do {
    int64_t before = *deleted;
    if ((left != NULL && *left == 0) || !may_go_on(db))
      return NS_OK;
    if ((st = prune_batch(db, p, deleted, err)) != NS_OK)
      return st;
    *at = p->more ? p->at : (ns_past_row){0, 0};
    if (left != NULL &&
        (*deleted > before || p->cut || ++barren % (p->plain ? BARREN : PAGES) == 0))
      --*left;
  } while (p->more);
  ns_admin_rules_recount(p->rules);
  return NS_OK;
}

/* Outcomes take turns to be first: a bounded prune may go no further than that. */
static ns_status prune_all(ns_db *db, ns_retention *keep, size_t max_batches, int64_t *deleted,
                           ns_err *err) {
  size_t left = max_batches;
  size_t first = max_batches > 0 ? db->prune_turn++ : 0;
  ns_status st = NS_OK;
  for (size_t n = 0; st == NS_OK && n < NS_OUTCOMES; n++) {
    size_t i = (first + n) % NS_OUTCOMES;
    ns_past_row start = {0, 0};
    pass p = {.outcome = ns_admin_outcomes[i], .keep = keep, .rules = &keep->of[i]};
    st = prune_outcome(db, &p, max_batches > 0 ? &left : NULL,
                       max_batches > 0 ? &db->pruned_to[i] : &start, deleted, err);
    free(p.chosen.items);
    free(p.alone.items);
    free(p.tops);
  }
  return st;
}

ns_status ns_prune(ns_db *db, int64_t keep_done, int64_t keep_dead, size_t max_batches,
                   int64_t *deleted, ns_err *err) {
  const int64_t given[NS_OUTCOMES] = {keep_done, keep_dead, keep_dead};
  ns_retention own = {0};
  ns_retention *keep;
  ns_status st = ns_admin_rules_take(db, given, max_batches > 0, &own, &keep, err);
  *deleted = 0;
  if (st == NS_OK)
    st = prune_all(db, keep, max_batches, deleted, err);
  ns_admin_rules_free(&own);
  if (st == NS_OK)
    st = ns_finish_pending_repair(db, err);
  if (st == NS_OK && !ns_in_transaction(db))
    st = ns_finish_pending_look(db, err);
  if (st == NS_OK)
    st = ns_holder_past_prune(db, err);
  if (st == NS_OK && (st = ns_admin_audit_prune(db, err)) == NS_OK)
    st = ns_db_minutes_prune(db, max_batches > 0, err);
  return st == NS_OK ? ns_holder_slots_prune(db, err) : st;
}
