/*
** The thread of a runner: a Lua state with a connection of its own, which does rounds until the
** host ends (lua/nightshift/failure.lua). runners.c and schedules.c have what runners of adopted
** tables, and of schedules, share with the host.
**
** Invariant: a runner shares only the exchange with the host, and waits there. (Not asserted: a
** Lua state does not know its threads.)
*/
#include "host.h"

#include <lauxlib.h>
#include <signal.h>
#include <string.h>

#include "base.h"
#include "ipc/ipc.h"
#include "worker/worker.h"

#define END_MAX (5 * NS_SECOND)   /* for a runner's current work, and its last writes */
#define LEAVE_MAX (NS_SECOND / 2) /* ... of a host that leaves without the server */
#define FIELDS_MAX 4

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

/* --------------------------------------------------------------- the thread */

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
