/*
** Everything the guardian of a private server needs, in one block that is made
** before the fork.
*/
#ifndef NS_PRIVATE_PLAN_H
#define NS_PRIVATE_PLAN_H

#include "private/guardian.h"
#include "private/home.h"

typedef struct ns_plan {
  ns_guard guard; /* borrows from the rest and from the home */
  char title[PATH_MAX + 32], path[PATH_MAX + 128];
  char install_db[PATH_MAX], mariadbd[PATH_MAX];
  char defaults[160], datadir[160], owner[128];
} ns_plan;

/* Fills the zeroed '*t'. Errors: GONE (not installed), SERVER (the home was
** made by another version), DENIED. */
ns_status ns_plan_make(ns_plan *t, const ns_home *h, ns_err *err);

#endif
