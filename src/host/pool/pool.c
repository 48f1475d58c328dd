/*
** The worker pool: hands claimed jobs out, takes them back, and obeys the host.
**
** Two queues lie between a claim and a handler. The backlog belongs to the host and feeds any
** free worker, in a line per pool of workers. The tasks of a worker were sent ahead, so that a
** worker with short jobs need not wait for the host between them. When one of those jobs turns
** out to be long, the watchdog takes back the jobs behind it.
*/
#include "pool/pool.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base.h"
#include "ipc/ipc.h"

/* --------------------------------------------------------------- handing out */

/* Jobs that workers of a pool may be given. */
static size_t on_offer(const nsh_pools *t, const nsh_pool *p) {
  return p == t->pools ? t->backlog : p->backlog.n;
}

/* The line that the next job for a worker of a pool comes from: its own. For pool 0, which may
** take any job, it is the line with the job that arrived first. */
static size_t next_line(const nsh_pools *t, size_t pool) {
  size_t best = pool;
  uint64_t first = UINT64_MAX;
  for (size_t i = 0; pool == 0 && i < t->npools; i++) {
    const nsh_prefetch *b = &t->pools[i].backlog;
    if (b->n > 0 && nsh_prefetch_first(b)->arrival < first) {
      first = nsh_prefetch_first(b)->arrival;
      best = i;
    }
  }
  return best;
}

/* The exchange is locked. */
static void refuse_job(nsh_pools *t, const ns_job *job) {
  nsh_exchange_verdict(
      t->exchange, &(ns_verdict){.id = job->id,
                                 .run = job->run,
                                 .lease = job->lease,
                                 .kind = NS_FAIL,
                                 .delay = -1,
                                 .error = ns_str("the job is too large to be handed to a worker")});
}

/* A batch is one task. What is left of one, a single job, runs by itself. */
static bool give(nsh_process *w, const nsh_waiting *x) {
  if (x->bulk == NULL || x->bulk->n == 1)
    return nsh_process_give(w, x->job);
  return nsh_process_give_bulk(w, x->bulk);
}

/* Gives one job of a line, or a batch, to a worker. */
static void give_first(nsh_pools *t, nsh_process *w, size_t line) {
  nsh_prefetch *b = &t->pools[line].backlog;
  const nsh_waiting *x = nsh_prefetch_first(b);
  bool given = give(w, x);
  if (given && line == w->pool) { /* no place has become free */
    nsh_prefetch_pop(b);
    t->backlog--;
    return;
  }
  nsh_pool_lock(t);
  for (size_t i = 0; !given && i < nsh_waiting_jobs(x); i++)
    refuse_job(t, x->bulk != NULL ? x->bulk->items[i].job : x->job);
  nsh_prefetch_pop(b);
  t->backlog--;
  nsh_pool_unlock(t);
}

/* Jobs are spread evenly: first one share for each worker with room. */
static void hand_out(nsh_pools *t, size_t pool) {
  nsh_pool *p = &t->pools[pool];
  uint32_t most = nsh_pool_window(t, pool);
  nsh_process *w;
  while (on_offer(t, p) > 0 && p->nroom > 0) {
    size_t share = (on_offer(t, p) + p->nroom - 1) / p->nroom;
    w = nsh_pool_unlist(t, pool);
    if (w->phase != NSH_UP || w->stop_step != NSH_STOP_NONE || w->n >= most ||
        (w->stuck && w->n > 0))
      continue; /* listed again when it is heard of */
    while (share-- > 0 && w->n < most && on_offer(t, p) > 0)
      give_first(t, w, next_line(t, pool));
    nsh_slot_allow(w->slot, w->next_seq);
    nsh_process_flush(w);
    if (w->n < most)
      nsh_pool_list(w, false);
  }
}

/* Reserved workers first: workers that may take any job leave these jobs to them. */
void nsh_pool_hand_out(nsh_pools *t) {
  if (t->quiet ||
      (t->backlog > 0 && !nsh_slots_valid(t->slots, ns_mono_us())))
    return; /* the backlog may belong to other holders by now */
  for (size_t i = 1; i < t->npools; i++)
    hand_out(t, i);
  hand_out(t, 0);
}

/* ---------------------------------------------------------- from the exchange */

/* Gives all of the backlog back. The exchange is locked. */
static void release_backlog(nsh_pools *t) {
  nsh_gather_release(t);
  for (size_t i = 0; i < t->npools; i++)
    nsh_pool_release(t, i);
}

