/*
** The database's answers to verdicts. Written, or too late to be: done with. Its row held by
** another transaction: a little later. In the server's own trouble: later and later, and apart
** from new verdicts. Refused: as a milder one. With children: as many a cycle as are soon
** written.
*/
#include "exchange/exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "ipc/ipc.h"

#define LOCKED_RETRY 5000 /* µs: verdicts on a row that another transaction holds */
#define CYCLE_US 20000    /* that children may make a cycle last: as many as fit, … */
#define CHILDREN_MIN 100
#define CHILDREN_MAX 1500 /* … and no more */
#define ILL_FIRST 50000   /* µs until a verdict in the server's trouble is tried again, doubling
                          ** … */
#define ILL_LAST (5 * NS_SECOND)

/* ------------------------------------------------------------------ lines on runs */

#define MORE_MAX 8

static const struct {
  const char *event; /* "job." and the outcome */
  bool waits;        /* for what the database says */
} ends[] = {
    [NS_ACK] = {"job.done", false},         [NS_FAIL] = {"job.failed", true},
    [NS_AGAIN] = {"job.again", false},      [NS_DISCARD] = {"job.discarded", true},
    [NS_RELEASE] = {"job.released", false}, [NS_WAIT] = {"job.waits", false},
    [NS_CRASH] = {"job.crashed", true},     [NS_MISSING] = {"job.no_handler", false},
    [NS_LOST] = {"job.lost", true},
};

const char *nsh_run_event(ns_kind kind) {
  return ends[kind].event;
}

bool nsh_run_waits(ns_kind kind) {
  return ends[kind].waits;
}

const char *nsh_run_outcome(ns_kind kind) {
  return ends[kind].event != NULL ? ends[kind].event + strlen("job.") : NULL;
}

static ns_field count_field(const char *key, int64_t n) {
  return n > 0 ? ns_fi(key, n) : ns_fb(key, NS_NONE);
}

void nsh_run_log(const nsh_run *r, ns_level level, const char *event, const char *outcome,
                 const ns_field *more, size_t n) {
  char seconds[NS_NUMBER_SIZE];
  ns_field all[9 + MORE_MAX] = {
      ns_fi("id", r->id),
      ns_fi("run", r->run),
      ns_fb("name", r->name),
      ns_fb("queue", r->queue),
      ns_fs("host", ns_log_host()),
      count_field("worker", r->worker),
      count_field("pid", r->pid),
      r->micros >= 0 ? ns_fn("seconds", ns_number_seconds(r->micros, seconds))
                     : ns_fb("seconds", NS_NONE),
      ns_fs("outcome", outcome)};
  ns_assert(n <= MORE_MAX);
  for (size_t i = 0; i < n; i++)
    all[9 + i] = more[i];
  ns_log(level, event, all, 9 + n);
}

static nsh_run run_of(const ns_verdict *v) {
  return (nsh_run){.id = v->id,
                   .run = v->run,
                   .name = v->name,
                   .queue = v->queue,
                   .worker = v->worker,
                   .pid = v->pid,
                   .micros = v->began > 0 && v->ended > 0 ? v->ended - v->began : -1};
}

/* ------------------------------------------------------------- answers to verdicts */

/* Failures from 'from' on that are not written have their lines all the same. */
static void log_unwritten(const nsh_batch *b, size_t from) {
  for (size_t i = from; i < b->n; i++) {
    const ns_verdict *v = &b->items[i];
    nsh_run r = run_of(v);
    if (nsh_run_waits(v->kind) && !v->told)
      nsh_run_log(&r, NS_LOG_WARN, ends[v->kind].event, "unwritten",
                  NS_FIELDS(ns_fb("error", v->error)));
  }
}

void nsh_retry_give_up(const nsh_batch *b) {
  log_unwritten(b, 0);
}

void nsh_retry_free(nsh_retry *u) {
  log_unwritten(&u->batch, 0);
  log_unwritten(&u->parents, u->nturns);
  log_unwritten(&u->later, 0);
  log_unwritten(&u->ill, 0);
  nsh_batch_free(&u->batch);
  nsh_batch_free(&u->parents);
  nsh_batch_free(&u->later);
  nsh_batch_free(&u->ill);
}

