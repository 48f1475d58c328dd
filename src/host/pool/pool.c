/*
** The table of workers.
**
** Two queues lie between a claim and a handler. The backlog belongs to the host
** and feeds whoever is free, in a line per pool of workers; the tasks of a seat
** were sent ahead, so that a worker with short jobs need not wait for the host
** between them. Should one of those jobs turn out to be long, the watch takes back
** what was sent behind it.
*/
#include "pool/pool.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/alloc.h"
#include "ns_time.h"
#include "pool/escalation.h"
#include "pool/lifecycle.h"
#include "pool/messages.h"

/* --------------------------------------------------------- seats with room */

static nsh_pool *pool_of(const nsh_process *s) {
  return &s->table->pools[s->pool];
}

void nsh_pool_list(nsh_process *s, bool front) {
  nsh_pool *p = pool_of(s);
  if (s->listed || s->phase != NSH_UP)
    return;
  s->listed = true;
  p->nroom++;
  if (front && p->room != NULL) {
    s->next = p->room;
    p->room = s;
  } else {
    s->next = NULL;
    *p->room_end = s;
    p->room_end = &s->next;
  }
}

static nsh_process *unlist(nsh_pool *p) {
  nsh_process *s = p->room;
  if (s == NULL)
    return NULL;
  p->room = s->next;
  if (p->room == NULL)
    p->room_end = &p->room;
  s->listed = false;
  p->nroom--;
  return s;
}

static void shift(size_t *count, bool from, bool to, size_t n) {
  *count = *count - (from ? n : 0) + (to ? n : 0);
}

void nsh_pool_enter(nsh_process *s, nsh_phase phase) {
  nsh_pools *t = s->table;
  nsh_pool *p = pool_of(s);
  bool was = s->phase == NSH_UP;
  bool is = phase == NSH_UP;
  shift(&t->up, was, is, 1);
  shift(&p->up, was, is, 1);
  shift(&p->held, was, is, s->n);
  shift(&t->leaving, s->phase == NSH_DOOMED, phase == NSH_DOOMED, 1);
  s->phase = phase;
  if (phase == NSH_EMPTY)
    nsh_pool_age(s, false);
}

void nsh_pool_age(nsh_process *s, bool old) {
  shift(&s->table->old, s->old, old, 1);
  s->old = old;
}

void nsh_pool_count(nsh_process *s, int n) {
  nsh_pool *p = pool_of(s);
  size_t more = (size_t)n; /* that wraps around is meant */
  s->table->busy += more;
  p->tasks += more;
  if (s->phase == NSH_UP)
    p->held += more;
  if (s->n == 0)
    s->table->working--;
  else if (n > 0 && s->n == 1)
    s->table->working++;
}

/* ------------------------------------------------------------- handing out */

/* Workers die one after the other: something that was claimed kills them. */
static bool storming(const nsh_pools *t) {
  return nsh_storm_delay(&t->storm) > 0;
}

/* How many jobs a seat may have. In a storm nothing is sent behind a job that
** may kill its worker; one that is forked per job has no use for a second. */
static uint32_t window(const nsh_pools *t, size_t pool) {
  return storming(t) || t->cfg->fork_per_job
             ? 1
             : nsh_pace_window(&t->pools[pool].pace);
}

/* Workers that are forked per job come and go all the time; unless something holds the
** forking up, all are about to be there. */
static bool come_and_go(const nsh_pools *t) {
  return t->cfg->fork_per_job && t->zygote != NULL && !storming(t);
}

size_t nsh_pool_attending(const nsh_pools *t, size_t pool) {
  return come_and_go(t) ? nsh_config_workers(t->cfg, pool) : t->pools[pool].up;
}

bool nsh_pool_attends(const nsh_process *s) {
  return s->phase == NSH_UP || come_and_go(s->table);
}

