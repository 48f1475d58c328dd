/*
** Opening and closing the database handle, and the verbs that are about the
** database as a whole: queues, ids, schema, history, time.
**
** Invariant: 'db' in the box is NULL or open. The box exists before the
** connection does, and close empties it before it closes, so every handle is
** closed exactly once, whoever asks and however often.
*/
#include "nsl_db.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "ns_time.h"

/* ---------------------------------------------------------- open and close */

/* What open reads; the port is narrowed afterwards. */
typedef struct opening {
  ns_config cfg;
  int64_t port;
  bool forget_done;
} opening;

#define TEXT_OPTION(name) {#name, NSL_CSTR, offsetof(opening, cfg.name)}

static const nsl_field open_fields[] = {
    TEXT_OPTION(url),
    TEXT_OPTION(host),
    TEXT_OPTION(user),
    TEXT_OPTION(password),
    TEXT_OPTION(database),
    TEXT_OPTION(socket),
    {"port", NSL_INT, offsetof(opening, port)},
    TEXT_OPTION(file),
    TEXT_OPTION(group),
    TEXT_OPTION(tls),
    TEXT_OPTION(ca),
    TEXT_OPTION(cert),
    TEXT_OPTION(key),
    {"connect_timeout", NSL_INT, offsetof(opening, cfg.connect_timeout)},
    {"read_timeout", NSL_INT, offsetof(opening, cfg.read_timeout)},
    {"max_payload", NSL_INT, offsetof(opening, cfg.max_payload)},
    {"no_schema", NSL_BOOL, offsetof(opening, cfg.no_schema)},
    {"forget_done", NSL_BOOL, offsetof(opening, forget_done)},
    {NULL, NSL_ANY, 0}};

static ns_status readopening(lua_State *L, opening *o, ns_err *err) {
  ns_status st = nsl_readfields(L, 1, open_fields, "open: ", o, err);
  if (st != NS_OK)
    return st;
  if (o->port < 0 || o->port > 65535)
    return ns_fail(err, NS_EINVALID, "open: port must be 1 to 65535, got %lld",
                   (long long)o->port);
  if (o->cfg.connect_timeout < 0 || o->cfg.read_timeout < 0 ||
      o->cfg.max_payload < 0)
    return ns_fail(err, NS_EINVALID, "open: %s must not be negative",
                   o->cfg.max_payload < 0    ? "max_payload"
                   : o->cfg.read_timeout < 0 ? "read_timeout"
                                             : "connect_timeout");
  o->cfg.port = (unsigned)o->port;
  return NS_OK;
}

/* A URL may raise the limit; only the core knows to what. */
static int64_t maxjson(const ns_config *cfg) {
  if (cfg->max_payload > 0)
    return cfg->max_payload;
  return cfg->url != NULL && strstr(cfg->url, "max_payload=") != NULL
             ? NSL_JSON_MAX
             : NS_MAX_PAYLOAD;
}

/***
Opens a database handle. Without any option: the private server of the working
directory.
@function open
@tparam[opt] table options url, host, user, password, database, socket, port,
file, group, tls, ca, cert, key, connect_timeout (µs), read_timeout (µs; none: it
waits for ever), max_payload (bytes), no_schema (boolean: skip the check of the tables),
forget_done (boolean: done jobs without a parent leave no history)
@treturn[1] nightshift.db
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `GONE`, `DENIED`, `SCHEMA`, `SERVER`, `INVALID`
@raise for an unknown option or a wrong type
*/
int nsl_lib_open(lua_State *L) {
  ns_err err;
  opening o = {.cfg = NS_CONFIG_INIT};
  nsl_db *box;
  if (lua_isnoneornil(L, 1)) {
    lua_settop(L, 0);
    lua_newtable(L);
  }
  luaL_checktype(L, 1, LUA_TTABLE);
  box = lua_newuserdatauv(L, sizeof *box, 0);
  box->db = NULL; /* may be collected from here on */
  luaL_setmetatable(L, NSL_DB);
  /* from here to ns_open nothing allocates: 'o' borrows from the table */
  if (readopening(L, &o, &err) != NS_OK)
    return nsl_fail(L, &err);
  box->max_json = maxjson(&o.cfg);
  if (ns_open(&box->db, &o.cfg, &err) != NS_OK)
    return nsl_fail(L, &err);
  ns_forget_done(box->db, o.forget_done);
  return 1;
}

/* The box in argument 1; the handle in it may be closed. */
static nsl_db *rawdb(lua_State *L) {
  return luaL_checkudata(L, 1, NSL_DB);
}

ns_db *nsl_checkdb(lua_State *L) {
  nsl_db *box = rawdb(L);
  if (box->db == NULL)
    luaL_error(L, "attempt to use a closed database");
  return box->db;
}

int64_t nsl_maxjson(lua_State *L) {
  return rawdb(L)->max_json;
}

/***
Gives unfinished claims back and closes the handle. Closing twice is allowed.
Also runs when the handle is collected or leaves a `<close>` scope.
@function db:close
*/
static int db_close(lua_State *L) {
  nsl_db *box = rawdb(L);
  ns_db *db = box->db;
  box->db = NULL;
  ns_close(db);
  return 0;
}

/***
Whether the handle has not been closed.
@function db:is_open
@treturn boolean
*/
static int db_is_open(lua_State *L) {
  lua_pushboolean(L, rawdb(L)->db != NULL);
  return 1;
}

static int db_tostring(lua_State *L) {
  nsl_db *box = rawdb(L);
  if (box->db != NULL)
    lua_pushfstring(L, NSL_DB ": %p", (void *)box);
  else
    lua_pushliteral(L, NSL_DB ": closed");
  return 1;
}

