/*
** Taking jobs: the interface for the rest of the core. A claim's steps, in their order, are
** promote, take, lease, and after the commit read (cycle/cycle.c calls them).
**
** Invariant: nothing here waits for a row lock. Floors move only after the commit, so rows
** of a claim that was rolled back are found again by the next one.
*/
#ifndef NS_CLAIM_CLAIM_H
#define NS_CLAIM_CLAIM_H

#include "admission/admission.h"
#include "db/db.h"
#include "nightshift_host.h"
#include "source/source.h"

/* -------------------------------------------- a claimer's memory of queues */

#define NS_LOOK_MIN INT64_C(10000) /* µs between two looks below a floor */
#define NS_LOOK_MAX INT64_C(3000)  /* µs that one may take; claim_late, too, has it */

/* The part below a floor that a look reads, and its next time; see claim/lanes.c. */
typedef struct ns_scan_window {
  int64_t next;    /* monotonic µs: when another look is affordable */
  int64_t full_at; /* ... when a look at all rows is, while that is dear */
  int64_t width;   /* µs of the key, of the window; 0: all is cheap */
  int64_t seen_at; /* ... when all was last looked at; 0: never */
  bool open;       /* all is to be looked at, and has not been yet */
} ns_scan_window;

/* A lane: the ready rows of one queue with one rank. */
typedef struct ns_lane {
  int64_t queue_id;
  int64_t rank;
  int64_t floor; /* smallest ready_at worth looking at */
  bool sentinel; /* known to stand */
  /* of a claimer of some names, see claim/sweep.c; else they keep their first values */
  bool unknown;  /* the number of rows of other names above the floor: not looked */
  bool spent;    /* a claim has come short of it up to 'end' */
  int64_t end;   /* rows from there on have not been looked at, exclusive */
  int64_t left;  /* rows from the floor to 'end', about */
  int64_t start; /* where the last stretch of those rows begins */
  int64_t job;   /* rows of the instant 'floor' have been looked at up to this job */
  int64_t reach; /* the floor when the claim under way is committed */
} ns_lane;

/* A stretch of a lane: from <= ready_at < to. */
typedef struct ns_lane_gap {
  int64_t rank, from, to;
} ns_lane_gap;

/* A queue as this claimer sees it. */
typedef struct ns_claim_queue {
  int64_t queue_id;
  ns_scan_window window; /* of looking below the floors of its lanes */
  int64_t since;         /* claims since the last sweep */
  double credit;         /* jobs this queue may still take in its fair share */
  bool quiet;            /* it had nothing at the last look, see claim/shares.c */
  /* for aging, see claim/turns.c */
  int64_t passed;  /* rows taken in true order since the last turn */
  int64_t claims;  /* by how many claims; 0: nothing lies below */
  int64_t rank;    /* of the last of them */
  int64_t below;   /* lower lanes that had rows at the last turn */
  int64_t turn_at; /* monotonic µs: when the next turn is due in any case */
  int64_t cursor;  /* rank that the rotation has come to */
  unsigned turns;
  /* of a claimer of some names, see claim/sweep.c */
  ns_lane_gap hidden; /* below a floor, with a row to be claimed; to = 0: none */
  ns_lane_gap round;  /* where the round below the floors has come to: rank and from; */
                      /* 'to' is a job, as in ns_lane */
  bool partial;       /* it has left a whole round for jobs that came back, */
  ns_lane_gap whole;  /* ... which goes on here when it is over */
  int64_t cost;       /* µs that it has taken so far */
  int64_t claimed_at; /* monotonic: the last claim, */
  bool full;          /* which came back full */
  ns_admission_memory admission; /* of its limits */
} ns_claim_queue;

/* A claimer's lanes and queues, in two arrays. */
typedef struct ns_lanes {
  ns_lane *items; /* sorted by (queue_id, rank) */
  size_t n, cap;
  ns_claim_queue *queues; /* sorted by queue_id */
  size_t nqueues, capqueues;
  size_t next;     /* index behind the last queue that was asked for */
  int backoff;     /* cycles left on the slow path; see claim/statement.c */
  int penalty;     /* how many the next collision will cost */
  bool some_names; /* claims are of some names only */
} ns_lanes;

