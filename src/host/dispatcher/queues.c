/*
** A cycle: writes the verdicts, claims what the workers can take and hands it
** over. It is what the nightshift tables are as a source of jobs.
**
** When to claim: while claims come back full there is more ("hot"). A claim
** that came back short arms the listener, which waits in the server. What
** wakes it may not be visible yet (a trigger rings before its transaction
** commits): the listener finds that by itself, as it looks again in its sleep. So
** the host is silent until the next wake, the next due job or the ping. Only one
** that ends when nothing is left looks twice.
**
** With reserved workers this holds for each pool: while pool 0 is full, claims
** and the listener go on for the queues that have workers of their own, and
** leave the others out.
*/
#include "dispatcher/turn.h"

#include <string.h>

#include "dispatcher/served.h"
#include "ipc/alloc.h"
#include "ns_time.h"

#define FEEDS_OLD NS_SECOND
#define LAST_LOOK 5000 /* of one that drains, after a claim that found nothing */
#define HELD_RETRY 10000 /* dependents whose row somebody else holds */

/* ------------------------------------------------------------------ when */

/* A claim of any pool may find something. */
static void heat(nsh_dispatch *d) {
  for (size_t i = 0; i < d->mail->npools; i++)
    d->hot[i] = true;
}

ns_status nsh_queues_open(nsh_dispatch *d, ns_err *err) {
  d->unsettled = NSH_RETRY_INIT;
  heat(d);
  d->feeds.closed = true; /* until it is known what there are handlers for */
  d->due = -1;
  d->recheck_at = d->due_at = d->outlook.due_at = NSH_NEVER;
  return nsh_feeds_open(&d->feeds, d->cfg, d->db, err);
}

void nsh_queues_close(nsh_dispatch *d) {
  nsh_retry_free(&d->unsettled);
  nsh_feeds_free(&d->feeds);
}

/* A claim has a reason to find something. */
static bool may_claim(const nsh_dispatch *d, int64_t now) {
  nsh_room room = nsh_exchange_room(d->mail);
  bool any = room.open > 0 && d->hot[0];
  for (size_t i = 1; i < d->mail->npools; i++)
    any = any || (room.own[i] > 0 && d->hot[i]);
  return any || (room.all > 0 && (d->mail->woken || now >= d->recheck_at ||
                                  now >= d->due_at));
}

bool nsh_queues_due(const nsh_dispatch *d, int64_t now) {
  return d->unsettled.batch.n > 0 || d->mail->verdicts.n > 0 || d->mail->broods.n > 0 ||
         nsh_retry_waiting(&d->unsettled) > 0 || now >= d->unsettled.again_at || may_claim(d, now);
}

int64_t nsh_queues_next(const nsh_dispatch *d) {
  int64_t t = d->unsettled.again_at;
  if (nsh_exchange_room(d->mail).all > 0)
    t = nsh_sooner(t, nsh_sooner(d->recheck_at, d->due_at));
  return t;
}

static size_t less(size_t n, size_t taken) {
  return n > taken ? n - taken : 0;
}

/* Verdicts that wait for a later cycle keep their places, or there would be ever more of
** them; each of this one gives way to one job, whoever else waits. */
static void hold_places(nsh_room *room, size_t waiting, size_t written) {
  size_t most = 0;
  for (size_t i = 0; i < NSH_POOLS_MAX; i++) {
    size_t *n = i == 0 ? &room->open : &room->own[i];
    size_t left = less(*n, waiting);
    if (left < written)
      left = *n < written ? *n : written;
    most += *n = left;
  }
  room->all = most;
}

void nsh_queues_take(nsh_dispatch *d, nsh_turn *t, int64_t now) {
  nsh_exchange *m = d->mail;
  size_t written;
  t->cycle = d->nadopted == 0 || nsh_queues_due(d, now);
  written = nsh_retry_take(&d->unsettled, &m->verdicts, &m->broods, now);
  nsh_slow_owes(d->slow, NSH_DISPATCHER, &d->unsettled);
  t->room = nsh_exchange_room(m);
  hold_places(&t->room, nsh_retry_waiting(&d->unsettled) + m->broods.n, written);
  t->limit = t->room.all;
  t->woken = t->limit > 0 && (m->woken || now >= d->recheck_at);
  if (t->cycle && t->limit > 0) {
    m->woken = false;
    d->recheck_at = d->due_at = NSH_NEVER;
  }
}

/* That claim is still to be made; verdicts may have been written before it. */
static void put_back(nsh_dispatch *d, const nsh_turn *t) {
  size_t settled = nsh_retry_failed(&d->unsettled, ns_trouble(d->db), ns_mono_us());
  nsh_slow_owes(d->slow, NSH_DISPATCHER, &d->unsettled);
  if (t->limit > 0)
    heat(d);
  nsh_exchange_lock(d->mail);
  d->mail->unsettled -= settled;
  d->mail->woken = d->mail->woken || t->woken;
  nsh_exchange_unlock(d->mail);
}

