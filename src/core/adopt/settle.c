/*
** Verdicts on rows of an adopted table.
**
** Each is one UPDATE by the primary key that asks for the claim's own mark, so one
** that comes too late changes nothing and is STALE. When the answer to a commit was
** lost, it is repeated; what then changes nothing has been written before, as long
** as we are still the holder that we were. On a seat there is nothing to repeat:
** the claim is gone with the connection.
*/
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adopt/table.h"
#include "clock.h"
#include "db/db.h"

#define SEATED_FOR (60 * NS_SECOND) /* a row claimed by a connection, at most */
#define SHARE 0.2 /* of a backoff, by chance */
#define EMBEDDED_FOR (10 * NS_SECOND) /* a verdict on a row that another session has locked */
#define HOST_FOR 2000                 /* the same of a host, which has other verdicts to write */

static ns_status stale(const ns_adopted *a, int64_t id, ns_err *err) {
  return ns_fail(err, NS_ESTALE,
                 "the claim of row %" PRId64 " of '%s' is lost: it was settled, "
                 "overdue or given to somebody else",
                 id, a->map.table.p);
}

static ns_sql statement_of(ns_kind kind) {
  switch (kind) {
  case NS_ACK:
    return NS_SQL_ADOPT_ACK;
  case NS_AGAIN:
    return NS_SQL_ADOPT_AGAIN;
  case NS_DISCARD:
  case NS_EXPIRE:
    return NS_SQL_ADOPT_DISCARD;
  case NS_RELEASE:
    return NS_SQL_ADOPT_RELEASE;
  default:
    return NS_SQL_ADOPT_FAIL;
  }
}

/* Is there something that says that a row has failed for good? */
static bool can_end(const ns_adopted *a) {
  return a->map.has_state[NS_ROW_FAILED] || ns_adopt_has(a, NS_PART_ATTEMPTS_LEFT) ||
         (ns_adopt_has(a, NS_PART_ATTEMPTS) && a->map.max_attempts > 0);
}

/* Why a row cannot end so; NULL: it can. */
static const char *unable(const ns_adopted *a, const ns_verdict *v) {
  if (v->nchildren > 0)
    return "has no children";
  if (v->kind == NS_WAIT)
    return "cannot be parked";
  if (statement_of(v->kind) == NS_SQL_ADOPT_DISCARD && !can_end(a))
    return "cannot be given up: the mapping names neither a 'failed' status nor "
           "attempts with a limit";
  return NULL;
}

static int64_t backoff(const ns_grip *grip) {
  int64_t us = NS_BACKOFF;
  for (int64_t i = 0; grip != NULL && i < grip->attempts && us < NS_BACKOFF_MAX; i++)
    us *= 2;
  return ns_jitter(us < NS_BACKOFF_MAX ? us : NS_BACKOFF_MAX, SHARE);
}

/* µs until it may be claimed again, or NULL: as before. */
static ns_value delay_of(const ns_verdict *v, const ns_grip *grip) {
  if (v->kind != NS_FAIL && v->kind != NS_AGAIN && v->kind != NS_MISSING)
    return ns_vnull;
  return ns_vint(v->delay >= 0 ? v->delay : backoff(grip));
}

/* The grip goes first: the session that deletes it is the one that may settle. */
static ns_status drop_grip(ns_adopted *a, const ns_call *call, bool *was,
                           ns_err *err) {
  ns_status st = ns_db_run(
      a->db, NS_SQL_ADOPT_GRIP_DROP,
      (ns_value[]){ns_vtext(a->map.table), ns_vint(call->row), ns_vtext(call->token)}, err);
  *was = st == NS_OK && ns_db_affected(a->db, NS_SQL_ADOPT_GRIP_DROP) > 0;
  return st;
}

/* The row could not be changed: it is held on to. */
static ns_status keep_grip(ns_adopted *a, const ns_call *call, ns_err *err) {
  char row[32];
  int n = snprintf(row, sizeof row, "[%" PRId64 "]", call->row);
  return ns_db_run(a->db, NS_SQL_ADOPT_GRIP_ADD,
                   (ns_value[]){ns_vtext(a->map.table), ns_vtext(call->token),
                                ns_vtext(((ns_bytes){row, (size_t)n}))},
                   err);
}

