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

#define NSH_NEVER INT64_MAX
#define NSH_SOURCES_MAX 2

/* ----------------------------------------------- batches: dispatcher/exchange.c */

/* Appends '*v' as it is: its bytes and children are the batch's already. */
void nsh_batch_add(nsh_batch *b, const ns_verdict *v);

/* Appends a deep copy of 'v'. */
void nsh_batch_copy(nsh_batch *b, const ns_verdict *v);

/* Forgets all verdicts; keeps a little memory for the next ones. */
void nsh_batch_clear(nsh_batch *b);
void nsh_batch_free(nsh_batch *b);

/* -------------------------------- the exchange, for these threads; it is locked */

/* True when the host holds no job and owes no verdict. */
bool nsh_exchange_quiescent(const nsh_exchange *m);

/* One of 'large' is written: the rest is the dispatcher's. */
void nsh_exchange_written(nsh_exchange *m, const ns_verdict *v);

/* How many jobs may be claimed now. */
nsh_room nsh_exchange_room(const nsh_exchange *m);

/* Hands claimed jobs over, 'by_pool' of each pool's queue; '*jobs' is empty
** afterwards. */
void nsh_exchange_deliver(nsh_exchange *m, ns_jobs *jobs, const size_t *by_pool);
void nsh_exchange_ids(nsh_exchange *m, const int64_t *ids, size_t n);
void nsh_exchange_lose(nsh_exchange *m, const nsh_touch *t);
void nsh_exchange_revoke(nsh_exchange *m, const ns_notice *n);
void nsh_exchange_withdraw(nsh_exchange *m, int64_t lease);

/* A condition whose time is monotonic. */
void nsh_exchange_cond(pthread_cond_t *c);

/* ----------------- verdicts that are still to be written: dispatcher/retry.c */

/* The verdicts that are still to be written: those of the cycle under way, those whose
** row another transaction held, and those whose children are too many for it.
**
** Invariant: a verdict leaves only when the database has answered for it. One
** that it refuses is softened until it takes it, so no job stays claimed. What those of
** one cycle write has a bound, whatever comes in: the jobs of all queues wait for its end. */

typedef struct nsh_retry {
  nsh_batch batch;   /* of this cycle; kept until it says something of one */
  nsh_batch parents; /* those with children; each comes into 'batch' in its turn, and its … */
  size_t nturns;     /* … bytes stay here until all of these have had theirs */
  size_t children;   /* of those in 'batch' … */
  size_t most;       /* … and how many there may be, but for the last one */
  nsh_batch later;   /* those whose row was locked */
  nsh_batch ill;     /* those that met the server's own trouble */
  int64_t ill_at;    /* monotonic µs: when they are tried again */
  int64_t ill_wait;  /* µs: how long they wait; grows; 0: they have none */
  int64_t again_at;  /* monotonic µs: time for some; INT64_MAX: there is no need */
} nsh_retry;

#define NSH_RETRY_INIT                                                                             \
  ((nsh_retry){.batch = NSH_BATCH_INIT,                                                            \
               .parents = NSH_BATCH_INIT,                                                          \
               .later = NSH_BATCH_INIT,                                                            \
               .ill = NSH_BATCH_INIT,                                                              \
               .most = 500,                                                                        \
               .again_at = INT64_MAX})

void nsh_retry_free(nsh_retry *u);

/* Before a cycle: takes what has come in, which is empty afterwards, unless the
** last cycle has failed and is repeated with the same verdicts. Of 'parents' (may be NULL),
** those with children, some come into this cycle; how many. */
size_t nsh_retry_take(nsh_retry *u, nsh_batch *fresh, nsh_batch *parents, int64_t now);

/* How long the cycle took: as many children may come into the next as are soon written. */
void nsh_retry_took(nsh_retry *u, int64_t micros);

/* How many wait for a cycle because of their children. */
size_t nsh_retry_waiting(const nsh_retry *u);

/* After a cycle: logs what became of each; how many are done with. The others are for
** a later cycle. 'trouble': the server's, with those it had trouble with. */
size_t nsh_retry_sort(nsh_retry *u, const ns_err *trouble, int64_t now);

/* The same after one that failed; when it says nothing of any, they are kept. */
size_t nsh_retry_failed(nsh_retry *u, const ns_err *trouble, int64_t now);

