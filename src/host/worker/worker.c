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

#include "base.h"
#include "ipc/ipc.h"
#include "nsl.h"

#define HOLD_US 300        /* the host is told of a verdict at most so late */
#define ASK_EVERY NS_SECOND /* cancelled() asks the host at most so often */
#define FRESH_MS 50        /* between looks whether the host is back in touch */
#define SPARE_FILES 8      /* descriptors a job needs to have a chance */
#define STOP_S 1           /* seconds for functions of nightshift.on("worker.stop") */

static struct {
  lua_State *L;
  const nsh_config *cfg;
  nsh_channel channel;
  pid_t pid;          /* a handler may fork: its child is not the worker */
  int begin, run, run_batch, reset, finish; /* references */
  nsh_call call;      /* the one that runs */
  bool running;       /* a handler is on the stack */
  int64_t left;       /* calls until this state is spent; 0: any number */
  int64_t asked;      /* monotonic µs: when the running job last asked for its claim */
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

/* The place of a job in its batch; a single job is at 0. */
static uint32_t opt_place(lua_State *L, int idx) {
  lua_Integer at = luaL_optinteger(L, idx, 0);
  luaL_argcheck(L, at == 0 || (at > 0 && (size_t)at < w.call.members), idx, "no such job");
  return (uint32_t)at;
}

static bool is_claim_held(uint32_t at) {
  return atomic_load(&w.channel.slot->lost) != w.call.seq + 1 &&
         (w.call.members == 0 || !nsh_slot_lost(w.channel.slot, at));
}

static void send_progress(uint32_t at, double progress, ns_bytes text) {
  size_t start;
  ns_buf_reset(&w.channel.frame);
  start = nsh_begin(&w.channel.frame, NSH_PROGRESS);
  nsh_put_int(&w.channel.frame, w.call.seq);
  nsh_put_int(&w.channel.frame, at);
  nsh_put_real(&w.channel.frame, progress);
  nsh_put_bytes(&w.channel.frame, text);
  if (nsh_end(&w.channel.frame, start))
    nsh_channel_post_now(&w.channel);
}

/* touch([progress [, text [, place]]]): shows a sign of life. True, or nil, message,
** code when the claim is known to be lost. */
static int api_touch(lua_State *L) {
  double progress = luaL_optnumber(L, 1, -1);
  ns_bytes text = NS_NONE;
  uint32_t at;
  text.p = luaL_optlstring(L, 2, NULL, &text.n);
  need_job(L);
  at = opt_place(L, 3);
  send_progress(at, progress, text);
  w.asked = ns_mono_us();
  if (!is_claim_held(at))
    return push_lost(L);
  lua_pushboolean(L, true);
  return 1;
}

/* cancelled([place]): is the job to stop, or its claim known to be lost? Asking makes
** the host ask. */
static int api_cancelled(lua_State *L) {
  int64_t now = ns_mono_us();
  uint32_t at;
  need_job(L);
  at = opt_place(L, 1);
  if (now - w.asked > ASK_EVERY) {
    send_progress(at, -1, NS_NONE);
    w.asked = now;
  }
  lua_pushboolean(L, !is_claim_held(at) || nsh_slot_told(w.channel.slot, w.call.seq) != NSH_WHY_NONE);
  return 1;
}

/* stopping([place]): does the host drain or stop, or is the job to stop? */
static int api_stopping(lua_State *L) {
  if (!nsh_slots_stopping(w.channel.slots))
    return api_cancelled(L);
  need_job(L);
  lua_pushboolean(L, true);
  return 1;
}

/* log(text [, place]): one line of the running job. */
static int api_log(lua_State *L) {
  ns_bytes text;
  size_t start;
  uint32_t at;
  text.p = luaL_checklstring(L, 1, &text.n);
  need_job(L);
  at = opt_place(L, 2);
  ns_buf_reset(&w.channel.frame);
  start = nsh_begin(&w.channel.frame, NSH_LOG);
  nsh_put_int(&w.channel.frame, w.call.seq);
  nsh_put_int(&w.channel.frame, at);
  nsh_put_bytes(&w.channel.frame, text);
  if (nsh_end(&w.channel.frame, start))
    nsh_channel_post_now(&w.channel);
  lua_pushboolean(L, true);
  return 1;
}

/* The running job has printed. Where its output goes into the log, the host is told at once. Else
** the host only keeps it, and hears of it with the next frame that matters. */
static bool tell_output(int fd, ns_bytes piece) {
  bool logged = nsh_config_logs_output(w.cfg);
  size_t start;
  if (!w.running || is_forked_child())
    return false;
  ns_buf_reset(&w.channel.frame);
  start = nsh_begin(&w.channel.frame, NSH_OUTPUT);
  nsh_put_int(&w.channel.frame, w.call.seq);
  nsh_put_int(&w.channel.frame, fd);
  nsh_put_bytes(&w.channel.frame, piece);
  if (!nsh_end(&w.channel.frame, start))
    return false;
  if (logged)
    nsh_channel_post_now(&w.channel);
  else
    nsh_channel_put(&w.channel);
  return logged;
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
  nsh_memory_limit_begin(w.L, luaL_checkinteger(L, 1), w.channel.slot, w.call.seq);
  return 0;
}

/* limit(timeout, attempts): the limits of the running job's handler; µs; 0: none. */
static int api_limit(lua_State *L) {
  int64_t timeout = luaL_checkinteger(L, 1);
  nsh_slot_limit(w.channel.slot, timeout, luaL_checkinteger(L, 2));
  if (timeout > 0)
    nsh_interrupt_timeout(timeout);
  return 0;
}

/* run(): when the running job has begun, as in ns_verdict, and the number of this worker. */
static int api_run(lua_State *L) {
  lua_pushinteger(L, w.call.started);
  lua_pushinteger(L, (lua_Integer)w.channel.index + 1);
  return 2;
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
                                 {"run", api_run},
                                 {"complain", api_complain},
                                 {"exit", api_exit},
                                 {NULL, NULL}};
  luaL_newlib(L, api);
}

