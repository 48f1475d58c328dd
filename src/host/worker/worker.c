/*
** The worker's loop: a job, its verdict, the next. Verdicts are posted at once. The host is
** told of them later while more jobs are at hand and each of them is expected to be short. How
** frames travel is in worker/channel.c.
**
** There is one worker per process, so its state is static, and buffers that
** Lua's errors may jump over belong to the process.
*/
#include "worker/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <lauxlib.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "clock.h"
#include "ipc/ipc.h"
#include "nsl.h"

#define HOLD_US 300        /* the host is told of a verdict at most so late */
#define ASK_EVERY NS_SECOND /* cancelled() asks the host at most so often */
#define FRESH_MS 50        /* between looks whether the host is back in touch */
#define ERROR_MAX 65600    /* bytes of an error text */
#define SPARE_FILES 8      /* descriptors a job needs to have a chance */
#define STOP_S 1           /* seconds for functions of nightshift.on("worker.stop") */

static struct {
  lua_State *L;
  const nsh_config *cfg;
  nsh_channel channel;
  pid_t pid;          /* a handler may fork: its child is not the worker */
  int begin, run, reset, finish; /* references */
  int64_t max_json;
  ns_buf text;        /* JSON of a plain result */
  uint32_t seq;       /* of the running job */
  bool running;       /* a handler is on the stack */
  bool over;          /* it was over its memory limit */
  bool spent;         /* this state is not to be trusted with another job, or has
                      ** had as many as it may have: */
  int64_t left;       /* jobs until then; 0: any number */
  int64_t started, ended; /* of the job, monotonic µs */
  int64_t asked;          /* when the running job last asked for its claim */
} w;

/* ------------------------------------------- functions for handlers */

/* A child that a handler forked has our memory, and no say in how the job
** ends. */
static bool is_forked_child(void) {
  return getpid() != w.pid;
}

static int push_lost(lua_State *L) {
  lua_pushnil(L);
  lua_pushliteral(L, "the claim is lost: the job was cancelled or is run "
                     "elsewhere");
  lua_pushliteral(L, "STALE");
  return 3;
}

/* Raises outside a handler, in a coroutine's finaliser for instance. */
static void need_job(lua_State *L) {
  if (!w.running)
    luaL_error(L, "no job is running");
  if (is_forked_child())
    luaL_error(L, "a forked child cannot speak for the job");
}

static bool is_claim_held(void) {
  return atomic_load(&w.channel.slot->lost) != w.seq + 1;
}

static void send_progress(double progress, ns_bytes text) {
  size_t start;
  ns_buf_reset(&w.channel.frame);
  start = nsh_begin(&w.channel.frame, NSH_PROGRESS);
  nsh_put_int(&w.channel.frame, w.seq);
  nsh_put_real(&w.channel.frame, progress);
  nsh_put_bytes(&w.channel.frame, text);
  if (nsh_end(&w.channel.frame, start))
    nsh_channel_post_now(&w.channel);
}

/* touch([progress [, text]]): shows a sign of life. True, or nil, message,
** code when the claim is known to be lost. */
static int api_touch(lua_State *L) {
  double progress = luaL_optnumber(L, 1, -1);
  ns_bytes text = NS_NONE;
  text.p = luaL_optlstring(L, 2, NULL, &text.n);
  need_job(L);
  send_progress(progress, text);
  w.asked = ns_mono_us();
  if (!is_claim_held())
    return push_lost(L);
  lua_pushboolean(L, true);
  return 1;
}

/* cancelled(): is the job to stop, or its claim known to be lost? Asking makes
** the host ask. */
static int api_cancelled(lua_State *L) {
  int64_t now = ns_mono_us();
  need_job(L);
  if (now - w.asked > ASK_EVERY) {
    send_progress(-1, NS_NONE);
    w.asked = now;
  }
  lua_pushboolean(L, !is_claim_held() || nsh_slot_told(w.channel.slot, w.seq) != NSH_WHY_NONE);
  return 1;
}

/* stopping(): does the host drain or stop, or is the job to stop? */
static int api_stopping(lua_State *L) {
  if (!nsh_slots_stopping(w.channel.slots))
    return api_cancelled(L);
  need_job(L);
  lua_pushboolean(L, true);
  return 1;
}

/* log(text): one line of the running job. */
static int api_log(lua_State *L) {
  ns_bytes text;
  size_t start;
  text.p = luaL_checklstring(L, 1, &text.n);
  need_job(L);
  ns_buf_reset(&w.channel.frame);
  start = nsh_begin(&w.channel.frame, NSH_LOG);
  nsh_put_int(&w.channel.frame, w.seq);
  nsh_put_bytes(&w.channel.frame, text);
  if (nsh_end(&w.channel.frame, start))
    nsh_channel_post_now(&w.channel);
  lua_pushboolean(L, true);
  return 1;
}

