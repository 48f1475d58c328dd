/*
** Promotion: due jobs move from scheduled to ready, in the order of their times. And which jobs
** are due next here. Of limited queues, jobs move on from ready into a backlog, and out of it.
** Behind rows that were taken, more of a name are taken for a batch.
**
** Promoted rows stay in the index until purge has removed them, and a look from the start would
** read all of them. So a look begins at the floor, the last run_at that was promoted. Late
** commits below the floor are looked for as far as that is cheap (claim/lanes.c). No verb waits
** for a due job before all rows have been looked at. A look at the head of scheduled comes now
** and then, so that a cycle with nothing due costs nothing.
**
** A program that ends when nothing is left waits only for jobs that are due soon and that it
** will claim itself. Those rows are chosen as a claim chooses them: by queue and kind, and by
** the name itself, since two names may share a kind. Nothing is looked for below the floor:
** ns_looked_everywhere says when that can be trusted.
**
** Invariant: the floor moves only after the commit, and never back but to 0, when all floors
** are dropped.
*/
#include "claim/claim.h"

#include <stdio.h>
#include <stdlib.h>

#include "admission/admission.h"
#include "base.h"
#include "handle.h"

#define LOOK_EVERY INT64_C(20000)      /* µs between looks at scheduled */
#define LOOK_CONTENDED (NS_SECOND / 5) /* ... under contention, as other holders look as well */
#define PROMOTE_AT_ONCE 1000           /* rows per cycle */
#define LATE_COMMIT (5 * NS_SECOND)    /* the floor trails promotions of other holders by this */
#define END INT64_MAX

ns_status ns_claim_promote_one(ns_db *db, int64_t queue_id, int64_t rank, int64_t id, int64_t run,
                               int64_t kind, ns_err *err) {
  const int64_t zero = 0; /* now; and not alone */
  return ns_db_bulk(db, NS_SQL_CLAIM_READY,
                    (ns_column[]){{NS_INT, &queue_id, NULL, NULL},
                                  {NS_INT, &rank, NULL, NULL},
                                  {NS_INT, &zero, NULL, NULL},
                                  {NS_INT, &id, NULL, NULL},
                                  {NS_INT, &run, NULL, NULL},
                                  {NS_INT, &zero, NULL, NULL},
                                  {NS_INT, &kind, NULL, NULL}},
                    1, err);
}

/* Did the statement take a row? */
static ns_status delete_row(ns_db *db, ns_sql sql, const ns_value *params, bool *taken,
                            ns_err *err) {
  ns_status st = ns_db_run(db, sql, params, err);
  *taken = st == NS_OK && ns_db_affected(db, sql) > 0;
  return st;
}

ns_status ns_claim_withdraw(ns_db *db, const ns_claim_place *j, bool *taken, ns_err *err) {
  const ns_value due[] = {ns_vint(j->due), ns_vint(j->id)};
  const ns_value of[] = {ns_vint(j->queue_id), ns_vint(j->rank), ns_vint(j->id), ns_vint(j->run)};
  const ns_value *row = NULL;
  ns_status st = delete_row(db, NS_SQL_ADMIN_TAKE_SCHEDULED, due, taken, err);
  if (st != NS_OK || *taken || (st = ns_db_run(db, NS_SQL_ADMIN_READY_AT, of, err)) != NS_OK ||
      (st = ns_db_row(db, NS_SQL_ADMIN_READY_AT, &row, err)) != NS_OK)
    return st;
  if (row == NULL)
    return ns_admission_withdraw(db, j->id, taken, err);
  return delete_row(db, NS_SQL_ADMIN_TAKE_READY,
                    (ns_value[]){of[0], of[1], ns_vint(row[0].i), of[2]}, taken, err);
}

/* A due row: run_at, job, queue, rank, run, kind. */
enum { P_RUN_AT, P_JOB, P_QUEUE, P_RANK, P_RUN, P_KIND, P_OFFSET, P_ALONE, P_COUNT };

