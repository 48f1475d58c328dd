/*
** Shared declarations of the files of claim/.
*/
#ifndef NS_CLAIM_INNER_H
#define NS_CLAIM_INNER_H

#include "handle.h"

/* ------------------------------------------------------ lanes: lanes.c */

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
