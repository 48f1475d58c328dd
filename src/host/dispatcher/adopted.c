/*
** Adopted tables as sources of jobs, beside the queues: their verdicts are written and
** their rows claimed by the same thread, on the same connection.
**
** Each is looked at about once a second while claims find nothing, and at once while
** they come back full; one whose triggers ring (table_listener.c) is left alone for
** ten seconds.
** What is free is shared with the queues by halves, and tables take turns at it.
**
** A row whose failure, or "again", names a delay that its table has no column for would
** come back at once, in front of all others. So its verdict waits here (dispatcher/deferred.c),
** and the row stays claimed for as long.
**
** Invariant: a table's jobs have its lease, a number below 0, wherever they go, and
** their verdicts come back here.
*/
#include "dispatcher/turn.h"

#include <stdlib.h>
#include <string.h>

#include "dispatcher/row_log.h"
#include "dispatcher/served.h"
#include "ipc/alloc.h"
#include "ns_log.h"
#include "ns_time.h"

#define WATCH (NS_SECOND / 4) /* what people decide, while we hold rows */
#define KEPT_FOR (1000000 * NS_SECOND) /* a verdict that the end of the host writes */
#define KEPT_MAX 64           /* ... of jobs that have a connection each */
#define ERROR_FIRST 50000     /* after a table has refused, doubling */
#define ERROR_LAST (5 * NS_SECOND)

/* ------------------------------------------------------------ birth and end */

/* A missing index is for people to add. */
static void say_index(nsh_adopted *a) {
  ns_buf sql = NS_BUF_INIT;
  ns_err err;
  if (ns_adopted_advice(a->table, &sql, &err) == NS_OK && sql.n > 0)
    ns_log(NS_LOG_WARN, "adopted.index",
           NS_FIELDS(ns_fb("table", a->map->table),
                     ns_fb("advice", ns_buf_bytes(&sql))));
  ns_buf_free(&sql);
}

ns_status nsh_adopted_open(nsh_dispatch *d, ns_err *err) {
  const nsh_config *cfg = d->cfg;
  if (cfg->nadopted == 0)
    return NS_OK;
  d->adopted = nsh_alloc(cfg->nadopted * sizeof *d->adopted);
  for (size_t i = 0; i < cfg->nadopted; i++) {
    nsh_adopted *a = &d->adopted[i];
    int64_t number;
    ns_status st = ns_adopt(d->db, &cfg->adopted[i], &a->table, &number, err);
    if (st != NS_OK)
      return st;
    a->map = &cfg->adopted[i];
    a->lease = -number;
    a->pool = nsh_config_pool(cfg, a->map->table);
    a->unsettled = NSH_RETRY_INIT;
    a->patience = NSH_DEFERRED_INIT;
    a->due = -1;
    d->nadopted++;
    say_index(a);
    if (ns_adopted_rung(a->table) && !cfg->drain &&
        (st = nsh_table_listener_open(&a->hark, a->table, d->mail, err)) != NS_OK)
      return st;
  }
  return NS_OK;
}

void nsh_adopted_deafen(nsh_dispatch *d) {
  for (size_t i = 0; i < d->nadopted; i++) {
    nsh_table_listener_close(d->adopted[i].hark, d->db);
    d->adopted[i].hark = NULL;
  }
}

void nsh_adopted_close(nsh_dispatch *d) {
  for (size_t i = 0; i < d->nadopted; i++) {
    nsh_adopted *a = &d->adopted[i];
    nsh_batch_free(&a->fresh);
    nsh_deferred_free(&a->patience);
    nsh_retry_free(&a->unsettled);
  }
  free(d->adopted);
}

/* ------------------------------------------------------------------- when */

/* Places that jobs of a table may take. */
static size_t room_of(const nsh_adopted *a, const nsh_room *room) {
  return room->open + (a->pool > 0 ? room->own[a->pool] : 0);
}

/* No more jobs are taken: what waits need not. */
static bool is_ending(const nsh_exchange *m) {
  return m->finish || m->taking == 0;
}

