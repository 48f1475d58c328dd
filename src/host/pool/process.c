/*
** One worker as its host sees it: its tasks, its rings, the stopping of its running job. The
** pool knows the meaning of its frames: pools->on_frame.
*/
#include "pool/pool.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "ipc/ipc.h"

#define KEEP_ROOM ((size_t)64 << 10) /* larger idle buffers are freed */
#define LOG_KEEP 16384               /* bytes of log kept with a failure */

/* --------------------------------------------------------------------- tasks */

static nsh_task *add_task(nsh_process *w) {
  if (w->n == w->cap) {
    uint32_t cap = w->cap > 0 ? w->cap * 2 : 2;
    nsh_task *tasks = nsh_alloc(cap * sizeof *tasks);
    for (uint32_t i = 0; i < w->n; i++)
      tasks[i] = *nsh_process_task(w, i);
    free(w->tasks);
    w->tasks = tasks;
    w->cap = cap;
    w->first = 0;
  }
  return nsh_process_task(w, w->n++);
}

/* The next job of a batch takes the task over. False: there is none. */
static bool next_member(nsh_task *t) {
  nsh_members *m = t->members;
  if (m == NULL || ++m->at == m->n)
    return false;
  t->id = m->items[m->at].id;
  t->run = m->items[m->at].run;
  t->lease = m->items[m->at].lease;
  t->heard = m->items[m->at].heard;
  t->due = m->items[m->at].due;
  return true;
}

/* Its names may be forgotten. */
static void free_task(nsh_task *t) {
  ns_assert(t->name->tasks > 0 && t->queue->tasks > 0);
  t->name->tasks--;
  t->queue->tasks--;
  free(t->members);
  t->members = NULL;
}

const nsh_member *nsh_process_member(nsh_task *t, size_t at, nsh_member *room) {
  if (t->members != NULL)
    return at >= t->members->at && at < t->members->n ? &t->members->items[at] : NULL;
  *room = (nsh_member){t->id, t->run, t->lease, t->heard, t->due};
  return at == 0 ? room : NULL;
}

void nsh_process_pop(nsh_process *w) {
  ns_assert(w->n > 0);
  if (next_member(nsh_process_task(w, 0)))
    return;
  free_task(nsh_process_task(w, 0));
  w->first = (w->first + 1) & (w->cap - 1);
  w->n--;
  nsh_pool_count(w, -1);
  ns_buf_reset(&w->log);
  ns_buf_reset(&w->line);
  w->printed = false;
  free(w->text);
  w->text = NULL;
  w->shown = w->unsent = w->stuck = false;
  w->progress = -1;
  w->touched_at = 0;
}

static void join_task(nsh_process *w, const nsh_task *task) {
  nsh_task *t = add_task(w);
  *t = *task;
  w->next_seq++;
  t->name->tasks++;
  t->queue->tasks++;
  ns_assert(w->n < 2 || nsh_before(nsh_process_task(w, w->n - 2)->seq, t->seq));
  nsh_pool_count(w, 1);
}

/* Since when a job could be claimed, by the server's clock. 0: not known, as it has waited for
** other jobs or for a signal. */
static int64_t due_of(const ns_job *job) {
  return (job->follows & NS_HAS_AFTER) != 0 || job->phase > 0 ? 0 : job->due;
}

/* The task of a job, or of a batch that begins with it. */
static nsh_task task_of(nsh_process *w, const ns_job *job) {
  return (nsh_task){.seq = w->next_seq,
                    .id = job->id,
                    .run = job->run,
                    .lease = job->lease,
                    .timeout = job->timeout,
                    .heard = job->heard,
                    .due = due_of(job),
                    .name = nsh_names_get(&w->pools->names, job->name),
                    .queue = nsh_names_get(&w->pools->queues, job->queue)};
}

bool nsh_process_give(nsh_process *w, const ns_job *job) {
  nsh_task t = task_of(w, job);
  nsh_order o = {.seq = w->next_seq, .hold = nsh_pace_brief(&t.name->pace), .job = *job};
  if (!nsh_put_order(&w->out, &o))
    return false;
  join_task(w, &t);
  return true;
}

