/*
** Stretches of lanes, read without locks: those above the floors before a claim, those
** below them in rounds, for the small part of the time that sweeps have.
**
** A lane that was read to its end is claimed from without bounds, until a claim that
** came back full, or none for a while, lets rows of other names gather there.
*/
#include "claim/scout.h"

#include "ns_time.h"

#define STEP 5000 /* rows of a stretch: claim_scout_end has it, too */
#define BUDGET INT64_C(3000)      /* µs of a cycle, and one step */
#define OLD_FULL NS_SECOND        /* rows may have gathered since a full claim, */
#define OLD_SHORT (10 * NS_SECOND) /* ... and since any: whoever sleeps is rung */
#define SHARE 20                  /* 1/20 of the time for rounds below */

/* Rows of a lane: behind (from, job), before 'to'. */
typedef struct part {
  int64_t queue_id, rank, from, job, to;
} part;

/* What was read of a part. */
typedef struct seen {
  bool any;
  bool full;         /* as many rows as are read at once: there may be more */
  int64_t last, job; /* the last of them */
  int64_t wanted;    /* ready_at of the first that is; 0: none is */
} seen;

static ns_status run_scout(ns_db *db, ns_sql sql, const ns_value *params,
                           const ns_value **row, ns_err *err) {
  ns_buf text = NS_BUF_INIT;
  ns_stmt *s;
  ns_status st;
  ns_filter_fill(&db->only, &text, sql);
  st = text.oom ? ns_no_memory(err) : ns_spelled(db, &s, ns_buf_bytes(&text), err);
  if (st == NS_OK && (st = ns_stmt_run(db->link, s, params, err)) == NS_OK)
    st = ns_stmt_fetch(db->link, s, row, err);
  ns_buf_free(&text);
  return st;
}

/* How far a step comes. */
static ns_status read_end(ns_db *db, const part *p, seen *out, ns_err *err) {
  const ns_value params[] = {
      ns_vint(p->queue_id), ns_vint(p->rank), ns_vint(p->from),
      ns_vint(p->job),      ns_vint(p->from), ns_vint(p->to),
      ns_vint(p->queue_id), ns_vint(p->rank), ns_vint(p->from),
      ns_vint(p->job),      ns_vint(p->from), ns_vint(p->to)};
  const ns_value *row = NULL;
  ns_status st = run_scout(db, NS_SQL_CLAIM_SCOUT_END, params, &row, err);
  *out = (seen){0};
  if (st == NS_OK && row != NULL)
    *out = (seen){true, row[0].i != 0, row[1].i, row[2].i, 0};
  return st;
}

/* How far a step comes, and what is wanted of it. */
static ns_status read_step(ns_db *db, const part *p, seen *out, ns_err *err) {
  const ns_value *row = NULL;
  ns_status st = read_end(db, p, out, err);
  if (st != NS_OK || !out->any)
    return st;
  st = run_scout(db, NS_SQL_CLAIM_SCOUT,
                 (ns_value[]){ns_vint(p->queue_id), ns_vint(p->rank), ns_vint(p->from),
                              ns_vint(p->job), ns_vint(p->from), ns_vint(out->last),
                              ns_vint(out->job), ns_vint(out->last)},
                 &row, err);
  if (st == NS_OK && row != NULL)
    out->wanted = row[0].i;
  return st;
}

/* ------------------------------------------------------------------- above */

static void raise_floor(ns_lane *lane, int64_t floor, int64_t job) {
  lane->floor = floor > lane->floor ? floor : lane->floor;
  lane->job = job;
}

/* What a claim of this cycle has come short of is another stretch. */
static void set_end(ns_lane *lane, const seen *x) {
  lane->spent = false;
  lane->end = x->full ? x->last + 1 : NS_LANE_END;
  lane->left += x->full ? STEP : 0;
}

static ns_status step_above(ns_db *db, ns_lane *lane, ns_err *err) {
  seen x;
  ns_status st = read_step(db, &(part){lane->queue_id, lane->rank, lane->floor, lane->job,
                                       NS_LANE_END}, &x, err);
  if (st != NS_OK)
    return st;
  lane->unknown = x.full && x.wanted == 0;
  lane->left = 0;
  lane->start = lane->floor;
  set_end(lane, &x);
  if (x.wanted != 0)
    raise_floor(lane, x.wanted, 0);
  else if (lane->unknown)
    raise_floor(lane, x.last, x.job);
  else if (x.any)
    raise_floor(lane, x.last + 1, 0);
  if (lane->unknown)
    lane->end = lane->floor; /* nothing is claimed from it yet */
  return NS_OK;
}

