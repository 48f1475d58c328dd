/*
** Metrics and health of a host. The pool and the loop count and tell here; a server
** of its own threads (`--http`) answers /metrics, /livez and /readyz from that. And the server of
** `nightshift web`.
**
** Invariant: without `--http` there is no nsh_http, and nothing is counted for it. A request never
** uses the dispatcher's connection. Loop and dispatcher never wait for one, except for a lock that
** is held while counts are copied. (Not asserted: it is about time.)
*/
#ifndef NSH_HTTP_HTTP_H
#define NSH_HTTP_HTTP_H

#include "exchange/exchange.h"
#include "threads/threads.h"

/* ----------------------------------------- counts of jobs, and text: metrics.c */

/* Counts of ended runs by queue and name, with histograms of their times. Pushers choose names, so
** their number is limited: the rest is counted together under the name "other". */
typedef struct nsh_metrics nsh_metrics;

/* How a run has ended. */
typedef struct nsh_ran {
  ns_bytes queue, name;
  ns_kind kind;
  int64_t micros; /* that its handler took */
  int64_t waited; /* µs since it could be claimed, until its start; below 0: not known */
} nsh_ran;

nsh_metrics *nsh_metrics_new(void);
void nsh_metrics_free(nsh_metrics *m); /* NULL is allowed */

/* From any thread. */
void nsh_metrics_ran(nsh_metrics *m, const nsh_ran *ran);

/* What the loop knows, as it told last. */
typedef struct nsh_pulse {
  const char *unready; /* why it takes no jobs now, for people; static; NULL: it takes some */
  int64_t wanted;      /* workers that there are to be */
  int64_t timeouts, forks;
} nsh_pulse;

#define NSH_SERVER 64 /* bytes of a server's version */

/* What the server of `--http` knows beside that. */
typedef struct nsh_facts {
  nsh_pulse pulse;
  bool ready;              /* as /readyz says */
  bool database;           /* its figures could be read */
  char server[NSH_SERVER]; /* the version of the database's server; "": not known */
  const char *lua;         /* the interpreter's */
} nsh_facts;

/* Adds the metrics of this host in the text format 0.0.4. */
void nsh_metrics_write(nsh_metrics *m, nsh_exchange *e, const nsh_facts *facts, ns_buf *out);

typedef struct nsh_label {
  const char *key;
  ns_bytes value;
} nsh_label;

/* Adds the head of a family of samples, and one of its samples. 'value' is a number in text. */
void nsh_metrics_family(ns_buf *out, const char *name, const char *type, const char *help);
void nsh_metrics_sample(ns_buf *out, const char *name, const nsh_label *labels, size_t n,
                        const char *value);

/* The same for a family of one sample without labels. */
void nsh_metrics_single(ns_buf *out, const char *name, const char *type, const char *help,
                        const char *value);

/* -------------------------------------------------------- addresses: http.c */

#define NSH_ADDRESS 128 /* bytes of an address, with its port and the zero at the end */

/* A socket that listens at "HOST:PORT", "[HOST]:PORT", ":PORT" or "PORT"; without a host it is the
** loopback. 'out': what it has got, in numbers. 'option' begins messages. -1 on errors: INVALID. */
int nsh_address_listen(const char *option, const char *text, char out[NSH_ADDRESS], ns_err *err);

/* Asks the server of another host: '*status' of HTTP, and the text behind its head. 'timeout': µs.
** Errors: INVALID (the address), GONE. */
ns_status nsh_http_get(const char *address, const char *path, int64_t timeout, int *status,
                       ns_buf *text, ns_err *err);

/* --------------------------------------- libmicrohttpd: library.c loads it */

#ifdef NSH_LIBRARY /* these files see its header */
#if __has_include(<microhttpd.h>)
#include <microhttpd.h>
#define HAS_SERVER
#endif
#endif

#if defined HAS_SERVER && MHD_VERSION >= 0x00097206
#define HAS_RUN_WAIT
#define NSH_MHD_RUN_WAIT(X) X(run_wait)
#else
#define NSH_MHD_RUN_WAIT(X)
#endif

/* Its calls that we use. */
#define NSH_MHD_CALLS(X)                                                                       \
  X(start_daemon) X(stop_daemon) X(create_response_from_buffer)                                \
  X(create_response_from_callback) X(destroy_response) X(add_response_header)                  \
  X(queue_response) X(get_connection_values_n) X(get_connection_info) X(suspend_connection)    \
  X(resume_connection) NSH_MHD_RUN_WAIT(X)

