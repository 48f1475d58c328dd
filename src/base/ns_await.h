/*
** Waiting for a socket to have something to read, until it is interrupted or too late.
*/
#ifndef NS_AWAIT_H
#define NS_AWAIT_H

#include <stdbool.h>
#include <stdint.h>

#include "ns_err.h"

typedef struct ns_await {
  bool (*interrupted)(void *arg); /* as the ns_config says, and the next three */
  void *arg;
  int interrupt_fd;
  int64_t end_by;
  int64_t limit;    /* µs; 0: no limit */
  int64_t asked_at; /* monotonic: when 'interrupted' was asked last */
} ns_await;

/* Errors: GONE, when nothing comes in time or somebody interrupts. 'err' may be NULL. */
ns_status ns_await_input(ns_await *a, int fd, ns_err *err);

/* A descriptor for 'interrupt_fd' that another thread makes readable, for good, by ns_await_stop.
** Errors: 0, NOMEM. */
int ns_await_stop_open(ns_err *err);
void ns_await_stop(int fd);
void ns_await_stop_close(int fd); /* 0 is allowed */

#endif
