/*
** The binding. First its interface to the program, which the workers of the host use: the
** module, JSON to and from Lua values, and job tables. Then the functions that its own files use
** of each other. The host reads its configuration with the tools of nsl_conv.c.
**
** Invariant: memory that is not Lua's lives in a box (nsl_box), never in a C frame. Any call
** that takes a lua_State may raise and so not return. (An assert does not see frames: spec/oom
** makes every allocation fail, under AddressSanitizer.) Stack effects are noted as in the Lua
** manual: [-popped, +pushed, errors], 'm' raises only when memory is short, 'v' raises on bad
** arguments.
*/
#ifndef NSL_H
#define NSL_H

#include <lauxlib.h>
#include <lua.h>
#include <stdbool.h>

#include "nightshift_admin.h"
#include "shared/shared.h"

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

/* ---------------------------------------------- Lua values and C: nsl_conv.c */

/* Option tables, exact integers, boxes, results; jobs that are to be pushed; JSON as Lua sees
** it. */

/* How a field of an option table is read, and the type it is stored as. */
typedef enum nsl_kind {
  NSL_INT,   /* int64_t; floats with an integral value are integers */
  NSL_BOOL,  /* bool */
  NSL_CSTR,  /* const char *, borrowed; without NUL bytes */
  NSL_BYTES, /* ns_bytes, borrowed */
  NSL_TABLE, /* only checked; the caller reads it with nsl_rawfield */
  NSL_ANY    /* any value, read by the caller with nsl_rawfield */
} nsl_kind;

typedef struct nsl_field {
  const char *name;
  nsl_kind kind;
  size_t offset; /* into the struct that is filled */
} nsl_field;

/*
** Reads the table at 'idx' into '*into', raw. 'fields' ends with a NULL name; fields that the
** table lacks keep their value in '*into'. 'what' goes in front of messages. Strings are
** borrowed from the table: use or copy them before Lua allocates again. Raises for an unknown
** key or a wrong type; returns INVALID for a NUL byte in a C string. [-0, +0, v]
*/
ns_status nsl_readfields(lua_State *L, int idx, const nsl_field *fields,
                         const char *what, void *into, ns_err *err);

/* Pushes field 'name' of the table at 'idx', raw; its type. [-0, +1, m] */
int nsl_rawfield(lua_State *L, int idx, const char *name);

/* t[name] = value for the table on top. [-0, +0, m] */
void nsl_setint(lua_State *L, const char *name, int64_t i);
/* Microseconds of the core, which are seconds in Lua: a span, or an instant since 1970. */
void nsl_setseconds(lua_State *L, const char *name, int64_t us);
void nsl_setbytes(lua_State *L, const char *name, ns_bytes s); /* absent: nil */
void nsl_setbool(lua_State *L, const char *name, bool b);
void nsl_setpositive(lua_State *L, const char *name, int64_t i); /* 0: nil */
/* The value of a JSON text; absent leaves it nil, and null does, unless 'nulls'
** mean something. A text that is not JSON becomes t[name .. "_error"] = why. */
void nsl_setjson(lua_State *L, const char *name, ns_bytes text, bool nulls);

/* The bytes of string argument 'arg', NUL and all. [-0, +0, v] */
ns_bytes nsl_checkbytes(lua_State *L, int arg);

/* Reads nil, null, a boolean, number or string as a parameter; a text is Lua's. Raises else. */
void nsl_readparam(lua_State *L, int arg, ns_value *v);
/* Bytes of an argument; absent for none, nil. [-0, +0, v] */
ns_bytes nsl_optbytes(lua_State *L, int arg);

/* µs from argument 'arg', 0 for none, nil. More than the longest duration is
** cut to that, so that an instant plus it is an instant. [-0, +0, v] */
int64_t nsl_optmicros(lua_State *L, int arg);

/* Argument 'arg' as microseconds: seconds, or a text like "5m". Raises for
** other types. [-0, +0, v] Errors: INVALID. */
ns_status nsl_toduration(lua_State *L, int arg, int64_t *us, ns_err *err);

/*
** Bytes in a buffer that still grows, and so moves. Until nsl_kept a view of them holds their
** offset plus one in place of a pointer. Absent bytes stay absent.
*/
ns_bytes nsl_keep(ns_buf *b, ns_bytes s); /* appends a copy; its view */
ns_bytes nsl_view(size_t at, size_t n);   /* of the bytes at offset 'at' */
ns_bytes nsl_kept(const ns_buf *b, ns_bytes view);

/* True, or nil, message, code; the number of results. [-0, +(1|3), m] */
int nsl_result(lua_State *L, ns_status st, const ns_err *err);

/* Makes the box metatable; part of opening the module. [-0, +0, m] */
void nsl_openboxes(lua_State *L);

/* ---------------------------------------------------- jobs to push: nsl_push.c */

/* On their way from Lua tables to the core. A verdict has some, too: the children. Until it is
** finished the bytes of a batch are views (nsl_keep). */

