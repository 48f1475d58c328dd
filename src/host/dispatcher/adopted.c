/*
** Adopted tables as sources of jobs, beside the queues: their verdicts are written and
** their rows claimed by the same thread, on the same connection.
**
** Each is looked at about once a second while claims find nothing, and at once while
** they come back full; one with triggers that ring (listener.c) is left alone for
** ten seconds.
** What is free is shared with the queues by halves, and tables take turns at it.
**
** A row with a failure, or "again", that names a delay that its table has no column for would
** come back at once, in front of all other rows. So its verdict waits here (dispatcher/retry.c),
** and the row stays claimed for as long.
**
** Invariant: a table's jobs have its lease, a number below 0, wherever they go, and
** their verdicts come back here.
*/
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "dispatcher/turn.h"
#include "err.h"
#include "ipc/ipc.h"
#include "log.h"

#define WATCH (NS_SECOND / 4) /* what people decide, while we hold rows */
#define KEPT_FOR (1000000 * NS_SECOND) /* a verdict that the end of the host writes */
#define KEPT_MAX 64           /* ... of jobs that have a connection each */
#define ERROR_FIRST 50000     /* after a table has refused, doubling */
#define ERROR_LAST (5 * NS_SECOND)

/* An adopted table. They are known by their lease, which is a number below 0 that all of
** their jobs have. */
typedef struct nsh_adopted {
  struct tables *all;
  ns_adopted *table;
  const ns_mapping *map;
  int64_t lease;
  size_t pool;     /* of its jobs */
  nsh_batch fresh; /* verdicts out of the exchange */
  nsh_retry unsettled;
  nsh_deferred deferred;        /* verdicts that wait */
  nsh_table_listener *listener; /* is woken by its triggers; NULL: it has none */
  bool handled;                 /* some script here has its handler */
  bool told;                    /* ... or people have been told that none has */
  bool paused;                  /* what was claimed has been taken back */
  bool worked;                  /* a claim has looked for rows: it was not paused all the time */
  int empties;                  /* claims in a row that found nothing, a while apart */
  int64_t due;                  /* µs: as ns_adopted_due, after those */
  int64_t error_wait, error_at; /* the table does not work: nothing before */
} nsh_adopted;

/* The source. */
typedef struct tables {
  nsh_source source; /* first: a pointer to it is one to this */
  nsh_adopted *items;
  size_t n;
  size_t first;     /* the one that claims before the rest */
  int64_t watch_at; /* while we hold rows: what people decide */
} tables;

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

static ns_status open_table(nsh_dispatch *d, nsh_adopted *a, const ns_mapping *map, ns_err *err) {
  int64_t number;
  ns_status st = ns_adopt(d->db, map, &a->table, &number, err);
  if (st != NS_OK)
    return st;
  ns_adopted_limit_locked(a->table, d->cfg->workers + KEPT_MAX);
  a->map = map;
  a->lease = -number;
  ns_assert(a->lease < 0 && a == &a->all->items[number - 1]); /* see owner */
  a->pool = nsh_config_pool(d->cfg, map->table);
  a->unsettled = NSH_RETRY_INIT;
  a->deferred = NSH_DEFERRED_INIT;
  a->due = -1;
  a->all->n++;
  say_index(a);
  return ns_adopted_rung(a->table) && !d->cfg->drain
             ? nsh_table_listener_open(&a->listener, a->table, d->exchange, err)
             : NS_OK;
}

static ns_status open_tables(tables *s, ns_err *err) {
  const nsh_config *cfg = s->source.d->cfg;
  ns_status st = NS_OK;
  s->items = nsh_alloc(cfg->nadopted * sizeof *s->items);
  for (size_t i = 0; st == NS_OK && i < cfg->nadopted; i++) {
    s->items[i].all = s;
    st = open_table(s->source.d, &s->items[i], &cfg->adopted[i], err);
  }
  return st;
}

static void stop_listeners(nsh_source *source) {
  tables *s = (tables *)source;
  for (size_t i = 0; i < s->n; i++) {
    nsh_table_listener_close(s->items[i].listener, source->d->db);
    s->items[i].listener = NULL;
  }
}

