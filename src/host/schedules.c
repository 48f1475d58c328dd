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
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "err.h"
#include "ipc/ipc.h"
#include "log.h"
#include "nsl.h"
#include "worker/worker.h"

#define END_MAX (5 * NS_SECOND)   /* for the transaction that it is at */
#define LEAVE_MAX (NS_SECOND / 2) /* ... of a host that leaves without the server */
#define RETRY (5 * NS_SECOND)     /* after a state that could not be opened */

struct nsh_schedules {
  const nsh_config *cfg;
  nsh_exchange *exchange;
  lua_State *L;    /* the thread's */
  uint64_t handed; /* the readings of scripts that it has been told */
  pthread_t thread;
  bool running;
  /* the exchange's lock guards these */
  bool ends, ended;
};

/* ------------------------------------------------ functions for Lua */

static nsh_schedules *self_of(lua_State *L) {
  return lua_touserdata(L, lua_upvalueindex(1));
}

/* The lock is held. True: the host ends. */
static bool wait_until(nsh_schedules *s, int64_t until, uint64_t known, bool rests) {
  nsh_exchange *m = s->exchange;
  struct timespec t = {(time_t)(until / NS_SECOND), (long)(until % NS_SECOND) * 1000};
  while (!s->ends && ns_mono_us() < until &&
         (rests || (!m->ticks_due && m->declarations == known)))
    pthread_cond_timedwait(&m->schedules, &m->lock, &t);
  return s->ends;
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
  bool ends;
  nsh_exchange_lock(s->exchange);
  ends = wait_until(s, until, known, lua_toboolean(L, 2));
  nsh_exchange_unlock(s->exchange);
  lua_pushboolean(L, ends);
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
  nsh_exchange *m = s->exchange;
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
  nsh_exchange *m = s->exchange;
  nsh_exchange_lock(m);
  m->declared_of = s->handed;
  m->ticks_due = false;
  m->ticks_moved = true;
  if (s->cfg->drain) {
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

/***
Writes a line into the log.
@function log
@tparam string level info, warn or error
@tparam string event
@tparam string|nil name of the schedule
@tparam string|nil error
*/
static int schedules_log(lua_State *L) {
  static const char *const names[] = {"info", "warn", "error", NULL};
  static const ns_level levels[] = {NS_LOG_INFO, NS_LOG_WARN, NS_LOG_ERROR};
  ns_level level = levels[luaL_checkoption(L, 1, "warn", names)];
  ns_log(level, luaL_checkstring(L, 2),
         NS_FIELDS(ns_fb("name", nsh_lua_text(L, 3)), ns_fb("error", nsh_lua_text(L, 4))));
  return 0;
}

static void push_host(lua_State *L, nsh_schedules *s) {
  static const luaL_Reg functions[] = {{"wait", schedules_wait},
                                       {"declared", schedules_declared},
                                       {"fired", schedules_fired},
                                       {"log", schedules_log},
                                       {NULL, NULL}};
  luaL_newlibtable(L, functions);
  lua_pushlightuserdata(L, s);
  luaL_setfuncs(L, functions, 1);
}

/* -------------------------------------------------------- the thread */

/* Protected. The runner, or nil, message, code when there is no connection. */
static int open_runner(lua_State *L) {
  nsh_schedules *s = lua_touserdata(L, 1);
  lua_settop(L, 0);
  lua_getglobal(L, "require");
  lua_pushliteral(L, "nightshift.schedule.runner");
  lua_call(L, 1, 1);
  lua_getfield(L, -1, "open");
  nsh_config_pushdb(L, s->cfg);
  push_host(L, s);
  lua_call(L, 2, 3);
  return 3;
}

/* Protected. */
static int run(lua_State *L) {
  lua_getfield(L, 1, "run");
  lua_insert(L, 1);
  lua_call(L, 1, 0);
  return 0;
}

/* Until the host ends, or the state cannot go on. */
static void run_state(lua_State *L, nsh_schedules *s) {
  const char *error = NULL;
  lua_pushcfunction(L, nsh_lua_traceback);
  lua_pushcfunction(L, open_runner);
  lua_pushlightuserdata(L, s);
  if (lua_pcall(L, 1, 3, 1) != LUA_OK)
    error = lua_tostring(L, -1);
  else if (lua_isnil(L, -3))
    error = lua_tostring(L, -2);
  else {
    lua_settop(L, 2);
    lua_pushcfunction(L, run);
    lua_insert(L, 2);
    if (lua_pcall(L, 1, 0, 1) != LUA_OK)
      error = lua_tostring(L, -1);
  }
  if (error != NULL)
    ns_log(NS_LOG_ERROR, "schedule.error", NS_FIELDS(ns_fs("error", error)));
}

/* False: the host ends before there is anything to do. */
static bool await_need(nsh_schedules *s) {
  nsh_exchange *m = s->exchange;
  bool ends;
  nsh_exchange_lock(m);
  while (!s->ends && !m->ticks_due && m->declared == NULL)
    pthread_cond_wait(&m->schedules, &m->lock);
  ends = s->ends;
  s->handed = m->declarations;
  nsh_exchange_unlock(m);
  return !ends;
}

/* False: the host ends. */
static bool rest(nsh_schedules *s) {
  bool ends;
  nsh_exchange_lock(s->exchange);
  ends = wait_until(s, ns_mono_us() + RETRY, 0, true);
  nsh_exchange_unlock(s->exchange);
  return !ends;
}

static void *thread(void *arg) {
  nsh_schedules *s = arg;
  nsh_exchange *m = s->exchange;
  while (await_need(s)) {
    s->L = nsh_lua_new();
    if (s->L != NULL) {
      run_state(s->L, s);
      lua_close(s->L);
      tell_round(s); /* it has failed, but for an end */
    }
    if (!rest(s))
      break;
  }
  nsh_exchange_lock(m);
  s->ended = true;
  pthread_cond_broadcast(&m->schedules);
  nsh_exchange_unlock(m);
  return NULL;
}

/* ------------------------------------------------------------ birth and end */

ns_status nsh_schedules_start(nsh_schedules **out, const nsh_config *cfg, nsh_exchange *exchange,
                              ns_err *err) {
  nsh_schedules *s = nsh_alloc(sizeof *s);
  sigset_t blocked;
  sigset_t old;
  *out = s;
  s->cfg = cfg;
  s->exchange = exchange;
  sigfillset(&blocked);
  pthread_sigmask(SIG_SETMASK, &blocked, &old);
  s->running = pthread_create(&s->thread, NULL, thread, s) == 0;
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  return s->running ? NS_OK : ns_fail(err, NS_ENOMEM, "cannot start the thread of schedules");
}

static bool await_end(nsh_schedules *s) {
  nsh_exchange *m = s->exchange;
  int64_t max = atomic_load(&m->give_up) || atomic_load(&m->away) ? LEAVE_MAX : END_MAX;
  int64_t until = ns_mono_us() + max;
  struct timespec t = {(time_t)(until / NS_SECOND), (long)(until % NS_SECOND) * 1000};
  bool ended;
  nsh_exchange_lock(m);
  s->ends = true;
  pthread_cond_broadcast(&m->schedules);
  while (!s->ended && ns_mono_us() < until)
    pthread_cond_timedwait(&m->schedules, &m->lock, &t);
  ended = s->ended;
  nsh_exchange_unlock(m);
  return ended;
}

bool nsh_schedules_close(nsh_schedules *s) {
  if (s == NULL)
    return true;
  if (s->running && !await_end(s))
    return false;
  if (s->running)
    pthread_join(s->thread, NULL);
  free(s);
  return true;
}
