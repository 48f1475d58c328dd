/*
** Runners of adopted tables: a thread with a Lua state and a connection of its own for each. So
** a table that is slow, locked or altered delays no other. lua/nightshift/source/runner.lua has
** the work of a runner; here are the functions of the host for it.
**
** Invariant: a runner shares only the exchange with the host, and waits there. (Not asserted: a
** Lua state does not know its threads.)
*/
#include "host.h"

#include <lauxlib.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "err.h"
#include "ipc/ipc.h"
#include "log.h"
#include "nsl.h"
#include "worker/worker.h"

#define END_MAX (5 * NS_SECOND)   /* for a runner's current work, and its last writes */
#define LEAVE_MAX (NS_SECOND / 2) /* ... of a host that leaves without the server */

typedef struct runner {
  nsh_runners *all;
  lua_State *L;
  pthread_t thread;
  const nsh_table *table;
  uint64_t seen; /* turns that it knows of */
  bool running;
  /* the exchange's lock guards these */
  bool ended;
  bool rested;    /* nothing is left that may be taken in */
  bool refused;   /* rows are left alone that the server refuses */
  int64_t due_at; /* monotonic µs: when the first row that waits may be; NEVER: none */
} runner;

struct nsh_runners {
  const nsh_config *cfg;
  nsh_exchange *exchange;
  bool ends;
  size_t n;
  runner items[];
};

/* ------------------------------------------------ functions for Lua */

static runner *self_of(lua_State *L) {
  return lua_touserdata(L, lua_upvalueindex(1));
}

/***
Waits until jobs have started or ended here, or for so long.
@function wait
@tparam number seconds
@treturn boolean whether the host ends
*/
static int runner_wait(lua_State *L) {
  runner *r = self_of(L);
  nsh_exchange *m = r->all->exchange;
  int64_t until = ns_mono_us() + (int64_t)(luaL_checknumber(L, 1) * NS_SECOND);
  struct timespec t = {(time_t)(until / NS_SECOND), (long)(until % NS_SECOND) * 1000};
  bool ends;
  nsh_exchange_lock(m);
  while (!r->all->ends && r->seen == m->turns && ns_mono_us() < until)
    pthread_cond_timedwait(&m->runners, &m->lock, &t);
  r->seen = m->turns;
  ends = r->all->ends;
  nsh_exchange_unlock(m);
  lua_pushboolean(L, ends);
  return 1;
}

/***
The handlers that the host can run.
@function serves
@treturn string a list of names in JSON, with null at its end when there are more
*/
static int runner_serves(lua_State *L) {
  nsh_exchange *m = self_of(L)->all->exchange;
  ns_buf *list = nsl_newbuf(L);
  nsh_exchange_lock(m);
  ns_buf_adds(list, m->handlers != NULL ? m->handlers : "[]");
  nsh_exchange_unlock(m);
  if (list->oom)
    return luaL_error(L, "not enough memory");
  lua_pushlstring(L, list->p, list->n);
  return 1;
}

/***
How many workers take jobs now.
@function taking
@treturn integer
*/
static int runner_taking(lua_State *L) {
  nsh_exchange *m = self_of(L)->all->exchange;
  size_t n;
  nsh_exchange_lock(m);
  n = m->taking;
  nsh_exchange_unlock(m);
  lua_pushinteger(L, (lua_Integer)n);
  return 1;
}

/* Publishes the reports of all runners. The lock is held. */
static void publish(const nsh_runners *all) {
  nsh_exchange *m = all->exchange;
  m->rows_rested = true;
  m->rows_refused = false;
  m->rows_due_at = NSH_NEVER;
  for (size_t i = 0; i < all->n; i++) {
    const runner *r = &all->items[i];
    m->rows_rested = m->rows_rested && r->rested;
    m->rows_refused = m->rows_refused || r->refused;
    m->rows_due_at = nsh_sooner(m->rows_due_at, r->due_at);
  }
}

