/*
** The server of `nightshift web`, on libmicrohttpd with a loop of its caller.
**
** A request is collected, answered by a call of the caller, and sent while later steps run. A
** stream is an answer that has no end. Its connection is suspended, and costs nothing, until there
** is text for it. What is not sent yet is bounded. A client that does not read it is cut off when
** the connection's time is over. A byte now and then keeps none for ever. A request has to come in
** within a time, and its answer to be taken.
**
** Invariant: a request is freed with its answer, a stream with its connection; both are
** libmicrohttpd's calls. So none outlives the server.
*/
#define NSH_LIBRARY
#include "http/http.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base.h"

#define CONNECTIONS 512u
#define STREAMS 448u          /* of these; the rest is for pages */
#define IDLE 20u              /* seconds of a connection that neither reads nor writes */
#define WHOLE (60 * NS_SECOND) /* of a request that comes in, and of an answer that is taken */
#define PENDING_MAX (1 << 20) /* bytes of a stream that are not sent yet */
#define READ_MAX (16 << 20)   /* bytes of a body that is too long */

/* A connection. */
typedef struct client {
  struct MHD_Connection *connection;
  struct client *next;
  int64_t since; /* that a request comes in, or an answer is taken; 0: the answer is a stream */
} client;

typedef struct stream {
  nsh_server *server;
  struct MHD_Connection *connection;
  struct stream *next;
  int64_t id;
  ns_buf text;
  size_t sent; /* bytes of 'text' */
  bool asleep; /* its connection is suspended */
  bool over;   /* it ends when its text is sent */
} stream;

struct nsh_request {
  nsh_server *server;
  int64_t id;
  const char *method;
  ns_buf target, heads, body;
  size_t read; /* bytes of the body, and of what was dropped */
  bool begun;
  /* the answer */
  unsigned status; /* 0: none was given */
  bool streams, crowded; /* a stream; one too many */
  ns_buf headers, text; /* headers: as 'heads' */
};

struct nsh_server {
  void *daemon;
  char address[NSH_ADDRESS];
  size_t body_max;
  ns_buf headers; /* of refusals, as 'heads' */
  int64_t last;   /* id */
  client *clients;
  int64_t swept; /* when slow ones were last looked for */
  stream *streams;
  size_t n; /* of them */
  nsh_answer *answer;
  void *arg;
};

/* ------------------------------------------------------------------- requests */

int64_t nsh_request_id(const nsh_request *r) {
  return r->id;
}

const char *nsh_request_method(const nsh_request *r) {
  return r->method;
}

ns_bytes nsh_request_target(const nsh_request *r) {
  return ns_buf_bytes(&r->target);
}

ns_bytes nsh_request_body(const nsh_request *r) {
  return ns_buf_bytes(&r->body);
}

ns_bytes nsh_request_heads(const nsh_request *r) {
  return ns_buf_bytes(&r->heads);
}

static void add_header(ns_buf *headers, const char *name, const char *value) {
  ns_buf_add(headers, name, strlen(name) + 1);
  ns_buf_add(headers, value, strlen(value) + 1);
}

void nsh_request_header(nsh_request *r, const char *name, const char *value) {
  add_header(&r->headers, name, value);
}

void nsh_server_header(nsh_server *s, const char *name, const char *value) {
  add_header(&s->headers, name, value);
}

void nsh_request_reply(nsh_request *r, unsigned status, ns_bytes body) {
  ns_buf_reset(&r->text);
  ns_buf_add(&r->text, body.p, body.n);
  r->status = status;
  r->streams = false;
}

void nsh_request_stream(nsh_request *r, unsigned status) {
  r->streams = r->server->n < STREAMS;
  r->crowded = !r->streams;
  r->status = status;
}

#ifdef HAS_RUN_WAIT

typedef enum MHD_Result result;

/* ---------------------------------------------------------------- connections */

