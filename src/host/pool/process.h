/*
** One worker process as its host sees it, with the rings to it and its jobs. And the parts of
** the pool that its files share.
**
** Invariants: 'tasks' are in the order they were sent; the first may be running, the rest are
** not. A task leaves by the worker's verdict, by being taken back, or by the worker's death.
** Each way puts exactly one verdict into the exchange. The worker decides how a job ended,
** never which job it was: ids come from the task.
*/
#ifndef NSH_POOL_PROCESS_H
#define NSH_POOL_PROCESS_H

#include "ipc/ipc.h"
#include "pool/prefetch.h"
#include "process/process.h"

typedef enum nsh_phase {
  NSH_EMPTY,    /* no process */
  NSH_STARTING, /* asked for */
  NSH_UP,       /* takes jobs */
  NSH_RETIRING  /* gets none any more: told to quit, or being killed */
} nsh_phase;

/* Stopping a running job, step by step. Each step has twice the time of the one before. The
** steps end when the job ends, in any way; a worker that survives to that point works
** on. Until then it gets no jobs. */
typedef enum nsh_stop_step {
  NSH_STOP_NONE,        /* it is not to stop */
  NSH_STOP_TOLD,        /* job:cancelled() is true */
  NSH_STOP_INTERRUPTED, /* an error is raised in its Lua code */
  NSH_STOP_TERMED,      /* SIGTERM was sent to its worker */
  NSH_STOP_KILLED       /* SIGKILL was sent */
} nsh_stop_step;

#define NSH_STEP 500000      /* µs of the first step */
#define NSH_STEP_STOP 100000 /* ... when the whole host stops */

/* A job in a worker's hands. */
typedef struct nsh_task {
  uint32_t seq;
  int64_t id, run, lease, timeout;
  int64_t heard; /* as of ns_job */
  nsh_name *name;
} nsh_task;

typedef struct nsh_process {
  struct nsh_pools *pools;
  uint32_t index;
  size_t pool;       /* of nsh_config; the jobs that it may be given */
  nsh_phase phase;
  nsh_zygote *zygote;
  bool old;          /* its scripts are not the ones loaded last */
  pid_t pid;
  nsh_slot *slot;
  bool forced;       /* SIGKILL was sent */
  const char *blame; /* why, if that was the worker's fault; static */
  nsh_stop_step stop_step; /* of the running job */
  nsh_why why;       /* it is to stop */
  int64_t step_us;   /* how long this step is given */
  int64_t next_at;   /* when the next one is due, monotonic µs */
  ns_buf in;         /* the beginning of a frame */
  ns_buf out;        /* to be put into its ring from 'out_at' */
  size_t out_at;
  nsh_task *tasks;   /* ring of 'cap', a power of two */
  uint32_t first, n, cap;
  uint32_t next_seq;
  uint32_t idle_seq; /* the first task, while the worker does not start it, or leave */
  int64_t idle_at;   /* when that was first seen; 0: it is not so */
  /* of the running job */
  bool stuck;        /* it takes long: nothing is sent behind it */
  ns_buf log;        /* last lines */
  bool shown;        /* it has its row in running */
  bool unsent;       /* progress that has not been passed on */
  double progress;
  char *text;        /* malloc'd; NULL: none */
  size_t textlen;
  int64_t touched_at;
  nsh_place touch;   /* the last one */
  /* in the pool's list of workers with room */
  bool listed;
  struct nsh_process *next;
} nsh_process;

/* ---------------------------------------------------------- pool/process.c */

/* Starts a worker of zygote 'z' here. */
void nsh_process_fork(nsh_process *w, nsh_zygote *z);

/* The process is gone: takes its last frames and frees its buffers. Its tasks that remain are
** left for the caller. */
void nsh_process_release(nsh_process *w);

/* Frees the memory of a place without a process. */
void nsh_process_free(nsh_process *w);

/* Task 'i' of 'n', the oldest first. */
nsh_task *nsh_process_task(nsh_process *w, uint32_t i);

/* Writes a job into the outgoing bytes; false: it is too large to send. */
bool nsh_process_give(nsh_process *w, const ns_job *job, nsh_name *name);

