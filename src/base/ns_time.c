/*
** Monotonic clock, sleeping and jitter. The random state is per thread, is
** seeded from the kernel and thrown away when the process id changes, so a
** forked child never repeats its parent's numbers.
*/
#include "ns_time.h"

#include <sys/random.h>
#include <time.h>
#include <unistd.h>

int64_t ns_mono_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * NS_SECOND + t.tv_nsec / 1000;
}

void ns_sleep_us(int64_t us) {
  struct timespec t;
  if (us <= 0)
    return;
  t.tv_sec = (time_t)(us / NS_SECOND);
  t.tv_nsec = (long)(us % NS_SECOND) * 1000;
  nanosleep(&t, NULL);
}

/* splitmix64: one addition and three multiplications per number */
uint64_t ns_random(void) {
  static _Thread_local uint64_t state;
  static _Thread_local pid_t owner;
  uint64_t z;
  if (owner != getpid()) {
    owner = getpid();
    if (getrandom(&state, sizeof state, 0) != (ssize_t)sizeof state)
      state = (uint64_t)ns_mono_us() ^ ((uint64_t)owner << 32);
  }
  z = (state += UINT64_C(0x9E3779B97F4A7C15));
  z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return z ^ (z >> 31);
}

int64_t ns_jitter(int64_t us, double share) {
  double unit = (double)(ns_random() >> 11) * 0x1.0p-53; /* [0, 1) */
  return (int64_t)((double)us * (1.0 - share + 2.0 * share * unit));
}