/* A row stands again at ready_at, so a known floor above it goes back to it. Where too many
** rows of other names may lie between, the next sweep finds the row instead. */
void ns_claim_lanes_lower(ns_lanes *l, int64_t queue_id, int64_t rank, int64_t ready_at);

/* After the transaction: the stretches that claims have come short of are passed, if it was
** committed. */
void ns_claim_lanes_end(ns_lanes *l, bool committed);

/* The lanes of a queue: first index, and how many. */
size_t ns_claim_lanes_of(const ns_lanes *l, int64_t queue_id, size_t *first);

/* The record of a queue, if there is one. */
const ns_claim_queue *ns_claim_queue_known(const ns_lanes *l, int64_t queue_id);

/* Has no sweep of it ever been cut short? */
bool ns_claim_sweep_is_cheap(const ns_claim_queue *q);

/* -------------------------------------------------------------- names */

/* Which names a handle claims: all, or some, and no paused one; as kinds (see ns_db_kind_of).
** Two names may share a kind, so the names of claimed jobs are compared once more. */
typedef struct ns_claim_filter {
  bool some;       /* else all names are wanted */
  ns_buf names;    /* that are wanted, each ended by NUL, sorted */
  ns_buf paused;   /* as in ns_paused, without the empty one */
  int64_t version; /* of ns_paused */
  ns_buf kinds;    /* " AND kind IN (0,…) AND kind NOT IN (…)", or one of the two, ended by
                   ** NUL; empty: any kind */
} ns_claim_filter;

/* The condition behind that of the lanes; NULL: there is none. */
const char *ns_claim_filter_kinds(const ns_claim_filter *f);

/* Is 'name' wanted, and not paused? */
bool ns_claim_filter_has(const ns_claim_filter *f, ns_bytes name);

/* Is it paused? */
bool ns_claim_filter_pauses(const ns_claim_filter *f, ns_bytes name);

/* From now on claims leave out the names that the handle knows to be paused (db->paused).
** Errors: NOMEM. */
ns_status ns_claim_obey(ns_db *db, ns_err *err);

/* ------------------------------------------------------------ batches */

/* A claim: one run of one job. */
typedef struct ns_claimed {
  int64_t id, run;
  bool settled;
  bool shown;    /* has a row in running */
  bool granted;  /* has a place under a limit */
  int64_t heard; /* when the signal it was given was sent; 0: none */
  bool child;    /* read, and another job's child */
  int64_t queue_id; /* read */
  int64_t due;      /* read: since when it could be claimed; 0: it has waited for other jobs */
  ns_origin row;    /* read: that it stands for, of a table that the handle serves; 0, 0: of none */
  bool plain;    /* read, and without a unique key or a signal: when it is done
                 ** only its row moves */
  bool keyed;    /* read, with a unique key that names no row, and without a signal */
} ns_claimed;

/* A batch: the claims of one row of nightshift_lease. */
typedef struct ns_lease {
  int64_t id;
  ns_claimed *jobs; /* sorted by (id, run); old runs may be among them */
  size_t n, open;   /* how many, how many unsettled */
  int64_t span;     /* µs it lasts untouched; 0: as long as its holder */
  int64_t taken;    /* when, monotonic µs */
  bool alone;       /* its one job was lost with holders before */
} ns_lease;

typedef struct ns_leases {
  ns_lease *items;
  size_t n, cap;
} ns_leases;

void ns_claim_leases_free(ns_leases *l);

/* May the run have a place under a limit? From its claim, or as the queue is known to have a limit
** since. */
bool ns_claim_may_have_place(const ns_db *db, const ns_claimed *c);

/* A place of this queue is free: the next claim looks at once. */
void ns_claim_place_freed(ns_db *db, int64_t queue_id);

/* Is there no claim in them that waits for its verdict? */
bool ns_claim_leases_settled(const ns_leases *l);

