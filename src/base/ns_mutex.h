/*
** Named locks between processes, with one unit (a mutex) or several (a
** semaphore). They need no preparation: a name is there while it is held.
**
** Who holds a unit is written down as a member: a thread that has locked a
** robust mutex of its own for life, so the kernel tells that it is dead. A
** unit of a dead member is free. Members and units are one word each in a
** dict, so an owner's death in the middle of lock or unlock harms nothing.
**
** Invariant: a unit belongs to the thread that locked it; a child forked
** meanwhile does not hold it.
*/
#ifndef NS_MUTEX_H
#define NS_MUTEX_H

#include <stddef.h>
#include <stdint.h>

#include "ns_buf.h"
#include "ns_err.h"

#define NS_MUTEX_NAME_MAX 100  /* bytes */
#define NS_MUTEX_UNITS_MAX 1000

typedef struct ns_locks ns_locks;

/* Bytes that ns_locks_make needs; what is not used is not touched. */
size_t ns_locks_size(void);

/* Makes the table in zeroed memory; NULL: see ns_latch_init. */
ns_locks *ns_locks_make(void *memory);

/*
** Takes a unit of the mutex or semaphore 'name'. All who use a name have to
** say the same number of 'units'; 0 is a mutex, which is another thing than a
** semaphore of the same name. '*unit' tells ns_mutex_unlock which it is.
** Errors: BUSY when there is none within 'timeout' (µs), naming a holder;
** STATE when this thread has one already; INVALID name; FULL. 'interrupted' (may be
** NULL) is asked after each sleep and each signal; true: the next look is the last.
*/
ns_status ns_mutex_lock(ns_locks *t, ns_bytes name, unsigned units,
                        int64_t timeout, bool (*interrupted)(void *), void *arg,
                        unsigned *unit, ns_err *err);

/* Gives a unit back. Errors: STATE when this thread does not hold it; BUSY. */
ns_status ns_mutex_unlock(ns_locks *t, ns_bytes name, unsigned units,
                          unsigned unit, ns_err *err);

/* Gives back whatever this thread holds. Nothing held costs nothing.
** Errors: BUSY. */
ns_status ns_mutex_unlock_all(ns_locks *t, ns_err *err);

#endif
