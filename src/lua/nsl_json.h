/*
** JSON as Lua sees it: null, the mark of arrays, the functions of the module. The
** work on texts is declared in nsl.h and done in nsl_encode.c and nsl_decode.c.
*/
#ifndef NSL_JSON_H
#define NSL_JSON_H

#include "nsl_conv.h"

/* Metatable of decoded arrays and of core.array. */
#define NSL_ARRAY "nightshift.array"

typedef enum nsl_mark { NSL_MARK_NONE, NSL_MARK_ARRAY, NSL_MARK_OBJECT } nsl_mark;

/* What __jsontype in the metatable of the table at 't' says. [-0, +0, m] */
nsl_mark nsl_getmark(lua_State *L, int t);

/* Makes the array metatable and lets null print as "null". [-0, +0, m] */
void nsl_openjson(lua_State *L);

/* The Lua functions encode, decode and array. */
int nsl_lib_encode(lua_State *L);
int nsl_lib_decode(lua_State *L);
int nsl_lib_array(lua_State *L);

#endif
