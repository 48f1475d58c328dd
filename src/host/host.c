/*
** The life of a host.
**
** Order of birth: the seed is forked while this process has no thread, no
** loop and no connection; then the loop, the first generation of handlers, the
** database, the threads, the workers. Modes go one way only, from RUNNING to
** OVER; what each mode waits for is in check().
*/
#include "host.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "dispatcher/dispatcher.h"
#include "dump.h"
#include "ipc/ipc.h"
#include "log.h"
#include "pool/pool.h"
#include "process/process.h"
#include "reload.h"
#include "rlimits.h"
#include "shared/shared.h"
#include "signals.h"

#define SETTLE_US (5 * NS_SECOND)  /* for the last verdicts, once stopping; to end after */
#define PING_US NS_SECOND          /* between looks at the zygotes, with jobs */
#define SEED_US (6 * NS_SECOND)    /* for it to clear up and end */
#define FLUSH_US (2 * NS_SECOND)   /* for the last lines of the log */
#define SHUTDOWN_MS 1000           /* for workers and zygotes to leave */

typedef enum mode {
  LOADING,   /* the first handlers are read */
  RUNNING,
  DRAINING,  /* claims nothing more, lets handlers finish */
  STOPPING,  /* workers are being killed */
  FINISHING, /* everything is settled: the threads end */
  OVER
} mode;

typedef struct host {
  const nsh_config *cfg;
  uv_loop_t loop;
  uv_async_t async;
  uv_timer_t timer;
  nsh_signals signals;
  nsh_slots *slots;
  int wakeup[2]; /* workers write to [1] */
  pid_t seed;
  nsh_family family;
  nsh_exchange exchange;
  nsh_dispatch *dispatch;
  nsh_pools pools;
  mode mode;
  int code;               /* exit code */
  int64_t deadline;       /* of DRAINING, STOPPING, FINISHING */
  nsh_scripts scripts;
  int64_t handlers;
  int64_t pinged;         /* when the zygotes were */
  bool drained;           /* nothing was left to do */
  bool keeper_gone;
  bool ready;             /* host.ready has been logged */
} host;

/* A NUL is shown as "\0". */
static void complain(const char *text, size_t n) {
  const char *nul;
  fputs("nightshift: ", stderr);
  while ((nul = memchr(text, '\0', n)) != NULL) {
    fprintf(stderr, "%s\\0", text);
    n -= (size_t)(nul - text) + 1;
    text = nul + 1;
  }
  fprintf(stderr, "%.*s\n", (int)n, text);
  fflush(stderr);
}

/* Of the scripts that run; absent: no zygote is there to run any. */
static ns_bytes version_of(const host *h) {
  return h->pools.zygote != NULL ? ns_str(h->pools.zygote->version) : NS_NONE;
}

/* What we can run has changed; both are malloc'd; no 'handlers': as before. */
static void tell_served(host *h, char *handlers, char *names) {
  bool takes = h->mode <= RUNNING && !h->pools.quiet;
  nsh_exchange_lock(&h->exchange);
  nsh_exchange_serves(&h->exchange, handlers, names, takes ? h->cfg->workers : 0);
  nsh_exchange_unlock(&h->exchange);
}

/* ----------------------------------------------------------------- stopping */

static void set_mode(host *h, mode m, int64_t max) {
  h->mode = m;
  h->deadline = ns_mono_us() + max;
}

static void drain(host *h, const char *why) {
  ns_log(NS_LOG_INFO, "host.drain", NS_FIELDS(ns_fs("why", why)));
  set_mode(h, DRAINING, h->cfg->drain_timeout);
  nsh_pool_close(&h->pools);
  tell_served(h, NULL, NULL);
}

static void stop(host *h, const char *why) {
  ns_log(NS_LOG_INFO, "host.stop", NS_FIELDS(ns_fs("why", why)));
  nsh_pool_close(&h->pools);
  set_mode(h, STOPPING, SETTLE_US);
  nsh_pool_kill(&h->pools);
}