/* Connections of jobs that are kept would become too many. */
static bool is_full(const nsh_adopted *a) {
  return a->map->strategy == NS_TRANSACTION && a->patience.batch.n >= KEPT_MAX;
}

/* When a claim may find something. */
static int64_t claim_at(const nsh_adopted *a) {
  return a->hark != NULL && nsh_table_listener_woken(a->hark) ? 0 : ns_adopted_claim_at(a->table);
}

/* When it has something to do, as far as is known now. */
static int64_t next_of(const nsh_dispatch *d, const nsh_adopted *a,
                       const nsh_room *room) {
  int64_t t = nsh_sooner(a->unsettled.again_at, a->patience.next_at);
  if (a->unsettled.batch.n > 0 || (a->patience.batch.n > 0 && is_ending(d->mail)))
    t = 0;
  if (a->handled && !is_full(a) && room_of(a, room) > 0)
    t = nsh_sooner(t, claim_at(a));
  return t > a->error_at ? t : a->error_at;
}

/* Verdicts in the mailbox are found by nsh_queues_due. */
int64_t nsh_adopted_next(const nsh_dispatch *d) {
  int64_t t = NSH_NEVER;
  nsh_room room;
  if (d->nadopted == 0)
    return t;
  room = nsh_exchange_room(d->mail);
  if (d->mail->outstanding > 0)
    t = d->watch_at;
  for (size_t i = 0; i < d->nadopted; i++)
    t = nsh_sooner(t, next_of(d, &d->adopted[i], &room));
  return t;
}

bool nsh_adopted_due(const nsh_dispatch *d, int64_t now) {
  return nsh_adopted_next(d) <= now;
}

static nsh_adopted *owner(nsh_dispatch *d, const ns_verdict *v) {
  return v->lease < 0 && (uint64_t)-v->lease <= d->nadopted
             ? &d->adopted[-v->lease - 1]
             : NULL;
}

/* Takes theirs out from among the others. */
static void sort_out(nsh_dispatch *d) {
  nsh_batch *all = &d->mail->verdicts;
  size_t n = 0;
  for (size_t i = 0; i < all->n; i++) {
    nsh_adopted *a = owner(d, &all->items[i]);
    if (a != NULL)
      nsh_batch_copy(&a->fresh, &all->items[i]);
    else
      all->items[n++] = all->items[i];
  }
  all->n = n;
  if (n == 0)
    nsh_batch_clear(all);
}

void nsh_adopted_take(nsh_dispatch *d, int64_t now) {
  if (d->nadopted > 0)
    sort_out(d);
  for (size_t i = 0; i < d->nadopted; i++) {
    nsh_adopted *a = &d->adopted[i];
    nsh_deferred_take(&a->patience, &a->fresh, now, is_ending(d->mail));
    nsh_retry_take(&a->unsettled, &a->fresh, NULL, now);
  }
}

/* ------------------------------------------------------------------ settling */

/* With --drain a row that has done nothing but fail for longer than we wait for others
** fails no more: its claim, and this failure, are kept until the end. */
static bool is_hopeless(const nsh_dispatch *d, nsh_adopted *a, const ns_verdict *v,
                        int64_t now) {
  return d->cfg->drain && ns_adopted_returns(a->table, v) &&
         nsh_deferred_failing(&a->patience, v->id, now) > d->cfg->drain_within;
}

/* Is there one among the jobs, or the verdicts, that is not of such a row? */
static bool brings_news(const nsh_dispatch *d, const nsh_adopted *a,
                        const ns_jobs *jobs, int64_t now) {
  if (!d->cfg->drain)
    return jobs->n > 0;
  for (size_t i = 0; i < jobs->n; i++)
    if (nsh_deferred_failed(&a->patience, jobs->items[i].id, now) <= d->cfg->drain_within)
      return true;
  return false;
}

