/*
** Looking below a floor. Whoever reads a key from its floor on misses what was
** committed late below it; but there lie the deleted rows that purge has not removed
** yet, and they may be millions. Pure memory.
**
** As a rule a look is at all there is below. When that takes longer than NS_LOOK_MAX,
** looks are at a pane right below the floor, where late commits are, as wide as is
** cheap, for 1/20 of the time; and at all for 1/200. A pane further down would be no
** cheaper: the server reads on through deleted rows to the next that is not.
*/
#ifndef NS_CLAIM_SCAN_WINDOW_H
#define NS_CLAIM_SCAN_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

#define NS_LOOK_MIN INT64_C(10000) /* µs between two looks */
#define NS_LOOK_MAX INT64_C(3000)  /* µs that one may take; claim_late, too, has it */

typedef struct ns_scan_window {
  int64_t next;    /* monotonic µs: when another look is affordable */
  int64_t full_at; /* ... when one at all is, while that is dear */
  int64_t width;   /* µs of the key, of the pane; 0: all is cheap */
  int64_t seen_at; /* ... when all was last looked at; 0: never */
  bool open;       /* all is to be looked at, and has not been yet */
} ns_scan_window;

/* What to look at: from <= key < to. */
typedef struct ns_pane {
  int64_t from, to;
  bool dear; /* known to take long */
} ns_pane;

/* The next pane below 'floor'. */
ns_pane ns_scan_window_next(const ns_scan_window *w, int64_t floor);

/* It has been looked at, for 'cost' µs. */
void ns_scan_window_seen(ns_scan_window *w, ns_pane seen, int64_t cost);

/* It took too long and was not looked at to its end: the next is narrower. */
void ns_scan_window_cut(ns_scan_window *w, ns_pane tried);

/* A look that began at 'start', monotonic, is over. */
void ns_scan_window_rest(ns_scan_window *w, int64_t start);

/* When an open look at all is affordable, monotonic. */
int64_t ns_scan_window_when(const ns_scan_window *w);

#endif
