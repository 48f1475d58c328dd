/*
** Formatting and writing of log lines. A line is built in a fixed array, and each escaped
** character is added whole or not at all. Room for the closing quote, brace and newline is kept
** back, so a cut line is still well formed.
**
** A record of the journal travels as one line, too: NS_LOG_UNIT stands between its fields, and no
** escaped value has that byte. Its socket is opened for each write. So no process that is
** forked inherits it, and a journal that was started anew gets the next line.
*/
#include "base.h"

#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define UNIT_MAX 200 /* bytes of a value that is a field of the journal's */
#define KEPT_BACK 16                 /* bytes for "…", closing quote, brace, newline */
#define PATIENCE_MS 100              /* first wait for a reader that does not read */

static struct {
  pthread_mutex_t lock;
  ns_form form;
  ns_level level;
  struct sockaddr_un journal;
  char host[256];
  bool stuck;      /* the last line could not be written */
  int64_t dropped; /* lines lost since then */
} logger = {.lock = PTHREAD_MUTEX_INITIALIZER, .form = NS_FORM_LOGFMT, .level = NS_LOG_INFO};

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

/* ------------------------------------------------------ records of the journal */

/* A value by itself: its bytes but for control characters. */
static bool add_plain(line *l, ns_bytes s) {
  size_t used = 1;
  for (size_t i = 0; i < s.n; i += used) {
    unsigned char c = (unsigned char)s.p[i];
    used = 1;
    if (c < 0x20 || c == 0x7F ? !add_escaped(l, false, s.p + i, s.n - i, &used)
                              : !add_text(l, s.p + i, 1))
      return false;
  }
  return true;
}

/* NIGHTSHIFT_QUEUE=mail; long values are in the message alone. */
static void add_unit(line *l, const ns_field *f) {
  char name[64] = "NIGHTSHIFT_";
  size_t n = strlen(name);
  size_t before = l->n;
  const char *key = strcmp(f->key, "id") == 0 ? "job" : f->key;
  char number[24];
  ns_bytes value = f->s;
  if ((!f->number && value.p == NULL) || value.n > UNIT_MAX)
    return;
  for (; *key != '\0' && n < sizeof name - 2; key++)
    name[n++] = (char)(isalnum((unsigned char)*key) ? toupper((unsigned char)*key) : '_');
  name[n++] = '=';
  snprintf(number, sizeof number, "%lld", (long long)f->i);
  if (f->number && value.p == NULL)
    value = ns_str(number);
  if (!add_text(l, name, n) || !add_plain(l, value) || !add_text(l, &(char){NS_LOG_UNIT}, 1))
    l->n = before;
}

/* The message comes last, with the room that is left; what it says of time and level is in fields
** of the journal's. */
static size_t format_record(line *l, ns_level level, const ns_field *event, const ns_field *fields,
                            size_t n) {
  static const char *const priorities[] = {"PRIORITY=7", "PRIORITY=6", "PRIORITY=4", "PRIORITY=3"};
  line message;
  add_string(l, priorities[level]);
  add_text(l, &(char){NS_LOG_UNIT}, 1);
  add_string(l, "SYSLOG_IDENTIFIER=nightshift");
  add_text(l, &(char){NS_LOG_UNIT}, 1);
  add_unit(l, event);
  for (size_t i = 0; i < n; i++)
    add_unit(l, &fields[i]);
  add_string(l, "MESSAGE=");
  message = (line){l->p + l->n, 0, l->max - l->n};
  add_field(&message, false, event);
  for (size_t i = 0; i < n; i++)
    add_field(&message, false, &fields[i]);
  l->n += message.n;
  l->p[l->n++] = '\n';
  return l->n;
}

size_t ns_log_format(char text[NS_LOG_LINE], ns_form form, int64_t wall_us, ns_level level,
                     const char *event, const ns_field *fields, size_t n) {
  bool json = form == NS_FORM_JSON;
  line l = {text, 0, NS_LOG_LINE - KEPT_BACK};
  char ts[NS_LOG_TIME];
  ns_field head[3];
  ns_log_time(ts, wall_us);
  head[0] = ns_fs("ts", ts);
  head[1] = ns_fs("level", levels[level]);
  head[2] = ns_fs("event", event);
  if (form == NS_FORM_JOURNAL)
    return format_record(&l, level, &head[2], fields, n);
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

/* Sends each line as a record. 'wait': ms for each; -1: as long as it takes. */
static bool send_records(const char *lines, size_t n, int wait) {
  char record[NS_LOG_LINE];
  int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  struct timeval most = {wait / 1000, (suseconds_t)(wait % 1000) * 1000};
  bool ok = fd >= 0;
  if (ok && wait >= 0)
    ok = setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most) == 0;
  while (ok && n > 0) {
    size_t len = (size_t)((const char *)memchr(lines, '\n', n) + 1 - lines);
    ssize_t sent;
    for (size_t i = 0; i < len; i++)
      record[i] = (char)(lines[i] == NS_LOG_UNIT ? '\n' : lines[i]);
    do
      sent = sendto(fd, record, len, MSG_NOSIGNAL, (struct sockaddr *)&logger.journal,
                    sizeof logger.journal);
    while (sent < 0 && errno == EINTR);
    ok = sent == (ssize_t)len;
    lines += len;
    n -= len;
  }
  if (fd >= 0)
    close(fd);
  return ok;
}