static bool settles_news(const nsh_dispatch *d, nsh_adopted *a, int64_t now) {
  const nsh_batch *b = &a->unsettled.batch;
  for (size_t i = 0; i < b->n; i++)
    if (!is_hopeless(d, a, &b->items[i], now))
      return true;
  return false;
}

/* Rows that wait have a connection each, and enough of them have. */
static bool has_no_seat(const nsh_adopted *a) {
  return a->map->strategy == NS_TRANSACTION && a->patience.batch.n >= KEPT_MAX / 2;
}

/* How long it had better wait; until now: it need not, or has waited. */
static nsh_term patience_with(const nsh_dispatch *d, nsh_adopted *a,
                              const ns_verdict *v, int64_t now) {
  if (v->lease == 0)
    return (nsh_term){now, false};
  if (is_hopeless(d, a, v, now))
    return (nsh_term){now + (a->map->overdue > 0 ? a->map->overdue / 2 : KEPT_FOR),
                      true};
  return (nsh_term){now + (has_no_seat(a) ? 0 : ns_adopted_patience(a->table, v)), false};
}

/* Verdicts that had better wait leave the batch; not when the host is ending. */
static void hold_back(nsh_dispatch *d, nsh_adopted *a, int64_t now) {
  nsh_batch *b = &a->unsettled.batch;
  size_t n = 0;
  bool ending;
  nsh_exchange_lock(d->mail);
  ending = is_ending(d->mail);
  nsh_exchange_unlock(d->mail);
  for (size_t i = 0; i < b->n && !ending; i++) {
    nsh_term term = patience_with(d, a, &b->items[i], now);
    if (term.until > now) {
      b->items[i].lease = 0;
      nsh_deferred_hold(&a->patience, &b->items[i], term);
    } else
      b->items[n++] = b->items[i];
  }
  if (!ending)
    b->n = n;
}

static ns_status settle(nsh_dispatch *d, nsh_adopted *a, ns_err *err) {
  nsh_batch *b = &a->unsettled.batch;
  size_t settled;
  bool news;
  ns_status st;
  hold_back(d, a, ns_mono_us());
  if (b->n == 0)
    return NS_OK;
  news = settles_news(d, a, ns_mono_us());
  if ((st = ns_adopted_settle(a->table, b->items, b->n, err)) != NS_OK)
    return st;
  nsh_row_log_failed(a->map->table, b->items, b->n);
  settled = nsh_retry_sort(&a->unsettled, ns_trouble(d->db), ns_mono_us());
  nsh_exchange_lock(d->mail);
  d->mail->unsettled -= settled;
  nsh_exchange_unlock(d->mail);
  if (news)
    a->empties = 0;
  return NS_OK;
}

/* ------------------------------------------------------------------- looks */

/* What has not been begun goes back when people, or a job, have asked for a pause. */
static void obey(nsh_dispatch *d, nsh_adopted *a) {
  bool paused = ns_adopted_paused(a->table);
  if (paused == a->paused)
    return;
  a->paused = paused;
  if (paused && d->cfg->drain && !a->worked)
    ns_log(NS_LOG_WARN, "adopted.paused",
           NS_FIELDS(ns_fb("table", a->map->table),
                     ns_fs("advice", "it was when this host began, and --drain does not "
                                     "wait for that: what is open stays open")));
  else
    ns_log(NS_LOG_INFO, paused ? "adopted.paused" : "adopted.resumed",
           NS_FIELDS(ns_fb("table", a->map->table)));
  if (!paused)
    return;
  nsh_exchange_lock(d->mail);
  nsh_exchange_withdraw(d->mail, a->lease);
  nsh_exchange_unlock(d->mail);
}

static ns_status look(nsh_dispatch *d, nsh_adopted *a, bool now, int64_t *freed,
                      ns_err *err) {
  ns_status st = ns_adopted_look(a->table, now, freed, err);
  nsh_row_log_reset(a->map->table, a->table);
  obey(d, a);
  return st;
}

