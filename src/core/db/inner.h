/*
** Shared declarations of the files of db/.
*/
#ifndef NS_DB_INNER_H
#define NS_DB_INNER_H

#include "handle.h"

/* ------------------------------------------------ the session: session.c */

/* STATE: the caller's own SQL has ended the caller's transaction. */
ns_status ns_db_tx_ended(ns_err *err);

/* Ends the session at once, in a way that counts as a loss: claims and locks are taken up
** again by the next connection. */
void ns_db_leave_session(ns_db *db);

/* After a run of server_now: reads the server's clock and settings. '*now': 0, none was told. */
ns_status ns_db_read_server(ns_db *db, int64_t *now, ns_err *err);

/* Rolls the session back; one that will not is given up. */
void ns_db_roll_back(ns_db *db);

/* Behind the end of a transaction of the caller's: autocommit is on again. */
void ns_db_session_end(ns_db *db);

ns_status ns_db_tell_connected(ns_db *db, ns_err *err);
void ns_db_tell_lost(ns_db *db);
void ns_db_tell_away(ns_db *db);
void ns_db_tell_set_back(ns_db *db);
void ns_db_tell_forked(ns_db *db);
void ns_db_tell_committed(ns_db *db, bool written);

/* ----------------------------------------------- statements: statement.c */

/* Before their link goes, which owns them. */
void ns_db_forget_statements(ns_db *db);

/* Prepares it, unless it is. What is prepared may make room for other statements: see
** ns_link_prepare. */
ns_status ns_db_prepare(ns_db *db, ns_sql sql, ns_err *err);

/* Runs a named statement, once, on the connection there is. */
ns_status ns_db_run_once(ns_db *db, ns_sql sql, const ns_value *params, ns_err *err);

/* Prepares it for nothing: may we, and is there what it needs? */
ns_status ns_db_try(ns_db *db, ns_sql sql, ns_err *err);

/* Our statements fit our tables: what one of them misses there is the fault of
** the change to them (SCHEMA), and never that of a job or a verdict. */
ns_status ns_db_misfit(ns_status st, ns_err *err);

/* Before a transaction, or a statement of ours, on a connection that is there: STATE while the
** caller's own SQL has tables locked, which a transaction would unlock. */
ns_status ns_db_session_begins(const ns_db *db, ns_err *err);

#endif
