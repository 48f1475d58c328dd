/*
** A worker's reports: how the call of a handler has ended, for the job or for each of its batch.
** There is exactly one for each job, whatever happened. They are built in the channel's frame.
**
** There is one worker per process, so the state is static: Lua's errors may jump over it.
*/
#include <lauxlib.h>

#include "nsl.h"
#include "worker/worker.h"

#define ERROR_MAX 65600 /* bytes of an error text */

static nsh_call *c; /* that is being reported */
static ns_buf text; /* JSON of a plain result */

static nsh_report make_report(ns_kind kind) {
  return (nsh_report){.seq = c->seq, .kind = kind, .delay = -1,
                      .micros = c->ended - c->started, .leaves = c->spent && c->unreported == 0};
}

/* The frame of a job's end is built in the frame; false: it is too large. */
static bool build_report(const nsh_report *r, const ns_push *children) {
  size_t start;
  ns_buf_reset(&c->channel->frame);
  start = nsh_begin_report(&c->channel->frame, r);
  for (size_t i = 0; i < r->nchildren; i++)
    nsh_put_child(&c->channel->frame, &children[i]);
  return nsh_end(&c->channel->frame, start);
}

static void report_failure(ns_bytes error) {
  nsh_report r = make_report(NS_FAIL);
  r.most = atomic_load(&c->channel->slot->most);
  r.error = (ns_bytes){error.p, error.n < ERROR_MAX ? error.n : ERROR_MAX};
  if (!build_report(&r, NULL))
    nsh_channel_leave(1);
}

/* The handler simply returned: its result is at index 1. */
static void report_result(lua_State *L) {
  nsh_report r = make_report(NS_ACK);
  ns_err err;
  ns_buf_reset(&text);
  if (!lua_isnil(L, 1)) {
    if (nsl_encode(L, 1, "result", c->max_json, &text, &err) != NS_OK) {
      report_failure(ns_str(err.message));
      return;
    }
    r.result = ns_buf_bytes(&text);
  }
  if (!build_report(&r, NULL))
    report_failure(ns_str("the result is over 64 MiB"));
}

/* The verdict table is at index 2. */
static void report_verdict(lua_State *L) {
  ns_err err;
  nsl_verdict *box = nsl_toverdict(L, 2, c->max_json, &err);
  nsh_report r;
  if (box == NULL) {
    report_failure(ns_str(err.message));
    return;
  }
  if (box->verdict.kind == NS_FAIL && nsh_memory_limit_blamed(box->verdict.error)) {
    nsl_unbox(box);
    c->over = true; /* reported as such */
    return;
  }
  r = make_report(box->verdict.kind);
  r.delay = box->verdict.delay;
  r.go_on = box->verdict.go_on;
  r.most = box->verdict.most;
  r.stop = box->verdict.stop;
  r.result = box->verdict.result;
  r.error = box->verdict.error;
  r.state = box->verdict.state;
  r.signal = box->verdict.signal;
  r.nchildren = box->verdict.nchildren;
  if (!build_report(&r, box->verdict.children))
    report_failure(ns_str("the verdict with its children is over 64 MiB"));
  nsl_unbox(box);
}

/* Reports that the handler was stopped; a verdict that it gave meanwhile does not count. */
static void report_stopped(nsh_why why) {
  nsh_report r = make_report(NS_RELEASE);
  if (why == NSH_WHY_TIMEOUT)
    report_failure(nsh_interrupt_text());
  else if (!build_report(&r, NULL))
    nsh_channel_leave(1);
}

/* Protected. Arguments: result and verdict. */
static int report_what_came(lua_State *L) {
  if (lua_isnil(L, 2))
    report_result(L);
  else
    report_verdict(L);
  return 0;
}

/* Result and verdict are the first two of three on the stack. */
static void report_end(lua_State *L) {
  lua_settop(L, 2);
  lua_pushcfunction(L, report_what_came);
  lua_insert(L, 1);
  if (lua_pcall(L, 2, 0, 0) == LUA_OK && !c->over)
    return;
  c->spent = true;
  if (c->over)
    report_failure(nsh_memory_limit_text());
  else
    report_failure(lua_isstring(L, -1) ? nsh_lua_text(L, -1)
                                       : ns_str("the job's end could not be told"));
}

/* Reports the end of a call that is not what the handler says. False: it is. */
static bool report_fault(void) {
  if (c->limited)
    report_failure(nsh_memory_limit_text());
  else if (c->why != NSH_WHY_NONE)
    report_stopped(c->why);
  else if (!c->ok)
    report_failure(c->error.p != NULL ? c->error : ns_str("the job could not be run"));
  else if (c->left.p != NULL)
    report_failure(c->left);
  return c->limited || c->why != NSH_WHY_NONE || !c->ok || c->left.p != NULL;
}

/* ----------------------------------------------------------------- batches */

enum { RESULTS = 1, VERDICTS, SPENT, OWN };

/* Has the handler given job 'i' of the batch a verdict itself? Then that counts, however the call
** ended. But what was left behind undoes it, unless a transaction has written it. */
static bool has_own_verdict(lua_State *L, lua_Integer i) {
  bool own;
  if (!c->ok)
    return false;
  lua_rawgeti(L, OWN, i);
  own = lua_toboolean(L, -1);
  lua_pop(L, 1);
  if (!own || c->left.p == NULL)
    return own;
  lua_rawgeti(L, VERDICTS, i);
  lua_getfield(L, -1, "go_on");
  own = lua_tointeger(L, -1) == 1;
  lua_pop(L, 2);
  return own;
}

/* The result or verdict of job 'i'. */
static void report_member(lua_State *L, lua_Integer i) {
  c->over = false;
  lua_pushcfunction(L, report_what_came);
  lua_rawgeti(L, RESULTS, i);
  lua_rawgeti(L, VERDICTS, i);
  if (lua_pcall(L, 2, 0, 0) == LUA_OK && !c->over)
    return;
  c->spent = true;
  report_failure(c->over ? nsh_memory_limit_text() : ns_str("the job's end could not be told"));
}

/* ---------------------------------------------------------------- the reports */

void nsh_report_job(lua_State *L, nsh_call *call) {
  c = call;
  if (!report_fault())
    report_end(L);
  lua_settop(L, 0);
  nsh_channel_post(c->channel, c->ended);
}

void nsh_report_batch(lua_State *L, nsh_call *call) {
  int top = lua_gettop(L);
  c = call;
  for (c->unreported = c->members; c->unreported-- > 0;) {
    lua_Integer i = (lua_Integer)(c->members - c->unreported);
    if (has_own_verdict(L, i) || !report_fault())
      report_member(L, i);
    lua_settop(L, top);
    nsh_channel_post(c->channel, c->ended);
  }
  c->unreported = 0;
  lua_settop(L, 0);
}
