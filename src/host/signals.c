/*
** Signals are blocked while they are not handled, and come when they are.
*/
#include "signals.h"

#include <pthread.h>
#include <signal.h>

/* The first EARLY of them are heard from the beginning. */
static const int watched[NSH_SIGNALS] = {SIGHUP,  SIGUSR1, SIGTERM, SIGINT,
                                         SIGQUIT, SIGTSTP, SIGCONT};
#define EARLY 2

/* Numbers 'from' to 'end' of the signals heard. */
static void mask(int how, size_t from, size_t end) {
  sigset_t some;
  sigemptyset(&some);
  for (size_t i = from; i < end; i++)
    sigaddset(&some, watched[i]);
  pthread_sigmask(how, &some, NULL);
}

void nsh_signals_hold(bool all) {
  mask(SIG_BLOCK, 0, all ? NSH_SIGNALS : EARLY);
}

static void on_signal(uv_signal_t *handle, int sig) {
  nsh_signals *s = handle->data;
  s->on_signal(s->arg, sig);
}

static void watch(nsh_signals *s, size_t from, size_t end) {
  for (size_t i = from; i < end; i++) {
    uv_signal_init(s->loop, &s->handles[i]);
    s->handles[i].data = s;
    uv_signal_start(&s->handles[i], on_signal, watched[i]);
  }
  mask(SIG_UNBLOCK, from, end);
}

void nsh_signals_open(nsh_signals *s, uv_loop_t *loop) {
  s->loop = loop;
  watch(s, 0, EARLY);
}

void nsh_signals_all(nsh_signals *s) {
  watch(s, EARLY, NSH_SIGNALS);
}
