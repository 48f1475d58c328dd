/*
** The dispatcher's thread. One turn: wait for a reason, take the orders out of
** the mailbox, run a cycle, do the chores, put the results in.
**
** When to claim: while claims come back full there is more ("hot"). A claim
** that came back short arms the listener, which waits in the server. What
** wakes it may not be visible yet (a trigger rings before its transaction
** commits), so an empty claim after a wake is repeated after 5, 20, 80, 320
** and 1280 ms, then the host is silent until the next wake, the next due job
** or the ping.
**
** With reserved workers this holds for each pool: while pool 0 is full, claims
** and the listener go on for the queues that have workers of their own, and
** leave the others out.
*/
#include "nsh_dispatch.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ns_log.h"
#include "ns_time.h"
#include "nsh_feeds.h"
#include "nsh_listen.h"
#include "nsh_memory.h"
#include "nsh_unsettled.h"

#define NEVER INT64_MAX
#define BEAT (10 * NS_SECOND)
#define HOLD_LOOK (NS_SECOND / 4) /* at the connection, while jobs run */
#define BEAT_SOON (NS_SECOND / 20) /* while lost claims are being dropped */
#define CLAIMS_HOLD (25 * NS_SECOND) /* after a beat: others wait for 30 s */
#define LOOK_BUSY (NS_SECOND / 2) /* at other holders, while nobody listens */
#define TOLD_BUSY (NS_SECOND / 10) /* at notices, the same */
#define PRUNE (60 * NS_SECOND)
#define PRUNE_MORE NS_SECOND
#define RING_GAP (NS_SECOND / 20)
#define FEEDS_OLD NS_SECOND
#define RECHECK_FIRST 5000
#define RECHECK_LAST 1280000
#define HELD_RETRY 10000     /* dependents whose row somebody else holds */
#define WIDEN 20000          /* a listener that should wait for more is woken */
#define ERROR_FIRST 50000    /* after a failed cycle, doubling */
#define ERROR_LAST (5 * NS_SECOND)

struct nsh_dispatch {
  const nsh_config *cfg;
  nsh_mail *mail;
  nsh_slots *slots;   /* told how long claims hold */
  ns_db *db;
  nsh_listen *listen;
  pthread_t thread;
  bool running;
  atomic_bool opened; /* from here on a lost server is waited for */

  nsh_unsettled unsettled;
  nsh_feeds feeds;
  struct turn *turn;  /* under way, for choose_anew */

  bool hot[NSH_POOLS_MAX]; /* when this pool has room, a claim may find more */
  bool more;          /* others may find what we cannot take */
  bool narrow;        /* the listener was armed without pool 0's queues */
  int64_t widen_at;   /* it waits for too little: when to wake it */
  int64_t recheck;    /* µs until the next repetition; 0: none */
  int64_t recheck_at, due_at, beat_at, look_at, prune_at, ring_at, told_at;
  int64_t error_wait, error_at; /* after a failure: nothing before error_at */
  int64_t due;        /* as the last cycle said; -1: nothing scheduled */
  int empties;        /* claims in a row that found nothing */
  int64_t holder;     /* who we are; changes when we were declared dead */
  char *handlers;     /* what the host can run, JSON, owned, ... */
  size_t taking;      /* ... and how many workers take jobs: from the mailbox */
  int64_t serves_at;  /* when that is to be written; NEVER: it stands */
};

/* What one turn has to do, taken out of the mailbox. */
typedef struct turn {
  nsh_room room;
  size_t limit;       /* jobs to claim: room.all */
  bool woken;         /* by the listener or a recheck: an empty claim counts */
  bool finish;
  bool notices;       /* somebody has written to us */
  bool gone;          /* a holder may have died */
  size_t want_ids;
  nsh_touch *touches;
  size_t ntouches;
} turn;

