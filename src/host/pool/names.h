/*
** The job names a host has met, each stored once, with the pace of its handler.
**
** Invariant: an entry lives at least as long as tasks point to it ('tasks'). Names are
** for pushers to choose, so there is an end to how many are kept: when there are more
** than NSH_NAMES_MAX, those that no task has and that are rarely met are forgotten.
*/
#ifndef NSH_POOL_NAMES_H
#define NSH_POOL_NAMES_H

#include "ns_buf.h"
#include "pool/pace.h"

typedef struct nsh_name {
  char *text;  /* NUL-terminated */
  size_t n;
  nsh_pace pace;
  size_t tasks;   /* that point here */
  uint32_t uses;  /* halved whenever names are forgotten */
  int64_t told; /* monotonic: when it was logged that nobody here handles it */
} nsh_name;

#define NSH_NAMES_MAX 1000 /* beside those of tasks */

typedef struct nsh_names {
  nsh_name **items; /* open addressing; 'cap' is a power of two */
  size_t n, cap;
} nsh_names;

/* The entry of a name, made when new. Without a task it is valid until the next call. */
nsh_name *nsh_names_get(nsh_names *names, ns_bytes text);
void nsh_names_free(nsh_names *names);

#endif
