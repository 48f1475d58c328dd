/*
** Verdicts on their way to the database, with every byte they point to.
**
** Invariant: bytes live in chunks that never move, so what a verdict points to stays
** valid until its batch is cleared, however many are added after it. The verdicts
** themselves do move: nobody is given a pointer to one, they are added complete. A
** chunk may be a file that has no name: its pages need not stay in memory.
*/
#ifndef NSH_DISPATCHER_BATCH_H
#define NSH_DISPATCHER_BATCH_H

#include "nightshift_host.h"

typedef struct nsh_chunk nsh_chunk;

typedef struct nsh_batch {
  ns_verdict *items;
  size_t n, cap;
  nsh_chunk *chunks; /* the newest first */
} nsh_batch;

#define NSH_BATCH_INIT ((nsh_batch){NULL, 0, 0, NULL})

/* Appends '*v' as it is: its bytes and children are the batch's already. */
void nsh_batch_add(nsh_batch *b, const ns_verdict *v);

/* Copies of bytes that live as long as the batch. Absent bytes stay absent. */
ns_bytes nsh_batch_keep(nsh_batch *b, ns_bytes s);
/* The same for bytes that may have to wait long: over 64 KiB they go into a
** file without a name in $TMPDIR or /tmp, or into memory when that fails. */
ns_bytes nsh_batch_spill(nsh_batch *b, ns_bytes s);

/* Room for children, zeroed; lives as long as the batch. */
ns_push *nsh_batch_children(nsh_batch *b, size_t n);

/* Has the texts of a child point to copies that live as long as the batch. */
void nsh_batch_keep_child(nsh_batch *b, ns_push *child);

/* Appends a deep copy of 'v'. */
void nsh_batch_copy(nsh_batch *b, const ns_verdict *v);

/* Forgets all verdicts; keeps a little memory for the next ones. */
void nsh_batch_clear(nsh_batch *b);
void nsh_batch_free(nsh_batch *b);

#endif
