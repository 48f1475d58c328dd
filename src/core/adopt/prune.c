/*
** Ended rows of an adopted table, done or dead, go: they are deleted, or moved into another
** table.
**
** They are looked for without locks, a batch at a time in the order of their ids, then
** locked by their keys, past those that are locked, and inserted there and deleted here
** in one transaction. So a row is in one of the two tables, whatever happens, and no session waits
** for more than a batch.
**
** Invariant: a row that another one has for its parent stays, because a look for the parent of a
** row has to find it. With it gone children go first: what became free then is
** found by another pass.
*/
#include <stdlib.h>
#include <string.h>

#include "adopt/table.h"
#include "db/db.h"

#define BATCH 500

/* ----------------------------------------------------------------- the target */

/* Columns of adopt_into. */
enum { I_THERE, I_INNODB, I_NAME, I_HAS, I_MADE };

static ns_status no_target(const ns_adopted *a, ns_err *err) {
  ns_buf sql = NS_BUF_INIT;
  ns_status st;
  ns_buf_adds(&sql, "CREATE TABLE ");
  ns_adopt_add_name(&sql, a->into.p);
  ns_buf_adds(&sql, " LIKE ");
  ns_adopt_add_name(&sql, a->map.table.p);
  ns_buf_addc(&sql, '\0');
  st = sql.oom ? ns_no_memory(err)
               : ns_fail(err, NS_ENOTFOUND, "there is no table '%s' to move rows to: %s",
                         a->into.p, sql.p);
  ns_buf_free(&sql);
  return st;
}

static ns_field *field_of(ns_adopted *a, ns_bytes name) {
  for (size_t i = 0; i < a->fields.n; i++)
    if (strlen(a->fields.items[i].name) == name.n &&
        memcmp(a->fields.items[i].name, name.p, name.n) == 0)
      return &a->fields.items[i];
  return NULL;
}

/* One column of the table, as the target has it. */
static ns_status check_column(ns_adopted *a, const ns_value *row, ns_err *err) {
  ns_field *f = field_of(a, row[I_NAME].s);
  if (row[I_THERE].i == 0)
    return no_target(a, err);
  if (row[I_INNODB].i == 0)
    return ns_fail(err, NS_EINVALID,
                   "'%s' is not an InnoDB table: what a crash interrupts there would be "
                   "there twice, or not at all",
                   a->into.p);
  if (f == NULL)
    return ns_fail(err, NS_EINVALID,
                   "'%s' has got a column since it was adopted, '%.*s'; adopt it again",
                   a->map.table.p, (int)row[I_NAME].s.n, row[I_NAME].s.p);
  if (row[I_HAS].i == 0)
    return ns_fail(err, NS_EINVALID, "'%s' has no column '%s', which rows of '%s' have",
                   a->into.p, f->name, a->map.table.p);
  f->moved = row[I_MADE].i == 0;
  return NS_OK;
}

/* Looks at it, and has the statement made anew. */
static ns_status set_target(ns_adopted *a, ns_bytes into, ns_err *err) {
  const ns_value *row;
  ns_status st;
  ns_buf_reset(&a->into);
  ns_buf_add(&a->into, into.p, into.n);
  ns_buf_addc(&a->into, '\0');
  if (a->into.oom)
    return ns_no_memory(err);
  if (strlen(a->into.p) != into.n || strcmp(a->into.p, a->map.table.p) == 0)
    return ns_fail(err, NS_EINVALID, "rows of '%s' cannot be moved to '%s'",
                   a->map.table.p, a->into.p);
  ns_buf_reset(&a->stmts[NS_SQL_ADOPT_PRUNE_MOVE].text);
  st = ns_db_run(a->db, NS_SQL_ADOPT_INTO,
                 (ns_value[]){ns_vtext(into), ns_vtext(into), ns_vtext(a->map.table)}, err);
  while (st == NS_OK && (st = ns_db_row(a->db, NS_SQL_ADOPT_INTO, &row, err)) == NS_OK &&
         row != NULL)
    st = check_column(a, row, err);
  return st;
}

/* ------------------------------------------------------------------- batches */

typedef struct pass {
  ns_adopted *a;
  int64_t older;
  bool moves;
  int64_t last;    /* the row behind which it goes on */
  size_t limit;    /* rows of the next batch */
  size_t n;        /* … of the last one */
  int64_t reached; /* its last row */
} pass;

static ns_call call_of(const pass *p) {
  return (ns_call){.row = p->last, .limit = (int64_t)p->limit,
                   .delay = p->older >= 0 ? ns_vint(p->older) : ns_vnull};
}

/* '*ids' names them as "[id,…]". */
static ns_status pick(pass *p, ns_buf *ids, ns_err *err) {
  ns_call call = call_of(p);
  const ns_value *row;
  ns_stmt *s;
  ns_status st = ns_adopt_run(p->a, NULL, NS_SQL_ADOPT_PRUNE_PICK, &call, &s, err);
  p->n = 0;
  while (st == NS_OK && (st = ns_stmt_fetch(p->a->db->link, s, &row, err)) == NS_OK &&
         row != NULL) {
    ns_db_list_add_id(ids, row[0].i);
    if (p->n++ == 0 || row[0].i > p->reached)
      p->reached = row[0].i;
  }
  if (st == NS_OK)
    ns_db_list_end(ids);
  return st == NS_OK && ids->oom ? ns_no_memory(err) : st;
}

