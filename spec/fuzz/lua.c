/*
** Fuzzes the binding from inside Lua. TARGET is one of targets.lua, which returns a function of
** the input for each, and an error that it raises is a finding. One Lua state serves all
** inputs.
**
** The database is a dummy. Below are the functions of the core that would reach a server, in
** place of the real ones (the linker's --wrap). They check what a server would be sent with the
** core's own checks, and touch every byte of it.
*/
#include <assert.h>
#include <lauxlib.h>
#include <lualib.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/lua/nsl.h"
#include "link/link.h"
#include "nightshift_admin.h"

#ifndef TARGET
#define TARGET "json"
#endif

int LLVMFuzzerInitialize(int *argc, char ***argv);

/* One input; what libFuzzer calls. A check that fails stops the run, so that it keeps the input. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ------------------------------------------------------- the dummy database */

ns_status __wrap_ns_open(ns_db **out, const ns_config *cfg, ns_err *err);
void __wrap_ns_close(ns_db *db);
void __wrap_ns_forget_done(ns_db *db, bool yes);
bool __wrap_ns_in_transaction(const ns_db *db);
void __wrap_ns_act_as(ns_db *db, ns_via via);
ns_status __wrap_ns_push_jobs(ns_db *db, ns_bytes queue, ns_push *jobs, size_t n, ns_err *err);
ns_status __wrap_ns_settle(ns_db *db, ns_verdict *v, ns_err *err);
ns_status __wrap_ns_take_ids(ns_db *db, int64_t *ids, size_t n, ns_err *err);
ns_status __wrap_ns_signal(ns_db *db, int64_t id, ns_bytes value, ns_bytes name, ns_err *err);
ns_status __wrap_ns_reprioritise(ns_db *db, int64_t id, int64_t priority, ns_err *err);
ns_status __wrap_ns_execute(ns_db *db, ns_bytes sql, const ns_value *params, size_t nparams,
                            ns_result *result, ns_err *err);

static volatile size_t sum; /* keeps the reads below */

static void touch(ns_bytes s) {
  for (size_t i = 0; i < s.n; i++)
    sum += (unsigned char)s.p[i];
}

ns_status __wrap_ns_open(ns_db **out, const ns_config *cfg, ns_err *err) {
  const char *const texts[] = {cfg->url,      cfg->host,   cfg->user, cfg->password,
                               cfg->database, cfg->socket, cfg->file, cfg->group,
                               cfg->tls,      cfg->ca,     cfg->cert, cfg->key};
  ns_url url = NS_URL_INIT;
  ns_status st = NS_OK;
  *out = NULL;
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
    touch(ns_str(texts[i]));
  assert(cfg->port <= 65535 && cfg->connect_timeout >= 0);
  if (cfg->url != NULL)
    st = ns_url_parse(cfg->url, &url, err);
  ns_url_free(&url);
  if (st == NS_OK)
    *out = malloc(1);
  return st;
}

void __wrap_ns_close(ns_db *db) {
  free(db);
}

bool __wrap_ns_in_transaction(const ns_db *db) {
  (void)db;
  return false;
}

void __wrap_ns_act_as(ns_db *db, ns_via via) {
  assert(db != NULL);
  sum += via;
}

void __wrap_ns_forget_done(ns_db *db, bool yes) {
  assert(db != NULL);
  sum += yes;
}

static ns_status check(const ns_push *jobs, size_t n, ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < n; i++) {
    touch(jobs[i].name);
    touch(jobs[i].queue);
    touch(jobs[i].unique);
    touch(jobs[i].payload);
    touch(jobs[i].after);
    touch(jobs[i].group);
    st = ns_push_check(&jobs[i], 0, err);
  }
  return st;
}

ns_status __wrap_ns_push_jobs(ns_db *db, ns_bytes queue, ns_push *jobs, size_t n, ns_err *err) {
  assert(db != NULL);
  touch(queue);
  for (size_t i = 0; i < n; i++)
    jobs[i].id = (int64_t)i + 1;
  return check(jobs, n, err);
}

ns_status __wrap_ns_settle(ns_db *db, ns_verdict *v, ns_err *err) {
  assert(db != NULL && v->kind >= NS_ACK && v->kind <= NS_MISSING);
  assert(v->delay >= -1);
  touch(v->result);
  touch(v->error);
  touch(v->state);
  touch(v->log);
  touch(v->signal);
  return check(v->children, v->nchildren, err);
}

ns_status __wrap_ns_take_ids(ns_db *db, int64_t *ids, size_t n, ns_err *err) {
  assert(db != NULL && err != NULL);
  for (size_t i = 0; i < n; i++)
    ids[i] = (int64_t)i + 1;
  return NS_OK;
}

ns_status __wrap_ns_signal(ns_db *db, int64_t id, ns_bytes value, ns_bytes name, ns_err *err) {
  assert(db != NULL && err != NULL);
  sum += (size_t)id;
  touch(value);
  touch(name);
  return NS_OK;
}

ns_status __wrap_ns_reprioritise(ns_db *db, int64_t id, int64_t priority, ns_err *err) {
  assert(db != NULL && err != NULL);
  sum += (size_t)(id ^ priority);
  return NS_OK;
}

/* Whatever is asked for has gone meanwhile. */
ns_status __wrap_ns_execute(ns_db *db, ns_bytes sql, const ns_value *params, size_t nparams,
                            ns_result *result, ns_err *err) {
  assert(db != NULL);
  touch(sql);
  for (size_t i = 0; i < nparams; i++)
    if (params[i].type == NS_TEXT)
      touch(params[i].s);
  *result = (ns_result){0};
  return ns_fail(err, NS_ESTALE, "the database is a dummy");
}

/* --------------------------------------------------------------- the script */

static lua_State *L;

static int traceback(lua_State *S) {
  luaL_traceback(S, S, luaL_tolstring(S, 1, NULL), 1);
  return 1;
}

static void must(int status) {
  if (status == LUA_OK)
    return;
  fprintf(stderr, "%s\n", lua_tostring(L, -1));
  abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc;
  (void)argv;
  L = luaL_newstate();
  assert(L != NULL);
  luaL_openlibs(L);
  luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_PRELOAD_TABLE);
  lua_pushcfunction(L, luaopen_nightshift_core);
  lua_setfield(L, -2, "nightshift.core");
  lua_settop(L, 0);
  must(luaL_dostring(L, "package.path = './lua/?.lua;./lua/?/init.lua;./?.lua'"));
  lua_pushcfunction(L, traceback); /* index 1 */
  must(luaL_loadfile(L, "spec/fuzz/targets.lua"));
  must(lua_pcall(L, 0, 1, 1));
  lua_getfield(L, 2, TARGET);
  lua_replace(L, 2); /* index 2: the function */
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  lua_pushvalue(L, 2);
  lua_pushlstring(L, (const char *)data, size);
  must(lua_pcall(L, 1, 0, 1));
  return 0;
}
