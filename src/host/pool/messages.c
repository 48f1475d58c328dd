/*
** Frames of workers, and their meaning for the pool. Wherever a frame is read, the exchange is
** locked.
*/
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base.h"
#include "ipc/ipc.h"
#include "pool/pool.h"

#define SHOW_US NS_SECOND   /* a job this old gets a row in running */
#define TOUCH_GAP NS_SECOND /* signs of life: at most so often per job */
#define IDS_MAX 4096        /* a worker may ask for at once */

/* ----------------------------------------------------------- verdicts, logs */

#define MISSING_SILENCE (60 * NS_SECOND)
#define TOLD_MOST 100 /* lines a second on runs that ended well */

/* Is a line due? One a minute for a name: there may be thousands of such jobs. The next line, of
** whatever name, has the number of the rest. */
static bool tells_again(nsh_pools *t, nsh_name *name) {
  int64_t now = ns_mono_us();
  bool yes = name->told == 0 || now - name->told >= MISSING_SILENCE;
  if (yes)
    name->told = now;
  else
    t->unhandled++;
  return yes;
}

void nsh_messages_sum_up(nsh_pools *t, int64_t now) {
  nsh_told *told = &t->told;
  if (now - told->since < NS_SECOND && !t->closing)
    return;
  if (told->more > 0)
    ns_log(NS_LOG_INFO, "job.more", NS_FIELDS(ns_fi("n", told->more)));
  *told = (nsh_told){.since = now};
  if (t->closing && t->unhandled > 0) {
    ns_log(NS_LOG_WARN, "job.more",
           NS_FIELDS(ns_fi("n", t->unhandled), ns_fs("outcome", "no_handler")));
    t->unhandled = 0;
  }
}

/* With --log-done: may a run that ended well have a line? Otherwise it is counted. */
static bool has_line(nsh_pools *t) {
  nsh_messages_sum_up(t, ns_mono_us());
  if (t->told.lines < TOLD_MOST) {
    t->told.lines++;
    return true;
  }
  t->told.more++;
  return false;
}

/* A run that has no handler here. */
static void log_missing(nsh_pools *t, const nsh_task *task, const nsh_run *r, ns_bytes error) {
  if (!tells_again(t, task->name))
    return;
  nsh_run_log(r, NS_LOG_WARN, "job.no_handler", "no_handler",
              NS_FIELDS(t->unhandled > 0 ? ns_fi("more", t->unhandled) : ns_fb("more", NS_NONE),
                        ns_fb("error", error)));
  t->unhandled = 0;
}

/* The line on the end of a run, if it is due now. True: its failure has one. */
static bool log_end(const nsh_process *w, const nsh_task *task, ns_kind kind, int64_t micros,
                    ns_bytes error) {
  nsh_pools *t = w->pools;
  const char *event = nsh_run_event(kind);
  const char *outcome = event + strlen("job.");
  bool shown = t->cfg->log_done && kind != NS_RELEASE;
  nsh_run r = nsh_process_run(w, task, task->id, task->run, micros);
  if (nsh_run_waits(kind)) {
    if (!atomic_load(&t->exchange->away))
      return false;
    nsh_run_log(&r, NS_LOG_WARN, event, outcome, NS_FIELDS(ns_fb("error", error)));
    return true;
  }
  if (kind == NS_MISSING)
    log_missing(t, task, &r, error);
  else if (shown ? ns_log_on(NS_LOG_INFO) && has_line(t) : ns_log_on(NS_LOG_DEBUG))
    nsh_run_log(&r, shown ? NS_LOG_INFO : NS_LOG_DEBUG, event, outcome, NULL, 0);
  return false;
}

static void count_end(nsh_pools *t, ns_kind kind) {
  t->tally.done += kind == NS_ACK;
  t->tally.again += kind == NS_AGAIN;
  t->tally.crashed += kind == NS_CRASH;
  t->tally.failed +=
      kind == NS_FAIL || kind == NS_DISCARD || kind == NS_MISSING;
}

/* ------------------------------------------------------------- what is printed */

#define OUTPUT_LINE ((size_t)2048) /* bytes of a line of output; a longer one is more than one */

/* The line that has been gathered, if any, as a line of the log. */
static void log_output(nsh_process *w, const nsh_task *task) {
  int64_t since = ns_mono_us();
  nsh_run r;
  if (w->line.n == 0)
    return;
  nsh_process_running(w, &since);
  r = nsh_process_run(w, task, task->id, task->run, ns_mono_us() - since);
  nsh_run_log(&r, NS_LOG_INFO, "job.output", "running",
              NS_FIELDS(ns_fs("stream", w->line_fd == STDERR_FILENO ? "stderr" : "stdout"),
                        ns_fb("text", ns_buf_bytes(&w->line))));
  ns_buf_reset(&w->line);
}

