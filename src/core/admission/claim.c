/*
** A claim of a limited queue. Rows of ready go into the backlog (sort.c); then jobs of the backlog
** are admitted. A claim that finds another one at it comes back soon.
**
** Invariants: what a claim remembers only says when the next look is worth it. No claim has the
** lock for long: its session ends when it freezes within the transaction (ns_db_hurry).
*/
#include "admission/admission.h"

#include "base.h"
#include "db/db.h"
#include "handle.h"

#define LIFT_MOST 1000               /* rows that go back to ready at once */
#define LOCKED_AGAIN INT64_C(2000)   /* µs: another claim admits */
#define REST INT64_C(15000)          /* ... nothing could start; other queues have jobs */
#define FALLBACK NS_SECOND           /* ... a place is to become free, which a ring tells of */
#define DRAIN_AHEAD (60 * NS_SECOND) /* a host that drains waits so long from start to start */

static ns_status lift(ns_db *db, const ns_admission *a, ns_admission_memory *m, ns_err *err) {
  bool more = false;
  ns_status st = ns_admission_lift(db, a, LIFT_MOST, &more, err);
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
    ns_admission_sort_crowd(m);
    return NS_OK;
  }
  if ((*lifted = a.lifted))
    return lift(db, &a, m, err);
  if ((st = ns_admission_sort_for(db, &a, m, c, err)) != NS_OK)
    return st;
  return ns_admission_take(db, &a, c->text, c->want, c->lease, c->alone, s, err);
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
