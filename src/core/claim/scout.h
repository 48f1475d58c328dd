/*
** A claim of some names passes over the rows of others, and those stay: there may be
** 500,000 at the head of a lane. Whoever claims goes over each of them once, without
** locks and in steps that are bounded: so the claim itself, which locks all it reads, is
** over a stretch in which few are. For claim/take.c and claim/sweep.c.
*/
#ifndef NS_CLAIM_SCOUT_H
#define NS_CLAIM_SCOUT_H

#include "handle.h"

/* Goes on above the floors of the lanes of which it is not known where a row to be
** claimed is, for some milliseconds: their floors rise. A stretch that may have fewer
** than 'want' jobs becomes longer. */
ns_status ns_scout_above(ns_db *db, ns_sweep *s, size_t want, ns_err *err);

/* One step on a round below the floors, or, with 'all', as many as find something or
** end the round. '*found': 'hidden' of 's' is where. */
ns_status ns_scout_below(ns_db *db, ns_sweep *s, bool all, bool *found, ns_err *err);

/* Has a lane of this queue been left in the middle, by this cycle's claim? */
bool ns_scout_goes_on(const ns_db *db, int64_t queue_id);

#endif
