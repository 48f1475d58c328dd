/*
** The sweep finds rows that a claim over the known lanes, from their floors on, does not see.
** They are in unknown lanes, or were committed late. For a claimer of some names, its own rows
** may lie among rows of other names.
**
** Lanes are found by key, from the bottom up. The last row before a lane is the end of the lane
** above it: its sentinel or an unclaimed row. So no deleted rows are read. A known lane that is
** not found so has lost its sentinel, which is put up again.
**
** Late rows lie among deleted ones, which have to be read; windows (claim/lanes.c) say how
** far. The floor of a lane goes back to the first late row, and the claim that follows takes
** it in true order.
**
** A claim of some names passes over rows of other names, which stay: there may be 500,000 at
** the head of a lane. A prescan reads each of them once, without locks and in steps of bounded
** length. The claim itself, which locks all rows that it reads, covers a stretch with few of
** them. Stretches above the floors are read before a claim, stretches below in rounds, for 1/20
** of the time. A lane that was read to its end is claimed from without bounds. A full claim, or
** a pause, ends that, since rows of other names may gather there.
**
** Invariant: nothing here takes a job; locks are taken for one late row per sweep at most. No
** assert: the server decides which locks a statement takes.
*/
#include "claim/claim.h"

#include "base.h"
#include "handle.h"

#define RANKS 256
#define ER_TOO_LONG 1969 /* the server's number for max_statement_time exceeded */

bool ns_claim_sweep_is_due(const ns_claim_queue *s) {
  return ns_mono_us() >= s->window.next;
}

bool ns_claim_sweep_is_cheap(const ns_claim_queue *s) {
  return s->window.width == 0;
}

ns_status ns_claim_union_run(ns_db *db, ns_sql sql, size_t n, const ns_value *params, ns_stmt **s,
                             ns_err *err) {
  ns_buf text = NS_BUF_INIT;
  ns_status st = NS_OK;
  for (size_t i = 0; i < n; i++) {
    ns_buf_adds(&text, i > 0 ? " UNION ALL " : "");
    ns_claim_filter_text(&db->claim.filter, &text, sql);
  }
  st = text.oom ? ns_no_memory(err) : ns_db_prepared_brief(db, s, ns_buf_bytes(&text), err);
  if (st == NS_OK)
    st = ns_stmt_run(db->link, *s, params, err);
  ns_buf_free(&text);
  return st;
}

/* ------------------------------------------------------------------- lanes */

/* Which lanes stand right above the lanes of 'ranks'? New lanes are learnt and replace 'ranks';
** all lanes are marked in 'seen'. */
static ns_status find_lanes_above(ns_db *db, int64_t queue_id, int64_t *ranks, size_t *n,
                                  bool *seen, ns_err *err) {
  ns_value params[2 * (RANKS + 1)];
  const ns_value *row;
  ns_stmt *stmt;
  size_t new = 0;
  ns_status st;
  for (size_t i = 0; i < *n; i++) {
    params[2 * i] = ns_vint(queue_id);
    params[2 * i + 1] = ns_vint(ranks[i]);
  }
  st = ns_claim_union_run(db, NS_SQL_CLAIM_ABOVE, *n, params, &stmt, err);
  while (st == NS_OK && (st = ns_stmt_fetch(db->link, stmt, &row, err)) == NS_OK && row != NULL) {
    int64_t rank = row[0].i;
    seen[rank] = true;
    if (ns_claim_lanes_find(&db->claim.lanes, queue_id, rank) != NULL)
      continue;
    if (!ns_claim_lanes_learn(&db->claim.lanes, queue_id, rank, 0))
      st = ns_no_memory(err);
    ranks[new ++] = rank;
  }
  *n = new;
  return st;
}

/* A lane with an end that was not found where it should stand. */
static void note_lost_sentinels(ns_db *db, int64_t queue_id, const bool *seen) {
  size_t first;
  size_t n = ns_claim_lanes_of(&db->claim.lanes, queue_id, &first);
  for (size_t i = first; i < first + n; i++)
    if (!seen[db->claim.lanes.items[i].rank])
      db->claim.lanes.items[i].sentinel = false;
}

/* Each lane leads to the one above it, so from the bottom all are found. */
static ns_status find_lanes(ns_db *db, int64_t queue_id, bool *news, ns_err *err) {
  int64_t ranks[RANKS + 1];
  bool seen[RANKS] = {false};
  size_t first;
  size_t n = ns_claim_lanes_of(&db->claim.lanes, queue_id, &first);
  ns_status st;
  for (size_t i = 0; i < n; i++)
    ranks[i] = db->claim.lanes.items[first + i].rank;
  ranks[n++] = RANKS;
  do {
    st = find_lanes_above(db, queue_id, ranks, &n, seen, err);
    *news = *news || n > 0;
  } while (st == NS_OK && n > 0);
  if (st == NS_OK)
    note_lost_sentinels(db, queue_id, seen);
  return st;
}

