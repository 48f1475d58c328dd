/*
** Latches are robust process-shared mutexes: the kernel opens those of a
** thread that ends, however it ends, and tells the next taker.
*/
#include "ns_latch.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "ns_assert.h"

#define PATIENCE 5 /* seconds; what a latch guards takes microseconds */

bool ns_latch_init(ns_latch *l) {
  pthread_mutexattr_t a;
  bool ok;
  atomic_init(&l->taken, 0);
  if (pthread_mutexattr_init(&a) != 0)
    return false;
  ok = pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED) == 0 &&
       pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST) == 0 &&
       pthread_mutex_init(&l->mutex, &a) == 0;
  pthread_mutexattr_destroy(&a);
  return ok;
}

/* Thousands of processes that have just been woken share the processors: those
** that wait behind them are no sign of a stopped one. */
static int wait_for(ns_latch *l) {
  struct timespec until;
  uint32_t taken;
  int rc;
  do {
    taken = atomic_load(&l->taken);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += PATIENCE;
    rc = pthread_mutex_clocklock(&l->mutex, CLOCK_MONOTONIC, &until);
  } while (rc == ETIMEDOUT && atomic_load(&l->taken) != taken);
  return rc;
}

ns_status ns_latch_take(ns_latch *l, void (*repair)(void *), void *arg,
                        ns_err *err) {
  int rc = pthread_mutex_trylock(&l->mutex);
  if (rc == EBUSY)
    rc = wait_for(l);
  if (rc == 0 || rc == EOWNERDEAD)
    atomic_fetch_add(&l->taken, 1);
  if (rc == 0)
    return NS_OK;
  if (rc == EOWNERDEAD) {
    repair(arg);
    rc = pthread_mutex_consistent(&l->mutex);
    ns_assert(rc == 0); /* nothing was repaired twice */
    return NS_OK;
  }
  return ns_fail(err, NS_EBUSY,
                 "the shared memory stayed locked for %d s (%s); is one of the "
                 "processes that use it stopped?", PATIENCE, strerror(rc));
}

void ns_latch_drop(ns_latch *l) {
  int rc = pthread_mutex_unlock(&l->mutex);
  ns_assert(rc == 0); /* it was ours */
  (void)rc;
}

bool ns_latch_try(ns_latch *l) {
  int rc = pthread_mutex_trylock(&l->mutex);
  if (rc == EOWNERDEAD)
    pthread_mutex_consistent(&l->mutex);
  return rc == 0 || rc == EOWNERDEAD;
}
