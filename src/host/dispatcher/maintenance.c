/*
** Maintenance: what a host tells the database and asks of it, apart from settling and claiming.
** It tells that the host lives, what it can run, and how far its jobs are. It asks which claims
** were ended, and for ids for children. Work that may take long is the upkeep's
** (threads/upkeep.c).
**
** Invariant: no part of it affects a job's outcome, except the beat. A part that fails is done
** again, by the next turn or when its time comes. (Not asserted: it is about failures, which
** specs of outages cause.)
*/
#include "dispatcher/dispatcher.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base.h"
#include "ipc/ipc.h"

#define BEAT (10 * NS_SECOND)
#define BEAT_SOON (NS_SECOND / 20) /* while lost claims are being dropped */
#define CLAIMS_HOLD (25 * NS_SECOND) /* after a beat: other holders wait for 30 s */
#define TOLD_BUSY (NS_SECOND / 10)   /* at notices, while the listener does not listen … */
#define TOLD_QUIET (NS_SECOND / 2)   /* … and no job runs */
#define WORKERS_GAP (2 * NS_SECOND) /* between two reports of the workers' jobs */
#define RING_GAP (NS_SECOND / 20)
#define WIDEN 20000 /* a listener that should wait for more is woken */

/* ------------------------------------------------------------------ when */

/* Tells our holder to people that use ps, and to the upkeep: it looks at other holders for this
** one. */
static void tell_holder(nsh_dispatch *d) {
  char machine[256] = "";
  gethostname(machine, sizeof machine - 1);
  nsh_title_host(machine, d->holder);
  nsh_exchange_lock(d->exchange);
  d->exchange->assisted = d->holder;
  d->exchange->locks = ns_uses_locks(d->db);
  nsh_exchange_unlock(d->exchange);
}

void nsh_maintenance_open(nsh_dispatch *d) {
  d->holder = ns_holder_id(d->db);
  d->serves_at = d->declares_at = d->widen_at = NSH_NEVER;
  tell_holder(d);
}

void nsh_maintenance_close(nsh_dispatch *d) {
  free(d->handlers);
  free(d->names);
  free(d->on_dead);
  free(d->batched);
  nsh_reading_free(&d->reading);
}

/* The listener does not listen, and jobs that we hold may have been cancelled. Or there is no
** worker to take jobs, so it will not listen until there is one. */
static bool may_be_told(const nsh_dispatch *d) {
  const nsh_exchange *m = d->exchange;
  return !m->armed && (m->outstanding > 0 || nsh_exchange_room(m).all == 0);
}

static int64_t count_conflicts(const nsh_dispatch *d) {
  ns_counters c = ns_count(d->db);
  return c.deadlocks + c.lock_waits;
}

/* Do the workers do anything else than was told, or has the server run into more conflicts? */
static bool work_differs(const nsh_dispatch *d, const ns_workers *now) {
  return memcmp(&d->workers, now, sizeof d->workers) != 0 || d->conflicts != count_conflicts(d);
}

bool nsh_maintenance_due(const nsh_dispatch *d, int64_t now) {
  const nsh_exchange *m = d->exchange;
  return m->ntouches > 0 || m->want_ids > 0 || m->notices ||
         m->serves || now >= d->serves_at || now >= d->declares_at ||
         (work_differs(d, &m->workers) && now >= d->workers_at) ||
         now >= d->beat_at || now >= d->widen_at || (may_be_told(d) && now >= d->told_at);
}

int64_t nsh_maintenance_next(const nsh_dispatch *d) {
  int64_t t = nsh_sooner(d->beat_at, nsh_sooner(d->serves_at, d->declares_at));
  if (may_be_told(d))
    t = nsh_sooner(t, d->told_at);
  if (work_differs(d, &d->exchange->workers))
    t = nsh_sooner(t, d->workers_at);
  return nsh_sooner(t, d->widen_at);
}

static void take_served(nsh_dispatch *d) {
  nsh_exchange *m = d->exchange;
  if (!m->serves)
    return;
  m->serves = false;
  free(d->handlers);
  nsh_must((d->handlers = strdup(m->handlers)) != NULL);
  free(d->names);
  d->names = NULL;
  nsh_must(m->names == NULL || (d->names = strdup(m->names)) != NULL);
  d->renamed = true;
  if (m->declares) {
    free(d->on_dead);
    nsh_must((d->on_dead = strdup(m->on_dead)) != NULL);
    free(d->batched);
    nsh_must((d->batched = strdup(m->batched)) != NULL);
    d->declares_at = 0;
    m->declares = false;
  }
  if (m->reading.ended == 0)
    m->reading.ended = ns_now(d->db);
  nsh_reading_copy(&d->reading, &m->reading);
  d->taking = m->taking;
  d->tuning = m->tuning;
  d->serves_at = 0;
}

