/*
** The dispatcher: the threads that talk to the database about jobs, and the exchange between
** them and the loop.
**
** One thread runs cycles (settle what finished, claim what the workers can take) and
** maintenance between them: ids, signs of life, the list of queues, ringing. A second,
** small thread listens on a connection of its own while there is nothing to claim,
** and a third, the upkeep, does on another what may take long.
**
** Invariants: only the dispatcher's thread touches its ns_db once it runs, and
** whatever it shares goes through the exchange. A verdict leaves it only when
** the database has answered for it.
** 'outstanding' counts the jobs that were claimed and whose verdict
** has not been put in, and is the sum of what arrives, what waits for workers and
** what they have. 'places' is the one number that says how much may be claimed: the
** loop counts it from its pools (pool/pool.h) whenever it unlocks, and the dispatcher
** takes off what it delivers. 'unsettled' counts the verdicts put in and not yet
** written. Every claimed job gets exactly one verdict, whatever became of it, so a
** host with both at zero and no claim under way holds nothing.
*/
#ifndef NSH_DISPATCHER_DISPATCHER_H
#define NSH_DISPATCHER_DISPATCHER_H

#include <pthread.h>
#include <stdatomic.h>

#include "buf.h"
#include "config.h"
#include "ipc/ipc.h"
#include "nightshift_host.h"
#include "scripts.h"

/* ------------------------------------------------------------------- batches */

/* Verdicts on their way to the database, with every byte they point to. Bytes live in chunks
** that never move, so what a verdict points to stays
** valid until its batch is cleared, however many are added after it. The verdicts
** themselves do move: no pointer to one is given out, they are added complete. A
** chunk may be a file that has no name: its pages need not stay in memory. */

typedef struct nsh_chunk nsh_chunk;

typedef struct nsh_batch {
  ns_verdict *items;
  size_t n, cap;
  nsh_chunk *chunks; /* the newest first */
} nsh_batch;

#define NSH_BATCH_INIT ((nsh_batch){NULL, 0, 0, NULL})

/* Copies of bytes that live as long as the batch. Absent bytes stay absent. */
ns_bytes nsh_batch_keep(nsh_batch *b, ns_bytes s);
/* The same for bytes that may have to wait long: over 64 KiB they go into a
** file without a name in $TMPDIR or /tmp, or into memory when that fails. */
ns_bytes nsh_batch_spill(nsh_batch *b, ns_bytes s);

/* Room for children, zeroed; lives as long as the batch. */
ns_push *nsh_batch_children(nsh_batch *b, size_t n);

/* Has the texts of a child point to copies that live as long as the batch. */
void nsh_batch_keep_child(nsh_batch *b, ns_push *child);

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
  uint32_t worker, seq; /* whose it is */
  int64_t id, run, pid;
  int64_t lease;   /* of the job */
  double progress; /* -1: none */
  char *text;      /* malloc'd; NULL: none */
  size_t n;        /* its bytes */
} nsh_touch;

/* Where a touch waits in the exchange, as long as 'turn' is the exchange's. */
typedef struct nsh_place {
  uint64_t turn;
  size_t at;
} nsh_place;

/* A job whose claim turned out to be lost. Each process of a worker counts from 0. */
typedef struct nsh_lost {
  uint32_t worker, seq;
  int64_t pid;
} nsh_lost;

/* Jobs that may be claimed now. Workers of pool 0 take all jobs; those of the others
** take the jobs of one queue only. */
typedef struct nsh_room {
  size_t open;               /* of any queue */
  size_t own[NSH_POOLS_MAX]; /* beside them, of the queue of each pool > 0 */
  size_t all;                /* of both kinds */
} nsh_room;

typedef struct nsh_exchange {
  pthread_mutex_t lock;
  pthread_cond_t work;       /* the dispatcher waits here */
  pthread_cond_t listen;     /* the listener waits here */
  pthread_cond_t upkeep;     /* the upkeep waits here */
  void (*notify)(void *arg); /* wakes the loop; any thread */
  void *notify_arg;

  /* from the loop to the dispatcher */
  nsh_batch verdicts;
  nsh_batch parents; /* those with children, but … */
  nsh_batch large;   /* … these with many: for the upkeep */
  nsh_touch *touches;
  size_t ntouches, captouches;
  uint64_t turn; /* counts how often they were taken out; from 1 */
  size_t want_ids;
  size_t ids_owed;     /* that the stock lacks and that are not asked for yet */
  ns_workers workers;  /* what they do; told now and then */
  char *handlers;      /* what the scripts handle, JSON; malloc'd; */
  char *names;         /* the same, a line each; NULL: they are too many to list */
  size_t taking;       /* workers that take jobs */
  nsh_reading reading; /* of the scripts */
  bool serves;         /* one of these has changed */
  bool finish;         /* settle what there is, then end */
  atomic_bool give_up; /* do not wait for the server any more */
  atomic_bool away;    /* the server is being waited for */
  bool notices;        /* the listener saw a notice, ... */
  bool gone;           /* ... or the death of a holder: for the upkeep */

  /* between the dispatcher and the upkeep */
  bool died;                      /* a holder has, or may have: for the dispatcher */
  int64_t assisted;               /* the holder that the upkeep looks around for */
  bool locks;                     /* named locks serve here */
  bool upkeep_ends, upkeep_ended; /* asked to end; has ended */

  /* from the dispatcher to the loop */
  nsh_load *loads, **loads_end;
  int64_t *ids; /* a stock: who spawns need not wait for the dispatcher */
  size_t nids, capids;
  nsh_lost *lost;
  size_t nlost, caplost;
  ns_notice *revoked; /* claims that were ended from outside */
  size_t nrevoked, caprevoked;
  int64_t *withdrawn; /* leases whose jobs, where not begun, are to be given back */
  size_t nwithdrawn, capwithdrawn;
  bool lost_all;     /* we were declared dead: no claim is ours any more */
  bool rested;       /* nothing to claim, twice in a row */
  bool refused;      /* … but rows that the server refuses */
  int64_t rest_due;  /* then: µs until the next scheduled job, -1: none */
  bool ended, clean; /* the thread is done; all was written */
  ns_counters counters;

  int64_t places[NSH_POOLS_MAX];  /* free ones of each pool, less what arrives; below 0:
                                  ** so many jobs wait for pool 0 */
  size_t arriving[NSH_POOLS_MAX]; /* jobs in 'loads', by the pool of their queue */
  size_t npools;
  size_t outstanding, unsettled;
  size_t deferred; /* of 'unsettled', those that wait for their time, at last count */
  bool cycling;    /* a turn is under way, ... */
  bool claiming;   /* ... and may claim jobs */

  /* between the dispatcher and the listener */
  bool armed;                          /* the listener should wait in the server */
  int64_t disarmed_at;                 /* monotonic µs: when it last had no need to any more */
  bool woken;                          /* it has been woken */
  bool narrow;                         /* it waits for less than it should */
  bool stop_listening, listener_ended; /* asked to end; has ended */
  int64_t *queues;                     /* what to listen to, and behind it those that are paused */
  size_t nqueues, npaused, capqueues;
  int64_t newest; /* greatest queue id known; -1: new ones do not matter */
  int64_t holder; /* who we are */
} nsh_exchange;

