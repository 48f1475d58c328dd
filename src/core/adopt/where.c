/*
** Conditions on the rows of an adopted table: which may be claimed, which are claimed and by which
** holder, which are overdue, done or dead; and the order of claims. A trigger asks
** the same of NEW and OLD.
**
** Invariant: a row is in one of these at a time: waiting, taken, finished, dead.
*/
#include "adopt/put.h"

/* Claimed rows. */
void ns_put_taken(ns_adopted *a, ns_filled *f) {
  if (a->map.has_state[NS_ROW_PROCESSING])
    ns_put_in_state(a, f, "t", NS_ROW_PROCESSING);
  else
    ns_put_in_state(a, f, "t", NS_ROW_OPEN);
  if (!a->map.has_state[NS_ROW_PROCESSING] && ns_adopt_by_column(a)) {
    ns_buf_adds(&f->text, " AND ");
    ns_put_nobodys(a, f, "%c IS NOT NULL", "%c <> ''");
  }
  ns_put_not_done(a, f);
}

/* Claimed rows, as far as anything tells. */
static void put_running(ns_adopted *a, ns_filled *f) {
  ns_put_text(a, f, ns_sql_texts[ns_adopt_tells_taken(a) ? NS_SQL_ADOPT_RUNNING
                                                         : NS_SQL_ADOPT_RUNNING_SHOWN]);
}

static void as_parent_done(const ns_adopted *a, ns_filled *f, const char *alias) {
  ns_row_state s = a->map.has_state[NS_ROW_PARENT_DONE] ? NS_ROW_PARENT_DONE
                                                        : NS_ROW_DONE;
  if (a->map.has_state[s]) {
    ns_put_in_state(a, f, alias, s);
    return;
  }
  ns_buf_addf(&f->text, "%s.", alias);
  ns_put_name(f, a->parts[NS_PART_COMPLETED_AT]->name);
  ns_buf_adds(&f->text, " IS NOT NULL");
}

static void put_parent_done(ns_adopted *a, ns_filled *f) {
  as_parent_done(a, f, "p");
}

/* Attempts end a row by themselves where no state says that it has failed. */
static void attempts_left(const ns_adopted *a, ns_filled *f) {
  if (a->map.has_state[NS_ROW_FAILED])
    return;
  if (ns_adopt_has(a, NS_PART_ATTEMPTS_LEFT))
    ns_put(a, f, " AND %c > 0", NS_PART_ATTEMPTS_LEFT);
  else if (ns_adopt_has(a, NS_PART_ATTEMPTS) && a->map.max_attempts > 0)
    ns_put(a, f, " AND COALESCE(%c, 0) < %v", NS_PART_ATTEMPTS,
        ns_vint(a->map.max_attempts));
}

/* Unclaimed rows that are not at their end. */
void ns_put_waiting(ns_adopted *a, ns_filled *f) {
  ns_put_in_state(a, f, ns_put_alias(f), NS_ROW_OPEN);
  if (!a->map.has_state[NS_ROW_PROCESSING] && ns_adopt_by_column(a)) {
    ns_buf_adds(&f->text, " AND ");
    ns_put_nobodys(a, f, "%c IS NULL", "%c = ''");
  }
  ns_put_not_done(a, f);
  attempts_left(a, f);
}

/* ... and that can be jobs: their ids are numbers from 1 that a job's holds. An operator
** in front of the column, so that no plan is made of it; and one that warns of no number,
** as a cast would, in the statement of a writer that meets the trigger. */
static void put_claimable(ns_adopted *a, ns_filled *f) {
  ns_put_waiting(a, f);
  ns_put(a, f, " AND (%c | 0) BETWEEN 1 AND %i", NS_PART_ID, INT64_MAX);
}

/* ... that are due ... */
static void put_time(const ns_adopted *a, ns_filled *f) {
  if (ns_adopt_has(a, NS_PART_RETRY_AFTER))
    ns_put(a, f, " AND (%c IS NULL OR %c <= %n)", NS_PART_RETRY_AFTER,
        NS_PART_RETRY_AFTER, NS_PART_RETRY_AFTER);
}

/* ... and with a parent that is done, which it stays. */
static void put_parents(ns_adopted *a, ns_filled *f) {
  if (!ns_adopt_has(a, NS_PART_PARENT))
    return;
  ns_buf_adds(&f->text, " AND ");
  ns_put_text(a, f, ns_sql_texts[NS_SQL_ADOPT_PARENT]);
}

