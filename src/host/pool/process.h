/*
** One worker process as its host sees it, with its pace and the lines of claimed jobs. And the
** parts of the pool that only its own files share.
**
** Invariants: see the sections on fetching ahead and on a worker.
*/
#ifndef NSH_POOL_PROCESS_H
#define NSH_POOL_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base.h"
#include "exchange/exchange.h"
#include "ipc/ipc.h"
#include "process/process.h"

typedef struct nsh_pools nsh_pools;

/* ------------------------------------------------ fetching ahead: backlog.c */

/*
** How far ahead jobs are claimed and sent. And the data for that: the pace of handlers, the
** names of jobs, the lines of claimed jobs that no worker has yet.
**
** Invariants: work is fetched ahead only as far as it hides a wait that exists. Claiming ahead
** hides the database cycle, sending ahead hides the way through the host. For handlers much
** longer than either, both are zero, so no job waits behind another while a worker is idle. A
** name lives at least as long as tasks point to it. A load lives until the last of its jobs has
** left its line.
*/

/* -------------------------------------------------------------------- pace */

typedef struct nsh_pace {
  double micros; /* running mean of a handler's wall time; < 0: unknown */
  double bytes;  /* the same of a payload's size */
} nsh_pace;

#define NSH_PACE_INIT ((nsh_pace){-1, -1})

void nsh_pace_ran(nsh_pace *p, int64_t micros);
void nsh_pace_claimed(nsh_pace *p, size_t bytes);

/* Jobs one worker may have in its hands, the running one included: 1..64. */
uint32_t nsh_pace_window(const nsh_pace *p);

/* Jobs the host may hold for 'workers' workers, running ones included. */
size_t nsh_pace_target(const nsh_pace *p, size_t workers);

/* A handler known to be so short that finished verdicts may wait for it. */
bool nsh_pace_brief(const nsh_pace *p);

/* ------------------------------------------------------------- crash loops */

/* Workers that die one after the other without finishing a job. */
typedef struct nsh_crash_loop {
  int crashes;   /* since a job was completed */
  int64_t since; /* of the first of them, monotonic µs */
  int64_t wary;  /* until when jobs that kill workers are reckoned with */
} nsh_crash_loop;

void nsh_crash_loop_crash(nsh_crash_loop *c, int64_t now);
void nsh_crash_loop_over(nsh_crash_loop *c); /* a job was completed */

/* A crash loop is on, or one has been within the last minute. */
bool nsh_crash_loop_wary(const nsh_crash_loop *c, int64_t now);

/* µs to wait before the next fork; 0: fork at once. */
int64_t nsh_crash_loop_delay(const nsh_crash_loop *c);

/* ------------------------------------------------------------------- names */

/* The name of jobs, with the pace of its handler; or the name of a queue. */
typedef struct nsh_name {
  char *text; /* NUL-terminated */
  size_t n;
  nsh_pace pace;
  size_t tasks;  /* that point here */
  uint32_t uses; /* halved whenever names are forgotten */
  int64_t told;  /* monotonic µs: when it was logged that this host has no handler for it */
} nsh_name;

#define NSH_NAMES_MAX 1000 /* beside the names that tasks have */

/* The names that a host has met, each stored once. Pushers choose them, so their number is
** limited: beyond NSH_NAMES_MAX, names that no task has and that are rarely met are forgotten. */
typedef struct nsh_names {
  nsh_name **items; /* open addressing; 'cap' is a power of two */
  size_t n, cap;
} nsh_names;

/* The entry of a name, made when new. Without a task it is valid until the next call. */
nsh_name *nsh_names_get(nsh_names *names, ns_bytes text);
void nsh_names_free(nsh_names *names);

/* ----------------------------------------------------------- lines of jobs */

typedef struct nsh_waiting {
  const ns_job *job;
  nsh_load *load;   /* that the job's bytes are in */
  uint64_t arrival; /* counts over all lines */
  struct nsh_bulk *bulk; /* a batch: the job is its first; owned; NULL: a job by itself */
} nsh_waiting;

/* A batch: jobs of one queue and name for one call of their handler. It is gathered, and then
** stands in its line as one. It has one job at least. */
typedef struct nsh_bulk {
  nsh_waiting *items;
  size_t n, cap;
  size_t bytes;     /* of their payloads */
  size_t most;      /* jobs */
  int64_t ready_at; /* monotonic µs: then it does not wait for more */
  size_t pool;      /* its line */
} nsh_bulk;

