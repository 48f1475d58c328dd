/*
** Runners. A runner is a thread with a Lua state, which has a connection of its own and does rounds
** until the host ends (lua/nightshift/failure.lua). schedules.c and figures.c have one each; those
** of adopted tables are here. Each table has a thread, so that a table that is slow, locked or
** altered delays no other. lua/nightshift/source/runner.lua has its work; here are the functions of
** the host for it.
**
** Invariant: a runner shares only the exchange with the host, and waits there. What runners of
** tables report is read by the loop as that of all tables together. (Not asserted: a Lua state does
** not know its threads; and it is written with each report.)
*/
#include "host.h"

#include <lauxlib.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "ipc/ipc.h"
#include "nsl.h"
#include "worker/worker.h"

#define END_MAX (5 * NS_SECOND)   /* for a runner's current work, and its last writes */
#define LEAVE_MAX (NS_SECOND / 2) /* ... of a host that leaves without the server */
#define FIELDS_MAX 4

/* ------------------------------------------------------------ what runners call */

/***
Writes a line into the log.
@function log
@tparam string level info, warn or error
@tparam string event
@tparam string ... a field's name, and its value: an integer, a text, or nil for none; and so on
*/
int nsh_runner_log(lua_State *L) {
  static const char *const names[] = {"info", "warn", "error", NULL};
  static const ns_level levels[] = {NS_LOG_INFO, NS_LOG_WARN, NS_LOG_ERROR};
  ns_level level = levels[luaL_checkoption(L, 1, "warn", names)];
  const char *event = luaL_checkstring(L, 2);
  ns_field fields[FIELDS_MAX];
  size_t n = 0;
  for (int i = 3; i < lua_gettop(L) && n < FIELDS_MAX; i += 2) {
    const char *key = luaL_checkstring(L, i);
    fields[n++] = lua_isinteger(L, i + 1) ? ns_fi(key, lua_tointeger(L, i + 1))
                                          : ns_fb(key, nsh_lua_text(L, i + 1));
  }
  ns_log(level, event, fields, n);
  return 0;
}

static struct timespec timespec_of(int64_t us) {
  return (struct timespec){(time_t)(us / NS_SECOND), (long)(us % NS_SECOND) * 1000};
}

bool nsh_runner_sleep(nsh_runner *r, int64_t until) {
  struct timespec t = timespec_of(until);
  if (r->ends || ns_mono_us() >= until)
    return false;
  pthread_cond_timedwait(r->wakes, &r->exchange->lock, &t);
  return true;
}

/* ------------------------------------------------------------ the Lua state */

/* Protected. The runner stays on the stack: nil, message, code when it cannot be opened. */
static int open_runner(lua_State *L) {
  nsh_runner *r = lua_touserdata(L, 1);
  lua_settop(L, 0);
  lua_getglobal(L, "require");
  lua_pushstring(L, r->module);
  lua_call(L, 1, 1);
  lua_getfield(L, -1, "open");
  nsh_config_pushdb(L, r->cfg);
  r->push_host(L, r);
  lua_pushlstring(L, r->mapping.n > 0 ? r->mapping.p : "", r->mapping.n);
  lua_call(L, 3, 3);
  return 3;
}

static ns_status status_of(const char *code) {
#define ERR_STATUS(name, code, meaning) NS_##name,
  static const ns_status all[] = {NS_ERRORS(ERR_STATUS)};
#undef ERR_STATUS
  for (size_t i = 0; code != NULL && i < sizeof all / sizeof all[0]; i++)
    if (strcmp(ns_code(all[i]), code) == 0)
      return all[i];
  return NS_EINVALID;
}

ns_status nsh_runner_open(nsh_runner *r, ns_err *err) {
  lua_State *L = r->L = nsh_lua_new();
  if (L == NULL)
    return ns_fail(err, NS_ENOMEM, "not enough memory for a runner");
  lua_pushcfunction(L, nsh_lua_traceback);
  lua_pushcfunction(L, open_runner);
  lua_pushlightuserdata(L, r);
  if (lua_pcall(L, 1, 3, 1) != LUA_OK)
    return ns_fail(err, NS_EINVALID, "%s", lua_tostring(L, -1));
  if (lua_isnil(L, -3))
    return ns_fail(err, status_of(lua_tostring(L, -1)), "%s", lua_tostring(L, -2));
  lua_settop(L, 2);
  return NS_OK;
}

