/*
** The calls of the host and the Lua module beside nightshift.h: cycles, listeners, holders and
** their rescue, pruning, queues, locks. Verbs on jobs, for people, are in nightshift_admin.h.
** Neither is installed.
**
** The rules of nightshift.h hold: one thread per handle, microseconds, borrowed bytes.
*/
#ifndef NIGHTSHIFT_HOST_H
#define NIGHTSHIFT_HOST_H

#include "base.h"
#include "nightshift.h"

#define NS_SCHEMA_VERSION 1

/* Limits that only hosts and the core meet. */
#define NS_MAX_RUN INT64_C(4000000000)       /* with the next return a job is dead */
#define NS_LOST_TOGETHER 2                   /* losses before a job is claimed alone */
#define NS_MISSING_MAX INT64_C(600000000)    /* life without a handler */
#define NS_SLOW INT64_C(1000000)             /* an answer that takes longer is slow */
#define NS_KEEP_TREE INT64_C(7776000000000)  /* history of a tree that does not end */

/* ------------------------------------------------------------ connection */

/* Is 'fd' the socket of a handle of this process? After a fork such a handle opens another one,
** so no process shares it. */
bool ns_owns_socket(int fd);

/* The handle is about to be closed: no wait goes on after 'at', monotonic µs, in ns_close
** either. The earliest instant counts. */
void ns_end_by(ns_db *db, int64_t at);

/*
** True when the handle was inherited over a fork. Every verb then reconnects
** first and knows no claims; the parent's session stays untouched.
*/
bool ns_is_foreign(const ns_db *db);

/* Has the server ended the connection? Looks at the socket only; the next verb
** reconnects. */
bool ns_hung_up(ns_db *db);

/*
** Ends the connection, outside a transaction; the next verb makes another. The
** server looks up most rights when a connection is made, and not again.
*/
void ns_renew(ns_db *db);

/* Round trip to the server; reconnects if needed. Errors: GONE. */
ns_status ns_ping(ns_db *db, ns_err *err);

/* Is a transaction of the caller open? */
bool ns_in_transaction(const ns_db *db);

/* How often a transaction has run again for a conflict of one statement with other sessions. */
typedef struct ns_conflict {
  char statement[40]; /* its name; "": the place is free; "other": all without a place or name */
  int64_t deadlocks, lock_waits;
} ns_conflict;

#define NS_CONFLICTS 8 /* statements */

/* Counters of this handle since it was opened. */
typedef struct ns_counters {
  int64_t deadlocks, lock_waits, changed; /* 1213, 1205, 1020: all retried */
  int64_t reconnects, pushed, claimed, settled, stale, sweeps, rings;
  int64_t swept; /* µs that the sweeps took */
  int64_t slow, slowest; /* answers that took longer than NS_SLOW; µs of the longest */
  ns_conflict conflicts[NS_CONFLICTS];
} ns_counters;

ns_counters ns_count(const ns_db *db);

/* Of these, how often the handle has connected again. */
int64_t ns_reconnects(const ns_db *db);

/* How many connections this process has, of all its handles. From any thread. */
size_t ns_connections(void);

/* Version of the client library, "3.3.14"; static. */
const char *ns_client_version(void);

/* Writes what this handle has counted of queues, for charts, unless it did so within the last
** minute. Verbs do that by the way; it is for a handle that may rest for long after a push. µs
** until there is more to write; 0: there is nothing. Best effort. */
int64_t ns_tell_minutes(ns_db *db);

/* ---------------------------------------------------------------- schema */

/* Text of the i-th statement of the schema (0-based), NULL after the last;
** '*version' and '*name' get the migration it belongs to and its name. */
const char *ns_schema_text(size_t i, int *version, const char **name);

/* ------------------------------------------------------------------ push */

/* Checks a job as a push would, before anything is written. 'index' is named in the message
** when n > 1. Errors: INVALID, TOO_BIG. */
ns_status ns_push_check(const ns_push *job, int64_t max_payload, ns_err *err);

