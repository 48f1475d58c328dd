/*
** The verbs on adopted tables, of which lua/nightshift/adopt/init.lua makes objects. A
** table is a number here; what is held is the core's, so nothing is lost when Lua
** raises, and nothing is left to close.
*/
#include "nsl_conv.h"

#include "nsl_db.h"

#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"

#define MAX_CLAIM 10000 /* rows of one claim */

/* ------------------------------------------------------------ the mapping */

typedef struct mapping {
  ns_mapping map;
  ns_bytes strategy;
} mapping;

#define PART(name, part) {name, NSL_BYTES, offsetof(mapping, map.parts[part])}

static const nsl_field fields[] = {
    {"table", NSL_BYTES, offsetof(mapping, map.table)},
    {"name", NSL_BYTES, offsetof(mapping, map.name)},
    {"strategy", NSL_BYTES, offsetof(mapping, strategy)},
    {"time_zone", NSL_BYTES, offsetof(mapping, map.time_zone)},
    PART("id", NS_PART_ID),
    PART("status", NS_PART_STATUS),
    PART("claimed_by", NS_PART_CLAIMED_BY),
    PART("claimed_at", NS_PART_CLAIMED_AT),
    PART("completed_at", NS_PART_COMPLETED_AT),
    PART("started", NS_PART_STARTED),
    PART("updated", NS_PART_UPDATED),
    PART("retry_after", NS_PART_RETRY_AFTER),
    PART("host", NS_PART_HOST),
    PART("attempts", NS_PART_ATTEMPTS),
    PART("attempts_left", NS_PART_ATTEMPTS_LEFT),
    PART("priority", NS_PART_PRIORITY),
    PART("parent", NS_PART_PARENT),
    {"open", NSL_ANY, 0},
    {"processing", NSL_ANY, 0},
    {"done", NSL_ANY, 0},
    {"failed", NSL_ANY, 0},
    {"parent_done", NSL_ANY, 0},
    {"lower_first", NSL_BOOL, offsetof(mapping, map.lower_first)},
    {"newest_first", NSL_BOOL, offsetof(mapping, map.newest_first)},
    {"decay", NSL_INT, offsetof(mapping, map.decay)},
    {"max_attempts", NSL_INT, offsetof(mapping, map.max_attempts)},
    {"overdue", NSL_INT, offsetof(mapping, map.overdue)},
    {"allow_alter", NSL_BOOL, offsetof(mapping, map.allow_alter)},
    {"given", NSL_BYTES, offsetof(mapping, map.given)},
    {NULL, NSL_ANY, 0}};

static const char *const states[NS_ROW_STATES] = {"open", "processing", "done",
                                                  "failed", "parent_done"};

/* The value on top: a whole number, a boolean, text, or the null of the module. */
static ns_value tovalue(lua_State *L, const char *name) {
  ns_value v = {.type = NS_NULL};
  switch (lua_type(L, -1)) {
  case LUA_TSTRING:
    v.type = NS_TEXT;
    v.s.p = lua_tolstring(L, -1, &v.s.n);
    return v;
  case LUA_TBOOLEAN:
    v.type = NS_INT;
    v.i = lua_toboolean(L, -1);
    return v;
  case LUA_TNUMBER:
    v.type = NS_INT;
    if (!lua_isinteger(L, -1))
      luaL_error(L, "adopt: %s must be a whole number, text, boolean or null", name);
    v.i = lua_tointeger(L, -1);
    return v;
  case LUA_TLIGHTUSERDATA:
    return v;
  default:
    luaL_error(L, "adopt: %s must be a whole number, text, boolean or null", name);
    return v;
  }
}

/* Texts are borrowed from the table at 'idx'. */
static void readstates(lua_State *L, int idx, ns_mapping *m) {
  for (size_t i = 0; i < NS_ROW_STATES; i++) {
    m->has_state[i] = nsl_rawfield(L, idx, states[i]) != LUA_TNIL;
    if (m->has_state[i])
      m->states[i] = tovalue(L, states[i]);
    lua_pop(L, 1);
  }
}