/* A batch by its id; NULL when there is none. */
ns_lease *ns_claim_leases_batch(ns_leases *l, int64_t lease);

/* Is a job held that has to be claimed alone? */
bool ns_claim_leases_alone(const ns_leases *l);

/* An unsettled claim of a batch; NULL when there is none. */
ns_claimed *ns_claim_leases_find(ns_leases *l, int64_t lease, int64_t id, int64_t run);

/* As ns_claim_leases_find, in any batch; '*batch' (may be NULL) gets that batch. */
ns_claimed *ns_claim_leases_find_any(ns_leases *l, int64_t id, int64_t run, ns_lease **batch);

/* Marks a claim settled. True when it was its batch's last one: then the
** caller deletes the row and calls ns_claim_leases_drop. */
bool ns_claim_leases_settle(ns_leases *l, int64_t lease, int64_t id, int64_t run);
void ns_claim_leases_drop(ns_leases *l, int64_t lease);

/* µs since a run has begun, at least 1: since 'began', monotonic µs, or else, in a program, since
** its claim. 0: not known, or (below 0) it has not begun. */
int64_t ns_claim_run_age(ns_db *db, int64_t lease, int64_t began);

/* A lease that a handler has brought into a transaction of its own; 0: its holder is known. */
int64_t ns_claim_lease_of_other(ns_db *db, int64_t lease);

/* Deletes the row of a batch of ours. */
ns_status ns_claim_lease_delete(ns_db *db, const ns_lease *b, ns_err *err);

/* The same outside transactions, sent ahead; best effort. */
void ns_claim_lease_leave(ns_db *db, const ns_lease *b);

/* How many tokens, of 'n' > 0, make the stretch that begins with the first: ids in
** a row, of the same run. A range of a key is read, and deleted, in a third of the
** time that so many single keys take. */
#define NS_STRETCH_LEAST 8 /* a shorter one is not worth a statement */
size_t ns_claim_stretch(const ns_token *tokens, size_t n);

/* ---------------------------------------------------- the claim's steps */

/* A row taken out of ready. */
typedef struct ns_claim_row {
  int64_t queue_id, rank, ready_at, id, run, kind;
  bool alone; /* it was lost with its holder before: nothing beside it */
  bool beyond; /* rows before it may have been left: its lane's floor stays */
  bool limited; /* it was admitted, and has a place under a limit */
} ns_claim_row;

typedef struct ns_claim_rows {
  ns_claim_row *items;
  size_t n, cap;
} ns_claim_rows;

/* Moves due jobs from scheduled to ready. '*next_due': µs until the next
** one, -1: none. Looks at most every 20 ms unless something is due. */
ns_status ns_claim_promote(ns_db *db, int64_t *next_due, ns_err *err);

/* After the commit: rows that were promoted are not looked at again. */
void ns_claim_promoted(ns_db *db);

/* After the transaction: rows that were moved into backlogs are not looked at again, if it was
** committed. */
void ns_claim_moved(ns_db *db, bool committed);

/* Where a job that is locked stands, unless it is claimed: by its own row. */
typedef struct ns_claim_place {
  int64_t queue_id, rank, id, run, due;
} ns_claim_place;

/* Takes the job's row out of scheduled or ready: then no claim has it, or will. When there is
** none ('*taken' false) it is claimed, maybe since a moment ago, or it waits. Waits for a session
** that claims or promotes it; a claim waits for no lock. */
ns_status ns_claim_withdraw(ns_db *db, const ns_claim_place *j, bool *taken, ns_err *err);

/* Makes one job ready now. */
ns_status ns_claim_promote_one(ns_db *db, int64_t queue_id, int64_t rank, int64_t id, int64_t run,
                               int64_t kind, ns_err *err);

/* Takes up to 'limit' ready rows out of 'queues': reserved places first, then in
** weighted shares, or strictly. */
ns_status ns_claim_take(ns_db *db, const ns_weighted_queue *queues, size_t nqueues, size_t limit,
                        ns_claim_rows *out, ns_err *err);

