/*
** Edges: "this job waits for that one".
*/
#ifndef NS_PUSH_EDGES_H
#define NS_PUSH_EDGES_H

#include "db/db.h"
#include "push/insert.h"

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
bool ns_edges_add(ns_edges *edges, int64_t on, int64_t job); /* false: no memory */
ns_status ns_edges_write(ns_db *db, const ns_edges *edges, ns_err *err);
void ns_edges_free(ns_edges *edges);

/* Parents that are parked wait for the children that 'rows' bring, too. After
** ns_edges_write. Errors: INVALID (such a child waits for its parent), … */
ns_status ns_edges_join(ns_db *db, const ns_insert *rows, size_t n, ns_err *err);

/* None of its children may wait for what waits for it. Errors: INVALID, GONE. */
ns_status ns_circle_refuse(ns_db *db, int64_t parent, ns_err *err);

/* Two that close a circle together each see only their half of it, unless the one
** looks after the other's commit. 'turn': edge_circle_turn, or edge_circle_wait.
** '*mine': nobody else is at it. Errors: GONE, BUSY. */
ns_status ns_circle_turn(ns_db *db, ns_sql turn, bool *mine, ns_err *err);

#endif
