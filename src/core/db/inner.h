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

/* Rolls the session back; if that fails, the session is given up. */
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

/* Prepares it, unless it is. Preparing may close other statements: see ns_link_prepare. */
ns_status ns_db_prepare(ns_db *db, ns_sql sql, ns_err *err);

/* Runs a named statement, once, on the connection there is. */
ns_status ns_db_run_once(ns_db *db, ns_sql sql, const ns_value *params, ns_err *err);

/* Prepares a statement without running it: may we run it, and do its tables exist? */
ns_status ns_db_try(ns_db *db, ns_sql sql, ns_err *err);

/* Our statements fit our tables. If a statement of ours misses a part there, the table was
** changed (SCHEMA); no job or verdict is at fault. */
ns_status ns_db_misfit(ns_status st, ns_err *err);

/* Runs before a transaction or statement of ours, on a live connection. STATE while the
** caller's own SQL has tables locked, which a transaction would unlock. */
ns_status ns_db_session_begins(const ns_db *db, ns_err *err);

#endif