/* Without waiting for the server any more. */
static void leave_now(host *h) {
  if (!atomic_exchange(&h->exchange.give_up, true))
    set_mode(h, FINISHING, SETTLE_US);
}

/* The server does not help: leave what is not written to the rescuers. */
static void give_up(host *h) {
  ns_log(NS_LOG_ERROR, "host.give_up", NULL, 0);
  h->code = NSH_EXIT_FAILURE;
  leave_now(h);
  nsh_exchange_lock(&h->exchange);
  nsh_exchange_finish(&h->exchange);
  nsh_exchange_unlock(&h->exchange);
}

/* With --drain: is there really nothing left? The exchange is locked. */
static bool nothing_left(const host *h) {
  const nsh_exchange *m = &h->exchange;
  return h->cfg->drain && h->ready && m->rested && m->outstanding == 0 &&
         m->unsettled == m->deferred && !m->cycling &&
         (m->rest_due < 0 || m->rest_due > h->cfg->drain_within);
}

/* Has every worker been up? Workers that are forked per job have gone since. */
static bool complete(const host *h) {
  const nsh_pools *t = &h->pools;
  return t->up == t->nworkers || (h->cfg->fork_per_job && t->tally.forks >= (int64_t)t->nworkers);
}

static void check_running(host *h) {
  bool done, refused;
  if (!h->ready && complete(h)) {
    h->ready = true;
    ns_log(NS_LOG_INFO, "host.ready",
           NS_FIELDS(ns_fi("pid", getpid()), ns_fi("workers", (int64_t)h->pools.nworkers),
                     ns_fi("handlers", h->handlers), ns_fb("scripts", version_of(h))));
  }
  nsh_exchange_lock(&h->exchange);
  done = nothing_left(h);
  refused = h->exchange.refused;
  nsh_exchange_unlock(&h->exchange);
  if (!done)
    return;
  if (refused)
    h->code = NSH_EXIT_FAILURE;
  h->drained = true;
  drain(h, refused ? "nothing left to do but rows that are refused" : "nothing left to do");
}

/* Everything is written. To leave in order may take what is left of the drain, and
** a server that is slow needs it; nothing is lost by who leaves without. */
static void finish(host *h) {
  int64_t rest = h->deadline - ns_mono_us();
  nsh_exchange_finish(&h->exchange);
  set_mode(h, FINISHING, rest > SETTLE_US ? rest : SETTLE_US);
}

/* All jobs are back and all verdicts written? */
static void check_quiescent(host *h) {
  nsh_exchange *m = &h->exchange;
  bool away = atomic_load(&m->away);
  nsh_exchange_lock(m);
  if (h->pools.busy == 0 && m->outstanding == 0 && m->unsettled == 0 &&
      (away || !m->cycling || !m->claiming)) {
    finish(h);
    if (away)
      leave_now(h);
  }
  nsh_exchange_unlock(m);
}

static void check_ended(host *h) {
  nsh_exchange_lock(&h->exchange);
  if (h->exchange.ended) {
    h->mode = OVER;
    if (!h->exchange.clean)
      h->code = NSH_EXIT_FAILURE;
    uv_stop(&h->loop);
  }
  nsh_exchange_unlock(&h->exchange);
}

/* At once: a thread is stuck in the client library. */
static void leave(int code) {
  ns_log_flush(FLUSH_US);
  _exit(code);
}

static void check_deadline(host *h, int64_t now) {
  if (h->mode < DRAINING || now < h->deadline)
    return;
  if (h->mode == DRAINING)
    stop(h, "drain timeout");
  else if (h->mode == STOPPING)
    give_up(h);
  else if (!atomic_load(&h->exchange.give_up))
    leave_now(h);
  else
    leave(h->code);
}

static void arm(host *h, int64_t now);

/* After every event: is it time for the next mode? */
static void check(host *h) {
  int64_t now = ns_mono_us();
  nsh_pool_lock(&h->pools); /* what the event has changed counts */
  nsh_pool_unlock(&h->pools);
  nsh_pool_recount(&h->pools);
  if (h->mode == LOADING || h->mode == OVER)
    return;
  if (h->mode == RUNNING)
    check_running(h);
  if (h->mode == DRAINING || h->mode == STOPPING)
    check_quiescent(h);
  if (h->mode == FINISHING && atomic_load(&h->exchange.away))
    leave_now(h); /* there is nothing to tell the server */
  check_ended(h);
  check_deadline(h, now);
  arm(h, now);
}

