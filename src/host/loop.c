/*
** The loop of a host: its timer, its wake-up, its signals. Signals are blocked while they are not
** handled, and come when they are.
**
** And the service manager above a host: systemd, or what speaks its protocol. It named a socket in
** the environment, and is told there what the host is at: plain datagrams, so no library is needed.
** A datagram that is not taken within a second is lost, and one line of the log says so. The
** manager's own time limits decide then.
*/
#include "host.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base.h"
#include "ipc/ipc.h"

#define BEAT_MS 15000 /* between looks at the host, where no watchdog wants more of them */

/* -------------------------------------------------------------------- signals */

/* The first EARLY of them are heard from the beginning. */
static const int watched[NSH_SIGNALS] = {SIGHUP, SIGUSR1, SIGTTIN, SIGTTOU, SIGTERM,
                                         SIGINT, SIGQUIT, SIGTSTP, SIGCONT};
#define EARLY 4

/* Numbers 'from' to 'end' of the signals heard. */
static void mask_signals(int how, size_t from, size_t end) {
  sigset_t some;
  sigemptyset(&some);
  for (size_t i = from; i < end; i++)
    sigaddset(&some, watched[i]);
  pthread_sigmask(how, &some, NULL);
}

static void end_by(int sig) {
  _exit(128 + sig);
}

/* Signals have no default action in the first process of a container, where a TERM would be lost.
** The loop puts its own handlers in the place of these. */
static void end_as_first_process(void) {
  static const int ends[] = {SIGTERM, SIGINT, SIGQUIT};
  for (size_t i = 0; getpid() == 1 && i < sizeof ends / sizeof ends[0]; i++)
    signal(ends[i], end_by);
}

void nsh_loop_hold_signals(bool all) {
  if (!all)
    end_as_first_process();
  mask_signals(SIG_BLOCK, 0, all ? NSH_SIGNALS : EARLY);
}

static void on_signal(uv_signal_t *handle, int sig) {
  nsh_loop *l = handle->data;
  l->on_signal(l->arg, sig);
}

static void watch_signals(nsh_loop *l, size_t from, size_t end) {
  for (size_t i = from; i < end; i++) {
    uv_signal_init(&l->uv, &l->signals[i]);
    l->signals[i].data = l;
    uv_signal_start(&l->signals[i], on_signal, watched[i]);
  }
  mask_signals(SIG_UNBLOCK, from, end);
}

void nsh_loop_hear_first_signals(nsh_loop *l) {
  watch_signals(l, 0, EARLY);
}

void nsh_loop_hear_signals(nsh_loop *l) {
  watch_signals(l, EARLY, NSH_SIGNALS);
}

/* ----------------------------------------------------- the timer, the wake-up */

static void on_timer(uv_timer_t *timer) {
  nsh_loop *l = timer->data;
  l->on_timer(l->arg);
}

/* libuv 1.44 runs due timers until none is due. A timer of 0 ms that its callback sets again
** would keep the loop from everything else. */
void nsh_loop_arm(nsh_loop *l, int64_t wait) {
  uint64_t ms = wait > 1000 ? (uint64_t)(wait + 999) / 1000 : 1;
  if (wait < 0)
    uv_timer_stop(&l->timer);
  else if (!uv_is_active((uv_handle_t *)&l->timer) || uv_timer_get_due_in(&l->timer) > ms)
    uv_timer_start(&l->timer, on_timer, ms, 0);
}

static void on_wake(uv_async_t *async) {
  nsh_loop *l = async->data;
  l->on_wake(l->arg);
}

void nsh_loop_wake(void *arg) {
  nsh_loop *l = arg;
  uv_async_send(&l->async);
}

/* --------------------------------------------------------------- birth and end */

void nsh_loop_open(nsh_loop *l) {
  nsh_must(uv_loop_init(&l->uv) == 0);
  nsh_must(uv_async_init(&l->uv, &l->async, on_wake) == 0);
  l->async.data = l;
  uv_timer_init(&l->uv, &l->timer);
  l->timer.data = l;
}

void nsh_loop_run(nsh_loop *l) {
  uv_run(&l->uv, UV_RUN_DEFAULT);
}

void nsh_loop_stop(nsh_loop *l) {
  uv_stop(&l->uv);
}

static void on_time_over(uv_timer_t *timer) {
  uv_stop(timer->loop);
}

void nsh_loop_run_until(nsh_loop *l, bool (*over)(void *arg), uint64_t ms) {
  uv_timer_start(&l->timer, on_time_over, ms, 0);
  while (!over(l->arg) && uv_is_active((uv_handle_t *)&l->timer))
    uv_run(&l->uv, UV_RUN_ONCE);
}

static void close_handle(uv_handle_t *handle, void *arg) {
  (void)arg;
  if (!uv_is_closing(handle))
    uv_close(handle, NULL);
}

void nsh_loop_close(nsh_loop *l) {
  uv_walk(&l->uv, close_handle, NULL);
  uv_run(&l->uv, UV_RUN_DEFAULT);
  uv_loop_close(&l->uv);
}

