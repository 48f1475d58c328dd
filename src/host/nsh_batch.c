/*
** Batches of verdicts. A chunk is CHUNK bytes, or as large as the one thing
** that did not fit into a fresh one.
*/
#include "nsh_batch.h"

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "nsh_memory.h"

#define CHUNK ((size_t)64 << 10)

struct nsh_chunk {
  nsh_chunk *next;
  size_t n, cap;
  alignas(max_align_t) char bytes[];
};

static void *room(nsh_batch *b, size_t n) {
  size_t size = (n + alignof(max_align_t) - 1) & ~(alignof(max_align_t) - 1);
  nsh_chunk *c = b->chunks;
  void *p;
  if (c == NULL || c->cap - c->n < size) {
    size_t cap = size > CHUNK ? size : CHUNK;
    c = malloc(sizeof *c + cap);
    nsh_must(c != NULL);
    *c = (nsh_chunk){.next = b->chunks, .n = 0, .cap = cap};
    b->chunks = c;
  }
  p = c->bytes + c->n;
  c->n += size;
  return p;
}

ns_verdict *nsh_batch_add(nsh_batch *b) {
  ns_verdict *v;
  nsh_must(ns_grow(&b->items, &b->cap, b->n + 1, sizeof *b->items));
  v = &b->items[b->n++];
  *v = (ns_verdict){.delay = -1};
  return v;
}

ns_bytes nsh_batch_keep(nsh_batch *b, ns_bytes s) {
  char *p;
  if (s.p == NULL)
    return NS_NONE;
  p = room(b, s.n + 1);
  memcpy(p, s.p, s.n);
  p[s.n] = '\0';
  return (ns_bytes){p, s.n};
}

ns_push *nsh_batch_children(nsh_batch *b, size_t n) {
  return n > 0 ? memset(room(b, n * sizeof(ns_push)), 0, n * sizeof(ns_push))
               : NULL;
}

static void copy_child(nsh_batch *b, ns_push *to, const ns_push *from) {
  *to = *from;
  to->name = nsh_batch_keep(b, from->name);
  to->payload = nsh_batch_keep(b, from->payload);
  to->queue = nsh_batch_keep(b, from->queue);
  to->unique = nsh_batch_keep(b, from->unique);
}

void nsh_batch_copy(nsh_batch *b, const ns_verdict *from) {
  ns_verdict *to = nsh_batch_add(b);
  *to = *from;
  to->result = nsh_batch_keep(b, from->result);
  to->error = nsh_batch_keep(b, from->error);
  to->state = nsh_batch_keep(b, from->state);
  to->log = nsh_batch_keep(b, from->log);
  to->children = nsh_batch_children(b, from->nchildren);
  for (size_t i = 0; i < from->nchildren; i++)
    copy_child(b, &to->children[i], &from->children[i]);
}

/* The first chunk stays when it is an ordinary one. */
void nsh_batch_clear(nsh_batch *b) {
  nsh_chunk *next;
  while (b->chunks != NULL &&
         (b->chunks->next != NULL || b->chunks->cap > CHUNK)) {
    next = b->chunks->next;
    free(b->chunks);
    b->chunks = next;
  }
  if (b->chunks != NULL)
    b->chunks->n = 0;
  b->n = 0;
}

void nsh_batch_free(nsh_batch *b) {
  nsh_batch_clear(b);
  free(b->chunks);
  free(b->items);
  *b = NSH_BATCH_INIT;
}
