/*
** Promotion: jobs that are due move from scheduled to ready, in the order in
** which they were due. It looks at the head of scheduled now and then, so that
** a cycle with nothing due costs nothing.
**
** Rows that were promoted stay in the index until purge has removed them, and a
** look from the start would read all of them: so it begins at the floor, the
** last run_at that was promoted. What a floor hides, a late commit, is looked for
** below it, as far as that is cheap (claim/scan_window.h), and nobody waits for what is due
** before all has been looked at. The floor moves only after the commit.
*/
#include <stdlib.h>

#include "claim/paths.h"
#include "claim/take.h"
#include "handle.h"
#include "ns_time.h"

#define LOOK_EVERY INT64_C(20000) /* µs between looks at scheduled */
#define LOOK_IN_CROWD (NS_SECOND / 5) /* ... while others crowd, who look as well */
#define PROMOTE_AT_ONCE 1000      /* rows per cycle */
#define LATE_COMMIT (5 * NS_SECOND) /* the floor of what others promote trails by this */
#define END INT64_MAX

ns_status ns_promote_one(ns_db *db, int64_t queue_id, int64_t rank, int64_t id,
                         int64_t run, int64_t kind, ns_err *err) {
  const int64_t zero = 0; /* now; and not alone */
  return ns_bulk(db, NS_SQL_CLAIM_READY,
                 (ns_column[]){{NS_INT, &queue_id, NULL, NULL},
                               {NS_INT, &rank, NULL, NULL},
                               {NS_INT, &zero, NULL, NULL},
                               {NS_INT, &id, NULL, NULL},
                               {NS_INT, &run, NULL, NULL},
                               {NS_INT, &zero, NULL, NULL},
                               {NS_INT, &kind, NULL, NULL}},
                 1, err);
}

/* A due row: run_at, job, queue, rank, run, kind. */
enum { P_RUN_AT, P_JOB, P_QUEUE, P_RANK, P_RUN, P_KIND, P_OFFSET, P_ALONE, P_COUNT };

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
                               int_column(cols, P_ALONE),
                               int_column(cols, P_KIND)},
                 n, err);
  /* a returned job may open a lane of its own: no need to sweep for it */
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (!ns_lanes_saw(&db->lanes, cols[P_QUEUE * PROMOTE_AT_ONCE + i],
                      cols[P_RANK * PROMOTE_AT_ONCE + i], 0))
      st = ns_no_memory(err);
  return st;
}

static void raise_floor(ns_db *db, const int64_t *cols, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (cols[P_RUN_AT * PROMOTE_AT_ONCE + i] > db->due_reached)
      db->due_reached = cols[P_RUN_AT * PROMOTE_AT_ONCE + i];
}

/* From <= run_at < to, as far as it is due. Adds to '*n'. */
static ns_status promote_batch(ns_db *db, int64_t from, int64_t to, size_t *n,
                               ns_err *err) {
  int64_t *cols = malloc(P_COUNT * PROMOTE_AT_ONCE * sizeof *cols);
  ns_value params[] = {ns_vint(from), ns_vint(to), ns_vint(PROMOTE_AT_ONCE)};
  ns_stmt *s = NULL;
  size_t found = 0;
  bool slow;
  ns_status st = NS_OK;
  if (cols == NULL)
    return ns_no_memory(err);
  st = ns_paths_run(db, ns_str(ns_sql_texts[NS_SQL_CLAIM_PROMOTE]),
                    ns_str(ns_sql_texts[NS_SQL_CLAIM_PROMOTE_SKIP]), params, &s,
                    &slow, err);
  if (st == NS_OK)
    st = collect_due(db, s, cols, &found, err);
  if (st == NS_OK)
    st = move_due(db, cols, found, slow, err);
  if (st == NS_OK)
    raise_floor(db, cols, found);
  *n += found;
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

/* From the floor on. What others have promoted is not read again and again. */
static ns_status look_above(ns_db *db, size_t *n, int64_t *next_due, ns_err *err) {
  ns_status st = next_scheduled(db, db->due_floor, next_due, err);
  if (st == NS_OK && *next_due == 0)
    st = promote_batch(db, db->due_floor, END, n, err);
  if (st == NS_OK && *n > 0 && *n < PROMOTE_AT_ONCE)
    st = next_scheduled(db, db->due_reached, next_due, err);
  if (st == NS_OK && *next_due != 0 && ns_now(db) - LATE_COMMIT > db->due_reached)
    db->due_reached = ns_now(db) - LATE_COMMIT;
  return st;
}

/* One pane below the floor, when it is affordable. */
static ns_status look_below(ns_db *db, size_t *n, ns_err *err) {
  ns_scan_window *w = &db->due_window;
  int64_t start = ns_mono_us();
  size_t found = 0;
  ns_pane s;
  ns_status st;
  if (db->due_floor == 0)
    return NS_OK;
  w->open = true;
  if (start < w->next)
    return NS_OK;
  s = ns_scan_window_next(w, db->due_floor);
  st = promote_batch(db, s.from, s.to, &found, err);
  if (st == NS_OK && found < PROMOTE_AT_ONCE)
    ns_scan_window_seen(w, s, ns_mono_us() - start);
  ns_scan_window_rest(w, start);
  *n += found;
  return st;
}

void ns_promote_done(ns_db *db) {
  if (db->due_reached > db->due_floor)
    db->due_floor = db->due_reached;
}

int64_t ns_first_due(const ns_db *db) {
  int64_t in = db->first_at - ns_mono_us();
  return db->first_at == 0 ? -1 : in > 0 ? in : 0;
}

ns_status ns_promote(ns_db *db, int64_t *next_due, ns_err *err) {
  size_t n = 0;
  int64_t now = ns_mono_us();
  int64_t due;
  ns_status st;
  db->due_reached = db->due_floor;
  if (now < db->look_at) {
    *next_due = db->due_at == 0 ? -1 : db->due_at > now ? db->due_at - now : 0;
    return NS_OK;
  }
  if ((st = look_above(db, &n, next_due, err)) != NS_OK ||
      (st = look_below(db, &n, err)) != NS_OK)
    return st;
  if (*next_due == 0 && n < PROMOTE_AT_ONCE) /* somebody holds what is due */
    *next_due = n > 0 ? LOOK_EVERY / 10 : LOOK_EVERY;
  db->first_at = *next_due < 0 ? 0 : now + *next_due;
  due = ns_scan_window_when(&db->due_window) - now;
  if (db->due_window.open && (*next_due < 0 || *next_due > due))
    *next_due = due > 0 ? due : 0;
  db->due_at = *next_due < 0 ? 0 : now + *next_due;
  db->look_at = now + (db->gate.wary > 0 ? LOOK_IN_CROWD : LOOK_EVERY);
  if (*next_due >= 0 && db->due_at < db->look_at)
    db->look_at = db->due_at;
  if (n >= PROMOTE_AT_ONCE)
    db->look_at = now;
  return st;
}
