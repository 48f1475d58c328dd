/*
** Rows of an adopted table that no claim takes any more: they have failed as often as they
** may, or were given up. They are listed with their last errors, counted by kinds of them,
** and made claimable again.
**
** Invariant: who is dead is what the table says, and only a row that is dead becomes as
** new: each by its key, in an UPDATE that asks for it. Many go in batches of one
** transaction each, past rows that are locked.
*/
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "adopt/table.h"
#include "clock.h"
#include "db/db.h"

#define BATCH 500   /* rows of a transaction */
#define ROUND 10000 /* rows that are listed at a time */
#define RETRY_FOR (10 * NS_SECOND) /* one that is asked for, and locked */

/* ------------------------------------------------------------------- listing */

/* The first columns of adopt_dead; those of the row follow. */
enum { D_FAILURES, D_AT, D_HOLDER, D_ERROR, D_ROW };

static void add_int(ns_buf *out, const char *name, const ns_value *v) {
  if (v->type != NS_NULL)
    ns_buf_addf(out, ",\"%s\":%" PRId64, name, v->i);
}

static void add_dead(const ns_adopted *a, const ns_value *row, ns_buf *scratch,
                     ns_buf *out) {
  const ns_value *id = &row[D_ROW + (a->parts[NS_PART_ID] - a->fields.items)];
  ns_buf_addf(out, "%s{\"id\":%" PRId64, out->n > 1 ? "," : "", id->i);
  add_int(out, "attempts", &row[D_FAILURES]);
  add_int(out, "failed_at", &row[D_AT]);
  add_int(out, "holder", &row[D_HOLDER]);
  if (row[D_ERROR].type == NS_TEXT) {
    ns_buf_adds(out, ",\"error\":");
    ns_buf_add_json(out, row[D_ERROR].s);
  }
  ns_adopt_row_json(a, row + D_ROW, scratch);
  ns_buf_adds(out, ",\"payload\":");
  ns_buf_add_json(out, ns_buf_bytes(scratch));
  ns_buf_addc(out, '}');
  out->oom = out->oom || scratch->oom;
}

static void add_group(const ns_adopted *a, const ns_value *row, ns_buf *scratch,
                      ns_buf *out) {
  (void)a;
  (void)scratch;
  ns_buf_adds(out, out->n > 1 ? ",{\"error\":" : "{\"error\":");
  ns_buf_add_json(out, row[0].s);
  add_int(out, "count", &row[1]);
  add_int(out, "first", &row[2]);
  add_int(out, "last", &row[3]);
  add_int(out, "id", &row[4]);
  ns_buf_addc(out, '}');
}

/* Rows of a statement as a JSON list. */
static ns_status list(ns_adopted *a, ns_sql sql, const ns_call *call,
                      void (*add)(const ns_adopted *, const ns_value *, ns_buf *,
                                  ns_buf *),
                      ns_buf *json, ns_err *err) {
  ns_buf scratch = NS_BUF_INIT;
  const ns_value *row;
  ns_stmt *s = NULL;
  ns_status st;
  ns_err_clear(err);
  ns_buf_reset(json);
  ns_buf_addc(json, '[');
  if ((st = ns_db_ready(a->db, err)) == NS_OK)
    st = ns_adopt_run(a, NULL, sql, call, &s, err);
  while (st == NS_OK && (st = ns_stmt_fetch(a->db->link, s, &row, err)) == NS_OK &&
         row != NULL)
    add(a, row, &scratch, json);
  ns_buf_addc(json, ']');
  ns_buf_free(&scratch);
  return st == NS_OK && json->oom ? ns_no_memory(err) : st;
}

ns_status ns_adopted_dead(ns_adopted *a, ns_bytes error, int64_t limit, ns_buf *json,
                          ns_err *err) {
  ns_call call = {.error = error, .limit = limit};
  return list(a, NS_SQL_ADOPT_DEAD, &call, add_dead, json, err);
}

ns_status ns_adopted_dead_groups(ns_adopted *a, ns_bytes error, int64_t limit,
                                 ns_buf *json, ns_err *err) {
  ns_call call = {.error = error, .limit = limit};
  return list(a, NS_SQL_ADOPT_DEAD_GROUPS, &call, add_group, json, err);
}

/* ---------------------------------------------------------------- driving again */

typedef struct batch {
  ns_adopted *a;
  const int64_t *ids;
  size_t n;
  int64_t patience; /* µs, with one that is locked */
  int64_t retried, locked;
} batch;

static ns_status retry_one(batch *b, int64_t id, ns_err *err) {
  ns_call call = {.row = id};
  ns_stmt *s;
  ns_status st = ns_adopt_change(b->a, NULL, NS_SQL_ADOPT_RETRY, &call, b->patience, &s,
                                 err);
  if (st != NS_OK || ns_stmt_affected(s) == 0)
    return st;
  b->retried++;
  return ns_adopt_absolve(b->a, NULL, id, err);
}

