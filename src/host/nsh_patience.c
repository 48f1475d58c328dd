/*
** Waiting verdicts are few, so they are looked through; failed rows may be many.
*/
#include "nsh_patience.h"

#include <stdlib.h>
#include <string.h>

#include "nsh_memory.h"

void nsh_patience_free(nsh_patience *p) {
  nsh_batch_free(&p->batch);
  free(p->until);
  free(p->failed);
}

void nsh_patience_hold(nsh_patience *p, const ns_verdict *v, int64_t until) {
  nsh_batch_copy(&p->batch, v);
  nsh_must(ns_grow(&p->until, &p->capuntil, p->batch.n, sizeof *p->until));
  p->until[p->batch.n - 1] = until;
  if (until < p->next_at)
    p->next_at = until;
}

void nsh_patience_take(nsh_patience *p, nsh_batch *out, int64_t now, bool all) {
  nsh_batch old = p->batch;
  size_t n = old.n;
  if (n == 0 || (!all && now < p->next_at))
    return;
  p->batch = NSH_BATCH_INIT;
  p->next_at = INT64_MAX;
  for (size_t i = 0; i < n; i++)
    if (all || p->until[i] <= now)
      nsh_batch_copy(out, &old.items[i]);
    else
      nsh_patience_hold(p, &old.items[i], p->until[i]);
  nsh_batch_free(&old);
}

/* Where it is, or belongs. */
static size_t place_of(const nsh_patience *p, int64_t id) {
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

int64_t nsh_patience_failing(nsh_patience *p, int64_t id, int64_t now) {
  size_t i = place_of(p, id);
  if (i < p->nfailed && p->failed[i].id == id)
    return now - p->failed[i].since;
  nsh_must(ns_grow(&p->failed, &p->capfailed, p->nfailed + 1, sizeof *p->failed));
  memmove(&p->failed[i + 1], &p->failed[i], (p->nfailed - i) * sizeof *p->failed);
  p->failed[i] = (nsh_failed){id, now};
  p->nfailed++;
  return 0;
}