static void close_tables(nsh_source *source) {
  tables *s = (tables *)source;
  for (size_t i = 0; i < s->n; i++) {
    nsh_adopted *a = &s->items[i];
    nsh_batch_free(&a->fresh);
    nsh_deferred_free(&a->deferred);
    nsh_retry_free(&a->unsettled);
  }
  free(s->items);
  free(s);
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
  return a->map->strategy == NS_TRANSACTION && a->deferred.batch.n >= KEPT_MAX;
}

/* When a claim may find something. */
static int64_t claim_at(const nsh_adopted *a) {
  return a->listener != NULL && nsh_table_listener_woken(a->listener)
             ? 0
             : ns_adopted_claim_at(a->table);
}

/* When it has something to do, as far as is known now. */
static int64_t next_of(const nsh_dispatch *d, const nsh_adopted *a,
                       const nsh_room *room) {
  int64_t t = nsh_sooner(a->unsettled.again_at, a->deferred.next_at);
  if (a->unsettled.batch.n > 0 || (a->deferred.batch.n > 0 && is_ending(d->exchange)))
    t = 0;
  if (a->handled && !is_full(a) && room_of(a, room) > 0)
    t = nsh_sooner(t, claim_at(a));
  return t > a->error_at ? t : a->error_at;
}

/* Verdicts in the exchange are found by the queues. */
static int64_t next_time(const nsh_source *source) {
  const tables *s = (const tables *)source;
  const nsh_dispatch *d = source->d;
  nsh_room room = nsh_exchange_room(d->exchange);
  int64_t t = d->exchange->outstanding > 0 ? s->watch_at : NSH_NEVER;
  for (size_t i = 0; i < s->n; i++)
    t = nsh_sooner(t, next_of(d, &s->items[i], &room));
  return t;
}

static bool is_due(const nsh_source *source, int64_t now) {
  return next_time(source) <= now;
}

static nsh_adopted *owner(const tables *s, const ns_verdict *v) {
  return v->lease < 0 && (uint64_t)-v->lease <= s->n ? &s->items[-v->lease - 1] : NULL;
}

/* Takes theirs out from among the rest. */
static void sort_out(const tables *s) {
  nsh_batch *all = &s->source.d->exchange->verdicts;
  size_t n = 0;
  for (size_t i = 0; i < all->n; i++) {
    nsh_adopted *a = owner(s, &all->items[i]);
    if (a != NULL)
      nsh_batch_copy(&a->fresh, &all->items[i]);
    else
      all->items[n++] = all->items[i];
  }
  all->n = n;
  if (n == 0)
    nsh_batch_clear(all);
}

static void take_verdicts(nsh_source *source, nsh_turn *t, int64_t now) {
  tables *s = (tables *)source;
  (void)t; /* a verdict that waits has no place: its row is claimed */
  sort_out(s);
  for (size_t i = 0; i < s->n; i++) {
    nsh_adopted *a = &s->items[i];
    nsh_deferred_take(&a->deferred, &a->fresh, now, is_ending(source->d->exchange));
    nsh_retry_take(&a->unsettled, &a->fresh, NULL, now);
  }
}

/* ------------------------------------------------------------------ settling */

/* With --drain a row that has done nothing but fail for longer than we wait for other rows
** fails no more: its claim, and this failure, are kept until the end. */
static bool is_hopeless(const nsh_dispatch *d, nsh_adopted *a, const ns_verdict *v,
                        int64_t now) {
  return d->cfg->drain && ns_adopted_returns(a->table, v) &&
         nsh_deferred_failing(&a->deferred, v->id, now) > d->cfg->drain_within;
}

