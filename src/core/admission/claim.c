/*
** A claim of a limited queue. Rows of ready go into the backlog, as many as take some milliseconds;
** then jobs of the backlog are admitted. While the backlog has enough for each claim, a third of
** that time is given to moving. A claim that finds another one at it comes back soon.
**
** Where groups take turns, any row may be of the next one. So a host moves rows between its
** claims, too, for half of the time that it has for that. A program's claims move as many as they
** can. While ready has more, they all look at its newest rows as well. So the job of a small
** group that was pushed behind many others starts at once.
**
** Invariants: rows of all names are moved, whichever names the claim is of, so that an ordered
** group has no gaps. What a claim remembers only says when the next look is worth it. No claim has
** the lock for long: its session ends when it freezes within the transaction (ns_db_hurry).
*/
#include "admission/admission.h"

#include "base.h"
#include "db/db.h"
#include "handle.h"

#define MOVE_MOST 1000
#define MOVE_LEAST 50
#define MOVE_FIRST 250
#define MOVE_TIME INT64_C(3000)      /* µs that a move may take, */
#define SATED 3                      /* ... or a third of it, where the backlog has enough */
#define SORT 2                       /* between claims a host moves for so many times as long */
#define SORT_LOCKED INT64_C(20000)   /* µs until it tries again when another claim admits, */
#define SORT_LATEST (5 * NS_SECOND)  /* ... doubling up to this */
#define SORT_CROWD INT64_C(50000)    /* ... when one of its claims has met another host's */
#define NEWEST 250                   /* of each lane; in 5 ms as many are pushed at most */
#define NEWEST_FIRST (60 * NS_SECOND) /* the first look goes back so far; */
#define NEWEST_LATE INT64_C(100000)  /* ... later ones to the one before, and a late commit */
#define NEWEST_REST 4                /* from one to the next: so many times as long as it took */
#define LOCKED_AGAIN INT64_C(2000)   /* µs: another claim admits */
#define REST INT64_C(15000)          /* ... nothing could start; other queues have jobs */
#define FALLBACK NS_SECOND           /* ... a place is to become free, which a ring tells of */
#define DRAIN_AHEAD (60 * NS_SECOND) /* a host that drains waits so long from start to start */

/* So many rows are moved in the time that a move may take. */
static void learn_pace(ns_admission_memory *m, size_t n, int64_t took) {
  size_t fit = took > 0 ? (size_t)((int64_t)n * MOVE_TIME / took) : MOVE_MOST;
  if (n < m->move_most && took < MOVE_TIME)
    return;
  m->move_most = fit < MOVE_LEAST ? MOVE_LEAST : fit > MOVE_MOST ? MOVE_MOST : fit;
}

/* Rows that are moved at once: enough for the claim, if the backlog were empty. */
static size_t moves(const ns_db *db, const ns_admission *a, const ns_admission_memory *m,
                    size_t want) {
  size_t most = m->move_most / SATED > want ? m->move_most / SATED : want;
  return m->sated && (!a->fair || db->is_host) && most < m->move_most ? most : m->move_most;
}

/* While there is more in ready than is moved, its newest rows are not left behind. */
static ns_status take_newest(ns_db *db, const ns_admission *a, ns_admission_memory *m, ns_buf *list,
                             size_t *n, ns_err *err) {
  int64_t start = ns_mono_us();
  int64_t now = ns_now(db);
  ns_status st;
  if (!a->fair || a->ordered || start < m->newest_at)
    return NS_OK;
  st = ns_admission_newest(db, a, m->newest_from > 0 ? m->newest_from : now - NEWEST_FIRST, NEWEST,
                           list, n, err);
  if (st == NS_OK)
    m->newest_from = now - NEWEST_LATE;
  m->newest_at = ns_mono_us() + NEWEST_REST * (ns_mono_us() - start);
  return st;
}

/* From ready into the backlog, 'most' rows and the newest; there may be more in ready. */
static ns_status move(ns_db *db, const ns_admission *a, ns_admission_memory *m,
                      const ns_admission_claim *c, size_t most, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  int64_t start = ns_mono_us();
  size_t n = 0;
  ns_status st = c->take(db, c->arg, most, &list, &n, err);
  m->more = n >= most;
  if (st == NS_OK && !(m->more && a->fair))
    m->sort_at = 0;
  else if (st == NS_OK && m->sort_at == 0)
    m->sort_at = start;
  if (st == NS_OK && m->more)
    st = take_newest(db, a, m, &list, &n, err);
  m->moved = n;
  if (st == NS_OK && n > 0) {
    st = ns_admission_move(db, a, &list, n, err);
    learn_pace(m, n, ns_mono_us() - start);
  }
  ns_buf_free(&list);
  return st;
}

