/*
** Promotion: jobs that are due move from scheduled to ready, in the order in
** which they were due. It looks at the head of scheduled now and then, so that
** a cycle with nothing due costs nothing.
**
** Rows that were promoted stay in the index until purge has removed them, and a
** look from the start would read all of them: so it begins at the floor, the
** last run_at that was promoted. What a floor hides, a late commit, is found by
** a look from the start. That comes when 20 times its last cost has passed, and
** whoever waits for what is due does not wait longer than until then.
*/
#include <stdlib.h>

#include "ns_claim.h"
#include "ns_handle.h"
#include "ns_paths.h"
#include "ns_time.h"

#define LOOK_EVERY INT64_C(20000) /* µs between looks at scheduled */
#define PROMOTE_AT_ONCE 1000      /* rows per cycle */
#define SWEEP_SHARE 20            /* 1/20 of the time: 5 % */

static ns_status no_memory(ns_err *err) {
  return ns_fail(err, NS_ENOMEM, "out of memory");
}

ns_status ns_promote_one(ns_db *db, int64_t queue_id, int64_t rank, int64_t id,
                         int64_t run, ns_err *err) {
  const int64_t zero = 0; /* now; and not alone */
  return ns_bulk(db, NS_SQL_CLAIM_READY,
                 (ns_column[]){{NS_INT, &queue_id, NULL, NULL},
                               {NS_INT, &rank, NULL, NULL},
                               {NS_INT, &zero, NULL, NULL},
                               {NS_INT, &id, NULL, NULL},
                               {NS_INT, &run, NULL, NULL},
                               {NS_INT, &zero, NULL, NULL}},
                 1, err);
}

/* A due row: run_at, job, queue, rank, run. */
enum { P_RUN_AT, P_JOB, P_QUEUE, P_RANK, P_RUN, P_OFFSET, P_ALONE, P_COUNT };

static ns_status collect_due(ns_db *db, ns_stmt *s, int64_t *cols, size_t *n,
                             ns_err *err) {
  const ns_value *row;
  ns_status st;
  *n = 0;
  while ((st = ns_stmt_fetch(db->link, s, &row, err)) == NS_OK && row != NULL &&
         *n < PROMOTE_AT_ONCE) {
    for (size_t c = 0; c < P_OFFSET; c++)
      cols[c * PROMOTE_AT_ONCE + *n] = row[c].i;
    cols[P_OFFSET * PROMOTE_AT_ONCE + *n] = (int64_t)*n;
    cols[P_ALONE * PROMOTE_AT_ONCE + *n] = 0; /* those never wait here */
    ++*n;
  }
  return st;
}

static ns_column int_column(const int64_t *cols, size_t c) {
  return (ns_column){NS_INT, cols + c * PROMOTE_AT_ONCE, NULL, NULL};
}

static ns_status move_due(ns_db *db, const int64_t *cols, size_t n, bool slow,
                          ns_err *err) {
  ns_status st = NS_OK;
  if (slow)
    st = ns_bulk(db, NS_SQL_CLAIM_PROMOTE_DROP,
                 (ns_column[]){int_column(cols, P_RUN_AT),
                               int_column(cols, P_JOB)},
                 n, err);
  if (st == NS_OK)
    st = ns_bulk(db, NS_SQL_CLAIM_READY,
                 (ns_column[]){int_column(cols, P_QUEUE),
                               int_column(cols, P_RANK),
                               int_column(cols, P_OFFSET),
                               int_column(cols, P_JOB),
                               int_column(cols, P_RUN),
                               int_column(cols, P_ALONE)},
                 n, err);
  /* a returned job may open a lane of its own: no need to sweep for it */
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (!ns_lanes_saw(&db->lanes, cols[P_QUEUE * PROMOTE_AT_ONCE + i],
                      cols[P_RANK * PROMOTE_AT_ONCE + i], 0))
      st = no_memory(err);
  return st;
}

