/*
** Broods: the children of jobs that are about to wait for them. A batch of parents
** costs as many statements as one parent.
*/
#ifndef NS_SETTLE_WAITING_CHILDREN_H
#define NS_SETTLE_WAITING_CHILDREN_H

#include "settle/outcome.h"

/* Parents whose verdicts are to park them, locked, sorted by id; borrowed. Those
** that are put off, or end, stay among them and are passed over. */
typedef struct ns_parents {
  ns_outcome **items;
  size_t n;
} ns_parents;

/*
** Before anything is written: locks their live children. A parent is put off while
** somebody is ending one of them, or holds one that is to be let go; or while
** another transaction has the turn of those that might close a circle.
** Waits for nobody. Errors: GONE, NOMEM.
*/
ns_status ns_children_lock(ns_db *db, const ns_parents *p, ns_err *err);

/* After the children of this batch have been written. Ends parents one of whose
** children has failed since their run was claimed. Errors: GONE, NOMEM. */
ns_status ns_children_failed(ns_db *db, const ns_parents *p, ns_err *err);

/* Has them wait for their live children, which are locked or new, and lets go those
** that wait for their parent's end: children of runs that said "again"; they and the
** parent would wait for each other for ever. 'live' of each says how many there are.
** Errors: INVALID (one waits for something that waits for the parent), GONE, NOMEM. */
ns_status ns_children_wait(ns_db *db, const ns_parents *p, ns_err *err);

#endif
