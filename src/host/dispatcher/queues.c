/*
** The queues: where jobs come from, and verdicts go. A cycle writes the verdicts, claims as
** many jobs as the workers can take and hands them over.
**
** When to claim: while claims come back full there is more ("hot"). A claim that came back
** short arms the listener, which waits in the server. The row that wakes it may not be visible
** yet, as a trigger rings before its transaction commits. The listener finds the row by itself,
** as it looks again in its sleep. So the host is silent until the next wake, the next due job
** or the ping. Only a host that ends when nothing is left looks twice.
**
** With reserved workers this holds for each pool. While pool 0 is full, claims and the listener
** go on for the queues that have workers of their own, and leave the rest out.
**
** A host that drains also looks ahead. The server is asked only while the host has
** nothing else to do and something, of whatever name, is due soon. The answer is good until
** the first job that it names is due. An answer that names none is good for a second, unless
** a job is claimed or settled, or the host is woken, before that.
**
** Invariant: while it is not known which jobs are due soon, the host does not end. (It is in
** has_rested.)
*/
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "dispatcher/dispatcher.h"
#include "ipc/ipc.h"

#define SERVED_OLD NS_SECOND
#define NOTHING_OLD NS_SECOND /* the answer that nothing is due soon is asked for again */
#define LAST_LOOK 5000 /* for a host that drains, after a claim without jobs */
#define TELL_GAP (10 * NS_SECOND) /* between two lines on the jobs waited for */
#define HELD_RETRY 10000 /* dependents with a row that another transaction holds */

/* The jobs that a host waits for before it ends with nothing left: scheduled ones, due soon,
** that it will claim itself. Instants are monotonic µs. */
typedef struct outlook {
  bool known;           /* the last look has told */
  bool failed;          /* ... or could not: it is to be repeated */
  ns_upcoming upcoming; /* n == 0: nothing */
  int64_t due_at;       /* when the first of it is; NEVER: nothing */
  int64_t nothing_at;   /* when the server has last said so; 0: something was, or may be since */
} outlook;

/* Instants ('…_at') are monotonic µs. */
struct nsh_queues {
  nsh_dispatch *d;
  nsh_retry unsettled;
  nsh_served served;
  outlook outlook;
  bool hot[NSH_POOLS_MAX]; /* when this pool has room, a claim may find more */
  bool narrow;             /* the listener was armed without pool 0's queues */
  int64_t recheck_at, due_at;
  int64_t due;         /* as the last cycle said; -1: no reason to claim by itself */
  size_t share;        /* jobs that the last claim was to take; 0: it could take none */
  int empties;         /* claims in a row that found nothing */
  int64_t empty_since; /* when the first of them began */
  int64_t waits_told_at; /* no earlier line on the jobs that a drain waits for */
  int64_t paused_told; /* mark of the paused names that the log has told of */
  ns_batched *batched; /* names whose handlers take batches; in d->batched */
  size_t nbatched, capbatched;
  size_t more; /* jobs of each of them that the claim under way may take beside its limit */
  /* of the turn under way */
  nsh_turn *turn; /* for choose_anew */
  bool woken;     /* by the listener, or for a last look */
  bool waiting;   /* jobs wait in the host, and go back when they are paused */
  int64_t began;  /* the cycle */
};

/* ------------------------------------------------------------------ when */

/* A claim of any pool may find something. */
static void mark_hot(nsh_queues *q) {
  nsh_dispatch *d = q->d;
  for (size_t i = 0; i < d->exchange->npools; i++)
    q->hot[i] = true;
}

/* A claim has a reason to find something. */
static bool may_claim(const nsh_queues *q, int64_t now) {
  const nsh_dispatch *d = q->d;
  nsh_room room = nsh_exchange_room(d->exchange);
  bool any = room.open > 0 && q->hot[0];
  for (size_t i = 1; i < d->exchange->npools; i++)
    any = any || (room.own[i] > 0 && q->hot[i]);
  return any || (room.all > 0 && (d->exchange->woken || now >= q->recheck_at || now >= q->due_at));
}

