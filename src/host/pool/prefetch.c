/*
** Pacing: means are exponential, and one very long job counts as CAP_US, so that the mean of
** short ones recovers within some hundred jobs. Names: a small hash table; a name that was not
** met twice since names were forgotten last goes first. Lines of jobs: a ring each; loads
** count their jobs that are still in a line, or in a batch.
*/
#include "pool/process.h"

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

/* ------------------------------------------------------------------- batches */

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
