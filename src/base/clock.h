/*
** Time: the monotonic clock and random numbers, durations as text, and waiting for a socket.
**
** Invariant: no instant here is wall-clock time; every instant that is stored comes from the
** server's clock. Durations are microseconds. (Not asserted: no other file asks a clock;
** spec/faults_spec.lua looks for one.)
*/
#ifndef NS_CLOCK_H
#define NS_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "buf.h"
#include "err.h"

#define NS_SECOND INT64_C(1000000) /* in microseconds, like all durations */

/* Microseconds since some fixed point; never steps back. */
int64_t ns_mono_us(void);

/* Sleeps; returns early when a signal arrives. */
void ns_sleep_us(int64_t us);

/* A fast, not secret, per-process random number; reseeded after a fork. */
uint64_t ns_random(void);

/* 'us' times a random factor in [1 - share, 1 + share). */
int64_t ns_jitter(int64_t us, double share);

/* ----------------------------------------------------------------- durations */

/* Durations as people write them: "5m", "1h30m", "1.5s", "500ms", or a plain
** number of seconds. Pure functions on bytes. */

/* The longest duration, 1000 years: a sum of an instant and a few of them
** stays far inside 64 bits. */
#define NS_DURATION_MAX INT64_C(31556952000000000)

/*
** Parses a sequence of number and unit, from large units to small, each once:
** w d h m s ms us. A number may have a fraction. One number without a unit is
** seconds. The result, in microseconds, is rounded to the nearest.
** '*us' is written on success only. Errors: INVALID.
*/
ns_status ns_duration_parse(ns_bytes text, int64_t *us, ns_err *err);

/* Reads a number of seconds: >= 0, finite. Errors: INVALID. */
ns_status ns_duration_seconds(double seconds, int64_t *us, ns_err *err);

/* ------------------------------------------------------------------- waiting */

/* A wait for a socket to have something to read, until it is interrupted or too late. */
typedef struct ns_await {
  bool (*interrupted)(void *arg); /* as the ns_config says, and the next three */
  void *arg;
  int interrupt_fd;
  int64_t end_by;
  int64_t limit;    /* µs; 0: no limit */
  int64_t asked_at; /* monotonic: when 'interrupted' was asked last */
} ns_await;

/* Errors: GONE, when nothing comes in time or it is interrupted. 'err' may be NULL. */
ns_status ns_await_input(ns_await *a, int fd, ns_err *err);

/* A descriptor for 'interrupt_fd' that another thread makes readable, for good, by ns_await_stop.
** Errors: 0, NOMEM. */
int ns_await_stop_open(ns_err *err);
void ns_await_stop(int fd);
void ns_await_stop_close(int fd); /* 0 is allowed */

#endif
