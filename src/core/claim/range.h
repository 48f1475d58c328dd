/*
** The condition of a claiming statement: ranges of lanes of one queue, in the
** order of the key, in the place of the mark that the statement has for them.
*/
#ifndef NS_CLAIM_RANGE_H
#define NS_CLAIM_RANGE_H

#include "handle.h"

typedef struct ns_ranges {
  ns_value params[3 * NS_LANES_MAX + 2];
  size_t n;     /* ranges */
  bool crowd;   /* without rows of jobs that are claimed alone */
  size_t nparams;
} ns_ranges;

void ns_ranges_begin(ns_ranges *r, int64_t queue_id, bool crowd);

/* Rows of one lane: from <= ready_at < to. There is room for NS_LANES_MAX. One that can
** have no rows is left out; when all are, 'n' stays 0 and there is nothing to ask for: a
** DELETE … RETURNING whose condition is impossible would be answered without rows, as
** one that a KILL QUERY has hit. */
void ns_ranges_add(ns_ranges *r, int64_t rank, int64_t from, int64_t to);

/* At most so many rows. The parameters are complete. */
void ns_ranges_end(ns_ranges *r, size_t limit);

/* The statement with as many ranges in the place of its mark; 'kinds': as of
** ns_filter_kinds. */
ns_status ns_ranges_text(const ns_ranges *r, ns_sql sql, const char *kinds, ns_buf *text,
                         ns_err *err);

#endif
