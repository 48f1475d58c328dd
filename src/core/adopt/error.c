/*
** Why rows of an adopted table have failed last: a row of nightshift_adopted_error each,
** because the table has no column for it.
**
** It is written and deleted in the transaction of the verdict, while the row is ours, so no other
** session writes of it. No verdict waits for it, or fails with it: when it is
** locked it stays as it is.
**
** Invariant: it is for people, and only says something about a row that the table says is
** not done. What other programs have left behind, by ending or deleting rows, goes in looks that
** read a page of errors each; and the oldest go when there are more than ERRORS_MAX.
*/
#include <string.h>

#include "adopt/table.h"
#include "db/db.h"

#define ERROR_BYTES 1000    /* of a text, at most */
#define ERRORS_MAX 100000   /* that are kept of a table */
#define PAGE 1000           /* errors of a look */

/* ---------------------------------------------------------------- statements */

/* A plain statement of adopt.sql, where the row is. */
static ns_status run(ns_adopted *a, ns_seat *seat, ns_sql sql, const ns_value *values,
                     ns_err *err) {
  const char *text = ns_sql_texts[sql];
  ns_status st = NS_OK;
  if (seat == NULL)
    return ns_db_run(a->db, sql, values, err);
  if (seat->stmts[sql] == NULL)
    st = ns_link_prepare(seat->link, &seat->stmts[sql], NULL, text, strlen(text), err);
  return st == NS_OK ? ns_stmt_run(seat->link, seat->stmts[sql], values, err) : st;
}

/* The verdict stands without it. */
static ns_status at_best(const ns_adopted *a, ns_status st, ns_err *err) {
  if (st != NS_ESQL && !ns_adopt_is_locked(a, st, err))
    return st;
  ns_err_clear(err);
  return NS_OK;
}

/* ------------------------------------------------------------------ verdicts */

ns_status ns_adopt_blame(ns_adopted *a, ns_seat *seat, const ns_blame *b, ns_err *err) {
  ns_buf text = NS_BUF_INIT;
  ns_bytes error = b->error;
  ns_value attempt = b->attempt > 0 ? ns_vint(b->attempt) : ns_vnull;
  ns_status st;
  if (error.n > ERROR_BYTES)
    error.n = ERROR_BYTES;
  while (error.n < b->error.n && error.n > 0 &&
         ((unsigned char)error.p[error.n] & 0xC0) == 0x80) /* whole characters */
    error.n--;
  ns_buf_add_utf8(&text, error);
  st = text.oom ? ns_no_memory(err)
                : run(a, seat, NS_SQL_ADOPT_ERROR_PUT,
                      (ns_value[]){ns_vtext(a->map.table), ns_vint(b->id),
                                   b->holder != 0 ? ns_vint(b->holder) : ns_vnull,
                                   attempt, ns_vtext(ns_buf_bytes(&text)), attempt},
                      err);
  ns_buf_free(&text);
  a->control.failures = a->control.failures || st == NS_OK;
  return at_best(a, st, err);
}

ns_status ns_adopt_absolve(ns_adopted *a, ns_seat *seat, int64_t id, ns_err *err) {
  ns_status st = NS_OK;
  if (a->control.failures)
    st = run(a, seat, NS_SQL_ADOPT_ERROR_DROP,
             (ns_value[]){ns_vtext(a->map.table), ns_vint(id)}, err);
  return at_best(a, st, err);
}

ns_status ns_adopt_absolve_list(ns_adopted *a, ns_bytes rows, ns_err *err) {
  ns_status st = run(a, NULL, NS_SQL_ADOPT_ERROR_DROP_LIST,
                     (ns_value[]){ns_vtext(rows), ns_vtext(a->map.table)}, err);
  return at_best(a, st, err);
}

/* --------------------------------------------------------------- what is left */

typedef struct error_row {
  int64_t id, at;
} error_row;

typedef struct page {
  ns_adopted *a;
  error_row rows[PAGE];
  size_t n;
} page;

/* An error that was written anew meanwhile stays. */
static ns_status drop_rows(ns_db *db, ns_tx *tx, ns_err *err) {
  page *p = tx->arg;
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < p->n; i++) {
    st = ns_db_run(
        db, NS_SQL_ADOPT_ERROR_DROP_SEEN,
        (ns_value[]){ns_vtext(p->a->map.table), ns_vint(p->rows[i].id), ns_vint(p->rows[i].at)},
        err);
    st = at_best(p->a, st, err);
  }
  return st;
}

static ns_status drop_page(page *p, ns_err *err) {
  ns_tx tx = {.run = drop_rows, .arg = p};
  return p->n > 0 ? ns_db_transact(p->a->db, &tx, err) : NS_OK;
}

/* Some errors of rows that are gone or done; behind the last page of all comes the first. */
static ns_status drop_left(page *p, ns_err *err) {
  ns_adopted *a = p->a;
  ns_call call = {.row = a->error_to, .limit = PAGE};
  const ns_value *row;
  ns_stmt *s;
  size_t seen = 0;
  ns_status st = ns_adopt_run(a, NULL, NS_SQL_ADOPT_ERROR_LEFT, &call, &s, err);
  p->n = 0;
  while (st == NS_OK && (st = ns_stmt_fetch(a->db->link, s, &row, err)) == NS_OK &&
         row != NULL && seen < PAGE) {
    seen++;
    a->error_to = row[0].i;
    if (row[2].i == 0)
      p->rows[p->n++] = (error_row){row[0].i, row[1].i};
  }
  if (st == NS_OK && seen < PAGE)
    a->error_to = INT64_MIN;
  return st == NS_OK ? drop_page(p, err) : st;
}

/* Deletes some of the errors beyond the limit. */
static ns_status drop_old(page *p, ns_err *err) {
  ns_db *db = p->a->db;
  ns_value table = ns_vtext(p->a->map.table);
  const ns_value *row;
  ns_status st = ns_db_run(db, NS_SQL_ADOPT_ERROR_OLD,
                           (ns_value[]){table, table, ns_vint(ERRORS_MAX - 1), ns_vint(PAGE)}, err);
  p->n = 0;
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_ADOPT_ERROR_OLD, &row, err)) == NS_OK &&
         row != NULL && p->n < PAGE)
    p->rows[p->n++] = (error_row){row[0].i, row[1].i};
  return st == NS_OK ? drop_page(p, err) : st;
}

ns_status ns_adopt_tidy_errors(ns_adopted *a, ns_err *err) {
  page p = {.a = a};
  ns_status st = NS_OK;
  if (a->control.failures)
    st = drop_left(&p, err);
  if (st == NS_OK && a->control.failures)
    st = drop_old(&p, err);
  return st;
}
