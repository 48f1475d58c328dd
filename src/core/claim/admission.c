/*
** Admission locks: under contention claimers of a queue go in a few at a time.
**
** An admission lock is a named lock, kept until the claim is committed. Rows that others have
** locked are skipped one by one, and each of them costs the server a lock that is asked for
** and taken back, under a mutex that all share. When many claim, each skips the rows of all
** others, so the work grows with its square. Contention is not counted but met: by a look at
** rows that is cut when it takes too long, and then by waits for these locks. A claimer that
** finds them free for some claims goes on without asking.
**
** Invariant: claims are as right without these locks, so no wait for one is unbounded. A
** claimer that finds the same session in a lock after a whole step of waiting goes on
** without, and asks for other locks from then on. A lost connection frees its lock. No
** assert for the waits: the server ends them.
*/
#include "claim/inner.h"

#include "clock.h"
#include "err.h"

#define LOCKS 4
#define CONTENDED 3                  /* claims, from the last that has met others */
#define FREE_WITHIN INT64_C(5000)    /* µs: a lock that was had so soon was free */
#define WAIT_STEP NS_SECOND          /* of waiting, then its owner is looked up */
#define WAIT_STEPS 10                /* ... at most */
#define WAIT_SHARE 8                 /* ... each 1/8 of what a reply may take at most */
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

/* What a step of waiting has shown. */
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