void nsh_exchange_init(nsh_exchange *m, size_t npools, void (*notify)(void *arg), void *arg);
void nsh_exchange_free(nsh_exchange *m); /* when the threads are gone */

void nsh_exchange_lock(nsh_exchange *m);
void nsh_exchange_unlock(nsh_exchange *m);

/* ------------------------------------------------- the loop; lock is held */

/* Where a verdict waits to be written: children keep the jobs of all queues waiting in the
** dispatcher's transaction, so few are written there at a time, and many of one elsewhere.
** Those of adopted rows are not told apart. */
nsh_batch *nsh_exchange_batch(nsh_exchange *m, int64_t lease, size_t nchildren);

/* The verdict of a job of the host's, complete: what it points to is kept by its batch
** already. Its handler has ended now, if one had begun. Wakes the thread that writes it. */
void nsh_exchange_verdict(nsh_exchange *m, const ns_verdict *v);

/* Takes a job back that no worker has started. */
void nsh_exchange_release(nsh_exchange *m, int64_t id, int64_t run, int64_t lease);

/* 't->text' changes hands. What waits at 'place' is of the same worker: together
** they are one, or of a job that has ended. 'place' gets that of 't'. */
void nsh_exchange_touch(nsh_exchange *m, const nsh_touch *t, nsh_place *place);

/* 'n' ids of the stock have been handed out: it is filled up again when half of it is gone,
** or now, when a worker 'waits' for one. It is empty until one does. */
void nsh_exchange_want_ids(nsh_exchange *m, size_t n, bool waits);

/* 'places': what each pool has free; jobs that are on their way to the loop are taken
** off here. */
void nsh_exchange_publish(nsh_exchange *m, const int64_t *places);

/* What the host can run has changed: 'handlers' and 'names' (malloc'd, change hands; no
** 'handlers': both as before), 'taking' workers. */
void nsh_exchange_serves(nsh_exchange *m, char *handlers, char *names, size_t taking);

/* No job will be claimed any more: end once everything is settled. */
void nsh_exchange_finish(nsh_exchange *m);

/* ------------------------------------------------------------ the dispatcher */

typedef struct nsh_dispatch nsh_dispatch;

/*
** Connects, registers the host, makes the queues that were named. Nothing is
** retried: a server that is not there at the start is an error.
** Errors: as ns_open.
*/
ns_status nsh_dispatch_open(nsh_dispatch **out, const nsh_config *cfg, nsh_exchange *exchange,
                            nsh_slots *slots, ns_err *err);

/* Starts the threads, with all signals blocked. */
ns_status nsh_dispatch_start(nsh_dispatch *d, ns_err *err);

/* After exchange->ended: waits for the threads and frees. Before a start it only
** closes. False: a thread is stuck, and the exchange and the configuration have to stay.
** NULL is allowed. */
bool nsh_dispatch_close(nsh_dispatch *d);

/* ------------------------------------------------------- what a host can run */

/* For people to read: the names of its handlers, from the lines that a zygote reports. */

/* Adds the names that are to be claimed, a line each: those of 'lines', which may be
** fewer than 'count', or of cfg->only, that are in the other, too. Says how many they
** are, more than were added when those that are left out are not known. */
int64_t nsh_served_pick(ns_buf *picked, ns_bytes lines, int64_t count, const nsh_config *cfg);

/* How many lines they are. */
int64_t nsh_served_count(ns_bytes lines);

/* Adds ["name",…], with null at its end when 'lines' has fewer than 'count'. */
void nsh_served_json(ns_buf *list, ns_bytes lines, int64_t count);

/* Adds "name, name". */
void nsh_served_text(ns_buf *text, ns_bytes lines);

#endif
