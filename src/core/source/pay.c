/*
** Rows of adopted tables that the verdicts of a handle change themselves, in the transaction
** that settles their jobs. A handle is given the statements for that (ns_source_serve): they are
** made of a table's mapping, which is not known here.
**
** A batch's rows are locked before its outcomes are decided, and written with the rest. What
** cannot be written is owed: its row is locked by another session, it is owed more already, or the
** server refuses the change. A statement that fails changes nothing, and the transaction goes on.
** Where nothing else is to be written, one statement does all (ns_source_end); the verdict behind
** one that has failed is settled with more.
**
** Invariant: a row is written only while it is the job's, and what is known of the rows of a
** batch is forgotten with it. Asserted where they are added: there are none of an earlier one.
*/
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "db/db.h"
#include "handle.h"
#include "source/source.h"

#define STATEMENTS 32 /* that a program with an adopted table needs again and again */

struct ns_source_table {
  int64_t id;
  ns_source_texts texts;
};

/* ------------------------------------------------------------- the tables */

static ns_source_table *find_table(const ns_db *db, int64_t id) {
  for (size_t i = 0; i < db->source.ntables; i++)
    if (db->source.tables[i].id == id)
      return &db->source.tables[i];
  return NULL;
}

bool ns_source_is_served(const ns_db *db, ns_bytes key) {
  ns_origin row;
  return db->source.ntables > 0 && ns_source_origin(key, &row) &&
         find_table(db, row.source) != NULL;
}

ns_status ns_source_serve(ns_db *db, int64_t source, const ns_source_texts *texts, ns_err *err) {
  ns_source_state *s = &db->source;
  ns_source_table *t = find_table(db, source);
  if (t == NULL && !ns_grow(&s->tables, &s->captables, s->ntables + 1, sizeof *s->tables))
    return ns_no_memory(err);
  if (t == NULL)
    t = &s->tables[s->ntables++];
  *t = (ns_source_table){source, *texts};
  db->cfg.statements = STATEMENTS;
  if (db->link != NULL)
    ns_link_keep(db->link, STATEMENTS);
  return NS_OK;
}

/* --------------------------------------------------------- rows of a batch */

static int by_job(const void *a, const void *b) {
  int64_t x = ((const ns_source_row *)a)->job;
  int64_t y = ((const ns_source_row *)b)->job;
  return (x > y) - (x < y);
}

/* NULL: it is none of them. */
static ns_source_row *find_row(const ns_db *db, int64_t job) {
  ns_source_row key = {.job = job};
  return db->source.nrows > 0 ? bsearch(&key, db->source.rows, db->source.nrows, sizeof key, by_job)
                              : NULL;
}

ns_status ns_source_add(ns_db *db, ns_bytes key, int64_t job, ns_err *err) {
  ns_source_state *s = &db->source;
  ns_origin row;
  if (!ns_source_is_served(db, key) || !ns_source_origin(key, &row))
    return NS_OK;
  ns_assert(s->nrows == 0 || s->rows[s->nrows - 1].job < job);
  if (!ns_grow(&s->rows, &s->caprows, s->nrows + 1, sizeof *s->rows))
    return ns_no_memory(err);
  s->rows[s->nrows++] = (ns_source_row){row, job, NS_ROW_UNKNOWN};
  return NS_OK;
}

bool ns_source_has_lost(const ns_db *db, int64_t job) {
  const ns_source_row *row = find_row(db, job);
  return row != NULL && row->standing == NS_ROW_LOST;
}

void ns_source_forget(ns_db *db) {
  db->source.nrows = 0;
}

/* Ends a list, runs a statement with it, and frees it. '*s' has its rows, or how many were
** changed. */
static ns_status run_text(ns_db *db, ns_bytes text, ns_buf *list, ns_stmt **s, ns_err *err) {
  ns_value param = ns_db_list_end(list);
  ns_status st = list->oom ? ns_no_memory(err) : ns_db_prepared(db, s, text, err);
  if (st == NS_OK)
    st = ns_stmt_run(db->link, *s, &param, err);
  ns_buf_free(list);
  return st;
}

/* Has another session locked a row, or the whole table? The transaction is as before. */
static bool is_locked(const ns_db *db, const ns_err *err) {
  return err->sqlerr == NS_LOCK_WAIT && !db->never_fast;
}

/* Asks about the rows of a table that are not known yet; the given rows get 'standing'. Of a
** locked table nothing is learnt. */
static ns_status ask_rows(ns_db *db, int64_t source, ns_bytes text, ns_standing standing,
                          ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  const ns_value *row = NULL;
  ns_stmt *s;
  ns_status st;
  for (size_t i = 0; i < db->source.nrows; i++) {
    const ns_source_row *r = &db->source.rows[i];
    if (r->row.source == source && r->standing == NS_ROW_UNKNOWN)
      ns_db_list_add_pair(&list, r->row.row, r->job);
  }
  if (ns_db_list_is_empty(&list))
    return NS_OK;
  st = run_text(db, text, &list, &s, err);
  while (st == NS_OK && (st = ns_stmt_fetch(db->link, s, &row, err)) == NS_OK && row != NULL) {
    ns_source_row *r = find_row(db, row[1].i);
    if (r != NULL)
      r->standing = standing;
  }
  if (st != NS_EBUSY || !is_locked(db, err))
    return st;
  ns_err_clear(err);
  return NS_OK;
}