void nsh_maintenance_take(nsh_dispatch *d, nsh_turn *t, int64_t now) {
  nsh_exchange *m = d->exchange;
  take_served(d);
  t->workers = m->workers;
  t->notices = m->notices;
  if (may_be_told(d) && now >= d->told_at) {
    t->notices = true;
    d->told_at = now + (m->outstanding > 0 ? TOLD_BUSY : TOLD_QUIET);
  }
  t->want_ids = m->want_ids;
  t->touches = m->touches;
  t->ntouches = m->ntouches;
  m->notices = false;
  m->want_ids = 0;
  m->touches = NULL;
  m->ntouches = m->captouches = 0;
  m->turn++;
}

void nsh_maintenance_put_back(nsh_dispatch *d, nsh_turn *t) {
  nsh_exchange *m = d->exchange;
  nsh_exchange_lock(m);
  m->want_ids += t->want_ids;
  m->notices = m->notices || t->notices;
  nsh_exchange_unlock(m);
  for (size_t i = 0; i < t->ntouches; i++)
    free(t->touches[i].text); /* signs of life come again */
  free(t->touches);
}

/* ------------------------------------------------------------- for our jobs */

/* A sign that could not be written is for people to see, and comes again if the job
** shows more. */
static void write_touches(nsh_dispatch *d, nsh_turn *t) {
  ns_sign *signs;
  if (t->ntouches == 0)
    return;
  signs = nsh_alloc(t->ntouches * sizeof *signs);
  nsh_queues_touch(d->queues, t, signs);
  for (size_t i = 0; i < t->ntouches; i++)
    free(t->touches[i].text);
  free(signs);
  free(t->touches);
  t->touches = NULL;
}

static void take_ids(nsh_dispatch *d, size_t want) {
  int64_t ids[256];
  ns_err err;
  while (want > 0) {
    size_t n = want < 256 ? want : 256;
    if (ns_take_ids(d->db, ids, n, &err) != NS_OK)
      break;
    nsh_exchange_lock(d->exchange);
    nsh_exchange_ids(d->exchange, ids, n);
    nsh_exchange_unlock(d->exchange);
    d->exchange->notify(d->exchange->notify_arg);
    want -= n;
  }
  nsh_exchange_lock(d->exchange);
  d->exchange->want_ids += want; /* ids that could not be had are asked for again */
  nsh_exchange_unlock(d->exchange);
  if (want > 0)
    nsh_back_off(d, &err);
}

/* The exchange is locked. */
static void pass_notice(nsh_exchange *m, const ns_notice *n) {
  if (n->workers > 0)
    m->asked = n->workers;
  else
    nsh_exchange_revoke(m, n);
}

/* Claims that were ended from outside go to the loop, which stops their handlers, and so does the
** number of workers to have. */
static void read_notices(nsh_dispatch *d, nsh_turn *t) {
  ns_notice *list;
  ns_err err;
  size_t n;
  if (!t->notices)
    return;
  t->notices = ns_notices(d->db, &list, &n, &err) != NS_OK;
  if (n > 0) {
    nsh_exchange_lock(d->exchange);
    for (size_t i = 0; i < n; i++)
      pass_notice(d->exchange, &list[i]);
    nsh_exchange_unlock(d->exchange);
    d->exchange->notify(d->exchange->notify_arg);
  }
  free(list);
}

/* ---------------------------------------------------------- as one of many */

/* Is every claim that loop and workers know of the present holder's? */
static bool claims_are_ours(nsh_dispatch *d) {
  bool lost;
  nsh_exchange_lock(d->exchange);
  lost = d->exchange->lost_all;
  nsh_exchange_unlock(d->exchange);
  return !lost && ns_holder_id(d->db) == d->holder;
}

/* "We live": written with each cycle that writes, and at least so often. No host gives our
** claims to other hosts for a while then. */
static void write_beat(nsh_dispatch *d, int64_t now) {
  ns_err err;
  if (now < d->beat_at)
    return;
  if (ns_beat(d->db, &err) != NS_OK)
    nsh_back_off(d, &err);
  else if (claims_are_ours(d)) {
    d->beat_at = now + BEAT;
    nsh_slots_fresh(d->slots, now + CLAIMS_HOLD);
  } else
    d->beat_at = now + BEAT_SOON;
}

/* A holder that was declared dead has lost every claim. */
static void check_holder(nsh_dispatch *d) {
  int64_t holder = ns_holder_id(d->db);
  if (holder == d->holder)
    return;
  ns_log(NS_LOG_ERROR, "holder.lost",
         NS_FIELDS(ns_fi("was", d->holder), ns_fi("is", holder)));
  d->holder = holder;
  d->serves_at = 0;
  tell_holder(d);
  nsh_exchange_lock(d->exchange);
  d->exchange->lost_all = true;
  nsh_count(&d->exchange->counts.leases_lost, (int64_t)d->exchange->outstanding);
  nsh_exchange_unlock(d->exchange);
  d->exchange->notify(d->exchange->notify_arg);
}

