/*
** Existing tables as queues: the part of the contract that is about an application's tables.
** Comes with nightshift_host.h; nightshift.h has the handle, jobs, verdicts and errors.
*/
#ifndef NIGHTSHIFT_ADOPT_H
#define NIGHTSHIFT_ADOPT_H

#include "nightshift_host.h"

typedef enum ns_strategy {
  NS_UPDATE_LIMIT, /* a claim token, and one UPDATE … ORDER BY … LIMIT */
  NS_SKIP_LOCKED,  /* rows are locked, past those of other sessions, then marked by key */
  NS_TRANSACTION,  /* the row's lock is the claim: one connection per running job */
  NS_NAMED_LOCK    /* one claims at a time, under a named lock */
} ns_strategy;

/* The uses of a table's columns; all but the first two are optional. */
typedef enum ns_part {
  NS_PART_ID,           /* whole number, the primary key */
  NS_PART_STATUS,
  NS_PART_CLAIMED_BY,   /* text: the holder and the claim's token */
  NS_PART_CLAIMED_AT,   /* times: DATETIME, TIMESTAMP, or whole seconds since 1970 */
  NS_PART_COMPLETED_AT,
  NS_PART_STARTED,
  NS_PART_UPDATED,
  NS_PART_RETRY_AFTER,
  NS_PART_HOST,         /* text: this machine's name */
  NS_PART_ATTEMPTS,     /* counted up with each return after a failure … */
  NS_PART_ATTEMPTS_LEFT, /* … or down to 0 */
  NS_PART_PRIORITY,
  NS_PART_PARENT,       /* id of a row that has to be done before; NULL: none */
  NS_PARTS
} ns_part;

/* States of a row. */
typedef enum ns_row_state {
  NS_ROW_OPEN,
  NS_ROW_PROCESSING,
  NS_ROW_DONE,
  NS_ROW_FAILED,
  NS_ROW_PARENT_DONE, /* of the parent; default: as NS_ROW_DONE */
  NS_ROW_STATES
} ns_row_state;

/*
** How a table is used. In a column of dates the text "now" stands for the present
** and, asked for, for any date; NS_NULL stands for NULL.
*/
typedef struct ns_mapping {
  ns_bytes table;
  ns_bytes name;       /* of the handler that runs its rows; absent: the table's */
  ns_strategy strategy;
  ns_bytes parts[NS_PARTS];        /* names of columns; absent: not used */
  ns_value states[NS_ROW_STATES];  /* values of the status column */
  bool has_state[NS_ROW_STATES];   /* … of those that there are */
  bool lower_first;    /* priority: lower values come first */
  bool newest_first;   /* the highest id comes first */
  int64_t decay;       /* priority lost per unfinished return */
  int64_t max_attempts; /* 0: no limit */
  int64_t overdue;     /* µs after which a claim ends; 0: never */
  ns_bytes time_zone;  /* of DATETIME columns; absent: the server's */
  bool allow_alter;    /* triggers that ring may be added to the table */
  ns_bytes given;      /* the mapping as it was given, JSON, for people to read */
} ns_mapping;

typedef struct ns_adopted ns_adopted;

/*
** Adopts a table of the handle's database; copies '*map'. The mapping is checked
** against the live table. '*out' belongs to the handle and ends with it; '*number'
** (may be NULL) gets a number that ns_adopted_at knows it by. Nothing is added to
** the table but, with allow_alter, triggers; then no transaction may be open.
** Errors: INVALID (names what does not fit), NOT_FOUND (no such table), DENIED (no
** right to add a trigger), BUSY (the table is in use), STATE.
*/
ns_status ns_adopt(ns_db *db, const ns_mapping *map, ns_adopted **out,
                   int64_t *number, ns_err *err);

/* The adopted table of a number; NULL when there is none. */
ns_adopted *ns_adopted_at(ns_db *db, int64_t number);

/* The text of a claim in claimed_by: "ns:HOLDER:TOKEN" with both in base 36, in at most 20
** characters for holders below 10^14; the token is the run. */
#define NS_CLAIMANT 32
ns_bytes ns_adopt_claimant(char out[NS_CLAIMANT], int64_t holder, int64_t token);

/*
** Claims up to 'limit' rows, or as many as people allow (nightshift_adopted: a pause, a
** rate, a block, rows in hand); never waits for the lock of a row. A job's (id, run) is
** the claim token, as with any job, its payload the row as a JSON object, its nonce the
** same for all rows of the table, its lease minus the table's number. A claim that said
** GONE and may have happened is taken up by the next.
** Errors: GONE, BUSY, STATE (in a transaction of the caller), SQL.
*/
ns_status ns_adopted_claim(ns_adopted *a, size_t limit, ns_jobs *out,
                           ns_err *err);

/* Monotonic µs: a claim before is unlikely to find anything. */
int64_t ns_adopted_claim_at(const ns_adopted *a);

