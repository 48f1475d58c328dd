/*
** The thread of the figures of the database. It sleeps until a request asks for some, and then
** has lua/nightshift/report/figures.lua read them. The text of samples is made here, with the words
** of http/metrics.c.
**
** Invariant: it shares only the exchange and the server's answers with the host. (Not asserted: a
** Lua state does not know its threads.)
*/
#include "host.h"

#include <lauxlib.h>
#include <stdlib.h>

#include "base.h"
#include "ipc/ipc.h"
#include "worker/worker.h"

#define LABELS_MAX 3

struct nsh_figures {
  nsh_runner runner; /* the first: both have one address */
  nsh_http *http;
  ns_buf text; /* of the look under way */
  bool told;   /* the request that asked has its answer */
  bool failed; /* the last state could not be made; the log has said so */
};

/* ------------------------------------------------ functions for Lua */

static nsh_figures *self_of(lua_State *L) {
  return lua_touserdata(L, lua_upvalueindex(1));
}

/* False: the host ends. */
static bool await_request(nsh_figures *f) {
  nsh_exchange *m = f->runner.exchange;
  bool ends;
  nsh_exchange_lock(m);
  while (!f->runner.ends && !nsh_http_asks(f->http))
    pthread_cond_wait(f->runner.wakes, &m->lock);
  ends = f->runner.ends;
  nsh_exchange_unlock(m);
  f->told = false;
  return !ends;
}

static void answer(nsh_figures *f, ns_buf *text, const char *server) {
  nsh_exchange_lock(f->runner.exchange);
  nsh_http_answer(f->http, text, server);
  nsh_exchange_unlock(f->runner.exchange);
  f->told = true;
}

/***
Waits until figures are asked for.
@function wait
@treturn boolean whether the host ends
*/
static int figures_wait(lua_State *L) {
  lua_pushboolean(L, !await_request(self_of(L)));
  return 1;
}

/***
Begins a family of samples.
@function family
@tparam string name
@tparam string help
@tparam string|nil type of all of them: "gauge" when absent
*/
static int figures_family(lua_State *L) {
  nsh_metrics_family(&self_of(L)->text, luaL_checkstring(L, 1), luaL_optstring(L, 3, "gauge"),
                     luaL_checkstring(L, 2));
  return 0;
}

/***
Adds a sample.
@function sample
@tparam string name
@tparam number value
@tparam string ... a label's key, and its value; and so on
*/
static int figures_sample(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  nsh_label labels[LABELS_MAX];
  size_t n = 0;
  char text[NS_NUMBER_SIZE];
  ns_number(luaL_checknumber(L, 2), text);
  for (int i = 3; i < lua_gettop(L) && n < LABELS_MAX; i += 2)
    labels[n++] = (nsh_label){luaL_checkstring(L, i), nsh_lua_text(L, i + 1)};
  nsh_metrics_sample(&self_of(L)->text, name, labels, n, text);
  return 0;
}

/***
Answers the request.
@function tell
@tparam boolean good whether the samples are complete
@tparam string|nil server its version
*/
static int figures_tell(lua_State *L) {
  nsh_figures *f = self_of(L);
  bool good = lua_toboolean(L, 1) && !f->text.oom;
  answer(f, good ? &f->text : NULL, luaL_optstring(L, 2, NULL));
  ns_buf_free(&f->text);
  return 0;
}

static void push_host(lua_State *L, nsh_runner *r) {
  static const luaL_Reg functions[] = {{"wait", figures_wait},     {"family", figures_family},
                                       {"sample", figures_sample}, {"tell", figures_tell},
                                       {"log", nsh_runner_log},    {NULL, NULL}};
  luaL_newlibtable(L, functions);
  lua_pushlightuserdata(L, r);
  luaL_setfuncs(L, functions, 1);
}

/* ------------------------------------------------------------ the thread */

/* Until the host ends. A state that cannot be made, or cannot go on, is made anew for the next
** request; this one has no figures. */
static void work(nsh_runner *r) {
  nsh_figures *f = (nsh_figures *)r;
  ns_err err;
  while (await_request(f)) {
    ns_status st = nsh_runner_open(r, &err);
    if (st == NS_OK)
      st = nsh_runner_run(r, &err);
    if (st != NS_OK && !f->failed)
      ns_log(NS_LOG_WARN, "figures.failed", NS_FIELDS(ns_fs("error", err.message)));
    f->failed = st != NS_OK;
    nsh_runner_forget(r);
    ns_buf_free(&f->text);
    if (!f->told)
      answer(f, NULL, NULL);
  }
}

/* ------------------------------------------------------------ birth and end */

ns_status nsh_figures_start(nsh_figures **out, const nsh_config *cfg, nsh_exchange *exchange,
                            nsh_http *http, ns_err *err) {
  nsh_figures *f;
  *out = NULL;
  if (http == NULL)
    return NS_OK;
  f = *out = nsh_alloc(sizeof *f);
  f->http = http;
  f->runner = (nsh_runner){.cfg = cfg,
                           .exchange = exchange,
                           .wakes = nsh_http_wakes(http),
                           .module = "nightshift.report.figures",
                           .push_host = push_host,
                           .main = work};
  return nsh_runner_start(&f->runner, err);
}

bool nsh_figures_close(nsh_figures *f) {
  if (f != NULL && !nsh_runner_close(&f->runner))
    return false;
  free(f);
  return true;
}
