/*
** The claim's steps, for cycle/cycle.c: promote, take, lease, read.
*/
#ifndef NS_CLAIM_TAKE_H
#define NS_CLAIM_TAKE_H

#include "claim/lanes.h"
#include "nightshift.h"

/* A row taken out of ready. */
typedef struct ns_take {
  int64_t queue_id, rank, ready_at, id, run, kind;
  bool alone; /* it was lost with its holder before: nothing beside it */
} ns_take;

typedef struct ns_takes {
  ns_take *items;
  size_t n, cap;
} ns_takes;

/* Moves what is due from scheduled to ready. '*next_due': µs until the next
** one, -1: none. Looks at most every 20 ms unless something is due. */
ns_status ns_promote(ns_db *db, int64_t *next_due, ns_err *err);

/* After the commit: what was promoted is not looked at again. */
void ns_promote_done(ns_db *db);

/* Makes one job ready now. */
ns_status ns_promote_one(ns_db *db, int64_t queue_id, int64_t rank, int64_t id,
                         int64_t run, int64_t kind, ns_err *err);

/* Takes up to 'limit' ready rows out of 'feeds': reserved places first, then in
** weighted shares, or strictly. */
ns_status ns_take_ready(ns_db *db, const ns_feed *feeds, size_t nfeeds,
                        size_t limit, ns_takes *out, ns_err *err);

/* Takes up to 'want' rows of one queue. */
ns_status ns_take_queue(ns_db *db, ns_sweep *s, size_t want, ns_takes *out, ns_err *err);

/* Deletes by key rows that are locked. */
ns_status ns_take_drop(ns_db *db, const ns_take *rows, size_t n, ns_err *err);

/* Takes up to 'want' rows of one lane, from its floor on. */
ns_status ns_take_lane(ns_db *db, const ns_lane *lane, size_t want,
                       ns_takes *out, ns_err *err);

/* After a claim that came back with too few jobs, or 'none': '*in' µs, -1: any time, is cut
** to when one of these queues is looked at on, or, with none, everywhere. */
void ns_take_again(const ns_db *db, const ns_feed *feeds, size_t nfeeds, bool none,
                   int64_t *in);

/*
** Jobs to be claimed alone leave 'takes' and are put back; the first of them is
** remembered in db->alone, and the next ns_take_alone takes it, when the handle
** holds no other such job. So a job that kills its holders takes no other
** suspect with it. While one is held, claims leave the others where they are, and
** db->passed says so.
*/
ns_status ns_take_apart(ns_db *db, ns_takes *takes, ns_err *err);
ns_status ns_take_alone(ns_db *db, const ns_feed *feeds, size_t nfeeds,
                        size_t limit, ns_takes *takes, ns_err *err);

/* May there be one that a claim of these takes alone? */
bool ns_take_alone_next(const ns_db *db, const ns_feed *feeds, size_t nfeeds,
                        size_t limit);

/* Sends one lease row for 'takes' and remembers the batch; '*lease' gets its
** id. It lasts 'span' µs untouched, 0: as long as its holder. ns_take_undo forgets
** it, when the transaction fails; 0 is allowed. */
ns_status ns_take_lease(ns_db *db, const ns_takes *takes, int64_t span,
                        int64_t *lease, ns_err *err);

void ns_take_undo(ns_db *db, int64_t lease);

/* After the commit: floors and lanes are learnt, sentinels put up. */
void ns_take_done(ns_db *db, const ns_takes *takes);

/* A cut commit whose fate could not be learnt: its batch is kept in doubt, and
** ns_take_resolve looks whether its lease exists: then it is 'unread', else it
** is forgotten. Errors: GONE, BUSY. */
void ns_take_doubt(ns_db *db, int64_t lease);
ns_status ns_take_resolve(ns_db *db, ns_err *err);

/* Asks for the jobs of a claim behind its COMMIT, when that takes one statement;
** best effort. The ns_take_read that follows has them. */
void ns_take_ahead(ns_db *db, const ns_takes *takes);

/* Reads the jobs of a lease that are still ours into 'out', in the order of
** 'takes' (NULL: by id); the others are forgotten. */
ns_status ns_take_read(ns_db *db, int64_t lease, const ns_takes *takes,
                       ns_jobs *out, ns_err *err);

/* Adds a job, to be filled, with room for so many bytes at '*at' that live as long.
** NULL: out of memory. */
ns_job *ns_jobs_add(ns_jobs *jobs, size_t bytes, char **at);

#endif