/* Moves the verdicts, beginning anywhere: the time for verdicts that cannot be written together
** is short, and each is to have its turn. */
static void move_verdicts(nsh_batch *from, nsh_batch *to) {
  size_t first = from->n > 1 ? (size_t)ns_random() % from->n : 0;
  for (size_t i = 0; i < from->n; i++)
    nsh_batch_copy(to, &from->items[(first + i) % from->n]);
  nsh_batch_clear(from);
}

static void swap(nsh_batch *a, nsh_batch *b) {
  nsh_batch was = *a;
  *a = *b;
  *b = was;
}

size_t nsh_retry_waiting(const nsh_retry *u) {
  ns_assert(u->nturns <= u->parents.n);
  return u->parents.n - u->nturns;
}

void nsh_retry_took(nsh_retry *u, int64_t micros) {
  size_t fit = u->children * CYCLE_US / (size_t)(micros > 0 ? micros : 1);
  if (u->children < CHILDREN_MIN)
    return;
  u->most = (u->most + fit) / 2;
  u->most = u->most > CHILDREN_MIN ? u->most : CHILDREN_MIN;
  u->most = u->most < CHILDREN_MAX ? u->most : CHILDREN_MAX;
}

static size_t take_parents(nsh_retry *u, nsh_batch *fresh) {
  size_t n = 0;
  if (nsh_retry_waiting(u) == 0) {
    nsh_batch_clear(&u->parents);
    swap(&u->parents, fresh);
    u->nturns = 0;
  }
  for (u->children = 0; nsh_retry_waiting(u) > 0 && u->children < u->most; n++) {
    const ns_verdict *v = &u->parents.items[u->nturns++];
    u->children += v->nchildren;
    nsh_batch_add(&u->batch, v);
  }
  return n;
}

size_t nsh_retry_take(nsh_retry *u, nsh_batch *fresh, nsh_batch *parents, int64_t now) {
  if (u->batch.n > 0)
    return 0;
  swap(&u->batch, fresh);
  move_verdicts(&u->later, &u->batch);
  if (u->ill.n > 0 && now >= u->ill_at)
    move_verdicts(&u->ill, &u->batch);
  u->again_at = u->ill.n > 0 ? u->ill_at : INT64_MAX;
  return parents != NULL ? take_parents(u, parents) : 0;
}

/* Of all verdicts that the server has trouble with one line at a time. */
static void log_trouble(const ns_err *trouble, size_t n) {
  ns_log(NS_LOG_ERROR, "db.error",
         NS_FIELDS(ns_fs("code", ns_code(NS_EBUSY)), ns_fi("number", trouble->sqlerr),
                   ns_fs("message", trouble->message), ns_fi("verdicts", (int64_t)n)));
}

/* Sets the time of the next try for verdicts that met trouble. 'found': in this cycle. */
static void delay_ill(nsh_retry *u, size_t found, const ns_err *trouble, int64_t now) {
  if (u->ill.n == 0)
    u->ill_wait = 0;
  if (found > 0) {
    log_trouble(trouble, found);
    if (u->counts != NULL)
      nsh_count(&u->counts->errors[NS_EBUSY], 1);
    u->ill_wait = u->ill_wait == 0 ? ILL_FIRST : u->ill_wait * 2;
    u->ill_wait = u->ill_wait < ILL_LAST ? u->ill_wait : ILL_LAST;
    u->ill_at = now + u->ill_wait;
  }
  if (u->ill.n > 0 && u->ill_at < u->again_at)
    u->again_at = u->ill_at;
}

/* The run has failed, or its job is dead: one line says so, with all that is known. */
static void log_failure(const ns_verdict *v) {
  nsh_run r = run_of(v);
  nsh_run_log(&r, NS_LOG_WARN, v->dead ? "job.dead" : ends[v->kind].event,
              v->dead ? "dead" : nsh_run_outcome(v->kind),
              NS_FIELDS(ns_fs("reason", v->dead ? v->reason : NULL), ns_fb("error", v->error)));
}

