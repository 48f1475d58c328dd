/*
** The modes: when the next one begins, and the work done then. A host that drains or stops has
** a deadline; when it is over the next mode begins in any case.
*/
#include "host.h"

#include <stdio.h>
#include <unistd.h>

#include "base.h"

#define SETTLE_US (5 * NS_SECOND) /* for the last verdicts, once stopping; to end after */

ns_bytes nsh_mode_version(const nsh_host *h) {
  return h->pools.zygote != NULL ? ns_str(h->pools.zygote->version) : NS_NONE;
}

void nsh_mode_serve(nsh_host *h, char *handlers, char *names) {
  bool takes = h->mode <= NSH_MODE_RUNNING && !h->pools.quiet;
  nsh_exchange_lock(&h->exchange);
  h->exchange.tuning.wanted = h->pools.wanted;
  nsh_exchange_serves(&h->exchange, handlers, names, takes ? h->pools.wanted : 0);
  nsh_exchange_unlock(&h->exchange);
}

/* ------------------------------------------------------- the number of workers */

/* May it have 'n' workers, and does the machine have room for the new ones? */
static ns_status check_workers(const nsh_host *h, int64_t n, ns_err *err) {
  int64_t now = (int64_t)h->pools.wanted;
  nsh_limits limits;
  ns_status st = nsh_config_check_workers(h->cfg, n, err);
  if (st != NS_OK || n <= now)
    return st;
  nsh_limits_read(&limits, "", h->cfg);
  return nsh_limits_check(&limits, (size_t)(n - now), err);
}

/* Has 'n' workers from now on, or says in the log why not. 'by': the one that asked. */
static ns_status tune(nsh_host *h, int64_t n, const char *by, ns_err *err) {
  int64_t was = (int64_t)h->pools.wanted;
  ns_status st = h->mode > NSH_MODE_RUNNING ? ns_fail(err, NS_EINVALID, "it is about to end")
                                            : check_workers(h, n, err);
  if (st != NS_OK) {
    ns_log(NS_LOG_WARN, "host.not_tuned",
           NS_FIELDS(ns_fi("workers", n), ns_fs("by", by), ns_fs("why", err->message)));
  } else if (n != was) {
    ns_log(NS_LOG_INFO, "host.workers",
           NS_FIELDS(ns_fi("workers", n), ns_fi("was", was), ns_fs("by", by)));
    nsh_lifecycle_resize(&h->pools, (size_t)n);
  }
  return st;
}

void nsh_mode_step(nsh_host *h, int step) {
  ns_err err;
  tune(h, (int64_t)h->pools.wanted + step, step > 0 ? "SIGTTIN" : "SIGTTOU", &err);
  nsh_mode_serve(h, NULL, NULL);
}

void nsh_mode_obey(nsh_host *h) {
  nsh_exchange *m = &h->exchange;
  ns_err err;
  ns_status st;
  int64_t n;
  nsh_exchange_lock(m);
  n = m->asked;
  m->asked = 0;
  nsh_exchange_unlock(m);
  if (n == 0)
    return;
  st = tune(h, n, "tune", &err);
  nsh_exchange_lock(m);
  m->tuning.told++;
  snprintf(m->tuning.refused, sizeof m->tuning.refused, "%.255s", st == NS_OK ? "" : err.message);
  nsh_exchange_unlock(m);
  nsh_mode_serve(h, NULL, NULL);
}

/* ----------------------------------------------------- for the service manager */

static const char *describe_mode(const nsh_host *h, char text[NSH_STATUS]) {
  const nsh_pools *t = &h->pools;
  ns_bytes error = ns_first_line(h->exchange.reading.error); /* only this thread writes it */
  int n = snprintf(text, NSH_STATUS, "%zu worker%s, %zu at work; %lld done, %lld failed", t->wanted,
                   t->wanted == 1 ? "" : "s", t->working, (long long)t->tally.done,
                   (long long)(t->tally.failed + t->tally.crashed));
  const char *now = h->mode >= NSH_MODE_STOPPING    ? "; writes the last verdicts"
                    : h->mode == NSH_MODE_DRAINING  ? "; ends when the jobs that run have"
                    : atomic_load(&h->exchange.away) ? "; waits for the database"
                    : t->quiet                      ? "; takes no jobs (SIGTSTP)"
                    : !h->ready                     ? "; starts its workers"
                                                    : "";
  n += snprintf(text + n, NSH_STATUS - (size_t)n, "%s", now);
  if (error.p != NULL)
    snprintf(text + n, NSH_STATUS - (size_t)n, "; could not read its scripts again: %.*s",
             error.n < 200 ? (int)error.n : 200, error.p);
  return text;
}

