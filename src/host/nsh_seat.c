/*
** One worker as its host sees it: socket, tasks, the state of the running job.
** What frames mean: nsh_intake.c.
*/
#include "nsh_seat.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "nsh_intake.h"
#include "nsh_life.h"
#include "nsh_memory.h"

#define READ_ROOM ((size_t)256 << 10)
#define KEEP_ROOM ((size_t)64 << 10) /* larger idle buffers are freed */
#define LOG_KEEP 16384               /* bytes of log kept with a failure */

/* --------------------------------------------------------------- the tasks */

nsh_task *nsh_seat_task(nsh_seat *s, uint32_t i) {
  return &s->tasks[(s->first + i) & (s->cap - 1)];
}

static nsh_task *add_task(nsh_seat *s) {
  if (s->n == s->cap) {
    uint32_t cap = s->cap > 0 ? s->cap * 2 : 2;
    nsh_task *tasks = nsh_alloc(cap * sizeof *tasks);
    for (uint32_t i = 0; i < s->n; i++)
      tasks[i] = *nsh_seat_task(s, i);
    free(s->tasks);
    s->tasks = tasks;
    s->cap = cap;
    s->first = 0;
  }
  return nsh_seat_task(s, s->n++);
}

void nsh_seat_pop(nsh_seat *s) {
  s->first = (s->first + 1) & (s->cap - 1);
  s->n--;
  ns_buf_reset(&s->log);
  free(s->text);
  s->text = NULL;
  s->shown = s->news = s->stuck = false;
  s->progress = -1;
  s->touched_at = 0;
}

bool nsh_seat_give(nsh_seat *s, const ns_job *job, nsh_name *name) {
  nsh_order o = {.seq = s->next_seq, .hold = nsh_pace_brief(&name->pace),
                 .job = *job};
  nsh_task *t;
  if (!nsh_put_order(&s->out, &o))
    return false;
  t = add_task(s);
  *t = (nsh_task){s->next_seq++, job->id, job->run, job->lease, job->timeout,
                  name};
  return true;
}

size_t *nsh_seat_held(const nsh_seat *s) {
  return &s->table->mail->pools[s->pool].held;
}

size_t nsh_seat_recall(nsh_seat *s) {
  uint32_t first = nsh_slot_recall(s->slot);
  size_t taken = 0;
  while (s->n > 0) {
    nsh_task *t = nsh_seat_task(s, s->n - 1);
    if (nsh_before(t->seq, first))
      break;
    nsh_mail_release(s->table->mail, nsh_seat_held(s), t->id, t->run, t->lease);
    s->n--;
    taken++;
  }
  return taken;
}

bool nsh_seat_running(nsh_seat *s, int64_t *since) {
  if (s->n == 0 || !nsh_slot_started(s->slot, nsh_seat_task(s, 0)->seq))
    return false;
  *since = atomic_load(&s->slot->started_at);
  return true;
}

