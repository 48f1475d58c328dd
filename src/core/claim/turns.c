/*
** Turns: of lower lanes beside upper ones (aging), and of claimers in a crowd (admission).
**
** Aging. While a queue has more jobs than are claimed, rows of high lanes would keep lower
** lanes waiting for ever. So every 16th row is the oldest of a lower lane. One turn is for the
** lowest lane that has any; the next is for all of them in rotation, from the lowest up. No row
** is moved.
**
** Invariant: a turn of aging reads one row per lane, by key, and nothing of the lanes that are
** served anyway. So neither their long backlog nor their deleted rows cost anything. Turns are
** counted in rows and claims, so their cost stays a fixed small part of the claims. One is also
** due every five seconds, for claimers that take a row now and then. (It is about cost: no
** assert.)
**
** Admission locks. Under contention claimers of a queue go in a few at a time.
**
** An admission lock is a named lock, kept until the claim is committed. Rows that other
** sessions have locked are skipped one by one. Each costs the server a lock that is asked for
** and taken back, under a mutex that all sessions share. When many claim, each skips the rows
** of all other claims, so the work grows with its square. Contention is not counted but met.
** First a look at rows is cut because it takes too long; then waits for these locks show it. A
** claimer that finds them free for some claims goes on without asking.
**
** Invariant: claims are as right without these locks, so no wait for one is unbounded. A
** claimer that finds the same session in a lock after a whole step of waiting goes on without
** it. It asks for other locks from then on. A lost connection frees its lock. No assert for the
** waits: the server ends them.
*/
#include "claim/claim.h"

#include "base.h"
#include "db/db.h"
#include "handle.h"

/* --------------------------------------------------------------------- aging */

#define AGING_EVERY 16               /* rows in true order for each aged one */
#define AGING_CLAIMS 8               /* ... and at least so many claims, and one */
                                     /* more per lane that was looked at */
#define AGING_LATEST (5 * NS_SECOND) /* a turn is due after this, if few rows pass */
#define RANKS 256

typedef struct lane_head {
  int64_t rank, ready_at;
} lane_head;

typedef struct lane_heads {
  lane_head items[RANKS];
  size_t n;
} lane_heads;

bool ns_claim_aging_due(const ns_db *db, const ns_claim_queue *s) {
  if (db->claim.strict || s->claims == 0)
    return false;
  return (s->passed >= AGING_EVERY && s->claims >= AGING_CLAIMS + s->below) ||
         ns_mono_us() >= s->turn_at;
}

void ns_claim_aging_count(ns_claim_queue *s, size_t rows, int64_t rank) {
  if (rows == 0)
    return;
  if (s->claims++ == 0)
    s->turn_at = ns_mono_us() + AGING_LATEST;
  s->passed += (int64_t)rows;
  s->rank = rank;
}

void ns_claim_aging_reset(ns_claim_queue *s) {
  s->passed = 0;
  s->claims = 0;
}

/* ------------------------------------------------------------------ asking */

/* The lanes below the served one; '*first' is the uppermost. */
static size_t lower_lanes(const ns_db *db, const ns_claim_queue *s, size_t *first) {
  size_t n = ns_claim_lanes_of(&db->claim.lanes, s->queue_id, first);
  while (n > 0 && db->claim.lanes.items[*first].rank <= s->rank) {
    ++*first;
    n--;
  }
  return n;
}

/* The oldest row of each lower lane that has any. */
static ns_status read_heads(ns_db *db, const ns_claim_queue *s, lane_heads *out, ns_err *err) {
  ns_value params[3 * RANKS];
  const ns_value *row;
  ns_stmt *stmt;
  size_t first;
  size_t lower = lower_lanes(db, s, &first);
  size_t n = 0;
  ns_status st;
  out->n = 0;
  for (size_t i = first; i < first + lower; i++) {
    const ns_lane *lane = &db->claim.lanes.items[i];
    if (db->claim.lanes.some_names && lane->unknown)
      continue; /* it has its turn when it is known where a row is */
    params[3 * n] = ns_vint(s->queue_id);
    params[3 * n + 1] = ns_vint(lane->rank);
    params[3 * n++ + 2] = ns_vint(lane->floor);
  }
  if (n == 0)
    return NS_OK;
  st = ns_claim_union_run(db, NS_SQL_CLAIM_HEAD, n, params, &stmt, err);
  while (st == NS_OK && (st = ns_stmt_fetch(db->link, stmt, &row, err)) == NS_OK && row != NULL)
    out->items[out->n++] = (lane_head){row[0].i, row[1].i};
  return st;
}