/* Takes 'n' fresh ids (n <= 10000), for jobs that are pushed later. */
ns_status ns_take_ids(ns_db *db, int64_t *ids, size_t n, ns_err *err);

/* ---------------------------------------------------- claim and settle */

/* A queue as a holder sees it. */
typedef struct ns_queue_row {
  int64_t id;
  char name[NS_MAX_QUEUE + 1];
  bool paused;
  bool removed; /* nobody needs it, unless it has live jobs */
  bool limited; /* its claims are admitted by its limits */
  bool bounded; /* pushes are refused while too many of its jobs wait */
} ns_queue_row;

/* One queue that a holder serves. */
typedef struct ns_weighted_queue {
  int64_t queue_id;
  int weight; /* share of the claims when all have work; >= 1 */
  size_t reserve; /* places of the limit that only jobs of this queue may take;
                  ** they do not count in the shares */
  bool limited;   /* as in ns_queue_row */
} ns_weighted_queue;

/* A name of jobs that are run together: a claim that takes one takes more. */
typedef struct ns_batched {
  ns_bytes name;
  size_t most; /* jobs of a batch */
} ns_batched;

/* The claim that a cycle may make. 'choose' (may be NULL) is called with all queues as they
** are in its transaction, once per try, and sets queues and limit. */
typedef struct ns_want {
  const ns_weighted_queue *queues;
  size_t nqueues;
  size_t limit; /* jobs; beside them, … */
  const ns_batched *batched; /* … when so many are found, those that complete the batches of the
                             ** ones with these names; */
  size_t nbatched;
  size_t more; /* of each queue and name at most so many */
  void (*choose)(struct ns_want *want, const ns_queue_row *rows, size_t nrows);
  void *arg;    /* of the process that chooses */
} ns_want;

/*
** How this handle claims from now on. Strict: by priority only, and from each queue in the
** order of the list, even if queues at its end starve. Otherwise (at first): in weighted
** shares. Every 17th job of a queue, or one in five seconds, is then the oldest of a lower
** priority.
*/
void ns_claim_strictly(ns_db *db, bool strict);

/*
** From now on this handle claims only jobs of these names; NULL: of all, as at first; none:
** nothing. Rarely a job of another name may still come. Two names may have one CRC32, or a
** program of an older version has written its row. Errors: NOMEM.
*/
ns_status ns_claim_only(ns_db *db, const ns_bytes *names, size_t n, ns_err *err);

/*
** From now on jobs without a parent that are done on this handle leave no row of history.
** Neither results nor 'after' know of them. A push whose answer was lost is not recognised any
** more once its job is done.
*/
void ns_forget_done(ns_db *db, bool yes);

/*
** One cycle is one transaction. It settles 'verdicts' (each gets its status), promotes due
** jobs, claims as 'want' says (NULL: nothing) in weighted shares, and commits. It appends the
** claimed jobs to 'out' (NULL: as 'want'). Never waits for another session's row lock: a
** verdict on a locked row gets NS_EBUSY and belongs into the next cycle. A verdict with values
** that the server refuses is written as a failure of its job. A verdict that meets the server's
** own trouble (a full disk, a limit, a setting) is NS_EBUSY, too, with 'trouble'. It spends
** nothing, and the rest are written without it. '*next_due' (may be NULL) gets the µs until the
** next scheduled job, or until another look for late commits is affordable; -1: neither. Each
** verdict has its status also when the call fails: verdicts not written, or not known to be,
** are NS_EBUSY. The call is repeated with them. Errors: GONE, BUSY.
*/
ns_status ns_cycle(ns_db *db, ns_verdict *verdicts, size_t nverdicts,
                   const ns_want *want, ns_jobs *out, int64_t *next_due,
                   ns_err *err);