bool nsh_process_give_bulk(nsh_process *w, const nsh_bulk *k) {
  nsh_task t = task_of(w, k->items[0].job);
  nsh_bulk_order o = {.seq = w->next_seq, .n = k->n};
  nsh_members *m;
  size_t start;
  for (size_t i = 0; i < k->n; i++)
    if (k->items[i].job->timeout > o.timeout)
      o.timeout = k->items[i].job->timeout;
  start = nsh_begin_bulk(&w->out, &o);
  for (size_t i = 0; i < k->n; i++)
    nsh_put_job(&w->out, k->items[i].job);
  if (!nsh_end(&w->out, start))
    return false;
  m = nsh_alloc(sizeof *m + k->n * sizeof *m->items);
  m->n = k->n;
  for (size_t i = 0; i < k->n; i++) {
    const ns_job *job = k->items[i].job;
    m->items[i] = (nsh_member){job->id, job->run, job->lease, job->heard, due_of(job)};
  }
  t.timeout = o.timeout;
  t.members = m;
  join_task(w, &t);
  return true;
}

/* Its jobs go back to the database. */
static void release_task(nsh_process *w, nsh_task *t) {
  do
    nsh_exchange_release(w->pools->exchange, t->id, t->run, t->lease);
  while (next_member(t));
  free_task(t);
}

void nsh_process_recall(nsh_process *w) {
  uint32_t first = nsh_slot_recall(w->slot);
  while (w->n > 0) {
    nsh_task *t = nsh_process_task(w, w->n - 1);
    if (nsh_before(t->seq, first))
      break;
    release_task(w, t);
    w->n--;
    nsh_pool_count(w, -1);
  }
  if (w->n == 0)
    nsh_pool_list(w, true); /* nothing would be heard of it */
}

#define TIMEOUT_MAX (INT64_C(3155760000) * NS_SECOND) /* as of a push */
#define ATTEMPTS_MAX 1000000

/* A handler may have written anything there, as below. */
int64_t nsh_process_timeout(nsh_process *w) {
  int64_t its = atomic_load(&w->slot->timeout);
  return its > 0 && its <= TIMEOUT_MAX ? its : nsh_process_task(w, 0)->timeout;
}

int64_t nsh_process_attempts(const nsh_process *w) {
  int64_t its = atomic_load(&w->slot->most);
  return its > 0 && its <= ATTEMPTS_MAX ? its : 0;
}

bool nsh_process_running(nsh_process *w, int64_t *since) {
  if (w->n == 0 || !nsh_slot_started(w->slot, nsh_process_task(w, 0)->seq))
    return false;
  *since = atomic_load(&w->slot->started_at);
  return true;
}

nsh_run nsh_process_run(const nsh_process *w, const nsh_task *t, int64_t id, int64_t run,
                        int64_t micros) {
  return (nsh_run){.id = id,
                   .run = run,
                   .name = {t->name->text, t->name->n},
                   .queue = {t->queue->text, t->queue->n},
                   .worker = (int64_t)w->index + 1,
                   .pid = w->pid,
                   .micros = micros};
}

/* Keeps bytes of the running job; to have room, whole lines go, oldest first. */
static void keep_log(nsh_process *w, ns_bytes s) {
  size_t cut;
  if (w->log.n + s.n + 1 > LOG_KEEP) {
    const char *p = memchr(w->log.p + w->log.n / 2, '\n', w->log.n - w->log.n / 2);
    cut = p != NULL ? (size_t)(p + 1 - w->log.p) : w->log.n;
    memmove(w->log.p, w->log.p + cut, w->log.n - cut);
    w->log.n -= cut;
  }
  ns_buf_add(&w->log, s.p, s.n);
}

void nsh_process_log(nsh_process *w, ns_bytes line) {
  if (line.n > LOG_KEEP / 2)
    line.n = LOG_KEEP / 2;
  if (w->log.n > 0 && w->log.p[w->log.n - 1] != '\n')
    keep_log(w, ns_str("\n"));
  keep_log(w, line);
  ns_buf_addc(&w->log, '\n');
}

void nsh_process_printed(nsh_process *w, ns_bytes piece) {
  w->printed = true;
  if (piece.n > LOG_KEEP / 2)
    piece.n = LOG_KEEP / 2;
  keep_log(w, piece);
}

/* ------------------------------------------------------------------- leaving */

void nsh_process_resign(nsh_process *w) {
  nsh_pool_enter(w, NSH_RETIRING);
  nsh_process_recall(w);
}

