/*
** Slow answers of the database. A wait that lasts for a second is looked at, by a connection
** that is made for that and kept while it lasts. The server tells the session's state, or does
** not answer that either: then it is frozen. The same connection tells which verdicts have
** waited for a second, for any reason.
**
** Invariant: a thread that waits stores two words and never waits for this thread, which sleeps
** without a timer while no thread waits for anything. In ten seconds there is one line on a
** slow wait, and one more when that wait is over; the next line counts the rest. (Not asserted:
** it is about time.)
*/
#include "threads/threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "ipc/ipc.h"

/* ------------------------------------------------------------- owed verdicts */

/* The verdicts of a thread, as it told them; 'lock' guards it. It may be taken while the
** exchange is locked. */
typedef struct nsh_debts {
  ns_owed *items;
  size_t n, cap;
} nsh_debts;

typedef struct nsh_owed {
  pthread_mutex_t lock;
  nsh_debts of[NSH_WAITERS];
} nsh_owed;

static void init_owed(nsh_owed *o) {
  memset(o, 0, sizeof *o);
  pthread_mutex_init(&o->lock, NULL);
}

static void free_owed(nsh_owed *o) {
  for (size_t i = 0; i < NSH_WAITERS; i++)
    free(o->of[i].items);
  pthread_mutex_destroy(&o->lock);
}

/* Adds the verdicts from 'first' on. Jobs given back unbegun have no end, nor have verdicts
** that only end a claim. */
static void add_owed(nsh_debts *d, const nsh_batch *b, size_t first) {
  if (b->n <= first)
    return;
  nsh_must(ns_grow(&d->items, &d->cap, d->n + b->n - first, sizeof *d->items));
  for (size_t i = first; i < b->n; i++) {
    const ns_verdict *v = &b->items[i];
    if (v->ended > 0)
      d->items[d->n++] = (ns_owed){v->id, v->run, v->ended};
  }
}

/* 'who' owes the verdicts of 'u' from here on. If they were just taken out of the exchange it
** is still locked. */
static void set_owed(nsh_owed *o, nsh_waiter who, const nsh_retry *u) {
  nsh_debts *d = &o->of[who];
  pthread_mutex_lock(&o->lock);
  d->n = 0;
  add_owed(d, &u->batch, 0);
  add_owed(d, &u->later, 0);
  add_owed(d, &u->ill, 0);
  add_owed(d, &u->parents, u->nturns);
  pthread_mutex_unlock(&o->lock);
}

static int by_age(const void *a, const void *b) {
  const ns_owed *x = a;
  const ns_owed *y = b;
  return (x->since > y->since) - (x->since < y->since);
}

/* Lists all owed verdicts, with the ones in the exchange, which is not locked; the oldest
** first. The array is malloc'd; 'NULL': there is none. */
static ns_owed *list_owed(nsh_owed *o, nsh_exchange *m, size_t *n) {
  nsh_debts all = {0};
  nsh_exchange_lock(m);
  pthread_mutex_lock(&o->lock);
  for (size_t i = 0; i < NSH_WAITERS; i++) {
    const nsh_debts *d = &o->of[i];
    nsh_must(ns_grow(&all.items, &all.cap, all.n + d->n, sizeof *all.items));
    if (d->n > 0)
      memcpy(all.items + all.n, d->items, d->n * sizeof *d->items);
    all.n += d->n;
  }
  pthread_mutex_unlock(&o->lock);
  add_owed(&all, &m->verdicts, 0);
  add_owed(&all, &m->parents, 0);
  add_owed(&all, &m->large, 0);
  nsh_exchange_unlock(m);
  if (all.n > 1)
    qsort(all.items, all.n, sizeof *all.items, by_age);
  *n = all.n;
  return all.items;
}

#define LINE_GAP (10 * NS_SECOND)
#define QUIET (2 * NS_SECOND) /* without a wait, and the thread sleeps */
#define CONNECT NS_SECOND     /* whole seconds: as the library counts them */
#define ANSWER (2 * NS_SECOND)
#define STATES 3 /* looks at a session: a wait for a lock is many short ones */
#define STATE_GAP 20000
#define STOP_MAX (3 * NS_SECOND) /* for a connect under way */
#define STATE_MAX 64             /* bytes of the server's text on a session's state */

/* The wait of one connection. The atomics are written by its thread. */
typedef struct wait {
  nsh_slow *slow;
  const char *who;
  _Atomic(const char *) what; /* the statement; there for good */
  _Atomic int64_t since;      /* monotonic; 0: nothing is waited for */
  _Atomic int64_t thread;     /* the server's id of the session */
  atomic_size_t verdicts;
  atomic_bool claims;
  int64_t told; /* 'since' of the last one with a line */
} wait;