/* ---------------------------------------------------------------- choosing */

/* The head of the lowest lane above 'bound'; NULL: none. */
static const lane_head *lowest_head(const lane_heads *h, int64_t bound) {
  const lane_head *best = NULL;
  for (size_t i = 0; i < h->n; i++)
    if (h->items[i].rank < bound && (best == NULL || h->items[i].rank > best->rank))
      best = &h->items[i];
  return best;
}

/* Every other turn is the lowest lane's; the lanes between take the rest in rotation from there
** up. */
static const lane_head *choose_head(ns_claim_queue *s, const lane_heads *h) {
  const lane_head *bottom = lowest_head(h, RANKS);
  const lane_head *next;
  if (bottom == NULL || s->turns++ % 2 == 0)
    return bottom;
  next = lowest_head(h, s->cursor);
  if (next == NULL)
    next = lowest_head(h, bottom->rank);
  if (next == NULL)
    next = bottom;
  s->cursor = next->rank;
  return next;
}

/* How far it may be claimed from. */
static int64_t head_end(const ns_db *db, const ns_claim_queue *s, const lane_head *chosen) {
  int64_t end = ns_claim_lanes_find(&db->claim.lanes, s->queue_id, chosen->rank)->end;
  return end > chosen->ready_at ? end : chosen->ready_at + 1;
}

ns_status ns_claim_aging_choose(ns_db *db, ns_claim_queue *s, size_t want, ns_lane *lane, size_t *n,
                                ns_err *err) {
  size_t owed = (size_t)(s->passed / AGING_EVERY);
  lane_heads h = {.n = 0};
  const lane_head *chosen;
  ns_status st = read_heads(db, s, &h, err);
  *n = 0;
  if (st != NS_OK)
    return st;
  s->passed = 0;
  s->claims = 0;
  s->below = (int64_t)h.n;
  if ((chosen = choose_head(s, &h)) == NULL)
    return NS_OK;
  if (owed > (want + 1) / 2)
    owed = (want + 1) / 2;
  *n = owed > 0 ? owed : 1;
  *lane = (ns_lane){.queue_id = s->queue_id,
                    .rank = chosen->rank,
                    .floor = chosen->ready_at,
                    .end = head_end(db, s, chosen)};
  return NS_OK;
}

/* ----------------------------------------------------------- admission locks */

#define LOCKS 4
#define CONTENDED 3                  /* claims, from the last that has met other claims */
#define FREE_WITHIN INT64_C(5000)    /* µs: a lock that was had so soon was free */
#define WAIT_STEP NS_SECOND          /* of waiting, then its owner is looked up */
#define WAIT_STEPS 10                /* ... at most */
#define WAIT_SHARE 8                 /* ... each 1/8 of the longest wait for a reply */
#define AVOIDED_FOR (60 * NS_SECOND) /* from when an owner was seen to stay in a lock */
#define ER_TOO_LONG 1969             /* the server's: max_statement_time exceeded */

static bool is_served(const ns_db *db) {
  return !db->is_host && !db->no_locks && db->holder != 0;
}

bool ns_claim_admission_watches(const ns_db *db) {
  return is_served(db) && db->claim.admission.contended == 0 && db->claim.admission.number == 0;
}

ns_status ns_claim_admission_met(ns_db *db, ns_status st, ns_err *err) {
  if (st != NS_EBUSY || err->sqlerr != ER_TOO_LONG || !ns_claim_admission_watches(db))
    return st;
  db->claim.admission.contended = CONTENDED;
  st = ns_fail(err, NS_EBUSY, "many others claim at this moment");
  err->sqlerr = NS_RUN_AGAIN;
  return st;
}

