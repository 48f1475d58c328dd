/*
** Plain acks: jobs that are done and leave nothing else behind.
*/
#ifndef NS_SETTLE_FAST_ACK_H
#define NS_SETTLE_FAST_ACK_H

#include "settle/outcome.h"

/*
** Settles those of 'fates', sorted by token, that are plain acks (no children, no
** unique key, no signal) and that nobody holds: their status is OK. They are moved
** behind the others; '*rest': how many are left, in their order.
** Errors: GONE, NOMEM, SQL.
*/
ns_status ns_fast_ack(ns_db *db, ns_outcome *fates, size_t n, size_t *rest, ns_err *err);

#endif
