/*
** Inserting jobs, for pushes and for the children that come with a verdict; and edges: "this
** job waits for that one".
*/
#ifndef NS_PUSH_PUSH_H
#define NS_PUSH_PUSH_H

#include "db/db.h"
#include "nightshift_host.h"

/* One job on its way in: the wishes of its push, and the decisions about it. */
typedef struct ns_insert {
  const ns_push *push; /* borrowed */
  int64_t id, queue_id, nonce;
  int64_t parent, root; /* 0: none */
  int64_t seq;          /* its place among the children of 'parent' */
  bool waits;           /* for 'parent' to be done */
  bool joins;           /* 'parent' is parked, and waits for it, too; by
                        ** ns_push_edges_find */
  bool child;           /* a child of a job that settles: its parent, and the values inherited from
                        ** it, are known */
  int64_t paused;       /* the job with the pause that holds its parent, and so is it; 0: none */
  int64_t deadline;     /* its parent's, if it has none of its own; 0: none */
  int64_t deadline_in;  /* the same of an ancestor that is pushed with it; -1: none */
  int64_t unmet;        /* jobs it waits for, and a pause: not claimable; by
                        ** ns_push_edges_find */
  int64_t kept;         /* the job that has its key and stands in its place; 0: none. A row that does
                        ** not refuse has its key when it is inserted */
  bool replaced;        /* ... 'kept' was made this one */
  int64_t behind;       /* the claimed job that had its key, and that it waits for; 0: none */
  int64_t doomed;       /* a failed job among them: the row is cancelled; 0: none */
} ns_insert;

/* The place of the i-th child that a parent brings with the verdict of a run. */
#define NS_SEQ_RUN INT64_C(1048576)
static inline int64_t ns_seq(int64_t run, size_t i) {
  return run * NS_SEQ_RUN + (i < NS_SEQ_RUN - 1 ? (int64_t)i : NS_SEQ_RUN - 1);
}

/* Is there room for these jobs in queues with a bound? Several of a push may go over it. Errors:
** FULL, GONE. */
ns_status ns_push_room(ns_db *db, const ns_insert *rows, size_t n, ns_err *err);

/* Writes jobs, their keys and edges, and their ready or scheduled rows, on the open
** transaction. 'rows' are in the order of their ids. With 'held' (NULL: wait) it waits for no
** lock on a job that they wait for. When it would have to wait, nothing is written, and '*held'
** is 1 + the index of that row (else 0). Errors: DUPLICATE, INVALID, TOO_BIG, BUSY, GONE. */
ns_status ns_push_write(ns_db *db, ns_insert *rows, size_t n, size_t *held, ns_err *err);

/* One try to write jobs in a transaction of its own, outside any other. None of them waits for
** a job or has a parent; of several none has a key. '*ring', '*cut': as ns_db_pipeline. */
ns_status ns_push_write_pipelined(ns_db *db, const ns_insert *rows, size_t n, bool *ring, bool *cut,
                                  ns_err *err);

/* As ns_push_write_pipelined, for one job, in one wait. After an error its outcome may be open,
** too: a KILL comes at any time. */
ns_status ns_push_write_one(ns_db *db, const ns_insert *row, bool *ring, bool *cut, ns_err *err);

/* True when one of the rows may start within the next 10 s: worth a ring. */
bool ns_push_starts_soon(const ns_insert *rows, size_t n);

/* ------------------------------------------------ tags, group: insert.c */

/* Refuses what is no list of 1 to NS_MAX_TAGS texts. Errors: INVALID. */
ns_status ns_push_tags_check(ns_bytes tags, ns_err *err);

/* Refuses what is no group of 1 to NS_MAX_GROUP characters, in UTF-8, without control characters.
** Errors: INVALID. */
ns_status ns_push_group_check(ns_bytes group, ns_err *err);

/* Writes the tags of rows that have some. Errors: BUSY, GONE, SQL (a text is too long). */
ns_status ns_push_tags_write(ns_db *db, const ns_insert *rows, size_t n, ns_err *err);

/* ------------------------------------------------- unique keys: unique.c */

/* The period of its key as a parameter; NULL: it has none. */
ns_value ns_push_period(const ns_push *p);

