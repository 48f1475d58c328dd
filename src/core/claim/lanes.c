/*
** Memory of lanes and sweeps: two sorted arrays. A holder of many queues knows
** thousands of both.
*/
#include "claim/lanes.h"

#include <stdlib.h>
#include <string.h>

#include "ns_buf.h"

void ns_lanes_free(ns_lanes *l) {
  free(l->items);
  free(l->sweeps);
  *l = (ns_lanes){0};
}

void ns_lanes_drop_floors(ns_lanes *l) {
  for (size_t i = 0; i < l->n; i++)
    l->items[i] = (ns_lane){.queue_id = l->items[i].queue_id,
                            .rank = l->items[i].rank, .end = NS_LANE_END,
                            .sentinel = l->items[i].sentinel, .unknown = true};
  for (size_t i = 0; i < l->nsweeps; i++) {
    l->sweeps[i].window = (ns_scan_window){0};
    l->sweeps[i].hidden = l->sweeps[i].round = (ns_gap){0};
    l->sweeps[i].cost = 0;
  }
}

static bool before(const ns_lane *lane, int64_t queue_id, int64_t rank) {
  return lane->queue_id < queue_id ||
         (lane->queue_id == queue_id && lane->rank < rank);
}

/* Where (queue, rank) is or belongs. */
static size_t place(const ns_lanes *l, int64_t queue_id, int64_t rank) {
  size_t first = 0;
  size_t end = l->n;
  while (first < end) {
    size_t middle = first + (end - first) / 2;
    if (before(&l->items[middle], queue_id, rank))
      first = middle + 1;
    else
      end = middle;
  }
  return first;
}

size_t ns_lanes_of(const ns_lanes *l, int64_t queue_id, size_t *first) {
  size_t n = 0;
  *first = place(l, queue_id, 0);
  while (*first + n < l->n && l->items[*first + n].queue_id == queue_id)
    n++;
  return n;
}

ns_lane *ns_lanes_find(const ns_lanes *l, int64_t queue_id, int64_t rank) {
  size_t i = place(l, queue_id, rank);
  return i < l->n && l->items[i].queue_id == queue_id && l->items[i].rank == rank
             ? &l->items[i]
             : NULL;
}

ns_lane *ns_lanes_saw(ns_lanes *l, int64_t queue_id, int64_t rank, int64_t ready_at) {
  ns_lane *lane = ns_lanes_find(l, queue_id, rank);
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
  i = place(l, queue_id, rank);
  lane = &l->items[i];
  memmove(lane + 1, lane, (l->n - i) * sizeof *lane);
  *lane = (ns_lane){.queue_id = queue_id, .rank = rank, .floor = ready_at,
                    .end = NS_LANE_END, .unknown = true};
  l->n++;
  return lane;
}

void ns_lanes_back(ns_lanes *l, int64_t queue_id, int64_t rank, int64_t ready_at) {
  ns_lane *lane = ns_lanes_find(l, queue_id, rank);
  ns_sweep *s = l->some ? ns_lanes_sweep(l, queue_id) : NULL;
  if (lane == NULL || lane->floor <= ready_at)
    return;
  if (s == NULL || s->window.width == 0) {
    lane->floor = ready_at;
    lane->job = 0;
    return;
  }
  s->round = (ns_gap){.rank = rank, .from = ready_at - 1};
  s->window.open = true;
  s->window.full_at = s->window.next = 0;
}

void ns_lanes_short(ns_lane *lanes, size_t n, int64_t reach) {
  for (size_t i = 0; i < n; i++)
    if (lanes[i].end == NS_LANE_END)
      lanes[i].reach = reach;
    else
      lanes[i].spent = !lanes[i].unknown;
}

void ns_lanes_settle(ns_lanes *l, bool committed) {
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

void ns_lanes_passed(ns_lanes *l, int64_t queue_id, int64_t rank,
                     int64_t floor) {
  size_t first;
  size_t n = ns_lanes_of(l, queue_id, &first);
  for (size_t i = first; i < first + n && l->items[i].rank < rank; i++)
    if (l->items[i].floor < floor && l->items[i].end == NS_LANE_END) {
      l->items[i].floor = floor;
      l->items[i].job = 0;
    }
}

int64_t ns_lanes_top(const ns_lanes *l, int64_t queue_id) {
  size_t first;
  size_t n = ns_lanes_of(l, queue_id, &first);
  int64_t top = 0;
  for (size_t i = first; i < first + n; i++)
    if (l->items[i].floor > top)
      top = l->items[i].floor;
  return top;
}

/* Where the sweep record of a queue is or belongs. */
static size_t place_of_sweep(const ns_lanes *l, int64_t queue_id) {
  size_t first = 0;
  size_t end = l->nsweeps;
  while (first < end) {
    size_t middle = first + (end - first) / 2;
    if (l->sweeps[middle].queue_id < queue_id)
      first = middle + 1;
    else
      end = middle;
  }
  return first;
}

const ns_sweep *ns_lanes_known(const ns_lanes *l, int64_t queue_id) {
  size_t i = place_of_sweep(l, queue_id);
  return i < l->nsweeps && l->sweeps[i].queue_id == queue_id ? &l->sweeps[i] : NULL;
}

ns_sweep *ns_lanes_sweep(ns_lanes *l, int64_t queue_id) {
  size_t first = l->next; /* whoever asks for all does so in their order */
  if (first >= l->nsweeps || l->sweeps[first].queue_id != queue_id)
    first = place_of_sweep(l, queue_id);
  l->next = first + 1;
  if (first < l->nsweeps && l->sweeps[first].queue_id == queue_id)
    return &l->sweeps[first];
  if (!ns_grow(&l->sweeps, &l->capsweeps, l->nsweeps + 1, sizeof *l->sweeps))
    return NULL;
  memmove(&l->sweeps[first + 1], &l->sweeps[first],
          (l->nsweeps++ - first) * sizeof *l->sweeps);
  l->sweeps[first] = (ns_sweep){.queue_id = queue_id};
  return &l->sweeps[first];
}
