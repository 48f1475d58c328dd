/*
** What all layers use: errors, bytes and text, time, log lines. Neither Lua nor MariaDB is known
** here.
**
** Invariants: lengths are explicit everywhere, so bytes may contain NUL. No instant is wall-clock
** time, but for those of log lines; every instant that is stored comes from the server's clock.
** Durations are microseconds. (Not asserted: no other file asks a clock; spec/faults_spec.lua looks
** for one.)
*/
#ifndef NS_BASE_H
#define NS_BASE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef NS_DEBUG
#include <stdio.h>
#include <stdlib.h>
#endif

#include "nightshift_types.h"

/* -------------------------------------------------------------- errors: text.c */

/*
** The error record shared by every layer.
**
** Core functions return an ns_status. On anything but NS_OK the caller's ns_err holds that
** status and the server's error number, if there was one. Its message is one sentence for a
** person: what was expected, what came, what to do. The record has a fixed buffer, so the
** failure path never allocates.
**
** Stated invariants are assertions, ns_assert. They are checked in debug builds only (NS_DEBUG:
** `make DEBUG=1`, and all builds with sanitizers).
*/

/* Fills 'err' (may be NULL) and returns 'status': `return ns_fail(…);` */
ns_status ns_fail(ns_err *err, ns_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Fails with NOMEM. */
ns_status ns_no_memory(ns_err *err);

/* Puts "context: " in front of the message; returns err->status. */
ns_status ns_err_context(ns_err *err, const char *context);

/* Empties the record. */
void ns_err_clear(ns_err *err);

#ifdef NS_DEBUG
#define ns_assert(x)                                                                               \
  ((x) ? (void)0                                                                                   \
       : (fprintf(stderr, "%s:%d: %s: invariant broken: %s\n", __FILE__, __LINE__, __func__, #x),  \
          abort()))
#else
#define ns_assert(x) ((void)(0 && (x))) /* compiled, so that it stays true to the code */
#endif

/* --------------------------------------------------------------- bytes: text.c */

/*
** A borrowed view of bytes (ns_bytes), a growable owner (ns_buf), UTF-8, numbers with fractions as
** text, and a hash.
**
** Invariants: a buffer that failed to grow is 'oom' from then on and ignores additions, so that a
** caller checks once, at the end. The text of a number has a point, whatever decimal sign the
** program's locale has. It is a number of JSON and reads back as the same double.
*/

#define NS_NONE ((ns_bytes){NULL, 0})

#define NS_BUF_INIT ((ns_buf){NULL, 0, 0, false})

void ns_buf_add(ns_buf *b, const void *p, size_t n);
void ns_buf_addc(ns_buf *b, char c);
void ns_buf_adds(ns_buf *b, const char *s);
void ns_buf_addf(ns_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Adds 'text' with every 'mark' in it replaced by 'by'. */
void ns_buf_fill(ns_buf *b, const char *text, const char *mark, ns_bytes by);

/* Adds 'text' as a JSON string in quotes. Bytes that are not UTF-8 become
** U+FFFD each, so the result is always valid. */
void ns_buf_add_json(ns_buf *b, ns_bytes text);

/* Adds 'text' with bytes that are not UTF-8 replaced by U+FFFD. */
void ns_buf_add_utf8(ns_buf *b, ns_bytes text);

/* Whether all of it is UTF-8. */
bool ns_utf8_valid(ns_bytes text);

/* Characters of a text in UTF-8, as the server counts them for a column. */
size_t ns_utf8_count(ns_bytes text);

/* Length of the valid UTF-8 sequence that starts at 'p', 0 when there is
** none; 'n' > 0 bytes are there. */
size_t ns_utf8(const char *p, size_t n);

/* Makes room for 'n' more bytes and returns where they go; NULL: oom. */
char *ns_buf_room(ns_buf *b, size_t n);

/* Keeps the memory, forgets the bytes and the oom flag. */
void ns_buf_reset(ns_buf *b);

/* Frees; the buffer is empty and usable again. Twice is harmless. */
void ns_buf_free(ns_buf *b);

/* The bytes as a view that is never NULL. Borrowed until the next change. */
ns_bytes ns_buf_bytes(const ns_buf *b);

/*
** Growth of a plain C array: makes '*items' hold 'want' elements of 'size' bytes. When memory
** is short it returns false and changes nothing.
*/
bool ns_grow(void *items, size_t *cap, size_t want, size_t size);

/* ------------------------------------------------------------------- numbers */

enum { NS_NUMBER_SIZE = 32 }; /* bytes that the longest text takes, with its NUL */

/* Writes 'd' with the fewest digits, 15 to 17, that read back as 'd', and returns 'text'.
** Infinities and NaN, which JSON does not have, become "inf", "-inf" and "nan"; a writer of
** JSON asks before. */
char *ns_number(double d, char text[NS_NUMBER_SIZE]);

/* The text of a double as above; an integral value gets a mark of a fraction: "1.0", "1e300". */
char *ns_number_real(double d, char text[NS_NUMBER_SIZE]);

/* Adds the text of ns_number_real. */
void ns_buf_add_number(ns_buf *b, double d);

/* Writes a span of microseconds in seconds, as messages and SQL have it: "2", "0.25".
** Returns 'text'. */
char *ns_number_seconds(int64_t us, char text[NS_NUMBER_SIZE]);

/* -------------------------------------------------------------------- hashes */

/* A hash of bytes, the same in every process and on every machine: FNV-1a, 64 bits. Texts that
** differ by chance get different hashes; texts made to collide do not. */
uint64_t ns_hash(ns_bytes s);

/* The two halves of ns_hash, combined. */
uint32_t ns_hash_short(ns_bytes s);

/* --------------------------------------------------------------- time: clock.c */

/* The monotonic clock and random numbers, durations as text, and waiting for a socket. */

#define NS_SECOND INT64_C(1000000) /* in microseconds, like all durations */

/* Microseconds since some fixed point; never steps back. */
int64_t ns_mono_us(void);

/* Sleeps; returns early when a signal arrives. */
void ns_sleep_us(int64_t us);

/* A fast, not secret, per-process random number; reseeded after a fork. */
uint64_t ns_random(void);

/* 'us' times a random factor in [1 - share, 1 + share). */
int64_t ns_jitter(int64_t us, double share);

/* ----------------------------------------------------------------- durations */

/* Durations as people write them: "5m", "1h30m", "1.5s", "500ms", or a plain
** number of seconds. Pure functions on bytes. */

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

/* Reads a number of seconds: >= 0, finite. Errors: INVALID. */
ns_status ns_duration_seconds(double seconds, int64_t *us, ns_err *err);

/* ------------------------------------------------------------------- waiting */

/* A wait for a socket to have something to read, until it is interrupted or too late. */
typedef struct ns_await {
  bool (*interrupted)(void *arg); /* as the ns_config says, and the next three */
  void *arg;
  int interrupt_fd;
  int64_t end_by;
  int64_t limit;    /* µs; 0: no limit */
  int64_t asked_at; /* monotonic: when 'interrupted' was asked last */
} ns_await;

/* Errors: GONE, when nothing comes in time or it is interrupted. 'err' may be NULL. */
ns_status ns_await_input(ns_await *a, int fd, ns_err *err);

/* A descriptor for 'interrupt_fd' that another thread makes readable, for good, by ns_await_stop.
** Errors: 0, NOMEM. */
int ns_await_stop_open(ns_err *err);
void ns_await_stop(int fd);
void ns_await_stop_close(int fd); /* 0 is allowed */

/* ------------------------------------------------------------ log lines: log.c */

/*
** One event per line on stderr, as key=value (logfmt) or as JSON. Under systemd they are records of
** the journal, with fields, when stderr is the journal's.
**
** Invariant: a line is at most NS_LOG_LINE bytes and goes out in one write, so lines of several
** processes on one pipe never mix. Values are escaped, so one event is always one line,
** whatever a handler put into its error. Where lines are spooled, a slow or stopped reader
** costs no time: lines without room are dropped and counted. Without a spool, a stopped reader
** costs at most one short wait; then lines are dropped and counted until it reads again.
*/

#define NS_LOG_LINE 4096 /* bytes, with its newline; PIPE_BUF on Linux */

typedef enum ns_level { NS_LOG_DEBUG, NS_LOG_INFO, NS_LOG_WARN, NS_LOG_ERROR } ns_level;

/* One key and its value; strings are borrowed during the call. */
typedef struct ns_field {
  const char *key;
  bool number;
  int64_t i;  /* number */
  ns_bytes s; /* otherwise, or its text; absent: the field is left out */
} ns_field;

/* Makers of fields: an integer, a number as its text, bytes, a C string. */
ns_field ns_fi(const char *key, int64_t i);
ns_field ns_fn(const char *key, const char *number);
ns_field ns_fb(const char *key, ns_bytes s);
ns_field ns_fs(const char *key, const char *s);

#define NS_FIELDS(...)                                                                             \
  (const ns_field[]){__VA_ARGS__}, sizeof((const ns_field[]){__VA_ARGS__}) / sizeof(ns_field)

/* How lines look. NS_FORM_AUTO: as records of the journal where stderr is its own, else logfmt. */
typedef enum ns_form { NS_FORM_AUTO, NS_FORM_LOGFMT, NS_FORM_JSON, NS_FORM_JOURNAL } ns_form;

/*
** The form of lines, and the least level that is shown: 'level', unless the
** environment variable NIGHTSHIFT_LOG says debug, info, warn or error. Call
** it before threads start.
*/
void ns_log_setup(ns_form form, ns_level level);

/* The form that was found. */
ns_form ns_log_form(void);

/* The name of this machine, for lines. */
const char *ns_log_host(void);

/* From here on lines are written by a thread of their own. False: there is none, and
** they are written as before. Call it when the process forks no more. */
bool ns_log_spool(void);

/* Ends that thread when all is written. Lines that are left after three quarters of 'us' are
** dropped; the rest of the time is for the line with their number. */
void ns_log_flush(int64_t us);

/* µs since 1970 by the clock of this machine. For the lines, and for people who compare it with the
** server's; no decision may go by it. */
int64_t ns_log_wall(void);

/* On a terminal with a spool: the line that stays below all others, up to NS_LOG_FOOT bytes. It is
** left out while lines are being written, or while the terminal takes nothing. "": there is none
** any more; for that, lines that are being written are waited for, 0.1 s at most. */
#define NS_LOG_FOOT 128
void ns_log_foot(const char *text);

/* Whether a line of this level would be shown; for lines that cost work. */
bool ns_log_on(ns_level level);

/*
** Writes one line: ns_log(NS_LOG_INFO, "host.ready", NS_FIELDS(ns_fi("pid",
** pid))). 'fields' NULL and n == 0 for none. Any thread may call it.
*/
void ns_log(ns_level level, const char *event, const ns_field *fields, size_t n);

/* The line ns_log would write, with its newline, into 'line'; its length. A record of the journal
** has NS_LOG_UNIT between its fields. */
#define NS_LOG_UNIT '\x1f'
size_t ns_log_format(char line[NS_LOG_LINE], ns_form form, int64_t wall_us, ns_level level,
                     const char *event, const ns_field *fields, size_t n);

/* An instant, µs since 1970, as lines have it: RFC 3339, UTC. */
#define NS_LOG_TIME 40
void ns_log_time(char out[NS_LOG_TIME], int64_t wall_us);

/* The text before the first newline; absent stays absent. */
ns_bytes ns_first_line(ns_bytes text);

/* ----------------------------------------------------------- the spool: spool.c */

/*
** The spool of a process: a thread of its own writes the lines. A child that is forked has none.
**
** Invariant: a line that finds no room is dropped and counted, and so are all after it until
** half of the room is free again. Then one line reports their number. Lines go out whole, as
** many in one write as a pipe takes without mixing them with lines of other processes.
** (Asserted, except for the time limits: spec/host/log_spec.lua has a reader that stops.)
*/

/* Starts the thread, with all signals blocked. 'put' writes whole lines, NS_LOG_LINE bytes at most,
** however long that takes; false: they cannot be written. 'notice' makes the line that says how
** many were dropped, and gives its length. False: there is no thread. */
bool ns_spool_start(bool (*put)(const char *lines, size_t n),
                    size_t (*notice)(char line[NS_LOG_LINE], int64_t dropped));

/* Adds a line of 'n' bytes with its newline. False: no thread runs, nothing is done. */
bool ns_spool_add(const char *text, size_t n);

/* Waits until all is written, for 'us' at most; no line is taken any more then. In the last
** quarter the waiting lines are dropped, and the thread reports their number after its current
** chunk. */
void ns_spool_stop(int64_t us);

#endif
