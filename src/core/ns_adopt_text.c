/*
** The statements of an adopted table: templates of sql/query/adopt.sql whose marks
** are filled in.
**
** Invariant: what comes from a mapping goes into the text in one of two ways only: a
** name of a live column or table, in backticks, or a ? whose value is bound.
** (The time zone and a column's collation are the exceptions; they were checked letter
** by letter.) Assignments
** that look at a column stand before the one that changes it, because the server
** carries them out from left to right.
*/
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ns_adopt.h"
#include "ns_time.h"

#define PAUSE_FIRST 100  /* µs between tries at a row that is locked, doubling */
#define PAUSE_LAST 10000
#define TRIGGER_TABLE_MAX 40 /* letters of a table in the name of a trigger */

/* ----------------------------------------------------------------- pieces */

void ns_adopt_add_name(ns_buf *out, const char *name) {
  ns_buf_addc(out, '`');
  for (; *name != '\0'; name++) {
    if (*name == '`')
      ns_buf_addc(out, '`');
    ns_buf_addc(out, *name);
  }
  ns_buf_addc(out, '`');
}

static void add_name(ns_filled *f, const char *name) {
  ns_adopt_add_name(&f->text, name);
}

/* A value as text of a statement; only letters of numbers come of it. */
static void add_literal(ns_filled *f, ns_value v) {
  if (v.type == NS_INT)
    ns_buf_addf(&f->text, "%lld", (long long)v.i);
  else if (v.type == NS_TEXT) {
    ns_buf_adds(&f->text, "_utf8mb4 X'");
    for (size_t i = 0; i < v.s.n; i++)
      ns_buf_addf(&f->text, "%02X", (unsigned char)v.s.p[i]);
    ns_buf_addc(&f->text, '\'');
  } else
    ns_buf_adds(&f->text, "NULL");
}

static void add_param(ns_filled *f, ns_slot_of slot, ns_value value) {
  if (f->literal) {
    add_literal(f, value);
    return;
  }
  if (!ns_grow(&f->params, &f->cap, f->n + 1, sizeof *f->params))
    f->text.oom = true;
  else
    f->params[f->n++] = (ns_param){slot, value};
  ns_buf_addc(&f->text, '?');
}

static void add_value(ns_filled *f, ns_value v) {
  add_param(f, NS_SLOT_VALUE, v);
}

static void add_slot(ns_filled *f, ns_slot_of slot) {
  add_param(f, slot, ns_vnull);
}

/* What the row is called. */
static const char *alias_of(const ns_filled *f) {
  return f->alias != NULL ? f->alias : "t";
}

static const char *now_of(const ns_field *f) {
  return f->kind == NS_FIELD_WHOLE ? "UNIX_TIMESTAMP()" : "NOW(6)";
}

/*
** Adds 'fmt', in which %c is the next part's column, %n its present time, %v a
** value, %i a number that stands in the text, and %s a slot; each takes an argument.
*/
static void put(const ns_adopted *a, ns_filled *f, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  for (; *fmt != '\0'; fmt++) {
    if (*fmt != '%') {
      ns_buf_addc(&f->text, *fmt);
      continue;
    }
    switch (*++fmt) {
    case 'c':
      ns_buf_addf(&f->text, "%s.", alias_of(f));
      add_name(f, a->parts[va_arg(args, int)]->name);
      break;
    case 'n':
      ns_buf_adds(&f->text, now_of(a->parts[va_arg(args, int)]));
      break;
    case 'v':
      add_value(f, va_arg(args, ns_value));
      break;
    case 'i':
      ns_buf_addf(&f->text, "%lld", (long long)va_arg(args, int64_t));
      break;
    default:
      add_slot(f, (ns_slot_of)va_arg(args, int));
    }
  }
  va_end(args);
}

static bool is_claimed_by(const ns_adopted *a) {
  return ns_adopt_has(a, NS_PART_CLAIMED_BY) && a->map.strategy != NS_TRANSACTION;
}

/* ----------------------------------------------------------------- states */

/* A value of a column, in its collation: next to one of another an UPDATE would sort
** what the index has in order. */
static void add_alike(ns_filled *f, const ns_field *column, ns_value v) {
  bool text = v.type == NS_TEXT && *column->charset != '\0' && *column->collation != '\0';
  if (text)
    ns_buf_adds(&f->text, "CONVERT(");
  add_value(f, v);
  if (text)
    ns_buf_addf(&f->text, " USING %s) COLLATE %s", column->charset, column->collation);
}

/* The condition that a row, known as 'alias', is in a state. */
static void in_state(const ns_adopted *a, ns_filled *f, const char *alias,
                     ns_row_state s) {
  const ns_field *status = a->parts[NS_PART_STATUS];
  ns_value v = a->map.states[s];
  ns_buf_addf(&f->text, "%s.", alias);
  add_name(f, status->name);
  if (v.type == NS_NULL)
    ns_buf_adds(&f->text, " IS NULL");
  else if (status->kind == NS_FIELD_TIME)
    ns_buf_adds(&f->text, " IS NOT NULL");
  else {
    ns_buf_adds(&f->text, " = ");
    add_alike(f, status, v);
  }
}

