/*
** Settling: from verdicts to rows.
**
** The batch is sorted by (id, run); settle_lock locks every job whose (id, run) still
** stands and that nobody else holds; each of those is decided in memory (ended
** or returned, with which budgets and when), and then everything is written
** array-bound in the order of the keys.
**
** Invariant: a verdict changes rows only while its (id, run) stands, and each
** return makes run grow, so no token is ever accepted twice.
*/
#include "ns_settle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ns_claim.h"
#include "ns_edge.h"
#include "ns_finish.h"
#include "ns_handle.h"
#include "ns_push.h"
#include "ns_queue.h"
#include "ns_time.h"

#define MISSING_FIRST NS_SECOND      /* a job without a handler comes back */
#define MISSING_LONGEST (60 * NS_SECOND)
/* A row that somebody wrote by hand may hold whatever fits the columns. */
#define COUNT_MAX INT64_C(4294967295) /* INT UNSIGNED */
#define DELAY_MAX (INT64_C(3155760000) * NS_SECOND) /* as of a push */

/* What the server knows of a job, and what becomes of it. */
typedef struct slot {
  ns_verdict *v;
  int64_t queue_id, rank, attempts, polls, crashes, lost, missed, missing_since;
  int64_t max_attempts, max_polls, max_crashes, backoff, deadline, root, paused, now;
  int64_t decay;       /* of its priority, with each return that sinks it */
  char *key;           /* its unique key, owned; NULL: none */
  size_t keylen;
  bool locked;
  bool ends;           /* else it returns at 'due', or: */
  bool parks;          /* it waits for its children */
  bool tied;           /* and somebody for it */
  const char *outcome, *reason;
  const char *attempt; /* kind of the attempt row; NULL: none */
  char why[64];        /* the error of an end that is not the holder's; empty */
  int64_t due;
} slot;

static ns_status no_memory(ns_err *err) {
  return ns_fail(err, NS_ENOMEM, "out of memory");
}

/* -------------------------------------------------------------- deciding */

static void end(slot *s, const char *outcome, const char *reason) {
  s->ends = true;
  s->parks = false;
  s->outcome = outcome;
  s->reason = reason;
  s->v->dead = strcmp(outcome, "dead") == 0;
}

static void come_back(slot *s, int64_t delay) {
  if (delay > DELAY_MAX)
    delay = DELAY_MAX;
  s->due = s->now + (delay > 0 ? delay : 0);
}

static void count(int64_t *n) {
  if (*n < COUNT_MAX)
    ++*n;
}

/* Priority 0, rank 255, is the bottom. */
static void sink(slot *s) {
  s->rank = s->rank + s->decay > 255 ? 255 : s->rank + s->decay;
}

/* base × 2^n, at most 'longest'. */
static int64_t doubled(int64_t base, int64_t n, int64_t longest) {
  while (n-- > 0 && base < longest)
    base *= 2;
  return base < longest ? base : longest;
}

/* Its handler was found, and the holder came out of it alive. */
static void found_handler(slot *s) {
  s->missed = 0;
  s->missing_since = 0;
  s->lost = 0;
}

/* Its backoff ends behind its deadline: what polls has its last look all the
** same, at the deadline. */
static void too_late(slot *s) {
  bool polls = s->max_polls >= 0;
  if (polls && s->now < s->deadline)
    s->due = s->deadline;
  else
    end(s, "dead", polls ? "poll deadline" : "deadline");
}

static void decide_fail(slot *s) {
  int64_t delay = s->v->delay;
  found_handler(s);
  s->attempt = "failed";
  if (delay < 0)
    delay = ns_jitter(doubled(s->backoff, s->attempts, NS_BACKOFF_MAX), 0.2);
  if (++s->attempts >= s->max_attempts)
    end(s, "dead", "failed");
  sink(s);
  come_back(s, delay);
  if (!s->ends && s->deadline != 0 && s->due > s->deadline)
    too_late(s);
}

