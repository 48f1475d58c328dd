/*
** Loading the handler scripts: a new generation of them at the start, after a
** HUP, and after the death of the zygote that had the last one.
**
** Invariant: one generation is read at a time. A request that comes meanwhile is obeyed
** afterwards; and a load that does not end does not keep them waiting.
*/
#ifndef NSH_RELOAD_H
#define NSH_RELOAD_H

#include "process/process.h"

typedef struct nsh_scripts {
  nsh_family *family;
  uv_timer_t look;     /* runs while a generation is being read */
  nsh_zygote *loading; /* that generation; NULL: none */
  int64_t since;       /* monotonic µs: it has been read from */
  bool again;          /* HUP came meanwhile */
  bool dropped;        /* 'loading' was killed, to begin anew */
  bool refused;        /* there was no place for it: it is tried again */
  int64_t due, wait;   /* monotonic µs: when to load after a death, or after having
                       ** been refused, 0: there is no need; and after how long */
} nsh_scripts;

void nsh_scripts_open(nsh_scripts *s, uv_loop_t *loop, nsh_family *family);

/* Begins a new generation, now, or when the present one has been read, or when there
** is a place for it: too many may be alive. */
void nsh_scripts_load(nsh_scripts *s);

/* There is none to go on with: a little later, each time a little more. */
void nsh_scripts_load_later(nsh_scripts *s);

/* The generation being read has ended, in some way. */
void nsh_scripts_over(nsh_scripts *s);

/* Why one did not load: 'message', or when that is absent, because the process
** died of 'status', from 'text'. */
ns_bytes nsh_scripts_why(char text[160], ns_bytes message, int status);

#endif
