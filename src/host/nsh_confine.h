/*
** What a zygote and its workers may not do: gain rights, dump core, outlive the
** host when memory is short, and, when the host is root, be root.
*/
#ifndef NSH_CONFINE_H
#define NSH_CONFINE_H

#include "nsh_config.h"

/* Confines this process and all it will start. Errors: DENIED (the user of the
** configuration cannot be taken on). */
ns_status nsh_confine(const nsh_config *cfg, ns_err *err);

#endif
