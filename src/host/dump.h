/*
** What a host is doing, told to the log when a person asks with SIGUSR1.
*/
#ifndef NSH_DUMP_H
#define NSH_DUMP_H

#include "pool/pool.h"

/* One line about all, one per pool of reserved workers, one per busy worker. */
void nsh_dump(nsh_pools *t);

#endif
