/*
** Aging: a small share of the claims goes to what lies below, so that nothing
** starves. For claim/take.c.
*/
#ifndef NS_CLAIM_AGING_H
#define NS_CLAIM_AGING_H

#include "claim/lanes.h"
#include "claim/take.h"

/* Is a turn of the lower lanes due? */
bool ns_aging_due(const ns_db *db, const ns_sweep *s);

/* One turn: takes the oldest rows of one lower lane, some of the 'want' rows of
** this claim, at least one if there is any. */
ns_status ns_aging_take(ns_db *db, ns_sweep *s, size_t want, ns_takes *out,
                        ns_err *err);

/* A claim has taken rows in true order, the last one of 'rank'. */
void ns_aging_passed(ns_sweep *s, size_t rows, int64_t rank);

/* Nothing lies below: the whole queue has been looked through. */
void ns_aging_rest(ns_sweep *s);

#endif
