/*
** The table of workers.
**
** Two queues lie between a claim and a handler. The backlog belongs to the
** host and feeds whoever is free; the tasks of a seat were sent ahead, so that
** a worker with short jobs need not wait for the host between them. Should one
** of those jobs turn out to be long, what was sent behind it is taken back.
*/
#include "nsh_table.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "ns_log.h"
#include "ns_time.h"
#include "nsh_memory.h"

#define STUCK_US 20000          /* a job behind one this old is taken back */
#define SHOW_US NS_SECOND       /* a job this old gets a row in running */
#define TOUCH_GAP NS_SECOND     /* at most so often per job */
#define TERM_US (2 * NS_SECOND) /* from SIGTERM to SIGKILL */
#define EOF_US NS_SECOND        /* a worker that only closed its socket */
#define FORK_RETRY NS_SECOND
#define TICK_FINE 20000         /* period while somebody works */
#define TICK_COARSE 100000      /* with many workers */
#define FINE_SEATS 256
#define IDS_MAX 4096            /* a worker may ask for at once */

/* --------------------------------------------------------- seats with room */

static void list(nsh_table *t, nsh_seat *s, bool front) {
  if (s->listed || s->phase != NSH_UP)
    return;
  s->listed = true;
  t->nroom++;
  if (front && t->room != NULL) {
    s->next = t->room;
    t->room = s;
  } else {
    s->next = NULL;
    *t->room_end = s;
    t->room_end = &s->next;
  }
}

static nsh_seat *unlist(nsh_table *t) {
  nsh_seat *s = t->room;
  if (s == NULL)
    return NULL;
  t->room = s->next;
  if (t->room == NULL)
    t->room_end = &t->room;
  s->listed = false;
  t->nroom--;
  return s;
}

/* ------------------------------------------------------------- handing out */

/* The mailbox is locked. */
static void set_target(nsh_table *t) {
  bool none = t->closing || t->quiet || t->up == 0;
  nsh_mail_target(t->mail, none ? 0 : nsh_pace_target(&t->pace, t->up));
}

static void next_load(nsh_table *t) {
  nsh_load *load = t->loads;
  t->loads = load->next;
  if (t->loads == NULL)
    t->loads_end = &t->loads;
  nsh_load_free(load);
}

/* Gives one job of the backlog to 's'. */
static void give(nsh_table *t, nsh_seat *s) {
  nsh_load *load = t->loads;
  const ns_job *job = &load->jobs.items[load->at++];
  ns_verdict *v;
  t->backlog--;
  if (nsh_seat_give(s, job, nsh_names_get(&t->names, job->name)))
    t->busy++;
  else {
    nsh_mail_lock(t->mail);
    v = nsh_mail_verdict(t->mail, job->id, job->run, job->lease, NS_FAIL);
    v->error = ns_str("the job is too large to be handed to a worker");
    nsh_mail_unlock(t->mail);
  }
  if (load->at == load->jobs.n)
    next_load(t);
}

/* Jobs are spread evenly: first one share for each seat with room. */
static void hand_out(nsh_table *t) {
  uint32_t window = nsh_pace_window(&t->pace);
  nsh_seat *s;
  while (t->backlog > 0 && !t->quiet && t->nroom > 0) {
    size_t share = (t->backlog + t->nroom - 1) / t->nroom;
    s = unlist(t);
    if (s->phase != NSH_UP || s->n >= window)
      continue;
    while (share-- > 0 && s->n < window && t->backlog > 0)
      give(t, s);
    nsh_slot_allow(s->slot, s->next_seq);
    nsh_seat_flush(s);
    if (s->n < window)
      list(t, s, false);
  }
}

/* Gives all of the backlog back. The mailbox is locked. */
static void release_backlog(nsh_table *t) {
  while (t->loads != NULL) {
    nsh_load *load = t->loads;
    for (; load->at < load->jobs.n; load->at++) {
      const ns_job *job = &load->jobs.items[load->at];
      nsh_mail_release(t->mail, job->id, job->run, job->lease);
    }
    next_load(t);
  }
  t->backlog = 0;
}