/* The server had something against the statement; the other verdicts are written all the same. */
static bool is_refused(ns_status st, const ns_err *err) {
  return st == NS_ESQL || ns_adopt_is_refused(st, err);
}

/* Against what is in the row, or what the table or its triggers lack: no column of that
** name, of that number, without a default; a trigger that may not. */
static bool is_blamed(const ns_err *err) {
  static const unsigned definition[] = {1054, 1136, 1364, 1442};
  for (size_t i = 0; i < sizeof definition / sizeof definition[0]; i++)
    if (err->sqlerr == definition[i])
      return true;
  return ns_link_blames_value(err);
}

/* A verdict that the server did not take: for a trouble of the server's own it comes again,
** and spends nothing. */
static void put_off(ns_adopted *a, ns_verdict *v, ns_status st, const ns_err *err) {
  v->trouble = is_refused(st, err) && !is_blamed(err);
  v->status = v->trouble ? NS_EBUSY : st;
  if (v->trouble)
    a->db->trouble = *err;
}

ns_status ns_adopt_end(ns_adopted *a, ns_seat *seat, ns_sql sql, ns_call *call,
                       int64_t patience, bool *changed, ns_err *err) {
  ns_call change = *call;
  ns_err why;
  ns_stmt *s;
  ns_status st = NS_OK;
  bool grip = ns_adopt_by_grip(a) && call->token.p != NULL;
  *changed = true;
  if (grip) {
    st = drop_grip(a, call, changed, err);
    change.token = NS_NONE;
  }
  if (st != NS_OK || !*changed)
    return st;
  st = ns_adopt_change(a, seat, sql, &change, patience, &s, err);
  *changed = st == NS_OK && ns_stmt_affected(s) > 0;
  if (grip && (is_refused(st, err) || ns_adopt_is_locked(a, st, err)) &&
      keep_grip(a, call, &why) != NS_OK) {
    *err = why;
    st = why.status;
  }
  return st;
}

/* The error that people are shown; a verdict without one gets a text of ours. */
static ns_bytes error_of(const ns_verdict *v) {
  if (v->error.n > 0)
    return v->error;
  switch (v->kind) {
  case NS_CRASH:
    return ns_str("its worker died");
  case NS_LOST:
    return ns_str("lost with its worker");
  case NS_FAIL:
    return ns_str("failed, without an error");
  default:
    return ns_str("given up, without a reason");
  }
}

/* Does the row tell how often it has failed? */
static bool counts(const ns_adopted *a) {
  return ns_adopt_has(a, NS_PART_ATTEMPTS) ||
         (ns_adopt_has(a, NS_PART_ATTEMPTS_LEFT) && a->map.max_attempts > 0);
}

static bool may_have_failed(const ns_adopted *a, const ns_grip *grip) {
  return grip == NULL || !counts(a) || grip->attempts > 0;
}

/* 0: not known. */
static int64_t attempt_of(const ns_adopted *a, const ns_grip *grip) {
  return grip != NULL && counts(a) ? grip->attempts + 1 : 0;
}

/* Writes or deletes the row's error, as the verdict says. */
static ns_status write_error(ns_adopted *a, ns_seat *seat, const ns_verdict *v,
                             const ns_grip *grip, ns_err *err) {
  ns_sql sql = statement_of(v->kind);
  ns_blame b = {.id = v->id, .holder = grip != NULL ? grip->holder : a->db->holder,
                .attempt = attempt_of(a, grip), .error = error_of(v)};
  if (sql == NS_SQL_ADOPT_FAIL || sql == NS_SQL_ADOPT_DISCARD)
    return ns_adopt_blame(a, seat, &b, err);
  return sql == NS_SQL_ADOPT_ACK && may_have_failed(a, grip)
             ? ns_adopt_absolve(a, seat, v->id, err)
             : NS_OK;
}

/* When a row may be claimed again that comes back now, as exactly as its column says. */
static int64_t next_of(const ns_adopted *a, ns_value delay) {
  const ns_field *f = a->parts[NS_PART_RETRY_AFTER];
  int64_t at = ns_now(a->db);
  int64_t unit;
  if (f == NULL || delay.type != NS_INT)
    return at;
  unit = ns_adopt_unit(f);
  return (at + delay.i + (delay.i > 0 ? unit - 1 : 0)) / unit * unit;
}