/* ------------------------------------------------- handlers and processes */

/* The handlers of a new generation, for the log and for all to see. */
static void tell_handlers(host *h, const char *version, const nsh_loaded *what) {
  ns_buf text = NS_BUF_INIT;
  ns_buf picked = NS_BUF_INIT;
  bool all = h->cfg->nonly > 0 || nsh_served_count(what->names) == what->count;
  int64_t count = nsh_served_pick(&picked, what->names, what->count, h->cfg);
  ns_bytes names = ns_buf_bytes(&picked);
  h->handlers = count;
  h->pools.loads++;
  nsh_exchange_lock(&h->exchange);
  nsh_reading_done(&h->exchange.reading, version, what->files, h->scripts.since);
  nsh_exchange_unlock(&h->exchange);
  nsh_served_json(&text, names, count);
  ns_buf_addc(&text, '\0');
  ns_buf_addc(&picked, '\0');
  nsh_must(!text.oom && !picked.oom);
  names.p = picked.p;
  tell_served(h, text.p, all ? strdup(picked.p) : NULL);
  text = NS_BUF_INIT;
  nsh_served_text(&text, names);
  nsh_must(!text.oom);
  if (h->mode != LOADING)
    ns_log(NS_LOG_INFO, "reload.done",
           NS_FIELDS(ns_fi("handlers", count), ns_fb("names", ns_buf_bytes(&text)),
                     ns_fs("scripts", version)));
  ns_buf_free(&text);
  ns_buf_free(&picked);
}

/* The scripts were not read again, for all to see. */
static void not_read(host *h, ns_bytes why, int64_t began) {
  nsh_exchange_lock(&h->exchange);
  nsh_reading_failed(&h->exchange.reading, version_of(h), why, began);
  nsh_exchange_unlock(&h->exchange);
  tell_served(h, NULL, NULL);
}

static void tell_failed(host *h, ns_bytes message) {
  ns_log(NS_LOG_ERROR, "reload.failed",
         NS_FIELDS(ns_fb("error", message), ns_fb("scripts", version_of(h))));
  not_read(h, message, h->scripts.since);
}

static void on_loaded(void *arg, nsh_zygote *z, const nsh_loaded *what) {
  host *h = arg;
  nsh_zygote *old = h->pools.zygote;
  nsh_scripts_over(&h->scripts);
  if (h->mode == OVER)
    return;
  if (h->scripts.dropped) { /* it is about to die */
    nsh_zygote_retire(z);
    nsh_scripts_load(&h->scripts);
    return;
  }
  tell_handlers(h, z->version, what);
  if (h->mode == LOADING) {
    h->pools.zygote = z;
    uv_stop(&h->loop); /* a HUP that came meanwhile is obeyed by live() */
    return;
  }
  nsh_lifecycle_generation(&h->pools, z);
  if (old != NULL)
    nsh_zygote_retire(old);
  if (h->scripts.again)
    nsh_scripts_load(&h->scripts);
  check(h);
}

static void on_failed(void *arg, nsh_zygote *z, ns_bytes message, int status) {
  host *h = arg;
  char text[160];
  (void)z;
  nsh_scripts_over(&h->scripts);
  if (h->scripts.dropped) {
    nsh_scripts_load(&h->scripts);
    return;
  }
  message = nsh_scripts_why(text, message, status);
  if (h->mode == LOADING) {
    complain(message.p, message.n);
    h->code = NSH_EXIT_CONFIG;
    uv_stop(&h->loop);
    return;
  }
  tell_failed(h, message);
  if (h->pools.zygote == NULL) /* there are no older handlers to go on with */
    nsh_scripts_load_later(&h->scripts);
  else if (h->scripts.again)
    nsh_scripts_load(&h->scripts);
  check(h);
}

