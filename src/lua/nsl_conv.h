/*
** Between Lua values and C: option tables, exact integers, boxes, results; jobs that are to be
** pushed; JSON as Lua sees it.
** The binding's own tools; the host reads its configuration with them too.
*/
#ifndef NSL_CONV_H
#define NSL_CONV_H

#include "nsl.h"

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

/* --------------------------------------------- JSON as Lua sees it: nsl_decode.c */

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

#endif
