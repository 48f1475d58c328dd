/*
** The worker pool: hands claimed jobs out, takes them back, begins and ends workers, and
** looks after them while time passes.
**
** Invariants: a job delivered by the dispatcher is in the backlog or with exactly one worker,
** until a verdict for it is in the exchange. Whenever the exchange is unlocked it has the
** number of free places. These are the places of workers that will be given jobs, less their
** jobs and the jobs that wait for them. A job that a leaving worker still runs takes no place.
*/
#ifndef NSH_POOL_POOL_H
#define NSH_POOL_POOL_H

#include <uv.h>

#include "config.h"
#include "http/http.h"
#include "pool/process.h"

/* ------------------------------------------------------------------- the pool */

/* A worker that waits for ids. */
typedef struct nsh_id_request {
  uint32_t worker;
  pid_t pid; /* of the process that asked */
  size_t n;
} nsh_id_request;

/* Counts of events since the start. */
typedef struct nsh_tally {
  int64_t done, failed, again, crashed, timeouts, forks;
} nsh_tally;

/* Lines of runs that ended well, in a second. */
typedef struct nsh_told {
  int64_t since; /* monotonic µs: when the second began */
  int64_t lines;
  int64_t more; /* runs without a line */
} nsh_told;

/* Workers that take the same jobs. Workers of pool 0 take all jobs; workers of another pool
** take the jobs of one queue only. When such a queue has more jobs than room at its own
** workers, the rest counts against pool 0. */
typedef struct nsh_pool {
  nsh_process *room, **room_end; /* workers that may take more */
  size_t nroom;
  size_t up;            /* workers in phase UP */
  size_t tasks;         /* jobs of all its workers */
  size_t held;          /* of these: of workers in phase UP */
  size_t late;          /* workers that attend to a long job, at the last tick */
  nsh_prefetch backlog; /* claimed jobs of its queue; pool 0: of all other queues */
  nsh_pace pace;
} nsh_pool;

/* The messages of workers, in the loop. It is read once per turn of the loop, just before the
** loop sleeps, so that frames gathered meanwhile are one batch. */
typedef struct nsh_inbox {
  int wakeup; /* readable when a worker has woken the host; the caller's */
  uv_poll_t poll;
  uv_prepare_t before; /* the loop sleeps */
  uv_check_t after;
  uv_idle_t stay; /* active: the loop does not sleep */
} nsh_inbox;

/* A name whose handler takes batches. */
typedef struct nsh_batched {
  char *name; /* NUL-terminated */
  size_t n;
  size_t most;    /* jobs of one */
  int64_t within; /* µs that the first of them waits for more */
} nsh_batched;

struct nsh_pools {
  const nsh_config *cfg;
  nsh_exchange *exchange;
  nsh_metrics *metrics; /* of ended runs; NULL: not counted */
  nsh_slots *slots;
  nsh_inbox inbox;
  bool (*on_frame)(nsh_process *w, nsh_frame *f); /* for pool/process.c: nsh_messages_frame */
  nsh_process *workers;
  size_t nworkers;      /* places that have been used; the places behind them are empty */
  size_t wanted;        /* workers that there are to be */
  nsh_zygote *zygote;   /* new workers come from here; NULL: wait */
  size_t up, leaving;   /* workers in phase UP, RETIRING */
  size_t busy;          /* tasks of all workers */
  size_t working;       /* workers with a task */
  int64_t loads;        /* how often the scripts have been loaded */
  size_t old;           /* workers that run other scripts than the ones loaded last */
  nsh_pool pools[NSH_POOLS_MAX];
  size_t npools;
  uint64_t arrivals;    /* jobs that have joined a backlog */
  size_t backlog;       /* jobs in all of them, a batch counts as one */
  nsh_batched *batched; /* names whose handlers take batches; sorted */
  size_t nbatched;
  nsh_bulk **bulks;     /* batches that wait for more jobs */
  size_t nbulks, capbulks;
  nsh_names names, queues;
  nsh_told told;
  int64_t unhandled;     /* runs without a handler that no line tells of */
  nsh_crash_loop crash_loop;
  int64_t fork_at;      /* no fork before */
  int64_t down_at;      /* no worker is up for the backlog since; 0: not so */
  bool quiet;           /* claim nothing, hand nothing out: SIGTSTP */
  bool closing;         /* for good */
  nsh_id_request *id_requests; /* first come first served */
  size_t nid_requests, capid_requests;
  nsh_tally tally;
};

/* ------------------------------------------------------------- pool/pool.c */

