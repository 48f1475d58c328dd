/*
** The work of an ns_db on its connection: the session, statements, transactions, queues and
** ids, the schema, and the hooks of the parts above.
**
** Invariant: between verbs a handle is outside any transaction of its own. Its link is NULL or
** usable until proven dead. Every verb starts with ns_db_ready, which reconnects.
*/
#ifndef NS_DB_DB_H
#define NS_DB_DB_H

#include "link/link.h"
#include "nightshift_admin.h"
#include "ns_sql_names.h" /* generated: enum ns_sql */

/* ------------------------------------ the SQL of sql/, embedded at build */

typedef struct ns_schema_statement {
  int version; /* number of its file; 0 ends the list */
  const char *name;
  const char *text;
} ns_schema_statement;

extern const ns_schema_statement ns_schema_statements[];

/* ------------------------------------------------------ hooks: session.c */

/* The hooks of the parts of a handle, for when its connection comes and goes. The connection, below
** them all, calls them through the list 'hooks' of the handle, and names none of them. Each
** may be NULL. None but 'connected' and 'committed' runs statements on the handle. */
typedef struct ns_hooks {
  /* A session is new; no statement has run on it yet. An error gives it up. */
  ns_status (*connected)(ns_db *db, ns_err *err);
  /* The session is gone, with its locks and its open transaction. */
  void (*lost)(ns_db *db);
  /* The server was away for a while, for all its clients. */
  void (*away)(ns_db *db);
  /* The server's clock was set back. */
  void (*set_back)(ns_db *db);
  /* This is a forked child: the parent's claims and locks are not ours. */
  void (*forked)(ns_db *db);
  /* The caller's transaction is over, and was written or not. */
  void (*committed)(ns_db *db, bool written);
  /* Gives back claims and locks (unless the process is a forked child), best effort, and frees. */
  void (*closing)(ns_db *db);
} ns_hooks;

/* The parts, in their order; the list ends in NULL. */
extern const ns_hooks ns_db_schema_hooks, ns_db_minutes_hooks, ns_source_hooks, ns_claim_hooks,
    ns_push_hooks,
    ns_finish_hooks, ns_settle_hooks, ns_holder_hooks, ns_holder_rescue_hooks,
    ns_holder_audit_hooks, ns_cycle_hooks, ns_wake_listen_hooks, ns_wake_ring_hooks,
    ns_holder_slot_hooks, ns_finish_pending_hooks, ns_admin_retention_hooks;

void ns_db_tell_closing(ns_db *db);

/* ------------------------------------------------ the session: session.c */

#define NS_LOCK_WAIT 1205 /* the server's numbers: a lock wait that took too long, */
#define NS_RUN_AGAIN 1020 /* a row that has changed meanwhile */

#define NS_GHOSTS 8 /* sessions to end after a reconnect; the oldest give way */

/* A session that we have lost, and that the server may still have. */
typedef struct ns_session {
  int64_t thread; /* the server's id of it */
  int64_t life;   /* of the server that gave the id */
} ns_session;

/* The state that the caller's own SQL may have left on the session; see db/caller.c. */
typedef struct ns_left_behind {
  int64_t place; /* default database and role, a number; 0: not known */
  bool used;     /* the caller's own SQL has run, */
  bool marked;   /* and it may have changed the session */
  bool doubtful; /* the last of it may have */
  bool tables;   /* it has locked tables, which a transaction would unlock, */
  int locking;   /* and the last of it does, 1, or unlocks them, -1, where it works */
  bool hurried;  /* ns_db_hurry */
} ns_left_behind;

/* The configuration with the URL filled in; strings borrowed from 'db'. */
const ns_config *ns_db_config(const ns_db *db, ns_config *room);

/* Connects if need be, also when the server has hung up while we were idle.
** Inside a transaction of ours it never reconnects. */
ns_status ns_db_ready(ns_db *db, ns_err *err);

/* From now on the server ends this session, with its locks, when it is idle within a transaction of
** ours for five seconds. Its process is frozen then, or the network. Does nothing in the caller's
** transaction. */
ns_status ns_db_hurry(ns_db *db, ns_err *err);

/* A transaction of the caller's is about to begin, which may take its time. */
ns_status ns_db_take_time(ns_db *db, ns_err *err);

/* Connects once, and tells the parts. Errors: GONE, DENIED, SERVER, SCHEMA. */
ns_status ns_db_connect(ns_db *db, ns_err *err);

