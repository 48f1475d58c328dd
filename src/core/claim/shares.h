/*
** Which of its queues a claim asks, and for how many jobs. For claim/take.c.
*/
#ifndef NS_CLAIM_SHARES_H
#define NS_CLAIM_SHARES_H

#include "claim/take.h"

/* Places that nobody may take but queues that have too few jobs stay empty: what is
** left of 'limit' for all. */
size_t ns_open_places(const ns_feed *feeds, size_t nfeeds, size_t limit);

#endif
