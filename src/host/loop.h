/*
** The loop of the host: libuv's, with one timer, one wake-up that any thread may send, and the
** signals that a host handles.
**
** Invariant: once the host has jobs no signal ends it in that signal's default way, with a
** status that is not ours. Signals that are not handled at the moment wait. (Not asserted:
** specs of the host send each of them.)
*/
#ifndef NSH_LOOP_H
#define NSH_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#define NSH_SIGNALS 7

typedef struct nsh_loop {
  uv_loop_t uv;
  uv_async_t async;
  uv_timer_t timer;
  uv_signal_t signals[NSH_SIGNALS];
  /* The events; 'arg' is the owner's. */
  void *arg;
  void (*on_timer)(void *arg);
  void (*on_wake)(void *arg);
  void (*on_signal)(void *arg, int sig);
} nsh_loop;

/* HUP and USR1, which would end a host that does not listen yet, wait from now on. With 'all'
** every signal waits, as none is handled any more. */
void nsh_loop_hold_signals(bool all);

/* The callbacks are set already. Signals are not heard yet. */
void nsh_loop_open(nsh_loop *l);

/* Hears HUP and USR1. */
void nsh_loop_hear_first_signals(nsh_loop *l);

/* There are jobs: handles the other signals as well. Until now they ended the host like any
** program. */
void nsh_loop_hear_signals(nsh_loop *l);

/* Until nsh_loop_stop. */
void nsh_loop_run(nsh_loop *l);
void nsh_loop_stop(nsh_loop *l);

/* Until over(arg), for 'ms' at most; in place of the timer. */
void nsh_loop_run_until(nsh_loop *l, bool (*over)(void *arg), uint64_t ms);

/* Has on_timer called in so many µs, or sooner if that was asked for; negative: not at all. */
void nsh_loop_arm(nsh_loop *l, int64_t wait);

/* From any thread: has on_wake called. 'arg' is the loop. */
void nsh_loop_wake(void *arg);

/* Closes all handles of the loop. */
void nsh_loop_close(nsh_loop *l);

#endif