ns_status ns_source_hold(ns_db *db, ns_err *err) {
  ns_source_state *s = &db->source;
  ns_status st = NS_OK;
  if (s->nrows == 0)
    return NS_OK;
  s->careful = false;
  for (size_t i = 0; st == NS_OK && i < s->ntables; i++) {
    const ns_source_table *t = &s->tables[i];
    if ((st = ask_rows(db, t->id, t->texts.hold, NS_ROW_HELD, err)) == NS_OK)
      st = ask_rows(db, t->id, t->texts.lost, NS_ROW_LOST, err);
  }
  return st;
}

/* ---------------------------------------------------------------- writing */

static ns_row_change change_of(const ns_source_debt *d) {
  return d->outcome == NULL ? NS_ROW_LIVES : strcmp(d->outcome, "done") == 0 ? NS_ROW_DONE
                                                                             : NS_ROW_DEAD;
}

/* Of these the statement has changed nothing, and the transaction is as before. All else says
** nothing of the row, or has ended the transaction. */
static bool is_refusal(const ns_db *db, ns_status st, const ns_err *err) {
  if (st == NS_OK)
    return false;
  return is_locked(db, err) || (err->sqlerr != 0 && st != NS_EBUSY && st != NS_EGONE);
}

static ns_status change_rows(ns_db *db, const ns_source_texts *t, ns_row_change c,
                             ns_source_debt *const *debts, size_t n, ns_err *err) {
  bool shows = c == NS_ROW_DONE || (c == NS_ROW_DEAD && t->shows_dead);
  ns_buf list = NS_BUF_INIT;
  ns_stmt *s;
  ns_status st;
  if (t->write[c].p == NULL)
    return NS_OK;
  for (size_t i = 0; i < n; i++)
    ns_source_list_add(&list, debts[i]);
  st = run_text(db, t->write[c], &list, &s, err);
  return st == NS_OK && shows ? ns_db_check_changed(ns_stmt_affected(s), (int64_t)n, err) : st;
}

/* Writes a change; rows that are refused together go in halves. */
static ns_status write_rows(ns_db *db, const ns_source_texts *t, ns_row_change c,
                            ns_source_debt **debts, size_t n, ns_err *err) {
  size_t half = n / 2;
  ns_status st = change_rows(db, t, c, debts, n, err);
  if (st == NS_OK)
    for (size_t i = 0; i < n; i++)
      debts[i]->paid = true;
  if (!is_refusal(db, st, err))
    return st;
  if (n == 1)
    debts[0]->why = err->sqlerr != NS_LOCK_WAIT ? strdup(err->message) : NULL;
  ns_err_clear(err);
  if (n == 1)
    return NS_OK;
  st = write_rows(db, t, c, debts, half, err);
  return st == NS_OK ? write_rows(db, t, c, debts + half, n - half, err) : st;
}

/* 'some': room for as many. */
static ns_status pay_table(ns_db *db, const ns_source_table *t, ns_source_debt *debts, size_t n,
                           ns_source_debt **some, ns_err *err) {
  ns_status st = NS_OK;
  for (ns_row_change c = 0; st == NS_OK && c < NS_ROW_CHANGES; c++) {
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
      const ns_source_row *row = find_row(db, debts[i].job);
      if (row == NULL || row->row.source != t->id || change_of(&debts[i]) != c)
        continue;
      if (row->standing == NS_ROW_HELD)
        some[k++] = &debts[i];
      else
        debts[i].paid = row->standing == NS_ROW_LOST;
    }
    if (k > 0)
      st = write_rows(db, &t->texts, c, some, k, err);
  }
  return st;
}

ns_status ns_source_pay(ns_db *db, ns_source_debt *debts, size_t n, ns_err *err) {
  ns_source_debt **some;
  ns_status st = NS_OK;
  if (db->source.nrows == 0)
    return NS_OK;
  if ((some = malloc(n * sizeof *some)) == NULL)
    return ns_no_memory(err);
  for (size_t i = 0; st == NS_OK && i < db->source.ntables; i++)
    st = pay_table(db, &db->source.tables[i], debts, n, some, err);
  free(some);
  return st;
}

/* ------------------------------------------------------------- in one statement */

bool ns_source_ends(const ns_db *db, const ns_origin *row) {
  const ns_source_table *t = find_table(db, row->source);
  return t != NULL && t->texts.ends.p != NULL && !db->source.careful;
}

ns_status ns_source_end(ns_db *db, const ns_source_last *e, bool *cut, ns_err *err) {
  ns_buf key = NS_BUF_INIT;
  ns_stmt *s;
  ns_status st = NS_ENOMEM;
  ns_assert(ns_source_ends(db, &e->row) && !db->in_tx);
  *cut = false;
  ns_buf_addf(&key, NS_SOURCE_PREFIX "%lld:%lld", (long long)e->row.source, (long long)e->row.row);
  if (!key.oom)
    st = ns_db_run_whole_text(
        db, find_table(db, e->row.source)->texts.ends,
        (ns_value[]){ns_vint(e->row.row), ns_vint(e->job), ns_vint(e->run), ns_vint(db->holder),
                     ns_vint(e->ago), ns_vopt(e->result), ns_vint(e->queue_id), ns_vtext(ns_buf_bytes(&key)),
                     e->lease != 0 ? ns_vint(e->lease) : ns_vnull, ns_vint(e->cycle)},
        &s, cut, err);
  ns_buf_free(&key);
  db->source.careful = st != NS_OK;
  return st;
}

/* ------------------------------------------------------------------- hooks */

static void closing(ns_db *db) {
  free(db->source.tables);
  free(db->source.rows);
  db->source = (ns_source_state){0};
}

const ns_hooks ns_source_hooks = {.closing = closing};