/* Rows that may be claimed now, as far as they tell themselves. */
static void put_open(ns_adopted *a, ns_filled *f) {
  put_claimable(a, f);
  put_time(a, f);
}

static void put_ready(ns_adopted *a, ns_filled *f) {
  put_open(a, f);
  put_parents(a, f);
}

static void put_unready(ns_adopted *a, ns_filled *f) {
  put_claimable(a, f);
  ns_buf_adds(&f->text, " AND NOT COALESCE(TRUE");
  put_time(a, f);
  put_parents(a, f);
  ns_buf_adds(&f->text, ", FALSE)");
}

static void put_later(ns_adopted *a, ns_filled *f) {
  put_claimable(a, f);
  ns_put(a, f, " AND %c > %n", NS_PART_RETRY_AFTER, NS_PART_RETRY_AFTER);
  put_parents(a, f);
}

static void put_until(ns_adopted *a, ns_filled *f) {
  ns_put(a, f, a->parts[NS_PART_RETRY_AFTER]->kind == NS_FIELD_WHOLE
                ? "(MIN(%c) - UNIX_TIMESTAMP()) * 1000000"
                : "TIMESTAMPDIFF(MICROSECOND, NOW(6), MIN(%c))",
      NS_PART_RETRY_AFTER);
}

void ns_put_finished(ns_adopted *a, ns_filled *f) {
  if (a->map.has_state[NS_ROW_DONE])
    ns_put_in_state(a, f, ns_put_alias(f), NS_ROW_DONE);
  else
    ns_put(a, f, "%c IS NOT NULL", NS_PART_COMPLETED_AT);
}

void ns_put_dead(ns_adopted *a, ns_filled *f) {
  size_t start;
  if (a->map.has_state[NS_ROW_FAILED]) {
    ns_put_in_state(a, f, "t", NS_ROW_FAILED);
    return;
  }
  ns_put_in_state(a, f, "t", NS_ROW_OPEN);
  ns_put_not_done(a, f);
  ns_buf_adds(&f->text, " AND NOT (TRUE");
  start = f->text.n;
  attempts_left(a, f);
  ns_buf_adds(&f->text, f->text.n > start ? ")" : " OR TRUE)");
}

static void waits_as(ns_adopted *a, ns_filled *f, const char *alias) {
  const char *before = f->alias;
  f->alias = alias;
  put_claimable(a, f);
  f->alias = before;
}

static void put_new(ns_adopted *a, ns_filled *f) {
  waits_as(a, f, "NEW");
}

/* "AND NEW.c <=> OLD.c" */
static void and_same(const ns_adopted *a, ns_filled *f, ns_part p) {
  if (!ns_adopt_has(a, p))
    return;
  ns_buf_adds(&f->text, " AND NEW.");
  ns_put_name(f, a->parts[p]->name);
  ns_buf_adds(&f->text, " <=> OLD.");
  ns_put_name(f, a->parts[p]->name);
}

/* Was open, and is to be claimed at the same time. */
static void put_was(ns_adopted *a, ns_filled *f) {
  waits_as(a, f, "OLD");
  and_same(a, f, NS_PART_RETRY_AFTER);
  and_same(a, f, NS_PART_PARENT);
}

/* Its children need not wait any more. */
static void put_freed(ns_adopted *a, ns_filled *f) {
  if (!ns_adopt_has(a, NS_PART_PARENT)) {
    ns_buf_adds(&f->text, "FALSE");
    return;
  }
  as_parent_done(a, f, "NEW");
  ns_buf_adds(&f->text, " AND NOT COALESCE(");
  as_parent_done(a, f, "OLD");
  ns_buf_adds(&f->text, ", FALSE)");
}

static void put_mark(ns_adopted *a, ns_filled *f) {
  ns_buf_adds(&f->text, a->mark);
}

static void put_ear(ns_adopted *a, ns_filled *f) {
  ns_buf_adds(&f->text, a->ear_name);
}

static void put_claimant(ns_adopted *a, ns_filled *f) {
  if (ns_adopt_has(a, NS_PART_CLAIMED_BY))
    ns_put(a, f, "%c", NS_PART_CLAIMED_BY);
  else if (ns_adopt_by_grip(a))
    ns_put_text(a, f, ns_sql_texts[NS_SQL_ADOPT_GRIP_OF]);
  else
    ns_buf_adds(&f->text, "NULL");
}