/* Is there one among the jobs, or the verdicts, that is not of such a row? */
static bool brings_news(const nsh_dispatch *d, const nsh_adopted *a,
                        const ns_jobs *jobs, int64_t now) {
  if (!d->cfg->drain)
    return jobs->n > 0;
  for (size_t i = 0; i < jobs->n; i++)
    if (nsh_deferred_failed(&a->deferred, jobs->items[i].id, now) <= d->cfg->drain_within)
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
  return a->map->strategy == NS_TRANSACTION && a->deferred.batch.n >= KEPT_MAX / 2;
}

/* How long it had better wait; until now: it need not, or has waited. */
static nsh_term wait_of(const nsh_dispatch *d, nsh_adopted *a, const ns_verdict *v, int64_t now) {
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
  nsh_exchange_lock(d->exchange);
  ending = is_ending(d->exchange);
  nsh_exchange_unlock(d->exchange);
  for (size_t i = 0; i < b->n && !ending; i++) {
    nsh_term term = wait_of(d, a, &b->items[i], now);
    if (term.until > now) {
      b->items[i].lease = 0;
      nsh_deferred_hold(&a->deferred, &b->items[i], term);
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
  nsh_exchange_lock(d->exchange);
  ns_assert(settled <= d->exchange->unsettled);
  d->exchange->unsettled -= settled;
  nsh_exchange_unlock(d->exchange);
  if (news)
    a->empties = 0;
  return NS_OK;
}

/* ------------------------------------------------------------------- looks */

/* Rows that have not been begun go back when people, or a job, have asked for a pause. */
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
  nsh_exchange_lock(d->exchange);
  nsh_exchange_withdraw(d->exchange, a->lease);
  nsh_exchange_unlock(d->exchange);
}

static ns_status look(nsh_dispatch *d, nsh_adopted *a, bool now, int64_t *freed,
                      ns_err *err) {
  ns_status st = ns_adopted_look(a->table, now, freed, err);
  nsh_row_log_reset(a->map->table, a->table);
  obey(d, a);
  return st;
}

static void give_back_rows(nsh_source *source) {
  tables *s = (tables *)source;
  ns_err err;
  int64_t freed;
  for (size_t i = 0; i < s->n; i++)
    if (look(source->d, &s->items[i], true, &freed, &err) != NS_OK)
      ns_log(err.status == NS_EBUSY ? NS_LOG_WARN : NS_LOG_ERROR, "rescue.failed",
             NS_FIELDS(ns_fb("table", s->items[i].map->table), ns_fs("code", ns_code(err.status)),
                       ns_fs("error", err.message)));
}

/* ------------------------------------------------------------------ claiming */

/* Its half of what is free, when another source wants the other. */
static size_t share_of(const nsh_adopted *a, const nsh_turn *t) {
  size_t room = room_of(a, &t->room);
  if (!nsh_turn_wanted(t, &a->all->source))
    return room;
  return room - room / 2 - (a->all->first % 2 == 1 && room % 2 == 1 ? 1 : 0);
}

static void deliver(nsh_dispatch *d, const nsh_adopted *a, ns_jobs *jobs) {
  size_t by_pool[NSH_POOLS_MAX] = {0};
  by_pool[a->pool] = jobs->n;
  ns_assert(jobs->n == 0 || jobs->items[0].lease == a->lease);
  nsh_exchange_lock(d->exchange);
  nsh_exchange_deliver(d->exchange, jobs, by_pool);
  nsh_exchange_unlock(d->exchange);
  d->exchange->notify(d->exchange->notify_arg);
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
  bool woken;
  nsh_exchange_lock(d->exchange);
  woken = a->listener != NULL && nsh_table_listener_take(a->listener);
  nsh_exchange_unlock(d->exchange);
  return woken || ns_mono_us() >= ns_adopted_claim_at(a->table);
}

/* All rows that there were have been taken: waits for more. */
static void await(nsh_dispatch *d, nsh_adopted *a, bool found) {
  if (a->listener == NULL || !ns_adopted_looked(a->table))
    return;
  nsh_exchange_lock(d->exchange);
  nsh_table_listener_arm(a->listener, d->holder, found);
  nsh_exchange_unlock(d->exchange);
}

static ns_status claim(nsh_dispatch *d, nsh_adopted *a, nsh_turn *t, ns_err *err) {
  ns_jobs jobs = NS_JOBS_INIT;
  size_t limit = share_of(a, t);
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
    nsh_turn_yield(t, &a->all->source, a->pool, n);
  } else if (st == NS_OK)
    st = count_empty(d, a, err);
  ns_jobs_free(&jobs);
  return st;
}