/* Behind rows that a claim has taken: takes more of their names, as want->batched says. Rows are
** looked for in the lanes of those taken, a bounded number. */
ns_status ns_claim_take_more(ns_db *db, const ns_want *want, ns_claim_rows *out, ns_err *err);

/* After a claim with too few jobs, or 'none': cuts '*in' (µs, -1: any time) to the next look at
** one of these queues. With none it is the next full look. 'began': the claim, monotonic µs. */
void ns_claim_next_look(const ns_db *db, const ns_weighted_queue *queues, size_t nqueues, bool none,
                        int64_t began, int64_t *in);

/*
** Jobs to be claimed alone leave 'rows' and are put back. The first of them is remembered in
** db->claim.alone; the next ns_claim_take_alone takes it when the handle holds no other such
** job. So a job that kills its holders takes no other suspect with it. While such a job is
** held, claims leave the rest where they are, and db->claim.skipped_alone is set.
*/
ns_status ns_claim_separate(ns_db *db, ns_claim_rows *rows, ns_err *err);
ns_status ns_claim_take_alone(ns_db *db, const ns_weighted_queue *queues, size_t nqueues,
                              size_t limit, ns_claim_rows *rows, ns_err *err);

/* May there be a job that a claim of these takes alone? */
bool ns_claim_alone_next(const ns_db *db, const ns_weighted_queue *queues, size_t nqueues,
                         size_t limit);

/* Sends one lease row for 'rows' and remembers the batch; '*lease' gets its
** id. It lasts 'span' µs untouched, 0: as long as its holder. ns_claim_undo forgets
** it, when the transaction fails; 0 is allowed. */
ns_status ns_claim_lease(ns_db *db, const ns_claim_rows *rows, int64_t span, int64_t *lease,
                         ns_err *err);
void ns_claim_undo(ns_db *db, int64_t lease);

/* After the commit: floors and lanes are learnt, sentinels put up. */
void ns_claim_committed(ns_db *db, const ns_claim_rows *rows);

/* A commit was cut and its outcome could not be learnt: its batch is kept in doubt.
** ns_claim_resolve looks for its lease: if it exists the batch is 'unread', else it is
** forgotten. The lease tells the batch, where that is not known here. Errors: GONE, BUSY,
** NOMEM. */
void ns_claim_in_doubt(ns_db *db, int64_t lease);
ns_status ns_claim_resolve(ns_db *db, ns_err *err);

/* Asks for the jobs of a claim behind its COMMIT, when that takes one statement;
** best effort. The ns_claim_read that follows has them. */
void ns_claim_read_ahead(ns_db *db, const ns_claim_rows *rows);

/* Reads the jobs of a lease that are still ours into 'out', in the order of
** 'rows' (NULL: by id); the rest are forgotten. */
ns_status ns_claim_read(ns_db *db, int64_t lease, const ns_claim_rows *rows, ns_jobs *out,
                        ns_err *err);

/* May one job of a queue be claimed in one statement (ns_claim_one)? Not while other things are to
** be looked at: rows below the floors, lower lanes, jobs that are claimed alone, limits, names. */
bool ns_claim_one_open(const ns_db *db, int64_t queue_id);

/* Claims one job of the known lanes, the first that no other transaction has locked, commits, and
** appends it to 'out'. Appends nothing where there is none, where the queue is paused, and after an
** error of the server, which an ordinary claim tells. Errors: NOMEM. */
ns_status ns_claim_one(ns_db *db, int64_t queue_id, ns_jobs *out, ns_err *err);

/* Adds a job, to be filled, with room for so many bytes at '*at' that live as long.
** NULL: out of memory. */
ns_job *ns_claim_jobs_add(ns_jobs *jobs, size_t bytes, char **at);

/* ---------------------------------------------------- admission locks */