/* Closes the connection, and tells the parts. */
void ns_db_hang_up(ns_db *db);

/* The configuration, completed from the URL; borrows from 'db'. */
ns_config ns_db_config_value(const ns_db *db);

/* Adds the slow answers of the connection there is. */
void ns_db_add_slow(const ns_db *db, ns_counters *sum);

/* Has the caller ended the wait of this handle? */
bool ns_db_is_interrupted(const ns_db *db);

/* Sleeps a random time up to '*most' µs, which is doubled then, up to 'longest'. Handles that
** lost the server together must not come back together. Ends at once when the descriptor
** 'interrupt_fd' of the configuration may be read. */
#define NS_PAUSE_FIRST 50000
#define NS_PAUSE_LONGEST 3000000
void ns_db_pause_up_to(const ns_db *db, int64_t *most, int64_t longest);

/* For ns_now: 'now' was the server's a moment ago. */
void ns_db_note_now(ns_db *db, int64_t now);

/* ----------------------------------------------- statements: statement.c */

#define ns_vint(x) ((ns_value){.type = NS_INT, .i = (x)})
#define ns_vtext(x) ((ns_value){.type = NS_TEXT, .s = (x)})
#define ns_vbytes(x) ((ns_value){.type = NS_BYTES, .s = (x)})
#define ns_vnull ((ns_value){.type = NS_NULL})
#define ns_vopt(x) ((x).p != NULL ? ns_vtext(x) : ns_vnull)

/* NULL of 0 and below. */
static inline ns_value ns_vpositive(int64_t i) {
  return i > 0 ? ns_vint(i) : ns_vnull;
}

/* An integer column; 'fallback' for its NULL. */
static inline int64_t ns_int_or(const ns_value *v, int64_t fallback) {
  return v->type == NS_NULL ? fallback : v->i;
}

#define NS_TEXTS 64 /* statements prepared from free text, kept per link */

typedef struct ns_text_stmt {
  char *sql;
  size_t n;
  ns_stmt *stmt;
  uint64_t used; /* of db->clock, for throwing the oldest out */
} ns_text_stmt;

/* Sends a named statement with its parameters; ns_db_read_answer gives its status and has its
** rows. */
ns_status ns_db_send_query(ns_db *db, ns_sql sql, const ns_value *params, ns_err *err);
ns_status ns_db_read_answer(ns_db *db, ns_sql sql, ns_err *err);

/* Sends a look that is soon to be run, so that the run only reads the answer. Best effort. What was
** not run by then is forgotten by ns_db_foresee_end, so that no run takes an old answer. */
void ns_db_foresee(ns_db *db, ns_sql sql, const ns_value *params);
void ns_db_foresee_end(ns_db *db);

/* Sends a statement without rows; the next statement reports its failure. */
ns_status ns_db_send(ns_db *db, ns_sql sql, const ns_column *cols, ns_err *err);

/* Did a statement change as many rows as it had to? BUSY when not: the transaction
** is to be rolled back and run again. */
ns_status ns_db_check_changed(int64_t changed, int64_t expected, ns_err *err);

/* Runs it once per row in one round trip; each has to change a row, or: all of them
** together so many. Errors: as ns_db_check_changed. */
ns_status ns_db_bulk(ns_db *db, ns_sql sql, const ns_column *cols, size_t nrows, ns_err *err);
ns_status ns_db_bulk_changing(ns_db *db, ns_sql sql, const ns_column *cols, size_t nrows,
                              int64_t changes, ns_err *err);

/* The next row of a named statement; NULL after the last. */
ns_status ns_db_row(ns_db *db, ns_sql sql, const ns_value **row, ns_err *err);

/* Rows changed by the last run of a named statement. */
int64_t ns_db_affected(const ns_db *db, ns_sql sql);

/* A statement prepared from text, cached by the text. */
ns_status ns_db_prepared(ns_db *db, ns_stmt **out, ns_bytes sql, ns_err *err);

/* The same for a statement that takes and gives integers alone; it takes no place of a program. */
ns_status ns_db_prepared_brief(ns_db *db, ns_stmt **out, ns_bytes sql, ns_err *err);

/* Text without parameters or rows: BEGIN, COMMIT and the like. */
ns_status ns_db_text(ns_db *db, const char *sql, ns_err *err);