/* Who wants to go on past the deadline gets one more run, which is due then, and
** sees by that that it is the last. */
static void decide_again(slot *s) {
  int64_t delay = s->v->delay < 0 ? s->backoff : s->v->delay;
  bool last = s->max_polls >= 0 && s->polls >= s->max_polls;
  bool late = s->deadline != 0 && s->now >= s->deadline;
  found_handler(s);
  count(&s->polls);
  if (last || (late && s->v->go_on == 0))
    end(s, "dead", "poll deadline");
  sink(s);
  come_back(s, delay);
  if (s->deadline != 0 && s->due > s->deadline)
    s->due = s->deadline; /* one last look */
}

static void decide_crash(slot *s) {
  found_handler(s);
  s->attempt = "crashed";
  if (++s->crashes >= s->max_crashes)
    end(s, "dead", "poison");
  sink(s);
  come_back(s, 0);
}

/* The holder died with it. Twice that says nothing of the job; then it is
** claimed alone, and the next holder that dies with it is its crash. */
static void decide_lost(slot *s) {
  bool alone = s->lost >= NS_LOST_TOGETHER;
  s->attempt = "lost";
  count(&s->lost);
  if (alone && ++s->crashes >= s->max_crashes)
    end(s, "dead", "poison");
  if (alone)
    sink(s);
  come_back(s, 0);
}

static void decide_missing(slot *s) {
  if (s->missed == 0)
    s->missing_since = s->now;
  if (s->missing_since <= s->now - NS_MISSING_MAX)
    end(s, "dead", "no handler");
  come_back(s, ns_jitter(doubled(MISSING_FIRST, s->missed, MISSING_LONGEST), 0.2));
  count(&s->missed);
}

static void decide(slot *s) {
  s->v->dead = false;
  switch (s->v->kind) {
  case NS_ACK:
    end(s, "done", NULL);
    break;
  case NS_FAIL:
    decide_fail(s);
    break;
  case NS_AGAIN:
    decide_again(s);
    break;
  case NS_DISCARD:
    end(s, "dead", "discarded");
    break;
  case NS_EXPIRE:
    end(s, "dead", "deadline");
    break;
  case NS_RELEASE:
    come_back(s, 0);
    break;
  case NS_WAIT:
    found_handler(s);
    s->parks = true;
    break;
  case NS_CRASH:
    decide_crash(s);
    break;
  case NS_MISSING:
    decide_missing(s);
    break;
  case NS_LOST:
    decide_lost(s);
    break;
  }
  if (!s->ends && s->v->run >= NS_MAX_RUN)
    end(s, "dead", "too many runs");
}

/* --------------------------------------------------------------- locking */

/* A batch may bring verdicts on several runs of one job: cancelled and retried
** while the first still ran. */
static int by_token(const void *a, const void *b) {
  const ns_verdict *x = ((const slot *)a)->v;
  const ns_verdict *y = ((const slot *)b)->v;
  return x->id != y->id ? (x->id > y->id) - (x->id < y->id)
                        : (x->run > y->run) - (x->run < y->run);
}

static slot *find(slot *slots, size_t n, int64_t id, int64_t run) {
  ns_verdict v = {.id = id, .run = run};
  slot *key = &(slot){.v = &v};
  return bsearch(key, slots, n, sizeof *slots, by_token);
}

enum { L_ID, L_RUN, L_QUEUE, L_RANK, L_ATTEMPTS, L_POLLS, L_CRASHES, L_LOST,
       L_MISSED, L_MISSING_SINCE, L_MAX_ATTEMPTS, L_MAX_POLLS, L_MAX_CRASHES, L_BACKOFF,
       L_DEADLINE, L_ROOT, L_UKEY, L_NOW, L_DECAY, L_PAUSED };

/* NULL for NULL. False: out of memory. */
static bool copy(const ns_value *v, char **out, size_t *n) {
  if (v->type != NS_TEXT)
    return true;
  *n = v->s.n;
  if ((*out = malloc(*n + 1)) != NULL)
    memcpy(*out, v->s.p, *n);
  return *out != NULL;
}

