/*
** Lines of claimed jobs: a ring each; loads count who is still in a line.
*/
#include "pool/prefetch.h"

#include <stdlib.h>

#include "ipc/alloc.h"

static void grow(nsh_prefetch *b) {
  size_t cap = b->cap > 0 ? b->cap * 2 : 64;
  nsh_waiting *items = nsh_alloc(cap * sizeof *items);
  for (size_t i = 0; i < b->n; i++)
    items[i] = b->items[(b->first + i) & (b->cap - 1)];
  free(b->items);
  b->items = items;
  b->cap = cap;
  b->first = 0;
}

void nsh_prefetch_add(nsh_prefetch *b, const nsh_waiting *w) {
  if (b->n == b->cap)
    grow(b);
  b->items[(b->first + b->n++) & (b->cap - 1)] = *w;
}

const nsh_waiting *nsh_prefetch_first(const nsh_prefetch *b) {
  return &b->items[b->first];
}

void nsh_prefetch_pop(nsh_prefetch *b) {
  nsh_load *load = b->items[b->first].load;
  b->first = (b->first + 1) & (b->cap - 1);
  b->n--;
  if (--load->left == 0)
    nsh_load_free(load);
}

static nsh_waiting *at(const nsh_prefetch *b, size_t i) {
  return &b->items[(b->first + i) & (b->cap - 1)];
}

size_t nsh_prefetch_drop(nsh_prefetch *b, bool (*leaves)(void *arg, const ns_job *job), void *arg) {
  size_t n = b->n;
  b->n = 0;
  for (size_t i = 0; i < n; i++) {
    nsh_waiting w = *at(b, i);
    if (!leaves(arg, w.job))
      *at(b, b->n++) = w;
    else if (--w.load->left == 0)
      nsh_load_free(w.load);
  }
  return n - b->n;
}

void nsh_prefetch_free(nsh_prefetch *b) {
  while (b->n > 0)
    nsh_prefetch_pop(b);
  free(b->items);
}