/* For a host that has nothing to settle or claim at the moment. ns_sort moves some waiting jobs of
** a queue with groups that take turns to where a claim finds them by group. That is a transaction
** of its own, of some ms. ns_sort_next: when it is worth it, monotonic µs; 0: no job is to be
** moved. Errors: GONE. */
ns_status ns_sort(ns_db *db, ns_err *err);
int64_t ns_sort_next(ns_db *db);

/* ns_first_due: the µs until the first scheduled job that the last claims saw is due, -1: there
** is none. ns_looked_everywhere: since 'since' (monotonic µs), have the claims looked at all
** rows of these queues that late commits may have hidden? While such a look is dear it takes
** some seconds. */
int64_t ns_first_due(const ns_db *db);
bool ns_looked_everywhere(const ns_db *db, const ns_weighted_queue *queues, size_t nqueues,
                          int64_t since);

/* Server time now, µs since 1970, estimated from the last answer that carried it. */
int64_t ns_now(const ns_db *db);

/* Scheduled jobs that claims of this handle will take when they are due. Instants are µs
** since 1970 by the server's clock. */
typedef struct ns_upcoming {
  size_t n;             /* at most 1,000; 0: none, and nothing below is set */
  int64_t in;           /* µs until the first is due */
  int64_t first, last;  /* when they are due */
  char name[NS_MAX_NAME + 1], queue[257]; /* of the first */
} ns_upcoming;

/* Gives the jobs of these queues that come due within 'within' µs. Errors: GONE, BUSY. */
ns_status ns_look_ahead(ns_db *db, const ns_weighted_queue *queues, size_t nqueues, int64_t within,
                        ns_upcoming *out, ns_err *err);

/* The server's last error about verdicts with 'trouble'; good until the next one. */
const ns_err *ns_trouble(const ns_db *db);

/*
** Settles a verdict on a claim of another handle, the one of 'holder', and rings for jobs that
** it made claimable. With NS_OK the verdict has its status, as after ns_cycle. Unless that is
** NS_EBUSY, the other handle then settles a RELEASE of the same claim with 'go_on' 2. So its
** memory and the lease follow. Errors: GONE, BUSY; the call is repeated.
*/
ns_status ns_settle_for(ns_db *db, int64_t holder, ns_verdict *verdict, ns_err *err);

/* Is it only the rest of a verdict that was written already? */
bool ns_verdict_written(const ns_verdict *verdict);

/* The signs that a running job shows. */
typedef struct ns_sign {
  int64_t id, run;
  int64_t worker_pid; /* 0: none */
  double progress;    /* 0..1, or -1: as before */
  ns_bytes text;      /* absent: as before; cut to 255 bytes */
  int64_t began;      /* as of ns_verdict */
  bool lost;          /* set: the claim does not hold any more */
} ns_sign;

/* Shows how far running jobs are, renews their leases, and says of each whether
** its claim still holds. Each job is there once; 'signs' are sorted by id. Errors:
** GONE, INVALID; then nothing is said of any. */
ns_status ns_touch_many(ns_db *db, ns_sign *signs, size_t n, ns_err *err);

/* A handler has ended, and its verdict waits to be written. */
typedef struct ns_owed {
  int64_t id, run;
  int64_t since; /* monotonic µs */
} ns_owed;

#define NS_OWED_SHOWN 1000 /* that a telling has room for */

/* Shows for a second which verdicts 'holder' owes: in a statement of this session, for all
** accounts that may see it. It works where nothing can be written, too. 'total': their number,
** of which 'list' has the oldest, in order. Errors: GONE. */
ns_status ns_tell_owed(ns_db *db, int64_t holder, const ns_owed *list, size_t n,
                       size_t total, ns_err *err);

/* Does the next ns_cycle, even without other work, have to tell ended jobs' dependents that
** another session held? */
bool ns_unfinished(const ns_db *db);

/* The handle's holder id, registered when it first claims; 0 before. */
int64_t ns_holder_id(const ns_db *db);

