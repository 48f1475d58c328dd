/*
** The host's view of its seed, keeper and zygotes.
**
** Invariant: a zygote is reported dead only after every report it sent, so the
** exits of its workers are known by then (those it could not report died with
** it), and after all its workers are dead. A keeper that dies is replaced and
** its zygotes are reported dead, unless the seed died before it. One of them
** that owes an answer for some seconds is killed, so it counts as dead.
*/
#ifndef NSH_PROCESS_FAMILY_H
#define NSH_PROCESS_FAMILY_H

#include <sys/types.h>

#include "process/peer.h"
#include "process/zygote.h"
#include "reading.h"

typedef enum nsh_stage {
  NSH_ABSENT,  /* no such process */
  NSH_LOADING, /* reads the scripts */
  NSH_READY,   /* forks workers */
  NSH_LEAVING  /* told to go, or did not load */
} nsh_stage;

/* What a zygote has loaded. */
typedef struct nsh_loaded {
  int64_t count;  /* of its handlers */
  ns_bytes names; /* theirs, a line each; the last of 'count' may be left out */
  ns_bytes files; /* [["name","version"],…] of what was read */
} nsh_loaded;

typedef struct nsh_zygote {
  struct nsh_family *brood;
  nsh_stage stage;
  uint32_t index;
  nsh_peer peer;
  size_t workers; /* forks asked for, less exits and failures */
  bool condemned; /* killed for its silence: no job did it */
  char version[NSH_VERSION_SIZE]; /* of its scripts, a short hash */
} nsh_zygote;

typedef struct nsh_family {
  uv_loop_t *loop;
  uv_timer_t watch; /* runs while an answer is owed */
  int64_t watched;  /* µs, when it last ran */
  pid_t seed_pid;
  nsh_peer seed;
  nsh_peer keeper;
  pid_t keeper_pid; /* also the number of its session; 0: not known */
  nsh_zygote zygotes[NSH_ZYGOTES];
  /* What happens; 'arg' is the owner's. */
  void *arg;
  void (*loaded)(void *arg, nsh_zygote *z, const nsh_loaded *what);
  /* Without a message it died of 'status'; negative: with its keeper. */
  void (*failed)(void *arg, nsh_zygote *z, ns_bytes message, int status);
  void (*forked)(void *arg, nsh_zygote *z, uint32_t worker, pid_t pid, int why);
  void (*exited)(void *arg, nsh_zygote *z, uint32_t worker, int status);
  void (*died)(void *arg, nsh_zygote *z, int status);
  void (*keeper_died)(void *arg, bool replaced); /* false: no more workers */
} nsh_family;

/* Callbacks and seed_pid are set already; 'ctl' is the seed's socket, handed over. */
void nsh_family_open(nsh_family *b, uv_loop_t *loop, int ctl);
void nsh_family_close(nsh_family *b);

/* How many zygotes there are. */
size_t nsh_family_alive(const nsh_family *b);

/* Has the zygotes show that they live: one that is stopped would not report the
** deaths of its workers. */
void nsh_family_ping(nsh_family *b);

/* Retires all of them. */
void nsh_family_retire(nsh_family *b);

/* A new generation; NULL: too many are alive. It ends in loaded or failed. */
nsh_zygote *nsh_family_load(nsh_family *b);

void nsh_zygote_fork(nsh_zygote *z, uint32_t index);
void nsh_zygote_kill(nsh_zygote *z, uint32_t index, int sig);

/* No new workers from here; the process goes when its last one has gone. */
void nsh_zygote_retire(nsh_zygote *z);

/* Signals the zygote itself. */
void nsh_zygote_signal(nsh_zygote *z, int sig);

#endif
