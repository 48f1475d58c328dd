/*
** The database handle as Lua sees it: the userdata "nightshift.db", and the
** files of verbs on it. Internal to the binding.
*/
#ifndef NSL_DB_H
#define NSL_DB_H

#include <lauxlib.h>

#include "nsl_conv.h"
#include "nsl_hooks.h"

#define NSL_DB "nightshift.db"

typedef struct nsl_db {
  ns_db *db;       /* NULL: never opened, or closed */
  int64_t max_json; /* what a payload may grow to here; the core has the word */
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

#define NSL_CLAIM_MAX 100000 /* jobs of one claim; far beyond what pays */

/* Verbs of a handle, by the file that has them. */
extern const luaL_Reg nsl_dbverbs[];      /* nsl_db.c */
extern const luaL_Reg nsl_adminverbs[];   /* nsl_admin.c */
extern const luaL_Reg nsl_pushverbs[];    /* nsl_push.c */
extern const luaL_Reg nsl_claimverbs[];   /* nsl_claim.c */
extern const luaL_Reg nsl_verdictverbs[]; /* nsl_verdict.c */
extern const luaL_Reg nsl_adoptverbs[];   /* nsl_adopt.c */
extern const luaL_Reg nsl_jobverbs[];     /* nsl_jobs.c */
extern const luaL_Reg nsl_slotverbs[];    /* nsl_slot.c */
extern const luaL_Reg nsl_sqlverbs[];     /* nsl_sql.c */

extern const luaL_Reg nsl_dbmeta[]; /* its metamethods; __close is the verb close, too */

/* Runs the verb that is the upvalue; what a hook raised meanwhile is raised behind it. */
int nsl_runverb(lua_State *L);

/* Makes the handle's metatable, in nsl_verbs.c; part of opening the module. [-0, +0, m] */
void nsl_opendb(lua_State *L);

/* The Lua function open. */
int nsl_lib_open(lua_State *L);

#endif