/* The value that puts a row into a state. */
static void state_value(const ns_adopted *a, ns_filled *f, ns_row_state s) {
  const ns_field *status = a->parts[NS_PART_STATUS];
  if (a->map.states[s].type == NS_NULL)
    ns_buf_adds(&f->text, "NULL");
  else if (status->kind == NS_FIELD_TIME)
    ns_buf_adds(&f->text, now_of(status));
  else
    add_value(f, a->map.states[s]);
}

/* Rows that are done stay in a state of others when only a date tells. */
static void not_done(const ns_adopted *a, ns_filled *f) {
  if (!a->map.has_state[NS_ROW_DONE])
    put(a, f, " AND %c IS NULL", NS_PART_COMPLETED_AT);
}

static void nobodys(const ns_adopted *a, ns_filled *f, const char *yes,
                    const char *empty) {
  put(a, f, a->parts[NS_PART_CLAIMED_BY]->nullable ? yes : empty,
      NS_PART_CLAIMED_BY);
}

/* Rows that somebody has. */
static void put_taken(ns_adopted *a, ns_filled *f) {
  if (a->map.has_state[NS_ROW_PROCESSING])
    in_state(a, f, "t", NS_ROW_PROCESSING);
  else
    in_state(a, f, "t", NS_ROW_OPEN);
  if (!a->map.has_state[NS_ROW_PROCESSING] && is_claimed_by(a)) {
    ns_buf_adds(&f->text, " AND ");
    nobodys(a, f, "%c IS NOT NULL", "%c <> ''");
  }
  not_done(a, f);
}

/* ------------------------------------------------------------- conditions */

static void as_parent_done(const ns_adopted *a, ns_filled *f, const char *alias) {
  ns_row_state s = a->map.has_state[NS_ROW_PARENT_DONE] ? NS_ROW_PARENT_DONE
                                                        : NS_ROW_DONE;
  if (a->map.has_state[s]) {
    in_state(a, f, alias, s);
    return;
  }
  ns_buf_addf(&f->text, "%s.", alias);
  add_name(f, a->parts[NS_PART_COMPLETED_AT]->name);
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
    put(a, f, " AND %c > 0", NS_PART_ATTEMPTS_LEFT);
  else if (ns_adopt_has(a, NS_PART_ATTEMPTS) && a->map.max_attempts > 0)
    put(a, f, " AND COALESCE(%c, 0) < %v", NS_PART_ATTEMPTS,
        ns_vint(a->map.max_attempts));
}

static void fill(ns_adopted *a, ns_filled *f, const char *text);

/* Rows that nobody has and that are not at their end. */
static void put_waiting(ns_adopted *a, ns_filled *f) {
  in_state(a, f, alias_of(f), NS_ROW_OPEN);
  if (!a->map.has_state[NS_ROW_PROCESSING] && is_claimed_by(a)) {
    ns_buf_adds(&f->text, " AND ");
    nobodys(a, f, "%c IS NULL", "%c = ''");
  }
  not_done(a, f);
  attempts_left(a, f);
}

/* ... whose time has come ... */
static void put_time(const ns_adopted *a, ns_filled *f) {
  if (ns_adopt_has(a, NS_PART_RETRY_AFTER))
    put(a, f, " AND (%c IS NULL OR %c <= %n)", NS_PART_RETRY_AFTER,
        NS_PART_RETRY_AFTER, NS_PART_RETRY_AFTER);
}

/* ... and whose parent is done, which it stays. */
static void put_parents(ns_adopted *a, ns_filled *f) {
  if (!ns_adopt_has(a, NS_PART_PARENT))
    return;
  ns_buf_adds(&f->text, " AND ");
  fill(a, f, ns_sql_texts[NS_SQL_ADOPT_PARENT]);
}

/* Rows that may be claimed now, as far as they tell themselves. */
static void put_open(ns_adopted *a, ns_filled *f) {
  put_waiting(a, f);
  put_time(a, f);
}

static void put_ready(ns_adopted *a, ns_filled *f) {
  put_open(a, f);
  put_parents(a, f);
}

static void put_unready(ns_adopted *a, ns_filled *f) {
  put_waiting(a, f);
  ns_buf_adds(&f->text, " AND NOT COALESCE(TRUE");
  put_time(a, f);
  put_parents(a, f);
  ns_buf_adds(&f->text, ", FALSE)");
}

static void put_later(ns_adopted *a, ns_filled *f) {
  put_waiting(a, f);
  put(a, f, " AND %c > %n", NS_PART_RETRY_AFTER, NS_PART_RETRY_AFTER);
  put_parents(a, f);
}

