/*
** What a claimer knows of the lanes (queue, rank) it claims from: how far it
** has come in each (the floor) and whether their sentinels stand. Pure memory.
**
** Floors are hints. A row below its floor, or in a lane that is not known, is
** found by a sweep without floors; ns_lanes says when one is affordable: a
** sweep may use at most 5 % of the time, so the next one may start 20 times
** its cost after it started, and never sooner than NS_SWEEP_MIN.
*/
#ifndef NS_LANES_H
#define NS_LANES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NS_LANE_END INT64_MAX        /* ready_at of a sentinel */
#define NS_LANES_MAX 100             /* lanes in one claim statement */
#define NS_SWEEP_MIN INT64_C(10000)  /* µs between two sweeps of a queue */

typedef struct ns_lane {
  int64_t queue_id;
  int64_t rank;
  int64_t floor;    /* smallest ready_at worth looking at */
  bool sentinel;    /* known to stand */
} ns_lane;

/* A queue as this claimer sees it. */
typedef struct ns_sweep {
  int64_t queue_id;
  int64_t next;     /* monotonic µs: when the next sweep is affordable */
  int64_t cost;     /* µs that the last one took */
  double credit;    /* jobs this queue may still take in its fair share */
  /* for aging, see ns_aging.c */
  int64_t passed;   /* rows taken in true order since the last turn */
  int64_t claims;   /* by how many claims; 0: nothing lies below */
  int64_t rank;     /* of the last of them */
  int64_t below;    /* lower lanes that had rows at the last turn */
  int64_t turn_at;  /* monotonic µs: when the next turn is due in any case */
  int64_t deep_at;  /* ... when to look for unknown lanes and hidden rows */
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

/* Nothing was found: floors move up to 'floor'. */
void ns_lanes_empty(ns_lanes *l, int64_t queue_id, int64_t floor);

/* The sweep record of a queue; NULL: OOM. */
ns_sweep *ns_lanes_sweep(ns_lanes *l, int64_t queue_id);

#endif
