/*
** Stopping a handler's Lua code from outside, in a worker.
**
** The host says which job is to stop (nsh_slot_tell), later it has the zygote send
** NSH_INTERRUPT_SIGNAL. The signal's handler sets a hook on the coroutine that runs, and the
** hook raises an error that names the place. It raises again and again, after fewer and fewer
** instructions. So a handler has time to clean up, and no pcall can swallow it for ever.
**
** Invariant: nothing is hooked unless the host asks; the coroutine that runs is
** known at any moment, because resume, wrap and close are ours. Code that runs
** in C, or in a coroutine that a C module resumed, is out of reach: for that
** there is SIGTERM.
**
** The hook, the signal and the coroutine functions. There is one worker per process, so the
** state is static; the words that the signal's handler reads are volatile.
*/
#include "worker/worker.h"

#include <lauxlib.h>
#include <lualib.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base.h"

#define FIRST_INTERVAL 65536 /* instructions until the second raise; then halving */
#define TEXT_MAX 4096

static struct {
  lua_State *main;
  lua_State *volatile now;        /* the coroutine that runs */
  volatile sig_atomic_t running;  /* a handler is on the stack */
  volatile sig_atomic_t hooked;   /* the signal came for it */
  nsh_slot *slot;
  uint32_t seq;
  int64_t timeout;
  int interval;
  nsh_why why;                    /* the hook has raised */
  char text[TEXT_MAX];
} h;

/* ------------------------------------------------------------------- hook */

/* The host has the text as well, should this worker not live to report it. */
static void publish_text(void) {
  if (!ns_utf8_valid(ns_str(h.text)))
    for (char *p = h.text; *p != '\0'; p++)
      *p = (unsigned char)*p < 0x80 ? *p : '?';
  if (h.why == NSH_WHY_TIMEOUT)
    nsh_slot_say(h.slot, h.seq, h.text);
}

static void describe_stop(lua_State *L, lua_Debug *ar) {
  static const char *const reasons[] = {[NSH_WHY_LOST] = "the claim is lost:",
                                        [NSH_WHY_CANCELLED] = "cancelled:",
                                        [NSH_WHY_STOP] = "the host stops:",
                                        [NSH_WHY_MEMORY] = "memory limit:"};
  char reason[64];
  char seconds[NS_NUMBER_SIZE];
  const char *trace;
  const char *ours;
  size_t n;
  lua_getinfo(L, "Sl", ar);
  if (h.why == NSH_WHY_TIMEOUT)
    snprintf(reason, sizeof reason, "timeout after %s s",
             ns_number_seconds(h.timeout, seconds));
  else
    snprintf(reason, sizeof reason, "%s stopped", reasons[h.why]);
  n = (size_t)snprintf(h.text, TEXT_MAX, "%s at %s:%d\n", reason,
                       ar->short_src, ar->currentline);
  publish_text(); /* the rest may fail, or the worker be killed in it */
  luaL_traceback(L, L, NULL, 0);
  trace = lua_tostring(L, -1);
  ours = strstr(trace, "\n\t[C]: in function 'xpcall'");
  snprintf(h.text + n, TEXT_MAX - n, "%.*s",
           ours != NULL ? (int)(ours - trace) : (int)strlen(trace), trace);
  lua_pop(L, 1);
  publish_text();
}

static void on_count(lua_State *L, lua_Debug *ar) {
  nsh_why why = h.running ? nsh_slot_told(h.slot, h.seq) : NSH_WHY_NONE;
  if (why == NSH_WHY_NONE) {
    lua_sethook(L, NULL, 0, 0); /* of a coroutine that an earlier job left */
    return;
  }
  lua_sethook(L, on_count, LUA_MASKCOUNT, h.interval);
  h.interval = h.interval > 1 ? h.interval / 2 : 1;
  if (h.why == NSH_WHY_NONE) {
    h.why = why;
    describe_stop(L, ar);
  }
  lua_pushlstring(L, h.text, strcspn(h.text, "\n"));
  lua_error(L);
}

/* May run at any moment. lua_sethook is made for that. */
static void on_signal(int sig) {
  (void)sig;
  if (!h.running || nsh_slot_told(h.slot, h.seq) == NSH_WHY_NONE)
    return;
  h.hooked = 1;
  lua_sethook(h.now, on_count, LUA_MASKCOUNT, 1);
}

/* ------------------------------------------------------------- coroutines */

/* 'L' runs from here on. Setting a hook starts its count anew, so that is done only to shorten
** it. Two coroutines that resume each other would never come to the end of it. */
static void enter_coroutine(lua_State *L) {
  h.now = L;
  if (h.hooked && (lua_gethook(L) != on_count || lua_gethookcount(L) > h.interval))
    lua_sethook(L, on_count, LUA_MASKCOUNT, h.interval);
}

