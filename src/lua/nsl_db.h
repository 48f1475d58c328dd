/*
** The database handle as Lua sees it: the userdata "nightshift.db", and the
** files of verbs on it. Internal to the binding.
*/
#ifndef NSL_DB_H
#define NSL_DB_H

#include <lauxlib.h>
#include <stdbool.h>

#include "nsl_conv.h"

/* ------------------------------------------------- hooks in waits: nsl_hooks.c */

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

#define NSL_CLAIM_MAX 100000 /* jobs of one claim; far beyond any use */

/* Verbs of a handle, by the file that has them. */
extern const luaL_Reg nsl_dbverbs[];      /* nsl_db.c */
extern const luaL_Reg nsl_adminverbs[];   /* nsl_admin.c */
extern const luaL_Reg nsl_pushverbs[];    /* nsl_push.c */
extern const luaL_Reg nsl_claimverbs[];   /* nsl_claim.c */
extern const luaL_Reg nsl_verdictverbs[]; /* nsl_verdict.c */
extern const luaL_Reg nsl_jobverbs[];     /* nsl_jobs.c */
extern const luaL_Reg nsl_slotverbs[];    /* nsl_slot.c */
extern const luaL_Reg nsl_sqlverbs[];     /* nsl_sql.c */

extern const luaL_Reg nsl_dbmeta[]; /* its metamethods; __close is the verb close, too */

/* Runs the verb in the upvalue; an error that a hook raised meanwhile is raised behind it. */
int nsl_runverb(lua_State *L);

/* The Lua function open. */
int nsl_lib_open(lua_State *L);

#endif
