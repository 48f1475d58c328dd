/*
** The dispatcher: the one thread that talks to the database about jobs. It
** runs cycles (settle what finished, claim what the workers can take) and the
** chores between them: ids, signs of life, the list of queues, ringing. A second,
** small thread listens on a connection of its own while there is nothing to claim,
** and a third, the upkeep, does on another what may take long.
**
** Invariant: only the dispatcher's thread touches its ns_db once it runs, and
** whatever it shares goes through the mailbox. A verdict leaves it only when
** the database has answered for it.
*/
#ifndef NSH_DISPATCHER_DISPATCHER_H
#define NSH_DISPATCHER_DISPATCHER_H

#include "config.h"
#include "dispatcher/exchange.h"
#include "ipc/shared_slot.h"

typedef struct nsh_dispatch nsh_dispatch;

/*
** Connects, registers the host, makes the queues that were named. Nothing is
** retried: a server that is not there at the start is an error.
** Errors: as ns_open.
*/
ns_status nsh_dispatch_open(nsh_dispatch **out, const nsh_config *cfg, nsh_exchange *mail,
                            nsh_slots *slots, ns_err *err);

/* Starts the threads, with all signals blocked. */
ns_status nsh_dispatch_start(nsh_dispatch *d, ns_err *err);

/* After mail->ended: waits for the threads and frees. Before a start it only
** closes. False: a thread is stuck, and the mailbox and the configuration have to stay.
** NULL is allowed. */
bool nsh_dispatch_close(nsh_dispatch *d);

#endif
