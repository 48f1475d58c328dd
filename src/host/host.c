/*
** The life of a host: its birth, its events, and its end.
**
** Order of birth: the seed is forked while this process has no thread, no loop and no
** connection. Then come the loop, the first generation of handlers, the database, the threads,
** the workers.
*/
#include "host.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "base.h"
#include "shared/shared.h"

#define PING_US NS_SECOND /* between looks at the zygotes, with jobs */
#define SHUTDOWN_MS 1000  /* for workers and zygotes to leave */

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

/* ------------------------------------------------- handlers and processes */

/* The scripts' declarations; absent: none. */
static void tell_declared(nsh_host *h, const nsh_loaded *what) {
  ns_bytes list = what->schedules;
  ns_bytes on_dead = what->on_dead.p != NULL ? what->on_dead : ns_str("[]");
  char *text = list.p != NULL ? strndup(list.p, list.n) : NULL;
  char *pushed = strndup(on_dead.p, on_dead.n);
  char *batched = strndup(what->batched.p != NULL ? what->batched.p : "", what->batched.n);
  nsh_must((list.p == NULL || text != NULL) && pushed != NULL && batched != NULL);
  nsh_exchange_lock(&h->exchange);
  nsh_exchange_declare(&h->exchange, text);
  nsh_exchange_on_dead(&h->exchange, pushed);
  nsh_exchange_batched(&h->exchange, batched);
  nsh_exchange_unlock(&h->exchange);
}

/* The handlers of a new generation, for the log and for all to see. */
static void tell_handlers(nsh_host *h, const char *version, const nsh_loaded *what) {
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
  tell_declared(h, what);
  nsh_gather_names(&h->pools, what->batched);
  nsh_mode_serve(h, text.p, all ? strdup(picked.p) : NULL);
  text = NS_BUF_INIT;
  nsh_served_text(&text, names);
  nsh_must(!text.oom);
  if (h->mode != NSH_MODE_LOADING)
    ns_log(NS_LOG_INFO, "reload.done",
           NS_FIELDS(ns_fi("handlers", count), ns_fb("names", ns_buf_bytes(&text)),
                     ns_fs("scripts", version)));
  ns_buf_free(&text);
  ns_buf_free(&picked);
}

/* The scripts were not read again, for all to see. */
static void not_read(nsh_host *h, ns_bytes why, int64_t began) {
  nsh_exchange_lock(&h->exchange);
  nsh_reading_failed(&h->exchange.reading, nsh_mode_version(h), why, began);
  nsh_exchange_unlock(&h->exchange);
  nsh_mode_serve(h, NULL, NULL);
}

static void tell_failed(nsh_host *h, ns_bytes message) {
  ns_log(NS_LOG_ERROR, "reload.failed",
         NS_FIELDS(ns_fb("error", message), ns_fb("scripts", nsh_mode_version(h))));
  not_read(h, message, h->scripts.since);
}

static void on_loaded(void *arg, nsh_zygote *z, const nsh_loaded *what) {
  nsh_host *h = arg;
  nsh_zygote *old = h->pools.zygote;
  nsh_scripts_over(&h->scripts);
  if (h->mode == NSH_MODE_OVER)
    return;
  if (h->scripts.dropped) { /* it is about to die */
    nsh_zygote_retire(z);
    nsh_scripts_load(&h->scripts);
    return;
  }
  tell_handlers(h, z->version, what);
  if (h->mode == NSH_MODE_LOADING) {
    h->pools.zygote = z;
    nsh_loop_stop(&h->loop); /* a HUP that came meanwhile is obeyed by run_loop() */
    return;
  }
  nsh_lifecycle_generation(&h->pools, z);
  if (old != NULL)
    nsh_zygote_retire(old);
  if (h->scripts.again)
    nsh_scripts_load(&h->scripts);
  nsh_mode_check(h);
}

static void on_failed(void *arg, nsh_zygote *z, ns_bytes message, int status) {
  nsh_host *h = arg;
  char text[160];
  (void)z;
  nsh_scripts_over(&h->scripts);
  if (h->scripts.dropped) {
    nsh_scripts_load(&h->scripts);
    return;
  }
  message = nsh_scripts_why(text, message, status);
  if (h->mode == NSH_MODE_LOADING) {
    complain(message.p, message.n);
    h->code = NSH_EXIT_CONFIG;
    nsh_loop_stop(&h->loop);
    return;
  }
  tell_failed(h, message);
  if (h->pools.zygote == NULL) /* there are no older handlers to go on with */
    nsh_scripts_load_later(&h->scripts);
  else if (h->scripts.again)
    nsh_scripts_load(&h->scripts);
  nsh_mode_check(h);
}