/* --------------------------------------------------------------- late rows */

/* Finds the first row of 'range' below the floors of up to NS_LANES_MAX lanes. It stays locked;
** rows that other sessions hold are left. */
static ns_status find_late_in(ns_db *db, ns_sql sql, const ns_lane *lanes, size_t n,
                              ns_scan_range range, bool *found, ns_err *err) {
  ns_claim_ranges r;
  ns_buf text = NS_BUF_INIT;
  ns_stmt *stmt;
  const ns_value *row = NULL;
  ns_status st;
  ns_claim_ranges_begin(&r, lanes->queue_id, ns_claim_leases_alone(&db->claim.leases));
  for (size_t i = 0; i < n; i++)
    ns_claim_ranges_add(&r, lanes[i].rank, range.from,
                        range.to < lanes[i].floor ? range.to : lanes[i].floor);
  ns_claim_ranges_end(&r, 1);
  *found = false;
  if (r.n == 0)
    return NS_OK;
  if ((st = ns_claim_ranges_text(&r, sql, ns_claim_filter_kinds(&db->claim.filter), &text, err)) ==
          NS_OK &&
      (st = ns_db_prepared_brief(db, &stmt, ns_buf_bytes(&text), err)) == NS_OK &&
      (st = ns_stmt_run(db->link, stmt, r.params, err)) == NS_OK)
    st = ns_stmt_fetch(db->link, stmt, &row, err);
  *found = st == NS_OK && row != NULL;
  if (*found) {
    ns_lane *lane = ns_claim_lanes_find(&db->claim.lanes, lanes->queue_id, row[0].i);
    lane->floor = row[1].i;
    lane->job = 0;
    lane->spent = false;
  }
  ns_buf_free(&text);
  return st;
}

static ns_status find_late_row(ns_db *db, ns_sql sql, int64_t queue_id, ns_scan_range range,
                               bool *found, ns_err *err) {
  size_t first;
  size_t n = ns_claim_lanes_of(&db->claim.lanes, queue_id, &first);
  ns_status st = NS_OK;
  *found = false;
  for (size_t i = 0; st == NS_OK && !*found && i < n; i += NS_LANES_MAX)
    st = find_late_in(db, sql, &db->claim.lanes.items[first + i],
                      n - i < NS_LANES_MAX ? n - i : NS_LANES_MAX, range, found, err);
  return st;
}

/* A range that had a late row may have more of them, and comes again. */
static ns_status find_late(ns_db *db, ns_claim_queue *s, ns_scan_range range, bool *found,
                           ns_err *err) {
  int64_t start = ns_mono_us();
  ns_sql sql = range.dear                                          ? NS_SQL_CLAIM_SKIP
               : ns_claim_filter_kinds(&db->claim.filter) != NULL ? NS_SQL_CLAIM_BELOW
                                                                  : NS_SQL_CLAIM_LATE;
  ns_status st = find_late_row(db, sql, s->queue_id, range, found, err);
  if (st == NS_EBUSY && err->sqlerr == ER_TOO_LONG) {
    ns_err_clear(err);
    ns_claim_window_cut(&s->window, range);
    return NS_OK;
  }
  if (st == NS_OK && !*found)
    ns_claim_window_seen(&s->window, range, ns_mono_us() - start);
  return st;
}

/* ------------------------------------------------------------------ prescans */

#define PRESCAN_STEP 5000                  /* rows of a stretch: claim_prescan_end has it, too */
#define PRESCAN_BUDGET INT64_C(3000)       /* µs of a cycle, and one step */
#define PRESCAN_OLD_FULL NS_SECOND         /* rows may have gathered since a full claim, */
#define PRESCAN_OLD_SHORT (10 * NS_SECOND) /* ... and since any: claimers that sleep are rung */
#define ROUND_SHARE 20                     /* 1/20 of the time for rounds below */

/* Rows of a lane: behind (from, job), before 'to'. */
typedef struct lane_part {
  int64_t queue_id, rank, from, job, to;
} lane_part;

/* The rows that were read of a part. */
typedef struct part_seen {
  bool any;
  bool full;         /* as many rows as are read at once: there may be more */
  int64_t last, job; /* the last of them */
  int64_t wanted;    /* ready_at of the first that is; 0: none is */
} part_seen;

