/*
** Log lines: one event per line on stderr, as key=value (logfmt) or as JSON. Under systemd they
** are records of the journal, with fields, when stderr is the journal's.
**
** Invariant: a line is at most NS_LOG_LINE bytes and goes out in one write, so lines of several
** processes on one pipe never mix. Values are escaped, so one event is always one line,
** whatever a handler put into its error. Where lines are spooled, a slow or stopped reader
** costs no time: lines without room are dropped and counted. Without a spool, a stopped reader
** costs at most one short wait; then lines are dropped and counted until it reads again.
*/
#ifndef NS_LOG_H
#define NS_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "buf.h"

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
