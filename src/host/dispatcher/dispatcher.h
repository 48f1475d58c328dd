/*
** The dispatcher: the thread that settles finished jobs and claims as many as the workers can
** take. Between that it does maintenance: ids, signs of life, the list of queues, ringing.
** Threads beside it (threads/threads.h) do work that may take long, and listen while there is
** nothing to claim.
**
** Invariant: only the dispatcher's thread touches its ns_db once it runs; data that it shares
** goes through the exchange.
*/
#ifndef NSH_DISPATCHER_DISPATCHER_H
#define NSH_DISPATCHER_DISPATCHER_H

#include "exchange/exchange.h"
#include "threads/threads.h"

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

/* Its waits for the database; borrowed. */
const nsh_slow *nsh_dispatch_slow(const nsh_dispatch *d);

/* After exchange->ended: waits for the threads and frees. Before a start it only
** closes. False: a thread is stuck, and the exchange and the configuration have to stay.
** NULL is allowed. */
bool nsh_dispatch_close(nsh_dispatch *d);

/* ------------------------------------------------------- handlers of a host */

/* For people to read: the names of its handlers, from the lines that a zygote reports. */

/* Adds the names that are to be claimed, one per line. They are the names of 'lines' that
** cfg->only has, too, or the other way round; 'lines' may have fewer than 'count'. Returns
** their number, which is larger than the number added when the names left out are not known. */
int64_t nsh_served_pick(ns_buf *picked, ns_bytes lines, int64_t count, const nsh_config *cfg);

/* How many lines they are. */
int64_t nsh_served_count(ns_bytes lines);

/* Adds ["name",…], with null at its end when 'lines' has fewer than 'count'. */
void nsh_served_json(ns_buf *list, ns_bytes lines, int64_t count);

/* Adds "name, name". */
void nsh_served_text(ns_buf *text, ns_bytes lines);

/* ---------------------- the dispatcher from the inside: turn.c and the parts */

/*
** The dispatcher from the inside: its state, one turn of it, and its parts.
**
** A turn begins when a part has something to do ('due', or its 'next' instant has come). Each
** part takes its orders out of the exchange into the turn. Then, with the exchange open again,
** the parts work one after the other: the queues settle and claim, then maintenance is done
** (dispatcher/maintenance.c). The orders of a failed turn are put back.
**
** Invariant: only the dispatcher's thread is in here once it runs.
*/

/* --------------------------------------------------- served queues: turn.c */

/* The queues that are claimed from, in the core's form: with their weights, and with the room
** of their reserved workers. They are made anew whenever the queues are read: a queue may have
** been made, paused or resumed meanwhile. */
typedef struct nsh_served {
  ns_weighted_queue *items;
  size_t *pools; /* of each */
  size_t n, cap, cappools;
  int64_t *paused; /* queues that would be among them, too */
  size_t npaused, cappaused;
  bool closed;     /* there is nothing to claim for: no handler is known */
  int64_t newest;  /* greatest queue id seen */
  int64_t made_at; /* monotonic µs: when the queues were read */
} nsh_served;

/* Reads the queues; named queues exist from now on. Errors: as ns_queue_id. */
ns_status nsh_served_open(nsh_served *s, const nsh_config *cfg, ns_db *db, ns_err *err);

/* Makes the list from the queues as they are now: the named ones, in that order, or all. */
void nsh_served_make(nsh_served *s, const nsh_config *cfg, const ns_queue_row *rows, size_t n);

/* Shares the room out; how many jobs to claim. Places that are reserved for a queue
** that is not served now stay empty. */
size_t nsh_served_share(nsh_served *s, const nsh_room *room);

void nsh_served_free(nsh_served *s);

/* From now on 'db' claims only jobs of the names in 'lines'; NULL: of all. */
ns_status nsh_served_claim(ns_db *db, const char *lines, ns_err *err);

/* Adds ["name",…] of the queues that were asked for. */
void nsh_served_queues_json(ns_buf *list, const nsh_config *cfg);

/* Adds [["name",workers],…] of the queues that have workers of their own. */
void nsh_served_reserves_json(ns_buf *list, const nsh_config *cfg);

/* -------------------------------------------------------------------- a turn */

/* The work of one turn, taken out of the exchange. */
typedef struct nsh_turn {
  nsh_room room; /* places for jobs, less the ones taken by a source */
  size_t limit;  /* jobs that may still be claimed: room.all */
  /* dispatcher/maintenance.c */
  bool notices;       /* another connection has written to this holder */
  ns_workers workers; /* the workers' jobs */
  size_t want_ids;
  nsh_touch *touches; /* owned until they are written or put back */
  size_t ntouches;
} nsh_turn;

/* ------------------------------------------------------ the queues: queues.c */

