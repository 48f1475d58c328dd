/*
** Gates: see claim/gate.h.
**
** Rows that others hold are skipped one by one, and each of them costs the server a lock
** that is asked for and taken back, under a mutex that all share. In a crowd everybody
** skips the rows of everybody, so the work grows with its square. Who is in a crowd is not
** counted but felt: by a look at rows that is cut when it takes too long, and then by
** others at the gates. Who finds gates free for some claims goes in without asking.
**
** Invariant: whoever does not come out is not waited for. Who finds the same session in a
** gate after a whole step of waiting goes in without, and asks for others from then on. A
** lost connection frees its gate.
*/
#include "claim/gate.h"

#include "db/hooks.h"
#include "handle.h"
#include "ns_time.h"

#define GATES 4
#define WARY 3                       /* claims, from the last that has met others */
#define FREE INT64_C(5000)           /* µs: a gate that was had so soon was free */
#define STEP NS_SECOND               /* of waiting, then it is seen who is in */
#define STEPS 10                     /* ... at most */
#define STEP_SHARE 8                 /* ... each 1/8 of what a reply may take at most */
#define AVOIDED (60 * NS_SECOND)     /* from when somebody was seen to stay in a gate */
#define TOO_LONG 1969                /* the server's: max_statement_time exceeded */

static bool serves(const ns_db *db) {
  return !db->is_host && !db->no_locks && db->holder != 0;
}

bool ns_gate_watches(const ns_db *db) {
  return serves(db) && db->gate.wary == 0 && db->gate.number == 0;
}

ns_status ns_gate_felt(ns_db *db, ns_status st, ns_err *err) {
  if (st != NS_EBUSY || err->sqlerr != TOO_LONG || !ns_gate_watches(db))
    return st;
  db->gate.wary = WARY;
  st = ns_fail(err, NS_EBUSY, "many others claim at this moment");
  err->sqlerr = NS_RUN_AGAIN;
  return st;
}

/* One of those that are not stuck; 0: all are. */
static int64_t any_gate(ns_gate *g, int64_t now) {
  int64_t first = (int64_t)(ns_random() % GATES);
  if (now >= g->stuck_until)
    g->stuck = 0;
  for (int64_t i = 0; i < GATES; i++) {
    int64_t gate = (first + i) % GATES;
    if ((g->stuck & 1U << gate) == 0)
      return gate + 1;
  }
  return 0;
}

static int64_t step_ms(const ns_db *db) {
  int64_t most = ns_link_patience(db->link) / STEP_SHARE;
  return (most > 0 && most < STEP ? most : STEP) / 1000;
}

/* What a step of waiting has shown. */
typedef struct step {
  bool in;      /* the gate is ours */
  int64_t who;  /* else the session that has it; 0: nobody by now */
  int64_t took; /* µs */
} step;

static ns_status stand(ns_db *db, step *out, ns_err *err) {
  const ns_gate *g = &db->gate;
  const ns_value *row = NULL;
  ns_status st = ns_run(db, NS_SQL_GATE_ENTER,
                        (ns_value[]){ns_vint(g->place), ns_vint(g->number),
                                     ns_vint(step_ms(db)), ns_vint(g->place),
                                     ns_vint(g->number)},
                        err);
  if (st == NS_OK)
    st = ns_row(db, NS_SQL_GATE_ENTER, &row, err);
  *out = (step){0};
  if (st == NS_OK && row != NULL)
    *out = (step){ns_int_or(&row[0], 0) == 1, ns_int_or(&row[1], 0), row[2].i};
  return st;
}

/* Stands at the gate that was chosen until we are in, or go in without. */
static ns_status stand_long(ns_db *db, ns_err *err) {
  ns_gate *g = &db->gate;
  int64_t before = 0;
  for (int i = 0; i < STEPS && !ns_interrupted(db); i++) {
    step s;
    ns_status st = stand(db, &s, err);
    if (s.took > FREE)
      g->wary = WARY + 1;
    if (st != NS_OK || s.in)
      return st;
    if (s.who != 0 && s.who == before) {
      g->stuck |= 1U << (g->number - 1);
      g->stuck_until = ns_mono_us() + AVOIDED;
      break;
    }
    before = s.who;
  }
  g->number = 0;
  return NS_OK;
}

ns_status ns_gate_enter(ns_db *db, int64_t place, ns_err *err) {
  ns_gate *g = &db->gate;
  ns_status st = NS_OK;
  if (g->wary == 0 || g->number != 0 || !serves(db))
    return NS_OK;
  g->place = place;
  g->left = false;
  if ((g->number = any_gate(g, ns_mono_us())) != 0)
    st = stand_long(db, err);
  g->wary--; /* this one */
  return st;
}

void ns_gate_leave_ahead(ns_db *db) {
  ns_gate *g = &db->gate;
  ns_err none;
  g->left = g->number != 0 &&
            ns_send(db, NS_SQL_GATE_LEAVE,
                    (ns_column[]){{NS_INT, &g->place, NULL, NULL},
                                  {NS_INT, &g->number, NULL, NULL}},
                    &none) == NS_OK;
}

void ns_gate_leave(ns_db *db, bool whole) {
  ns_gate *g = &db->gate;
  ns_err none;
  if (g->number != 0 && !(g->left && whole) && db->link != NULL &&
      !ns_link_dead(db->link))
    ns_run(db, NS_SQL_GATE_LEAVE,
           (ns_value[]){ns_vint(g->place), ns_vint(g->number)}, &none);
  g->number = 0;
}

static void lost(ns_db *db) {
  db->gate.number = 0;
}

const ns_hooks ns_gate_hooks = {.lost = lost};
