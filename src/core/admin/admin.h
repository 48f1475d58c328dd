/*
** Shared declarations of the files of admin/.
*/
#ifndef NS_ADMIN_ADMIN_H
#define NS_ADMIN_ADMIN_H

#include "handle.h"

/* NOT_FOUND: no job has this id. */
ns_status ns_admin_not_found(int64_t id, ns_err *err);

#endif
