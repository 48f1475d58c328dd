/*
** Jobs from the outside: questions and verbs for any job by its id, open to every handle.
*/
#include "nsl.h"

#include <stddef.h>

/* ------------------------------------------------------------------ one job */

/* The run that an ended job ended with. */
static void pushrun(lua_State *L, const ns_info *info) {
  lua_createtable(L, 0, 6);
  nsl_setseconds(L, "ended", info->finished_at);
  if (info->started > 0) {
    nsl_setseconds(L, "started", info->started);
    nsl_setseconds(L, "seconds", info->finished_at - info->started);
  }
  nsl_setbytes(L, "host", info->host);
  nsl_setpositive(L, "pid", info->pid);
  nsl_setpositive(L, "worker", info->worker);
  lua_setfield(L, -2, "last_run");
}

static void pushinfo(lua_State *L, const ns_info *info) {
  nsl_pushjob(L, &info->job);
  nsl_setbytes(L, "where", info->where);
  nsl_setbytes(L, "reason", info->reason);
  nsl_setbytes(L, "error", info->error);
  nsl_setbytes(L, "output", info->output);
  nsl_setjson(L, "result", info->result, false);
  nsl_setbytes(L, "unique", info->unique);
  if (info->finished_at > 0)
    nsl_setseconds(L, "finished_at", info->finished_at);
  nsl_setint(L, "unmet", info->unmet);
  if (info->paused != 0)
    nsl_setint(L, "paused", info->paused);
  nsl_setpositive(L, "holder", info->holder);
  nsl_setint(L, "max_crashes", info->max_crashes);
  nsl_setint(L, "decay", info->decay);
  if (info->progress >= 0) {
    lua_pushnumber(L, info->progress);
    lua_setfield(L, -2, "progress");
  }
  nsl_setbytes(L, "status", info->status_text);
  if (info->finished_at > 0 && info->holder != 0)
    pushrun(L, info);
}

static void free_info(void *p) {
  ns_info_free(p);
}

/***
Everything about one job, live or finished.
@function db:info
@tparam integer id
@treturn[1] table the fields of a claimed job, and where, reason, error, result,
unique, finished_at, unmet, holder, max_crashes, progress, status, last_run
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `NOT_FOUND`, `GONE`
*/
static int db_info(lua_State *L) {
  ns_err err;
  ns_info *info;
  int64_t id = luaL_checkinteger(L, 2);
  nsl_checkdb(L);
  info = nsl_box(L, sizeof *info, free_info);
  if (ns_job_info(nsl_checkdb(L), id, info, &err) != NS_OK)
    return nsl_fail(L, &err);
  pushinfo(L, info);
  nsl_unbox(info);
  return 1;
}

/***
Ends a live job as cancelled.
@function db:cancel
@tparam integer id
@tparam[opt] string reason
@return true, or nil, message, code `NOT_FOUND`, `STATE`
*/
static int db_cancel(lua_State *L) {
  ns_err err;
  ns_db *db = nsl_checkdb(L);
  int64_t id = luaL_checkinteger(L, 2);
  ns_bytes reason = nsl_optbytes(L, 3);
  return nsl_result(L, ns_cancel(db, id, reason, &err), &err);
}

/***
Runs a finished job again with fresh budgets.
@function db:retry
@tparam integer id
@return true, or nil, message, code `NOT_FOUND`, `STATE`, `DUPLICATE`
*/
static int db_retry(lua_State *L) {
  ns_err err;
  ns_db *db = nsl_checkdb(L);
  return nsl_result(L, ns_retry(db, luaL_checkinteger(L, 2), &err), &err);
}

/***
Makes a scheduled job ready now.
@function db:run_now
@tparam integer id
@return true, or nil, message, code `NOT_FOUND`, `STATE`
*/
static int db_run_now(lua_State *L) {
  ns_err err;
  ns_db *db = nsl_checkdb(L);
  return nsl_result(L, ns_run_now(db, luaL_checkinteger(L, 2), &err), &err);
}

/***
Gives a live job another priority.
@function db:reprioritise
@tparam integer id
@tparam integer priority
@return true, or nil, message, code
*/
static int db_reprioritise(lua_State *L) {
  ns_err err;
  ns_db *db = nsl_checkdb(L);
  int64_t id = luaL_checkinteger(L, 2);
  int64_t priority = luaL_checkinteger(L, 3);
  return nsl_result(L, ns_reprioritise(db, id, priority, &err), &err);
}

/***
Deletes a job that does not run, and all that is known of it.
@function db:delete
@tparam integer id
@tparam[opt] boolean ended only when it has ended; false: only when it has not
@return true, or nil, message, code `NOT_FOUND`, `STATE`
*/
static int db_delete(lua_State *L) {
  ns_err err;
  ns_db *db = nsl_checkdb(L);
  int64_t id = luaL_checkinteger(L, 2);
  ns_status st = lua_isnoneornil(L, 3) ? ns_delete(db, id, &err)
                                       : ns_delete_if(db, id, lua_toboolean(L, 3), &err);
  return nsl_result(L, st, &err);
}