/* For logs: the grip goes with the verdict. */
static void tell_claim(const ns_adopted *a, ns_verdict *v, const ns_grip *grip,
                       ns_value delay) {
  if (grip != NULL)
    v->row = (ns_row_claim){.holder = grip->holder, .since = grip->since,
                            .failures = attempt_of(a, grip),
                            .next = next_of(a, delay)};
}

/* It was told to come back later by what all rows ask of: none is claimed before. Known
** to all no later than the row is seen to be open. */
static ns_status slow_down(ns_adopted *a, const ns_verdict *v, ns_err *err) {
  bool asked = v->kind == NS_AGAIN && v->go_on == 2 && v->delay > 0;
  return asked ? ns_adopt_hold(a, v->delay, err) : NS_OK;
}

/* Runs one; '*changed': it was ours. */
static ns_status settle_one(ns_adopted *a, ns_seat *seat, ns_verdict *v,
                            const ns_grip *grip, bool *changed, ns_err *err) {
  char claimant[NS_CLAIMANT];
  int64_t holder = grip != NULL ? grip->holder : a->db->holder;
  ns_call call = {.row = v->id, .delay = delay_of(v, grip),
                  .token = ns_adopt_claimant(claimant, holder, v->run)};
  ns_status st = NS_OK;
  tell_claim(a, v, grip, call.delay);
  *changed = false;
  if (seat != NULL) /* before what counts: if this fails, all is tried again */
    st = write_error(a, seat, v, grip, err);
  if (st == NS_OK)
    st = ns_adopt_end(a, seat, statement_of(v->kind), &call,
                      a->db->is_host ? HOST_FOR : EMBEDDED_FOR, changed, err);
  if (st == NS_OK && seat == NULL && *changed)
    st = write_error(a, NULL, v, grip, err);
  if (st == NS_OK && grip != NULL && grip->shown && !ns_adopt_by_grip(a))
    st = ns_adopt_unshow(a, v->id, call.token, err);
  return st == NS_OK && (*changed || seat != NULL) ? slow_down(a, v, err) : st;
}

static bool ends_dead(const ns_verdict *v, const ns_grip *grip) {
  ns_sql sql = statement_of(v->kind);
  return sql == NS_SQL_ADOPT_DISCARD ||
         (sql == NS_SQL_ADOPT_FAIL && grip != NULL && grip->last);
}

/* ---------------------------------------------------------- on the handle */

typedef struct work {
  ns_adopted *a;
  ns_verdict *items;
  size_t n;
} work;

static ns_status settle_rows(ns_db *db, ns_tx *tx, ns_err *err) {
  work *w = tx->arg;
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < w->n; i++) {
    ns_verdict *v = &w->items[i];
    ns_grip *grip = ns_adopt_grip(w->a, v->id, v->run);
    bool changed;
    if (v->status == NS_EINVALID)
      continue;
    st = settle_one(w->a, NULL, v, grip, &changed, err);
    v->dead = changed && ends_dead(v, grip);
    if (is_refused(st, err) || ns_adopt_is_locked(w->a, st, err)) {
      put_off(w->a, v, st, err); /* that statement alone */
      st = NS_OK;
      continue;
    }
    v->status = changed || (tx->replay && grip != NULL &&
                            grip->holder == db->holder)
                    ? NS_OK
                    : NS_ESTALE;
  }
  return st;
}

static ns_status settle_written(ns_adopted *a, ns_verdict *verdicts, size_t n,
                                ns_err *err) {
  work w = {a, verdicts, n};
  ns_tx tx = {.run = settle_rows, .arg = &w};
  ns_status st = ns_db_transact(a->db, &tx, err);
  if (st != NS_OK || ns_in_transaction(a->db)) /* … which may be rolled back */
    return st;
  for (size_t i = 0; i < n; i++) {
    ns_grip *grip = ns_adopt_grip(a, verdicts[i].id, verdicts[i].run);
    if (grip != NULL &&
        (verdicts[i].status == NS_OK || verdicts[i].status == NS_ESTALE))
      ns_adopt_let_go(a, grip);
  }
  return st;
}

