/*
** The dispatcher: the thread that settles what has finished and claims what the workers can
** take, with maintenance between that: ids, signs of life, the list of queues, ringing. Threads
** beside it (threads/threads.h) do what may take long, and listen while there is nothing to claim.
**
** Invariant: only the dispatcher's thread touches its ns_db once it runs, and
** what it shares goes through the exchange.
*/
#ifndef NSH_DISPATCHER_DISPATCHER_H
#define NSH_DISPATCHER_DISPATCHER_H

#include "exchange/exchange.h"

/* ------------------------------------------------------------ the dispatcher */

typedef struct nsh_dispatch nsh_dispatch;

/*
** Connects, registers the host, makes the queues that were named. Nothing is
** retried: a server that is not there at the start is an error.
** Errors: as ns_open.
*/
ns_status nsh_dispatch_open(nsh_dispatch **out, const nsh_config *cfg, nsh_exchange *exchange,
                            nsh_slots *slots, ns_err *err);

/* Starts the threads, with all signals blocked. */
ns_status nsh_dispatch_start(nsh_dispatch *d, ns_err *err);

/* After exchange->ended: waits for the threads and frees. Before a start it only
** closes. False: a thread is stuck, and the exchange and the configuration have to stay.
** NULL is allowed. */
bool nsh_dispatch_close(nsh_dispatch *d);

/* ------------------------------------------------------- what a host can run */

/* For people to read: the names of its handlers, from the lines that a zygote reports. */

/* Adds the names that are to be claimed, a line each: those of 'lines', which may be
** fewer than 'count', or of cfg->only, that are in the other, too. Says how many they
** are, more than were added when those that are left out are not known. */
int64_t nsh_served_pick(ns_buf *picked, ns_bytes lines, int64_t count, const nsh_config *cfg);

/* How many lines they are. */
int64_t nsh_served_count(ns_bytes lines);

/* Adds ["name",…], with null at its end when 'lines' has fewer than 'count'. */
void nsh_served_json(ns_buf *list, ns_bytes lines, int64_t count);

/* Adds "name, name". */
void nsh_served_text(ns_buf *text, ns_bytes lines);

#endif
