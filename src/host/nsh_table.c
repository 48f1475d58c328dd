/*
** The table of workers.
**
** Two queues lie between a claim and a handler. The backlog belongs to the host
** and feeds whoever is free, in a line per pool of workers; the tasks of a seat
** were sent ahead, so that a worker with short jobs need not wait for the host
** between them. Should one of those jobs turn out to be long, the watch takes back
** what was sent behind it.
*/
#include "nsh_table.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "ns_time.h"
#include "nsh_intake.h"
#include "nsh_ladder.h"
#include "nsh_life.h"
#include "nsh_memory.h"

/* --------------------------------------------------------- seats with room */

static nsh_pool *pool_of(const nsh_seat *s) {
  return &s->table->pools[s->pool];
}

void nsh_table_list(nsh_seat *s, bool front) {
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

static nsh_seat *unlist(nsh_pool *p) {
  nsh_seat *s = p->room;
  if (s == NULL)
    return NULL;
  p->room = s->next;
  if (p->room == NULL)
    p->room_end = &p->room;
  s->listed = false;
  p->nroom--;
  return s;
}

void nsh_table_up(nsh_seat *s, bool up) {
  s->table->up += up ? 1 : (size_t)-1;
  pool_of(s)->up += up ? 1 : (size_t)-1;
}

/* ------------------------------------------------------------- handing out */

/* Workers die one after the other: something that was claimed kills them. */
static bool storming(const nsh_table *t) {
  return nsh_storm_delay(&t->storm) > 0;
}

/* How many jobs a seat may have. In a storm nothing is sent behind a job that
** may kill its worker; one that is forked per job has no use for a second. */
static uint32_t window(const nsh_table *t, size_t pool) {
  return storming(t) || t->cfg->fork_per_job
             ? 1
             : nsh_pace_window(&t->pools[pool].pace);
}

/* Workers to claim for. Those that are forked per job come and go all the time;
** unless something holds the forking up, all are about to be there. */
static size_t attending(const nsh_table *t, size_t pool) {
  bool soon = t->cfg->fork_per_job && t->zygote != NULL && !storming(t);
  return soon ? nsh_config_workers(t->cfg, pool) : t->pools[pool].up;
}

void nsh_table_set_targets(nsh_table *t) {
  for (size_t i = 0; i < t->npools; i++) {
    const nsh_pool *p = &t->pools[i];
    size_t there = attending(t, i);
    bool none = t->closing || t->quiet || there == 0;
    size_t late = p->late < there ? p->late : there;
    nsh_mail_target(t->mail, i,
                    none ? 0 : late + nsh_pace_target(&p->pace, there - late));
  }
}

void nsh_table_retarget(nsh_table *t) {
  nsh_mail_lock(t->mail);
  nsh_table_set_targets(t);
  nsh_mail_unlock(t->mail);
}

/* Jobs that seats of a pool may be given. */
static size_t on_offer(const nsh_table *t, const nsh_pool *p) {
  return p == t->pools ? t->backlog : p->backlog.n;
}

/* Whose line has the next job for a seat of a pool. Those who may take any take
** the one that came first. */
static size_t next_line(const nsh_table *t, size_t pool) {
  size_t best = pool;
  uint64_t first = UINT64_MAX;
  for (size_t i = 0; pool == 0 && i < t->npools; i++) {
    const nsh_backlog *b = &t->pools[i].backlog;
    if (b->n > 0 && nsh_backlog_first(b)->arrival < first) {
      first = nsh_backlog_first(b)->arrival;
      best = i;
    }
  }
  return best;
}

/* Gives one job of a line to 's'. */
static void give(nsh_table *t, nsh_seat *s, size_t line) {
  nsh_backlog *b = &t->pools[line].backlog;
  const ns_job *job = nsh_backlog_first(b)->job;
  ns_verdict *v;
  bool given = nsh_seat_give(s, job, nsh_names_get(&t->names, job->name));
  t->backlog--;
  t->busy += given;
  nsh_mail_lock(t->mail);
  if (given)
    nsh_mail_moved(t->mail, line, s->pool);
  else {
    v = nsh_mail_verdict(t->mail, &t->mail->pools[line].waiting, job->id,
                         job->run, job->lease, NS_FAIL);
    v->error = ns_str("the job is too large to be handed to a worker");
  }
  nsh_mail_unlock(t->mail);
  nsh_backlog_pop(b);
}

/* Jobs are spread evenly: first one share for each seat with room. */
static void hand_out(nsh_table *t, size_t pool) {
  nsh_pool *p = &t->pools[pool];
  uint32_t most = window(t, pool);
  nsh_seat *s;
  while (on_offer(t, p) > 0 && p->nroom > 0) {
    size_t share = (on_offer(t, p) + p->nroom - 1) / p->nroom;
    s = unlist(p);
    if (s->phase != NSH_UP || s->rung != NSH_CALM || s->n >= most ||
        (s->stuck && s->n > 0))
      continue; /* listed again when it is heard of */
    while (share-- > 0 && s->n < most && on_offer(t, p) > 0)
      give(t, s, next_line(t, pool));
    nsh_slot_allow(s->slot, s->next_seq);
    nsh_seat_flush(s);
    if (s->n < most)
      nsh_table_list(s, false);
  }
}

/* Reserved workers first: who may take any job leaves theirs to them. */
void nsh_table_hand_out(nsh_table *t) {
  if (t->quiet ||
      (t->backlog > 0 && !nsh_slots_valid(t->slots, ns_mono_us())))
    return; /* the backlog may be others' by now */
  for (size_t i = 1; i < t->npools; i++)
    hand_out(t, i);
  hand_out(t, 0);
}

void nsh_table_release(nsh_table *t, size_t line) {
  nsh_backlog *b = &t->pools[line].backlog;
  for (; b->n > 0; nsh_backlog_pop(b)) {
    const ns_job *job = nsh_backlog_first(b)->job;
    nsh_mail_release(t->mail, &t->mail->pools[line].waiting, job->id, job->run,
                     job->lease);
    t->backlog--;
  }
}

/* Gives all of the backlog back. The mailbox is locked. */
static void release_backlog(nsh_table *t) {
  for (size_t i = 0; i < t->npools; i++)
    nsh_table_release(t, i);
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
static void take_load(nsh_table *t, nsh_load *load) {
  if (nsh_storm_wary(&t->storm, ns_mono_us()))
    mix(&load->jobs);
  t->backlog += load->jobs.n;
  for (size_t i = 0; i < load->jobs.n; i++) {
    const ns_job *job = &load->jobs.items[i];
    nsh_pool *p = &t->pools[nsh_config_pool(t->cfg, job->queue)];
    nsh_pace_claimed(&p->pace, job->payload.n);
    nsh_backlog_add(&p->backlog, &(nsh_waiting){job, load, t->arrivals++});
  }
}

static void take_loads(nsh_table *t) {
  nsh_mail *m = t->mail;
  nsh_load *load;
  while ((load = m->loads) != NULL) {
    m->loads = load->next;
    take_load(t, load);
  }
  m->loads_end = &m->loads;
  if (t->closing || t->quiet)
    release_backlog(t);
}

/* The claim of the oldest task of 's' is lost. The mailbox is locked. */
static void lose(nsh_seat *s) {
  int64_t since;
  if (!nsh_seat_running(s, &since))
    return; /* it has been taken back, or has just ended */
  atomic_store(&s->slot->lost, nsh_seat_task(s, 0)->seq + 1);
  nsh_ladder_start(s, NSH_WHY_LOST, NSH_STEP);
}

/* Is it in the hands of 's'? '*at': its place there. */
static bool has_task(nsh_seat *s, const ns_token *token, uint32_t *at) {
  for (*at = 0; *at < s->n; ++*at) {
    const nsh_task *task = nsh_seat_task(s, *at);
    if (task->id == token->id && task->run == token->run)
      return true;
  }
  return false;
}

/* One that waits behind a running job is taken back, with its neighbours, whose
** release costs them nothing. One that is paused and runs runs on. */
static void lose_task(nsh_table *t, nsh_seat *s, uint32_t at, bool paused) {
  int64_t since;
  if (at == 0 && nsh_seat_running(s, &since)) {
    if (!paused)
      lose(s);
    return;
  }
  t->busy -= nsh_seat_recall(s);
  if (s->n == 0 && s->phase == NSH_UP)
    nsh_table_list(s, true); /* nothing would be heard of it */
}

/* It leaves the backlog: its release is STALE, or, when it is paused, holds it. The
** mailbox is locked. */
static bool lose_waiting(nsh_table *t, const ns_token *token) {
  int64_t lease;
  for (size_t i = 0; i < t->npools; i++)
    if (nsh_backlog_remove(&t->pools[i].backlog, token->id, token->run, &lease)) {
      nsh_mail_release(t->mail, &t->mail->pools[i].waiting, token->id,
                       token->run, lease);
      t->backlog--;
      return true;
    }
  return false;
}

/* The claim of a job has been ended by somebody: it is stopped, or not started. Or
** the job has been paused. */
static void lose_job(nsh_table *t, const ns_token *token) {
  uint32_t at;
  if (lose_waiting(t, token))
    return;
  for (size_t i = 0; i < t->nseats; i++)
    if (has_task(&t->seats[i], token, &at))
      lose_task(t, &t->seats[i], at, token->paused);
}

static bool waits_with(nsh_seat *s, int64_t lease) {
  int64_t since;
  for (uint32_t i = nsh_seat_running(s, &since) ? 1 : 0; i < s->n; i++)
    if (nsh_seat_task(s, i)->lease == lease)
      return true;
  return false;
}

/* What has not been started of a lease goes back; its neighbours in a seat lose
** nothing by going with it. The mailbox is locked. */
static void withdraw(nsh_table *t, int64_t lease) {
  ns_token token;
  for (size_t i = 0; i < t->npools; i++)
    while (nsh_backlog_take(&t->pools[i].backlog, lease, &token)) {
      nsh_mail_release(t->mail, &t->mail->pools[i].waiting, token.id, token.run,
                       lease);
      t->backlog--;
    }
  for (size_t i = 0; i < t->nseats; i++) {
    nsh_seat *s = &t->seats[i];
    if (!waits_with(s, lease))
      continue;
    t->busy -= nsh_seat_recall(s);
    if (s->n == 0 && s->phase == NSH_UP)
      nsh_table_list(s, true);
  }
}

static void take_lost(nsh_table *t) {
  nsh_mail *m = t->mail;
  for (size_t i = 0; i < m->nlost; i++) {
    nsh_seat *s = &t->seats[m->lost[i].seat];
    if (s->n > 0 && nsh_seat_task(s, 0)->seq == m->lost[i].seq)
      lose(s);
  }
  m->nlost = 0;
  for (size_t i = 0; i < m->nrevoked; i++)
    lose_job(t, &m->revoked[i]);
  m->nrevoked = 0;
  for (size_t i = 0; i < m->nwithdrawn; i++)
    withdraw(t, m->withdrawn[i]);
  m->nwithdrawn = 0;
}

/* We were given up for dead. What has not been started is dropped: its release
** will be STALE. The mailbox is locked. */
static void lose_all(nsh_table *t) {
  release_backlog(t);
  for (size_t i = 0; i < t->nseats; i++)
    if (t->seats[i].n > 0) {
      t->busy -= nsh_seat_recall(&t->seats[i]);
      lose(&t->seats[i]);
    }
  t->mail->lost_all = false;
}

void nsh_table_collect(nsh_table *t) {
  nsh_mail_lock(t->mail);
  take_loads(t);
  take_lost(t);
  if (t->mail->lost_all)
    lose_all(t);
  nsh_intake_serve_ids(t);
  nsh_mail_unlock(t->mail);
  nsh_table_hand_out(t);
}

void nsh_table_hear_seat(nsh_seat *s) {
  nsh_seat_hear(s);
  if (s->phase == NSH_UP && s->n * 2 <= window(s->table, s->pool))
    nsh_table_list(s, s->n == 0);
}

/* The workers of one word of news. */
static void hear_some(nsh_table *t, size_t word, uint64_t bits) {
  nsh_mail_lock(t->mail);
  for (; bits != 0; bits &= bits - 1) {
    size_t i = word * 64 + (size_t)__builtin_ctzll(bits);
    if (i < t->nseats)
      nsh_table_hear_seat(&t->seats[i]);
  }
  nsh_mail_unlock(t->mail);
}

void nsh_table_hear(nsh_table *t) {
  bool any = false;
  for (size_t word = 0; word * 64 < t->nseats; word++) {
    uint64_t bits = nsh_news_take(&t->slots->news, word);
    if (bits == 0)
      continue;
    hear_some(t, word, bits);
    any = true;
  }
  if (!any)
    return;
  nsh_table_retarget(t);
  nsh_table_hand_out(t);
}

/* ------------------------------------------------------------------ orders */

static void take_back(nsh_table *t) {
  nsh_mail_lock(t->mail);
  nsh_table_set_targets(t);
  release_backlog(t);
  for (size_t i = 0; i < t->nseats; i++)
    if (t->seats[i].n > 0)
      t->busy -= nsh_seat_recall(&t->seats[i]);
  nsh_mail_unlock(t->mail);
}

void nsh_table_quiet(nsh_table *t, bool quiet) {
  t->quiet = quiet;
  if (quiet)
    take_back(t);
  nsh_table_retarget(t);
  nsh_table_hand_out(t);
}

void nsh_table_close(nsh_table *t) {
  t->closing = true;
  take_back(t);
}

static void stop(nsh_seat *s) {
  int64_t since;
  nsh_mail_lock(s->table->mail);
  if (nsh_seat_running(s, &since))
    nsh_ladder_start(s, NSH_WHY_STOP, NSH_STEP_STOP);
  nsh_mail_unlock(s->table->mail);
  if (s->rung == NSH_CALM) {
    nsh_life_doom(s);
    nsh_life_kill(s, SIGKILL);
  }
}

void nsh_table_kill(nsh_table *t) {
  for (size_t i = 0; i < t->nseats; i++)
    if (t->seats[i].phase != NSH_EMPTY)
      stop(&t->seats[i]);
}

void nsh_table_dismiss(nsh_table *t) {
  for (size_t i = 0; i < t->nseats; i++)
    if (t->seats[i].phase == NSH_UP)
      nsh_life_leave(&t->seats[i]);
}

void nsh_table_init(nsh_table *t, const nsh_config *cfg, nsh_mail *mail,
                    uv_loop_t *loop, nsh_slots *slots) {
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

void nsh_table_free(nsh_table *t) {
  for (size_t i = 0; i < t->nseats; i++)
    nsh_seat_free(&t->seats[i]);
  for (size_t i = 0; i < t->npools; i++)
    nsh_backlog_free(&t->pools[i].backlog);
  nsh_names_free(&t->names);
  free(t->wanters);
  free(t->seats);
}