/* A claimer's memory of contention; see claim/turns.c. */
typedef struct ns_claim_admission {
  int contended;       /* claims that still ask for a lock; 0: no contention was met */
  int64_t place;       /* place of the admission lock: a queue, */
  int64_t number;      /* and which of its locks is ours, from 1 on; 0: none */
  bool leaving;        /* the statement that releases it was sent */
  unsigned stuck;      /* locks that are not asked for, a bit each: their holder stays, */
  int64_t stuck_until; /* ... until then (monotonic) */
} ns_claim_admission;

/* Takes an admission lock of 'place', if this claimer has met contention; it may as well go on
** without. In the transaction, before it has any locks. Errors: as of any statement. */
ns_status ns_claim_admission_enter(ns_db *db, int64_t place, ns_err *err);

/* Sends the statement that releases it, behind a COMMIT; best effort. */
void ns_claim_admission_leave_ahead(ns_db *db);

/* After the transaction, however it ended. 'whole': no answer was an error. */
void ns_claim_admission_leave(ns_db *db, bool whole);

/* ------------------------------------------------------------ the state */

/* A handle's state of its claims: db->claim. */
typedef struct ns_claim_state {
  ns_lanes lanes;
  ns_claim_filter filter;
  ns_claim_admission admission;
  ns_leases leases;    /* the claims that we hold */
  int64_t span;        /* of the claim under way: see ns_lease */
  bool strict;         /* claims in true order only: no aging */
  ns_claim_row alone;  /* a job to be claimed by itself next; id 0: none */
  ns_claim_rows moved; /* into backlogs, by the transaction under way; owned */
  bool sorts;          /* some queue may have to be sorted, see ns_sort */
  int64_t reserved;    /* the id of the next lease, where grants name it already; 0: none */
  bool skipped_alone;  /* claims have left out jobs that are to be claimed alone */
  int64_t unread;      /* a lease of jobs that could not be read yet; 0: none */
  int64_t in_doubt;    /* a lease that may not have been committed; 0: none */
  ns_verdict *expired; /* claims of jobs that are too late to be started, and that
                       ** could not be ended yet; owned */
  size_t nexpired, capexpired;
  /* shares: see claim/shares.c */
  int64_t busy_at;   /* monotonic: when to ask again which queues have work, */
  int64_t busy_cost; /* which took so many µs */
  int64_t firsts_at; /* monotonic: when to take the first jobs of many together again */
  bool firsts_dear;  /* the last time that took long */
  /* promotion: see claim/promote.c */
  int64_t promote_at;        /* monotonic: when to look at scheduled again */
  int64_t due_at;            /* monotonic: when its first row is due, or a look below it; 0: none */
  int64_t first_at;          /* monotonic: when its first row is due; 0: none */
  int64_t due_floor;         /* jobs were promoted up to this run_at; 0: not known */
  int64_t due_reached;       /* ... when the transaction under way is committed */
  ns_scan_window due_window; /* of looking below due_floor */
} ns_claim_state;

/* ------------------------------------- between the files of claim/: lanes.c */

#define NS_LANE_END INT64_MAX /* ready_at of a sentinel */
#define NS_LANES_MAX 100      /* lanes in one claim statement */

void ns_claim_lanes_free(ns_lanes *l);

/* Forgets all floors: another server, a reconnect, a clock that stepped. */
void ns_claim_lanes_drop_floors(ns_lanes *l);

/* The same of one queue: rows have come back below them. */
void ns_claim_lanes_drop_floors_of(ns_lanes *l, int64_t queue_id);

/* Learns that a row of (queue, rank) was claimed at ready_at. NULL: OOM. */
ns_lane *ns_claim_lanes_learn(ns_lanes *l, int64_t queue_id, int64_t rank, int64_t ready_at);

/* Nothing was found in the lanes above 'rank': their floors move up to 'floor'. */
void ns_claim_lanes_raise(ns_lanes *l, int64_t queue_id, int64_t rank, int64_t floor);

/* A claim has come short in these lanes, up to their ends. Lanes without an end have nothing
** older than 'reach' left. */
void ns_claim_lanes_exhaust(ns_lane *lanes, size_t n, int64_t reach);

