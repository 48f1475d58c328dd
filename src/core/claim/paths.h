/*
** A claiming statement in its two forms: fast (a DELETE that gives up at once
** when it meets a row that somebody holds) and skip (a SELECT … SKIP LOCKED,
** whose rows are then deleted by key).
*/
#ifndef NS_CLAIM_PATHS_H
#define NS_CLAIM_PATHS_H

#include "handle.h"

/* Runs the form that is open now. '*ran' is the statement to fetch from;
** '*slow' says that its rows are locked and still to be deleted. */
ns_status ns_paths_run(ns_db *db, ns_bytes fast, ns_bytes skip,
                       const ns_value *params, ns_stmt **ran, bool *slow,
                       ns_err *err);

#endif
