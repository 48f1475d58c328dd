/*
** What a zygote and its workers may not do: gain rights (unless that is allowed), outlive the host when
** memory is short, and, when the host is root, be root. Nobody dumps core.
*/
#ifndef NSH_PROCESS_PRIVILEGES_H
#define NSH_PROCESS_PRIVILEGES_H

#include "config.h"

/* From here on this process and all it starts leave no core: the URL with its
** password is in memory. */
void nsh_no_core(void);

/* Confines this process and all it will start. Errors: DENIED (the user of the
** configuration cannot be taken on). */
ns_status nsh_confine(const nsh_config *cfg, ns_err *err);

#endif
