/*
** The runners of adopted tables: a thread for each takes its rows in as jobs, and writes what is
** owed to them.
**
** Invariant: a table that is locked, slow or altered keeps only its own runner waiting. (Not
** asserted: it is about time.)
*/
#ifndef NSH_RUNNERS_H
#define NSH_RUNNERS_H

#include "exchange/exchange.h"

typedef struct nsh_runners nsh_runners;

/* Connects and checks the mappings. '*out' is what there is to close, on errors, too. Errors: as
** db:adopt. */
ns_status nsh_runners_open(nsh_runners **out, const nsh_config *cfg, nsh_exchange *exchange,
                           ns_err *err);

/* Starts the threads, with all signals blocked. Errors: NOMEM. */
ns_status nsh_runners_start(nsh_runners *all, ns_err *err);

/* When no verdict is left to write: rows that were not begun are given back, what is owed is
** written, and the threads end. False: one is stuck, and all that it uses has to stay. NULL is
** allowed. */
bool nsh_runners_close(nsh_runners *all);

#endif