static ns_status fill(slot *s, const ns_value *r, ns_err *err) {
  s->locked = true;
  s->v->status = NS_OK;
  s->queue_id = r[L_QUEUE].i;
  s->rank = r[L_RANK].i;
  s->attempts = r[L_ATTEMPTS].i;
  s->polls = r[L_POLLS].i;
  s->crashes = r[L_CRASHES].i;
  s->lost = r[L_LOST].i;
  s->missed = r[L_MISSED].i;
  s->missing_since = ns_int_or(&r[L_MISSING_SINCE], 0);
  s->max_attempts = r[L_MAX_ATTEMPTS].i;
  s->max_polls = ns_int_or(&r[L_MAX_POLLS], -1);
  s->max_crashes = r[L_MAX_CRASHES].i;
  s->backoff = r[L_BACKOFF].i;
  s->deadline = ns_int_or(&r[L_DEADLINE], 0);
  s->root = ns_int_or(&r[L_ROOT], 0);
  s->paused = ns_int_or(&r[L_PAUSED], 0);
  s->now = r[L_NOW].i;
  s->decay = r[L_DECAY].i;
  return copy(&r[L_UKEY], &s->key, &s->keylen) ? NS_OK : no_memory(err);
}

/* The tokens of all slots, or of those that could not be locked. */
static ns_value tokens(const slot *slots, size_t n, bool unlocked_only,
                       ns_buf *list) {
  for (size_t i = 0; i < n; i++)
    if (!unlocked_only || !slots[i].locked)
      ns_pair_add(list, slots[i].v->id, slots[i].v->run);
  return ns_pair_end(list);
}

/* Of the rows that were not locked, which still stand? Those are BUSY. */
static ns_status tell_stale(ns_db *db, slot *slots, size_t n, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  ns_value param = tokens(slots, n, true, &list);
  const ns_value *row;
  ns_status st = list.oom ? no_memory(err)
                          : ns_run(db, NS_SQL_SETTLE_STANDS, &param, err);
  while (st == NS_OK &&
         (st = ns_row(db, NS_SQL_SETTLE_STANDS, &row, err)) == NS_OK &&
         row != NULL) {
    slot *s = find(slots, n, row[0].i, row[1].i);
    if (s != NULL && !s->locked)
      s->v->status = NS_EBUSY;
  }
  ns_buf_free(&list);
  return st;
}

static ns_status lock_jobs(ns_db *db, slot *slots, size_t n, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  ns_value param = tokens(slots, n, false, &list);
  const ns_value *row;
  size_t locked = 0;
  ns_status st = list.oom ? no_memory(err)
                          : ns_run(db, NS_SQL_SETTLE_LOCK, &param, err);
  while (st == NS_OK &&
         (st = ns_row(db, NS_SQL_SETTLE_LOCK, &row, err)) == NS_OK &&
         row != NULL) {
    slot *s = find(slots, n, row[L_ID].i, row[L_RUN].i);
    if (s == NULL || s->locked)
      continue;
    st = fill(s, row, err);
    locked++;
  }
  ns_buf_free(&list);
  return st == NS_OK && locked < n ? tell_stale(db, slots, n, err) : st;
}

static void put_off(slot *s) {
  s->locked = false;
  s->v->status = NS_EBUSY;
}

/* A job that ends, or that its children's failure may end, has a key. */
static bool frees_key(const slot *s) {
  return s->locked && (s->ends || s->parks) && s->key != NULL;
}

/* The unique keys of jobs that end: one that somebody holds puts its job off. */
static ns_status lock_keys(ns_db *db, slot *slots, size_t n, ns_err *err) {
  ns_end *ends = calloc(n, sizeof *ends);
  bool *held = calloc(n, sizeof *held);
  ns_status st = ends == NULL || held == NULL ? no_memory(err) : NS_OK;
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (frees_key(&slots[i]))
      ends[i] = (ns_end){.id = slots[i].v->id, .queue_id = slots[i].queue_id,
                         .unique = {slots[i].key, slots[i].keylen}};
  if (st == NS_OK)
    st = ns_finish_keys(db, ends, n, held, err);
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (held[i])
      put_off(&slots[i]);
  free(held);
  free(ends);
  return st;
}

/* --------------------------------------------------------------- writing */

