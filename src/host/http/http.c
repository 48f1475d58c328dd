/*
** The server of `--http`: a thread that accepts, and one for each connection, both of
** libmicrohttpd. Only this file and server.c see its header; without it the program is built
** without a server.
**
** /livez asks whether the threads of the host move; an outage of the database does not count. The
** loop is asked by its wake-up and answers with its next event. /readyz wants that, and that the
** claim loop goes round, which takes an answer of the database each time.
**
** Invariant: a thread that is asked never waits for a request. (Not asserted: it is about time.)
*/
#define NSH_LIBRARY
#include "http/http.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base.h"

#define ANSWER_MAX NS_SECOND      /* for the loop to answer; then it is given … */
#define STILL_MAX (10 * NS_SECOND) /* … so long before it is said to be stuck */
#define ROUND_MAX (15 * NS_SECOND) /* a claim loop beats every ten seconds */
#define SLOW_MAX (4 * NS_SECOND) /* an idle host is not ready 15 s after the server froze */
#define FIGURES_OLD (5 * NS_SECOND)
#define FIGURES_MAX (2 * NS_SECOND) /* to wait for newer ones */
#define CONNECTIONS 32u
#define IDLE 10u /* seconds of a connection */

struct nsh_http {
  const nsh_config *cfg;
  nsh_exchange *exchange;
  const nsh_slow *slow;
  nsh_metrics *metrics;
  void *daemon; /* NULL: it does not answer */
  int fd;       /* -1: the daemon has it, or there is none */
  char address[NSH_ADDRESS];
  pthread_mutex_t lock; /* guards these */
  pthread_cond_t told;
  nsh_pulse pulse;
  int64_t asked_at, told_at; /* monotonic µs: the loop was asked, has answered last */
  bool ends;
  pthread_cond_t wakes, read; /* the exchange's lock guards the rest: figures of the database */
  bool asks;
  uint64_t reads;  /* counts answers */
  ns_buf figures;  /* the last text; empty: the database could not be read */
  int64_t read_at; /* monotonic µs */
  char server[NSH_SERVER]; /* its version; "": not known */
};

/* ------------------------------------------------------------------- waiting */

/* True: it was not woken before. */
static bool wait_until(pthread_cond_t *c, pthread_mutex_t *lock, int64_t when) {
  struct timespec t = {(time_t)(when / NS_SECOND), (long)(when % NS_SECOND) * 1000};
  return pthread_cond_timedwait(c, lock, &t) == ETIMEDOUT;
}

void nsh_http_beat(nsh_http *h, const nsh_pulse *pulse) {
  if (h == NULL)
    return;
  pthread_mutex_lock(&h->lock);
  h->pulse = *pulse;
  h->told_at = ns_mono_us();
  pthread_cond_broadcast(&h->told);
  pthread_mutex_unlock(&h->lock);
}

/* Has the loop say how it is. How long it has been asked, µs; 0: it has answered. */
static int64_t ask_loop(nsh_http *h, nsh_pulse *pulse) {
  int64_t now = ns_mono_us();
  int64_t silent;
  pthread_mutex_lock(&h->lock);
  if (h->told_at >= h->asked_at)
    h->asked_at = now;
  h->exchange->notify(h->exchange->notify_arg);
  while (h->told_at < h->asked_at && !h->ends &&
         !wait_until(&h->told, &h->lock, now + ANSWER_MAX))
    continue;
  silent = h->told_at < h->asked_at ? ns_mono_us() - h->asked_at : 0;
  *pulse = h->pulse;
  pthread_mutex_unlock(&h->lock);
  return silent;
}

/* -------------------------------------------------------------------- health */

/* Says since when the dispatcher waits for an answer of the database; µs, 0: it does not. */
static int64_t time_waited(const nsh_http *h, const char **what) {
  int64_t since = nsh_slow_since(h->slow, NSH_DISPATCHER, what);
  int64_t now = ns_mono_us();
  return since > 0 && now > since ? now - since : 0;
}

static int64_t age_of(const _Atomic int64_t *instant) {
  return ns_mono_us() - atomic_load(instant);
}

/* Does the claim loop move, or is it meant to have ended? */
static bool does_claim(nsh_http *h) {
  nsh_exchange *m = h->exchange;
  bool ends;
  nsh_exchange_lock(m);
  ends = m->ended || m->finish;
  nsh_exchange_unlock(m);
  return ends || nsh_exchange_moves(m, STILL_MAX);
}

static long long whole(int64_t us) {
  return (long long)(us / NS_SECOND);
}