/* ----------------------------------------------------------- verdicts, logs */

static const struct {
  const char *event;
  ns_level level;
} events[] = {
    [NS_ACK] = {"job.done", NS_LOG_DEBUG},
    [NS_FAIL] = {"job.failed", NS_LOG_WARN},
    [NS_AGAIN] = {"job.again", NS_LOG_DEBUG},
    [NS_DISCARD] = {"job.discarded", NS_LOG_WARN},
    [NS_RELEASE] = {"job.released", NS_LOG_DEBUG},
    [NS_CRASH] = {"job.crashed", NS_LOG_WARN},
    [NS_MISSING] = {"job.no_handler", NS_LOG_WARN},
};

static void log_end(const nsh_seat *s, const nsh_task *task, ns_kind kind,
                    int64_t micros, ns_bytes error) {
  ns_level level = events[kind].level;
  if (ns_log_on(level))
    ns_log(level, events[kind].event,
           NS_FIELDS(ns_fi("id", task->id), ns_fs("name", task->name->text),
                     ns_fi("ms", micros / 1000), ns_fi("pid", s->pid),
                     ns_fb("error", ns_first_line(error))));
}

static void count(nsh_table *t, ns_kind kind) {
  t->tally.done += kind == NS_ACK;
  t->tally.again += kind == NS_AGAIN;
  t->tally.crashed += kind == NS_CRASH;
  t->tally.failed +=
      kind == NS_FAIL || kind == NS_DISCARD || kind == NS_MISSING;
}

/* The oldest task of 's' is over. The verdict to fill in further is returned;
** the mailbox is locked. */
static ns_verdict *end_task(nsh_seat *s, ns_kind kind, int64_t micros,
                            ns_bytes error) {
  nsh_table *t = s->table;
  nsh_task *task = nsh_seat_task(s, 0);
  nsh_batch *batch = &t->mail->verdicts;
  ns_verdict *v =
      nsh_mail_verdict(t->mail, task->id, task->run, task->lease, kind);
  log_end(s, task, kind, micros, error);
  count(t, kind);
  v->error = nsh_batch_keep(batch, error);
  if (s->log.n > 0 && (kind == NS_FAIL || kind == NS_CRASH ||
                       kind == NS_DISCARD))
    v->log = nsh_batch_keep(batch, ns_buf_bytes(&s->log));
  nsh_seat_pop(s);
  t->busy--;
  return v;
}

/* Reads the children behind a report; false: malformed. */
static bool read_children(nsh_batch *batch, nsh_frame *f, size_t n,
                          ns_verdict *v) {
  v->children = nsh_batch_children(batch, n);
  v->nchildren = n;
  for (size_t i = 0; i < n; i++) {
    ns_push *c = &v->children[i];
    if (!nsh_get_child(f, c))
      return false;
    c->name = nsh_batch_keep(batch, c->name);
    c->payload = nsh_batch_keep(batch, c->payload);
    c->queue = nsh_batch_keep(batch, c->queue);
    c->unique = nsh_batch_keep(batch, c->unique);
  }
  return nsh_done(f);
}

