/*
** Claimed jobs as Lua tables, and the verbs of their holder: claim, touch.
** Ending a claim is in nsl_verdict.c.
**
** Invariant: the core's results stay in a box while they become Lua tables. (Not asserted: as
** nsl.h says, spec/oom shows it.) One hole is left on purpose: when memory ends while claimed
** jobs are being pushed, they stay claimed until the handle is closed.
*/
#include "nsl.h"

#include "buf.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

/* -------------------------------------------------------------------- tables */

static void setkey(lua_State *L, const ns_job *job) {
  char key[48];
  snprintf(key, sizeof key, "%" PRIx64 "-%016" PRIx64, (uint64_t)job->id,
           (uint64_t)job->nonce);
  lua_pushstring(L, key);
  lua_setfield(L, -2, "key");
}

/* Fills the table on top. */
static void setjob(lua_State *L, const ns_job *job) {
  luaL_checkstack(L, 6, NULL);
  nsl_setint(L, "id", job->id);
  nsl_setint(L, "run", job->run);
  nsl_setint(L, "lease", job->lease);
  nsl_setbytes(L, "queue", job->queue);
  nsl_setbytes(L, "name", job->name);
  nsl_setjson(L, "payload", job->payload, false);
  nsl_setjson(L, "state", job->state, false);
  nsl_setint(L, "attempts", job->attempts);
  nsl_setint(L, "polls", job->polls);
  nsl_setint(L, "crashes", job->crashes);
  nsl_setint(L, "max_attempts", job->max_attempts);
  if (job->max_polls >= 0)
    nsl_setint(L, "max_polls", job->max_polls);
  nsl_setint(L, "priority", job->priority);
  nsl_setpositive(L, "parent", job->parent);
  nsl_setpositive(L, "root", job->root);
  nsl_setint(L, "phase", job->phase);
  nsl_setpositive(L, "row", job->row);
  if (job->follows != 0) {
    lua_pushboolean(L, true);
    lua_setfield(L, -2, "_follows");
  }
  nsl_setbytes(L, "awaits", job->awaits);
  nsl_setjson(L, "signal", job->signal, true);
  nsl_setseconds(L, "created", job->created);
  nsl_setseconds(L, "due", job->due);
  if (job->deadline > 0)
    nsl_setseconds(L, "deadline", job->deadline);
  nsl_setseconds(L, "timeout", job->timeout);
  setkey(L, job);
}

void nsl_pushjob(lua_State *L, const ns_job *job) {
  luaL_checkstack(L, 4, NULL);
  lua_createtable(L, 0, 24); /* room for fields that Lua adds */
  setjob(L, job);
}

/* --------------------------------------------------------------------- verbs */

static void free_jobs(void *p) {
  ns_jobs_free(p);
}

/* Room for claimed jobs, which goes with the stack if an error is raised. [-0, +1, m] */
static ns_jobs *box_jobs(lua_State *L) {
  return nsl_box(L, sizeof(ns_jobs), free_jobs);
}

/* Pushes the jobs as a list, and frees them. [-0, +1, m] */
static void push_jobs(lua_State *L, ns_jobs *jobs) {
  lua_createtable(L, (int)jobs->n, 0);
  for (size_t i = 0; i < jobs->n; i++) {
    nsl_pushjob(L, &jobs->items[i]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  nsl_unbox(jobs);
}

/* The names, if any, that this claim and the next are of. */
static ns_status claim_only(lua_State *L, int arg, ns_err *err) {
  size_t n = lua_isnoneornil(L, arg) ? 0 : lua_rawlen(L, arg);
  ns_bytes *names = NULL;
  if (!lua_isnoneornil(L, arg)) {
    luaL_checktype(L, arg, LUA_TTABLE);
    names = lua_newuserdatauv(L, (n + 1) * sizeof *names, 0);
  }
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, arg, (lua_Integer)i + 1);
    luaL_argcheck(L, lua_type(L, -1) == LUA_TSTRING, arg, "strings expected");
    names[i].p = lua_tolstring(L, -1, &names[i].n); /* the table keeps it */
    lua_pop(L, 1);
  }
  return ns_claim_only(nsl_checkdb(L), names, n, err);
}

/***
Claims jobs of one queue.
@function db:claim
@tparam string queue
@tparam[opt=1] integer limit
@tparam[opt=0] integer wait µs to wait for the first job
@tparam[opt=0] integer lease µs that the claim lasts untouched; 0: as the handle
@tparam[opt=false] boolean strict by priority only: no aging
@tparam[opt] {string,...} names of jobs to claim; nil: all
@treturn[1] {table,...} jobs: id, run, lease, queue, name, payload, state,
attempts, polls, crashes, max_attempts, max_polls, priority, parent, root,
created, due, deadline, timeout, key; `payload_error` in place of a payload
that is not JSON. Empty when there is none.
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `GONE`, `BUSY`, `INVALID`
*/
static int db_claim(lua_State *L) {
  ns_err err;
  ns_bytes queue;
  ns_jobs *jobs;
  lua_Integer limit = luaL_optinteger(L, 3, 1);
  int64_t wait = nsl_optmicros(L, 4);
  int64_t lease = nsl_optmicros(L, 5);
  nsl_checkdb(L);
  lua_settop(L, 7); /* pushed values are no arguments */
  queue = nsl_checkbytes(L, 2);
  ns_claim_strictly(nsl_checkdb(L), lua_toboolean(L, 6));
  luaL_argcheck(L, limit >= 1 && limit <= NSL_CLAIM_MAX, 3,
                "1 to 100000 expected");
  jobs = box_jobs(L);
  if (claim_only(L, 7, &err) != NS_OK ||
      ns_claim(nsl_checkdb(L), queue, (size_t)limit, wait, lease, jobs,
               &err) != NS_OK) {
    nsl_unbox(jobs);
    return nsl_fail(L, &err);
  }
  push_jobs(L, jobs);
  return 1;
}

/***
Shows how far a running job is, and tells whether its claim still holds.
@function db:touch
@tparam integer id
@tparam integer run
@tparam[opt] number progress 0 to 1
@tparam[opt] string text
@return true, or nil, message, code `STALE`, `GONE`, `INVALID`
*/
static int db_touch(lua_State *L) {
  ns_err err;
  ns_db *db = nsl_checkdb(L);
  int64_t id = luaL_checkinteger(L, 2);
  int64_t run = luaL_checkinteger(L, 3);
  double progress = luaL_optnumber(L, 4, -1);
  ns_bytes text = nsl_optbytes(L, 5);
  char number[NS_NUMBER_SIZE];
  if (!lua_isnoneornil(L, 4) && !(progress >= 0 && progress <= 1)) {
    ns_fail(&err, NS_EINVALID, "progress must be 0 to 1, got %s", ns_number(progress, number));
    return nsl_fail(L, &err);
  }
  return nsl_result(L, ns_touch(db, id, run, getpid(), progress, text, &err),
                    &err);
}

const luaL_Reg nsl_claimverbs[] = {
    {"claim", db_claim}, {"touch", db_touch}, {NULL, NULL}};