/* Instants are monotonic µs. 'lock' guards 'told', and the fields behind it. */
struct nsh_slow {
  wait waits[NSH_WAITERS];
  nsh_owed owed;
  nsh_exchange *exchange;
  ns_config cfg; /* strings are the host's configuration's */
  ns_db *db;     /* NULL: not connected */
  pthread_t thread;
  bool running;
  int stop;          /* ends its own waits for the server */
  atomic_bool awake; /* the thread looks again by itself */
  atomic_bool ends;  /* it is asked to end, … */
  bool ended;        /* … and has ended */
  pthread_mutex_t lock;
  pthread_cond_t wake;
  int64_t line_at;     /* no line before, except for the end of a reported wait */
  int64_t more, worst; /* that no line has told: how many, µs of the longest */
};

/* -------------------------------------------------------------------- lines */

static void describe_wait(const wait *w, char *text, size_t size) {
  size_t n = atomic_load(&w->verdicts);
  bool claims = atomic_load(&w->claims);
  if (n > 0)
    snprintf(text, size, "verdicts of %zu job%s%s", n, n == 1 ? "" : "s",
             claims ? ", a claim" : "");
  else
    snprintf(text, size, "%s", claims ? "a claim" : w->who);
}

static ns_field seconds_field(char text[24], const char *key, int64_t us) {
  snprintf(text, 24, "%lld.%02lld", (long long)(us / NS_SECOND),
           (long long)(us % NS_SECOND / 10000));
  return us > 0 ? ns_fs(key, text) : ns_fb(key, NS_NONE);
}

/* 'w' NULL: writes only of waits that had no line. 'state' is the server's text; NULL: it does
** not answer; "": it was not asked. The lock is held. */
static void write_line(nsh_slow *s, const wait *w, const char *what, int64_t took, bool over,
                       const char *state) {
  char doing[64] = "";
  char took_text[24], worst_text[24];
  bool frozen = state == NULL;
  if (w != NULL)
    describe_wait(w, doing, sizeof doing);
  ns_log(frozen ? NS_LOG_ERROR : NS_LOG_WARN, frozen ? "db.frozen" : "db.slow",
         NS_FIELDS(seconds_field(took_text, "seconds", took),
                   ns_fb("over", w != NULL ? ns_str(over ? "yes" : "no") : NS_NONE),
                   ns_fb("what", w != NULL ? ns_str(doing) : NS_NONE),
                   ns_fb("statement", what != NULL ? ns_str(what) : NS_NONE),
                   ns_fb("server", frozen || state[0] == '\0' ? NS_NONE : ns_str(state)),
                   s->more > 0 ? ns_fi("more", s->more) : ns_fb("more", NS_NONE),
                   seconds_field(worst_text, "worst", s->worst),
                   ns_fb("advice", frozen ? ns_str("it answers nothing and nobody: look at its "
                                                   "process and its machine; nightshift doctor")
                                          : NS_NONE)));
  s->more = s->worst = 0;
}

/* The answer has come, or never will. By the thread that has waited. */
static void is_over(wait *w, const char *what, int64_t since, int64_t now) {
  nsh_slow *s = w->slow;
  int64_t took = now - since;
  pthread_mutex_lock(&s->lock);
  if (w->told == since)
    write_line(s, w, what, took, true, "");
  else if (now >= s->line_at) {
    write_line(s, w, what, took, true, "");
    s->line_at = now + LINE_GAP;
  } else {
    s->more++;
    s->worst = took > s->worst ? took : s->worst;
  }
  pthread_mutex_unlock(&s->lock);
}

static bool may_write(nsh_slow *s) {
  bool may;
  pthread_mutex_lock(&s->lock);
  may = ns_mono_us() >= s->line_at;
  pthread_mutex_unlock(&s->lock);
  return may;
}

/* Lasts still. */
static void log_lasting_wait(nsh_slow *s, wait *w, const char *state) {
  int64_t now = ns_mono_us();
  int64_t since;
  const char *what;
  pthread_mutex_lock(&s->lock);
  what = atomic_load(&w->what);
  since = atomic_load(&w->since);
  if (since != 0 && now - since > NS_SLOW && now >= s->line_at) {
    write_line(s, w, what, now - since, false, state);
    w->told = since;
    s->line_at = now + LINE_GAP;
  }
  pthread_mutex_unlock(&s->lock);
}

/* --------------------------------------------------------- waits */

static void wake_thread(nsh_slow *s) {
  pthread_mutex_lock(&s->lock);
  atomic_store(&s->awake, true);
  pthread_cond_signal(&s->wake);
  pthread_mutex_unlock(&s->lock);
}