/* Has the last claim looked for rows? Not while it is paused, held, over its rate, or another
** handle's turn. */
bool ns_adopted_looked(const ns_adopted *a);

/* How many rows may be claimed at a time with NS_TRANSACTION, each locked by a connection of its
** own. A handle that has more workers than a few says so. */
void ns_adopted_limit_locked(ns_adopted *a, size_t most);

/* May nothing be started, as far as is known? What was claimed had better be given
** back. */
bool ns_adopted_paused(const ns_adopted *a);

/*
** '*due': µs until something that is open, or about to be, may be claimed; -1: there is
** nothing. Rows of a holder that may be dead are about to be open.
** Errors: GONE, BUSY.
*/
ns_status ns_adopted_due(ns_adopted *a, int64_t *due, ns_err *err);

/*
** Settles verdicts, in one transaction but with NS_TRANSACTION; NS_LOST is as a
** failure that comes back at once. Each gets its status: OK, or STALE when the claim
** does not hold any more, or BUSY when another session has locked the row, or INVALID for what
** a row cannot do (children, waits, ends without a value for failed rows); 'err' has
** the words for the last of those, though the call succeeds. Results and states are
** not kept, and of the errors of a row the last. After GONE the same verdicts may be settled again.
** Errors: GONE, BUSY, SQL.
*/
ns_status ns_adopted_settle(ns_adopted *a, ns_verdict *verdicts, size_t n,
                            ns_err *err);

/* µs for which this verdict had better wait: its row would come back at once, for the
** table has no column that says when. 0: it need not. */
int64_t ns_adopted_patience(const ns_adopted *a, const ns_verdict *v);

/* Is it a failure after which the row may be claimed again? */
bool ns_adopted_returns(const ns_adopted *a, const ns_verdict *v);

/* Whether a claim of this handle still holds; it is overdue later. Errors: STALE,
** GONE, BUSY. */
ns_status ns_adopted_touch(ns_adopted *a, int64_t id, int64_t run, ns_err *err);

/* The same of many, which show what they say: as ns_touch_many. Errors: GONE, BUSY. */
ns_status ns_adopted_touch_many(ns_adopted *a, ns_sign *signs, size_t n,
                                ns_err *err);

/*
** Gives back rows of dead holders and rows with an overdue claim, and reads what people
** have decided; paces itself, so it may be called as often as one likes, and is part of
** every claim. A host that has been told of a death calls it with 'now'. '*freed' counts
** rows. Errors: GONE, BUSY, STATE.
*/
ns_status ns_adopted_look(ns_adopted *a, bool now, int64_t *freed, ns_err *err);

/* A row that a look has given back, and since when it was claimed (0: not known). */
typedef struct ns_reset {
  int64_t id;
  const char *why;    /* static */
  int64_t since;      /* µs by the server's clock */
  char claimant[128]; /* cut; "": no holder is named */
} ns_reset;

/* Rows that a host's looks have given back since the last call, '*n' of them; good until
** the next look or claim. */
const ns_reset *ns_adopted_resets(ns_adopted *a, size_t *n);

/* A row that a claim has left alone, for a minute, as the server refuses to mark it. */
typedef struct ns_refusal {
  int64_t id;
  int64_t until;  /* monotonic */
  char why[512];  /* the server's message */
} ns_refusal;

/* Refused rows since the last call, '*n' of them; good until the next claim. And whether some are
** left alone now. */
const ns_refusal *ns_adopted_refusals(ns_adopted *a, size_t *n);
bool ns_adopted_refuses(ns_adopted *a);

/* Rows by state. Where only a lock says who has a row, 'ready' has those that run, too,
** and 'running' those that show something, and this handle's own. */
typedef struct ns_row_counts {
  int64_t ready, waiting, running, done, dead;
} ns_row_counts;

/* Counts them, each up to 'most'. Errors: GONE, BUSY. */
ns_status ns_adopted_count(ns_adopted *a, int64_t most, ns_row_counts *out,
                           ns_err *err);

/*
** The rows that no claim takes any more, by id, up to 'limit': "[{"id":…,"attempts":…,
** "failed_at":…,"holder":…,"error":"…","payload":"…"},…]", where payload is the row's JSON,
** and what is not known is left out. 'error': those of one error, or of one of the kinds
** that groups have, "": of which none is known; absent: all. Errors: GONE, BUSY, SQL.
*/
ns_status ns_adopted_dead(ns_adopted *a, ns_bytes error, int64_t limit, ns_buf *json,
                          ns_err *err);

/* The same by kinds, the most frequent first: the first line of an error, with its
** numbers as "#". "[{"error":"…","count":…,"first":…,"last":…,"id":…},…]" */
ns_status ns_adopted_dead_groups(ns_adopted *a, ns_bytes error, int64_t limit,
                                 ns_buf *json, ns_err *err);