/* Of a lane with few rows of other names a claim would soon come short at its end. */
static ns_status step_on(ns_db *db, ns_lane *lane, ns_err *err) {
  seen x;
  ns_status st = read_end(db, &(part){lane->queue_id, lane->rank, lane->end - 1, INT64_MAX,
                                      NS_LANE_END}, &x, err);
  if (st != NS_OK)
    return st;
  lane->start = lane->end;
  set_end(lane, &x);
  return NS_OK;
}

static bool is_old(const ns_sweep *s) {
  return s->claimed_at != 0 &&
         ns_mono_us() - s->claimed_at > (s->full ? OLD_FULL : OLD_SHORT);
}

/* Two stretches are enough: whatever a claim passes over in them, it locks. */
static bool is_scarce(const ns_lane *lane, size_t want) {
  return !lane->unknown && lane->end != NS_LANE_END && lane->left < (int64_t)want &&
         lane->floor >= lane->start;
}

ns_status ns_scout_above(ns_db *db, ns_sweep *s, size_t want, ns_err *err) {
  int64_t until = ns_mono_us() + BUDGET;
  bool old = is_old(s);
  size_t first;
  size_t n = ns_lanes_of(&db->lanes, s->queue_id, &first);
  ns_status st = NS_OK;
  for (size_t i = first; st == NS_OK && i < first + n; i++) {
    ns_lane *lane = &db->lanes.items[i];
    lane->unknown = lane->unknown || old;
    if (is_scarce(lane, want) && (i == first || ns_mono_us() < until))
      st = step_on(db, lane, err);
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

bool ns_scout_goes_on(const ns_db *db, int64_t queue_id) {
  size_t first;
  size_t n = ns_lanes_of(&db->lanes, queue_id, &first);
  for (size_t i = first; db->lanes.some && i < first + n; i++)
    if (db->lanes.items[i].unknown || db->lanes.items[i].spent)
      return true;
  return false;
}

/* ------------------------------------------------------------------- below */

/* The lane that the round has come to; NULL: it is over. */
static const ns_lane *lane_of(const ns_db *db, ns_sweep *s) {
  size_t first;
  size_t n = ns_lanes_of(&db->lanes, s->queue_id, &first);
  for (size_t i = first; i < first + n; i++)
    if (db->lanes.items[i].rank >= s->round.rank) {
      if (db->lanes.items[i].rank > s->round.rank)
        s->round = (ns_gap){.rank = db->lanes.items[i].rank};
      return &db->lanes.items[i];
    }
  return NULL;
}

static ns_status step_below(ns_db *db, ns_sweep *s, const ns_lane *lane, ns_err *err) {
  seen x;
  ns_status st = read_step(db, &(part){s->queue_id, lane->rank, s->round.from,
                                       s->round.to, lane->floor}, &x, err);
  if (st != NS_OK)
    return st;
  if (x.wanted != 0)
    s->hidden = (ns_gap){lane->rank, x.wanted, x.last + 1};
  if (!x.full)
    s->round = (ns_gap){.rank = lane->rank + 1};
  else
    s->round = (ns_gap){lane->rank, x.last, x.job};
  return NS_OK;
}

ns_status ns_scout_below(ns_db *db, ns_sweep *s, bool all, bool *found, ns_err *err) {
  int64_t start = ns_mono_us();
  const ns_lane *lane;
  int64_t cost;
  ns_status st = NS_OK;
  s->hidden.to = 0;
  if (all)
    s->round = (ns_gap){0};
  while ((lane = lane_of(db, s)) != NULL) {
    st = step_below(db, s, lane, err);
    if (st != NS_OK || s->hidden.to != 0 || (!all && ns_mono_us() - start > BUDGET))
      break;
  }
  *found = s->hidden.to != 0;
  cost = ns_mono_us() - start;
  s->cost += cost;
  s->window.full_at = start + cost * SHARE;
  if (lane != NULL || st != NS_OK)
    return st;
  ns_scan_window_seen(&s->window, (ns_pane){0, 0, true}, s->cost);
  s->round = (ns_gap){0};
  s->cost = 0;
  return st;
}
