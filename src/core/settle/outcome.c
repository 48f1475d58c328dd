/*
** Verdicts that C programs make of a claimed job. And deciding: from a verdict, and the
** server's facts about its job, to its outcome. The job ends, or returns, with which budgets
** and when, or waits. What the run has done is counted here, too.
**
** Then what a run leaves behind with its verdict: its row among the running jobs, and its place
** under a limit. A limit gives places to jobs that run already, too. The last of a batch leaves the
** lease. A verdict that stops its group or its queue does so here.
**
** Invariants: each field that a verdict does not set has the value that changes nothing. Deciding
** does not talk to the server. A place is given up in the transaction that writes the verdict, also
** when that is STALE. Jobs that wait for a place are rung for after the commit. A lease is deleted
** only with all of its claims settled.
*/
#include "settle/settle.h"

#include <string.h>

#include "admission/admission.h"
#include "db/db.h"
#include "handle.h"
#include "source/source.h"

#define MISSING_FIRST NS_SECOND      /* a job without a handler comes back */
#define MISSING_LONGEST (60 * NS_SECOND)
/* A row that was written by hand may have any value that fits the columns. */
#define COUNT_MAX INT64_C(4294967295) /* INT UNSIGNED */

/* ------------------------------------------------------------- verdicts */

static ns_verdict verdict_of(const ns_job *job, ns_kind kind) {
  return (ns_verdict){.id = job->id,
                      .run = job->run,
                      .lease = job->lease,
                      .kind = kind,
                      .delay = -1,
                      .most = -1,
                      .heard = job->heard};
}

ns_verdict ns_ack(const ns_job *job, ns_bytes result) {
  ns_verdict v = verdict_of(job, NS_ACK);
  v.result = result;
  return v;
}

ns_verdict ns_failed(const ns_job *job, ns_bytes error) {
  ns_verdict v = verdict_of(job, NS_FAIL);
  v.error = error;
  return v;
}

ns_verdict ns_again(const ns_job *job, int64_t delay, ns_bytes state) {
  ns_verdict v = verdict_of(job, NS_AGAIN);
  v.delay = delay;
  v.state = state;
  return v;
}

ns_verdict ns_discard(const ns_job *job, ns_bytes reason) {
  ns_verdict v = verdict_of(job, NS_DISCARD);
  v.error = reason;
  return v;
}

ns_verdict ns_release(const ns_job *job) {
  return verdict_of(job, NS_RELEASE);
}

/* ------------------------------------------------------------- outcomes */

void ns_settle_end(ns_outcome *f, const char *outcome, const char *reason) {
  f->ends = true;
  f->parks = false;
  f->outcome = outcome;
  f->reason = reason;
  f->v->dead = strcmp(outcome, "dead") == 0;
  f->v->reason = reason;
}

static void return_after(ns_outcome *f, int64_t delay) {
  if (delay > NS_DELAY_MAX)
    delay = NS_DELAY_MAX;
  f->due = f->now + (delay > 0 ? delay : 0);
}

static void count_up(int64_t *n) {
  if (*n < COUNT_MAX)
    ++*n;
}

/* Priority 0, rank 255, is the bottom. */
static void lower_priority(ns_outcome *f) {
  f->rank = f->rank + f->decay > 255 ? 255 : f->rank + f->decay;
}

/* base × 2^n, at most 'longest'. */
static int64_t double_up_to(int64_t base, int64_t n, int64_t longest) {
  while (n-- > 0 && base < longest)
    base *= 2;
  return base < longest ? base : longest;
}

/* The job's handler was found, and the holder survived it. */
static void found_handler(ns_outcome *f) {
  f->missed = 0;
  f->missing_since = 0;
  f->lost = 0;
}

/* Its backoff ends behind its deadline. A job that polls has its last look all the same, at the
** deadline. */
static void end_at_deadline(ns_outcome *f) {
  bool polls = f->max_polls >= 0;
  if (polls && f->now < f->deadline)
    f->due = f->deadline;
  else
    ns_settle_end(f, "dead", polls ? "poll deadline" : "deadline");
}

/* Returns after 'delay', unless it has ended, or its deadline comes before that. */
static void return_before_deadline(ns_outcome *f, int64_t delay) {
  return_after(f, delay);
  if (!f->ends && f->deadline != 0 && f->due > f->deadline)
    end_at_deadline(f);
}

static void decide_fail(ns_outcome *f) {
  int64_t delay = f->v->delay;
  found_handler(f);
  f->attempt = "failed";
  if (f->v->most > 0)
    f->max_attempts = f->v->most;
  if (delay < 0)
    delay = ns_jitter(double_up_to(f->backoff, f->attempts, NS_BACKOFF_MAX), 0.2);
  if (++f->attempts >= f->max_attempts)
    ns_settle_end(f, "dead", "failed");
  lower_priority(f);
  return_before_deadline(f, delay);
}

