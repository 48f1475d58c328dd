/*
** The dispatcher's thread: waits for a reason, takes the orders out of the exchange, does a
** turn, and so on until the host ends. The queues (settling and claiming) and
** dispatcher/maintenance.c do the work of a turn; turn.h has the picture. While there is no
** reason, it sorts jobs of queues with groups that take turns.
*/
#include "dispatcher/dispatcher.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "ipc/ipc.h"

#define HOLD_LOOK (NS_SECOND / 4) /* at the connection, while jobs run */
#define ASKS_MAX (60 * NS_SECOND) /* between two signs of life in a turn: the server may be slow */
#define CLOSE_MAX (3 * NS_SECOND) /* from its end on the server is waited for so long */

/* --------------------------------------------------------------- one turn */

static bool is_due(const nsh_dispatch *d, int64_t now) {
  return nsh_queues_due(d->queues, now) || nsh_maintenance_due(d, now);
}

static bool has_work(const nsh_dispatch *d, int64_t now) {
  const nsh_exchange *m = d->exchange;
  if (atomic_load(&m->give_up))
    return true;
  if (now < d->error_at)
    return false;
  return is_due(d, now) || (m->finish && nsh_exchange_quiescent(m));
}

/* When has_work may change its mind by itself. */
static int64_t next_time(const nsh_dispatch *d, int64_t now) {
  if (now < d->error_at)
    return d->error_at;
  return nsh_sooner(nsh_maintenance_next(d), nsh_queues_next(d->queues));
}

static void wait_until(nsh_exchange *m, int64_t when) {
  struct timespec t = {(time_t)(when / NS_SECOND),
                       (long)(when % NS_SECOND) * 1000};
  pthread_cond_timedwait(&m->work, &m->lock, &t);
}

/* When queues are to be sorted, in the time that nothing else needs. The lock is held. */
static int64_t sort_time(const nsh_dispatch *d) {
  int64_t at = ns_sort_next(d->db);
  return at == 0 || d->exchange->finish ? NSH_NEVER : at > d->error_at ? at : d->error_at;
}

/* The lock is open meanwhile. A turn reconnects, for only a turn knows what that means for the
** claims. */
static void sort_some(nsh_dispatch *d) {
  ns_err err;
  int64_t connected = ns_reconnects(d->db);
  if (ns_hung_up(d->db)) {
    d->beat_at = 0;
    return;
  }
  nsh_exchange_unlock(d->exchange);
  nsh_exchange_moved(d->exchange, true);
  nsh_slow_doing(d->slow, NSH_DISPATCHER, 0, true);
  if (ns_sort(d->db, &err) != NS_OK)
    nsh_back_off(d, &err);
  if (ns_reconnects(d->db) != connected)
    d->beat_at = 0;
  nsh_slow_doing(d->slow, NSH_DISPATCHER, 0, false);
  nsh_exchange_lock(d->exchange);
}

static void take_turn(nsh_dispatch *d, nsh_turn *t) {
  nsh_exchange *m = d->exchange;
  int64_t now = ns_mono_us();
  nsh_exchange_lock(m);
  nsh_exchange_moved(m, false);
  while (!has_work(d, now)) {
    int64_t sort_at = sort_time(d);
    int64_t next = nsh_sooner(next_time(d, now), sort_at);
    bool holds = m->outstanding > 0;
    if (now >= sort_at)
      sort_some(d);
    else
      wait_until(m, holds ? nsh_sooner(next, now + HOLD_LOOK) : next);
    nsh_exchange_moved(m, false);
    now = ns_mono_us();
    if (holds && ns_hung_up(d->db)) /* come back before other holders think us dead */
      d->beat_at = now;
  }
  t->room = nsh_exchange_room(m);
  t->limit = t->room.all;
  nsh_queues_take(d->queues, t, now);
  nsh_maintenance_take(d, t, now);
  ns_assert(t->limit == t->room.all);
  m->cycling = true;
  m->claiming = t->limit > 0;
  nsh_exchange_unlock(m);
}

/* Jobs first: claimed jobs do not wait for maintenance. */
static void do_turn(nsh_dispatch *d, nsh_turn *t) {
  nsh_exchange_moved(d->exchange, true);
  nsh_maintenance_declare(d);
  if (!nsh_queues_run(d->queues, t)) {
    nsh_maintenance_put_back(d, t);
    return;
  }
  nsh_maintenance_run(d, t);
  if (d->error_at == 0)
    atomic_store(&d->exchange->rounded_at, ns_mono_us());
}

/* ------------------------------------------------------------- the thread */

/* True when the host has asked to end and nothing is left to write. */
static bool may_end(nsh_dispatch *d) {
  bool end;
  nsh_exchange_lock(d->exchange);
  end = d->exchange->finish && nsh_exchange_quiescent(d->exchange);
  nsh_exchange_unlock(d->exchange);
  return end || atomic_load(&d->exchange->give_up);
}

