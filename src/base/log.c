/*
** Formatting and writing of log lines. A line is built in a fixed array, and each escaped
** character is added whole or not at all. Room for the closing quote, brace and newline is kept
** back, so a cut line is still well formed.
**
** Spooled lines wait in a ring of bytes. The thread copies its next piece out of the ring, and
** blocks in write with nothing locked. At the end it may still be blocked there, so it touches
** static memory only.
*/
#include "log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "err.h"

#define SPOOL_SIZE ((size_t)1 << 20) /* bytes of lines that wait */
#define KEPT_BACK 16                 /* bytes for "…", closing quote, brace, newline */
#define PATIENCE_MS 100              /* first wait for a reader that does not read */

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

ns_field ns_fn(const char *key, const char *number) {
  return (ns_field){key, true, 0, ns_str(number)};
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

/* ----------------------------------------------------------------- escape */

/* The line being built. */
typedef struct line {
  char *p;
  size_t n;
  size_t max;
} line;

static bool add_text(line *l, const char *s, size_t n) {
  if (l->n + n > l->max)
    return false;
  memcpy(l->p + l->n, s, n);
  l->n += n;
  return true;
}

static bool add_string(line *l, const char *s) {
  return add_text(l, s, strlen(s));
}

/* The character of 'len' bytes at 'p'. */
static uint32_t rune(const char *p, size_t len) {
  static const unsigned char lead[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
  uint32_t code = (unsigned char)p[0] & lead[len];
  for (size_t i = 1; i < len; i++)
    code = code << 6 | ((unsigned char)p[i] & 0x3FU);
  return code;
}

/* Characters that a terminal obeys or does not show: C1 controls, marks of direction,
** separators, characters without width. */
static bool is_hidden(uint32_t c) {
  return (c >= 0x80 && c < 0xA0) || c == 0x61C || (c >= 0x200B && c <= 0x200F) ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF;
}

/* Adds one character or byte of 'p' inside quotes; '*used' bytes are consumed. */
static bool add_escaped(line *l, bool json, const char *p, size_t n, size_t *used) {
  static const char from[] = "\"\\\n\r\t";
  static const char *const to[] = {"\\\"", "\\\\", "\\n", "\\r", "\\t"};
  const char *special = *p != '\0' ? strchr(from, *p) : NULL;
  unsigned char c = (unsigned char)*p;
  size_t len = ns_utf8(p, n);
  char code[16];
  *used = len > 0 ? len : 1;
  if (special != NULL)
    return add_string(l, to[special - from]);
  if (len > 1 && is_hidden(rune(p, len))) {
    snprintf(code, sizeof code, json ? "\\u%04x" : "\\u{%x}", (unsigned)rune(p, len));
    return add_string(l, code);
  }
  if (len > 0 && c >= 0x20 && c != 0x7F)
    return add_text(l, p, len);
  if (len == 0 && json)
    return add_string(l, "\\ufffd");
  if (c == '\0' && !json)
    return add_string(l, "\\0");
  snprintf(code, sizeof code, json ? "\\u%04x" : "\\x%02x", (unsigned)c);
  return add_string(l, code);
}

static void add_quoted(line *l, bool json, ns_bytes s) {
  size_t i;
  size_t used;
  if (!add_string(l, "\""))
    return;
  for (i = 0; i < s.n; i += used)
    if (!add_escaped(l, json, s.p + i, s.n - i, &used))
      break;
  l->max += KEPT_BACK / 2;
  if (i < s.n)
    add_string(l, "…");
  add_string(l, "\"");
  l->max -= KEPT_BACK / 2;
}

/* Values that need no quotes as key=value. */
static bool is_bare(ns_bytes s) {
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
    fits = add_string(l, l->n > 1 ? ",\"" : "\"") && add_string(l, f->key) && add_string(l, "\":");
  else
    fits = add_string(l, l->n > 0 ? " " : "") && add_string(l, f->key) && add_string(l, "=");
  if (fits && f->number) {
    snprintf(number, sizeof number, "%lld", (long long)f->i);
    fits = add_string(l, f->s.p != NULL ? f->s.p : number);
  } else if (fits && !json && is_bare(f->s) && l->n + f->s.n <= l->max)
    add_text(l, f->s.p, f->s.n);
  else if (fits && l->n + 8 <= l->max)
    add_quoted(l, json, f->s);
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

size_t ns_log_format(char text[NS_LOG_LINE], bool json, int64_t wall_us, ns_level level,
                     const char *event, const ns_field *fields, size_t n) {
  line l = {text, 0, NS_LOG_LINE - KEPT_BACK};
  char ts[NS_LOG_TIME];
  ns_field head[3];
  ns_log_time(ts, wall_us);
  head[0] = ns_fs("ts", ts);
  head[1] = ns_fs("level", levels[level]);
  head[2] = ns_fs("event", event);
  if (json)
    add_string(&l, "{");
  for (size_t i = 0; i < 3; i++)
    add_field(&l, json, &head[i]);
  for (size_t i = 0; i < n; i++)
    add_field(&l, json, &fields[i]);
  l.max = NS_LOG_LINE;
  add_string(&l, json ? "}\n" : "\n");
  return l.n;
}

static struct {
  pthread_mutex_t lock;
  pthread_cond_t more, less; /* lines have been added; nothing is left to write */
  bool running, stopping;
  bool writing; /* the thread is writing 'chunk' */
  int fd;
  size_t (*notice)(char line[NS_LOG_LINE], int64_t dropped);
  int64_t dropped;   /* lines that no line tells of yet */
  int64_t said;      /* lines that a line in the ring tells of */
  size_t until_said; /* bytes to its end; 0: there is none */
  size_t first, n;   /* of 'ring' */
  char ring[SPOOL_SIZE];
  char chunk[NS_LOG_LINE];
} spool = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ------------------------------------------------------------ the spool: its ring */

static void enqueue(const char *p, size_t n) {
  size_t at = (spool.first + spool.n) % SPOOL_SIZE;
  size_t part = n < SPOOL_SIZE - at ? n : SPOOL_SIZE - at;
  ns_assert(n > 0 && p[n - 1] == '\n' && spool.n + n <= SPOOL_SIZE);
  memcpy(spool.ring + at, p, part);
  memcpy(spool.ring, p + part, n - part);
  spool.n += n;
}

/* Takes whole lines into the chunk; how many bytes. */
static size_t take_lines(void) {
  size_t n = spool.n < NS_LOG_LINE ? spool.n : NS_LOG_LINE;
  size_t part = n < SPOOL_SIZE - spool.first ? n : SPOOL_SIZE - spool.first;
  memcpy(spool.chunk, spool.ring + spool.first, part);
  memcpy(spool.chunk + part, spool.ring, n - part);
  while (spool.chunk[n - 1] != '\n') {
    ns_assert(n > 1);
    n--;
  }
  spool.first = (spool.first + n) % SPOOL_SIZE;
  spool.n -= n;
  spool.until_said -= n < spool.until_said ? n : spool.until_said;
  return n;
}

static int64_t lines_in_chunk(size_t n) {
  int64_t lines = 0;
  for (size_t i = 0; i < n; i++)
    lines += spool.chunk[i] == '\n';
  return lines;
}

static int64_t lines_in_ring(void) {
  int64_t lines = 0;
  for (size_t i = 0; i < spool.n; i++)
    lines += spool.ring[(spool.first + i) % SPOOL_SIZE] == '\n';
  return lines;
}

/* ---------------------------------------------------------- the spool: its thread */

/* Writes all of the chunk, however long that takes; false: it cannot be written. */
static bool write_chunk(size_t n) {
  struct pollfd p = {spool.fd, POLLOUT, 0};
  size_t at = 0;
  while (at < n) {
    ssize_t got = write(spool.fd, spool.chunk + at, n - at);
    if (got >= 0)
      at += (size_t)got;
    else if (errno == EAGAIN) /* another process that shares the pipe has made it non-blocking */
      poll(&p, 1, -1);
    else if (errno != EINTR)
      return false;
  }
  return true;
}

static void say_dropped(void) {
  char text[NS_LOG_LINE] = "";
  size_t n = spool.notice(text, spool.dropped);
  enqueue(text, n);
  spool.said = spool.dropped;
  spool.until_said = spool.n;
  spool.dropped = 0;
}

/* The lock is held, but not while it writes. */
static void write_some(void) {
  bool tells = spool.until_said > 0;
  size_t n = take_lines();
  bool ok;
  tells = tells && spool.until_said == 0;
  spool.writing = true;
  pthread_mutex_unlock(&spool.lock);
  ok = write_chunk(n);
  pthread_mutex_lock(&spool.lock);
  spool.writing = false;
  if (!ok)
    spool.dropped += lines_in_chunk(n) + (tells ? spool.said - 1 : 0);
  else if (spool.dropped > 0 && spool.n <= SPOOL_SIZE / 2)
    say_dropped();
}

static void *write_spool(void *arg) {
  (void)arg;
  pthread_mutex_lock(&spool.lock);
  while (!spool.stopping || spool.n > 0) {
    if (spool.n > 0)
      write_some();
    else
      pthread_cond_wait(&spool.more, &spool.lock);
    if (spool.n == 0)
      pthread_cond_signal(&spool.less);
  }
  pthread_mutex_unlock(&spool.lock);
  return NULL;
}

/* Starts the thread, with all signals blocked. 'notice' makes the line that says how many
** were dropped, and gives its length. False: there is no thread. */
static bool start_spool(int fd, size_t (*notice)(char line[NS_LOG_LINE], int64_t dropped)) {
  pthread_condattr_t attr;
  pthread_t id;
  sigset_t all;
  sigset_t old;
  spool.fd = fd;
  spool.notice = notice;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&spool.more, NULL);
  pthread_cond_init(&spool.less, &attr);
  pthread_condattr_destroy(&attr);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  spool.running = pthread_create(&id, NULL, write_spool, NULL) == 0;
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (spool.running)
    pthread_detach(id);
  return spool.running;
}

/* Adds a line of 'n' bytes with its newline. False: no thread runs, nothing is done. */
static bool add_to_spool(const char *text, size_t n) {
  bool running;
  pthread_mutex_lock(&spool.lock);
  running = spool.running;
  if (running && spool.dropped > 0 && spool.n == 0 && !spool.writing)
    say_dropped(); /* the report of dropped lines could not be written: it is made again */
  /* room for the line about dropped lines is kept */
  if (running && (spool.dropped > 0 || spool.n + n + NS_LOG_LINE > SPOOL_SIZE))
    spool.dropped++;
  else if (running) {
    enqueue(text, n);
    if (!spool.writing)
      pthread_cond_signal(&spool.more);
  }
  pthread_mutex_unlock(&spool.lock);
  return running;
}

/* The lock is held. */
static void wait_written(int64_t end) {
  struct timespec t = {(time_t)(end / NS_SECOND), (long)(end % NS_SECOND) * 1000};
  while (spool.running && (spool.n > 0 || spool.writing) && ns_mono_us() < end)
    pthread_cond_timedwait(&spool.less, &spool.lock, &t);
}

/* A line that told of some is left, too: it is no loss. */
static void drop_all(void) {
  spool.dropped += lines_in_ring();
  if (spool.until_said > 0)
    spool.dropped += spool.said - 1;
  spool.n = 0;
}

/* Waits until all is written, for 'us' at most; no line is taken any more then. In the last
** quarter the waiting lines are dropped, and the thread reports their number after its current
** chunk. */
static void stop_spool(int64_t us) {
  int64_t end = ns_mono_us() + us;
  pthread_mutex_lock(&spool.lock);
  wait_written(end - us / 4);
  drop_all();
  if (spool.running && spool.dropped > 0) {
    say_dropped();
    pthread_cond_signal(&spool.more);
    wait_written(end);
  }
  spool.running = false;
  spool.stopping = true;
  spool.n = 0;
  pthread_cond_signal(&spool.more);
  pthread_mutex_unlock(&spool.lock);
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

int64_t ns_log_wall(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* A pipe that polls writable takes PIPE_BUF bytes without blocking. */
static bool is_writable(int patience) {
  struct pollfd p = {STDERR_FILENO, POLLOUT, 0};
  return poll(&p, 1, patience) == 1;
}

/* 'patience': ms that a reader has. */
static void write_line(const char *text, size_t n, int patience) {
  ns_assert(n > 0 && n <= NS_LOG_LINE && memchr(text, '\n', n) == text + n - 1);
  if (!is_writable(patience) || write(STDERR_FILENO, text, n) < 0) {
    logger.stuck = true;
    logger.dropped++;
  } else
    logger.stuck = false;
}

static size_t format_notice(char text[NS_LOG_LINE], int64_t dropped) {
  return ns_log_format(text, logger.json, ns_log_wall(), NS_LOG_WARN, "log.dropped",
                       NS_FIELDS(ns_fi("lines", dropped)));
}

/* Tells about lost lines as soon as a line goes through again. */
static void put_dropped(int patience) {
  char text[NS_LOG_LINE];
  int64_t lost = logger.dropped;
  size_t n = format_notice(text, lost);
  logger.dropped = 0;
  write_line(text, n, patience);
  if (logger.stuck)
    logger.dropped = lost;
}

void ns_log(ns_level level, const char *event, const ns_field *fields, size_t n) {
  char text[NS_LOG_LINE];
  size_t len;
  if (!ns_log_on(level))
    return;
  len = ns_log_format(text, logger.json, ns_log_wall(), level, event, fields, n);
  if (add_to_spool(text, len))
    return;
  pthread_mutex_lock(&logger.lock);
  write_line(text, len, logger.stuck ? 0 : PATIENCE_MS);
  if (!logger.stuck && logger.dropped > 0)
    put_dropped(PATIENCE_MS);
  pthread_mutex_unlock(&logger.lock);
}

bool ns_log_spool(void) {
  return start_spool(STDERR_FILENO, format_notice);
}

void ns_log_flush(int64_t us) {
  stop_spool(us);
  pthread_mutex_lock(&logger.lock);
  if (logger.dropped > 0)
    put_dropped((int)(us / 4 / 1000));
  pthread_mutex_unlock(&logger.lock);
}
