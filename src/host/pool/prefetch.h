/*
** A line of claimed jobs that no worker has yet, in the order they came. There
** is one per pool: the jobs of a reserved queue wait by themselves, so that the
** workers kept for them find them whatever stands in front of others.
**
** Invariant: a load lives until the last of its jobs has left its line.
*/
#ifndef NSH_POOL_PREFETCH_H
#define NSH_POOL_PREFETCH_H

#include "dispatcher/exchange.h"

typedef struct nsh_waiting {
  const ns_job *job;
  nsh_load *load;   /* that the job's bytes are in */
  uint64_t arrival; /* counts over all lines */
} nsh_waiting;

typedef struct nsh_prefetch {
  nsh_waiting *items; /* ring of 'cap', a power of two */
  size_t first, n, cap;
} nsh_prefetch;

/* Joins the line. */
void nsh_prefetch_add(nsh_prefetch *b, const nsh_waiting *w);

/* Who is first of a line that is not empty. */
const nsh_waiting *nsh_prefetch_first(const nsh_prefetch *b);

/* The first leaves; its job is gone then, too. */
void nsh_prefetch_pop(nsh_prefetch *b);

/* All that 'leaves' says leave the line, in one pass; how many. */
size_t nsh_prefetch_drop(nsh_prefetch *b, bool (*leaves)(void *arg, const ns_job *job), void *arg);

void nsh_prefetch_free(nsh_prefetch *b);

#endif
