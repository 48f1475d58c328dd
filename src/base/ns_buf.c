/*
** Growable bytes. Capacity doubles; debug builds start tiny, so that growth
** happens in every test.
*/
#include "ns_buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ns_assert.h"

#ifdef NS_DEBUG
#define FIRST_CAP 16
#else
#define FIRST_CAP 256
#endif

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

/* Length of the UTF-8 character at 's', 0 when there is none. */
static size_t utf8_length(const unsigned char *s, size_t n) {
  static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
  unsigned char c = s[0];
  size_t len = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
  unsigned code;
  if (len <= 1)
    return len;
  if (len > n)
    return 0;
  code = c & (0x7Fu >> len);
  for (size_t i = 1; i < len; i++) {
    if ((s[i] & 0xC0) != 0x80)
      return 0;
    code = code << 6 | (s[i] & 0x3Fu);
  }
  if (code < least[len] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
    return 0;
  return len;
}

bool ns_utf8_valid(ns_bytes text) {
  size_t i = 0;
  while (i < text.n) {
    size_t len = utf8_length((const unsigned char *)text.p + i, text.n - i);
    if (len == 0)
      return false;
    i += len;
  }
  return true;
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
    size_t len = utf8_length((const unsigned char *)text.p + i, text.n - i);
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