bool nsh_queues_wants(const nsh_dispatch *d, const nsh_turn *t) {
  return t->cycle && t->limit > 0 && d->feeds.n > 0;
}

void nsh_queues_yield(nsh_dispatch *d, nsh_turn *t, size_t pool, size_t n) {
  size_t *own = &t->room.own[pool]; /* of pool 0: nothing */
  size_t of_own = n < *own ? n : *own;
  bool had = t->limit > 0;
  *own -= of_own;
  t->room.open = less(t->room.open, n - of_own);
  t->limit = t->room.all = less(t->room.all, n);
  if (had && t->limit == 0) {
    heat(d);
    nsh_exchange_lock(d->mail);
    d->mail->woken = d->mail->woken || t->woken;
    nsh_exchange_unlock(d->mail);
  }
}

/* Is a feed worth waiting for? One that pool 0 has no room for is not, nor one
** that has more already. */
static bool is_wanted(const nsh_dispatch *d, size_t feed) {
  return !d->hot[0] || (d->feeds.pools[feed] > 0 && !d->hot[d->feeds.pools[feed]]);
}

static void list_awaited(const nsh_dispatch *d, nsh_exchange *m) {
  const nsh_feeds *f = &d->feeds;
  nsh_must(ns_grow(&m->queues, &m->capqueues, f->n + f->npaused, sizeof *m->queues));
  m->nqueues = 0;
  for (size_t i = 0; i < f->n; i++)
    if (is_wanted(d, i))
      m->queues[m->nqueues++] = f->items[i].queue_id;
  m->npaused = f->npaused;
  if (f->npaused > 0)
    memcpy(m->queues + m->nqueues, f->paused, f->npaused * sizeof *f->paused);
}

/* Tells the listener what to wait for, if anything. One that sleeps already, for
** less, is woken. The lock is held. */
static void arm(nsh_dispatch *d) {
  nsh_exchange *m = d->mail;
  bool any = !d->hot[0];
  for (size_t i = 0; i < d->feeds.n; i++)
    any = any || is_wanted(d, i);
  if (!any)
    return;
  list_awaited(d, m);
  m->newest = d->cfg->nqueues > 0 || d->cfg->no_queues || d->hot[0]
                  ? -1
                  : d->feeds.newest;
  m->holder = d->holder;
  if (m->armed && d->narrow && !d->hot[0]) {
    m->narrow = true;
    d->widen_at = 0;
  }
  d->narrow = d->hot[0];
  if (!m->armed) {
    nsh_listen_near(d->listen, d->db, m->queues, m->nqueues);
    m->armed = true;
    pthread_cond_signal(&m->listen);
  }
}

/* Which pools' claims came back full? One without room is worth a claim as soon
** as it has some. 'got': jobs of each pool's queue, of others in got[0]. */
static void feel(nsh_dispatch *d, const nsh_turn *t, const size_t *got) {
  size_t open = got[0];
  for (size_t i = 1; i < d->mail->npools; i++) {
    size_t own = t->room.own[i];
    open += got[i] > own ? got[i] - own : 0;
    d->hot[i] = own == 0 || got[i] >= own;
  }
  d->hot[0] = t->room.open == 0 || open >= t->room.open;
  if (t->room.open > 0)
    d->more = d->hot[0];
  for (size_t i = 1; i < d->mail->npools && !d->hot[0]; i++)
    d->hot[i] = t->room.own[i] == 0; /* there was room for any job */
}

/* After a claim: when to claim next. The lock is held. */
static void plan(nsh_dispatch *d, const nsh_turn *t, const size_t *got, size_t n,
                 int64_t now) {
  feel(d, t, got);
  if (n > 0)
    d->empties = 0;
  else if (t->room.open > 0 || nsh_config_workers(d->cfg, 0) == 0) {
    if (d->empties++ == 0) /* else most queues were not looked at */
      d->empty_since = t->began;
  }
  d->due_at = d->due >= 0 ? now + d->due : NSH_NEVER;
  d->recheck_at = d->cfg->drain && (d->empties == 1 || d->outlook.failed)
                      ? now + LAST_LOOK
                      : NSH_NEVER;
  arm(d);
}

/* ------------------------------------------------------------------ what */

static void choose_anew(ns_want *want, const ns_queue_row *rows, size_t n) {
  nsh_dispatch *d = want->arg;
  nsh_feeds_make(&d->feeds, d->cfg, rows, n);
  want->limit = nsh_feeds_limit(&d->feeds, &d->turn->room);
  want->feeds = d->feeds.items;
  want->nfeeds = d->feeds.n;
}

