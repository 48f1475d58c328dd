/*
** The exchange. Waiting is by condition variables on the monotonic clock; the
** loop, which waits in epoll, is woken through 'notify'.
**
** Texts that come from scripts are cut and made valid here, so that the server takes them.
*/
#include "exchange/exchange.h"

#include <fcntl.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base.h"
#include "ipc/ipc.h"

/* ----------------------------------------------------- readings of the scripts */

#define ERROR_MAX 4096  /* bytes that are kept of an error */
#define FILES_MAX 20000 /* and of a list, which is not cut but left out */

void nsh_reading_free(nsh_reading *r) {
  free((void *)r->files.p);
  free((void *)r->error.p);
  *r = (nsh_reading){.began = 0};
}

/* Owned, with a zero behind it; absent stays absent. */
static ns_bytes copy_text(ns_bytes s) {
  ns_buf text = NS_BUF_INIT;
  if (s.p == NULL)
    return s;
  ns_buf_add_utf8(&text, s);
  ns_buf_addc(&text, '\0');
  nsh_must(!text.oom);
  return (ns_bytes){text.p, text.n - 1};
}

void nsh_reading_done(nsh_reading *r, const char *version, ns_bytes files, int64_t began) {
  nsh_reading_free(r);
  nsh_version_copy(r->version, ns_str(version));
  r->files = copy_text(files.n <= FILES_MAX ? files : ns_str("[]"));
  r->began = began;
}

void nsh_reading_failed(nsh_reading *r, ns_bytes runs, ns_bytes error, int64_t began) {
  nsh_version_copy(r->version, runs);
  free((void *)r->error.p);
  if (error.n > ERROR_MAX)
    error.n = ERROR_MAX;
  r->error = copy_text(error);
  r->began = began;
  r->ended = 0;
}

void nsh_reading_copy(nsh_reading *to, const nsh_reading *from) {
  nsh_reading_free(to);
  *to = *from;
  to->files = copy_text(from->files);
  to->error = copy_text(from->error);
}

/* ------------------------------------------------------- batches of verdicts */

#define CHUNK ((size_t)64 << 10)

struct nsh_chunk {
  nsh_chunk *next;
  size_t n, cap;
  bool mapped; /* a file */
  alignas(max_align_t) char bytes[];
};

static void drop_chunk(nsh_chunk *c) {
  if (c->mapped)
    munmap(c, sizeof *c + c->cap);
  else
    free(c);
}

static void *room_in_chunk(nsh_batch *b, size_t n) {
  size_t size = (n + alignof(max_align_t) - 1) & ~(alignof(max_align_t) - 1);
  nsh_chunk *c = b->chunks;
  void *p;
  if (c == NULL || c->cap - c->n < size) {
    size_t cap = size > CHUNK ? size : CHUNK;
    c = malloc(sizeof *c + cap);
    nsh_must(c != NULL);
    *c = (nsh_chunk){.next = b->chunks, .cap = cap};
    b->chunks = c;
  }
  p = c->bytes + c->n;
  c->n += size;
  return p;
}

void nsh_batch_add(nsh_batch *b, const ns_verdict *v) {
  nsh_must(ns_grow(&b->items, &b->cap, b->n + 1, sizeof *b->items));
  b->items[b->n++] = *v;
}

ns_bytes nsh_batch_keep(nsh_batch *b, ns_bytes s) {
  char *p;
  if (s.p == NULL)
    return NS_NONE;
  p = room_in_chunk(b, s.n + 1);
  memcpy(p, s.p, s.n);
  p[s.n] = '\0';
  return (ns_bytes){p, s.n};
}

/* Makes a file of 'size' bytes without a name. Its space is set aside, so that a full disk is
** met here and not at some later write; -1: none. */
static int nameless_file(size_t size) {
  const char *folder = getenv("TMPDIR");
  char path[4096];
  int fd;
  if (folder == NULL || *folder == '\0')
    folder = "/tmp";
  fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0 && snprintf(path, sizeof path, "%s/nightshift-XXXXXX", folder) < (int)sizeof path) {
    if ((fd = mkostemp(path, O_CLOEXEC)) >= 0)
      unlink(path);
  }
  if (fd >= 0 && posix_fallocate(fd, 0, (off_t)size) != 0) {
    close(fd);
    fd = -1;
  }
  return fd;
}

