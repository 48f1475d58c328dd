/*
** Monotonic clock, sleeping and jitter. The random state is per thread and seeded from the
** kernel. A new process id throws it away, so a forked child never repeats its parent's
** numbers.
**
** Durations are computed in integers: a fraction is kept as its
** first 18 digits over a power of ten, so "0.1s" is exactly 100000 µs.
**
** The client library would wait for a socket, too, but starts again after each signal and asks
** no callback. Invariant: a callback that may interrupt is asked at least ten times a second
** during a wait, and also between short waits in a row.
*/
#include "base.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
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

/* ----------------------------------------------------------------- durations */

#define FRACTION_DIGITS 18

static const struct unit {
  char name[3];
  int64_t us;
} units[] = {
    /* from large to small: a text must name them in this order */
    {"w", INT64_C(604800000000)}, {"d", INT64_C(86400000000)}, {"h", INT64_C(3600000000)},
    {"m", INT64_C(60000000)},     {"s", INT64_C(1000000)},     {"ms", INT64_C(1000)},
    {"us", INT64_C(1)},
};
#define NUNITS (sizeof units / sizeof units[0])
#define SECONDS 4 /* index of "s", for a number without a unit */

/* A decimal number: whole + frac / scale. */
typedef struct number {
  int64_t whole;
  int64_t frac, scale; /* frac < scale <= 10^18 */
} number;

static bool is_digit(ns_bytes s, size_t i) {
  return i < s.n && s.p[i] >= '0' && s.p[i] <= '9';
}

/* Reads a number at '*at' and moves past it; false: there is none, or it is
** longer than any duration. */
static bool read_number(ns_bytes s, size_t *at, number *out) {
  size_t i = *at;
  if (!is_digit(s, i))
    return false;
  *out = (number){0, 0, 1};
  for (; is_digit(s, i); i++) {
    out->whole = out->whole * 10 + (s.p[i] - '0');
    if (out->whole > NS_DURATION_MAX)
      return false;
  }
  if (i < s.n && s.p[i] == '.') {
    size_t first = ++i;
    if (!is_digit(s, i))
      return false;
    for (; is_digit(s, i); i++)
      if (i - first < FRACTION_DIGITS) {
        out->frac = out->frac * 10 + (s.p[i] - '0');
        out->scale *= 10;
      }
  }
  *at = i;
  return true;
}

/* Index of the unit at '*at', NUNITS when there is none. */
static size_t read_unit(ns_bytes s, size_t *at) {
  size_t i = *at;
  size_t len;
  while (i < s.n && s.p[i] >= 'a' && s.p[i] <= 'z')
    i++;
  len = i - *at;
  for (size_t u = 0; u < NUNITS; u++)
    if (strlen(units[u].name) == len && memcmp(units[u].name, s.p + *at, len) == 0) {
      *at = i;
      return u;
    }
  return NUNITS;
}

/* frac / scale * us, to the nearest; the product does not fit in 64 bits */
static int64_t fraction_of(number v, int64_t us) {
  int64_t whole = 0;
  int64_t rest = 0; /* whole + rest / scale is the share of the bits so far */
  for (int bit = 62; bit >= 0; bit--) {
    whole *= 2;
    rest *= 2;
    if ((us >> bit) & 1)
      rest += v.frac;
    whole += rest / v.scale;
    rest %= v.scale;
  }
  return whole + (rest * 2 >= v.scale ? 1 : 0);
}

/* '*sum' += v units; false: beyond the maximum. */
static bool add_units(int64_t *sum, number v, int64_t us) {
  int64_t more;
  if (v.whole > NS_DURATION_MAX / us)
    return false;
  more = v.whole * us + fraction_of(v, us);
  if (more > NS_DURATION_MAX - *sum)
    return false;
  *sum += more;
  return true;
}

static ns_status refuse_duration(ns_bytes s, const char *why, ns_err *err) {
  char shown[41];
  size_t n = s.n < sizeof shown ? s.n : sizeof shown - 1;
  for (size_t i = 0; i < n; i++)
    shown[i] = s.p[i] < ' ' || s.p[i] > '~' ? '?' : s.p[i];
  shown[n] = '\0';
  return ns_fail(err, NS_EINVALID,
                 "bad duration '%s%s': %s (write seconds or for example "
                 "\"90s\", \"5m\", \"1h30m\", \"2d\"; units w d h m s ms us)",
                 shown, n < s.n ? "..." : "", why);
}