/* A dead row may be claimed again, and is as new. Errors: GONE, BUSY, NOT_FOUND, STATE (it
** is not dead), INVALID (nothing says how many attempts it begins with). */
ns_status ns_adopted_retry(ns_adopted *a, int64_t id, ns_err *err);

/* The same of all of an error, as in ns_adopted_dead; '*n' counts them. A row that is locked stays
** dead. */
ns_status ns_adopted_retry_all(ns_adopted *a, ns_bytes error, int64_t *n, ns_err *err);

/* Which ended rows a pruning is about, and what becomes of them. */
typedef struct ns_row_pruning {
  bool dead;     /* those that are dead; else those that are done */
  int64_t older; /* µs since they ended; -1: any */
  int64_t limit; /* rows at most */
  ns_bytes into; /* the table that they are moved to; absent: they are deleted */
} ns_row_pruning;

/*
** Prunes, in batches, each a transaction. A row that another has for its parent stays. Of
** a dead row the last error says when it ended. '*n' counts them. 'into' has all of
** their columns. Errors: GONE, BUSY, STATE (in a transaction), NOT_FOUND (no such
** target), INVALID (the target does not fit, or nothing says when rows were done),
** DUPLICATE (it has one of the rows already), SQL.
*/
ns_status ns_adopted_prune(ns_adopted *a, const ns_row_pruning *which, int64_t *n,
                           ns_err *err);

/* How many that would be, as far as rows tell themselves, up to the limit. */
ns_status ns_adopted_prunable(ns_adopted *a, const ns_row_pruning *which, int64_t *n,
                              ns_err *err);

/* A drain so far. */
typedef struct ns_drained {
  int64_t from;      /* in: the lowest id; INT64_MIN: all. Where to go on */
  bool more;         /* there may be more */
  int64_t jobs;      /* rows that became jobs, … */
  int64_t done, dead; /* … and history */
  int64_t cleaned;   /* … that an earlier drain had left half way */
  int64_t running, unknown; /* rows that stay: claimed, in no state of the mapping, … */
  int64_t unfit;     /* … too big, or not text, … */
  int64_t changed;   /* … changed, or locked, meanwhile, … */
  int64_t busy;      /* … or on their way by another drain */
} ns_drained;

/*
** Moves the next 'limit' rows, in the order of their ids, into the queue (made, if need
** be) or the history, and adds to '*d'. A row is in the table or, once, in ours, or on its
** way, which the next look finishes when we cannot. The first batch looks for rows of
** dead holders, and of drains that were cut. Errors: INVALID (a name; the mapping has
** parents), STATE (in a transaction of the caller), GONE, BUSY, DENIED, SQL.
*/
ns_status ns_adopted_drain(ns_adopted *a, ns_bytes queue, size_t limit, ns_drained *d,
                           ns_err *err);

/* The same without moving anything: what a drain would do at this moment. */
ns_status ns_adopted_drainable(ns_adopted *a, ns_drained *d, ns_err *err);

/* The remedy for a slow claim: an SQL statement that adds an index, or nothing,
** when the server finds the rows by an index, in order. Errors: GONE. */
ns_status ns_adopted_advice(ns_adopted *a, ns_buf *sql, ns_err *err);

/* Does a writer that adds a row, or opens one again, ring us? The table then has triggers
** that an account was allowed to add. An idle one is looked at every ten seconds. */
bool ns_adopted_rung(const ns_adopted *a);

/* Drops those triggers. Errors: DENIED, BUSY (the table is in use), STATE. */
ns_status ns_adopted_drop_triggers(ns_adopted *a, ns_err *err);

/*
** Sleeps until a claim may find something, at most 'us'; wakes for a ring and for the
** death of a holder. At once with a table that is not rung: see ns_adopted_claim_at.
** Errors: GONE, BUSY, STATE.
*/
ns_status ns_adopted_wait(ns_adopted *a, int64_t us, ns_err *err);

/* Two connections of its own, of which one sleeps for an adopted table and one looks; it
** may have a thread of its own. */
typedef struct ns_ear ns_ear;
#define NS_EAR_LONGEST INT64_C(10000000) /* µs of a wait */

/* For a table that is rung; 'watch': the death of a holder ends its waits, too. It
** connects when it waits. Errors: NOMEM. */
ns_status ns_ear_open(ns_ear **out, ns_adopted *a, bool watch, ns_err *err);
void ns_ear_close(ns_ear *e); /* NULL is allowed */

/*
** Sleeps for 'us', ten seconds at most, on behalf of 'holder' (0: of no holder). '*woke':
** there may be a row to claim; one that cannot be claimed yet wakes the next wait at
** once, so pause before that. Errors: GONE and more; the next call connects anew.
*/
ns_status ns_ear_wait(ns_ear *e, int64_t holder, int64_t us, bool *woke, ns_err *err);

/* As ns_listener_stop, and as ns_listener_thread. */
void ns_ear_stop(ns_ear *e);
int64_t ns_ear_thread(const ns_ear *e);

#endif