/* When the queues are to be read again for jobs that wait in the host. */
static int64_t reread_at(const nsh_queues *q) {
  return q->d->exchange->waiting ? q->served.made_at + SERVED_OLD : NSH_NEVER;
}

bool nsh_queues_due(const nsh_queues *q, int64_t now) {
  const nsh_exchange *m = q->d->exchange;
  return q->unsettled.batch.n > 0 || m->verdicts.n > 0 || m->parents.n > 0 ||
         nsh_retry_waiting(&q->unsettled) > 0 || now >= q->unsettled.again_at ||
         now >= reread_at(q) || may_claim(q, now);
}

int64_t nsh_queues_next(const nsh_queues *q) {
  int64_t t = nsh_sooner(q->unsettled.again_at, reread_at(q));
  if (nsh_exchange_room(q->d->exchange).all > 0)
    t = nsh_sooner(t, nsh_sooner(q->recheck_at, q->due_at));
  return t;
}

static size_t less(size_t n, size_t taken) {
  return n > taken ? n - taken : 0;
}

/* Verdicts that wait for a later cycle keep their places, or there would be ever more of them.
** Each verdict of this cycle gives way to one job, however many verdicts wait. */
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

void nsh_queues_take(nsh_queues *q, nsh_turn *t, int64_t now) {
  nsh_exchange *m = q->d->exchange;
  size_t written;
  written = nsh_retry_take(&q->unsettled, &m->verdicts, &m->parents, now);
  nsh_slow_owes(q->d->slow, NSH_DISPATCHER, &q->unsettled);
  hold_places(&t->room, nsh_retry_waiting(&q->unsettled) + m->parents.n, written);
  t->limit = t->room.all;
  q->more = m->more;
  q->waiting = m->waiting;
  q->woken = t->limit > 0 && (m->woken || now >= q->recheck_at);
  if (m->woken) /* a job that is due soon may have been pushed */
    q->outlook.nothing_at = 0;
  if (t->limit > 0) {
    m->woken = false;
    q->recheck_at = q->due_at = NSH_NEVER;
  }
}

/* The claim is still to be made; verdicts may have been written before it. */
static void put_back(nsh_queues *q, const nsh_turn *t) {
  nsh_dispatch *d = q->d;
  size_t settled = nsh_retry_failed(&q->unsettled, ns_trouble(d->db), ns_mono_us());
  nsh_slow_owes(d->slow, NSH_DISPATCHER, &q->unsettled);
  if (t->limit > 0)
    mark_hot(q);
  nsh_exchange_lock(d->exchange);
  d->exchange->unsettled -= settled;
  d->exchange->woken = d->exchange->woken || q->woken;
  nsh_exchange_unlock(d->exchange);
}

/* Is a queue worth waiting for? A queue that pool 0 has no room for is not, nor a queue that
** has more already. */
static bool is_wanted(const nsh_queues *q, size_t queue) {
  return !q->hot[0] || (q->served.pools[queue] > 0 && !q->hot[q->served.pools[queue]]);
}

static void list_awaited(const nsh_queues *q, nsh_exchange *m) {
  const nsh_served *f = &q->served;
  nsh_must(ns_grow(&m->queues, &m->capqueues, f->n + f->npaused, sizeof *m->queues));
  m->nqueues = 0;
  for (size_t i = 0; i < f->n; i++)
    if (is_wanted(q, i))
      m->queues[m->nqueues++] = f->items[i].queue_id;
  m->npaused = f->npaused;
  if (f->npaused > 0)
    memcpy(m->queues + m->nqueues, f->paused, f->npaused * sizeof *f->paused);
}

