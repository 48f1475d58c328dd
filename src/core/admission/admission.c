/*
** The statements of admission (sql/query/admission.sql), each with its parameters. What they do is
** decided by the server: places and tokens are counted there, under the lock of the limit.
**
** And queues with a bound: a push is refused while so many of their jobs wait. Who pushes counts
** them. A count is believed for 20 times as long as it took, and for a part of the room that it
** found. So it costs a twentieth of the time at most, and many pushers together go over a bound by
** little. A single one does not, as its own jobs are counted along.
**
** Invariant: a queue's backlog, groups and grants change only while its limit is locked by the
** transaction. Asserted where rows are moved, admitted or given back. What a handle remembers of a
** bound only says when the next count is worth it, so a pusher that dies leaves nothing behind.
*/
#include "admission/admission.h"

#include "base.h"
#include "db/db.h"
#include "handle.h"

#define NOTED ((size_t)1 << 20) /* bytes of noted groups; with more they are looked at later */
#define BELIEVED 20                    /* times as long as a count took; */
#define BELIEVED_LEAST INT64_C(20000)  /* ... and so many µs */
#define SHARE 32                       /* this part of the room is taken before the next count; */
#define SHARE_LEAST 500                /* ... or this part of the bound */

ns_status ns_admission_lock(ns_db *db, int64_t queue_id, ns_admission *a, ns_err *err) {
  const ns_value *row = NULL;
  const ns_value param = ns_vint(queue_id);
  ns_status st = ns_db_run(db, NS_SQL_ADMISSION_LOCK, &param, err);
  *a = (ns_admission){.queue_id = queue_id};
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_ADMISSION_LOCK, &row, err);
  if (st == NS_OK && row != NULL) {
    a->locked = true;
    a->ordered = row[0].i != 0;
    a->lifted = row[1].i != 0;
    a->fair = row[2].i != 0;
  }
  return st;
}

ns_status ns_admission_move(ns_db *db, const ns_admission *a, ns_buf *rows, size_t n, ns_err *err) {
  const ns_value list = ns_db_list_end(rows);
  const ns_value params[] = {list, ns_vint((int64_t)n), ns_vint(a->ordered)};
  ns_assert(a->locked && !a->lifted && db->in_tx);
  return rows->oom ? ns_no_memory(err) : ns_db_run(db, NS_SQL_ADMISSION_MOVE, params, err);
}

ns_status ns_admission_newest(ns_db *db, const ns_admission *a, int64_t since, size_t most,
                              ns_buf *list, size_t *n, ns_err *err) {
  const ns_value params[] = {ns_vint(a->queue_id), ns_vint(since), ns_vint((int64_t)most)};
  const ns_value *row = NULL;
  ns_status st = ns_db_run(db, NS_SQL_ADMISSION_NEWEST, params, err);
  ns_assert(a->locked && !a->lifted && !a->ordered && db->in_tx);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_ADMISSION_NEWEST, &row, err);
  if (st == NS_OK && row == NULL) /* rows may be out of ready all the same */
    return ns_fail(err, NS_EBUSY, "the statement was interrupted");
  if (st != NS_OK || row[1].i == 0)
    return st;
  ns_buf_addc(list, list->n > 0 ? ',' : '[');
  ns_buf_add(list, row[0].s.p, row[0].s.n);
  *n += (size_t)row[1].i;
  return NS_OK;
}

ns_status ns_admission_lift(ns_db *db, const ns_admission *a, size_t n, bool *more, ns_err *err) {
  const ns_value params[] = {ns_vint(a->queue_id), ns_vint((int64_t)n)};
  const ns_value *row = NULL;
  ns_status st;
  ns_assert(a->locked && a->lifted && db->in_tx);
  *more = false;
  st = ns_db_run(db, NS_SQL_ADMISSION_LIFT, params, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_ADMISSION_LIFT, &row, err);
  if (st == NS_OK && row != NULL)
    *more = row[0].i != 0;
  return st;
}

ns_status ns_admission_take(ns_db *db, const ns_admission *a, ns_bytes text, size_t want,
                            int64_t lease, bool alone, ns_stmt **s, ns_err *err) {
  const ns_value params[] = {ns_vint(a->queue_id), ns_vint((int64_t)want), ns_vint(lease),
                             ns_vint(alone), ns_vint(!db->claim.strict)};
  ns_status st = ns_db_prepared(db, s, text, err);
  ns_assert(a->locked && !a->lifted && db->in_tx);
  return st == NS_OK ? ns_stmt_run(db->link, *s, params, err) : st;
}

ns_status ns_admission_withdraw(ns_db *db, int64_t job, bool *taken, ns_err *err) {
  const ns_value param = ns_vint(job);
  ns_status st = ns_db_run(db, NS_SQL_ADMISSION_WITHDRAW, &param, err);
  *taken = st == NS_OK && ns_db_affected(db, NS_SQL_ADMISSION_WITHDRAW) > 0;
  return st;
}