/* The pages are let go after the copy: they come back when they are read. The
** chunk goes behind the first, which may have room for more. */
ns_bytes nsh_batch_spill(nsh_batch *b, ns_bytes s) {
  size_t size = sizeof(nsh_chunk) + s.n + 1;
  nsh_chunk **at = b->chunks != NULL ? &b->chunks->next : &b->chunks;
  nsh_chunk *c = MAP_FAILED;
  int fd = s.p != NULL && s.n > CHUNK ? nameless_file(size) : -1;
  if (fd >= 0) {
    c = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
  }
  if (c == MAP_FAILED)
    return nsh_batch_keep(b, s);
  *c = (nsh_chunk){.next = *at, .n = s.n + 1, .cap = s.n + 1, .mapped = true};
  *at = c;
  memcpy(c->bytes, s.p, s.n);
  madvise(c, size, MADV_DONTNEED);
  return (ns_bytes){c->bytes, s.n};
}

ns_push *nsh_batch_children(nsh_batch *b, size_t n) {
  return n > 0 ? memset(room_in_chunk(b, n * sizeof(ns_push)), 0, n * sizeof(ns_push)) : NULL;
}

void nsh_batch_keep_child(nsh_batch *b, ns_push *child) {
  child->name = nsh_batch_keep(b, child->name);
  child->payload = nsh_batch_keep(b, child->payload);
  child->queue = nsh_batch_keep(b, child->queue);
  child->unique = nsh_batch_keep(b, child->unique);
  child->after = nsh_batch_keep(b, child->after);
  child->tags = nsh_batch_keep(b, child->tags);
  child->group = nsh_batch_keep(b, child->group);
}

void nsh_batch_copy(nsh_batch *b, const ns_verdict *from) {
  ns_verdict to = *from;
  to.result = nsh_batch_keep(b, from->result);
  to.error = nsh_batch_keep(b, from->error);
  to.state = nsh_batch_keep(b, from->state);
  to.signal = nsh_batch_keep(b, from->signal);
  to.log = nsh_batch_keep(b, from->log);
  to.name = nsh_batch_keep(b, from->name);
  to.queue = nsh_batch_keep(b, from->queue);
  to.children = nsh_batch_children(b, from->nchildren);
  for (size_t i = 0; i < from->nchildren; i++) {
    to.children[i] = from->children[i];
    nsh_batch_keep_child(b, &to.children[i]);
  }
  nsh_batch_add(b, &to);
}

/* The last chunk stays when it is an ordinary one. */
void nsh_batch_clear(nsh_batch *b) {
  nsh_chunk *next;
  while (b->chunks != NULL && (b->chunks->next != NULL || b->chunks->cap > CHUNK)) {
    next = b->chunks->next;
    drop_chunk(b->chunks);
    b->chunks = next;
  }
  if (b->chunks != NULL)
    b->chunks->n = 0;
  b->n = 0;
}

void nsh_batch_free(nsh_batch *b) {
  nsh_batch_clear(b);
  free(b->chunks);
  free(b->items);
  *b = NSH_BATCH_INIT;
}

#define MANY_CHILDREN 100 /* of a verdict: some 20 µs each to write */
#define IDS_STOCK 1024    /* ids that a host with handlers that spawn keeps */

void nsh_load_free(nsh_load *load) {
  if (load == NULL)
    return;
  ns_jobs_free(&load->jobs);
  free(load);
}

void nsh_exchange_cond(pthread_cond_t *c) {
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(c, &attr);
  pthread_condattr_destroy(&attr);
}

void nsh_exchange_init(nsh_exchange *m, size_t npools, void (*notify)(void *arg), void *arg) {
  memset(m, 0, sizeof *m);
  m->npools = npools;
  pthread_mutex_init(&m->lock, NULL);
  nsh_exchange_cond(&m->work);
  nsh_exchange_cond(&m->listen);
  nsh_exchange_cond(&m->upkeep);
  nsh_exchange_cond(&m->runners);
  nsh_exchange_cond(&m->schedules);
  m->notify = notify;
  m->notify_arg = arg;
  m->loads_end = &m->loads;
  m->rest_due = -1;
  m->turn = 1;
  m->ids_owed = IDS_STOCK;
}

void nsh_exchange_free(nsh_exchange *m) {
  nsh_load *load;
  while ((load = m->loads) != NULL) {
    m->loads = load->next;
    nsh_load_free(load);
  }
  for (size_t i = 0; i < m->ntouches; i++)
    free(m->touches[i].text);
  nsh_batch_free(&m->verdicts);
  nsh_batch_free(&m->parents);
  nsh_batch_free(&m->large);
  free(m->touches);
  free(m->ids);
  free(m->lost);
  free(m->revoked);
  free(m->paused.queues);
  ns_buf_free(&m->paused.names);
  free(m->queues);
  free(m->handlers);
  free(m->names);
  free(m->on_dead);
  free(m->batched);
  nsh_reading_free(&m->reading);
  pthread_cond_destroy(&m->work);
  pthread_cond_destroy(&m->listen);
  pthread_cond_destroy(&m->upkeep);
  pthread_cond_destroy(&m->runners);
  pthread_cond_destroy(&m->schedules);
  free(m->declared);
  pthread_mutex_destroy(&m->lock);
}

