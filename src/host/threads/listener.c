/*
** The listener threads, and how their waits are ended. A KILL QUERY may arrive just before the
** statement it should end, so it is repeated until the thread has confirmed its end. When the
** server does not help the thread leaves it.
*/
#include "threads/threads.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "ipc/ipc.h"

#define WAIT (10 * NS_SECOND)
#define RETRY NS_SECOND /* after a lost connection, on average */
#define STOP_STEP 20000
#define TOLD_STEP 50000
#define STOP_MAX NS_SECOND

struct nsh_listen {
  nsh_exchange *exchange;
  ns_listener *listener;
  pthread_t thread;
  bool running;
  int64_t *queues; /* copy of the exchange's, in 'what' */
  size_t cap;
  ns_awaited what;
};

static void copy_awaited(nsh_listen *l) {
  const nsh_exchange *m = l->exchange;
  size_t n = m->nqueues + m->npaused;
  nsh_must(ns_grow(&l->queues, &l->cap, n, sizeof *l->queues));
  if (n > 0)
    memcpy(l->queues, m->queues, n * sizeof *l->queues);
  l->what = (ns_awaited){.queues = l->queues,
                         .nqueues = m->nqueues,
                         .paused = l->queues + m->nqueues,
                         .npaused = m->npaused,
                         .names = m->paused_mark,
                         .newest = m->newest,
                         .holder = m->holder};
}

/* Waits until armed; false: stop. */
static bool await_armed(nsh_listen *l) {
  nsh_exchange *m = l->exchange;
  bool go;
  nsh_exchange_lock(m);
  while (!m->armed && !m->stop_listening)
    pthread_cond_wait(&m->listen, &m->lock);
  ns_assert(m->armed || m->stop_listening);
  copy_awaited(l);
  m->narrow = false;
  go = !m->stop_listening;
  nsh_exchange_unlock(m);
  return go;
}

/* 'why': NS_WOKE_… . Only for work the listener rests until it is armed. */
static void tell_woken(nsh_exchange *m, unsigned why) {
  nsh_exchange_lock(m);
  if (why & NS_WOKE_WORK) {
    m->armed = m->narrow = false;
    m->disarmed_at = ns_mono_us();
    m->woken = m->ticks_moved = true;
  }
  m->notices = m->notices || (why & NS_WOKE_NOTICE);
  m->gone = m->gone || (why & NS_WOKE_GONE);
  pthread_cond_signal(&m->work);
  pthread_cond_signal(&m->upkeep);
  nsh_exchange_unlock(m);
}

/* A pause that ends early when the host stops. */
static void pause_us(nsh_exchange *m, int64_t us) {
  int64_t until = ns_mono_us() + us;
  struct timespec t = {(time_t)(until / NS_SECOND), (long)(until % NS_SECOND) * 1000};
  nsh_exchange_lock(m);
  while (!m->stop_listening && ns_mono_us() < until)
    pthread_cond_timedwait(&m->listen, &m->lock, &t);
  nsh_exchange_unlock(m);
}

static void *listen_for_queues(void *arg) {
  nsh_listen *l = arg;
  nsh_exchange *m = l->exchange;
  ns_err err;
  unsigned why;
  bool failed = false; /* the last time */
  while (await_armed(l)) {
    if (ns_listen(l->listener, &l->what, WAIT, &why, &err) != NS_OK) {
      tell_woken(m, NS_WOKE_WORK); /* the dispatcher looks for work, and for the server, and arms us
                                   ** again when it is back */
      ns_listen_leave(l->listener);
      if (failed)
        pause_us(m, ns_jitter(RETRY, 1.0)); /* not all hosts at once */
      failed = true;
      continue;
    }
    failed = false;
    if (why != 0)
      tell_woken(m, why);
    ns_listen_leave(l->listener);
    if (why != 0 && !(why & NS_WOKE_WORK))
      pause_us(m, TOLD_STEP); /* until it has been seen to */
  }
  nsh_exchange_lock(m);
  m->listener_ended = true;
  nsh_exchange_unlock(m);
  return NULL;
}

ns_status nsh_listen_open(nsh_listen **out, const ns_db *db, nsh_exchange *exchange, ns_err *err) {
  nsh_listen *l = nsh_alloc(sizeof *l);
  ns_status st = ns_listener_open(&l->listener, db, err);
  *out = l;
  l->exchange = exchange;
  return st;
}

ns_status nsh_listen_start(nsh_listen *l, ns_err *err) {
  if (pthread_create(&l->thread, NULL, listen_for_queues, l) != 0)
    return ns_fail(err, NS_ENOMEM, "cannot start the listener's thread");
  l->running = true;
  return NS_OK;
}

/* Ends the statement that one of our connections runs; 0: none. */
static void end_statement(ns_db *db, int64_t id) {
  char sql[64];
  ns_result result;
  ns_err err; /* a thread that has just ended is no error */
  if (id == 0)
    return;
  snprintf(sql, sizeof sql, "KILL QUERY %" PRId64, id);
  ns_execute(db, ns_str(sql), NULL, 0, &result, &err);
}

void nsh_listen_near(nsh_listen *l, const ns_db *db, const int64_t *queues, size_t n) {
  ns_listen_near(l->listener, db, queues, n);
}

void nsh_listen_wake(nsh_listen *l, ns_db *db) {
  end_statement(db, ns_listener_thread(l->listener, db));
}

static bool listener_has_ended(nsh_exchange *m) {
  bool yes;
  nsh_exchange_lock(m);
  yes = m->listener_ended;
  nsh_exchange_unlock(m);
  return yes;
}

static void tell_to_stop(nsh_exchange *m) {
  nsh_exchange_lock(m);
  m->stop_listening = true;
  pthread_cond_signal(&m->listen);
  nsh_exchange_unlock(m);
}

void nsh_listen_stop(nsh_listen *l, ns_db *db) {
  nsh_exchange *m = l->exchange;
  int64_t until = ns_mono_us() + STOP_MAX;
  tell_to_stop(m);
  if (!l->running)
    return;
  while (!listener_has_ended(m) && ns_mono_us() < until) {
    end_statement(db, ns_listener_thread(l->listener, db));
    ns_sleep_us(STOP_STEP);
  }
}

void nsh_listen_close(nsh_listen *l) {
  if (l == NULL)
    return;
  if (l->running) {
    tell_to_stop(l->exchange);
    ns_listener_stop(l->listener);
    pthread_join(l->thread, NULL);
  }
  ns_listener_close(l->listener);
  free(l->queues);
  free(l);
}