static void on_connection(void *arg, struct MHD_Connection *c, void **kept,
                          enum MHD_ConnectionNotificationCode what) {
  nsh_server *s = arg;
  client *k = *kept;
  if (what == MHD_CONNECTION_NOTIFY_STARTED) {
    k = calloc(1, sizeof *k);
    if (k == NULL)
      return; /* it has no limit of time */
    *k = (client){.connection = c, .next = s->clients, .since = ns_mono_us()};
    s->clients = k;
    *kept = k;
  } else if (k != NULL) {
    client **at = &s->clients;
    while (*at != k)
      at = &(*at)->next;
    *at = k->next;
    *kept = NULL;
    free(k);
  }
}

/* Its time begins anew; 'endless': it has none. */
static void begin_time(struct MHD_Connection *c, bool endless) {
  const union MHD_ConnectionInfo *info =
      nsh_mhd->get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
  client *k = info != NULL ? info->socket_context : NULL;
  if (k != NULL)
    k->since = endless ? 0 : ns_mono_us();
}

/* Ends connections that are too slow; libmicrohttpd closes them in the next step. */
static void cut_slow(nsh_server *s) {
  int64_t now = ns_mono_us();
  if (now - s->swept < NS_SECOND)
    return;
  s->swept = now;
  for (const client *k = s->clients; k != NULL; k = k->next) {
    const union MHD_ConnectionInfo *info;
    if (k->since == 0 || now - k->since < WHOLE)
      continue;
    info = nsh_mhd->get_connection_info(k->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info != NULL)
      shutdown(info->connect_fd, SHUT_RDWR);
  }
}

/* -------------------------------------------------------------------- streams */

/* The next bytes of a stream. Without any its connection sleeps until there are some. */
static ssize_t read_stream(void *arg, uint64_t at, char *to, size_t max) {
  stream *t = arg;
  size_t n = t->text.n - t->sent;
  (void)at;
  if (n == 0 && t->over)
    return MHD_CONTENT_READER_END_OF_STREAM;
  if (n == 0) {
    t->asleep = true;
    nsh_mhd->suspend_connection(t->connection);
    return 0;
  }
  n = n < max ? n : max;
  memcpy(to, t->text.p + t->sent, n);
  t->sent += n;
  return (ssize_t)n;
}

/* Its connection has ended. */
static void free_stream(void *arg) {
  stream *t = arg;
  stream **at = &t->server->streams;
  while (*at != t)
    at = &(*at)->next;
  *at = t->next;
  t->server->n--;
  ns_buf_free(&t->text);
  free(t);
}

static void wake(stream *t) {
  if (t->asleep) {
    t->asleep = false;
    nsh_mhd->resume_connection(t->connection);
  }
}

bool nsh_server_send(nsh_server *s, int64_t id, ns_bytes text) {
  stream *t = s->streams;
  while (t != NULL && t->id != id)
    t = t->next;
  if (t == NULL || t->over)
    return false;
  if (t->sent == t->text.n) {
    ns_buf_reset(&t->text);
    t->sent = 0;
  }
  if (t->text.n + text.n <= PENDING_MAX)
    ns_buf_add(&t->text, text.p, text.n);
  t->over = t->text.oom || t->text.n + text.n > PENDING_MAX;
  wake(t);
  return !t->over;
}

/* An answer without an end; NULL: no memory. */
static struct MHD_Response *make_stream(struct MHD_Connection *c, const nsh_request *r) {
  nsh_server *s = r->server;
  struct MHD_Response *made;
  stream *t = calloc(1, sizeof *t);
  if (t == NULL)
    return NULL;
  *t = (stream){.server = s, .connection = c, .next = s->streams, .id = r->id};
  made = nsh_mhd->create_response_from_callback(MHD_SIZE_UNKNOWN, 4096, read_stream, t,
                                                free_stream);
  if (made == NULL) {
    free(t);
    return NULL;
  }
  s->streams = t;
  s->n++;
  return made;
}

/* -------------------------------------------------------------------- answers */