/* Rows claimed by a row of nightshift_grip. */
static void put_gripped(ns_adopted *a, ns_filled *f) {
  if (ns_adopt_by_grip(a))
    ns_put_taken(a, f);
  else
    ns_buf_adds(&f->text, "FALSE");
}

/* Rows of one claimant: NULL for those that are taken by programs not ours. With
** NS_TRANSACTION a row's lock names its claimant. */
static void put_ours(ns_adopted *a, ns_filled *f) {
  if (a->map.strategy != NS_TRANSACTION) {
    put_claimant(a, f);
    ns_put(a, f, " <=> %s AND ", NS_SLOT_TOKEN);
  }
  ns_put_taken(a, f);
}

static void put_mine(ns_adopted *a, ns_filled *f) {
  ns_put_taken(a, f);
  if (a->map.has_state[NS_ROW_PROCESSING] && ns_adopt_has(a, NS_PART_CLAIMED_BY))
    ns_put(a, f, " AND %c = %s", NS_PART_CLAIMED_BY, NS_SLOT_TOKEN);
}

static void before(const ns_adopted *a, ns_filled *f, ns_part p, int64_t us) {
  int64_t seconds = (us + 999999) / 1000000;
  if (a->parts[p]->kind == NS_FIELD_WHOLE)
    ns_put(a, f, "%c < %n - %v", p, p, ns_vint(seconds));
  else
    ns_put(a, f, "%c < %n - INTERVAL %v MICROSECOND", p, p, ns_vint(us));
}

static void put_overdue(ns_adopted *a, ns_filled *f) {
  before(a, f, NS_PART_CLAIMED_AT, a->map.overdue);
}

/* With NS_TRANSACTION a row may be marked and not locked yet. */
static void put_settled(ns_adopted *a, ns_filled *f) {
  if (a->map.strategy == NS_TRANSACTION && a->map.has_state[NS_ROW_PROCESSING])
    ns_put_text(a, f, ns_sql_texts[NS_SQL_ADOPT_SETTLED]);
  else
    ns_buf_adds(&f->text, "TRUE");
}

/* µs since 1970, of what the row says. */
static void put_claimed(ns_adopted *a, ns_filled *f) {
  ns_part p = ns_adopt_has(a, NS_PART_CLAIMED_AT) ? NS_PART_CLAIMED_AT
                                                  : NS_PART_STARTED;
  if (!ns_adopt_has(a, p))
    ns_buf_adds(&f->text, "NULL");
  else if (a->parts[p]->kind == NS_FIELD_WHOLE)
    ns_put(a, f, "%c * 1000000", p);
  else
    ns_put(a, f, "CAST(UNIX_TIMESTAMP(%c) * 1000000 AS SIGNED)", p);
}

static void put_unheld(ns_adopted *a, ns_filled *f) {
  ns_put_text(a, f, ns_sql_texts[NS_SQL_ADOPT_UNHELD]);
}

static void put_order(ns_adopted *a, ns_filled *f) {
  if (ns_adopt_has(a, NS_PART_PRIORITY))
    ns_put(a, f, a->map.lower_first ? "%c, " : "%c DESC, ", NS_PART_PRIORITY);
  ns_put(a, f, a->map.newest_first ? "%c DESC" : "%c", NS_PART_ID);
}

/* An UPDATE sorts by what follows IS NULL in an index unless it is asked for the
** whole of it, in the direction of what follows. */
static void put_first(ns_adopted *a, ns_filled *f) {
  bool down = a->map.newest_first &&
              (!ns_adopt_has(a, NS_PART_PRIORITY) || !a->map.lower_first);
  if (a->map.states[NS_ROW_OPEN].type == NS_NULL)
    ns_put(a, f, down ? "%c DESC, " : "%c, ", NS_PART_STATUS);
}

const ns_mark ns_marks_where[] = {
    {"claimant", put_claimant}, {"claimed", put_claimed}, {"dead", ns_put_dead},
    {"ear", put_ear}, {"finished", ns_put_finished}, {"first", put_first},
    {"freed", put_freed}, {"gripped", put_gripped}, {"later", put_later},
    {"mark", put_mark}, {"mine", put_mine}, {"new", put_new}, {"open", put_open},
    {"order", put_order}, {"ours", put_ours}, {"overdue", put_overdue},
    {"parent_done", put_parent_done}, {"ready", put_ready}, {"running", put_running},
    {"settled", put_settled}, {"taken", ns_put_taken}, {"unheld", put_unheld}, {"unready", put_unready},
    {"until", put_until}, {"was", put_was}, {NULL, NULL}};