static ns_status collect_due(ns_db *db, ns_stmt *s, int64_t *cols, size_t *n, ns_err *err) {
  const ns_value *row;
  ns_status st;
  *n = 0;
  while ((st = ns_stmt_fetch(db->link, s, &row, err)) == NS_OK && row != NULL &&
         *n < PROMOTE_AT_ONCE) {
    for (size_t c = 0; c < P_OFFSET; c++)
      cols[c * PROMOTE_AT_ONCE + *n] = row[c].i;
    cols[P_OFFSET * PROMOTE_AT_ONCE + *n] = (int64_t)*n;
    cols[P_ALONE * PROMOTE_AT_ONCE + *n] = 0; /* jobs to be claimed alone never wait here */
    ++*n;
  }
  return st;
}

static ns_column int_column(const int64_t *cols, size_t c) {
  return (ns_column){NS_INT, cols + c * PROMOTE_AT_ONCE, NULL, NULL};
}

static ns_status move_due(ns_db *db, const int64_t *cols, size_t n, bool slow, ns_err *err) {
  ns_status st = NS_OK;
  if (slow)
    st = ns_db_bulk(db, NS_SQL_CLAIM_PROMOTE_DROP,
                    (ns_column[]){int_column(cols, P_RUN_AT), int_column(cols, P_JOB)}, n, err);
  if (st == NS_OK)
    st = ns_db_bulk(db, NS_SQL_CLAIM_READY,
                    (ns_column[]){int_column(cols, P_QUEUE), int_column(cols, P_RANK),
                                  int_column(cols, P_OFFSET), int_column(cols, P_JOB),
                                  int_column(cols, P_RUN), int_column(cols, P_ALONE),
                                  int_column(cols, P_KIND)},
                    n, err);
  /* a returned job may open a lane of its own: no need to sweep for it */
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (!ns_claim_lanes_learn(&db->claim.lanes, cols[P_QUEUE * PROMOTE_AT_ONCE + i],
                              cols[P_RANK * PROMOTE_AT_ONCE + i], 0))
      st = ns_no_memory(err);
  return st;
}

static void note_reached(ns_db *db, const int64_t *cols, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (cols[P_RUN_AT * PROMOTE_AT_ONCE + i] > db->claim.due_reached)
      db->claim.due_reached = cols[P_RUN_AT * PROMOTE_AT_ONCE + i];
}

/* From <= run_at < to, as far as it is due. Adds to '*n'. */
static ns_status promote_batch(ns_db *db, int64_t from, int64_t to, size_t *n, ns_err *err) {
  int64_t *cols = malloc(P_COUNT * PROMOTE_AT_ONCE * sizeof *cols);
  ns_value params[] = {ns_vint(from), ns_vint(to), ns_vint(PROMOTE_AT_ONCE)};
  ns_stmt *s = NULL;
  size_t found = 0;
  bool slow;
  ns_status st = NS_OK;
  if (cols == NULL)
    return ns_no_memory(err);
  st = ns_claim_form_run(db, ns_str(ns_sql_texts[NS_SQL_CLAIM_PROMOTE]),
                         ns_str(ns_sql_texts[NS_SQL_CLAIM_PROMOTE_SKIP]), params, &s, &slow, err);
  if (st == NS_OK)
    st = collect_due(db, s, cols, &found, err);
  if (st == NS_OK)
    st = move_due(db, cols, found, slow, err);
  if (st == NS_OK)
    note_reached(db, cols, found);
  *n += found;
  free(cols);
  return st;
}

/* When the first job scheduled from there on is due, relative to now; -1: none. */
static ns_status next_scheduled(ns_db *db, int64_t from, int64_t *in, ns_err *err) {
  const ns_value *row = NULL;
  ns_value param = ns_vint(from);
  ns_status st = ns_db_run(db, NS_SQL_CLAIM_PROMOTE_NEXT, &param, err);
  *in = -1;
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_CLAIM_PROMOTE_NEXT, &row, err);
  if (st == NS_OK && row != NULL) {
    ns_db_note_now(db, row[1].i);
    *in = row[0].i > row[1].i ? row[0].i - row[1].i : 0;
  }
  return st;
}

