/*
** Two things are hidden from a claim over the known lanes from their floors on:
** lanes that nobody has told of, and rows that were committed late.
**
** Lanes are found by key, from the bottom up: the last row before a lane is the
** end of the one above it, its sentinel or a row that nobody has claimed yet, so no
** deleted rows are read. A known lane that is not found so has lost its sentinel,
** which is put up again.
**
** Late rows lie among the deleted ones, which have to be read; claim/scan_window.h says how
** far. The floor of a lane goes back to the first that is
** found, and the claim that follows takes it in true order.
*/
#include "claim/sweep.h"

#include "claim/range.h"
#include "claim/scout.h"
#include "ns_time.h"

#define RANKS 256
#define TOO_LONG 1969 /* what the server calls max_statement_time exceeded */

bool ns_sweep_due(const ns_sweep *s) {
  return ns_mono_us() >= s->window.next;
}

bool ns_sweep_cheap(const ns_sweep *s) {
  return s->window.width == 0;
}

ns_status ns_sweep_ask(ns_db *db, ns_sql sql, size_t n, const ns_value *params,
                       ns_stmt **s, ns_err *err) {
  ns_buf text = NS_BUF_INIT;
  ns_status st = NS_OK;
  for (size_t i = 0; i < n; i++) {
    ns_buf_adds(&text, i > 0 ? " UNION ALL " : "");
    ns_filter_fill(&db->only, &text, sql);
  }
  st = text.oom ? ns_no_memory(err) : ns_spelled(db, s, ns_buf_bytes(&text), err);
  if (st == NS_OK)
    st = ns_stmt_run(db->link, *s, params, err);
  ns_buf_free(&text);
  return st;
}

/* ------------------------------------------------------------------- lanes */

/* Which lanes stand right above those of 'ranks'? New ones are learnt, and take
** the place of 'ranks'; all are marked in 'seen'. */
static ns_status look_above(ns_db *db, int64_t queue_id, int64_t *ranks,
                            size_t *n, bool *seen, ns_err *err) {
  ns_value params[2 * (RANKS + 1)];
  const ns_value *row;
  ns_stmt *stmt;
  size_t new = 0;
  ns_status st;
  for (size_t i = 0; i < *n; i++) {
    params[2 * i] = ns_vint(queue_id);
    params[2 * i + 1] = ns_vint(ranks[i]);
  }
  st = ns_sweep_ask(db, NS_SQL_CLAIM_ABOVE, *n, params, &stmt, err);
  while (st == NS_OK &&
         (st = ns_stmt_fetch(db->link, stmt, &row, err)) == NS_OK &&
         row != NULL) {
    int64_t rank = row[0].i;
    seen[rank] = true;
    if (ns_lanes_find(&db->lanes, queue_id, rank) != NULL)
      continue;
    if (!ns_lanes_saw(&db->lanes, queue_id, rank, 0))
      st = ns_no_memory(err);
    ranks[new++] = rank;
  }
  *n = new;
  return st;
}

/* A lane whose end was not found where it should stand. */
static void miss_sentinels(ns_db *db, int64_t queue_id, const bool *seen) {
  size_t first;
  size_t n = ns_lanes_of(&db->lanes, queue_id, &first);
  for (size_t i = first; i < first + n; i++)
    if (!seen[db->lanes.items[i].rank])
      db->lanes.items[i].sentinel = false;
}

/* Each lane leads to the one above it, so from the bottom all are found. */
static ns_status find_lanes(ns_db *db, int64_t queue_id, bool *news, ns_err *err) {
  int64_t ranks[RANKS + 1];
  bool seen[RANKS] = {false};
  size_t first;
  size_t n = ns_lanes_of(&db->lanes, queue_id, &first);
  ns_status st;
  for (size_t i = 0; i < n; i++)
    ranks[i] = db->lanes.items[first + i].rank;
  ranks[n++] = RANKS;
  do {
    st = look_above(db, queue_id, ranks, &n, seen, err);
    *news = *news || n > 0;
  } while (st == NS_OK && n > 0);
  if (st == NS_OK)
    miss_sentinels(db, queue_id, seen);
  return st;
}

