/*
** The dispatcher from the inside: its state, one turn of it, and its parts.
**
** A turn begins when a part has something to do ('due', or its 'next' instant has
** come). Each part then takes what is its own out of the mailbox into the turn,
** and after that, with the mailbox open again, they work one after the other:
** first the sources of jobs settle and claim, which are the adopted tables
** (dispatcher/adopted.c) and nightshift's own (dispatcher/queues.c); then the chores are done
** (dispatcher/maintenance.c). What a failed turn has taken is put back.
**
** Invariant: only the dispatcher's thread is in here once it runs.
*/
#ifndef NSH_DISPATCHER_TURN_H
#define NSH_DISPATCHER_TURN_H

#include "dispatcher/deferred.h"
#include "dispatcher/dispatcher.h"
#include "dispatcher/feeds.h"
#include "dispatcher/listener.h"
#include "dispatcher/retry.h"
#include "dispatcher/slow.h"
#include "dispatcher/table_listener.h"
#include "dispatcher/upkeep.h"

#define NSH_NEVER INT64_MAX

/* What one turn has to do, taken out of the mailbox. */
typedef struct nsh_turn {
  /* dispatcher/queues.c */
  nsh_room room;
  size_t limit;       /* jobs to claim: room.all */
  bool woken;         /* by the listener, or for a last look */
  bool cycle;         /* there is something for it to do */
  int64_t began;      /* the cycle, monotonic µs */
  /* dispatcher/maintenance.c */
  bool notices;       /* somebody has written to us */
  bool died;          /* a holder has, or may have */
  ns_workers workers; /* what they do */
  size_t want_ids;
  nsh_touch *touches;
  size_t ntouches;
} nsh_turn;

/* An adopted table as a source of jobs. They are known by their lease, which is a
** number below 0 that all of them have. */
typedef struct nsh_adopted {
  ns_adopted *table;
  const ns_mapping *map;
  int64_t lease;
  size_t pool;        /* of its jobs */
  nsh_batch fresh;    /* verdicts out of the mailbox */
  nsh_retry unsettled;
  nsh_deferred patience;    /* verdicts that wait */
  nsh_table_listener *hark; /* hears whoever rings for it; NULL: nobody does */
  bool handled;       /* some script here has its handler */
  bool told;          /* ... or people have been told that none has */
  bool paused;        /* what was claimed has been taken back */
  bool worked;        /* a claim has looked for rows: it was not paused all the time */
  int empties;        /* claims in a row that found nothing, a while apart */
  int64_t due;        /* µs: as ns_adopted_due, after those */
  int64_t error_wait, error_at; /* the table does not work: nothing before */
} nsh_adopted;

/* What a host that is to end when nothing is left still waits for: of what is scheduled
** and due soon, that which it will claim itself. Instants are monotonic µs. */
typedef struct nsh_outlook {
  bool known;           /* the last look has told */
  bool failed;          /* ... or could not: it is to be repeated */
  ns_upcoming upcoming; /* of queues; n == 0: nothing */
  int64_t due_at;       /* when the first of it is; NEVER: nothing */
  int64_t tell_at;      /* people are not told again before */
} nsh_outlook;

/* Instants ('…_at') are monotonic µs. */
struct nsh_dispatch {
  const nsh_config *cfg;
  nsh_exchange *mail;
  nsh_slots *slots;   /* told how long claims hold */
  ns_db *db;
  nsh_listen *listen;
  nsh_upkeep *upkeep;
  nsh_slow *slow;
  pthread_t thread;
  bool running;
  atomic_bool opened; /* from here on a lost server is waited for */
  int64_t error_wait, error_at; /* after a failure: nothing before error_at */

  /* dispatcher/adopted.c */
  nsh_adopted *adopted;
  size_t nadopted;
  size_t first;       /* whose turn it is to claim before the others */
  int64_t watch_at;   /* while we hold rows: what people decide */

  /* dispatcher/queues.c */
  nsh_retry unsettled;
  nsh_feeds feeds;
  nsh_turn *turn;     /* under way, for choose_anew */
  bool hot[NSH_POOLS_MAX]; /* when this pool has room, a claim may find more */
  bool narrow;        /* the listener was armed without pool 0's queues */
  int64_t recheck_at, due_at;
  int64_t due;        /* as the last cycle said; -1: no reason to claim by itself */
  int empties;        /* claims in a row that found nothing */
  int64_t empty_since; /* when the first of them began */
  nsh_outlook outlook; /* dispatcher/outlook.c */

