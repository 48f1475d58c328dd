/*
** Secrets that came with the command line and the environment. Everybody on
** the machine can read the arguments of a process (ps), and its user the
** environment it was started with (/proc/PID/environ): both are overwritten
** in place, and the program goes on with copies of its own. What stood there
** until then has been seen by whoever looked in those first milliseconds.
*/
#ifndef NSH_PROCESS_SECRETS_H
#define NSH_PROCESS_SECRETS_H

#include <stdbool.h>

/* Replaces 'argv' items by copies and blanks what --url says in the original;
** moves $NIGHTSHIFT_URL and $MYSQL_PWD off the block that the kernel shows.
** Call it first, once, while there is one thread. False: no memory. */
bool nsh_secrets_hide(int argc, char **argv);

/* Takes them out of this process's environment, and so of what it starts. */
void nsh_secrets_drop(void);

#endif