static void put_until(ns_adopted *a, ns_filled *f) {
  put(a, f, a->parts[NS_PART_RETRY_AFTER]->kind == NS_FIELD_WHOLE
                ? "(MIN(%c) - UNIX_TIMESTAMP()) * 1000000"
                : "TIMESTAMPDIFF(MICROSECOND, NOW(6), MIN(%c))",
      NS_PART_RETRY_AFTER);
}

static void put_finished(ns_adopted *a, ns_filled *f) {
  if (a->map.has_state[NS_ROW_DONE])
    in_state(a, f, alias_of(f), NS_ROW_DONE);
  else
    put(a, f, "%c IS NOT NULL", NS_PART_COMPLETED_AT);
}

static void put_dead(ns_adopted *a, ns_filled *f) {
  size_t start;
  if (a->map.has_state[NS_ROW_FAILED]) {
    in_state(a, f, "t", NS_ROW_FAILED);
    return;
  }
  in_state(a, f, "t", NS_ROW_OPEN);
  not_done(a, f);
  ns_buf_adds(&f->text, " AND NOT (TRUE");
  start = f->text.n;
  attempts_left(a, f);
  ns_buf_adds(&f->text, f->text.n > start ? ")" : " OR TRUE)");
}

/* ------------------------------------------------------ rows in a trigger */

static void waits_as(ns_adopted *a, ns_filled *f, const char *alias) {
  const char *before = f->alias;
  f->alias = alias;
  put_waiting(a, f);
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
  add_name(f, a->parts[p]->name);
  ns_buf_adds(&f->text, " <=> OLD.");
  add_name(f, a->parts[p]->name);
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
    put(a, f, "%c", NS_PART_CLAIMED_BY);
  else if (ns_adopt_by_grip(a))
    fill(a, f, ns_sql_texts[NS_SQL_ADOPT_GRIP_OF]);
  else
    ns_buf_adds(&f->text, "NULL");
}

/* Rows whose claim is a row of nightshift_grip. */
static void put_gripped(ns_adopted *a, ns_filled *f) {
  if (ns_adopt_by_grip(a))
    put_taken(a, f);
  else
    ns_buf_adds(&f->text, "FALSE");
}

/* Rows of one claimant: NULL for those that are taken by programs not ours. With
** NS_TRANSACTION a row's lock says whose it is. */
static void put_ours(ns_adopted *a, ns_filled *f) {
  if (a->map.strategy != NS_TRANSACTION) {
    put_claimant(a, f);
    put(a, f, " <=> %s AND ", NS_SLOT_TOKEN);
  }
  put_taken(a, f);
}

static void put_mine(ns_adopted *a, ns_filled *f) {
  put_taken(a, f);
  if (a->map.has_state[NS_ROW_PROCESSING] && ns_adopt_has(a, NS_PART_CLAIMED_BY))
    put(a, f, " AND %c = %s", NS_PART_CLAIMED_BY, NS_SLOT_TOKEN);
}

static void before(const ns_adopted *a, ns_filled *f, ns_part p, int64_t us) {
  int64_t seconds = (us + 999999) / 1000000;
  if (a->parts[p]->kind == NS_FIELD_WHOLE)
    put(a, f, "%c < %n - %v", p, p, ns_vint(seconds));
  else
    put(a, f, "%c < %n - INTERVAL %v MICROSECOND", p, p, ns_vint(us));
}

static void put_overdue(ns_adopted *a, ns_filled *f) {
  before(a, f, NS_PART_CLAIMED_AT, a->map.overdue);
}

/* With NS_TRANSACTION a row may be marked and not locked yet. */
static void put_settled(ns_adopted *a, ns_filled *f) {
  if (a->map.strategy == NS_TRANSACTION && a->map.has_state[NS_ROW_PROCESSING])
    fill(a, f, ns_sql_texts[NS_SQL_ADOPT_SETTLED]);
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
    put(a, f, "%c * 1000000", p);
  else
    put(a, f, "CAST(UNIX_TIMESTAMP(%c) * 1000000 AS SIGNED)", p);
}

static void put_unheld(ns_adopted *a, ns_filled *f) {
  fill(a, f, ns_sql_texts[NS_SQL_ADOPT_UNHELD]);
}

static void put_order(ns_adopted *a, ns_filled *f) {
  if (ns_adopt_has(a, NS_PART_PRIORITY))
    put(a, f, a->map.lower_first ? "%c, " : "%c DESC, ", NS_PART_PRIORITY);
  put(a, f, a->map.newest_first ? "%c DESC" : "%c", NS_PART_ID);
}

