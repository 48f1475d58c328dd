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
#ifndef NS_ERR_H
#define NS_ERR_H

#include "nightshift_types.h"

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

#include <stdio.h>
#include <stdlib.h>

#define ns_assert(x)                                                                               \
  ((x) ? (void)0                                                                                   \
       : (fprintf(stderr, "%s:%d: %s: invariant broken: %s\n", __FILE__, __LINE__, __func__, #x),  \
          abort()))

#else

#define ns_assert(x) ((void)(0 && (x))) /* compiled, so that it stays true to the code */

#endif

#endif