/* From the floor on. Jobs that other holders have promoted are not read again and again. */
static ns_status promote_above(ns_db *db, size_t *n, int64_t *next_due, ns_err *err) {
  ns_status st = next_scheduled(db, db->claim.due_floor, next_due, err);
  if (st == NS_OK && *next_due == 0)
    st = promote_batch(db, db->claim.due_floor, END, n, err);
  if (st == NS_OK && *n > 0 && *n < PROMOTE_AT_ONCE)
    st = next_scheduled(db, db->claim.due_reached, next_due, err);
  if (st == NS_OK && *next_due != 0 && ns_now(db) - LATE_COMMIT > db->claim.due_reached)
    db->claim.due_reached = ns_now(db) - LATE_COMMIT;
  return st;
}

/* One range below the floor, when it is affordable. */
static ns_status promote_below(ns_db *db, size_t *n, ns_err *err) {
  ns_scan_window *w = &db->claim.due_window;
  int64_t start = ns_mono_us();
  size_t found = 0;
  ns_scan_range s;
  ns_status st;
  if (db->claim.due_floor == 0)
    return NS_OK;
  w->open = true;
  if (start < w->next)
    return NS_OK;
  s = ns_claim_window_next(w, db->claim.due_floor);
  st = promote_batch(db, s.from, s.to, &found, err);
  if (st == NS_OK && found < PROMOTE_AT_ONCE)
    ns_claim_window_seen(w, s, ns_mono_us() - start);
  ns_claim_window_rest(w, start);
  *n += found;
  return st;
}

void ns_claim_promoted(ns_db *db) {
  ns_assert(!db->in_tx);
  if (db->claim.due_reached > db->claim.due_floor)
    db->claim.due_floor = db->claim.due_reached;
}

int64_t ns_first_due(const ns_db *db) {
  int64_t in = db->claim.first_at - ns_mono_us();
  return db->claim.first_at == 0 ? -1 : in > 0 ? in : 0;
}

ns_status ns_claim_promote(ns_db *db, int64_t *next_due, ns_err *err) {
  size_t n = 0;
  int64_t now = ns_mono_us();
  int64_t due;
  ns_status st;
  db->claim.due_reached = db->claim.due_floor;
  if (now < db->claim.promote_at) {
    *next_due = db->claim.due_at == 0 ? -1 : db->claim.due_at > now ? db->claim.due_at - now : 0;
    return NS_OK;
  }
  if ((st = promote_above(db, &n, next_due, err)) != NS_OK ||
      (st = promote_below(db, &n, err)) != NS_OK)
    return st;
  if (*next_due == 0 && n < PROMOTE_AT_ONCE) /* another transaction holds them */
    *next_due = n > 0 ? LOOK_EVERY / 10 : LOOK_EVERY;
  db->claim.first_at = *next_due < 0 ? 0 : now + *next_due;
  due = ns_claim_window_when(&db->claim.due_window) - now;
  if (db->claim.due_window.open && (*next_due < 0 || *next_due > due))
    *next_due = due > 0 ? due : 0;
  db->claim.due_at = *next_due < 0 ? 0 : now + *next_due;
  db->claim.promote_at = now + (db->claim.admission.contended > 0 ? LOOK_CONTENDED : LOOK_EVERY);
  if (*next_due >= 0 && db->claim.due_at < db->claim.promote_at)
    db->claim.promote_at = db->claim.due_at;
  if (n >= PROMOTE_AT_ONCE)
    db->claim.promote_at = now;
  return st;
}

/* ------------------------------------------------------------- jobs due next */

#define QUEUES_MARK "(queues)"
#define MOST 1000 /* rows that are read, and so jobs that are counted */

/* A row: run_at, now, name, queue. */
enum { U_RUN_AT, U_NOW, U_NAME, U_QUEUE };