/* take_id(): an id for a child; nil, message, code when the job is being stopped. */
static int api_take_id(lua_State *L) {
  int64_t id;
  need_job(L);
  if (!nsh_channel_take_id(&w.channel, &id)) {
    lua_pushnil(L);
    lua_pushliteral(L, "no id for a child: the job is being stopped");
    lua_pushliteral(L, "GONE");
    return 3;
  }
  lua_pushinteger(L, id);
  return 1;
}

/* quota(bytes): the limit of the running job. */
static int api_quota(lua_State *L) {
  nsh_memory_limit_begin(w.L, luaL_checkinteger(L, 1), w.channel.slot, w.seq);
  return 0;
}

/* limit(timeout, attempts): what the handler of the running job says; µs; 0: nothing. */
static int api_limit(lua_State *L) {
  int64_t timeout = luaL_checkinteger(L, 1);
  nsh_slot_limit(w.channel.slot, timeout, luaL_checkinteger(L, 2));
  if (timeout > 0)
    nsh_interrupt_timeout(timeout);
  return 0;
}

/* complain(event, text): a function of nightshift.on has failed. */
static int api_complain(lua_State *L) {
  ns_bytes event, text;
  size_t start;
  event.p = luaL_checklstring(L, 1, &event.n);
  text.p = luaL_checklstring(L, 2, &text.n);
  if (is_forked_child())
    return 0;
  ns_buf_reset(&w.channel.frame);
  start = nsh_begin(&w.channel.frame, NSH_HOOK);
  nsh_put_bytes(&w.channel.frame, event);
  nsh_put_bytes(&w.channel.frame, text);
  if (nsh_end(&w.channel.frame, start))
    nsh_channel_post_now(&w.channel);
  return 0;
}

/* exit(status): output of the handler is not lost. */
static int api_exit(lua_State *L) {
  int status = (int)luaL_checkinteger(L, 1);
  fflush(NULL);
  nsh_channel_leave(status);
}

void nsh_worker_pushapi(lua_State *L) {
  static const luaL_Reg api[] = {{"touch", api_touch},
                                 {"cancelled", api_cancelled},
                                 {"stopping", api_stopping},
                                 {"log", api_log},
                                 {"take_id", api_take_id},
                                 {"quota", api_quota},
                                 {"limit", api_limit},
                                 {"complain", api_complain},
                                 {"exit", api_exit},
                                 {NULL, NULL}};
  luaL_newlib(L, api);
}

void nsh_worker_keep(lua_State *L) {
  w.finish = luaL_ref(L, LUA_REGISTRYINDEX);
  w.reset = luaL_ref(L, LUA_REGISTRYINDEX);
  w.run = luaL_ref(L, LUA_REGISTRYINDEX);
  w.begin = luaL_ref(L, LUA_REGISTRYINDEX);
}

/* ------------------------------------------------------------ running jobs */

static nsh_report make_report(ns_kind kind) {
  return (nsh_report){.seq = w.seq, .kind = kind, .delay = -1,
                      .micros = w.ended - w.started, .leaves = w.spent};
}

/* The frame of a job's end is built in w.channel.frame; false: it is too large. */
static bool build_report(const nsh_report *r, const ns_push *children) {
  size_t start;
  ns_buf_reset(&w.channel.frame);
  start = nsh_begin_report(&w.channel.frame, r);
  for (size_t i = 0; i < r->nchildren; i++)
    nsh_put_child(&w.channel.frame, &children[i]);
  return nsh_end(&w.channel.frame, start);
}

static void report_failure(ns_bytes error) {
  nsh_report r = make_report(NS_FAIL);
  r.most = atomic_load(&w.channel.slot->most);
  r.error = (ns_bytes){error.p, error.n < ERROR_MAX ? error.n : ERROR_MAX};
  if (!build_report(&r, NULL))
    nsh_channel_leave(1);
}

/* The handler simply returned: its result is at index 1. */
static void report_result(lua_State *L) {
  nsh_report r = make_report(NS_ACK);
  ns_err err;
  ns_buf_reset(&w.text);
  if (!lua_isnil(L, 1)) {
    if (nsl_encode(L, 1, "result", w.max_json, &w.text, &err) != NS_OK) {
      report_failure(ns_str(err.message));
      return;
    }
    r.result = ns_buf_bytes(&w.text);
  }
  if (!build_report(&r, NULL))
    report_failure(ns_str("the result is over 64 MiB"));
}

