/*
** Memory of lanes and sweeps: two small sorted-by-insertion arrays; a holder
** knows tens of lanes, so scanning beats anything cleverer.
*/
#include "ns_lanes.h"

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
    l->items[i].floor = 0;
  for (size_t i = 0; i < l->nsweeps; i++)
    l->sweeps[i].window = (ns_window){0};
}

size_t ns_lanes_of(const ns_lanes *l, int64_t queue_id, size_t *first) {
  size_t i = 0;
  size_t n = 0;
  while (i < l->n && l->items[i].queue_id < queue_id)
    i++;
  *first = i;
  while (i + n < l->n && l->items[i + n].queue_id == queue_id)
    n++;
  return n;
}

static bool before(const ns_lane *lane, int64_t queue_id, int64_t rank) {
  return lane->queue_id < queue_id ||
         (lane->queue_id == queue_id && lane->rank < rank);
}

/* Where (queue, rank) is or belongs. */
static size_t place(const ns_lanes *l, int64_t queue_id, int64_t rank) {
  size_t i = 0;
  while (i < l->n && before(&l->items[i], queue_id, rank))
    i++;
  return i;
}

ns_lane *ns_lanes_find(const ns_lanes *l, int64_t queue_id, int64_t rank) {
  size_t i = place(l, queue_id, rank);
  return i < l->n && l->items[i].queue_id == queue_id && l->items[i].rank == rank
             ? &l->items[i]
             : NULL;
}

bool ns_lanes_saw(ns_lanes *l, int64_t queue_id, int64_t rank,
                  int64_t ready_at) {
  ns_lane *lane = ns_lanes_find(l, queue_id, rank);
  size_t i;
  if (lane != NULL) {
    if (lane->floor < ready_at)
      lane->floor = ready_at;
    return true;
  }
  if (!ns_grow(&l->items, &l->cap, l->n + 1, sizeof *l->items))
    return false;
  i = place(l, queue_id, rank);
  lane = &l->items[i];
  memmove(lane + 1, lane, (l->n - i) * sizeof *lane);
  *lane = (ns_lane){.queue_id = queue_id, .rank = rank, .floor = ready_at};
  l->n++;
  return true;
}

void ns_lanes_back(ns_lanes *l, int64_t queue_id, int64_t rank, int64_t ready_at) {
  ns_lane *lane = ns_lanes_find(l, queue_id, rank);
  if (lane != NULL && lane->floor > ready_at)
    lane->floor = ready_at;
}

void ns_lanes_passed(ns_lanes *l, int64_t queue_id, int64_t rank,
                     int64_t floor) {
  size_t first;
  size_t n = ns_lanes_of(l, queue_id, &first);
  for (size_t i = first; i < first + n && l->items[i].rank < rank; i++)
    if (l->items[i].floor < floor)
      l->items[i].floor = floor;
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
  size_t first = place_of_sweep(l, queue_id);
  if (first < l->nsweeps && l->sweeps[first].queue_id == queue_id)
    return &l->sweeps[first];
  if (!ns_grow(&l->sweeps, &l->capsweeps, l->nsweeps + 1, sizeof *l->sweeps))
    return NULL;
  memmove(&l->sweeps[first + 1], &l->sweeps[first],
          (l->nsweeps++ - first) * sizeof *l->sweeps);
  l->sweeps[first] = (ns_sweep){.queue_id = queue_id};
  return &l->sweeps[first];
}
