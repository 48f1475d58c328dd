/*
** Our row in nightshift_holder and the named lock beside it.
*/
#ifndef NS_HOLDER_HOLDER_H
#define NS_HOLDER_HOLDER_H

#include "nightshift_host.h"

/* We were declared dead: no claim is ours any more, nor the id. */
void ns_holder_lost(ns_db *db);

/* We live, so none of the jobs that we lost has killed us: they lose the blame,
** best effort. Outside transactions; costs nothing when nothing was lost. */
void ns_holder_absolve(ns_db *db);

/* Writes the number of this cycle, inside its transaction. A holder that finds
** itself declared dead says BUSY, to be run again without its claims. */
ns_status ns_holder_cycle(ns_db *db, int64_t number, ns_err *err);

/* A holder's cycle, and the verdicts that it brought: those that are OK were to be written. */
typedef struct ns_doubtful {
  int64_t holder, number;
  const ns_verdict *verdicts;
  size_t n;
} ns_doubtful;

/* Whether it was committed. The holder may be one that this handle was before it was
** declared dead. */
ns_status ns_holder_committed(ns_db *db, const ns_doubtful *c, bool *yes, ns_err *err);

#endif
