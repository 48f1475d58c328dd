/*
** The common state of sources and maintenance in a turn: outages, places, signs of life, and
** whether a host that drains has anything left to wait for.
**
** Invariants: an outage is logged once, with its end. t->limit is the number of places in
** t->room.
*/
#include "dispatcher/turn.h"

#include <stdlib.h>

#include "clock.h"
#include "err.h"
#include "log.h"

#define ERROR_FIRST 50000 /* after a failed cycle, doubling */
#define ERROR_LAST (5 * NS_SECOND)
#define TELL_GAP (10 * NS_SECOND) /* between two lines on what is waited for */

/* ------------------------------------------------------------- outages */

void nsh_back_off(nsh_dispatch *d, const ns_err *err) {
  ns_log(NS_LOG_ERROR, "db.error",
         NS_FIELDS(ns_fs("code", ns_code(err->status)), ns_fi("number", err->sqlerr),
                   ns_fs("message", err->message)));
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
  if (!atomic_load(&d->opened) || atomic_load(&d->exchange->give_up))
    return false;
  if (atomic_exchange(&d->exchange->away, true))
    return true;
  ns_log(NS_LOG_WARN, "db.lost", NS_FIELDS(ns_fs("why", why->message)));
  d->exchange->notify(d->exchange->notify_arg); /* one that ends need not wait for it */
  return true;
}

/* -------------------------------------------------------------- places */

bool nsh_turn_wanted(const nsh_turn *t, const nsh_source *by) {
  const nsh_dispatch *d = by->d;
  for (size_t i = 0; i < d->nsources; i++) {
    const nsh_source *s = d->sources[i];
    if (s != by && s->wants != NULL && s->wants(s, t))
      return true;
  }
  return false;
}

static size_t less(size_t n, size_t taken) {
  return n > taken ? n - taken : 0;
}

void nsh_turn_yield(nsh_turn *t, const nsh_source *by, size_t pool, size_t n) {
  const nsh_dispatch *d = by->d;
  size_t *own = &t->room.own[pool]; /* of pool 0: nothing */
  size_t of_own = n < *own ? n : *own;
  bool had = t->limit > 0;
  ns_assert(t->limit == t->room.all && pthread_equal(d->self, pthread_self()));
  *own -= of_own;
  t->room.open = less(t->room.open, n - of_own);
  t->limit = t->room.all = less(t->room.all, n);
  for (size_t i = 0; had && t->limit == 0 && i < d->nsources; i++)
    if (d->sources[i] != by && d->sources[i]->starved != NULL)
      d->sources[i]->starved(d->sources[i]);
}

/* ------------------------------------------------------- signs of life */

size_t nsh_turn_signs(const nsh_turn *t, int64_t least, int64_t greatest, ns_sign *signs) {
  size_t n = 0;
  for (size_t i = 0; i < t->ntouches; i++) {
    const nsh_touch *p = &t->touches[i];
    if (p->lease >= least && p->lease <= greatest)
      signs[n++] = (ns_sign){.id = p->id,
                             .run = p->run,
                             .worker_pid = p->pid,
                             .progress = p->progress,
                             .text = {p->text, p->n}};
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
  qsort(signs, n, sizeof *signs, by_token); /* those of a table are in the order of workers */
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

/* ------------------------------------------------------------ draining */

bool nsh_turn_over(nsh_dispatch *d) {
  nsh_exchange *m = d->exchange;
  bool rested = true;
  ns_assert(pthread_equal(d->self, pthread_self()));
  m->cycling = m->refused = false;
  m->deferred = 0;
  m->rest_due = -1;
  for (size_t i = 0; i < d->nsources; i++) {
    const nsh_source *s = d->sources[i];
    int64_t due;
    size_t deferred;
    rested = s->rested(s, &due, &deferred) && rested;
    m->refused = m->refused || (s->refuses != NULL && s->refuses(s));
    m->deferred += deferred;
    if (due >= 0 && (m->rest_due < 0 || due < m->rest_due))
      m->rest_due = due;
  }
  ns_assert(m->deferred <= m->unsettled);
  m->rested = rested && m->outstanding == 0 && m->unsettled == m->deferred;
  return m->rested && m->rest_due >= 0 && m->rest_due <= d->cfg->drain_within;
}

void nsh_turn_tell(nsh_dispatch *d) {
  int64_t now = ns_mono_us();
  bool any = false;
  if (now < d->waits_told_at)
    return;
  for (size_t i = 0; i < d->nsources; i++)
    any = d->sources[i]->tell(d->sources[i]) || any;
  if (any)
    d->waits_told_at = now + TELL_GAP;
}