void nsh_exchange_lock(nsh_exchange *m) {
  pthread_mutex_lock(&m->lock);
}

void nsh_exchange_unlock(nsh_exchange *m) {
  pthread_mutex_unlock(&m->lock);
}

/* ----------------------------------------------------------- does it move? */

void nsh_exchange_moved(nsh_exchange *m, bool asks) {
  atomic_store_explicit(&m->asks, asks, memory_order_relaxed);
  atomic_store_explicit(&m->moved, ns_mono_us(), memory_order_relaxed);
}

/* A server that is away or slow is no fault of ours, and a new process would not mend it. */
bool nsh_exchange_moves(nsh_exchange *m, int64_t within) {
  bool waits = atomic_load(&m->asks) || atomic_load(&m->away);
  int64_t now;
  nsh_exchange_lock(m);
  now = ns_mono_us();
  if (m->poked == 0 || atomic_load(&m->moved) >= m->poked)
    m->poked = now;
  now -= m->poked;
  pthread_cond_signal(&m->work);
  nsh_exchange_unlock(m);
  return now <= (waits && m->patience > within ? m->patience : within);
}

/* --------------------------------------------------------------- the loop */

nsh_batch *nsh_exchange_batch(nsh_exchange *m, size_t nchildren) {
  if (nchildren == 0)
    return &m->verdicts;
  return nchildren > MANY_CHILDREN ? &m->large : &m->parents;
}

void nsh_exchange_verdict(nsh_exchange *m, const ns_verdict *v) {
  nsh_batch *batch = nsh_exchange_batch(m, v->nchildren);
  nsh_batch_add(batch, v);
  if (v->kind != NS_RELEASE)
    batch->items[batch->n - 1].ended = ns_mono_us();
  ns_assert(m->outstanding > 0); /* each job has one verdict */
  m->outstanding--;
  m->unsettled++;
  pthread_cond_signal(batch == &m->large ? &m->upkeep : &m->work);
}

void nsh_exchange_written(nsh_exchange *m, const ns_verdict *v) {
  nsh_batch_add(&m->verdicts, &(ns_verdict){.id = v->id,
                                            .run = v->run,
                                            .lease = v->lease,
                                            .kind = NS_RELEASE,
                                            .delay = -1,
                                            .go_on = 2,
                                            .ended = v->ended});
  m->woken = true;
  pthread_cond_signal(&m->work);
}

void nsh_exchange_release(nsh_exchange *m, int64_t id, int64_t run, int64_t lease) {
  nsh_exchange_verdict(
      m, &(ns_verdict){
             .id = id, .run = run, .lease = lease, .kind = NS_RELEASE, .delay = -1, .go_on = 1});
}

/* The newer one of a worker's two touches replaces the other. */
static void merge_touch(nsh_touch *old, const nsh_touch *t) {
  bool same = old->seq == t->seq && old->pid == t->pid;
  nsh_touch both = *t;
  if (same && t->progress < 0)
    both.progress = old->progress;
  if (same && t->text == NULL) {
    both.text = old->text;
    both.n = old->n;
  } else
    free(old->text);
  *old = both;
}

void nsh_exchange_touch(nsh_exchange *m, const nsh_touch *t, nsh_place *place) {
  if (place->turn == m->turn) {
    merge_touch(&m->touches[place->at], t);
    return;
  }
  nsh_must(ns_grow(&m->touches, &m->captouches, m->ntouches + 1, sizeof *m->touches));
  *place = (nsh_place){m->turn, m->ntouches};
  m->touches[m->ntouches++] = *t;
  pthread_cond_signal(&m->work);
}

void nsh_exchange_want_ids(nsh_exchange *m, size_t n, bool waits) {
  m->ids_owed += n;
  if (m->ids_owed == 0 || (!waits && m->ids_owed < IDS_STOCK / 2))
    return;
  m->want_ids += m->ids_owed;
  m->ids_owed = 0;
  pthread_cond_signal(&m->work);
}

void nsh_exchange_publish(nsh_exchange *m, const int64_t *places) {
  bool more = false;
  for (size_t i = 0; i < m->npools; i++) {
    int64_t n = places[i] - (int64_t)m->arriving[i];
    more = more || n > m->places[i];
    m->places[i] = n;
  }
  if (more)
    pthread_cond_signal(&m->work);
}

void nsh_exchange_serves(nsh_exchange *m, char *handlers, char *names, size_t taking) {
  if (handlers != NULL) {
    free(m->handlers);
    m->handlers = handlers;
    free(m->names);
    m->names = names;
    m->declares = true;
  }
  m->taking = taking;
  m->serves = true;
  pthread_cond_signal(&m->work);
}

