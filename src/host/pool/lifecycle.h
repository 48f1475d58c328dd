/*
** The processes in the seats: they are forked, leave, are killed, die, and are
** replaced.
**
** Invariant: a seat is filled again only after its last process was reported
** dead, so a slot has one worker at a time.
*/
#ifndef NSH_POOL_LIFECYCLE_H
#define NSH_POOL_LIFECYCLE_H

#include "pool/pool.h"

/* ---------------------------------------------------------- what happened */

/* New workers come from 'z'; older ones leave after their running job. */
void nsh_lifecycle_generation(nsh_pools *t, nsh_zygote *z);

void nsh_lifecycle_forked(nsh_pools *t, uint32_t index, pid_t pid, int why);
void nsh_lifecycle_exited(nsh_pools *t, uint32_t index, int status);

/* A zygote is gone, and so is whoever it had forked. */
void nsh_lifecycle_orphaned(nsh_pools *t, nsh_zygote *z);

/* Of pool/messages.c: the worker is about to exit. The mailbox is locked. */
void nsh_lifecycle_resigned(nsh_process *s);

/* Of pool/process.c: a worker that is not to be believed any more. */
void nsh_lifecycle_distrust(nsh_process *s);

/* "killed by signal 9 (Killed)", "exited with status 3"; of a status as wait
** gives it, or negative: it died with its parent. */
void nsh_lifecycle_describe(char out[96], int status);

/* ------------------------------------------------------------------ orders */

/* Forks where nobody sits, if it is time. */
void nsh_lifecycle_fill(nsh_pools *t);

/* No more jobs for this seat: its worker leaves or is going to be killed. */
void nsh_lifecycle_doom(nsh_process *s);

void nsh_lifecycle_kill(nsh_process *s, int sig);

/* Lets the worker go after its running job. */
void nsh_lifecycle_leave(nsh_process *s);

#endif