static void on_forked(void *arg, nsh_zygote *z, uint32_t worker, pid_t pid,
                      int why) {
  nsh_host *h = arg;
  (void)z;
  nsh_lifecycle_forked(&h->pools, worker, pid, why);
  if (pid > 0)
    h->scripts.wait = 0;
  nsh_mode_check(h);
}

static void on_exited(void *arg, nsh_zygote *z, uint32_t worker, int status) {
  nsh_host *h = arg;
  (void)z;
  nsh_lifecycle_exited(&h->pools, worker, status);
  nsh_mode_check(h);
}

static void on_died(void *arg, nsh_zygote *z, int status) {
  nsh_host *h = arg;
  if (h->mode == NSH_MODE_LOADING)
    return;
  if (z == h->pools.zygote && h->mode != NSH_MODE_OVER) {
    ns_log(NS_LOG_ERROR, "zygote.died", NS_FIELDS(ns_fi("status", status)));
    h->pools.zygote = NULL;
    if (h->mode == NSH_MODE_RUNNING)
      nsh_scripts_load_later(&h->scripts);
  }
  nsh_lifecycle_orphaned(&h->pools, z);
  if (h->scripts.refused && h->mode == NSH_MODE_RUNNING)
    nsh_scripts_load(&h->scripts); /* now there is a place */
  nsh_mode_check(h);
}

/* A keeper that is replaced costs no more than its zygotes. */
static void on_keeper_died(void *arg, bool replaced) {
  nsh_host *h = arg;
  if (h->mode != NSH_MODE_OVER)
    ns_log(NS_LOG_ERROR, "keeper.died", NULL, 0);
  if (replaced)
    return;
  h->keeper_gone = true;
  if (h->mode == NSH_MODE_OVER)
    return;
  h->code = NSH_EXIT_FAILURE;
  if (h->mode == NSH_MODE_LOADING) {
    nsh_loop_stop(&h->loop);
    return;
  }
  h->pools.zygote = NULL;
  for (size_t i = 0; i < NSH_ZYGOTES; i++)
    nsh_lifecycle_orphaned(&h->pools, &h->family.zygotes[i]);
  if (h->mode == NSH_MODE_RUNNING)
    nsh_mode_drain(h, "the keeper died");
  nsh_mode_check(h);
}

/* -------------------------------------------------------------- loop events */

static void on_timer(void *arg) {
  nsh_host *h = arg;
  int64_t now = ns_mono_us();
  if (h->scripts.due > 0 && h->mode > NSH_MODE_RUNNING)
    h->scripts.due = 0;
  if (h->scripts.due > 0 && now >= h->scripts.due)
    nsh_scripts_load(&h->scripts);
  if (now - h->pinged > PING_US) {
    nsh_family_ping(&h->family);
    h->pinged = now;
  }
  nsh_watchdog_tick(&h->pools, now);
  nsh_mode_check(h);
}

static void on_wake(void *arg) {
  nsh_host *h = arg;
  nsh_pool_collect(&h->pools);
  nsh_mode_obey(h);
  nsh_mode_check(h);
}

static void set_quiet(nsh_host *h, bool on) {
  if (h->pools.quiet == on || h->mode != NSH_MODE_RUNNING)
    return;
  ns_log(NS_LOG_INFO, on ? "host.quiet" : "host.continue", NULL, 0);
  nsh_pool_quiet(&h->pools, on);
  nsh_mode_serve(h, NULL, NULL);
}

/* A reload that does not begin is a failed one, for callers that wait for its end. */
static void reload_scripts(nsh_host *h) {
  if (h->mode <= NSH_MODE_RUNNING)
    nsh_scripts_load(&h->scripts);
  if (h->mode <= NSH_MODE_RUNNING && h->scripts.refused)
    not_read(h, ns_str("too many generations of scripts are still alive; it is tried "
                       "again when one has ended"), ns_mono_us());
  else if (h->mode == NSH_MODE_DRAINING)
    not_read(h, ns_str("it is about to end"), ns_mono_us());
  if (h->mode == NSH_MODE_RUNNING)
    nsh_service_reloading(&h->service, "reads its scripts again");
}