/* Jobs that no worker here can run are left to other hosts. */
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

/* The server is away: nothing works. One table that does not work must not hold up the rest.
** False: the server. */
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

static bool run_table(nsh_dispatch *d, nsh_adopted *a, nsh_turn *t, int64_t now) {
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

static bool settle_and_claim(nsh_source *source, nsh_turn *t) {
  tables *s = (tables *)source;
  int64_t now = ns_mono_us();
  bool fine = true;
  s->first++;
  for (size_t i = 0; i < s->n && fine; i++)
    fine = run_table(source->d, &s->items[(s->first + i) % s->n], t, now);
  s->watch_at = now + WATCH;
  if (fine)
    nsh_recovered(source->d);
  return fine;
}

static void write_signs(nsh_source *source, const nsh_turn *t, ns_sign *signs) {
  tables *s = (tables *)source;
  for (size_t i = 0; i < s->n; i++) {
    const nsh_adopted *a = &s->items[i];
    size_t n = nsh_turn_signs(t, a->lease, a->lease, signs);
    ns_err err;
    if (n > 0 && ns_adopted_touch_many(a->table, signs, n, &err) == NS_OK)
      nsh_turn_lost(source->d, t, signs, n);
  }
}

/* -------------------------------------------------------------- draining */

static void sooner_due(int64_t *due, int64_t other) {
  if (other >= 0 && (*due < 0 || other < *due))
    *due = other;
}

static bool has_refused(const nsh_source *source) {
  const tables *s = (const tables *)source;
  for (size_t i = 0; i < s->n; i++)
    if (ns_adopted_refuses(s->items[i].table))
      return true;
  return false;
}

static bool has_rested(const nsh_source *source, int64_t *due, size_t *deferred) {
  const tables *s = (const tables *)source;
  int64_t now = ns_mono_us();
  bool rested = true;
  *due = -1;
  *deferred = 0;
  for (size_t i = 0; i < s->n; i++) {
    const nsh_adopted *a = &s->items[i];
    int64_t over = nsh_deferred_over(&a->deferred);
    rested = rested && (a->empties >= 2 || !a->handled || is_full(a));
    *deferred += a->deferred.batch.n;
    if (a->handled)
      sooner_due(due, a->due);
    if (over != NSH_NEVER)
      sooner_due(due, over > now ? over - now : 0);
  }
  return rested;
}

static bool log_awaited(const nsh_source *source) {
  const tables *s = (const tables *)source;
  const nsh_dispatch *d = source->d;
  bool any = false;
  for (size_t i = 0; i < s->n; i++) {
    const nsh_adopted *a = &s->items[i];
    char next_at[NS_LOG_TIME];
    if (!a->handled || !is_soon(d, a->due))
      continue;
    ns_log_time(next_at, ns_now(d->db) + a->due);
    ns_log(NS_LOG_INFO, "drain.waits",
           NS_FIELDS(ns_fb("table", a->map->table), ns_fs("next", next_at)));
    any = true;
  }
  return any;
}

ns_status nsh_adopted_open(nsh_dispatch *d, nsh_source **out, ns_err *err) {
  tables *s;
  if (d->cfg->nadopted == 0)
    return NS_OK;
  s = nsh_alloc(sizeof *s);
  s->source = (nsh_source){.d = d,
                           .due = is_due,
                           .next = next_time,
                           .take = take_verdicts,
                           .run = settle_and_claim,
                           .touch = write_signs,
                           .rescue = give_back_rows,
                           .rested = has_rested,
                           .refuses = has_refused,
                           .tell = log_awaited,
                           .stop = stop_listeners,
                           .close = close_tables};
  *out = &s->source;
  return open_tables(s, err);
}