/* Claimed jobs come queue by queue, oldest first. So jobs that kill workers may stand together
** before all other jobs, and would take every worker that is forked. In a crash loop, and for a
** minute after one, a load is shuffled, and jobs that have crashed before go to its end. The
** first job that is done ends the crash loop. */
static void shuffle_jobs(ns_jobs *jobs) {
  size_t clean = 0;
  for (size_t i = jobs->n; i > 1; i--) {
    size_t k = (size_t)(ns_random() % i);
    ns_job job = jobs->items[i - 1];
    jobs->items[i - 1] = jobs->items[k];
    jobs->items[k] = job;
  }
  for (size_t i = 0; i < jobs->n; i++)
    if (jobs->items[i].crashes == 0) {
      ns_job job = jobs->items[clean];
      jobs->items[clean++] = jobs->items[i];
      jobs->items[i] = job;
    }
}

/* Each job joins its line; the last one to leave frees the load. */
static void take_load(nsh_pools *t, nsh_load *load) {
  if (nsh_crash_loop_wary(&t->crash_loop, ns_mono_us()))
    shuffle_jobs(&load->jobs);
  for (size_t i = 0; i < load->jobs.n; i++) {
    const ns_job *job = &load->jobs.items[i];
    size_t pool = nsh_config_pool(t->cfg, job->queue);
    nsh_pool *p = &t->pools[pool];
    nsh_waiting w = {job, load, t->arrivals++, NULL};
    nsh_pace_claimed(&p->pace, job->payload.n);
    if (t->nbatched > 0 && nsh_gather_join(t, &w, pool))
      continue;
    nsh_prefetch_add(&p->backlog, &w);
    t->backlog++;
  }
}

static void take_loads(nsh_pools *t) {
  nsh_exchange *m = t->exchange;
  nsh_load *load;
  while ((load = m->loads) != NULL) {
    m->loads = load->next;
    take_load(t, load);
  }
  m->loads_end = &m->loads;
  memset(m->arriving, 0, sizeof m->arriving);
  if (t->closing || t->quiet)
    release_backlog(t);
}

/* The claim of the oldest task is lost; 'cancel' NULL: without a reason. The exchange is
** locked. */
static void tell_claim_lost(nsh_process *w, const ns_notice *cancel) {
  int64_t since;
  if (!nsh_process_running(w, &since))
    return; /* it has been taken back, or has just ended */
  atomic_store(&w->slot->lost, nsh_process_task(w, 0)->seq + 1);
  nsh_process_stop(w, cancel != NULL ? NSH_WHY_CANCELLED : NSH_WHY_LOST, NSH_STEP,
                   cancel != NULL ? cancel->why : "");
}

/* A task that waits behind a running job is taken back, with its neighbours, which lose nothing by
** it. A paused job that is running already keeps running, and so do the rest of its batch. */
static void lose_task(nsh_process *w, uint32_t at, size_t member, const ns_notice *n) {
  int64_t since;
  if (at > 0 || !nsh_process_running(w, &since))
    nsh_process_recall(w);
  else if (!n->token.paused && nsh_process_task(w, 0)->members != NULL)
    nsh_process_lose(w, member, n->why);
  else if (!n->token.paused)
    tell_claim_lost(w, n);
}

/* Claims that were ended by another connection, or that have paused jobs; sorted. There may
** be as many as the host has workers, and each worker is looked at under the lock: so only
** once. */
typedef struct revoked {
  nsh_exchange *exchange;
  const ns_notice *items;
  size_t n;
} revoked;

static int by_token(const void *a, const void *b) {
  const ns_token *x = &((const ns_notice *)a)->token;
  const ns_token *y = &((const ns_notice *)b)->token;
  return x->id != y->id ? (x->id > y->id) - (x->id < y->id)
                        : (x->run > y->run) - (x->run < y->run);
}

static const ns_notice *find_notice(const revoked *r, int64_t id, int64_t run) {
  ns_notice key = {.token = {.id = id, .run = run}};
  return bsearch(&key, r->items, r->n, sizeof key, by_token);
}

/* The job leaves the backlog: its release is STALE, or holds it when it is paused. */
static bool lose_waiting(void *arg, const ns_job *job) {
  const revoked *r = arg;
  if (find_notice(r, job->id, job->run) == NULL)
    return false;
  nsh_exchange_release(r->exchange, job->id, job->run, job->lease);
  return true;
}

/* Takes jobs out of batches that wait, and out of the backlog. */
static void drop_waiting(nsh_pools *t, bool (*leaves)(void *arg, const ns_job *job), void *arg) {
  nsh_gather_drop(t, leaves, arg);
  for (size_t i = 0; i < t->npools; i++)
    t->backlog -= nsh_prefetch_drop(&t->pools[i].backlog, leaves, arg);
}

