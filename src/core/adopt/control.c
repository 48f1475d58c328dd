/*
** The decisions of people about an adopted table, for all its claimants, and when a claim is worth
** while.
**
** It is a row of nightshift_adopted, written by the first program that adopts the table. It is
** read four times a second while there is something to claim or to hold, so a pause is
** obeyed everywhere well within a second. A rate is shared by all: each claimant moves the instant
** before which no other may, by compare and swap, and claims what he has paid
** for.
**
** Invariant: what is claimed was allowed by what was read a quarter of a second ago at
** most.
*/
#include <string.h>

#include "adopt/table.h"
#include "clock.h"

#define READ_EVERY (NS_SECOND / 4)
#define CLAIM_EVERY NS_SECOND   /* of a table without triggers that ring */
#define LOCKED_MAX 64           /* rows that a handle keeps locked, unless it is told */
#define IDLE (10 * NS_SECOND)   /* of one with such triggers */
#define IDLE_LEAST 5000         /* µs */
#define PAY_AHEAD (NS_SECOND / 4) /* of a rate, at most */
#define RACE 5000               /* µs after another was faster at the rate */

/* ---------------------------------------------------------------- reading */

/* Columns of adopt_control. */
enum { C_PAUSED, C_HELD_UNTIL, C_GAP, C_NEXT_AT, C_BLOCK, C_WORKERS, C_SAME,
       C_FAILURES };

static void take_control(ns_adopted *a, const ns_value *row) {
  a->control = (ns_control){.known = true, .paused = row[C_PAUSED].i != 0,
                            .held_until = row[C_HELD_UNTIL].i,
                            .gap = row[C_GAP].i, .next_at = row[C_NEXT_AT].i,
                            .block = row[C_BLOCK].i,
                            .workers = row[C_WORKERS].i,
                            .failures = row[C_FAILURES].i != 0};
}

static ns_bytes given(const ns_adopted *a) {
  return a->map.given.p != NULL ? a->map.given : ns_str("{}");
}

/* '*same': the mapping that is known there is ours. */
static ns_status read_control(ns_adopted *a, bool *same, ns_err *err) {
  const ns_value *row = NULL;
  ns_status st = ns_db_run(a->db, NS_SQL_ADOPT_CONTROL,
                           (ns_value[]){ns_vtext(given(a)), ns_vtext(a->map.table)}, err);
  if (st == NS_OK)
    st = ns_db_row(a->db, NS_SQL_ADOPT_CONTROL, &row, err);
  *same = st == NS_OK && row != NULL && row[C_SAME].i != 0;
  if (st == NS_OK && row != NULL)
    take_control(a, row);
  return st;
}

ns_status ns_adopt_control(ns_adopted *a, ns_err *err) {
  int64_t now = ns_mono_us();
  bool first = !a->control.known;
  bool same;
  ns_status st;
  if (now < a->control_at)
    return NS_OK;
  st = read_control(a, &same, err);
  if (st == NS_OK && first && !same) {
    st = ns_db_run(a->db, NS_SQL_ADOPT_KNOWN,
                   (ns_value[]){ns_vtext(a->map.table), ns_vtext(given(a))}, err);
    if (st == NS_OK)
      st = read_control(a, &same, err);
  }
  if (st == NS_OK)
    a->control_at = now + ns_jitter(READ_EVERY, 0.1);
  return st;
}

/* --------------------------------------------------------------- deciding */

static void come_again(ns_adopted *a, int64_t in) {
  a->claim_at = ns_mono_us() + in;
}

static bool is_held(const ns_adopted *a) {
  return a->control.paused || a->control.held_until > ns_now(a->db);
}

bool ns_adopted_paused(const ns_adopted *a) {
  return a->control.known && is_held(a);
}

static void cap(size_t *limit, int64_t most, int64_t used) {
  int64_t room = most > used ? most - used : 0;
  if (most > 0 && (int64_t)*limit > room)
    *limit = (size_t)room;
}

/* Pays for rows by the rate; fewer, or none, when it is not time yet. */
static ns_status pay(ns_adopted *a, size_t *limit, ns_err *err) {
  ns_control *c = &a->control;
  int64_t now = ns_now(a->db);
  int64_t from = c->next_at > now ? c->next_at : now;
  int64_t most = PAY_AHEAD / c->gap + 1;
  ns_status st;
  if (c->next_at > now) {
    *limit = 0;
    come_again(a, c->next_at - now);
    return NS_OK;
  }
  if ((int64_t)*limit > most)
    *limit = (size_t)most;
  from += (int64_t)*limit * c->gap;
  st = ns_db_run(a->db, NS_SQL_ADOPT_RESERVE,
                 (ns_value[]){ns_vint(from), ns_vtext(a->map.table), ns_vint(c->next_at)}, err);
  if (st == NS_OK && ns_db_affected(a->db, NS_SQL_ADOPT_RESERVE) > 0) {
    c->next_at = from;
    return NS_OK;
  }
  a->control_at = 0; /* other claimants have paid: read what is next */
  *limit = 0;
  come_again(a, ns_jitter(RACE, 0.5));
  return st == NS_EBUSY ? NS_OK : st;
}