static const nsl_field change_fields[] = {
    {"json", NSL_BYTES, offsetof(ns_change, payload)},
    {"queue", NSL_BYTES, offsetof(ns_change, queue)},
    {"priority", NSL_INT, offsetof(ns_change, priority)},
    {"due", NSL_INT, offsetof(ns_change, due)},
    {"max_attempts", NSL_INT, offsetof(ns_change, max_attempts)},
    {"tags", NSL_BYTES, offsetof(ns_change, tags)},
    {"group", NSL_BYTES, offsetof(ns_change, group)},
    {NULL, NSL_ANY, 0}};

/***
Changes a job that does not run.
@function db:update
@tparam integer id
@tparam table change json, queue, priority, due (µs since 1970), max_attempts, tags,
group: "" is none
@tparam[opt] boolean ended only when it has ended; false: only when it has not
@tparam[opt=0] integer run only in this run
@tparam[opt] string payload only while its payload is this text
@return true, or nil, message, code `NOT_FOUND`, `STATE`, `INVALID`, `TOO_BIG`, `DUPLICATE`
@raise for an unknown key or a wrong type
*/
static int db_update(lua_State *L) {
  ns_err err;
  ns_change change = ns_change_new();
  ns_status st;
  int64_t id = luaL_checkinteger(L, 2);
  ns_expected expected = {.either = lua_isnoneornil(L, 4), .ended = lua_toboolean(L, 4),
                          .run = luaL_optinteger(L, 5, 0), .payload = nsl_optbytes(L, 6)};
  nsl_checkdb(L);
  luaL_checktype(L, 3, LUA_TTABLE);
  st = nsl_readfields(L, 3, change_fields, "", &change, &err);
  if (st == NS_OK)
    st = ns_update_if(nsl_checkdb(L), id, &change, &expected, &err);
  return nsl_result(L, st, &err);
}

/***
When a live job is not started any more.
@function db:deadline
@tparam integer id
@tparam integer deadline µs from now; -1: none any more
@return true, or nil, message, code
*/
static int db_deadline(lua_State *L) {
  ns_err err;
  ns_db *db = nsl_checkdb(L);
  int64_t id = luaL_checkinteger(L, 2);
  int64_t deadline = luaL_checkinteger(L, 3);
  return nsl_result(L, ns_deadline(db, id, deadline, &err), &err);
}

/***
Sends a value to a job that waits for a signal, or will.
@function db:signal
@tparam integer id
@tparam string value JSON text
@tparam[opt] string name
@return true, or nil, message, code
*/
static int db_signal(lua_State *L) {
  ns_err err;
  ns_db *db = nsl_checkdb(L);
  int64_t id = luaL_checkinteger(L, 2);
  ns_bytes value = nsl_checkbytes(L, 3);
  ns_bytes name = nsl_optbytes(L, 4);
  return nsl_result(L, ns_signal(db, id, value, name, &err), &err);
}

/***
Waits until none of these jobs lives.
@function db:wait
@tparam string ids JSON list
@tparam integer wait µs
@return how many live, or nil, message, code `STATE`, `GONE`
*/
static int db_wait(lua_State *L) {
  ns_err err;
  size_t left;
  ns_db *db = nsl_checkdb(L);
  ns_bytes ids = nsl_checkbytes(L, 2);
  int64_t wait = nsl_optmicros(L, 3);
  if (ns_wait(db, ids, wait, &left, &err) != NS_OK)
    return nsl_fail(L, &err);
  lua_pushinteger(L, (lua_Integer)left);
  return 1;
}

/* -------------------------------------------------- a job and all below it */

/***
Does something to a job and all below it.
@function db:tree
@tparam string verb `cancel`, `pause`, `resume`, `priority`, `run_now`, `deadline`,
`retry`
@tparam integer id
@tparam[opt=0] integer n the priority, or the deadline (µs from now; -1: none)
@tparam[opt] string text why it is cancelled
@return how many jobs were changed, or nil, message, code `NOT_FOUND`, `STATE`,
`DUPLICATE`
*/
static int db_tree(lua_State *L) {
  static const char *const names[] = {
      [NS_TREE_CANCEL] = "cancel", [NS_TREE_PAUSE] = "pause",
      [NS_TREE_RESUME] = "resume", [NS_TREE_PRIORITY] = "priority",
      [NS_TREE_RUN_NOW] = "run_now", [NS_TREE_DEADLINE] = "deadline",
      [NS_TREE_RETRY] = "retry", NULL};
  ns_err err;
  int64_t changed = 0;
  ns_db *db = nsl_checkdb(L);
  ns_verb verb = (ns_verb)luaL_checkoption(L, 2, NULL, names);
  int64_t id = luaL_checkinteger(L, 3);
  int64_t n = luaL_optinteger(L, 4, 0);
  ns_bytes text = nsl_optbytes(L, 5);
  if (ns_tree_do(db, verb, id, n, text, &changed, &err) != NS_OK)
    return nsl_fail(L, &err);
  lua_pushinteger(L, changed);
  return 1;
}

