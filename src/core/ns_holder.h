/*
** Our row in nightshift_holder and the named lock beside it.
*/
#ifndef NS_HOLDER_H
#define NS_HOLDER_H

#include "nightshift.h"

/* After a reconnect: takes the lock again and says where we are now. */
ns_status ns_holder_resume(ns_db *db, ns_err *err);

/* Gives all claims back and removes the row; best effort, for closing. The row
** stays as long as a claim names it. */
void ns_holder_leave(ns_db *db);

/* Writes the number of this cycle, inside its transaction. */
ns_status ns_holder_cycle(ns_db *db, int64_t number, ns_err *err);

/* Whether the cycle of this number was committed. */
ns_status ns_holder_committed(ns_db *db, int64_t number, bool *yes, ns_err *err);

#endif
