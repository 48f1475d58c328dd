/*
** The threads beside the dispatcher's: one that listens for a reason to claim, one that looks
** after slow answers, and the upkeep.
**
** Invariant: none of them uses the dispatcher's connection, except to have a wait stopped or
** ended; their results go through the exchange. (Not asserted: a connection does not know its
** threads.)
*/
#ifndef NSH_THREADS_THREADS_H
#define NSH_THREADS_THREADS_H

#include "exchange/exchange.h"

/* ------------------------------------------ owed verdicts: slow.c */

/* The verdicts that the host owes: their handlers have ended, and the database has not got them
** yet. The threads that write them report here with each cycle; another thread may ask. */

/* The threads that write verdicts, and wait for the database. */
typedef enum nsh_waiter { NSH_DISPATCHER, NSH_UPKEEP, NSH_WAITERS } nsh_waiter;

/* -------------------------------------------------------------- slow answers */

/* Slow answers of the database: the host's connections report here which statement they wait
** for. A thread of its own looks at waits that last, and logs them while they do. It also shows
** report_owed which verdicts have waited for a second. */

typedef struct nsh_slow nsh_slow;

/* Does not connect yet. Errors: NOMEM. */
ns_status nsh_slow_open(nsh_slow **out, const nsh_config *cfg, nsh_exchange *exchange, ns_err *err);

/* A handle that is opened with '*db' will tell of its waits, from any thread. */
void nsh_slow_watch(nsh_slow *s, nsh_waiter who, ns_config *db);

/* The work it is at from here on, for people: so many verdicts, and a claim. */
void nsh_slow_doing(nsh_slow *s, nsh_waiter who, size_t verdicts, bool claims);

/* Since when 'who' waits for an answer, monotonic µs, and of which statement (static); 0: it
** does not. From any thread. */
int64_t nsh_slow_since(const nsh_slow *s, nsh_waiter who, const char **what);

/* Thread 'who' owes these verdicts from here on. If the verdicts have been taken out of the
** exchange it is still locked. */
void nsh_slow_owes(nsh_slow *s, nsh_waiter who, const nsh_retry *u);

/* With all signals blocked. */
ns_status nsh_slow_start(nsh_slow *s, ns_err *err);

/* To be called after the last handle that reports here is closed. False: the thread is stuck in
** a connect, and all its memory has to stay. NULL is allowed. */
bool nsh_slow_close(nsh_slow *s);

/* ------------------------------------------ listeners: listener.c */

/* The listener thread: waits in the server, on a connection that holds no
** lock, for a reason to claim.
**
** Invariant: it waits only while it is armed, and being woken disarms it. So rows that no
** worker can take at the moment do not make it spin. */

typedef struct nsh_listen nsh_listen;

/* Connects. Errors: as ns_open. */
ns_status nsh_listen_open(nsh_listen **out, const ns_db *db, nsh_exchange *exchange, ns_err *err);

ns_status nsh_listen_start(nsh_listen *l, ns_err *err);

/* See ns_listen_near. */
void nsh_listen_near(nsh_listen *l, const ns_db *db, const int64_t *queues, size_t n);

/* Ends its wait, as a ring would; it may come too early for that. */
void nsh_listen_wake(nsh_listen *l, ns_db *db);

/* Makes the thread end, with 'db' to interrupt its wait in the server. Gives
** up after a second when the server does not help. */
void nsh_listen_stop(nsh_listen *l, ns_db *db);

/* Waits for the thread, which leaves a server that does not help, and frees. NULL is
** allowed. */
void nsh_listen_close(nsh_listen *l);

/* ------------------------------------------- the upkeep: upkeep.c */

/* The upkeep: a thread with a connection of its own, for work that may take long. It writes
** verdicts that bring many children, gives back claims of dead holders, and deletes history
** that is old enough. Any other work that no job waits for belongs here.
**
** Invariant: its handle is no holder, so it claims nothing and writes no cycle. It tells the
** dispatcher through the exchange which jobs it has put back, and each verdict that it has
** written. That claim is still in the dispatcher's memory, and counts there as one that is not
** settled. */

typedef struct nsh_upkeep nsh_upkeep;

/* Connects; 'slow' is told of its waits. Errors: as ns_open. */
ns_status nsh_upkeep_open(nsh_upkeep **out, const nsh_config *cfg, nsh_exchange *exchange,
                          nsh_slow *slow, ns_err *err);

ns_status nsh_upkeep_start(nsh_upkeep *u, ns_err *err);

/* Ends the thread and frees; its waits for the server are cut off after half a second. False:
** the thread is stuck in the client library, and all its memory has to stay. NULL is allowed. */
bool nsh_upkeep_close(nsh_upkeep *u);

#endif
