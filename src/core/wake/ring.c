/*
** Ringing: waking a listener after a commit; and trying whether a ring arrives: a real
** listener sleeps in the server on a thread of its own while the caller's handle rings, as a
** pusher would.
**
** Invariant: a trial rings only when the server shows that the listener sleeps. A ring that
** comes while it still enters itself ends that call, also by rights that would not end its
** sleep, as the procedure runs with the rights of the handle that rings. No assert: it waits
** for that a second at most, and rings then all the same.
*/
#include <pthread.h>
#include <stdatomic.h>

#include "clock.h"
#include "db/db.h"
#include "handle.h"

#define TRY_MAX (2 * NS_SECOND)
#define LOOK 2000          /* µs from one look whether it sleeps to the next, */
#define LOOK_MAX NS_SECOND /* and in all, should the server not show it */
#define RING_FIRST 5000    /* µs to the second ring, then doubling */

ns_status ns_ring(ns_db *db, ns_err *err) {
  ns_err none;
  ns_status st;
  if (err == NULL)
    err = &none;
  if ((st = ns_db_ready(db, err)) != NS_OK)
    return st;
  db->count.rings++;
  return ns_db_run(db, NS_SQL_LISTEN_RING, NULL, err);
}

static void committed(ns_db *db, bool written) {
  bool due = db->ring_due;
  db->ring_due = false;
  if (written && due)
    ns_ring(db, NULL);
}

const ns_hooks ns_wake_ring_hooks = {.committed = committed};

/* ------------------------------------------------------------------- a trial */

typedef struct sleeper {
  ns_listener *listener;
  unsigned woke;
  ns_status st;
  ns_err err;
  int64_t until;    /* when it woke, monotonic µs */
  atomic_bool done; /* all of the above is written */
} sleeper;

static void *sleep_once(void *arg) {
  sleeper *s = arg;
  s->st = ns_listen(s->listener, &(ns_awaited){.newest = -1}, TRY_MAX, &s->woke, &s->err);
  s->until = ns_mono_us();
  ns_listen_leave(s->listener);
  atomic_store(&s->done, true);
  return NULL;
}

static ns_status await_sleep(ns_db *db, sleeper *s, ns_err *err) {
  int64_t until = ns_mono_us() + LOOK_MAX;
  const ns_value *row = NULL;
  ns_status st = NS_OK;
  while (st == NS_OK && row == NULL && !atomic_load(&s->done) && ns_mono_us() < until) {
    ns_value thread = ns_vint(ns_listener_thread(s->listener));
    ns_sleep_us(LOOK);
    if ((st = ns_db_run(db, NS_SQL_DOCTOR_SLEEPS, &thread, err)) == NS_OK)
      st = ns_db_row(db, NS_SQL_DOCTOR_SLEEPS, &row, err);
  }
  return st;
}

/* Rings again and again: one may come between two looks of the sleep. */
static ns_status ring_until(ns_db *db, sleeper *s, int64_t *rang, ns_err *err) {
  ns_status st = await_sleep(db, s, err);
  for (int64_t pause = RING_FIRST; st == NS_OK && !atomic_load(&s->done); pause *= 2) {
    *rang = ns_mono_us();
    st = ns_ring(db, err);
    ns_sleep_us(pause);
  }
  return st;
}

ns_status ns_ring_try(ns_db *db, int64_t *took, ns_err *err) {
  sleeper s = {.woke = 0};
  pthread_t thread;
  int64_t rang = 0;
  ns_status st = ns_listener_open(&s.listener, db, err);
  *took = -1;
  if (st != NS_OK)
    return st;
  if (pthread_create(&thread, NULL, sleep_once, &s) != 0) {
    ns_listener_close(s.listener);
    return ns_fail(err, NS_ENOMEM, "no thread for a listener");
  }
  st = ring_until(db, &s, &rang, err);
  pthread_join(thread, NULL);
  ns_listener_close(s.listener);
  if (st == NS_OK && s.st != NS_OK) {
    *err = s.err;
    st = s.st;
  }
  if (st == NS_OK && s.woke)
    *took = s.until > rang ? s.until - rang : 0;
  return st;
}