/* An UPDATE sorts by what follows IS NULL in an index unless it is asked for the
** whole of it, in the direction of what follows. */
static void put_first(ns_adopted *a, ns_filled *f) {
  bool down = a->map.newest_first &&
              (!ns_adopt_has(a, NS_PART_PRIORITY) || !a->map.lower_first);
  if (a->map.states[NS_ROW_OPEN].type == NS_NULL)
    put(a, f, down ? "%c DESC, " : "%c, ", NS_PART_STATUS);
}

/* ------------------------------------------------------- dead and finished */

/* How often it has failed. */
static void put_failures(ns_adopted *a, ns_filled *f) {
  if (ns_adopt_has(a, NS_PART_ATTEMPTS))
    put(a, f, "COALESCE(%c, 0)", NS_PART_ATTEMPTS);
  else if (ns_adopt_has(a, NS_PART_ATTEMPTS_LEFT) && a->map.max_attempts > 0)
    put(a, f, "GREATEST(%v - CAST(COALESCE(%c, 0) AS SIGNED), 0)",
        ns_vint(a->map.max_attempts), NS_PART_ATTEMPTS_LEFT);
  else
    ns_buf_adds(&f->text, "e.attempt");
}

/* Errors that differ in numbers and addresses only are of one kind. */
static void put_kind(ns_adopted *a, ns_filled *f) {
  (void)a;
  ns_buf_adds(&f->text, "LEFT(REGEXP_REPLACE(SUBSTRING_INDEX(e.error, CHAR(10 USING "
                        "utf8mb4), 1), '0x[0-9a-fA-F]+|[0-9]+', '#'), 200)");
}

static void put_blamed(ns_adopted *a, ns_filled *f) {
  put(a, f, "(%s IS NULL OR COALESCE(e.error, '') = %s OR ", NS_SLOT_ERROR,
      NS_SLOT_ERROR);
  put_kind(a, f);
  put(a, f, " = %s)", NS_SLOT_ERROR);
}

/* The column that says when a row has ended; NULL: none does. */
static const ns_field *ended_at(const ns_adopted *a, ns_part *p) {
  *p = ns_adopt_has(a, NS_PART_COMPLETED_AT) ? NS_PART_COMPLETED_AT
       : a->parts[NS_PART_STATUS]->kind == NS_FIELD_TIME ? NS_PART_STATUS
                                                         : NS_PART_UPDATED;
  return a->parts[*p];
}

bool ns_adopt_tells_end(const ns_adopted *a) {
  ns_part p;
  return ended_at(a, &p) != NULL;
}

/* Ended longer ago than the delay of the call; NULL: whenever. */
static void put_old(ns_adopted *a, ns_filled *f) {
  ns_part p;
  const ns_field *at = ended_at(a, &p);
  if (at == NULL)
    ns_buf_adds(&f->text, "TRUE");
  else if (at->kind == NS_FIELD_WHOLE)
    put(a, f, "(%s IS NULL OR %c < %n - CEIL(%s / 1000000))", NS_SLOT_DELAY, p, p,
        NS_SLOT_DELAY);
  else
    put(a, f, "(%s IS NULL OR %c < %n - INTERVAL %s MICROSECOND)", NS_SLOT_DELAY, p, p,
        NS_SLOT_DELAY);
}

static void put_childless(ns_adopted *a, ns_filled *f) {
  if (ns_adopt_has(a, NS_PART_PARENT))
    fill(a, f, ns_sql_texts[NS_SQL_ADOPT_CHILDLESS]);
  else
    ns_buf_adds(&f->text, "TRUE");
}

/* Columns that the target of a move is given a value for. */
static void put_moved(const ns_adopted *a, ns_filled *f, const char *alias) {
  const char *comma = "";
  for (size_t i = 0; i < a->fields.n; i++) {
    if (!a->fields.items[i].moved)
      continue;
    ns_buf_addf(&f->text, "%s%s", comma, alias);
    add_name(f, a->fields.items[i].name);
    comma = ", ";
  }
}

static void put_into(ns_adopted *a, ns_filled *f) {
  add_name(f, a->into.p);
}

static void put_into_columns(ns_adopted *a, ns_filled *f) {
  put_moved(a, f, "");
}

static void put_moved_columns(ns_adopted *a, ns_filled *f) {
  put_moved(a, f, "t.");
}

/* ---------------------------------------------------------- rows that move */

/* What it is to a drain: an ns_row_kind. */
static void put_fate(ns_adopted *a, ns_filled *f) {
  ns_buf_adds(&f->text, "CASE WHEN ");
  put_finished(a, f);
  if (a->map.has_state[NS_ROW_PROCESSING] || is_claimed_by(a)) {
    ns_buf_adds(&f->text, " THEN 1 WHEN ");
    put_taken(a, f);
    ns_buf_adds(&f->text, " THEN 3 WHEN ");
  } else
    ns_buf_adds(&f->text, " THEN 1 WHEN "); /* its lock says so */
  put_dead(a, f);
  ns_buf_adds(&f->text, " THEN 2 WHEN ");
  put_waiting(a, f);
  ns_buf_adds(&f->text, " THEN 0 ELSE 4 END");
}