void nsh_process_retire(nsh_process *w) {
  nsh_pool_lock(w->pools);
  nsh_process_resign(w);
  nsh_pool_unlock(w->pools);
}

void nsh_process_kill(nsh_process *w, int sig) {
  w->forced = w->forced || sig == SIGKILL;
  nsh_zygote_kill(w->zygote, w->index, sig);
}

/* The worker's frames make no sense: its memory cannot be trusted any more. */
static void distrust(nsh_process *w) {
  ns_log(NS_LOG_ERROR, "worker.protocol_error", NS_FIELDS(ns_fi("pid", w->pid)));
  nsh_pool_enter(w, NSH_RETIRING);
  w->blame = "what it wrote to us made no sense";
  if (w->pid > 0)
    nsh_process_kill(w, SIGKILL);
}

/* ----------------------------------------------------------------- the rings */

/* The frames in 'n' bytes; how many bytes they were. A worker that talks
** nonsense is killed, as its memory cannot be trusted any more. */
static size_t take_frames(nsh_process *w, const char *p, size_t n) {
  size_t at = 0;
  while (at < n) {
    nsh_frame f;
    int64_t size = nsh_next(p + at, n - at, &f);
    if (size == 0)
      break;
    if (size < 0 || !w->pools->on_frame(w, &f)) {
      distrust(w);
      return n;
    }
    at += (size_t)size;
  }
  return at;
}

/* Most reads end with a whole frame, and nothing is copied then. */
static void take_bytes(nsh_process *w, const char *p, size_t n) {
  size_t used;
  if (w->in.n == 0) {
    used = take_frames(w, p, n);
    ns_buf_add(&w->in, p + used, n - used);
  } else {
    ns_buf_add(&w->in, p, n);
    used = take_frames(w, w->in.p, w->in.n);
    w->in.n -= used;
    memmove(w->in.p, w->in.p + used, w->in.n);
  }
  nsh_must(!w->in.oom);
  if (w->in.n == 0 && w->in.cap > KEEP_ROOM)
    ns_buf_free(&w->in);
}

/* Takes all bytes of the ring at once; later bytes come with a new wake-up. */
static void read_ring(nsh_process *w) {
  static char bytes[NSH_RING];
  int64_t n = nsh_ring_take(&w->slot->out, bytes, sizeof bytes);
  if (n < 0) {
    distrust(w);
    return;
  }
  if (nsh_ring_relieved(&w->slot->out))
    nsh_ring_wake_writer(&w->slot->out);
  take_bytes(w, bytes, (size_t)n);
}

void nsh_process_flush(nsh_process *w) {
  size_t n;
  if (w->out_at == w->out.n)
    return;
  n = nsh_ring_put(&w->slot->in, w->out.p + w->out_at, w->out.n - w->out_at);
  w->out_at += n;
  if (n > 0)
    nsh_ring_wake(&w->slot->in);
  if (w->out_at < w->out.n)
    return; /* the worker tells when there is room */
  ns_buf_reset(&w->out);
  w->out_at = 0;
  if (w->out.cap > KEEP_ROOM)
    ns_buf_free(&w->out);
}

void nsh_process_read(nsh_process *w) {
  if (w->phase == NSH_EMPTY || w->blame != NULL)
    return;
  read_ring(w);
  nsh_process_flush(w);
}

void nsh_process_leave(nsh_process *w) {
  nsh_process_retire(w);
  nsh_must(nsh_end(&w->out, nsh_begin(&w->out, NSH_QUIT)));
  nsh_process_flush(w);
}

/* --------------------------------------------------------- beginning and end */

void nsh_process_fork(nsh_process *w, nsh_zygote *z) {
  ns_assert(w->phase == NSH_EMPTY && w->n == 0); /* the last one was reported dead */
  nsh_slots_reset(w->pools->slots, w->index);
  nsh_pool_enter(w, NSH_STARTING);
  w->zygote = z;
  w->forced = false;
  w->blame = NULL;
  w->stop_step = NSH_STOP_NONE;
  w->why = NSH_WHY_NONE;
  w->next_seq = 0;
  w->idle_at = 0;
  w->progress = -1;
  nsh_zygote_fork(z, w->index);
}