/* A unique key, and the job that is to have it. */
typedef struct ns_key {
  int64_t queue;
  ns_bytes text;
  int64_t job, period; /* µs; 0: none */
} ns_key;

typedef struct ns_key_owner {
  int64_t job;  /* 0: none any more */
  bool done;    /* it lives no more, and its period is not over */
  int64_t left; /* of that, µs */
} ns_key_owner;

/* Takes a key on the open transaction: one that is free, whose period is over, or that the same
** job has since it was done. Errors: DUPLICATE ('*owner' has it), BUSY, GONE. */
ns_status ns_push_key_take(ns_db *db, const ns_key *key, ns_key_owner *owner, ns_err *err);

/* Takes the keys of the rows that refuse. Errors: DUPLICATE (err->job has one), BUSY, GONE. */
ns_status ns_push_keys(ns_db *db, const ns_insert *rows, size_t n, ns_err *err);

/* Takes, on the open transaction, the keys of the other rows, and finds the owners of taken keys
** ('kept'). Rows with taken keys are not to be inserted. '*again': a key has its own row as
** owner, so an earlier try has written the push. Errors: BUSY, GONE. */
ns_status ns_push_keep(ns_db *db, ns_insert *rows, size_t n, bool *again, ns_err *err);

/* -------------------------------------------------------- edges: edges.c */

/*
** The waits of the rows of an insert. Locks the jobs that they name, so that none of them ends
** unseen before our commit, and fills in 'unmet' and 'doomed'. A name of a row in the same
** insert counts as a live job. '*edges' gets the argument of ns_push_edges_write;
** ns_push_edges_free afterwards in any case. Errors: NOT_FOUND (a named job is unknown),
** INVALID, BUSY, GONE.
*/
typedef struct ns_edges {
  int64_t *on, *job; /* of each edge */
  size_t n, cap, capjob;
  bool nowait; /* in: do not wait for the session that holds a row */
  size_t held; /* then: 1 + the index of a row with a target that is held; 0 */
} ns_edges;

ns_status ns_push_edges_find(ns_db *db, ns_insert *rows, size_t n, ns_edges *edges, ns_err *err);
bool ns_push_edges_add(ns_edges *edges, int64_t on, int64_t job); /* false: no memory */
ns_status ns_push_edges_write(ns_db *db, const ns_edges *edges, ns_err *err);
void ns_push_edges_free(ns_edges *edges);

/* Parents that are parked wait for the new children in 'rows', too. After ns_push_edges_write.
** Errors: INVALID (such a child waits for its parent), … */
ns_status ns_push_edges_join(ns_db *db, const ns_insert *rows, size_t n, ns_err *err);

/* Refuses a child of 'parent' that waits for a job that waits for 'parent'. Errors: INVALID,
** GONE. */
ns_status ns_push_refuse_circle(ns_db *db, int64_t parent, ns_err *err);

/* Two transactions that close a circle together each see only their half of it, unless one
** looks after the other's commit. 'turn': edge_circle_turn, or edge_circle_wait. '*mine': no
** other transaction has the turn. Errors: GONE, BUSY. */
ns_status ns_push_circle_turn(ns_db *db, ns_sql turn, bool *mine, ns_err *err);

/* A push that said GONE after a cut at its commit: it may have happened. When
** the caller repeats it, it keeps its ids and nonces, and so stays one push. */
typedef struct ns_push_in_doubt {
  ns_buf content;  /* all values of the push, for recognising it */
  int64_t until;   /* monotonic: the same content is a repeat until then; 0: nothing is in doubt */
  struct ns_given *given; /* the jobs of all pushes that were in doubt, the oldest push first */
  size_t n, cap;
} ns_push_in_doubt;

/* A job of a push in doubt. */
typedef struct ns_given {
  int64_t id, nonce;
  int64_t kept; /* the job kept in its place; negative: replaced by it; 0: none */
  int64_t job, outcome; /* what a repeat has found out for good; 'job' 0: nothing yet */
  size_t left;  /* jobs of its push from here on, this one included */
  bool first;   /* of its push */
} ns_given;

#endif
