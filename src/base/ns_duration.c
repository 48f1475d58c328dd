/*
** Durations. Everything is computed in integers: a fraction is kept as its
** first 18 digits over a power of ten, so "0.1s" is exactly 100000 µs.
*/
#include "ns_duration.h"

#include <stdbool.h>
#include <string.h>

#include "ns_number.h"

#define FRACTION_DIGITS 18

static const struct unit {
  char name[3];
  int64_t us;
} units[] = { /* from large to small: a text must name them in this order */
    {"w", INT64_C(604800000000)}, {"d", INT64_C(86400000000)},
    {"h", INT64_C(3600000000)},   {"m", INT64_C(60000000)},
    {"s", INT64_C(1000000)},      {"ms", INT64_C(1000)},
    {"us", INT64_C(1)},
};
#define NUNITS (sizeof units / sizeof units[0])
#define SECONDS 4 /* index of "s", for a number without a unit */

/* A decimal number: whole + frac / scale. */
typedef struct number {
  int64_t whole;
  int64_t frac, scale; /* frac < scale <= 10^18 */
} number;

static bool digit(ns_bytes s, size_t i) {
  return i < s.n && s.p[i] >= '0' && s.p[i] <= '9';
}

/* Reads a number at '*at' and moves past it; false: there is none, or it is
** longer than any duration. */
static bool readnumber(ns_bytes s, size_t *at, number *out) {
  size_t i = *at;
  if (!digit(s, i))
    return false;
  *out = (number){0, 0, 1};
  for (; digit(s, i); i++) {
    out->whole = out->whole * 10 + (s.p[i] - '0');
    if (out->whole > NS_DURATION_MAX)
      return false;
  }
  if (i < s.n && s.p[i] == '.') {
    size_t first = ++i;
    if (!digit(s, i))
      return false;
    for (; digit(s, i); i++)
      if (i - first < FRACTION_DIGITS) {
        out->frac = out->frac * 10 + (s.p[i] - '0');
        out->scale *= 10;
      }
  }
  *at = i;
  return true;
}

/* Index of the unit at '*at', NUNITS when there is none. */
static size_t readunit(ns_bytes s, size_t *at) {
  size_t i = *at;
  size_t len;
  while (i < s.n && s.p[i] >= 'a' && s.p[i] <= 'z')
    i++;
  len = i - *at;
  for (size_t u = 0; u < NUNITS; u++)
    if (strlen(units[u].name) == len &&
        memcmp(units[u].name, s.p + *at, len) == 0) {
      *at = i;
      return u;
    }
  return NUNITS;
}

/* frac / scale * us, to the nearest; the product does not fit in 64 bits */
static int64_t part(number v, int64_t us) {
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
static bool add(int64_t *sum, number v, int64_t us) {
  int64_t more;
  if (v.whole > NS_DURATION_MAX / us)
    return false;
  more = v.whole * us + part(v, us);
  if (more > NS_DURATION_MAX - *sum)
    return false;
  *sum += more;
  return true;
}

static ns_status bad(ns_bytes s, const char *why, ns_err *err) {
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
    return bad(text, "it is empty", err);
  while (at < text.n) {
    bool first = at == 0;
    number v;
    size_t u;
    if (!readnumber(text, &at, &v))
      return bad(text, "a number is missing, negative or too long", err);
    u = at == text.n && first ? SECONDS : readunit(text, &at);
    if (u == NUNITS)
      return bad(text, "a unit is missing or unknown", err);
    if (u < next)
      return bad(text, "units go from large to small, each once", err);
    if (!add(&sum, v, units[u].us))
      return bad(text, "it is longer than 1000 years", err);
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
    return ns_fail(err, NS_EINVALID,
                   "bad duration %s: seconds must be 0 or more",
                   ns_number(seconds, text));
  if (seconds > (double)(NS_DURATION_MAX / 1000000))
    return ns_fail(err, NS_EINVALID,
                   "bad duration %s: it is longer than 1000 years",
                   ns_number(seconds, text));
  *us = (int64_t)(seconds * 1e6 + 0.5);
  return NS_OK;
}
