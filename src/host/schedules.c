/*
** The thread of schedules: it sleeps until the upkeep has seen a tick that is due, or scripts that
** declare schedules were loaded. Only then does it open a Lua state with a connection of its own.
** lua/nightshift/schedule/runner.lua has its work.
**
** Invariant: it shares only the exchange with the host, and waits there. (Not
** asserted: a Lua state does not know its threads.)
*/
#include "host.h"

#include <lauxlib.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "ipc/ipc.h"
#include "nsl.h"

#define RETRY (5 * NS_SECOND) /* after a state that could not be opened */

struct nsh_schedules {
  nsh_runner runner; /* the first: both have one address */
  uint64_t handed;   /* the readings of scripts that it has been told */
};

/* ------------------------------------------------ functions for Lua */

static nsh_schedules *self_of(lua_State *L) {
  return lua_touserdata(L, lua_upvalueindex(1));
}

/* True: the host ends. */
static bool wait_until(nsh_schedules *s, int64_t until, uint64_t known, bool rests) {
  nsh_exchange *m = s->runner.exchange;
  bool ends;
  nsh_exchange_lock(m);
  while ((rests || (!m->ticks_due && m->declarations == known)) &&
         nsh_runner_sleep(&s->runner, until))
    continue;
  ends = s->runner.ends;
  nsh_exchange_unlock(m);
  return ends;
}

/***
Waits until a tick is due, or scripts were loaded, or for so long.
@function wait
@tparam number seconds
@tparam boolean rests nothing but the end of the host is waited for
@tparam integer known readings of scripts that the caller knows of
@treturn boolean whether the host ends
*/
static int schedules_wait(lua_State *L) {
  nsh_schedules *s = self_of(L);
  lua_Number seconds = luaL_checknumber(L, 1);
  int64_t until = ns_mono_us() + (int64_t)((seconds > 0 ? seconds : 0) * NS_SECOND);
  uint64_t known = (uint64_t)luaL_optinteger(L, 3, 0);
  lua_pushboolean(L, wait_until(s, until, known, lua_toboolean(L, 2)));
  return 1;
}

/***
The schedules that the scripts declare.
@function declared
@treturn string a list of {name, schedule} in JSON
@treturn integer counts the readings of scripts
@treturn number seconds since the last of them
*/
static int schedules_declared(lua_State *L) {
  nsh_schedules *s = self_of(L);
  nsh_exchange *m = s->runner.exchange;
  ns_buf *list = nsl_newbuf(L);
  int64_t at;
  nsh_exchange_lock(m);
  ns_buf_adds(list, m->declared != NULL ? m->declared : "[]");
  s->handed = m->declarations;
  at = m->declared_at;
  nsh_exchange_unlock(m);
  if (list->oom)
    return luaL_error(L, "not enough memory");
  lua_pushlstring(L, list->p, list->n);
  lua_pushinteger(L, (lua_Integer)s->handed);
  lua_pushnumber(L, (lua_Number)(ns_mono_us() - at) / NS_SECOND);
  return 3;
}

/* A round is over: the upkeep looks for the next tick. A host that drains claims again before it
** ends. */
static void tell_round(nsh_schedules *s) {
  nsh_exchange *m = s->runner.exchange;
  nsh_exchange_lock(m);
  m->declared_of = s->handed;
  m->ticks_due = false;
  m->ticks_moved = true;
  if (s->runner.cfg->drain) {
    m->ticked_at = ns_mono_us();
    m->rested = false;
    m->woken = true;
    pthread_cond_signal(&m->work);
  }
  pthread_cond_signal(&m->upkeep);
  nsh_exchange_unlock(m);
  m->notify(m->notify_arg);
}

/***
All that was due is pushed, or has failed.
@function fired
*/
static int schedules_fired(lua_State *L) {
  tell_round(self_of(L));
  return 0;
}

static void push_host(lua_State *L, nsh_runner *r) {
  static const luaL_Reg functions[] = {{"wait", schedules_wait},
                                       {"declared", schedules_declared},
                                       {"fired", schedules_fired},
                                       {"log", nsh_runner_log},
                                       {NULL, NULL}};
  luaL_newlibtable(L, functions);
  lua_pushlightuserdata(L, r);
  luaL_setfuncs(L, functions, 1);
}

/* -------------------------------------------------------- the thread */

/* False: the host ends before there is anything to do. */
static bool await_need(nsh_schedules *s) {
  nsh_exchange *m = s->runner.exchange;
  bool ends;
  nsh_exchange_lock(m);
  while (!s->runner.ends && !m->ticks_due && m->declared == NULL)
    pthread_cond_wait(&m->schedules, &m->lock);
  ends = s->runner.ends;
  s->handed = m->declarations;
  nsh_exchange_unlock(m);
  return !ends;
}

/* Until the host ends; a state that cannot go on is made anew. */
static void work(nsh_runner *r) {
  nsh_schedules *s = (nsh_schedules *)r;
  ns_err err;
  while (await_need(s)) {
    ns_status st = nsh_runner_open(r, &err);
    if (st == NS_OK)
      st = nsh_runner_run(r, &err);
    if (st != NS_OK)
      ns_log(NS_LOG_ERROR, "schedule.error", NS_FIELDS(ns_fs("error", err.message)));
    nsh_runner_forget(r);
    tell_round(s); /* it has failed, but for an end */
    if (wait_until(s, ns_mono_us() + RETRY, 0, true))
      break;
  }
}

/* ------------------------------------------------------------ birth and end */

ns_status nsh_schedules_start(nsh_schedules **out, const nsh_config *cfg, nsh_exchange *exchange,
                              ns_err *err) {
  nsh_schedules *s = *out = nsh_alloc(sizeof *s);
  s->runner = (nsh_runner){.cfg = cfg,
                           .exchange = exchange,
                           .wakes = &exchange->schedules,
                           .module = "nightshift.schedule.runner",
                           .push_host = push_host,
                           .main = work};
  return nsh_runner_start(&s->runner, err);
}

bool nsh_schedules_close(nsh_schedules *s) {
  if (s != NULL && !nsh_runner_close(&s->runner))
    return false;
  free(s);
  return true;
}
