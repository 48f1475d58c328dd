/*
** The plan of a claim: whether the server finds the rows by an index, in order, and
** the index that it lacks if not; and one for the claimant, where nothing else leads to
** what was claimed.
**
** The plan is the server's word, which depends on how many rows there are: a small
** table is scanned although it has the index. So only when the plan is bad and the
** index is not there is it asked for.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "adopt/table.h"

#define DESCENDING 1008 /* servers before ignore DESC in an index */

enum { E_TYPE = 3, E_EXTRA = 9 }; /* columns of EXPLAIN */

/* Whether the rows are found by an index and not sorted. */
static ns_status is_fine(ns_adopted *a, bool *fine, ns_err *err) {
  const ns_value *row = NULL;
  ns_call call = {.limit = 10};
  ns_stmt *s;
  ns_status st = ns_adopt_run(a, NULL, NS_SQL_ADOPT_EXPLAIN, &call, &s, err);
  if (st == NS_OK)
    st = ns_stmt_fetch(a->db->link, s, &row, err);
  *fine = false;
  if (st != NS_OK || row == NULL || row[E_TYPE].type != NS_TEXT)
    return st;
  *fine = strncmp(row[E_TYPE].s.p, "ALL", 3) != 0 &&
          strncmp(row[E_TYPE].s.p, "index", 5) != 0 &&
          (row[E_EXTRA].type != NS_TEXT ||
           memmem(row[E_EXTRA].s.p, row[E_EXTRA].s.n, "filesort", 8) == NULL);
  return st;
}

/* The columns of the index that serves: status, then the order. */
static size_t wanted(const ns_adopted *a, const ns_field *out[3]) {
  size_t n = 0;
  out[n++] = a->parts[NS_PART_STATUS];
  if (ns_adopt_has(a, NS_PART_PRIORITY))
    out[n++] = a->parts[NS_PART_PRIORITY];
  out[n++] = a->parts[NS_PART_ID];
  return n;
}

static bool is_descending(const ns_adopted *a, const ns_field *f) {
  if (f == a->parts[NS_PART_ID])
    return a->map.newest_first;
  return f == a->parts[NS_PART_PRIORITY] && !a->map.lower_first;
}

/* An index, column by column. */
typedef struct seen {
  char name[260];
  size_t matched;  /* of the wanted columns; one that differs ends it */
  bool ended;
  bool down[3];
} seen;

/* All of an index has been seen. The primary key is behind it, upwards; order is
** read either way. */
static bool serves(const ns_adopted *a, const seen *x, const ns_field *const *cols,
                   size_t n) {
  bool same = true;
  bool turned = true;
  if (x->matched < n && (x->ended || !cols[n - 1]->primary || x->matched < n - 1))
    return false;
  for (size_t i = 1; i < n; i++) {
    bool down = i < x->matched && x->down[i];
    same = same && down == is_descending(a, cols[i]);
    turned = turned && down != is_descending(a, cols[i]);
  }
  return same || turned;
}

static bool is_next(const seen *x, const ns_value *row) {
  return strlen(x->name) != row[0].s.n || memcmp(x->name, row[0].s.p, row[0].s.n) != 0;
}

static void see_column(seen *x, const ns_value *row, const ns_field *const *cols,
                       size_t n) {
  if (is_next(x, row)) {
    *x = (seen){.matched = 0};
    snprintf(x->name, sizeof x->name, "%.*s", (int)row[0].s.n, row[0].s.p);
  }
  x->ended = x->ended || x->matched == n ||
             strlen(cols[x->matched]->name) != row[1].s.n ||
             strncasecmp(cols[x->matched]->name, row[1].s.p, row[1].s.n) != 0;
  if (!x->ended)
    x->down[x->matched++] = row[2].i != 0;
}

/* Whether an index is there that serves the order. */
static ns_status is_there(ns_adopted *a, const ns_field *const *cols, size_t n,
                          bool *there, ns_err *err) {
  ns_value table = ns_vtext(a->map.table);
  seen x = {.matched = 0};
  const ns_value *row;
  ns_status st = ns_db_run(a->db, NS_SQL_ADOPT_INDEXES, &table, err);
  *there = false;
  while (st == NS_OK && (st = ns_db_row(a->db, NS_SQL_ADOPT_INDEXES, &row, err)) == NS_OK &&
         row != NULL) {
    *there = *there || (is_next(&x, row) && serves(a, &x, cols, n));
    see_column(&x, row, cols, n);
  }
  *there = *there || serves(a, &x, cols, n);
  return st;
}

static ns_status version_of(ns_adopted *a, int64_t *version, ns_err *err) {
  const ns_value *row = NULL;
  ns_status st = ns_db_run(a->db, NS_SQL_ADOPT_VERSION, NULL, err);
  if (st == NS_OK)
    st = ns_db_row(a->db, NS_SQL_ADOPT_VERSION, &row, err);
  *version = row == NULL ? 0 : row[0].type == NS_REAL ? (int64_t)row[0].d : row[0].i;
  return st;
}

static void write_index(const ns_adopted *a, const char *name,
                        const ns_field *const *cols, size_t n, int64_t version,
                        ns_buf *sql) {
  /* all down is read backwards */
  bool mixed = n == 3 && is_descending(a, cols[1]) != is_descending(a, cols[2]);
  ns_buf_adds(sql, "CREATE INDEX ");
  ns_buf_adds(sql, name);
  ns_buf_adds(sql, " ON ");
  ns_adopt_add_name(sql, a->map.table.p);
  for (size_t i = 0; i < n; i++) {
    ns_buf_adds(sql, i > 0 ? ", " : " (");
    ns_adopt_add_name(sql, cols[i]->name);
    if (mixed && version >= DESCENDING && is_descending(a, cols[i]))
      ns_buf_adds(sql, " DESC");
  }
  ns_buf_addc(sql, ')');
}

static ns_status advise_order(ns_adopted *a, ns_buf *sql, ns_err *err) {
  const ns_field *cols[3];
  size_t n = wanted(a, cols);
  int64_t version;
  bool enough = false;
  ns_status st = is_fine(a, &enough, err);
  if (st == NS_OK && !enough)
    st = is_there(a, cols, n, &enough, err);
  if (st == NS_OK && !enough && (st = version_of(a, &version, err)) == NS_OK)
    write_index(a, "nightshift_claim", cols, n, version, sql);
  return st;
}

/* Must rows be found by their claimant, among all that were ever claimed? */
static bool needs_claimant(const ns_adopted *a) {
  return a->map.strategy == NS_UPDATE_LIMIT &&
         (!a->map.has_state[NS_ROW_PROCESSING] ||
          a->parts[NS_PART_STATUS]->kind == NS_FIELD_TIME);
}

static ns_status advise_claimant(ns_adopted *a, ns_buf *sql, ns_err *err) {
  const ns_field *col = a->parts[NS_PART_CLAIMED_BY];
  bool there;
  ns_status st = is_there(a, &col, 1, &there, err);
  if (st == NS_OK && !there)
    write_index(a, "nightshift_claimant", &col, 1, 0, sql);
  return st;
}

ns_status ns_adopted_advice(ns_adopted *a, ns_buf *sql, ns_err *err) {
  ns_status st;
  ns_err_clear(err);
  ns_buf_reset(sql);
  if ((st = ns_db_ready(a->db, err)) == NS_OK)
    st = advise_order(a, sql, err);
  if (st == NS_OK && sql->n == 0 && needs_claimant(a))
    st = advise_claimant(a, sql, err);
  return st == NS_OK && sql->oom ? ns_fail(err, NS_ENOMEM, "out of memory") : st;
}
