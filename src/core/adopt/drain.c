/*
** Draining an adopted table: its rows become jobs of a queue, or history, batch after
** batch in the order of their ids.
**
** Here rows are read, and told apart; how they move is in adopt/move.c.
**
** Invariant: the payload has all of its row. One of which it would not have all stays.
*/
#include <stdlib.h>
#include <string.h>

#include "adopt/move.h"
#include "clock.h"
#include "db/db.h"
#include "push/push.h"

#define FAR (INT64_C(3155760000) * NS_SECOND) /* a century */

/* --------------------------------------------------------------- reading */

/* The columns behind those of the table. */
enum { X_KIND, X_ENDED, X_DELAY, X_PRINT };

static int64_t part_of(const ns_adopted *a, const ns_value *row, ns_part p,
                       int64_t none) {
  const ns_value *v = a->parts[p] != NULL ? &row[a->parts[p] - a->fields.items] : NULL;
  if (v != NULL && v->type == NS_UINT)
    return INT64_MAX;
  return v != NULL && v->type == NS_INT ? v->i : none;
}

static int64_t within(int64_t x, int64_t least, int64_t most) {
  return x < least ? least : x > most ? most : x;
}

/* The direction is kept, and what the range of a job's holds of the distance. */
static int64_t priority_of(const ns_adopted *a, const ns_value *row) {
  int64_t p = part_of(a, row, NS_PART_PRIORITY, INT64_MIN);
  if (p == INT64_MIN)
    return NS_PRIORITY;
  p = within(p, 0, 255);
  return a->map.lower_first ? 255 - p : p;
}

static int64_t decay_of(const ns_adopted *a) {
  return ns_adopt_has(a, NS_PART_PRIORITY) ? within(a->map.decay, 0, 255) : NS_DECAY;
}

/* As many attempts are left as the row has; where it has no limit, as many as of a job
** that is pushed. */
static void set_attempts(const ns_adopted *a, const ns_value *row, ns_mover *m) {
  int64_t most = a->map.max_attempts;
  int64_t left = part_of(a, row, NS_PART_ATTEMPTS_LEFT, 0);
  int64_t used = within(part_of(a, row, NS_PART_ATTEMPTS, 0), 0, 999999);
  if (ns_adopt_has(a, NS_PART_ATTEMPTS_LEFT)) {
    used = most > left ? within(most - left, 0, 999999) : 0;
    most = used + within(left, 1, 1000000);
  } else if (!ns_adopt_has(a, NS_PART_ATTEMPTS) || most == 0)
    most = used + (most > 0 ? most : NS_MAX_ATTEMPTS);
  m->max_attempts = within(most, 1, 1000000);
  m->attempts = m->kind == NS_MOVE_JOB ? within(used, 0, m->max_attempts - 1) : used;
}

/* Is all of it in the payload? Bytes that are no text would not be. */
static bool is_text(const ns_adopted *a, const ns_value *row) {
  for (size_t i = 0; i < a->fields.n; i++)
    if (row[i].type == NS_TEXT && !ns_utf8_valid(row[i].s))
      return false;
  return true;
}

static bool add_mover(ns_move *b, const ns_value *row, ns_buf *json) {
  ns_adopted *a = b->a;
  const ns_value *x = row + a->fields.n;
  ns_mover *m;
  if (!ns_grow(&b->rows, &b->cap, b->n + 1, sizeof *b->rows) ||
      ns_buf_room(&b->texts, json->n) == NULL)
    return false;
  m = &b->rows[b->n++];
  *m = (ns_mover){.id = part_of(a, row, NS_PART_ID, 0),
                  .kind = (ns_row_kind)x[X_KIND].i,
                  .priority = priority_of(a, row), .decay = decay_of(a),
                  .nonce = (int64_t)(ns_random() >> 1),
                  .ended = ns_int_or(&x[X_ENDED], 0),
                  .delay = within(ns_int_or(&x[X_DELAY], 0), 0, FAR),
                  .text = b->texts.n, .n = json->n};
  b->later = b->later || m->delay > 0;
  set_attempts(a, row, m);
  if (x[X_PRINT].type == NS_TEXT && x[X_PRINT].s.n < sizeof m->print)
    memcpy(m->print, x[X_PRINT].s.p, x[X_PRINT].s.n);
  ns_buf_add(&b->texts, json->p, json->n);
  return true;
}

/* A row that does not move is counted. */
static ns_status take_row(ns_move *b, const ns_value *row, ns_buf *json, ns_drained *d,
                          ns_err *err) {
  ns_adopted *a = b->a;
  int64_t kind = row[a->fields.n + X_KIND].i;
  int64_t max = (int64_t)a->db->max_payload;
  d->running += kind == NS_STAY_TAKEN;
  d->unknown += kind == NS_STAY_UNKNOWN;
  if (kind == NS_STAY_TAKEN || kind == NS_STAY_UNKNOWN)
    return NS_OK;
  ns_adopt_row_json(a, row, json);
  if (json->oom)
    return ns_no_memory(err);
  if (json->n > (uint64_t)(max > 0 ? max : NS_MAX_PAYLOAD) || !is_text(a, row) ||
      row[a->parts[NS_PART_ID] - a->fields.items].type != NS_INT) {
    d->unfit++;
    return NS_OK;
  }
  return add_mover(b, row, json) ? NS_OK : ns_no_memory(err);
}

