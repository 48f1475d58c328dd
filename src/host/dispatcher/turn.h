/*
** The dispatcher from the inside: its state, one turn of it, and its parts.
**
** A turn begins when a part has something to do ('due', or its 'next' instant has
** come). Each part then takes its orders out of the exchange into the turn, and after
** that, with the exchange open again, the parts work one after the other: first the
** sources of jobs settle and claim, then maintenance is done (dispatcher/maintenance.c).
** What a failed turn has taken is put back.
**
** Invariant: only the dispatcher's thread is in here once it runs.
*/
#ifndef NSH_DISPATCHER_TURN_H
#define NSH_DISPATCHER_TURN_H

#include "dispatcher/dispatcher.h"
#include "threads/threads.h"

#define NSH_SOURCES_MAX 2

/* ------------------------------------------------- what is served: served.c */

/* The queues that are claimed from, as the core wants to have them: with their weights, and
** with the room of the workers that are reserved for them. They are made anew whenever the
** queues are read: one may have been made, paused or resumed meanwhile. */
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

/* Reads the queues; those that were named exist from now on. Errors: as ns_queue_id. */
ns_status nsh_served_open(nsh_served *s, const nsh_config *cfg, ns_db *db, ns_err *err);

/* From the queues as they are now: those that were named, in that order, or all. */
void nsh_served_make(nsh_served *s, const nsh_config *cfg, const ns_queue_row *rows, size_t n);

/* Shares the room out; how many jobs to claim. Places that are reserved for a queue
** that is not served now stay empty. */
size_t nsh_served_share(nsh_served *s, const nsh_room *room);

void nsh_served_free(nsh_served *s);

/* From now on 'db' claims jobs of those names only; NULL: of all. */
ns_status nsh_served_claim(ns_db *db, const char *lines, ns_err *err);

/* Is a name in such a list, or may it be? */
bool nsh_served_has(const char *list, ns_bytes name);

/* Adds ["name",…] of the queues that were asked for. */
void nsh_served_queues_json(ns_buf *list, const nsh_config *cfg);

/* Adds [["name",workers],…] of those that have workers of their own. */
void nsh_served_reserves_json(ns_buf *list, const nsh_config *cfg);

/* -------------------------------------------------------------------- a turn */

/* The work of one turn, taken out of the exchange. */
typedef struct nsh_turn {
  nsh_room room; /* places for jobs, less those that a source has taken */
  size_t limit;  /* jobs that may still be claimed: room.all */
  /* dispatcher/maintenance.c */
  bool notices;       /* another connection has written to this holder */
  bool died;          /* a holder has, or may have */
  ns_workers workers; /* what they do */
  size_t want_ids;
  nsh_touch *touches; /* owned until they are written or put back */
  size_t ntouches;
} nsh_turn;

typedef struct nsh_source nsh_source;

/*
** Where jobs come from and where their verdicts go: Nightshift's own queues
** (dispatcher/queues.c), or an application's tables (dispatcher/adopted.c). The dispatcher knows no
** other difference between them. Functions marked 'locked' are called with the exchange
** locked, the rest without. Those marked 'optional' may be NULL.
**
** Invariant: a verdict belongs to one source, by its lease. The source that takes it out of
** the exchange keeps it until the database has answered for it.
*/
struct nsh_source {
  nsh_dispatch *d;

  /* Has it a verdict to write, or a reason for a claim to find something? Locked. */
  bool (*due)(const nsh_source *s, int64_t now);
  /* When that may change by itself, monotonic µs; NSH_NEVER. Locked. */
  int64_t (*next)(const nsh_source *s);
  /* Takes its verdicts; lowers t->room by the places that it cannot use. Locked. */
  void (*take)(nsh_source *s, nsh_turn *t, int64_t now);
  /* Settles and claims. False: the server is away; what was taken is kept for the next turn. */
  bool (*run)(nsh_source *s, nsh_turn *t);

  /* Would it claim jobs for any worker in this turn? Optional: no. */
  bool (*wants)(const nsh_source *s, const nsh_turn *t);
  /* Another source has taken the last place of this turn. Optional. */
  void (*starved)(nsh_source *s);

  /* Writes the signs of life of its jobs. 'signs' has room for all touches. */
  void (*touch)(nsh_source *s, const nsh_turn *t, ns_sign *signs);
  /* A holder has died: gives its jobs back. Optional. */
  void (*rescue)(nsh_source *s);