static void add_headers(struct MHD_Response *made, const nsh_request *r) {
  const char *at = r->headers.p;
  const char *end = at + r->headers.n;
  while (at != NULL && at < end && !r->headers.oom) {
    const char *value = at + strlen(at) + 1;
    nsh_mhd->add_response_header(made, at, value);
    at = value + strlen(value) + 1;
  }
}

static result respond(struct MHD_Connection *c, const nsh_request *r) {
  ns_bytes text = ns_buf_bytes(&r->text);
  struct MHD_Response *made;
  result sent = MHD_NO;
  if (r->streams)
    made = make_stream(c, r);
  else
    made = nsh_mhd->create_response_from_buffer(text.n, (void *)text.p, MHD_RESPMEM_MUST_COPY);
  if (made == NULL)
    return MHD_NO;
  add_headers(made, r);
  begin_time(c, r->streams);
  sent = nsh_mhd->queue_response(c, r->status, made);
  nsh_mhd->destroy_response(made);
  return sent;
}

static result refuse(struct MHD_Connection *c, nsh_request *r, unsigned status, const char *why) {
  ns_bytes always = ns_buf_bytes(&r->server->headers);
  ns_buf_reset(&r->headers);
  ns_buf_add(&r->headers, always.p, always.n);
  nsh_request_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "text/plain; charset=utf-8");
  nsh_request_header(r, MHD_HTTP_HEADER_CONNECTION, "close");
  nsh_request_reply(r, status, (ns_bytes){why, strlen(why)});
  return respond(c, r);
}

/* --------------------------------------------- how libmicrohttpd tells a request */

/* First of all: the target as it was sent. What it returns is the request from then on. */
static void *on_target(void *arg, const char *target, struct MHD_Connection *c) {
  nsh_server *s = arg;
  nsh_request *r = calloc(1, sizeof *r);
  (void)c;
  if (r == NULL)
    return NULL;
  r->server = s;
  r->id = ++s->last;
  ns_buf_adds(&r->target, target);
  return r;
}

static result keep_head(void *arg, enum MHD_ValueKind kind, const char *name, size_t name_n,
                        const char *value, size_t n) {
  ns_buf *heads = arg;
  (void)kind;
  for (size_t i = 0; i < name_n; i++)
    ns_buf_addc(heads, (char)tolower((unsigned char)name[i]));
  ns_buf_addc(heads, '\0');
  if (value != NULL)
    ns_buf_add(heads, value, strnlen(value, n));
  ns_buf_addc(heads, '\0');
  return MHD_YES;
}

#define TOO_LONG "the body of the request is too long\n"

/* What is too long is read and dropped: a client hears the answer only behind its body. One that
** does not end is cut off. */
static result take_body(nsh_request *r, const char *body, size_t *n) {
  r->read += *n;
  if (r->read <= r->server->body_max)
    ns_buf_add(&r->body, body, *n);
  *n = 0;
  return r->read <= READ_MAX ? MHD_YES : MHD_NO;
}

static result on_request(void *arg, struct MHD_Connection *c, const char *url, const char *method,
                         const char *version, const char *body, size_t *n, void **kept) {
  nsh_server *s = arg;
  nsh_request *r = *kept;
  (void)url, (void)version;
  if (r == NULL)
    return MHD_NO;
  if (!r->begun) {
    r->begun = true;
    return MHD_YES;
  }
  if (*n > 0)
    return take_body(r, body, n);
  if (r->read > s->body_max)
    return refuse(c, r, MHD_HTTP_CONTENT_TOO_LARGE, TOO_LONG);
  r->method = method;
  nsh_mhd->get_connection_values_n(c, MHD_HEADER_KIND, keep_head, &r->heads);
  if (r->target.oom || r->heads.oom || r->body.oom)
    return refuse(c, r, MHD_HTTP_SERVICE_UNAVAILABLE, "out of memory\n");
  s->answer(s->arg, r);
  if (r->crowded)
    return refuse(c, r, MHD_HTTP_SERVICE_UNAVAILABLE, "too many pages are open\n");
  if (r->status == 0 || r->text.oom || r->headers.oom)
    return refuse(c, r, MHD_HTTP_INTERNAL_SERVER_ERROR, "the request could not be answered\n");
  return respond(c, r);
}

