/*
** Batches that wait for more jobs. There are few of them, one for each queue and name that is
** claimed just now, so they are looked through one by one. A host whose scripts have no handler
** that takes batches never comes here.
*/
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "pool/pool.h"

#define BYTES_MAX ((size_t)8 << 20) /* of the payloads of one batch */

/* --------------------------------------------------------------------- names */

static int by_name(const void *a, const void *b) {
  const nsh_batched *x = a;
  const nsh_batched *y = b;
  int order = memcmp(x->name, y->name, x->n < y->n ? x->n : y->n);
  return order != 0 ? order : (x->n > y->n) - (x->n < y->n);
}

static void free_names(nsh_pools *t) {
  for (size_t i = 0; i < t->nbatched; i++)
    free(t->batched[i].name);
  free(t->batched);
  t->batched = NULL;
  t->nbatched = 0;
}

/* Reads "jobs µs name"; the scripts' own code has written it. */
static void add_name(nsh_pools *t, size_t *cap, const char *line, size_t n) {
  char *at;
  size_t most = strtoul(line, &at, 10);
  int64_t within = strtoll(at, &at, 10);
  n -= (size_t)(at + 1 - line);
  if (most < 2 || most > NSH_BULK_MAX || within < 0)
    return;
  nsh_must(ns_grow(&t->batched, cap, t->nbatched + 1, sizeof *t->batched));
  t->batched[t->nbatched++] = (nsh_batched){strndup(at + 1, n), n, most, within};
  nsh_must(t->batched[t->nbatched - 1].name != NULL);
}

void nsh_gather_names(nsh_pools *t, ns_bytes lines) {
  size_t cap = 0;
  nsh_gather_ready(t, INT64_MAX);
  free_names(t);
  for (size_t at = 0; at < lines.n;) {
    const char *end = memchr(lines.p + at, '\n', lines.n - at);
    size_t n = end != NULL ? (size_t)(end - lines.p) - at : lines.n - at;
    add_name(t, &cap, lines.p + at, n);
    at += n + 1;
  }
  if (t->nbatched > 0)
    qsort(t->batched, t->nbatched, sizeof *t->batched, by_name);
}

/* ------------------------------------------------------------------ gathering */

static const nsh_batched *find_name(const nsh_pools *t, ns_bytes name) {
  nsh_batched key = {.name = (char *)(uintptr_t)name.p, .n = name.n};
  return bsearch(&key, t->batched, t->nbatched, sizeof key, by_name);
}

static bool is_alike(const ns_job *a, const ns_job *b) {
  return a->queue_id == b->queue_id && a->name.n == b->name.n &&
         memcmp(a->name.p, b->name.p, a->name.n) == 0;
}

/* Where the batch of a job is, or would be. */
static size_t find_bulk(const nsh_pools *t, const ns_job *job) {
  size_t i = 0;
  while (i < t->nbulks && !is_alike(t->bulks[i]->items[0].job, job))
    i++;
  return i;
}

static size_t begin_bulk(nsh_pools *t, const nsh_batched *name, size_t pool) {
  nsh_bulk *k = nsh_alloc(sizeof *k);
  k->most = name->most;
  k->ready_at = ns_mono_us() + name->within;
  k->pool = pool;
  nsh_must(ns_grow(&t->bulks, &t->capbulks, t->nbulks + 1, sizeof(*t->bulks)));
  t->bulks[t->nbulks++] = k;
  return t->nbulks - 1;
}

/* It joins its line, and waits for no more. */
static void end_bulk(nsh_pools *t, size_t i) {
  nsh_bulk *k = t->bulks[i];
  nsh_waiting w = k->items[0];
  w.bulk = k;
  t->bulks[i] = t->bulks[--t->nbulks];
  nsh_prefetch_add(&t->pools[k->pool].backlog, &w);
  t->backlog++;
}

bool nsh_gather_join(nsh_pools *t, const nsh_waiting *w, size_t pool) {
  const nsh_batched *name = find_name(t, w->job->name);
  nsh_bulk *k;
  size_t i;
  if (name == NULL || w->job->attempts > 0 || w->job->crashes > 0)
    return false;
  i = find_bulk(t, w->job);
  if (i < t->nbulks && t->bulks[i]->bytes + w->job->payload.n > BYTES_MAX) {
    end_bulk(t, i);
    i = t->nbulks;
  }
  if (i == t->nbulks)
    i = begin_bulk(t, name, pool);
  k = t->bulks[i];
  nsh_must(ns_grow(&k->items, &k->cap, k->n + 1, sizeof *k->items));
  k->items[k->n++] = *w;
  k->bytes += w->job->payload.n;
  if (k->n >= k->most)
    end_bulk(t, i);
  return true;
}

/* ------------------------------------------------------------------- waiting */

void nsh_gather_ready(nsh_pools *t, int64_t now) {
  for (size_t i = t->nbulks; i-- > 0;)
    if (t->bulks[i]->ready_at <= now)
      end_bulk(t, i);
}

int64_t nsh_gather_next(const nsh_pools *t, int64_t now) {
  int64_t next = -1;
  for (size_t i = 0; i < t->nbulks; i++) {
    int64_t left = t->bulks[i]->ready_at - now;
    if (next < 0 || left < next)
      next = left > 0 ? left : 0;
  }
  return next;
}

void nsh_gather_drop(nsh_pools *t, bool (*leaves)(void *arg, const ns_job *job), void *arg) {
  for (size_t i = t->nbulks; i-- > 0;)
    if (nsh_bulk_drop(t->bulks[i], leaves, arg) == 0)
      t->bulks[i] = t->bulks[--t->nbulks];
}

static bool goes_back(void *arg, const ns_job *job) {
  nsh_exchange_release(arg, job->id, job->run, job->lease);
  return true;
}

void nsh_gather_release(nsh_pools *t) {
  nsh_gather_drop(t, goes_back, t->exchange);
}

size_t nsh_gather_jobs(const nsh_pools *t) {
  size_t n = 0;
  for (size_t i = 0; i < t->nbulks; i++)
    n += t->bulks[i]->n;
  return n;
}

static bool goes(void *arg, const ns_job *job) {
  (void)arg;
  (void)job;
  return true;
}

void nsh_gather_free(nsh_pools *t) {
  nsh_gather_drop(t, goes, NULL);
  free(t->bulks);
  free_names(t);
}