/* The statement for these queues: ids are numbers that we print ourselves. */
static void write_upcoming(const ns_db *db, const ns_weighted_queue *queues, size_t n,
                           ns_buf *text) {
  ns_buf chosen = NS_BUF_INIT;
  ns_buf list = NS_BUF_INIT;
  for (size_t i = 0; i < n; i++)
    ns_buf_addf(&list, "%c%lld", i > 0 ? ',' : '(', (long long)queues[i].queue_id);
  ns_buf_addc(&list, ')');
  ns_claim_filter_text(&db->claim.filter, &chosen, NS_SQL_CLAIM_UPCOMING);
  ns_buf_addc(&chosen, '\0');
  if (!chosen.oom)
    ns_buf_fill(text, chosen.p, QUEUES_MARK, ns_buf_bytes(&list));
  text->oom = text->oom || chosen.oom || list.oom;
  ns_buf_free(&chosen);
  ns_buf_free(&list);
}

static void copy_text(char *to, size_t size, ns_bytes from) {
  snprintf(to, size, "%.*s", (int)from.n, from.p);
}

static void add_upcoming(ns_upcoming *u, const ns_value *row) {
  u->last = row[U_RUN_AT].i;
  if (u->n++ > 0)
    return;
  u->first = u->last;
  u->in = u->first > row[U_NOW].i ? u->first - row[U_NOW].i : 0;
  copy_text(u->name, sizeof u->name, row[U_NAME].s);
  copy_text(u->queue, sizeof u->queue, row[U_QUEUE].s);
}

static ns_status collect_upcoming(ns_db *db, ns_stmt *s, ns_upcoming *out, ns_err *err) {
  const ns_value *row;
  ns_status st;
  while ((st = ns_stmt_fetch(db->link, s, &row, err)) == NS_OK && row != NULL)
    if (ns_claim_filter_has(&db->claim.filter, row[U_NAME].s))
      add_upcoming(out, row);
  return st;
}

ns_status ns_look_ahead(ns_db *db, const ns_weighted_queue *queues, size_t nqueues, int64_t within,
                        ns_upcoming *out, ns_err *err) {
  const ns_value params[] = {ns_vint(db->claim.due_floor), ns_vint(within), ns_vint(MOST)};
  ns_buf text = NS_BUF_INIT;
  ns_stmt *s;
  ns_status st;
  *out = (ns_upcoming){0};
  if (nqueues == 0)
    return NS_OK;
  write_upcoming(db, queues, nqueues, &text);
  if (text.oom)
    st = ns_no_memory(err);
  else if ((st = ns_db_ready(db, err)) == NS_OK &&
           (st = ns_db_prepared(db, &s, ns_buf_bytes(&text), err)) == NS_OK &&
           (st = ns_stmt_run(db->link, s, params, err)) == NS_OK)
    st = collect_upcoming(db, s, out, err);
  ns_buf_free(&text);
  return st;
}

/* ----------------------------------------------------------- more of a name */

#define LOOK_MORE 2000 /* rows of other names among them are passed over */

static bool is_alike(const ns_claim_row *a, const ns_claim_row *b) {
  return a->kind == b->kind && a->queue_id == b->queue_id;
}

/* Is it the first of its queue and name? */
static bool is_first(const ns_claim_rows *rows, size_t i) {
  size_t k = 0;
  while (!is_alike(&rows->items[k], &rows->items[i]))
    k++;
  return k == i;
}

static ns_status take_behind(ns_db *db, const ns_claim_row row, size_t want, ns_claim_rows *out,
                             ns_err *err) {
  ns_claim_queue *s = ns_claim_queue_of(&db->claim.lanes, row.queue_id);
  size_t before = out->n;
  ns_status st = ns_db_run(db, NS_SQL_CLAIM_MORE,
                           (ns_value[]){ns_vint(row.queue_id), ns_vint(row.rank),
                                        ns_vint(row.ready_at), ns_vint(LOOK_MORE),
                                        ns_vint(row.kind), ns_vint(row.queue_id),
                                        ns_vint((int64_t)want)},
                           err);
  if (st == NS_OK)
    st = ns_claim_collect_rows(db, db->stmts[NS_SQL_CLAIM_MORE], row.queue_id, out, err);
  for (size_t i = before; i < out->n; i++)
    out->items[i].beyond = true;
  if (s != NULL)
    s->credit -= (double)(out->n - before); /* shares are of jobs */
  if (st == NS_OK)
    st = ns_claim_delete_rows(db, out->items + before, out->n - before, err);
  return st;
}

