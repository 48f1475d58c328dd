/*
** What is left to be told of jobs that have ended.
*/
#ifndef NS_FINISH_PENDING_H
#define NS_FINISH_PENDING_H

#include "finish/finish.h"

/* Writes jobs down that have ended on the open transaction: those that are picked
** (NULL: all), as far as anybody waits for them. Errors: GONE, NOMEM. */
ns_status ns_pending_note(ns_db *db, const ns_end *ends, size_t n, const bool *picked, ns_err *err);

/*
** Tells what was left, by whomever, on the open transaction. Afterwards
** db->met_due says whether to come back soon. Errors: GONE, NOMEM.
*/
ns_status ns_pending_tell(ns_db *db, ns_err *err);

/* The same in a transaction of its own, if there is anything. Errors: GONE,
** BUSY, NOMEM. */
ns_status ns_pending_look(ns_db *db, ns_err *err);

/* What a handle's own verb has left: tries for an eighth of a second, then it is
** others'. Best effort. */
void ns_pending_rest(ns_db *db);

/* Looks at the next edges for some whose target is no job, as a person's DELETE
** may leave them, and has them told; a cursor in the handle goes round. */
ns_status ns_pending_sweep(ns_db *db, ns_err *err);

#endif