/* The longest that an end takes: each of its modes to its deadline. */
static int64_t longest_end(const nsh_host *h) {
  return (h->mode == NSH_MODE_DRAINING ? h->cfg->drain_timeout : 0) + 3 * SETTLE_US + NSH_FLUSH_US +
         SETTLE_US; /* and what threads take to end */
}

/* What the host is at, if that is news. */
static void tell_service(nsh_host *h) {
  nsh_service *s = &h->service;
  char text[NSH_STATUS];
  unsigned now = (unsigned)h->mode << 4 | (unsigned)h->ready << 2 | (unsigned)h->pools.quiet << 1 |
                 (unsigned)atomic_load(&h->exchange.away);
  bool read = s->reloading && h->scripts.loading == NULL;
  if (s->fd < 0 || (now == h->told && !read))
    return;
  h->told = now;
  describe_mode(h, text);
  if (h->mode > NSH_MODE_RUNNING && !s->stopping)
    nsh_service_stopping(s, longest_end(h), text);
  else if (h->mode == NSH_MODE_RUNNING && h->ready && (read || !s->ready))
    nsh_service_ready(s, text);
  else
    nsh_service_status(s, text);
}

/* A host that ends has deadlines for all that it does, and its threads leave one by one. */
bool nsh_mode_beat(void *arg) {
  nsh_host *h = arg;
  char text[NSH_STATUS];
  if (!h->service.ready)
    return true;
  describe_mode(h, text);
  if (h->mode < NSH_MODE_STOPPING &&
      !nsh_exchange_moves(&h->exchange, (int64_t)h->service.every * 500)) {
    nsh_service_status(&h->service, text);
    return false;
  }
  nsh_service_beat(&h->service, text);
  return true;
}

/* --------------------------------------------------------------- for a terminal */

#define FOOT_GAP (NS_SECOND / 5)

static const char *describe_span(char text[32], int64_t s) {
  if (s >= 3600)
    snprintf(text, 32, "%lldh%lldm", (long long)(s / 3600), (long long)(s % 3600 / 60));
  else if (s >= 60)
    snprintf(text, 32, "%lldm%llds", (long long)(s / 60), (long long)(s % 60));
  else
    snprintf(text, 32, "%llds", (long long)s);
  return text;
}

/* With --drain: how much is done, how fast, and how long the rest takes. Runs count: jobs that fail
** more than once are as many. */
static void show_progress(nsh_host *h, int64_t now) {
  static const char bar[] = "####################";
  const nsh_tally *t = &h->pools.tally;
  int64_t done = t->done + t->failed + t->crashed;
  int64_t total = done > h->cfg->progress ? done : h->cfg->progress;
  double took = (double)(now - h->shown_from) / NS_SECOND;
  char text[NS_LOG_FOOT];
  char left[32];
  if (h->cfg->progress == 0 || now - h->shown_at < FOOT_GAP)
    return;
  if (h->shown_at == 0)
    h->shown_from = now;
  h->shown_at = now;
  if (done == 0 || now == h->shown_from)
    return;
  snprintf(text, sizeof text, "[%-20.*s] %3lld%%  %lld of %lld jobs  %lld/s  %s left",
           (int)(done * 20 / total), bar, (long long)(done * 100 / total), (long long)done,
           (long long)total, (long long)((double)done / took),
           describe_span(left, (int64_t)((double)(total - done) * took / (double)done)));
  ns_log_foot(text);
}

/* ------------------------------------------------------------ the next mode */

