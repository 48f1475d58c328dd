/*
** A push that was cut at its commit.
*/
#ifndef NS_PUSH_IN_DOUBT_H
#define NS_PUSH_IN_DOUBT_H

#include "handle.h"
#include "push/insert.h"

/* On a transaction of its own: writes the push unless its first try did; '*yes'
** when it did. Errors: as ns_insert_jobs. */
ns_status ns_push_replay(ns_db *db, ns_insert *rows, size_t n, bool *yes, ns_err *err);

/* Writes what is not kept of a push on the open transaction: see ns_insert_keep. '*yes'
** as above. Errors: as ns_insert_jobs. */
ns_status ns_push_insert(ns_db *db, ns_insert *rows, size_t n, bool *yes, ns_err *err);

/* Is this the push that is in doubt, made again? */
bool ns_push_repeats(const ns_db *db, ns_bytes queue, const ns_push *jobs, size_t n);

/* Remembers a push. Out of memory: then a repeat is a new push. */
void ns_push_remember(ns_db *db, ns_bytes queue, const ns_push *jobs, const ns_insert *rows,
                      size_t n);

/* Gives the repeat, as many rows, the ids and nonces of the push in doubt, and whom it
** kept. */
void ns_push_number(const ns_db *db, const ns_push *jobs, ns_insert *rows);

#endif