static ns_status read_rows(ns_move *b, size_t limit, ns_drained *d, ns_err *err) {
  ns_adopted *a = b->a;
  ns_call call = {.row = d->from, .limit = (int64_t)limit};
  ns_buf json = NS_BUF_INIT;
  const ns_value *row;
  ns_stmt *s;
  size_t n = 0;
  int64_t last = INT64_MAX;
  ns_status st = ns_adopt_run(a, NULL, NS_SQL_DRAIN_READ, &call, &s, err);
  while (st == NS_OK && (st = ns_stmt_fetch(a->db->link, s, &row, err)) == NS_OK &&
         row != NULL) {
    n++;
    last = part_of(a, row, NS_PART_ID, INT64_MAX);
    if ((st = take_row(b, row, &json, d, err)) != NS_OK)
      break;
  }
  ns_buf_free(&json);
  d->more = n == limit && last < INT64_MAX;
  if (last < INT64_MAX)
    d->from = last + 1;
  return st;
}

/* -------------------------------------------------------------- draining */

static ns_status check(ns_adopted *a, ns_bytes queue, ns_err *err) {
  ns_status st = ns_db_name_check(queue, "queue name", NS_MAX_QUEUE, err);
  if (st == NS_OK)
    st = ns_db_name_check(a->map.name, "job name", NS_MAX_NAME, err);
  if (st != NS_OK)
    return st;
  if (ns_adopt_has(a, NS_PART_PARENT))
    return ns_fail(err, NS_EINVALID,
                   "rows of '%s' wait for their parents, of which a drained one would "
                   "know nothing: drain it by a mapping without 'parent', once no row "
                   "waits for one",
                   a->map.table.p);
  if (ns_in_transaction(a->db))
    return ns_fail(err, NS_ESTATE, "a table cannot be drained inside a transaction");
  return NS_OK;
}

/* Rows that dead holders have left, in the table and on their way from there. */
static ns_status begin(ns_adopted *a, ns_drained *d, ns_err *err) {
  int64_t freed;
  ns_status st = ns_adopted_look(a, true, &freed, err);
  d->cleaned += st == NS_OK ? a->cleaned : 0;
  if (st == NS_OK && (st = ns_register(a->db, a->db->is_host, err)) == NS_OK)
    st = ns_adopt_clean(a, &d->cleaned, err); /* and says what is wrong */
  return st;
}

static ns_status number(ns_move *b, ns_err *err) {
  int64_t *ids = malloc((b->n + 1) * sizeof *ids);
  ns_status st =
      ids == NULL ? ns_no_memory(err) : ns_take_ids(b->a->db, ids, b->n, err);
  for (size_t i = 0; st == NS_OK && i < b->n; i++)
    b->rows[i].job = ids[i];
  free(ids);
  return st;
}

static void add_up(const ns_move *b, ns_drained *d) {
  d->jobs += b->jobs;
  d->done += b->done;
  d->dead += b->dead;
  d->unfit += b->unfit;
  for (size_t i = 0; i < b->n; i++) {
    d->changed += b->rows[i].at == NS_AT_SAME || b->rows[i].at == NS_AT_DIFFERS;
    d->changed += b->rows[i].changed;
    d->busy += b->rows[i].at == NS_AT_READ && !b->rows[i].changed;
  }
}

static ns_status drain(ns_move *b, ns_bytes queue, size_t limit, ns_drained *d,
                       ns_err *err) {
  ns_db *db = b->a->db;
  ns_status st;
  if ((st = ns_register(db, db->is_host, err)) != NS_OK ||
      (st = ns_queue_id(db, queue, true, &b->queue, err)) != NS_OK ||
      (st = ns_move_begin(b, err)) != NS_OK ||
      (st = read_rows(b, limit, d, err)) != NS_OK || b->n == 0 ||
      (st = number(b, err)) != NS_OK || (st = ns_move_mark(b, err)) != NS_OK)
    return st;
  st = ns_move_on(b, err);
  add_up(b, d);
  return st;
}

ns_status ns_adopted_drain(ns_adopted *a, ns_bytes queue, size_t limit, ns_drained *d,
                           ns_err *err) {
  ns_move b = {.a = a, .texts = NS_BUF_INIT};
  ns_status st;
  ns_err_clear(err);
  ns_adopt_own(a);
  d->more = false;
  if ((st = check(a, queue, err)) == NS_OK && (st = ns_db_ready(a->db, err)) == NS_OK &&
      d->from == INT64_MIN)
    st = begin(a, d, err);
  if (st == NS_OK)
    st = drain(&b, queue, limit, d, err);
  ns_move_free(&b);
  return st;
}

ns_status ns_adopted_drainable(ns_adopted *a, ns_drained *d, ns_err *err) {
  int64_t *counts[] = {&d->jobs, &d->done, &d->dead, &d->running, &d->unknown};
  const ns_value *row;
  ns_call none = {0};
  ns_stmt *s = NULL;
  ns_status st;
  ns_err_clear(err);
  if ((st = ns_db_ready(a->db, err)) == NS_OK)
    st = ns_adopt_run(a, NULL, NS_SQL_DRAIN_COUNT, &none, &s, err);
  while (st == NS_OK && (st = ns_stmt_fetch(a->db->link, s, &row, err)) == NS_OK &&
         row != NULL)
    if (row[0].i >= NS_MOVE_JOB && row[0].i <= NS_STAY_UNKNOWN)
      *counts[row[0].i] += row[1].i;
  return st;
}