/* A report that was met before is skipped: the outbox may repeat some. */
static bool on_verdict(nsh_seat *s, nsh_frame *f) {
  nsh_table *t = s->table;
  nsh_report r;
  nsh_task *task;
  nsh_name *name;
  ns_verdict *v;
  if (!nsh_get_report(f, &r))
    return false;
  if (s->n == 0 || nsh_before(r.seq, nsh_seat_task(s, 0)->seq))
    return nsh_before(r.seq, s->next_seq);
  task = nsh_seat_task(s, 0);
  if (r.seq != task->seq)
    return false;
  name = task->name;
  nsh_pace_ran(&name->pace, r.micros);
  nsh_pace_ran(&t->pace, r.micros);
  nsh_storm_over(&t->storm);
  v = end_task(s, r.kind, r.micros, r.error);
  v->delay = r.delay;
  v->result = nsh_batch_keep(&t->mail->verdicts, r.result);
  v->state = nsh_batch_keep(&t->mail->verdicts, r.state);
  if (read_children(&t->mail->verdicts, f, r.nchildren, v))
    return true;
  v->kind = NS_CRASH;
  v->error = ns_str("the worker's report was malformed");
  v->nchildren = 0;
  return false;
}

/* ----------------------------------------------------- signs of life, ids */

/* Passes a sign of life on to the database. The mailbox is locked. */
static void touch(nsh_seat *s, int64_t now) {
  nsh_task *task = nsh_seat_task(s, 0);
  nsh_touch p = {s->index, task->seq, task->id, task->run,
                 s->pid,   s->progress, s->text};
  s->text = NULL;
  s->news = false;
  s->shown = true;
  s->touched_at = now;
  nsh_mail_touch(s->table->mail, &p);
}

static bool on_progress(nsh_seat *s, nsh_frame *f) {
  uint32_t seq = (uint32_t)nsh_get_int(f);
  double progress = nsh_get_real(f);
  ns_bytes text = nsh_get_bytes(f);
  int64_t now = ns_mono_us();
  if (!nsh_done(f) || !(progress >= -1 && progress <= 1))
    return false;
  if (s->n == 0 || nsh_seat_task(s, 0)->seq != seq)
    return true;
  if (progress >= 0)
    s->progress = progress;
  if (text.p != NULL) {
    free(s->text);
    s->text = nsh_alloc(text.n + 1);
    memcpy(s->text, text.p, text.n);
  }
  s->news = true;
  if (now - s->touched_at >= TOUCH_GAP)
    touch(s, now);
  return true;
}

static bool on_log(nsh_seat *s, nsh_frame *f) {
  uint32_t seq = (uint32_t)nsh_get_int(f);
  ns_bytes text = nsh_get_bytes(f);
  nsh_task *task;
  if (!nsh_done(f) || text.p == NULL)
    return false;
  if (s->n == 0 || (task = nsh_seat_task(s, 0))->seq != seq)
    return true;
  nsh_seat_log(s, text);
  ns_log(NS_LOG_INFO, "job.log",
         NS_FIELDS(ns_fi("id", task->id), ns_fs("name", task->name->text),
                   ns_fb("text", text)));
  return true;
}

static bool on_want_ids(nsh_seat *s, nsh_frame *f) {
  nsh_table *t = s->table;
  int64_t n = nsh_get_int(f);
  if (!nsh_done(f) || n < 1 || n > IDS_MAX)
    return false;
  nsh_must(ns_grow(&t->wanters, &t->capwanters, t->nwanters + 1,
                   sizeof *t->wanters));
  t->wanters[t->nwanters++] = (nsh_wanter){s->index, s->pid, (size_t)n};
  nsh_mail_want_ids(t->mail, (size_t)n);
  return true;
}

bool nsh_table_frame(nsh_seat *s, nsh_frame *f) {
  switch (f->type) {
  case NSH_VERDICT:
    return on_verdict(s, f);
  case NSH_PROGRESS:
    return on_progress(s, f);
  case NSH_LOG:
    return on_log(s, f);
  case NSH_WANT_IDS:
    return on_want_ids(s, f);
  default:
    return false;
  }
}

static void send_ids(nsh_seat *s, const int64_t *ids, size_t n) {
  size_t start = nsh_begin(&s->out, NSH_IDS);
  nsh_put_int(&s->out, (int64_t)n);
  for (size_t i = 0; i < n; i++)
    nsh_put_int(&s->out, ids[i]);
  nsh_must(nsh_end(&s->out, start));
}