/* ------------------------------------------------------------- on a seat */

/* A row that only its lock shows to be taken is given back by a rollback. */
static bool only_locked(const ns_adopted *a, const ns_verdict *v) {
  return v->kind == NS_RELEASE && !a->map.has_state[NS_ROW_PROCESSING];
}

static ns_status settle_seat(ns_adopted *a, ns_seat *seat, ns_verdict *v,
                             ns_grip *grip, ns_err *err) {
  bool changed; /* or left as it was: it is ours as long as the seat is there */
  bool cut = false;
  ns_status st = NS_OK;
  if (!only_locked(a, v)) {
    st = settle_one(a, seat, v, grip, &changed, err);
    if (st == NS_OK)
      cut = (st = ns_link_text(seat->link, "COMMIT", err)) != NS_OK;
  }
  if (st != NS_OK && st != NS_EGONE && !cut) /* nothing is written: it may be tried again */
    return st;
  v->dead = st == NS_OK && ends_dead(v, grip);
  v->status = st == NS_OK ? NS_OK : cut ? NS_EGONE : NS_ESTALE;
  ns_adopt_leave_seat(seat);
  if (grip != NULL)
    ns_adopt_let_go(a, grip);
  return st;
}

/* A lost seat has lost its claim, and what one refuses may be tried again; the other verdicts are
** settled all the same. */
static ns_status settle_seats(ns_adopted *a, ns_verdict *verdicts, size_t n,
                              ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; i < n && st != NS_ENOMEM; i++) {
    ns_verdict *v = &verdicts[i];
    ns_seat *seat = ns_adopt_seat_of(a, v->id, v->run);
    ns_status one = NS_OK;
    if (v->status == NS_EINVALID)
      continue;
    v->status = NS_ESTALE;
    if (seat != NULL)
      one = settle_seat(a, seat, v, ns_adopt_grip(a, v->id, v->run), err);
    if (one != NS_OK && one != NS_EGONE && v->status != NS_EGONE)
      put_off(a, v, one, err);
    if (one == NS_ENOMEM)
      st = one;
  }
  return st;
}

/* ------------------------------------------------------------ what follows */

/* Does the table keep the time before which a row is not to be claimed? */
static bool keeps_time(const ns_adopted *a) {
  return ns_adopt_has(a, NS_PART_RETRY_AFTER);
}

static bool comes_back(const ns_verdict *v) {
  ns_sql sql = statement_of(v->kind);
  return sql != NS_SQL_ADOPT_ACK && sql != NS_SQL_ADOPT_DISCARD;
}

int64_t ns_adopted_patience(const ns_adopted *a, const ns_verdict *v) {
  const ns_grip *grip = ns_adopt_grip((ns_adopted *)(uintptr_t)a, v->id, v->run);
  ns_value delay = delay_of(v, grip);
  int64_t most = a->map.overdue > 0 ? a->map.overdue / 2 : INT64_MAX;
  if (a->map.strategy == NS_TRANSACTION && most > SEATED_FOR)
    most = SEATED_FOR;
  if (keeps_time(a) || grip == NULL || grip->last ||
      delay.type != NS_INT || (v->kind == NS_AGAIN && v->go_on == 2))
    return 0;
  return delay.i < most ? delay.i : most;
}

bool ns_adopted_returns(const ns_adopted *a, const ns_verdict *v) {
  const ns_grip *grip = ns_adopt_grip((ns_adopted *)(uintptr_t)a, v->id, v->run);
  return statement_of(v->kind) == NS_SQL_ADOPT_FAIL && unable(a, v) == NULL &&
         grip != NULL && !grip->last;
}

static void stir(ns_adopted *a, const ns_verdict *verdicts, size_t n) {
  bool any = a->capped;
  for (size_t i = 0; i < n; i++)
    any = any || (verdicts[i].status == NS_OK && comes_back(&verdicts[i]));
  if (any)
    ns_adopt_stir(a);
}

/* --------------------------------------------------------------- verdicts */

