/*
** The verbs of nightshift.shared: a dict and the latch that guards it.
**
** Invariant: each verb is one change of the dict under the latch, so a process
** that dies in it has done it or has not. Keys are 1 to 255 bytes. (Only the second is asserted:
** for the first, spec/unit kills processes at each store.)
** Every verb may fail with BUSY (see ns_latch_take) and INVALID (the key).
*/
#ifndef NS_SHARED_H
#define NS_SHARED_H

#include "ns_dict.h"
#include "ns_latch.h"

typedef struct ns_shared {
  ns_latch latch;
  ns_dict *dict;
  size_t size; /* bytes it was made with, for messages */
} ns_shared;

/* Makes it in zeroed memory; false: see ns_latch_init. */
bool ns_shared_init(ns_shared *s, void *memory, size_t size, bool evict);

/* The value, type NONE when there is none. Bytes are added to 'bytes' and
** item->s points there. Errors: NOMEM. */
ns_status ns_shared_get(ns_shared *s, ns_bytes key, ns_item *item,
                        ns_buf *bytes, ns_err *err);

/* Sets a value; with 'absent' only if there is none, and '*done' (may be NULL)
** tells. Errors: FULL, TOO_BIG. */
ns_status ns_shared_set(ns_shared *s, ns_bytes key, const ns_item *item,
                        bool absent, bool *done, ns_err *err);

/* Adds 'by' to the number of the key, or to 'init' when there is none, and
** fills '*sum'. An int and an int give an int. What expires still does.
** Errors: FULL, INVALID for another type or beyond 64 bits. */
ns_status ns_shared_incr(ns_shared *s, ns_bytes key, const ns_item *by,
                         const ns_item *init, ns_item *sum, ns_err *err);

/* Sets the value to 'now' if it is 'was'; NONE stands for no value on either
** side. 1 is 1.0, JSON is nothing. What expires still does.
** Errors: FULL, TOO_BIG. */
ns_status ns_shared_cas(ns_shared *s, ns_bytes key, const ns_item *was,
                        const ns_item *now, bool *done, ns_err *err);

ns_status ns_shared_delete(ns_shared *s, ns_bytes key, bool *done,
                           ns_err *err);

/* µs until the key expires; -1: never; '*there' false: there is no such key. */
ns_status ns_shared_ttl(ns_shared *s, ns_bytes key, int64_t *us, bool *there,
                        ns_err *err);

/* Adds the keys that begin with 'prefix' to 'out', each behind a byte that is
** its length; in no order. Errors: NOMEM. */
ns_status ns_shared_keys(ns_shared *s, ns_bytes prefix, ns_buf *out,
                         ns_err *err);

#endif