/* The place of a known lane; NULL: it is not known. */
ns_lane *ns_claim_lanes_find(const ns_lanes *l, int64_t queue_id, int64_t rank);

/* The highest floor of a queue's lanes: nothing is hidden above it. */
int64_t ns_claim_lanes_top(const ns_lanes *l, int64_t queue_id);

/* The record of a queue; NULL: OOM. */
ns_claim_queue *ns_claim_queue_of(ns_lanes *l, int64_t queue_id);

/* The range to look at: from <= key < to. */
typedef struct ns_scan_range {
  int64_t from, to;
  bool dear; /* known to take long */
} ns_scan_range;

/* The next range below 'floor'. */
ns_scan_range ns_claim_window_next(const ns_scan_window *w, int64_t floor);

/* The range 'seen' has been looked at, for 'cost' µs. */
void ns_claim_window_seen(ns_scan_window *w, ns_scan_range seen, int64_t cost);

/* The look at 'tried' took too long and was not finished: the next is narrower. */
void ns_claim_window_cut(ns_scan_window *w, ns_scan_range tried);

/* A look that began at 'start', monotonic, is over. */
void ns_claim_window_rest(ns_scan_window *w, int64_t start);

/* When an open look at all is affordable, monotonic. */
int64_t ns_claim_window_when(const ns_scan_window *w);

/* ---------------------------------------------- batches: lease.c */

/* Adds a batch; copies 'jobs'. False: out of memory. */
bool ns_claim_leases_add(ns_leases *l, int64_t id, const ns_claimed *jobs, size_t n);

/* Does a row of claim_read show the job that was claimed, and its signal if it has waited for one? An
** old snapshot may not. */
bool ns_claim_is_shown(const ns_value *row);

/* Adds the job of a row of job_columns to 'out', and notes for its claim the facts for verdicts.
** Errors: NOMEM. */
ns_status ns_claim_read_row(ns_db *db, int64_t lease, const ns_value *row, ns_jobs *out,
                            ns_err *err);

/* ------------------------------------ claiming statements: statement.c */

void ns_claim_filter_free(ns_claim_filter *f);

/* Appends a statement, with the condition in the place of its mark. */
void ns_claim_filter_text(const ns_claim_filter *f, ns_buf *text, ns_sql sql);

/* Ranges of lanes of one queue, in the order of the key. */
typedef struct ns_claim_ranges {
  ns_value params[3 * NS_LANES_MAX + 2];
  size_t n;        /* ranges */
  bool skip_alone; /* without rows of jobs that are claimed alone */
  size_t nparams;
} ns_claim_ranges;

void ns_claim_ranges_begin(ns_claim_ranges *r, int64_t queue_id, bool skip_alone);

/* Rows of one lane: from <= ready_at < to. There is room for NS_LANES_MAX. A range that can
** have no rows is left out. When all are, 'n' stays 0 and no statement is sent. The server
** answers a DELETE … RETURNING with an impossible condition without rows, like one that a KILL
** QUERY has hit. */
void ns_claim_ranges_add(ns_claim_ranges *r, int64_t rank, int64_t from, int64_t to);

/* At most so many rows. The parameters are complete. */
void ns_claim_ranges_end(ns_claim_ranges *r, size_t limit);

/* The statement with as many ranges in the place of its mark; 'kinds': as of
** ns_claim_filter_kinds. */
ns_status ns_claim_ranges_text(const ns_claim_ranges *r, ns_sql sql, const char *kinds,
                               ns_buf *text, ns_err *err);

/* Runs the form that is open now: fast, a DELETE, or skip, a SELECT … SKIP LOCKED. '*ran' is
** the statement to fetch from; '*slow': its rows are locked and still to be deleted. */
ns_status ns_claim_form_run(ns_db *db, ns_bytes fast, ns_bytes skip, const ns_value *params,
                            ns_stmt **ran, bool *slow, ns_err *err);

/* ----------------------------------------- hidden rows and lanes: sweep.c */

#define NS_SWEEP_CLAIMS 8 /* from one sweep to the next, at least */