static void on_stop_signal(nsh_host *h, int sig) {
  const char *name = sig == SIGTERM ? "SIGTERM" : sig == SIGINT ? "SIGINT"
                                                                : "SIGQUIT";
  if (h->mode == NSH_MODE_RUNNING && sig != SIGQUIT)
    nsh_mode_drain(h, name);
  else if (h->mode == NSH_MODE_RUNNING || h->mode == NSH_MODE_DRAINING)
    nsh_mode_stop(h, name);
  else if (h->mode == NSH_MODE_STOPPING)
    nsh_mode_give_up(h);
  else if (h->mode == NSH_MODE_FINISHING)
    nsh_mode_leave_now(h);
}

/* The terminal that the host was started from; -1: none, or its end does not matter (nohup). */
static int open_terminal(void) {
  struct sigaction now;
  if (sigaction(SIGHUP, NULL, &now) == 0 && now.sa_handler == SIG_IGN)
    return -1;
  return open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
}

/* A HUP came. Was it for a terminal that is closed, and not for the scripts? */
static bool is_terminal_closed(const nsh_host *h) {
  struct termios settings;
  return h->terminal >= 0 && tcgetattr(h->terminal, &settings) != 0;
}

static void on_hup(nsh_host *h) {
  if (!is_terminal_closed(h))
    reload_scripts(h);
  else if (h->mode == NSH_MODE_RUNNING)
    nsh_mode_drain(h, "its terminal was closed");
}

static void on_signal(void *arg, int sig) {
  nsh_host *h = arg;
  switch (sig) {
  case SIGHUP:
    on_hup(h);
    break;
  case SIGUSR1:
    nsh_watchdog_dump(&h->pools);
    break;
  case SIGTTIN:
  case SIGTTOU:
    nsh_mode_step(h, sig == SIGTTIN ? 1 : -1);
    break;
  case SIGTSTP:
  case SIGCONT:
    set_quiet(h, sig == SIGTSTP);
    break;
  default:
    on_stop_signal(h, sig);
  }
  nsh_mode_check(h);
}

/* ---------------------------------------------------------- birth and death */

/* Opens the loop and its handles. 'seed': the socket of the seed. */
static void open_host(nsh_host *h, int seed) {
  h->loop = (nsh_loop){.arg = h, .on_timer = on_timer, .on_wake = on_wake, .on_signal = on_signal};
  nsh_loop_open(&h->loop);
  nsh_scripts_open(&h->scripts, &h->loop.uv, &h->family);
  h->family = (nsh_family){.arg = h,
                           .loaded = on_loaded,
                           .failed = on_failed,
                           .forked = on_forked,
                           .exited = on_exited,
                           .died = on_died,
                           .keeper_died = on_keeper_died,
                           .seed_pid = h->seed};
  nsh_exchange_init(&h->exchange, h->cfg->nreserves + 1, nsh_loop_wake, &h->loop);
  nsh_pool_init(&h->pools, h->cfg, &h->exchange, &h->loop.uv, h->slots, h->wakeup[0]);
  nsh_family_open(&h->family, &h->loop.uv, seed);
  h->service.arg = h;
  h->service.on_beat = nsh_mode_beat;
  nsh_service_open(&h->service, &h->loop.uv);
  nsh_loop_hear_first_signals(&h->loop);
}

static bool are_alone(void *arg) {
  const nsh_host *h = arg;
  return h->keeper_gone || nsh_family_alive(&h->family) == 0;
}

/* Lets all processes leave in order, so that the caller finds none left. */
static void dismiss_all(nsh_host *h) {
  h->mode = NSH_MODE_OVER;
  nsh_pool_close(&h->pools);
  nsh_pool_dismiss(&h->pools);
  nsh_family_retire(&h->family);
  nsh_loop_run_until(&h->loop, are_alone, SHUTDOWN_MS);
}

/* Closing their sockets ends seed and keeper, and all processes below them. */
static void close_host(nsh_host *h) {
  dismiss_all(h);
  nsh_loop_hold_signals(true); /* from here on they are not handled */
  nsh_family_close(&h->family);
  nsh_pool_free(&h->pools);
  nsh_service_close(&h->service);
  nsh_loop_close(&h->loop);
  nsh_retry_give_up(&h->exchange.verdicts);
  nsh_exchange_free(&h->exchange);
  nsh_seed_await(h->seed, h->family.keeper_pid);
}

