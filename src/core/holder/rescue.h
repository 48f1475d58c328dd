/*
** Memory of a handle about holders that may be dead.
*/
#ifndef NS_HOLDER_RESCUE_H
#define NS_HOLDER_RESCUE_H

#include "nightshift_host.h"

/* What earlier looks have seen of a holder; instants are monotonic µs. */
typedef struct ns_suspect {
  int64_t id, beat;
  int64_t beat_since; /* this beat has stood since then */
  int64_t free_since; /* its lock has been free since then; 0: it is not */
  bool ours;          /* we have declared it dead, and give back what it held */
} ns_suspect;

typedef struct ns_suspects {
  ns_suspect *items;
  size_t n, cap;
} ns_suspects;

/* For handles that wait: looks after other holders, when it is time. One that
** may not do so, or finds the server away, leaves it to others. */
void ns_look_around(ns_db *db);

/* Has the next look come when the next lease ends, if that is earlier. */
void ns_look_when_due(ns_db *db);

#endif
