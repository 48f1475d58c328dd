/*
** A claimer's memory of its lanes, and how far it looks below their floors. Pure
** memory: two sorted arrays, as a holder of many queues knows thousands of lanes.
**
** Invariant: lanes are sorted by (queue, rank) and records of queues by queue, each once.
** Floors are hints. A row below its floor, or in an unknown lane, is found by a sweep
** (claim/sweep.c).
**
** Reading below a floor meets deleted rows that purge has not removed yet, maybe millions. So
** when a look takes longer than NS_LOOK_MAX, later looks read a window right below the floor,
** where late commits are. It is as wide as is cheap and takes 1/20 of the time; full looks take
** 1/200. A window further down would be no cheaper: the server reads on through deleted rows to
** the next row that is not.
*/
#include "claim/claim.h"

#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "handle.h"

void ns_claim_lanes_free(ns_lanes *l) {
  free(l->items);
  free(l->queues);
  *l = (ns_lanes){0};
}

static void drop_floor(ns_lane *lane) {
  *lane = (ns_lane){.queue_id = lane->queue_id,
                    .rank = lane->rank,
                    .end = NS_LANE_END,
                    .sentinel = lane->sentinel,
                    .unknown = true};
}

static void forget_looks(ns_claim_queue *q) {
  q->window = (ns_scan_window){0};
  q->hidden = q->round = (ns_lane_gap){0};
  q->partial = false;
  q->cost = 0;
}

void ns_claim_lanes_drop_floors_of(ns_lanes *l, int64_t queue_id) {
  ns_claim_queue *q = ns_claim_queue_of(l, queue_id);
  size_t first;
  size_t n = ns_claim_lanes_of(l, queue_id, &first);
  for (size_t i = 0; i < n; i++)
    drop_floor(&l->items[first + i]);
  if (q != NULL)
    forget_looks(q);
}

void ns_claim_lanes_drop_floors(ns_lanes *l) {
  for (size_t i = 0; i < l->n; i++)
    drop_floor(&l->items[i]);
  for (size_t i = 0; i < l->nqueues; i++)
    forget_looks(&l->queues[i]);
}

static bool is_before(const ns_lane *lane, int64_t queue_id, int64_t rank) {
  return lane->queue_id < queue_id || (lane->queue_id == queue_id && lane->rank < rank);
}

/* Where (queue, rank) is or belongs. */
static size_t lane_place(const ns_lanes *l, int64_t queue_id, int64_t rank) {
  size_t first = 0;
  size_t end = l->n;
  while (first < end) {
    size_t middle = first + (end - first) / 2;
    if (is_before(&l->items[middle], queue_id, rank))
      first = middle + 1;
    else
      end = middle;
  }
  return first;
}

/* For assertions: does lane i stand between its neighbours? */
static bool is_in_place(const ns_lanes *l, size_t i) {
  const ns_lane *x = &l->items[i];
  return (i == 0 || is_before(x - 1, x->queue_id, x->rank)) &&
         (i + 1 == l->n || is_before(x, x[1].queue_id, x[1].rank));
}

size_t ns_claim_lanes_of(const ns_lanes *l, int64_t queue_id, size_t *first) {
  size_t n = 0;
  *first = lane_place(l, queue_id, 0);
  while (*first + n < l->n && l->items[*first + n].queue_id == queue_id)
    n++;
  return n;
}

ns_lane *ns_claim_lanes_find(const ns_lanes *l, int64_t queue_id, int64_t rank) {
  size_t i = lane_place(l, queue_id, rank);
  return i < l->n && l->items[i].queue_id == queue_id && l->items[i].rank == rank ? &l->items[i]
                                                                                  : NULL;
}