/* Errors and logs come from handlers: whatever bytes they are, they must not
** keep the attempt from being recorded. */
static ns_status write_attempt(ns_db *db, const slot *s, ns_err *err) {
  ns_buf error = NS_BUF_INIT;
  ns_buf log = NS_BUF_INIT;
  ns_status st;
  ns_buf_add_utf8(&error, s->v->error);
  ns_buf_add_utf8(&log, s->v->log);
  st = error.oom || log.oom
           ? no_memory(err)
           : ns_run(db, NS_SQL_SETTLE_ATTEMPT,
                    (ns_value[]){ns_vint(s->v->id), ns_vint(s->v->run),
                                 ns_vtext(ns_str(s->attempt)),
                                 ns_vint(ns_claimant(db)),
                                 s->v->error.p != NULL
                                     ? ns_vtext(ns_buf_bytes(&error))
                                     : ns_vnull,
                                 s->v->log.p != NULL
                                     ? ns_vtext(ns_buf_bytes(&log))
                                     : ns_vnull},
                    err);
  ns_buf_free(&error);
  ns_buf_free(&log);
  return st;
}

static ns_status write_attempts(ns_db *db, const slot *slots, size_t n,
                                ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (slots[i].locked && slots[i].attempt != NULL)
      st = write_attempt(db, &slots[i], err);
  return st;
}

static ns_status write_ends(ns_db *db, const slot *slots, size_t n,
                            ns_err *err) {
  ns_end *ends = calloc(n, sizeof *ends);
  size_t k = 0;
  ns_status st;
  if (ends == NULL)
    return no_memory(err);
  for (size_t i = 0; i < n; i++) {
    const slot *s = &slots[i];
    bool done = s->v->kind == NS_ACK;
    if (!s->locked || !s->ends)
      continue;
    ends[k++] = (ns_end){.id = s->v->id, .queue_id = s->queue_id,
                         .outcome = s->outcome, .reason = s->reason,
                         .result = done ? s->v->result : NS_NONE,
                         .error = done          ? NS_NONE
                                  : s->why[0] != '\0' ? ns_str(s->why)
                                                      : s->v->error,
                         .attempts = s->attempts, .polls = s->polls,
                         .crashes = s->crashes,
                         .unique = {s->key, s->keylen}};
  }
  st = ns_finish(db, ends, k, err);
  free(ends);
  return st;
}

enum { T_RANK, T_ATTEMPTS, T_POLLS, T_CRASHES, T_LOST, T_MISSED, T_SINCE, T_DUE,
       T_STATE, T_HEARS, T_ID, T_QUEUE, T_RUN, T_OFFSET, T_ALONE, T_COUNT };

/* The columns of all jobs that return, as far as 'later' picks them. */
typedef struct returns {
  int64_t *ints;   /* T_COUNT * n */
  ns_bytes *states;
  char *nulls;
  size_t n, cap;   /* rows, columns' stride */
} returns;

static bool returns_make(returns *r, size_t cap) {
  r->ints = calloc(T_COUNT * cap, sizeof *r->ints);
  r->states = calloc(cap, sizeof *r->states);
  r->nulls = calloc(cap, 1);
  r->n = 0;
  r->cap = cap;
  return r->ints != NULL && r->states != NULL && r->nulls != NULL;
}

static void returns_free(returns *r) {
  free(r->ints);
  free(r->states);
  free(r->nulls);
}

static void returns_add(returns *r, const slot *s) {
  int64_t values[T_COUNT] = {
      [T_RANK] = s->rank, [T_ATTEMPTS] = s->attempts, [T_POLLS] = s->polls,
      [T_CRASHES] = s->crashes, [T_LOST] = s->lost, [T_MISSED] = s->missed,
      [T_ALONE] = s->lost >= NS_LOST_TOGETHER, [T_SINCE] = s->missing_since, [T_DUE] = s->due, [T_ID] = s->v->id,
      [T_HEARS] = s->v->kind != NS_AGAIN,
      [T_QUEUE] = s->queue_id, [T_RUN] = s->v->run + 1,
      [T_OFFSET] = (int64_t)r->n};
  for (size_t c = 0; c < T_COUNT; c++)
    r->ints[c * r->cap + r->n] = values[c];
  r->states[r->n] = s->v->kind == NS_AGAIN ? s->v->state : NS_NONE;
  r->nulls[r->n] = s->missed == 0;
  r->n++;
}

static ns_column col(const returns *r, size_t c) {
  return (ns_column){c == T_STATE ? NS_TEXT : NS_INT, &r->ints[c * r->cap],
                     r->states, c == T_SINCE ? r->nulls : NULL};
}

