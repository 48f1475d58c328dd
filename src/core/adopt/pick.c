/*
** Finding rows to claim, and locking them.
**
** No statement waits for a lock. Rows are looked at without locks and then locked by key,
** past those of other sessions; so a pick locks what it takes and nothing else, whatever
** the indexes, and leaves alone what is about to be settled.
**
** All claimers read the same few pages of the same index. When hundreds do so at once
** the server is busy with waking each other's threads, and with nothing else; so a
** crowd goes in one by one, by a gate: one of a few named locks, held from before the
** look until the rows are marked. Who is in a crowd is not counted but felt: a look
** that took long, or other claimants at the gate. Who has met neither for some claims goes in
** without asking.
**
** Invariant: a gate is only to be kind to the server. Claims are as right without it.
*/
#include <stdlib.h>

#include "adopt/table.h"
#include "clock.h"
#include "db/db.h"

#define PICKS 10   /* looks at rows that other sessions have all locked … */
#define PAUSE 2000 /* … and µs between them */
#define PAGE_MIN 16 /* rows beyond what is asked for: dozens may be at it … */
#define PAGE_ALONE 2 /* … or no claimant, when one is */
#define PAGE_MAX 20000
#define GATES 4
#define STAND 10   /* seconds at one */
#define CALM 3     /* claims in a row */
#define LONG 10000 /* µs: a look in a crowd, or at its gate */

static ns_status no_memory(ns_err *err) {
  return ns_fail(err, NS_ENOMEM, "out of memory");
}

/* ------------------------------------------------------------------- gates */

/* A host claims for all its workers: there are few, and each has other tables to do. */
static bool feels_alone(const ns_adopted *a) {
  return a->calm >= CALM || a->db->is_host || a->db->no_locks ||
         a->map.strategy == NS_NAMED_LOCK;
}

int64_t ns_adopt_stand(const ns_adopted *a) {
  int64_t half = a->db->cfg.read_timeout / NS_SECOND / 2;
  return a->db->cfg.read_timeout <= 0 || half > STAND ? STAND : half < 1 ? 1 : half;
}

ns_status ns_adopt_enter(ns_adopted *a, ns_seat *seat, ns_err *err) {
  int64_t asked = ns_mono_us();
  ns_stmt *s;
  ns_status st;
  a->gate = 0;
  a->entered_at = asked;
  if (feels_alone(a))
    return NS_OK;
  a->gate = (int64_t)(ns_random() % GATES) + 1;
  st = ns_adopt_run(a, seat, NS_SQL_ADOPT_GATE,
                    &(ns_call){.row = a->gate, .limit = ns_adopt_stand(a)}, &s, err);
  a->entered_at = ns_mono_us();
  if (a->entered_at - asked > LONG)
    a->calm = 0;
  return st;
}

void ns_adopt_leave(ns_adopted *a, ns_seat *seat) {
  ns_err none;
  ns_stmt *s;
  a->calm = ns_mono_us() - a->entered_at > LONG ? 0 : a->calm + (a->calm < CALM);
  if (a->gate != 0)
    ns_adopt_run(a, seat, NS_SQL_ADOPT_GATE_LEAVE, &(ns_call){.row = a->gate}, &s, &none);
  a->gate = 0;
}

/* ------------------------------------------------------------------- looks */

static ns_status list_ids(ns_adopted *a, ns_seat *seat, ns_stmt *s, ns_buf *ids,
                          ns_err *err) {
  const ns_value *row;
  ns_status st;
  ns_buf_reset(ids);
  while ((st = ns_stmt_fetch(ns_adopt_link(a, seat), s, &row, err)) == NS_OK &&
         row != NULL)
    ns_db_list_add_id(ids, row[0].i);
  if (ids->n > 0)
    ns_buf_addc(ids, ']');
  return st == NS_OK && ids->oom ? no_memory(err) : st;
}

/* How many open rows the last pick can have looked at. */
static ns_status count_seen(ns_adopted *a, ns_seat *seat, const ns_call *call,
                            int64_t *n, ns_err *err) {
  const ns_value *row = NULL;
  ns_stmt *s;
  ns_status st = ns_adopt_run(a, seat, NS_SQL_ADOPT_SEEN, call, &s, err);
  if (st == NS_OK)
    st = ns_stmt_fetch(ns_adopt_link(a, seat), s, &row, err);
  *n = row != NULL ? row[0].i : 0;
  return st;
}

/* There were open rows, and other sessions had locked all of them: looks further, or waits
** for those, unless they stay locked as long as they run. False: there is no more to
** see. */
static bool look_harder(ns_adopted *a, const ns_call *call, int64_t seen) {
  if (seen == call->page && a->page < PAGE_MAX) {
    a->page = a->page * 2 + 64;
    return true;
  }
  if (seen > 0 && ns_adopt_tells_taken(a))
    ns_sleep_us(ns_jitter(PAUSE, 0.9));
  return seen > 0 && ns_adopt_tells_taken(a);
}

/* Each row that is looked at may have to be read from a disk. */
static int64_t page_for(const ns_adopted *a, int64_t limit) {
  bool alone = limit == 1 && a->calm >= CALM;
  return (alone ? limit + PAGE_ALONE : limit * 2 + PAGE_MIN) + a->page;
}

ns_status ns_adopt_pick(ns_adopted *a, ns_seat *seat, ns_call *call, ns_buf *ids,
                        ns_err *err) {
  int64_t seen = 0;
  ns_stmt *s;
  ns_status st = ns_adopt_shunned(a, &call->shunned, err);
  for (int tries = 0; st == NS_OK && tries < PICKS; tries++) {
    call->page = page_for(a, call->limit);
    st = ns_adopt_run(a, seat, NS_SQL_ADOPT_PICK, call, &s, err);
    if (st == NS_OK)
      st = list_ids(a, seat, s, ids, err);
    if (st == NS_OK && ids->n == 0)
      st = count_seen(a, seat, call, &seen, err);
    if (st != NS_OK || ids->n > 0 || !look_harder(a, call, seen))
      break;
  }
  if (a->page > 0 && ids->n > 0)
    a->page -= a->page / 8 + 1;
  call->rows = ns_buf_bytes(ids);
  return st;
}
