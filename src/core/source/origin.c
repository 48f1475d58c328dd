/*
** Which row a job stands for: its unique key is "row:SOURCE:ROW", both numbers in decimal.
**
** Invariant: one row has one key, so it has one live job at most.
*/
#include <string.h>

#include "source/source.h"

/* The number from 'p' on, without a sign or a leading zero; NULL: there is none, or it is too
** large. */
static const char *read_number(const char *p, const char *end, int64_t *n) {
  const char *start = p;
  for (*n = 0; p < end && *p >= '0' && *p <= '9'; p++) {
    int digit = *p - '0';
    if (*n > (INT64_MAX - digit) / 10)
      return NULL;
    *n = *n * 10 + digit;
  }
  return p > start && *start != '0' ? p : NULL;
}

bool ns_source_origin(ns_bytes key, ns_origin *origin) {
  static const size_t prefix = sizeof NS_SOURCE_PREFIX - 1;
  const char *end;
  const char *p;
  if (key.p == NULL || key.n <= prefix || memcmp(key.p, NS_SOURCE_PREFIX, prefix) != 0)
    return false;
  end = key.p + key.n;
  p = read_number(key.p + prefix, end, &origin->source);
  if (p == NULL || p == end || *p != ':')
    return false;
  return read_number(p + 1, end, &origin->row) == end;
}
