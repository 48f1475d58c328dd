/*
** The session behind a handle's connection, as far as the caller's own SQL changes it.
*/
#ifndef NS_DB_RESET_H
#define NS_DB_RESET_H

#include "handle.h"

/* Does a statement, by its first words, leave the open transaction open? False: it may end
** it, by itself or in a procedure. */
bool ns_session_stays_inside(ns_bytes sql);

/* Before a statement of the caller's. Errors: STATE for one that begins or ends a
** transaction, outside ns_begin and ns_commit, and for one that names another character
** set than utf8mb4; as a statement. */
ns_status ns_session_allows(ns_db *db, ns_bytes sql, ns_err *err);

/* Behind it; 'st' is what became of it. STATE when it has left a transaction open outside
** ns_begin and ns_commit, which is rolled back. */
ns_status ns_session_saw(ns_db *db, ns_status st, ns_err *err);

/* Before a transaction, or a statement of ours, on a connection that is there: STATE while the
** caller's own SQL has tables locked, which a transaction would unlock. */
ns_status ns_session_begins(const ns_db *db, ns_err *err);

/* Behind the end of a transaction of the caller's: autocommit is on again. */
void ns_session_end(ns_db *db);

#endif
