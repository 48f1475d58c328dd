/*
** The dispatcher: the thread that settles finished jobs and claims as many as the workers can
** take. Between that it does maintenance: ids, signs of life, the list of queues, ringing.
** Threads beside it (threads/threads.h) do work that may take long, and listen while there is
** nothing to claim.
**
** Invariant: only the dispatcher's thread touches its ns_db once it runs; data that it shares
** goes through the exchange.
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

/* ------------------------------------------------------- handlers of a host */

/* For people to read: the names of its handlers, from the lines that a zygote reports. */

/* Adds the names that are to be claimed, one per line. They are the names of 'lines' that
** cfg->only has, too, or the other way round; 'lines' may have fewer than 'count'. Returns
** their number, which is larger than the number added when the names left out are not known. */
int64_t nsh_served_pick(ns_buf *picked, ns_bytes lines, int64_t count, const nsh_config *cfg);

/* How many lines they are. */
int64_t nsh_served_count(ns_bytes lines);

/* Adds ["name",…], with null at its end when 'lines' has fewer than 'count'. */
void nsh_served_json(ns_buf *list, ns_bytes lines, int64_t count);

/* Adds "name, name". */
void nsh_served_text(ns_buf *text, ns_bytes lines);

#endif
