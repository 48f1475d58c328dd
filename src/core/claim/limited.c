/*
** Claims of limited queues. Rows of ready go into the backlog, a bounded number for each claim;
** then jobs of the backlog are admitted (admission/admission.h). A claim that finds another one at
** it comes back some milliseconds later.
**
** Invariants: rows of all names are moved, whichever names the claim is of, so that an ordered
** group has no gaps. A job that is to be claimed alone is admitted as the only one of its claim.
** Floors move when the move is committed; rows that were admitted tell nothing about lanes.
*/
#include "admission/admission.h"
#include "claim/inner.h"

#include <string.h>

#include "clock.h"
#include "db/db.h"
#include "err.h"

#define MOVE_MOST 1000
#define MOVE_LEAST 50
#define MOVE_TIME INT64_C(5000)        /* µs that a move may take */
#define LOCKED_AGAIN INT64_C(2000)     /* µs: another claim admits */
#define REST INT64_C(3000)             /* ... nothing could start; other queues have jobs */
#define FALLBACK NS_SECOND             /* ... a place is to become free, which a ring tells of */
#define DRAIN_AHEAD (60 * NS_SECOND)   /* a host that drains waits for starts so far ahead */

/* Takes rows of any name out of ready, as a claim does. */
static ns_status take_any_name(ns_db *db, ns_claim_queue *s, size_t want, ns_claim_rows *out,
                               ns_err *err) {
  ns_claim_state *c = &db->claim;
  const ns_buf kinds = c->filter.kinds;
  const bool some = c->lanes.some_names;
  ns_status st;
  c->filter.kinds = (ns_buf)NS_BUF_INIT;
  c->lanes.some_names = false;
  st = ns_claim_take_rows(db, s, want, out, err);
  c->filter.kinds = kinds;
  c->lanes.some_names = some;
  return st;
}

static void list_rows(ns_buf *list, const ns_claim_row *rows, size_t n) {
  for (size_t i = 0; i < n; i++)
    ns_buf_addf(list, "%c[%lld,%lld,%lld,%lld,%lld,%d,%lld]", i > 0 ? ',' : '[',
                (long long)rows[i].queue_id, (long long)rows[i].rank, (long long)rows[i].ready_at,
                (long long)rows[i].id, (long long)rows[i].run, rows[i].alone,
                (long long)rows[i].kind);
}

/* So many rows are moved in the time that a move may take. */
static void learn_pace(ns_claim_queue *s, size_t n, int64_t took) {
  size_t fit = took > 0 ? (size_t)((int64_t)n * MOVE_TIME / took) : MOVE_MOST;
  if (n < s->move_most && took < MOVE_TIME)
    return;
  s->move_most = fit < MOVE_LEAST ? MOVE_LEAST : fit > MOVE_MOST ? MOVE_MOST : fit;
}

/* From ready into the backlog. '*more': there may be more in ready. */
static ns_status move(ns_db *db, const ns_admission *a, ns_claim_queue *s, size_t *n, bool *more,
                      ns_err *err) {
  ns_claim_rows *moved = &db->claim.moved;
  ns_buf list = NS_BUF_INIT;
  int64_t start = ns_mono_us();
  size_t before = moved->n;
  ns_status st;
  if (s->move_most == 0)
    s->move_most = MOVE_MOST / 4;
  st = take_any_name(db, s, s->move_most, moved, err);
  *n = moved->n - before;
  *more = *n >= s->move_most;
  if (st == NS_OK && *n > 0) {
    list_rows(&list, moved->items + before, *n);
    st = ns_admission_move(db, a, &list, *n, err);
    learn_pace(s, *n, ns_mono_us() - start);
  }
  ns_buf_free(&list);
  return st;
}

/* The last row of an answer: of no job. */
static void note_outlook(ns_claim_queue *s, const ns_claim_row *last, bool more) {
  int64_t now = ns_mono_us();
  int64_t in = last->ready_at;
  s->backlog = last->run != 0;
  if (more || last->alone)
    in = 0;
  else if (s->backlog && (in < 0 || in > FALLBACK))
    in = in < 0 ? FALLBACK : in;
  s->again_at = in < 0 ? 0 : now + in;
}