static void on_wait(void *arg, const char *what, int64_t thread, int64_t at) {
  wait *w = arg;
  int64_t since;
  if (w == &w->slow->waits[NSH_DISPATCHER])
    nsh_exchange_moved(w->slow->exchange, true);
  if (what != NULL) {
    atomic_store_explicit(&w->what, what, memory_order_relaxed);
    atomic_store_explicit(&w->thread, thread, memory_order_relaxed);
    atomic_store(&w->since, at);
    if (!atomic_load(&w->slow->awake))
      wake_thread(w->slow);
    return;
  }
  since = atomic_exchange(&w->since, 0);
  if (at - since > NS_SLOW)
    is_over(w, atomic_load(&w->what), since, at);
}

void nsh_slow_watch(nsh_slow *s, nsh_waiter who, ns_config *db) {
  db->waits = on_wait;
  db->waits_arg = &s->waits[who];
}

void nsh_slow_doing(nsh_slow *s, nsh_waiter who, size_t verdicts, bool claims) {
  atomic_store_explicit(&s->waits[who].verdicts, verdicts, memory_order_relaxed);
  atomic_store_explicit(&s->waits[who].claims, claims, memory_order_relaxed);
}

int64_t nsh_slow_since(const nsh_slow *s, nsh_waiter who, const char **what) {
  *what = atomic_load(&s->waits[who].what);
  return atomic_load(&s->waits[who].since);
}

void nsh_slow_owes(nsh_slow *s, nsh_waiter who, const nsh_retry *u) {
  set_owed(&s->owed, who, u);
}

/* ---------------------------------------------------------- the server's words */

static void disconnect(nsh_slow *s) {
  ns_close(s->db);
  s->db = NULL;
}

static ns_status ask_state(nsh_slow *s, int64_t thread, char state[STATE_MAX], ns_err *err) {
  ns_value id = {.type = NS_INT, .i = thread};
  const ns_value *row = NULL;
  ns_result result;
  ns_status st = ns_execute(s->db, ns_str("@holder_state"), &id, 1, &result, err);
  if (st == NS_OK)
    st = ns_fetch(s->db, &row, err);
  state[0] = '\0';
  if (st == NS_OK && row != NULL && row[0].type == NS_TEXT)
    snprintf(state, STATE_MAX, "%.*s", (int)row[0].s.n, row[0].s.p);
  return st;
}

/* Gives 'state', or NULL when the server does not answer us either. */
static const char *ask_for_state(nsh_slow *s, const wait *w, char state[STATE_MAX]) {
  int64_t thread = atomic_load(&w->thread);
  ns_err err;
  ns_status st = s->db != NULL ? NS_OK : ns_open(&s->db, &s->cfg, &err);
  state[0] = '\0';
  for (int i = 0; st == NS_OK && i < STATES && strncmp(state, "Waiting", 7) != 0; i++) {
    if (i > 0)
      ns_sleep_us(STATE_GAP);
    st = ask_state(s, thread, state, &err);
  }
  if (st != NS_EGONE)
    return state;
  disconnect(s);
  return strstr(err.message, "not answer") != NULL ? NULL : state;
}

/* ---------------------------------------------------------------- the thread */

/* Until then, or the host ends. */
static void sleep_until(nsh_slow *s, int64_t when) {
  struct timespec t = {(time_t)(when / NS_SECOND), (long)(when % NS_SECOND) * 1000};
  pthread_mutex_lock(&s->lock);
  while (!atomic_load(&s->ends) && ns_mono_us() < when)
    pthread_cond_timedwait(&s->wake, &s->lock, &t);
  pthread_mutex_unlock(&s->lock);
}

/* Until a thread waits. A thread that begins to wait stores that before it looks whether we
** sleep. */
static void sleep_deep(nsh_slow *s) {
  bool any = false;
  pthread_mutex_lock(&s->lock);
  atomic_store(&s->awake, false);
  for (size_t i = 0; i < NSH_WAITERS; i++)
    any = any || atomic_load(&s->waits[i].since) != 0;
  if (any)
    atomic_store(&s->awake, true);
  while (!atomic_load(&s->awake) && !atomic_load(&s->ends))
    pthread_cond_wait(&s->wake, &s->lock);
  pthread_mutex_unlock(&s->lock);
}

/* Shows, for a second, the verdicts that have waited for one. False: there are none, or they
** cannot be told. */
static bool tell_owed(nsh_slow *s) {
  size_t n;
  ns_owed *list = list_owed(&s->owed, s->exchange, &n);
  bool old = n > 0 && ns_mono_us() - list[0].since > NS_SLOW;
  ns_err err;
  ns_status st = !old ? NS_ENOTFOUND : s->db != NULL ? NS_OK : ns_open(&s->db, &s->cfg, &err);
  int64_t holder;
  nsh_exchange_lock(s->exchange);
  holder = s->exchange->assisted;
  nsh_exchange_unlock(s->exchange);
  if (st == NS_OK && (st = ns_tell_owed(s->db, holder, list, n < NS_OWED_SHOWN ? n : NS_OWED_SHOWN,
                                        n, &err)) != NS_OK)
    disconnect(s);
  free(list);
  return st == NS_OK;
}

