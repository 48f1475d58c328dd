/*
** What a job may change in its process, and the next one is not to find: the current
** folder, umask, signal mask, locale and interval timers.
*/
#ifndef NSH_WORKER_RESTORE_H
#define NSH_WORKER_RESTORE_H

#include <stdbool.h>

/* Before any script is loaded, in the process that all others are forked from. */
void nsh_restore_begin(void);

/* Remembers how it is now. Once per worker. */
void nsh_restore_note(void);

/* Makes it so again; false: that failed, and the process is not to run another job. */
bool nsh_restore(void);

#endif
