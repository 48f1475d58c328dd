/*
** What a claimer knows of the lanes (queue, rank) it claims from: how far it
** has come in each (the floor) and whether their sentinels stand. Pure memory.
**
** Floors are hints. A row below its floor, or in a lane that is not known, is
** found by a sweep (ns_sweep.c).
*/
#ifndef NS_LANES_H
#define NS_LANES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ns_window.h"

#define NS_LANE_END INT64_MAX        /* ready_at of a sentinel */
#define NS_LANES_MAX 100             /* lanes in one claim statement */

typedef struct ns_lane {
  int64_t queue_id;
  int64_t rank;
  int64_t floor;    /* smallest ready_at worth looking at */
  bool sentinel;    /* known to stand */
} ns_lane;

/* A queue as this claimer sees it. */
typedef struct ns_sweep {
  int64_t queue_id;
  ns_window window; /* of looking below the floors of its lanes */
  int64_t since;    /* claims since the last sweep */
  double credit;    /* jobs this queue may still take in its fair share */
  /* for aging, see ns_aging.c */
  int64_t passed;   /* rows taken in true order since the last turn */
  int64_t claims;   /* by how many claims; 0: nothing lies below */
  int64_t rank;     /* of the last of them */
  int64_t below;    /* lower lanes that had rows at the last turn */
  int64_t turn_at;  /* monotonic µs: when the next turn is due in any case */
  int64_t cursor;   /* rank that the rotation has come to */
  unsigned turns;
} ns_sweep;

typedef struct ns_lanes {
  ns_lane *items; /* sorted by (queue_id, rank) */
  size_t n, cap;
  ns_sweep *sweeps;
  size_t nsweeps, capsweeps;
  int backoff;    /* cycles left on the slow path; see ns_claim.c */
  int penalty;    /* how many the next collision will cost */
  bool never_fast; /* here a lock wait would end the whole transaction */
} ns_lanes;

void ns_lanes_free(ns_lanes *l);

/* Forgets all floors: another server, a reconnect, a clock that stepped. */
void ns_lanes_drop_floors(ns_lanes *l);

/* The lanes of a queue: first index, and how many. */
size_t ns_lanes_of(const ns_lanes *l, int64_t queue_id, size_t *first);

/* Learns that a row of (queue, rank) was claimed at ready_at. False: OOM. */
bool ns_lanes_saw(ns_lanes *l, int64_t queue_id, int64_t rank, int64_t ready_at);

/* There is a row again at ready_at: a known floor above it goes back to it. */
void ns_lanes_back(ns_lanes *l, int64_t queue_id, int64_t rank, int64_t ready_at);

/* Nothing was found in the lanes above 'rank': their floors move up to 'floor'. */
void ns_lanes_passed(ns_lanes *l, int64_t queue_id, int64_t rank, int64_t floor);

/* The place of a known lane; NULL: it is not known. */
ns_lane *ns_lanes_find(const ns_lanes *l, int64_t queue_id, int64_t rank);

/* The highest floor of a queue's lanes: nothing is hidden above it. */
int64_t ns_lanes_top(const ns_lanes *l, int64_t queue_id);

/* The sweep record of a queue, if there is one. */
const ns_sweep *ns_lanes_known(const ns_lanes *l, int64_t queue_id);

/* The sweep record of a queue; NULL: OOM. */
ns_sweep *ns_lanes_sweep(ns_lanes *l, int64_t queue_id);

#endif
