/*
** Memory that the processes of a host share: latches, a dict and named locks. The region of
** nightshift.shared has one dict and one table of locks.
**
** Invariant: a process may die at any instruction; the memory it leaves is good, or the next
** taker of the latch repairs it. (spec/unit kills processes at each store.)
*/
#ifndef NS_SHARED_H
#define NS_SHARED_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base.h"

/* ---------------------------------------------------------- latches: locks.c */

/*
** A lock between processes that the death of its holder opens.
**
** Invariant: a latch lives in memory that all its users share. A holder that dies leaves the
** guarded memory half changed, so the next owner repairs it first. An owner that dies during
** the repair leaves the repair to the next one.
*/
typedef struct ns_latch {
  pthread_mutex_t mutex;
  _Atomic uint32_t taken; /* how often, mod 2^32 */
} ns_latch;

/* Returns false when the system does not offer such locks. */
bool ns_latch_init(ns_latch *l);

/*
** Waits for the latch and takes it. If its last holder died in possession,
** repair(arg) is called first. Not for callers that have it already.
** Errors: BUSY when one holder keeps it for seconds, a stopped process that is.
** A latch that changes hands is waited for, however many want it.
*/
ns_status ns_latch_take(ns_latch *l, void (*repair)(void *), void *arg, ns_err *err);
void ns_latch_drop(ns_latch *l);

/* Takes it if no living process has it; there is nothing to repair. */
bool ns_latch_try(ns_latch *l);

/* ---------------------------------------------------------- the dict: dict.c */

/*
** A dict in a fixed piece of shared memory that survives the death of a
** process in the middle of a change.
**
** Memory is cut into cells of 64 bytes. An entry takes one cell; its key and a value of bytes
** take a chain of cells each. Only cells that the buckets lead to are valid. A change prepares
** cells that nothing leads to and then stores one word. A process that dies before that store
** has changed nothing; after it, everything. The rest (free cells, order of use) is derived,
** and ns_dict_repair derives it anew.
**
** Invariant: the caller holds the latch of the memory around every call here. (A dict does not
** know its latch: debug builds assert that a latch is held when it is dropped.) Pointers into
** the dict are good in the process that made it and in its children, which have it at the same
** address.
*/
#define NS_DICT_KEY_MAX 255 /* bytes; a key has at least one */

typedef enum ns_item_type {
  NS_ITEM_NONE,  /* no value */
  NS_ITEM_INT,   /* i */
  NS_ITEM_REAL,  /* d */
  NS_ITEM_BOOL,  /* i: 0 or 1 */
  NS_ITEM_BYTES, /* s */
  NS_ITEM_JSON   /* s: JSON text, the dict does not look into it */
} ns_item_type;

typedef struct ns_item {
  ns_item_type type;
  int64_t i;
  double d;
  ns_bytes s;
  int64_t expires; /* monotonic µs; 0: never */
} ns_item;

typedef struct ns_dict ns_dict;
typedef uint32_t ns_at; /* an entry, until the next change; 0: none */

/*
** Makes an empty dict in 'size' zeroed bytes (at least 4096). An entry that does not fit is
** refused, or with 'evict' replaces the least recently used entries. Untouched memory stays
** untouched until it is needed.
*/
ns_dict *ns_dict_make(void *memory, size_t size, bool evict);

/* The entry of a key. An entry that has expired by 'now' is removed, and not found. */
ns_at ns_dict_find(ns_dict *d, ns_bytes key, int64_t now);

/* Reads the value of an entry; of bytes only their number, in s.n. Counts as a use. */
ns_item ns_dict_read(ns_dict *d, ns_at at);

/* Adds the entry's bytes (none for other values), or its key, to 'out'. */
void ns_dict_add_bytes(const ns_dict *d, ns_at at, ns_buf *out);
void ns_dict_add_key(const ns_dict *d, ns_at at, ns_buf *out);

/* Are these its bytes? */
bool ns_dict_holds(const ns_dict *d, ns_at at, ns_bytes bytes);

/*
** Sets the value of a key. A number or boolean that replaces another value
** needs no room; bytes need it beside the value they replace.
** Errors: FULL, TOO_BIG when it could never fit (no message is made).
*/
ns_status ns_dict_put(ns_dict *d, ns_bytes key, const ns_item *item, int64_t now);

void ns_dict_remove(ns_dict *d, ns_at at);

/* Calls fn for each entry that has not expired; it may remove that one. */
void ns_dict_each(ns_dict *d, int64_t now, void (*fn)(ns_dict *d, ns_at at, void *arg), void *arg);

/* After the death of a process in a call: makes the derived parts good. */
void ns_dict_repair(ns_dict *d);

/* Are all cells accounted for, each once? For specs. */
bool ns_dict_sound(ns_dict *d);

/* ------------------------------------------------------ named locks: locks.c */

/*
** Named locks between processes, with one unit (a mutex) or several (a
** semaphore). They need no preparation: a name is there while it is held.
**
** The holder of a unit is recorded as a member: a thread that has locked a robust mutex of its
** own for life. The kernel tells when it is dead. A unit of a dead member is free. Members and
** units are one word each in a dict, so an owner's death in the middle of lock or unlock harms
** nothing.
**
** Invariant: a unit belongs to the thread that locked it; a child forked
** meanwhile does not hold it.
*/
#define NS_MUTEX_NAME_MAX 100 /* bytes */
#define NS_MUTEX_UNITS_MAX 1000