/* How many jobs there are in it: 1 without a batch. */
size_t nsh_waiting_jobs(const nsh_waiting *w);

/* They leave, and their bytes are gone then, too. */
void nsh_waiting_free(nsh_waiting *w);

/* Takes the jobs for which 'leaves' is true out of a batch; how many are left. With none left it
** is freed. */
size_t nsh_bulk_drop(nsh_bulk *k, bool (*leaves)(void *arg, const ns_job *job), void *arg);

/* A line of claimed jobs that no worker has yet, in the order they came. There is one per pool.
** The jobs of a reserved queue wait by themselves, so that the workers kept for them find them,
** however many other jobs wait. */
typedef struct nsh_prefetch {
  nsh_waiting *items; /* ring of 'cap', a power of two */
  size_t first, n, cap;
} nsh_prefetch;

/* Joins the line. */
void nsh_prefetch_add(nsh_prefetch *b, const nsh_waiting *w);

/* The first job of a line that is not empty. */
const nsh_waiting *nsh_prefetch_first(const nsh_prefetch *b);

/* The first job leaves; its bytes are gone then, too. */
void nsh_prefetch_pop(nsh_prefetch *b);

/* Takes all jobs out of the line for which 'leaves' is true, in one pass. Returns how many places
** of the line are gone; a batch has one. */
size_t nsh_prefetch_drop(nsh_prefetch *b, bool (*leaves)(void *arg, const ns_job *job), void *arg);

void nsh_prefetch_free(nsh_prefetch *b);

/* --------------------------------------------------- a worker as its host sees it */

/*
** One worker process, with the rings to it and its jobs.
**
** Invariants: 'tasks' are in the order they were sent; the first may be running, the rest are
** not. A task leaves by the worker's verdict, by being taken back, or by the worker's death.
** Each way puts exactly one verdict into the exchange. The worker decides how a job ended,
** never which job it was: ids come from the task.
*/

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

/* A job of a batch in a worker's hands. */
typedef struct nsh_member {
  int64_t id, run, lease, heard, due;
} nsh_member;

typedef struct nsh_members {
  size_t n, at; /* how many, and which of them is the task's */
  nsh_member items[];
} nsh_members;

/* A job in a worker's hands, or a batch: then the first of its jobs without a verdict. They are
** started, stopped and timed as one. */
typedef struct nsh_task {
  uint32_t seq;
  int64_t id, run, lease, timeout;
  int64_t heard; /* as of ns_job */
  int64_t due;   /* since when it could be claimed, server µs; 0: not known */
  nsh_name *name;
  nsh_name *queue;
  nsh_members *members; /* owned; NULL: a job by itself */
} nsh_task;