/***
Tells a draining host how much is left of the table.
@function tell
@tparam boolean rested nothing may be taken in
@tparam number due seconds until a row that waits may be; below 0: none waits
@tparam boolean refused rows are left alone that the server refuses
*/
static int runner_tell(lua_State *L) {
  runner *r = self_of(L);
  nsh_exchange *m = r->all->exchange;
  double due = luaL_checknumber(L, 2);
  nsh_exchange_lock(m);
  r->rested = lua_toboolean(L, 1);
  r->refused = lua_toboolean(L, 3);
  r->due_at = due < 0 || due > 1e9 ? NSH_NEVER : ns_mono_us() + (int64_t)(due * NS_SECOND);
  publish(r->all);
  nsh_exchange_unlock(m);
  m->notify(m->notify_arg);
  return 0;
}

static ns_bytes optional_text(lua_State *L, int idx) {
  ns_bytes s = NS_NONE;
  if (!lua_isnoneornil(L, idx))
    s.p = lua_tolstring(L, idx, &s.n);
  return s;
}

/***
Writes a line into the log.
@function log
@tparam string level info, warn or error
@tparam string event
@tparam string table
@tparam integer|nil row
@tparam string|nil text
@tparam string|nil key what the text is: "error", unless told
*/
static int runner_log(lua_State *L) {
  static const char *const names[] = {"info", "warn", "error", NULL};
  static const ns_level levels[] = {NS_LOG_INFO, NS_LOG_WARN, NS_LOG_ERROR};
  ns_level level = levels[luaL_checkoption(L, 1, "warn", names)];
  const char *event = luaL_checkstring(L, 2);
  const char *key = luaL_optstring(L, 6, "error");
  ns_field row = lua_isnoneornil(L, 4) ? ns_fb("row", NS_NONE) : ns_fi("row", lua_tointeger(L, 4));
  ns_log(level, event,
         NS_FIELDS(ns_fb("table", optional_text(L, 3)), row, ns_fb(key, optional_text(L, 5))));
  return 0;
}

static void push_host(lua_State *L, runner *r) {
  static const luaL_Reg functions[] = {{"wait", runner_wait},     {"serves", runner_serves},
                                       {"taking", runner_taking}, {"tell", runner_tell},
                                       {"log", runner_log},       {NULL, NULL}};
  luaL_newlibtable(L, functions);
  lua_pushlightuserdata(L, r);
  luaL_setfuncs(L, functions, 1);
  lua_pushnumber(L, (lua_Number)r->all->cfg->drain_within / NS_SECOND);
  lua_setfield(L, -2, "within");
  lua_pushboolean(L, r->all->cfg->drain);
  lua_setfield(L, -2, "drain");
}

/* -------------------------------------------------------- the thread */

/* Protected. The runner stays on the stack: nil, message, code when it cannot be opened. */
static int open_runner(lua_State *L) {
  runner *r = lua_touserdata(L, 1);
  lua_settop(L, 0);
  lua_getglobal(L, "require");
  lua_pushliteral(L, "nightshift.source.runner");
  lua_call(L, 1, 1);
  lua_getfield(L, -1, "open");
  nsh_config_pushdb(L, r->all->cfg);
  lua_pushlstring(L, r->table->mapping.p, r->table->mapping.n);
  push_host(L, r);
  lua_call(L, 3, 3);
  return 3;
}

/* Protected. */
static int run(lua_State *L) {
  lua_getfield(L, 1, "run");
  lua_insert(L, 1);
  lua_call(L, 1, 0);
  return 0;
}

static void *thread(void *arg) {
  runner *r = arg;
  nsh_exchange *m = r->all->exchange;
  lua_pushcfunction(r->L, nsh_lua_traceback);
  lua_insert(r->L, 1);
  lua_pushcfunction(r->L, run);
  lua_insert(r->L, 2);
  if (lua_pcall(r->L, 1, 0, 1) != LUA_OK)
    ns_log(NS_LOG_ERROR, "adopted.error",
           NS_FIELDS(ns_fb("table", r->table->name), ns_fb("error", nsh_lua_text(r->L, -1))));
  nsh_exchange_lock(m);
  r->ended = true;
  pthread_cond_broadcast(&m->runners);
  nsh_exchange_unlock(m);
  return NULL;
}

