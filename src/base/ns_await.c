/*
** Waiting for a socket to have something to read. The library would wait too, but
** starts again after each signal and asks nobody.
**
** Invariant: whoever may interrupt is asked at least ten times a second while the
** wait lasts, and also between short waits: somebody may try again and again.
*/
#include "ns_await.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ns_assert.h"
#include "ns_time.h"

#define ASK_EVERY (NS_SECOND / 10)

static ns_status interrupted(ns_err *err) {
  return ns_fail(err, NS_EGONE, "the wait for the server was interrupted");
}

static ns_status too_late(const ns_await *a, ns_err *err) {
  if (a->end_by != 0 && ns_mono_us() >= a->end_by)
    return ns_fail(err, NS_EGONE, "the server did not answer before the connection was closed");
  return ns_fail(err, NS_EGONE, "the server has not answered for %lld s (read_timeout)",
                 (long long)(a->limit / NS_SECOND));
}

static bool is_stopped(ns_await *a, int64_t now) {
  if (a->interrupted == NULL || now - a->asked_at < ASK_EVERY)
    return false;
  a->asked_at = now;
  return a->interrupted(a->arg);
}

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* Milliseconds, rounded up; -1: any time. */
static int milliseconds(int64_t us) {
  return us > 3600 * NS_SECOND ? -1 : us <= 0 ? 0 : (int)((us + 999) / 1000);
}

ns_status ns_await_input(ns_await *a, int fd, ns_err *err) {
  struct pollfd fds[] = {{.fd = fd, .events = POLLIN},
                         {.fd = a->interrupt_fd > 0 ? a->interrupt_fd : -1, .events = POLLIN}};
  int64_t now = ns_mono_us();
  int64_t until = a->limit > 0 ? now + a->limit : INT64_MAX;
  if (a->end_by != 0)
    until = least(until, a->end_by);
  while (true) {
    int64_t left = until - now;
    int n;
    if (is_stopped(a, now))
      return interrupted(err);
    left = a->interrupted != NULL ? least(left, ASK_EVERY) : left;
    ns_assert(a->interrupted == NULL || milliseconds(left) <= 100);
    n = poll(fds, 2, milliseconds(left));
    if (n > 0)
      return fds[0].revents != 0 ? NS_OK : interrupted(err);
    if (n < 0 && errno != EINTR)
      return NS_OK; /* whoever reads finds out */
    if (n < 0)
      a->asked_at = 0;
    if ((now = ns_mono_us()) >= until)
      return too_late(a, err);
  }
}

int ns_await_stop_open(ns_err *err) {
  int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd > 0)
    return fd;
  ns_fail(err, NS_ENOMEM, "no descriptor for a thread: %s", strerror(errno));
  return 0;
}

void ns_await_stop(int fd) {
  eventfd_write(fd, 1);
}

void ns_await_stop_close(int fd) {
  if (fd > 0)
    close(fd);
}
