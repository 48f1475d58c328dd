/*
** Rows that come back without a verdict: their holder is dead, or their claim is
** overdue. Either counts as a failed attempt.
**
** Who is dead is what holder/rescue.c says of holders. Here the handles that claim from a
** table look in turns, four times a second all together, whether a holder has died since
** their last look, in one small statement; only then, and every ten seconds, for what
** slipped through, the claimed rows themselves are read. So a death costs each look one
** read of the rows that are being worked on, a quiet time nothing, and a crowd no more
** than a few. A handle that suspects a holder looks on every turn until it knows.
**
** Invariant: a row is given back only as it was seen, claimant and all: one that
** was settled or touched by its owner meanwhile stays as it is. With
** NS_TRANSACTION a row that is marked as taken and not locked has no living claimant.
*/
#include <stdlib.h>
#include <string.h>

#include "adopt/table.h"
#include "claim/claim.h"
#include "clock.h"
#include "db/db.h"

#define LOOK_EVERY (NS_SECOND / 4)
#define LOOK_LATER (NS_SECOND / 2) /* of a lock, and after another handle's turn */
#define SWEEP_EVERY (10 * NS_SECOND)
#define FREE_FOR 20000 /* µs, as of TAKE_FOR */
#define SEEN_MAX 256 /* bytes of a claimed_by that are compared */
#define RESETS_MAX 10000 /* that wait to be told of */
#define DIED "its holder died" /* why a row came back */
#define OVERDUE "overdue: it was claimed too long"

/* ------------------------------------------------------------- rows to free */

typedef struct lost_row {
  int64_t id;
  int64_t since;           /* as of ns_reset */
  bool freed;
  char claimant[SEEN_MAX]; /* what its claimed_by says, ours or not */
  size_t n;                   /* bytes of it; SIZE_MAX: NULL */
} lost_row;

typedef struct lost_rows {
  ns_adopted *a;
  const char *why;         /* for people; static */
  lost_row *items;
  size_t n, cap;
  int64_t freed;
} lost_rows;

/* A claimant with a longer text was not written by us, and is left to its writer. */
static ns_status list_lost(lost_rows *l, ns_sql sql, ns_err *err) {
  const ns_value *row;
  ns_call none = {0};
  ns_stmt *s;
  ns_status st = ns_adopt_run(l->a, NULL, sql, &none, &s, err);
  while (st == NS_OK &&
         (st = ns_stmt_fetch(l->a->db->link, s, &row, err)) == NS_OK &&
         row != NULL) {
    lost_row *r;
    if (row[1].type == NS_TEXT && row[1].s.n > SEEN_MAX)
      continue;
    if (!ns_grow(&l->items, &l->cap, l->n + 1, sizeof *l->items))
      return ns_fail(err, NS_ENOMEM, "out of memory");
    r = &l->items[l->n++];
    *r = (lost_row){.id = row[0].i, .n = SIZE_MAX, .since = ns_int_or(&row[2], 0)};
    if (row[1].type == NS_TEXT) {
      memcpy(r->claimant, row[1].s.p, row[1].s.n);
      r->n = row[1].s.n;
    }
  }
  return st;
}

/* For a host's log; one that there is no memory for is left out. */
static void add_reset(ns_adopted *a, const char *why, const lost_row *lost) {
  ns_resets *all = &a->resets;
  ns_reset *r;
  size_t n = lost->n != SIZE_MAX ? lost->n : 0;
  if (all->told)
    all->n = 0;
  all->told = false;
  if (!a->db->is_host || all->n == RESETS_MAX ||
      !ns_grow(&all->items, &all->cap, all->n + 1, sizeof *all->items))
    return;
  r = &all->items[all->n++];
  *r = (ns_reset){.id = lost->id, .why = why, .since = lost->since};
  memcpy(r->claimant, lost->claimant, n < sizeof r->claimant ? n : sizeof r->claimant - 1);
}

/* The holder in a claimant of ours; 0: it is none of ours. */
static int64_t holder_of(const lost_row *r) {
  char text[16];
  char *end;
  size_t n;
  if (r->n == SIZE_MAX || r->n < 4 || memcmp(r->claimant, "ns:", 3) != 0)
    return 0;
  n = r->n - 3 < sizeof text - 1 ? r->n - 3 : sizeof text - 1;
  memcpy(text, r->claimant + 3, n);
  text[n] = '\0';
  return strtoll(text, &end, 36); /* up to the colon */
}

/* It is also known why it came back. */
static ns_status blame(ns_adopted *a, ns_seat *seat, const char *why,
                       const lost_row *r, ns_err *err) {
  ns_blame b = {.id = r->id, .holder = holder_of(r), .error = ns_str(why)};
  return ns_adopt_blame(a, seat, &b, err);
}