void nsh_seat_log(nsh_seat *s, ns_bytes line) {
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

/* -------------------------------------------------------------- the socket */

/* The frames in 'n' bytes; how many bytes they were. A worker that talks
** nonsense is killed, as its memory cannot be trusted any more. */
static size_t take_frames(nsh_seat *s, const char *p, size_t n) {
  size_t at = 0;
  while (at < n) {
    nsh_frame f;
    int64_t size = nsh_next(p + at, n - at, &f);
    if (size == 0)
      break;
    if (size < 0 || !nsh_intake_frame(s, &f)) {
      nsh_life_distrust(s);
      return n;
    }
    at += (size_t)size;
  }
  return at;
}

/* Most reads end with a whole frame, and nothing is copied then. */
static void take_bytes(nsh_seat *s, const char *p, size_t n) {
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

static void read_all(nsh_seat *s) {
  static char bytes[READ_ROOM];
  ssize_t n;
  do {
    n = recv(s->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n > 0)
      take_bytes(s, bytes, (size_t)n);
  } while (n == (ssize_t)sizeof bytes || (n < 0 && errno == EINTR));
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) {
    s->eof = true;
    uv_poll_stop(s->poll);
  }
}

static void on_ready(uv_poll_t *poll, int status, int events) {
  nsh_seat *s = poll->data;
  if (events & UV_WRITABLE)
    nsh_seat_flush(s);
  if ((events & UV_READABLE) || status < 0) {
    nsh_mail_lock(s->table->mail);
    read_all(s);
    nsh_mail_unlock(s->table->mail);
    nsh_table_heard(s);
  }
}

void nsh_seat_flush(nsh_seat *s) {
  ssize_t n = 0;
  bool waiting = s->out_at > 0;
  while (s->out_at < s->out.n && n >= 0) {
    n = send(s->fd, s->out.p + s->out_at, s->out.n - s->out_at,
             MSG_DONTWAIT | MSG_NOSIGNAL);
    s->out_at += n > 0 ? (size_t)n : 0;
  }
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    uv_poll_start(s->poll, UV_READABLE | UV_WRITABLE, on_ready);
    return;
  }
  ns_buf_reset(&s->out); /* all sent, or nobody there to read it */
  s->out_at = 0;
  if (s->out.cap > KEEP_ROOM)
    ns_buf_free(&s->out);
  if (waiting && !s->eof)
    uv_poll_start(s->poll, UV_READABLE, on_ready);
}

/* ------------------------------------------------------------- life, death */

bool nsh_seat_fork(nsh_seat *s, nsh_zygote *z) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    return false;
  nsh_slot_reset(s->slot);
  s->phase = NSH_STARTING;
  s->zygote = z;
  s->fd = pair[0];
  s->eof = s->forced = false;
  s->eof_at = 0;
  s->blame = NULL;
  s->rung = NSH_CALM;
  s->why = NSH_WHY_NONE;
  s->next_seq = 0;
  s->idle_at = 0;
  s->progress = -1;
  s->poll = nsh_alloc(sizeof *s->poll);
  nsh_must(uv_poll_init(s->table->loop, s->poll, s->fd) == 0);
  s->poll->data = s;
  uv_poll_start(s->poll, UV_READABLE, on_ready);
  nsh_zygote_fork(z, s->index, pair[1]);
  return true;
}

/* Verdicts that were never sent: those that were are met a second time. */
static void read_outbox(nsh_seat *s) {
  uint32_t n = atomic_load(&s->slot->unsent);
  if (n <= NSH_OUTBOX)
    take_frames(s, s->slot->out, n);
  atomic_store(&s->slot->unsent, 0);
}

void nsh_seat_bury(nsh_seat *s) {
  if (s->fd < 0)
    return;
  nsh_mail_lock(s->table->mail);
  if (!s->eof)
    read_all(s);
  read_outbox(s);
  nsh_mail_unlock(s->table->mail);
  uv_close((uv_handle_t *)s->poll, nsh_uv_free);
  s->poll = NULL;
  close(s->fd);
  s->fd = -1;
  ns_buf_free(&s->in);
  ns_buf_free(&s->out);
  s->out_at = 0;
}

void nsh_seat_peek(nsh_seat *s) {
  static char bytes[NSH_OUTBOX];
  take_frames(s, bytes, nsh_slot_peek(s->slot, bytes));
}

void nsh_seat_quit(nsh_seat *s) {
  nsh_must(nsh_end(&s->out, nsh_begin(&s->out, NSH_QUIT)));
  nsh_seat_flush(s);
}

void nsh_seat_free(nsh_seat *s) {
  if (s->fd >= 0) {
    uv_close((uv_handle_t *)s->poll, nsh_uv_free);
    close(s->fd);
  }
  ns_buf_free(&s->in);
  ns_buf_free(&s->out);
  ns_buf_free(&s->log);
  free(s->tasks);
  free(s->text);
}