static void enter_mode(nsh_host *h, nsh_mode m, int64_t max) {
  ns_assert(m >= h->mode); /* FINISHING twice: then without the server */
  h->mode = m;
  h->deadline = ns_mono_us() + max;
}

void nsh_mode_drain(nsh_host *h, const char *why) {
  ns_log(NS_LOG_INFO, "host.drain", NS_FIELDS(ns_fs("why", why)));
  enter_mode(h, NSH_MODE_DRAINING, h->cfg->drain_timeout);
  nsh_slots_stop(h->slots);
  nsh_pool_close(&h->pools);
  nsh_mode_serve(h, NULL, NULL);
}

void nsh_mode_stop(nsh_host *h, const char *why) {
  ns_log(NS_LOG_INFO, "host.stop", NS_FIELDS(ns_fs("why", why)));
  nsh_pool_close(&h->pools);
  enter_mode(h, NSH_MODE_STOPPING, SETTLE_US);
  nsh_slots_stop(h->slots);
  nsh_pool_kill(&h->pools);
}

void nsh_mode_leave_now(nsh_host *h) {
  if (!atomic_exchange(&h->exchange.give_up, true))
    enter_mode(h, NSH_MODE_FINISHING, SETTLE_US);
}

void nsh_mode_give_up(nsh_host *h) {
  ns_log(NS_LOG_ERROR, "host.give_up", NULL, 0);
  h->code = NSH_EXIT_FAILURE;
  nsh_mode_leave_now(h);
  nsh_exchange_lock(&h->exchange);
  nsh_exchange_finish(&h->exchange);
  nsh_exchange_unlock(&h->exchange);
}

/* With --drain: is there really nothing left? The exchange is locked. */
static bool nothing_left(const nsh_host *h) {
  const nsh_exchange *m = &h->exchange;
  return h->cfg->drain && h->ready && m->rested && m->outstanding == 0 &&
         m->unsettled == 0 && !m->cycling && nsh_exchange_ticks_rest(m) &&
         (m->rest_due < 0 || m->rest_due > h->cfg->drain_within) && m->rows_rested &&
         (m->rows_due_at == NSH_NEVER || m->rows_due_at - ns_mono_us() > h->cfg->drain_within);
}

/* Has every worker been up? Workers that are forked per job have gone since. */
static bool were_all_up(const nsh_host *h) {
  const nsh_pools *t = &h->pools;
  return t->up >= t->wanted || (h->cfg->fork_per_job && t->tally.forks >= (int64_t)t->wanted);
}

static void tell_ready(nsh_host *h) {
  ns_buf names = NS_BUF_INIT;
  nsh_exchange_lock(&h->exchange);
  if (h->exchange.names != NULL)
    nsh_served_text(&names, ns_str(h->exchange.names));
  nsh_exchange_unlock(&h->exchange);
  nsh_must(!names.oom);
  ns_log(NS_LOG_INFO, "host.ready",
         NS_FIELDS(ns_fi("pid", getpid()), ns_fi("workers", (int64_t)h->pools.wanted),
                   ns_fi("handlers", h->handlers), ns_fb("names", ns_buf_bytes(&names)),
                   ns_fb("scripts", nsh_mode_version(h))));
  ns_buf_free(&names);
}

static void check_running(nsh_host *h) {
  bool done, refused;
  if (!h->ready && were_all_up(h)) {
    h->ready = true;
    tell_ready(h);
  }
  nsh_exchange_lock(&h->exchange);
  done = nothing_left(h);
  refused = h->exchange.rows_refused;
  nsh_exchange_unlock(&h->exchange);
  if (!done)
    return;
  if (refused)
    h->code = NSH_EXIT_FAILURE;
  h->drained = true;
  nsh_mode_drain(h,
                 refused ? "nothing left to do but rows that are refused" : "nothing left to do");
}

/* Everything is written. Leaving in order may take the rest of the drain, and a slow server
** needs it; nothing is lost by leaving without. */
static void finish_writing(nsh_host *h) {
  int64_t rest = h->deadline - ns_mono_us();
  nsh_exchange_finish(&h->exchange);
  enter_mode(h, NSH_MODE_FINISHING, rest > SETTLE_US ? rest : SETTLE_US);
}