int nsl_result(lua_State *L, ns_status st, const ns_err *err) {
  if (st != NS_OK)
    return nsl_fail(L, err);
  lua_pushboolean(L, 1);
  return 1;
}

/* ------------------------------------------------------------ transactions */

/***
Opens a transaction; pushes and statements join it until commit or rollback.
@function db:begin
@return true, or nil, message, code `STATE`, `GONE`
*/
static int db_begin(lua_State *L) {
  ns_err err;
  return nsl_result(L, ns_begin(nsl_checkdb(L), &err), &err);
}

/***
Commits the open transaction and rings for what it pushed.
@function db:commit
@return true, or nil, message, code `STATE`, `GONE`, `BUSY`
*/
static int db_commit(lua_State *L) {
  ns_err err;
  return nsl_result(L, ns_commit(nsl_checkdb(L), &err), &err);
}

/***
Undoes the open transaction; nothing happens without one.
@function db:rollback
@return true
*/
static int db_rollback(lua_State *L) {
  ns_rollback(nsl_checkdb(L));
  lua_pushboolean(L, 1);
  return 1;
}

/***
Whether a transaction of the caller is open.
@function db:in_transaction
@treturn boolean
*/
static int db_in_transaction(lua_State *L) {
  lua_pushboolean(L, ns_in_transaction(nsl_checkdb(L)));
  return 1;
}

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
@treturn {{id=integer,name=string,paused=boolean},...}
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
    lua_createtable(L, 0, 3);
    nsl_setint(L, "id", q->rows[i].id);
    nsl_setbytes(L, "name", ns_str(q->rows[i].name));
    nsl_setbool(L, "paused", q->rows[i].paused);
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

/* ------------------------------------------------------- the whole database */

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
Creates or upgrades the tables, and makes procedures and view anew. Safe to
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

/***
Deletes old history in small batches.
@function db:prune
@tparam integer keep_done µs that done jobs are kept; negative: for ever
@tparam integer keep_dead the same for dead and cancelled ones
@tparam[opt=0] integer max_batches 0: until nothing is left
@return rows deleted, or nil, message, code
*/
static int db_prune(lua_State *L) {
  ns_err err;
  int64_t deleted = 0;
  ns_db *db = nsl_checkdb(L);
  int64_t done = luaL_checkinteger(L, 2);
  int64_t dead = luaL_checkinteger(L, 3);
  lua_Integer batches = luaL_optinteger(L, 4, 0);
  luaL_argcheck(L, batches >= 0, 4, "must not be negative");
  if (ns_prune(db, done, dead, (size_t)batches, &deleted, &err) != NS_OK)
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

/* What did come back is not to be missed. */
static int look_failed(lua_State *L, const ns_rescued *all, ns_err *err) {
  char text[64];
  snprintf(text, sizeof text, "%lld jobs came back, others did not",
           (long long)all->jobs);
  if (all->jobs > 0)
    ns_err_context(err, text);
  return nsl_fail(L, err);
}

/***
Looks at all other holders and gives back what dead ones held.
@function db:look
@tparam[opt=0] integer patience µs: looks again as long as the grace of somebody
who seems dead ends within it
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
Wakes an idle listener.
@function db:ring
@return true, or nil, message, code
*/
static int db_ring(lua_State *L) {
  ns_err err;
  return nsl_result(L, ns_ring(nsl_checkdb(L), &err), &err);
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

/***
What this handle has done since it was opened.
@function db:counters
@treturn table deadlocks, lock_waits, changed, reconnects, pushed, claimed,
settled, stale, sweeps, rings, and swept: µs that the sweeps took
*/
static int db_counters(lua_State *L) {
  ns_counters c = ns_count(nsl_checkdb(L));
  lua_createtable(L, 0, 11);
  nsl_setint(L, "deadlocks", c.deadlocks);
  nsl_setint(L, "lock_waits", c.lock_waits);
  nsl_setint(L, "changed", c.changed);
  nsl_setint(L, "reconnects", c.reconnects);
  nsl_setint(L, "pushed", c.pushed);
  nsl_setint(L, "claimed", c.claimed);
  nsl_setint(L, "settled", c.settled);
  nsl_setint(L, "stale", c.stale);
  nsl_setint(L, "sweeps", c.sweeps);
  nsl_setint(L, "rings", c.rings);
  nsl_setint(L, "swept", c.swept);
  return 1;
}

/* --------------------------------------------------------------- metatable */

static const luaL_Reg verbs[] = {{"begin", db_begin},
                                 {"close", db_close},
                                 {"commit", db_commit},
                                 {"counters", db_counters},
                                 {"in_transaction", db_in_transaction},
                                 {"is_open", db_is_open},
                                 {"look", db_look},
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
                                 {"rollback", db_rollback},
                                 {"take_ids", db_take_ids},
                                 {NULL, NULL}};

static const luaL_Reg metamethods[] = {{"__gc", db_close},
                                       {"__close", db_close},
                                       {"__tostring", db_tostring},
                                       {NULL, NULL}};

void nsl_opendb(lua_State *L) {
  luaL_newmetatable(L, NSL_DB); /* filled again when it exists: harmless */
  luaL_setfuncs(L, metamethods, 0);
  lua_newtable(L);
  luaL_setfuncs(L, verbs, 0);
  luaL_setfuncs(L, nsl_pushverbs, 0);
  luaL_setfuncs(L, nsl_claimverbs, 0);
  luaL_setfuncs(L, nsl_verdictverbs, 0);
  luaL_setfuncs(L, nsl_jobverbs, 0);
  luaL_setfuncs(L, nsl_slotverbs, 0);
  luaL_setfuncs(L, nsl_sqlverbs, 0);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
}
