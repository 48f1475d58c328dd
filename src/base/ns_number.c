/*
** Numbers with fractions as text. printf finds the digits and writes the decimal
** sign of the locale, which may be of several bytes; it is replaced afterwards. So
** nothing here changes the locale, which other threads share.
*/
#include "ns_number.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ns_assert.h"

enum { DIGITS = 15, DIGITS_MAX = 17 };

static bool is_plain(char c) {
  return (c >= '0' && c <= '9') || c == '-' || c == 'e';
}

/* Copies what printf wrote as JSON has it: with a point, and with neither '+' nor
** leading zeros in the exponent. */
static void copy(char *to, const char *from) {
  bool pointed = false;
  while (*from != '\0') {
    char c = *from++;
    if (is_plain(c))
      *to++ = c;
    else if (!pointed)
      *to++ = '.';
    pointed = pointed || !is_plain(c);
    if (c == 'e') {
      if (*from == '-')
        *to++ = '-';
      from += strspn(from, "+-0");
    }
  }
  *to = '\0';
}

char *ns_number(double d, char text[NS_NUMBER_SIZE]) {
  char found[NS_NUMBER_SIZE + 16]; /* a decimal sign has at most 16 bytes */
  if (!isfinite(d))
    return strcpy(text, isnan(d) ? "nan" : d > 0 ? "inf" : "-inf");
  for (int digits = DIGITS; digits <= DIGITS_MAX; digits++) {
    snprintf(found, sizeof found, "%.*g", digits, d);
    if (strtod(found, NULL) == d)
      break;
  }
  copy(text, found);
  ns_assert(text[strspn(text, "0123456789.e-")] == '\0' && strtod(found, NULL) == d);
  return text;
}

char *ns_number_real(double d, char text[NS_NUMBER_SIZE]) {
  ns_number(d, text);
  return isfinite(d) && strpbrk(text, ".e") == NULL ? strcat(text, ".0") : text;
}

void ns_buf_add_number(ns_buf *b, double d) {
  char text[NS_NUMBER_SIZE];
  ns_buf_adds(b, ns_number_real(d, text));
}

char *ns_number_seconds(int64_t us, char text[NS_NUMBER_SIZE]) {
  uint64_t size = us < 0 ? 0 - (uint64_t)us : (uint64_t)us;
  size_t n = (size_t)snprintf(text, NS_NUMBER_SIZE, "%s%" PRIu64 ".%06d", us < 0 ? "-" : "",
                              size / 1000000, (int)(size % 1000000));
  while (text[n - 1] == '0')
    n--;
  text[text[n - 1] == '.' ? n - 1 : n] = '\0';
  return text;
}
