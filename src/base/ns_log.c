/*
** Formatting and writing of log lines. A line is built in a fixed array; each
** escaped character is added whole or not at all, and room for the closing
** quote, brace and newline is kept back, so a cut line is still well formed.
*/
#include "ns_log.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ns_assert.h"
#include "ns_spool.h"

#define KEPT_BACK 16      /* bytes for "…", closing quote, brace, newline */
#define PATIENCE_MS 100   /* first wait for a reader that does not read */

static struct {
  pthread_mutex_t lock;
  bool json;
  ns_level level;
  bool stuck;      /* the last line could not be written */
  int64_t dropped; /* lines lost since then */
} logger = {PTHREAD_MUTEX_INITIALIZER, false, NS_LOG_INFO, false, 0};

static const char *const levels[] = {"debug", "info", "warn", "error"};

ns_field ns_fi(const char *key, int64_t i) {
  return (ns_field){key, true, i, NS_NONE};
}

ns_field ns_fb(const char *key, ns_bytes s) {
  return (ns_field){key, false, 0, s};
}

ns_field ns_fs(const char *key, const char *s) {
  return ns_fb(key, ns_str(s));
}

ns_bytes ns_first_line(ns_bytes s) {
  const char *end = s.p != NULL ? memchr(s.p, '\n', s.n) : NULL;
  return end != NULL ? (ns_bytes){s.p, (size_t)(end - s.p)} : s;
}

/* ------------------------------------------------------------------ UTF-8 */

/* Least code point of a sequence of this length: a shorter form is invalid. */
static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};