void nsh_exchange_on_dead(nsh_exchange *m, char *list) {
  free(m->on_dead);
  m->on_dead = list;
}

void nsh_exchange_batched(nsh_exchange *m, char *lines) {
  free(m->batched);
  m->batched = lines;
}

void nsh_exchange_declare(nsh_exchange *m, char *schedules) {
  if (schedules == NULL && m->declared == NULL)
    return;
  free(m->declared);
  m->declared = schedules != NULL ? schedules : strdup("[]");
  nsh_must(m->declared != NULL);
  m->declarations++;
  m->declared_at = ns_mono_us();
  pthread_cond_broadcast(&m->schedules);
}

bool nsh_exchange_ticks_rest(const nsh_exchange *m) {
  return m->ticks_known && !m->ticks_due && m->declared_of == m->declarations;
}

void nsh_exchange_finish(nsh_exchange *m) {
  m->finish = true;
  pthread_cond_signal(&m->work);
}

void nsh_exchange_turned(nsh_exchange *m) {
  m->turns++;
  pthread_cond_broadcast(&m->runners);
}

bool nsh_exchange_quiescent(const nsh_exchange *m) {
  return m->outstanding == 0 && m->unsettled == 0 && !m->cycling;
}

/* --------------------------------------------------------- the dispatcher */

/* Jobs that wait for a pool's own workers, and do not fit, wait for pool 0. */
nsh_room nsh_exchange_room(const nsh_exchange *m) {
  nsh_room room = {0};
  int64_t open = m->places[0];
  for (size_t i = 1; i < m->npools; i++)
    if (m->places[i] > 0)
      room.all += room.own[i] = (size_t)m->places[i];
    else
      open += m->places[i];
  room.open = open > 0 ? (size_t)open : 0;
  room.all += room.open;
  return room;
}

void nsh_exchange_deliver(nsh_exchange *m, ns_jobs *jobs, const size_t *by_pool) {
  nsh_load *load = nsh_alloc(sizeof *load);
  load->jobs = *jobs;
  load->left = jobs->n;
  *jobs = NS_JOBS_INIT;
  m->outstanding += load->jobs.n;
  for (size_t i = 0; i < m->npools; i++) {
    m->arriving[i] += by_pool[i];
    m->places[i] -= (int64_t)by_pool[i];
  }
  *m->loads_end = load;
  m->loads_end = &load->next;
}

void nsh_exchange_ids(nsh_exchange *m, const int64_t *ids, size_t n) {
  nsh_must(ns_grow(&m->ids, &m->capids, m->nids + n, sizeof *m->ids));
  memcpy(m->ids + m->nids, ids, n * sizeof *ids);
  m->nids += n;
}

void nsh_exchange_lose(nsh_exchange *m, const nsh_touch *t) {
  nsh_must(ns_grow(&m->lost, &m->caplost, m->nlost + 1, sizeof *m->lost));
  m->lost[m->nlost++] = (nsh_lost){t->worker, t->seq, t->at, t->pid};
  nsh_count(&m->counts.leases_lost, 1);
}

void nsh_exchange_revoke(nsh_exchange *m, const ns_notice *n) {
  nsh_must(ns_grow(&m->revoked, &m->caprevoked, m->nrevoked + 1, sizeof *m->revoked));
  m->revoked[m->nrevoked++] = *n;
}

static bool same_bytes(const void *a, const void *b, size_t n) {
  return n == 0 || memcmp(a, b, n) == 0;
}

void nsh_exchange_pause(nsh_exchange *m, const int64_t *queues, size_t n, ns_bytes names) {
  nsh_paused *p = &m->paused;
  if (p->n == n && p->names.n == names.n && same_bytes(p->queues, queues, n * sizeof *queues) &&
      same_bytes(p->names.p, names.p, names.n))
    return;
  nsh_must(ns_grow(&p->queues, &p->cap, n, sizeof *p->queues));
  if (n > 0)
    memcpy(p->queues, queues, n * sizeof *queues);
  p->n = n;
  ns_buf_reset(&p->names);
  ns_buf_add(&p->names, names.p, names.n);
  nsh_must(!p->names.oom);
  m->pauses = true;
}

bool nsh_exchange_pauses(const nsh_exchange *m, const ns_job *job) {
  const ns_buf *names = &m->paused.names;
  for (size_t i = 0; i < m->paused.n; i++)
    if (m->paused.queues[i] == job->queue_id)
      return true;
  for (size_t at = 0; at < names->n; at += strlen(names->p + at) + 1)
    if (strlen(names->p + at) == job->name.n && same_bytes(names->p + at, job->name.p, job->name.n))
      return true;
  return false;
}
