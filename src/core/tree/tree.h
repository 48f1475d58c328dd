/*
** Working through a job and all below it, for the verbs: tree/verbs.c and tree/retry.c.
*/
#ifndef NS_TREE_TREE_H
#define NS_TREE_TREE_H

#include "db/db.h"
#include "handle.h"
#include "nightshift_admin.h"

#define NS_TREE_BATCH 500 /* jobs per transaction */
#define NS_UNSEEN_HOLDER (-1) /* a holder: the claim's lease cannot be seen yet */

/* A live job of the tree, locked. 'run' to 'deadline' are written back when a
** verb has changed it. */
typedef struct ns_node {
  int64_t id, queue_id, rank, run, unmet, due, lost, kind;
  int64_t paused;   /* the job with the pause that holds it, 0: none; negative: a retry of
                    ** that tree is under way */
  int64_t deadline; /* 0: none */
  int64_t wish;     /* when it would be due without one */
  int64_t was_due, was_run, was_queue, was_rank, now;
  int64_t priority; /* given to it; rank has sunk from it */
  int64_t holder;   /* the holder that runs it; 0: none */
  int64_t ready_at; /* where its row in ready is; 0: not known */
  bool asks;        /* it is to be found out whether a claim is taking it */
  bool seen;        /* ... and its lane was read */
  bool placed;      /* ... and none is: its row is locked */
  bool awaits;      /* is, or was last, parked for a signal */
  bool waits;       /* parked until its children have ended */
  bool revoked;     /* a claim of 'was_run', if there is one, is over */
  bool stays;       /* move: its unique key is another's there, or it is of an adopted table */
  bool suspended;   /* a claim of it stands, and is not to be begun */
  bool changed;
  bool moves;       /* has to get another row in ready or scheduled, or, when it is
                    ** not free, to lose its own */
  char *key;        /* its unique key, owned; NULL: none */
  size_t keylen;
} ns_node;

/* The state of one verb on its way through a tree. */
typedef struct ns_tree {
  int64_t id, n;    /* the top, and the verb's number */
  int64_t outer;    /* the job with the pause that holds the jobs above; 0: none */
  ns_bytes text;
  int64_t changed, live; /* jobs, so far */
  /* of the batch under way */
  const int64_t *ids;
  size_t nids;
  ns_node *nodes;
  size_t nnodes, capnodes;
  ns_buf list;      /* scratch */
  bool was_paused;  /* retry: by another verb, before */
  bool noted;       /* retry: the audit has the jobs that are changed from now on */
  int64_t taken;    /* retry: its unique key is another's; 0: none */
  /* of a verb on many jobs */
  const ns_many *many; /* NULL: it is one on a tree */
  ns_status (*step)(ns_db *db, ns_tx *tx, ns_err *err);
  int64_t *wanted;     /* the jobs that the filter holds for, which then are 'ids'; owned */
  int64_t refused;     /* jobs with a unique key that another has */
} ns_tree;

/* A step on a batch, in its transaction; 'tx->arg' is the tree. */
typedef ns_status ns_tree_step(ns_db *db, ns_tx *tx, ns_err *err);

/* Does 'step' with each batch, in a transaction, from the top; then goes to the
** children that are there by then. */
ns_status ns_tree_walk(ns_db *db, ns_tree *t, ns_tree_step *step, ns_err *err);

void ns_tree_free(ns_tree *t);

/* After a batch's commit: tells the jobs that it concerns. Best effort: hosts read their
** notices every ten seconds in any case. */
void ns_tree_told(ns_db *db, ns_tree *t);

/* A job's parent (0: none), whether no pause above it matters, and the job with the pause that
** holds it.
** Errors: NOT_FOUND, GONE. */
ns_status ns_tree_up(ns_db *db, int64_t id, int64_t *parent, bool *sure,
                     int64_t *paused, ns_err *err);

/* Locks the live jobs of the batch; 'held': also finds out which holders run them. */
ns_status ns_tree_lock(ns_db *db, ns_tree *t, bool held, ns_err *err);

/* The batch's node of that job; NULL: none. Good until the batch is over. */
ns_node *ns_tree_node(ns_tree *t, int64_t id);

/* Writes the jobs that have changed, and where they wait. */
ns_status ns_tree_write(ns_db *db, ns_tree *t, ns_err *err);

/* "[id,…]" in the scratch list; good until the next one. */
ns_status ns_tree_ids(ns_tree *t, ns_value *param, ns_err *err);

/* "[[id,run],…]" of the nodes, or of the running ones, in a buffer of 't'. */
ns_value ns_tree_pairs(ns_tree *t, bool held_only);

/*
** Runs after the commit that ended the claims "[[id,run],…]", or paused their jobs: tells their
** holders. A holder that has claimed one while its row was locked may have read the job before
** that commit. It is told, too: its lease is there by now. Best effort: a host learns it from
** the job's next touch, too.
*/
void ns_tree_tell(ns_db *db, const char *kind, ns_bytes why, ns_bytes tokens);

/* What ended jobs, '[id,…]', leave before they run again: the error of a discard, which
** had no attempt, becomes one. Edges on them are deleted. Until the end of the transaction the live
** jobs at their other ends do not end. */
ns_status ns_tree_leave_past(ns_db *db, ns_value list, ns_err *err);

/* An ended job that is to run again. */
typedef struct ns_tree_past {
  int64_t id, queue_id, priority, run, kind;
  char *key; /* its unique key, owned; NULL: none */
  size_t keylen;
} ns_tree_past;

typedef struct ns_tree_pasts {
  ns_tree_past *items;
  size_t n, cap;
} ns_tree_pasts;

/* Adds the rows of a statement that has run: id, queue, key, priority, run, kind. */
ns_status ns_tree_pasts_read(ns_db *db, ns_sql sql, ns_tree_pasts *out, ns_err *err);

/* Forgets all behind the first 'n'. */
void ns_tree_pasts_cut(ns_tree_pasts *p, size_t n);
void ns_tree_pasts_free(ns_tree_pasts *p);

/* Runs a statement on a list of ids and the values of a filter behind 'more'. Errors: GONE, BUSY,
** INVALID. */
ns_status ns_tree_ask(ns_db *db, ns_sql sql, ns_value list, const ns_value *more, size_t nmore,
                      const ns_many *m, ns_err *err);

/* The step of a verb on many live jobs. */
ns_tree_step *ns_tree_many_step(ns_many_verb verb);

/* The verb "retry"; 'release' gives back the jobs that the pause of 't->id' holds. */
ns_status ns_tree_retry(ns_db *db, ns_tree *t, ns_tree_step *release, ns_err *err);

#endif