size_t ns_utf8(const char *p, size_t n) {
  unsigned char c = (unsigned char)p[0];
  size_t len = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3
               : c < 0xF5 ? 4 : 0;
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

/* ----------------------------------------------------------------- escape */

/* The line being built. */
typedef struct line {
  char *p;
  size_t n;
  size_t max;
} line;

static bool add(line *l, const char *s, size_t n) {
  if (l->n + n > l->max)
    return false;
  memcpy(l->p + l->n, s, n);
  l->n += n;
  return true;
}

static bool adds(line *l, const char *s) {
  return add(l, s, strlen(s));
}

/* The character of 'len' bytes at 'p'. */
static uint32_t rune(const char *p, size_t len) {
  static const unsigned char lead[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
  uint32_t code = (unsigned char)p[0] & lead[len];
  for (size_t i = 1; i < len; i++)
    code = code << 6 | ((unsigned char)p[i] & 0x3FU);
  return code;
}

/* What a terminal obeys, or shows nothing of: C1 controls, marks of direction,
** separators, characters without width. */
static bool hidden(uint32_t c) {
  return (c >= 0x80 && c < 0xA0) || c == 0x61C || (c >= 0x200B && c <= 0x200F) ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) ||
         c == 0xFEFF;
}

/* One character or byte of 'p' inside quotes; '*used' bytes are consumed. */
static bool escaped(line *l, bool json, const char *p, size_t n,
                    size_t *used) {
  static const char from[] = "\"\\\n\r\t";
  static const char *const to[] = {"\\\"", "\\\\", "\\n", "\\r", "\\t"};
  const char *special = *p != '\0' ? strchr(from, *p) : NULL;
  unsigned char c = (unsigned char)*p;
  size_t len = ns_utf8(p, n);
  char code[16];
  *used = len > 0 ? len : 1;
  if (special != NULL)
    return adds(l, to[special - from]);
  if (len > 1 && hidden(rune(p, len))) {
    snprintf(code, sizeof code, json ? "\\u%04x" : "\\u{%x}",
             (unsigned)rune(p, len));
    return adds(l, code);
  }
  if (len > 0 && c >= 0x20 && c != 0x7F)
    return add(l, p, len);
  if (len == 0 && json)
    return adds(l, "\\ufffd");
  if (c == '\0' && !json)
    return adds(l, "\\0");
  snprintf(code, sizeof code, json ? "\\u%04x" : "\\x%02x", (unsigned)c);
  return adds(l, code);
}

static void quoted(line *l, bool json, ns_bytes s) {
  size_t i;
  size_t used;
  if (!adds(l, "\""))
    return;
  for (i = 0; i < s.n; i += used)
    if (!escaped(l, json, s.p + i, s.n - i, &used))
      break;
  l->max += KEPT_BACK / 2;
  if (i < s.n)
    adds(l, "…");
  adds(l, "\"");
  l->max -= KEPT_BACK / 2;
}

/* Values that need no quotes as key=value. */
static bool bare(ns_bytes s) {
  for (size_t i = 0; i < s.n; i++)
    if (s.p[i] <= ' ' || s.p[i] > '~' || strchr("\"=\\", s.p[i]) != NULL)
      return false;
  return s.n > 0;
}

static void add_field(line *l, bool json, const ns_field *f) {
  char number[24];
  size_t before = l->n;
  bool fits;
  if (!f->number && f->s.p == NULL)
    return;
  if (json)
    fits = adds(l, l->n > 1 ? ",\"" : "\"") && adds(l, f->key) &&
           adds(l, "\":");
  else
    fits = adds(l, l->n > 0 ? " " : "") && adds(l, f->key) && adds(l, "=");
  if (fits && f->number) {
    snprintf(number, sizeof number, "%lld", (long long)f->i);
    fits = adds(l, number);
  } else if (fits && !json && bare(f->s) && l->n + f->s.n <= l->max)
    add(l, f->s.p, f->s.n);
  else if (fits && l->n + 8 <= l->max)
    quoted(l, json, f->s);
  else
    fits = false;
  if (!fits)
    l->n = before;
}

void ns_log_time(char out[NS_LOG_TIME], int64_t wall_us) {
  time_t seconds = (time_t)(wall_us / 1000000);
  struct tm tm;
  size_t n;
  gmtime_r(&seconds, &tm);
  n = strftime(out, NS_LOG_TIME, "%Y-%m-%dT%H:%M:%S", &tm);
  snprintf(out + n, NS_LOG_TIME - n, ".%03dZ", (int)(wall_us / 1000 % 1000));
}

size_t ns_log_format(char text[NS_LOG_LINE], bool json, int64_t wall_us,
                     ns_level level, const char *event,
                     const ns_field *fields, size_t n) {
  line l = {text, 0, NS_LOG_LINE - KEPT_BACK};
  char ts[NS_LOG_TIME];
  ns_field head[3];
  ns_log_time(ts, wall_us);
  head[0] = ns_fs("ts", ts);
  head[1] = ns_fs("level", levels[level]);
  head[2] = ns_fs("event", event);
  if (json)
    adds(&l, "{");
  for (size_t i = 0; i < 3; i++)
    add_field(&l, json, &head[i]);
  for (size_t i = 0; i < n; i++)
    add_field(&l, json, &fields[i]);
  l.max = NS_LOG_LINE;
  adds(&l, json ? "}\n" : "\n");
  return l.n;
}

/* ------------------------------------------------------------------ write */

void ns_log_setup(bool json, ns_level level) {
  const char *wanted = getenv("NIGHTSHIFT_LOG");
  logger.json = json;
  logger.level = level;
  for (size_t i = 0; wanted != NULL && i < 4; i++)
    if (strcmp(wanted, levels[i]) == 0)
      logger.level = (ns_level)i;
}

bool ns_log_on(ns_level level) {
  return level >= logger.level;
}

static int64_t wall_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* A pipe that polls writable takes PIPE_BUF bytes without blocking. */
static bool writable(int patience) {
  struct pollfd p = {STDERR_FILENO, POLLOUT, 0};
  return poll(&p, 1, patience) == 1;
}

/* 'patience', ms: for whoever reads. */
static void put(const char *text, size_t n, int patience) {
  ns_assert(n > 0 && n <= NS_LOG_LINE && memchr(text, '\n', n) == text + n - 1);
  if (!writable(patience) || write(STDERR_FILENO, text, n) < 0) {
    logger.stuck = true;
    logger.dropped++;
  } else
    logger.stuck = false;
}

static size_t notice(char text[NS_LOG_LINE], int64_t dropped) {
  return ns_log_format(text, logger.json, wall_now(), NS_LOG_WARN, "log.dropped",
                       NS_FIELDS(ns_fi("lines", dropped)));
}

/* Tells about lost lines as soon as a line goes through again. */
static void put_dropped(int patience) {
  char text[NS_LOG_LINE];
  int64_t lost = logger.dropped;
  size_t n = notice(text, lost);
  logger.dropped = 0;
  put(text, n, patience);
  if (logger.stuck)
    logger.dropped = lost;
}

void ns_log(ns_level level, const char *event, const ns_field *fields,
            size_t n) {
  char text[NS_LOG_LINE];
  size_t len;
  if (!ns_log_on(level))
    return;
  len = ns_log_format(text, logger.json, wall_now(), level, event, fields, n);
  if (ns_spool_add(text, len))
    return;
  pthread_mutex_lock(&logger.lock);
  put(text, len, logger.stuck ? 0 : PATIENCE_MS);
  if (!logger.stuck && logger.dropped > 0)
    put_dropped(PATIENCE_MS);
  pthread_mutex_unlock(&logger.lock);
}

bool ns_log_spool(void) {
  return ns_spool_start(STDERR_FILENO, notice);
}

void ns_log_flush(int64_t us) {
  ns_spool_stop(us);
  pthread_mutex_lock(&logger.lock);
  if (logger.dropped > 0)
    put_dropped((int)(us / 4 / 1000));
  pthread_mutex_unlock(&logger.lock);
}