/* -------------------------------------- lists as parameters: statement.c */

/* Each adds an element, "[id,…]" or "[[id,run],…]"; the first one begins the list. */
void ns_db_list_add_id(ns_buf *list, int64_t id);
void ns_db_list_add_pair(ns_buf *list, int64_t id, int64_t run);

/* Has the list no element, and lost none? */
bool ns_db_list_is_empty(const ns_buf *list);

/* Ends a list, whatever its elements are, or though it has none. The parameter is
** good until the list changes. */
ns_value ns_db_list_end(ns_buf *list);

/* Runs a statement that is a whole transaction. '*cut': it may have been committed all the
** same, whatever the error says. */
ns_status ns_db_run_whole(ns_db *db, ns_sql sql, const ns_value *params, bool *cut, ns_err *err);

/* The same of a text; '*s' has its rows. */
ns_status ns_db_run_whole_text(ns_db *db, ns_bytes sql, const ns_value *params, ns_stmt **s,
                               bool *cut, ns_err *err);

/* --------------------------------- statements that reconnect: session.c */

/* Runs a named statement with its parameters. Outside a transaction it runs once more when the
** connection is lost, so each such statement may run twice. */
ns_status ns_db_run(ns_db *db, ns_sql sql, const ns_value *params, ns_err *err);

/* Ends a list, runs the statement with it as last parameter, behind 'first' if
** that is not NULL, and frees it. Errors: NOMEM, too. */
ns_status ns_db_list_run(ns_db *db, ns_sql sql, const ns_value *first, ns_buf *list, ns_err *err);

/* Runs a statement of a list that has to change 'n' rows. Errors: as ns_db_check_changed, too. */
ns_status ns_db_list_change(ns_db *db, ns_sql sql, const ns_value *first, ns_buf *list, size_t n,
                            ns_err *err);

/* ------------------------------------------- transactions: transaction.c */

/*
** A unit of work that can be run again. 'run' does it on an open transaction; ns_db_transact
** begins, commits, and repeats it after 1213, 1205, 1020 (with jitter) and after a lost
** connection. Waits for other sessions' locks take at most as long as a reply. They count from
** 'began' (monotonic µs; 0: now); the last wait may end later. 'replay' is true when an earlier
** try was cut at its COMMIT. Only 'run' can find out the outcome (the cut session is over by
** then); it sets 'done' when that commit turns out to have happened. It may be true from the
** start: the earlier try was an earlier call. Inside a transaction of the caller 'run' simply
** joins it, once. It sets 'jobs' when this try has changed something that the audit is to have: to
** the number of jobs. It is negative before.
**
** With 'looks', 'run' only reads until it has called ns_db_begun, so its first statement goes out
** together with the BEGIN. 'ahead' (may be NULL) sends, behind the COMMIT, the question that is to
** be read after it; best effort. With 'once', the work is not repeated after 1213, 1205 and 1020:
** it is BUSY.
*/
typedef struct ns_tx {
  ns_status (*run)(ns_db *db, struct ns_tx *tx, ns_err *err);
  void (*ahead)(ns_db *db, struct ns_tx *tx);
  void *arg;
  int64_t began;
  int64_t jobs;
  bool replay;
  bool done;
  bool looks;
  bool once;
} ns_tx;

ns_status ns_db_transact(ns_db *db, ns_tx *tx, ns_err *err);

/* From here on all writes are part of the transaction. A statement sent behind a BEGIN that a
** KILL has hit would commit by itself. */
ns_status ns_db_begun(ns_db *db, ns_err *err);

/* In the caller's transaction: undoes what 'run' has done so far. Errors: GONE; the transaction is
** lost then. */
ns_status ns_db_unjoin(ns_db *db, ns_err *err);

/* Counts an error after which a transaction is run again. */
void ns_db_count_retry(ns_db *db, const ns_err *err);

/* The action of people that is under way; see ns_action_begin. */
typedef struct ns_action {
  ns_via via;        /* as long as the handle is open */
  bool open;
  bool untold;       /* it leaves no row */
  char verb[24];
  int64_t job;       /* 0: it is not about one */
  int64_t row;       /* the id of its row, which may have been rolled back; 0: none was written */
  size_t n;          /* bytes of 'what' */
  char what[256];
} ns_action;