/* Whether this user may run every statement that a holder needs; asks the
** server by preparing them. Errors: DENIED, with the server's words. */
ns_status ns_probe(ns_db *db, ns_err *err);

/* Sends the calls that holders live by, each so that it does nothing, with what is sent next. */
void ns_calls_send(ns_db *db);

/* How they have ended. 'i': from 0 on; NULL behind the last. '*err': OK, or GONE and BUSY, of which
** nothing is known, or why it cannot be called. */
const char *ns_calls_told(ns_db *db, size_t i, ns_err *err);

/* The same check for one statement of sql/query. Errors: NOT_FOUND, DENIED. */
ns_status ns_may(ns_db *db, const char *name, ns_err *err);

/* Registers now, as a "host" or a "handle". */
ns_status ns_register(ns_db *db, bool is_host, ns_err *err);

/* Says "I live", for a host at least every 10 s. A holder that finds itself declared dead has
** lost all its claims. It has a new id from then on, here and in every cycle and reconnect:
** compare ns_holder_id. Errors: GONE. */
ns_status ns_beat(ns_db *db, ns_err *err);

/* The handlers of a host, and their scripts, to answer why a job does not run. */
typedef struct ns_serving {
  int64_t workers;   /* that take jobs, 0: it takes none now */
  ns_bytes queues;   /* ["name",…] or absent: all */
  ns_bytes handlers; /* ["name",…] */
  ns_bytes reserves; /* [["queue",workers],…] or absent: none */
  ns_bytes scripts;  /* a short hash of the texts that run */
  ns_bytes files;    /* [["name","short hash"],…], theirs */
  int64_t load_began; /* monotonic µs of its machine: the last reading of the scripts */
  int64_t load_ended; /* µs since 1970, the server's */
  ns_bytes load_error; /* why that failed; absent: it did not */
  int64_t wanted;      /* workers that it is to have now */
  int64_t tuned;       /* how often it was told a number of them */
  ns_bytes refused;    /* why the last was not taken; absent: it was */
} ns_serving;

/* Tells that. Nothing happens without a holder. Errors: GONE, BUSY. */
ns_status ns_serves(ns_db *db, const ns_serving *s, ns_err *err);

/* Tells which jobs are to be pushed when jobs of a host's handlers are dead: [{"name": …,
** "on_dead": …, "queue": …},…]. A queue that is absent is the dead job's own. 'handlers': as
** above; words of earlier hosts about the others of them are over. Errors: GONE, BUSY. */
ns_status ns_declare_on_dead(ns_db *db, ns_bytes declared, ns_bytes handlers, ns_err *err);

/* The state of a host's workers, for people. */
typedef struct ns_workers {
  int64_t up;      /* take jobs */
  int64_t busy;    /* run one */
  int64_t leaving; /* take no more, and end when theirs has */
  int64_t loads;   /* how often the scripts have been loaded */
  int64_t old;     /* workers that run other scripts than the ones loaded last */
} ns_workers;

/* Tells that. Nothing happens without a holder. Errors: GONE, BUSY. */
ns_status ns_tell_workers(ns_db *db, const ns_workers *w, ns_err *err);

/* A claim of ours that another session has ended: the job is cancelled. Or 'paused': the claim
** stands, but the job is to be given back if it has not begun. */
typedef struct ns_token {
  int64_t id, run;
  bool paused;
} ns_token;

/* News of a claim of ours, or a number of workers that we are to have. */
typedef struct ns_notice {
  ns_token token;
  int64_t workers; /* 0: it is of the claim */
  char why[256]; /* the reason that its canceller gave, cut; "": none */
} ns_notice;

/* Takes the notices written to us since the last call; '*list' is malloc'd, the caller frees
** it. Errors: GONE, NOMEM. */
ns_status ns_notices(ns_db *db, ns_notice **list, size_t *n, ns_err *err);

/* ---------------------------------------------------------------- rescue */