/* Is a sweep affordable now? */
bool ns_claim_sweep_is_due(const ns_claim_queue *q);

/* Learns lanes, and moves floors back to late rows, so that the next claim takes both;
** takes nothing itself. '*news': whether it has. 'all': of all there is
** below the floors; else of one window. */
ns_status ns_claim_sweep_run(ns_db *db, ns_claim_queue *q, bool all, bool *news, ns_err *err);

/* 'n' times a statement in brackets, as one: '*s' has run with 'params'. */
ns_status ns_claim_union_run(ns_db *db, ns_sql sql, size_t n, const ns_value *params, ns_stmt **s,
                             ns_err *err);

/* For some milliseconds, reads on above the floors of lanes whose next claimable row is not
** known: their floors rise. A stretch that may have fewer than 'want' jobs becomes longer. */
ns_status ns_claim_prescan_above(ns_db *db, ns_claim_queue *q, size_t want, ns_err *err);

/* Has a lane of this queue been left in the middle, by this cycle's claim? */
bool ns_claim_prescan_goes_on(const ns_db *db, int64_t queue_id);

/* ------------------------------------------------------- taking: take.c */

/* Takes up to 'want' rows of one queue out of ready. */
ns_status ns_claim_take_rows(ns_db *db, ns_claim_queue *q, size_t want, ns_claim_rows *out,
                             ns_err *err);

/* Adds the rows of an answer: rank, ready_at, job, run, alone, kind. */
ns_status ns_claim_collect_rows(ns_db *db, ns_stmt *s, int64_t queue_id, ns_claim_rows *out,
                                ns_err *err);

/* Remembers a batch that is not committed yet; 'span' as of ns_lease. False: out of memory. */
bool ns_claim_remember(ns_db *db, const ns_claim_rows *rows, int64_t lease, int64_t span);

/* A claim of 'want' rows is over, and has found so many. */
void ns_claim_took(ns_claim_queue *q, size_t found, size_t want);

/* Deletes by key rows that are locked. */
ns_status ns_claim_delete_rows(ns_db *db, const ns_claim_row *rows, size_t n, ns_err *err);

/* The places for all queues: 'limit' less the reserved places. A reserved place of a queue
** that has too few jobs stays empty. */
size_t ns_claim_open_places(const ns_weighted_queue *queues, size_t nqueues, size_t limit);

/* The same of a limited queue, by its limits: promote.c. */
ns_status ns_claim_take_limited(ns_db *db, ns_claim_queue *q, size_t want, ns_claim_rows *out,
                                ns_err *err);

/* Is the last of them a job that is to be claimed alone, and that was admitted? Then the claim is
** over. */
bool ns_claim_is_alone_admitted(const ns_claim_rows *rows);

/* ----------------------------------- aging and admission locks: turns.c */

/* Is a turn of the lower lanes due? */
bool ns_claim_aging_due(const ns_db *db, const ns_claim_queue *q);

/* One turn: chooses the lower lane with the oldest rows to take, and how many of the 'want'
** rows of this claim. '*n' is at least one if there is any, 0: none. */
ns_status ns_claim_aging_choose(ns_db *db, ns_claim_queue *q, size_t want, ns_lane *lane, size_t *n,
                                ns_err *err);

/* A claim has taken rows in true order, the last one of 'rank'. */
void ns_claim_aging_count(ns_claim_queue *q, size_t rows, int64_t rank);

/* Nothing lies below: the whole queue has been looked through. */
void ns_claim_aging_reset(ns_claim_queue *q);

/* May a look be cut when it takes long? From then on an admission lock is to be had. Not for
** claimers that have met contention or have such a lock, nor for hosts, which are few, nor
** where named locks do not work. */
bool ns_claim_admission_watches(const ns_db *db);

/* A look was cut because of other sessions: its error becomes one after which the transaction
** runs again, with an admission lock. Other errors stay as they are. */
ns_status ns_claim_admission_met(ns_db *db, ns_status st, ns_err *err);

#endif