typedef struct ns_locks ns_locks;

/* Bytes that ns_locks_make needs; unused bytes are not touched. */
size_t ns_locks_size(void);

/* Makes the table in zeroed memory; NULL: see ns_latch_init. */
ns_locks *ns_locks_make(void *memory);

/*
** Takes a unit of the mutex or semaphore 'name'. All callers that use a name have to say the
** same number of 'units'. 0 is a mutex, which differs from a semaphore of the same name.
** '*unit' tells ns_mutex_unlock which it is. Errors: BUSY when there is none within 'timeout'
** (µs), naming a holder; STATE when this thread has one already; INVALID name; FULL.
** 'interrupted' (may be NULL) is asked after each sleep and each signal; true: the next look is
** the last.
*/
ns_status ns_mutex_lock(ns_locks *t, ns_bytes name, unsigned units, int64_t timeout,
                        bool (*interrupted)(void *), void *arg, unsigned *unit, ns_err *err);

/* Gives a unit back. Errors: STATE when this thread does not hold it; BUSY. */
ns_status ns_mutex_unlock(ns_locks *t, ns_bytes name, unsigned units, unsigned unit, ns_err *err);

/* Gives back whatever this thread holds. Nothing held costs nothing.
** Errors: BUSY. */
ns_status ns_mutex_unlock_all(ns_locks *t, ns_err *err);

/* ---------------------------------- the verbs of nightshift.shared: shared.c */

/*
** The verbs of nightshift.shared: a dict and the latch that guards it.
** Invariant: each verb is one change of the dict under the latch, so a process
** that dies in it has done it or has not. Keys are 1 to 255 bytes. (Only the second is asserted:
** for the first, spec/unit kills processes at each store.)
** Every verb may fail with BUSY (see ns_latch_take) and INVALID (the key).
*/
typedef struct ns_shared {
  ns_latch latch;
  ns_dict *dict;
  size_t size; /* bytes it was made with, for messages */
} ns_shared;

/* Makes it in zeroed memory; false: see ns_latch_init. */
bool ns_shared_init(ns_shared *s, void *memory, size_t size, bool evict);

/* The value, type NONE when there is none. Bytes are added to 'bytes' and
** item->s points there. Errors: NOMEM. */
ns_status ns_shared_get(ns_shared *s, ns_bytes key, ns_item *item, ns_buf *bytes, ns_err *err);

/* Sets a value; with 'absent' only if there is none, and '*done' (may be NULL)
** tells. Errors: FULL, TOO_BIG. */
ns_status ns_shared_set(ns_shared *s, ns_bytes key, const ns_item *item, bool absent, bool *done,
                        ns_err *err);

/* Adds 'by' to the number of the key, or to 'init' when there is none, and fills '*sum'. An int
** and an int give an int. An expiry stays. Errors: FULL, INVALID for another type or beyond 64
** bits. */
ns_status ns_shared_incr(ns_shared *s, ns_bytes key, const ns_item *by, const ns_item *init,
                         ns_item *sum, ns_err *err);

/* Sets the value to 'now' if it is 'was'; NONE stands for no value on either side. 1 is 1.0,
** JSON is nothing. An expiry stays. Errors: FULL, TOO_BIG. */
ns_status ns_shared_cas(ns_shared *s, ns_bytes key, const ns_item *was, const ns_item *now,
                        bool *done, ns_err *err);

ns_status ns_shared_delete(ns_shared *s, ns_bytes key, bool *done, ns_err *err);

/* Gives the µs until the key expires; -1: never; '*there' false: there is no such key. */
ns_status ns_shared_ttl(ns_shared *s, ns_bytes key, int64_t *us, bool *there, ns_err *err);

/* Adds the keys that begin with 'prefix' to 'out', each behind a byte that is
** its length; in no order. Errors: NOMEM. */
ns_status ns_shared_keys(ns_shared *s, ns_bytes prefix, ns_buf *out, ns_err *err);

/* ------------------------------------------------------ the region: shared.c */

/*
** The memory that the processes of a host share: the dict of nightshift.shared
** and the table of mutexes and semaphores. It is mapped before the first fork
** and has no name anywhere, so it ends with the last process that has it.
*/
#define NS_REGION_DEFAULT "1M"

typedef struct ns_region {
  ns_shared shared;
  ns_locks *locks;
  size_t mapped; /* bytes */
} ns_region;

/*
** Reads a size for the dict: "512K", "1M", "2G" or bytes, from 64K to 64G,
** and perhaps ",evict". Errors: INVALID.
*/
ns_status ns_region_parse(const char *text, size_t *size, bool *evict, ns_err *err);

/* Maps a region for us and our later children. Errors: NOMEM. */
ns_status ns_region_map(ns_region **r, size_t size, bool evict, ns_err *err);
void ns_region_unmap(ns_region *r);

/*
** Maps the region of this process with a dict as 'text' says; NULL: as
** $NIGHTSHIFT_SHARED says, or the default.
** Errors: STATE when it is there already; INVALID, NOMEM.
*/
ns_status ns_region_open(const char *text, ns_err *err);

/* The region of this process, mapped now if need be; NULL: see 'err'. */
ns_region *ns_region_get(ns_err *err);

#endif
