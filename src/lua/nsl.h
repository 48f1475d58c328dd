/*
** The interface of the binding to the rest of the program: the module itself, JSON
** to and from Lua values, and job tables. The host's workers use exactly this.
**
** Invariant: memory that is not Lua's lives in a box (nsl_box), never in a C frame. Any call
** that takes a lua_State may raise and so not return. (An assert does not see frames: spec/oom
** makes every allocation fail, under AddressSanitizer.) Stack effects are noted as in the Lua
** manual: [-popped, +pushed, errors], 'm' raises only when memory is short, 'v' raises on bad
** arguments.
*/
#ifndef NSL_H
#define NSL_H

#include <lua.h>

#include "nightshift_host.h"

/* The server's own JSON functions accept no deeper nesting than this, so a
** deeper value could be encoded but never stored. */
#define NSL_JSON_DEPTH 31
/* Encoded text without a limit of its own ends here. */
#define NSL_JSON_MAX (INT64_C(1) << 30)

/* Opens the module nightshift.core; [-0, +1, m]. */
__attribute__((visibility("default"))) int
luaopen_nightshift_core(lua_State *L);

/* ------------------------------------------------------------------ boxes */

/*
** Pushes a box of 'size' zeroed bytes and returns their address. When the box
** is collected, or nsl_unbox is called, 'release' runs on them, once. The
** module must have been opened in this state. [-0, +1, m]
*/
void *nsl_box(lua_State *L, size_t size, void (*release)(void *));

/* Releases now the memory that a box holds; 'p' came from nsl_box and is dead after. */
void nsl_unbox(void *p);

/* A box with an empty buffer, freed with it. [-0, +1, m] */
ns_buf *nsl_newbuf(lua_State *L);

/* ------------------------------------------------------------------- JSON */

/*
** Appends the JSON text of the value at 'idx' to 'out', which must live in a
** box. 'what' names the value in messages ("payload.list[3]: cannot encode a
** function"). Tables are read raw; nil at the top is null. On failure 'out'
** is as it was. [-0, +0, m]
** Errors: INVALID (with the path), TOO_BIG (over 'max' bytes), NOMEM.
*/
ns_status nsl_encode(lua_State *L, int idx, const char *what, int64_t max,
                     ns_buf *out, ns_err *err);

/*
** Pushes the value of one JSON text; pushes nothing on failure. null becomes
** the null of the module, also at the top; arrays carry the array metatable.
** 'text' must stay where it is although Lua may collect meanwhile.
** [-0, +(0|1), m] Errors: INVALID (with line and column), NOMEM.
*/
ns_status nsl_decode(lua_State *L, ns_bytes text, ns_err *err);

/* ------------------------------------------------------------------- jobs */

/*
** Pushes the table of a claimed job. 'job' borrows from memory that outlives
** the call, a box for instance. A payload that is not JSON leaves 'payload'
** nil and says why in 'payload_error'. [-0, +1, m]
*/
void nsl_pushjob(lua_State *L, const ns_job *job);

/* Jobs to push, with everything they point to. */
typedef struct nsl_batch {
  ns_push *jobs; /* owned */
  size_t n, cap;
  ns_buf bytes;
} nsl_batch;

/* A verdict read from Lua; verdict.children is batch.jobs. */
typedef struct nsl_verdict {
  ns_verdict verdict;
  nsl_batch batch;
} nsl_verdict;

/*
** Pushes a box and reads the verdict table at 'idx' into it: id, run, lease,
** kind, result, error, state, delay, log, children. JSON texts are at most
** 'max' bytes. The box is self-contained: it borrows nothing from the table.
** Returns NULL with '*err' filled for a bad value; raises for a wrong type or
** an unknown key. [-0, +1, v] Errors: INVALID, TOO_BIG, NOMEM.
*/
nsl_verdict *nsl_toverdict(lua_State *L, int idx, int64_t max, ns_err *err);

/* --------------------------------------------------------------- failures */

/* Pushes nil, message, code and returns 3: `return nsl_fail(L, &err);` */
int nsl_fail(lua_State *L, const ns_err *err);

#endif