/* ------------------------------------------------------------ birth and end */

static ns_status status_of(const char *code) {
#define ERR_STATUS(name, code, meaning) NS_##name,
  static const ns_status all[] = {NS_ERRORS(ERR_STATUS)};
#undef ERR_STATUS
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
    if (strcmp(ns_code(all[i]), code) == 0)
      return all[i];
  return NS_EINVALID;
}

static ns_status open_one(runner *r, ns_err *err) {
  lua_State *L = r->L = nsh_lua_new();
  if (L == NULL)
    return ns_fail(err, NS_ENOMEM, "not enough memory for the runner of a table");
  lua_pushcfunction(L, nsh_lua_traceback);
  lua_pushcfunction(L, open_runner);
  lua_pushlightuserdata(L, r);
  if (lua_pcall(L, 1, 3, 1) != LUA_OK)
    return ns_fail(err, NS_EINVALID, "%s", lua_tostring(L, -1));
  if (lua_isnil(L, -3))
    return ns_fail(err, status_of(lua_tostring(L, -1)), "%s", lua_tostring(L, -2));
  lua_settop(L, 2);
  lua_remove(L, 1);
  return NS_OK;
}

ns_status nsh_runners_open(nsh_runners **out, const nsh_config *cfg, nsh_exchange *exchange,
                           ns_err *err) {
  nsh_runners *all = nsh_alloc(sizeof *all + cfg->ntables * sizeof *all->items);
  ns_status st = NS_OK;
  *out = all;
  all->cfg = cfg;
  all->exchange = exchange;
  for (size_t i = 0; st == NS_OK && i < cfg->ntables; i++) {
    all->items[i] = (runner){.all = all, .table = &cfg->tables[i], .due_at = NSH_NEVER};
    all->n++;
    st = open_one(&all->items[i], err);
  }
  nsh_exchange_lock(exchange);
  publish(all);
  nsh_exchange_unlock(exchange);
  return st;
}

ns_status nsh_runners_start(nsh_runners *all, ns_err *err) {
  sigset_t blocked;
  sigset_t old;
  ns_status st = NS_OK;
  sigfillset(&blocked);
  pthread_sigmask(SIG_SETMASK, &blocked, &old);
  for (size_t i = 0; st == NS_OK && i < all->n; i++) {
    runner *r = &all->items[i];
    r->running = pthread_create(&r->thread, NULL, thread, r) == 0;
    if (!r->running)
      st = ns_fail(err, NS_ENOMEM, "cannot start the thread of a table's runner");
  }
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  return st;
}

/* The lock is held. */
static bool have_ended(const nsh_runners *all) {
  for (size_t i = 0; i < all->n; i++)
    if (all->items[i].running && !all->items[i].ended)
      return false;
  return true;
}

static bool await_end(nsh_runners *all) {
  nsh_exchange *m = all->exchange;
  int64_t max = atomic_load(&m->give_up) || atomic_load(&m->away) ? LEAVE_MAX : END_MAX;
  int64_t until = ns_mono_us() + max;
  struct timespec t = {(time_t)(until / NS_SECOND), (long)(until % NS_SECOND) * 1000};
  bool ended;
  nsh_exchange_lock(m);
  all->ends = true;
  pthread_cond_broadcast(&m->runners);
  while (!have_ended(all) && ns_mono_us() < until)
    pthread_cond_timedwait(&m->runners, &m->lock, &t);
  ended = have_ended(all);
  nsh_exchange_unlock(m);
  return ended;
}

bool nsh_runners_close(nsh_runners *all) {
  if (all == NULL)
    return true;
  if (!await_end(all))
    return false;
  for (size_t i = 0; i < all->n; i++) {
    if (all->items[i].running)
      pthread_join(all->items[i].thread, NULL);
    if (all->items[i].L != NULL)
      lua_close(all->items[i].L);
  }
  free(all);
  return true;
}