/* Gives the listener its queues, if any. A listener that sleeps already, for less, is woken.
** The lock is held. */
static void arm_listener(nsh_queues *q) {
  nsh_dispatch *d = q->d;
  nsh_exchange *m = d->exchange;
  bool any = !q->hot[0];
  for (size_t i = 0; i < q->served.n; i++)
    any = any || is_wanted(q, i);
  if (!any)
    return;
  list_awaited(q, m);
  m->newest = d->cfg->nqueues > 0 || q->hot[0] ? -1 : q->served.newest;
  ns_paused_names(d->db, &m->paused_mark);
  m->holder = d->holder;
  if (m->armed && q->narrow && !q->hot[0]) {
    m->narrow = true;
    d->widen_at = 0;
  }
  q->narrow = q->hot[0];
  if (!m->armed) {
    nsh_listen_near(d->listen, d->db, m->queues, m->nqueues);
    m->armed = true;
    pthread_cond_signal(&m->listen);
  }
}

/* Which pools' claims came back full? A pool without room is worth a claim as soon as it has
** some. 'got': jobs of each pool's queue, of all other queues in got[0]. */
static void update_hot(nsh_queues *q, const nsh_turn *t, const size_t *got) {
  nsh_dispatch *d = q->d;
  size_t open = got[0];
  for (size_t i = 1; i < d->exchange->npools; i++) {
    size_t own = t->room.own[i];
    open += got[i] > own ? got[i] - own : 0;
    q->hot[i] = own == 0 || got[i] >= own;
  }
  q->hot[0] = t->room.open == 0 || open >= t->room.open;
  if (t->room.open > 0)
    d->more = q->hot[0];
  for (size_t i = 1; i < d->exchange->npools && !q->hot[0]; i++)
    q->hot[i] = t->room.own[i] == 0; /* there was room for any job */
}

/* Had a claim room for any job that this host may run? */
static bool had_room(const nsh_dispatch *d, const nsh_turn *t) {
  if (nsh_config_workers(d->cfg, 0, d->cfg->workers) > 0)
    return t->room.open > 0;
  for (size_t i = 1; i < d->exchange->npools; i++)
    if (t->room.own[i] == 0)
      return false;
  return true;
}

/* After a claim: when to claim next. The lock is held. */
static void plan_next_claim(nsh_queues *q, const nsh_turn *t, const size_t *got, size_t n,
                            int64_t now) {
  nsh_dispatch *d = q->d;
  update_hot(q, t, got);
  if (n > 0)
    q->empties = 0;
  else if (had_room(d, t)) {
    if (q->empty_since <= d->exchange->ticked_at) /* the jobs of ticks came later */
      q->empties = 0;
    if (q->empties++ == 0) /* else most queues were not looked at */
      q->empty_since = q->began;
  }
  q->due_at = q->due >= 0 ? now + q->due : NSH_NEVER;
  q->recheck_at =
      d->cfg->drain && (q->empties == 1 || q->outlook.failed) ? now + LAST_LOOK : NSH_NEVER;
  arm_listener(q);
}

/* -------------------------------------------------------- looking ahead */

static bool is_soon(const nsh_dispatch *d, int64_t in) {
  return in >= 0 && in <= d->cfg->drain_within;
}

static bool is_busy(const nsh_dispatch *d) {
  bool busy;
  nsh_exchange_lock(d->exchange);
  busy = d->exchange->outstanding > 0;
  nsh_exchange_unlock(d->exchange);
  return busy;
}

/* Is the last answer still true? 'first': when the first job of any name is due. */
static bool answer_stands(const nsh_queues *q, int64_t first, int64_t now) {
  const outlook *o = &q->outlook;
  if (o->due_at != NSH_NEVER)
    return now < o->due_at && first <= o->due_at;
  return o->nothing_at >= q->empty_since && now - o->nothing_at < NOTHING_OLD;
}