/* ------------------------------------- the service manager: what it is told */

/* Lines that are sent as one datagram. */
static void send_lines(nsh_service *s, const char *lines) {
  ssize_t sent;
  if (s->fd < 0)
    return;
  do
    sent = sendto(s->fd, lines, strlen(lines), MSG_NOSIGNAL, (const struct sockaddr *)&s->at, s->n);
  while (sent < 0 && errno == EINTR);
  if (sent < 0 && !s->unheard)
    ns_log(NS_LOG_WARN, "service.unheard", NS_FIELDS(ns_fs("error", strerror(errno))));
  s->unheard = sent < 0;
}

/* 'lines', each with its newline, and the status if it is another one. */
static void send_with_status(nsh_service *s, const char *lines, const char *status) {
  char text[NSH_STATUS + 160];
  bool same = strcmp(status, s->status) == 0;
  if (same && lines[0] == '\0')
    return;
  snprintf(text, sizeof text, "%s%s%s", lines, same ? "" : "STATUS=", same ? "" : status);
  snprintf(s->status, sizeof s->status, "%s", status);
  send_lines(s, text);
}

void nsh_service_ready(nsh_service *s, const char *status) {
  s->ready = true;
  s->reloading = false;
  send_with_status(s, "READY=1\n", status);
}

void nsh_service_reloading(nsh_service *s, const char *status) {
  char lines[64];
  if (!s->ready || s->stopping)
    return;
  s->reloading = true;
  snprintf(lines, sizeof lines, "RELOADING=1\nMONOTONIC_USEC=%" PRId64 "\n", ns_mono_us());
  send_with_status(s, lines, status);
}

void nsh_service_stopping(nsh_service *s, int64_t us, const char *status) {
  char lines[64];
  s->stopping = true;
  s->reloading = false;
  snprintf(lines, sizeof lines, "STOPPING=1\nEXTEND_TIMEOUT_USEC=%" PRId64 "\n", us);
  send_with_status(s, lines, status);
}

void nsh_service_status(nsh_service *s, const char *status) {
  send_with_status(s, "", status);
}

void nsh_service_beat(nsh_service *s, const char *status) {
  send_with_status(s, s->watchdog > 0 ? "WATCHDOG=1\n" : "", status);
}

/* ------------------------------------ the service manager: birth and end */

/* A variable of the manager, which nothing that we start is to have. NULL: it is not set. */
static char *take_variable(const char *name) {
  const char *value = getenv(name);
  char *copy = value != NULL ? strdup(value) : NULL;
  nsh_must(value == NULL || copy != NULL);
  unsetenv(name);
  return copy;
}

/* A path, or '@' and the name of an abstract socket. False: it is neither, or too long. */
static bool read_address(nsh_service *s, const char *text) {
  size_t n = strlen(text);
  if ((text[0] != '/' && text[0] != '@') || n < 2 || n >= sizeof s->at.sun_path)
    return false;
  s->at = (struct sockaddr_un){.sun_family = AF_UNIX};
  memcpy(s->at.sun_path, text, n);
  if (text[0] == '@')
    s->at.sun_path[0] = '\0';
  s->n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + (text[0] == '/'));
  return true;
}

/* The watchdog may be meant for another process, as that of a shell that has started us. */
void nsh_service_take(nsh_service *s) {
  char *at = take_variable("NOTIFY_SOCKET");
  char *us = take_variable("WATCHDOG_USEC");
  char *pid = take_variable("WATCHDOG_PID");
  *s = (nsh_service){.fd = -1};
  if (at != NULL && !read_address(s, at))
    ns_log(NS_LOG_WARN, "service.unheard",
           NS_FIELDS(ns_fs("error", "NOTIFY_SOCKET is neither a path nor @name"), ns_fs("socket", at)));
  if (s->n > 0 && us != NULL && (pid == NULL || strtoll(pid, NULL, 10) == getpid()))
    s->watchdog = strtoll(us, NULL, 10);
  free(at);
  free(us);
  free(pid);
}

/* A host that does not move now is asked again soon, as its watchdog's time is running. */
static void on_beat(uv_timer_t *timer) {
  nsh_service *s = timer->data;
  uint64_t next = s->on_beat(s->arg) ? s->every : s->every / 8 + 1;
  uv_timer_start(timer, on_beat, next, 0);
}

void nsh_service_open(nsh_service *s, uv_loop_t *loop) {
  const struct timeval second = {1, 0};
  uint64_t ms = s->watchdog > 0 ? (uint64_t)s->watchdog / 2000 : BEAT_MS;
  uv_timer_init(loop, &s->beat);
  s->beat.data = s;
  if (s->n == 0)
    return;
  s->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  nsh_must(s->fd >= 0);
  setsockopt(s->fd, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof second);
  s->every = ms < 1 ? 1 : ms < BEAT_MS ? ms : BEAT_MS;
  uv_timer_start(&s->beat, on_beat, s->every, 0);
}

void nsh_service_close(nsh_service *s) {
  if (s->fd >= 0)
    close(s->fd);
  s->fd = -1;
}
