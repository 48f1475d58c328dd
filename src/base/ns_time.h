/*
** Monotonic time for measuring and waiting. Never wall-clock time: every
** instant that is stored comes from the server's clock.
*/
#ifndef NS_TIME_H
#define NS_TIME_H

#include <stdint.h>

#define NS_SECOND INT64_C(1000000) /* in microseconds, like all durations */

/* Microseconds since some fixed point; never steps back. */
int64_t ns_mono_us(void);

/* Sleeps; returns early when a signal arrives. */
void ns_sleep_us(int64_t us);

/* A fast, not secret, per-process random number; reseeded after a fork. */
uint64_t ns_random(void);

/* 'us' times a random factor in [1 - share, 1 + share). */
int64_t ns_jitter(int64_t us, double share);

#endif