/* Its claim was lost before. A run that was stopped for that has its line already. */
static void log_stale(const ns_verdict *v) {
  nsh_run r = run_of(v);
  nsh_run_log(&r, v->kind == NS_RELEASE ? NS_LOG_DEBUG : NS_LOG_WARN, "job.stale", "stale",
              NS_FIELDS(ns_fs("verdict", nsh_run_outcome(v->kind)), ns_fb("error", v->error)));
}

/* Where a failure is written in its place, that has its own line. */
static void log_refused(const ns_verdict *v) {
  nsh_run r = run_of(v);
  if (v->kind == NS_FAIL || v->kind == NS_RELEASE)
    nsh_run_log(&r, NS_LOG_ERROR, "job.refused", "refused",
                NS_FIELDS(ns_fs("code", ns_code(v->status)),
                          ns_fs("verdict", nsh_run_outcome(v->kind)), ns_fb("error", v->error)));
}

/* Logs the answer of a cycle to one verdict. A verdict on a row that another transaction holds
** (BUSY) is written a little later, and not logged. */
static void log_verdict(const ns_verdict *v) {
  if (v->status == NS_EBUSY || (v->status == NS_ESTALE && ns_verdict_written(v)))
    return;
  if (v->status == NS_ESTALE)
    log_stale(v);
  else if (v->status != NS_OK)
    log_refused(v);
  else if (v->dead || (nsh_run_waits(v->kind) && !v->told))
    log_failure(v);
}

static void count_verdict(const nsh_retry *u, const ns_verdict *v) {
  bool failed = v->kind == NS_FAIL || v->kind == NS_CRASH || v->kind == NS_LOST;
  if (u->counts == NULL || v->status != NS_OK)
    return;
  nsh_count(&u->counts->dead, v->dead);
  nsh_count(&u->counts->retries, failed && !v->dead);
}

/* A verdict that the database would not take becomes a failure; a failure that it would not
** take becomes a release. So the job does not stay claimed. */
static bool soften_verdict(nsh_batch *b, ns_verdict *v) {
  char text[64];
  if (v->kind == NS_RELEASE)
    return false;
  v->kind = v->kind == NS_FAIL ? NS_RELEASE : NS_FAIL;
  snprintf(text, sizeof text, "the verdict was refused: %s", ns_code(v->status));
  v->error = v->kind == NS_FAIL ? nsh_batch_keep(b, ns_str(text)) : NS_NONE;
  v->result = v->state = v->log = NS_NONE;
  v->told = false;
  v->nchildren = 0;
  v->delay = -1;
  return true;
}

/* Nothing is known of any of them: they are kept as they are. */
static bool is_nothing_told(const nsh_batch *b) {
  for (size_t i = 0; i < b->n; i++)
    if (b->items[i].status != NS_EBUSY || b->items[i].trouble)
      return false;
  return true;
}

size_t nsh_retry_failed(nsh_retry *u, const ns_err *trouble, int64_t now) {
  return is_nothing_told(&u->batch) ? 0 : nsh_retry_sort(u, trouble, now);
}

size_t nsh_retry_sort(nsh_retry *u, const ns_err *trouble, int64_t now) {
  size_t settled = 0;
  size_t ill = 0;
  size_t kept = u->ill.n + u->later.n;
  for (size_t i = 0; i < u->batch.n; i++) {
    ns_verdict *v = &u->batch.items[i];
    log_verdict(v);
    count_verdict(u, v);
    bool refused = v->status != NS_OK && v->status != NS_ESTALE && v->status != NS_EBUSY;
    if (v->status == NS_EBUSY && v->trouble) {
      nsh_batch_copy(&u->ill, v);
      ill++;
    } else if (v->status == NS_EBUSY || (refused && soften_verdict(&u->batch, v))) {
      nsh_batch_copy(&u->later, v);
      u->again_at = now + LOCKED_RETRY;
    } else
      settled++;
  }
  ns_assert(settled + u->ill.n + u->later.n - kept == u->batch.n); /* none is lost */
  (void)kept;
  delay_ill(u, ill, trouble, now);
  nsh_batch_clear(&u->batch);
  return settled;
}
