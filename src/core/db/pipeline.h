/*
** A transaction in two waits: all that it writes is sent at once, and when the
** answers are in, COMMIT and a ring.
*/
#ifndef NS_DB_PIPELINE_H
#define NS_DB_PIPELINE_H

#include "handle.h"

/* A statement that returns no rows, to be run once per row of its columns. */
typedef struct ns_step {
  ns_sql sql;
  const ns_column *cols;
  size_t nrows; /* 0: it is left out */
  size_t changes; /* rows that it has to change */
} ns_step;

/*
** Runs the steps as one transaction, outside any other. With '*ring' a listener
** of each kind is rung after the commit; false when that may not be. '*cut': the
** connection was lost with the COMMIT on its way. Nothing is repeated. Errors: as
** those of the statements; GONE.
*/
ns_status ns_pipeline(ns_db *db, const ns_step *steps, size_t n, bool *ring, bool *cut,
                      ns_err *err);

/* Runs a statement that is a whole transaction. '*cut': it may have been
** committed all the same, after what is told by the error. */
ns_status ns_at_once(ns_db *db, ns_sql sql, const ns_value *params, bool *cut,
                     ns_err *err);

/* May this user ring? Who was refused does not ask again for a while. The handle
** is ready; false also when the answer does not come. */
bool ns_may_ring(ns_db *db);
bool ns_ring_refused(const ns_db *db);

#endif