/* Gathers lines; an empty one is none. */
static void gather_output(nsh_process *w, const nsh_task *task, int64_t fd, ns_bytes s) {
  if (fd != w->line_fd)
    log_output(w, task);
  w->line_fd = fd;
  while (s.n > 0) {
    const char *end = memchr(s.p, '\n', s.n);
    size_t n = end != NULL ? (size_t)(end - s.p) : s.n;
    size_t part = n < OUTPUT_LINE - w->line.n ? n : OUTPUT_LINE - w->line.n;
    ns_buf_add(&w->line, s.p, part);
    nsh_must(!w->line.oom);
    if (end != NULL || w->line.n == OUTPUT_LINE)
      log_output(w, task);
    part += end != NULL && part == n;
    s = (ns_bytes){s.p + part, s.n - part};
  }
}

static bool on_output(nsh_process *w, nsh_frame *f) {
  uint32_t seq = (uint32_t)nsh_get_int(f);
  int64_t fd = nsh_get_int(f);
  ns_bytes text = nsh_get_bytes(f);
  nsh_task *task;
  if (!nsh_done(f) || text.p == NULL)
    return false;
  if (w->n == 0 || (task = nsh_process_task(w, 0))->seq != seq)
    return true;
  nsh_process_printed(w, text);
  if (nsh_config_logs_output(w->pools->cfg))
    gather_output(w, task, fd, text);
  return true;
}

/* Of a batch, the first job that is done takes along what all have printed. */
static void keep_output(nsh_process *w, nsh_batch *batch, ns_verdict *end) {
  bool failed = end->kind == NS_FAIL || end->kind == NS_CRASH || end->kind == NS_LOST ||
                end->kind == NS_DISCARD;
  bool well = end->kind == NS_ACK || end->kind == NS_AGAIN;
  end->printed = well && w->printed && !ns_verdict_written(end);
  if (w->log.n == 0 || (!failed && !end->printed))
    return;
  end->log = nsh_batch_keep(batch, ns_buf_bytes(&w->log));
  w->printed = failed;
}

/* How long it has waited; below 0: not known. The clocks of two machines differ a little. */
static int64_t time_waited(const nsh_pools *t, const nsh_task *task, int64_t began) {
  int64_t waited = began + t->exchange->skew - task->due;
  return task->due == 0 ? -1 : waited > 0 ? waited : 0;
}

/* 'began': as of ns_verdict. */
static void measure_end(const nsh_pools *t, const nsh_task *task, ns_kind kind, int64_t micros,
                        int64_t began) {
  nsh_ran ran = {.queue = {task->queue->text, task->queue->n},
                 .name = {task->name->text, task->name->n},
                 .kind = kind,
                 .micros = micros,
                 .waited = time_waited(t, task, began)};
  nsh_metrics_ran(t->metrics, &ran);
}

void nsh_messages_end(nsh_process *w, const ns_verdict *v, int64_t micros) {
  nsh_pools *t = w->pools;
  const nsh_task *task = nsh_process_task(w, 0);
  nsh_batch *batch = nsh_exchange_batch(t->exchange, v->nchildren);
  ns_verdict end = *v;
  log_output(w, task);
  end.told = log_end(w, task, v->kind, micros, v->error);
  count_end(t, v->kind);
  end.id = task->id;
  end.run = task->run;
  end.lease = task->lease;
  end.heard = task->heard;
  end.began = v->kind == NS_RELEASE ? -1 : ns_mono_us() - micros;
  end.worker = (int64_t)w->index + 1;
  if (t->metrics != NULL)
    measure_end(t, task, v->kind, micros, end.began);
  if (v->kind != NS_RELEASE || v->go_on == 0) {
    end.name = nsh_batch_keep(batch, (ns_bytes){task->name->text, task->name->n});
    end.queue = nsh_batch_keep(batch, (ns_bytes){task->queue->text, task->queue->n});
    end.pid = w->pid;
  }
  end.error = nsh_batch_keep(batch, v->error);
  keep_output(w, batch, &end);
  nsh_exchange_verdict(t->exchange, &end);
  if (nsh_process_jobs(task) == 1)
    nsh_process_stopped(w);
  nsh_process_pop(w);
}

/* Reads the children behind a report; false: malformed. */
static bool read_children(nsh_batch *batch, nsh_frame *f, size_t n,
                          ns_verdict *v) {
  v->children = nsh_batch_children(batch, n);
  v->nchildren = n;
  for (size_t i = 0; i < n; i++) {
    if (!nsh_get_child(f, &v->children[i]))
      return false;
    nsh_batch_keep_child(batch, &v->children[i]);
  }
  return nsh_done(f);
}

