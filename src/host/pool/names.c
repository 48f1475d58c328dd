/*
** A small hash table of names. Who has not been met twice since names were forgotten
** last goes first.
*/
#include "pool/names.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/alloc.h"
#include "ns_hash.h"

#define USES_MAX 1024 /* so that ten rounds forget anybody */

/* Where the name is, or where it would go. */
static nsh_name **find(nsh_name **items, size_t cap, ns_bytes s) {
  size_t i = ns_hash_short(s) & (cap - 1);
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

static void drop(nsh_name *name) {
  free(name->text);
  free(name);
}

/* The others are put where they belong without those that are gone. */
static void forget(nsh_names *t) {
  nsh_name **old = t->items;
  t->items = nsh_alloc(t->cap * sizeof(*t->items));
  t->n = 0;
  for (size_t i = 0; i < t->cap; i++) {
    nsh_name *name = old[i];
    if (name == NULL)
      continue;
    name->uses /= 2;
    if (name->tasks == 0 && name->uses == 0) {
      drop(name);
      continue;
    }
    *find(t->items, t->cap, (ns_bytes){name->text, name->n}) = name;
    t->n++;
  }
  free(old);
}

static nsh_name *make(ns_bytes s) {
  nsh_name *name = nsh_alloc(sizeof *name);
  name->text = nsh_alloc(s.n + 1);
  memcpy(name->text, s.p, s.n);
  name->n = s.n;
  name->pace = NSH_PACE_INIT;
  return name;
}

nsh_name *nsh_names_get(nsh_names *t, ns_bytes s) {
  nsh_name **at = t->cap > 0 ? find(t->items, t->cap, s) : NULL;
  if (at == NULL || *at == NULL) {
    if (t->n >= NSH_NAMES_MAX)
      forget(t);
    if (t->n * 2 >= t->cap)
      grow(t);
    at = find(t->items, t->cap, s);
    *at = make(s);
    t->n++;
  }
  if ((*at)->uses < USES_MAX)
    (*at)->uses++;
  return *at;
}

void nsh_names_free(nsh_names *t) {
  for (size_t i = 0; i < t->cap; i++)
    if (t->items[i] != NULL)
      drop(t->items[i]);
  free(t->items);
  *t = (nsh_names){NULL, 0, 0};
}