static void lose_tasks(nsh_process *w, const revoked *r) {
  for (uint32_t at = 0; at < w->n; at++) {
    nsh_member room;
    const nsh_member *m;
    size_t i = nsh_process_task(w, at)->members != NULL ? nsh_process_task(w, at)->members->at : 0;
    for (; at < w->n && (m = nsh_process_member(nsh_process_task(w, at), i, &room)) != NULL; i++) {
      const ns_notice *n = find_notice(r, m->id, m->run);
      if (n != NULL)
        lose_task(w, at, i, n); /* the tasks taken back are behind it */
    }
  }
}

/* The jobs are stopped, or not started. The exchange is locked. */
static void take_revoked(nsh_pools *t) {
  nsh_exchange *m = t->exchange;
  revoked r = {m, m->revoked, m->nrevoked};
  if (r.n == 0)
    return;
  qsort(m->revoked, r.n, sizeof *m->revoked, by_token);
  drop_waiting(t, lose_waiting, &r);
  for (size_t i = 0; i < t->nworkers; i++)
    lose_tasks(&t->workers[i], &r);
  m->nrevoked = 0;
}

static void take_lost(nsh_pools *t) {
  nsh_exchange *m = t->exchange;
  for (size_t i = 0; i < m->nlost; i++) {
    const nsh_lost *l = &m->lost[i];
    nsh_process *w = &t->workers[l->worker];
    int64_t since;
    if (w->n == 0 || w->pid != l->pid || nsh_process_task(w, 0)->seq != l->seq)
      continue;
    if (nsh_process_task(w, 0)->members == NULL)
      tell_claim_lost(w, NULL);
    else if (nsh_process_running(w, &since))
      nsh_process_lose(w, l->at, "");
  }
  m->nlost = 0;
  take_revoked(t);
}

static bool leave_paused(void *arg, const ns_job *job) {
  nsh_exchange *m = arg;
  if (!nsh_exchange_pauses(m, job))
    return false;
  nsh_exchange_release(m, job->id, job->run, job->lease);
  return true;
}

/* Jobs that no worker has been given go back when their queue or name is paused. The exchange
** is locked. */
static void take_pauses(nsh_pools *t) {
  if (t->exchange->pauses)
    drop_waiting(t, leave_paused, t->exchange);
  t->exchange->pauses = false;
}

/* This host was declared dead. Jobs that have not been started are dropped: their release will
** be STALE. The exchange is locked. */
static void lose_all(nsh_pools *t) {
  release_backlog(t);
  for (size_t i = 0; i < t->nworkers; i++)
    if (t->workers[i].n > 0) {
      nsh_process_recall(&t->workers[i]);
      tell_claim_lost(&t->workers[i], NULL);
    }
  t->exchange->lost_all = false;
}

void nsh_pool_collect(nsh_pools *t) {
  nsh_pool_lock(t);
  take_loads(t);
  take_lost(t);
  take_pauses(t);
  if (t->exchange->lost_all)
    lose_all(t);
  nsh_messages_serve_ids(t);
  nsh_pool_unlock(t);
  nsh_pool_hand_out(t);
}

/* -------------------------------------------------------------- from workers */

void nsh_pool_read(nsh_process *w) {
  nsh_process_read(w);
  if (w->phase == NSH_UP && w->n * 2 <= nsh_pool_window(w->pools, w->pool))
    nsh_pool_list(w, w->n == 0);
}

/* The workers of one word of bits. */
static void read_some(nsh_pools *t, size_t word, uint64_t bits) {
  nsh_pool_lock(t);
  for (; bits != 0; bits &= bits - 1) {
    size_t i = word * 64 + (size_t)__builtin_ctzll(bits);
    if (i < t->nworkers)
      nsh_pool_read(&t->workers[i]);
  }
  nsh_pool_unlock(t);
}

static void read_all(nsh_pools *t) {
  bool any = false;
  for (size_t word = 0; word * 64 < t->nworkers; word++) {
    uint64_t bits = nsh_pending_take(&t->slots->pending, word);
    if (bits == 0)
      continue;
    read_some(t, word, bits);
    any = true;
  }
  if (any)
    nsh_pool_hand_out(t);
}

static void on_wakeup(uv_poll_t *poll, int status, int events) {
  const nsh_pools *t = poll->data;
  (void)status;
  (void)events;
  nsh_wakeup_drain(t->inbox.wakeup);
}

static void on_stay(uv_idle_t *idle) {
  (void)idle;
}