/* What the attending workers may have, less what they have, less what waits for them. */
static int64_t places(const nsh_pools *t, size_t pool) {
  const nsh_pool *p = &t->pools[pool];
  size_t there = nsh_pool_attending(t, pool);
  size_t late = p->late < there ? p->late : there;
  size_t has = come_and_go(t) ? p->tasks : p->held;
  size_t most = t->closing || t->quiet || there == 0
                    ? 0
                    : late + nsh_pace_target(&p->pace, there - late);
  return (int64_t)(most > has ? most - has : 0) - (int64_t)p->backlog.n;
}

void nsh_pool_lock(nsh_pools *t) {
  nsh_exchange_lock(t->mail);
}

void nsh_pool_unlock(nsh_pools *t) {
  int64_t n[NSH_POOLS_MAX];
  for (size_t i = 0; i < t->npools; i++)
    n[i] = places(t, i);
  nsh_exchange_publish(t->mail, n);
  t->mail->workers = (ns_workers){.up = (int64_t)t->up, .busy = (int64_t)t->working,
                                  .leaving = (int64_t)t->leaving,
                                  .loads = t->loads, .old = (int64_t)t->old};
  nsh_exchange_unlock(t->mail);
}

/* Jobs that seats of a pool may be given. */
static size_t on_offer(const nsh_pools *t, const nsh_pool *p) {
  return p == t->pools ? t->backlog : p->backlog.n;
}

/* Whose line has the next job for a seat of a pool. Those who may take any take
** the one that came first. */
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

/* Gives one job of a line to 's'. */
static void give(nsh_pools *t, nsh_process *s, size_t line) {
  nsh_prefetch *b = &t->pools[line].backlog;
  const ns_job *job = nsh_prefetch_first(b)->job;
  bool given = nsh_process_give(s, job, nsh_names_get(&t->names, job->name));
  if (given && line == s->pool) { /* no place has become free */
    nsh_prefetch_pop(b);
    t->backlog--;
    return;
  }
  nsh_pool_lock(t);
  if (!given)
    nsh_exchange_verdict(
        t->mail, &(ns_verdict){.id = job->id,
                               .run = job->run,
                               .lease = job->lease,
                               .kind = NS_FAIL,
                               .delay = -1,
                               .error = ns_str("the job is too large to be handed to a worker")});
  nsh_prefetch_pop(b);
  t->backlog--;
  nsh_pool_unlock(t);
}

/* Jobs are spread evenly: first one share for each seat with room. */
static void hand_out(nsh_pools *t, size_t pool) {
  nsh_pool *p = &t->pools[pool];
  uint32_t most = window(t, pool);
  nsh_process *s;
  while (on_offer(t, p) > 0 && p->nroom > 0) {
    size_t share = (on_offer(t, p) + p->nroom - 1) / p->nroom;
    s = unlist(p);
    if (s->phase != NSH_UP || s->rung != NSH_CALM || s->n >= most ||
        (s->stuck && s->n > 0))
      continue; /* listed again when it is heard of */
    while (share-- > 0 && s->n < most && on_offer(t, p) > 0)
      give(t, s, next_line(t, pool));
    nsh_slot_allow(s->slot, s->next_seq);
    nsh_process_flush(s);
    if (s->n < most)
      nsh_pool_list(s, false);
  }
}

/* Reserved workers first: who may take any job leaves theirs to them. */
void nsh_pool_hand_out(nsh_pools *t) {
  if (t->quiet ||
      (t->backlog > 0 && !nsh_slots_valid(t->slots, ns_mono_us())))
    return; /* the backlog may be others' by now */
  for (size_t i = 1; i < t->npools; i++)
    hand_out(t, i);
  hand_out(t, 0);
}

void nsh_pool_release(nsh_pools *t, size_t line) {
  nsh_prefetch *b = &t->pools[line].backlog;
  for (; b->n > 0; nsh_prefetch_pop(b)) {
    const ns_job *job = nsh_prefetch_first(b)->job;
    nsh_exchange_release(t->mail, job->id, job->run, job->lease);
    t->backlog--;
  }
}

/* Gives all of the backlog back. The mailbox is locked. */
static void release_backlog(nsh_pools *t) {
  for (size_t i = 0; i < t->npools; i++)
    nsh_pool_release(t, i);
}

