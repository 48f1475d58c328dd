/*
** Memory of claimed batches. Few batches are open at a time; inside one, jobs
** are found by binary search. A batch may hold several runs of one job: rows of old
** runs stay in ready until a claim meets them.
*/
#include "claim/lease.h"

#include <stdlib.h>
#include <string.h>

#include "handle.h"
#include "ns_buf.h"

void ns_leases_free(ns_leases *l) {
  for (size_t i = 0; i < l->n; i++)
    free(l->items[i].jobs);
  free(l->items);
  *l = (ns_leases){0};
}

bool ns_leases_settled(const ns_leases *l) {
  for (size_t i = 0; i < l->n; i++)
    for (size_t k = 0; k < l->items[i].n; k++)
      if (!l->items[i].jobs[k].settled)
        return false;
  return true;
}

static int by_token(const void *a, const void *b) {
  const ns_claimed *x = a;
  const ns_claimed *y = b;
  return x->id != y->id ? (x->id > y->id) - (x->id < y->id)
                        : (x->run > y->run) - (x->run < y->run);
}

bool ns_leases_add(ns_leases *l, int64_t id, const ns_claimed *jobs, size_t n) {
  ns_claimed *copy = malloc(n * sizeof *copy);
  if (copy == NULL ||
      !ns_grow(&l->items, &l->cap, l->n + 1, sizeof *l->items)) {
    free(copy);
    return false;
  }
  memcpy(copy, jobs, n * sizeof *copy);
  qsort(copy, n, sizeof *copy, by_token);
  l->items[l->n++] = (ns_lease){.id = id, .jobs = copy, .n = n, .open = n};
  return true;
}

ns_lease *ns_leases_batch(ns_leases *l, int64_t lease) {
  for (size_t i = 0; i < l->n; i++)
    if (l->items[i].id == lease)
      return &l->items[i];
  return NULL;
}

static ns_claimed *find_in(ns_lease *b, int64_t id, int64_t run) {
  ns_claimed key = {.id = id, .run = run};
  ns_claimed *c =
      b != NULL ? bsearch(&key, b->jobs, b->n, sizeof key, by_token) : NULL;
  return c != NULL && !c->settled ? c : NULL;
}

ns_claimed *ns_leases_find(ns_leases *l, int64_t lease, int64_t id,
                           int64_t run) {
  return find_in(ns_leases_batch(l, lease), id, run);
}

ns_claimed *ns_leases_find_any(ns_leases *l, int64_t id, int64_t run,
                               ns_lease **batch) {
  for (size_t i = 0; i < l->n; i++) {
    ns_claimed *c = find_in(&l->items[i], id, run);
    if (c != NULL && batch != NULL)
      *batch = &l->items[i];
    if (c != NULL)
      return c;
  }
  return NULL;
}

bool ns_leases_alone(const ns_leases *l) {
  for (size_t i = 0; i < l->n; i++)
    if (l->items[i].alone)
      return true;
  return false;
}

bool ns_leases_settle(ns_leases *l, int64_t lease, int64_t id, int64_t run) {
  ns_lease *b = ns_leases_batch(l, lease);
  ns_claimed *c = find_in(b, id, run);
  if (c == NULL)
    return false;
  c->settled = true;
  return --b->open == 0;
}

void ns_leases_drop(ns_leases *l, int64_t lease) {
  ns_lease *b = ns_leases_batch(l, lease);
  if (b == NULL)
    return;
  free(b->jobs);
  l->n--;
  memmove(b, b + 1, (l->n - (size_t)(b - l->items)) * sizeof *b);
}

size_t ns_stretch(const ns_token *tokens, size_t n) {
  size_t len = 1;
  while (len < n && tokens[len].id == tokens[len - 1].id + 1 &&
         tokens[len].run == tokens->run)
    len++;
  return len;
}

ns_status ns_lease_delete(ns_db *db, const ns_lease *b, ns_err *err) {
  const int64_t lease = b->id; /* a reconnect may find that we are dead, and free it */
  const bool expires = b->span > 0;
  ns_column id = {NS_INT, &lease, NULL, NULL};
  ns_status st = ns_bulk_of(db, NS_SQL_SETTLE_LEASE, &id, 1, 0, err);
  return st == NS_OK && expires
             ? ns_bulk_of(db, NS_SQL_SETTLE_EXPIRY, &id, 1, 0, err)
             : st;
}
