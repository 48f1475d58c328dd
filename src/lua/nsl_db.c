/*
** The database handle: opening and closing it, its transactions, and the work of every verb
** before and after its own. nsl_module.c has the list of verbs.
**
** Invariant: 'db' in the box is NULL or open. The box exists before the connection does, and
** close empties it before it closes. So every handle is closed exactly once, however often it
** is asked. (Not asserted: spec/oom shows it.) While a verb waits, hooks may run; they can do
** nothing with its handle.
*/
#include "nsl.h"

#include <stddef.h>
#include <string.h>

/* ------------------------------------------------------------ hooks in waits */

/* The core asks between two looks at its socket. The hooks run in a protected call. An error that
** they raise is kept in the registry until the core has come back, so nothing jumps over its
** frames. Nothing here allocates, except the hooks themselves. */

/* A count hook of so many instructions has its turn each time; of more, as they
** add up. */
#define INSTRUCTIONS 10000

static const char spin_key;  /* the function, in the registry */
static const char error_key; /* the error that a hook has raised */

void nsl_openhooks(lua_State *L) {
  static const char spin[] = "for _ = 1, ... do end";
  if (luaL_loadbufferx(L, spin, sizeof spin - 1, "=(waiting)", "t") != LUA_OK)
    lua_error(L);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &spin_key);
  lua_pushboolean(L, 0); /* so that there is a place for it */
  lua_rawsetp(L, LUA_REGISTRYINDEX, &error_key);
}

/* Runs the hooks of one coroutine; false: one has raised an error, which is kept. */
static bool run_hooks(lua_State *L) {
  int n = lua_gethookcount(L);
  bool ok;
  if (!lua_checkstack(L, 4))
    return true;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &spin_key);
  lua_pushinteger(L, n > INSTRUCTIONS ? INSTRUCTIONS : n);
  ok = lua_pcall(L, 1, 0, 0) == LUA_OK;
  if (!ok)
    lua_rawsetp(L, LUA_REGISTRYINDEX, &error_key);
  return ok;
}

static lua_State *main_of(lua_State *L) {
  lua_State *main = NULL;
  if (lua_checkstack(L, 1)) {
    lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_MAINTHREAD);
    main = lua_tothread(L, -1);
    lua_pop(L, 1);
  }
  return main;
}

bool nsl_hooks(void *wait) {
  nsl_wait *w = wait;
  lua_State *L = w->L;
  if (w->stopped || L == NULL || w->inside)
    return w->stopped;
  if (lua_gethook(L) == NULL && (L = main_of(L)) == NULL)
    return false;
  if (lua_gethook(L) == NULL)
    return false;
  w->inside = true;
  w->stopped = !run_hooks(L);
  w->inside = false;
  return w->stopped;
}

void nsl_raise(lua_State *L, nsl_wait *w) {
  if (!w->stopped)
    return;
  w->stopped = false;
  luaL_checkstack(L, 2, NULL);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &error_key);
  lua_pushboolean(L, 0);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &error_key);
  lua_error(L);
}

/* ---------------------------------------------------------- open and close */

/* The options that open reads; the port is narrowed afterwards. */
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
    {"no_look", NSL_BOOL, offsetof(opening, cfg.no_look)},
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

/* A URL may raise the limit; only the core knows its value. */
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
file, group, tls, ca, cert, key, connect_timeout (µs), read_timeout (µs; none: 30
s), max_payload (bytes), no_schema (boolean: skip the check of the tables),
no_look (boolean: opening rescues no dead holders' jobs), forget_done (boolean:
done jobs without a parent leave no history)
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
  ns_status st;
  if (lua_isnoneornil(L, 1)) {
    lua_settop(L, 0);
    lua_newtable(L);
  }
  luaL_checktype(L, 1, LUA_TTABLE);
  box = lua_newuserdatauv(L, sizeof *box, 2);
  *box = (nsl_db){.wait = {.L = L}}; /* may be collected from here on */
  luaL_setmetatable(L, NSL_DB);
  /* from here to ns_open nothing allocates: 'o' borrows from the table */
  if (readopening(L, &o, &err) != NS_OK)
    return nsl_fail(L, &err);
  box->max_json = maxjson(&o.cfg);
  o.cfg.interrupted = nsl_hooks;
  o.cfg.interrupted_arg = &box->wait;
  st = ns_open(&box->db, &o.cfg, &err);
  nsl_raise(L, &box->wait);
  if (st != NS_OK)
    return nsl_fail(L, &err);
  ns_forget_done(box->db, o.forget_done);
  ns_act_as(box->db, NS_VIA_LUA);
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

