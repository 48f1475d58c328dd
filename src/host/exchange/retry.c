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

#include "clock.h"
#include "err.h"
#include "ipc/ipc.h"
#include "log.h"

#define LOCKED_RETRY 5000 /* µs: verdicts on a row that another transaction holds */
#define CYCLE_US 20000    /* that children may make a cycle last: as many as fit, … */
#define CHILDREN_MIN 100
#define CHILDREN_MAX 1500 /* … and no more */
#define ILL_FIRST 50000   /* µs until a verdict in the server's trouble is tried again, doubling
                          ** … */
#define ILL_LAST (5 * NS_SECOND)

void nsh_retry_free(nsh_retry *u) {
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

/* Logs the answer of a cycle to one verdict. A verdict on a row that another transaction holds
** (BUSY) is written a little later, and not logged. */
static void log_verdict(const ns_verdict *v) {
  ns_field id = ns_fi("id", v->id);
  if (v->status == NS_EBUSY || (v->status == NS_ESTALE && ns_verdict_written(v)))
    return;
  if (v->status == NS_ESTALE)
    ns_log(NS_LOG_WARN, "job.stale", NS_FIELDS(id, ns_fi("run", v->run)));
  else if (v->status != NS_OK)
    ns_log(NS_LOG_ERROR, "job.refused",
           NS_FIELDS(id, ns_fs("code", ns_code(v->status)), ns_fi("kind", (int64_t)v->kind)));
  else if (v->dead)
    ns_log(NS_LOG_WARN, "job.dead", NS_FIELDS(id, ns_fb("reason", ns_first_line(v->error))));
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
