/*
** One worker as its host sees it: rings, tasks, the state of the running job.
** What frames mean: pool/messages.c.
*/
#include "pool/process.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/alloc.h"
#include "pool/lifecycle.h"
#include "pool/messages.h"

#define KEEP_ROOM ((size_t)64 << 10) /* larger idle buffers are freed */
#define LOG_KEEP 16384               /* bytes of log kept with a failure */

/* --------------------------------------------------------------- the tasks */

nsh_task *nsh_process_task(nsh_process *s, uint32_t i) {
  return &s->tasks[(s->first + i) & (s->cap - 1)];
}

static nsh_task *add_task(nsh_process *s) {
  if (s->n == s->cap) {
    uint32_t cap = s->cap > 0 ? s->cap * 2 : 2;
    nsh_task *tasks = nsh_alloc(cap * sizeof *tasks);
    for (uint32_t i = 0; i < s->n; i++)
      tasks[i] = *nsh_process_task(s, i);
    free(s->tasks);
    s->tasks = tasks;
    s->cap = cap;
    s->first = 0;
  }
  return nsh_process_task(s, s->n++);
}

void nsh_process_pop(nsh_process *s) {
  nsh_process_task(s, 0)->name->tasks--;
  s->first = (s->first + 1) & (s->cap - 1);
  s->n--;
  nsh_pool_count(s, -1);
  ns_buf_reset(&s->log);
  free(s->text);
  s->text = NULL;
  s->shown = s->news = s->stuck = false;
  s->progress = -1;
  s->touched_at = 0;
}

bool nsh_process_give(nsh_process *s, const ns_job *job, nsh_name *name) {
  nsh_order o = {.seq = s->next_seq, .hold = nsh_pace_brief(&name->pace),
                 .job = *job};
  nsh_task *t;
  if (!nsh_put_order(&s->out, &o))
    return false;
  t = add_task(s);
  *t = (nsh_task){s->next_seq++, job->id, job->run, job->lease, job->timeout,
                  job->heard, name};
  name->tasks++;
  nsh_pool_count(s, 1);
  return true;
}

void nsh_process_recall(nsh_process *s) {
  uint32_t first = nsh_slot_recall(s->slot);
  while (s->n > 0) {
    nsh_task *t = nsh_process_task(s, s->n - 1);
    if (nsh_before(t->seq, first))
      break;
    nsh_exchange_release(s->table->mail, t->id, t->run, t->lease);
    t->name->tasks--;
    s->n--;
    nsh_pool_count(s, -1);
  }
  if (s->n == 0)
    nsh_pool_list(s, true); /* nothing would be heard of it */
}

bool nsh_process_running(nsh_process *s, int64_t *since) {
  if (s->n == 0 || !nsh_slot_started(s->slot, nsh_process_task(s, 0)->seq))
    return false;
  *since = atomic_load(&s->slot->started_at);
  return true;
}

void nsh_process_log(nsh_process *s, ns_bytes line) {
  size_t cut;
  if (line.n > LOG_KEEP / 2)
    line.n = LOG_KEEP / 2;
  if (s->log.n + line.n + 1 > LOG_KEEP) { /* whole lines go, oldest first */
    const char *p = memchr(s->log.p + s->log.n / 2, '\n', s->log.n / 2);
    cut = p != NULL ? (size_t)(p + 1 - s->log.p) : s->log.n;
    memmove(s->log.p, s->log.p + cut, s->log.n - cut);
    s->log.n -= cut;
  }
  ns_buf_add(&s->log, line.p, line.n);
  ns_buf_addc(&s->log, '\n');
}

/* -------------------------------------------------------------- the rings */

/* The frames in 'n' bytes; how many bytes they were. A worker that talks
** nonsense is killed, as its memory cannot be trusted any more. */
static size_t take_frames(nsh_process *s, const char *p, size_t n) {
  size_t at = 0;
  while (at < n) {
    nsh_frame f;
    int64_t size = nsh_next(p + at, n - at, &f);
    if (size == 0)
      break;
    if (size < 0 || !nsh_messages_frame(s, &f)) {
      nsh_lifecycle_distrust(s);
      return n;
    }
    at += (size_t)size;
  }
  return at;
}

/* Most reads end with a whole frame, and nothing is copied then. */
static void take_bytes(nsh_process *s, const char *p, size_t n) {
  size_t used;
  if (s->in.n == 0) {
    used = take_frames(s, p, n);
    ns_buf_add(&s->in, p + used, n - used);
  } else {
    ns_buf_add(&s->in, p, n);
    used = take_frames(s, s->in.p, s->in.n);
    s->in.n -= used;
    memmove(s->in.p, s->in.p + used, s->in.n);
  }
  nsh_must(!s->in.oom);
  if (s->in.n == 0 && s->in.cap > KEEP_ROOM)
    ns_buf_free(&s->in);
}

/* One look takes all that was there; what comes meanwhile is told anew. */
static void read_ring(nsh_process *s) {
  static char bytes[NSH_RING];
  int64_t n = nsh_ring_take(&s->slot->out, bytes, sizeof bytes);
  if (n < 0) {
    nsh_lifecycle_distrust(s);
    return;
  }
  if (nsh_ring_relieved(&s->slot->out))
    nsh_ring_wake_writer(&s->slot->out);
  take_bytes(s, bytes, (size_t)n);
}

void nsh_process_flush(nsh_process *s) {
  size_t n;
  if (s->out_at == s->out.n)
    return;
  n = nsh_ring_put(&s->slot->in, s->out.p + s->out_at, s->out.n - s->out_at);
  s->out_at += n;
  if (n > 0)
    nsh_ring_wake(&s->slot->in);
  if (s->out_at < s->out.n)
    return; /* it tells us when there is room */
  ns_buf_reset(&s->out);
  s->out_at = 0;
  if (s->out.cap > KEEP_ROOM)
    ns_buf_free(&s->out);
}

void nsh_process_hear(nsh_process *s) {
  if (s->phase == NSH_EMPTY || s->blame != NULL)
    return;
  read_ring(s);
  nsh_process_flush(s);
}

/* ------------------------------------------------------------- life, death */

void nsh_process_fork(nsh_process *s, nsh_zygote *z) {
  nsh_slots_reset(s->table->slots, s->index);
  nsh_pool_enter(s, NSH_STARTING);
  s->zygote = z;
  s->forced = false;
  s->blame = NULL;
  s->rung = NSH_CALM;
  s->why = NSH_WHY_NONE;
  s->next_seq = 0;
  s->idle_at = 0;
  s->progress = -1;
  nsh_zygote_fork(z, s->index);
}

void nsh_process_bury(nsh_process *s) {
  nsh_pool_lock(s->table);
  if (s->blame == NULL)
    read_ring(s);
  nsh_pool_unlock(s->table);
  ns_buf_free(&s->in);
  ns_buf_free(&s->out);
  s->out_at = 0;
}

void nsh_process_quit(nsh_process *s) {
  nsh_must(nsh_end(&s->out, nsh_begin(&s->out, NSH_QUIT)));
  nsh_process_flush(s);
}

void nsh_process_free(nsh_process *s) {
  ns_buf_free(&s->in);
  ns_buf_free(&s->out);
  ns_buf_free(&s->log);
  free(s->tasks);
  free(s->text);
}