static ns_status retry_rows(ns_db *db, ns_tx *tx, ns_err *err) {
  batch *b = tx->arg;
  ns_status st = NS_OK;
  (void)db;
  b->retried = b->locked = 0;
  for (size_t i = 0; st == NS_OK && i < b->n; i++) {
    st = retry_one(b, b->ids[i], err);
    if (ns_adopt_is_locked(b->a, st, err)) {
      b->locked++;
      st = NS_OK;
    }
  }
  return st;
}

/* A row begins with all of its attempts: how many is that? */
static ns_status check_retry(const ns_adopted *a, ns_err *err) {
  if (!ns_adopt_has(a, NS_PART_ATTEMPTS_LEFT) || a->map.max_attempts > 0)
    return NS_OK;
  return ns_fail(err, NS_EINVALID,
                 "'attempts_left' are counted down from a number that the mapping does "
                 "not say: 'max_attempts'");
}

static ns_status begin_retry(ns_adopted *a, ns_err *err) {
  ns_status st;
  ns_err_clear(err);
  ns_adopt_own(a);
  if ((st = check_retry(a, err)) == NS_OK && (st = ns_db_ready(a->db, err)) == NS_OK)
    a->control.failures = true; /* as far as we know */
  return st;
}

/* Why a row was not dead. */
static ns_status not_dead(ns_adopted *a, int64_t id, ns_err *err) {
  const ns_value *row = NULL;
  ns_call call = {.row = id};
  ns_stmt *s;
  bool done;
  ns_status st = ns_adopt_run(a, NULL, NS_SQL_ADOPT_STATE, &call, &s, err);
  if (st == NS_OK)
    st = ns_stmt_fetch(a->db->link, s, &row, err);
  if (st != NS_OK)
    return st;
  if (row == NULL)
    return ns_fail(err, NS_ENOTFOUND, "'%s' has no row %" PRId64, a->map.table.p, id);
  done = row[0].s.n == 4 && memcmp(row[0].s.p, "done", 4) == 0;
  return ns_fail(err, NS_ESTATE, "row %" PRId64 " of '%s' is not dead: it %s", id,
                 a->map.table.p,
                 done ? "is done" : "runs, or may still be claimed");
}

ns_status ns_adopted_retry(ns_adopted *a, int64_t id, ns_err *err) {
  batch b = {.a = a, .ids = &id, .n = 1, .patience = RETRY_FOR};
  ns_tx tx = {.run = retry_rows, .arg = &b};
  ns_status st = begin_retry(a, err);
  if (st == NS_OK)
    st = ns_db_transact(a->db, &tx, err);
  if (st == NS_OK && b.locked > 0)
    st = ns_fail(err, NS_EBUSY, "row %" PRId64 " of '%s' is locked by somebody else", id,
                 a->map.table.p);
  if (st == NS_OK && b.retried == 0 && !tx.replay)
    st = not_dead(a, id, err);
  if (st == NS_OK)
    ns_adopt_stir(a);
  return st;
}

typedef struct ids {
  int64_t *items;
  size_t n, cap;
} ids;

/* Some of the dead rows: up to ROUND of them. */
static ns_status list_ids(ns_adopted *a, ns_bytes error, ids *list, ns_err *err) {
  ns_call call = {.error = error, .limit = ROUND};
  const ns_value *row;
  ns_stmt *s;
  ns_status st = ns_adopt_run(a, NULL, NS_SQL_ADOPT_DEAD_IDS, &call, &s, err);
  list->n = 0;
  while (st == NS_OK && (st = ns_stmt_fetch(a->db->link, s, &row, err)) == NS_OK &&
         row != NULL) {
    if (!ns_grow(&list->items, &list->cap, list->n + 1, sizeof *list->items))
      return ns_no_memory(err);
    list->items[list->n++] = row[0].i;
  }
  return st;
}

static ns_status retry_list(ns_adopted *a, const ids *list, int64_t *n, ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < list->n; i += BATCH) {
    batch b = {.a = a, .ids = list->items + i,
               .n = list->n - i < BATCH ? list->n - i : BATCH};
    ns_tx tx = {.run = retry_rows, .arg = &b};
    if ((st = ns_db_transact(a->db, &tx, err)) == NS_OK)
      *n += b.retried;
  }
  return st;
}

/* Locked rows are found again, so a round may find nothing else. */
ns_status ns_adopted_retry_all(ns_adopted *a, ns_bytes error, int64_t *n, ns_err *err) {
  ids list = {0};
  int64_t before;
  ns_status st = begin_retry(a, err);
  *n = 0;
  do {
    before = *n;
    if (st == NS_OK && (st = list_ids(a, error, &list, err)) == NS_OK)
      st = retry_list(a, &list, n, err);
  } while (st == NS_OK && list.n == ROUND && *n > before);
  if (*n > 0)
    ns_adopt_stir(a);
  free(list.items);
  return st;
}
