/*
** Claims that are a lock: rows of NS_TRANSACTION, each on the seat of its job.
**
** The row is left locked there. Where a state says that a row is being processed, that
** is committed first, for all to see, and the row is locked again. In between a named
** lock of the seat says that it is on its way (the step), so a session that finds a row marked,
** with neither lock, knows that its claimer is gone.
**
** Invariant: a step ends before its claim returns, or with the connection.
*/
#include <stdlib.h>

#include "adopt/table.h"
#include "clock.h"
#include "db/db.h"

#define RACES 20 /* rows lost to other claimants before a claim gives up */
#define RELOCK_FOR (NS_SECOND / 10) /* a look has it locked, for a moment */
#define RELOCK_PAUSE 500

/* ------------------------------------------------------------------- seats */

ns_seat *ns_adopt_seat_of(ns_adopted *a, int64_t id, int64_t run) {
  for (size_t i = 0; i < a->nseats; i++)
    if (a->seats[i].id == id && a->seats[i].run == run)
      return &a->seats[i];
  return NULL;
}

static void close_seat(ns_seat *seat) {
  ns_link_close(seat->link, false);
  *seat = (ns_seat){0};
}

void ns_adopt_leave_seat(ns_seat *seat) {
  seat->id = seat->run = 0;
  if (ns_link_dead(seat->link) ||
      ns_link_text(seat->link, "ROLLBACK", NULL) != NS_OK)
    close_seat(seat);
}

/* A seat without a job has no ping to keep it, so its link is looked at. */
static ns_status connect_seat(ns_adopted *a, ns_seat *seat, ns_err *err) {
  ns_config cfg;
  if (seat->link != NULL) {
    ns_link_look(seat->link);
    if (!ns_link_dead(seat->link))
      return NS_OK;
    close_seat(seat);
  }
  ns_db_config(a->db, &cfg);
  cfg.host_session = false; /* a job may take longer than its wait_timeout */
  return ns_link_open(&seat->link, &cfg, err);
}

ns_status ns_adopt_seat(ns_adopted *a, ns_seat **out, ns_err *err) {
  size_t i = 0;
  while (i < a->nseats && a->seats[i].id != 0)
    i++;
  if (!ns_grow(&a->seats, &a->capseats, i + 1, sizeof *a->seats))
    return ns_fail(err, NS_ENOMEM, "out of memory");
  if (i == a->nseats)
    a->seats[a->nseats++] = (ns_seat){0};
  *out = &a->seats[i];
  return connect_seat(a, *out, err);
}

/* -------------------------------------------------- claims that are a lock */

/* A row to take, locked, as "[id]"; empty: there is none. */
static ns_status pick_one(ns_adopted *a, ns_seat *seat, ns_call *call,
                          ns_buf *ids, ns_err *err) {
  ns_status st = ns_link_text(seat->link, "START TRANSACTION", err);
  if (st == NS_OK)
    st = ns_adopt_pick(a, seat, call, ids, err);
  if (st == NS_OK && ids->n > 0)
    call->row = strtoll(ids->p + 1, NULL, 10);
  return st;
}

/* Picks one, and marks it where a state can say so. */
static ns_status take_one(ns_adopted *a, ns_seat *seat, ns_call *call, bool *found,
                          ns_err *err) {
  ns_buf ids = NS_BUF_INIT;
  ns_stmt *s;
  ns_status st = ns_adopt_enter(a, seat, err);
  if (st == NS_OK)
    st = pick_one(a, seat, call, &ids, err);
  *found = st == NS_OK && ids.n > 0;
  if (*found && a->map.has_state[NS_ROW_PROCESSING])
    st = ns_adopt_change(a, seat, NS_SQL_ADOPT_TAKE, call, NS_TAKE_FOR, &s, err);
  ns_adopt_leave(a, seat);
  ns_buf_free(&ids);
  return st;
}

