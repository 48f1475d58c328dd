/*
** The thread of schedules in a host: it pushes the jobs of ticks, and declares the schedules of
** the host's scripts.
**
** Invariant: a host without schedules has neither a Lua state nor a connection for them. (Not
** asserted: a Lua state does not know what it is for.)
*/
#ifndef NSH_SCHEDULES_H
#define NSH_SCHEDULES_H

#include "exchange/exchange.h"

typedef struct nsh_schedules nsh_schedules;

/* Starts the thread, with all signals blocked. '*out' is what there is to close, on errors, too.
** Errors: NOMEM. */
ns_status nsh_schedules_start(nsh_schedules **out, const nsh_config *cfg, nsh_exchange *exchange,
                              ns_err *err);

/* Ends the thread, after the transaction that it is at. False: it is stuck, and all that it uses
** has to stay. NULL is allowed. */
bool nsh_schedules_close(nsh_schedules *s);

#endif
