/*
** Addresses of HTTP servers: their text, sockets that listen there, and asking the server of
** another host. And the server of `--http`: a thread that accepts, and one for each connection,
** both of libmicrohttpd. Only this file and server.c see its header; without it the program is
** built without a server.
**
** /livez asks whether the threads of the host move; an outage of the database does not count. The
** loop is asked by its wake-up and answers with its next event. /readyz wants that, and that the
** claim loop goes round, which takes an answer of the database each time.
**
** Invariant: a thread that is asked never waits for a request, and each wait for another server
** ends with its time limit. (Not asserted: it is about time.)
*/
#define NSH_LIBRARY
#include "http/http.h"

#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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
#define TEXT_MAX 4096 /* bytes of what another server answers */

/* ----------------------------------------------------------------- addresses */

/* Cuts "HOST:PORT", "[HOST]:PORT", ":PORT" or "PORT" in two; without a host it is the loopback. */
static bool cut_address(const char *text, char host[NSH_ADDRESS], const char **port) {
  const char *colon = strrchr(text, ':');
  size_t n = colon != NULL ? (size_t)(colon - text) : 0;
  const char *from = text;
  *port = colon != NULL ? colon + 1 : text;
  if (n >= 2 && text[0] == '[' && text[n - 1] == ']') {
    from++;
    n -= 2;
  }
  snprintf(host, NSH_ADDRESS, "%.*s", (int)n, n > 0 ? from : "");
  if (n == 0)
    snprintf(host, NSH_ADDRESS, "127.0.0.1");
  return n < NSH_ADDRESS && **port != '\0' && strspn(*port, "0123456789") == strlen(*port) &&
         strtol(*port, NULL, 10) <= 65535 && strlen(*port) <= 5;
}

static ns_status find_address(const char *option, const char *text, struct addrinfo **found,
                              ns_err *err) {
  struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  char host[NSH_ADDRESS];
  const char *port;
  int failed;
  *found = NULL;
  if (!cut_address(text, host, &port))
    return ns_fail(err, NS_EINVALID, "%s: '%s' is not ADDRESS:PORT, as 127.0.0.1:9108 is", option,
                   text);
  failed = getaddrinfo(host, port, &hints, found);
  return failed == 0 ? NS_OK
                     : ns_fail(err, NS_EINVALID, "%s: '%s' is no address: %s", option, host,
                               gai_strerror(failed));
}

/* A socket that listens there; -1, and errno. */
static int listen_at(const struct addrinfo *a) {
  int on = 1;
  int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
  if (fd < 0)
    return -1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 64) == 0)
    return fd;
  on = errno;
  close(fd);
  errno = on;
  return -1;
}

/* What it has got, which tells the port when none was named. */
static void name_address(int fd, char out[NSH_ADDRESS]) {
  struct sockaddr_storage a;
  socklen_t n = sizeof a;
  char host[80], port[8];
  out[0] = '\0';
  if (getsockname(fd, (struct sockaddr *)&a, &n) == 0 &&
      getnameinfo((struct sockaddr *)&a, n, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV) == 0)
    snprintf(out, NSH_ADDRESS, a.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

int nsh_address_listen(const char *option, const char *text, char out[NSH_ADDRESS], ns_err *err) {
  struct addrinfo *found;
  int fd;
  if (find_address(option, text, &found, err) != NS_OK)
    return -1;
  fd = listen_at(found);
  freeaddrinfo(found);
  if (fd < 0)
    ns_fail(err, NS_EINVALID, "%s: cannot listen on %s: %s", option, text, strerror(errno));
  else
    name_address(fd, out);
  return fd;
}

/* ------------------------------------------------------------ asking another */

/* Connects, or -1 and errno; no wait is longer than 'timeout'. */
static int connect_to(const struct addrinfo *a, int64_t timeout) {
  struct timeval t = {(time_t)(timeout / NS_SECOND), (suseconds_t)(timeout % NS_SECOND)};
  int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
  int why;
  if (fd < 0)
    return -1;
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
  if (connect(fd, a->ai_addr, a->ai_addrlen) == 0)
    return fd;
  why = errno == EINPROGRESS ? ETIMEDOUT : errno;
  close(fd);
  errno = why;
  return -1;
}

/* Sends the question and reads to the end. False: errno. */
static bool exchange_text(int fd, const char *path, ns_buf *text) {
  ns_buf request = NS_BUF_INIT;
  char *room;
  ssize_t n;
  ns_buf_addf(&request, "GET %s HTTP/1.0\r\n\r\n", path);
  n = send(fd, request.p, request.n, MSG_NOSIGNAL);
  ns_buf_free(&request);
  while (n > 0 && text->n < TEXT_MAX && (room = ns_buf_room(text, TEXT_MAX)) != NULL) {
    n = recv(fd, room, TEXT_MAX, 0);
    text->n += n > 0 ? (size_t)n : 0;
  }
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
    errno = ETIMEDOUT;
  return n >= 0;
}

/* The status, and the text without its head; 0: that is no answer of HTTP. */
static int take_status(ns_buf *text) {
  int status = 0;
  char *body;
  ns_buf_addc(text, '\0');
  body = text->oom ? NULL : strstr(text->p, "\r\n\r\n");
  if (body == NULL || strncmp(text->p, "HTTP/1.", 7) != 0)
    return 0;
  status = (int)strtol(text->p + 8, NULL, 10);
  text->n = strlen(body + 4);
  memmove(text->p, body + 4, text->n);
  return status;
}

ns_status nsh_http_get(const char *address, const char *path, int64_t timeout, int *status,
                       ns_buf *text, ns_err *err) {
  struct addrinfo *found;
  ns_status st = find_address("--http", address, &found, err);
  int fd;
  *status = 0;
  if (st != NS_OK)
    return st;
  fd = connect_to(found, timeout);
  freeaddrinfo(found);
  if (fd < 0)
    return ns_fail(err, NS_EGONE, "%s: %s", address, strerror(errno));
  if (!exchange_text(fd, path, text))
    st = ns_fail(err, NS_EGONE, "%s does not answer: %s", address, strerror(errno));
  else if ((*status = take_status(text)) == 0)
    st = ns_fail(err, NS_EGONE, "%s does not speak HTTP", address);
  close(fd);
  return st;
}

/* ------------------------------------------------------- the server: its state */

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
