/*
** Verdicts of a cycle that was cut at its commit.
*/
#ifndef NS_CYCLE_IN_DOUBT_H
#define NS_CYCLE_IN_DOUBT_H

#include "handle.h"
#include "holder/holder.h"

/* Remembers what was to be written; out of memory: then a repeat is STALE. */
void ns_in_doubt_add(ns_db *db, const ns_doubtful *c);

/* Asks whether the cycle in doubt was written. No other can have been since.
** Errors: GONE, BUSY. */
ns_status ns_in_doubt_resolve(ns_db *db, ns_err *err);

/* A verdict that comes again, and is STALE because it was written the first time, is OK. */
void ns_in_doubt_own_up(ns_db *db, ns_verdict *v);

#endif
