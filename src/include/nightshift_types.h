/*
** The types that every header of Nightshift uses: bytes, statuses and the error record.
**
** Invariant: nothing in here allocates, and nothing has to be freed but by the
** function that the owner's comment names.
*/
#ifndef NIGHTSHIFT_TYPES_H
#define NIGHTSHIFT_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ----------------------------------------------------------------- bytes */

/* A borrowed view of bytes, which may contain NUL. p == NULL: absent (SQL NULL). */
typedef struct ns_bytes {
  const char *p;
  size_t n;
} ns_bytes;

/* The view of a C string; NULL gives an absent one. */
ns_bytes ns_str(const char *s);

/* Memory that grows. Callers of the library only free it, as part of the structure that holds
** it. */
typedef struct ns_buf {
  char *p; /* owned; NULL while empty */
  size_t n, cap;
  bool oom; /* an addition was lost */
} ns_buf;

/* ---------------------------------------------------------------- errors */

/* enumerator, stable code that Lua and the command line show, meaning */
#define NS_ERRORS(X)                                                      \
  X(ESTALE, "STALE", "the claim is lost; another claim settles this job") \
  X(EGONE, "GONE", "the server is unreachable; nothing is known written") \
  X(EBUSY, "BUSY", "retries are exhausted; try again later")              \
  X(EDENIED, "DENIED", "the server refuses this user")                    \
  X(ESCHEMA, "SCHEMA", "tables missing, or of an older or newer version") \
  X(ESERVER, "SERVER", "not a MariaDB 10.6, or a second Galera node")     \
  X(EINVALID, "INVALID", "a bad value")                                   \
  X(ETOOBIG, "TOO_BIG", "a value over its size limit")                    \
  X(EDUPLICATE, "DUPLICATE", "the unique key is taken")                   \
  X(ENOTFOUND, "NOT_FOUND", "no such job or queue")                       \
  X(ESTATE, "STATE", "the verb is not allowed in the job's state")        \
  X(EFULL, "FULL", "a limit of the queue is reached")                     \
  X(ENOMEM, "NOMEM", "out of memory")                                     \
  X(ESQL, "SQL", "the server refused a statement of the caller")

typedef enum ns_status {
  NS_OK = 0,
#define NS_ERR_ENUM(name, code, meaning) NS_##name,
  NS_ERRORS(NS_ERR_ENUM)
#undef NS_ERR_ENUM
} ns_status;

/* The record of one failure. The record has a fixed buffer, so the failure path never allocates. */
typedef struct ns_err {
  ns_status status;
  unsigned sqlerr;   /* MariaDB error number; 0: not from the server */
  int64_t job;       /* DUPLICATE: the live job that has the key; 0: it is not known */
  char message[512]; /* what was expected, what came, what to do; always terminated */
} ns_err;

/* The stable code of a status, e.g. "STALE"; "OK" for NS_OK. */
const char *ns_code(ns_status status);

#ifdef __cplusplus
}
#endif

#endif