static ns_status lift(ns_db *db, const ns_admission *a, ns_admission_memory *m, ns_err *err) {
  bool more = false;
  ns_status st = ns_admission_lift(db, a, MOVE_MOST, &more, err);
  m->again_at = more ? ns_mono_us() : 0;
  m->backlog = m->starts = more;
  return st;
}

ns_status ns_admission_run(ns_db *db, ns_admission_memory *m, const ns_admission_claim *c,
                           ns_stmt **s, bool *lifted, ns_err *err) {
  ns_admission a;
  ns_status st;
  *s = NULL;
  *lifted = false;
  m->wanted = c->want;
  if (ns_mono_us() < m->rest_until) {
    m->again_at = m->rest_until; /* what the claimer was woken for may have freed a place */
    return NS_OK;
  }
  if ((st = ns_db_hurry(db, err)) != NS_OK ||
      (st = ns_admission_lock(db, c->queue_id, &a, err)) != NS_OK)
    return st;
  if (!a.locked) {
    m->again_at = ns_mono_us() + ns_jitter(LOCKED_AGAIN, 0.5);
    if (m->sort_at != 0) /* claims of many hosts move enough, and wait for moves */
      m->sort_at = ns_mono_us() + ns_jitter(SORT_CROWD, 0.5);
    return NS_OK;
  }
  if ((*lifted = a.lifted))
    return lift(db, &a, m, err);
  if (m->move_most == 0)
    m->move_most = MOVE_FIRST;
  if ((st = move(db, &a, m, c, moves(db, &a, m, c->want), err)) != NS_OK)
    return st;
  return ns_admission_take(db, &a, c->text, c->want, c->lease, c->alone, s, err);
}

ns_status ns_admission_sort(ns_db *db, ns_admission_memory *m, const ns_admission_claim *c,
                            ns_err *err) {
  ns_admission a;
  ns_status st;
  m->moved = 0;
  if ((st = ns_db_hurry(db, err)) != NS_OK ||
      (st = ns_admission_lock(db, c->queue_id, &a, err)) != NS_OK || !a.locked || a.lifted)
    return st;
  return move(db, &a, m, c, SORT * m->move_most, err);
}

void ns_admission_sorted(ns_admission_memory *m, int64_t start) {
  int64_t now = ns_mono_us();
  if (m->moved > 0)
    m->sort_rest = now - start;
  else if (m->sort_rest >= SORT_LATEST)
    m->sort_at = 0; /* until a claim finds that there is more */
  else
    m->sort_rest = m->sort_rest < SORT_LOCKED ? SORT_LOCKED : 2 * m->sort_rest;
  if (m->sort_rest > SORT_LATEST)
    m->sort_rest = SORT_LATEST;
  m->sort_at = m->sort_at == 0 ? 0 : now + ns_jitter(m->sort_rest, 0.2);
}

int64_t ns_admission_sort_at(const ns_admission_memory *m) {
  return m->limited ? m->sort_at : 0;
}

void ns_admission_learn(ns_admission_memory *m, int64_t in, bool backlog, bool more, size_t n) {
  int64_t now = ns_mono_us();
  bool none = n == 0;
  m->sated = backlog && n >= m->wanted;
  m->backlog = backlog;
  m->starts = backlog && (in >= 0 || more || m->more);
  if (!none || m->admitted_at == 0)
    m->admitted_at = now;
  if (more || m->more)
    in = 0;
  else if (backlog && in < 0)
    in = FALLBACK;
  m->again_at = in < 0 ? 0 : now + in;
  if (none && m->moved == 0 && !more)
    m->rest_until = now + REST;
}

int64_t ns_admission_next(const ns_admission_memory *m, int64_t in) {
  int64_t now = ns_mono_us();
  int64_t at = m->again_at != 0 && m->again_at < m->rest_until ? m->rest_until : m->again_at;
  int64_t next = at > now ? at - now : 0;
  return m->limited && at != 0 && (in < 0 || next < in) ? next : in;
}

bool ns_admission_waits(const ns_admission_memory *m) {
  return m->limited && m->starts && m->again_at - ns_mono_us() <= DRAIN_AHEAD &&
         ns_mono_us() - m->admitted_at <= DRAIN_AHEAD;
}