static void on_end(void *arg, struct MHD_Connection *c, void **kept,
                   enum MHD_RequestTerminationCode why) {
  nsh_request *r = *kept;
  (void)arg, (void)why;
  *kept = NULL;
  begin_time(c, false);
  if (r == NULL)
    return;
  ns_buf_free(&r->target);
  ns_buf_free(&r->heads);
  ns_buf_free(&r->body);
  ns_buf_free(&r->headers);
  ns_buf_free(&r->text);
  free(r);
}

/* ------------------------------------------------------------- birth and end */

static void *start_daemon(nsh_server *s, int fd) {
  return nsh_mhd->start_daemon(
      MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, on_request, s,
      MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS,
      MHD_OPTION_CONNECTION_TIMEOUT, IDLE, MHD_OPTION_STRICT_FOR_CLIENT, 1,
      MHD_OPTION_URI_LOG_CALLBACK, on_target, s, MHD_OPTION_NOTIFY_COMPLETED, on_end, s,
      MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_END);
}

static void run_daemon(nsh_server *s, int64_t wait) {
  int64_t ms = (wait + 999) / 1000;
  nsh_mhd->run_wait(s->daemon, ms > INT32_MAX ? INT32_MAX : (int32_t)ms);
  cut_slow(s);
}

/* A server does not stop while connections are suspended. */
static void stop_daemon(nsh_server *s) {
  for (stream *t = s->streams; t != NULL; t = t->next) {
    t->over = true;
    wake(t);
  }
  run_daemon(s, 0);
  nsh_mhd->stop_daemon(s->daemon);
}

#else

bool nsh_server_send(nsh_server *s, int64_t id, ns_bytes text) {
  (void)s, (void)id, (void)text;
  return false;
}

static void *start_daemon(nsh_server *s, int fd) {
  (void)s, (void)fd;
  return NULL;
}

static void run_daemon(nsh_server *s, int64_t wait) {
  (void)s, (void)wait;
}

static void stop_daemon(nsh_server *s) {
  (void)s;
}

#endif

/* Requests that come while the server closes. */
static void answer_none(void *arg, nsh_request *r) {
  (void)arg;
  r->status = 503;
}

ns_status nsh_server_open(nsh_server **out, const char *address, size_t body_max, ns_err *err) {
  nsh_server *s;
  int fd;
  *out = NULL;
#ifndef HAS_RUN_WAIT
  return ns_fail(err, NS_EINVALID,
                 "--listen: this program was built without libmicrohttpd; install "
                 "libmicrohttpd-dev and build it again");
#endif
  if (nsh_mhd == NULL)
    return ns_fail(err, NS_EINVALID, "--listen: " NSH_NO_LIBRARY);
  s = calloc(1, sizeof *s);
  if (s == NULL)
    return ns_no_memory(err);
  s->body_max = body_max;
  s->answer = answer_none;
  fd = nsh_address_listen("--listen", address, s->address, err);
  if (fd < 0) {
    free(s);
    return NS_EINVALID;
  }
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  s->daemon = start_daemon(s, fd);
  if (s->daemon == NULL) {
    close(fd);
    free(s);
    return ns_fail(err, NS_ENOMEM, "--listen: cannot start the server at %s", address);
  }
  *out = s;
  return NS_OK;
}

const char *nsh_server_address(const nsh_server *s) {
  return s->address;
}

void nsh_server_step(nsh_server *s, int64_t wait, nsh_answer *answer, void *arg) {
  ns_assert(s->answer == answer_none);
  s->answer = answer;
  s->arg = arg;
  run_daemon(s, wait);
  s->answer = answer_none;
}

void nsh_server_close(nsh_server *s) {
  if (s == NULL)
    return;
  ns_assert(s->answer == answer_none);
  stop_daemon(s);
  ns_buf_free(&s->headers);
  free(s);
}