/* The verdict table is at index 2. */
static void report_verdict(lua_State *L) {
  ns_err err;
  nsl_verdict *box = nsl_toverdict(L, 2, w.max_json, &err);
  nsh_report r;
  if (box == NULL) {
    report_failure(ns_str(err.message));
    return;
  }
  if (box->verdict.kind == NS_FAIL && nsh_memory_limit_blamed(box->verdict.error)) {
    nsl_unbox(box);
    w.over = true; /* reported as such */
    return;
  }
  r = make_report(box->verdict.kind);
  r.delay = box->verdict.delay;
  r.go_on = box->verdict.go_on;
  r.most = box->verdict.most;
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

/* Has a job left so many files open that the next ones would have none? */
static bool files_left(void) {
  struct rlimit r;
  int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return errno != EMFILE;
  close(fd);
  return getrlimit(RLIMIT_NOFILE, &r) != 0 ||
         (rlim_t)fd + SPARE_FILES < r.rlim_cur;
}

/* Does the process have more in memory than it may keep? */
static bool is_fat(void) {
  char text[128];
  long pages = 0;
  int fd;
  ssize_t n;
  if (w.cfg->recycle_memory == 0)
    return false;
  fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
  if (fd >= 0)
    close(fd);
  text[n > 0 ? n : 0] = '\0';
  return sscanf(text, "%*d %ld", &pages) == 1 &&
         (int64_t)pages * sysconf(_SC_PAGESIZE) > w.cfg->recycle_memory;
}

/* Is the job that has just ended the last one of this worker? */
static bool is_last(void) {
  return (w.left > 0 && --w.left == 0) || is_fat();
}

/* Protected. Argument: the order. Results: the ones of run(job), a result, or nil and a
** verdict, and whether this worker is spent. */
static int call_handler(lua_State *L) {
  const nsh_order *o = lua_touserdata(L, 1);
  lua_settop(L, 0);
  lua_rawgeti(L, LUA_REGISTRYINDEX, w.run);
  nsl_pushjob(L, &o->job);
  w.running = true;
  lua_call(L, 1, 3);
  if (is_forked_child())
    nsh_channel_leave(lua_isnil(L, 2) ? 0 : 1);
  w.ended = ns_mono_us();
  w.spent = lua_toboolean(L, 3) || w.spent || (!lua_isnil(L, 2) && !files_left());
  return 3;
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
  if (lua_pcall(L, 2, 0, 0) == LUA_OK && !w.over)
    return;
  w.spent = true;
  if (w.over)
    report_failure(nsh_memory_limit_text());
  else
    report_failure(lua_isstring(L, -1) ? nsh_lua_text(L, -1)
                                       : ns_str("the job's end could not be told"));
}

/* Sets back the job's changes to its connection, in a place where nothing stops it. A text on
** top of the stack: the attempt has failed, and why; else the stack is as before. */
static ns_bytes reset_connection(lua_State *L, bool has_verdict) {
  int top = lua_gettop(L);
  lua_rawgeti(L, LUA_REGISTRYINDEX, w.reset);
  if (has_verdict)
    lua_pushvalue(L, 2);
  else
    lua_pushnil(L);
  if (lua_pcall(L, 1, 1, 0) != LUA_OK)
    w.spent = true; /* with its connection */
  if (lua_isstring(L, -1))
    return nsh_lua_text(L, -1);
  lua_settop(L, top);
  return NS_NONE;
}

/* Undoes the changes of the job to its process; processes of its own end. */
static void restore_process(lua_State *L) {
  w.running = false;
  if (!lua_gc(L, LUA_GCISRUNNING))
    lua_gc(L, LUA_GCRESTART);
  w.spent = !nsh_restore() || is_last() || w.spent;
}

/* Ends the job with one report, whatever happened. An error that arrives here is not the
** handler's. Memory is short, or a handler has broken data of our own code. Such a worker is
** replaced. */
static void run_protected(const nsh_order *o) {
  lua_State *L = w.L;
  ns_bytes error, left;
  bool ok;
  nsh_why why;
  w.over = false;
  w.spent = w.cfg->fork_per_job;
  nsh_memory_limit_forget();
  lua_pushcfunction(L, call_handler);
  lua_pushlightuserdata(L, (void *)(uintptr_t)o);
  nsh_interrupt_begin(o->seq, o->job.timeout);
  ok = lua_pcall(L, 1, 3, 0) == LUA_OK;
  if (is_forked_child())
    nsh_channel_leave(1);
  why = nsh_interrupt_end();
  error = ok ? NS_NONE : nsh_lua_text(L, -1);
  w.over = nsh_memory_limit_end(L) || nsh_memory_limit_blamed(error);
  restore_process(L);
  w.spent = w.spent || w.over || !ok;
  left = reset_connection(L, ok);
  if (w.over)
    report_failure(nsh_memory_limit_text());
  else if (why != NSH_WHY_NONE)
    report_stopped(why);
  else if (!ok)
    report_failure(error.p != NULL ? error : ns_str("the job could not be run"));
  else if (left.p != NULL)
    report_failure(left);
  else
    report_end(L);
  lua_settop(L, 0);
}

/* An orderly end: the host gets all frames, and the scripts are told. */
static void leave_in_order(void) {
  nsh_channel_flush(&w.channel);
  alarm(STOP_S);
  lua_settop(w.L, 0);
  lua_rawgeti(w.L, LUA_REGISTRYINDEX, w.finish);
  lua_pcall(w.L, 0, 0, 0);
  nsh_channel_flush(&w.channel);
  nsh_channel_leave(0);
}

/* The host has lost touch with the database: other holders may have its claims by now. Waits
** until it is back, or has taken job 'seq' back; returns the time then. */
static int64_t wait_fresh(uint32_t seq) {
  int64_t now;
  nsh_channel_flush(&w.channel);
  do {
    if (nsh_wakeup_closed(&w.channel.waker, FRESH_MS))
      nsh_channel_leave(0); /* the host is gone */
    now = ns_mono_us();
  } while (!nsh_slots_valid(w.channel.slots, now) && !nsh_slot_started(w.channel.slot, seq));
  return now;
}

static void do_job(nsh_frame *f) {
  nsh_order o;
  int64_t start = ns_mono_us();
  if (!nsh_get_order(f, &o))
    nsh_channel_leave(1);
  if (!nsh_slots_valid(w.channel.slots, start))
    start = wait_fresh(o.seq);
  if (w.channel.waiting > 0 && (!o.hold || start - w.channel.waiting > HOLD_US))
    nsh_channel_flush(&w.channel); /* which may end us, so nothing is started yet */
  if (!nsh_slot_start(w.channel.slot, o.seq, start))
    return; /* taken back */
  nsh_title_job(o.job.name, o.job.id);
  w.seq = o.seq;
  w.started = w.ended = start;
  w.asked = 0;
  run_protected(&o);
  fflush(stdout);
  nsh_channel_post(&w.channel, w.ended);
  if (w.spent)
    leave_in_order();
}

static void do_frame(nsh_frame *f) {
  if (f->type == NSH_JOB)
    do_job(f);
  else if (f->type == NSH_QUIT)
    leave_in_order();
}

/* ---------------------------------------------------------------- the life */

/* Only the zygote may end us by SIGTERM. A SIGTERM for all processes of a service is meant for
** the host, which then tells us. */
static void on_term(int sig, siginfo_t *info, void *context) {
  (void)context;
  if (info->si_pid != getppid())
    return;
  signal(sig, SIG_DFL);
  raise(sig);
}

/* Writing to a closed pipe is an error of the handler's, not its end. SIG_IGN would be
** inherited by the programs it starts; a handler is not. */
static void on_pipe(int sig) {
  (void)sig;
}

/* The number asked for, or up to an eighth less: not all workers end at once. */
static int64_t jobs_to_do(int64_t most) {
  return most - (int64_t)(ns_random() % (uint64_t)(most / 8 + 1));
}

static void set_up(const nsh_worker_setup *s, uint32_t index) {
  struct sigaction act = {.sa_flags = SA_SIGINFO | SA_RESTART};
  act.sa_sigaction = on_term;
  sigaction(SIGTERM, &act, NULL);
  signal(SIGPIPE, on_pipe);
  nsh_interrupt_listen(s->L, &s->slots->slot[index]);
  setvbuf(stdout, NULL, _IOLBF, 0);
  w.L = s->L;
  w.cfg = s->cfg;
  nsh_channel_open(&w.channel, s->slots, index, s->wakeup);
  w.pid = getpid();
  w.max_json = s->cfg->db.max_payload > 0 ? s->cfg->db.max_payload
                                          : NS_MAX_PAYLOAD;
  w.left = jobs_to_do(s->cfg->recycle);
  nsh_restore_note();
  nsh_title_worker((int64_t)index + 1);
}

void nsh_worker_main(void *arg, uint32_t index, int fd) {
  (void)fd;
  set_up(arg, index);
  lua_rawgeti(w.L, LUA_REGISTRYINDEX, w.begin);
  lua_pushinteger(w.L, (lua_Integer)ns_random());
  lua_pushinteger(w.L, (lua_Integer)ns_random());
  if (lua_pcall(w.L, 2, 0, 0) != LUA_OK)
    nsh_channel_leave(1);
  for (;;) {
    nsh_frame f;
    size_t n;
    while ((n = nsh_channel_peek(&w.channel, w.channel.at, &f)) > 0) {
      w.channel.at += n;
      do_frame(&f);
    }
    nsh_channel_flush(&w.channel);
    nsh_channel_receive(&w.channel);
  }
}