static void on_forked(void *arg, nsh_zygote *z, uint32_t worker, pid_t pid,
                      int why) {
  host *h = arg;
  (void)z;
  nsh_lifecycle_forked(&h->pools, worker, pid, why);
  if (pid > 0)
    h->scripts.wait = 0;
  check(h);
}

static void on_exited(void *arg, nsh_zygote *z, uint32_t worker, int status) {
  host *h = arg;
  (void)z;
  nsh_lifecycle_exited(&h->pools, worker, status);
  check(h);
}

static void on_died(void *arg, nsh_zygote *z, int status) {
  host *h = arg;
  if (h->mode == LOADING)
    return;
  if (z == h->pools.zygote && h->mode != OVER) {
    ns_log(NS_LOG_ERROR, "zygote.died", NS_FIELDS(ns_fi("status", status)));
    h->pools.zygote = NULL;
    if (h->mode == RUNNING)
      nsh_scripts_load_later(&h->scripts);
  }
  nsh_lifecycle_orphaned(&h->pools, z);
  if (h->scripts.refused && h->mode == RUNNING)
    nsh_scripts_load(&h->scripts); /* now there is a place */
  check(h);
}

/* A keeper that is replaced costs no more than its zygotes. */
static void on_keeper_died(void *arg, bool replaced) {
  host *h = arg;
  if (h->mode != OVER)
    ns_log(NS_LOG_ERROR, "keeper.died", NULL, 0);
  if (replaced)
    return;
  h->keeper_gone = true;
  if (h->mode == OVER)
    return;
  h->code = NSH_EXIT_FAILURE;
  if (h->mode == LOADING) {
    uv_stop(&h->loop);
    return;
  }
  h->pools.zygote = NULL;
  for (size_t i = 0; i < NSH_ZYGOTES; i++)
    nsh_lifecycle_orphaned(&h->pools, &h->family.zygotes[i]);
  if (h->mode == RUNNING)
    drain(h, "the keeper died");
  check(h);
}

/* -------------------------------------------------------------- loop events */

static void on_timer(uv_timer_t *timer) {
  host *h = timer->data;
  int64_t now = ns_mono_us();
  if (h->scripts.due > 0 && h->mode > RUNNING)
    h->scripts.due = 0;
  if (h->scripts.due > 0 && now >= h->scripts.due)
    nsh_scripts_load(&h->scripts);
  if (now - h->pinged > PING_US) {
    nsh_family_ping(&h->family);
    h->pinged = now;
  }
  nsh_watchdog_tick(&h->pools, now);
  check(h);
}

/* The sooner of a wait (-1: none) and the time until an instant, which may have passed
** while another event was looked at. */
static int64_t sooner(int64_t wait, int64_t instant, int64_t now) {
  int64_t until = instant > now ? instant - now : 0;
  return wait < 0 || until < wait ? until : wait;
}

/* The timer runs only while there is something to look after. */
static void arm(host *h, int64_t now) {
  int64_t wait = nsh_watchdog_next(&h->pools, now);
  uint64_t ms;
  if (h->scripts.due > 0)
    wait = sooner(wait, h->scripts.due, now);
  if (h->mode >= DRAINING)
    wait = sooner(wait, h->deadline, now);
  ms = wait > 0 ? (uint64_t)(wait + 999) / 1000 : 0;
  if (wait < 0)
    uv_timer_stop(&h->timer);
  else if (!uv_is_active((uv_handle_t *)&h->timer) ||
           uv_timer_get_due_in(&h->timer) > ms) /* a load came meanwhile */
    uv_timer_start(&h->timer, on_timer, ms, 0);
}

static void on_async(uv_async_t *async) {
  host *h = async->data;
  nsh_pool_collect(&h->pools);
  check(h);
}

/* The dispatcher's wake-up of the loop. */
static void notify(void *arg) {
  uv_async_send(arg);
}

static void quiet(host *h, bool on) {
  if (h->pools.quiet == on || h->mode != RUNNING)
    return;
  ns_log(NS_LOG_INFO, on ? "host.quiet" : "host.continue", NULL, 0);
  nsh_pool_quiet(&h->pools, on);
  tell_served(h, NULL, NULL);
}

