/*
** The pool's books: which workers have room, how many are in each phase, how many jobs they
** have. And how many places are free for more.
*/
#include "base.h"
#include "pool/pool.h"

/* --------------------------------------------------------- workers with room */

static nsh_pool *pool_of(const nsh_process *w) {
  return &w->pools->pools[w->pool];
}

void nsh_pool_list(nsh_process *w, bool front) {
  nsh_pool *p = pool_of(w);
  if (w->listed || w->phase != NSH_UP)
    return;
  w->listed = true;
  p->nroom++;
  if (front && p->room != NULL) {
    w->next = p->room;
    p->room = w;
  } else {
    w->next = NULL;
    *p->room_end = w;
    p->room_end = &w->next;
  }
}

nsh_process *nsh_pool_unlist(nsh_pools *t, size_t pool) {
  nsh_pool *p = &t->pools[pool];
  nsh_process *w = p->room;
  if (w == NULL)
    return NULL;
  p->room = w->next;
  if (p->room == NULL)
    p->room_end = &p->room;
  ns_assert(w->listed && p->nroom > 0 && w->pool == pool);
  w->listed = false;
  p->nroom--;
  return w;
}

static void move_count(size_t *count, bool from, bool to, size_t n) {
  *count = *count - (from ? n : 0) + (to ? n : 0);
}

void nsh_pool_enter(nsh_process *w, nsh_phase phase) {
  nsh_pools *t = w->pools;
  nsh_pool *p = pool_of(w);
  bool was = w->phase == NSH_UP;
  bool is = phase == NSH_UP;
  move_count(&t->up, was, is, 1);
  move_count(&p->up, was, is, 1);
  move_count(&p->held, was, is, w->n);
  move_count(&t->leaving, w->phase == NSH_RETIRING, phase == NSH_RETIRING, 1);
  w->phase = phase;
  if (phase != NSH_EMPTY)
    return;
  nsh_pool_age(w, false);
  w->surplus = false;
}

void nsh_pool_age(nsh_process *w, bool old) {
  move_count(&w->pools->old, w->old, old, 1);
  w->old = old;
}

void nsh_pool_count(nsh_process *w, int n) {
  nsh_pool *p = pool_of(w);
  size_t more = (size_t)n; /* that wraps around is meant */
  w->pools->busy += more;
  p->tasks += more;
  if (w->phase == NSH_UP)
    p->held += more;
  if (w->n == 0)
    w->pools->working--;
  else if (n > 0 && w->n == 1)
    w->pools->working++;
}

/* -------------------------------------------------------------------- places */

/* Workers die one after the other: a claimed job kills them. */
static bool in_crash_loop(const nsh_pools *t) {
  return nsh_crash_loop_delay(&t->crash_loop) > 0;
}

/* How many jobs a worker may be given. In a crash loop no job is sent behind one that may kill
** its worker. A worker forked per job has no use for a second. */
uint32_t nsh_pool_window(const nsh_pools *t, size_t pool) {
  return in_crash_loop(t) || t->cfg->fork_per_job ? 1 : nsh_pace_window(&t->pools[pool].pace);
}

/* Workers that are forked per job come and go all the time; unless something holds the
** forking up, all are about to be there. */
static bool come_and_go(const nsh_pools *t) {
  return t->cfg->fork_per_job && t->zygote != NULL && !in_crash_loop(t);
}

size_t nsh_pool_attending(const nsh_pools *t, size_t pool) {
  return come_and_go(t) ? nsh_config_workers(t->cfg, pool, t->wanted) : t->pools[pool].up;
}

bool nsh_pool_attends(const nsh_process *w) {
  return w->phase == NSH_UP || come_and_go(w->pools);
}

/* The places of the attending workers, less their jobs, less the jobs that wait for them. */
static int64_t free_places(const nsh_pools *t, size_t pool) {
  const nsh_pool *p = &t->pools[pool];
  size_t there = nsh_pool_attending(t, pool);
  size_t late = p->late < there ? p->late : there;
  size_t has = come_and_go(t) ? p->tasks : p->held;
  size_t most =
      t->closing || t->quiet || there == 0 ? 0 : late + nsh_pace_target(&p->pace, there - late);
  return (int64_t)(most > has ? most - has : 0) - (int64_t)p->backlog.n;
}

void nsh_pool_lock(nsh_pools *t) {
  nsh_exchange_lock(t->exchange);
}

#define MORE_MAX 1000           /* jobs beside a claim's limit, for batches, … */
#define MORE_FIRST 100          /* … while their size is not known */
#define MORE_BYTES (64 << 20)   /* … of payloads */

