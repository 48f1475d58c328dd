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
void nsh_life_generation(nsh_table *t, nsh_zygote *z);

void nsh_life_forked(nsh_table *t, uint32_t index, pid_t pid, int why);
void nsh_life_exited(nsh_table *t, uint32_t index, int status);

/* A zygote is gone, and so is whoever it had forked. */
void nsh_life_orphaned(nsh_table *t, nsh_zygote *z);

/* Of pool/messages.c: the worker is about to exit. The mailbox is locked. */
void nsh_life_resigned(nsh_seat *s);

/* Of pool/process.c: a worker that is not to be believed any more. */
void nsh_life_distrust(nsh_seat *s);

/* "killed by signal 9 (Killed)", "exited with status 3"; of a status as wait
** gives it, or negative: it died with its parent. */
void nsh_life_describe(char out[96], int status);

/* ------------------------------------------------------------------ orders */

/* Forks where nobody sits, if it is time. */
void nsh_life_fill(nsh_table *t);

/* No more jobs for this seat: its worker leaves or is going to be killed. */
void nsh_life_doom(nsh_seat *s);

void nsh_life_kill(nsh_seat *s, int sig);

/* Lets the worker go after its running job. */
void nsh_life_leave(nsh_seat *s);

#endif
