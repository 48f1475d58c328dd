/*
** Sorting: rows of ready go into the backlog of a limited queue, where they stand by group. A claim
** moves as many as take some milliseconds. While the backlog has enough for each claim, a third of
** that time is given to moving.
**
** Where groups take turns, any row may be of the next one. So a host moves rows between its
** claims, too, for half of the time that it has for that. A program's claims move as many as they
** can. While ready has more, they all look at its newest rows as well. So the job of a small
** group that was pushed behind many others starts at once.
**
** Invariant: rows of all names are moved, whichever names the claim is of, so that an ordered
** group has no gaps. What is remembered only says when the next look is worth it. (Not asserted:
** only the server knows the rows.)
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

/* So many rows are moved in the time that a move may take. */
static void learn_pace(ns_admission_memory *m, size_t n, int64_t took) {
  size_t fit = took > 0 ? (size_t)((int64_t)n * MOVE_TIME / took) : MOVE_MOST;
  if (n < m->move_most && took < MOVE_TIME)
    return;
  m->move_most = fit < MOVE_LEAST ? MOVE_LEAST : fit > MOVE_MOST ? MOVE_MOST : fit;
}

/* While there is more in ready than is moved, its newest rows are not left behind. */
static ns_status take_newest(ns_db *db, const ns_admission *a, ns_admission_sorting *s,
                             ns_buf *list, size_t *n, ns_err *err) {
  int64_t start = ns_mono_us();
  int64_t now = ns_now(db);
  ns_status st;
  if (!a->fair || a->ordered || start < s->newest_at)
    return NS_OK;
  st = ns_admission_newest(db, a, s->newest_from > 0 ? s->newest_from : now - NEWEST_FIRST, NEWEST,
                           list, n, err);
  if (st == NS_OK)
    s->newest_from = now - NEWEST_LATE;
  s->newest_at = ns_mono_us() + NEWEST_REST * (ns_mono_us() - start);
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
    m->sorting.at = 0;
  else if (st == NS_OK && m->sorting.at == 0)
    m->sorting.at = start;
  if (st == NS_OK && m->more)
    st = take_newest(db, a, &m->sorting, &list, &n, err);
  m->moved = n;
  if (st == NS_OK && n > 0) {
    st = ns_admission_move(db, a, &list, n, err);
    learn_pace(m, n, ns_mono_us() - start);
  }
  ns_buf_free(&list);
  return st;
}

/* -------------------------------------------------------------- by a claim */

/* Rows that are moved at once: enough for the claim, if the backlog were empty. */
static size_t moves(const ns_db *db, const ns_admission *a, const ns_admission_memory *m,
                    size_t want) {
  size_t most = m->move_most / SATED > want ? m->move_most / SATED : want;
  return m->sated && (!a->fair || db->is_host) && most < m->move_most ? most : m->move_most;
}

ns_status ns_admission_sort_for(ns_db *db, const ns_admission *a, ns_admission_memory *m,
                                const ns_admission_claim *c, ns_err *err) {
  if (m->move_most == 0)
    m->move_most = MOVE_FIRST;
  return move(db, a, m, c, moves(db, a, m, c->want), err);
}

void ns_admission_sort_crowd(ns_admission_memory *m) {
  if (m->sorting.at != 0) /* claims of many hosts move enough, and wait for moves */
    m->sorting.at = ns_mono_us() + ns_jitter(SORT_CROWD, 0.5);
}

/* ---------------------------------------------------------- between claims */

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
  ns_admission_sorting *s = &m->sorting;
  int64_t now = ns_mono_us();
  if (m->moved > 0)
    s->rest = now - start;
  else if (s->rest >= SORT_LATEST)
    s->at = 0; /* until a claim finds that there is more */
  else
    s->rest = s->rest < SORT_LOCKED ? SORT_LOCKED : 2 * s->rest;
  if (s->rest > SORT_LATEST)
    s->rest = SORT_LATEST;
  s->at = s->at == 0 ? 0 : now + ns_jitter(s->rest, 0.2);
}

int64_t ns_admission_sort_at(const ns_admission_memory *m) {
  return m->limited ? m->sorting.at : 0;
}