/* All sessions may see that it is being processed, and that it is on its way. */
static ns_status begin_step(ns_adopted *a, ns_seat *seat, const ns_call *call,
                            ns_err *err) {
  ns_stmt *s;
  ns_status st;
  if (!a->map.has_state[NS_ROW_PROCESSING])
    return NS_OK;
  st = ns_adopt_run(a, seat, NS_SQL_ADOPT_STEP, call, &s, err);
  return st == NS_OK ? ns_link_text(seat->link, "COMMIT AND CHAIN", err) : st;
}

static void end_step(ns_adopted *a, ns_seat *seat, const ns_call *call) {
  ns_err none;
  ns_stmt *s;
  if (a->map.has_state[NS_ROW_PROCESSING])
    ns_adopt_run(a, seat, NS_SQL_ADOPT_STEP_END, call, &s, &none);
}

/* Locks it again, and reads it; no job: it is not ours any more. */
static ns_status relock(ns_adopted *a, ns_seat *seat, const ns_call *call,
                        int64_t token, ns_jobs *out, ns_err *err) {
  int64_t give_up = ns_mono_us() + RELOCK_FOR;
  size_t before = out->n;
  ns_stmt *s;
  ns_status st;
  for (;;) {
    st = ns_adopt_run(a, seat, NS_SQL_ADOPT_RELOCK, call, &s, err);
    if (st == NS_OK)
      st = ns_adopt_collect(a, seat, s, token, out, err);
    if (st != NS_OK || out->n > before || ns_mono_us() > give_up)
      return st;
    ns_sleep_us(RELOCK_PAUSE);
  }
}

/* One row for a seat. '*found': there was one; it may have been lost again, or be one that
** is refused. */
static ns_status claim_one(ns_adopted *a, ns_seat *seat, ns_jobs *out,
                           bool *found, ns_err *err) {
  char claimant[NS_CLAIMANT];
  int64_t token = ns_adopt_token();
  size_t before = out->n;
  ns_call call = {.limit = 1,
                  .token = ns_adopt_claimant(claimant, a->db->holder, token)};
  ns_status st = take_one(a, seat, &call, found, err);
  if (st == NS_OK && *found) {
    if ((st = begin_step(a, seat, &call, err)) == NS_OK)
      st = relock(a, seat, &call, token, out, err);
    end_step(a, seat, &call);
  } else if (st != NS_OK && *found)
    st = ns_adopt_refuse(a, call.row, st, err);
  if (st == NS_OK && out->n > before) {
    seat->id = call.row;
    seat->run = token;
  } else
    ns_adopt_leave_seat(seat);
  return st;
}

/* One row on a seat of its own, past rows that other claimants were faster at. */
static ns_status claim_seated(ns_adopted *a, ns_jobs *out, bool *found,
                              ns_err *err) {
  size_t before = out->n;
  ns_status st = NS_OK;
  *found = true;
  for (int tries = 0; *found && out->n == before && tries < RACES; tries++) {
    ns_seat *seat;
    ns_err_clear(err);
    if ((st = ns_adopt_seat(a, &seat, err)) == NS_OK)
      st = claim_one(a, seat, out, found, err);
    if (st == NS_EBUSY && ns_link_retryable(err)) {
      ns_db_count_retry(a->db, err);
      *found = true;
    } else if (st == NS_EGONE && tries == 0) { /* since the seat was looked at */
      *found = true;
    } else if (st != NS_OK)
      return st;
  }
  return st;
}

ns_status ns_adopt_claim_locks(ns_adopted *a, size_t limit, ns_jobs *out,
                               ns_err *err) {
  size_t before = out->n;
  bool found = true;
  ns_status st = NS_OK;
  if (ns_adopt_has(a, NS_PART_CLAIMED_BY))
    st = ns_register(a->db, a->db->is_host, err);
  while (st == NS_OK && found && out->n - before < limit)
    st = claim_seated(a, out, &found, err);
  return out->n > before && st != NS_ENOMEM ? NS_OK : st; /* what there is counts */
}