static void readstrategy(lua_State *L, mapping *m) {
  static const char *const names[] = {
      [NS_UPDATE_LIMIT] = "update_limit", [NS_SKIP_LOCKED] = "skip_locked",
      [NS_TRANSACTION] = "transaction", [NS_NAMED_LOCK] = "named_lock"};
  for (size_t i = 0; m->strategy.p != NULL && i < 4; i++)
    if (strlen(names[i]) == m->strategy.n &&
        memcmp(names[i], m->strategy.p, m->strategy.n) == 0) {
      m->map.strategy = (ns_strategy)i;
      return;
    }
  luaL_error(L, "adopt: bad 'strategy'");
}

ns_status nsl_tomapping(lua_State *L, int idx, ns_mapping *map, ns_err *err) {
  mapping m = {.strategy = NS_NONE};
  ns_status st;
  idx = lua_absindex(L, idx);
  luaL_checkstack(L, 4, NULL);
  readstates(L, idx, &m.map);
  if ((st = nsl_readfields(L, idx, fields, "adopt: ", &m, err)) != NS_OK)
    return st;
  readstrategy(L, &m);
  *map = m.map;
  return NS_OK;
}

/***
Takes an existing table as a queue.
@function db:adopt
@tparam table mapping table, name, strategy (`update_limit`, `skip_locked`,
`transaction`, `named_lock`), time_zone; names of columns: id, status, claimed_by,
claimed_at, completed_at, started, updated, retry_after, host, attempts,
attempts_left, priority, parent; values of the status: open, processing, done,
failed, parent_done; lower_first, newest_first, decay, max_attempts, overdue (µs);
allow_alter; given (the mapping as JSON, for people)
@treturn[1] integer its number
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `INVALID`, `NOT_FOUND`, `GONE`
*/
static int db_adopt(lua_State *L) {
  ns_err err;
  ns_adopted *a;
  int64_t number;
  ns_mapping map;
  nsl_checkdb(L);
  luaL_checktype(L, 2, LUA_TTABLE);
  if (nsl_tomapping(L, 2, &map, &err) != NS_OK ||
      ns_adopt(nsl_checkdb(L), &map, &a, &number, &err) != NS_OK)
    return nsl_fail(L, &err);
  lua_pushinteger(L, number);
  return 1;
}

/* The table with the number in argument 2. [-0, +0, v] */
static ns_adopted *checkadopted(lua_State *L) {
  ns_adopted *a = ns_adopted_at(nsl_checkdb(L), luaL_checkinteger(L, 2));
  luaL_argcheck(L, a != NULL, 2, "no adopted table has this number");
  return a;
}

/* ------------------------------------------------------------------- verbs */

/***
Claims rows of an adopted table.
@function db:adopt_claim
@tparam integer number
@tparam[opt=1] integer limit
@treturn[1] {table,...} jobs as of claim; the payload is the row
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `GONE`, `BUSY`, `STATE`, `SQL`
*/
static int db_adopt_claim(lua_State *L) {
  ns_err err;
  ns_jobs *jobs;
  lua_Integer limit = luaL_optinteger(L, 3, 1);
  checkadopted(L);
  luaL_argcheck(L, limit >= 1 && limit <= MAX_CLAIM, 3, "1 to 10000 expected");
  jobs = nsl_boxjobs(L);
  if (ns_adopted_claim(checkadopted(L), (size_t)limit, jobs, &err) != NS_OK) {
    nsl_unbox(jobs);
    return nsl_fail(L, &err);
  }
  nsl_pushjobs(L, jobs);
  return 1;
}

/***
Ends a claim.
@function db:adopt_settle
@tparam integer number
@tparam table verdict as of settle; children and waits are `INVALID`
@treturn[1] boolean true
@treturn[1] boolean whether the row has failed for good
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `STALE`, `INVALID`, `GONE`, `BUSY`, `SQL`
*/
static int db_adopt_settle(lua_State *L) {
  ns_err err;
  nsl_verdict *v;
  ns_status st;
  bool dead;
  checkadopted(L);
  if ((v = nsl_toverdict(L, 3, nsl_maxjson(L), &err)) == NULL)
    return nsl_fail(L, &err);
  st = ns_adopted_settle(checkadopted(L), &v->verdict, 1, &err);
  if (st == NS_OK)
    st = v->verdict.status;
  dead = v->verdict.dead;
  nsl_unbox(v);
  if (st != NS_OK)
    return nsl_fail(L, &err);
  lua_pushboolean(L, 1);
  lua_pushboolean(L, dead);
  return 2;
}