/* Writes which handlers we can run, for people to read. */
static void write_served(nsh_dispatch *d, int64_t now) {
  ns_buf queues = NS_BUF_INIT;
  ns_buf reserves = NS_BUF_INIT;
  const nsh_reading *r = &d->reading;
  ns_serving s = {.workers = (int64_t)d->taking, .handlers = ns_str(d->handlers),
                  .scripts = ns_str(r->version), .files = r->files,
                  .load_began = r->began, .load_ended = r->ended,
                  .load_error = r->error, .wanted = (int64_t)d->tuning.wanted,
                  .tuned = d->tuning.told};
  ns_status st;
  ns_err err;
  if (now < d->serves_at)
    return;
  nsh_served_queues_json(&queues, d->cfg);
  nsh_served_reserves_json(&reserves, d->cfg);
  nsh_must(!queues.oom && !reserves.oom);
  if (d->cfg->nqueues > 0)
    s.queues = ns_buf_bytes(&queues);
  if (d->cfg->nreserves > 0)
    s.reserves = ns_buf_bytes(&reserves);
  if (d->tuning.refused[0] != '\0')
    s.refused = ns_str(d->tuning.refused);
  st = ns_serves(d->db, &s, &err);
  ns_buf_free(&queues);
  ns_buf_free(&reserves);
  d->serves_at = st == NS_OK ? NSH_NEVER : now + BEAT;
  if (st != NS_OK)
    ns_log(NS_LOG_WARN, "served.failed", NS_FIELDS(ns_fs("code", ns_code(st)),
                                                  ns_fs("error", err.message)));
}

/* While that fails, jobs go on: one that is dead pushes the job of the row that is there. */
void nsh_maintenance_declare(nsh_dispatch *d) {
  int64_t now = ns_mono_us();
  ns_status st;
  ns_err err;
  if (now < d->declares_at)
    return;
  st = ns_declare_on_dead(d->db, ns_str(d->on_dead), ns_str(d->handlers), &err);
  d->declares_at = st == NS_OK ? NSH_NEVER : now + BEAT;
  if (st != NS_OK)
    ns_log(NS_LOG_WARN, "declare.failed", NS_FIELDS(ns_fs("code", ns_code(st)),
                                                    ns_fs("error", err.message)));
}

/* Claims that stand and that our own memory has lost. Idle hosts are woken for them. */
static void check_claims(nsh_dispatch *d) {
  ns_rescued sum = {0};
  ns_err err;
  if (ns_release_unknown(d->db, &sum, &err) == NS_OK && sum.jobs > 0)
    ns_log(NS_LOG_ERROR, "mended", NS_FIELDS(ns_fi("jobs", sum.jobs)));
  nsh_count(&d->exchange->counts.mended, sum.jobs);
  d->more = d->more || sum.jobs > 0;
}

/* The state of the workers is for people, so not written at once: it changes all the time. */
static void write_workers(nsh_dispatch *d, const nsh_turn *t, int64_t now) {
  ns_err err;
  int64_t conflicts = count_conflicts(d);
  if (now < d->workers_at || !work_differs(d, &t->workers))
    return;
  d->workers_at = now + WORKERS_GAP;
  if (ns_tell_workers(d->db, &t->workers, &err) != NS_OK)
    return;
  d->workers = t->workers;
  d->conflicts = conflicts;
}

/* There is more than we can take: an idle host may have it. Our own listener,
** which waits for reserved queues, must not have us ring again and again. */
static void ring_idle_hosts(nsh_dispatch *d, int64_t now) {
  ns_err err;
  if (!d->more || now < d->ring_at)
    return;
  ns_ring(d->db, &err);
  d->ring_at = now + RING_GAP;
  d->more = d->cfg->nreserves == 0;
}

/* The listener that waits for too little is woken until it has seen that. */
static void widen_listener(nsh_dispatch *d, int64_t now) {
  bool narrow;
  if (now < d->widen_at)
    return;
  nsh_exchange_lock(d->exchange);
  narrow = d->exchange->narrow;
  nsh_exchange_unlock(d->exchange);
  d->widen_at = narrow ? now + WIDEN : NSH_NEVER;
  if (narrow)
    nsh_listen_wake(d->listen, d->db);
}

void nsh_maintenance_run(nsh_dispatch *d, nsh_turn *t) {
  int64_t now;
  if (t->want_ids > 0)
    take_ids(d, t->want_ids);
  write_touches(d, t);
  now = ns_mono_us();
  write_beat(d, now);
  check_holder(d);
  write_served(d, now);
  write_workers(d, t, now);
  read_notices(d, t);
  check_claims(d);
  ring_idle_hosts(d, now);
  widen_listener(d, now);
}
