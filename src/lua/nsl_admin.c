/*
** The verbs on the database as a whole: queues, ids, schema, history, holders,
** listeners, time.
*/
#include "nsl.h"

#include <stdio.h>
#include <stdlib.h>

#include "base.h"

/* ----------------------------------------------------------------- queues */

typedef struct queues {
  ns_queue_row *rows; /* malloc'd by the core */
  size_t n;
} queues;

static void free_queues(void *p) {
  free(((queues *)p)->rows);
}

/***
Every queue, by id.
@function db:queues
@treturn {{id=integer,name=string,paused=boolean,removed=boolean,limited=boolean},...}
*/
static int db_queues(lua_State *L) {
  ns_err err;
  queues *q;
  nsl_checkdb(L);
  q = nsl_box(L, sizeof *q, free_queues);
  if (ns_queues(nsl_checkdb(L), &q->rows, &q->n, &err) != NS_OK)
    return nsl_fail(L, &err);
  lua_createtable(L, (int)q->n, 0);
  for (size_t i = 0; i < q->n; i++) {
    lua_createtable(L, 0, 5);
    nsl_setint(L, "id", q->rows[i].id);
    nsl_setbytes(L, "name", ns_str(q->rows[i].name));
    nsl_setbool(L, "paused", q->rows[i].paused);
    nsl_setbool(L, "removed", q->rows[i].removed);
    nsl_setbool(L, "limited", q->rows[i].limited || q->rows[i].bounded);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  nsl_unbox(q);
  return 1;
}

/***
The id of a queue.
@function db:queue_id
@tparam string name
@tparam[opt=false] boolean create make it when it is new
@return id, or nil, message, code `NOT_FOUND`, `INVALID`
*/
static int db_queue_id(lua_State *L) {
  ns_err err;
  int64_t id;
  ns_db *db = nsl_checkdb(L);
  ns_bytes name = nsl_checkbytes(L, 2);
  if (ns_queue_id(db, name, lua_toboolean(L, 3), &id, &err) != NS_OK)
    return nsl_fail(L, &err);
  lua_pushinteger(L, id);
  return 1;
}

/***
Stops or restarts claims from a queue; pushes go on.
@function db:pause
@tparam string queue
@tparam boolean paused
@return true, or nil, message, code `NOT_FOUND`
*/
static int db_pause(lua_State *L) {
  ns_err err;
  ns_db *db = nsl_checkdb(L);
  ns_bytes queue = nsl_checkbytes(L, 2);
  luaL_checktype(L, 3, LUA_TBOOLEAN);
  return nsl_result(L, ns_pause(db, queue, lua_toboolean(L, 3), &err), &err);
}

/* ------------------------------------------ ids, tables, history and clock */

/***
Fresh job ids, for jobs that are pushed later.
@function db:take_ids
@tparam integer n 1 to 10,000
@treturn {integer,...}
*/
static int db_take_ids(lua_State *L) {
  ns_err err;
  int64_t *ids;
  lua_Integer n = luaL_checkinteger(L, 2);
  nsl_checkdb(L);
  luaL_argcheck(L, n >= 1 && n <= 10000, 2, "1 to 10000 expected");
  ids = nsl_box(L, (size_t)n * sizeof *ids, NULL);
  if (ns_take_ids(nsl_checkdb(L), ids, (size_t)n, &err) != NS_OK)
    return nsl_fail(L, &err);
  lua_createtable(L, (int)n, 0);
  for (lua_Integer i = 0; i < n; i++) {
    lua_pushinteger(L, ids[i]);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/***
Creates or upgrades the tables, and makes procedures and views anew. Safe to
repeat.
@function db:migrate
@return the version found before (0: none), or nil, message, code
*/
static int db_migrate(lua_State *L) {
  ns_err err;
  int from;
  if (ns_migrate(nsl_checkdb(L), &from, &err) != NS_OK)
    return nsl_fail(L, &err);
  lua_pushinteger(L, from);
  return 1;
}

/* What is raised in the function, at index 5, does not stop a prune. */
static void tell_deleted(void *arg, int64_t deleted) {
  lua_State *L = arg;
  lua_pushvalue(L, 5);
  lua_pushinteger(L, deleted);
  if (lua_pcall(L, 1, 0, 0) != LUA_OK)
    lua_pop(L, 1);
}

/***
Deletes old history in small batches.
@function db:prune
@tparam integer keep_done µs that done jobs are kept; negative: for ever; math.mininteger: as the
rules of retention say
@tparam integer keep_dead the same for dead and cancelled ones
@tparam[opt=0] integer max_batches 0: until nothing is left
@tparam[opt] function told called behind each batch with the number so far
@return rows deleted, or nil, message, code
*/
static int db_prune(lua_State *L) {
  ns_err err;
  int64_t deleted = 0;
  ns_db *db = nsl_checkdb(L);
  int64_t done = luaL_checkinteger(L, 2);
  int64_t dead = luaL_checkinteger(L, 3);
  lua_Integer batches = luaL_optinteger(L, 4, 0);
  ns_status st;
  luaL_argcheck(L, batches >= 0, 4, "must not be negative");
  ns_prune_tell(db, lua_isfunction(L, 5) ? tell_deleted : NULL, L);
  st = ns_prune(db, done, dead, (size_t)batches, &deleted, &err);
  ns_prune_tell(db, NULL, NULL);
  if (st != NS_OK)
    return nsl_fail(L, &err);
  lua_pushinteger(L, deleted);
  return 1;
}

/***
Deletes the history of a finished job and of all below it.
@function db:prune_tree
@tparam integer id
@return rows deleted, or nil, message, code
*/
static int db_prune_tree(lua_State *L) {
  ns_err err;
  int64_t deleted = 0;
  ns_db *db = nsl_checkdb(L);
  if (ns_prune_tree(db, luaL_checkinteger(L, 2), &deleted, &err) != NS_OK)
    return nsl_fail(L, &err);
  lua_pushinteger(L, deleted);
  return 1;
}

/***
Whether this user may run a statement of sql/query; it is prepared only.
@function db:may
@tparam string name
@return true, or nil, message, code `DENIED`, `NOT_FOUND`
*/
static int db_may(lua_State *L) {
  ns_err err;
  ns_db *db = nsl_checkdb(L);
  return nsl_result(L, ns_may(db, luaL_checkstring(L, 2), &err), &err);
}

/***
Microseconds since 1970, UTC, by the server's clock.
@function db:now
@return integer, or nil, message, code
*/
static int db_now(lua_State *L) {
  ns_err err;
  int64_t now;
  if (ns_server_now(nsl_checkdb(L), &now, &err) != NS_OK)
    return nsl_fail(L, &err);
  lua_pushinteger(L, now);
  return 1;
}

/* --------------------------------------------------- holders and listeners */

/* Jobs that did come back are reported all the same. */
static int look_failed(lua_State *L, const ns_rescued *all, ns_err *err) {
  char text[64];
  snprintf(text, sizeof text, "%lld jobs came back, others did not",
           (long long)all->jobs);
  if (all->jobs > 0)
    ns_err_context(err, text);
  return nsl_fail(L, err);
}

/***
Looks at all other holders and gives back claims of dead ones.
@function db:look
@tparam[opt=0] integer patience µs: looks again as long as the grace of a holder that seems dead
ends within it
@treturn {holders=integer,jobs=integer,poison=integer}
*/
static int db_look(lua_State *L) {
  ns_err err;
  ns_status st;
  ns_rescued all = {0};
  ns_rescued sum;
  int64_t again_in = 0;
  ns_db *db = nsl_checkdb(L);
  int64_t until = ns_mono_us() + nsl_optmicros(L, 2);
  do {
    if (again_in > 0)
      ns_sleep_us(again_in);
    st = ns_look(db, &again_in, &sum, &err);
    all.holders += sum.holders;
    all.jobs += sum.jobs;
    all.poison += sum.poison;
    if (st != NS_OK)
      return look_failed(L, &all, &err);
  } while (sum.suspects > 0 && ns_mono_us() + again_in <= until);
  lua_createtable(L, 0, 3);
  nsl_setint(L, "holders", all.holders);
  nsl_setint(L, "jobs", all.jobs);
  nsl_setint(L, "poison", all.poison);
  return 1;
}

/***
One whole round that looks for jobs that are in no place, and mends findings that the round
before has seen, too.
@function db:mend
@tparam[opt=false] boolean mends false: looks only
@treturn {jobs=integer,rows=integer,seen=integer,twice=integer,every=integer} every: µs
to wait before the next round
*/
static int db_mend(lua_State *L) {
  ns_audit_mode how = lua_toboolean(L, 2) ? NS_AUDIT_NOW : NS_AUDIT_LOOK;
  ns_audited all = {0};
  ns_audited sum;
  ns_err err;
  int64_t again_in;
  ns_db *db = nsl_checkdb(L);
  do {
    if (ns_audit_step(db, how, &again_in, &sum, &err) != NS_OK)
      return nsl_fail(L, &err);
    all.jobs += sum.jobs;
    all.rows += sum.rows;
    all.twice += sum.twice;
  } while (!sum.round);
  lua_createtable(L, 0, 5);
  nsl_setint(L, "jobs", all.jobs);
  nsl_setint(L, "rows", all.rows);
  nsl_setint(L, "twice", all.twice);
  nsl_setint(L, "seen", sum.seen);
  nsl_setint(L, "every", again_in);
  return 1;
}

/* ------------------------------------------------------- actions of people */

/***
Says who acts on this handle from now on.
@function db:act_as
@tparam string who `c`, `lua` (at first), `shell`, `page`, `handler`
*/
static int db_act_as(lua_State *L) {
  static const char *const names[] = {[NS_VIA_C] = "c",         [NS_VIA_LUA] = "lua",
                                      [NS_VIA_SHELL] = "shell", [NS_VIA_PAGE] = "page",
                                      [NS_VIA_HANDLER] = "handler", NULL};
  ns_db *db = nsl_checkdb(L);
  ns_act_as(db, (ns_via)luaL_checkoption(L, 2, NULL, names));
  return 0;
}

/***
Begins an action, which leaves one row in the audit, however many verbs it calls.
@function db:act
@tparam string verb up to 23 bytes
@tparam[opt] string what it is done to
@tparam[opt=0] integer job the job that it is about
@tparam[opt=0] integer row what act_end gave of an earlier part
@treturn boolean false: it is a part of an action that is under way
*/
static int db_act(lua_State *L) {
  ns_db *db = nsl_checkdb(L);
  const char *verb = luaL_checkstring(L, 2);
  ns_bytes what = nsl_optbytes(L, 3);
  int64_t job = luaL_optinteger(L, 4, 0);
  lua_pushboolean(L, ns_action_begin(db, verb, job, what, luaL_optinteger(L, 5, 0)));
  return 1;
}

/***
Writes the row of the action under way, or adds to it, in the open transaction.
@function db:act_note
@tparam integer jobs how many were changed
@return true, or nil, message, code `DENIED`, `GONE`, `BUSY`
*/
static int db_act_note(lua_State *L) {
  ns_err err;
  ns_db *db = nsl_checkdb(L);
  return nsl_result(L, ns_action_note(db, luaL_checkinteger(L, 2), &err), &err);
}

/***
Ends the action under way, or a part of one.
@function db:act_end
@treturn integer the id of its row, 0: none was written
*/
static int db_act_end(lua_State *L) {
  lua_pushinteger(L, ns_action_end(nsl_checkdb(L), true));
  return 1;
}

/***
Wakes an idle listener.
@function db:ring
@return true, or nil, message, code
*/
static int db_ring(lua_State *L) {
  ns_err err;
  return nsl_result(L, ns_ring(nsl_checkdb(L), &err), &err);
}

/***
Lets a listener sleep and rings it.
@function db:ring_try
@return µs from the ring to the wake, -1 when it slept on, or nil, message, code
*/
static int db_ring_try(lua_State *L) {
  ns_err err;
  int64_t took;
  if (ns_ring_try(nsl_checkdb(L), &took, &err) != NS_OK)
    return nsl_fail(L, &err);
  lua_pushinteger(L, took);
  return 1;
}

const luaL_Reg nsl_adminverbs[] = {{"act", db_act},
                                   {"act_as", db_act_as},
                                   {"act_end", db_act_end},
                                   {"act_note", db_act_note},
                                   {"look", db_look}, {"mend", db_mend},
                                   {"may", db_may},
                                   {"migrate", db_migrate},
                                   {"now", db_now},
                                   {"pause", db_pause},
                                   {"prune", db_prune},
                                   {"prune_tree", db_prune_tree},
                                   {"queue_id", db_queue_id},
                                   {"queues", db_queues},
                                   {"ring", db_ring},
                                   {"ring_try", db_ring_try},
                                   {"take_ids", db_take_ids},
                                   {NULL, NULL}};