/* Serves those who wait for ids, as far as there are any. The mailbox is
** locked; seats to flush are marked by their outgoing bytes. */
static void serve_ids(nsh_table *t) {
  nsh_mail *m = t->mail;
  size_t used = 0;
  size_t served = 0;
  for (; served < t->nwanters; served++) {
    nsh_wanter *w = &t->wanters[served];
    nsh_seat *s = &t->seats[w->seat];
    if (m->nids - used < w->n)
      break;
    if (s->fd >= 0 && s->pid == w->pid) {
      send_ids(s, m->ids + used, w->n);
      nsh_seat_flush(s);
    }
    used += w->n; /* those of a dead worker are lost; there are more */
  }
  m->nids -= used;
  if (m->nids > 0)
    memmove(m->ids, m->ids + used, m->nids * sizeof *m->ids);
  t->nwanters -= served;
  if (t->nwanters > 0)
    memmove(t->wanters, t->wanters + served,
            t->nwanters * sizeof *t->wanters);
}

/* --------------------------------------------------------- from the mailbox */

static void take_loads(nsh_table *t) {
  nsh_mail *m = t->mail;
  for (nsh_load *load = m->loads; load != NULL; load = load->next) {
    t->backlog += load->jobs.n;
    for (size_t i = 0; i < load->jobs.n; i++)
      nsh_pace_claimed(&t->pace, load->jobs.items[i].payload.n);
  }
  if (m->loads != NULL) {
    *t->loads_end = m->loads;
    t->loads_end = m->loads_end;
    m->loads = NULL;
    m->loads_end = &m->loads;
  }
  if (t->closing || t->quiet)
    release_backlog(t);
}

/* A running job whose claim somebody has ended. One that has not been started is
** refused when its verdict comes. */
static void lose(nsh_table *t, const ns_token *token) {
  for (size_t i = 0; i < t->nseats; i++) {
    nsh_seat *s = &t->seats[i];
    nsh_task *task = s->n > 0 ? nsh_seat_task(s, 0) : NULL;
    if (s->fd >= 0 && task != NULL && task->id == token->id &&
        task->run == token->run)
      atomic_store(&s->slot->lost, task->seq + 1);
  }
}

static void take_lost(nsh_table *t) {
  nsh_mail *m = t->mail;
  for (size_t i = 0; i < m->nlost; i++)
    if (t->seats[m->lost[i].seat].fd >= 0)
      atomic_store(&t->seats[m->lost[i].seat].slot->lost, m->lost[i].seq + 1);
  m->nlost = 0;
  for (size_t i = 0; i < m->nrevoked; i++)
    lose(t, &m->revoked[i]);
  m->nrevoked = 0;
}

void nsh_table_collect(nsh_table *t) {
  nsh_mail_lock(t->mail);
  take_loads(t);
  take_lost(t);
  serve_ids(t);
  nsh_mail_unlock(t->mail);
  hand_out(t);
}

/* A seat whose tasks run low gets more before it runs out. */
void nsh_table_heard(nsh_seat *s) {
  nsh_table *t = s->table;
  if (s->eof && s->since == 0)
    s->since = ns_mono_us();
  if (s->phase == NSH_UP && s->n * 2 <= nsh_pace_window(&t->pace))
    list(t, s, s->n == 0);
  nsh_mail_lock(t->mail);
  set_target(t);
  nsh_mail_unlock(t->mail);
  hand_out(t);
}

/* -------------------------------------------------------------- life, death */

/* No more jobs for this seat. */
static void doom(nsh_seat *s, nsh_doom why) {
  nsh_table *t = s->table;
  s->doom = why;
  s->since = ns_mono_us();
  if (s->phase == NSH_UP)
    t->up--;
  s->phase = NSH_DOOMED;
  nsh_mail_lock(t->mail);
  t->busy -= nsh_seat_recall(s);
  set_target(t);
  nsh_mail_unlock(t->mail);
}