static ns_status update_jobs(ns_db *db, const returns *r, ns_err *err) {
  return ns_bulk(db, NS_SQL_SETTLE_RETURN,
                 (ns_column[]){col(r, T_RANK), col(r, T_ATTEMPTS),
                               col(r, T_POLLS), col(r, T_CRASHES),
                               col(r, T_LOST), col(r, T_MISSED), col(r, T_SINCE), col(r, T_DUE),
                               col(r, T_STATE), col(r, T_HEARS), col(r, T_ID)},
                 r->n, err);
}

static ns_status insert_later(ns_db *db, const returns *r, ns_err *err) {
  if (r->n > 0)
    db->look_at = 0;
  return ns_bulk(db, NS_SQL_SETTLE_SCHEDULED,
                 (ns_column[]){col(r, T_DUE), col(r, T_ID), col(r, T_QUEUE),
                               col(r, T_RANK), col(r, T_RUN)},
                 r->n, err);
}

static ns_status insert_now(ns_db *db, const returns *r, ns_err *err) {
  return ns_bulk(db, NS_SQL_CLAIM_READY,
                 (ns_column[]){col(r, T_QUEUE), col(r, T_RANK),
                               col(r, T_OFFSET), col(r, T_ID), col(r, T_RUN),
                               col(r, T_ALONE)},
                 r->n, err);
}

/* Where a job that returns waits. One that is paused gets no row: whoever
** resumes it writes that. */
typedef enum place { LATER, AT_ONCE, NOWHERE, PLACES } place;

static bool returns_to(const slot *s, place p) {
  place its = s->paused != 0      ? NOWHERE
              : s->due > s->now ? LATER
                                  : AT_ONCE;
  return s->locked && !s->ends && !s->parks && its == p;
}

/* Jobs that return to 'p': their rows change, and where they wait. */
static ns_status write_returns(ns_db *db, const slot *slots, size_t n, place p,
                               ns_err *err) {
  returns r;
  size_t k = 0;
  ns_status st = NS_OK;
  for (size_t i = 0; i < n; i++)
    k += returns_to(&slots[i], p);
  if (k == 0)
    return NS_OK;
  if (!returns_make(&r, k))
    st = no_memory(err);
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (returns_to(&slots[i], p))
      returns_add(&r, &slots[i]);
  if (st == NS_OK)
    st = update_jobs(db, &r, err);
  if (st == NS_OK && p == LATER)
    st = insert_later(db, &r, err);
  if (st == NS_OK && p == AT_ONCE) {
    st = insert_now(db, &r, err);
    db->ring_due = true;
  }
  returns_free(&r);
  return st;
}

/* ------------------------------------------------------------- children */

static bool brings_children(const slot *s) {
  return s->locked && (s->v->kind == NS_ACK ||
                       (s->v->kind == NS_WAIT && !s->ends) ||
                       (s->v->kind == NS_AGAIN && !s->ends));
}

static size_t count_children(const slot *slots, size_t n) {
  size_t k = 0;
  for (size_t i = 0; i < n; i++)
    if (brings_children(&slots[i]))
      k += slots[i].v->nchildren;
  return k;
}

static int insert_by_id(const void *a, const void *b) {
  int64_t x = ((const ns_insert *)a)->id;
  int64_t y = ((const ns_insert *)b)->id;
  return (x > y) - (x < y);
}

static ns_status child_row(ns_db *db, const slot *s, size_t c,
                           ns_insert *row, ns_err *err) {
  const ns_push *child = &s->v->children[c];
  ns_status st = ns_push_check(child, (int64_t)db->max_payload, err);
  *row = (ns_insert){.push = child, .id = child->id, .queue_id = s->queue_id,
                     .nonce = (int64_t)(ns_random() >> 1),
                     .parent = s->v->id, .seq = ns_seq(s->v->run, c),
                     .root = s->root != 0 ? s->root : s->v->id,
                     .waits = s->v->kind == NS_AGAIN, .child = true,
                     .paused = s->paused, .deadline = s->deadline,
                     .deadline_in = -1};
  if (st == NS_OK && child->id <= 0)
    st = ns_fail(err, NS_EINVALID, "a spawned child has no id");
  if (st == NS_OK && child->queue.p != NULL)
    st = ns_queue_id(db, child->queue, true, &row->queue_id, err);
  return st;
}