/* Protected. */
static int run(lua_State *L) {
  lua_getfield(L, 1, "run");
  lua_insert(L, 1);
  lua_call(L, 1, 0);
  return 0;
}

ns_status nsh_runner_run(nsh_runner *r, ns_err *err) {
  lua_pushcfunction(r->L, run);
  lua_insert(r->L, 2);
  if (lua_pcall(r->L, 1, 0, 1) == LUA_OK)
    return NS_OK;
  return ns_fail(err, NS_EINVALID, "%s", lua_tostring(r->L, -1));
}

void nsh_runner_forget(nsh_runner *r) {
  if (r->L != NULL)
    lua_close(r->L);
  r->L = NULL;
}

/* --------------------------------------------------------------- its thread */

static void *thread(void *arg) {
  nsh_runner *r = arg;
  r->main(r);
  nsh_exchange_lock(r->exchange);
  r->ended = true;
  pthread_cond_broadcast(r->wakes);
  nsh_exchange_unlock(r->exchange);
  return NULL;
}

ns_status nsh_runner_start(nsh_runner *r, ns_err *err) {
  sigset_t blocked;
  sigset_t old;
  sigfillset(&blocked);
  pthread_sigmask(SIG_SETMASK, &blocked, &old);
  r->running = pthread_create(&r->thread, NULL, thread, r) == 0;
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  return r->running ? NS_OK : ns_fail(err, NS_ENOMEM, "cannot start the thread of a runner");
}

void nsh_runner_end(nsh_runner *r) {
  nsh_exchange_lock(r->exchange);
  r->ends = true;
  pthread_cond_broadcast(r->wakes);
  nsh_exchange_unlock(r->exchange);
}

static bool await_end(nsh_runner *r) {
  nsh_exchange *m = r->exchange;
  int64_t max = atomic_load(&m->give_up) || atomic_load(&m->away) ? LEAVE_MAX : END_MAX;
  int64_t until = ns_mono_us() + max;
  struct timespec t = timespec_of(until);
  bool ended;
  nsh_exchange_lock(m);
  while (!r->ended && ns_mono_us() < until)
    pthread_cond_timedwait(r->wakes, &m->lock, &t);
  ended = r->ended;
  nsh_exchange_unlock(m);
  return ended;
}

bool nsh_runner_close(nsh_runner *r) {
  nsh_runner_end(r);
  if (r->running && !await_end(r))
    return false;
  if (r->running)
    pthread_join(r->thread, NULL);
  nsh_runner_forget(r);
  return true;
}

/* ------------------------------------------------------------ adopted tables */

typedef struct table_runner {
  nsh_runner runner; /* the first: both have one address */
  nsh_runners *all;
  ns_bytes table; /* of the configuration */
  uint64_t seen; /* turns that it knows of */
  /* the exchange's lock guards these */
  bool rested;    /* nothing is left that may be taken in */
  bool refused;   /* rows are left alone that the server refuses */
  int64_t due_at; /* monotonic µs: when the first row that waits may be; NEVER: none */
} table_runner;

struct nsh_runners {
  nsh_exchange *exchange;
  size_t n;
  table_runner items[];
};

/* --------------------------------------- adopted tables: functions for Lua */

static table_runner *self_of(lua_State *L) {
  return lua_touserdata(L, lua_upvalueindex(1));
}

/***
Waits until jobs have started or ended here, or for so long.
@function wait
@tparam number seconds
@treturn boolean whether the host ends
*/
static int runner_wait(lua_State *L) {
  table_runner *r = self_of(L);
  nsh_exchange *m = r->all->exchange;
  int64_t until = ns_mono_us() + (int64_t)(luaL_checknumber(L, 1) * NS_SECOND);
  bool ends;
  nsh_exchange_lock(m);
  while (r->seen == m->turns && nsh_runner_sleep(&r->runner, until))
    continue;
  r->seen = m->turns;
  ends = r->runner.ends;
  nsh_exchange_unlock(m);
  lua_pushboolean(L, ends);
  return 1;
}