static void ask_what_is_due(nsh_queues *q) {
  nsh_dispatch *d = q->d;
  outlook *o = &q->outlook;
  ns_err err;
  ns_status st =
      ns_look_ahead(d->db, q->served.items, q->served.n, d->cfg->drain_within, &o->upcoming, &err);
  o->known = st == NS_OK;
  o->failed = st != NS_OK;
  o->due_at = o->known && o->upcoming.n > 0 ? ns_mono_us() + o->upcoming.in : NSH_NEVER;
  o->nothing_at = o->known && o->upcoming.n == 0 ? ns_mono_us() : 0;
  if (st == NS_OK)
    return;
  nsh_back_off(d, &err);
  q->recheck_at = ns_mono_us();
}

/* Looks which jobs are due soon; after a claim without jobs, before the next is planned. A look
** that failed is repeated. The exchange is not locked. */
static void look_ahead(nsh_queues *q) {
  nsh_dispatch *d = q->d;
  outlook *o = &q->outlook;
  int64_t in = ns_first_due(d->db);
  int64_t now = ns_mono_us();
  o->known = o->failed = false;
  if (!d->cfg->drain || is_busy(d))
    return;
  o->known = true;
  if (!is_soon(d, in))
    o->due_at = NSH_NEVER;
  else if (!answer_stands(q, now + in, now))
    ask_what_is_due(q);
}

/* By the last look: µs until the first job is due, -1: none is. */
static int64_t first_due(const nsh_queues *q) {
  int64_t due_at = q->outlook.due_at;
  int64_t now = ns_mono_us();
  return due_at == NSH_NEVER ? -1 : due_at > now ? due_at - now : 0;
}

/* Was nothing found twice? A host that may take no job does not claim, so no look goes on that is
** open: it has nothing to look for. The lock is held. */
static bool has_rested(const nsh_queues *q) {
  return q->empties >= 2 && q->empty_since > q->d->exchange->ticked_at && q->due != 0 &&
         q->outlook.known &&
         (q->share == 0 ||
          ns_looked_everywhere(q->d->db, q->served.items, q->served.n, q->empty_since));
}

static void tell_jobs(const ns_upcoming *u) {
  char next[NS_LOG_TIME];
  char until[NS_LOG_TIME];
  ns_log_time(next, u->first);
  ns_log_time(until, u->last);
  ns_log(NS_LOG_INFO, "drain.waits",
         NS_FIELDS(ns_fi("jobs", (int64_t)u->n), ns_fs("name", u->name), ns_fs("queue", u->queue),
                   ns_fs("next", next), ns_fs("until", until)));
}

/* Logs, now and then, the jobs that a host that would end waits for. */
static void log_awaited(nsh_queues *q) {
  int64_t now = ns_mono_us();
  if (now < q->waits_told_at || q->outlook.due_at == NSH_NEVER)
    return;
  tell_jobs(&q->outlook.upcoming);
  q->waits_told_at = now + TELL_GAP;
}

/* Publishes whether there are more jobs to be had. True: the only jobs left are due soon. The
** exchange is locked. */
static bool publish_rest(const nsh_queues *q) {
  const nsh_dispatch *d = q->d;
  nsh_exchange *m = d->exchange;
  ns_assert(pthread_equal(d->self, pthread_self()));
  m->cycling = false;
  m->rest_due = first_due(q);
  m->rested = has_rested(q) && m->outstanding == 0 && m->unsettled == 0;
  return m->rested && m->rest_due >= 0 && m->rest_due <= d->cfg->drain_within;
}

/* ------------------------------------------------------------- the claim */