/* Looks at each; gives when to look again. '*busy' when a thread waits, or a verdict. */
static int64_t look_around(nsh_slow *s, bool *busy) {
  int64_t next = ns_mono_us() + NS_SLOW;
  bool slow = false;
  *busy = false;
  for (size_t i = 0; i < NSH_WAITERS; i++) {
    wait *w = &s->waits[i];
    int64_t since = atomic_load(&w->since);
    char state[STATE_MAX];
    *busy = *busy || since != 0;
    if (since != 0 && ns_mono_us() - since > NS_SLOW) {
      if (may_write(s))
        log_lasting_wait(s, w, ask_for_state(s, w, state));
      slow = true;
    } else if (since != 0 && since + NS_SLOW < next)
      next = since + NS_SLOW + 1;
  }
  if (tell_owed(s)) {
    *busy = true;
    return 0;
  }
  if (!slow && s->db != NULL)
    disconnect(s);
  return next;
}

/* Waits without a line of their own get one together when it has been quiet for a while. */
static bool tell_rest(nsh_slow *s) {
  bool left;
  pthread_mutex_lock(&s->lock);
  if (s->more > 0 && ns_mono_us() >= s->line_at) {
    write_line(s, NULL, NULL, 0, true, "");
    s->line_at = ns_mono_us() + LINE_GAP;
  }
  left = s->more > 0;
  pthread_mutex_unlock(&s->lock);
  return left;
}

static void *thread(void *arg) {
  nsh_slow *s = arg;
  int64_t waited = 0;
  while (!atomic_load(&s->ends)) {
    bool busy;
    int64_t next = look_around(s, &busy);
    if (tell_rest(s) || busy)
      waited = ns_mono_us();
    if (ns_mono_us() - waited < QUIET) {
      sleep_until(s, next);
      continue;
    }
    sleep_deep(s);
    waited = ns_mono_us();
  }
  pthread_mutex_lock(&s->lock);
  s->ended = true;
  pthread_cond_signal(&s->wake);
  pthread_mutex_unlock(&s->lock);
  return NULL;
}

/* ------------------------------------------------------------- birth and end */

ns_status nsh_slow_open(nsh_slow **out, const nsh_config *cfg, nsh_exchange *exchange,
                        ns_err *err) {
  static const char *const names[NSH_WAITERS] = {"chores", "upkeep"};
  nsh_slow *s = nsh_alloc(sizeof *s);
  *out = s;
  for (size_t i = 0; i < NSH_WAITERS; i++) {
    s->waits[i].slow = s;
    s->waits[i].who = names[i];
  }
  s->exchange = exchange;
  init_owed(&s->owed);
  pthread_mutex_init(&s->lock, NULL);
  nsh_exchange_cond(&s->wake);
  s->cfg = cfg->db;
  s->cfg.no_schema = true;
  s->cfg.host_session = false;
  s->cfg.connect_timeout = CONNECT;
  s->cfg.read_timeout = ANSWER;
  s->cfg.interrupt_fd = s->stop = ns_await_stop_open(err);
  return s->stop > 0 ? NS_OK : err->status;
}

ns_status nsh_slow_start(nsh_slow *s, ns_err *err) {
  if (pthread_create(&s->thread, NULL, thread, s) != 0)
    return ns_fail(err, NS_ENOMEM, "cannot start the thread that looks after slow answers");
  s->running = true;
  return NS_OK;
}

static bool await_end(nsh_slow *s) {
  int64_t until = ns_mono_us() + STOP_MAX;
  struct timespec t = {(time_t)(until / NS_SECOND), (long)(until % NS_SECOND) * 1000};
  bool ended;
  atomic_store(&s->ends, true);
  ns_await_stop(s->stop);
  wake_thread(s);
  pthread_mutex_lock(&s->lock);
  while (!s->ended && ns_mono_us() < until)
    pthread_cond_timedwait(&s->wake, &s->lock, &t);
  ended = s->ended;
  pthread_mutex_unlock(&s->lock);
  return ended;
}

bool nsh_slow_close(nsh_slow *s) {
  if (s == NULL)
    return true;
  if (s->running && !await_end(s))
    return false;
  if (s->running)
    pthread_join(s->thread, NULL);
  disconnect(s);
  ns_await_stop_close(s->stop);
  pthread_cond_destroy(&s->wake);
  pthread_mutex_destroy(&s->lock);
  free_owed(&s->owed);
  free(s);
  return true;
}
