/*
** A seat: the place of one worker process in the host, with the rings to it
** and the jobs it has been given.
**
** Invariants: 'tasks' are in the order they were sent; the first may be
** running, the others are not. A task leaves by the worker's verdict, by being
** taken back, or by the worker's death, and each way puts exactly one verdict
** into the mailbox. The worker's word is taken for how a job ended, never for
** which job it was: ids come from the task.
*/
#ifndef NSH_POOL_PROCESS_H
#define NSH_POOL_PROCESS_H

#include "dispatcher/exchange.h"
#include "ipc/shared_slot.h"
#include "pool/names.h"
#include "process/family.h"

typedef enum nsh_phase {
  NSH_EMPTY,    /* no process */
  NSH_STARTING, /* asked for */
  NSH_UP,       /* takes jobs */
  NSH_DOOMED    /* gets none any more: told to quit, or being killed */
} nsh_phase;

/* How far the stopping of the running job has come: pool/escalation.h. */
typedef enum nsh_stop_step {
  NSH_CALM,   /* nobody wants it to stop */
  NSH_TOLD,   /* job:cancelled() is true */
  NSH_HALTED, /* its Lua code is being stopped */
  NSH_TERMED, /* SIGTERM was sent */
  NSH_KILLED  /* SIGKILL was sent */
} nsh_stop_step;

/* A job in a worker's hands. */
typedef struct nsh_task {
  uint32_t seq;
  int64_t id, run, lease, timeout;
  int64_t heard; /* as of ns_job */
  nsh_name *name;
} nsh_task;

typedef struct nsh_process {
  struct nsh_pools *table;
  uint32_t index;
  size_t pool;       /* of nsh_config; what it may be given */
  nsh_phase phase;
  nsh_zygote *zygote;
  bool old;          /* its scripts are not those loaded last */
  pid_t pid;
  nsh_slot *slot;
  bool forced;       /* SIGKILL was sent */
  const char *blame; /* why, if that was the worker's fault; static */
  nsh_stop_step rung; /* of the running job */
  nsh_why why;       /* it is to stop */
  int64_t step;      /* µs this rung is given */
  int64_t next_at;   /* when the next one is due */
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
  bool news;         /* progress that has not been passed on */
  double progress;
  char *text;        /* malloc'd; NULL: none */
  size_t textlen;
  int64_t touched_at;
  nsh_place touch;   /* the last one */
  /* in the table's list of seats with room */
  bool listed;
  struct nsh_process *next;
} nsh_process;

/* Starts a worker of zygote 'z' here. */
void nsh_process_fork(nsh_process *s, nsh_zygote *z);

/* The process is gone: takes what it still said, then frees the seat. What
** remained of its tasks is left for the caller: nsh_process_drop. */
void nsh_process_bury(nsh_process *s);

/* Task 'i' of 'n', the oldest first. */
nsh_task *nsh_process_task(nsh_process *s, uint32_t i);

/* Writes a job into the outgoing bytes; false: it is too large to send. */
bool nsh_process_give(nsh_process *s, const ns_job *job, nsh_name *name);

/* Sends what was given. */
void nsh_process_flush(nsh_process *s);

/* Takes back all tasks that have not been started; whoever has none then may be given
** others. The mailbox is locked. */
void nsh_process_recall(nsh_process *s);

/* The oldest task is over; the state of a running job is forgotten. */
void nsh_process_pop(nsh_process *s);

/* Is the oldest task running? '*since' gets its start. */
bool nsh_process_running(nsh_process *s, int64_t *since);

/* Takes what the worker has put into its ring, told or not, and sends what it
** has made room for. The mailbox is locked. */
void nsh_process_hear(nsh_process *s);

/* Tells the worker to leave after its running job. */
void nsh_process_quit(nsh_process *s);

/* A line of the running job's log, kept for its failure. */
void nsh_process_log(nsh_process *s, ns_bytes line);

/* Frees what an empty seat still has. */
void nsh_process_free(nsh_process *s);

#endif