/* The verdict of a report and the children behind it, with all bytes but the error's
** kept. False: malformed, and the job's crash. */
static bool read_verdict(nsh_exchange *m, const nsh_report *r, nsh_frame *f,
                         ns_verdict *v) {
  nsh_batch *batch = nsh_exchange_batch(m, r->nchildren);
  *v = (ns_verdict){.kind = r->kind, .delay = r->delay, .go_on = r->go_on,
                    .most = r->most, .stop = r->stop == 1 || r->stop == 2 ? (int)r->stop : 0,
                    .error = r->error};
  v->result = atomic_load(&m->away) ? nsh_batch_spill(batch, r->result)
                                    : nsh_batch_keep(batch, r->result);
  v->state = nsh_batch_keep(batch, r->state);
  v->signal = nsh_batch_keep(batch, r->signal);
  if (read_children(batch, f, r->nchildren, v))
    return true;
  *v = (ns_verdict){.kind = NS_CRASH, .delay = -1, /* of another batch, maybe */
                    .error = ns_str("the worker's report was malformed")};
  return false;
}

static bool on_verdict(nsh_process *w, nsh_frame *f) {
  nsh_pools *t = w->pools;
  nsh_report r;
  nsh_task *task;
  ns_verdict v;
  bool whole;
  if (!nsh_get_report(f, &r))
    return false;
  if (w->n == 0 || nsh_before(r.seq, nsh_process_task(w, 0)->seq))
    return nsh_before(r.seq, w->next_seq);
  task = nsh_process_task(w, 0);
  if (r.seq != task->seq)
    return false;
  if (nsh_process_jobs(task) == 1) { /* a batch ran once */
    nsh_pace_ran(&task->name->pace, r.micros);
    nsh_pace_ran(&t->pools[w->pool].pace, r.micros);
  }
  nsh_crash_loop_over(&t->crash_loop);
  whole = read_verdict(t->exchange, &r, f, &v);
  nsh_messages_end(w, &v, r.micros);
  if (r.leaves)
    nsh_process_resign(w);
  return whole;
}

/* ----------------------------------------------------- signs of life, ids */

/* A sign of life of one job of the running batch. */
static void touch_member(nsh_process *w, size_t at, double progress, ns_bytes text) {
  nsh_task *task = nsh_process_task(w, 0);
  nsh_member room;
  const nsh_member *m = nsh_process_member(task, at, &room);
  nsh_place none = {0};
  nsh_touch p = {.worker = w->index, .seq = task->seq, .at = (uint32_t)at, .pid = w->pid,
                 .progress = progress};
  if (m == NULL)
    return;
  p.id = m->id;
  p.run = m->run;
  nsh_process_running(w, &p.began);
  if (text.p != NULL) {
    p.text = nsh_alloc(text.n + 1);
    memcpy(p.text, text.p, text.n);
    p.n = text.n;
  }
  nsh_exchange_touch(w->pools->exchange, &p, &none);
}

static void touch_batch(nsh_process *w, int64_t now) {
  const nsh_members *members = nsh_process_task(w, 0)->members;
  for (size_t i = members->at; i < members->n; i++)
    touch_member(w, i, -1, NS_NONE);
  w->shown = true;
  w->touched_at = now;
}

void nsh_messages_touch(nsh_process *w, int64_t now) {
  nsh_task *task = nsh_process_task(w, 0);
  nsh_touch p = {.worker = w->index,
                 .seq = task->seq,
                 .id = task->id,
                 .run = task->run,
                 .pid = w->pid,
                 .progress = w->progress,
                 .text = w->text,
                 .n = w->textlen};
  nsh_process_running(w, &p.began);
  if (task->members != NULL) {
    touch_batch(w, now);
    return;
  }
  w->text = NULL;
  w->unsent = false;
  w->shown = true;
  w->touched_at = now;
  nsh_exchange_touch(w->pools->exchange, &p, &w->touch);
}

bool nsh_messages_due(const nsh_process *w, int64_t since, int64_t now) {
  return (!w->shown && now - since > SHOW_US) || (w->unsent && now - w->touched_at >= TOUCH_GAP);
}