/* One whose child is to wait for a job that somebody holds comes with the next
** cycle. */
static void put_off_parent(slot *slots, size_t n, int64_t id) {
  for (size_t i = 0; i < n; i++)
    if (slots[i].locked && slots[i].v->id == id)
      put_off(&slots[i]);
}

/* '*held': a row for which a lock would have to be waited for; 0: all is
** written. */
static ns_status try_children(ns_db *db, slot *slots, size_t n, ns_insert *rows,
                              size_t total, size_t *held, ns_err *err) {
  size_t k = 0;
  ns_status st = NS_OK;
  *held = 0;
  for (size_t i = 0; i < n; i++)
    for (size_t c = 0; st == NS_OK && brings_children(&slots[i]) &&
                       c < slots[i].v->nchildren; c++)
      st = child_row(db, &slots[i], c, &rows[k++], err);
  if (st != NS_OK)
    return st;
  qsort(rows, total, sizeof *rows, insert_by_id);
  st = ns_insert_jobs(db, rows, total, held, err);
  if (*held != 0)
    put_off_parent(slots, n, rows[*held - 1].parent);
  else if (st == NS_OK)
    db->ring_due = db->ring_due || ns_insert_rings(rows, total);
  return st;
}

static ns_status write_children(ns_db *db, slot *slots, size_t n, ns_err *err) {
  size_t total = count_children(slots, n);
  size_t held = 0;
  ns_insert *rows;
  ns_status st = NS_OK;
  if (total == 0)
    return NS_OK;
  if ((rows = calloc(total, sizeof *rows)) == NULL)
    return no_memory(err);
  do {
    total = count_children(slots, n);
    st = try_children(db, slots, n, rows, total, &held, err);
  } while (st == NS_OK && held != 0);
  free(rows);
  return st;
}

/* --------------------------------------------------------------- parking */

static ns_status lock_brood(ns_db *db, slot *s, ns_err *err) {
  bool all = true;
  ns_status st = ns_brood_lock(db, s->v->id, &all, err);
  for (size_t i = 0; i < s->v->nchildren; i++)
    s->tied = s->tied || s->v->children[i].after.p != NULL;
  if (st == NS_OK && all)
    st = ns_brood_turn(db, s->v->id, &s->tied, &all, err);
  if (st == NS_OK && !all)
    put_off(s);
  return st;
}

/* A parent whose child somebody is ending, or that might close a circle beside
** another, comes with the next cycle: nothing is written of it now. */
static ns_status lock_broods(ns_db *db, slot *slots, size_t n, ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (slots[i].locked && slots[i].parks && slots[i].v->signal.p == NULL)
      st = lock_brood(db, &slots[i], err);
  return st;
}

/* A child that failed while this run went on, or as it was spawned after one
** that had failed, counts as one that fails later. */
static ns_status fail_with_child(ns_db *db, slot *s, ns_err *err) {
  int64_t child = 0;
  ns_status st = s->v->go_on ? NS_OK
                             : ns_brood_failed(db, s->v->id, s->v->lease, &child, err);
  if (child == 0)
    return st;
  snprintf(s->why, sizeof s->why, "its child, job %lld, failed", (long long)child);
  end(s, "dead", "child failed");
  return st;
}

/* One whose children have all ended is not parked but claimable. */
static ns_status park(ns_db *db, slot *s, ns_err *err) {
  int64_t live = 0;
  int64_t unmet;
  ns_status st = fail_with_child(db, s, err);
  if (st != NS_OK || s->ends)
    return st;
  if ((st = ns_brood_let_go(db, s->v->id, err)) == NS_OK)
    st = ns_brood_wait(db, s->v->id, s->tied, &live, err);
  unmet = live + (s->paused != 0);
  if (st == NS_OK)
    st = ns_run(db, NS_SQL_SETTLE_PARKED,
                (ns_value[]){live == 0       ? ns_vnull
                             : s->v->go_on ? ns_vtext(ns_str("continue"))
                                             : ns_vtext(ns_str("fail")),
                             ns_vint(unmet),
                             s->v->state.p != NULL ? ns_vtext(s->v->state)
                                                   : ns_vnull,
                             ns_vint(s->v->id)},
                err);
  if (st != NS_OK || unmet > 0)
    return st;
  db->ring_due = true;
  return ns_promote_one(db, s->queue_id, s->rank, s->v->id, s->v->run + 1, err);
}

