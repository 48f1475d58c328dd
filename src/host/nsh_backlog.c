/*
** Lines of claimed jobs: a ring each; loads count who is still in a line.
*/
#include "nsh_backlog.h"

#include <stdlib.h>

#include "nsh_memory.h"

static void grow(nsh_backlog *b) {
  size_t cap = b->cap > 0 ? b->cap * 2 : 64;
  nsh_waiting *items = nsh_alloc(cap * sizeof *items);
  for (size_t i = 0; i < b->n; i++)
    items[i] = b->items[(b->first + i) & (b->cap - 1)];
  free(b->items);
  b->items = items;
  b->cap = cap;
  b->first = 0;
}

void nsh_backlog_add(nsh_backlog *b, const nsh_waiting *w) {
  if (b->n == b->cap)
    grow(b);
  b->items[(b->first + b->n++) & (b->cap - 1)] = *w;
}

const nsh_waiting *nsh_backlog_first(const nsh_backlog *b) {
  return &b->items[b->first];
}

void nsh_backlog_pop(nsh_backlog *b) {
  nsh_load *load = b->items[b->first].load;
  b->first = (b->first + 1) & (b->cap - 1);
  b->n--;
  if (--load->left == 0)
    nsh_load_free(load);
}

static nsh_waiting *at(const nsh_backlog *b, size_t i) {
  return &b->items[(b->first + i) & (b->cap - 1)];
}

/* Who is at 'i' leaves. */
static void leave(nsh_backlog *b, size_t i) {
  nsh_load *load = at(b, i)->load;
  for (b->n--; i < b->n; i++)
    *at(b, i) = *at(b, i + 1);
  if (--load->left == 0)
    nsh_load_free(load);
}

bool nsh_backlog_remove(nsh_backlog *b, int64_t id, int64_t run,
                        int64_t *lease) {
  size_t i = 0;
  while (i < b->n && (at(b, i)->job->id != id || at(b, i)->job->run != run))
    i++;
  if (i == b->n)
    return false;
  *lease = at(b, i)->job->lease;
  leave(b, i);
  return true;
}

bool nsh_backlog_take(nsh_backlog *b, int64_t lease, ns_token *token) {
  size_t i = 0;
  while (i < b->n && at(b, i)->job->lease != lease)
    i++;
  if (i == b->n)
    return false;
  *token = (ns_token){.id = at(b, i)->job->id, .run = at(b, i)->job->run};
  leave(b, i);
  return true;
}

void nsh_backlog_free(nsh_backlog *b) {
  while (b->n > 0)
    nsh_backlog_pop(b);
  free(b->items);
}