/* Which of the two is right only people know. */
static ns_status say_there(const ns_adopted *a, ns_err *err) {
  ns_err why = *err;
  return ns_fail(err, NS_EDUPLICATE,
                 "'%s' has one of these rows already: delete it there, or in '%s', and go "
                 "on (%.200s)",
                 a->into.p, a->map.table.p, why.message);
}

static ns_status prune_rows(ns_db *db, ns_tx *tx, ns_err *err) {
  pass *p = tx->arg;
  ns_buf ids = NS_BUF_INIT;
  ns_call call = {0};
  ns_stmt *s;
  ns_status st = pick(p, &ids, err);
  (void)db;
  call.rows = ns_buf_bytes(&ids);
  if (st == NS_OK && p->n > 0 && p->moves)
    st = ns_adopt_run(p->a, NULL, NS_SQL_ADOPT_PRUNE_MOVE, &call, &s, err);
  if (st == NS_EDUPLICATE)
    say_there(p->a, err);
  if (st == NS_OK && p->n > 0)
    st = ns_adopt_run(p->a, NULL, NS_SQL_ADOPT_PRUNE_DROP, &call, &s, err);
  if (st == NS_OK && p->n > 0)
    st = ns_adopt_absolve_list(p->a, call.rows, err);
  ns_buf_free(&ids);
  return st;
}

/* All rows once, in the order of their ids. A batch may be less than full before the end,
** by what other sessions have locked. */
static ns_status prune_pass(pass *p, int64_t limit, int64_t *n, ns_err *err) {
  ns_tx tx = {.run = prune_rows, .arg = p};
  ns_status st = NS_OK;
  p->last = INT64_MIN;
  do {
    p->limit = limit - *n < BATCH ? (size_t)(limit - *n) : BATCH;
    tx.replay = false;
    if ((st = ns_db_transact(p->a->db, &tx, err)) == NS_OK)
      *n += (int64_t)p->n;
    p->last = p->reached;
  } while (st == NS_OK && p->n > 0 && *n < limit);
  return st;
}

static ns_status check_prune(const ns_adopted *a, const ns_row_pruning *which, ns_err *err) {
  if (ns_in_transaction(a->db))
    return ns_fail(err, NS_ESTATE, "rows cannot be pruned inside a transaction");
  if (which->older < 0 || which->dead || ns_adopt_tells_end(a))
    return NS_OK;
  return ns_fail(err, NS_EINVALID,
                 "nothing says when rows of '%s' were done: the mapping names neither "
                 "'completed_at' nor 'updated'",
                 a->map.table.p);
}

/* Statements that ask for rows of the other end are made anew. */
static void set_end(ns_adopted *a, bool dead) {
  if (a->prunes_dead == dead)
    return;
  a->prunes_dead = dead;
  ns_buf_reset(&a->stmts[NS_SQL_ADOPT_PRUNE_PICK].text);
  ns_buf_reset(&a->stmts[NS_SQL_ADOPT_PRUNABLE].text);
}

static ns_status begin(ns_adopted *a, const ns_row_pruning *which, ns_err *err) {
  ns_status st;
  ns_err_clear(err);
  if ((st = check_prune(a, which, err)) != NS_OK || (st = ns_db_ready(a->db, err)) != NS_OK)
    return st;
  set_end(a, which->dead);
  return NS_OK;
}

ns_status ns_adopted_prune(ns_adopted *a, const ns_row_pruning *which, int64_t *n,
                           ns_err *err) {
  pass p = {.a = a, .older = which->older, .moves = which->into.p != NULL};
  int64_t before;
  ns_status st = begin(a, which, err);
  *n = 0;
  if (st == NS_OK && p.moves)
    st = set_target(a, which->into, err);
  do {
    before = *n;
    if (st == NS_OK)
      st = prune_pass(&p, which->limit, n, err);
  } while (st == NS_OK && *n > before && *n < which->limit &&
           ns_adopt_has(a, NS_PART_PARENT));
  return st;
}

ns_status ns_adopted_prunable(ns_adopted *a, const ns_row_pruning *which, int64_t *n,
                              ns_err *err) {
  pass p = {.older = which->older, .limit = (size_t)which->limit};
  ns_call call = call_of(&p);
  const ns_value *row = NULL;
  ns_stmt *s;
  ns_status st = begin(a, which, err);
  *n = 0;
  if (st == NS_OK)
    st = ns_adopt_run(a, NULL, NS_SQL_ADOPT_PRUNABLE, &call, &s, err);
  if (st == NS_OK)
    st = ns_stmt_fetch(a->db->link, s, &row, err);
  if (row != NULL)
    *n = row[0].i;
  return st;
}