/* Each claim reads past all rows that are locked, and the server notes down each of them, in
** its buffer pool, until the row of that claim is settled: so together it is the square. */
static ns_status limit_locked(const ns_adopted *a, size_t *limit, ns_err *err) {
  int64_t most = a->most_locked > 0 ? a->most_locked : LOCKED_MAX;
  cap(limit, most, (int64_t)a->n);
  if (*limit > 0 || a->db->is_host)
    return NS_OK;
  return ns_fail(err, NS_EBUSY,
                 "%lld rows of '%s' are claimed, with a connection each: that is as many as one "
                 "handle may have",
                 (long long)most, a->map.table.p);
}

void ns_adopted_limit_locked(ns_adopted *a, size_t most) {
  a->most_locked = (int64_t)most;
}

ns_status ns_adopt_allow(ns_adopted *a, size_t *limit, ns_err *err) {
  size_t asked = *limit;
  ns_status st = ns_adopt_control(a, err);
  if (st != NS_OK)
    return st;
  a->capped = a->looked = false;
  if (is_held(a)) {
    *limit = 0;
    come_again(a, READ_EVERY);
    return NS_OK;
  }
  cap(limit, a->control.block, 0);
  asked = *limit;
  cap(limit, a->control.workers, (int64_t)a->n);
  if (*limit > 0 && a->map.strategy == NS_TRANSACTION &&
      (st = limit_locked(a, limit, err)) != NS_OK)
    return st;
  a->capped = *limit < asked;
  if (*limit == 0)
    come_again(a, CLAIM_EVERY);
  if (*limit > 0 && a->control.gap > 0)
    st = pay(a, limit, err);
  a->looked = *limit > 0;
  return st;
}

void ns_adopt_passed(ns_adopted *a) {
  a->looked = false;
}

bool ns_adopted_looked(const ns_adopted *a) {
  return a->looked;
}

void ns_adopt_claimed(ns_adopted *a, size_t asked, size_t got) {
  int64_t wait = a->control.next_at - ns_now(a->db);
  if (got > 0)
    a->ear_pause = 0;
  if (!a->looked)
    come_again(a, ns_jitter(RACE, 0.5));
  else if (got == 0 && a->rung && a->heard)
    come_again(a, a->idle_for);
  else if (got < asked)
    come_again(a, ns_jitter(CLAIM_EVERY, 0.25));
  else
    come_again(a, a->control.gap > 0 && wait > 0 ? wait : 0);
}

/* Locks that end with their owners are not announced. */
ns_status ns_adopt_idle(ns_adopted *a, ns_err *err) {
  int64_t due = -1;
  int64_t overdue = (a->overdue_at > a->look_at ? a->overdue_at : a->look_at) +
                    IDLE_LEAST - ns_mono_us(); /* a look comes with a claim */
  ns_status st = NS_OK;
  a->idle_for = ns_jitter(a->map.strategy == NS_TRANSACTION ? CLAIM_EVERY : IDLE, 0.2);
  if (a->map.overdue > 0 && overdue < a->idle_for)
    a->idle_for = overdue;
  if (ns_adopt_has(a, NS_PART_RETRY_AFTER))
    st = ns_adopted_due(a, &due, err);
  if (st == NS_OK && due >= 0 && due < a->idle_for)
    a->idle_for = due;
  if (a->idle_for < IDLE_LEAST)
    a->idle_for = IDLE_LEAST;
  return st;
}

void ns_adopt_stir(ns_adopted *a) {
  a->claim_at = 0;
}

int64_t ns_adopted_claim_at(const ns_adopted *a) {
  return a->claim_at;
}

ns_status ns_adopt_hold(ns_adopted *a, int64_t us, ns_err *err) {
  a->control_at = 0;
  return ns_db_run(a->db, NS_SQL_ADOPT_HOLD, (ns_value[]){ns_vint(us), ns_vtext(a->map.table)},
                   err);
}

/* ---------------------------------------------------------------- what is due */

ns_status ns_adopted_due(ns_adopted *a, int64_t *due, ns_err *err) {
  const ns_value *row = NULL;
  ns_call none = {0};
  ns_stmt *s;
  ns_status st;
  *due = -1;
  ns_err_clear(err);
  if ((st = ns_db_ready(a->db, err)) != NS_OK)
    return st;
  if (a->control.paused)
    return NS_OK;
  if (a->suspects > 0)
    *due = CLAIM_EVERY;
  else if (is_held(a))
    *due = a->control.held_until - ns_now(a->db);
  if (*due >= 0 || !ns_adopt_has(a, NS_PART_RETRY_AFTER))
    return NS_OK;
  st = ns_adopt_run(a, NULL, NS_SQL_ADOPT_DUE, &none, &s, err);
  if (st == NS_OK)
    st = ns_stmt_fetch(a->db->link, s, &row, err);
  if (row != NULL && row[0].type == NS_INT)
    *due = row[0].i > 0 ? row[0].i : 0;
  return st;
}