/* Are all jobs back and all verdicts written? */
static void check_quiescent(nsh_host *h) {
  nsh_exchange *m = &h->exchange;
  bool away = atomic_load(&m->away);
  nsh_exchange_lock(m);
  if (h->pools.busy == 0 && m->outstanding == 0 && m->unsettled == 0 &&
      (away || !m->cycling || !m->claiming)) {
    finish_writing(h);
    if (away)
      nsh_mode_leave_now(h);
  }
  nsh_exchange_unlock(m);
}

static void check_ended(nsh_host *h) {
  nsh_exchange_lock(&h->exchange);
  if (h->exchange.ended) {
    h->mode = NSH_MODE_OVER;
    if (!h->exchange.clean)
      h->code = NSH_EXIT_FAILURE;
    nsh_loop_stop(&h->loop);
  }
  nsh_exchange_unlock(&h->exchange);
}

void nsh_mode_exit(int code) {
  ns_log_flush(NSH_FLUSH_US);
  _exit(code);
}

static void check_deadline(nsh_host *h, int64_t now) {
  if (h->mode < NSH_MODE_DRAINING || now < h->deadline)
    return;
  if (h->mode == NSH_MODE_DRAINING)
    nsh_mode_stop(h, "drain timeout");
  else if (h->mode == NSH_MODE_STOPPING)
    nsh_mode_give_up(h);
  else if (!atomic_load(&h->exchange.give_up))
    nsh_mode_leave_now(h);
  else
    nsh_mode_exit(h->code);
}

/* The sooner of a wait (-1: none) and the time until an instant, which may have passed
** while another event was looked at. */
static int64_t sooner(int64_t wait, int64_t instant, int64_t now) {
  int64_t until = instant > now ? instant - now : 0;
  return wait < 0 || until < wait ? until : wait;
}

/* The timer runs only while there is something to look after. */
static void arm_timer(nsh_host *h, int64_t now) {
  int64_t wait = nsh_watchdog_next(&h->pools, now);
  if (h->scripts.due > 0)
    wait = sooner(wait, h->scripts.due, now);
  if (h->mode >= NSH_MODE_DRAINING)
    wait = sooner(wait, h->deadline, now);
  nsh_loop_arm(&h->loop, wait);
}

/* Why the host takes no jobs now; NULL: it does. */
static const char *why_unready(const nsh_host *h) {
  if (h->mode > NSH_MODE_RUNNING)
    return h->mode == NSH_MODE_DRAINING ? "the host drains" : "the host ends";
  if (h->pools.quiet)
    return "the host rests, as SIGTSTP has told it";
  return h->pools.zygote == NULL ? "no scripts are loaded"
         : !h->ready             ? "its workers are not there yet"
                                 : NULL;
}

static void tell_pulse(const nsh_host *h) {
  if (h->http == NULL)
    return;
  nsh_http_beat(h->http, &(nsh_pulse){.unready = why_unready(h),
                                      .wanted = (int64_t)h->pools.wanted,
                                      .timeouts = h->pools.tally.timeouts,
                                      .forks = h->pools.tally.forks});
}

void nsh_mode_check(nsh_host *h) {
  int64_t now = ns_mono_us();
  nsh_pool_lock(&h->pools); /* the event's changes count */
  nsh_pool_unlock(&h->pools);
  nsh_pool_recount(&h->pools);
  if (h->mode == NSH_MODE_LOADING || h->mode == NSH_MODE_OVER)
    return;
  if (h->mode == NSH_MODE_RUNNING)
    check_running(h);
  tell_pulse(h);
  if (h->mode == NSH_MODE_DRAINING || h->mode == NSH_MODE_STOPPING)
    check_quiescent(h);
  if (h->mode == NSH_MODE_FINISHING && atomic_load(&h->exchange.away))
    nsh_mode_leave_now(h); /* there is nothing to tell the server */
  check_ended(h);
  if (h->mode == NSH_MODE_OVER)
    return;
  check_deadline(h, now);
  tell_service(h);
  show_progress(h, now);
  arm_timer(h, now);
}