static ns_status free_rows(ns_db *db, ns_tx *tx, ns_err *err) {
  lost_rows *l = tx->arg;
  ns_status st = NS_OK;
  (void)db;
  l->freed = 0;
  for (size_t i = 0; st == NS_OK && i < l->n; i++) {
    lost_row *r = &l->items[i];
    ns_call call = {.row = r->id, .token = NS_NONE};
    if (r->n != SIZE_MAX)
      call.token = (ns_bytes){r->claimant, r->n};
    st = ns_adopt_end(l->a, NULL, NS_SQL_ADOPT_FREE, &call, 0, &r->freed, err);
    if (ns_adopt_is_locked(l->a, st, err)) /* the next look sees it again */
      st = NS_OK;
    if (st == NS_OK && r->freed)
      st = blame(l->a, NULL, l->why, r, err);
    l->freed += r->freed;
  }
  return st;
}

/* Frees what a statement finds: '*found' rows. */
static ns_status free_found(ns_adopted *a, ns_sql sql, size_t *found, int64_t *freed,
                            ns_err *err) {
  lost_rows l = {.a = a, .why = sql == NS_SQL_ADOPT_OVERDUE ? OVERDUE : DIED};
  ns_tx tx = {.run = free_rows, .arg = &l};
  ns_status st = ns_db_ready(a->db, err);
  if (st == NS_OK)
    st = list_lost(&l, sql, err);
  if (st == NS_OK && l.n > 0)
    st = ns_db_transact(a->db, &tx, err);
  for (size_t i = 0; st == NS_OK && i < l.n; i++)
    if (l.items[i].freed)
      add_reset(a, l.why, &l.items[i]);
  if (st == NS_OK)
    *freed += l.freed;
  *found = l.n;
  free(l.items);
  return st;
}

/* ----------------------------------------------------------------- turns */

/* Is it for us to look now? Where named locks do not serve every handle does. */
static ns_status take_turn(ns_adopted *a, bool *ours, ns_err *err) {
  const ns_value *row = NULL;
  ns_value table = ns_vtext(a->map.table);
  ns_status st;
  *ours = true;
  if (a->db->no_locks)
    return NS_OK;
  st = ns_db_run(a->db, NS_SQL_ADOPT_TURN, (ns_value[]){table, table, ns_vint(a->turn)}, err);
  if (st == NS_OK)
    st = ns_db_row(a->db, NS_SQL_ADOPT_TURN, &row, err);
  *ours = st == NS_OK && row != NULL && ns_int_or(&row[1], 0) == 1;
  if (*ours)
    a->turn = ns_int_or(&row[0], 0);
  return st;
}

/* ---------------------------------------------------------------- deaths */

/* When the last holder died, and how many may have. */
static ns_status ask_deaths(ns_db *db, int64_t *last, int64_t *suspects,
                            ns_err *err) {
  const ns_value *row = NULL;
  ns_value locks = ns_vint(!db->no_locks);
  ns_status st = ns_db_run(db, NS_SQL_ADOPT_DEATHS, &locks, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_ADOPT_DEATHS, &row, err);
  *last = st == NS_OK && row != NULL ? ns_int_or(&row[0], 0) : 0;
  *suspects = st == NS_OK && row != NULL ? ns_int_or(&row[1], 0) : 0;
  return st;
}

/* '*died': a holder has, since the last time. A holder that may be dead is looked at now;
** a host does that by itself. */
static ns_status look_at_holders(ns_adopted *a, bool *died, ns_err *err) {
  int64_t last;
  int64_t suspects = 0;
  ns_status st = ask_deaths(a->db, &last, &suspects, err);
  if (st == NS_OK && suspects > 0 && !a->db->is_host) {
    a->db->rescue.look_at = 0;
    ns_holder_look_around(a->db);
    st = ask_deaths(a->db, &last, &suspects, err);
  }
  *died = st == NS_OK && last > a->deaths;
  if (*died)
    a->deaths = last;
  a->suspects = suspects;
  return st;
}

/* A claim ends a twentieth late at most, in a look that reads what is claimed. */
static int64_t overdue_pace(const ns_adopted *a) {
  int64_t us = a->map.overdue / 20;
  return us < LOOK_EVERY ? LOOK_EVERY : us > SWEEP_EVERY ? SWEEP_EVERY : us;
}

static ns_status look_at_rows(ns_adopted *a, bool all, int64_t *freed,
                              ns_err *err) {
  ns_status st = NS_OK;
  size_t found;
  if (all && (st = free_found(a, NS_SQL_ADOPT_ORPHANS, &found, freed, err)) == NS_OK &&
      found == 0 && (st = ns_adopt_tidy(a, err)) == NS_OK)
    st = ns_adopt_tidy_errors(a, err);
  if (st == NS_OK && a->map.overdue > 0 && (all || ns_mono_us() >= a->overdue_at)) {
    a->overdue_at = ns_mono_us() + overdue_pace(a);
    st = free_found(a, NS_SQL_ADOPT_OVERDUE, &found, freed, err);
  }
  return st;
}

/* -------------------------------------------------------------- abandoned */

