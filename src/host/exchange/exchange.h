/*
** The exchange between the loop and the threads that talk to the database about jobs. Also the
** batches of verdicts in it, and the verdicts that are still to be written. And how the scripts
** were last read, which the loop tells the dispatcher.
**
** Invariants: a verdict leaves a batch only when the database has answered for it.
** 'outstanding' counts the claimed jobs without a verdict so far: the sum of jobs that arrive,
** wait for workers, or have one. 'places' alone tells how many jobs may be claimed. The loop
** counts it from its pools (pool/pool.h) whenever it unlocks, and the dispatcher takes off the
** jobs that it delivers. 'unsettled' counts the verdicts put in and not yet written. Every
** claimed job gets exactly one verdict in any case. So a host with both at zero and no claim
** under way holds nothing.
*/
#ifndef NSH_EXCHANGE_EXCHANGE_H
#define NSH_EXCHANGE_EXCHANGE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base.h"
#include "config.h"
#include "ipc/ipc.h"
#include "nightshift_host.h"
#include "process/process.h"

#define NSH_NEVER INT64_MAX

static inline int64_t nsh_sooner(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* --------------------------------------------------------------------- counts */

#define NSH_CODES (NS_ESQL + 1)

/* Counts of rare events since the start, for `--http`. Any thread adds to them. */
typedef struct nsh_counts {
  _Atomic int64_t dead, retries;     /* verdicts after which a job is dead, or runs again */
  _Atomic int64_t leases_lost;       /* claims that turned out to be lost while their jobs ran */
  _Atomic int64_t rescued, holders;  /* jobs that were given back, of so many dead holders */
  _Atomic int64_t mended;            /* jobs that were nowhere */
  _Atomic int64_t errors[NSH_CODES]; /* of the database, by ns_status */
} nsh_counts;

static inline void nsh_count(_Atomic int64_t *count, int64_t n) {
  atomic_fetch_add_explicit(count, n, memory_order_relaxed);
}

/* ----------------------------------------------------- readings of the scripts */

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

/* ------------------------------------------------------------------- batches */

/* Verdicts on their way to the database, with every byte they point to. Bytes live in chunks
** that never move. So the bytes of a verdict stay valid until its batch is cleared, however
** many are added after it. The verdicts themselves do move: no pointer to one is given out;
** only complete ones are added. A chunk may be a nameless file: its pages need not stay in
** memory. */

typedef struct nsh_chunk nsh_chunk;

typedef struct nsh_batch {
  ns_verdict *items;
  size_t n, cap;
  nsh_chunk *chunks; /* the newest first */
} nsh_batch;

#define NSH_BATCH_INIT ((nsh_batch){NULL, 0, 0, NULL})

/* Copies of bytes that live as long as the batch. Absent bytes stay absent. */
ns_bytes nsh_batch_keep(nsh_batch *b, ns_bytes s);
/* The same for bytes that may have to wait long. Over 64 KiB they go into a file without a name
** in $TMPDIR or /tmp, or into memory when that fails. */
ns_bytes nsh_batch_spill(nsh_batch *b, ns_bytes s);

/* Room for children, zeroed; lives as long as the batch. */
ns_push *nsh_batch_children(nsh_batch *b, size_t n);

/* Has the texts of a child point to copies that live as long as the batch. */
void nsh_batch_keep_child(nsh_batch *b, ns_push *child);

/* Appends '*v' as it is: its bytes and children are the batch's already. */
void nsh_batch_add(nsh_batch *b, const ns_verdict *v);

/* Appends a deep copy of 'v'. */
void nsh_batch_copy(nsh_batch *b, const ns_verdict *v);

/* Forgets all verdicts; keeps a little memory for the next ones. */
void nsh_batch_clear(nsh_batch *b);
void nsh_batch_free(nsh_batch *b);

/* --------------------------------------------------------------- the exchange */

/* Jobs of one claim on their way to the workers. */
typedef struct nsh_load {
  ns_jobs jobs;
  size_t left; /* that no worker has yet */
  struct nsh_load *next;
} nsh_load;

void nsh_load_free(nsh_load *load);

/* A sign of life of a running job, to be written. */
typedef struct nsh_touch {
  uint32_t worker, seq; /* the worker and the job that it is of */
  uint32_t at;          /* the place of the job in its batch */
  int64_t id, run, pid;
  double progress; /* -1: none */
  char *text;      /* malloc'd; NULL: none */
  size_t n;        /* its bytes */
  int64_t began;   /* as of ns_verdict */
} nsh_touch;

/* Where a touch waits in the exchange, as long as 'turn' is the exchange's. */
typedef struct nsh_place {
  uint64_t turn;
  size_t at;
} nsh_place;

/* A job with a claim that turned out to be lost. Each process of a worker counts from 0. */
typedef struct nsh_lost {
  uint32_t worker, seq, at;
  int64_t pid;
} nsh_lost;

/* Jobs that may be claimed now. Workers of pool 0 take all jobs; workers of other pools take
** the jobs of one queue only. */
typedef struct nsh_room {
  size_t open;               /* of any queue */
  size_t own[NSH_POOLS_MAX]; /* beside them, of the queue of each pool > 0 */
  size_t all;                /* of both kinds */
} nsh_room;

/* What is paused: no job of these is started. */
typedef struct nsh_paused {
  int64_t *queues;
  size_t n, cap;
  ns_buf names; /* each ended by NUL */
} nsh_paused;

/* The number of workers, for all to see. */
typedef struct nsh_tuning {
  size_t wanted;     /* that there are to be */
  int64_t told;      /* how often another process has told us a number */
  char refused[256]; /* why the last was not taken; "": it was */
} nsh_tuning;

typedef struct nsh_exchange {
  pthread_mutex_t lock;
  pthread_cond_t work;       /* the dispatcher waits here */
  pthread_cond_t listen;     /* the listener waits here */
  pthread_cond_t upkeep;     /* the upkeep waits here */
  pthread_cond_t runners;    /* runners of tables wait here */
  pthread_cond_t schedules;  /* the thread of schedules waits here */
  void (*notify)(void *arg); /* wakes the loop; any thread */
  void *notify_arg;

  /* from the loop to the dispatcher */
  nsh_batch verdicts;
  nsh_batch parents; /* verdicts with children, but … */
  nsh_batch large;   /* … verdicts with many: for the upkeep */
  nsh_touch *touches;
  size_t ntouches, captouches;
  uint64_t turn; /* counts how often they were taken out; from 1 */
  size_t want_ids;
  size_t ids_owed;     /* that the stock lacks and that are not asked for yet */
  ns_workers workers;  /* the workers' jobs; reported now and then */
  char *handlers;      /* the scripts' handlers, JSON; malloc'd; */
  char *names;         /* the same, a line each; NULL: they are too many to list */
  char *on_dead;       /* jobs to push for dead ones of them, JSON; malloc'd; */
  bool declares;       /* ... from scripts that were loaded since that was written */
  char *batched;       /* their handlers that take batches, "jobs µs name", a line each; malloc'd */
  size_t more;         /* jobs of a name that a claim may take for such, beside its limit */
  size_t taking;       /* workers that take jobs */
  bool waiting;        /* jobs wait for a worker, or for more of their batch */
  nsh_reading reading; /* of the scripts */
  nsh_tuning tuning;   /* the number of workers */
  bool serves;         /* one of the handler texts has changed */
  bool finish;         /* write the verdicts there are, then end */
  atomic_bool give_up; /* do not wait for the server any more */
  atomic_bool away;    /* the server is being waited for */
  bool notices;        /* the listener saw a notice, ... */
  bool gone;           /* ... or the death of a holder: for the upkeep */

  /* between the dispatcher and the upkeep */
  int64_t assisted;               /* the holder that the upkeep looks around for */
  bool locks;                     /* named locks serve here */
  bool upkeep_ends, upkeep_ended; /* asked to end; has ended */

  /* between the runners of tables and the other threads */
  uint64_t turns;      /* counts turns with jobs claimed or settled */
  bool rows_rested;    /* no row is left that may be taken in, ... */
  bool rows_refused;   /* … except rows that the server refuses */
  int64_t rows_due_at; /* monotonic µs: then the first that waits may be; NEVER: none waits */

  /* between the thread of schedules, the loop and the upkeep */
  char *declared;        /* the scripts' declarations, JSON, malloc'd; NULL: none ever */
  uint64_t declarations; /* counts how often that was told */
  uint64_t declared_of;  /* the last of them that was written, or at least tried */
  int64_t declared_at;   /* monotonic µs: when it was told last */
  bool ticks_known;      /* the first tick has been looked for */
  bool ticks_due;        /* it is due */
  bool ticks_moved;      /* it may be another one than it was */
  int64_t ticked_at;     /* of a host that drains, monotonic µs: when ticks were pushed last */

  /* from the dispatcher to the loop */
  nsh_load *loads, **loads_end;
  int64_t *ids; /* a stock: a worker that spawns need not wait for the dispatcher */
  size_t nids, capids;
  nsh_lost *lost;
  size_t nlost, caplost;
  ns_notice *revoked; /* claims that were ended from outside */
  size_t nrevoked, caprevoked;
  nsh_paused paused; /* as the queues were last read, */
  bool pauses;       /* ... and that differs from what the loop has seen */
  int64_t asked;     /* workers that another process wants us to have; 0: it was obeyed */
  bool lost_all;     /* we were declared dead: no claim is ours any more */
  bool rested;       /* nothing to claim, twice in a row */
  int64_t rest_due;  /* then: µs until the next scheduled job, -1: none */
  bool ended, clean; /* the thread is done; all was written */
  ns_counters counters;
  int64_t skew; /* µs: the server's clock is ahead of our monotonic one by so much */

  /* from any thread, for `--http` */
  nsh_counts counts;
  _Atomic int64_t rounded_at; /* monotonic µs: the dispatcher's last turn without an error */

  int64_t places[NSH_POOLS_MAX];  /* free places of each pool, less the jobs that arrive; below 0:
                                  ** so many jobs wait for pool 0 */
  size_t arriving[NSH_POOLS_MAX]; /* jobs in 'loads', by the pool of their queue */
  size_t npools;
  size_t outstanding, unsettled;
  bool cycling;    /* a turn is under way, ... */
  bool claiming;   /* ... and may claim jobs */

  /* whether the dispatcher moves, for the loop */
  _Atomic int64_t moved; /* monotonic µs: it was seen to do something last */
  atomic_bool asks;      /* it is in a turn, where it may wait for the server */
  int64_t patience;      /* µs that one such wait may last */
  int64_t poked;         /* monotonic µs: it was asked to move, and has not since; 0: it has */

  /* between the dispatcher and the listener */
  bool armed;                          /* the listener should wait in the server */
  int64_t disarmed_at;                 /* monotonic µs: when it last had no need to any more */
  bool woken;                          /* it has been woken */
  bool narrow;                         /* it waits for less than it should */
  bool stop_listening, listener_ended; /* asked to end; has ended */
  int64_t *queues;                     /* queues to listen to, and behind them the paused ones */
  size_t nqueues, npaused, capqueues;
  int64_t paused_mark; /* of the names that are paused */
  int64_t newest; /* greatest queue id known; -1: new ones do not matter */
  int64_t holder; /* our holder */
} nsh_exchange;

void nsh_exchange_init(nsh_exchange *m, size_t npools, void (*notify)(void *arg), void *arg);
void nsh_exchange_free(nsh_exchange *m); /* when the threads are gone */

void nsh_exchange_lock(nsh_exchange *m);
void nsh_exchange_unlock(nsh_exchange *m);

/* ------------------------------------------------- the loop; lock is held */

/* The batch of a verdict with so many children. Children keep the jobs of all queues waiting in
** the dispatcher's transaction. So few are written there at a time, and the many of one verdict
** elsewhere. */
nsh_batch *nsh_exchange_batch(nsh_exchange *m, size_t nchildren);

/* Puts in the verdict of a job of the host's, complete: its batch already keeps its bytes. Its
** handler has ended now, if one had begun. Wakes the thread that writes it. */
void nsh_exchange_verdict(nsh_exchange *m, const ns_verdict *v);

/* Takes a job back that no worker has started. */
void nsh_exchange_release(nsh_exchange *m, int64_t id, int64_t run, int64_t lease);

/* 't->text' changes hands. A touch that waits at 'place' is of the same worker: the two become
** one, or it is of a job that has ended. 'place' gets the place of 't'. */
void nsh_exchange_touch(nsh_exchange *m, const nsh_touch *t, nsh_place *place);

/* 'n' ids of the stock have been handed out. It is filled up again when half of it is gone, or
** now, when a worker 'waits' for one. It is empty until a worker does. */
void nsh_exchange_want_ids(nsh_exchange *m, size_t n, bool waits);

/* 'places': the free places of each pool; jobs on their way to the loop are taken off here. */
void nsh_exchange_publish(nsh_exchange *m, const int64_t *places);

/* Sets the handlers that the host can run: 'handlers' and 'names' (malloc'd, change hands; no
** 'handlers': both as before), 'taking' workers. */
void nsh_exchange_serves(nsh_exchange *m, char *handlers, char *names, size_t taking);

/* Scripts were loaded that have these jobs pushed for dead ones: a list in JSON, malloc'd, changes
** hands. nsh_exchange_serves tells their handlers next. */
void nsh_exchange_on_dead(nsh_exchange *m, char *list);

/* Scripts were loaded whose handlers take such batches: lines, malloc'd, change hands. The same. */
void nsh_exchange_batched(nsh_exchange *m, char *lines);

/* Scripts were loaded that declare these schedules: a list in JSON, malloc'd, changes hands.
** NULL: none. */
void nsh_exchange_declare(nsh_exchange *m, char *schedules);

/* Is no tick due, and all written that the scripts declare? */
bool nsh_exchange_ticks_rest(const nsh_exchange *m);

/* No job will be claimed any more: end once everything is settled. */
void nsh_exchange_finish(nsh_exchange *m);

/* Does the dispatcher move? It is asked to show that each time. False: it has not in the 'within'
** µs since it was asked, or has waited for the server too long. The lock is not held. */
bool nsh_exchange_moves(nsh_exchange *m, int64_t within);

/* From the dispatcher's thread, with the lock or without: it moves. 'asks': it is in a turn. */
void nsh_exchange_moved(nsh_exchange *m, bool asks);

/* ------------------------------------------------ the threads; lock is held */

/* Jobs were claimed, settled or given back: for the runners of tables. */
void nsh_exchange_turned(nsh_exchange *m);

/* True when the host holds no job and owes no verdict. */
bool nsh_exchange_quiescent(const nsh_exchange *m);

/* A verdict of 'large' is written: the rest is the dispatcher's. */
void nsh_exchange_written(nsh_exchange *m, const ns_verdict *v);

/* How many jobs may be claimed now. */
nsh_room nsh_exchange_room(const nsh_exchange *m);

/* Hands claimed jobs over, 'by_pool' of each pool's queue; '*jobs' is empty
** afterwards. */
void nsh_exchange_deliver(nsh_exchange *m, ns_jobs *jobs, const size_t *by_pool);
void nsh_exchange_ids(nsh_exchange *m, const int64_t *ids, size_t n);
void nsh_exchange_lose(nsh_exchange *m, const nsh_touch *t);
void nsh_exchange_revoke(nsh_exchange *m, const ns_notice *n);

/* These queues and names ('names': each ended by NUL) are paused, and no others. The loop gives
** jobs of them back that have not been started. */
void nsh_exchange_pause(nsh_exchange *m, const int64_t *queues, size_t n, ns_bytes names);

/* Is the job's queue paused, or its name? */
bool nsh_exchange_pauses(const nsh_exchange *m, const ns_job *job);

/* A condition on monotonic time. */
void nsh_exchange_cond(pthread_cond_t *c);

/* ------------------------------------------------ lines on runs, verdicts: retry.c */

/* A run, for lines of the log. */
typedef struct nsh_run {
  int64_t id, run;
  ns_bytes name, queue;  /* absent: not known */
  int64_t worker, pid;   /* 0: none */
  int64_t micros;        /* so far; -1: it has not begun */
} nsh_run;

/* Writes a line on a run: the facts about it, and 'more' fields. All lines on runs are made here,
** so that all have the same fields. */
void nsh_run_log(const nsh_run *r, ns_level level, const char *event, const char *outcome,
                 const ns_field *more, size_t n);

/* "job.done", "job.failed", …; NULL: no run ends so. And without "job.". */
const char *nsh_run_event(ns_kind kind);
const char *nsh_run_outcome(ns_kind kind);

/* Has a run that ends so its line when its verdict is written? Only then it is known whether its
** job is dead. Other runs have theirs, if any, when they end; in an outage all have. */
bool nsh_run_waits(ns_kind kind);

/* The verdicts that are still to be written. They are of the cycle under way, have a row that
** another transaction held, or have too many children for it.
**
** Invariant: a verdict leaves only when the database has answered for it. A verdict that the
** database refuses is softened until it is taken, so no job stays claimed. The writes of one
** cycle are bounded, however many verdicts come in: the jobs of all queues wait for its end. */

typedef struct nsh_retry {
  nsh_batch batch;   /* of this cycle; kept until it says something of one */
  nsh_batch parents; /* verdicts with children; each comes into 'batch' in its turn, and its … */
  size_t nturns;     /* … bytes stay here until all of these have had their turns */
  size_t children;   /* of the verdicts in 'batch' … */
  size_t most;       /* … and their limit, not counting the last verdict's */
  nsh_batch later;   /* verdicts with a locked row */
  nsh_batch ill;     /* verdicts that met the server's own trouble */
  int64_t ill_at;    /* monotonic µs: when they are tried again */
  int64_t ill_wait;  /* µs: how long they wait; grows; 0: they have none */
  int64_t again_at;  /* monotonic µs: time for some; INT64_MAX: there is no need */
  nsh_counts *counts; /* of verdicts that were written; NULL: not counted */
} nsh_retry;

#define NSH_RETRY_INIT                                                                             \
  ((nsh_retry){.batch = NSH_BATCH_INIT,                                                            \
               .parents = NSH_BATCH_INIT,                                                          \
               .later = NSH_BATCH_INIT,                                                            \
               .ill = NSH_BATCH_INIT,                                                              \
               .most = 500,                                                                        \
               .again_at = INT64_MAX})

void nsh_retry_free(nsh_retry *u);

/* A host that ends without the server: the failures of 'b', which was never tried, have their lines
** in the log. */
void nsh_retry_give_up(const nsh_batch *b);

/* Before a cycle: takes the new verdicts out of 'fresh', unless the last cycle has failed and
** is repeated with the same verdicts. Some of 'parents' (verdicts with children; may be NULL)
** come into this cycle; returns how many. */
size_t nsh_retry_take(nsh_retry *u, nsh_batch *fresh, nsh_batch *parents, int64_t now);

/* How long the cycle took: as many children may come into the next as are soon written. */
void nsh_retry_took(nsh_retry *u, int64_t micros);

/* How many wait for a cycle because of their children. */
size_t nsh_retry_waiting(const nsh_retry *u);

/* After a cycle: logs the outcome of each verdict; returns how many are done with. The rest are
** for a later cycle. 'trouble': the server's error about verdicts that met its trouble. */
size_t nsh_retry_sort(nsh_retry *u, const ns_err *trouble, int64_t now);

/* The same after a failed cycle; verdicts without an answer are kept. */
size_t nsh_retry_failed(nsh_retry *u, const ns_err *trouble, int64_t now);

#endif
