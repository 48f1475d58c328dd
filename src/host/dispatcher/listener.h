/*
** The listener thread: waits in the server, on a connection that holds no
** lock, for a reason to claim.
**
** Invariant: it waits only while it is armed, and being woken disarms it, so
** rows that nobody can take at the moment do not make it spin.
*/
#ifndef NSH_DISPATCHER_LISTENER_H
#define NSH_DISPATCHER_LISTENER_H

#include "dispatcher/exchange.h"

typedef struct nsh_listen nsh_listen;

/* Connects. Errors: as ns_open. */
ns_status nsh_listen_open(nsh_listen **out, const ns_db *db, nsh_exchange *mail, ns_err *err);

ns_status nsh_listen_start(nsh_listen *l, ns_err *err);

/* See ns_listen_near. */
void nsh_listen_near(nsh_listen *l, const ns_db *db, const int64_t *queues, size_t n);

/* Ends its wait, as a ring would; it may come too early for that. */
void nsh_listen_wake(nsh_listen *l, ns_db *db);

/* Makes the thread end, with 'db' to interrupt its wait in the server. Gives
** up after a second when the server does not help. */
void nsh_listen_stop(nsh_listen *l, ns_db *db);

/* Ends what a connection of ours runs; 0: none. */
void nsh_listen_interrupt(ns_db *db, int64_t thread);

/* Waits for the thread, which leaves a server that does not help, and frees. NULL is
** allowed. */
void nsh_listen_close(nsh_listen *l);

#endif