/* How many jobs a claim may take for batches, of each queue and name. */
static size_t more_for_batches(const nsh_pools *t) {
  double bytes = -1;
  double n;
  for (size_t i = 0; i < t->npools; i++)
    if (t->pools[i].pace.bytes > bytes)
      bytes = t->pools[i].pace.bytes;
  n = bytes < 0 ? MORE_FIRST : bytes > 0 ? MORE_BYTES / bytes : MORE_MAX;
  return n < MORE_MAX ? (size_t)n : MORE_MAX;
}

void nsh_pool_unlock(nsh_pools *t) {
  int64_t n[NSH_POOLS_MAX];
  for (size_t i = 0; i < t->npools; i++)
    n[i] = free_places(t, i);
  nsh_exchange_publish(t->exchange, n);
  t->exchange->waiting = t->backlog > 0 || t->nbulks > 0;
  t->exchange->more = t->nbatched > 0 ? more_for_batches(t) : 0;
  t->exchange->workers = (ns_workers){.up = (int64_t)t->up,
                                      .busy = (int64_t)t->working,
                                      .leaving = (int64_t)t->leaving,
                                      .loads = t->loads,
                                      .old = (int64_t)t->old};
  nsh_exchange_unlock(t->exchange);
}

/* --------------------------------------------------------------- the backlog */

void nsh_pool_release(nsh_pools *t, size_t line) {
  nsh_prefetch *b = &t->pools[line].backlog;
  for (; b->n > 0; nsh_prefetch_pop(b)) {
    const nsh_waiting *x = nsh_prefetch_first(b);
    for (size_t i = 0; i < nsh_waiting_jobs(x); i++) {
      const ns_job *job = x->bulk != NULL ? x->bulk->items[i].job : x->job;
      nsh_exchange_release(t->exchange, job->id, job->run, job->lease);
    }
    t->backlog--;
  }
}

/* -------------------------------------------------------------------- checks */

#ifdef NS_DEBUG
/* Workers that run older scripts; a place without a process never counts as such. */
static size_t count_old(const nsh_pools *t) {
  size_t n = 0;
  for (size_t i = 0; i < t->nworkers; i++) {
    ns_assert(!t->workers[i].old || t->workers[i].phase != NSH_EMPTY);
    n += t->workers[i].old;
  }
  return n;
}

/* Counts a pool anew from its workers. */
static nsh_pool count_anew(const nsh_pools *t, size_t pool) {
  nsh_pool sum = {.tasks = 0};
  for (size_t i = 0; i < t->nworkers; i++) {
    const nsh_process *w = &t->workers[i];
    bool up = w->phase == NSH_UP;
    if (w->pool != pool)
      continue;
    sum.up += up;
    sum.tasks += w->n;
    sum.held += up ? w->n : 0;
  }
  return sum;
}

/* Jobs of batches beyond the first of each. */
static size_t count_more(const nsh_pools *t) {
  size_t n = nsh_gather_jobs(t);
  for (size_t i = 0; i < t->npools; i++) {
    const nsh_prefetch *b = &t->pools[i].backlog;
    for (size_t k = 0; k < b->n; k++)
      n += nsh_waiting_jobs(&b->items[(b->first + k) & (b->cap - 1)]) - 1;
  }
  for (size_t i = 0; i < t->nworkers; i++)
    for (uint32_t k = 0; k < t->workers[i].n; k++)
      n += nsh_process_jobs(nsh_process_task(&t->workers[i], k)) - 1;
  return n;
}

void nsh_pool_recount(nsh_pools *t) {
  size_t up = 0;
  size_t busy = 0;
  size_t waiting = 0;
  size_t arriving = 0;
  nsh_exchange_lock(t->exchange);
  for (size_t i = 0; i < t->npools; i++) {
    const nsh_pool *p = &t->pools[i];
    nsh_pool now = count_anew(t, i);
    ns_assert(now.up == p->up && now.tasks == p->tasks && now.held == p->held);
    ns_assert(t->exchange->places[i] == free_places(t, i) - (int64_t)t->exchange->arriving[i]);
    up += now.up;
    busy += now.tasks;
    waiting += p->backlog.n;
    arriving += t->exchange->arriving[i];
  }
  ns_assert(t->up == up && t->busy == busy && t->backlog == waiting && t->old == count_old(t));
  ns_assert(t->exchange->outstanding == busy + waiting + arriving + count_more(t));
  nsh_exchange_unlock(t->exchange);
}
#else
void nsh_pool_recount(nsh_pools *t) {
  (void)t;
}
#endif