ns_status ns_admission_return(ns_db *db, ns_buf *ids, int64_t *n, ns_err *err) {
  const ns_value *row = NULL;
  ns_status st = ns_db_list_run(db, NS_SQL_ADMISSION_RETURN, NULL, ids, err);
  *n = 0;
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_ADMISSION_RETURN, &row, err);
  if (st == NS_OK && row != NULL)
    *n = row[0].i;
  return st;
}

ns_status ns_admission_release(ns_db *db, ns_buf *tokens, ns_err *err) {
  return ns_db_list_run(db, NS_SQL_ADMISSION_RELEASE, NULL, tokens, err);
}

ns_status ns_admission_stop(ns_db *db, int64_t queue_id, int64_t job, int64_t span, bool all,
                            ns_err *err) {
  const ns_value params[] = {ns_vint(queue_id), ns_vint(job), ns_vint(span), ns_vint(all)};
  return ns_db_run(db, NS_SQL_ADMISSION_STOP, params, err);
}

/* ------------------------------------------------------- groups that go on */

void ns_admission_leaves(ns_db *db, int64_t queue_id, const ns_value *group) {
  ns_buf *list = &db->passed;
  if (group->type != NS_TEXT)
    return;
  ns_buf_addf(list, "%c[%lld,", list->n > 0 ? ',' : '[', (long long)queue_id);
  ns_buf_add_json(list, group->s);
  ns_buf_addc(list, ']');
  if (list->oom || list->n > NOTED)
    ns_buf_free(list);
}

void ns_admission_pass(ns_db *db, bool written) {
  ns_value list;
  ns_err none;
  bool cut;
  if (db->passed.n == 0)
    return;
  if (written) {
    list = ns_db_list_end(&db->passed);
    if (!db->passed.oom)
      ns_db_run_whole(db, NS_SQL_ADMISSION_PASS, &list, &cut, &none);
    db->ring_due = true;
  }
  ns_buf_free(&db->passed);
}

static void closing(ns_db *db) {
  ns_buf_free(&db->passed);
}

const ns_hooks ns_admission_hooks = {.committed = ns_admission_pass, .closing = closing};

/* ------------------------------------------------------ a queue with a bound */

/* Bounds have changed since this handle has read them. */
static ns_status read_bounds(ns_db *db, ns_err *err) {
  const int64_t seen = db->bounds.seen;
  const ns_value *row = NULL;
  ns_status st = ns_db_run(db, NS_SQL_ADMISSION_BOUNDS, NULL, err);
  if (st != NS_OK)
    return st;
  for (size_t i = 0; i < db->nqueues; i++)
    ns_db_queue_bound(db, db->queues[i]->id, 0);
  while ((st = ns_db_row(db, NS_SQL_ADMISSION_BOUNDS, &row, err)) == NS_OK && row != NULL)
    ns_db_queue_bound(db, row[0].i, row[1].i);
  if (st == NS_OK)
    db->bounds.read = seen;
  return st;
}

/* How many jobs are pushed before the next count. */
static int64_t share_of(int64_t room, int64_t bound) {
  int64_t share = room / SHARE > bound / SHARE_LEAST ? room / SHARE : bound / SHARE_LEAST;
  if (share < 1)
    share = 1;
  return room < share ? room : share;
}

static ns_status count(ns_db *db, ns_queue_name *q, ns_err *err) {
  const int64_t start = ns_mono_us();
  const ns_value param = ns_vint(q->id);
  const ns_value *row = NULL;
  ns_status st = ns_db_run(db, NS_SQL_ADMISSION_ROOM, &param, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_ADMISSION_ROOM, &row, err);
  if (st != NS_OK || row == NULL)
    return st;
  int64_t bound = ns_int_or(&row[0], 0);
  int64_t room = bound - ns_int_or(&row[1], 0);
  int64_t now = ns_mono_us();
  int64_t believed = (now - start) * BELIEVED;
  ns_db_queue_bound(db, q->id, bound);
  q->room = room > 0 ? share_of(room, bound) : -1;
  q->counted_until = now + (believed > BELIEVED_LEAST ? believed : BELIEVED_LEAST);
  return NS_OK;
}

ns_status ns_admission_room(ns_db *db, int64_t queue_id, size_t n, ns_err *err) {
  ns_queue_name *q;
  ns_status st = NS_OK;
  if (db->bounds.seen != db->bounds.read && (st = read_bounds(db, err)) != NS_OK)
    return st;
  if (db->nbounded == 0 || (q = ns_db_queue_known(db, queue_id)) == NULL || q->bound == 0)
    return NS_OK;
  if (q->room == 0 || ns_mono_us() >= q->counted_until)
    st = count(db, q, err);
  if (st != NS_OK || q->bound == 0)
    return st;
  if (q->room < 0)
    return ns_fail(err, NS_EFULL,
                   "queue %s is full: %lld job%s, and its limit allows no more; push later, or "
                   "with wait", q->name, (long long)q->bound, q->bound == 1 ? " waits" : "s wait");
  q->room = q->room > (int64_t)n ? q->room - (int64_t)n : 0;
  return NS_OK;
}