void nsh_adopted_look(nsh_dispatch *d) {
  ns_err err;
  int64_t freed;
  for (size_t i = 0; i < d->nadopted; i++)
    if (look(d, &d->adopted[i], true, &freed, &err) != NS_OK)
      ns_log(err.status == NS_EBUSY ? NS_LOG_WARN : NS_LOG_ERROR, "rescue.failed",
             NS_FIELDS(ns_fb("table", d->adopted[i].map->table),
                       ns_fs("code", ns_code(err.status)),
                       ns_fs("error", err.message)));
}

/* ------------------------------------------------------------------ claiming */

/* Its half of what is free, when the queues want the other. */
static size_t share_of(const nsh_dispatch *d, const nsh_adopted *a,
                       const nsh_turn *t) {
  size_t room = room_of(a, &t->room);
  if (!nsh_queues_wants(d, t))
    return room;
  return room - room / 2 - (d->first % 2 == 1 && room % 2 == 1 ? 1 : 0);
}

static void deliver(nsh_dispatch *d, const nsh_adopted *a, ns_jobs *jobs) {
  size_t by_pool[NSH_POOLS_MAX] = {0};
  by_pool[a->pool] = jobs->n;
  nsh_exchange_lock(d->mail);
  nsh_exchange_deliver(d->mail, jobs, by_pool);
  nsh_exchange_unlock(d->mail);
  d->mail->notify(d->mail->notify_arg);
}

/* It was paused already when we came: cron's hosts are not to pile up in front of it. Who
** was at work goes on when it is resumed. */
static bool was_paused(const nsh_adopted *a) {
  return ns_adopted_paused(a->table) && !a->worked && a->due < 0;
}

static bool is_soon(const nsh_dispatch *d, int64_t due) {
  return due >= 0 && due <= d->cfg->drain_within;
}

/* With --drain: nothing twice, with time for what was on its way back in between, nor
** anything that a dead holder has left. What may not be claimed yet counts when it is due
** too late for us. */
static ns_status count_empty(nsh_dispatch *d, nsh_adopted *a, ns_err *err) {
  bool looked = ns_adopted_looked(a->table);
  bool awaited = is_soon(d, a->due);
  int64_t freed = 0;
  ns_status st = NS_OK;
  if (!d->cfg->drain)
    return st;
  if ((st = look(d, a, true, &freed, err)) == NS_OK)
    st = ns_adopted_due(a->table, &a->due, err);
  if (st != NS_OK)
    return st;
  if (freed > 0 || (awaited && !is_soon(d, a->due)))
    a->empties = 0; /* what was awaited may have come due behind the claim's look */
  else if (looked || a->due > d->cfg->drain_within || was_paused(a))
    a->empties++;
  a->worked = a->worked || looked;
  return NS_OK;
}

/* Is there a reason to claim? A ring counts once. */
static bool may_claim(nsh_dispatch *d, nsh_adopted *a) {
  bool rung;
  nsh_exchange_lock(d->mail);
  rung = a->hark != NULL && nsh_table_listener_take(a->hark);
  nsh_exchange_unlock(d->mail);
  return rung || ns_mono_us() >= ns_adopted_claim_at(a->table);
}

/* What there was has been taken: waits for more. */
static void await(nsh_dispatch *d, nsh_adopted *a, bool found) {
  if (a->hark == NULL || !ns_adopted_looked(a->table))
    return;
  nsh_exchange_lock(d->mail);
  nsh_table_listener_arm(a->hark, d->holder, found);
  nsh_exchange_unlock(d->mail);
}

static ns_status claim(nsh_dispatch *d, nsh_adopted *a, nsh_turn *t, ns_err *err) {
  ns_jobs jobs = NS_JOBS_INIT;
  size_t limit = share_of(d, a, t);
  size_t n;
  ns_status st;
  if (!a->handled || is_full(a) || limit == 0 || !may_claim(d, a))
    return NS_OK;
  st = ns_adopted_claim(a->table, limit, &jobs, err);
  nsh_row_log_refused(a->map->table, a->table);
  n = jobs.n;
  if (n < limit)
    await(d, a, n > 0);
  if (n > 0) {
    a->empties = brings_news(d, a, &jobs, ns_mono_us()) ? 0 : a->empties + 1;
    a->worked = true;
    deliver(d, a, &jobs);
    nsh_queues_yield(d, t, a->pool, n);
  } else if (st == NS_OK)
    st = count_empty(d, a, err);
  ns_jobs_free(&jobs);
  return st;
}