/* ------------------------------------------------------- many jobs at once */

/* A box with the ids of the list at 'arg'. */
static int64_t *read_ids(lua_State *L, int arg, size_t *n) {
  int64_t *ids;
  luaL_checktype(L, arg, LUA_TTABLE);
  *n = lua_rawlen(L, arg);
  ids = nsl_box(L, (*n + 1) * sizeof *ids, NULL);
  for (size_t i = 0; i < *n; i++) {
    lua_rawgeti(L, arg, (lua_Integer)i + 1);
    luaL_argcheck(L, lua_isinteger(L, -1), arg, "a list of ids expected");
    ids[i] = lua_tointeger(L, -1);
    lua_pop(L, 1);
  }
  return ids;
}

/* A box with the state at 'arg', twice, and the values of the list behind it. The list keeps their
** texts. */
static ns_value *read_filter(lua_State *L, int arg, size_t *n) {
  ns_value *v;
  luaL_checktype(L, arg + 1, LUA_TTABLE);
  *n = lua_rawlen(L, arg + 1) + 2;
  v = nsl_box(L, *n * sizeof *v, NULL);
  nsl_readparam(L, arg, &v[0]);
  v[1] = v[0];
  for (size_t i = 2; i < *n; i++) {
    lua_rawgeti(L, arg + 1, (lua_Integer)i - 1);
    nsl_readparam(L, lua_gettop(L), &v[i]);
    lua_pop(L, 1);
  }
  return v;
}

/***
Does something to many jobs, in one transaction.
@function db:many
@tparam string verb `cancel`, `priority`, `run_now`, `move`, `retry`, `move_ended`
@tparam {integer,...} ids ascending, at most 500
@tparam integer arg the priority, or the id of the queue
@tparam string|nil text why they are cancelled
@tparam integer from the first ready_at, when all are ready in one lane; else 0
@tparam integer to the last one
@tparam string|nil state that they have to have
@tparam table values of a filter that has to hold
@tparam string claims a pattern that leases with any of the jobs match
@treturn[1] integer how many were changed
@treturn[1] integer how many stay because another live job has their unique key
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `INVALID`, `GONE`, `BUSY`
*/
static int db_many(lua_State *L) {
  static const char *const names[] = {
      [NS_MANY_CANCEL] = "cancel", [NS_MANY_PRIORITY] = "priority", [NS_MANY_RUN_NOW] = "run_now",
      [NS_MANY_MOVE] = "move",     [NS_MANY_RETRY] = "retry",       [NS_MANY_MOVE_ENDED] = "move_ended",
      NULL};
  ns_err err;
  int64_t changed, refused;
  ns_db *db = nsl_checkdb(L);
  ns_many_verb verb = (ns_many_verb)luaL_checkoption(L, 2, NULL, names);
  ns_many m = {.arg = luaL_checkinteger(L, 4), .text = nsl_optbytes(L, 5),
               .from = luaL_checkinteger(L, 6), .to = luaL_checkinteger(L, 7),
               .claims = nsl_checkbytes(L, 10)};
  m.ids = read_ids(L, 3, &m.n);
  m.filter = read_filter(L, 8, &m.nfilter);
  db = nsl_checkdb(L);
  if (ns_many_do(db, verb, &m, &changed, &refused, &err) != NS_OK)
    return nsl_fail(L, &err);
  lua_pushinteger(L, changed);
  lua_pushinteger(L, refused);
  return 2;
}

/***
How many of a job and all jobs below it are in which state.
@function db:progress
@tparam integer id
@treturn[1] table done, dead, cancelled, running, waiting, scheduled, ready, total
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `NOT_FOUND`
*/
static int db_progress(lua_State *L) {
  ns_err err;
  ns_progress p;
  ns_db *db = nsl_checkdb(L);
  if (ns_tree_progress(db, luaL_checkinteger(L, 2), &p, &err) != NS_OK)
    return nsl_fail(L, &err);
  lua_createtable(L, 0, 8);
  nsl_setint(L, "done", p.done);
  nsl_setint(L, "dead", p.dead);
  nsl_setint(L, "cancelled", p.cancelled);
  nsl_setint(L, "running", p.running);
  nsl_setint(L, "waiting", p.waiting);
  nsl_setint(L, "scheduled", p.scheduled);
  nsl_setint(L, "ready", p.ready);
  nsl_setint(L, "total", p.total);
  return 1;
}

const luaL_Reg nsl_jobverbs[] = {{"cancel", db_cancel},
                                 {"deadline", db_deadline},
                                 {"delete", db_delete},
                                 {"info", db_info},
                                 {"many", db_many},
                                 {"progress", db_progress},
                                 {"reprioritise", db_reprioritise},
                                 {"retry", db_retry},
                                 {"run_now", db_run_now},
                                 {"signal", db_signal},
                                 {"tree", db_tree},
                                 {"update", db_update},
                                 {"wait", db_wait},
                                 {NULL, NULL}};
