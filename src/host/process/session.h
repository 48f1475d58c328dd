/*
** Ending what was left behind in a session.
**
** Whatever a handler starts stays in its keeper's session unless it asks for
** one of its own (setsid), and no process can be moved into a session from
** outside. So a session is the one mark that orphans cannot lose by accident:
** everybody in it goes with the keeper, and who left it did so on purpose.
*/
#ifndef NSH_PROCESS_SESSION_H
#define NSH_PROCESS_SESSION_H

#include <stddef.h>
#include <sys/types.h>

/*
** Kills everybody in 'session' but the caller, the 'n' processes of 'spared'
** (0: none), and who descends from one of those or is in the process group of
** one that does. Returns when nobody else is left alive (at the latest after 5 s, for
** the sake of one that hangs in the kernel); zombies are their parents'.
** The session's number should still be taken: its leader is the caller, or has
** not been reaped, or only just.
*/
void nsh_session_kill(pid_t session, const pid_t *spared, size_t n);

#endif
