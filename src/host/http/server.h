/*
** The server of `nightshift web`: it answers requests one after the other, in the thread that steps
** it, and keeps streams of events open.
**
** Invariant: nothing is read, answered or freed but in a step. A client that is slow, or stuck,
** costs memory that is bounded, and delays no other.
*/
#ifndef NSH_HTTP_SERVER_H
#define NSH_HTTP_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nightshift_types.h"

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