/* Do the threads move? False: 'why' says which does not. */
static bool is_alive(nsh_http *h, nsh_pulse *pulse, char *why, size_t size) {
  int64_t silent = ask_loop(h, pulse);
  bool claims = does_claim(h);
  if (silent > STILL_MAX)
    snprintf(why, size, "the loop has not moved for %lld s", whole(silent));
  else if (!claims)
    snprintf(why, size, "the claim loop has not moved for %lld s",
             whole(age_of(&h->exchange->moved)));
  return silent <= STILL_MAX && claims;
}

/* Does the host take jobs? */
static bool is_ready(nsh_http *h, char *why, size_t size) {
  const nsh_exchange *m = h->exchange;
  nsh_pulse pulse;
  const char *what = NULL;
  int64_t waited;
  int64_t age;
  if (!is_alive(h, &pulse, why, size))
    return false;
  if (pulse.unready != NULL) {
    snprintf(why, size, "%s", pulse.unready);
    return false;
  }
  if (atomic_load(&m->away)) {
    snprintf(why, size, "the database is away");
    return false;
  }
  waited = time_waited(h, &what);
  age = age_of(&m->rounded_at);
  if (waited > SLOW_MAX)
    snprintf(why, size, "the database has not answered for %lld s (%s)", whole(waited), what);
  else if (age > ROUND_MAX)
    snprintf(why, size, "the claim loop has not gone round for %lld s", whole(age));
  return waited <= SLOW_MAX && age <= ROUND_MAX;
}

/* ------------------------------------------------- figures of the database */

pthread_cond_t *nsh_http_wakes(nsh_http *h) {
  return &h->wakes;
}

bool nsh_http_asks(const nsh_http *h) {
  return h->asks;
}

void nsh_http_answer(nsh_http *h, ns_buf *text, const char *server) {
  ns_buf_reset(&h->figures);
  if (text != NULL) {
    ns_buf_free(&h->figures);
    h->figures = *text;
    *text = NS_BUF_INIT;
  }
  if (server != NULL)
    snprintf(h->server, sizeof h->server, "%s", server);
  h->read_at = ns_mono_us();
  h->reads++;
  h->asks = false;
  pthread_cond_broadcast(&h->read);
}

/* Adds figures that are new enough, and are waited for a while. False: there are none. */
static bool add_figures(nsh_http *h, ns_buf *out, int64_t *read_at, char server[NSH_SERVER]) {
  nsh_exchange *m = h->exchange;
  int64_t now = ns_mono_us();
  uint64_t seen;
  bool there;
  nsh_exchange_lock(m);
  seen = h->reads;
  if (seen == 0 || now - h->read_at > FIGURES_OLD) {
    h->asks = true;
    pthread_cond_broadcast(&h->wakes);
    while (h->reads == seen && !h->ends && !wait_until(&h->read, &m->lock, now + FIGURES_MAX))
      continue;
  }
  there = !h->asks && h->figures.n > 0;
  if (there)
    ns_buf_add(out, h->figures.p, h->figures.n);
  *read_at = h->read_at;
  memcpy(server, h->server, NSH_SERVER);
  nsh_exchange_unlock(m);
  return there;
}

static void write_metrics(nsh_http *h, ns_buf *out) {
  ns_buf figures = NS_BUF_INIT;
  char why[200];
  char text[NS_NUMBER_SIZE];
  nsh_facts facts = {.lua = h->cfg->lua};
  int64_t read_at;
  bool there;
  facts.ready = is_ready(h, why, sizeof why);
  there = add_figures(h, &figures, &read_at, facts.server);
  facts.database = there && !atomic_load(&h->exchange->away);
  pthread_mutex_lock(&h->lock);
  facts.pulse = h->pulse;
  pthread_mutex_unlock(&h->lock);
  nsh_metrics_write(h->metrics, h->exchange, &facts, out);
  if (there) {
    ns_buf_add(out, figures.p, figures.n);
    nsh_metrics_single(out, "nightshift_database_look_age_seconds", "gauge",
                       "How old the figures of the database are.",
                       ns_number_seconds(ns_mono_us() - read_at, text));
  }
  ns_buf_free(&figures);
}

/* ------------------------------------------------------------------ requests */

const nsh_mhd_calls *nsh_mhd;

#ifdef HAS_SERVER

typedef enum MHD_Result result;

