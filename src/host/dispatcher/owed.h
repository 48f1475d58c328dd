/*
** Which verdicts the host owes: those whose handlers have ended and that the database has
** not got yet. Those who write them say so with each cycle; another thread may ask.
*/
#ifndef NSH_DISPATCHER_OWED_H
#define NSH_DISPATCHER_OWED_H

#include "dispatcher/exchange.h"
#include "dispatcher/retry.h"

/* Who writes verdicts, and waits for the database. */
typedef enum nsh_waiter { NSH_DISPATCHER, NSH_UPKEEP, NSH_WAITERS } nsh_waiter;

/* As they were told; 'lock' guards it. It may be taken while the mailbox is locked. */
typedef struct nsh_debts {
  ns_owed *items;
  size_t n, cap;
} nsh_debts;

typedef struct nsh_owed {
  pthread_mutex_t lock;
  nsh_debts of[NSH_WAITERS];
} nsh_owed;

void nsh_owed_init(nsh_owed *o);
void nsh_owed_free(nsh_owed *o);

/* 'who' has these from here on; rows of adopted tables are left out. When he has taken them
** out of the mailbox it is still locked. */
void nsh_owed_set(nsh_owed *o, nsh_waiter who, const nsh_retry *u);

/* All, with those in the mailbox, which is not locked; the oldest first. The array is
** malloc'd; 'NULL': there is none. */
ns_owed *nsh_owed_list(nsh_owed *o, nsh_exchange *m, size_t *n);

#endif