/* Is stderr the journal's? systemd names its device and inode; a child may have another. */
static bool is_journal_ours(void) {
  const char *stream = getenv("JOURNAL_STREAM");
  const char *path = getenv("NIGHTSHIFT_JOURNAL");
  unsigned long long device;
  unsigned long long inode;
  struct stat st;
  if (stream == NULL || sscanf(stream, "%llu:%llu", &device, &inode) != 2 ||
      fstat(STDERR_FILENO, &st) != 0 || st.st_dev != (dev_t)device || st.st_ino != (ino_t)inode)
    return false;
  if (path == NULL)
    path = "/run/systemd/journal/socket";
  logger.journal.sun_family = AF_UNIX;
  return snprintf(logger.journal.sun_path, sizeof logger.journal.sun_path, "%s", path) <
             (int)sizeof logger.journal.sun_path &&
         access(path, W_OK) == 0;
}

/* ------------------------------------------------------------------ write */

void ns_log_setup(ns_form form, ns_level level) {
  const char *wanted = getenv("NIGHTSHIFT_LOG");
  if (form == NS_FORM_AUTO)
    form = is_journal_ours() ? NS_FORM_JOURNAL : NS_FORM_LOGFMT;
  logger.form = form;
  logger.level = level;
  gethostname(logger.host, sizeof logger.host - 1);
  for (size_t i = 0; wanted != NULL && i < 4; i++)
    if (strcmp(wanted, levels[i]) == 0)
      logger.level = (ns_level)i;
}

ns_form ns_log_form(void) {
  return logger.form;
}

const char *ns_log_host(void) {
  return logger.host;
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
  if (logger.form == NS_FORM_JOURNAL)
    logger.stuck = !send_records(text, n, patience > 0 ? patience : 1); /* 0 would be for ever */
  else
    logger.stuck = !is_writable(patience) || write(STDERR_FILENO, text, n) < 0;
  logger.dropped += logger.stuck;
}

static size_t format_notice(char text[NS_LOG_LINE], int64_t dropped) {
  return ns_log_format(text, logger.form, ns_log_wall(), NS_LOG_WARN, "log.dropped",
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
  len = ns_log_format(text, logger.form, ns_log_wall(), level, event, fields, n);
  if (ns_spool_add(text, len))
    return;
  pthread_mutex_lock(&logger.lock);
  write_line(text, len, logger.stuck ? 0 : PATIENCE_MS);
  if (!logger.stuck && logger.dropped > 0)
    put_dropped(PATIENCE_MS);
  pthread_mutex_unlock(&logger.lock);
}

/* The line below all others. */
static struct {
  pthread_mutex_t lock;
  char text[NS_LOG_FOOT];
} foot = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Writes all of it, however long that takes; false: it cannot be written. */
static bool put_bytes(const char *p, size_t n) {
  struct pollfd ready = {STDERR_FILENO, POLLOUT, 0};
  while (n > 0) {
    ssize_t got = write(STDERR_FILENO, p, n);
    if (got >= 0) {
      p += got;
      n -= (size_t)got;
    } else if (errno == EAGAIN) /* another process that shares the pipe has made it non-blocking */
      poll(&ready, 1, -1);
    else if (errno != EINTR)
      return false;
  }
  return true;
}

/* The cursor goes back to its beginning: what other processes write takes its place. */
static void put_foot(void) {
  char text[NS_LOG_FOOT + 8];
  int n = snprintf(text, sizeof text, "\r%s\x1b[K\r", foot.text);
  put_bytes(text, (size_t)n);
}

void ns_log_foot(const char *text) {
  for (int i = 0; pthread_mutex_trylock(&foot.lock) != 0; i++) {
    if (text[0] != '\0' || i == 20) /* lines are being written, perhaps for long */
      return;
    ns_sleep_us(5000);
  }
  snprintf(foot.text, sizeof foot.text, "%s", text);
  if (is_writable(0))
    put_foot();
  pthread_mutex_unlock(&foot.lock);
}

static bool put_lines(const char *lines, size_t n) {
  static const char clear[] = "\r\x1b[K";
  bool ok;
  if (logger.form == NS_FORM_JOURNAL)
    return send_records(lines, n, -1);
  pthread_mutex_lock(&foot.lock);
  ok = (foot.text[0] == '\0' || put_bytes(clear, strlen(clear))) && put_bytes(lines, n);
  if (foot.text[0] != '\0')
    put_foot();
  pthread_mutex_unlock(&foot.lock);
  return ok;
}

bool ns_log_spool(void) {
  return ns_spool_start(put_lines, format_notice);
}

void ns_log_flush(int64_t us) {
  ns_spool_stop(us);
  pthread_mutex_lock(&logger.lock);
  if (logger.dropped > 0)
    put_dropped((int)(us / 4 / 1000));
  pthread_mutex_unlock(&logger.lock);
}
