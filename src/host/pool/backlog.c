/*
** The jobs that a host has claimed and no worker has yet, and how many there are to be.
**
** Pacing: means are exponential, and one very long job counts as CAP_US, so that the mean of
** short ones recovers within some hundred jobs. Names: a small hash table; a name that was not
** met twice since names were forgotten last goes first. Lines of jobs: a ring each; loads
** count their jobs that are still in a line, or in a batch.
**
** Batches wait for more jobs. There are few of them, one for each queue and name that is claimed
** just now, so they are looked through one by one. A host whose scripts have no handler that takes
** batches never comes there.
*/
#include "pool/pool.h"

#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "ipc/ipc.h"

#define CAP_US 100000.0 /* a sample counts at most this much */
#define AHEAD_US 4000.0 /* work claimed ahead, per worker: a few cycles */
#define AHEAD_MAX 256.0
#define NO_AHEAD_US 50000.0 /* longer handlers: nothing is claimed ahead */
#define SEND_US 1000.0      /* work sent ahead to one worker */
#define WINDOW_MAX 64.0
#define BRIEF_US 200.0
#define TARGET_MAX 4096                /* ... unless there are more workers than that */
#define BYTES_MAX (64.0 * 1024 * 1024) /* of jobs held by the host */
#define STORM 5                        /* crashes without a result that are normal */
#define STORM_US INT64_C(10000000)
#define WARY_US INT64_C(60000000)
#define STORM_DELAY INT64_C(100000)
#define STORM_DELAY_MAX INT64_C(10000000)
#define USES_MAX 1024 /* so that ten rounds forget any name */
#define BULK_BYTES_MAX ((size_t)8 << 20) /* of the payloads of one batch */

/* ---------------------------------------------------------------------- pace */

static double moving_mean(double old, double sample) {
  return old < 0 ? sample : old + (sample - old) / 64;
}

void nsh_pace_ran(nsh_pace *p, int64_t micros) {
  double us = micros < 1 ? 1 : (double)micros;
  p->micros = moving_mean(p->micros, us > CAP_US ? CAP_US : us);
}

void nsh_pace_claimed(nsh_pace *p, size_t bytes) {
  p->bytes = moving_mean(p->bytes, (double)bytes);
}

uint32_t nsh_pace_window(const nsh_pace *p) {
  double n;
  if (p->micros < 0)
    return 1;
  n = 1 + SEND_US / p->micros;
  ns_assert(n >= 1);
  return (uint32_t)(n > WINDOW_MAX ? WINDOW_MAX : n);
}

static double jobs_ahead(const nsh_pace *p) {
  double n;
  if (p->micros < 0 || p->micros > NO_AHEAD_US)
    return 0;
  n = AHEAD_US / p->micros;
  return n < 1 ? 1 : n > AHEAD_MAX ? AHEAD_MAX : n;
}

size_t nsh_pace_target(const nsh_pace *p, size_t workers) {
  size_t most = workers > TARGET_MAX ? workers : TARGET_MAX;
  size_t n = (size_t)((double)workers * (1 + jobs_ahead(p)));
  if (n > most)
    n = most;
  if (p->bytes > 0 && (double)n * p->bytes > BYTES_MAX)
    n = (size_t)(BYTES_MAX / p->bytes);
  return n < workers ? workers : n;
}

bool nsh_pace_brief(const nsh_pace *p) {
  return p->micros >= 0 && p->micros < BRIEF_US;
}

/* --------------------------------------------------------------- crash loops */

void nsh_crash_loop_crash(nsh_crash_loop *s, int64_t now) {
  if (s->crashes > 0 && s->crashes <= STORM && now - s->since > STORM_US)
    s->crashes = 0;
  if (s->crashes == 0)
    s->since = now;
  if (s->crashes < 1000)
    s->crashes++;
  if (s->crashes > STORM)
    s->wary = now + WARY_US;
}

bool nsh_crash_loop_wary(const nsh_crash_loop *s, int64_t now) {
  return now < s->wary;
}

void nsh_crash_loop_over(nsh_crash_loop *s) {
  s->crashes = 0;
}