/* A lock that is not stuck, counted from 1; 0: all are. */
static int64_t choose_lock(ns_claim_admission *a, int64_t now) {
  int64_t first = (int64_t)(ns_random() % LOCKS);
  if (now >= a->stuck_until)
    a->stuck = 0;
  for (int64_t i = 0; i < LOCKS; i++) {
    int64_t lock = (first + i) % LOCKS;
    if ((a->stuck & 1U << lock) == 0)
      return lock + 1;
  }
  return 0;
}

static int64_t wait_step_ms(const ns_db *db) {
  int64_t most = ns_link_read_timeout(db->link) / WAIT_SHARE;
  return (most > 0 && most < WAIT_STEP ? most : WAIT_STEP) / 1000;
}

/* The outcome of a step of waiting. */
typedef struct lock_wait {
  bool in;      /* the lock is ours */
  int64_t who;  /* else the session that has it; 0: none by now */
  int64_t took; /* µs */
} lock_wait;

static ns_status wait_step(ns_db *db, lock_wait *out, ns_err *err) {
  const ns_claim_admission *a = &db->claim.admission;
  const ns_value *row = NULL;
  ns_status st =
      ns_db_run(db, NS_SQL_CLAIM_ADMISSION_ENTER,
                (ns_value[]){ns_vint(a->place), ns_vint(a->number), ns_vint(wait_step_ms(db)),
                             ns_vint(a->place), ns_vint(a->number)},
                err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_CLAIM_ADMISSION_ENTER, &row, err);
  *out = (lock_wait){0};
  if (st == NS_OK && row != NULL)
    *out = (lock_wait){ns_int_or(&row[0], 0) == 1, ns_int_or(&row[1], 0), row[2].i};
  return st;
}

/* Waits for the lock that was chosen until it is ours, or goes on without. */
static ns_status wait_for_lock(ns_db *db, ns_err *err) {
  ns_claim_admission *a = &db->claim.admission;
  int64_t before = 0;
  for (int i = 0; i < WAIT_STEPS && !ns_db_is_interrupted(db); i++) {
    lock_wait s;
    ns_status st = wait_step(db, &s, err);
    if (s.took > FREE_WITHIN)
      a->contended = CONTENDED + 1;
    if (st != NS_OK || s.in)
      return st;
    if (s.who != 0 && s.who == before) {
      a->stuck |= 1U << (a->number - 1);
      a->stuck_until = ns_mono_us() + AVOIDED_FOR;
      break;
    }
    before = s.who;
  }
  a->number = 0;
  return NS_OK;
}

ns_status ns_claim_admission_enter(ns_db *db, int64_t place, ns_err *err) {
  ns_claim_admission *a = &db->claim.admission;
  ns_status st = NS_OK;
  if (a->contended == 0 || a->number != 0 || !is_served(db))
    return NS_OK;
  a->place = place;
  a->leaving = false;
  if ((a->number = choose_lock(a, ns_mono_us())) != 0)
    st = wait_for_lock(db, err);
  ns_assert(a->number >= 0 && a->number <= LOCKS);
  a->contended--; /* this one */
  return st;
}

void ns_claim_admission_leave_ahead(ns_db *db) {
  ns_claim_admission *a = &db->claim.admission;
  ns_err none;
  a->leaving = a->number != 0 && ns_db_send(db, NS_SQL_CLAIM_ADMISSION_LEAVE,
                                            (ns_column[]){{NS_INT, &a->place, NULL, NULL},
                                                          {NS_INT, &a->number, NULL, NULL}},
                                            &none) == NS_OK;
}

void ns_claim_admission_leave(ns_db *db, bool whole) {
  ns_claim_admission *a = &db->claim.admission;
  ns_err none;
  if (a->number != 0 && !(a->leaving && whole) && db->link != NULL && !ns_link_dead(db->link))
    ns_db_run(db, NS_SQL_CLAIM_ADMISSION_LEAVE, (ns_value[]){ns_vint(a->place), ns_vint(a->number)},
              &none);
  a->number = 0;
}