/* A statement that returns no rows, to be run once per row of its columns. */
typedef struct ns_step {
  ns_sql sql;
  const ns_column *cols;
  size_t nrows;   /* 0: it is left out */
  size_t changes; /* rows that it has to change */
} ns_step;

/*
** Runs the steps as one transaction, outside any other. With '*ring' a listener of each kind is
** rung after the commit; false when that may not be. '*cut': the connection was lost with the
** COMMIT on its way. Nothing is repeated. Errors: as of the statements; GONE.
*/
ns_status ns_db_pipeline(ns_db *db, const ns_step *steps, size_t n, bool *ring, bool *cut,
                         ns_err *err);

/* May this user ring? A user that was refused does not ask again for a while. The handle is
** ready; false also when the answer does not come. */
bool ns_db_may_ring(ns_db *db);
bool ns_db_ring_refused(const ns_db *db);

/* ------------------------- queues, ids: queue.c; kinds: statement.c */

typedef struct ns_queue_name {
  int64_t id;
  bool removed; /* as of the last look: the next use of it says that it is there again */
  int64_t bound;         /* as of the last look: pushes are refused while so many jobs wait; 0: none */
  int64_t room;          /* jobs that may be pushed before they are counted again; negative: it is full */
  int64_t counted_until; /* monotonic: then they are counted again anyhow */
  size_t n;
  char name[]; /* ends in NUL */
} ns_queue_name;

/* Refuses an empty name, one over 'max' bytes, control characters. 'what' is
** "queue name" or "job name". Errors: INVALID. */
ns_status ns_db_name_check(ns_bytes name, const char *what, size_t max, ns_err *err);

/* The name of a queue this handle has met; NS_NONE otherwise. Good while the handle is open,
** for other threads, too. */
ns_bytes ns_db_queue_name(const ns_db *db, int64_t id);

/* A job of this queue has been claimed: a removed one is there again. Outside transactions. Best
** effort; a look at memory while none is known to be removed. */
void ns_db_queue_used(ns_db *db, int64_t id);

/* A queue that this handle has met; NULL otherwise. */
ns_queue_name *ns_db_queue_known(const ns_db *db, int64_t id);

/* A queue has this bound now, 0: none; only if this handle has met it. */
void ns_db_queue_bound(ns_db *db, int64_t id, int64_t bound);

/* Numbers for the set of all bounds: as it was told with ids, and as it was when bounds were read. */
typedef struct ns_bounds {
  int64_t seen, read;
} ns_bounds;

/* Frees the names; only when the handle is closed. */
void ns_db_queues_free(ns_db *db);

/* The names of jobs that are paused, as the server told when it was last asked for queues. The
** empty name stands for every queue. */
typedef struct ns_paused {
  ns_buf names;    /* each ended by NUL, as the server sorts them */
  int64_t mark;    /* the sum of kind + 1 of each */
  int64_t version; /* grows with each change */
} ns_paused;

/* Whether a queue is paused at this moment; reads the names that are paused, too. Errors: GONE. */
ns_status ns_db_queue_paused(ns_db *db, int64_t id, bool *paused, bool *limited, ns_err *err);

/* As ns_queues, of a list that was sent for (ns_db_send_query, queue_list). */
ns_status ns_db_queues_read(ns_db *db, ns_queue_row **rows, size_t *n, ns_err *err);

/* The kind of a job is a number that stands for its name in the rows of ready and scheduled. So
** a claim can tell the wanted rows without reading jobs. */
#define NS_KIND_ANY 0 /* of a row with a writer that did not know: any claim may take it */

/* CRC32 of the bytes of a name, as the server's CRC32() has it. Two names may share
** one. */
int64_t ns_db_kind_of(ns_bytes name);

/* NOT_FOUND: no job has this id. */
ns_status ns_db_no_job(int64_t id, ns_err *err);

/* ------------------------ what happens in queues: transaction.c, queue.c */

/* What is counted of a queue, for charts. Times are sums, or the longest, in µs. */
typedef enum ns_counted {
  NS_N_DONE,
  NS_N_FAILED, /* attempts: failed, crashed, lost */
  NS_N_DEAD,
  NS_N_CANCELLED,
  NS_N_PUSHED,
  NS_N_WAITS, /* runs with a known wait, from the due instant to the start; */
  NS_N_WAITED,
  NS_N_LONGEST_WAIT,
  NS_N_RUNS, /* ... with a known time */
  NS_N_RAN,
  NS_N_LONGEST_RUN,
  NS_N_COUNT
} ns_counted;

