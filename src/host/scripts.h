/*
** The handler scripts. A new generation of them is loaded at the start, after a HUP, and after
** the death of the zygote that had the last one. And the outcome of their last reading, and HUP
** for other hosts of this machine.
**
** Invariant: one generation is read at a time. A request that comes meanwhile is obeyed
** afterwards; a load that does not end does not delay it.
*/
#ifndef NSH_SCRIPTS_H
#define NSH_SCRIPTS_H

#include <stdint.h>
#include <sys/types.h>

#include "base.h"
#include "process/process.h"

/* ----------------------------------------------------------------- loading */

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

/* Begins a new generation: now, or when the present one has been read. With too many
** generations alive it waits until one has ended. */
void nsh_scripts_load(nsh_scripts *s);

/* There is none to go on with: a little later, each time a little more. */
void nsh_scripts_load_later(nsh_scripts *s);

/* The generation being read has ended, in some way. */
void nsh_scripts_over(nsh_scripts *s);

/* Why one did not load: 'message', or when that is absent, because the process
** died of 'status', from 'text'. */
ns_bytes nsh_scripts_why(char text[160], ns_bytes message, int status);

/* ----------------------------------------------------------------- readings */

/*
** How a host has last read its scripts, for people: which version of them it runs, and why
** a later one could not be read.
*/
typedef struct nsh_reading {
  char version[NSH_VERSION_SIZE]; /* of the running scripts; "": none runs */
  ns_bytes files;                 /* files read: [["name","version"],…]; owned */
  ns_bytes error;                 /* why the last reading failed; absent: it did not; owned */
  int64_t began;                  /* monotonic µs: that reading */
  int64_t ended;                  /* µs by the server's clock, once it has been told; 0: not yet */
} nsh_reading;

void nsh_reading_free(nsh_reading *r);

/* The reading has ended well. */
void nsh_reading_done(nsh_reading *r, const char *version, ns_bytes files, int64_t began);

/* The reading has failed. The scripts read before go on, if they are still there: 'runs'
** (absent: they are not). */
void nsh_reading_failed(nsh_reading *r, ns_bytes runs, ns_bytes error, int64_t began);

/* 'to' becomes like 'from'. */
void nsh_reading_copy(nsh_reading *to, const nsh_reading *from);

/* ------------------------------------------------------------ of other hosts */

/*
** HUP for another host of this machine. A process that does not expect that signal dies of it,
** so only known hosts get it. The kernel's handle on the process is taken first, so that no
** other process can get its number meanwhile.
*/
typedef enum nsh_hup {
  NSH_HUP_SENT,
  NSH_HUP_AWAY,  /* it is not of this place: another machine, or container */
  NSH_HUP_GONE,  /* there is no such process any more */
  NSH_HUP_DEAF,  /* it does not listen to that signal */
  NSH_HUP_FAILED /* errno says why */
} nsh_hup;

/* 'place': of the host, as ns_wake_place has it; 'age': µs that it has been known for. */
nsh_hup nsh_hup_send(pid_t pid, ns_bytes place, int64_t age);

#endif