typedef struct nsh_process {
  struct nsh_pools *pools;
  uint32_t index;
  size_t pool;       /* of nsh_config; the jobs that it may be given */
  nsh_phase phase;
  nsh_zygote *zygote;
  bool old;          /* its scripts are not the ones loaded last */
  bool surplus;      /* it leaves, and no other worker takes its place */
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
  ns_buf log;        /* its last lines, and the end of what it has printed */
  ns_buf line;       /* what it has printed of a line of the log, ... */
  int64_t line_fd;   /* ... to this descriptor */
  bool printed;      /* it has, and no verdict has taken that along */
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

/* ------------------------------------ between the files of pool/: process.c */


/* Starts a worker of zygote 'z' here. */
void nsh_process_fork(nsh_process *w, nsh_zygote *z);

/* The process is gone: takes its last frames and frees its buffers. Its tasks that remain are
** left for the caller. */
void nsh_process_release(nsh_process *w);

/* Frees the memory of a place without a process. */
void nsh_process_free(nsh_process *w);

/* Task 'i' of 'n', the oldest first. */
static inline nsh_task *nsh_process_task(nsh_process *w, uint32_t i) {
  return &w->tasks[(w->first + i) & (w->cap - 1)];
}

/* Writes a job into the outgoing bytes; false: it is too large to send. */
bool nsh_process_give(nsh_process *w, const ns_job *job);

/* The same with a batch, as one task. */
bool nsh_process_give_bulk(nsh_process *w, const nsh_bulk *k);

/* Job 'at' of a task; of a job by itself 0. NULL: it has a verdict, or there is no such job. */
const nsh_member *nsh_process_member(nsh_task *t, size_t at, nsh_member *room);

/* How many jobs of a task have no verdict yet. */
static inline size_t nsh_process_jobs(const nsh_task *t) {
  return t->members != NULL ? t->members->n - t->members->at : 1;
}

/* Sends the tasks given so far. */
void nsh_process_flush(nsh_process *w);

/* Takes back all tasks that have not been started; a worker without tasks may then be given
** other jobs. The exchange is locked. */
void nsh_process_recall(nsh_process *w);

/* The oldest task's job has its verdict. The next of its batch is the task's then; without one the
** task is over, and the state of a running job is forgotten. */
void nsh_process_pop(nsh_process *w);

/* How long the running job may take, µs: its handler may have said so. */
int64_t nsh_process_timeout(nsh_process *w);

/* Its attempts, where its handler has said so; 0: it has not. */
int64_t nsh_process_attempts(const nsh_process *w);

/* Is the oldest task running? '*since' gets its start. */
bool nsh_process_running(nsh_process *w, int64_t *since);

/* The run of one of the task's jobs, for the log; its bytes are the task's. */
nsh_run nsh_process_run(const nsh_process *w, const nsh_task *t, int64_t id, int64_t run,
                        int64_t micros);

/* A line of the running job's log, kept for its failure. */
void nsh_process_log(nsh_process *w, ns_bytes line);

/* The running job has printed: that is kept, too. */
void nsh_process_printed(nsh_process *w, ns_bytes piece);

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

/* The running job is to stop; it stays with the first reason, but a cancel explains a lost claim.
** 'said': the reason that its canceller gave, for the log, or "". The tasks behind it are taken
** back first, so that no other job is stopped. The exchange is locked. */
void nsh_process_stop(nsh_process *w, nsh_why why, int64_t step, const char *said);

/* The claim of job 'at' of the running batch is lost: it is told so, the rest go on. As above. */
void nsh_process_lose(nsh_process *w, size_t at, const char *said);

/* Takes the next step when it is due. */
void nsh_process_escalate(nsh_process *w, int64_t now);

/* The job has ended. */
void nsh_process_stopped(nsh_process *w);

/* Was the worker killed to stop its job? */
bool nsh_process_terminated(const nsh_process *w);

/* ----------------------------------------------------------- pool/places.c */

/* A worker may have room: it is listed, in front or behind the rest of its pool. */
void nsh_pool_list(nsh_process *w, bool front);

/* The first worker of a pool's list; NULL: none has room. */
nsh_process *nsh_pool_unlist(nsh_pools *t, size_t pool);

/* The one way for a worker to change its phase, or the number of its tasks, by 'n'. */
void nsh_pool_enter(nsh_process *w, nsh_phase phase);
void nsh_pool_count(nsh_process *w, int n);

/* Records whether the worker runs older scripts than the ones loaded last. */
void nsh_pool_age(nsh_process *w, bool old);

/* How many jobs a worker of a pool may have. */
uint32_t nsh_pool_window(const nsh_pools *t, size_t pool);

/* The workers of a pool that places are counted for; is 'w' one of them? */
size_t nsh_pool_attending(const nsh_pools *t, size_t pool);
bool nsh_pool_attends(const nsh_process *w);

/* Gives a line of the backlog back. The exchange is locked. */
void nsh_pool_release(nsh_pools *t, size_t line);

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

#define NSH_TOUCHES_MAX 1000 /* waiting to be written; the rest come later */

/* The running job is due for a sign of life. */
bool nsh_messages_due(const nsh_process *w, int64_t since, int64_t now);

/* Once a second has passed, or the host ends: how many runs ended well without a line. */
void nsh_messages_sum_up(nsh_pools *t, int64_t now);

/* Serves the workers that wait for ids, as far as there are any. The exchange is
** locked. */
void nsh_messages_serve_ids(nsh_pools *t);

/* ------------------------------------------------------------- pool/pool.c */

/* Jobs may be handed out. */
void nsh_pool_hand_out(nsh_pools *t);

/* An empty place more, behind the rest; NULL: there are as many as there may be. */
nsh_process *nsh_pool_add_place(nsh_pools *t);

/* Reads a worker's ring, and lists the worker before its tasks run out. The exchange is
** locked. */
void nsh_pool_read(nsh_process *w);

#endif