/* --------------------------------------------------------------- waiting */

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* A claim has a reason to find something; the lock is held. */
static bool may_claim(const nsh_dispatch *d, int64_t now) {
  nsh_room room = nsh_mail_room(d->mail);
  bool any = room.open > 0 && d->hot[0];
  for (size_t i = 1; i < d->mail->npools; i++)
    any = any || (room.own[i] > 0 && d->hot[i]);
  return any || (room.all > 0 && (d->mail->woken || now >= d->recheck_at ||
                                  now >= d->due_at));
}

/* Nobody listens, and jobs that we hold may have been cancelled; the lock is held. */
static bool may_be_told(const nsh_dispatch *d) {
  return d->mail->outstanding > 0 && !d->mail->armed;
}

static bool has_work(const nsh_dispatch *d, int64_t now) {
  const nsh_mail *m = d->mail;
  if (atomic_load(&m->give_up))
    return true;
  if (now < d->error_at)
    return false;
  return d->unsettled.batch.n > 0 || m->verdicts.n > 0 ||
         now >= d->unsettled.again_at ||
         m->ntouches > 0 || m->want_ids > 0 || m->notices || m->gone ||
         m->serves || now >= d->serves_at ||
         now >= d->beat_at || now >= d->look_at || now >= d->prune_at ||
         now >= d->widen_at || may_claim(d, now) ||
         (may_be_told(d) && now >= d->told_at) ||
         (m->finish && nsh_mail_quiescent(m));
}

/* When has_work may change its mind by itself. */
static int64_t next_time(const nsh_dispatch *d, int64_t now) {
  int64_t t = least(least(d->unsettled.again_at, least(d->beat_at, d->widen_at)),
                    least(least(d->look_at, d->prune_at), d->serves_at));
  if (nsh_mail_room(d->mail).all > 0)
    t = least(t, least(d->recheck_at, d->due_at));
  if (may_be_told(d))
    t = least(t, d->told_at);
  return now < d->error_at ? d->error_at : t;
}

static void wait_until(nsh_mail *m, int64_t when) {
  struct timespec t = {(time_t)(when / NS_SECOND),
                       (long)(when % NS_SECOND) * 1000};
  pthread_cond_timedwait(&m->work, &m->lock, &t);
}

/* --------------------------------------------------------------- one turn */

static void take_served(nsh_dispatch *d) {
  nsh_mail *m = d->mail;
  if (!m->serves)
    return;
  m->serves = false;
  free(d->handlers);
  nsh_must((d->handlers = strdup(m->handlers)) != NULL);
  d->taking = m->taking;
  d->serves_at = 0;
}

static void take_turn(nsh_dispatch *d, turn *t) {
  nsh_mail *m = d->mail;
  int64_t now = ns_mono_us();
  nsh_mail_lock(m);
  while (!has_work(d, now)) {
    int64_t next = next_time(d, now);
    bool holds = m->outstanding > 0;
    wait_until(m, holds ? least(next, now + HOLD_LOOK) : next);
    now = ns_mono_us();
    if (holds && ns_hung_up(d->db)) /* come back before others think us dead */
      d->beat_at = now;
  }
  nsh_unsettled_take(&d->unsettled, &m->verdicts);
  take_served(d);
  t->room = nsh_mail_room(m);
  t->limit = t->room.all;
  t->woken = t->limit > 0 && (m->woken || now >= d->recheck_at);
  t->finish = m->finish;
  t->notices = m->notices;
  if (may_be_told(d) && now >= d->told_at) {
    t->notices = true;
    d->told_at = now + TOLD_BUSY;
  }
  t->gone = m->gone;
  m->notices = m->gone = false;
  t->want_ids = m->want_ids;
  t->touches = m->touches;
  t->ntouches = m->ntouches;
  m->want_ids = 0;
  m->touches = NULL;
  m->ntouches = m->captouches = 0;
  m->turn++;
  m->cycling = true;
  if (t->limit > 0) {
    m->woken = false;
    d->recheck_at = d->due_at = NEVER;
  }
  nsh_mail_unlock(m);
}

