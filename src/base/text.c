/*
** The error record, growable bytes, numbers as text. Messages that do not fit the record are cut,
** never refused. The capacity of bytes doubles; debug builds start tiny, so that growth happens in
** every test.
**
** Numbers: printf finds the digits and writes the decimal sign of the locale, which may be of
** several bytes; it is replaced afterwards. The locale itself, which other threads share, is
** never changed.
*/
#include "base.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef NS_DEBUG
#define FIRST_CAP 16
#else
#define FIRST_CAP 256
#endif

/* ------------------------------------------------------------------- errors */

static const char *const codes[] = {"OK",
#define NS_ERR_CODE(name, code, meaning) code,
                                    NS_ERRORS(NS_ERR_CODE)
#undef NS_ERR_CODE
};

ns_status ns_fail(ns_err *err, ns_status status, const char *fmt, ...) {
  va_list ap;
  if (err == NULL)
    return status;
  err->status = status;
  err->sqlerr = 0;
  err->job = 0;
  va_start(ap, fmt);
  vsnprintf(err->message, sizeof err->message, fmt, ap);
  va_end(ap);
  return status;
}

ns_status ns_no_memory(ns_err *err) {
  return ns_fail(err, NS_ENOMEM, "out of memory");
}

ns_status ns_err_context(ns_err *err, const char *context) {
  char old[sizeof err->message];
  if (err == NULL)
    return NS_OK;
  memcpy(old, err->message, sizeof old);
  snprintf(err->message, sizeof err->message, "%s: %.400s", context, old);
  return err->status;
}

void ns_err_clear(ns_err *err) {
  err->status = NS_OK;
  err->sqlerr = 0;
  err->job = 0;
  err->message[0] = '\0';
}

const char *ns_code(ns_status status) {
  size_t i = (size_t)status;
  return i < sizeof codes / sizeof codes[0] ? codes[i] : "UNKNOWN";
}

/* -------------------------------------------------------------------- bytes */

ns_bytes ns_str(const char *s) {
  return s != NULL ? (ns_bytes){s, strlen(s)} : NS_NONE;
}

char *ns_buf_room(ns_buf *b, size_t n) {
  size_t cap = b->cap > 0 ? b->cap : FIRST_CAP;
  if (b->oom || n > SIZE_MAX / 4 - b->n) {
    b->oom = true;
    return NULL;
  }
  while (cap - b->n < n || cap < b->n)
    cap *= 2;
  if (cap != b->cap) {
    char *p = realloc(b->p, cap);
    if (p == NULL) {
      b->oom = true;
      return NULL;
    }
    b->p = p;
    b->cap = cap;
  }
  return b->p + b->n;
}

void ns_buf_add(ns_buf *b, const void *p, size_t n) {
  char *room;
  if (n == 0 || (room = ns_buf_room(b, n)) == NULL)
    return;
  memcpy(room, p, n);
  b->n += n;
  ns_assert(!b->oom && b->n <= b->cap);
}

void ns_buf_addc(ns_buf *b, char c) {
  ns_buf_add(b, &c, 1);
}

void ns_buf_adds(ns_buf *b, const char *s) {
  ns_buf_add(b, s, strlen(s));
}

void ns_buf_addf(ns_buf *b, const char *fmt, ...) {
  va_list ap;
  va_list again;
  int len;
  char *room;
  va_start(ap, fmt);
  va_copy(again, ap);
  len = vsnprintf(NULL, 0, fmt, ap);
  va_end(ap);
  if (len < 0)
    b->oom = true;
  else if ((room = ns_buf_room(b, (size_t)len + 1)) != NULL) {
    vsnprintf(room, (size_t)len + 1, fmt, again);
    b->n += (size_t)len;
  }
  va_end(again);
}

void ns_buf_fill(ns_buf *b, const char *text, const char *mark, ns_bytes by) {
  const char *at;
  while ((at = strstr(text, mark)) != NULL) {
    ns_buf_add(b, text, (size_t)(at - text));
    ns_buf_add(b, by.p, by.n);
    text = at + strlen(mark);
  }
  ns_buf_adds(b, text);
}

/* Least code point of a sequence of this length: a shorter form is invalid. */
static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};

