/*
** Aging. While a queue has more than is claimed, rows of high lanes would keep
** those of lower lanes waiting for ever. So every 16th row is the oldest of a
** lower lane: one turn for the lowest lane that has any, the next for all of
** them in rotation, from the lowest up. No row is moved.
**
** Invariant: a turn reads one row per lane, by key, and nothing of the lanes
** that are served anyway: neither a long backlog there nor its deleted rows cost
** anything. Turns are counted in rows and claims, so what they cost stays a
** fixed small part of the claims; and one is due every five seconds, for
** claimers that take a row now and then. Lanes that nobody has told us of, and
** rows below a floor, are found by the sweeps.
*/
#include "claim/aging.h"

#include "claim/sweep.h"
#include "handle.h"
#include "ns_time.h"

#define EVERY 16                  /* rows in true order for one that is aged */
#define CLAIMS 8                  /* ... and at least so many claims, and one */
                                  /* more per lane that was looked at */
#define AT_LEAST (5 * NS_SECOND)  /* a turn is due after this, if few rows pass */
#define RANKS 256

typedef struct head {
  int64_t rank, ready_at;
} head;

typedef struct heads {
  head items[RANKS];
  size_t n;
} heads;

bool ns_aging_due(const ns_db *db, const ns_sweep *s) {
  if (db->strict || s->claims == 0)
    return false;
  return (s->passed >= EVERY && s->claims >= CLAIMS + s->below) ||
         ns_mono_us() >= s->turn_at;
}

void ns_aging_passed(ns_sweep *s, size_t rows, int64_t rank) {
  if (rows == 0)
    return;
  if (s->claims++ == 0)
    s->turn_at = ns_mono_us() + AT_LEAST;
  s->passed += (int64_t)rows;
  s->rank = rank;
}

void ns_aging_rest(ns_sweep *s) {
  s->passed = 0;
  s->claims = 0;
}

/* ------------------------------------------------------------------ asking */

/* The lanes below the one that is served; '*first' is the uppermost. */
static size_t lower_lanes(const ns_db *db, const ns_sweep *s, size_t *first) {
  size_t n = ns_lanes_of(&db->lanes, s->queue_id, first);
  while (n > 0 && db->lanes.items[*first].rank <= s->rank) {
    ++*first;
    n--;
  }
  return n;
}

/* The oldest row of each lower lane that has any. */
static ns_status read_heads(ns_db *db, const ns_sweep *s, heads *out,
                            ns_err *err) {
  ns_value params[3 * RANKS];
  const ns_value *row;
  ns_stmt *stmt;
  size_t first;
  size_t lower = lower_lanes(db, s, &first);
  size_t n = 0;
  ns_status st;
  out->n = 0;
  for (size_t i = first; i < first + lower; i++) {
    const ns_lane *lane = &db->lanes.items[i];
    if (db->lanes.some && lane->unknown)
      continue; /* it has its turn when it is known where a row is */
    params[3 * n] = ns_vint(s->queue_id);
    params[3 * n + 1] = ns_vint(lane->rank);
    params[3 * n++ + 2] = ns_vint(lane->floor);
  }
  if (n == 0)
    return NS_OK;
  st = ns_sweep_ask(db, NS_SQL_CLAIM_HEAD, n, params, &stmt, err);
  while (st == NS_OK &&
         (st = ns_stmt_fetch(db->link, stmt, &row, err)) == NS_OK &&
         row != NULL)
    out->items[out->n++] = (head){row[0].i, row[1].i};
  return st;
}

/* ---------------------------------------------------------------- choosing */

/* The head of the lowest lane above 'bound'; NULL: none. */
static const head *lowest(const heads *h, int64_t bound) {
  const head *best = NULL;
  for (size_t i = 0; i < h->n; i++)
    if (h->items[i].rank < bound &&
        (best == NULL || h->items[i].rank > best->rank))
      best = &h->items[i];
  return best;
}

/* Every other turn is the lowest lane's; those between go round from there up. */
static const head *choose(ns_sweep *s, const heads *h) {
  const head *bottom = lowest(h, RANKS);
  const head *next;
  if (bottom == NULL || s->turns++ % 2 == 0)
    return bottom;
  next = lowest(h, s->cursor);
  if (next == NULL)
    next = lowest(h, bottom->rank);
  if (next == NULL)
    next = bottom;
  s->cursor = next->rank;
  return next;
}

/* How far it may be claimed from. */
static int64_t ends(const ns_db *db, const ns_sweep *s, const head *chosen) {
  int64_t end = ns_lanes_find(&db->lanes, s->queue_id, chosen->rank)->end;
  return end > chosen->ready_at ? end : chosen->ready_at + 1;
}

ns_status ns_aging_take(ns_db *db, ns_sweep *s, size_t want, ns_takes *out,
                        ns_err *err) {
  size_t owed = (size_t)(s->passed / EVERY);
  heads h = {.n = 0};
  const head *chosen;
  ns_status st = read_heads(db, s, &h, err);
  if (st != NS_OK)
    return st;
  s->passed = 0;
  s->claims = 0;
  s->below = (int64_t)h.n;
  if ((chosen = choose(s, &h)) == NULL)
    return NS_OK;
  if (owed > (want + 1) / 2)
    owed = (want + 1) / 2;
  return ns_take_lane(db,
                      &(ns_lane){.queue_id = s->queue_id, .rank = chosen->rank,
                                 .floor = chosen->ready_at,
                                 .end = ends(db, s, chosen)},
                      owed > 0 ? owed : 1, out, err);
}