/* --------------------------------------------------------------- late rows */

/* The first row that 'pane' has below the floors of up to NS_LANES_MAX lanes; it
** stays locked, and those that others hold are left. */
static ns_status look_below(ns_db *db, ns_sql sql, const ns_lane *lanes, size_t n,
                            ns_pane pane, bool *found, ns_err *err) {
  ns_ranges r;
  ns_buf text = NS_BUF_INIT;
  ns_stmt *stmt;
  const ns_value *row = NULL;
  ns_status st;
  ns_ranges_begin(&r, lanes->queue_id, ns_leases_alone(&db->leases));
  for (size_t i = 0; i < n; i++)
    ns_ranges_add(&r, lanes[i].rank, pane.from,
                  pane.to < lanes[i].floor ? pane.to : lanes[i].floor);
  ns_ranges_end(&r, 1);
  *found = false;
  if (r.n == 0)
    return NS_OK;
  if ((st = ns_ranges_text(&r, sql, ns_filter_kinds(&db->only), &text, err)) == NS_OK &&
      (st = ns_spelled(db, &stmt, ns_buf_bytes(&text), err)) == NS_OK &&
      (st = ns_stmt_run(db->link, stmt, r.params, err)) == NS_OK)
    st = ns_stmt_fetch(db->link, stmt, &row, err);
  *found = st == NS_OK && row != NULL;
  if (*found) {
    ns_lane *lane = ns_lanes_find(&db->lanes, lanes->queue_id, row[0].i);
    lane->floor = row[1].i;
    lane->job = 0;
    lane->spent = false;
  }
  ns_buf_free(&text);
  return st;
}

static ns_status look_through(ns_db *db, ns_sql sql, int64_t queue_id, ns_pane pane,
                              bool *found, ns_err *err) {
  size_t first;
  size_t n = ns_lanes_of(&db->lanes, queue_id, &first);
  ns_status st = NS_OK;
  *found = false;
  for (size_t i = 0; st == NS_OK && !*found && i < n; i += NS_LANES_MAX)
    st = look_below(db, sql, &db->lanes.items[first + i],
                    n - i < NS_LANES_MAX ? n - i : NS_LANES_MAX, pane, found,
                    err);
  return st;
}

/* A pane that had a late row may have more of them, and comes again. */
static ns_status find_late(ns_db *db, ns_sweep *s, ns_pane pane, bool *found,
                           ns_err *err) {
  int64_t start = ns_mono_us();
  ns_sql sql = pane.dear                            ? NS_SQL_CLAIM_SKIP
               : ns_filter_kinds(&db->only) != NULL ? NS_SQL_CLAIM_BELOW
                                                    : NS_SQL_CLAIM_LATE;
  ns_status st = look_through(db, sql, s->queue_id, pane, found, err);
  if (st == NS_EBUSY && err->sqlerr == TOO_LONG) {
    ns_err_clear(err);
    ns_scan_window_cut(&s->window, pane);
    return NS_OK;
  }
  if (st == NS_OK && !*found)
    ns_scan_window_seen(&s->window, pane, ns_mono_us() - start);
  return st;
}

ns_status ns_sweep_run(ns_db *db, ns_sweep *s, bool all, bool *news, ns_err *err) {
  int64_t start = ns_mono_us();
  bool found = false;
  ns_pane pane;
  ns_status st;
  *news = false;
  s->since = 0;
  s->window.open = true;
  st = find_lanes(db, s->queue_id, news, err);
  pane = ns_scan_window_next(&s->window, ns_lanes_top(&db->lanes, s->queue_id));
  if (all)
    pane = (ns_pane){0, pane.to, true};
  if (st == NS_OK && pane.to > 0 && pane.dear && db->lanes.some)
    st = ns_scout_below(db, s, all, &found, err);
  else if (st == NS_OK && pane.to > 0)
    st = find_late(db, s, pane, &found, err);
  else if (st == NS_OK)
    s->window.open = false;
  *news = *news || found;
  ns_scan_window_rest(&s->window, start);
  db->count.sweeps++;
  db->count.swept += ns_mono_us() - start;
  return st;
}