/* What this turn claims: from the queues as they were at most a second ago, or
** are when we are woken. */
static ns_want choice(nsh_dispatch *d, nsh_turn *t) {
  bool stale = t->woken || ns_mono_us() - d->feeds.made_at > FEEDS_OLD;
  ns_want want = {.arg = d};
  d->turn = t;
  if (t->limit == 0)
    return want;
  want.choose = stale ? choose_anew : NULL;
  want.limit = stale ? t->limit : nsh_feeds_limit(&d->feeds, &t->room);
  want.feeds = d->feeds.items;
  want.nfeeds = d->feeds.n;
  return want;
}

/* Is there nothing to be had, of all sources? The lock is held. True: what is due soon is
** all that there is to wait for. */
static bool rest(nsh_dispatch *d) {
  nsh_exchange *m = d->mail;
  int64_t due;
  bool others = nsh_adopted_rested(d, &due, &m->patient);
  int64_t first = nsh_outlook_due(d);
  m->rested = d->empties >= 2 && d->due != 0 && others && m->outstanding == 0 &&
              m->unsettled == m->patient && d->outlook.known &&
              ns_looked_everywhere(d->db, d->feeds.items, d->feeds.n, d->empty_since);
  m->refused = nsh_adopted_refuses(d);
  m->rest_due = first < 0 || (due >= 0 && due < first) ? due : first;
  return m->rested && m->rest_due >= 0 && m->rest_due <= d->cfg->drain_within;
}

static void publish(nsh_dispatch *d, const nsh_turn *t, ns_jobs *jobs,
                    size_t settled, int64_t now) {
  nsh_exchange *m = d->mail;
  size_t n = jobs->n;
  size_t got[NSH_POOLS_MAX] = {0};
  bool waits;
  if (n == 0 && d->empties > 0)
    nsh_outlook_look(d);
  for (size_t i = 0; i < n; i++)
    got[nsh_config_pool(d->cfg, jobs->items[i].queue)]++;
  if (settled > 0) /* what came back may lie behind what was looked at before */
    d->empties = 0;
  nsh_exchange_lock(m);
  m->unsettled -= settled;
  m->cycling = false;
  m->counters = ns_count(d->db);
  if (n > 0)
    nsh_exchange_deliver(m, jobs, got);
  if (t->limit > 0)
    plan(d, t, got, n, now);
  else if (settled > 0 || d->due == 0)
    heat(d); /* no worker was up: what came back waits for the next */
  if ((settled > 0 || d->due == 0) && t->room.open == 0)
    d->more = true; /* what came back, or was spawned */
  waits = rest(d);
  nsh_exchange_unlock(m);
  m->notify(m->notify_arg);
  if (waits)
    nsh_outlook_tell(d);
}

/* This turn was of the others. */
static void pass(nsh_dispatch *d) {
  bool waits;
  if (d->empties > 1)
    nsh_outlook_look(d);
  nsh_exchange_lock(d->mail);
  d->mail->cycling = false;
  waits = rest(d);
  nsh_exchange_unlock(d->mail);
  d->mail->notify(d->mail->notify_arg);
  if (waits)
    nsh_outlook_tell(d);
}

/* The handlers are known, or have changed: what is claimed changes with them. */
static void rename_claims(nsh_dispatch *d) {
  ns_err err;
  if (!d->renamed)
    return;
  d->renamed = false;
  nsh_must(nsh_served_claim(d->db, d->names, &err) == NS_OK);
  d->feeds.closed = d->names != NULL && d->names[0] == '\0';
  d->feeds.made_at = 0;
  d->empties = 0;
  heat(d);
}

bool nsh_queues_run(nsh_dispatch *d, nsh_turn *t) {
  ns_err err;
  ns_jobs jobs = NS_JOBS_INIT;
  ns_want want;
  size_t settled;
  int64_t now;
  ns_status st;
  rename_claims(d);
  if (!t->cycle) {
    pass(d);
    return true;
  }
  want = choice(d, t);
  t->began = ns_mono_us();
  nsh_slow_doing(d->slow, NSH_DISPATCHER, d->unsettled.batch.n, want.limit > 0);
  st = ns_cycle(d->db, d->unsettled.batch.items, d->unsettled.batch.n, &want,
                &jobs, &d->due, &err);
  nsh_slow_doing(d->slow, NSH_DISPATCHER, 0, false);
  if (st != NS_OK) {
    ns_jobs_free(&jobs);
    nsh_back_off(d, &err);
    put_back(d, t);
    return false;
  }
  nsh_recovered(d);
  now = ns_mono_us();
  nsh_retry_took(&d->unsettled, now - t->began);
  settled = nsh_retry_sort(&d->unsettled, ns_trouble(d->db), now);
  nsh_slow_owes(d->slow, NSH_DISPATCHER, &d->unsettled);
  if (ns_unfinished(d->db))
    d->unsettled.again_at = nsh_sooner(d->unsettled.again_at, now + HELD_RETRY);
  publish(d, t, &jobs, settled, now);
  ns_jobs_free(&jobs); /* they may all have been too late to be started */
  return true;
}