/***
Whether a claim still holds; it is overdue later.
@function db:adopt_touch
@tparam integer number
@tparam integer id
@tparam integer run
@return true, or nil, message, code `STALE`, `GONE`, `BUSY`
*/
static int db_adopt_touch(lua_State *L) {
  ns_err err;
  ns_adopted *a = checkadopted(L);
  lua_Integer id = luaL_checkinteger(L, 3);
  return nsl_result(L, ns_adopted_touch(a, id, luaL_checkinteger(L, 4), &err),
                    &err);
}

/***
The same, and people see it.
@function db:adopt_show
@tparam integer number
@tparam integer id
@tparam integer run
@tparam[opt] number progress 0 to 1
@tparam[opt] string text
@return true, or nil, message, code `STALE`, `GONE`, `BUSY`
*/
static int db_adopt_show(lua_State *L) {
  ns_err err;
  ns_adopted *a = checkadopted(L);
  ns_sign sign = {.id = luaL_checkinteger(L, 3), .run = luaL_checkinteger(L, 4),
                  .worker_pid = getpid(), .progress = luaL_optnumber(L, 5, -1),
                  .text = nsl_optbytes(L, 6)};
  ns_status st = ns_adopted_touch_many(a, &sign, 1, &err);
  if (st == NS_OK && sign.lost)
    st = ns_fail(&err, NS_ESTALE, "the claim of row %lld is lost",
                 (long long)sign.id);
  return nsl_result(L, st, &err);
}

/***
Gives back rows of dead holders and rows with an overdue claim.
@function db:adopt_look
@tparam integer number
@tparam[opt=false] boolean now also when it was done a moment ago
@return how many, or nil, message, code
*/
static int db_adopt_look(lua_State *L) {
  ns_err err;
  int64_t freed;
  ns_adopted *a = checkadopted(L);
  if (ns_adopted_look(a, lua_toboolean(L, 3), &freed, &err) != NS_OK)
    return nsl_fail(L, &err);
  lua_pushinteger(L, freed);
  return 1;
}

/***
How many rows there are in each state.
@function db:adopt_count
@tparam integer number
@tparam integer most to which each state is counted
@treturn[1] table ready, waiting, running, done, dead
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `GONE`, `BUSY`, `SQL`
*/
static int db_adopt_count(lua_State *L) {
  ns_err err;
  ns_row_counts n;
  ns_adopted *a = checkadopted(L);
  if (ns_adopted_count(a, luaL_checkinteger(L, 3), &n, &err) != NS_OK)
    return nsl_fail(L, &err);
  lua_createtable(L, 0, 5);
  nsl_setint(L, "ready", n.ready);
  nsl_setint(L, "waiting", n.waiting);
  nsl_setint(L, "running", n.running);
  nsl_setint(L, "done", n.done);
  nsl_setint(L, "dead", n.dead);
  return 1;
}

/***
When something that is open, or about to be, may be claimed.
@function db:adopt_due
@tparam integer number
@treturn[1] number seconds; -1: there is nothing
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `GONE`, `BUSY`, `SQL`
*/
static int db_adopt_due(lua_State *L) {
  ns_err err;
  int64_t due;
  if (ns_adopted_due(checkadopted(L), &due, &err) != NS_OK)
    return nsl_fail(L, &err);
  lua_pushnumber(L, due < 0 ? -1.0 : (lua_Number)due / 1e6);
  return 1;
}

/***
Seconds until a claim may find something again; 0: now.
@function db:adopt_pause
@tparam integer number
@treturn number
*/
static int db_adopt_pause(lua_State *L) {
  int64_t at = ns_adopted_claim_at(checkadopted(L));
  int64_t now = ns_mono_us();
  lua_pushnumber(L, at > now ? (lua_Number)(at - now) / 1e6 : 0.0);
  return 1;
}

/***
The index that claims from the table lack.
@function db:adopt_advice
@tparam integer number
@return an SQL statement, "" when none is missing; or nil, message, code
*/
static int db_adopt_advice(lua_State *L) {
  ns_err err;
  ns_buf *sql;
  checkadopted(L);
  sql = nsl_newbuf(L);
  if (ns_adopted_advice(checkadopted(L), sql, &err) != NS_OK)
    return nsl_fail(L, &err);
  lua_pushlstring(L, ns_buf_bytes(sql).p, sql->n);
  return 1;
}

