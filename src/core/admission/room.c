/*
** Queues with a bound: a push is refused while so many of their jobs wait. Who pushes counts them.
** A count is believed for 20 times as long as it took, and for a part of the room that it found. So
** it costs a twentieth of the time at most, and many pushers together go over a bound by little. A
** single one does not, as its own jobs are counted along.
**
** Invariant: what a handle remembers only says when the next count is worth it; the bound and the
** jobs are the database's. So a pusher that dies leaves nothing behind. No assert: the rows are
** those of others.
*/
#include "admission/admission.h"

#include "base.h"
#include "db/db.h"
#include "handle.h"

#define BELIEVED 20                    /* times as long as a count took; */
#define BELIEVED_LEAST INT64_C(20000)  /* ... and so many µs */
#define SHARE 32                       /* this part of the room is taken before the next count; */
#define SHARE_LEAST 500                /* ... or this part of the bound */

/* Bounds are others than those that this handle has read. */
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
