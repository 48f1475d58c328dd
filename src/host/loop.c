/*
** The timer, the wake-up and the signals of the host's loop. Signals are blocked while they are
** not handled, and come when they are.
*/
#include "host.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "ipc/ipc.h"

/* -------------------------------------------------------------------- signals */

/* The first EARLY of them are heard from the beginning. */
static const int watched[NSH_SIGNALS] = {SIGHUP, SIGUSR1, SIGTTIN, SIGTTOU, SIGTERM,
                                         SIGINT, SIGQUIT, SIGTSTP, SIGCONT};
#define EARLY 4

/* Numbers 'from' to 'end' of the signals heard. */
static void mask_signals(int how, size_t from, size_t end) {
  sigset_t some;
  sigemptyset(&some);
  for (size_t i = from; i < end; i++)
    sigaddset(&some, watched[i]);
  pthread_sigmask(how, &some, NULL);
}

static void end_by(int sig) {
  _exit(128 + sig);
}

/* Signals have no default action in the first process of a container, where a TERM would be lost.
** The loop puts its own handlers in the place of these. */
static void end_as_first_process(void) {
  static const int ends[] = {SIGTERM, SIGINT, SIGQUIT};
  for (size_t i = 0; getpid() == 1 && i < sizeof ends / sizeof ends[0]; i++)
    signal(ends[i], end_by);
}

void nsh_loop_hold_signals(bool all) {
  if (!all)
    end_as_first_process();
  mask_signals(SIG_BLOCK, 0, all ? NSH_SIGNALS : EARLY);
}

static void on_signal(uv_signal_t *handle, int sig) {
  nsh_loop *l = handle->data;
  l->on_signal(l->arg, sig);
}

static void watch_signals(nsh_loop *l, size_t from, size_t end) {
  for (size_t i = from; i < end; i++) {
    uv_signal_init(&l->uv, &l->signals[i]);
    l->signals[i].data = l;
    uv_signal_start(&l->signals[i], on_signal, watched[i]);
  }
  mask_signals(SIG_UNBLOCK, from, end);
}

void nsh_loop_hear_first_signals(nsh_loop *l) {
  watch_signals(l, 0, EARLY);
}

void nsh_loop_hear_signals(nsh_loop *l) {
  watch_signals(l, EARLY, NSH_SIGNALS);
}

/* ----------------------------------------------------- the timer, the wake-up */

static void on_timer(uv_timer_t *timer) {
  nsh_loop *l = timer->data;
  l->on_timer(l->arg);
}

/* libuv 1.44 runs due timers until none is due. A timer of 0 ms that its callback sets again
** would keep the loop from everything else. */
void nsh_loop_arm(nsh_loop *l, int64_t wait) {
  uint64_t ms = wait > 1000 ? (uint64_t)(wait + 999) / 1000 : 1;
  if (wait < 0)
    uv_timer_stop(&l->timer);
  else if (!uv_is_active((uv_handle_t *)&l->timer) || uv_timer_get_due_in(&l->timer) > ms)
    uv_timer_start(&l->timer, on_timer, ms, 0);
}

static void on_wake(uv_async_t *async) {
  nsh_loop *l = async->data;
  l->on_wake(l->arg);
}

void nsh_loop_wake(void *arg) {
  nsh_loop *l = arg;
  uv_async_send(&l->async);
}

/* --------------------------------------------------------------- birth and end */

void nsh_loop_open(nsh_loop *l) {
  nsh_must(uv_loop_init(&l->uv) == 0);
  nsh_must(uv_async_init(&l->uv, &l->async, on_wake) == 0);
  l->async.data = l;
  uv_timer_init(&l->uv, &l->timer);
  l->timer.data = l;
}

void nsh_loop_run(nsh_loop *l) {
  uv_run(&l->uv, UV_RUN_DEFAULT);
}

void nsh_loop_stop(nsh_loop *l) {
  uv_stop(&l->uv);
}

static void on_time_over(uv_timer_t *timer) {
  uv_stop(timer->loop);
}

void nsh_loop_run_until(nsh_loop *l, bool (*over)(void *arg), uint64_t ms) {
  uv_timer_start(&l->timer, on_time_over, ms, 0);
  while (!over(l->arg) && uv_is_active((uv_handle_t *)&l->timer))
    uv_run(&l->uv, UV_RUN_ONCE);
}

static void close_handle(uv_handle_t *handle, void *arg) {
  (void)arg;
  if (!uv_is_closing(handle))
    uv_close(handle, NULL);
}

void nsh_loop_close(nsh_loop *l) {
  uv_walk(&l->uv, close_handle, NULL);
  uv_run(&l->uv, UV_RUN_DEFAULT);
  uv_loop_close(&l->uv);
}
