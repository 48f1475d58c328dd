/*
** Assignments: what a claim and each verdict write into a row of an adopted table.
**
** Invariant: the first is one of the status, so the rest begin with a comma; and one
** that looks at a column stands before the one that changes it, because the server
** carries them out from left to right. Counters stop where their column ends.
*/
#include "adopt/put.h"

#include <stdlib.h>
#include <string.h>

/* "…, c = now" for a column of time that is not also the status. */
static void set_now(const ns_adopted *a, ns_filled *f, ns_part p) {
  if (ns_adopt_has(a, p) && a->parts[p] != a->parts[NS_PART_STATUS])
    ns_put(a, f, ", %c = %n", p, p);
}

static void set_state(const ns_adopted *a, ns_filled *f, ns_row_state s) {
  ns_put(a, f, "%c = ", NS_PART_STATUS);
  ns_put_state(a, f, s);
}

/* The status as it is: the first of the assignments, so that the rest can begin
** with a comma. */
static void keep_state(const ns_adopted *a, ns_filled *f) {
  ns_put(a, f, "%c = %c", NS_PART_STATUS, NS_PART_STATUS);
}

static void put_claim(ns_adopted *a, ns_filled *f) {
  if (a->map.has_state[NS_ROW_PROCESSING])
    set_state(a, f, NS_ROW_PROCESSING);
  else
    keep_state(a, f);
  if (ns_adopt_has(a, NS_PART_CLAIMED_BY))
    ns_put(a, f, ", %c = %s", NS_PART_CLAIMED_BY, NS_SLOT_TOKEN);
  set_now(a, f, NS_PART_CLAIMED_AT);
  set_now(a, f, NS_PART_STARTED);
  if (ns_adopt_has(a, NS_PART_HOST))
    ns_put(a, f, ", %c = LEFT(%v, %i)", NS_PART_HOST,
        ns_vtext(ns_buf_bytes(&a->host)), a->parts[NS_PART_HOST]->most);
  set_now(a, f, NS_PART_UPDATED);
}

static void put_done(ns_adopted *a, ns_filled *f) {
  if (a->map.has_state[NS_ROW_DONE])
    set_state(a, f, NS_ROW_DONE);
  else
    keep_state(a, f);
  set_now(a, f, NS_PART_COMPLETED_AT);
  set_now(a, f, NS_PART_UPDATED);
}

/* The row is not claimed any more. */
static void unclaim(const ns_adopted *a, ns_filled *f) {
  const ns_field *at = a->parts[NS_PART_CLAIMED_AT];
  if (ns_adopt_has(a, NS_PART_CLAIMED_BY)) {
    ns_buf_adds(&f->text, ", ");
    ns_put_nobodys(a, f, "%c = NULL", "%c = ''");
  }
  if (at != NULL && at->nullable && at != a->parts[NS_PART_STATUS])
    ns_put(a, f, ", %c = NULL", NS_PART_CLAIMED_AT);
  set_now(a, f, NS_PART_UPDATED);
}

static void put_touch(ns_adopted *a, ns_filled *f) {
  keep_state(a, f);
  set_now(a, f, NS_PART_CLAIMED_AT);
  set_now(a, f, NS_PART_UPDATED);
}

/* Lower in the order by 'decay', and not below the limit of the column. */
static void sink(const ns_adopted *a, ns_filled *f) {
  const ns_field *p = a->parts[NS_PART_PRIORITY];
  ns_value decay = ns_vint(a->map.decay);
  if (p == NULL || a->map.decay == 0)
    return;
  if (a->map.lower_first)
    ns_put(a, f, ", %c = IF(%c > %i, %i, %c + %v)", NS_PART_PRIORITY,
        NS_PART_PRIORITY, p->most - a->map.decay, p->most, NS_PART_PRIORITY, decay);
  else
    ns_put(a, f, ", %c = IF(%c < %i, %i, %c - %v)", NS_PART_PRIORITY,
        NS_PART_PRIORITY, p->least + a->map.decay, p->least, NS_PART_PRIORITY,
        decay);
}

int64_t ns_adopt_unit(const ns_field *f) {
  const char *digits = strchr(f->type, '(');
  int64_t unit = 1000000;
  if (f->kind == NS_FIELD_WHOLE)
    return unit;
  for (int n = digits != NULL ? atoi(digits + 1) : 0; n > 0 && unit > 1; n--)
    unit /= 10;
  return unit;
}

/* A delay of NULL leaves it as it is; another is rounded up to what the column can say:
** the row is not claimed before. The server cuts what is too exact. */
static void come_back(const ns_adopted *a, ns_filled *f) {
  const ns_field *at = a->parts[NS_PART_RETRY_AFTER];
  if (at == NULL)
    return;
  if (at->kind == NS_FIELD_WHOLE)
    ns_put(a, f, ", %c = IF(%s IS NULL, %c, IF(%s > 0, CEIL(UNIX_TIMESTAMP(NOW(6)) + "
                 "%s / 1000000), %n))",
        NS_PART_RETRY_AFTER, NS_SLOT_DELAY, NS_PART_RETRY_AFTER, NS_SLOT_DELAY,
        NS_SLOT_DELAY, NS_PART_RETRY_AFTER);
  else
    ns_put(a, f, ", %c = COALESCE(%n + INTERVAL (%s + IF(%s > 0, %i, 0)) MICROSECOND, %c)",
        NS_PART_RETRY_AFTER, NS_PART_RETRY_AFTER, NS_SLOT_DELAY, NS_SLOT_DELAY,
        ns_adopt_unit(at) - 1, NS_PART_RETRY_AFTER);
}

