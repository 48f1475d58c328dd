/*
** Waiting verdicts are few, so they are looked through; failed rows may be many.
*/
#include "dispatcher/deferred.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/alloc.h"

void nsh_deferred_free(nsh_deferred *p) {
  nsh_batch_free(&p->batch);
  free(p->terms);
  free(p->failed);
}

void nsh_deferred_hold(nsh_deferred *p, const ns_verdict *v, nsh_term term) {
  nsh_batch_copy(&p->batch, v);
  nsh_must(ns_grow(&p->terms, &p->capterms, p->batch.n, sizeof *p->terms));
  p->terms[p->batch.n - 1] = term;
  if (term.until < p->next_at)
    p->next_at = term.until;
}

int64_t nsh_deferred_over(const nsh_deferred *p) {
  int64_t first = INT64_MAX;
  for (size_t i = 0; i < p->batch.n; i++)
    if (!p->terms[i].kept && p->terms[i].until < first)
      first = p->terms[i].until;
  return first;
}

void nsh_deferred_take(nsh_deferred *p, nsh_batch *out, int64_t now, bool all) {
  nsh_batch old = p->batch;
  size_t n = old.n;
  if (n == 0 || (!all && now < p->next_at))
    return;
  p->batch = NSH_BATCH_INIT;
  p->next_at = INT64_MAX;
  for (size_t i = 0; i < n; i++)
    if (all || p->terms[i].until <= now)
      nsh_batch_copy(out, &old.items[i]);
    else
      nsh_deferred_hold(p, &old.items[i], p->terms[i]);
  nsh_batch_free(&old);
}

/* Where it is, or belongs. */
static size_t place_of(const nsh_deferred *p, int64_t id) {
  size_t low = 0;
  size_t high = p->nfailed;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (p->failed[middle].id < id)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

int64_t nsh_deferred_failed(const nsh_deferred *p, int64_t id, int64_t now) {
  size_t i = place_of(p, id);
  return i < p->nfailed && p->failed[i].id == id ? now - p->failed[i].since : -1;
}

int64_t nsh_deferred_failing(nsh_deferred *p, int64_t id, int64_t now) {
  size_t i = place_of(p, id);
  int64_t since = nsh_deferred_failed(p, id, now);
  if (since >= 0)
    return since;
  nsh_must(ns_grow(&p->failed, &p->capfailed, p->nfailed + 1, sizeof *p->failed));
  memmove(&p->failed[i + 1], &p->failed[i], (p->nfailed - i) * sizeof *p->failed);
  p->failed[i] = (nsh_failed){id, now};
  p->nfailed++;
  return 0;
}
