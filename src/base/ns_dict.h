/*
** A dict in a fixed piece of shared memory that survives the death of a
** process in the middle of a change.
**
** Memory is cut into cells of 64 bytes; an entry takes one, its key and a
** value that is bytes take a chain of them each. What counts is only what the
** buckets lead to. A change prepares cells that nothing leads to and then
** stores one word, so whoever dies before that store has changed nothing, and
** whoever dies after it has changed all. The rest (free cells, order of use)
** is derived, and ns_dict_repair derives it anew.
**
** Invariant: the caller holds the latch of the memory around every call here. (A dict does not
** know its latch: dropping one that is not held is what debug builds assert.)
** Pointers into the dict are good in the process that made it and in its
** children, which have it at the same address.
*/
#ifndef NS_DICT_H
#define NS_DICT_H

#include <stddef.h>
#include <stdint.h>

#include "ns_buf.h"
#include "ns_err.h"

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
** Makes an empty dict in 'size' zeroed bytes (at least 4096); what does not
** fit is refused, or with 'evict' takes the place of what was least recently
** used. Untouched memory stays untouched until it is needed.
*/
ns_dict *ns_dict_make(void *memory, size_t size, bool evict);

/* The entry of a key. One that has expired by 'now' is removed, not found. */
ns_at ns_dict_find(ns_dict *d, ns_bytes key, int64_t now);

/* Its value; of bytes only their number, in s.n. Counts as a use. */
ns_item ns_dict_read(ns_dict *d, ns_at at);

/* Adds its bytes, none for other values, or its key to 'out'. */
void ns_dict_add_bytes(const ns_dict *d, ns_at at, ns_buf *out);
void ns_dict_add_key(const ns_dict *d, ns_at at, ns_buf *out);

/* Are these its bytes? */
bool ns_dict_holds(const ns_dict *d, ns_at at, ns_bytes bytes);

/*
** Sets the value of a key. A number or boolean that replaces another value
** needs no room; bytes need it beside the value they replace.
** Errors: FULL, TOO_BIG when it could never fit (no message is made).
*/
ns_status ns_dict_put(ns_dict *d, ns_bytes key, const ns_item *item,
                      int64_t now);

void ns_dict_remove(ns_dict *d, ns_at at);

/* Calls fn for each entry that has not expired; it may remove that one. */
void ns_dict_each(ns_dict *d, int64_t now,
                  void (*fn)(ns_dict *d, ns_at at, void *arg), void *arg);

/* After the death of a process in a call: makes the derived parts good. */
void ns_dict_repair(ns_dict *d);

/* Are all cells accounted for, each once? For specs. */
bool ns_dict_sound(ns_dict *d);

#endif