/* Where jobs come from and where their verdicts go. Functions marked 'locked' are called with
** the exchange locked, the rest without. */
typedef struct nsh_queues nsh_queues;

/* Makes the named queues. '*out' is to be closed, on errors, too. Errors: as ns_queue_id. */
ns_status nsh_queues_open(nsh_queues **out, nsh_dispatch *d, ns_err *err);

/* Is there a verdict to write, or a reason for a claim to find something? Locked. */
bool nsh_queues_due(const nsh_queues *q, int64_t now);
/* When that may change by itself, monotonic µs; NSH_NEVER. Locked. */
int64_t nsh_queues_next(const nsh_queues *q);
/* Takes the verdicts; lowers t->room by the places that it cannot use. Locked. */
void nsh_queues_take(nsh_queues *q, nsh_turn *t, int64_t now);
/* Settles and claims. False: the server is away; the orders are kept for the next turn. */
bool nsh_queues_run(nsh_queues *q, nsh_turn *t);

/* Writes the signs of life of jobs. 'signs' has room for all touches. */
void nsh_queues_touch(nsh_queues *q, const nsh_turn *t, ns_sign *signs);

/* Frees it; the connection is closed. NULL is allowed. */
void nsh_queues_close(nsh_queues *q);

/* Instants ('…_at') are monotonic µs. */
struct nsh_dispatch {
  const nsh_config *cfg;
  nsh_exchange *exchange;
  nsh_slots *slots;   /* told how long claims hold */
  ns_db *db;
  nsh_listen *listen;
  nsh_upkeep *upkeep;
  nsh_slow *slow;
  pthread_t thread;
  pthread_t self; /* the same, as the thread itself knows it */
  bool running;
  atomic_bool opened; /* from here on a lost server is waited for */
  int64_t error_wait, error_at; /* after a failure: nothing before error_at */

  nsh_queues *queues;

  /* dispatcher/maintenance.c */
  bool more;          /* jobs are left that this host cannot take: wake another one */
  int64_t widen_at;   /* the listener waits for too little: when to wake it */
  int64_t beat_at, ring_at, told_at;
  int64_t holder;     /* our id; changes when we were declared dead */
  char *handlers;     /* the handlers that the host can run, JSON, owned, ... */
  size_t taking;      /* ... and how many workers take jobs: from the exchange; */
  char *names;        /* the same as lines, owned; NULL: all names are claimed */
  char *on_dead;      /* jobs to push for dead ones of them, JSON, owned */
  char *batched;      /* their handlers that take batches, as in the exchange, owned: for the queues */
  int64_t declares_at; /* when on_dead is to be written; NEVER: it stands */
  bool renamed;       /* that has changed: for the queues */
  nsh_reading reading; /* how its scripts were read: from the exchange */
  nsh_tuning tuning;   /* the number of workers: from the exchange */
  ns_workers workers; /* the last report of the workers' jobs */
  int64_t conflicts;  /* the deadlocks and lock waits that were told with it */
  int64_t workers_at; /* not told before */
  int64_t serves_at;  /* when that is to be written; NEVER: it stands */
};

/* ----------------------------------------------------------- dispatcher/turn.c */

/* The database has refused: nothing is done for a while, longer each time. */
void nsh_back_off(nsh_dispatch *d, const ns_err *err);

/* The server answers: an outage or a row of errors is over. */
void nsh_recovered(nsh_dispatch *d);

/* The core asks this between attempts to reconnect, in any thread of ours. 'arg': the
** dispatcher. */
bool nsh_keep_trying(void *arg, const ns_err *why);

/* Fills 'signs' with the touches; how many they are. */
size_t nsh_turn_signs(const nsh_turn *t, ns_sign *signs);

/* After these signs were written: claims that turned out to be lost go to the loop. */
void nsh_turn_lost(nsh_dispatch *d, const nsh_turn *t, ns_sign *signs, size_t n);

/* ----------------------------------------------------------- dispatcher/maintenance.c */

void nsh_maintenance_open(nsh_dispatch *d);
void nsh_maintenance_close(nsh_dispatch *d);

/* As the queues' functions. The exchange is locked. */
bool nsh_maintenance_due(const nsh_dispatch *d, int64_t now);
int64_t nsh_maintenance_next(const nsh_dispatch *d);
void nsh_maintenance_take(nsh_dispatch *d, nsh_turn *t, int64_t now);

/* Before a job of new scripts is claimed: writes the jobs to push for dead ones. */
void nsh_maintenance_declare(nsh_dispatch *d);

void nsh_maintenance_run(nsh_dispatch *d, nsh_turn *t);

/* In place of running it: its orders wait for the next turn. */
void nsh_maintenance_put_back(nsh_dispatch *d, nsh_turn *t);

#endif