/* Sends the tasks given so far. */
void nsh_process_flush(nsh_process *w);

/* Takes back all tasks that have not been started; a worker without tasks may then be given
** other jobs. The exchange is locked. */
void nsh_process_recall(nsh_process *w);

/* The oldest task is over; the state of a running job is forgotten. */
void nsh_process_pop(nsh_process *w);

/* Is the oldest task running? '*since' gets its start. */
bool nsh_process_running(nsh_process *w, int64_t *since);

/* A line of the running job's log, kept for its failure. */
void nsh_process_log(nsh_process *w, ns_bytes line);

/* Takes all frames in the worker's ring, announced or not, and sends as much as now has room.
** The exchange is locked. */
void nsh_process_read(nsh_process *w);

/* No more jobs for this worker, which leaves or is going to be killed. The exchange is
** locked; for the second one it is not. */
void nsh_process_resign(nsh_process *w);
void nsh_process_retire(nsh_process *w);

/* Lets the worker go after its running job. */
void nsh_process_leave(nsh_process *w);

void nsh_process_kill(nsh_process *w, int sig);

/* The running job is to stop; it stays with the first reason. 'said': the reason that its
** canceller gave, for the log, or "". The tasks behind it are taken back first, so that no
** other job is stopped. The exchange is locked. */
void nsh_process_stop(nsh_process *w, nsh_why why, int64_t step, const char *said);

/* Takes the next step when it is due. */
void nsh_process_escalate(nsh_process *w, int64_t now);

/* The job has ended. */
void nsh_process_stopped(nsh_process *w);

/* Was the worker killed to stop its job? */
bool nsh_process_terminated(const nsh_process *w);

/* ----------------------------------------------------------- pool/places.c */

struct nsh_pools;

/* A worker may have room: it is listed, in front or behind the rest of its pool. */
void nsh_pool_list(nsh_process *w, bool front);

/* The first worker of a pool's list; NULL: none has room. */
nsh_process *nsh_pool_unlist(struct nsh_pools *t, size_t pool);

/* The one way for a worker to change its phase, or the number of its tasks, by 'n'. */
void nsh_pool_enter(nsh_process *w, nsh_phase phase);
void nsh_pool_count(nsh_process *w, int n);

/* Records whether the worker runs older scripts than the ones loaded last. */
void nsh_pool_age(nsh_process *w, bool old);

/* How many jobs a worker of a pool may have. */
uint32_t nsh_pool_window(const struct nsh_pools *t, size_t pool);

/* The workers of a pool that places are counted for; is 'w' one of them? */
size_t nsh_pool_attending(const struct nsh_pools *t, size_t pool);
bool nsh_pool_attends(const nsh_process *w);

/* Gives a line of the backlog back. The exchange is locked. */
void nsh_pool_release(struct nsh_pools *t, size_t line);

/* --------------------------------------------------------- pool/messages.c */

/* A worker speaks of its oldest task only, and each task gets one verdict: a frame about
** another job is old or nonsense. */

/* Handles one frame of a worker; false: nonsense. The exchange is locked. */
bool nsh_messages_frame(nsh_process *w, nsh_frame *f);

/* The oldest task is over after 'micros': 'v' is its verdict, complete but for
** the task's numbers and log. 'v->error' is borrowed; the rest of its bytes are kept by
** the exchange's batch already. The exchange is locked. */
void nsh_messages_end(nsh_process *w, const ns_verdict *v, int64_t micros);

/* Passes a sign of life of the running job on to the database, with progress if
** there is any. The exchange is locked. */
void nsh_messages_touch(nsh_process *w, int64_t now);

/* The running job is due for a sign of life. */
bool nsh_messages_due(const nsh_process *w, int64_t since, int64_t now);

/* Serves the workers that wait for ids, as far as there are any. The exchange is
** locked. */
void nsh_messages_serve_ids(struct nsh_pools *t);

/* ------------------------------------------------------------- pool/pool.c */

/* Jobs may be handed out. */
void nsh_pool_hand_out(struct nsh_pools *t);

/* Reads a worker's ring, and lists the worker before its tasks run out. The exchange is
** locked. */
void nsh_pool_read(nsh_process *w);

#endif