static ns_status start_dispatch(nsh_host *h, ns_err *err) {
  ns_status st = nsh_http_open(&h->http, h->cfg, &h->exchange, err);
  h->pools.metrics = nsh_http_metrics(h->http);
  if (st == NS_OK)
    st = nsh_runners_open(&h->runners, h->cfg, &h->exchange, err);
  if (st == NS_OK)
    st = nsh_dispatch_open(&h->dispatch, h->cfg, &h->exchange, h->slots, err);
  if (st == NS_OK)
    st = nsh_dispatch_start(h->dispatch, err);
  if (st == NS_OK)
    st = nsh_runners_start(h->runners, err);
  if (st == NS_OK)
    st = nsh_schedules_start(&h->schedules, h->cfg, &h->exchange, err);
  if (st == NS_OK)
    st = nsh_figures_start(&h->figures, h->cfg, &h->exchange, h->http, err);
  return st == NS_OK ? nsh_http_start(h->http, nsh_dispatch_slow(h->dispatch), err) : st;
}

/* From the first handlers to the end; h->code is set. */
static void run_loop(nsh_host *h) {
  ns_err err;
  nsh_service_status(&h->service, "reads its scripts");
  nsh_scripts_load(&h->scripts);
  nsh_loop_run(&h->loop);
  if (h->code != NSH_EXIT_OK)
    return;
  if (start_dispatch(h, &err) != NS_OK) {
    complain(err.message, strlen(err.message));
    h->code = err.status == NS_EGONE || err.status == NS_EBUSY ? NSH_EXIT_DATABASE
              : err.status == NS_ENOMEM ? NSH_EXIT_FAILURE
                                        : NSH_EXIT_CONFIG;
    return;
  }
  h->mode = NSH_MODE_RUNNING;
  nsh_loop_hear_signals(&h->loop);
  if (h->scripts.again)
    nsh_scripts_load(&h->scripts);
  nsh_lifecycle_fill(&h->pools);
  nsh_mode_check(h);
  nsh_loop_run(&h->loop);
  nsh_messages_sum_up(&h->pools, ns_mono_us());
  if (h->shown_at != 0)
    ns_log_foot("");
  ns_log(NS_LOG_INFO, "host.end",
         NS_FIELDS(ns_fi("code", h->code), ns_fi("done", h->pools.tally.done),
                   ns_fi("failed", h->pools.tally.failed),
                   ns_fi("crashed", h->pools.tally.crashed)));
}

int nsh_host_run(const nsh_config *cfg, ns_buf *known) {
  nsh_host *h;
  ns_err err;
  int seed;
  int code;
  nsh_limits limits;
  nsh_title_begin();
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
  ns_log_setup(cfg->form, NS_LOG_INFO);
  nsh_service_take(&h->service);
  signal(SIGPIPE, SIG_IGN);
  h->slots = nsh_slots_map(cfg->most_workers);
  nsh_must(h->slots != NULL && nsh_wakeup_make(h->wakeup));
  if (nsh_seed_start(cfg, h->slots, h->wakeup[1], &h->seed, &seed, &err) != NS_OK) {
    complain(err.message, strlen(err.message));
    return NSH_EXIT_FAILURE;
  }
  h->terminal = open_terminal();
  ns_log_spool();
  open_host(h, seed);
  run_loop(h);
  code = h->code;
  nsh_http_stop(h->http);
  if (!nsh_schedules_close(h->schedules) || !nsh_runners_close(h->runners) ||
      !nsh_figures_close(h->figures) || !nsh_dispatch_close(h->dispatch))
    nsh_mode_exit(code);
  if (h->drained && h->exchange.names != NULL)
    ns_buf_addf(known, "%s\n", h->exchange.names);
  close_host(h);
  nsh_http_close(h->http); /* the last workers are counted */
  if (h->terminal >= 0)
    close(h->terminal);
  close(h->wakeup[0]);
  close(h->wakeup[1]);
  nsh_slots_unmap(h->slots, cfg->most_workers);
  free(h);
  ns_log_flush(NSH_FLUSH_US);
  return code;
}