static void kill_seat(nsh_seat *s, int sig) {
  s->forced = s->forced || sig == SIGKILL;
  nsh_zygote_kill(s->zygote, s->index, sig);
}

void nsh_table_distrust(nsh_seat *s) {
  ns_log(NS_LOG_ERROR, "worker.nonsense", NS_FIELDS(ns_fi("pid", s->pid)));
  if (s->phase == NSH_UP)
    s->table->up--;
  s->phase = NSH_DOOMED;
  s->since = ns_mono_us();
  if (s->pid > 0)
    kill_seat(s, SIGKILL);
}

static void leave(nsh_seat *s) {
  doom(s, NSH_DOOM_NONE);
  s->since = 0;
  nsh_seat_quit(s);
}

void nsh_table_generation(nsh_table *t, nsh_zygote *z) {
  t->zygote = z;
  for (size_t i = 0; i < t->nseats; i++)
    if (t->seats[i].phase == NSH_UP && t->seats[i].zygote != z)
      leave(&t->seats[i]);
  nsh_table_fill(t);
}

void nsh_table_fill(nsh_table *t) {
  int64_t now = ns_mono_us();
  if (t->zygote == NULL || t->closing || now < t->fork_at)
    return;
  for (size_t i = 0; i < t->nseats; i++)
    if (t->seats[i].phase == NSH_EMPTY &&
        !nsh_seat_fork(&t->seats[i], t->zygote)) {
      ns_log(NS_LOG_ERROR, "worker.no_socket", NULL, 0);
      t->fork_at = now + FORK_RETRY;
      return;
    }
}

/* The worker exists; one of a generation that is over leaves at once. */
void nsh_table_forked(nsh_table *t, uint32_t index, pid_t pid, int why) {
  nsh_seat *s;
  if (index >= t->nseats || t->seats[index].phase == NSH_EMPTY)
    return;
  s = &t->seats[index];
  if (pid == 0) {
    ns_log(NS_LOG_ERROR, "worker.no_fork", NS_FIELDS(ns_fs("error",
                                                           strerror(why))));
    nsh_seat_bury(s);
    s->phase = NSH_EMPTY;
    t->fork_at = ns_mono_us() + FORK_RETRY;
    return;
  }
  s->pid = pid;
  t->tally.forks++;
  if (s->phase != NSH_STARTING)
    return;
  s->phase = NSH_UP;
  s->since = 0;
  t->up++;
  if (s->zygote != t->zygote)
    leave(s);
  list(t, s, true);
  nsh_mail_lock(t->mail);
  set_target(t);
  nsh_mail_unlock(t->mail);
  hand_out(t);
}

/* "killed by signal 9 (Killed)", "exited with status 3" */
static void describe(char out[96], int status) {
  if (status < 0)
    snprintf(out, 96, "lost together with the process that forked it");
  else if (WIFSIGNALED(status))
    snprintf(out, 96, "killed by signal %d (%s)", WTERMSIG(status),
             strsignal(WTERMSIG(status)));
  else
    snprintf(out, 96, "exited with status %d", WEXITSTATUS(status));
}

/* The verdict of the job that was running when its worker died. */
static void end_running(nsh_seat *s, int64_t since, int status) {
  char how[96];
  char text[160];
  nsh_task *task = nsh_seat_task(s, 0);
  int64_t micros = ns_mono_us() - since;
  ns_kind kind = NS_CRASH;
  describe(how, status);
  snprintf(text, sizeof text, "worker %s", how);
  if (s->doom == NSH_DOOM_TIMEOUT) {
    kind = NS_FAIL;
    snprintf(text, sizeof text, "timeout after %g s",
             (double)task->timeout / 1e6);
    s->table->tally.timeouts++;
  } else if (s->doom == NSH_DOOM_STOP)
    kind = NS_RELEASE;
  end_task(s, kind, micros, kind == NS_RELEASE ? NS_NONE : ns_str(text));
}