/* A job that wants to go on past the deadline gets one more run, which is due then. The run
** sees by that that it is the last. */
static void decide_again(ns_outcome *f) {
  int64_t delay = f->v->delay < 0 ? f->backoff : f->v->delay;
  bool last = f->max_polls >= 0 && f->polls >= f->max_polls;
  bool late = f->deadline != 0 && f->now >= f->deadline;
  found_handler(f);
  count_up(&f->polls);
  if (last || (late && f->v->go_on == 0))
    ns_settle_end(f, "dead", "poll deadline");
  lower_priority(f);
  return_after(f, delay);
  if (f->deadline != 0 && f->due > f->deadline)
    f->due = f->deadline; /* one last look */
}

/* A row of an adopted table counts each death among its failures, and so does its job. So a death
** may use up the last attempt of a row: it is not run past its attempts. */
static void count_death(ns_outcome *f) {
  ns_origin row;
  if (!ns_source_origin((ns_bytes){f->key, f->keylen}, &row))
    return;
  if (++f->attempts >= f->max_attempts)
    ns_settle_end(f, "dead", "failed");
}

static void crash_once(ns_outcome *f) {
  if (++f->crashes >= f->max_crashes)
    ns_settle_end(f, "dead", "poison");
  lower_priority(f);
}

/* The first crash costs no time. A job may kill its worker again and again because of its
** surroundings (a library being replaced, short memory), so the pauses grow. */
static void decide_crash(ns_outcome *f) {
  static const int64_t pauses[] = {0, NS_SECOND, 10 * NS_SECOND, 60 * NS_SECOND};
  static const int64_t last = sizeof pauses / sizeof pauses[0] - 1;
  int64_t before = f->crashes < last ? f->crashes : last;
  found_handler(f);
  f->attempt = "crashed";
  count_death(f);
  crash_once(f);
  return_before_deadline(f, pauses[before]);
}

/* The holder died with it. Twice that says nothing of the job; then it is
** claimed alone, and the next holder that dies with it is its crash. It never pauses:
** only a row in ready says that it is to be claimed alone. */
static void decide_lost(ns_outcome *f) {
  f->attempt = "lost";
  count_death(f);
  if (f->lost >= NS_LOST_TOGETHER)
    crash_once(f);
  count_up(&f->lost);
  return_after(f, 0);
}

static void decide_missing(ns_outcome *f) {
  if (f->missed == 0)
    f->missing_since = f->now;
  if (f->missing_since <= f->now - NS_MISSING_MAX)
    ns_settle_end(f, "dead", "no handler");
  return_after(f, ns_jitter(double_up_to(MISSING_FIRST, f->missed, MISSING_LONGEST), 0.2));
  count_up(&f->missed);
}

void ns_settle_decide(ns_outcome *f) {
  f->v->dead = false;
  switch (f->v->kind) {
  case NS_ACK:
    ns_settle_end(f, "done", NULL);
    break;
  case NS_FAIL:
    decide_fail(f);
    break;
  case NS_AGAIN:
    decide_again(f);
    break;
  case NS_DISCARD:
    ns_settle_end(f, "dead", "discarded");
    break;
  case NS_EXPIRE:
    ns_settle_end(f, "dead", "deadline");
    break;
  case NS_RELEASE:
    f->keeps = f->v->go_on == 1 && f->due <= f->now;
    if (!f->keeps)
      return_after(f, 0);
    break;
  case NS_WAIT:
    found_handler(f);
    f->parks = true;
    break;
  case NS_CRASH:
    decide_crash(f);
    break;
  case NS_MISSING:
    decide_missing(f);
    break;
  case NS_LOST:
    decide_lost(f);
    break;
  }
  if (!f->ends && f->v->run >= NS_MAX_RUN)
    ns_settle_end(f, "dead", "too many runs");
}

void ns_settle_put_off(ns_outcome *f) {
  f->locked = false;
  f->v->status = NS_EBUSY;
}

bool ns_settle_keeps_output(const ns_db *db, const ns_outcome *f) {
  bool last = f->ends && f->v->kind == NS_ACK;
  return f->locked && (last || f->v->kind == NS_AGAIN) && f->v->printed && !f->rowless &&
         !(db->settle.forgets && f->root == 0);
}

bool ns_verdict_written(const ns_verdict *v) {
  return (v->kind == NS_ACK && v->go_on == 1) || (v->kind == NS_RELEASE && v->go_on == 2);
}

/* -------------------------------------------------------------- counting */

