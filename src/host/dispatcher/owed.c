/*
** Verdicts that the host owes. A copy of three numbers of each, for the verdicts
** themselves are their writer's alone while he waits for the database.
*/
#include "dispatcher/owed.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/alloc.h"

void nsh_owed_init(nsh_owed *o) {
  memset(o, 0, sizeof *o);
  pthread_mutex_init(&o->lock, NULL);
}

void nsh_owed_free(nsh_owed *o) {
  for (size_t i = 0; i < NSH_WAITERS; i++)
    free(o->of[i].items);
  pthread_mutex_destroy(&o->lock);
}

/* Those from 'first' on. What was given back unbegun has no end, nor has what only
** ends a claim. */
static void add(nsh_debts *d, const nsh_batch *b, size_t first) {
  if (b->n <= first)
    return;
  nsh_must(ns_grow(&d->items, &d->cap, d->n + b->n - first, sizeof *d->items));
  for (size_t i = first; i < b->n; i++) {
    const ns_verdict *v = &b->items[i];
    if (v->ended > 0 && v->lease >= 0)
      d->items[d->n++] = (ns_owed){v->id, v->run, v->ended};
  }
}

void nsh_owed_set(nsh_owed *o, nsh_waiter who, const nsh_retry *u) {
  nsh_debts *d = &o->of[who];
  pthread_mutex_lock(&o->lock);
  d->n = 0;
  add(d, &u->batch, 0);
  add(d, &u->later, 0);
  add(d, &u->ill, 0);
  add(d, &u->broods, u->nturns);
  pthread_mutex_unlock(&o->lock);
}

static int by_age(const void *a, const void *b) {
  const ns_owed *x = a;
  const ns_owed *y = b;
  return (x->since > y->since) - (x->since < y->since);
}

ns_owed *nsh_owed_list(nsh_owed *o, nsh_exchange *m, size_t *n) {
  nsh_debts all = {0};
  nsh_exchange_lock(m);
  pthread_mutex_lock(&o->lock);
  for (size_t i = 0; i < NSH_WAITERS; i++) {
    const nsh_debts *d = &o->of[i];
    nsh_must(ns_grow(&all.items, &all.cap, all.n + d->n, sizeof *all.items));
    if (d->n > 0)
      memcpy(all.items + all.n, d->items, d->n * sizeof *d->items);
    all.n += d->n;
  }
  pthread_mutex_unlock(&o->lock);
  add(&all, &m->verdicts, 0);
  add(&all, &m->broods, 0);
  add(&all, &m->large, 0);
  nsh_exchange_unlock(m);
  if (all.n > 1)
    qsort(all.items, all.n, sizeof *all.items, by_age);
  *n = all.n;
  return all.items;
}