/* Runs 'co' on with the 'n' values on top of 'L'. Its results are on top of 'L' then: returns
** their number, or -1 and an error. */
static int resume_coroutine(lua_State *L, lua_State *co, int n) {
  int got = 0;
  int status;
  if (!lua_checkstack(co, n)) {
    lua_pushliteral(L, "too many arguments to resume");
    return -1;
  }
  lua_xmove(L, co, n);
  enter_coroutine(co);
  status = lua_resume(co, L, n, &got);
  enter_coroutine(L);
  if (status != LUA_OK && status != LUA_YIELD) {
    lua_xmove(co, L, 1);
    return -1;
  }
  if (!lua_checkstack(L, got + 1)) {
    lua_pop(co, got);
    lua_pushliteral(L, "too many results to resume");
    return -1;
  }
  lua_xmove(co, L, got);
  return got;
}

/* resume(co, ...) */
static int co_resume(lua_State *L) {
  int got;
  luaL_checktype(L, 1, LUA_TTHREAD);
  got = resume_coroutine(L, lua_tothread(L, 1), lua_gettop(L) - 1);
  lua_pushboolean(L, got >= 0);
  lua_insert(L, got >= 0 ? -got - 1 : -2);
  return got >= 0 ? got + 1 : 2;
}

/* The error on top of 'L' came out of 'co'. Its pending variables are closed, and a text gets
** the place of the call in front. */
static int pass_error(lua_State *L, lua_State *co) {
  int status = lua_status(co);
  if (status != LUA_OK && status != LUA_YIELD) {
    lua_xmove(L, co, 1); /* where closing finds it */
    enter_coroutine(co);
    status = lua_resetthread(co);
    enter_coroutine(L);
    lua_xmove(co, L, 1);
  }
  if (status != LUA_ERRMEM && lua_type(L, -1) == LUA_TSTRING) {
    luaL_where(L, 1);
    lua_insert(L, -2);
    lua_concat(L, 2);
  }
  return lua_error(L);
}

static int call_wrapped(lua_State *L) {
  lua_State *co = lua_tothread(L, lua_upvalueindex(1));
  int got = resume_coroutine(L, co, lua_gettop(L));
  return got >= 0 ? got : pass_error(L, co);
}

/* wrap(f) */
static int co_wrap(lua_State *L) {
  lua_State *co;
  luaL_checktype(L, 1, LUA_TFUNCTION);
  co = lua_newthread(L);
  lua_pushvalue(L, 1);
  lua_xmove(L, co, 1);
  lua_pushcclosure(L, call_wrapped, 1);
  return 1;
}

/* close(co): the library's own, the first upvalue, with 'co' entered. */
static int co_close(lua_State *L) {
  lua_State *co = lua_tothread(L, 1);
  int status;
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  if (co != NULL)
    enter_coroutine(co);
  status = lua_pcall(L, lua_gettop(L) - 1, LUA_MULTRET, 0);
  enter_coroutine(L);
  return status == LUA_OK ? lua_gettop(L) : lua_error(L);
}

/* debug.sethook(...): the library's own, the first upvalue, which cannot remove
** the hook of a handler that is being stopped. */
static int debug_sethook(lua_State *L) {
  if (!h.hooked) {
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_call(L, lua_gettop(L) - 1, 0);
  }
  if (h.hooked && lua_gethook(h.now) != on_count) /* asked in the middle */
    lua_sethook(h.now, on_count, LUA_MASKCOUNT, 1);
  return 0;
}

/* ------------------------------------------------------------------- verbs */

void nsh_interrupt_install(lua_State *L) {
  lua_getglobal(L, LUA_COLIBNAME);
  lua_pushcfunction(L, co_resume);
  lua_setfield(L, -2, "resume");
  lua_pushcfunction(L, co_wrap);
  lua_setfield(L, -2, "wrap");
  lua_getfield(L, -1, "close");
  lua_pushcclosure(L, co_close, 1);
  lua_setfield(L, -2, "close");
  lua_pop(L, 1);
  lua_getglobal(L, LUA_DBLIBNAME);
  lua_getfield(L, -1, "sethook");
  lua_pushcclosure(L, debug_sethook, 1);
  lua_setfield(L, -2, "sethook");
  lua_pop(L, 1);
  h.main = h.now = L;
}

void nsh_interrupt_listen(lua_State *L, nsh_slot *slot) {
  struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
  h.main = h.now = L;
  h.slot = slot;
  sigaction(NSH_INTERRUPT_SIGNAL, &act, NULL);
}

void nsh_interrupt_begin(uint32_t seq, int64_t timeout) {
  ns_assert(!h.running && !h.hooked); /* nothing is hooked between two jobs */
  h.seq = seq;
  h.timeout = timeout;
  h.interval = FIRST_INTERVAL;
  h.why = NSH_WHY_NONE;
  h.now = h.main;
  h.running = 1;
}

void nsh_interrupt_timeout(int64_t timeout) {
  h.timeout = timeout;
}

bool nsh_interrupt_asked(void) {
  return h.hooked != 0;
}

nsh_why nsh_interrupt_end(void) {
  h.running = 0;
  if (h.hooked) {
    h.hooked = 0;
    lua_sethook(h.main, NULL, 0, 0);
  }
  return h.why;
}

ns_bytes nsh_interrupt_text(void) {
  return ns_str(h.text);
}
