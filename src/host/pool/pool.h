/*
** The table of workers: hands claimed jobs out and takes them back. Its other
** parts: nsh_process (one worker), nsh_messages (what workers say), nsh_lifecycle (their
** births and deaths), nsh_escalation (stopping a job), nsh_watch (looking after all of
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
  nsh_process *room, **room_end; /* seats that may take more */
  size_t nroom;
  size_t up;            /* seats in phase UP */
  size_t tasks;         /* jobs in all its seats */
  size_t held;          /* of these: in seats in phase UP */
  size_t late;          /* seats that attend to a long job, at the last tick */
  nsh_prefetch backlog; /* claimed jobs of its queue; pool 0: of all others */
  nsh_pace pace;
} nsh_pool;

typedef struct nsh_pools {
  const nsh_config *cfg;
  nsh_exchange *mail;
  uv_loop_t *loop;
  nsh_slots *slots;
  nsh_process *seats;
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
} nsh_pools;

void nsh_pool_init(nsh_pools *t, const nsh_config *cfg, nsh_exchange *mail, uv_loop_t *loop,
                   nsh_slots *slots);
void nsh_pool_free(nsh_pools *t);

/* ---------------------------------------------------------- what happened */

/* Takes what the dispatcher has put into the mailbox. */
void nsh_pool_collect(nsh_pools *t);

/* Takes what workers have told. */
void nsh_pool_hear(nsh_pools *t);

/* ------------------------------------------------ for the table's other parts */

/* Locks the mailbox; unlocks it after it has been told how many places are free. */
void nsh_pool_lock(nsh_pools *t);
void nsh_pool_unlock(nsh_pools *t);

/* A seat may have room; jobs may be handed out. */
void nsh_pool_list(nsh_process *s, bool front);
void nsh_pool_hand_out(nsh_pools *t);

/* The one way for a seat to change its phase; it has 'n' tasks more, or fewer. */
void nsh_pool_enter(nsh_process *s, nsh_phase phase);
void nsh_pool_count(nsh_process *s, int n);

/* Does its worker run older scripts than those loaded last? */
void nsh_pool_age(nsh_process *s, bool old);

/* Workers of a pool that places are counted for; is a seat one of theirs? */
size_t nsh_pool_attending(const nsh_pools *t, size_t pool);
bool nsh_pool_attends(const nsh_process *s);

/* The mailbox is locked: hears a worker, and lists its seat before its tasks run
** out; gives a line of the backlog back. */
void nsh_pool_hear_process(nsh_process *s);
void nsh_pool_release(nsh_pools *t, size_t line);

/* Debug builds: counts everything anew and compares. After each event. */
void nsh_pool_recount(nsh_pools *t);

/* ------------------------------------------------------------------ orders */

/* Claims nothing more and gives back what no worker has started. 'quiet' can
** be undone, 'closing' cannot. */
void nsh_pool_quiet(nsh_pools *t, bool quiet);
void nsh_pool_close(nsh_pools *t);

/* Stops all workers, idle ones at once, running jobs by the ladder's short
** steps; they are given back. */
void nsh_pool_kill(nsh_pools *t);

/* Tells all workers to leave. */
void nsh_pool_dismiss(nsh_pools *t);

#endif