ns_lane *ns_claim_lanes_learn(ns_lanes *l, int64_t queue_id, int64_t rank, int64_t ready_at) {
  ns_lane *lane = ns_claim_lanes_find(l, queue_id, rank);
  size_t i;
  if (lane != NULL) {
    if (lane->floor < ready_at) {
      lane->floor = ready_at;
      lane->job = 0;
    }
    return lane;
  }
  if (!ns_grow(&l->items, &l->cap, l->n + 1, sizeof *l->items))
    return NULL;
  i = lane_place(l, queue_id, rank);
  lane = &l->items[i];
  memmove(lane + 1, lane, (l->n - i) * sizeof *lane);
  *lane = (ns_lane){
      .queue_id = queue_id, .rank = rank, .floor = ready_at, .end = NS_LANE_END, .unknown = true};
  l->n++;
  ns_assert(is_in_place(l, i));
  return lane;
}

/* The round goes back to a row, or on to it. Of several rows the lowest counts. Rows that it
** passes over on its way are left to the whole round. */
static void move_round(ns_claim_queue *s, int64_t rank, int64_t ready_at) {
  bool lower = rank < s->round.rank || (rank == s->round.rank && ready_at <= s->round.from);
  if (!lower && !s->partial)
    s->whole = s->round;
  if (lower || !s->partial)
    s->round = (ns_lane_gap){.rank = rank, .from = ready_at - 1};
  s->partial = s->partial || !lower;
}

void ns_claim_lanes_lower(ns_lanes *l, int64_t queue_id, int64_t rank, int64_t ready_at) {
  ns_lane *lane = ns_claim_lanes_find(l, queue_id, rank);
  ns_claim_queue *s = l->some_names ? ns_claim_queue_of(l, queue_id) : NULL;
  if (lane == NULL || lane->floor <= ready_at)
    return;
  if (s == NULL || s->window.width == 0) {
    lane->floor = ready_at;
    lane->job = 0;
    return;
  }
  move_round(s, rank, ready_at);
  s->window.open = true;
  s->window.full_at = s->window.next = 0;
}

void ns_claim_lanes_exhaust(ns_lane *lanes, size_t n, int64_t reach) {
  for (size_t i = 0; i < n; i++)
    if (lanes[i].end == NS_LANE_END)
      lanes[i].reach = reach;
    else
      lanes[i].spent = !lanes[i].unknown;
}

void ns_claim_lanes_end(ns_lanes *l, bool committed) {
  for (size_t i = 0; i < l->n; i++) {
    ns_lane *lane = &l->items[i];
    if (committed && lane->spent) {
      lane->floor = lane->floor > lane->end ? lane->floor : lane->end;
      lane->job = 0;
      lane->end = NS_LANE_END;
      lane->unknown = true;
    } else if (committed && lane->reach > lane->floor) {
      lane->floor = lane->reach;
      lane->job = 0;
    }
    lane->spent = false;
    lane->reach = 0;
  }
}

void ns_claim_lanes_raise(ns_lanes *l, int64_t queue_id, int64_t rank, int64_t floor) {
  size_t first;
  size_t n = ns_claim_lanes_of(l, queue_id, &first);
  for (size_t i = first; i < first + n && l->items[i].rank < rank; i++)
    if (l->items[i].floor < floor && l->items[i].end == NS_LANE_END) {
      l->items[i].floor = floor;
      l->items[i].job = 0;
    }
}

int64_t ns_claim_lanes_top(const ns_lanes *l, int64_t queue_id) {
  size_t first;
  size_t n = ns_claim_lanes_of(l, queue_id, &first);
  int64_t top = 0;
  for (size_t i = first; i < first + n; i++)
    if (l->items[i].floor > top)
      top = l->items[i].floor;
  return top;
}

/* Where the sweep record of a queue is or belongs. */
static size_t sweep_place(const ns_lanes *l, int64_t queue_id) {
  size_t first = 0;
  size_t end = l->nqueues;
  while (first < end) {
    size_t middle = first + (end - first) / 2;
    if (l->queues[middle].queue_id < queue_id)
      first = middle + 1;
    else
      end = middle;
  }
  return first;
}

