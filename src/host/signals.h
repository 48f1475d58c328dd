/*
** The signals a host handles.
**
** Invariant: once the host has jobs none of them ends it in its default way, with
** a status that is not ours: while they are not handled they wait.
** (Not asserted: specs of the host send each of them.)
*/
#ifndef NSH_SIGNALS_H
#define NSH_SIGNALS_H

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#define NSH_SIGNALS 7

typedef struct nsh_signals {
  uv_loop_t *loop;
  uv_signal_t handles[NSH_SIGNALS];
  void (*on_signal)(void *arg, int sig);
  void *arg;
} nsh_signals;

/* HUP and USR1, which would end a host that does not listen yet, wait from now
** on; with 'all' every signal, as none is handled any more. */
void nsh_signals_hold(bool all);

/* Hears those two. Callback and its argument are set already. */
void nsh_signals_open(nsh_signals *s, uv_loop_t *loop);

/* There are jobs: handles the other signals as well, which until now ended the host as
** they end any program. */
void nsh_signals_all(nsh_signals *s);

#endif