size_t ns_utf8(const char *p, size_t n) {
  unsigned char c = (unsigned char)p[0];
  size_t len = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
  unsigned code;
  if (len <= 1 || len > n)
    return len > n ? 0 : len;
  code = c & (0x7FU >> len);
  for (size_t i = 1; i < len; i++) {
    if (((unsigned char)p[i] & 0xC0) != 0x80)
      return 0;
    code = code << 6 | ((unsigned char)p[i] & 0x3FU);
  }
  if (code < least[len] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
    return 0;
  return len;
}

bool ns_utf8_valid(ns_bytes text) {
  size_t i = 0;
  while (i < text.n) {
    size_t len = ns_utf8(text.p + i, text.n - i);
    if (len == 0)
      return false;
    i += len;
  }
  return true;
}

size_t ns_utf8_count(ns_bytes text) {
  size_t n = 0;
  for (size_t i = 0; i < text.n; i++)
    n += ((unsigned char)text.p[i] & 0xC0) != 0x80;
  return n;
}

static void add_char(ns_buf *b, const char *p, size_t len, bool json) {
  if (len == 0)
    ns_buf_adds(b, "\xEF\xBF\xBD");
  else if (json && (*p == '"' || *p == '\\')) {
    ns_buf_addc(b, '\\');
    ns_buf_addc(b, *p);
  } else if (json && len == 1 && (unsigned char)*p < 32)
    ns_buf_addf(b, "\\u%04x", (unsigned)(unsigned char)*p);
  else
    ns_buf_add(b, p, len);
}

/* Runs of plain characters are added at once. */
static void add_clean(ns_buf *b, ns_bytes text, bool json) {
  size_t from = 0;
  size_t i = 0;
  while (i < text.n) {
    unsigned char c = (unsigned char)text.p[i];
    size_t len = ns_utf8(text.p + i, text.n - i);
    bool plain = len > 0 && !(json && (c < 32 || c == '"' || c == '\\'));
    if (!plain) {
      ns_buf_add(b, text.p + from, i - from);
      add_char(b, text.p + i, len, json);
      from = i + (len > 0 ? len : 1);
    }
    i += len > 0 ? len : 1;
  }
  ns_buf_add(b, text.p + from, i - from);
}

void ns_buf_add_json(ns_buf *b, ns_bytes text) {
  ns_buf_addc(b, '"');
  add_clean(b, text, true);
  ns_buf_addc(b, '"');
}

void ns_buf_add_utf8(ns_buf *b, ns_bytes text) {
  add_clean(b, text, false);
}

void ns_buf_reset(ns_buf *b) {
  b->n = 0;
  b->oom = false;
}

void ns_buf_free(ns_buf *b) {
  free(b->p);
  *b = NS_BUF_INIT;
}

ns_bytes ns_buf_bytes(const ns_buf *b) {
  return (ns_bytes){b->n > 0 ? b->p : "", b->n};
}

bool ns_grow(void *items, size_t *cap, size_t want, size_t size) {
  size_t n = *cap > 0 ? *cap : 8;
  void *old;
  void *p;
  if (want <= *cap)
    return true;
  while (n < want)
    n *= 2;
  if (n > SIZE_MAX / size)
    return false;
  memcpy(&old, items, sizeof old);
  p = realloc(old, n * size);
  if (p == NULL)
    return false;
  memcpy(items, &p, sizeof p);
  *cap = n;
  return true;
}

/* ------------------------------------------------------------------- numbers */

enum { DIGITS = 15, DIGITS_MAX = 17 };

static bool is_plain(char c) {
  return (c >= '0' && c <= '9') || c == '-' || c == 'e';
}

/* Copies a number of printf in the form of JSON: with a point, and with neither '+' nor leading
** zeros in the exponent. */
static void copy_with_point(char *to, const char *from) {
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
  copy_with_point(text, found);
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

/* -------------------------------------------------------------------- hashes */

uint64_t ns_hash(ns_bytes s) {
  uint64_t h = UINT64_C(14695981039346656037);
  for (size_t i = 0; i < s.n; i++)
    h = (h ^ (unsigned char)s.p[i]) * UINT64_C(1099511628211);
  return h;
}

uint32_t ns_hash_short(ns_bytes s) {
  uint64_t h = ns_hash(s);
  return (uint32_t)(h ^ h >> 32);
}