/* The condition that this was the last attempt. False: there is no last one. */
static bool last_attempt(const ns_adopted *a, ns_filled *f) {
  if (ns_adopt_has(a, NS_PART_ATTEMPTS_LEFT))
    ns_put(a, f, "COALESCE(%c, 0) <= 1", NS_PART_ATTEMPTS_LEFT);
  else if (ns_adopt_has(a, NS_PART_ATTEMPTS) && a->map.max_attempts > 0)
    ns_put(a, f, "COALESCE(%c, 0) >= %v", NS_PART_ATTEMPTS,
        ns_vint(a->map.max_attempts - 1));
  else
    return false;
  return true;
}

/* One attempt more, or less; at the limit of the column the number stays. */
static void count_attempt(const ns_adopted *a, ns_filled *f) {
  if (ns_adopt_has(a, NS_PART_ATTEMPTS))
    ns_put(a, f, ", %c = IF(COALESCE(%c, 0) < %i, COALESCE(%c, 0) + 1, %c)",
        NS_PART_ATTEMPTS, NS_PART_ATTEMPTS, a->parts[NS_PART_ATTEMPTS]->most,
        NS_PART_ATTEMPTS, NS_PART_ATTEMPTS);
  if (ns_adopt_has(a, NS_PART_ATTEMPTS_LEFT))
    ns_put(a, f, ", %c = IF(%c > 0, %c - 1, 0)", NS_PART_ATTEMPTS_LEFT,
        NS_PART_ATTEMPTS_LEFT, NS_PART_ATTEMPTS_LEFT);
}

static void put_fail(ns_adopted *a, ns_filled *f) {
  size_t before_if = f->text.n;
  if (a->map.has_state[NS_ROW_FAILED]) {
    ns_put(a, f, "%c = IF(", NS_PART_STATUS);
    if (last_attempt(a, f)) {
      ns_buf_adds(&f->text, ", ");
      ns_put_state(a, f, NS_ROW_FAILED);
      ns_buf_adds(&f->text, ", ");
      ns_put_state(a, f, NS_ROW_OPEN);
      ns_buf_addc(&f->text, ')');
    } else
      f->text.n = before_if;
  }
  if (f->text.n == before_if)
    set_state(a, f, NS_ROW_OPEN);
  count_attempt(a, f);
  sink(a, f);
  come_back(a, f);
  unclaim(a, f);
}

static void put_again(ns_adopted *a, ns_filled *f) {
  set_state(a, f, NS_ROW_OPEN);
  sink(a, f);
  come_back(a, f);
  unclaim(a, f);
}

static void put_release(ns_adopted *a, ns_filled *f) {
  set_state(a, f, NS_ROW_OPEN);
  unclaim(a, f);
}

static void put_discard(ns_adopted *a, ns_filled *f) {
  if (a->map.has_state[NS_ROW_FAILED])
    set_state(a, f, NS_ROW_FAILED);
  else {
    set_state(a, f, NS_ROW_OPEN);
    if (ns_adopt_has(a, NS_PART_ATTEMPTS_LEFT))
      ns_put(a, f, ", %c = 0", NS_PART_ATTEMPTS_LEFT);
    else
      ns_put(a, f, ", %c = %v", NS_PART_ATTEMPTS, ns_vint(a->map.max_attempts));
  }
  unclaim(a, f);
}

/* As it was before its first attempt, but for a priority that has sunk. */
static void put_redrive(ns_adopted *a, ns_filled *f) {
  const ns_field *later = a->parts[NS_PART_RETRY_AFTER];
  set_state(a, f, NS_ROW_OPEN);
  if (ns_adopt_has(a, NS_PART_ATTEMPTS))
    ns_put(a, f, ", %c = 0", NS_PART_ATTEMPTS);
  if (ns_adopt_has(a, NS_PART_ATTEMPTS_LEFT))
    ns_put(a, f, ", %c = %v", NS_PART_ATTEMPTS_LEFT, ns_vint(a->map.max_attempts));
  if (later != NULL)
    ns_put(a, f, later->nullable ? ", %c = NULL" : ", %c = %n", NS_PART_RETRY_AFTER,
        NS_PART_RETRY_AFTER);
  unclaim(a, f);
}

const ns_mark ns_marks_set[] = {
    {"again", put_again}, {"claim", put_claim}, {"discard", put_discard},
    {"done", put_done}, {"fail", put_fail}, {"redrive", put_redrive},
    {"release", put_release}, {"touch", put_touch}, {NULL, NULL}};