typedef struct ns_rescued {
  int64_t holders; /* found dead by this look */
  int64_t jobs;    /* given back */
  int64_t poison;  /* of these: dead now, having killed too many holders */
  int64_t suspects; /* holders that may be dead; another look will tell */
} ns_rescued;

/*
** Looks at all other holders and gives back claims of dead ones, and claims with a lease that
** has run out. '*again_in': µs until another look may find more, at most 10 s. Errors: GONE,
** BUSY, STATE (in a transaction).
*/
ns_status ns_look(ns_db *db, int64_t *again_in, ns_rescued *sum, ns_err *err);

/* From now on 'db', which claims nothing, looks in place of that holder's own handle,
** and so not at that holder. 'locks': as ns_uses_locks of that handle. */
void ns_assist(ns_db *db, int64_t holder, bool locks);

/* Do named locks serve here? Known once it is registered. */
bool ns_uses_locks(const ns_db *db);

/* Gives back, as lost, claims that stand under the name of this handle but are unknown to it,
** once it has seen them twice. Does nothing before its time, half a minute later. ns_look does
** it for a handle that claims. Errors: as of a settle. */
ns_status ns_release_unknown(ns_db *db, ns_rescued *sum, ns_err *err);

/* ------------------------------------------------- jobs that are nowhere */

#define NS_AUDITED_IDS 16

typedef struct ns_audited {
  int64_t jobs;    /* put back, or told of the end of a job they wait for; */
  int64_t ids[NS_AUDITED_IDS]; /* the first of them */
  int64_t rows;    /* deleted: ready rows of claimed jobs, and keys of no job; rows left behind by a
                   ** cancel are deleted and not counted */
  int64_t twice;   /* faults that this step has seen for the second time; a row that is
                   ** left of a job that was cancelled is none */
  int64_t seen;    /* by the round, when it has ended: the first time or the second */
  bool round;      /* a round has ended */
} ns_audited;

/* µs until the first tick of a schedule, '*in'; below 0: there is none. Errors: GONE. */
ns_status ns_schedule_next(ns_db *db, int64_t *in, ns_err *err);

typedef enum ns_audit_mode {
  NS_AUDIT_SHARED, /* for hosts: one of them does it, the rest check that it lives */
  NS_AUDIT_NOW,    /* even while another one does it */
  NS_AUDIT_LOOK    /* and mends nothing */
} ns_audit_mode;

/*
** The next step of a round: reads a stretch of rows, without locks. It mends rows that this
** round and the one before have found out of place. '*again_in': µs until the next step, so
** that they take a hundredth of the server's time; 30 s or more after a round. Errors: GONE,
** BUSY, STATE (in a transaction).
*/
ns_status ns_audit_step(ns_db *db, ns_audit_mode how, int64_t *again_in, ns_audited *sum,
                        ns_err *err);

/* --------------------------------------------------------------- pruning */

#define NS_KEEP_BY_RULE INT64_MIN /* as long as the rules of retention say */

/* Deletes history older than this in small batches; '*deleted' counts. A tree goes as a
** whole, once all of it has ended and is old enough. Slots of locks with an owner that is gone are
** deleted, too. A negative age keeps that kind. 'max_batches' 0: until nothing is left;
** else the next call goes on where this one stopped. Hosts do it by themselves. */
ns_status ns_prune(ns_db *db, int64_t keep_done, int64_t keep_dead, size_t max_batches,
                   int64_t *deleted, ns_err *err);

/* Called between two of a prune's transactions, where the handle may be used; false: the
** prune stops, and another goes on where it was. NULL: the prune goes on. */
void ns_between(ns_db *db, bool (*goes_on)(void *arg), void *arg);

/* ---------------------------------------------------------------- queues */

/* Reads all queues by id; '*rows' is malloc'd, the caller frees it. */
ns_status ns_queues(ns_db *db, ns_queue_row **rows, size_t *n, ns_err *err);

/* The names of jobs that are paused, as the queues were last read, each ended by NUL. An empty
** one comes first and stands for every queue. Borrowed until the queues are read again.
** '*mark': a number for this set. */
ns_bytes ns_paused_names(const ns_db *db, int64_t *mark);