/* Whether groups or rows are listed. */
static int push_dead(lua_State *L,
                     ns_status (*list)(ns_adopted *, ns_bytes, int64_t, ns_buf *, ns_err *)) {
  ns_err err;
  ns_buf *json;
  lua_Integer limit = luaL_checkinteger(L, 3);
  ns_bytes error = nsl_optbytes(L, 4);
  checkadopted(L);
  json = nsl_newbuf(L);
  if (list(checkadopted(L), error, limit, json, &err) != NS_OK)
    return nsl_fail(L, &err);
  lua_pushlstring(L, ns_buf_bytes(json).p, json->n);
  return 1;
}

/***
The rows that no claim takes any more.
@function db:adopt_dead
@tparam integer number
@tparam integer limit
@tparam[opt] string error those of this one, or of one of the kinds that groups have
@treturn[1] string JSON: a list of id, attempts, failed_at, holder, error, payload
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `GONE`, `BUSY`, `SQL`
*/
static int db_adopt_dead(lua_State *L) {
  return push_dead(L, ns_adopted_dead);
}

/***
The same by kinds of errors.
@function db:adopt_dead_groups
@tparam integer number
@tparam integer limit
@tparam[opt] string error
@treturn[1] string JSON: a list of error, count, first, last, id
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `GONE`, `BUSY`, `SQL`
*/
static int db_adopt_dead_groups(lua_State *L) {
  return push_dead(L, ns_adopted_dead_groups);
}

/***
A dead row may be claimed again.
@function db:adopt_retry
@tparam integer number
@tparam integer id
@return true, or nil, message, code `STATE`, `NOT_FOUND`, `INVALID`, `GONE`, `BUSY`
*/
static int db_adopt_retry(lua_State *L) {
  ns_err err;
  ns_adopted *a = checkadopted(L);
  return nsl_result(L, ns_adopted_retry(a, luaL_checkinteger(L, 3), &err), &err);
}

static int push_count(lua_State *L, ns_status st, int64_t n, const ns_err *err) {
  if (st != NS_OK)
    return nsl_fail(L, err);
  lua_pushinteger(L, n);
  return 1;
}

/***
The same of all that are dead.
@function db:adopt_retry_all
@tparam integer number
@tparam[opt] string error as of adopt_dead
@return how many, or nil, message, code
*/
static int db_adopt_retry_all(lua_State *L) {
  ns_err err;
  int64_t n;
  ns_adopted *a = checkadopted(L);
  ns_status st = ns_adopted_retry_all(a, nsl_optbytes(L, 3), &n, &err);
  return push_count(L, st, n, &err);
}

static ns_row_pruning checkpruning(lua_State *L) {
  return (ns_row_pruning){.older = luaL_checkinteger(L, 3),
                          .limit = luaL_checkinteger(L, 4),
                          .dead = lua_toboolean(L, 5),
                          .into = nsl_optbytes(L, 6)};
}

/***
Deletes ended rows, or moves them.
@function db:adopt_prune
@tparam integer number
@tparam integer older µs; -1: however old
@tparam integer limit
@tparam boolean dead those that are dead, not those that are done
@tparam[opt] string into the table they are moved to
@return how many, or nil, message, code `INVALID`, `NOT_FOUND`, `STATE`, `GONE`, `BUSY`, `SQL`
*/
static int db_adopt_prune(lua_State *L) {
  ns_err err;
  int64_t n;
  ns_adopted *a = checkadopted(L);
  ns_row_pruning which = checkpruning(L);
  ns_status st = ns_adopted_prune(a, &which, &n, &err);
  return push_count(L, st, n, &err);
}

/***
How many that would be.
@function db:adopt_prunable
@tparam integer number
@tparam integer older
@tparam integer most to which is counted
@tparam boolean dead
@return how many, or nil, message, code
*/
static int db_adopt_prunable(lua_State *L) {
  ns_err err;
  int64_t n;
  ns_adopted *a = checkadopted(L);
  ns_row_pruning which = checkpruning(L);
  ns_status st = ns_adopted_prunable(a, &which, &n, &err);
  return push_count(L, st, n, &err);
}

/* [-0, +1, m] */
static void pushdrained(lua_State *L, const ns_drained *d) {
  lua_createtable(L, 0, 11);
  nsl_setint(L, "from", d->from);
  nsl_setint(L, "jobs", d->jobs);
  nsl_setint(L, "done", d->done);
  nsl_setint(L, "dead", d->dead);
  nsl_setint(L, "cleaned", d->cleaned);
  nsl_setint(L, "running", d->running);
  nsl_setint(L, "unknown", d->unknown);
  nsl_setint(L, "unfit", d->unfit);
  nsl_setint(L, "changed", d->changed);
  nsl_setint(L, "busy", d->busy);
  lua_pushboolean(L, d->more);
  lua_setfield(L, -2, "more");
}

