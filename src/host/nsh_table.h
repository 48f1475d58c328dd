/*
** The table of workers: hands claimed jobs out and takes them back. Its other
** parts: nsh_seat (one worker), nsh_intake (what workers say), nsh_life (their
** births and deaths), nsh_ladder (stopping a job), nsh_watch (looking after all of
** them while time passes).
**
** Invariant: a job that was delivered by the dispatcher is in the backlog or
** in exactly one seat, until a verdict for it is in the mailbox.
*/
#ifndef NSH_TABLE_H
#define NSH_TABLE_H

#include "nsh_backlog.h"
#include "nsh_config.h"
#include "nsh_seat.h"

/* A worker that waits for ids. */
typedef struct nsh_wanter {
  uint32_t seat;
  pid_t pid; /* of the process that asked */
  size_t n;
} nsh_wanter;

/* What has happened since the start. */
typedef struct nsh_tally {
  int64_t done, failed, again, crashed, timeouts, forks;
} nsh_tally;

/* Workers that take the same jobs: see nsh_pool_count. */
typedef struct nsh_pool {
  nsh_seat *room, **room_end; /* seats that may take more */
  size_t nroom;
  size_t up;            /* seats in phase UP */
  size_t late;          /* of these: with a long job, at the last tick */
  nsh_backlog backlog;  /* claimed jobs of its queue; pool 0: of all others */
  nsh_pace pace;
} nsh_pool;

typedef struct nsh_table {
  const nsh_config *cfg;
  nsh_mail *mail;
  uv_loop_t *loop;
  nsh_slots *slots;
  nsh_seat *seats;
  size_t nseats;
  nsh_zygote *zygote;   /* new workers come from here; NULL: wait */
  size_t up;            /* seats in phase UP */
  size_t busy;          /* tasks in all seats */
  nsh_pool pools[NSH_POOLS_MAX];
  size_t npools;
  uint64_t arrivals;    /* jobs that have joined a backlog */
  size_t backlog;       /* jobs in all of them */
  nsh_names names;
  nsh_storm storm;
  int64_t fork_at;      /* no fork before */
  int64_t down_at;      /* no worker is up for the backlog since; 0: not so */
  bool quiet;           /* claim nothing, hand nothing out: SIGTSTP */
  bool closing;         /* for good */
  nsh_wanter *wanters;  /* first come first served */
  size_t nwanters, capwanters;
  nsh_tally tally;
} nsh_table;

void nsh_table_init(nsh_table *t, const nsh_config *cfg, nsh_mail *mail,
                    uv_loop_t *loop, nsh_slots *slots);
void nsh_table_free(nsh_table *t);

/* ---------------------------------------------------------- what happened */

/* Takes what the dispatcher has put into the mailbox. */
void nsh_table_collect(nsh_table *t);

/* Takes what workers have told. */
void nsh_table_hear(nsh_table *t);

/* ------------------------------------------------ for the table's other parts */

/* A seat may have room; the number of workers has changed; jobs may be handed
** out. */
void nsh_table_list(nsh_seat *s, bool front);
void nsh_table_up(nsh_seat *s, bool up);
void nsh_table_retarget(nsh_table *t);
void nsh_table_hand_out(nsh_table *t);

/* The mailbox is locked: hears a worker, and lists its seat before its tasks run
** out; says how many jobs may be claimed; gives a line of the backlog back. */
void nsh_table_hear_seat(nsh_seat *s);
void nsh_table_set_targets(nsh_table *t);
void nsh_table_release(nsh_table *t, size_t line);

/* ------------------------------------------------------------------ orders */

/* Claims nothing more and gives back what no worker has started. 'quiet' can
** be undone, 'closing' cannot. */
void nsh_table_quiet(nsh_table *t, bool quiet);
void nsh_table_close(nsh_table *t);

/* Stops all workers, idle ones at once, running jobs by the ladder's short
** steps; they are given back. */
void nsh_table_kill(nsh_table *t);

/* Tells all workers to leave. */
void nsh_table_dismiss(nsh_table *t);

#endif