static ns_status admit(ns_db *db, const ns_admission *a, ns_claim_queue *s, size_t want, bool more,
                       ns_claim_rows *out, ns_err *err) {
  ns_claim_state *c = &db->claim;
  bool alone = out->n == 0 && !ns_claim_leases_alone(&c->leases);
  size_t before = out->n;
  ns_buf text = NS_BUF_INIT;
  ns_stmt *stmt = NULL;
  ns_status st = c->reserved != 0 ? NS_OK : ns_take_ids(db, &c->reserved, 1, err);
  ns_claim_filter_text(&c->filter, &text, NS_SQL_ADMISSION_TAKE);
  if (st == NS_OK && text.oom)
    st = ns_no_memory(err);
  if (st == NS_OK)
    st = ns_admission_take(db, a, ns_buf_bytes(&text), want, c->reserved, alone, &stmt, err);
  if (st == NS_OK)
    st = ns_claim_collect_rows(db, stmt, s->queue_id, out, err);
  ns_buf_free(&text);
  if (st != NS_OK)
    return st;
  if (out->n == before || out->items[out->n - 1].id != 0) /* a KILL may look like an answer */
    return ns_fail(err, NS_EBUSY, "the statement was interrupted");
  note_outlook(s, &out->items[--out->n], more);
  for (size_t i = before; i < out->n; i++)
    out->items[i].limited = out->items[i].beyond = true;
  return NS_OK;
}

/* The limit was taken away. */
static ns_status lift(ns_db *db, const ns_admission *a, ns_claim_queue *s, size_t want,
                      ns_claim_rows *out, ns_err *err) {
  bool more = false;
  ns_status st = ns_admission_lift(db, a, MOVE_MOST, &more, err);
  s->again_at = more ? ns_mono_us() : 0;
  s->backlog = more;
  ns_claim_lanes_drop_floors_of(&db->claim.lanes, s->queue_id);
  return st == NS_OK ? ns_claim_take_rows(db, s, want, out, err) : st;
}

ns_status ns_claim_take_limited(ns_db *db, ns_claim_queue *s, size_t want, ns_claim_rows *out,
                                ns_err *err) {
  ns_admission a;
  size_t before = out->n;
  size_t moved = 0;
  bool more = false;
  ns_status st;
  if (ns_mono_us() < s->rest_until)
    return NS_OK;
  st = ns_admission_lock(db, s->queue_id, &a, err);
  if (st == NS_OK && !a.locked) {
    s->again_at = ns_mono_us() + ns_jitter(LOCKED_AGAIN, 0.5);
    return NS_OK;
  }
  if (st == NS_OK && a.lifted)
    return lift(db, &a, s, want, out, err);
  if (st == NS_OK)
    st = move(db, &a, s, &moved, &more, err);
  if (st == NS_OK)
    st = admit(db, &a, s, want, more, out, err);
  if (st == NS_OK && moved == 0 && out->n == before)
    s->rest_until = ns_mono_us() + REST;
  return st;
}

bool ns_claim_is_alone_admitted(const ns_claim_rows *rows) {
  return rows->n > 0 && rows->items[rows->n - 1].limited && rows->items[rows->n - 1].alone;
}

void ns_claim_moved(ns_db *db, bool committed) {
  ns_claim_rows *moved = &db->claim.moved;
  for (size_t i = 0; committed && i < moved->n; i++)
    ns_claim_lanes_learn(&db->claim.lanes, moved->items[i].queue_id, moved->items[i].rank,
                         moved->items[i].ready_at);
  moved->n = 0;
}

/* A look at this queue is due in so many µs; -1: at any time. */
static int64_t next_look(const ns_claim_queue *s) {
  int64_t now = ns_mono_us();
  int64_t at = s->again_at > s->rest_until || s->again_at == 0 ? s->again_at : s->rest_until;
  return !s->limited || at == 0 ? -1 : at > now ? at - now : 0;
}

int64_t ns_claim_limited_next(const ns_claim_queue *s, int64_t in) {
  int64_t next = s != NULL ? next_look(s) : -1;
  return next >= 0 && (in < 0 || next < in) ? next : in;
}

bool ns_claim_limited_waits(const ns_claim_queue *s) {
  return s->limited && s->backlog && s->again_at != 0 &&
         s->again_at - ns_mono_us() <= DRAIN_AHEAD;
}
