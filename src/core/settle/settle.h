/*
** Settling a batch of verdicts on an open transaction.
*/
#ifndef NS_SETTLE_SETTLE_H
#define NS_SETTLE_SETTLE_H

#include "claim/claim.h"
#include "nightshift_host.h"

/* Writes the verdicts and their children; each gets its status: OK, STALE, or
** BUSY when somebody holds its row. Errors: what makes the whole batch fail. */
ns_status ns_settle_batch(ns_db *db, ns_verdict *v, size_t n, ns_err *err);

/* After the commit: claims are forgotten in memory. */
void ns_settle_done(ns_db *db, const ns_verdict *v, size_t n);

/* Turns a verdict that the server refuses into a failure of its job. 'text'
** must outlive the verdict. */
void ns_settle_refused(ns_verdict *v, const char *text);

#endif