/* A reload that does not begin is a failed one, for who waits for its end. */
static void reload(host *h) {
  if (h->mode <= RUNNING)
    nsh_scripts_load(&h->scripts);
  if (h->mode <= RUNNING && h->scripts.refused)
    not_read(h, ns_str("too many generations of scripts are still alive; it is tried "
                       "again when one has ended"), ns_mono_us());
  else if (h->mode == DRAINING)
    not_read(h, ns_str("it is about to end"), ns_mono_us());
}

static void on_stop_signal(host *h, int sig) {
  const char *name = sig == SIGTERM ? "SIGTERM" : sig == SIGINT ? "SIGINT"
                                                                : "SIGQUIT";
  if (h->mode == RUNNING && sig != SIGQUIT)
    drain(h, name);
  else if (h->mode == RUNNING || h->mode == DRAINING)
    stop(h, name);
  else if (h->mode == STOPPING)
    give_up(h);
  else if (h->mode == FINISHING)
    leave_now(h);
}

static void on_signal(void *arg, int sig) {
  host *h = arg;
  switch (sig) {
  case SIGHUP:
    reload(h);
    break;
  case SIGUSR1:
    nsh_dump(&h->pools);
    break;
  case SIGTSTP:
  case SIGCONT:
    quiet(h, sig == SIGTSTP);
    break;
  default:
    on_stop_signal(h, sig);
  }
  check(h);
}

/* ---------------------------------------------------------- birth and death */

static void open_loop(host *h, int seed) {
  nsh_must(uv_loop_init(&h->loop) == 0);
  nsh_must(uv_async_init(&h->loop, &h->async, on_async) == 0);
  h->async.data = h;
  uv_timer_init(&h->loop, &h->timer);
  h->timer.data = h;
  nsh_scripts_open(&h->scripts, &h->loop, &h->family);
  h->family = (nsh_family){.arg = h,
                           .loaded = on_loaded,
                           .failed = on_failed,
                           .forked = on_forked,
                           .exited = on_exited,
                           .died = on_died,
                           .keeper_died = on_keeper_died,
                           .seed_pid = h->seed};
  nsh_exchange_init(&h->exchange, h->cfg->nreserves + 1, notify, &h->async);
  nsh_pool_init(&h->pools, h->cfg, &h->exchange, &h->loop, h->slots, h->wakeup[0]);
  nsh_family_open(&h->family, &h->loop, seed);
  h->signals = (nsh_signals){.on_signal = on_signal, .arg = h};
  nsh_signals_open(&h->signals, &h->loop);
}

static void close_handle(uv_handle_t *handle, void *arg) {
  (void)arg;
  if (!uv_is_closing(handle))
    uv_close(handle, NULL);
}

static void on_shutdown_timeout(uv_timer_t *timer) {
  uv_stop(timer->loop);
}

/* Lets all processes leave in order, so that the caller finds none left. */
static void shut_down(host *h) {
  h->mode = OVER;
  nsh_pool_close(&h->pools);
  nsh_pool_dismiss(&h->pools);
  nsh_family_retire(&h->family);
  uv_timer_start(&h->timer, on_shutdown_timeout, SHUTDOWN_MS, 0);
  while (nsh_family_alive(&h->family) > 0 && !h->keeper_gone &&
         uv_is_active((uv_handle_t *)&h->timer))
    uv_run(&h->loop, UV_RUN_ONCE);
}

/* The seed ends by itself when its socket is closed, unless it is stopped or
** stuck: then its work is ours. */
static void await_seed(host *h) {
  int64_t end = ns_mono_us() + SEED_US;
  int64_t pause = 200;
  pid_t got;
  while ((got = waitpid(h->seed, NULL, WNOHANG)) == 0 && ns_mono_us() < end) {
    ns_sleep_us(pause);
    pause = pause < 20000 ? pause * 2 : pause;
  }
  if (got != 0)
    return;
  ns_log(NS_LOG_ERROR, "seed.unresponsive", NULL, 0);
  if (h->family.keeper_pid > 0)
    nsh_session_kill(h->family.keeper_pid, NULL, 0);
  kill(h->seed, SIGKILL);
  waitpid(h->seed, NULL, 0);
}