/* What becomes of the tasks of a worker that is gone. */
static void end_tasks(nsh_seat *s, int status) {
  int64_t since;
  nsh_mail_lock(s->table->mail);
  if (nsh_seat_running(s, &since))
    end_running(s, since, status);
  while (s->n > 0)
    end_task(s, NS_RELEASE, 0, NS_NONE);
  nsh_mail_unlock(s->table->mail);
}

/* A death nobody ordered; many of them in a row slow the forking down. */
static void mourn(nsh_seat *s, int status) {
  nsh_table *t = s->table;
  int64_t now = ns_mono_us();
  int64_t delay;
  char how[96];
  describe(how, status);
  ns_log(NS_LOG_WARN, "worker.died",
         NS_FIELDS(ns_fi("pid", s->pid), ns_fs("how", how)));
  nsh_storm_crash(&t->storm, now);
  delay = nsh_storm_delay(&t->storm);
  if (delay > 0) {
    ns_log(NS_LOG_ERROR, "worker.crash_loop",
           NS_FIELDS(ns_fi("crashes", t->storm.crashes),
                     ns_fi("wait_ms", delay / 1000)));
    t->fork_at = now + delay;
  }
}

static void bury(nsh_seat *s, int status) {
  nsh_table *t = s->table;
  bool expected = s->phase == NSH_DOOMED;
  nsh_seat_bury(s);
  end_tasks(s, status);
  if (!expected && !t->closing)
    mourn(s, status);
  if (s->phase == NSH_UP)
    t->up--;
  s->phase = NSH_EMPTY;
  s->pid = 0;
  s->since = 0;
  nsh_mail_lock(t->mail);
  set_target(t);
  nsh_mail_unlock(t->mail);
}

void nsh_table_exited(nsh_table *t, uint32_t index, int status) {
  if (index >= t->nseats || t->seats[index].phase == NSH_EMPTY)
    return;
  bury(&t->seats[index], status);
  nsh_table_fill(t);
  hand_out(t);
}

void nsh_table_orphaned(nsh_table *t, nsh_zygote *z) {
  for (size_t i = 0; i < t->nseats; i++)
    if (t->seats[i].phase != NSH_EMPTY && t->seats[i].zygote == z) {
      if (t->seats[i].phase == NSH_UP)
        t->up--;
      t->seats[i].phase = NSH_DOOMED; /* one death is logged, not all */
      bury(&t->seats[i], -1);
    }
}

/* --------------------------------------------------------------------- time */

/* A doomed worker, or one that closed its socket, that does not go. */
static void hurry(nsh_seat *s, int64_t now) {
  int64_t patience = s->eof ? EOF_US : TERM_US;
  if (s->since > 0 && !s->forced && s->pid > 0 && now - s->since > patience &&
      (s->eof || s->doom == NSH_DOOM_TIMEOUT))
    kill_seat(s, SIGKILL);
}

static void look(nsh_seat *s, int64_t now) {
  nsh_table *t = s->table;
  nsh_task *task;
  int64_t since;
  if (nsh_seat_running(s, &since) && now - since > STUCK_US &&
      atomic_load(&s->slot->current) != nsh_seat_task(s, 0)->seq) {
    nsh_mail_lock(t->mail);
    nsh_seat_peek(s);
    nsh_mail_unlock(t->mail);
  }
  if (!nsh_seat_running(s, &since))
    return;
  task = nsh_seat_task(s, 0);
  if (s->doom == NSH_DOOM_NONE && s->phase != NSH_STARTING &&
      task->timeout > 0 && now - since > task->timeout) {
    ns_log(NS_LOG_WARN, "job.timeout",
           NS_FIELDS(ns_fi("id", task->id), ns_fs("name", task->name->text),
                     ns_fi("pid", s->pid)));
    doom(s, NSH_DOOM_TIMEOUT);
    kill_seat(s, SIGTERM);
  }
  nsh_mail_lock(t->mail);
  if (s->n > 1 && now - since > STUCK_US)
    t->busy -= nsh_seat_recall(s);
  if ((!s->shown && now - since > SHOW_US) ||
      (s->news && now - s->touched_at >= TOUCH_GAP))
    touch(s, now);
  nsh_mail_unlock(t->mail);
}

