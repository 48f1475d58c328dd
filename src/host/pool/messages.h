/*
** What workers say: verdicts, signs of life, log lines, wishes for ids.
**
** Invariant: a worker speaks of its oldest task only, and each task gets one
** verdict: what it says about others is old news or nonsense.
*/
#ifndef NSH_POOL_MESSAGES_H
#define NSH_POOL_MESSAGES_H

#include "pool/process.h"

/* One frame of the worker in 's'; false: nonsense. The mailbox is locked. */
bool nsh_messages_frame(nsh_process *s, nsh_frame *f);

/* The oldest task of 's' is over after 'micros': 'v' is its verdict, complete but for
** the task's numbers and log. 'v->error' is borrowed; the rest of its bytes are kept by
** the mailbox's batch already. The mailbox is locked. */
void nsh_messages_end(nsh_process *s, const ns_verdict *v, int64_t micros);

/* Passes a sign of life of the running job on to the database, with news if
** there are any. The mailbox is locked. */
void nsh_messages_touch(nsh_process *s, int64_t now);

/* The running job is due for a sign of life. */
bool nsh_messages_due(const nsh_process *s, int64_t since, int64_t now);

/* Serves those who wait for ids, as far as there are any. The mailbox is
** locked. */
void nsh_messages_serve_ids(struct nsh_pools *t);

#endif