ns_status ns_claim_take_more(ns_db *db, const ns_want *want, ns_claim_rows *out, ns_err *err) {
  size_t n = out->n;
  ns_status st = NS_OK;
  for (size_t k = 0; k < want->nbatched; k++) {
    int64_t kind = ns_db_kind_of(want->batched[k].name);
    for (size_t i = 0; st == NS_OK && i < n; i++) {
      size_t last = i;
      size_t rest = want->batched[k].most - 1; /* for each of them that was taken */
      if (out->items[i].limited || out->items[i].kind != kind || !is_first(out, i))
        continue;
      for (size_t j = i + 1; j < n; j++)
        if (is_alike(&out->items[i], &out->items[j])) {
          last = j;
          rest += want->batched[k].most - 1;
        }
      st = take_behind(db, out->items[last], rest < want->more ? rest : want->more, out, err);
    }
  }
  return st;
}

/* --------------------------------------------------------- a limited queue */
/*
** Its rows of ready become a list for the backlog. Floors move when that is committed; rows that
** are admitted tell nothing about lanes. A job that is to be claimed alone is the only one of its
** claim.
*/

/* Takes rows of any name out of ready, as a claim does. */
static ns_status take_any_name(ns_db *db, ns_claim_queue *s, size_t want, ns_claim_rows *out,
                               ns_err *err) {
  ns_claim_state *c = &db->claim;
  const ns_buf kinds = c->filter.kinds;
  const bool some = c->lanes.some_names;
  ns_status st;
  c->filter.kinds = (ns_buf)NS_BUF_INIT;
  c->lanes.some_names = false;
  st = ns_claim_take_rows(db, s, want, out, err);
  c->filter.kinds = kinds;
  c->lanes.some_names = some;
  return st;
}

static ns_status list_ready(ns_db *db, void *arg, size_t want, ns_buf *list, size_t *n,
                            ns_err *err) {
  ns_claim_rows *moved = &db->claim.moved;
  size_t before = moved->n;
  ns_status st = take_any_name(db, arg, want, moved, err);
  *n = moved->n - before;
  for (const ns_claim_row *r = moved->items + before; r < moved->items + moved->n; r++)
    ns_buf_addf(list, "%c[%lld,%lld,%lld,%lld,%lld,%d,%lld]", list->n > 0 ? ',' : '[',
                (long long)r->queue_id, (long long)r->rank, (long long)r->ready_at,
                (long long)r->id, (long long)r->run, r->alone, (long long)r->kind);
  return st;
}

/* The last row of the answer is of no job. */
static ns_status collect_admitted(ns_db *db, ns_claim_queue *q, ns_stmt *s, ns_claim_rows *out,
                                  ns_err *err) {
  size_t before = out->n;
  const ns_claim_row *last;
  ns_status st = ns_claim_collect_rows(db, s, q->queue_id, out, err);
  if (st != NS_OK)
    return st;
  if (out->n == before || out->items[out->n - 1].id != 0) /* a KILL may look like an answer */
    return ns_fail(err, NS_EBUSY, "the statement was interrupted");
  last = &out->items[--out->n];
  ns_admission_learn(&q->admission, last->ready_at, last->run != 0, last->alone, out->n - before);
  for (size_t i = before; i < out->n; i++)
    out->items[i].limited = out->items[i].beyond = true;
  return NS_OK;
}

