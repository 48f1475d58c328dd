/*
** The error record shared by every layer.
**
** Core functions return an ns_status; on anything but NS_OK the caller's
** ns_err holds the same status, the server's error number where there was
** one, and one sentence for a person: what was expected, what came, what to
** do. The record has a fixed buffer, so the failure path never allocates.
*/
#ifndef NS_ERR_H
#define NS_ERR_H

#include <stdint.h>

/* enumerator, stable code that Lua and the command line show, meaning */
#define NS_ERRORS(X)                                                          \
  X(ESTALE, "STALE", "the claim is lost; somebody else settles this job")      \
  X(EGONE, "GONE", "the server is unreachable; nothing is known written")      \
  X(EBUSY, "BUSY", "retries are exhausted; try again later")                   \
  X(EDENIED, "DENIED", "the server refuses this user")                         \
  X(ESCHEMA, "SCHEMA", "tables missing, or of an older or newer version")      \
  X(ESERVER, "SERVER", "not a MariaDB 10.6 or later, or a Galera node")        \
  X(EINVALID, "INVALID", "a bad value")                                        \
  X(ETOOBIG, "TOO_BIG", "a value over its size limit")                         \
  X(EDUPLICATE, "DUPLICATE", "the unique key is taken")                        \
  X(ENOTFOUND, "NOT_FOUND", "no such job or queue")                            \
  X(ESTATE, "STATE", "the verb is not allowed in the job's state")             \
  X(EFULL, "FULL", "a limit of the queue is reached")                          \
  X(ENOMEM, "NOMEM", "out of memory")                                          \
  X(ESQL, "SQL", "the server refused a statement of the caller")

typedef enum ns_status {
  NS_OK = 0,
#define NS_ERR_ENUM(name, code, meaning) NS_##name,
  NS_ERRORS(NS_ERR_ENUM)
#undef NS_ERR_ENUM
} ns_status;

typedef struct ns_err {
  ns_status status;
  unsigned sqlerr; /* MariaDB error number; 0: not from the server */
  int64_t job;     /* DUPLICATE: the live job that has the key; 0: it is not known */
  char message[512]; /* always terminated */
} ns_err;

/* Fills 'err' (may be NULL) and returns 'status': `return ns_fail(…);` */
ns_status ns_fail(ns_err *err, ns_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The same for memory that has run out. */
ns_status ns_no_memory(ns_err *err);

/* Puts "context: " in front of the message; returns err->status. */
ns_status ns_err_context(ns_err *err, const char *context);

/* Empties the record. */
void ns_err_clear(ns_err *err);

/* The stable code of a status, e.g. "STALE"; "OK" for NS_OK. */
const char *ns_code(ns_status status);

#endif