static ns_status run_prescan(ns_db *db, ns_sql sql, const ns_value *params, const ns_value **row,
                             ns_err *err) {
  ns_buf text = NS_BUF_INIT;
  ns_stmt *s;
  ns_status st;
  ns_claim_filter_text(&db->claim.filter, &text, sql);
  st = text.oom ? ns_no_memory(err) : ns_db_prepared_brief(db, &s, ns_buf_bytes(&text), err);
  if (st == NS_OK && (st = ns_stmt_run(db->link, s, params, err)) == NS_OK)
    st = ns_stmt_fetch(db->link, s, row, err);
  ns_buf_free(&text);
  return st;
}

/* How far a step comes. */
static ns_status read_end(ns_db *db, const lane_part *p, part_seen *out, ns_err *err) {
  const ns_value params[] = {ns_vint(p->queue_id), ns_vint(p->rank), ns_vint(p->from),
                             ns_vint(p->job),      ns_vint(p->from), ns_vint(p->to),
                             ns_vint(p->queue_id), ns_vint(p->rank), ns_vint(p->from),
                             ns_vint(p->job),      ns_vint(p->from), ns_vint(p->to)};
  const ns_value *row = NULL;
  ns_status st = run_prescan(db, NS_SQL_CLAIM_PRESCAN_END, params, &row, err);
  *out = (part_seen){0};
  if (st == NS_OK && row != NULL)
    *out = (part_seen){true, row[0].i != 0, row[1].i, row[2].i, 0};
  return st;
}

/* Reads how far a step comes, and how many of its rows are wanted. */
static ns_status read_step(ns_db *db, const lane_part *p, part_seen *out, ns_err *err) {
  const ns_value *row = NULL;
  ns_status st = read_end(db, p, out, err);
  if (st != NS_OK || !out->any)
    return st;
  st = run_prescan(db, NS_SQL_CLAIM_PRESCAN,
                   (ns_value[]){ns_vint(p->queue_id), ns_vint(p->rank), ns_vint(p->from),
                                ns_vint(p->job), ns_vint(p->from), ns_vint(out->last),
                                ns_vint(out->job), ns_vint(out->last)},
                   &row, err);
  if (st == NS_OK && row != NULL)
    out->wanted = row[0].i;
  return st;
}

/* ------------------------------------------------------------------- above */

static void raise_lane_floor(ns_lane *lane, int64_t floor, int64_t job) {
  lane->floor = floor > lane->floor ? floor : lane->floor;
  lane->job = job;
}

/* Sets the end of a lane's stretch: a claim of this cycle has come short of another stretch. */
static void set_stretch_end(ns_lane *lane, const part_seen *x) {
  lane->spent = false;
  lane->end = x->full ? x->last + 1 : NS_LANE_END;
  lane->left += x->full ? PRESCAN_STEP : 0;
}

static ns_status step_above(ns_db *db, ns_lane *lane, ns_err *err) {
  part_seen x;
  ns_status st = read_step(
      db, &(lane_part){lane->queue_id, lane->rank, lane->floor, lane->job, NS_LANE_END}, &x, err);
  if (st != NS_OK)
    return st;
  lane->unknown = x.full && x.wanted == 0;
  lane->left = 0;
  lane->start = lane->floor;
  set_stretch_end(lane, &x);
  if (x.wanted != 0)
    raise_lane_floor(lane, x.wanted, 0);
  else if (lane->unknown)
    raise_lane_floor(lane, x.last, x.job);
  else if (x.any)
    raise_lane_floor(lane, x.last + 1, 0);
  if (lane->unknown)
    lane->end = lane->floor; /* nothing is claimed from it yet */
  return NS_OK;
}

/* Extends the stretch of a lane with few rows of other names: a claim would soon come short at
** its end. */
static ns_status extend_stretch(ns_db *db, ns_lane *lane, ns_err *err) {
  part_seen x;
  ns_status st = read_end(
      db, &(lane_part){lane->queue_id, lane->rank, lane->end - 1, INT64_MAX, NS_LANE_END}, &x, err);
  if (st != NS_OK)
    return st;
  lane->start = lane->end;
  set_stretch_end(lane, &x);
  return NS_OK;
}

static bool is_prescan_old(const ns_claim_queue *s) {
  return s->claimed_at != 0 &&
         ns_mono_us() - s->claimed_at > (s->full ? PRESCAN_OLD_FULL : PRESCAN_OLD_SHORT);
}

/* Two stretches are enough: whatever a claim passes over in them, it locks. */
static bool is_scarce(const ns_lane *lane, size_t want) {
  return !lane->unknown && lane->end != NS_LANE_END && lane->left < (int64_t)want &&
         lane->floor >= lane->start;
}

