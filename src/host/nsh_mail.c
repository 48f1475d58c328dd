/*
** The mailbox. Waiting is by condition variables on the monotonic clock; the
** loop, which waits in epoll, is woken through 'notify'.
*/
#include "nsh_mail.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nsh_memory.h"

void nsh_load_free(nsh_load *load) {
  if (load == NULL)
    return;
  ns_jobs_free(&load->jobs);
  free(load);
}

void nsh_mail_cond(pthread_cond_t *c) {
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(c, &attr);
  pthread_condattr_destroy(&attr);
}

void nsh_mail_init(nsh_mail *m, size_t npools, void (*notify)(void *arg),
                   void *arg) {
  memset(m, 0, sizeof *m);
  m->npools = npools;
  pthread_mutex_init(&m->lock, NULL);
  nsh_mail_cond(&m->work);
  nsh_mail_cond(&m->listen);
  m->notify = notify;
  m->notify_arg = arg;
  m->loads_end = &m->loads;
  m->rest_due = -1;
  m->turn = 1;
}

void nsh_mail_free(nsh_mail *m) {
  nsh_load *load;
  while ((load = m->loads) != NULL) {
    m->loads = load->next;
    nsh_load_free(load);
  }
  for (size_t i = 0; i < m->ntouches; i++)
    free(m->touches[i].text);
  nsh_batch_free(&m->verdicts);
  free(m->touches);
  free(m->ids);
  free(m->lost);
  free(m->revoked);
  free(m->withdrawn);
  free(m->queues);
  free(m->handlers);
  pthread_cond_destroy(&m->work);
  pthread_cond_destroy(&m->listen);
  pthread_mutex_destroy(&m->lock);
}

void nsh_mail_lock(nsh_mail *m) {
  pthread_mutex_lock(&m->lock);
}

void nsh_mail_unlock(nsh_mail *m) {
  pthread_mutex_unlock(&m->lock);
}

/* --------------------------------------------------------------- the loop */

ns_verdict *nsh_mail_verdict(nsh_mail *m, size_t *count, int64_t id,
                             int64_t run, int64_t lease, ns_kind kind) {
  ns_verdict *v = nsh_batch_add(&m->verdicts);
  v->id = id;
  v->run = run;
  v->lease = lease;
  v->kind = kind;
  --*count;
  m->outstanding--;
  m->unsettled++;
  pthread_cond_signal(&m->work);
  return v;
}

void nsh_mail_release(nsh_mail *m, size_t *count, int64_t id, int64_t run,
                      int64_t lease) {
  nsh_mail_verdict(m, count, id, run, lease, NS_RELEASE)->go_on = 1;
}

void nsh_mail_moved(nsh_mail *m, size_t from, size_t to) {
  m->pools[from].waiting--;
  m->pools[to].held++;
  if (from != to) /* its own workers have more room now */
    pthread_cond_signal(&m->work);
}

/* The newer one of a seat's two touches takes the place of the other. */
static void merge_touch(nsh_touch *old, const nsh_touch *t) {
  bool same = old->seq == t->seq && old->pid == t->pid;
  nsh_touch both = *t;
  if (same && t->progress < 0)
    both.progress = old->progress;
  if (same && t->text == NULL)
    both.text = old->text;
  else
    free(old->text);
  *old = both;
}

void nsh_mail_touch(nsh_mail *m, const nsh_touch *t, nsh_place *place) {
  if (place->turn == m->turn) {
    merge_touch(&m->touches[place->at], t);
    return;
  }
  nsh_must(ns_grow(&m->touches, &m->captouches, m->ntouches + 1,
                   sizeof *m->touches));
  *place = (nsh_place){m->turn, m->ntouches};
  m->touches[m->ntouches++] = *t;
  pthread_cond_signal(&m->work);
}

void nsh_mail_want_ids(nsh_mail *m, size_t n) {
  m->want_ids += n;
  pthread_cond_signal(&m->work);
}

void nsh_mail_target(nsh_mail *m, size_t pool, size_t target) {
  bool more = target > m->pools[pool].target;
  m->pools[pool].target = target;
  if (more)
    pthread_cond_signal(&m->work);
}

void nsh_mail_serves(nsh_mail *m, char *handlers, size_t taking) {
  if (handlers != NULL) {
    free(m->handlers);
    m->handlers = handlers;
  }
  m->taking = taking;
  m->serves = true;
  pthread_cond_signal(&m->work);
}

void nsh_mail_finish(nsh_mail *m) {
  for (size_t i = 0; i < m->npools; i++)
    m->pools[i].target = 0;
  m->finish = true;
  pthread_cond_signal(&m->work);
}

bool nsh_mail_quiescent(const nsh_mail *m) {
  return m->outstanding == 0 && m->unsettled == 0 && !m->cycling;
}

/* --------------------------------------------------------- the dispatcher */

static size_t less(size_t n, size_t taken) {
  return n > taken ? n - taken : 0;
}

/* What waits for a pool's own workers, and does not fit, waits for pool 0. */
nsh_room nsh_mail_room(const nsh_mail *m) {
  nsh_room room = {0};
  size_t used = m->pools[0].held + m->pools[0].waiting;
  for (size_t i = 1; i < m->npools; i++) {
    const nsh_pool_count *p = &m->pools[i];
    size_t places = less(p->target, p->held);
    room.own[i] = less(places, p->waiting);
    room.all += room.own[i];
    used += less(p->waiting, places);
  }
  room.open = less(m->pools[0].target, used);
  room.all += room.open;
  return room;
}

void nsh_mail_deliver(nsh_mail *m, ns_jobs *jobs, const size_t *by_pool) {
  nsh_load *load = nsh_alloc(sizeof *load);
  load->jobs = *jobs;
  load->left = jobs->n;
  *jobs = NS_JOBS_INIT;
  m->outstanding += load->jobs.n;
  for (size_t i = 0; i < m->npools; i++)
    m->pools[i].waiting += by_pool[i];
  *m->loads_end = load;
  m->loads_end = &load->next;
}

void nsh_mail_ids(nsh_mail *m, const int64_t *ids, size_t n) {
  nsh_must(ns_grow(&m->ids, &m->capids, m->nids + n, sizeof *m->ids));
  memcpy(m->ids + m->nids, ids, n * sizeof *ids);
  m->nids += n;
}

void nsh_mail_lose(nsh_mail *m, const nsh_touch *t) {
  nsh_must(ns_grow(&m->lost, &m->caplost, m->nlost + 1, sizeof *m->lost));
  m->lost[m->nlost++] = (nsh_lost){t->seat, t->seq};
}

void nsh_mail_revoke(nsh_mail *m, const ns_token *t) {
  nsh_must(ns_grow(&m->revoked, &m->caprevoked, m->nrevoked + 1, sizeof *m->revoked));
  m->revoked[m->nrevoked++] = *t;
}

void nsh_mail_withdraw(nsh_mail *m, int64_t lease) {
  nsh_must(ns_grow(&m->withdrawn, &m->capwithdrawn, m->nwithdrawn + 1,
                   sizeof *m->withdrawn));
  m->withdrawn[m->nwithdrawn++] = lease;
}
