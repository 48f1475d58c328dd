/*
** Keeping memory shared: what the zygote does to its heap before it forks, so
** that its workers write to as few of the common pages as can be.
*/
#ifndef NSH_PROCESS_SHARE_H
#define NSH_PROCESS_SHARE_H

/* Everything is loaded, and what was garbage is freed. */
void nsh_share(void);

#endif