/***
Moves some rows into a queue or the history.
@function db:adopt_drain
@tparam integer number
@tparam string queue made, if need be
@tparam integer limit rows that are looked at
@tparam[opt] integer from the lowest id; nil: all, and what other drains have left
@treturn[1] table jobs, done, dead, cleaned: rows moved; running, unknown, unfit,
changed, busy: rows that stay; from: where to go on; more: whether to
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `INVALID`, `STATE`, `GONE`, `BUSY`, `DENIED`, `SQL`
*/
static int db_adopt_drain(lua_State *L) {
  ns_err err;
  ns_adopted *a = checkadopted(L);
  ns_bytes queue = nsl_checkbytes(L, 3);
  lua_Integer limit = luaL_checkinteger(L, 4);
  ns_drained d = {.from = luaL_optinteger(L, 5, INT64_MIN)};
  luaL_argcheck(L, limit >= 1 && limit <= MAX_CLAIM, 4, "1 to 10000 expected");
  if (ns_adopted_drain(a, queue, (size_t)limit, &d, &err) != NS_OK)
    return nsl_fail(L, &err);
  pushdrained(L, &d);
  return 1;
}

/***
What a drain would move, and what would stay.
@function db:adopt_drainable
@tparam integer number
@return a table as of adopt_drain; or nil, message, code
*/
static int db_adopt_drainable(lua_State *L) {
  ns_err err;
  ns_drained d = {0};
  if (ns_adopted_drainable(checkadopted(L), &d, &err) != NS_OK)
    return nsl_fail(L, &err);
  pushdrained(L, &d);
  return 1;
}

/***
Sleeps until a claim may find something; at once when the table does not ring.
@function db:adopt_wait
@tparam integer number
@tparam number seconds at most
@treturn[1] boolean whether it rings
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `GONE`, `BUSY`, `STATE`
*/
static int db_adopt_wait(lua_State *L) {
  ns_err err;
  ns_adopted *a = checkadopted(L);
  lua_Number seconds = luaL_checknumber(L, 3);
  bool rung = ns_adopted_rung(a);
  luaL_argcheck(L, seconds >= 0 && seconds <= 1e6, 3, "0 to 1000000 seconds expected");
  if (ns_adopted_wait(a, (int64_t)(seconds * 1e6), &err) != NS_OK)
    return nsl_fail(L, &err);
  lua_pushboolean(L, rung);
  return 1;
}

/***
Drops the triggers that allow_alter has added.
@function db:adopt_drop_triggers
@tparam integer number
@return true, or nil, message, code `DENIED`, `BUSY`, `STATE`, `GONE`
*/
static int db_adopt_drop_triggers(lua_State *L) {
  ns_err err;
  ns_adopted *a = checkadopted(L);
  return nsl_result(L, ns_adopted_drop_triggers(a, &err), &err);
}

const luaL_Reg nsl_adoptverbs[] = {{"adopt", db_adopt},
                                   {"adopt_advice", db_adopt_advice},
                                   {"adopt_claim", db_adopt_claim},
                                   {"adopt_count", db_adopt_count},
                                   {"adopt_dead", db_adopt_dead},
                                   {"adopt_dead_groups", db_adopt_dead_groups},
                                   {"adopt_drain", db_adopt_drain},
                                   {"adopt_drainable", db_adopt_drainable},
                                   {"adopt_drop_triggers", db_adopt_drop_triggers},
                                   {"adopt_due", db_adopt_due},
                                   {"adopt_look", db_adopt_look},
                                   {"adopt_pause", db_adopt_pause},
                                   {"adopt_prunable", db_adopt_prunable},
                                   {"adopt_prune", db_adopt_prune},
                                   {"adopt_retry", db_adopt_retry},
                                   {"adopt_retry_all", db_adopt_retry_all},
                                   {"adopt_settle", db_adopt_settle},
                                   {"adopt_show", db_adopt_show},
                                   {"adopt_touch", db_adopt_touch},
                                   {"adopt_wait", db_adopt_wait},
                                   {NULL, NULL}};