/* The id of a queue, created when 'create'. Errors: INVALID, NOT_FOUND. */
ns_status ns_queue_id(ns_db *db, ns_bytes name, bool create, int64_t *id,
                      ns_err *err);

/* ------------------------------------------- locks and semaphores across hosts */

#define NS_MAX_SLOT_NAME 190 /* characters */
#define NS_MAX_SLOTS 10000   /* of one name */

/*
** Takes one of the slots 1..n of 'name' (a lock: n 1) if one is free; never waits. A caller
** that waits calls again after '*again_in' µs, with 'waited', the µs since the first call. If
** it got none in the end, it calls ns_slot_give_up. A caller that does not wait says -1.
** '*token' stands for the slot from now on. Its owner is the running job (see ns_slot_owner),
** else the holder of this handle, which is registered when it is new. A slot is free when it is
** not taken or its owner is gone. So a slot that is not released ends with its job's run, or
** with its holder. Errors: BUSY (none is free), STALE (our own claim is lost), STATE (inside a
** transaction of the caller), INVALID, GONE.
*/
ns_status ns_slot_acquire(ns_db *db, ns_bytes name, int64_t n, int64_t waited,
                          int64_t *token, int64_t *again_in, ns_err *err);

/* Leaves the line of waiters for 'name'; without one nothing happens. */
void ns_slot_give_up(ns_db *db, ns_bytes name);

/* Gives it back; inside a transaction, when that ends. When it fails because of
** the server, it is given back with the next connection or the next verb on
** slots. Errors: STALE (it was lost before), GONE, BUSY. */
ns_status ns_slot_release(ns_db *db, int64_t token, ns_err *err);

/* Whether it is held, as far as this handle knows; asks no server. */
bool ns_slot_holds(const ns_db *db, int64_t token);

/* Slots that are taken from now on belong to this run of a job; job 0: to the holder
** again. Slots of an earlier job are forgotten: its verdict frees them. */
void ns_slot_owner(ns_db *db, int64_t job, int64_t run);

/* -------------------------------------------------------- waiting, ringing */

/* A second connection that sleeps until something may be claimable. */
typedef struct ns_listener ns_listener;

/* Opens a listener with the configuration of 'db'. Errors as ns_open. */
ns_status ns_listener_open(ns_listener **out, const ns_db *db, ns_err *err);
void ns_listener_close(ns_listener *l);

/* Why a wait ended, added up; 0: time is up. */
enum {
  NS_WOKE_WORK = 1,  /* something may be claimable */
  NS_WOKE_NOTICE = 2, /* a notice for the holder */
  NS_WOKE_GONE = 4   /* a holder may have died: ns_look */
};

/* The events that a listener waits for beside a ring. */
typedef struct ns_awaited {
  const int64_t *queues; /* ids of queues: one of them has a ready row */
  size_t nqueues;
  const int64_t *paused; /* ids of queues: one of them is resumed */
  size_t npaused;
  int64_t names;  /* the mark of ns_paused_names: others are paused */
  int64_t newest; /* a queue with a greater id appears; negative: no matter */
  int64_t holder; /* a notice for it, or the death of another one; 0: neither matters */
} ns_awaited;

/*
** Waits in the server until one of these conditions holds, or 'max_wait' µs have passed (cut to
** 10 s). The call blocks; no other thread may touch 'l' meanwhile. Errors: GONE (reconnects
** next call).
*/
ns_status ns_listen(ns_listener *l, const ns_awaited *what, int64_t max_wait,
                    unsigned *woke, ns_err *err);

/*
** To be called before a wait that follows a claim without jobs in these queues. Where many
** deleted rows are, a host's wait begins its first look where the claim has come to, and is
** short. While a job is held that has to be claimed alone, further ones like it do not wake.
** From the thread of 'db'; another may be waiting.
*/
void ns_listen_near(ns_listener *l, const ns_db *db, const int64_t *queue_ids,
                    size_t n);