ns_status ns_claim_take_limited(ns_db *db, ns_claim_queue *q, size_t want, ns_claim_rows *out,
                                ns_err *err) {
  ns_claim_state *c = &db->claim;
  ns_buf text = NS_BUF_INIT;
  ns_stmt *s = NULL;
  bool lifted = false;
  ns_status st = c->reserved != 0 ? NS_OK : ns_take_ids(db, &c->reserved, 1, err);
  ns_claim_filter_text(&c->filter, &text, NS_SQL_ADMISSION_TAKE);
  if (st == NS_OK && text.oom)
    st = ns_no_memory(err);
  if (st == NS_OK)
    st = ns_admission_run(
        db, &q->admission,
        &(ns_admission_claim){.queue_id = q->queue_id,
                              .want = want,
                              .lease = c->reserved,
                              .alone = out->n == 0 && !ns_claim_leases_alone(&c->leases),
                              .text = ns_buf_bytes(&text),
                              .take = list_ready,
                              .arg = q},
        &s, &lifted, err);
  c->sorts = c->sorts || q->admission.sorting.at != 0;
  ns_buf_free(&text);
  if (st == NS_OK && s != NULL)
    return collect_admitted(db, q, s, out, err);
  if (st != NS_OK || !lifted)
    return st;
  ns_claim_lanes_drop_floors_of(&c->lanes, q->queue_id);
  return ns_claim_take_rows(db, q, want, out, err);
}

bool ns_claim_is_alone_admitted(const ns_claim_rows *rows) {
  return rows->n > 0 && rows->items[rows->n - 1].limited && rows->items[rows->n - 1].alone;
}

void ns_claim_moved(ns_db *db, bool committed) {
  ns_claim_rows *moved = &db->claim.moved;
  for (size_t i = 0; committed && i < moved->n; i++)
    ns_claim_lanes_learn(&db->claim.lanes, moved->items[i].queue_id, moved->items[i].rank,
                         moved->items[i].ready_at);
  moved->n = 0;
}

/* The queue that is to be sorted first; NULL: none is. */
static ns_claim_queue *first_to_sort(const ns_lanes *l) {
  ns_claim_queue *first = NULL;
  for (ns_claim_queue *q = l->queues; q < l->queues + l->nqueues; q++) {
    int64_t at = ns_admission_sort_at(&q->admission);
    if (at != 0 && (first == NULL || at < ns_admission_sort_at(&first->admission)))
      first = q;
  }
  return first;
}

int64_t ns_sort_next(ns_db *db) {
  const ns_claim_queue *q = db->claim.sorts ? first_to_sort(&db->claim.lanes) : NULL;
  db->claim.sorts = q != NULL;
  return q != NULL ? ns_admission_sort_at(&q->admission) : 0;
}

static ns_status sort_queue(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_claim_queue *q = tx->arg;
  ns_claim_moved(db, false); /* by an earlier try */
  return ns_admission_sort(
      db, &q->admission,
      &(ns_admission_claim){.queue_id = q->queue_id, .take = list_ready, .arg = q}, err);
}

ns_status ns_sort(ns_db *db, ns_err *err) {
  ns_claim_queue *q = first_to_sort(&db->claim.lanes);
  ns_tx tx = {.run = sort_queue, .arg = q, .once = true};
  int64_t start = ns_mono_us();
  ns_status st;
  ns_err_clear(err);
  if (q == NULL)
    return NS_OK;
  st = ns_db_transact(db, &tx, err);
  ns_claim_moved(db, st == NS_OK);
  if (st != NS_OK)
    q->admission.moved = 0;
  ns_admission_sorted(&q->admission, start);
  if (st != NS_EBUSY) /* it is tried again, after a rest */
    return st;
  ns_err_clear(err);
  return NS_OK;
}

bool ns_claim_may_have_place(const ns_db *db, const ns_claimed *c) {
  const ns_claim_queue *q =
      c->granted ? NULL : ns_claim_queue_known(&db->claim.lanes, c->queue_id);
  return c->granted || (q != NULL && q->admission.limited);
}

void ns_claim_place_freed(ns_db *db, int64_t queue_id) {
  ns_claim_queue *q = ns_claim_queue_of(&db->claim.lanes, queue_id);
  if (q != NULL)
    q->admission.rest_until = 0;
}
