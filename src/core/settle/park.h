/*
** Steps of settling a batch: the jobs among it that wait.
*/
#ifndef NS_SETTLE_PARK_H
#define NS_SETTLE_PARK_H

#include "settle/outcome.h"

/* Counts a wait, which ends a job that has waited too often since it was pushed or
** given a signal. */
void ns_park_bound(ns_db *db, ns_outcome *f);

/* Before anything is written: a parent whose child somebody is ending, or that
** might close a circle beside another, is put off. */
ns_status ns_park_lock(ns_db *db, ns_outcome *fates, size_t n, ns_err *err);

/* Writes those that wait; one whose child has failed ends instead. After the
** children of this batch have been written. */
ns_status ns_park(ns_db *db, ns_outcome *fates, size_t n, ns_err *err);

/* A run that was given a signal, and went on, needs it no more; who has ended
** needs none. */
ns_status ns_park_forget(ns_db *db, const ns_outcome *fates, size_t n, ns_err *err);

#endif