/* -------------------------------------------------------- verdicts that wait */

/* Verdicts on rows of an adopted table that had better be written later, and, with
** --drain, which rows have failed here and since when.
**
** Invariant: 'next_at' is the first of the instants in 'terms', NEVER when there is
** none; 'failed' is sorted by id. */

typedef struct nsh_failed {
  int64_t id;
  int64_t since; /* monotonic µs: its first failure */
} nsh_failed;

typedef struct nsh_term {
  int64_t until; /* monotonic µs */
  bool kept;     /* ... or until the host ends, which need not wait for it */
} nsh_term;

typedef struct nsh_deferred {
  nsh_batch batch; /* those that wait, ... */
  nsh_term *terms; /* ... each so long */
  size_t capterms;
  int64_t next_at;
  nsh_failed *failed;
  size_t nfailed, capfailed;
} nsh_deferred;

#define NSH_DEFERRED_INIT ((nsh_deferred){.batch = NSH_BATCH_INIT, .next_at = INT64_MAX})

/* A copy of 'v' waits. */
void nsh_deferred_hold(nsh_deferred *p, const ns_verdict *v, nsh_term term);

/* Those whose time has come, or all, go to 'out'. */
void nsh_deferred_take(nsh_deferred *p, nsh_batch *out, int64_t now, bool all);

/* When the first is over that is not kept; NEVER: there is none. */
int64_t nsh_deferred_over(const nsh_deferred *p);

/* The row has failed. µs since it did so for the first time. */
int64_t nsh_deferred_failing(nsh_deferred *p, int64_t id, int64_t now);

/* The same of one that has failed before; -1: it has not. */
int64_t nsh_deferred_failed(const nsh_deferred *p, int64_t id, int64_t now);

void nsh_deferred_free(nsh_deferred *p);

/* ------------------------------------------------------- rows that come back */

/* What the log says of rows of adopted tables that come back: a line each. */

/* Rows whose settled verdicts are failures. */
void nsh_row_log_failed(ns_bytes table, const ns_verdict *verdicts, size_t n);

/* Rows that claims have left alone. */
void nsh_row_log_refused(ns_bytes table, ns_adopted *a);

/* Rows that looks have given back. */
void nsh_row_log_reset(ns_bytes table, ns_adopted *a);

/* ------------------------------------------ owed verdicts: dispatcher/slow.c */

/* Which verdicts the host owes: those whose handlers have ended and that the database has
** not got yet. The threads that write them say so with each cycle; another thread may ask. */

/* The threads that write verdicts, and wait for the database. */
typedef enum nsh_waiter { NSH_DISPATCHER, NSH_UPKEEP, NSH_WAITERS } nsh_waiter;

/* -------------------------------------------------------------- slow answers */

/* Slow answers of the database: the host's connections tell here what they wait for, and a
** thread of its own looks after waits that last, and says so in the log while they do. It
** also tells those who ask (report_owed) which verdicts have waited for a second. */

typedef struct nsh_slow nsh_slow;

/* Does not connect yet. Errors: NOMEM. */
ns_status nsh_slow_open(nsh_slow **out, const nsh_config *cfg, nsh_exchange *exchange, ns_err *err);

/* A handle that is opened with '*db' will tell of its waits, from any thread. */
void nsh_slow_watch(nsh_slow *s, nsh_waiter who, ns_config *db);

/* What it is at from here on, for people: so many verdicts, and a claim. */
void nsh_slow_doing(nsh_slow *s, nsh_waiter who, size_t verdicts, bool claims);

/* Thread 'who' owes these verdicts from here on; rows of adopted tables are left out. The
** exchange is still locked when the verdicts have been taken out of it. */
void nsh_slow_owes(nsh_slow *s, nsh_waiter who, const nsh_retry *u);

/* With all signals blocked. */
ns_status nsh_slow_start(nsh_slow *s, ns_err *err);

/* After the last handle that tells is closed. False: the thread is stuck in a connect, and
** all that it uses has to stay. NULL is allowed. */
bool nsh_slow_close(nsh_slow *s);

/* ------------------------------------------ listeners: dispatcher/listener.c */

/* The listener thread: waits in the server, on a connection that holds no
** lock, for a reason to claim.
**
** Invariant: it waits only while it is armed, and being woken disarms it, so
** rows that no worker can take at the moment do not make it spin. */