/* Jobs that nobody here can run are left to others. */
static void check_handler(const nsh_dispatch *d, nsh_adopted *a) {
  ns_bytes name = a->map->name.p != NULL ? a->map->name : a->map->table;
  a->handled = d->handlers != NULL && nsh_served_has(d->handlers, name);
  if (d->handlers == NULL || a->told == !a->handled)
    return;
  a->told = !a->handled;
  if (!a->handled)
    ns_log(NS_LOG_WARN, "adopted.no_handler",
           NS_FIELDS(ns_fb("table", a->map->table), ns_fb("handler", name)));
}


/* -------------------------------------------------------------------- a turn */

/* The server is away: nothing works. One table that does not work must not hold up
** the others. False: the server. */
static bool refuse(nsh_dispatch *d, nsh_adopted *a, const ns_err *err) {
  if (err->status == NS_EGONE || err->status == NS_EDENIED) {
    nsh_back_off(d, err);
    return false;
  }
  ns_log(NS_LOG_ERROR, "adopted.error",
         NS_FIELDS(ns_fb("table", a->map->table), ns_fs("code", ns_code(err->status)),
                   ns_fi("number", err->sqlerr), ns_fs("message", err->message)));
  a->error_wait = a->error_wait == 0 ? ERROR_FIRST
                                     : nsh_sooner(a->error_wait * 2, ERROR_LAST);
  a->error_at = ns_mono_us() + a->error_wait;
  return true;
}

static bool run(nsh_dispatch *d, nsh_adopted *a, nsh_turn *t, int64_t now) {
  int64_t freed;
  ns_err err;
  ns_status st;
  check_handler(d, a);
  if (now < a->error_at)
    return true;
  if ((st = settle(d, a, &err)) == NS_OK && (st = claim(d, a, t, &err)) == NS_OK)
    st = look(d, a, false, &freed, &err); /* paces itself */
  if (st != NS_OK)
    return refuse(d, a, &err);
  a->error_wait = a->error_at = 0;
  return true;
}

bool nsh_adopted_run(nsh_dispatch *d, nsh_turn *t) {
  int64_t now = ns_mono_us();
  bool fine = true;
  if (d->nadopted == 0)
    return true;
  d->first++;
  for (size_t i = 0; i < d->nadopted && fine; i++)
    fine = run(d, &d->adopted[(d->first + i) % d->nadopted], t, now);
  d->watch_at = now + WATCH;
  if (fine)
    nsh_recovered(d);
  return fine;
}

static void sooner_due(int64_t *due, int64_t other) {
  if (other >= 0 && (*due < 0 || other < *due))
    *due = other;
}

bool nsh_adopted_refuses(const nsh_dispatch *d) {
  for (size_t i = 0; i < d->nadopted; i++)
    if (ns_adopted_refuses(d->adopted[i].table))
      return true;
  return false;
}

bool nsh_adopted_rested(const nsh_dispatch *d, int64_t *due, size_t *patient) {
  int64_t now = ns_mono_us();
  bool rested = true;
  *due = -1;
  *patient = 0;
  for (size_t i = 0; i < d->nadopted; i++) {
    const nsh_adopted *a = &d->adopted[i];
    int64_t over = nsh_deferred_over(&a->patience);
    rested = rested && (a->empties >= 2 || !a->handled || is_full(a));
    *patient += a->patience.batch.n;
    if (a->handled)
      sooner_due(due, a->due);
    if (over != NSH_NEVER)
      sooner_due(due, over > now ? over - now : 0);
  }
  return rested;
}