/* --------------------------------------------------------- from the mailbox */

/* Claimed jobs come queue by queue, oldest first, so those that kill workers
** may stand together before all others, and would take every worker that is
** forked. In a storm, and for a minute after one, a load is shuffled, and what has
** crashed before goes to its end: the first job that is done ends the storm. */
static void mix(ns_jobs *jobs) {
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
  if (nsh_storm_wary(&t->storm, ns_mono_us()))
    mix(&load->jobs);
  t->backlog += load->jobs.n;
  for (size_t i = 0; i < load->jobs.n; i++) {
    const ns_job *job = &load->jobs.items[i];
    nsh_pool *p = &t->pools[nsh_config_pool(t->cfg, job->queue)];
    nsh_pace_claimed(&p->pace, job->payload.n);
    nsh_prefetch_add(&p->backlog, &(nsh_waiting){job, load, t->arrivals++});
  }
}

static void take_loads(nsh_pools *t) {
  nsh_exchange *m = t->mail;
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

/* The claim of the oldest task of 's' is lost; 'cancel' NULL: nobody has said why. The
** mailbox is locked. */
static void lose(nsh_process *s, const ns_notice *cancel) {
  int64_t since;
  if (!nsh_process_running(s, &since))
    return; /* it has been taken back, or has just ended */
  atomic_store(&s->slot->lost, nsh_process_task(s, 0)->seq + 1);
  nsh_escalation_start(s, cancel != NULL ? NSH_WHY_CANCELLED : NSH_WHY_LOST, NSH_STEP,
                       cancel != NULL ? cancel->why : "");
}

/* One that waits behind a running job is taken back, with its neighbours, whose
** release costs them nothing. One that is paused and runs runs on. */
static void lose_task(nsh_process *s, uint32_t at, const ns_notice *n) {
  int64_t since;
  if (at == 0 && nsh_process_running(s, &since)) {
    if (!n->token.paused)
      lose(s, n);
    return;
  }
  nsh_process_recall(s);
}

/* Claims that somebody has ended, or whose jobs were paused; sorted. There may be as many
** as a host has workers, and each of those is looked at under the lock: so only once. */
typedef struct revoked {
  nsh_exchange *mail;
  const ns_notice *items;
  size_t n;
} revoked;

static int by_token(const void *a, const void *b) {
  const ns_token *x = &((const ns_notice *)a)->token;
  const ns_token *y = &((const ns_notice *)b)->token;
  return x->id != y->id ? (x->id > y->id) - (x->id < y->id)
                        : (x->run > y->run) - (x->run < y->run);
}

static const ns_notice *find(const revoked *r, int64_t id, int64_t run) {
  ns_notice key = {.token = {.id = id, .run = run}};
  return bsearch(&key, r->items, r->n, sizeof key, by_token);
}

/* It leaves the backlog: its release is STALE, or, when it is paused, holds it. */
static bool lose_waiting(void *arg, const ns_job *job) {
  const revoked *r = arg;
  if (find(r, job->id, job->run) == NULL)
    return false;
  nsh_exchange_release(r->mail, job->id, job->run, job->lease);
  return true;
}

static void lose_tasks(nsh_process *s, const revoked *r) {
  for (uint32_t at = 0; at < s->n; at++) {
    const nsh_task *task = nsh_process_task(s, at);
    const ns_notice *n = find(r, task->id, task->run);
    if (n != NULL)
      lose_task(s, at, n); /* what is taken back is behind it */
  }
}

/* The jobs are stopped, or not started. The mailbox is locked. */
static void take_revoked(nsh_pools *t) {
  nsh_exchange *m = t->mail;
  revoked r = {m, m->revoked, m->nrevoked};
  if (r.n == 0)
    return;
  qsort(m->revoked, r.n, sizeof *m->revoked, by_token);
  for (size_t i = 0; i < t->npools; i++)
    t->backlog -= nsh_prefetch_drop(&t->pools[i].backlog, lose_waiting, &r);
  for (size_t i = 0; i < t->nseats; i++)
    lose_tasks(&t->seats[i], &r);
  m->nrevoked = 0;
}

/* A lease of which nothing is to be started any more. */
typedef struct withdrawal {
  nsh_exchange *mail;
  int64_t lease;
} withdrawal;

static bool withdraw_waiting(void *arg, const ns_job *job) {
  const withdrawal *w = arg;
  if (job->lease != w->lease)
    return false;
  nsh_exchange_release(w->mail, job->id, job->run, job->lease);
  return true;
}

static bool waits_with(nsh_process *s, int64_t lease) {
  int64_t since;
  for (uint32_t i = nsh_process_running(s, &since) ? 1 : 0; i < s->n; i++)
    if (nsh_process_task(s, i)->lease == lease)
      return true;
  return false;
}

/* What has not been started of a lease goes back; its neighbours in a seat lose
** nothing by going with it. The mailbox is locked. */
static void withdraw(nsh_pools *t, int64_t lease) {
  withdrawal w = {t->mail, lease};
  for (size_t i = 0; i < t->npools; i++)
    t->backlog -= nsh_prefetch_drop(&t->pools[i].backlog, withdraw_waiting, &w);
  for (size_t i = 0; i < t->nseats; i++) {
    nsh_process *s = &t->seats[i];
    if (waits_with(s, lease))
      nsh_process_recall(s);
  }
}

static void take_lost(nsh_pools *t) {
  nsh_exchange *m = t->mail;
  for (size_t i = 0; i < m->nlost; i++) {
    const nsh_lost *l = &m->lost[i];
    nsh_process *s = &t->seats[l->seat];
    if (s->n > 0 && s->pid == l->pid && nsh_process_task(s, 0)->seq == l->seq)
      lose(s, NULL);
  }
  m->nlost = 0;
  take_revoked(t);
  for (size_t i = 0; i < m->nwithdrawn; i++)
    withdraw(t, m->withdrawn[i]);
  m->nwithdrawn = 0;
}

/* We were given up for dead. What has not been started is dropped: its release
** will be STALE. The mailbox is locked. */
static void lose_all(nsh_pools *t) {
  release_backlog(t);
  for (size_t i = 0; i < t->nseats; i++)
    if (t->seats[i].n > 0) {
      nsh_process_recall(&t->seats[i]);
      lose(&t->seats[i], NULL);
    }
  t->mail->lost_all = false;
}

void nsh_pool_collect(nsh_pools *t) {
  nsh_pool_lock(t);
  take_loads(t);
  take_lost(t);
  if (t->mail->lost_all)
    lose_all(t);
  nsh_messages_serve_ids(t);
  nsh_pool_unlock(t);
  nsh_pool_hand_out(t);
}

void nsh_pool_hear_process(nsh_process *s) {
  nsh_process_hear(s);
  if (s->phase == NSH_UP && s->n * 2 <= window(s->table, s->pool))
    nsh_pool_list(s, s->n == 0);
}

/* The workers of one word of news. */
static void hear_some(nsh_pools *t, size_t word, uint64_t bits) {
  nsh_pool_lock(t);
  for (; bits != 0; bits &= bits - 1) {
    size_t i = word * 64 + (size_t)__builtin_ctzll(bits);
    if (i < t->nseats)
      nsh_pool_hear_process(&t->seats[i]);
  }
  nsh_pool_unlock(t);
}

void nsh_pool_hear(nsh_pools *t) {
  bool any = false;
  for (size_t word = 0; word * 64 < t->nseats; word++) {
    uint64_t bits = nsh_news_take(&t->slots->news, word);
    if (bits == 0)
      continue;
    hear_some(t, word, bits);
    any = true;
  }
  if (any)
    nsh_pool_hand_out(t);
}

#ifdef NS_DEBUG
/* Seats whose worker runs older scripts; those without one count as such never. */
static size_t aged(const nsh_pools *t) {
  size_t n = 0;
  for (size_t i = 0; i < t->nseats; i++) {
    assert(!t->seats[i].old || t->seats[i].phase != NSH_EMPTY);
    n += t->seats[i].old;
  }
  return n;
}

/* What the counts of a pool have to be, from its seats. */
static nsh_pool recounted(const nsh_pools *t, size_t pool) {
  nsh_pool sum = {.tasks = 0};
  for (size_t i = 0; i < t->nseats; i++) {
    const nsh_process *s = &t->seats[i];
    bool up = s->phase == NSH_UP;
    if (s->pool != pool)
      continue;
    sum.up += up;
    sum.tasks += s->n;
    sum.held += up ? s->n : 0;
  }
  return sum;
}

void nsh_pool_recount(nsh_pools *t) {
  size_t up = 0;
  size_t busy = 0;
  size_t waiting = 0;
  size_t arriving = 0;
  nsh_exchange_lock(t->mail);
  for (size_t i = 0; i < t->npools; i++) {
    const nsh_pool *p = &t->pools[i];
    nsh_pool now = recounted(t, i);
    assert(now.up == p->up && now.tasks == p->tasks && now.held == p->held);
    assert(t->mail->places[i] == places(t, i) - (int64_t)t->mail->arriving[i]);
    up += now.up;
    busy += now.tasks;
    waiting += p->backlog.n;
    arriving += t->mail->arriving[i];
  }
  assert(t->up == up && t->busy == busy && t->backlog == waiting && t->old == aged(t));
  assert(t->mail->outstanding == busy + waiting + arriving);
  nsh_exchange_unlock(t->mail);
}
#else
void nsh_pool_recount(nsh_pools *t) {
  (void)t;
}
#endif

/* ------------------------------------------------------------------ orders */

static void take_back(nsh_pools *t) {
  nsh_pool_lock(t);
  release_backlog(t);
  for (size_t i = 0; i < t->nseats; i++)
    if (t->seats[i].n > 0)
      nsh_process_recall(&t->seats[i]);
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

static void stop(nsh_process *s) {
  int64_t since;
  nsh_pool_lock(s->table);
  if (nsh_process_running(s, &since))
    nsh_escalation_start(s, NSH_WHY_STOP, NSH_STEP_STOP, "");
  nsh_pool_unlock(s->table);
  if (s->rung == NSH_CALM) {
    nsh_lifecycle_doom(s);
    nsh_lifecycle_kill(s, SIGKILL);
  }
}

void nsh_pool_kill(nsh_pools *t) {
  for (size_t i = 0; i < t->nseats; i++)
    if (t->seats[i].phase != NSH_EMPTY)
      stop(&t->seats[i]);
}

void nsh_pool_dismiss(nsh_pools *t) {
  for (size_t i = 0; i < t->nseats; i++)
    if (t->seats[i].phase == NSH_UP)
      nsh_lifecycle_leave(&t->seats[i]);
}

void nsh_pool_init(nsh_pools *t, const nsh_config *cfg, nsh_exchange *mail, uv_loop_t *loop,
                   nsh_slots *slots) {
  memset(t, 0, sizeof *t);
  t->cfg = cfg;
  t->mail = mail;
  t->loop = loop;
  t->slots = slots;
  t->nseats = cfg->workers;
  t->seats = nsh_alloc(t->nseats * sizeof *t->seats);
  t->npools = cfg->nreserves + 1;
  for (size_t i = 0; i < t->npools; i++) {
    t->pools[i].room_end = &t->pools[i].room;
    t->pools[i].pace = NSH_PACE_INIT;
  }
  for (size_t i = 0; i < t->nseats; i++) {
    t->seats[i].table = t;
    t->seats[i].index = (uint32_t)i;
    t->seats[i].pool = nsh_config_pool_of(cfg, i);
    t->seats[i].slot = &slots->slot[i];
  }
}

void nsh_pool_free(nsh_pools *t) {
  for (size_t i = 0; i < t->nseats; i++)
    nsh_process_free(&t->seats[i]);
  for (size_t i = 0; i < t->npools; i++)
    nsh_prefetch_free(&t->pools[i].backlog);
  nsh_names_free(&t->names);
  free(t->wanters);
  free(t->seats);
}
