/*
** What a claimer knows of the lanes (queue, rank) it claims from: how far it
** has come in each (the floor) and whether their sentinels stand. Pure memory.
**
** Floors are hints. A row below its floor, or in a lane that is not known, is
** found by a sweep (claim/sweep.c).
*/
#ifndef NS_CLAIM_LANES_H
#define NS_CLAIM_LANES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "claim/scan_window.h"

#define NS_LANE_END INT64_MAX        /* ready_at of a sentinel */
#define NS_LANES_MAX 100             /* lanes in one claim statement */

typedef struct ns_lane {
  int64_t queue_id;
  int64_t rank;
  int64_t floor;    /* smallest ready_at worth looking at */
  bool sentinel;    /* known to stand */
  /* of a claimer of some names, see claim/scout.h; else they keep their first values */
  bool unknown;     /* how many rows of other names lie above the floor: not looked */
  bool spent;       /* a claim has come short of it up to 'end' */
  int64_t end;      /* what lies from there on has not been looked at, exclusive */
  int64_t left;     /* rows from the floor to 'end', about */
  int64_t start;    /* where the last stretch of those begins */
  int64_t job;      /* up to which rows of the instant 'floor' have been looked at */
  int64_t reach;    /* the floor when the claim under way is committed */
} ns_lane;

/* A stretch of a lane: from <= ready_at < to. */
typedef struct ns_gap {
  int64_t rank, from, to;
} ns_gap;

/* A queue as this claimer sees it. */
typedef struct ns_sweep {
  int64_t queue_id;
  ns_scan_window window; /* of looking below the floors of its lanes */
  int64_t since;    /* claims since the last sweep */
  double credit;    /* jobs this queue may still take in its fair share */
  bool quiet;       /* it had nothing at the last look, see claim/shares.c */
  /* for aging, see claim/aging.c */
  int64_t passed;   /* rows taken in true order since the last turn */
  int64_t claims;   /* by how many claims; 0: nothing lies below */
  int64_t rank;     /* of the last of them */
  int64_t below;    /* lower lanes that had rows at the last turn */
  int64_t turn_at;  /* monotonic µs: when the next turn is due in any case */
  int64_t cursor;   /* rank that the rotation has come to */
  unsigned turns;
  /* of a claimer of some names, see claim/scout.h */
  ns_gap hidden;/* below a floor, with a row to be claimed; to = 0: none */
  ns_gap round; /* where the round below the floors has come to: rank and from; */
                    /* 'to' is a job, as in ns_lane */
  int64_t cost;     /* µs that it has taken so far */
  int64_t claimed_at; /* monotonic: the last claim, */
  bool full;        /* which came back full */
} ns_sweep;

typedef struct ns_lanes {
  ns_lane *items; /* sorted by (queue_id, rank) */
  size_t n, cap;
  ns_sweep *sweeps;
  size_t nsweeps, capsweeps;
  size_t next;    /* where the one behind the last that was asked for is */
  int backoff;    /* cycles left on the slow path; see claim/take.c */
  int penalty;    /* how many the next collision will cost */
  bool some;      /* claims are of some names only */
} ns_lanes;

void ns_lanes_free(ns_lanes *l);

/* Forgets all floors: another server, a reconnect, a clock that stepped. */
void ns_lanes_drop_floors(ns_lanes *l);

/* The lanes of a queue: first index, and how many. */
size_t ns_lanes_of(const ns_lanes *l, int64_t queue_id, size_t *first);

/* Learns that a row of (queue, rank) was claimed at ready_at. NULL: OOM. */
ns_lane *ns_lanes_saw(ns_lanes *l, int64_t queue_id, int64_t rank, int64_t ready_at);

/* There is a row again at ready_at: a known floor above it goes back to it, unless
** too many rows of other names may lie between: then the next sweep finds it. */
void ns_lanes_back(ns_lanes *l, int64_t queue_id, int64_t rank, int64_t ready_at);

/* Nothing was found in the lanes above 'rank': their floors move up to 'floor'. */
void ns_lanes_passed(ns_lanes *l, int64_t queue_id, int64_t rank, int64_t floor);

/* A claim has come short in these lanes, up to their ends; of those without one,
** nothing older than 'reach' is left. */
void ns_lanes_short(ns_lane *lanes, size_t n, int64_t reach);

/* What claims have come short of is passed, when they are committed, or not. */
void ns_lanes_settle(ns_lanes *l, bool committed);

/* The place of a known lane; NULL: it is not known. */
ns_lane *ns_lanes_find(const ns_lanes *l, int64_t queue_id, int64_t rank);

/* The highest floor of a queue's lanes: nothing is hidden above it. */
int64_t ns_lanes_top(const ns_lanes *l, int64_t queue_id);

/* The sweep record of a queue, if there is one. */
const ns_sweep *ns_lanes_known(const ns_lanes *l, int64_t queue_id);

/* The sweep record of a queue; NULL: OOM. */
ns_sweep *ns_lanes_sweep(ns_lanes *l, int64_t queue_id);

#endif
