/*
** Slow answers of the database: the host's connections tell here what they wait for, and a
** thread of its own looks after waits that last, and says so in the log while they do. It
** also tells those who ask (report_owed) which verdicts have waited for a second.
*/
#ifndef NSH_DISPATCHER_SLOW_H
#define NSH_DISPATCHER_SLOW_H

#include "dispatcher/owed.h"

typedef struct nsh_slow nsh_slow;

/* Connects to nobody yet. Errors: NOMEM. */
ns_status nsh_slow_open(nsh_slow **out, const nsh_config *cfg, nsh_exchange *mail, ns_err *err);

/* A handle that is opened with '*db' will tell of its waits, from any thread. */
void nsh_slow_watch(nsh_slow *s, nsh_waiter who, ns_config *db);

/* What it is at from here on, for people: so many verdicts, and a claim. */
void nsh_slow_doing(nsh_slow *s, nsh_waiter who, size_t verdicts, bool claims);

/* Which verdicts it owes: see nsh_owed_set. */
void nsh_slow_owes(nsh_slow *s, nsh_waiter who, const nsh_retry *u);

/* With all signals blocked. */
ns_status nsh_slow_start(nsh_slow *s, ns_err *err);

/* After the last handle that tells is closed. False: the thread is stuck in a connect, and
** all that it uses has to stay. NULL is allowed. */
bool nsh_slow_close(nsh_slow *s);

#endif