/* Rows that are marked as taken, and not locked: one after the other, each by its
** key, while it is locked by us. */
static ns_status free_abandoned(ns_adopted *a, ns_seat *seat, int64_t *freed,
                                ns_err *err) {
  lost_row rows[100] = {{0}};
  size_t n = 0;
  const ns_value *row;
  ns_call call = {0};
  ns_stmt *s;
  ns_status st = ns_link_text(seat->link, "START TRANSACTION", err);
  if (st == NS_OK)
    st = ns_adopt_run(a, seat, NS_SQL_ADOPT_ABANDONED, &call, &s, err);
  while (st == NS_OK && (st = ns_stmt_fetch(seat->link, s, &row, err)) == NS_OK &&
         row != NULL && n < 100) {
    rows[n] = (lost_row){.id = row[0].i, .n = SIZE_MAX, .since = ns_int_or(&row[1], 0)};
    n++;
  }
  for (size_t i = 0; st == NS_OK && i < n; i++) {
    call.row = rows[i].id;
    st = ns_adopt_change(a, seat, NS_SQL_ADOPT_FREE, &call, FREE_FOR, &s, err);
    rows[i].freed = st == NS_OK && ns_stmt_affected(s) > 0;
    if (rows[i].freed)
      st = blame(a, seat, DIED, &rows[i], err);
    *freed += rows[i].freed;
  }
  if (st == NS_OK)
    st = ns_link_text(seat->link, "COMMIT", err);
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (rows[i].freed)
      add_reset(a, DIED, &rows[i]);
  return st;
}

static ns_status look_at_locks(ns_adopted *a, int64_t *freed, ns_err *err) {
  ns_seat *seat;
  ns_status st = ns_adopt_seat(a, &seat, err);
  if (st != NS_OK)
    return st;
  if ((st = free_abandoned(a, seat, freed, err)) != NS_OK)
    *freed = 0;
  ns_adopt_leave_seat(seat);
  return st;
}

/* ------------------------------------------------------------------- looks */

/* Rows that a drain has left half way. An account that may not delete rows claims them all the
** same. */
static ns_status look_at_drains(ns_adopted *a, ns_err *err) {
  ns_status st = ns_adopt_clean(a, &a->cleaned, err);
  if (st == NS_OK || st == NS_EGONE || st == NS_ENOMEM)
    return st;
  ns_err_clear(err);
  return NS_OK;
}

/* Rows are marked with who has them. */
static ns_status look_marked(ns_adopted *a, bool now, int64_t *freed, ns_err *err) {
  bool died = now;
  bool sweep = now || ns_mono_us() >= a->sweep_at;
  ns_status st = look_at_holders(a, &died, err);
  if (st == NS_OK)
    st = look_at_rows(a, now || died || sweep, freed, err);
  if (st == NS_OK && (died || sweep))
    st = look_at_drains(a, err);
  if (st == NS_OK && sweep)
    a->sweep_at = ns_mono_us() + ns_jitter(SWEEP_EVERY, 0.2);
  return st;
}

/* Rows are locked by who has them. Without a state that shows it, the server has given
** them back itself. */
static ns_status look_locked(ns_adopted *a, bool now, int64_t *freed, ns_err *err) {
  bool sweep = now || ns_mono_us() >= a->sweep_at;
  bool died;
  ns_status st = NS_OK;
  if (a->map.has_state[NS_ROW_PROCESSING])
    st = look_at_locks(a, freed, err);
  if (st != NS_OK || !sweep)
    return st;
  a->sweep_at = ns_mono_us() + ns_jitter(SWEEP_EVERY, 0.2);
  st = look_at_holders(a, &died, err); /* what they have shown goes with them */
  if (st == NS_OK)
    st = ns_adopt_tidy(a, err);
  if (st == NS_OK)
    st = ns_adopt_tidy_errors(a, err);
  return st == NS_OK ? look_at_drains(a, err) : st;
}

/* In a crowd it is mostly another handle's turn. */
static ns_status look(ns_adopted *a, bool now, int64_t *freed, ns_err *err) {
  bool ours = now || a->suspects > 0;
  ns_status st = ours ? NS_OK : take_turn(a, &ours, err);
  bool locks = a->map.strategy == NS_TRANSACTION;
  a->look_at = ns_mono_us() + ns_jitter(ours && !locks ? LOOK_EVERY : LOOK_LATER, 0.2);
  if (st != NS_OK || !ours)
    return st;
  return locks ? look_locked(a, now, freed, err) : look_marked(a, now, freed, err);
}

ns_status ns_adopted_look(ns_adopted *a, bool now, int64_t *freed, ns_err *err) {
  ns_status st;
  *freed = a->cleaned = 0;
  ns_err_clear(err);
  if (ns_in_transaction(a->db))
    return ns_fail(err, NS_ESTATE, "rows cannot be freed inside a transaction");
  ns_adopt_own(a);
  if (!now && ns_mono_us() < a->look_at)
    return NS_OK;
  if ((st = ns_db_ready(a->db, err)) == NS_OK)
    st = ns_adopt_control(a, err);
  if (st == NS_OK)
    st = ns_adopt_hear(a, err);
  if (st == NS_OK)
    st = look(a, now, freed, err);
  if (*freed > 0 || (now && a->rung)) /* locks that were a dead one's */
    ns_adopt_stir(a);
  return st;
}

const ns_reset *ns_adopted_resets(ns_adopted *a, size_t *n) {
  *n = a->resets.told ? 0 : a->resets.n;
  a->resets.told = true;
  return a->resets.items;
}
