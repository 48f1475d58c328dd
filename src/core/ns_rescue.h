/*
** Memory of a handle about holders that may be dead.
*/
#ifndef NS_RESCUE_H
#define NS_RESCUE_H

#include <stddef.h>
#include <stdint.h>

/* What earlier looks have seen of a holder; instants are monotonic µs. */
typedef struct ns_suspect {
  int64_t id, beat;
  int64_t beat_since; /* this beat has stood since then */
  int64_t free_since; /* its lock has been free since then; 0: it is not */
} ns_suspect;

typedef struct ns_suspects {
  ns_suspect *items;
  size_t n, cap;
} ns_suspects;

#endif