/* A time as µs since 1970; NULL: it tells nothing, or not more than seconds hold. */
static void micros(const ns_adopted *a, ns_filled *f, ns_part p) {
  if (ns_adopt_has(a, p) && a->parts[p]->kind == NS_FIELD_TIME)
    put(a, f, "NULLIF(UNIX_TIMESTAMP(%c), 0) * 1000000, ", p);
  else if (ns_adopt_has(a, p) && a->parts[p]->kind == NS_FIELD_WHOLE &&
           p != NS_PART_STATUS)
    put(a, f, "IF(%c BETWEEN 1 AND 99999999999, %c * 1000000, NULL), ", p, p);
}

/* When it ended, by the best of what tells. */
static void put_ended(ns_adopted *a, ns_filled *f) {
  static const ns_part by[] = {NS_PART_COMPLETED_AT, NS_PART_STATUS, NS_PART_UPDATED,
                               NS_PART_CLAIMED_AT, NS_PART_STARTED};
  ns_buf_adds(&f->text, "CAST(COALESCE(");
  for (size_t i = 0; i < sizeof by / sizeof by[0]; i++)
    micros(a, f, by[i]);
  ns_buf_adds(&f->text, "NULL) AS SIGNED)");
}

/* µs until it is due; NULL, or less than nothing: it is. */
static void put_delay(ns_adopted *a, ns_filled *f) {
  ns_part p = NS_PART_RETRY_AFTER;
  if (!ns_adopt_has(a, p))
    ns_buf_adds(&f->text, "NULL");
  else if (a->parts[p]->kind == NS_FIELD_TIME)
    put(a, f, "TIMESTAMPDIFF(MICROSECOND, NOW(6), %c)", p);
  else
    put(a, f, "CAST(IF(%c > %n, LEAST(%c - %n, 99999999999) * 1000000, NULL) AS SIGNED)",
        p, p, p, p);
}

/* Texts of other character sets need not fit together. */
static void add_plain(ns_filled *f, const ns_field *c) {
  bool cast = *c->charset != '\0' && strcmp(c->charset, "utf8mb4") != 0;
  ns_buf_adds(&f->text, cast ? "CAST(t." : "t.");
  add_name(f, c->name);
  ns_buf_adds(&f->text, cast ? " AS BINARY)" : "");
}

/* All that is in it, in 32 characters: each column behind its length. */
static void put_print(ns_adopted *a, ns_filled *f) {
  ns_buf_adds(&f->text, "MD5(CONCAT_WS(','");
  for (size_t i = 0; i < a->fields.n; i++) {
    const ns_field *c = &a->fields.items[i];
    ns_buf_adds(&f->text, c->nullable ? ", COALESCE(OCTET_LENGTH(t." : ", OCTET_LENGTH(t.");
    add_name(f, c->name);
    ns_buf_adds(&f->text, c->nullable ? "), '-'), " : "), ");
    add_plain(f, c);
  }
  ns_buf_adds(&f->text, "))");
}

/* ------------------------------------------------------------ assignments */

/* "…, c = now" for a column of time that is not also the status. */
static void set_now(const ns_adopted *a, ns_filled *f, ns_part p) {
  if (ns_adopt_has(a, p) && a->parts[p] != a->parts[NS_PART_STATUS])
    put(a, f, ", %c = %n", p, p);
}

static void set_state(const ns_adopted *a, ns_filled *f, ns_row_state s) {
  put(a, f, "%c = ", NS_PART_STATUS);
  state_value(a, f, s);
}

/* The status as it is: the first of the assignments, so that all others can begin
** with a comma. */
static void keep_state(const ns_adopted *a, ns_filled *f) {
  put(a, f, "%c = %c", NS_PART_STATUS, NS_PART_STATUS);
}