/***
The handlers that the host can run, and how many workers take jobs now.
@function workers
@treturn string a list of names in JSON, with null at its end when there are more
@treturn integer
*/
static int runner_workers(lua_State *L) {
  nsh_exchange *m = self_of(L)->all->exchange;
  ns_buf *list = nsl_newbuf(L);
  size_t taking;
  nsh_exchange_lock(m);
  ns_buf_adds(list, m->handlers != NULL ? m->handlers : "[]");
  taking = m->taking;
  nsh_exchange_unlock(m);
  if (list->oom)
    return luaL_error(L, "not enough memory");
  lua_pushlstring(L, list->p, list->n);
  lua_pushinteger(L, (lua_Integer)taking);
  return 2;
}

/* Publishes the reports of all runners. The lock is held. */
static void publish(const nsh_runners *all) {
  nsh_exchange *m = all->exchange;
  m->rows_rested = true;
  m->rows_refused = false;
  m->rows_due_at = NSH_NEVER;
  for (size_t i = 0; i < all->n; i++) {
    const table_runner *r = &all->items[i];
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
  table_runner *r = self_of(L);
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

static void push_host(lua_State *L, nsh_runner *r) {
  static const luaL_Reg functions[] = {{"wait", runner_wait},   {"workers", runner_workers},
                                       {"tell", runner_tell},   {"log", nsh_runner_log},
                                       {NULL, NULL}};
  luaL_newlibtable(L, functions);
  lua_pushlightuserdata(L, r);
  luaL_setfuncs(L, functions, 1);
  lua_pushnumber(L, (lua_Number)r->cfg->drain_within / NS_SECOND);
  lua_setfield(L, -2, "within");
  lua_pushboolean(L, r->cfg->drain);
  lua_setfield(L, -2, "drain");
}

/* ------------------------------------------ adopted tables: birth and end */

static void work(nsh_runner *r) {
  ns_err err;
  if (nsh_runner_run(r, &err) != NS_OK)
    ns_log(NS_LOG_ERROR, "adopted.error",
           NS_FIELDS(ns_fb("table", ((table_runner *)r)->table), ns_fs("error", err.message)));
}

ns_status nsh_runners_open(nsh_runners **out, const nsh_config *cfg, nsh_exchange *exchange,
                           ns_err *err) {
  nsh_runners *all = nsh_alloc(sizeof *all + cfg->ntables * sizeof *all->items);
  ns_status st = NS_OK;
  *out = all;
  all->exchange = exchange;
  for (size_t i = 0; st == NS_OK && i < cfg->ntables; i++) {
    all->items[i] = (table_runner){.runner = {.cfg = cfg,
                                              .exchange = exchange,
                                              .wakes = &exchange->runners,
                                              .module = "nightshift.source.runner",
                                              .mapping = cfg->tables[i].mapping,
                                              .push_host = push_host,
                                              .main = work},
                                   .all = all,
                                   .table = cfg->tables[i].name,
                                   .due_at = NSH_NEVER};
    all->n++;
    st = nsh_runner_open(&all->items[i].runner, err);
  }
  nsh_exchange_lock(exchange);
  publish(all);
  nsh_exchange_unlock(exchange);
  return st;
}

ns_status nsh_runners_start(nsh_runners *all, ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < all->n; i++)
    st = nsh_runner_start(&all->items[i].runner, err);
  return st;
}

bool nsh_runners_close(nsh_runners *all) {
  if (all == NULL)
    return true;
  for (size_t i = 0; i < all->n; i++)
    nsh_runner_end(&all->items[i].runner);
  for (size_t i = 0; i < all->n; i++)
    if (!nsh_runner_close(&all->items[i].runner))
      return false;
  free(all);
  return true;
}
