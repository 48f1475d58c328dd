/*
** The upkeep's thread: it sleeps until something is due, a holder may have died, or there is a
** large verdict to write. A prune is made of small transactions. Between two of them the thread
** rests for as long as it has worked, and does work that hosts and jobs wait for.
*/
#include "threads/threads.h"

#include <stdlib.h>

#include "base.h"
#include "ipc/ipc.h"

#define LOOK_BUSY (NS_SECOND / 2)  /* at other holders, while the listener does not listen */
#define LOOK_SOON (NS_SECOND / 10) /* dependents with a row that another transaction holds */
#define PRUNE (60 * NS_SECOND)
#define PRUNE_MORE NS_SECOND
#define PRUNE_AGAIN (6 * NS_SECOND) /* another transaction holds a row of it */
#define AUDIT_FIRST NS_SECOND       /* after the start: jobs that are nowhere */
#define REST_MAX (NS_SECOND / 4)    /* between two transactions of a prune */
#define TICKS (10 * NS_SECOND)      /* between looks for the next tick of a schedule */
#define TICKS_GAP (NS_SECOND / 5)   /* ... that may be another one */
#define TICKS_BUSY NS_SECOND        /* ... while the listener does not listen */
#define END_MAX (NS_SECOND / 2)     /* for the chore that it is at */
#define STOP_MAX (3 * NS_SECOND)    /* once the wait is cut off */

/* Instants are monotonic µs. */
struct nsh_upkeep {
  nsh_exchange *exchange;
  nsh_slow *slow;
  ns_db *db;
  pthread_t thread;
  int stop; /* ends its waits for the server */
  bool running;
  bool opened;     /* from here on a lost server is waited for */
  bool gone;       /* a look that was asked for has failed: again when it is due */
  nsh_retry large; /* verdicts with many children */
  int64_t look_at, prune_at, audit_at;
  int64_t looked_at; /* when the last look was over */
  int64_t rested;    /* when the last rest was over */
  int64_t ticks_at, ticked_at; /* when to look for a tick, and when that was done last */
};

/* ------------------------------------------------------------------- waiting */