void nsh_process_release(nsh_process *w) {
  nsh_pool_lock(w->pools);
  if (w->blame == NULL)
    read_ring(w);
  nsh_pool_unlock(w->pools);
  ns_buf_free(&w->in);
  ns_buf_free(&w->out);
  w->out_at = 0;
}

void nsh_process_free(nsh_process *w) {
  ns_buf_free(&w->in);
  ns_buf_free(&w->out);
  ns_buf_free(&w->log);
  ns_buf_free(&w->line);
  for (uint32_t i = 0; i < w->n; i++)
    free(nsh_process_task(w, i)->members);
  free(w->tasks);
  free(w->text);
}

/* ------------------------------------------------------------ stopping a job */

/* A run that is being stopped. Where that is its failure, the line on its end follows. */
static void log_stop(nsh_process *w, int64_t id, int64_t run, nsh_why because, const char *said) {
  static const char *const reasons[] = {[NSH_WHY_TIMEOUT] = "timeout",
                                        [NSH_WHY_LOST] = "the claim is lost",
                                        [NSH_WHY_STOP] = "the host stops",
                                        [NSH_WHY_MEMORY] = "memory limit",
                                        [NSH_WHY_CANCELLED] = "cancelled"};
  bool fails = because == NSH_WHY_TIMEOUT || because == NSH_WHY_MEMORY;
  int64_t since = ns_mono_us();
  char why[288];
  nsh_run r;
  nsh_process_running(w, &since);
  r = nsh_process_run(w, nsh_process_task(w, 0), id, run, ns_mono_us() - since);
  snprintf(why, sizeof why, "%s%s%s", reasons[because], said[0] != '\0' ? ": " : "", said);
  nsh_run_log(&r, fails ? NS_LOG_INFO : NS_LOG_WARN,
              because == NSH_WHY_TIMEOUT ? "job.timeout" : "job.stop", "stopping",
              NS_FIELDS(ns_fs("why", why)));
}

void nsh_process_stop(nsh_process *w, nsh_why why, int64_t step, const char *said) {
  nsh_task *task = nsh_process_task(w, 0);
  if (w->stop_step != NSH_STOP_NONE) {
    if (w->why == NSH_WHY_LOST && why == NSH_WHY_CANCELLED)
      log_stop(w, task->id, task->run, w->why = why, said); /* its sign of life has come first */
    return;
  }
  w->stop_step = NSH_STOP_TOLD;
  w->why = why;
  w->step_us = step;
  w->next_at = ns_mono_us() + step;
  nsh_process_recall(w);
  w->pools->tally.timeouts += why == NSH_WHY_TIMEOUT;
  nsh_slot_tell(w->slot, task->seq, why);
  log_stop(w, task->id, task->run, why, said);
}

void nsh_process_lose(nsh_process *w, size_t at, const char *said) {
  nsh_task *task = nsh_process_task(w, 0);
  nsh_member room;
  const nsh_member *m = nsh_process_member(task, at, &room);
  if (m == NULL || (nsh_slot_lost(w->slot, (uint32_t)at) && said[0] == '\0'))
    return; /* a reason that comes behind the sign of life is told */
  nsh_slot_lose(w->slot, (uint32_t)at);
  log_stop(w, m->id, m->run, NSH_WHY_CANCELLED, said);
}

void nsh_process_escalate(nsh_process *w, int64_t now) {
  if (now < w->next_at || w->stop_step == NSH_STOP_KILLED)
    return;
  w->step_us *= 2;
  w->next_at = now + w->step_us;
  w->stop_step++;
  if (w->stop_step == NSH_STOP_TERMED)
    nsh_process_retire(w);
  nsh_process_kill(w, w->stop_step == NSH_STOP_INTERRUPTED ? NSH_INTERRUPT_SIGNAL
                      : w->stop_step == NSH_STOP_TERMED    ? SIGTERM
                                                           : SIGKILL);
}

/* A worker that got SIGTERM is as good as dead: it is not to be seen again. */
void nsh_process_stopped(nsh_process *w) {
  if (nsh_process_terminated(w))
    return;
  w->stop_step = NSH_STOP_NONE;
  w->why = NSH_WHY_NONE;
}

bool nsh_process_terminated(const nsh_process *w) {
  return w->stop_step >= NSH_STOP_TERMED;
}