void nsh_worker_keep(lua_State *L) {
  w.finish = luaL_ref(L, LUA_REGISTRYINDEX);
  w.reset = luaL_ref(L, LUA_REGISTRYINDEX);
  w.run_batch = luaL_ref(L, LUA_REGISTRYINDEX);
  w.run = luaL_ref(L, LUA_REGISTRYINDEX);
  w.begin = luaL_ref(L, LUA_REGISTRYINDEX);
}

/* ------------------------------------------------------------ running jobs */

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
  w.call.ended = ns_mono_us();
  w.call.spent = lua_toboolean(L, 3) || w.call.spent || (!lua_isnil(L, 2) && !files_left());
  return 3;
}

/* A batch, its jobs still in the frame. */
typedef struct bulk {
  nsh_bulk_order order;
  nsh_frame *f;
} bulk;

/* Protected. Argument: the bulk. Results: the ones of run_batch(jobs). */
static int call_batch(lua_State *L) {
  const bulk *b = lua_touserdata(L, 1);
  lua_settop(L, 0);
  lua_rawgeti(L, LUA_REGISTRYINDEX, w.run_batch);
  lua_createtable(L, (int)b->order.n, 0);
  for (size_t i = 0; i < b->order.n; i++) {
    ns_job job;
    if (!nsh_get_job(b->f, &job))
      nsh_channel_leave(1);
    if (i == 0)
      nsh_title_job(job.name, job.id);
    nsl_pushjob(L, &job);
    lua_rawseti(L, 2, (lua_Integer)i + 1);
  }
  w.running = true;
  lua_call(L, 1, 4);
  if (is_forked_child())
    nsh_channel_leave(0);
  w.call.ended = ns_mono_us();
  w.call.spent = lua_toboolean(L, 3) || w.call.spent || !files_left();
  return 4;
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
    w.call.spent = true; /* with its connection */
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
  w.call.spent = !nsh_restore() || is_last() || w.call.spent;
}

/* Calls the handler, with 'n' results, and sets back what it has changed. An error that arrives
** here is not the handler's. Memory is short, or a handler has broken data of our own code. Such
** a worker is replaced. */
static void run_protected(lua_CFunction call, const void *order, int n, int64_t timeout) {
  lua_State *L = w.L;
  nsh_call *c = &w.call;
  c->spent = w.cfg->fork_per_job;
  nsh_memory_limit_forget();
  lua_pushcfunction(L, call);
  lua_pushlightuserdata(L, (void *)(uintptr_t)order);
  nsh_interrupt_begin(c->seq, timeout);
  c->ok = lua_pcall(L, 1, n, 0) == LUA_OK;
  fflush(stdout); /* while it is the job's */
  if (is_forked_child())
    nsh_channel_leave(1);
  c->why = nsh_interrupt_end();
  c->error = c->ok ? NS_NONE : nsh_lua_text(L, -1);
  c->limited = c->over = nsh_memory_limit_end(L) || nsh_memory_limit_blamed(c->error);
  restore_process(L);
  c->spent = c->spent || c->limited || !c->ok;
  c->left = reset_connection(L, c->ok && c->members == 0);
  fflush(stdout);
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

/* May job or batch 'seq' begin? It was taken back otherwise. 'hold': its handler is expected to be
** short. */
static bool begin_work(uint32_t seq, bool hold) {
  int64_t start = ns_mono_us();
  if (!nsh_slots_valid(w.channel.slots, start))
    start = wait_fresh(seq);
  if (w.channel.waiting > 0 && (!hold || start - w.channel.waiting > HOLD_US))
    nsh_channel_flush(&w.channel); /* which may end us, so nothing is started yet */
  if (!nsh_slot_start(w.channel.slot, seq, start))
    return false;
  w.call.seq = seq;
  w.call.started = w.call.ended = start;
  w.asked = 0;
  return true;
}

static void do_job(nsh_frame *f) {
  nsh_order o;
  if (!nsh_get_order(f, &o))
    nsh_channel_leave(1);
  if (!begin_work(o.seq, o.hold))
    return;
  nsh_title_job(o.job.name, o.job.id);
  w.call.members = 0;
  run_protected(call_handler, &o, 3, o.job.timeout);
  nsh_report_job(w.L, &w.call);
  if (w.call.spent)
    leave_in_order();
}

static void do_batch(nsh_frame *f) {
  bulk b = {.f = f};
  if (!nsh_get_bulk(f, &b.order))
    nsh_channel_leave(1);
  nsh_slot_lose_none(w.channel.slot);
  if (!begin_work(b.order.seq, false))
    return;
  w.call.members = b.order.n;
  run_protected(call_batch, &b, 4, b.order.timeout);
  nsh_report_batch(w.L, &w.call);
  if (w.call.spent)
    leave_in_order();
}

static void do_frame(nsh_frame *f) {
  if (f->type == NSH_JOB)
    do_job(f);
  else if (f->type == NSH_BULK)
    do_batch(f);
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
  nsh_output_to(tell_output);
  if (w.cfg->progress > 0)
    nsh_output_over_line();
  w.call.channel = &w.channel;
  w.call.max_json = s->cfg->db.max_payload > 0 ? s->cfg->db.max_payload
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