static void raise_floor(ns_db *db, const int64_t *cols, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (cols[P_RUN_AT * PROMOTE_AT_ONCE + i] > db->due_floor)
      db->due_floor = cols[P_RUN_AT * PROMOTE_AT_ONCE + i];
}

static ns_status promote_batch(ns_db *db, int64_t from, size_t *n, ns_err *err) {
  int64_t *cols = malloc(P_COUNT * PROMOTE_AT_ONCE * sizeof *cols);
  ns_value params[] = {ns_vint(from), ns_vint(PROMOTE_AT_ONCE)};
  ns_stmt *s = NULL;
  bool slow;
  ns_status st = NS_OK;
  *n = 0;
  if (cols == NULL)
    return no_memory(err);
  st = ns_paths_run(db, ns_str(ns_sql_texts[NS_SQL_CLAIM_PROMOTE]),
                 ns_str(ns_sql_texts[NS_SQL_CLAIM_PROMOTE_SKIP]), params, &s,
                 &slow, err);
  if (st == NS_OK)
    st = collect_due(db, s, cols, n, err);
  if (st == NS_OK)
    st = move_due(db, cols, *n, slow, err);
  if (st == NS_OK)
    raise_floor(db, cols, *n);
  free(cols);
  return st;
}

/* When the first job scheduled from there on is due, relative to now; -1: none. */
static ns_status next_scheduled(ns_db *db, int64_t from, int64_t *in, ns_err *err) {
  const ns_value *row = NULL;
  ns_value param = ns_vint(from);
  ns_status st = ns_run(db, NS_SQL_CLAIM_PROMOTE_NEXT, &param, err);
  *in = -1;
  if (st == NS_OK)
    st = ns_row(db, NS_SQL_CLAIM_PROMOTE_NEXT, &row, err);
  if (st == NS_OK && row != NULL) {
    ns_saw_now(db, row[1].i);
    *in = row[0].i > row[1].i ? row[0].i - row[1].i : 0;
  }
  return st;
}

static ns_status look_from(ns_db *db, int64_t from, size_t *n, int64_t *next_due,
                           ns_err *err) {
  ns_status st = next_scheduled(db, from, next_due, err);
  return st == NS_OK && *next_due == 0 ? promote_batch(db, from, n, err) : st;
}

/* Looks, and promotes what is due, from the start or from the floor. '*n': how
** many were promoted. */
static ns_status look(ns_db *db, bool from_start, size_t *n, int64_t *next_due,
                      ns_err *err) {
  int64_t start = ns_mono_us();
  ns_status st = look_from(db, from_start ? 0 : db->due_floor, n, next_due, err);
  if (from_start) {
    int64_t pause = (ns_mono_us() - start) * SWEEP_SHARE;
    db->due_sweep = start + (db->is_host && pause < NS_SWEEP_MIN ? NS_SWEEP_MIN : pause);
  }
  return st == NS_OK && *next_due == 0
             ? next_scheduled(db, db->due_floor, next_due, err)
             : st;
}

ns_status ns_promote(ns_db *db, int64_t *next_due, ns_err *err) {
  size_t n = 0;
  int64_t now = ns_mono_us();
  bool from_start = db->due_floor == 0 || now >= db->due_sweep;
  ns_status st;
  if (now < db->look_at) {
    *next_due = db->due_at == 0 ? -1 : db->due_at > now ? db->due_at - now : 0;
    return NS_OK;
  }
  if ((st = look(db, from_start, &n, next_due, err)) != NS_OK)
    return st;
  if (*next_due == 0 && n < PROMOTE_AT_ONCE) /* somebody holds what is due */
    *next_due = n > 0 ? LOOK_EVERY / 10 : LOOK_EVERY;
  if (!from_start && (*next_due < 0 || now + *next_due > db->due_sweep))
    *next_due = db->due_sweep - now;
  db->due_at = *next_due < 0 ? 0 : now + *next_due;
  db->look_at = now + LOOK_EVERY;
  if (*next_due >= 0 && db->due_at < db->look_at)
    db->look_at = db->due_at;
  if (n == PROMOTE_AT_ONCE)
    db->look_at = now;
  return st;
}