static result respond(struct MHD_Connection *c, unsigned status, const char *type, ns_buf *text) {
  struct MHD_Response *r = NULL;
  result sent = MHD_NO;
  if (!text->oom)
    r = nsh_mhd->create_response_from_buffer(text->n, text->p, MHD_RESPMEM_MUST_COPY);
  ns_buf_free(text);
  if (r == NULL)
    return MHD_NO;
  nsh_mhd->add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
  nsh_mhd->add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
  if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
    nsh_mhd->add_response_header(r, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
  sent = nsh_mhd->queue_response(c, status, r);
  nsh_mhd->destroy_response(r);
  return sent;
}

#define PLAIN "text/plain; charset=utf-8"

static result respond_line(struct MHD_Connection *c, unsigned status, const char *line) {
  ns_buf text = NS_BUF_INIT;
  ns_buf_addf(&text, "%s\n", line);
  return respond(c, status, PLAIN, &text);
}

static result on_request(void *arg, struct MHD_Connection *c, const char *url, const char *method,
                         const char *version, const char *body, size_t *n, void **kept) {
  nsh_http *h = arg;
  ns_buf text = NS_BUF_INIT;
  char why[200] = "ok";
  nsh_pulse pulse;
  bool good;
  (void)version, (void)body, (void)n, (void)kept;
  if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
    return respond_line(c, MHD_HTTP_METHOD_NOT_ALLOWED, "GET and HEAD only");
  if (strcmp(url, "/metrics") == 0) {
    write_metrics(h, &text);
    return respond(c, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", &text);
  }
  if (strcmp(url, "/livez") == 0)
    good = is_alive(h, &pulse, why, sizeof why);
  else if (strcmp(url, "/readyz") == 0)
    good = is_ready(h, why, sizeof why);
  else
    return respond_line(c, MHD_HTTP_NOT_FOUND, "there are /metrics, /livez and /readyz");
  return respond_line(c, good ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE, why);
}

static void *start_daemon(nsh_http *h) {
  return nsh_mhd->start_daemon(
      MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL, 0, NULL,
      NULL, on_request, h, MHD_OPTION_LISTEN_SOCKET, h->fd, MHD_OPTION_CONNECTION_LIMIT,
      CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT, IDLE, MHD_OPTION_END);
}

static void stop_daemon(void *daemon) {
  nsh_mhd->stop_daemon(daemon);
}

#else

static void *start_daemon(nsh_http *h) {
  (void)write_metrics, (void)is_alive, (void)h;
  return NULL;
}

static void stop_daemon(void *daemon) {
  (void)daemon;
}

#endif

/* ------------------------------------------------------------- birth and end */

ns_status nsh_http_open(nsh_http **out, const nsh_config *cfg, nsh_exchange *exchange,
                        ns_err *err) {
  nsh_http *h;
  *out = NULL;
  if (cfg->http == NULL)
    return NS_OK;
#ifndef HAS_SERVER
  return ns_fail(err, NS_EINVALID, "--http: this program was built without libmicrohttpd; install "
                                   "libmicrohttpd-dev and build it again");
#endif
  if (nsh_mhd == NULL)
    return ns_fail(err, NS_EINVALID, "--http: " NSH_NO_LIBRARY);
  h = *out = nsh_alloc(sizeof *h);
  h->cfg = cfg;
  h->exchange = exchange;
  h->metrics = nsh_metrics_new();
  h->fd = -1;
  h->pulse.unready = "it begins";
  pthread_mutex_init(&h->lock, NULL);
  nsh_exchange_cond(&h->told);
  nsh_exchange_cond(&h->wakes);
  nsh_exchange_cond(&h->read);
  h->fd = nsh_address_listen("--http", cfg->http, h->address, err);
  return h->fd >= 0 ? NS_OK : NS_EINVALID;
}

ns_status nsh_http_start(nsh_http *h, const nsh_slow *slow, ns_err *err) {
  sigset_t all;
  sigset_t old;
  if (h == NULL)
    return NS_OK;
  h->slow = slow;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  h->daemon = start_daemon(h);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (h->daemon == NULL)
    return ns_fail(err, NS_ENOMEM, "cannot start the server of --http");
  h->fd = -1; /* the daemon closes it */
  ns_log(NS_LOG_INFO, "host.http", NS_FIELDS(ns_fs("address", h->address)));
  return NS_OK;
}

void nsh_http_stop(nsh_http *h) {
  if (h == NULL || h->daemon == NULL)
    return;
  nsh_exchange_lock(h->exchange);
  pthread_mutex_lock(&h->lock);
  h->ends = true;
  pthread_cond_broadcast(&h->told);
  pthread_mutex_unlock(&h->lock);
  pthread_cond_broadcast(&h->read);
  nsh_exchange_unlock(h->exchange);
  stop_daemon(h->daemon);
  h->daemon = NULL;
}

void nsh_http_close(nsh_http *h) {
  if (h == NULL)
    return;
  nsh_http_stop(h);
  if (h->fd >= 0)
    close(h->fd);
  pthread_cond_destroy(&h->told);
  pthread_cond_destroy(&h->wakes);
  pthread_cond_destroy(&h->read);
  pthread_mutex_destroy(&h->lock);
  nsh_metrics_free(h->metrics);
  ns_buf_free(&h->figures);
  free(h);
}

nsh_metrics *nsh_http_metrics(nsh_http *h) {
  return h != NULL ? h->metrics : NULL;
}