static bool went_on(const slot *s) {
  return s->ends || s->parks || s->v->kind == NS_AGAIN;
}

static int64_t parked_for(const ns_verdict *v) {
  return v->delay < 0 || v->delay > DELAY_MAX ? DELAY_MAX : v->delay;
}

static ns_status schedule(ns_db *db, int64_t id, ns_err *err) {
  ns_buf ids = NS_BUF_INIT;
  ns_value list;
  ns_status st;
  ns_buf_addf(&ids, "[%lld]", (long long)id);
  list = ns_vtext(ns_buf_bytes(&ids));
  st = ids.oom ? no_memory(err) : ns_run(db, NS_SQL_PUSH_SCHEDULED, &list, err);
  ns_buf_free(&ids);
  db->look_at = 0;
  return st;
}

/* What was sent before we look is found here; whoever sends later waits for our
** lock on the job's row, and then finds it scheduled. Who has had a run after the
** deadline, and finds nothing, would be run again at once, for ever. */
static ns_status park_for_signal(ns_db *db, slot *s, ns_err *err) {
  const ns_verdict *v = s->v;
  const ns_value *row = NULL;
  int64_t wish = parked_for(v);
  int64_t span;
  bool sent = false;
  ns_status st = ns_run(db, NS_SQL_SIGNAL_FIND,
                        (ns_value[]){ns_vint(v->id), ns_vtext(v->signal)}, err);
  if (st == NS_OK)
    st = ns_row(db, NS_SQL_SIGNAL_FIND, &row, err);
  sent = st == NS_OK && row != NULL;
  if (st == NS_OK && !sent && s->deadline != 0 && s->now >= s->deadline) {
    snprintf(s->why, sizeof s->why, "its deadline had passed as it waited");
    end(s, "dead", "deadline");
    return NS_OK;
  }
  span = sent ? 0 : wish;
  if (st == NS_OK)
    st = ns_run(db, NS_SQL_SIGNAL_PARK,
                (ns_value[]){ns_vtext(v->signal), ns_vint(span),
                             ns_vint(span), ns_vint(wish),
                             v->state.p != NULL ? ns_vtext(v->state) : ns_vnull,
                             ns_vint(v->id)},
                err);
  if (st != NS_OK || s->paused != 0)
    return st;
  if (!sent)
    return schedule(db, v->id, err);
  db->ring_due = true;
  return ns_promote_one(db, s->queue_id, s->rank, v->id, v->run + 1, err);
}

/* A run that was given a signal, and went on, needs it no more; who has ended
** needs none. */
static ns_status forget_signals(ns_db *db, const slot *slots, size_t n,
                                ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < n; i++) {
    const slot *s = &slots[i];
    const ns_claimed *c =
        ns_leases_find(&db->leases, s->v->lease, s->v->id, s->v->run);
    if (s->locked && c != NULL && c->heard != 0 && went_on(s))
      st = ns_run(db, NS_SQL_SIGNAL_FORGET,
                  (ns_value[]){ns_vint(s->v->id), ns_vint(c->heard),
                               ns_vint(s->ends)},
                  err);
  }
  return st;
}

static ns_status park_all(ns_db *db, slot *slots, size_t n, ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (slots[i].locked && slots[i].parks)
      st = slots[i].v->signal.p != NULL ? park_for_signal(db, &slots[i], err)
                                        : park(db, &slots[i], err);
  return st;
}

/* ------------------------------------------------------- leases, running */

static bool is_over(const ns_verdict *v) {
  return v->status == NS_OK || v->status == NS_ESTALE;
}

ns_status ns_settle_lease(ns_db *db, const ns_lease *b, ns_err *err) {
  ns_column id = {NS_INT, &b->id, NULL, NULL};
  ns_status st = ns_bulk(db, NS_SQL_SETTLE_LEASE, &id, 1, err);
  return st == NS_OK && b->span > 0 ? ns_bulk(db, NS_SQL_SETTLE_EXPIRY, &id, 1, err)
                                    : st;
}

