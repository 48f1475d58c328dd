/*
** Trying whether a ring arrives: a real listener sleeps in the server on a
** thread of its own while the caller's handle rings, as a pusher would.
**
** A ring that comes while the listener still puts its name down ends that call, also
** by rights that would not end its sleep: the procedure runs as whoever rings. So what
** wakes it soon is tried once more, after it has had time to fall asleep.
*/
#include <pthread.h>
#include <stdatomic.h>

#include "nightshift.h"
#include "ns_time.h"

#define TRY_MAX (2 * NS_SECOND)
#define SOON 5000                /* µs before the first ring */
#define ASLEEP (NS_SECOND / 5)   /* the same when it is to be asleep by then */

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
  s->st = ns_listen(s->listener, NULL, 0, 0, 0, TRY_MAX, &s->woke, &s->err);
  s->until = ns_mono_us();
  ns_listen_leave(s->listener);
  atomic_store(&s->done, true);
  return NULL;
}

/* Rings again and again: the first may come before the sleep does. */
static ns_status ring_until(ns_db *db, sleeper *s, int64_t pause, int64_t *rang,
                            ns_err *err) {
  ns_status st = NS_OK;
  while (st == NS_OK && !atomic_load(&s->done)) {
    ns_sleep_us(pause);
    pause *= 2;
    *rang = ns_mono_us();
    st = ns_ring(db, err);
    ns_sleep_us(2000);
  }
  return st;
}

/* One sleep, and rings from `pause` on; '*took': as of ns_ring_try. */
static ns_status try_once(ns_db *db, int64_t pause, int64_t *took, ns_err *err) {
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
  st = ring_until(db, &s, pause, &rang, err);
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

ns_status ns_ring_try(ns_db *db, int64_t *took, ns_err *err) {
  ns_status st = try_once(db, SOON, took, err);
  return st == NS_OK && *took >= 0 ? try_once(db, ASLEEP, took, err) : st;
}