static void tell(ns_adopted *a, const ns_verdict *v, ns_err *err) {
  a->db->count.settled += v->status == NS_OK;
  a->db->count.stale += v->status == NS_ESTALE;
  if (v->status == NS_ESTALE)
    stale(a, v->id, err);
  else if (v->trouble)
    ns_fail(err, NS_EBUSY, "%s", a->db->trouble.message);
  else if (v->status == NS_EGONE)
    ns_fail(err, NS_EGONE,
            "the connection that held row %" PRId64 " of '%s' was lost at its commit: "
            "the verdict may have been written",
            v->id, a->map.table.p);
  else if (v->status == NS_EBUSY)
    ns_fail(err, NS_EBUSY, "row %" PRId64 " of '%s' is locked by somebody else",
            v->id, a->map.table.p);
  else if (v->status == NS_EINVALID && unable(a, v) != NULL)
    ns_fail(err, NS_EINVALID, "a row of '%s' %s", a->map.table.p, unable(a, v));
}

ns_status ns_adopted_settle(ns_adopted *a, ns_verdict *verdicts, size_t n,
                            ns_err *err) {
  ns_status st;
  ns_err_clear(err);
  if (a->map.strategy == NS_TRANSACTION && ns_in_transaction(a->db))
    return ns_fail(err, NS_ESTATE,
                   "a row of '%s' is claimed by a transaction of its own, which "
                   "this one cannot be part of",
                   a->map.table.p);
  ns_adopt_own(a);
  for (size_t i = 0; i < n; i++) {
    verdicts[i].status = unable(a, &verdicts[i]) != NULL ? NS_EINVALID : NS_OK;
    verdicts[i].dead = verdicts[i].trouble = false;
    verdicts[i].row = (ns_row_claim){0};
  }
  st = a->map.strategy == NS_TRANSACTION ? settle_seats(a, verdicts, n, err)
                                         : settle_written(a, verdicts, n, err);
  if (st == NS_OK && !ns_in_transaction(a->db))
    stir(a, verdicts, n);
  for (size_t i = 0; st == NS_OK && i < n; i++)
    tell(a, &verdicts[i], err);
  return st;
}

/* -------------------------------------------------------------- touching */

static ns_status touch_seat(ns_adopted *a, int64_t id, int64_t run, ns_err *err) {
  ns_seat *seat = ns_adopt_seat_of(a, id, run);
  if (seat == NULL)
    return stale(a, id, err);
  return ns_link_text(seat->link, "DO 1", NULL) == NS_OK ? NS_OK
                                                         : stale(a, id, err);
}

/* The times of the row are set; when that has changed nothing it is read. */
static ns_status touch_row(ns_db *db, ns_tx *tx, ns_err *err) {
  const ns_verdict *v = ((work *)tx->arg)->items;
  ns_adopted *a = ((work *)tx->arg)->a;
  ns_grip *grip = ns_adopt_grip(a, v->id, v->run);
  char claimant[NS_CLAIMANT];
  const ns_value *row = NULL;
  ns_stmt *s;
  ns_call call = {.row = v->id};
  ns_status st;
  call.token = ns_adopt_claimant(claimant, grip != NULL ? grip->holder : db->holder,
                                 v->run);
  st = ns_adopt_change(a, NULL, NS_SQL_ADOPT_TOUCH, &call,
                       db->is_host ? HOST_FOR : EMBEDDED_FOR, &s, err);
  if (st != NS_OK || ns_stmt_affected(s) > 0)
    return st;
  if ((st = ns_adopt_run(a, NULL, NS_SQL_ADOPT_HOLDS, &call, &s, err)) == NS_OK)
    st = ns_stmt_fetch(db->link, s, &row, err);
  return st == NS_OK && row == NULL ? stale(a, v->id, err) : st;
}

ns_status ns_adopted_touch(ns_adopted *a, int64_t id, int64_t run, ns_err *err) {
  ns_verdict v = {.id = id, .run = run};
  work w = {a, &v, 1};
  ns_tx tx = {.run = touch_row, .arg = &w};
  ns_err_clear(err);
  ns_adopt_own(a);
  return a->map.strategy == NS_TRANSACTION ? touch_seat(a, id, run, err)
                                           : ns_db_transact(a->db, &tx, err);
}
