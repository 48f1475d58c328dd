/*
** The upkeep: a thread with a connection of its own, for what may take long. It writes
** verdicts that bring many children, gives back what dead holders held, deletes history
** that is old enough, and is the place of whatever else nobody waits for.
**
** Invariant: its handle is no holder, so it claims nothing and writes no cycle. What
** it has put back is told to the dispatcher through the mailbox; so is each verdict that
** it has written, as the claim is still in the dispatcher's memory, and counts there as
** one that is not settled.
*/
#ifndef NSH_DISPATCHER_UPKEEP_H
#define NSH_DISPATCHER_UPKEEP_H

#include "config.h"
#include "dispatcher/exchange.h"
#include "dispatcher/slow.h"

typedef struct nsh_upkeep nsh_upkeep;

/* Connects; 'slow' is told of its waits. Errors: as ns_open. */
ns_status nsh_upkeep_open(nsh_upkeep **out, const nsh_config *cfg, nsh_exchange *mail,
                          nsh_slow *slow, ns_err *err);

ns_status nsh_upkeep_start(nsh_upkeep *u, ns_err *err);

/* Ends the thread and frees; its waits for the server are cut off after half a second.
** False: the thread is stuck in the client library, and all that it uses has to stay.
** NULL is allowed. */
bool nsh_upkeep_close(nsh_upkeep *u);

#endif