static void put_claim(ns_adopted *a, ns_filled *f) {
  if (a->map.has_state[NS_ROW_PROCESSING])
    set_state(a, f, NS_ROW_PROCESSING);
  else
    keep_state(a, f);
  if (ns_adopt_has(a, NS_PART_CLAIMED_BY))
    put(a, f, ", %c = %s", NS_PART_CLAIMED_BY, NS_SLOT_TOKEN);
  set_now(a, f, NS_PART_CLAIMED_AT);
  set_now(a, f, NS_PART_STARTED);
  if (ns_adopt_has(a, NS_PART_HOST))
    put(a, f, ", %c = LEFT(%v, %i)", NS_PART_HOST,
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

/* Nobody has the row any more. */
static void unclaim(const ns_adopted *a, ns_filled *f) {
  const ns_field *at = a->parts[NS_PART_CLAIMED_AT];
  if (ns_adopt_has(a, NS_PART_CLAIMED_BY)) {
    ns_buf_adds(&f->text, ", ");
    nobodys(a, f, "%c = NULL", "%c = ''");
  }
  if (at != NULL && at->nullable && at != a->parts[NS_PART_STATUS])
    put(a, f, ", %c = NULL", NS_PART_CLAIMED_AT);
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
    put(a, f, ", %c = IF(%c > %i, %i, %c + %v)", NS_PART_PRIORITY,
        NS_PART_PRIORITY, p->most - a->map.decay, p->most, NS_PART_PRIORITY, decay);
  else
    put(a, f, ", %c = IF(%c < %i, %i, %c - %v)", NS_PART_PRIORITY,
        NS_PART_PRIORITY, p->least + a->map.decay, p->least, NS_PART_PRIORITY,
        decay);
}

/* A delay of NULL leaves it as it is. */
static void come_back(const ns_adopted *a, ns_filled *f) {
  if (!ns_adopt_has(a, NS_PART_RETRY_AFTER))
    return;
  if (a->parts[NS_PART_RETRY_AFTER]->kind == NS_FIELD_WHOLE)
    put(a, f, ", %c = COALESCE(%n + CEIL(%s / 1000000), %c)", NS_PART_RETRY_AFTER,
        NS_PART_RETRY_AFTER, NS_SLOT_DELAY, NS_PART_RETRY_AFTER);
  else
    put(a, f, ", %c = COALESCE(%n + INTERVAL %s MICROSECOND, %c)",
        NS_PART_RETRY_AFTER, NS_PART_RETRY_AFTER, NS_SLOT_DELAY,
        NS_PART_RETRY_AFTER);
}

/* The condition that this was the last attempt. False: there is no last one. */
static bool last_attempt(const ns_adopted *a, ns_filled *f) {
  if (ns_adopt_has(a, NS_PART_ATTEMPTS_LEFT))
    put(a, f, "COALESCE(%c, 0) <= 1", NS_PART_ATTEMPTS_LEFT);
  else if (ns_adopt_has(a, NS_PART_ATTEMPTS) && a->map.max_attempts > 0)
    put(a, f, "COALESCE(%c, 0) >= %v", NS_PART_ATTEMPTS,
        ns_vint(a->map.max_attempts - 1));
  else
    return false;
  return true;
}

/* One attempt more, or less; at the end of what the column can say it stays. */
static void count_attempt(const ns_adopted *a, ns_filled *f) {
  if (ns_adopt_has(a, NS_PART_ATTEMPTS))
    put(a, f, ", %c = IF(COALESCE(%c, 0) < %i, COALESCE(%c, 0) + 1, %c)",
        NS_PART_ATTEMPTS, NS_PART_ATTEMPTS, a->parts[NS_PART_ATTEMPTS]->most,
        NS_PART_ATTEMPTS, NS_PART_ATTEMPTS);
  if (ns_adopt_has(a, NS_PART_ATTEMPTS_LEFT))
    put(a, f, ", %c = IF(%c > 0, %c - 1, 0)", NS_PART_ATTEMPTS_LEFT,
        NS_PART_ATTEMPTS_LEFT, NS_PART_ATTEMPTS_LEFT);
}

static void put_fail(ns_adopted *a, ns_filled *f) {
  size_t before_if = f->text.n;
  if (a->map.has_state[NS_ROW_FAILED]) {
    put(a, f, "%c = IF(", NS_PART_STATUS);
    if (last_attempt(a, f)) {
      ns_buf_adds(&f->text, ", ");
      state_value(a, f, NS_ROW_FAILED);
      ns_buf_adds(&f->text, ", ");
      state_value(a, f, NS_ROW_OPEN);
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
      put(a, f, ", %c = 0", NS_PART_ATTEMPTS_LEFT);
    else
      put(a, f, ", %c = %v", NS_PART_ATTEMPTS, ns_vint(a->map.max_attempts));
  }
  unclaim(a, f);
}

/* As it was before its first attempt, but for a priority that has sunk. */
static void put_redrive(ns_adopted *a, ns_filled *f) {
  const ns_field *later = a->parts[NS_PART_RETRY_AFTER];
  set_state(a, f, NS_ROW_OPEN);
  if (ns_adopt_has(a, NS_PART_ATTEMPTS))
    put(a, f, ", %c = 0", NS_PART_ATTEMPTS);
  if (ns_adopt_has(a, NS_PART_ATTEMPTS_LEFT))
    put(a, f, ", %c = %v", NS_PART_ATTEMPTS_LEFT, ns_vint(a->map.max_attempts));
  if (later != NULL)
    put(a, f, later->nullable ? ", %c = NULL" : ", %c = %n", NS_PART_RETRY_AFTER,
        NS_PART_RETRY_AFTER);
  unclaim(a, f);
}

/* ------------------------------------------------------------------ marks */

static bool has_zone(const ns_adopted *a) {
  return strcmp(a->map.time_zone.p, "+00:00") != 0; /* which the session has */
}

static void put_zone(ns_adopted *a, ns_filled *f) {
  if (has_zone(a))
    ns_buf_addf(&f->text, "SET STATEMENT time_zone='%s' FOR ", a->map.time_zone.p);
}

static void put_at_once(ns_adopted *a, ns_filled *f) {
  ns_buf_adds(&f->text, "SET STATEMENT innodb_lock_wait_timeout=0");
  if (has_zone(a))
    ns_buf_addf(&f->text, ", time_zone='%s'", a->map.time_zone.p);
  ns_buf_adds(&f->text, " FOR ");
}

static void put_table(ns_adopted *a, ns_filled *f) {
  add_name(f, a->map.table.p);
}

static void put_id(ns_adopted *a, ns_filled *f) {
  put(a, f, "%c", NS_PART_ID);
}

static void put_key(ns_adopted *a, ns_filled *f) {
  add_name(f, a->parts[NS_PART_ID]->name);
}

static void put_parent(ns_adopted *a, ns_filled *f) {
  put(a, f, "%c", NS_PART_PARENT);
}

static void put_parent_key(ns_adopted *a, ns_filled *f) {
  add_name(f, a->parts[NS_PART_PARENT]->name);
}

static void put_columns(ns_adopted *a, ns_filled *f) {
  for (size_t i = 0; i < a->fields.n; i++) {
    ns_buf_adds(&f->text, i > 0 ? ", t." : "t.");
    add_name(f, a->fields.items[i].name);
  }
}

static void put_row(ns_adopted *a, ns_filled *f) {
  (void)a;
  add_slot(f, NS_SLOT_ROW);
}

static void put_rows(ns_adopted *a, ns_filled *f) {
  (void)a;
  add_slot(f, NS_SLOT_ROWS);
}

static void put_token(ns_adopted *a, ns_filled *f) {
  (void)a;
  add_slot(f, NS_SLOT_TOKEN);
}

static void put_limit(ns_adopted *a, ns_filled *f) {
  (void)a;
  add_slot(f, NS_SLOT_LIMIT);
}

static void put_page(ns_adopted *a, ns_filled *f) {
  (void)a;
  add_slot(f, NS_SLOT_PAGE);
}

static void put_table_value(ns_adopted *a, ns_filled *f) {
  add_value(f, ns_vtext(a->map.table));
}

/* Names of triggers are those of a whole database: they end in the table's where that
** is a plain word. */
static void add_trigger(const ns_adopted *a, ns_filled *f, const char *event) {
  static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                              "0123456789_";
  const char *table = a->map.table.p;
  char number[17];
  if (strspn(table, plain) != strlen(table) || strlen(table) > TRIGGER_TABLE_MAX) {
    snprintf(number, sizeof number, "%016llx",
             (unsigned long long)ns_adopt_digest(a->map.table));
    table = number;
  }
  ns_buf_addf(&f->text, "`" NS_TRIGGER_PREFIX "%s_%s`", event, table);
}

static void put_trigger_insert(ns_adopted *a, ns_filled *f) {
  add_trigger(a, f, "insert");
}

static void put_trigger_update(ns_adopted *a, ns_filled *f) {
  add_trigger(a, f, "update");
}

static const struct {
  const char *name;
  void (*put)(ns_adopted *a, ns_filled *f);
} marks[] = {
    {":limit", put_limit}, {":page", put_page}, {":row", put_row}, {":rows", put_rows},
    {":table", put_table_value}, {":token", put_token}, {"again", put_again},
    {"at_once", put_at_once}, {"blamed", put_blamed}, {"childless", put_childless},
    {"claim", put_claim}, {"claimant", put_claimant}, {"claimed", put_claimed},
    {"columns", put_columns}, {"dead", put_dead}, {"delay", put_delay},
    {"discard", put_discard}, {"done", put_done}, {"ear", put_ear}, {"ended", put_ended},
    {"fail", put_fail}, {"failures", put_failures}, {"fate", put_fate},
    {"finished", put_finished}, {"first", put_first}, {"freed", put_freed},
    {"gripped", put_gripped}, {"id", put_id}, {"into", put_into},
    {"into_columns", put_into_columns}, {"key", put_key}, {"kind", put_kind},
    {"later", put_later}, {"mark", put_mark}, {"mine", put_mine},
    {"moved_columns", put_moved_columns}, {"new", put_new}, {"old", put_old},
    {"open", put_open}, {"order", put_order}, {"ours", put_ours},
    {"overdue", put_overdue}, {"parent", put_parent}, {"parent_done", put_parent_done},
    {"parent_key", put_parent_key}, {"print", put_print}, {"ready", put_ready},
    {"redrive", put_redrive}, {"release", put_release}, {"settled", put_settled},
    {"table", put_table}, {"taken", put_taken}, {"touch", put_touch},
    {"trigger_insert", put_trigger_insert}, {"trigger_update", put_trigger_update},
    {"unheld", put_unheld}, {"unready", put_unready}, {"until", put_until},
    {"was", put_was}, {"zone", put_zone}};

/* A mark that nobody knows is a mistake in adopt.sql, which the server tells of. */
static void fill_mark(ns_adopted *a, ns_filled *f, const char *name, size_t n) {
  for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++)
    if (strlen(marks[i].name) == n && memcmp(marks[i].name, name, n) == 0)
      marks[i].put(a, f);
}

static void fill(ns_adopted *a, ns_filled *f, const char *text) {
  while (*text != '\0') {
    size_t plain = strcspn(text, "{");
    ns_buf_add(&f->text, text, plain);
    text += plain;
    if (*text == '{') {
      size_t n = strcspn(++text, "}");
      fill_mark(a, f, text, n);
      text += n + 1;
    }
  }
}

ns_status ns_adopt_fill(ns_adopted *a, ns_sql sql, const ns_filled **out,
                        ns_err *err) {
  ns_filled *f = &a->stmts[sql];
  *out = f;
  if (f->text.n > 0 && !f->text.oom)
    return NS_OK;
  ns_buf_reset(&f->text);
  f->n = 0;
  fill(a, f, ns_sql_texts[sql]);
  return f->text.oom ? ns_fail(err, NS_ENOMEM, "out of memory") : NS_OK;
}

ns_status ns_adopt_spell(ns_adopted *a, ns_sql sql, ns_buf *out, ns_err *err) {
  ns_filled f = {.literal = true};
  fill(a, &f, ns_sql_texts[sql]);
  ns_buf_add(out, f.text.p, f.text.n);
  out->oom = out->oom || f.text.oom;
  ns_buf_free(&f.text);
  free(f.params);
  return out->oom ? ns_fail(err, NS_ENOMEM, "out of memory") : NS_OK;
}

/* ---------------------------------------------------------------- running */

static ns_value slot_value(const ns_param *p, const ns_call *call) {
  switch (p->slot) {
  case NS_SLOT_ROW:
    return ns_vint(call->row);
  case NS_SLOT_ROWS:
    return ns_vtext(call->rows);
  case NS_SLOT_TOKEN:
    return ns_vopt(call->token);
  case NS_SLOT_LIMIT:
    return ns_vint(call->limit);
  case NS_SLOT_PAGE:
    return ns_vint(call->page);
  case NS_SLOT_DELAY:
    return call->delay;
  case NS_SLOT_ERROR:
    return ns_vopt(call->error);
  default:
    return p->value;
  }
}

static ns_status prepare(ns_adopted *a, ns_seat *seat, ns_sql sql,
                         const ns_filled *f, ns_stmt **s, ns_err *err) {
  ns_status st;
  if (seat == NULL)
    return ns_prepared(a->db, s, ns_buf_bytes(&f->text), err);
  st = seat->stmts[sql] != NULL
           ? NS_OK
           : ns_link_prepare(seat->link, &seat->stmts[sql], f->text.p, f->text.n,
                             err);
  *s = seat->stmts[sql];
  return st;
}

ns_status ns_adopt_run(ns_adopted *a, ns_seat *seat, ns_sql sql,
                       const ns_call *call, ns_stmt **s, ns_err *err) {
  const ns_filled *f;
  ns_value *values;
  ns_status st = ns_adopt_fill(a, sql, &f, err);
  if (st == NS_OK)
    st = prepare(a, seat, sql, f, s, err);
  if (st != NS_OK)
    return st;
  if ((values = malloc((f->n + 1) * sizeof *values)) == NULL)
    return ns_fail(err, NS_ENOMEM, "out of memory");
  for (size_t i = 0; i < f->n; i++)
    values[i] = slot_value(&f->params[i], call);
  st = ns_stmt_run(ns_adopt_link(a, seat), *s, values, err);
  free(values);
  return st;
}

bool ns_adopt_is_locked(const ns_adopted *a, ns_status st, const ns_err *err) {
  return st == NS_EBUSY && err->sqlerr == NS_LOCK_WAIT && !a->db->lanes.never_fast;
}

ns_status ns_adopt_change(ns_adopted *a, ns_seat *seat, ns_sql sql,
                          const ns_call *call, int64_t patience, ns_stmt **s,
                          ns_err *err) {
  int64_t give_up = ns_mono_us() + patience;
  int64_t pause = PAUSE_FIRST;
  ns_status st = ns_adopt_run(a, seat, sql, call, s, err);
  while (ns_adopt_is_locked(a, st, err) && ns_mono_us() < give_up) {
    ns_sleep_us(ns_jitter(pause, 0.5));
    pause = pause < PAUSE_LAST ? pause * 2 : pause;
    ns_err_clear(err);
    st = ns_adopt_run(a, seat, sql, call, s, err);
  }
  return st;
}
