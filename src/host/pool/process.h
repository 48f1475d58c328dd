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
typedef enum nsh_rung {
  NSH_CALM,   /* nobody wants it to stop */
  NSH_TOLD,   /* job:cancelled() is true */
  NSH_HALTED, /* its Lua code is being stopped */
  NSH_TERMED, /* SIGTERM was sent */
  NSH_KILLED  /* SIGKILL was sent */
} nsh_rung;

/* A job in a worker's hands. */
typedef struct nsh_task {
  uint32_t seq;
  int64_t id, run, lease, timeout;
  int64_t heard; /* as of ns_job */
  nsh_name *name;
} nsh_task;

typedef struct nsh_seat {
  struct nsh_table *table;
  uint32_t index;
  size_t pool;       /* of nsh_config; what it may be given */
  nsh_phase phase;
  nsh_zygote *zygote;
  bool old;          /* its scripts are not those loaded last */
  pid_t pid;
  nsh_slot *slot;
  bool forced;       /* SIGKILL was sent */
  const char *blame; /* why, if that was the worker's fault; static */
  nsh_rung rung;     /* of the running job */
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
  struct nsh_seat *next;
} nsh_seat;

/* Starts a worker of zygote 'z' here. */
void nsh_seat_fork(nsh_seat *s, nsh_zygote *z);

/* The process is gone: takes what it still said, then frees the seat. What
** remained of its tasks is left for the caller: nsh_seat_drop. */
void nsh_seat_bury(nsh_seat *s);

/* Task 'i' of 'n', the oldest first. */
nsh_task *nsh_seat_task(nsh_seat *s, uint32_t i);

/* Writes a job into the outgoing bytes; false: it is too large to send. */
bool nsh_seat_give(nsh_seat *s, const ns_job *job, nsh_name *name);

/* Sends what was given. */
void nsh_seat_flush(nsh_seat *s);

/* Takes back all tasks that have not been started; whoever has none then may be given
** others. The mailbox is locked. */
void nsh_seat_recall(nsh_seat *s);

/* The oldest task is over; the state of a running job is forgotten. */
void nsh_seat_pop(nsh_seat *s);

/* Is the oldest task running? '*since' gets its start. */
bool nsh_seat_running(nsh_seat *s, int64_t *since);

/* Takes what the worker has put into its ring, told or not, and sends what it
** has made room for. The mailbox is locked. */
void nsh_seat_hear(nsh_seat *s);

/* Tells the worker to leave after its running job. */
void nsh_seat_quit(nsh_seat *s);

/* A line of the running job's log, kept for its failure. */
void nsh_seat_log(nsh_seat *s, ns_bytes line);

/* Frees what an empty seat still has. */
void nsh_seat_free(nsh_seat *s);

#endif
