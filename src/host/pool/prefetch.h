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

typedef struct nsh_backlog {
  nsh_waiting *items; /* ring of 'cap', a power of two */
  size_t first, n, cap;
} nsh_backlog;

/* Joins the line. */
void nsh_backlog_add(nsh_backlog *b, const nsh_waiting *w);

/* Who is first of a line that is not empty. */
const nsh_waiting *nsh_backlog_first(const nsh_backlog *b);

/* The first leaves; its job is gone then, too. */
void nsh_backlog_pop(nsh_backlog *b);

/* All that 'leaves' says leave the line, in one pass; how many. */
size_t nsh_backlog_drop(nsh_backlog *b, bool (*leaves)(void *arg, const ns_job *job),
                        void *arg);

void nsh_backlog_free(nsh_backlog *b);

#endif