/* Before the loop sleeps: reads all rings, sets the mark that the host sleeps, and stays awake
** if more came meanwhile. Other events get their turn in between. */
static void on_sleep(uv_prepare_t *prepare) {
  nsh_pools *t = prepare->data;
  read_all(t);
  if (nsh_pending_sleep(&t->slots->pending, t->nworkers))
    uv_idle_start(&t->inbox.stay, on_stay);
  else
    uv_idle_stop(&t->inbox.stay);
}

static void on_wake(uv_check_t *check) {
  nsh_pools *t = check->data;
  nsh_pending_wake(&t->slots->pending);
}

static void open_inbox(nsh_pools *t, uv_loop_t *loop, int wakeup) {
  nsh_inbox *in = &t->inbox;
  in->wakeup = wakeup;
  nsh_must(uv_poll_init(loop, &in->poll, wakeup) == 0);
  uv_prepare_init(loop, &in->before);
  uv_check_init(loop, &in->after);
  uv_idle_init(loop, &in->stay);
  in->poll.data = in->before.data = in->after.data = t;
  uv_poll_start(&in->poll, UV_READABLE, on_wakeup);
  uv_prepare_start(&in->before, on_sleep);
  uv_check_start(&in->after, on_wake);
}

/* -------------------------------------------------------------------- orders */

static void take_back(nsh_pools *t) {
  nsh_pool_lock(t);
  release_backlog(t);
  for (size_t i = 0; i < t->nworkers; i++)
    if (t->workers[i].n > 0)
      nsh_process_recall(&t->workers[i]);
  nsh_pool_unlock(t);
}

void nsh_pool_quiet(nsh_pools *t, bool quiet) {
  t->quiet = quiet;
  if (quiet)
    take_back(t);
  nsh_pool_hand_out(t);
}

void nsh_pool_close(nsh_pools *t) {
  t->closing = true;
  take_back(t);
}

static void stop_running(nsh_process *w) {
  int64_t since;
  nsh_pool_lock(w->pools);
  if (nsh_process_running(w, &since))
    nsh_process_stop(w, NSH_WHY_STOP, NSH_STEP_STOP, "");
  nsh_pool_unlock(w->pools);
  if (w->stop_step == NSH_STOP_NONE) {
    nsh_process_retire(w);
    nsh_process_kill(w, SIGKILL);
  }
}

void nsh_pool_kill(nsh_pools *t) {
  for (size_t i = 0; i < t->nworkers; i++)
    if (t->workers[i].phase != NSH_EMPTY)
      stop_running(&t->workers[i]);
}

void nsh_pool_dismiss(nsh_pools *t) {
  for (size_t i = 0; i < t->nworkers; i++)
    if (t->workers[i].phase == NSH_UP)
      nsh_process_leave(&t->workers[i]);
}

/* --------------------------------------------------------- beginning and end */

nsh_process *nsh_pool_add_place(nsh_pools *t) {
  size_t i = t->nworkers;
  nsh_process *w = &t->workers[i];
  if (i == t->cfg->most_workers)
    return NULL;
  w->pools = t;
  w->index = (uint32_t)i;
  w->pool = nsh_config_pool_of(t->cfg, i);
  w->slot = &t->slots->slot[i];
  t->nworkers++;
  return w;
}

void nsh_pool_init(nsh_pools *t, const nsh_config *cfg, nsh_exchange *exchange, uv_loop_t *loop,
                   nsh_slots *slots, int wakeup) {
  memset(t, 0, sizeof *t);
  t->cfg = cfg;
  t->exchange = exchange;
  t->on_frame = nsh_messages_frame;
  t->slots = slots;
  t->workers = nsh_alloc(cfg->most_workers * sizeof *t->workers);
  t->npools = cfg->nreserves + 1;
  for (size_t i = 0; i < t->npools; i++) {
    t->pools[i].room_end = &t->pools[i].room;
    t->pools[i].pace = NSH_PACE_INIT;
  }
  t->wanted = cfg->workers;
  while (t->nworkers < t->wanted)
    nsh_pool_add_place(t);
  open_inbox(t, loop, wakeup);
}

void nsh_pool_free(nsh_pools *t) {
  for (size_t i = 0; i < t->nworkers; i++)
    nsh_process_free(&t->workers[i]);
  for (size_t i = 0; i < t->npools; i++)
    nsh_prefetch_free(&t->pools[i].backlog);
  nsh_gather_free(t);
  nsh_names_free(&t->names);
  nsh_names_free(&t->queues);
  free(t->id_requests);
  free(t->workers);
}