int64_t nsh_crash_loop_delay(const nsh_crash_loop *s) {
  int64_t delay = STORM_DELAY;
  if (s->crashes <= STORM)
    return 0;
  for (int i = STORM + 1; i < s->crashes && delay < STORM_DELAY_MAX; i++)
    delay *= 2;
  return delay > STORM_DELAY_MAX ? STORM_DELAY_MAX : delay;
}

/* --------------------------------------------------------------------- names */

/* Where the name is, or where it would go. */
static nsh_name **find_name(nsh_name **items, size_t cap, ns_bytes s) {
  size_t i = ns_hash_short(s) & (cap - 1);
  while (items[i] != NULL && (items[i]->n != s.n || memcmp(items[i]->text, s.p, s.n) != 0))
    i = (i + 1) & (cap - 1);
  return &items[i];
}

static void grow_table(nsh_names *t) {
  size_t cap = t->cap > 0 ? t->cap * 2 : 16;
  nsh_name **items = nsh_alloc(cap * sizeof(*items));
  for (size_t i = 0; i < t->cap; i++)
    if (t->items[i] != NULL)
      *find_name(items, cap, (ns_bytes){t->items[i]->text, t->items[i]->n}) = t->items[i];
  free(t->items);
  t->items = items;
  t->cap = cap;
}

static void free_name(nsh_name *name) {
  free(name->text);
  free(name);
}

/* Forgets rare names; the rest are placed anew. */
static void forget_rare_names(nsh_names *t) {
  nsh_name **old = t->items;
  t->items = nsh_alloc(t->cap * sizeof(*t->items));
  t->n = 0;
  for (size_t i = 0; i < t->cap; i++) {
    nsh_name *name = old[i];
    if (name == NULL)
      continue;
    name->uses /= 2;
    if (name->tasks == 0 && name->uses == 0) {
      free_name(name);
      continue;
    }
    *find_name(t->items, t->cap, (ns_bytes){name->text, name->n}) = name;
    t->n++;
  }
  free(old);
}

static nsh_name *make_name(ns_bytes s) {
  nsh_name *name = nsh_alloc(sizeof *name);
  name->text = nsh_alloc(s.n + 1);
  memcpy(name->text, s.p, s.n);
  name->n = s.n;
  name->pace = NSH_PACE_INIT;
  return name;
}

nsh_name *nsh_names_get(nsh_names *t, ns_bytes s) {
  nsh_name **at = t->cap > 0 ? find_name(t->items, t->cap, s) : NULL;
  if (at == NULL || *at == NULL) {
    if (t->n >= NSH_NAMES_MAX)
      forget_rare_names(t);
    if (t->n * 2 >= t->cap)
      grow_table(t);
    at = find_name(t->items, t->cap, s);
    *at = make_name(s);
    t->n++;
  }
  if ((*at)->uses < USES_MAX)
    (*at)->uses++;
  return *at;
}

void nsh_names_free(nsh_names *t) {
  for (size_t i = 0; i < t->cap; i++)
    if (t->items[i] != NULL)
      free_name(t->items[i]);
  free(t->items);
  *t = (nsh_names){NULL, 0, 0};
}

/* -------------------------------------------------- jobs and batches in a line */

size_t nsh_waiting_jobs(const nsh_waiting *w) {
  return w->bulk != NULL ? w->bulk->n : 1;
}

static void leave_load(nsh_load *load) {
  ns_assert(load->left > 0);
  if (--load->left == 0)
    nsh_load_free(load);
}

static void free_bulk(nsh_bulk *k) {
  free(k->items);
  free(k);
}

void nsh_waiting_free(nsh_waiting *w) {
  if (w->bulk == NULL) {
    leave_load(w->load);
    return;
  }
  for (size_t i = 0; i < w->bulk->n; i++)
    leave_load(w->bulk->items[i].load);
  free_bulk(w->bulk);
}