typedef struct nsh_mhd_calls {
#ifdef HAS_SERVER
#define NSH_MHD_CALL(name) __typeof__(MHD_##name) *name;
  NSH_MHD_CALLS(NSH_MHD_CALL)
#else
  int none;
#endif
} nsh_mhd_calls;

#define NSH_NO_LIBRARY "nightshift/host/http.so, which `make` builds, cannot be loaded"

/* NULL: it is not loaded. Set before there are threads that use it. */
extern const nsh_mhd_calls *nsh_mhd;

/* ------------------------------------------------------ the server: http.c */

typedef struct nsh_http nsh_http;

/* Takes the port of cfg->http. '*out' is NULL when there is none, and is to be closed, on errors,
** too. Errors: INVALID, with the address; NOMEM. */
ns_status nsh_http_open(nsh_http **out, const nsh_config *cfg, nsh_exchange *exchange,
                        ns_err *err);

/* Answers requests from now on, with all signals blocked in its threads. 'slow' has the waits of
** the dispatcher. NULL is allowed. Errors: NOMEM. */
ns_status nsh_http_start(nsh_http *h, const nsh_slow *slow, ns_err *err);

/* Answers none any more. NULL is allowed. */
void nsh_http_stop(nsh_http *h);

/* Stops and frees. NULL is allowed. */
void nsh_http_close(nsh_http *h);

/* For the pool; NULL without a server. */
nsh_metrics *nsh_http_metrics(nsh_http *h);

/* The loop: it moves, and this is its state. NULL is allowed. */
void nsh_http_beat(nsh_http *h, const nsh_pulse *pulse);

/* ------------------------- figures of the database; the exchange is locked */

/* Another thread reads them, when a request has asked for some. It sleeps here meanwhile. */
pthread_cond_t *nsh_http_wakes(nsh_http *h);
bool nsh_http_asks(const nsh_http *h);

/* The answer: 'text', which changes hands; NULL: the database could not be read. 'server': its
** version; NULL: not known. */
void nsh_http_answer(nsh_http *h, ns_buf *text, const char *server);

/* ------------------------------------------ the server of pages: server.c */

/*
** It answers requests one after the other, in the thread that steps it, and keeps streams of events
** open.
**
** Invariant: nothing is read, answered or freed but in a step. A client that is slow, or stuck,
** costs memory that is bounded, and delays no other.
*/

typedef struct nsh_server nsh_server;
typedef struct nsh_request nsh_request;

/* Answers a request; it may answer with nothing, which is status 500. Raises nothing, and keeps
** nothing of the request. */
typedef void nsh_answer(void *arg, nsh_request *r);

/* Listens at an address (see nsh_address_listen). Bodies of requests have 'body_max' bytes at most.
** '*out' is NULL on errors: INVALID, NOMEM. */
ns_status nsh_server_open(nsh_server **out, const char *address, size_t body_max, ns_err *err);

/* Adds a header of answers that it gives by itself: to a request that is too long, say. */
void nsh_server_header(nsh_server *s, const char *name, const char *value);

/* Where it listens, in numbers. */
const char *nsh_server_address(const nsh_server *s);

/* Waits up to 'wait' µs for something to do, and does it. Not to be called by an answer. */
void nsh_server_step(nsh_server *s, int64_t wait, nsh_answer *answer, void *arg);

/* Sends a text on the stream of a request. False: it has closed, or its client is too slow. */
bool nsh_server_send(nsh_server *s, int64_t stream, ns_bytes text);

/* Closes all connections; NULL is allowed. */
void nsh_server_close(nsh_server *s);

/* ------------------------------------------------------ in an answer: the request */

/* A number of its own, which names its stream. */
int64_t nsh_request_id(const nsh_request *r);
const char *nsh_request_method(const nsh_request *r);
ns_bytes nsh_request_target(const nsh_request *r); /* path and query as they were sent */
ns_bytes nsh_request_body(const nsh_request *r);

/* "name", NUL, "value", NUL of each header, in their order; names are in lower case. */
ns_bytes nsh_request_heads(const nsh_request *r);

/* ------------------------------------------------------- in an answer: the answer */

/* Adds a header. */
void nsh_request_header(nsh_request *r, const char *name, const char *value);

/* The answer is this text. */
void nsh_request_reply(nsh_request *r, unsigned status, ns_bytes body);

/* The answer is a stream. With too many open ones it is status 503. */
void nsh_request_stream(nsh_request *r, unsigned status);

#endif
