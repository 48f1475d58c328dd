/*
** Memory of the host process. A host that cannot get a few bytes cannot keep
** its promises either, so these do not fail: they log and abort. What it held
** is rescued by others, and its workers die with it.
*/
#ifndef NSH_IPC_ALLOC_H
#define NSH_IPC_ALLOC_H

#include <stdbool.h>
#include <stddef.h>

/* Zeroed; freed with free. */
void *nsh_alloc(size_t n);

/* Logs and aborts unless 'ok': nsh_must(ns_grow(…)). */
void nsh_must(bool ok);

#endif