  /* Has it found nothing twice? '*due': µs until there may be something, or until a verdict
  ** that waits is written, -1: never; '*deferred': how many verdicts wait. Locked. */
  bool (*rested)(const nsh_source *s, int64_t *due, size_t *deferred);
  /* Are jobs left alone that the server refuses to claim? Optional: no. Locked. */
  bool (*refuses)(const nsh_source *s);
  /* Logs what it waits for with --drain; false: nothing. */
  bool (*tell)(const nsh_source *s);

  /* Ends its threads; the connection is still open. More than once is allowed. Optional. */
  void (*stop)(nsh_source *s);
  /* Frees it; the connection is closed. */
  void (*close)(nsh_source *s);
};

/* Opens a source. '*out' is what there is to close, on errors, too; NULL: nothing. */
typedef ns_status nsh_source_open(nsh_dispatch *d, nsh_source **out, ns_err *err);

/* Makes the queues that were named. Errors: as ns_queue_id. */
nsh_source_open nsh_queues_open;

/* Adopts the tables, if there are any. Errors: as ns_adopt. */
nsh_source_open nsh_adopted_open;

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

  nsh_source *sources[NSH_SOURCES_MAX]; /* in the order in which they were opened; the last */
  size_t nsources;                      /* works first, the first takes what it leaves */
  int64_t waits_told_at;                /* what a drain waits for is not told again before */

  /* dispatcher/maintenance.c */
  bool more;          /* jobs are left that this host cannot take: wake another one */
  int64_t widen_at;   /* the listener waits for too little: when to wake it */
  int64_t beat_at, ring_at, told_at;
  int64_t holder;     /* our id; changes when we were declared dead */
  char *handlers;     /* what the host can run, JSON, owned, ... */
  size_t taking;      /* ... and how many workers take jobs: from the exchange; */
  char *names;        /* the same as lines, owned; NULL: all names are claimed */
  bool renamed;       /* that has changed: for the queues */
  nsh_reading reading; /* how its scripts were read: from the exchange */
  ns_workers workers; /* what was last told of them */
  int64_t workers_at; /* not told before */
  int64_t serves_at;  /* when that is to be written; NEVER: it stands */
};

/* ----------------------------------------------------------- dispatcher/turn.c */

/* The database has refused: nothing is done for a while, longer each time. */
void nsh_back_off(nsh_dispatch *d, const ns_err *err);

/* It answers: an outage or a row of errors is over. */
void nsh_recovered(nsh_dispatch *d);

/* The core asks this between attempts to reconnect, in any thread of ours. 'arg': the
** dispatcher. */
bool nsh_keep_trying(void *arg, const ns_err *why);

/* Does a source other than 'by' want places for jobs of any queue? */
bool nsh_turn_wanted(const nsh_turn *t, const nsh_source *by);

/* 'by' has taken 'n' places for jobs of a pool's queue; the other sources have the rest. */
void nsh_turn_yield(nsh_turn *t, const nsh_source *by, size_t pool, size_t n);

/* Fills 'signs' with the touches of leases in a range; how many they are. */
size_t nsh_turn_signs(const nsh_turn *t, int64_t least, int64_t greatest, ns_sign *signs);

/* After those were written: claims that turned out to be lost go to the loop. */
void nsh_turn_lost(nsh_dispatch *d, const nsh_turn *t, ns_sign *signs, size_t n);

/* The sources have had their turn: publishes whether there is anything left to be had. True:
** something that is due soon is all that there is to wait for. The exchange is locked. */
bool nsh_turn_over(nsh_dispatch *d);

/* Logs, now and then, what a host that would end waits for. */
void nsh_turn_tell(nsh_dispatch *d);

/* ----------------------------------------------------------- dispatcher/maintenance.c */

void nsh_maintenance_open(nsh_dispatch *d);
void nsh_maintenance_close(nsh_dispatch *d);

/* As of a source. The exchange is locked. */
bool nsh_maintenance_due(const nsh_dispatch *d, int64_t now);
int64_t nsh_maintenance_next(const nsh_dispatch *d);
void nsh_maintenance_take(nsh_dispatch *d, nsh_turn *t, int64_t now);

void nsh_maintenance_run(nsh_dispatch *d, nsh_turn *t);

/* In place of running it: what was taken waits for the next turn. */
void nsh_maintenance_put_back(nsh_dispatch *d, nsh_turn *t);

#endif