/* Closing their sockets ends seed and keeper, and all processes below them. */
static void close_loop(host *h) {
  shut_down(h);
  nsh_signals_hold(true); /* from here on they are not handled */
  nsh_family_close(&h->family);
  nsh_pool_free(&h->pools);
  uv_walk(&h->loop, close_handle, NULL);
  uv_run(&h->loop, UV_RUN_DEFAULT);
  uv_loop_close(&h->loop);
  nsh_exchange_free(&h->exchange);
  await_seed(h);
}

static ns_status start_dispatch(host *h, ns_err *err) {
  ns_status st = nsh_dispatch_open(&h->dispatch, h->cfg, &h->exchange, h->slots, err);
  return st == NS_OK ? nsh_dispatch_start(h->dispatch, err) : st;
}

/* From the first handlers to the end; h->code is set. */
static void live(host *h) {
  ns_err err;
  nsh_scripts_load(&h->scripts);
  uv_run(&h->loop, UV_RUN_DEFAULT);
  if (h->code != NSH_EXIT_OK)
    return;
  if (start_dispatch(h, &err) != NS_OK) {
    complain(err.message, strlen(err.message));
    h->code = err.status == NS_EGONE || err.status == NS_EBUSY ? NSH_EXIT_DATABASE
              : err.status == NS_ENOMEM ? NSH_EXIT_FAILURE
                                        : NSH_EXIT_CONFIG;
    return;
  }
  h->mode = RUNNING;
  nsh_signals_all(&h->signals);
  if (h->scripts.again)
    nsh_scripts_load(&h->scripts);
  nsh_lifecycle_fill(&h->pools);
  check(h);
  uv_run(&h->loop, UV_RUN_DEFAULT);
  ns_log(NS_LOG_INFO, "host.end",
         NS_FIELDS(ns_fi("code", h->code), ns_fi("done", h->pools.tally.done),
                   ns_fi("failed", h->pools.tally.failed),
                   ns_fi("crashed", h->pools.tally.crashed)));
}

int nsh_host_run(const nsh_config *cfg, ns_buf *known) {
  host *h;
  ns_err err;
  int seed;
  int code;
  nsh_limits limits;
  nsh_limits_raise();
  nsh_limits_read(&limits, "", cfg);
  if (nsh_limits_check(&limits, cfg->workers, &err) != NS_OK) {
    complain(err.message, strlen(err.message));
    return NSH_EXIT_CONFIG;
  }
  if (ns_region_open(cfg->shared, &err) != NS_OK) { /* before the first fork */
    complain(err.message, strlen(err.message));
    return err.status == NS_EINVALID ? NSH_EXIT_USAGE : NSH_EXIT_FAILURE;
  }
  h = nsh_alloc(sizeof *h);
  h->cfg = cfg;
  ns_log_setup(cfg->json, NS_LOG_INFO);
  signal(SIGPIPE, SIG_IGN);
  h->slots = nsh_slots_map(cfg->workers);
  nsh_must(h->slots != NULL && nsh_wakeup_make(h->wakeup));
  if (nsh_seed_start(cfg, h->slots, h->wakeup[1], &h->seed, &seed, &err) != NS_OK) {
    complain(err.message, strlen(err.message));
    return NSH_EXIT_FAILURE;
  }
  ns_log_spool();
  open_loop(h, seed);
  live(h);
  code = h->code;
  if (!nsh_dispatch_close(h->dispatch))
    leave(code);
  if (h->drained && h->exchange.names != NULL)
    ns_buf_addf(known, "%s\n", h->exchange.names);
  close_loop(h);
  close(h->wakeup[0]);
  close(h->wakeup[1]);
  nsh_slots_unmap(h->slots, cfg->workers);
  free(h);
  ns_log_flush(FLUSH_US);
  return code;
}
