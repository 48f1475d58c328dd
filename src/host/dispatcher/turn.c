/*
** The common state of the queues and of maintenance in a turn: outages and signs of life.
**
** Invariant: an outage is logged once, with its end.
*/
#include "dispatcher/dispatcher.h"

#include <stdlib.h>

#include "base.h"

#define ERROR_FIRST 50000 /* after a failed cycle, doubling */
#define ERROR_LAST (5 * NS_SECOND)

/* ------------------------------------------------------------- outages */

void nsh_back_off(nsh_dispatch *d, const ns_err *err) {
  ns_log(NS_LOG_ERROR, "db.error",
         NS_FIELDS(ns_fs("code", ns_code(err->status)), ns_fi("number", err->sqlerr),
                   ns_fs("message", err->message)));
  nsh_count(&d->exchange->counts.errors[err->status], 1);
  d->error_wait = d->error_wait == 0 ? ERROR_FIRST : d->error_wait * 2;
  d->error_wait = nsh_sooner(d->error_wait, ERROR_LAST);
  d->error_at = ns_mono_us() + d->error_wait;
  if (err->status == NS_EDENIED) /* so that a right granted since counts */
    ns_renew(d->db);
  nsh_exchange_lock(d->exchange);
  d->exchange->cycling = false;
  nsh_exchange_unlock(d->exchange);
}

void nsh_recovered(nsh_dispatch *d) {
  d->error_wait = d->error_at = 0;
  if (atomic_exchange(&d->exchange->away, false))
    ns_log(NS_LOG_INFO, "db.back", NULL, 0);
}

bool nsh_keep_trying(void *arg, const ns_err *why) {
  nsh_dispatch *d = arg;
  nsh_exchange_moved(d->exchange, true);
  if (!atomic_load(&d->opened) || atomic_load(&d->exchange->give_up))
    return false;
  if (atomic_exchange(&d->exchange->away, true))
    return true;
  ns_log(NS_LOG_WARN, "db.lost", NS_FIELDS(ns_fs("why", why->message)));
  d->exchange->notify(d->exchange->notify_arg); /* a host that ends need not wait for it */
  return true;
}

/* ------------------------------------------------------- signs of life */

size_t nsh_turn_signs(const nsh_turn *t, ns_sign *signs) {
  size_t n = 0;
  for (size_t i = 0; i < t->ntouches; i++) {
    const nsh_touch *p = &t->touches[i];
    signs[n++] = (ns_sign){.id = p->id,
                             .run = p->run,
                             .worker_pid = p->pid,
                             .progress = p->progress,
                             .text = {p->text, p->n},
                             .began = p->began};
  }
  return n;
}

static int by_token(const void *a, const void *b) {
  const ns_sign *x = a;
  const ns_sign *y = b;
  return x->id != y->id ? (x->id > y->id) - (x->id < y->id) : (x->run > y->run) - (x->run < y->run);
}

/* There may be as many as the host has workers, so they are sorted. */
void nsh_turn_lost(nsh_dispatch *d, const nsh_turn *t, ns_sign *signs, size_t n) {
  bool any = false;
  qsort(signs, n, sizeof *signs, by_token); /* signs come in the order of workers */
  nsh_exchange_lock(d->exchange);
  for (size_t i = 0; i < t->ntouches; i++) {
    ns_sign key = {.id = t->touches[i].id, .run = t->touches[i].run};
    const ns_sign *s = bsearch(&key, signs, n, sizeof key, by_token);
    if (s != NULL && s->lost) {
      nsh_exchange_lose(d->exchange, &t->touches[i]);
      any = true;
    }
  }
  nsh_exchange_unlock(d->exchange);
  if (any)
    d->exchange->notify(d->exchange->notify_arg);
}