typedef struct ns_tally {
  int64_t queue_id; /* 0: all queues */
  int64_t n[NS_N_COUNT];
} ns_tally;

/* Counts. In a transaction that is open it counts when that is written. Without memory for it,
** nothing is counted. */
void ns_db_tally(ns_db *db, const ns_tally *t);
void ns_db_tally_one(ns_db *db, int64_t queue_id, ns_counted what);

/* 'to' has the sums of both from now on. */
void ns_db_tally_sum(ns_tally *to, const ns_tally *t);

/* What transactions that are open have done; between two tries of one that was cut at its COMMIT,
** what that one may have done. */
typedef struct ns_tallies {
  ns_tally *items;
  size_t n, cap;
  size_t floor; /* those before it stay as they are: a savepoint, or a try, began there */
} ns_tallies;

/* What has happened in one minute. */
typedef struct ns_minute {
  int64_t at; /* minutes since 1970, by the server's clock */
  ns_tally sums;
} ns_minute;

/* What is not told yet: rows of nightshift_minute. */
typedef struct ns_minutes {
  ns_minute *items;
  size_t n, cap;
  size_t first;     /* of the present minute */
  int64_t tell_at;  /* monotonic: before that a program does not tell */
  bool told;        /* ever */
} ns_minutes;

/* What is written counts in the present minute. */
void ns_db_minutes_add(ns_db *db, const ns_tally *t);

/* Writes what is not told yet, in one statement, if it is time. 'over': a host's, whenever a minute
** is over; else a minute after the last time. Best effort: it waits for no lock, and is repeated by
** a later call. Nothing happens in a transaction. */
void ns_db_minutes_tell(ns_db *db, bool over);

/* Deletes rows that are too old; 'bounded': ten thousand at most. Errors: as of any statement. */
ns_status ns_db_minutes_prune(ns_db *db, bool bounded, ns_err *err);

/* -------------------------------------------------- the schema: schema.c */

/* ns_migrate; with 'anew' it makes procedures and views anew, too, when there
** were tables before. Errors: as ns_migrate. */
ns_status ns_db_schema_raise(ns_db *db, bool anew, int *from, ns_err *err);

/* -------------------------------------- between the files of db/: session.c */

/* STATE: the caller's own SQL has ended the caller's transaction. */
ns_status ns_db_tx_ended(ns_err *err);

/* Ends the session at once, in a way that counts as a loss: claims and locks are taken up
** again by the next connection. */
void ns_db_leave_session(ns_db *db);

/* After a run of server_now: reads the server's clock and settings. '*now': 0, none was told. */
ns_status ns_db_read_server(ns_db *db, int64_t *now, ns_err *err);

/* Rolls the session back; if that fails, the session is given up. */
void ns_db_roll_back(ns_db *db);

/* Behind the end of a transaction of the caller's: autocommit is on again. */
void ns_db_session_end(ns_db *db);

ns_status ns_db_tell_connected(ns_db *db, ns_err *err);
void ns_db_tell_lost(ns_db *db);
void ns_db_tell_away(ns_db *db);
void ns_db_tell_set_back(ns_db *db);
void ns_db_tell_forked(ns_db *db);
void ns_db_tell_committed(ns_db *db, bool written);

/* ----------------------------------------------- statements: statement.c */

/* Before their link goes, which owns them. */
void ns_db_forget_statements(ns_db *db);

/* Prepares it, unless it is. Preparing may close other statements: see ns_link_prepare. */
ns_status ns_db_prepare(ns_db *db, ns_sql sql, ns_err *err);

/* Runs a named statement, once, on the connection there is. */
ns_status ns_db_run_once(ns_db *db, ns_sql sql, const ns_value *params, ns_err *err);

/* Prepares a statement without running it: may we run it, and do its tables exist? */
ns_status ns_db_try(ns_db *db, ns_sql sql, ns_err *err);

/* Our statements fit our tables. If a statement of ours misses a part there, the table was
** changed (SCHEMA); no job or verdict is at fault. */
ns_status ns_db_misfit(ns_status st, ns_err *err);

/* Runs before a transaction or statement of ours, on a live connection. STATE while the
** caller's own SQL has tables locked, which a transaction would unlock. */
ns_status ns_db_session_begins(const ns_db *db, ns_err *err);

#endif
