/*
** Jobs that are to be pushed, on their way from Lua tables to the core. A verdict
** has some, too: the children.
**
** Invariant: until it is finished the bytes of a batch are views (nsl_keep).
*/
#ifndef NSL_PUSH_H
#define NSL_PUSH_H

#include "nsl_conv.h"

/* Reads the list on top; 'noun' names an item in messages: "job", "child". A JSON
** text has at most 'max' bytes. Errors: INVALID, TOO_BIG, NOMEM. [-0, +0, v] */
ns_status nsl_batch_read(lua_State *L, nsl_batch *b, const char *noun,
                         int64_t max, ns_err *err);

/* Encodes the value on top into the batch; '*out' is a view. [-1, +0, m] */
ns_status nsl_batch_json(lua_State *L, nsl_batch *b, const char *what,
                         int64_t max, ns_bytes *out, ns_err *err);

/* The batch is complete: the views of its jobs become the bytes. Errors: NOMEM. */
ns_status nsl_batch_finish(nsl_batch *b, ns_err *err);

void nsl_batch_free(void *batch); /* of a box, for instance */

#endif