static void *thread(void *arg) {
  nsh_dispatch *d = arg;
  nsh_exchange *m = d->exchange;
  nsh_turn t;
  d->self = pthread_self();
  pthread_setname_np(d->self, "ns-dispatcher"); /* for `top -H` */
  while (!may_end(d)) {
    take_turn(d, &t);
    do_turn(d, &t);
  }
  ns_end_by(d->db, ns_mono_us() + CLOSE_MAX);
  nsh_listen_stop(d->listen, d->db);
  nsh_exchange_lock(m);
  m->clean = nsh_exchange_quiescent(m);
  m->ended = true;
  nsh_exchange_unlock(m);
  m->notify(m->notify_arg);
  return NULL;
}

/* ----------------------------------------------------------- birth and end */

/* Without these procedures all goes on, only no host is woken by a push at once. */
static void say_unrung(ns_db *db) {
  char which[80] = "";
  const char *name;
  ns_err why;
  ns_err err;
  bool denied = true;
  for (size_t i = 0; (name = ns_calls_told(db, i, &err)) != NULL; i++) {
    size_t n = strlen(which);
    if (err.status == NS_OK || err.status == NS_EGONE || err.status == NS_EBUSY)
      continue;
    denied = denied && err.status == NS_EDENIED;
    snprintf(which + n, sizeof which - n, "%s%s", n > 0 ? ", " : "", name);
    why = err;
  }
  if (which[0] != '\0')
    ns_log(NS_LOG_WARN, "host.unrung",
           NS_FIELDS(ns_fs("call", which), ns_fs("error", why.message),
                     ns_fs("advice",
                           denied ? "jobs wait up to 10 s; grant EXECUTE: "
                                    "nightshift doctor --grants worker"
                                  : "jobs wait up to 10 s; nightshift migrate "
                                    "makes procedures anew")));
}

ns_status nsh_dispatch_open(nsh_dispatch **out, const nsh_config *cfg, nsh_exchange *exchange,
                            nsh_slots *slots, ns_err *err) {
  nsh_dispatch *d = nsh_alloc(sizeof *d);
  ns_config db = cfg->db;
  ns_status st;
  *out = NULL;
  d->cfg = cfg;
  d->exchange = exchange;
  d->slots = slots;
  db.keep_trying = nsh_keep_trying;
  db.keep_trying_arg = d;
  if ((st = nsh_slow_open(&d->slow, cfg, exchange, err)) != NS_OK) {
    nsh_dispatch_close(d);
    return st;
  }
  nsh_slow_watch(d->slow, NSH_DISPATCHER, &db);
  if ((st = ns_open(&d->db, &db, err)) != NS_OK || (st = ns_probe(d->db, err)) != NS_OK ||
      (st = ns_register(d->db, true, err)) != NS_OK) {
    nsh_dispatch_close(d);
    return st;
  }
  ns_calls_send(d->db);
  if ((st = nsh_queues_open(&d->queues, d, err)) != NS_OK ||
      (st = nsh_listen_open(&d->listen, d->db, exchange, err)) != NS_OK ||
      (st = nsh_upkeep_open(&d->upkeep, cfg, exchange, d->slow, err)) != NS_OK) {
    nsh_dispatch_close(d);
    return st;
  }
  ns_claim_strictly(d->db, cfg->strict);
  ns_forget_done(d->db, cfg->forget_done);
  say_unrung(d->db);
  atomic_store(&d->opened, true);
  nsh_maintenance_open(d);
  exchange->woken = true; /* for the first claim */
  exchange->patience = ASKS_MAX + 2 * cfg->db.read_timeout;
  *out = d;
  return NS_OK;
}

/* Signals are the loop's business: threads start with all of them blocked. */
ns_status nsh_dispatch_start(nsh_dispatch *d, ns_err *err) {
  sigset_t all;
  sigset_t old;
  ns_status st;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  atomic_store(&d->exchange->rounded_at, ns_mono_us());
  st = nsh_listen_start(d->listen, err);
  if (st == NS_OK)
    st = nsh_upkeep_start(d->upkeep, err);
  if (st == NS_OK)
    st = nsh_slow_start(d->slow, err);
  if (st == NS_OK && pthread_create(&d->thread, NULL, thread, d) != 0)
    st = ns_fail(err, NS_ENOMEM, "cannot start the dispatcher's thread");
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  d->running = st == NS_OK;
  return st;
}

const nsh_slow *nsh_dispatch_slow(const nsh_dispatch *d) {
  return d->slow;
}

bool nsh_dispatch_close(nsh_dispatch *d) {
  bool ended;
  if (d == NULL)
    return true;
  if (d->running)
    pthread_join(d->thread, NULL);
  ended = nsh_upkeep_close(d->upkeep);
  nsh_listen_close(d->listen);
  ns_close(d->db);
  if (ended) /* no thread is left that tells it */
    ended = nsh_slow_close(d->slow);
  nsh_queues_close(d->queues);
  nsh_maintenance_close(d);
  free(d);
  return ended;
}