const ns_claim_queue *ns_claim_queue_known(const ns_lanes *l, int64_t queue_id) {
  size_t i = sweep_place(l, queue_id);
  return i < l->nqueues && l->queues[i].queue_id == queue_id ? &l->queues[i] : NULL;
}

ns_claim_queue *ns_claim_queue_of(ns_lanes *l, int64_t queue_id) {
  size_t first = l->next; /* a claim that asks for all does so in their order */
  if (first >= l->nqueues || l->queues[first].queue_id != queue_id)
    first = sweep_place(l, queue_id);
  l->next = first + 1;
  if (first < l->nqueues && l->queues[first].queue_id == queue_id)
    return &l->queues[first];
  if (!ns_grow(&l->queues, &l->capqueues, l->nqueues + 1, sizeof *l->queues))
    return NULL;
  memmove(&l->queues[first + 1], &l->queues[first], (l->nqueues++ - first) * sizeof *l->queues);
  l->queues[first] = (ns_claim_queue){.queue_id = queue_id};
  ns_assert(first == 0 || l->queues[first - 1].queue_id < queue_id);
  ns_assert(first + 1 == l->nqueues || l->queues[first + 1].queue_id > queue_id);
  return &l->queues[first];
}

/* ----------------------------------------------------- windows below a floor */

#define SHARE 20                     /* 1/20 of the time: 5 % */
#define FULL_SHARE 200               /* 1/200 of the time, while that is dear, */
#define FULL_LATEST (10 * NS_SECOND) /* but no longer apart than this */
#define REST_LATEST NS_SECOND
#define CHEAP INT64_C(500)   /* µs: the next one may be wider */
#define NARROW INT64_C(1000) /* µs of the key */
#define WIDE NS_SECOND       /* to begin with, when all at once is too dear */
#define WIDEST (3600 * NS_SECOND)

ns_scan_range ns_claim_window_next(const ns_scan_window *w, int64_t floor) {
  bool dear = w->width > 0 && ns_mono_us() >= w->full_at;
  bool all = w->width == 0 || dear || w->width >= floor;
  return (ns_scan_range){all ? 0 : floor - w->width, floor, dear};
}

static int64_t narrower_width(int64_t width) {
  return width > WIDEST ? WIDE : width / 4 > NARROW ? width / 4 : NARROW;
}

static int64_t least_of(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* A look that was dear is believed when the next one is, too: it may have been the
** machine that was slow. */
static void window_seen_all(ns_scan_window *w, int64_t cost) {
  bool twice = w->width > 0;
  w->open = false;
  w->seen_at = ns_mono_us();
  w->full_at = ns_mono_us() + (twice ? least_of(cost * FULL_SHARE, FULL_LATEST) : 0);
  if (cost <= NS_LOOK_MAX)
    w->width = 0;
  else if (w->width == 0)
    w->width = WIDE;
}

void ns_claim_window_seen(ns_scan_window *w, ns_scan_range seen, int64_t cost) {
  if (seen.from == 0)
    window_seen_all(w, cost);
  else if (cost > NS_LOOK_MAX)
    w->width = narrower_width(w->width);
  else if (cost < CHEAP && w->width < WIDEST)
    w->width *= 4;
}

void ns_claim_window_cut(ns_scan_window *w, ns_scan_range tried) {
  w->width = narrower_width(tried.to - tried.from);
}

void ns_claim_window_rest(ns_scan_window *w, int64_t start) {
  int64_t pause = least_of((ns_mono_us() - start) * SHARE, REST_LATEST);
  w->next = start + (pause > NS_LOOK_MIN ? pause : NS_LOOK_MIN);
}

int64_t ns_claim_window_when(const ns_scan_window *w) {
  return w->width > 0 && w->full_at > w->next ? w->full_at : w->next;
}
