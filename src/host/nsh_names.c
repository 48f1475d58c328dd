/*
** A small hash table of names; it only grows.
*/
#include "nsh_names.h"

#include <stdlib.h>
#include <string.h>

#include "nsh_memory.h"

/* FNV-1a */
static size_t hash(ns_bytes s) {
  uint64_t h = UINT64_C(14695981039346656037);
  for (size_t i = 0; i < s.n; i++)
    h = (h ^ (unsigned char)s.p[i]) * UINT64_C(1099511628211);
  return (size_t)(h ^ h >> 32);
}

/* Where the name is, or where it would go. */
static nsh_name **find(nsh_name **items, size_t cap, ns_bytes s) {
  size_t i = hash(s) & (cap - 1);
  while (items[i] != NULL &&
         (items[i]->n != s.n || memcmp(items[i]->text, s.p, s.n) != 0))
    i = (i + 1) & (cap - 1);
  return &items[i];
}

static void grow(nsh_names *t) {
  size_t cap = t->cap > 0 ? t->cap * 2 : 16;
  nsh_name **items = nsh_alloc(cap * sizeof(*items));
  for (size_t i = 0; i < t->cap; i++)
    if (t->items[i] != NULL)
      *find(items, cap, (ns_bytes){t->items[i]->text, t->items[i]->n}) =
          t->items[i];
  free(t->items);
  t->items = items;
  t->cap = cap;
}

nsh_name *nsh_names_get(nsh_names *t, ns_bytes s) {
  nsh_name **at;
  if (t->n * 2 >= t->cap)
    grow(t);
  at = find(t->items, t->cap, s);
  if (*at == NULL) {
    *at = nsh_alloc(sizeof(**at));
    (*at)->text = nsh_alloc(s.n + 1);
    memcpy((*at)->text, s.p, s.n);
    (*at)->n = s.n;
    (*at)->pace = NSH_PACE_INIT;
    t->n++;
  }
  return *at;
}

void nsh_names_free(nsh_names *t) {
  for (size_t i = 0; i < t->cap; i++)
    if (t->items[i] != NULL) {
      free(t->items[i]->text);
      free(t->items[i]);
    }
  free(t->items);
  *t = (nsh_names){NULL, 0, 0};
}