ns_status ns_duration_parse(ns_bytes text, int64_t *us, ns_err *err) {
  int64_t sum = 0;
  size_t at = 0;
  size_t next = 0; /* the largest unit still allowed */
  if (text.n == 0)
    return refuse_duration(text, "it is empty", err);
  while (at < text.n) {
    bool first = at == 0;
    number v;
    size_t u;
    if (!read_number(text, &at, &v))
      return refuse_duration(text, "a number is missing, negative or too long", err);
    u = at == text.n && first ? SECONDS : read_unit(text, &at);
    if (u == NUNITS)
      return refuse_duration(text, "a unit is missing or unknown", err);
    if (u < next)
      return refuse_duration(text, "units go from large to small, each once", err);
    if (!add_units(&sum, v, units[u].us))
      return refuse_duration(text, "it is longer than 1000 years", err);
    next = u + 1;
  }
  *us = sum;
  return NS_OK;
}

ns_status ns_duration_seconds(double seconds, int64_t *us, ns_err *err) {
  char text[NS_NUMBER_SIZE];
  if (seconds != seconds)
    return ns_fail(err, NS_EINVALID, "bad duration: not a number");
  if (seconds < 0)
    return ns_fail(err, NS_EINVALID, "bad duration %s: seconds must be 0 or more",
                   ns_number(seconds, text));
  if (seconds > (double)(NS_DURATION_MAX / 1000000))
    return ns_fail(err, NS_EINVALID, "bad duration %s: it is longer than 1000 years",
                   ns_number(seconds, text));
  *us = (int64_t)(seconds * 1e6 + 0.5);
  return NS_OK;
}

/* ------------------------------------------------------------------- waiting */

#define ASK_EVERY (NS_SECOND / 10)

static ns_status interrupted(ns_err *err) {
  return ns_fail(err, NS_EGONE, "the wait for the server was interrupted");
}

static ns_status too_late(const ns_await *a, ns_err *err) {
  if (a->end_by != 0 && ns_mono_us() >= a->end_by)
    return ns_fail(err, NS_EGONE, "the server did not answer before the connection was closed");
  return ns_fail(err, NS_EGONE, "the server has not answered for %lld s (read_timeout)",
                 (long long)(a->limit / NS_SECOND));
}

static bool is_stopped(ns_await *a, int64_t now) {
  if (a->interrupted == NULL || now - a->asked_at < ASK_EVERY)
    return false;
  a->asked_at = now;
  return a->interrupted(a->arg);
}

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* Milliseconds, rounded up; -1: any time. */
static int milliseconds(int64_t us) {
  return us > 3600 * NS_SECOND ? -1 : us <= 0 ? 0 : (int)((us + 999) / 1000);
}

ns_status ns_await_input(ns_await *a, int fd, ns_err *err) {
  struct pollfd fds[] = {{.fd = fd, .events = POLLIN},
                         {.fd = a->interrupt_fd > 0 ? a->interrupt_fd : -1, .events = POLLIN}};
  int64_t now = ns_mono_us();
  int64_t until = a->limit > 0 ? now + a->limit : INT64_MAX;
  if (a->end_by != 0)
    until = least(until, a->end_by);
  while (true) {
    int64_t left = until - now;
    int n;
    if (is_stopped(a, now))
      return interrupted(err);
    left = a->interrupted != NULL ? least(left, ASK_EVERY) : left;
    ns_assert(a->interrupted == NULL || milliseconds(left) <= 100);
    n = poll(fds, 2, milliseconds(left));
    if (n > 0)
      return fds[0].revents != 0 ? NS_OK : interrupted(err);
    if (n < 0 && errno != EINTR)
      return NS_OK; /* the read finds out */
    if (n < 0)
      a->asked_at = 0;
    if ((now = ns_mono_us()) >= until)
      return too_late(a, err);
  }
}

int ns_await_stop_open(ns_err *err) {
  int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd > 0)
    return fd;
  ns_fail(err, NS_ENOMEM, "no descriptor for a thread: %s", strerror(errno));
  return 0;
}

void ns_await_stop(int fd) {
  eventfd_write(fd, 1);
}

void ns_await_stop_close(int fd) {
  if (fd > 0)
    close(fd);
}