/* Lease rows whose last open claims are all among these verdicts. */
static ns_status delete_leases(ns_db *db, const slot *slots, size_t n,
                               ns_err *err) {
  ns_status st = NS_OK;
  if (db->user_tx)
    return NS_OK; /* after the caller's commit */
  for (size_t i = 0; st == NS_OK && i < db->leases.n; i++) {
    ns_lease *b = &db->leases.items[i];
    size_t over = 0;
    for (size_t k = 0; k < n; k++)
      over += slots[k].v->lease == b->id && is_over(slots[k].v) &&
              ns_leases_find(&db->leases, b->id, slots[k].v->id,
                             slots[k].v->run) != NULL;
    if (over > 0 && over == b->open)
      st = ns_settle_lease(db, b, err);
  }
  return st;
}

static ns_status hide_running(ns_db *db, const slot *slots, size_t n,
                              ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < n; i++) {
    const ns_verdict *v = slots[i].v;
    const ns_claimed *c = ns_leases_find(&db->leases, v->lease, v->id, v->run);
    if (c != NULL && c->shown && is_over(v))
      st = ns_bulk(db, NS_SQL_SETTLE_HIDDEN,
                   (ns_column[]){{NS_INT, &v->id, NULL, NULL}}, 1, err);
  }
  return st;
}

static ns_status write_all(ns_db *db, slot *slots, size_t n, ns_err *err) {
  ns_status st;
  if ((st = write_children(db, slots, n, err)) != NS_OK ||
      (st = forget_signals(db, slots, n, err)) != NS_OK ||
      (st = park_all(db, slots, n, err)) != NS_OK ||
      (st = write_attempts(db, slots, n, err)) != NS_OK ||
      (st = write_ends(db, slots, n, err)) != NS_OK ||
      (st = hide_running(db, slots, n, err)) != NS_OK)
    return st;
  for (place p = LATER; st == NS_OK && p < PLACES; p++)
    st = write_returns(db, slots, n, p, err);
  if (st != NS_OK)
    return st;
  return delete_leases(db, slots, n, err);
}

ns_status ns_settle_batch(ns_db *db, ns_verdict *v, size_t n, ns_err *err) {
  slot *slots;
  ns_status st;
  if (n == 0)
    return NS_OK;
  if ((slots = calloc(n, sizeof *slots)) == NULL)
    return no_memory(err);
  for (size_t i = 0; i < n; i++) {
    slots[i].v = &v[i];
    v[i].status = NS_ESTALE;
  }
  qsort(slots, n, sizeof *slots, by_token);
  if ((st = lock_jobs(db, slots, n, err)) == NS_OK) {
    for (size_t i = 0; i < n; i++)
      if (slots[i].locked)
        decide(&slots[i]);
    if ((st = lock_keys(db, slots, n, err)) == NS_OK &&
        (st = lock_broods(db, slots, n, err)) == NS_OK)
      st = write_all(db, slots, n, err);
  }
  for (size_t i = 0; i < n; i++)
    free(slots[i].key);
  free(slots);
  return st;
}

void ns_settle_done(ns_db *db, const ns_verdict *v, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (!is_over(&v[i]))
      continue;
    if (v[i].status == NS_OK)
      db->count.settled++;
    else
      db->count.stale++;
    if (ns_leases_settle(&db->leases, v[i].lease, v[i].id, v[i].run))
      ns_leases_drop(&db->leases, v[i].lease);
  }
}

void ns_settle_joined(ns_db *db) {
  for (size_t i = 0; i < db->ntx; i++) {
    const ns_verdict *v = &db->tx_settled[i];
    ns_err err;
    db->count.settled += v->status == NS_OK;
    if (is_over(v) &&
        ns_leases_settle(&db->leases, v->lease, v->id, v->run)) {
      ns_settle_lease(db, ns_leases_batch(&db->leases, v->lease), &err);
      ns_leases_drop(&db->leases, v->lease);
    }
  }
}

void ns_settle_refused(ns_verdict *v, const char *text) {
  if (v->kind != NS_DISCARD && v->kind != NS_CRASH)
    v->kind = NS_FAIL;
  v->error = ns_str(text);
  v->delay = -1;
  v->result = v->state = v->log = NS_NONE;
  v->children = NULL;
  v->nchildren = 0;
}