  /* dispatcher/maintenance.c */
  bool more;          /* others may find what we cannot take: to be rung */
  int64_t widen_at;   /* the listener waits for too little: when to wake it */
  int64_t beat_at, ring_at, told_at;
  int64_t holder;     /* who we are; changes when we were declared dead */
  char *handlers;     /* what the host can run, JSON, owned, ... */
  size_t taking;      /* ... and how many workers take jobs: from the mailbox; */
  char *names;        /* the same as lines, owned; NULL: all names are claimed */
  bool renamed;       /* that has changed */
  nsh_reading reading; /* how its scripts were read: from the mailbox */
  ns_workers workers; /* what was last told of them */
  int64_t workers_at; /* not told before */
  int64_t serves_at;  /* when that is to be written; NEVER: it stands */
};

static inline int64_t nsh_sooner(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* --------------------------------------------------------- dispatcher/outage.c */

/* The database has refused: nothing is done for a while, longer each time. */
void nsh_back_off(nsh_dispatch *d, const ns_err *err);

/* It answers: an outage or a row of errors is over. */
void nsh_recovered(nsh_dispatch *d);

/* The core asks this between attempts to reconnect, in any thread of ours. 'arg': the
** dispatcher. */
bool nsh_keep_trying(void *arg, const ns_err *why);

/* ------------------------------------------------------------ dispatcher/queues.c */

/* Makes the queues that were named. Errors: as ns_queue_id. */
ns_status nsh_queues_open(nsh_dispatch *d, ns_err *err);
void nsh_queues_close(nsh_dispatch *d);

/* Is there a verdict to write, or a reason for a claim to find something? When
** may that change by itself? The mailbox is locked. */
bool nsh_queues_due(const nsh_dispatch *d, int64_t now);
int64_t nsh_queues_next(const nsh_dispatch *d);

/* Takes verdicts and room for jobs. The mailbox is locked. */
void nsh_queues_take(nsh_dispatch *d, nsh_turn *t, int64_t now);

/* Others have taken so many places for jobs of a pool's queue; what was to be claimed
** for them waits for the next turn when none is left. */
void nsh_queues_yield(nsh_dispatch *d, nsh_turn *t, size_t pool, size_t n);

/* Does it want places for jobs of any queue? */
bool nsh_queues_wants(const nsh_dispatch *d, const nsh_turn *t);

/* Settles and claims; false: nothing is known to be written, try again. */
bool nsh_queues_run(nsh_dispatch *d, nsh_turn *t);

/* ---------------------------------------------------------- dispatcher/outlook.c */

/* With --drain, after a claim that found nothing, before the next is planned: what is due
** soon? A look that failed is repeated. The mailbox is not locked. */
void nsh_outlook_look(nsh_dispatch *d);

/* As it was seen then: µs until the first of it is due, -1: nothing is. */
int64_t nsh_outlook_due(const nsh_dispatch *d);

/* The host would end, but for what is due soon, tables included: says so, now and then. */
void nsh_outlook_tell(nsh_dispatch *d);

/* ---------------------------------------------------------- dispatcher/adopted.c */

/* Adopts the tables. Errors: as ns_adopt. */
ns_status nsh_adopted_open(nsh_dispatch *d, ns_err *err);
void nsh_adopted_close(nsh_dispatch *d);

/* Nobody is to ring any more. Before the handle is closed. */
void nsh_adopted_deafen(nsh_dispatch *d);

/* As for a cycle. The mailbox is locked. */
bool nsh_adopted_due(const nsh_dispatch *d, int64_t now);
int64_t nsh_adopted_next(const nsh_dispatch *d);
void nsh_adopted_take(nsh_dispatch *d, int64_t now);

/* Settles, claims, and looks at what people have decided; false: the server is away. */
bool nsh_adopted_run(nsh_dispatch *d, nsh_turn *t);

/* A holder has died: gives its rows back. */
void nsh_adopted_look(nsh_dispatch *d);

/* Twice nothing was found? '*due': µs until there may be, or a verdict that waits is
** written, -1: never; '*patient': how many of those there are. */
bool nsh_adopted_rested(const nsh_dispatch *d, int64_t *due, size_t *patient);

/* Are rows left alone that the server refuses to mark? */
bool nsh_adopted_refuses(const nsh_dispatch *d);

/* ----------------------------------------------------------- dispatcher/maintenance.c */

void nsh_maintenance_open(nsh_dispatch *d);
void nsh_maintenance_close(nsh_dispatch *d);

/* As for a cycle. The mailbox is locked. */
bool nsh_maintenance_due(const nsh_dispatch *d, int64_t now);
int64_t nsh_maintenance_next(const nsh_dispatch *d);
void nsh_maintenance_take(nsh_dispatch *d, nsh_turn *t, int64_t now);

void nsh_maintenance_run(nsh_dispatch *d, nsh_turn *t);

/* In place of running them: what was taken waits for the next turn. */
void nsh_maintenance_put_back(nsh_dispatch *d, nsh_turn *t);

#endif