static bool on_progress(nsh_process *w, nsh_frame *f) {
  uint32_t seq = (uint32_t)nsh_get_int(f);
  int64_t at = nsh_get_int(f);
  double progress = nsh_get_real(f);
  ns_bytes text = nsh_get_bytes(f);
  int64_t now = ns_mono_us();
  if (!nsh_done(f) || at < 0 || !(progress >= -1 && progress <= 1))
    return false;
  if (w->n == 0 || nsh_process_task(w, 0)->seq != seq)
    return true;
  if (nsh_process_task(w, 0)->members != NULL) {
    if (w->pools->exchange->ntouches < NSH_TOUCHES_MAX)
      touch_member(w, (size_t)at, progress, text);
    return true;
  }
  if (progress >= 0)
    w->progress = progress;
  if (text.p != NULL) {
    free(w->text);
    w->text = nsh_alloc(text.n + 1);
    memcpy(w->text, text.p, text.n);
    w->textlen = text.n;
  }
  w->unsent = true;
  if (now - w->touched_at >= TOUCH_GAP)
    nsh_messages_touch(w, now);
  return true;
}

static bool on_log(nsh_process *w, nsh_frame *f) {
  uint32_t seq = (uint32_t)nsh_get_int(f);
  int64_t at = nsh_get_int(f);
  ns_bytes text = nsh_get_bytes(f);
  nsh_task *task;
  nsh_member room;
  const nsh_member *m;
  int64_t since = ns_mono_us();
  nsh_run r;
  if (!nsh_done(f) || at < 0 || text.p == NULL)
    return false;
  if (w->n == 0 || (task = nsh_process_task(w, 0))->seq != seq ||
      (m = nsh_process_member(task, (size_t)at, &room)) == NULL)
    return true;
  nsh_process_log(w, text);
  nsh_process_running(w, &since);
  r = nsh_process_run(w, task, m->id, m->run, ns_mono_us() - since);
  nsh_run_log(&r, NS_LOG_INFO, "job.log", "running", NS_FIELDS(ns_fb("text", text)));
  return true;
}

static bool on_hook(const nsh_process *w, nsh_frame *f) {
  ns_bytes event = nsh_get_bytes(f);
  ns_bytes error = nsh_get_bytes(f);
  if (!nsh_done(f) || event.p == NULL || error.p == NULL)
    return false;
  ns_log(NS_LOG_ERROR, "worker.hook_failed",
         NS_FIELDS(ns_fi("pid", w->pid), ns_fb("on", event), ns_fb("error", error)));
  return true;
}

static void send_ids(nsh_process *w, const int64_t *ids, size_t n) {
  size_t start = nsh_begin(&w->out, NSH_IDS);
  nsh_put_int(&w->out, (int64_t)n);
  for (size_t i = 0; i < n; i++)
    nsh_put_int(&w->out, ids[i]);
  nsh_must(nsh_end(&w->out, start));
}

/* A worker that gets fewer than it wanted asks again. */
void nsh_messages_serve_ids(nsh_pools *t) {
  nsh_exchange *m = t->exchange;
  size_t used = 0;
  size_t served = 0;
  if (t->nid_requests == 0)
    return; /* handlers may never spawn */
  for (; served < t->nid_requests && used < m->nids; served++) {
    const nsh_id_request *asks = &t->id_requests[served];
    nsh_process *w = &t->workers[asks->worker];
    size_t n = asks->n < m->nids - used ? asks->n : m->nids - used;
    if (w->phase == NSH_EMPTY || w->pid != asks->pid)
      continue;
    send_ids(w, m->ids + used, n);
    nsh_process_flush(w);
    used += n;
  }
  m->nids -= used;
  if (m->nids > 0)
    memmove(m->ids, m->ids + used, m->nids * sizeof *m->ids);
  t->nid_requests -= served;
  if (t->nid_requests > 0)
    memmove(t->id_requests, t->id_requests + served, t->nid_requests * sizeof *t->id_requests);
  nsh_exchange_want_ids(m, used, t->nid_requests > 0);
}

static bool on_want_ids(nsh_process *w, nsh_frame *f) {
  nsh_pools *t = w->pools;
  int64_t n = nsh_get_int(f);
  if (!nsh_done(f) || n < 1 || n > IDS_MAX)
    return false;
  nsh_must(
      ns_grow(&t->id_requests, &t->capid_requests, t->nid_requests + 1, sizeof *t->id_requests));
  t->id_requests[t->nid_requests++] = (nsh_id_request){w->index, w->pid, (size_t)n};
  nsh_messages_serve_ids(t);
  return true;
}

bool nsh_messages_frame(nsh_process *w, nsh_frame *f) {
  switch (f->type) {
  case NSH_VERDICT:
    return on_verdict(w, f);
  case NSH_PROGRESS:
    return on_progress(w, f);
  case NSH_LOG:
    return on_log(w, f);
  case NSH_OUTPUT:
    return on_output(w, f);
  case NSH_WANT_IDS:
    return on_want_ids(w, f);
  case NSH_HOOK:
    return on_hook(w, f);
  default:
    return false;
  }
}