size_t nsh_bulk_drop(nsh_bulk *k, bool (*leaves)(void *arg, const ns_job *job), void *arg) {
  size_t kept = 0;
  for (size_t i = 0; i < k->n; i++)
    if (leaves(arg, k->items[i].job))
      leave_load(k->items[i].load);
    else
      k->items[kept++] = k->items[i];
  k->n = kept;
  if (kept == 0)
    free_bulk(k);
  return kept;
}

/* Its place in a line. */
static nsh_waiting as_waiting(nsh_bulk *k) {
  nsh_waiting w = k->items[0];
  w.bulk = k;
  return w;
}

/* ------------------------------------------------------------- lines of jobs */

static void grow_line(nsh_prefetch *b) {
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
    grow_line(b);
  b->items[(b->first + b->n++) & (b->cap - 1)] = *w;
}

const nsh_waiting *nsh_prefetch_first(const nsh_prefetch *b) {
  ns_assert(b->n > 0 && b->items[b->first].load->left > 0);
  return &b->items[b->first];
}

void nsh_prefetch_pop(nsh_prefetch *b) {
  nsh_waiting *w = &b->items[b->first];
  b->first = (b->first + 1) & (b->cap - 1);
  b->n--;
  nsh_waiting_free(w);
}

static nsh_waiting *item_at(const nsh_prefetch *b, size_t i) {
  return &b->items[(b->first + i) & (b->cap - 1)];
}

size_t nsh_prefetch_drop(nsh_prefetch *b, bool (*leaves)(void *arg, const ns_job *job), void *arg) {
  size_t n = b->n;
  b->n = 0;
  for (size_t i = 0; i < n; i++) {
    nsh_waiting w = *item_at(b, i);
    if (w.bulk != NULL ? nsh_bulk_drop(w.bulk, leaves, arg) > 0 : !leaves(arg, w.job))
      *item_at(b, b->n++) = w.bulk != NULL ? as_waiting(w.bulk) : w;
    else if (w.bulk == NULL)
      nsh_waiting_free(&w);
  }
  return n - b->n;
}

void nsh_prefetch_free(nsh_prefetch *b) {
  while (b->n > 0)
    nsh_prefetch_pop(b);
  free(b->items);
}

/* ------------------------------------------- batches: the names that take them */

static int by_batched_name(const void *a, const void *b) {
  const nsh_batched *x = a;
  const nsh_batched *y = b;
  int order = memcmp(x->name, y->name, x->n < y->n ? x->n : y->n);
  return order != 0 ? order : (x->n > y->n) - (x->n < y->n);
}

static void free_batched(nsh_pools *t) {
  for (size_t i = 0; i < t->nbatched; i++)
    free(t->batched[i].name);
  free(t->batched);
  t->batched = NULL;
  t->nbatched = 0;
}

/* Reads "jobs µs name"; the scripts' own code has written it. */
static void add_batched(nsh_pools *t, size_t *cap, const char *line, size_t n) {
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
  free_batched(t);
  for (size_t at = 0; at < lines.n;) {
    const char *end = memchr(lines.p + at, '\n', lines.n - at);
    size_t n = end != NULL ? (size_t)(end - lines.p) - at : lines.n - at;
    add_batched(t, &cap, lines.p + at, n);
    at += n + 1;
  }
  if (t->nbatched > 0)
    qsort(t->batched, t->nbatched, sizeof *t->batched, by_batched_name);
}

/* ---------------------------------------------------------- batches: gathering */

static const nsh_batched *find_batched(const nsh_pools *t, ns_bytes name) {
  nsh_batched key = {.name = (char *)(uintptr_t)name.p, .n = name.n};
  return bsearch(&key, t->batched, t->nbatched, sizeof key, by_batched_name);
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
  const nsh_batched *name = find_batched(t, w->job->name);
  nsh_bulk *k;
  size_t i;
  if (name == NULL || w->job->attempts > 0 || w->job->crashes > 0)
    return false;
  i = find_bulk(t, w->job);
  if (i < t->nbulks && t->bulks[i]->bytes + w->job->payload.n > BULK_BYTES_MAX) {
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

/* ------------------------------------------------------------ batches: waiting */

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
  free_batched(t);
}
