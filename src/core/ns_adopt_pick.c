/*
** Finding rows to claim, and locking them.
**
** Nobody waits for a lock. Rows are looked at without locks and then locked by key,
** past those of others; so a pick locks what it takes and nothing else, whatever
** the indexes, and leaves alone what is about to be settled.
*/
#include <stdlib.h>

#include "ns_adopt.h"
#include "ns_list.h"
#include "ns_time.h"

#define PICKS 10   /* looks at rows that others have all locked … */
#define PAUSE 2000 /* … and µs between them */
#define PAGE_MAX 20000

static ns_status no_memory(ns_err *err) {
  return ns_fail(err, NS_ENOMEM, "out of memory");
}

/* ------------------------------------------------------------------- looks */

static ns_status list_ids(ns_adopted *a, ns_seat *seat, ns_stmt *s, ns_buf *ids,
                          ns_err *err) {
  const ns_value *row;
  ns_status st;
  ns_buf_reset(ids);
  while ((st = ns_stmt_fetch(ns_adopt_link(a, seat), s, &row, err)) == NS_OK &&
         row != NULL)
    ns_id_add(ids, row[0].i);
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

/* Rows stay locked as long as they run where nothing else says so. */
static bool locks_are_brief(const ns_adopted *a) {
  return a->map.strategy != NS_TRANSACTION || a->map.has_state[NS_ROW_PROCESSING];
}

/* There were open rows, and others had locked all of them: looks further, or waits
** for those. False: there is no more to see. */
static bool look_harder(ns_adopted *a, const ns_call *call, int64_t seen) {
  if (seen == call->page && a->page < PAGE_MAX) {
    a->page = a->page * 2 + 64;
    return true;
  }
  if (seen > 0 && locks_are_brief(a))
    ns_sleep_us(ns_jitter(PAUSE, 0.9));
  return seen > 0 && locks_are_brief(a);
}

ns_status ns_adopt_pick(ns_adopted *a, ns_seat *seat, ns_call *call, ns_buf *ids,
                        ns_err *err) {
  int64_t seen = 0;
  ns_status st;
  ns_stmt *s;
  for (int tries = 0; tries < PICKS; tries++) {
    call->page = call->limit * 2 + a->page;
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
