/*
** Runners of adopted tables: a thread for each, so that a table that is slow, locked or altered
** delays no other. lua/nightshift/source/runner.lua has the work of a runner; here are the
** functions of the host for it.
**
** Invariant: what runners report is read by the loop as that of all tables together. (Not
** asserted: it is written with each report.)
*/
#include "host.h"

#include <lauxlib.h>
#include <stdlib.h>

#include "base.h"
#include "ipc/ipc.h"
#include "nsl.h"

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

/* ------------------------------------------------ functions for Lua */

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

/* ------------------------------------------------------------ birth and end */

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