/* Reads the list on top; 'noun' names an item in messages: "job", "child". A JSON
** text has at most 'max' bytes. Errors: INVALID, TOO_BIG, NOMEM. [-0, +0, v] */
ns_status nsl_batch_read(lua_State *L, nsl_batch *b, const char *noun, int64_t max, ns_err *err);

/* Encodes the value on top into the batch; '*out' is a view. [-1, +0, m] */
ns_status nsl_batch_json(lua_State *L, nsl_batch *b, const char *what, int64_t max, ns_bytes *out,
                         ns_err *err);

/* The batch is complete: the views of its jobs become the bytes. Errors: NOMEM. */
ns_status nsl_batch_finish(nsl_batch *b, ns_err *err);

void nsl_batch_free(void *batch); /* of a box, for instance */

/* ----------------------------------------------- JSON as Lua sees it: nsl_conv.c */

/* Metatable of decoded arrays and of core.array. */
#define NSL_ARRAY "nightshift.array"

typedef enum nsl_mark { NSL_MARK_NONE, NSL_MARK_ARRAY, NSL_MARK_OBJECT } nsl_mark;

/* The __jsontype in the metatable of the table at 't'. [-0, +0, m] */
nsl_mark nsl_getmark(lua_State *L, int t);

/* Makes the array metatable and lets null print as "null". [-0, +0, m] */
void nsl_openjson(lua_State *L);

/* The Lua functions encode, decode and array. */
int nsl_lib_encode(lua_State *L);
int nsl_lib_decode(lua_State *L);
int nsl_lib_array(lua_State *L);

/* ------------------------------------------------- hooks in waits: nsl_db.c */

/* Debug hooks while a verb waits: for the server, or for a lock. Ctrl-C in the
** stand-alone interpreter is such a hook. */

/* The state of the one verb at a time that may wait. */
typedef struct nsl_wait {
  lua_State *L; /* the coroutine that runs the verb; NULL: no hooks run */
  bool inside;  /* hooks run: no other verb may use the waiting handle */
  bool stopped; /* a hook has raised an error, which nsl_raise throws */
} nsl_wait;

/*
** Runs the hooks of the coroutine, or else of the main one, for some instructions: they
** interrupt a function of Lua without effect. True: one has raised an error, and the wait is to
** end. 'wait' is an nsl_wait. Raises nothing.
*/
bool nsl_hooks(void *wait);

/* Throws the error that a hook has raised; returns when none has. [-0, +0, v] */
void nsl_raise(lua_State *L, nsl_wait *w);

/* Part of opening the module. [-0, +0, m] */
void nsl_openhooks(lua_State *L);

/* -------------------------------------------------------- the handle: nsl_db.c */

#define NSL_DB "nightshift.db"

typedef struct nsl_db {
  ns_db *db;       /* NULL: never opened, or closed */
  int64_t max_json; /* the limit of a payload here; the core decides */
  nsl_wait wait;   /* of the verb that runs */
} nsl_db;

/*
** The open handle in argument 1; raises for anything else. A verb calls it
** first, and again after anything that may have let the collector run: a
** finaliser is free to close the handle. [-0, +0, v]
*/
ns_db *nsl_checkdb(lua_State *L);

/* Bytes that a JSON text may have on the handle in argument 1. */
int64_t nsl_maxjson(lua_State *L);

/* Keeps the value at 'idx' as long as the handle in argument 1 is there, or until another one has
** its key. [-0, +0, m] */
void nsl_anchor(lua_State *L, int idx, int64_t key);

#define NSL_CLAIM_MAX 100000 /* jobs of one claim; far beyond any use */

/* Verbs of a handle, by the file that has them. */
extern const luaL_Reg nsl_dbverbs[];      /* nsl_db.c */
extern const luaL_Reg nsl_adminverbs[];   /* nsl_admin.c */
extern const luaL_Reg nsl_pushverbs[];    /* nsl_push.c */
extern const luaL_Reg nsl_claimverbs[];   /* nsl_claim.c */
extern const luaL_Reg nsl_jobverbs[];     /* nsl_jobs.c */
extern const luaL_Reg nsl_slotverbs[];    /* nsl_shared.c */
extern const luaL_Reg nsl_sqlverbs[];     /* nsl_sql.c */

extern const luaL_Reg nsl_dbmeta[]; /* its metamethods; __close is the verb close, too */

/* Runs the verb in the upvalue; an error that a hook raised meanwhile is raised behind it. */
int nsl_runverb(lua_State *L);

/* The Lua function open. */
int nsl_lib_open(lua_State *L);

/* ----------------------------------------------- shared memory: nsl_shared.c */

/* nightshift.shared as a part of the module, the locks beneath mutexes and semaphores, and the
** memory that both share. */

/* The region; NULL: nil, message and code are pushed. [-0, +(0|3), m] */
ns_region *nsl_region(lua_State *L);

/* Pushes the table with the verbs of nightshift.shared. [-0, +1, m] */
void nsl_pushshared(lua_State *L);

/* The Lua functions lock, unlock and unlock_all. */
int nsl_lib_lock(lua_State *L);
int nsl_lib_unlock(lua_State *L);
int nsl_lib_unlock_all(lua_State *L);

#endif