void nsh_table_tick(nsh_table *t, int64_t now) {
  for (size_t i = 0; i < t->nseats; i++) {
    nsh_seat *s = &t->seats[i];
    if (s->n > 0)
      look(s, now);
    if (s->since > 0)
      hurry(s, now);
  }
  nsh_table_fill(t);
}

int64_t nsh_table_next(const nsh_table *t, int64_t now) {
  if (t->busy > 0)
    return t->nseats <= FINE_SEATS ? TICK_FINE : TICK_COARSE;
  if (t->closing || t->up == t->nseats)
    return t->closing ? TICK_COARSE : -1;
  return t->fork_at > now ? t->fork_at - now : TICK_COARSE;
}

/* ------------------------------------------------------------------ orders */

static void take_back(nsh_table *t) {
  nsh_mail_lock(t->mail);
  set_target(t);
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
  nsh_mail_lock(t->mail);
  set_target(t);
  nsh_mail_unlock(t->mail);
  hand_out(t);
}

void nsh_table_close(nsh_table *t) {
  t->closing = true;
  take_back(t);
}

void nsh_table_kill(nsh_table *t) {
  for (size_t i = 0; i < t->nseats; i++) {
    nsh_seat *s = &t->seats[i];
    if (s->phase == NSH_EMPTY)
      continue;
    doom(s, s->doom == NSH_DOOM_NONE ? NSH_DOOM_STOP : s->doom);
    kill_seat(s, SIGKILL);
  }
}

void nsh_table_dismiss(nsh_table *t) {
  for (size_t i = 0; i < t->nseats; i++)
    if (t->seats[i].phase == NSH_UP)
      leave(&t->seats[i]);
}

void nsh_table_dump(nsh_table *t, int64_t now) {
  for (size_t i = 0; i < t->nseats; i++) {
    nsh_seat *s = &t->seats[i];
    int64_t since;
    nsh_task *task;
    if (!nsh_seat_running(s, &since))
      continue;
    task = nsh_seat_task(s, 0);
    ns_log(NS_LOG_INFO, "dump.worker",
           NS_FIELDS(ns_fi("pid", s->pid), ns_fi("id", task->id),
                     ns_fs("name", task->name->text),
                     ns_fi("ms", (now - since) / 1000),
                     ns_fi("ahead", s->n - 1)));
  }
}

void nsh_table_init(nsh_table *t, const nsh_config *cfg, nsh_mail *mail,
                    uv_loop_t *loop, nsh_slot *slots) {
  memset(t, 0, sizeof *t);
  t->cfg = cfg;
  t->mail = mail;
  t->loop = loop;
  t->slots = slots;
  t->nseats = cfg->workers;
  t->seats = nsh_alloc(t->nseats * sizeof *t->seats);
  t->room_end = &t->room;
  t->loads_end = &t->loads;
  t->pace = NSH_PACE_INIT;
  for (size_t i = 0; i < t->nseats; i++) {
    t->seats[i].table = t;
    t->seats[i].index = (uint32_t)i;
    t->seats[i].slot = &slots[i];
    t->seats[i].fd = -1;
  }
}

void nsh_table_free(nsh_table *t) {
  for (size_t i = 0; i < t->nseats; i++)
    nsh_seat_free(&t->seats[i]);
  while (t->loads != NULL)
    next_load(t);
  nsh_names_free(&t->names);
  free(t->wanters);
  free(t->seats);
}