typedef struct nsh_listen nsh_listen;

/* Connects. Errors: as ns_open. */
ns_status nsh_listen_open(nsh_listen **out, const ns_db *db, nsh_exchange *exchange, ns_err *err);

ns_status nsh_listen_start(nsh_listen *l, ns_err *err);

/* See ns_listen_near. */
void nsh_listen_near(nsh_listen *l, const ns_db *db, const int64_t *queues, size_t n);

/* Ends its wait, as a ring would; it may come too early for that. */
void nsh_listen_wake(nsh_listen *l, ns_db *db);

/* Makes the thread end, with 'db' to interrupt its wait in the server. Gives
** up after a second when the server does not help. */
void nsh_listen_stop(nsh_listen *l, ns_db *db);

/* Waits for the thread, which leaves a server that does not help, and frees. NULL is
** allowed. */
void nsh_listen_close(nsh_listen *l);

/* ----------------------------------------------- listeners of adopted tables */

/* A thread that sleeps in the server, on a connection of its own, for one adopted table
** whose triggers ring.
**
** Invariant: it sleeps only while it is armed, and a wake disarms it; so a row that
** no worker can take at the moment does not make it spin. After wakes that have found
** nothing it pauses before it sleeps again, as the transaction that rings has yet to commit. */

typedef struct nsh_table_listener nsh_table_listener;

/* For a table whose triggers ring. Errors: NOMEM. */
ns_status nsh_table_listener_open(nsh_table_listener **out, ns_adopted *a, nsh_exchange *exchange,
                                  ns_err *err);

/* The lock of the exchange is held for these three. Waits for a row that 'holder' may
** claim, if it does not yet; 'found': the last wake was worth it. */
void nsh_table_listener_arm(nsh_table_listener *h, int64_t holder, bool found);

/* Has it been woken? And the same, once. */
bool nsh_table_listener_woken(const nsh_table_listener *h);
bool nsh_table_listener_take(nsh_table_listener *h);

/* Makes the thread end, with 'db' to end its sleep, and frees it; after a second in
** which the server does not help it leaves the server. NULL is allowed. */
void nsh_table_listener_close(nsh_table_listener *h, ns_db *db);

/* ------------------------------------------- the upkeep: dispatcher/upkeep.c */

/* The upkeep: a thread with a connection of its own, for what may take long. It writes
** verdicts that bring many children, gives back what dead holders held, deletes history
** that is old enough, and is the place of anything else that no job waits for.
**
** Invariant: its handle is no holder, so it claims nothing and writes no cycle. What
** it has put back is told to the dispatcher through the exchange; so is each verdict that
** it has written, as the claim is still in the dispatcher's memory, and counts there as
** one that is not settled. */

typedef struct nsh_upkeep nsh_upkeep;

/* Connects; 'slow' is told of its waits. Errors: as ns_open. */
ns_status nsh_upkeep_open(nsh_upkeep **out, const nsh_config *cfg, nsh_exchange *exchange,
                          nsh_slow *slow, ns_err *err);

ns_status nsh_upkeep_start(nsh_upkeep *u, ns_err *err);

/* Ends the thread and frees; its waits for the server are cut off after half a second.
** False: the thread is stuck in the client library, and all that it uses has to stay.
** NULL is allowed. */
bool nsh_upkeep_close(nsh_upkeep *u);

/* ---------------------------------------- what a host can run: maintenance.c */

/* From now on 'db' claims jobs of those names only; NULL: of all. */
ns_status nsh_served_claim(ns_db *db, const char *lines, ns_err *err);

/* Is a name in such a list, or may it be? */
bool nsh_served_has(const char *list, ns_bytes name);

/* -------------------------------------------------------------------- a turn */

/* What one turn has to do, taken out of the exchange. */
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
** (dispatcher/queues.c), or tables of others (dispatcher/adopted.c). The dispatcher knows no
** other difference between them. Functions marked 'locked' are called with the exchange
** locked, the others without. Those marked 'optional' may be NULL.
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

static inline int64_t nsh_sooner(int64_t a, int64_t b) {
  return a < b ? a : b;
}

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

/* Fills 'signs' with the touches whose lease is in a range; how many they are. */
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
