/*
** Durations as people write them: "5m", "1h30m", "1.5s", "500ms", or a plain
** number of seconds. Pure functions on bytes.
*/
#ifndef NS_DURATION_H
#define NS_DURATION_H

#include <stdint.h>

#include "ns_buf.h"
#include "ns_err.h"

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

/* The same for a number of seconds: >= 0, finite. Errors: INVALID. */
ns_status ns_duration_seconds(double seconds, int64_t *us, ns_err *err);

#endif