void nsl_anchor(lua_State *L, int idx, int64_t key) {
  if (lua_getiuservalue(L, 1, 2) != LUA_TTABLE) {
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_setiuservalue(L, 1, 2);
    lua_remove(L, -2);
  }
  lua_pushvalue(L, idx);
  lua_rawseti(L, -2, key);
  lua_pop(L, 1);
}

static void check_idle(lua_State *L, const nsl_db *box) {
  if (box->wait.inside)
    luaL_error(L, "attempt to use a database in a hook that runs while it waits");
}

/* ------------------------------------- the owner of a transaction */

/* Keeps, weakly, which coroutine has begun it. */
static void keep_owner(lua_State *L) {
  lua_createtable(L, 1, 0);
  lua_createtable(L, 0, 1);
  lua_pushliteral(L, "v");
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lua_pushthread(L);
  lua_rawseti(L, -2, 1);
  lua_setiuservalue(L, 1, 1);
}

/* Is the coroutine that has begun it neither this one nor waiting for this one? Then it is not
** known whether it will ever go on. */
static bool owner_rests(lua_State *L) {
  lua_State *owner = NULL;
  lua_Debug ar;
  if (lua_getiuservalue(L, 1, 1) == LUA_TTABLE) {
    lua_rawgeti(L, -1, 1);
    owner = lua_tothread(L, -1);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  if (owner == NULL)
    return true;
  return owner != L && (lua_status(owner) != LUA_OK || lua_getstack(owner, 0, &ar) == 0);
}

/* A coroutine that has died of an error has left its transaction open, and no call has reported
** that. Its keeper (db:keep) ends it. */
static void bury_owner(lua_State *L) {
  lua_State *owner = NULL;
  int top = lua_gettop(L);
  if (lua_getiuservalue(L, 1, 1) == LUA_TTABLE) {
    lua_rawgeti(L, -1, 1);
    owner = lua_tothread(L, -1);
    lua_rawgeti(L, -2, 2);
  }
  if (owner != NULL && owner != L && lua_status(owner) > LUA_YIELD && !lua_isnil(L, -1)) {
    lua_pushnil(L);
    lua_rawseti(L, top + 1, 2); /* once: it asks for verbs */
    luaL_callmeta(L, -1, "abandon");
  }
  lua_settop(L, top);
}

int nsl_runverb(lua_State *L) {
  nsl_db *box = rawdb(L);
  int n;
  check_idle(L, box);
  nsl_raise(L, &box->wait);
  box->wait.L = L;
  if (box->db != NULL && ns_in_transaction(box->db))
    bury_owner(L);
  if (box->db != NULL && ns_in_transaction(box->db))
    ns_session_bar(box->db, owner_rests(L));
  n = lua_tocfunction(L, lua_upvalueindex(1))(L);
  nsl_raise(L, &box->wait);
  return n;
}

/***
Gives unfinished claims back and closes the handle. Closing twice is allowed.
Also runs when the handle is collected or leaves a `<close>` scope.
@function db:close
*/
static int db_close(lua_State *L) {
  nsl_db *box = rawdb(L);
  ns_db *db = box->db;
  check_idle(L, box);
  box->wait.L = NULL;
  box->db = NULL; /* so that a second close finds none */
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

/***
The counters of this handle since it was opened.
@function db:counters
@treturn table deadlocks, lock_waits, changed, reconnects, pushed, claimed,
settled, stale, sweeps, rings, swept: µs that the sweeps took, slow: answers to statements of
ours that took more than a second, and slowest: µs of the longest
*/
static int db_counters(lua_State *L) {
  ns_counters c = ns_count(nsl_checkdb(L));
  lua_createtable(L, 0, 13);
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
  nsl_setint(L, "slow", c.slow);
  nsl_setint(L, "slowest", c.slowest);
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
  if (!ns_in_transaction(nsl_checkdb(L)))
    keep_owner(L);
  return nsl_result(L, ns_begin(nsl_checkdb(L), &err), &err);
}

/***
Sets the keeper of the open transaction: its metamethod 'abandon' is called when the
coroutine that has begun it died of an error. It is kept weakly.
@function db:keep
@tparam table guard
*/
static int db_keep(lua_State *L) {
  luaL_checktype(L, 2, LUA_TTABLE);
  if (lua_getiuservalue(L, 1, 1) != LUA_TTABLE)
    return 0;
  lua_pushvalue(L, 2);
  lua_rawseti(L, -2, 2);
  return 0;
}

/***
Commits the open transaction and rings for its pushed jobs.
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
Sets back the session after the caller's own SQL; see ns_session_reset.
@function db:reset
@treturn boolean whether a transaction was open, which is rolled back
*/
static int db_reset(lua_State *L) {
  bool open;
  ns_session_reset(nsl_checkdb(L), &open);
  lua_pushboolean(L, open);
  return 1;
}

/***
Writes what the handle has counted of queues, for charts, if it is time.
@function db:tell
@return integer µs until there is more to write; 0: there is nothing
*/
static int db_tell(lua_State *L) {
  lua_pushinteger(L, ns_tell_minutes(nsl_checkdb(L)));
  return 1;
}

/***
Sets a point in the open transaction that undo takes it back to.
@function db:savepoint
@tparam integer depth its name: of one depth the last counts
@return integer for undo, or nil, message, code `STATE`, `GONE`
*/
static int db_savepoint(lua_State *L) {
  ns_err err;
  ns_db *db = nsl_checkdb(L);
  int64_t mark;
  if (ns_savepoint(db, luaL_checkinteger(L, 2), &mark, &err) != NS_OK)
    return nsl_fail(L, &err);
  lua_pushinteger(L, mark);
  return 1;
}

/***
Takes the open transaction back to a savepoint.
@function db:undo
@tparam integer depth
@tparam integer mark what savepoint gave
@return true, or nil, message, code `STATE`, `GONE`, `SQL`: all of it is lost
*/
static int db_undo(lua_State *L) {
  ns_err err;
  ns_db *db = nsl_checkdb(L);
  int64_t depth = luaL_checkinteger(L, 2);
  return nsl_result(L, ns_undo(db, depth, luaL_checkinteger(L, 3), &err), &err);
}

/***
Whether a transaction of the caller is open in which this coroutine takes part.
@function db:in_transaction
@treturn boolean
*/
static int db_in_transaction(lua_State *L) {
  ns_db *db = nsl_checkdb(L);
  lua_pushboolean(L, ns_in_transaction(db) && !owner_rests(L));
  return 1;
}

const luaL_Reg nsl_dbverbs[] = {{"begin", db_begin},
                                {"commit", db_commit},
                                {"tell", db_tell},
                                {"counters", db_counters},
                                {"in_transaction", db_in_transaction},
                                {"is_open", db_is_open},
                                {"keep", db_keep},
                                {"reset", db_reset},
                                {"rollback", db_rollback},
                                {"savepoint", db_savepoint},
                                {"undo", db_undo},
                                {NULL, NULL}};

const luaL_Reg nsl_dbmeta[] = {{"__gc", db_close},
                               {"__close", db_close},
                               {"__tostring", db_tostring},
                               {NULL, NULL}};
