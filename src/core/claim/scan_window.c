/*
** Panes below a floor: how wide, and when all is looked at.
*/
#include "claim/scan_window.h"

#include "ns_time.h"

#define SHARE 20             /* 1/20 of the time: 5 % */
#define FULL_SHARE 200       /* 1/200 of the time, while that is dear, */
#define FULL_LATEST (10 * NS_SECOND) /* but no longer apart than this */
#define REST_LATEST NS_SECOND
#define CHEAP INT64_C(500)   /* µs: the next one may be wider */
#define NARROW INT64_C(1000) /* µs of the key */
#define WIDE NS_SECOND       /* to begin with, when all at once is too dear */
#define WIDEST (3600 * NS_SECOND)

ns_pane ns_scan_window_next(const ns_scan_window *w, int64_t floor) {
  bool dear = w->width > 0 && ns_mono_us() >= w->full_at;
  bool all = w->width == 0 || dear || w->width >= floor;
  return (ns_pane){all ? 0 : floor - w->width, floor, dear};
}

static int64_t narrower(int64_t width) {
  return width > WIDEST ? WIDE : width / 4 > NARROW ? width / 4 : NARROW;
}

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* A look that was dear is believed when the next one is, too: it may have been the
** machine that was slow. */
static void seen_all(ns_scan_window *w, int64_t cost) {
  bool twice = w->width > 0;
  w->open = false;
  w->seen_at = ns_mono_us();
  w->full_at = ns_mono_us() + (twice ? least(cost * FULL_SHARE, FULL_LATEST) : 0);
  if (cost <= NS_LOOK_MAX)
    w->width = 0;
  else if (w->width == 0)
    w->width = WIDE;
}

void ns_scan_window_seen(ns_scan_window *w, ns_pane seen, int64_t cost) {
  if (seen.from == 0)
    seen_all(w, cost);
  else if (cost > NS_LOOK_MAX)
    w->width = narrower(w->width);
  else if (cost < CHEAP && w->width < WIDEST)
    w->width *= 4;
}

void ns_scan_window_cut(ns_scan_window *w, ns_pane tried) {
  w->width = narrower(tried.to - tried.from);
}

void ns_scan_window_rest(ns_scan_window *w, int64_t start) {
  int64_t pause = least((ns_mono_us() - start) * SHARE, REST_LATEST);
  w->next = start + (pause > NS_LOOK_MIN ? pause : NS_LOOK_MIN);
}

int64_t ns_scan_window_when(const ns_scan_window *w) {
  return w->width > 0 && w->full_at > w->next ? w->full_at : w->next;
}
