/*
** Stopping a running job, step by step: its handler is told (job:cancelled()
** is true), its Lua code is stopped (an error is raised in it), its worker gets
** SIGTERM, then SIGKILL. Each step has twice the time of the one before.
**
** Invariants: the ladder is left when the job ends, whichever way; a worker
** that survives to that point works on. While a seat is on it, it gets no jobs.
*/
#ifndef NSH_POOL_ESCALATION_H
#define NSH_POOL_ESCALATION_H

#include "pool/process.h"

#define NSH_STEP 500000      /* µs of the first step */
#define NSH_STEP_STOP 100000 /* ... when the whole host stops */

/* The running job of 's' is to stop; it stays with the first reason. 'said': the words of
** who has cancelled it, for the log, or "". The mailbox is locked. */
void nsh_escalation_start(nsh_process *s, nsh_why why, int64_t step, const char *said);

/* Takes the next step when it is due. */
void nsh_escalation_climb(nsh_process *s, int64_t now);

/* The job has ended. */
void nsh_escalation_leave(nsh_process *s);

/* Was the worker killed to stop its job? */
bool nsh_escalation_killed(const nsh_process *s);

#endif
