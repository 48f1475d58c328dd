/*
** Edges: "this job waits for that one".
*/
#ifndef NS_EDGE_H
#define NS_EDGE_H

#include "ns_push.h"

/*
** What the rows of an insert wait for: locks the jobs they name, so that none
** of them ends unseen before our commit, and fills in 'unmet' and 'doomed'. A
** name of a row in the same insert counts as a live job. '*edges' gets what
** ns_edges_write takes; ns_edges_free afterwards in any case.
** Errors: NOT_FOUND (a job that is named is unknown), INVALID, BUSY, GONE.
*/
typedef struct ns_edges {
  int64_t *on, *job; /* of each edge */
  size_t n, cap, capjob;
  bool nowait;       /* in: do not wait for who holds a row */
  size_t held;       /* then: 1 + the index of a row whose target is held; 0 */
} ns_edges;

ns_status ns_edges_find(ns_db *db, ns_insert *rows, size_t n, ns_edges *edges,
                        ns_err *err);
ns_status ns_edges_write(ns_db *db, const ns_edges *edges, ns_err *err);
void ns_edges_free(ns_edges *edges);

/* Parents that are parked wait for the children that 'rows' bring, too. After
** ns_edges_write. Errors: INVALID (such a child waits for its parent), … */
ns_status ns_edges_join(ns_db *db, const ns_insert *rows, size_t n, ns_err *err);

/* Locks the live children of a job that is about to wait for them. '*all' is
** false when somebody is ending one of them, or holds one that is to be let go:
** to be tried again. */
ns_status ns_brood_lock(ns_db *db, int64_t parent, bool *all, ns_err *err);

/* A child that has failed since the parent's run, which is of 'lease', was
** claimed; 0: none. */
ns_status ns_brood_failed(ns_db *db, int64_t parent, int64_t lease,
                          int64_t *child, ns_err *err);

/* Lets go the children, locked, that wait for their parent's end: those of runs
** that said "again". They and the parent would wait for each other for ever. */
ns_status ns_brood_let_go(ns_db *db, int64_t parent, ns_err *err);

/* After ns_brood_lock, which keeps others from waiting for the parent. '*tied',
** in: new children wait for something; out: somebody waits for the parent. Where
** both are so a circle may close; such parents take turns, each until its commit.
** '*mine' is false while another has the turn: to be tried again. */
ns_status ns_brood_turn(ns_db *db, int64_t parent, bool *tied, bool *mine,
                        ns_err *err);

/* Has the parent wait for its live children, which are locked or new; '*n':
** how many there are. 'tied': as from ns_brood_turn. After ns_brood_let_go.
** Errors: INVALID (one waits for something that waits for the parent), … */
ns_status ns_brood_wait(ns_db *db, int64_t parent, bool tied, int64_t *n,
                        ns_err *err);

#endif