/* Logs the names that are paused, when they have changed. */
static void log_paused(nsh_queues *q) {
  int64_t mark;
  ns_bytes names = ns_paused_names(q->d->db, &mark);
  ns_buf text = NS_BUF_INIT;
  if (mark == q->paused_told)
    return;
  q->paused_told = mark;
  for (size_t at = 0; at < names.n; at += strlen(names.p + at) + 1)
    ns_buf_addf(&text, "%s%s", text.n > 0 ? ", " : "",
                names.p[at] == '\0' ? "(every queue)" : names.p + at);
  if (names.n == 0)
    ns_log(NS_LOG_INFO, "names.resumed", NULL, 0);
  else if (!text.oom)
    ns_log(NS_LOG_INFO, "names.paused", NS_FIELDS(ns_fb("names", ns_buf_bytes(&text))));
  ns_buf_free(&text);
}

/* Reads the queues for jobs that wait in the host, where no claim has: what is paused now? */
static void reread_queues(nsh_queues *q) {
  ns_queue_row *rows;
  size_t n;
  ns_err err;
  if (!q->waiting || ns_mono_us() - q->served.made_at < SERVED_OLD)
    return;
  if (ns_queues(q->d->db, &rows, &n, &err) == NS_OK)
    nsh_served_make(&q->served, q->d->cfg, rows, n);
  else
    nsh_back_off(q->d, &err);
  free(rows);
}

/* The lock is held. */
static void publish_paused(const nsh_queues *q) {
  int64_t mark;
  nsh_exchange_pause(q->d->exchange, q->served.paused, q->served.npaused,
                     ns_paused_names(q->d->db, &mark));
}

static void choose_anew(ns_want *want, const ns_queue_row *rows, size_t n) {
  nsh_queues *q = want->arg;
  nsh_served_make(&q->served, q->d->cfg, rows, n);
  want->limit = q->share = nsh_served_share(&q->served, &q->turn->room);
  want->queues = q->served.items;
  want->nqueues = q->served.n;
}

/* Chooses the claim of this turn: from the queues as they were at most a second ago, or
** are when we are woken. */
static ns_want choose_claim(nsh_queues *q, nsh_turn *t) {
  bool stale = q->woken || ns_mono_us() - q->served.made_at > SERVED_OLD;
  ns_want want = {.arg = q, .batched = q->batched, .more = q->more};
  want.nbatched = q->more > 0 ? q->nbatched : 0;
  q->turn = t;
  if (t->limit == 0)
    return want;
  want.choose = stale ? choose_anew : NULL;
  q->share = nsh_served_share(&q->served, &t->room);
  want.limit = stale ? t->limit : q->share;
  want.queues = q->served.items;
  want.nqueues = q->served.n;
  return want;
}

static void publish_turn(nsh_queues *q, const nsh_turn *t, ns_jobs *jobs, size_t settled, int64_t now) {
  nsh_dispatch *d = q->d;
  nsh_exchange *m = d->exchange;
  size_t n = jobs->n;
  size_t got[NSH_POOLS_MAX] = {0};
  bool waits;
  if (n == 0 && settled == 0 && q->empties > 0)
    look_ahead(q);
  for (size_t i = 0; i < n; i++)
    got[nsh_config_pool(d->cfg, jobs->items[i].queue)]++;
  if (settled > 0) /* a returned job may lie behind the place of the last look */
    q->empties = 0;
  nsh_exchange_lock(m);
  ns_assert(settled <= m->unsettled);
  m->unsettled -= settled;
  m->counters = ns_count(d->db);
  m->skew = ns_now(d->db) - ns_mono_us();
  if (n > 0 || settled > 0)
    nsh_exchange_turned(m);
  if (n > 0)
    nsh_exchange_deliver(m, jobs, got);
  if (t->limit > 0)
    plan_next_claim(q, t, got, n, now);
  else if (settled > 0 || q->due == 0)
    mark_hot(q); /* no worker was up: returned jobs wait for the next */
  if ((settled > 0 || q->due == 0) && t->room.open == 0)
    d->more = true; /* jobs that came back, or were spawned */
  publish_paused(q);
  waits = publish_rest(q);
  nsh_exchange_unlock(m);
  m->notify(m->notify_arg);
  if (waits)
    log_awaited(q);
}