/* Adds the times of a run, as far as they are known. */
static void add_run(ns_db *db, ns_tally *t, const ns_verdict *v, const ns_claimed *c) {
  const ns_lease *b = db->is_host ? NULL : ns_claim_leases_batch(&db->claim.leases, v->lease);
  const int64_t began = v->began != 0 || b == NULL ? v->began : b->taken;
  const int64_t ended = v->ended > 0 ? v->ended : ns_mono_us();
  const int64_t waited = began + db->skew - c->due;
  if (began <= 0 || v->kind == NS_RELEASE || v->kind == NS_MISSING || v->kind == NS_EXPIRE)
    return;
  t->n[NS_N_RUNS] = 1;
  t->n[NS_N_RAN] = t->n[NS_N_LONGEST_RUN] = ended > began ? ended - began : 0;
  t->n[NS_N_WAITS] = c->due != 0;
  if (c->due != 0 && waited > 0)
    t->n[NS_N_WAITED] = t->n[NS_N_LONGEST_WAIT] = waited;
}

void ns_settle_count(ns_db *db, const ns_outcome *f, const ns_claimed *c) {
  ns_tally t = {.queue_id = c != NULL ? c->queue_id : f->queue_id};
  bool counts = f->v->status == NS_OK || (f->v->kind == NS_ACK && ns_verdict_written(f->v));
  if (!counts || t.queue_id == 0)
    return;
  t.n[NS_N_DONE] = f->gone;
  t.n[NS_N_FAILED] = f->locked && f->attempt != NULL;
  if (c != NULL)
    add_run(db, &t, f->v, c);
  ns_db_tally(db, &t);
}

/* ------------------------------------------------- what a run leaves behind */

bool ns_settle_is_over(const ns_verdict *v) {
  return v->status == NS_OK || v->status == NS_ESTALE;
}

/* Deletes lease rows with last open claims that are all among these verdicts. */
ns_status ns_settle_delete_leases(ns_db *db, const ns_outcome *outcomes, size_t n, ns_err *err) {
  ns_status st = NS_OK;
  if (db->user_tx)
    return NS_OK; /* after the caller's commit */
  for (size_t i = 0; st == NS_OK && i < db->claim.leases.n; i++) {
    ns_lease *b = &db->claim.leases.items[i];
    size_t over = 0;
    for (size_t k = 0; k < n; k++)
      over += outcomes[k].v->lease == b->id && ns_settle_is_over(outcomes[k].v) &&
              ns_claim_leases_find(&db->claim.leases, b->id, outcomes[k].v->id,
                                   outcomes[k].v->run) != NULL;
    if (over > 0 && over == b->open)
      st = ns_claim_lease_delete(db, b, err);
  }
  return st;
}

/* A job that comes back may keep the rest of its group, or of its queue, from starting. */
static ns_status stop_others(ns_db *db, const ns_outcome *f, ns_err *err) {
  const ns_verdict *v = f->v;
  if (v->stop == 0 || v->kind != NS_AGAIN || v->status != NS_OK || !f->locked || f->ends)
    return NS_OK;
  return ns_admission_stop(db, f->queue_id, v->id, f->due - f->now, v->stop == 2, err);
}

static ns_status hide(ns_db *db, const ns_verdict *v, ns_err *err) {
  return ns_db_bulk_changing(db, NS_SQL_SETTLE_HIDDEN, (ns_column[]){{NS_INT, &v->id, NULL, NULL}},
                             1, 0, err);
}

/* Also a claim that its holder, which is us, does not know: its lease, and so its place, stays. */
static bool may_have_place(const ns_db *db, const ns_claimed *c) {
  return c != NULL ? ns_claim_may_have_place(db, c)
                   : db->settle.blamed != 0 && db->settle.blamed == db->holder;
}

ns_status ns_settle_leave_runs(ns_db *db, const ns_outcome *outcomes, size_t n, ns_err *err) {
  ns_buf places = NS_BUF_INIT;
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < n; i++) {
    const ns_verdict *v = outcomes[i].v;
    const ns_claimed *c = ns_claim_leases_find(&db->claim.leases, v->lease, v->id, v->run);
    ns_settle_count(db, &outcomes[i], c);
    if (c != NULL && c->shown && ns_settle_is_over(v))
      st = hide(db, v, err);
    if (ns_settle_is_over(v) && may_have_place(db, c)) {
      ns_db_list_add_pair(&places, v->id, v->run);
      ns_claim_place_freed(db, c != NULL ? c->queue_id : outcomes[i].queue_id);
    }
    if (st == NS_OK)
      st = stop_others(db, &outcomes[i], err);
  }
  if (!ns_db_list_is_empty(&places) && st == NS_OK) {
    st = ns_admission_release(db, &places, err);
    db->ring_due = true;
  }
  ns_buf_free(&places);
  return st;
}