/* Reads the frames of workers in 'loop', with 'wakeup' to wake it; the handles are closed with
** the loop. */
void nsh_pool_init(nsh_pools *t, const nsh_config *cfg, nsh_exchange *exchange, uv_loop_t *loop,
                   nsh_slots *slots, int wakeup);
void nsh_pool_free(nsh_pools *t);

/* Takes the dispatcher's jobs and notices out of the exchange. */
void nsh_pool_collect(nsh_pools *t);

/* Claims nothing more and gives back jobs that no worker has started. 'quiet' can be undone,
** 'closing' cannot. */
void nsh_pool_quiet(nsh_pools *t, bool quiet);
void nsh_pool_close(nsh_pools *t);

/* Stops all workers, idle ones at once, running jobs by short steps; their jobs are given back. */
void nsh_pool_kill(nsh_pools *t);

/* Tells all workers to leave. */
void nsh_pool_dismiss(nsh_pools *t);

/* ----------------------------------------------------------- pool/places.c */

/* Locks the exchange; unlocks it after it has been told how many places are free. */
void nsh_pool_lock(nsh_pools *t);
void nsh_pool_unlock(nsh_pools *t);

/* Debug builds: counts everything anew and compares. After each event. */
void nsh_pool_recount(nsh_pools *t);

/* ----------------------------------------------------------- pool/backlog.c */

/*
** Batches, which are put together between a claim and its worker. The first job of a queue and
** name waits up to the handler's 'within' for more. A batch that is full, or has waited, joins
** its line as one job does. A job that has failed or crashed before runs by itself.
**
** Invariant: while a batch waits it takes no place, so workers go on with other jobs, and claims
** go on to find it more. All its claims are the host's, and it is given back whole when the host
** drains or rests, or its queue or name is paused.
*/

/* Scripts were loaded: these handlers take batches, "jobs µs name", a line each. Batches that
** wait are ready. */
void nsh_gather_names(nsh_pools *t, ns_bytes lines);

/* A claimed job joins its batch, which may be full then. False: it runs by itself. */
bool nsh_gather_join(nsh_pools *t, const nsh_waiting *w, size_t pool);

/* Batches that have waited join their lines. */
void nsh_gather_ready(nsh_pools *t, int64_t now);

/* µs until the next one has; -1: none waits. */
int64_t nsh_gather_next(const nsh_pools *t, int64_t now);

/* Takes jobs out, as nsh_prefetch_drop. */
void nsh_gather_drop(nsh_pools *t, bool (*leaves)(void *arg, const ns_job *job), void *arg);

/* Gives all their jobs back. The exchange is locked. */
void nsh_gather_release(nsh_pools *t);

/* Their jobs. */
size_t nsh_gather_jobs(const nsh_pools *t);

void nsh_gather_free(nsh_pools *t);

/* -------------------------------------------------------- pool/lifecycle.c */

/* New workers come from 'z'; older ones leave after their running job. */
void nsh_lifecycle_generation(nsh_pools *t, nsh_zygote *z);

/* Reports of zygotes about worker 'index': its fork, 'pid' 0: failed with errno 'why'; its end,
** 'status' as of wait. */
void nsh_lifecycle_forked(nsh_pools *t, uint32_t index, pid_t pid, int why);
void nsh_lifecycle_exited(nsh_pools *t, uint32_t index, int status);

/* A zygote is gone, and so are the workers it had forked. */
void nsh_lifecycle_orphaned(nsh_pools *t, nsh_zygote *z);

/* Forks workers where there are none, if it is time. */
void nsh_lifecycle_fill(nsh_pools *t);

/* From now on there are to be 'n' workers, as nsh_config_check_workers allows. Workers that are
** not needed any more leave, those without a job first; a busy one after its job. */
void nsh_lifecycle_resize(nsh_pools *t, size_t n);

/* -------------------------------------------------------- the watch: lifecycle.c */

/* Watches for conditions that no event tells, only time. These are jobs over their timeout or
** their memory, jobs stuck behind long ones, and due signs of life. Also workers that do not
** start their jobs, and jobs that no worker is there to start. It runs only while there is a
** job in the host or a worker to be forked; an idle host sleeps. */

/* Looks at all workers, and forks where there are none. */
void nsh_watchdog_tick(nsh_pools *t, int64_t now);

/* µs until the next tick or fork is due; -1: nothing to look after. */
int64_t nsh_watchdog_next(const nsh_pools *t, int64_t now);

/* Writes the work of the host to the log: a line about all, a line per pool of reserved workers, a
** line per busy worker. */
void nsh_watchdog_dump(nsh_pools *t);

#endif