/* Reads the lines "jobs µs name" of the scripts that were loaded last. */
static void read_batched(nsh_queues *q) {
  const char *line = q->d->batched != NULL ? q->d->batched : "";
  for (q->nbatched = 0; *line != '\0'; line++) {
    size_t n = strcspn(line, "\n");
    char *name;
    size_t most = strtoul(line, &name, 10);
    strtoll(name, &name, 10);
    nsh_must(ns_grow(&q->batched, &q->capbatched, q->nbatched + 1, sizeof *q->batched));
    q->batched[q->nbatched++] = (ns_batched){{name + 1, n - (size_t)(name + 1 - line)}, most};
    line += n;
  }
}

/* The names to claim follow the handlers, which are known now, or have changed. */
static void rename_claims(nsh_queues *q) {
  nsh_dispatch *d = q->d;
  ns_err err;
  if (!d->renamed)
    return;
  d->renamed = false;
  nsh_must(nsh_served_claim(d->db, d->names, &err) == NS_OK);
  read_batched(q);
  q->served.closed = d->names != NULL && d->names[0] == '\0';
  q->served.made_at = 0;
  q->empties = 0;
  mark_hot(q);
}

bool nsh_queues_run(nsh_queues *q, nsh_turn *t) {
  nsh_dispatch *d = q->d;
  ns_err err;
  ns_jobs jobs = NS_JOBS_INIT;
  ns_want want;
  size_t settled;
  int64_t now;
  ns_status st;
  rename_claims(q);
  want = choose_claim(q, t);
  q->began = ns_mono_us();
  nsh_slow_doing(d->slow, NSH_DISPATCHER, q->unsettled.batch.n, want.limit > 0);
  st = ns_cycle(d->db, q->unsettled.batch.items, q->unsettled.batch.n, &want, &jobs, &q->due, &err);
  nsh_slow_doing(d->slow, NSH_DISPATCHER, 0, false);
  if (st != NS_OK) {
    ns_jobs_free(&jobs);
    nsh_back_off(d, &err);
    put_back(q, t);
    return false;
  }
  nsh_recovered(d);
  reread_queues(q);
  log_paused(q);
  now = ns_mono_us();
  nsh_retry_took(&q->unsettled, now - q->began);
  settled = nsh_retry_sort(&q->unsettled, ns_trouble(d->db), now);
  nsh_slow_owes(d->slow, NSH_DISPATCHER, &q->unsettled);
  if (ns_unfinished(d->db))
    q->unsettled.again_at = nsh_sooner(q->unsettled.again_at, now + HELD_RETRY);
  publish_turn(q, t, &jobs, settled, now);
  ns_jobs_free(&jobs); /* they may all have been too late to be started */
  return true;
}

void nsh_queues_touch(nsh_queues *q, const nsh_turn *t, ns_sign *signs) {
  size_t n = nsh_turn_signs(t, signs);
  ns_err err;
  if (n > 0 && ns_touch_many(q->d->db, signs, n, &err) == NS_OK)
    nsh_turn_lost(q->d, t, signs, n);
}

/* ----------------------------------------------------------- birth and end */

void nsh_queues_close(nsh_queues *q) {
  if (q == NULL)
    return;
  nsh_retry_free(&q->unsettled);
  nsh_served_free(&q->served);
  free(q->batched);
  free(q);
}

ns_status nsh_queues_open(nsh_queues **out, nsh_dispatch *d, ns_err *err) {
  nsh_queues *q = *out = nsh_alloc(sizeof *q);
  q->d = d;
  q->unsettled = NSH_RETRY_INIT;
  q->unsettled.counts = &d->exchange->counts;
  mark_hot(q);
  q->served.closed = true; /* until the names of the handlers are known */
  q->due = -1;
  q->recheck_at = q->due_at = q->outlook.due_at = NSH_NEVER;
  return nsh_served_open(&q->served, d->cfg, d->db, err);
}