static int64_t sooner(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* A host that has been busy for a while, so that it does not listen, looks more often. Work
** that the listener wakes us for, and that is soon taken, brings no look. The lock is held. */
static int64_t look_due(const nsh_upkeep *u) {
  const nsh_exchange *m = u->exchange;
  int64_t since = m->disarmed_at > u->looked_at ? m->disarmed_at : u->looked_at;
  return m->armed ? u->look_at : sooner(u->look_at, since + LOOK_BUSY);
}

/* When to look for a tick. A ring may be of a new schedule, and a listener that is busy hears
** none. The lock is held. */
static int64_t ticks_due(const nsh_upkeep *u) {
  const nsh_exchange *m = u->exchange;
  if (m->ticks_moved)
    return sooner(u->ticks_at, u->ticked_at + TICKS_GAP);
  return m->armed ? u->ticks_at : sooner(u->ticks_at, u->ticked_at + TICKS_BUSY);
}

/* A listener that wakes may bring looks forward: the exchange signals it. */
static void sleep_until(const nsh_upkeep *u, int64_t when) {
  nsh_exchange *m = u->exchange;
  while (!m->upkeep_ends && !m->gone && m->large.n == 0) {
    int64_t until = sooner(when, sooner(look_due(u), ticks_due(u)));
    struct timespec t = {(time_t)(until / NS_SECOND), (long)(until % NS_SECOND) * 1000};
    if (ns_mono_us() >= until)
      break;
    pthread_cond_timedwait(&m->upkeep, &m->lock, &t);
  }
}

/* Until then, or there is something to do; false: the host ends. */
static bool rest_until(nsh_upkeep *u, int64_t when) {
  nsh_exchange *m = u->exchange;
  bool ends;
  nsh_exchange_lock(m);
  sleep_until(u, when);
  ends = m->upkeep_ends;
  nsh_exchange_unlock(m);
  return !ends;
}

/* The core asks this between attempts to reconnect. */
static bool keep_trying(void *arg, const ns_err *why) {
  nsh_upkeep *u = arg;
  bool ends;
  (void)why;
  nsh_exchange_lock(u->exchange);
  ends = u->exchange->upkeep_ends;
  nsh_exchange_unlock(u->exchange);
  return u->opened && !ends;
}

/* -------------------------------------------------------- holders that died */

/* A look that was BUSY is repeated by the next one. */
static void tell_look(nsh_exchange *m, ns_status st, const ns_rescued *sum, const ns_err *err) {
  nsh_count(&m->counts.rescued, sum->jobs);
  nsh_count(&m->counts.holders, sum->holders);
  if (st != NS_OK && st != NS_EGONE) {
    nsh_count(&m->counts.errors[st], 1);
    ns_log(st == NS_EBUSY ? NS_LOG_WARN : NS_LOG_ERROR, "rescue.failed",
           NS_FIELDS(ns_fs("code", ns_code(st)), ns_fs("error", err->message)));
  }
  if (sum->holders > 0 || sum->jobs > 0)
    ns_log(NS_LOG_WARN, "rescue",
           NS_FIELDS(ns_fi("holders", sum->holders), ns_fi("jobs", sum->jobs),
                     ns_fi("poison", sum->poison)));
}

/* Takes the listener's news, and the holder that we look around for. */
static bool take_orders(nsh_upkeep *u, int64_t now) {
  nsh_exchange *m = u->exchange;
  bool due;
  nsh_exchange_lock(m);
  u->gone = u->gone || m->gone;
  due = m->gone || now >= look_due(u);
  m->gone = false;
  ns_assist(u->db, m->assisted, m->locks);
  nsh_exchange_unlock(m);
  return due;
}

/* There may be more to claim. Whether the listener listens. */
static bool tell_dispatcher(nsh_exchange *m, bool back) {
  bool armed;
  nsh_exchange_lock(m);
  armed = m->armed;
  m->woken = m->woken || back;
  if (back) {
    nsh_exchange_turned(m); /* the rows of failed jobs are to be told */
    pthread_cond_signal(&m->work);
  }
  nsh_exchange_unlock(m);
  return armed;
}

/* Gives back claims of dead holders. While the listener waits in the server it reports a death;
** otherwise we look ourselves. */
static void rescue_dead(nsh_upkeep *u) {
  int64_t again_in;
  ns_rescued sum;
  ns_err err;
  ns_status st;
  bool armed;
  if (!take_orders(u, ns_mono_us()))
    return;
  st = ns_look(u->db, &again_in, &sum, &err);
  tell_look(u->exchange, st, &sum, &err);
  armed = tell_dispatcher(u->exchange, sum.jobs > 0);
  u->gone = st == NS_EGONE;
  if (!armed && again_in > LOOK_BUSY)
    again_in = LOOK_BUSY;
  u->looked_at = ns_mono_us();
  u->look_at = u->looked_at + again_in;
}

/* -------------------------------------------------------- large verdicts */

static void tell_written(nsh_exchange *m, const ns_verdict *v) {
  nsh_exchange_lock(m);
  nsh_exchange_written(m, v);
  nsh_exchange_unlock(m);
}

/* Each in a transaction of its own. A verdict that fails waits, longer each time. */
static ns_err write_each(nsh_upkeep *u, int64_t holder) {
  nsh_batch *b = &u->large.batch;
  ns_err last = *ns_trouble(u->db);
  for (size_t i = 0; i < b->n; i++) {
    ns_verdict *v = &b->items[i];
    ns_err err;
    ns_status st = ns_settle_for(u->db, holder, v, &err);
    if (st == NS_OK && v->status != NS_EBUSY)
      tell_written(u->exchange, v);
    v->trouble = v->trouble || st != NS_OK;
    if (v->trouble)
      last = st != NS_OK ? err : *ns_trouble(u->db);
  }
  return last;
}

static void settle_large(nsh_upkeep *u) {
  nsh_exchange *m = u->exchange;
  int64_t holder;
  ns_err trouble;
  nsh_exchange_lock(m);
  nsh_retry_take(&u->large, &m->large, NULL, ns_mono_us());
  nsh_slow_owes(u->slow, NSH_UPKEEP, &u->large);
  holder = m->assisted;
  nsh_exchange_unlock(m);
  if (u->large.batch.n == 0)
    return;
  ns_assert(ns_holder_id(u->db) == 0); /* the claims are the dispatcher's */
  nsh_slow_doing(u->slow, NSH_UPKEEP, u->large.batch.n, false);
  trouble = write_each(u, holder);
  nsh_slow_doing(u->slow, NSH_UPKEEP, 0, false);
  if (ns_unfinished(u->db))
    u->look_at = sooner(u->look_at, ns_mono_us() + LOOK_SOON);
  nsh_retry_sort(&u->large, &trouble, ns_mono_us());
  nsh_slow_owes(u->slow, NSH_UPKEEP, &u->large);
}

/* -------------------------------------------------------- ticks of schedules */

/* Wakes the thread of schedules when the first tick is due. */
static void look_for_ticks(nsh_upkeep *u) {
  nsh_exchange *m = u->exchange;
  int64_t now = ns_mono_us();
  int64_t in;
  ns_err err;
  bool due;
  nsh_exchange_lock(m);
  due = now >= ticks_due(u);
  m->ticks_moved = m->ticks_moved && !due;
  nsh_exchange_unlock(m);
  if (!due)
    return;
  if (ns_schedule_next(u->db, &in, &err) != NS_OK)
    in = -1; /* by now it is another look's */
  u->ticked_at = ns_mono_us();
  u->ticks_at = u->ticked_at + (in > 0 && in < TICKS ? in : in == 0 ? NS_SECOND : TICKS);
  nsh_exchange_lock(m);
  m->ticks_known = true;
  m->ticks_due = m->ticks_due || in == 0;
  if (in == 0)
    pthread_cond_broadcast(&m->schedules);
  nsh_exchange_unlock(m);
  m->notify(m->notify_arg); /* a host that drains may have waited for this */
}

/* ---------------------------------------------------------------- pruning */

/* Rests: the server's other half of the time is for jobs. */
static bool rest_between_deletes(void *arg) {
  nsh_upkeep *u = arg;
  int64_t now = ns_mono_us();
  int64_t until = now + (now - u->rested < REST_MAX ? now - u->rested : REST_MAX);
  bool goes_on;
  while ((goes_on = rest_until(u, until))) {
    settle_large(u);
    rescue_dead(u);
    look_for_ticks(u);
    if (ns_mono_us() >= until)
      break;
  }
  u->rested = ns_mono_us();
  return goes_on;
}

static void prune_history(nsh_upkeep *u) {
  ns_err err;
  ns_status st;
  int64_t deleted = 0;
  u->rested = ns_mono_us();
  if (u->rested < u->prune_at)
    return;
  st = ns_prune(u->db, NS_KEEP_BY_RULE, NS_KEEP_BY_RULE, 1, &deleted, &err);
  u->prune_at = ns_mono_us() + (st != NS_OK ? PRUNE_AGAIN : deleted > 0 ? PRUNE_MORE : PRUNE);
}

/* ------------------------------------------------- jobs that are nowhere */

static void log_audited(const ns_audited *sum) {
  for (int64_t i = 0; i < sum->jobs && i < NS_AUDITED_IDS; i++)
    ns_log(NS_LOG_ERROR, "job.mended", NS_FIELDS(ns_fi("id", sum->ids[i])));
  if (sum->jobs > 0 || sum->rows > 0)
    ns_log(sum->jobs > 0 ? NS_LOG_ERROR : NS_LOG_INFO, "mended",
           NS_FIELDS(ns_fi("jobs", sum->jobs), ns_fi("rows", sum->rows)));
}

static void run_audit(nsh_upkeep *u) {
  int64_t again_in;
  ns_audited sum;
  ns_err err;
  ns_status st;
  if (ns_mono_us() < u->audit_at)
    return;
  st = ns_audit_step(u->db, NS_AUDIT_SHARED, &again_in, &sum, &err);
  if (st != NS_OK && st != NS_EGONE && st != NS_EBUSY)
    ns_log(NS_LOG_WARN, "mend.failed",
           NS_FIELDS(ns_fs("code", ns_code(st)), ns_fs("error", err.message)));
  log_audited(&sum);
  nsh_count(&u->exchange->counts.mended, sum.jobs);
  if (sum.jobs > 0)
    tell_dispatcher(u->exchange, true);
  u->audit_at = ns_mono_us() + again_in;
}

/* ------------------------------------------------------------- the thread */

/* For the chores beside the look, which a sleep knows of by itself. */
static int64_t next_chore(const nsh_upkeep *u) {
  return sooner(sooner(u->prune_at, u->audit_at), u->large.again_at);
}

/* A chore that takes long is made of steps: each is called when it is due, does little,
** and says when the next is. */
static void *thread(void *arg) {
  nsh_upkeep *u = arg;
  nsh_exchange *m = u->exchange;
  while (rest_until(u, next_chore(u))) {
    settle_large(u);
    rescue_dead(u);
    look_for_ticks(u);
    prune_history(u);
    run_audit(u);
  }
  nsh_exchange_lock(m);
  m->upkeep_ended = true;
  pthread_cond_broadcast(&m->upkeep);
  nsh_exchange_unlock(m);
  return NULL;
}

ns_status nsh_upkeep_open(nsh_upkeep **out, const nsh_config *cfg, nsh_exchange *exchange,
                          nsh_slow *slow, ns_err *err) {
  nsh_upkeep *u = nsh_alloc(sizeof *u);
  ns_config db = cfg->db;
  ns_status st;
  *out = u;
  u->exchange = exchange;
  u->slow = slow;
  u->large = NSH_RETRY_INIT;
  u->large.counts = &exchange->counts;
  u->prune_at = ns_mono_us() + PRUNE_AGAIN;
  u->audit_at = ns_mono_us() + AUDIT_FIRST;
  db.keep_trying = keep_trying;
  db.keep_trying_arg = u;
  nsh_slow_watch(slow, NSH_UPKEEP, &db);
  if ((u->stop = db.interrupt_fd = ns_await_stop_open(err)) <= 0)
    return err->status;
  st = ns_open(&u->db, &db, err);
  u->opened = st == NS_OK;
  if (st == NS_OK) {
    ns_between(u->db, rest_between_deletes, u);
    ns_forget_done(u->db, cfg->forget_done);
  }
  return st;
}

ns_status nsh_upkeep_start(nsh_upkeep *u, ns_err *err) {
  if (pthread_create(&u->thread, NULL, thread, u) != 0)
    return ns_fail(err, NS_ENOMEM, "cannot start the upkeep's thread");
  u->running = true;
  return NS_OK;
}

/* True when the thread has ended in time. */
static bool has_ended(nsh_exchange *m, int64_t max) {
  int64_t until = ns_mono_us() + max;
  struct timespec t = {(time_t)(until / NS_SECOND), (long)(until % NS_SECOND) * 1000};
  bool ended;
  nsh_exchange_lock(m);
  m->upkeep_ends = true;
  pthread_cond_broadcast(&m->upkeep);
  while (!m->upkeep_ended && ns_mono_us() < until)
    pthread_cond_timedwait(&m->upkeep, &m->lock, &t);
  ended = m->upkeep_ended;
  nsh_exchange_unlock(m);
  return ended;
}

static bool await_end(nsh_upkeep *u) {
  if (has_ended(u->exchange, END_MAX))
    return true;
  ns_await_stop(u->stop);
  return has_ended(u->exchange, STOP_MAX);
}

bool nsh_upkeep_close(nsh_upkeep *u) {
  if (u == NULL)
    return true;
  if (u->running && !await_end(u))
    return false;
  if (u->running)
    pthread_join(u->thread, NULL);
  ns_close(u->db);
  ns_await_stop_close(u->stop);
  nsh_retry_free(&u->large);
  free(u);
  return true;
}