/* Ends the registration of ns_listen: no ring comes any more. It is to be called after each
** ns_listen, whatever that said; urgent work may come first. */
void ns_listen_leave(ns_listener *l);

/* From another thread: the current wait of a host's listener ends with GONE, and so does every
** later call on it. A connect takes its connect_timeout all the same. */
void ns_listener_stop(ns_listener *l);

/* The server thread id of the listener; 0 while not connected, or connected with another server
** than 'db'. A KILL QUERY of it on any other connection, from any thread or process, wakes the
** listener. */
int64_t ns_listener_thread(const ns_listener *l, const ns_db *db);

/* Wakes one idle listener of each kind. Errors: GONE. */
ns_status ns_ring(ns_db *db, ns_err *err);

/* Lets a listener sleep and rings it. '*took' gets the µs from the ring to its wake, -1 when it
** slept through two seconds of rings. Errors: as ns_listen and ns_ring. */
ns_status ns_ring_try(ns_db *db, int64_t *took, ns_err *err);

/* ----------------------------------------------- the caller's own SQL */

/* A point of the caller's transaction that ns_undo takes it back to; of one 'depth' the
** last counts. '*mark' is for ns_undo. When taking it back is refused, all of it is
** lost, and can only be rolled back. */
ns_status ns_savepoint(ns_db *db, int64_t depth, int64_t *mark, ns_err *err);
ns_status ns_undo(ns_db *db, int64_t depth, int64_t mark, ns_err *err);

/* 'yes': from now on every verb is STATE while a transaction of the caller is open. It is for a
** handle that several threads of control share, when one of them has begun the transaction. */
void ns_session_bar(ns_db *db, bool yes);

/* Resets the parts of the session that the caller's own SQL has changed: variables, locks,
** temporary tables, default database, role. An open transaction (then '*open') is rolled back.
** It costs nothing without such SQL. If a part cannot be reset the connection is closed, and
** the next verb opens a new one. */
void ns_session_reset(ns_db *db, bool *open);

/* ------------------------------------- rows of adopted tables, in programs */

/* What rows are to say of their jobs. */
typedef enum ns_row_change { NS_ROW_LIVES, NS_ROW_DONE, NS_ROW_DEAD, NS_ROW_CHANGES } ns_row_change;

/* Statements about the rows of a table; each takes one list, "[[row,job,failures,due,…],…]". */
typedef struct ns_source_texts {
  ns_bytes hold, lost;            /* give [row, job]: locked, the job's still; another's, or gone */
  ns_bytes write[NS_ROW_CHANGES]; /* into rows that are the job's; absent: there is nothing to */
  bool shows_dead;                /* the change of dead ones changes each row */
  ns_bytes ends;                  /* source_end: ends one job, too; absent: there is none */
} ns_source_texts;

/* From now on verdicts of this handle write, in their own transaction, what the rows of a table
** are to say. A later call replaces the texts. They stay the caller's, until the handle is closed.
** Errors: NOMEM. */
ns_status ns_source_serve(ns_db *db, int64_t source, const ns_source_texts *texts, ns_err *err);

/* Text of a named statement of sql/query, NULL when there is none. */
const char *ns_sql_text(const char *name);

/* The i-th name of them (0-based, sorted within a file), NULL after the last. */
const char *ns_sql_name(size_t i);

/* Microseconds since 1970, UTC, by the server. */
ns_status ns_server_now(ns_db *db, int64_t *now, ns_err *err);

/* ------------------------------------------------------- private server */

/* How ns_open finds a server from now on, in this process, without a URL. 'start'
** (ns_private_start of src/private) creates or joins a private server under 'dir' (NULL: the
** working directory), and gives its malloc'd URL. Before this call such an open is INVALID. */
void ns_use_private(ns_status (*start)(const char *dir, char **url, ns_err *err));

#endif