ns_status ns_claim_prescan_above(ns_db *db, ns_claim_queue *s, size_t want, ns_err *err) {
  int64_t until = ns_mono_us() + PRESCAN_BUDGET;
  bool old = is_prescan_old(s);
  size_t first;
  size_t n = ns_claim_lanes_of(&db->claim.lanes, s->queue_id, &first);
  ns_status st = NS_OK;
  for (size_t i = first; st == NS_OK && i < first + n; i++) {
    ns_lane *lane = &db->claim.lanes.items[i];
    lane->unknown = lane->unknown || old;
    if (is_scarce(lane, want) && (i == first || ns_mono_us() < until))
      st = extend_stretch(db, lane, err);
    while (st == NS_OK && lane->unknown && (i == first || ns_mono_us() < until)) {
      st = step_above(db, lane, err);
      if (ns_mono_us() >= until)
        break;
    }
    if (lane->unknown && lane->end > lane->floor)
      lane->end = lane->floor;
  }
  return st;
}

bool ns_claim_prescan_goes_on(const ns_db *db, int64_t queue_id) {
  size_t first;
  size_t n = ns_claim_lanes_of(&db->claim.lanes, queue_id, &first);
  for (size_t i = first; db->claim.lanes.some_names && i < first + n; i++)
    if (db->claim.lanes.items[i].unknown || db->claim.lanes.items[i].spent)
      return true;
  return false;
}

/* ------------------------------------------------------------------- below */

/* The lane that the round has come to; NULL: it is over. */
static const ns_lane *round_lane(const ns_db *db, ns_claim_queue *s) {
  size_t first;
  size_t n = ns_claim_lanes_of(&db->claim.lanes, s->queue_id, &first);
  for (size_t i = first; i < first + n; i++)
    if (db->claim.lanes.items[i].rank >= s->round.rank) {
      if (db->claim.lanes.items[i].rank > s->round.rank)
        s->round = (ns_lane_gap){.rank = db->claim.lanes.items[i].rank};
      return &db->claim.lanes.items[i];
    }
  return NULL;
}

static ns_status step_below(ns_db *db, ns_claim_queue *s, const ns_lane *lane, ns_err *err) {
  part_seen x;
  ns_status st = read_step(
      db, &(lane_part){s->queue_id, lane->rank, s->round.from, s->round.to, lane->floor}, &x, err);
  if (st != NS_OK)
    return st;
  if (x.wanted != 0)
    s->hidden = (ns_lane_gap){lane->rank, x.wanted, x.last + 1};
  if (!x.full)
    s->round = (ns_lane_gap){.rank = lane->rank + 1};
  else
    s->round = (ns_lane_gap){lane->rank, x.last, x.job};
  return NS_OK;
}

/* Goes one step on in a round below the floors. With 'all' it goes on until a step finds
** something or the round ends. '*found': 'hidden' of 's' has the place. */
static ns_status prescan_below(ns_db *db, ns_claim_queue *s, bool all, bool *found, ns_err *err) {
  int64_t start = ns_mono_us();
  const ns_lane *lane;
  int64_t cost;
  ns_status st = NS_OK;
  s->hidden.to = 0;
  if (all) {
    s->round = (ns_lane_gap){0};
    s->partial = false;
  }
  while ((lane = round_lane(db, s)) != NULL) {
    st = step_below(db, s, lane, err);
    if (st != NS_OK || s->hidden.to != 0 || (!all && ns_mono_us() - start > PRESCAN_BUDGET))
      break;
  }
  *found = s->hidden.to != 0;
  cost = ns_mono_us() - start;
  s->cost += cost;
  s->window.full_at = start + cost * ROUND_SHARE;
  if (lane != NULL || st != NS_OK)
    return st;
  if (s->partial) { /* the window stays open for the rest */
    s->partial = false;
    s->round = s->whole;
    return st;
  }
  ns_claim_window_seen(&s->window, (ns_scan_range){0, 0, true}, s->cost);
  s->round = (ns_lane_gap){0};
  s->cost = 0;
  return st;
}

/* ------------------------------------------------------------------ a sweep */

ns_status ns_claim_sweep_run(ns_db *db, ns_claim_queue *s, bool all, bool *news, ns_err *err) {
  int64_t start = ns_mono_us();
  bool found = false;
  ns_scan_range range;
  ns_status st;
  *news = false;
  s->since = 0;
  s->window.open = true;
  st = find_lanes(db, s->queue_id, news, err);
  range = ns_claim_window_next(&s->window, ns_claim_lanes_top(&db->claim.lanes, s->queue_id));
  if (all)
    range = (ns_scan_range){0, range.to, true};
  if (st == NS_OK && range.to > 0 && range.dear && db->claim.lanes.some_names)
    st = prescan_below(db, s, all, &found, err);
  else if (st == NS_OK && range.to > 0)
    st = find_late(db, s, range, &found, err);
  else if (st == NS_OK)
    s->window.open = false;
  *news = *news || found;
  ns_claim_window_rest(&s->window, start);
  db->count.sweeps++;
  db->count.swept += ns_mono_us() - start;
  return st;
}
