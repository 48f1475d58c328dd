/*
** A thread that sleeps in the server, on a connection of its own, for one adopted table
** whose triggers ring.
**
** Invariant: it sleeps only while it is armed, and a wake disarms it; so a row that
** nobody can take at the moment does not make it spin. After wakes that have found
** nothing it pauses before it sleeps again, as whoever rings has yet to commit.
*/
#ifndef NSH_DISPATCHER_TABLE_LISTENER_H
#define NSH_DISPATCHER_TABLE_LISTENER_H

#include "dispatcher/exchange.h"

typedef struct nsh_table_listener nsh_table_listener;

/* For a table that is rung. Errors: NOMEM. */
ns_status nsh_table_listener_open(nsh_table_listener **out, ns_adopted *a, nsh_exchange *mail,
                                  ns_err *err);

/* The lock of the mailbox is held for these three. Waits for a row that 'holder' may
** claim, if it does not yet; 'found': the last wake was worth it. */
void nsh_table_listener_arm(nsh_table_listener *h, int64_t holder, bool found);

/* Has it been woken? And the same, once. */
bool nsh_table_listener_woken(const nsh_table_listener *h);
bool nsh_table_listener_take(nsh_table_listener *h);

/* Makes the thread end, with 'db' to end its sleep, and frees it; after a second in
** which the server does not help it leaves the server. NULL is allowed. */
void nsh_table_listener_close(nsh_table_listener *h, ns_db *db);

#endif