/* Is a feed worth waiting for? One that pool 0 has no room for is not, nor one
** that has more already. */
static bool is_wanted(const nsh_dispatch *d, size_t feed) {
  return !d->hot[0] || (d->feeds.pools[feed] > 0 && !d->hot[d->feeds.pools[feed]]);
}

/* Tells the listener what to wait for, if anything. One that sleeps already, for
** less, is woken. The lock is held. */
static void arm(nsh_dispatch *d) {
  nsh_mail *m = d->mail;
  bool any = !d->hot[0];
  for (size_t i = 0; i < d->feeds.n; i++)
    any = any || is_wanted(d, i);
  if (!any)
    return;
  nsh_must(ns_grow(&m->queues, &m->capqueues, d->feeds.n, sizeof *m->queues));
  m->nqueues = 0;
  for (size_t i = 0; i < d->feeds.n; i++)
    if (is_wanted(d, i))
      m->queues[m->nqueues++] = d->feeds.items[i].queue_id;
  m->newest = d->cfg->nqueues > 0 || d->hot[0] ? 0 : d->feeds.newest;
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
static void feel(nsh_dispatch *d, const turn *t, const size_t *got) {
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
static void plan(nsh_dispatch *d, const turn *t, const size_t *got, size_t n,
                 int64_t now) {
  bool again = t->woken || (d->cfg->drain && d->empties == 0);
  feel(d, t, got);
  if (n > 0)
    d->empties = 0;
  else if (t->room.open > 0 || nsh_config_workers(d->cfg, 0) == 0)
    d->empties++; /* else most queues were not looked at */
  d->due_at = d->due >= 0 ? now + d->due : NEVER;
  if (n > 0)
    d->recheck = 0;
  else if (again)
    d->recheck = d->recheck == 0 ? RECHECK_FIRST : d->recheck * 4;
  if (d->recheck > RECHECK_LAST)
    d->recheck = 0;
  d->recheck_at = d->recheck > 0 ? now + d->recheck : NEVER;
  arm(d);
}

/* A claim of any pool may find something. */
static void heat(nsh_dispatch *d) {
  for (size_t i = 0; i < d->mail->npools; i++)
    d->hot[i] = true;
}

static void publish(nsh_dispatch *d, const turn *t, ns_jobs *jobs,
                    size_t settled, int64_t now) {
  nsh_mail *m = d->mail;
  size_t n = jobs->n;
  size_t got[NSH_POOLS_MAX] = {0};
  for (size_t i = 0; i < n; i++)
    got[nsh_config_pool(d->cfg, jobs->items[i].queue)]++;
  nsh_mail_lock(m);
  m->unsettled -= settled;
  m->cycling = false;
  m->counters = ns_count(d->db);
  if (n > 0)
    nsh_mail_deliver(m, jobs, got);
  if (t->limit > 0)
    plan(d, t, got, n, now);
  else if (settled > 0 || d->due == 0)
    heat(d); /* no worker was up: what came back waits for the next */
  if ((settled > 0 || d->due == 0) && t->room.open == 0)
    d->more = true; /* what came back, or was spawned */
  m->rested = d->empties >= 2 && m->outstanding == 0 && m->unsettled == 0;
  m->rest_due = d->due;
  nsh_mail_unlock(m);
  m->notify(m->notify_arg);
}

static void back_off(nsh_dispatch *d, const ns_err *err) {
  ns_log(NS_LOG_ERROR, "db.error",
         NS_FIELDS(ns_fs("code", ns_code(err->status)),
                   ns_fi("number", err->sqlerr),
                   ns_fs("message", err->message)));
  d->error_wait = d->error_wait == 0 ? ERROR_FIRST : d->error_wait * 2;
  d->error_wait = least(d->error_wait, ERROR_LAST);
  d->error_at = ns_mono_us() + d->error_wait;
  if (err->status == NS_EDENIED) /* so that a right granted since counts */
    ns_renew(d->db);
  nsh_mail_lock(d->mail);
  d->mail->cycling = false;
  nsh_mail_unlock(d->mail);
}

/* The server answers: an outage or a row of errors is over. */
static void recovered(nsh_dispatch *d) {
  d->error_wait = d->error_at = 0;
  if (atomic_exchange(&d->mail->away, false))
    ns_log(NS_LOG_INFO, "db.back", NULL, 0);
}

static void choose_anew(ns_want *want, const ns_queue_row *rows, size_t n) {
  nsh_dispatch *d = want->arg;
  nsh_feeds_make(&d->feeds, d->cfg, rows, n);
  want->limit = nsh_feeds_limit(&d->feeds, &d->turn->room);
  want->feeds = d->feeds.items;
  want->nfeeds = d->feeds.n;
}

/* What this turn claims: from the queues as they were at most a second ago, or
** are when we are woken. */
static ns_want choice(nsh_dispatch *d, turn *t) {
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

/* Settles and claims; false: nothing is known to be written, try again. */
static bool cycle(nsh_dispatch *d, turn *t) {
  ns_err err;
  ns_jobs jobs = NS_JOBS_INIT;
  ns_want want = choice(d, t);
  size_t settled;
  int64_t now;
  ns_status st = ns_cycle(d->db, d->unsettled.batch.items, d->unsettled.batch.n,
                          &want, &jobs, &d->due, &err);
  if (st != NS_OK) {
    ns_jobs_free(&jobs);
    back_off(d, &err);
    if (t->limit > 0)
      heat(d); /* that claim is still to be made */
    return false;
  }
  recovered(d);
  now = ns_mono_us();
  settled = nsh_unsettled_sort(&d->unsettled, now);
  if (ns_unfinished(d->db))
    d->unsettled.again_at = least(d->unsettled.again_at, now + HELD_RETRY);
  publish(d, t, &jobs, settled, now);
  ns_jobs_free(&jobs); /* they may all have been too late to be started */
  return true;
}

/* ----------------------------------------------------------------- chores */

/* Claims that turn out to be lost go to the loop. */
static void tell_lost(nsh_dispatch *d, const turn *t, const ns_sign *signs) {
  bool any = false;
  nsh_mail_lock(d->mail);
  for (size_t i = 0; i < t->ntouches; i++)
    for (size_t k = 0; signs[i].lost && k < t->ntouches; k++)
      if (t->touches[k].id == signs[i].id && t->touches[k].run == signs[i].run) {
        nsh_mail_lose(d->mail, &t->touches[k]);
        any = true;
      }
  nsh_mail_unlock(d->mail);
  if (any)
    d->mail->notify(d->mail->notify_arg);
}

/* What could not be written is for people to see, and comes again if the job
** shows more. */
static void write_touches(nsh_dispatch *d, turn *t) {
  ns_sign *signs;
  ns_err err;
  if (t->ntouches == 0)
    return;
  signs = nsh_alloc(t->ntouches * sizeof *signs);
  for (size_t i = 0; i < t->ntouches; i++) {
    const nsh_touch *p = &t->touches[i];
    signs[i] = (ns_sign){.id = p->id, .run = p->run, .worker_pid = p->pid,
                         .progress = p->progress, .text = ns_str(p->text)};
  }
  if (ns_touch_many(d->db, signs, t->ntouches, &err) == NS_OK)
    tell_lost(d, t, signs);
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
    nsh_mail_lock(d->mail);
    nsh_mail_ids(d->mail, ids, n);
    nsh_mail_unlock(d->mail);
    want -= n;
  }
  nsh_mail_lock(d->mail);
  d->mail->want_ids += want; /* what could not be had is asked for again */
  nsh_mail_unlock(d->mail);
  if (want > 0)
    back_off(d, &err);
  d->mail->notify(d->mail->notify_arg);
}

static void prune(nsh_dispatch *d, int64_t now) {
  ns_err err;
  int64_t deleted = 0;
  if (now < d->prune_at)
    return;
  if (ns_prune(d->db, NS_KEEP_DONE, NS_KEEP_DEAD, 1, &deleted, &err) != NS_OK)
    deleted = 0; /* next time */
  d->prune_at = now + (deleted > 0 ? PRUNE_MORE : PRUNE);
}

/* There is more than we can take: somebody idle may have it. Our own listener,
** which waits for reserved queues, must not have us ring again and again. */
static void ring(nsh_dispatch *d, int64_t now) {
  ns_err err;
  if (!d->more || now < d->ring_at)
    return;
  ns_ring(d->db, &err);
  d->ring_at = now + RING_GAP;
  d->more = d->cfg->nreserves == 0;
}

/* Claims that somebody has ended go to the loop, which stops their handlers. */
static void read_notices(nsh_dispatch *d, turn *t) {
  ns_token *tokens;
  ns_err err;
  size_t n;
  if (!t->notices)
    return;
  t->notices = ns_notices(d->db, &tokens, &n, &err) != NS_OK;
  if (n > 0) {
    nsh_mail_lock(d->mail);
    for (size_t i = 0; i < n; i++)
      nsh_mail_revoke(d->mail, &tokens[i]);
    nsh_mail_unlock(d->mail);
    d->mail->notify(d->mail->notify_arg);
  }
  free(tokens);
}

/* Gives back what dead holders held. While the listener waits in the server it
** says when one dies; otherwise we look ourselves. */
static void look_around(nsh_dispatch *d, turn *t, int64_t now) {
  ns_rescued sum;
  ns_err err;
  ns_status st;
  int64_t again_in;
  bool armed;
  if (now < d->look_at && !t->gone)
    return;
  st = ns_look(d->db, &again_in, &sum, &err);
  t->gone = st == NS_EGONE;
  if (st != NS_OK && st != NS_EGONE)
    ns_log(NS_LOG_ERROR, "rescue.failed",
           NS_FIELDS(ns_fs("code", ns_code(st)),
                     ns_fs("error", err.message)));
  if (sum.holders > 0 || sum.jobs > 0)
    ns_log(NS_LOG_WARN, "rescue",
           NS_FIELDS(ns_fi("holders", sum.holders), ns_fi("jobs", sum.jobs),
                     ns_fi("poison", sum.poison)));
  nsh_mail_lock(d->mail);
  armed = d->mail->armed;
  d->mail->woken = d->mail->woken || sum.jobs > 0;
  nsh_mail_unlock(d->mail);
  d->look_at = ns_mono_us() + (armed ? again_in : least(again_in, LOOK_BUSY));
}

/* Is every claim that loop and workers know of the present holder's? */
static bool claims_are_ours(nsh_dispatch *d) {
  bool lost;
  nsh_mail_lock(d->mail);
  lost = d->mail->lost_all;
  nsh_mail_unlock(d->mail);
  return !lost && ns_holder_id(d->db) == d->holder;
}

/* "We live": with each cycle that writes, and at least so often. Nobody gives
** our claims to others for a while then. */
static void beat(nsh_dispatch *d, int64_t now) {
  ns_err err;
  if (now < d->beat_at)
    return;
  if (ns_beat(d->db, &err) != NS_OK)
    back_off(d, &err);
  else if (claims_are_ours(d)) {
    d->beat_at = now + BEAT;
    nsh_slots_fresh(d->slots, now + CLAIMS_HOLD);
  } else
    d->beat_at = now + BEAT_SOON;
}

/* ["name",…] of the queues that were asked for. */
static void list_queues(const nsh_config *cfg, ns_buf *list) {
  for (size_t i = 0; i < cfg->nqueues; i++) {
    ns_buf_addc(list, i > 0 ? ',' : '[');
    ns_buf_add_json(list, cfg->queues[i].name);
  }
  ns_buf_addc(list, ']');
  nsh_must(!list->oom);
}

/* [["name",workers],…] of those that are reserved. */
static void list_reserves(const nsh_config *cfg, ns_buf *list) {
  for (size_t i = 0; i < cfg->nreserves; i++) {
    ns_buf_adds(list, i > 0 ? ",[" : "[[");
    ns_buf_add_json(list, cfg->reserves[i].name);
    ns_buf_addf(list, ",%zu]", cfg->reserves[i].workers);
  }
  ns_buf_addc(list, ']');
  nsh_must(!list->oom);
}

/* Tells what we can run; nobody but people depends on it. */
static void write_served(nsh_dispatch *d, int64_t now) {
  ns_buf queues = NS_BUF_INIT;
  ns_buf reserves = NS_BUF_INIT;
  ns_status st;
  ns_err err;
  if (now < d->serves_at)
    return;
  list_queues(d->cfg, &queues);
  list_reserves(d->cfg, &reserves);
  st = ns_serves(d->db, (int64_t)d->taking,
                 d->cfg->nqueues > 0 ? ns_buf_bytes(&queues) : NS_NONE,
                 ns_str(d->handlers),
                 d->cfg->nreserves > 0 ? ns_buf_bytes(&reserves) : NS_NONE, &err);
  ns_buf_free(&queues);
  ns_buf_free(&reserves);
  d->serves_at = st == NS_OK ? NEVER : now + BEAT;
  if (st != NS_OK)
    ns_log(NS_LOG_WARN, "served.failed", NS_FIELDS(ns_fs("code", ns_code(st)),
                                                  ns_fs("error", err.message)));
}

/* Who was declared dead has lost every claim. */
static void check_holder(nsh_dispatch *d) {
  int64_t holder = ns_holder_id(d->db);
  if (holder == d->holder)
    return;
  ns_log(NS_LOG_ERROR, "holder.lost",
         NS_FIELDS(ns_fi("was", d->holder), ns_fi("is", holder)));
  d->holder = holder;
  d->serves_at = 0;
  nsh_mail_lock(d->mail);
  d->mail->lost_all = true;
  nsh_mail_unlock(d->mail);
  d->mail->notify(d->mail->notify_arg);
}

/* Orders that were taken out go back in, for the next turn. */
static void put_back(nsh_dispatch *d, turn *t) {
  nsh_mail_lock(d->mail);
  d->mail->want_ids += t->want_ids;
  d->mail->woken = d->mail->woken || t->woken;
  d->mail->notices = d->mail->notices || t->notices;
  d->mail->gone = d->mail->gone || t->gone;
  nsh_mail_unlock(d->mail);
  for (size_t i = 0; i < t->ntouches; i++)
    free(t->touches[i].text); /* signs of life come again */
  free(t->touches);
}

/* The listener that waits for too little is woken until it has heard. */
static void widen(nsh_dispatch *d, int64_t now) {
  bool narrow;
  if (now < d->widen_at)
    return;
  nsh_mail_lock(d->mail);
  narrow = d->mail->narrow;
  nsh_mail_unlock(d->mail);
  d->widen_at = narrow ? now + WIDEN : NEVER;
  if (narrow)
    nsh_listen_wake(d->listen, d->db);
}

static void do_turn(nsh_dispatch *d, turn *t) {
  int64_t now;
  if (!cycle(d, t)) {
    put_back(d, t);
    return;
  }
  if (t->want_ids > 0)
    take_ids(d, t->want_ids);
  write_touches(d, t);
  now = ns_mono_us();
  beat(d, now);
  check_holder(d);
  write_served(d, now);
  read_notices(d, t);
  look_around(d, t, now);
  ring(d, now);
  widen(d, now);
  prune(d, now);
}

/* ------------------------------------------------------------- the thread */

/* True when the host has asked to end and nothing is left to write. */
static bool may_end(nsh_dispatch *d) {
  bool end;
  nsh_mail_lock(d->mail);
  end = d->mail->finish && nsh_mail_quiescent(d->mail);
  nsh_mail_unlock(d->mail);
  return end || atomic_load(&d->mail->give_up);
}

static void *thread(void *arg) {
  nsh_dispatch *d = arg;
  nsh_mail *m = d->mail;
  turn t;
  while (!may_end(d)) {
    take_turn(d, &t);
    do_turn(d, &t);
  }
  nsh_listen_stop(d->listen, d->db);
  nsh_mail_lock(m);
  m->clean = nsh_mail_quiescent(m);
  m->ended = true;
  nsh_mail_unlock(m);
  m->notify(m->notify_arg);
  return NULL;
}

/* The core asks this between attempts to reconnect; any thread of ours. */
static bool keep_trying(void *arg, const ns_err *why) {
  nsh_dispatch *d = arg;
  if (!atomic_load(&d->opened) || atomic_load(&d->mail->give_up))
    return false;
  if (!atomic_exchange(&d->mail->away, true))
    ns_log(NS_LOG_WARN, "db.lost", NS_FIELDS(ns_fs("why", why->message)));
  return true;
}

/* Without these procedures all goes on, only nobody hears of a push at once. */
static void say_unrung(ns_db *db) {
  static const char *const calls[] = {"listen", "nudge", "ring"};
  char which[80] = "";
  ns_err why;
  bool denied = true;
  for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
    char sql[32];
    ns_result result;
    ns_err err;
    size_t n = strlen(which);
    snprintf(sql, sizeof sql, "@doctor_call_%s", calls[i]);
    if (ns_execute(db, ns_str(sql), NULL, 0, &result, &err) == NS_OK ||
        err.status == NS_EGONE || err.status == NS_EBUSY)
      continue;
    denied = denied && err.status == NS_EDENIED;
    snprintf(which + n, sizeof which - n, "%snightshift_%s", n > 0 ? ", " : "",
             calls[i]);
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

ns_status nsh_dispatch_open(nsh_dispatch **out, const nsh_config *cfg,
                            nsh_mail *mail, nsh_slots *slots, ns_err *err) {
  nsh_dispatch *d = nsh_alloc(sizeof *d);
  ns_config db = cfg->db;
  ns_status st;
  *out = NULL;
  d->cfg = cfg;
  d->mail = mail;
  d->slots = slots;
  heat(d);
  d->due = -1;
  d->recheck_at = d->due_at = NEVER;
  d->unsettled = NSH_UNSETTLED_INIT;
  d->serves_at = d->widen_at = NEVER;
  d->prune_at = ns_mono_us() + PRUNE / 10;
  db.keep_trying = keep_trying;
  db.keep_trying_arg = d;
  if ((st = ns_open(&d->db, &db, err)) != NS_OK ||
      (st = ns_probe(d->db, err)) != NS_OK ||
      (st = ns_register(d->db, true, err)) != NS_OK ||
      (st = nsh_feeds_open(&d->feeds, cfg, d->db, err)) != NS_OK ||
      (st = nsh_listen_open(&d->listen, d->db, mail, err)) != NS_OK) {
    nsh_dispatch_close(d);
    return st;
  }
  ns_claim_strictly(d->db, cfg->strict);
  ns_forget_done(d->db, cfg->forget_done);
  say_unrung(d->db);
  atomic_store(&d->opened, true);
  d->holder = ns_holder_id(d->db);
  mail->woken = true; /* an empty first claim is repeated */
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
  st = nsh_listen_start(d->listen, err);
  if (st == NS_OK && pthread_create(&d->thread, NULL, thread, d) != 0)
    st = ns_fail(err, NS_ENOMEM, "cannot start the dispatcher's thread");
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  d->running = st == NS_OK;
  return st;
}

void nsh_dispatch_close(nsh_dispatch *d) {
  if (d == NULL)
    return;
  if (d->running)
    pthread_join(d->thread, NULL);
  nsh_listen_close(d->listen);
  ns_close(d->db);
  nsh_unsettled_free(&d->unsettled);
  nsh_feeds_free(&d->feeds);
  free(d->handlers);
  free(d);
}
