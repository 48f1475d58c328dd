/*
** Fuzzes durations. A text that parses is within bounds and, written out in every unit, parses
** to the same. A text that does not leaves the result alone and gives a printable message. The
** first eight bytes also serve as a number of seconds.
*/
#include "fuzz.h"

#include <string.h>

#include "clock.h"

static void check_range(int64_t us) {
  FUZZ_CHECK(us >= 0 && us <= NS_DURATION_MAX);
}

static void check_message(const ns_err *err) {
  FUZZ_CHECK(err->status == NS_EINVALID && err->message[0] != '\0');
  for (const char *s = err->message; *s != '\0'; s++)
    FUZZ_CHECK(*s >= ' ' && *s <= '~');
}

/* "1w2d3h4m5s6ms7us", without the units that are zero. */
static void round_trip(int64_t us) {
  static const struct {
    const char *name;
    int64_t us;
  } units[] = {{"w", INT64_C(604800000000)}, {"d", INT64_C(86400000000)},
               {"h", INT64_C(3600000000)},   {"m", INT64_C(60000000)},
               {"s", INT64_C(1000000)},      {"ms", INT64_C(1000)},
               {"us", INT64_C(1)}};
  ns_buf b = NS_BUF_INIT;
  ns_err err;
  int64_t rest = us;
  int64_t again = -1;
  for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
    if (rest >= units[i].us || (i == 6 && b.n == 0))
      ns_buf_addf(&b, "%lld%s", (long long)(rest / units[i].us), units[i].name);
    rest %= units[i].us;
  }
  FUZZ_CHECK(ns_duration_parse(ns_buf_bytes(&b), &again, &err) == NS_OK);
  FUZZ_CHECK(again == us);
  ns_buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  int64_t us = -7;
  double seconds;
  ns_err err;
  ns_bytes text = {(const char *)data, size};
  if (ns_duration_parse(text, &us, &err) == NS_OK) {
    check_range(us);
    round_trip(us);
  } else {
    check_message(&err);
    FUZZ_CHECK(us == -7);
  }
  if (size < sizeof seconds)
    return 0;
  memcpy(&seconds, data, sizeof seconds);
  if (ns_duration_seconds(seconds, &us, &err) == NS_OK)
    check_range(us);
  else
    check_message(&err);
  return 0;
}
