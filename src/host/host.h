/*
** The host: the process that `nightshift work` is. It puts loop, dispatcher,
** zygotes and workers together and answers signals.
*/
#ifndef NSH_HOST_H
#define NSH_HOST_H

#include "config.h"

/* Exit codes of the program. */
#define NSH_EXIT_OK 0
#define NSH_EXIT_FAILURE 1
#define NSH_EXIT_USAGE 2
#define NSH_EXIT_DATABASE 69
#define NSH_EXIT_CONFIG 78

/* Runs a host until it is told to stop or, with cfg->drain, has nothing left
** to do. Returns the exit code; messages go to stderr. '*known' (the caller frees it):
** empty, or when there was nothing left to do the names that it could run, a line each. */
int nsh_host_run(const nsh_config *cfg, ns_buf *known);

#endif
