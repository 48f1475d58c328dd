/*
** The table of workers: hands claimed jobs out and takes them back. Its other
** parts: nsh_seat (one worker), nsh_intake (what workers say), nsh_life (their
** births and deaths), nsh_ladder (stopping a job), nsh_watch (looking after all of
** them while time passes).
**
** Invariants: a job that was delivered by the dispatcher is in the backlog or
** in exactly one seat, until a verdict for it is in the mailbox. Whenever the mailbox is
** unlocked it says how many places are free: those of workers that will be given jobs,
** less the jobs of these same workers and of those that wait for them. What a worker
** that is leaving still runs takes nobody's place.
*/
#ifndef NSH_POOL_POOL_H
#define NSH_POOL_POOL_H

#include "config.h"
#include "pool/prefetch.h"
#include "pool/process.h"

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

/* Workers that take the same jobs. Those of pool 0 take all; the others take the jobs
** of one queue only. A job of such a queue that its own workers have no room for counts
** against pool 0. */
typedef struct nsh_pool {
  nsh_seat *room, **room_end; /* seats that may take more */
  size_t nroom;
  size_t up;            /* seats in phase UP */
  size_t tasks;         /* jobs in all its seats */
  size_t held;          /* of these: in seats in phase UP */
  size_t late;          /* seats that attend to a long job, at the last tick */
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
  size_t up, leaving;   /* seats in phase UP, DOOMED */
  size_t busy;          /* tasks in all seats */
  size_t working;       /* seats with a task */
  int64_t loads;        /* how often the scripts have been loaded */
  size_t old;           /* seats whose worker runs others than those */
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

/* Locks the mailbox; unlocks it after it has been told how many places are free. */
void nsh_table_lock(nsh_table *t);
void nsh_table_unlock(nsh_table *t);

/* A seat may have room; jobs may be handed out. */
void nsh_table_list(nsh_seat *s, bool front);
void nsh_table_hand_out(nsh_table *t);

/* The one way for a seat to change its phase; it has 'n' tasks more, or fewer. */
void nsh_table_enter(nsh_seat *s, nsh_phase phase);
void nsh_table_count(nsh_seat *s, int n);

/* Does its worker run older scripts than those loaded last? */
void nsh_table_age(nsh_seat *s, bool old);

/* Workers of a pool that places are counted for; is a seat one of theirs? */
size_t nsh_table_attending(const nsh_table *t, size_t pool);
bool nsh_table_attends(const nsh_seat *s);

/* The mailbox is locked: hears a worker, and lists its seat before its tasks run
** out; gives a line of the backlog back. */
void nsh_table_hear_seat(nsh_seat *s);
void nsh_table_release(nsh_table *t, size_t line);

/* Debug builds: counts everything anew and compares. After each event. */
void nsh_table_recount(nsh_table *t);

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
