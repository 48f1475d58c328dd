/*
** Sweeps: what a claim over the known lanes from their floors on does not see. For
** claim/take.c and claim/aging.c.
*/
#ifndef NS_CLAIM_SWEEP_H
#define NS_CLAIM_SWEEP_H

#include "handle.h"

/* Is one affordable now? */
bool ns_sweep_due(const ns_sweep *s);

/* Is it so cheap that it has never been cut short? */
bool ns_sweep_cheap(const ns_sweep *s);

/* Learns lanes, and moves floors back to late rows, so that the next claim takes both;
** takes nothing itself. '*news': whether it has. 'all': of all there is
** below the floors; else of one pane. */
ns_status ns_sweep_run(ns_db *db, ns_sweep *s, bool all, bool *news, ns_err *err);

/* 'n' times a statement in brackets, as one: '*s' has run with 'params'. */
ns_status ns_sweep_ask(ns_db *db, ns_sql sql, size_t n, const ns_value *params,
                       ns_stmt **s, ns_err *err);

#endif
