/*
** The conditions that people and drains ask of rows: how often one has failed and of what, when it
** ended, and what it is when it moves to another table.
*/
#include <string.h>

#include "adopt/put.h"

/* How often it has failed. */
static void put_failures(ns_adopted *a, ns_filled *f) {
  if (ns_adopt_has(a, NS_PART_ATTEMPTS))
    ns_put(a, f, "COALESCE(%c, 0)", NS_PART_ATTEMPTS);
  else if (ns_adopt_has(a, NS_PART_ATTEMPTS_LEFT) && a->map.max_attempts > 0)
    ns_put(a, f, "GREATEST(%v - CAST(COALESCE(%c, 0) AS SIGNED), 0)",
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

/* An error whole, or its first line, which is what people see of it, or its kind. */
static void put_blamed(ns_adopted *a, ns_filled *f) {
  ns_put(a, f, "(%s IS NULL OR COALESCE(e.error, '') = %s OR "
               "SUBSTRING_INDEX(e.error, CHAR(10 USING utf8mb4), 1) = %s OR ",
      NS_SLOT_ERROR, NS_SLOT_ERROR, NS_SLOT_ERROR);
  put_kind(a, f);
  ns_put(a, f, " = %s)", NS_SLOT_ERROR);
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

static void put_prunable(ns_adopted *a, ns_filled *f) {
  if (a->prunes_dead)
    ns_put_dead(a, f);
  else
    ns_put_finished(a, f);
}

/* The column says that it ended longer ago than the delay of the call; NULL: whenever. */
static void put_done_long(ns_adopted *a, ns_filled *f) {
  ns_part p;
  const ns_field *at = ended_at(a, &p);
  if (at == NULL)
    ns_put(a, f, "%s IS NULL", NS_SLOT_DELAY);
  else if (at->kind == NS_FIELD_WHOLE)
    ns_put(a, f, "(%s IS NULL OR %c < %n - CEIL(%s / 1000000))", NS_SLOT_DELAY, p, p,
        NS_SLOT_DELAY);
  else
    ns_put(a, f, "(%s IS NULL OR %c < %n - INTERVAL %s MICROSECOND)", NS_SLOT_DELAY, p, p,
        NS_SLOT_DELAY);
}

/* Of a dead row its last error tells; of one that another program has ended only the column. */
static void put_old(ns_adopted *a, ns_filled *f) {
  if (a->prunes_dead) {
    ns_buf_adds(&f->text, "COALESCE(");
    ns_put_text(a, f, ns_sql_texts[NS_SQL_ADOPT_DEAD_LONG]);
    ns_buf_adds(&f->text, ", ");
  }
  put_done_long(a, f);
  if (a->prunes_dead)
    ns_buf_adds(&f->text, ", FALSE)");
}

static void put_childless(ns_adopted *a, ns_filled *f) {
  if (ns_adopt_has(a, NS_PART_PARENT))
    ns_put_text(a, f, ns_sql_texts[NS_SQL_ADOPT_CHILDLESS]);
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
    ns_put_name(f, a->fields.items[i].name);
    comma = ", ";
  }
}

static void put_into(ns_adopted *a, ns_filled *f) {
  ns_put_name(f, a->into.p);
}

static void put_into_columns(ns_adopted *a, ns_filled *f) {
  put_moved(a, f, "");
}

static void put_moved_columns(ns_adopted *a, ns_filled *f) {
  put_moved(a, f, "t.");
}

/* The kind of a row to a drain: an ns_row_kind. */
static void put_fate(ns_adopted *a, ns_filled *f) {
  ns_buf_adds(&f->text, "CASE WHEN ");
  ns_put_finished(a, f);
  if (a->map.has_state[NS_ROW_PROCESSING] || ns_adopt_by_column(a)) {
    ns_buf_adds(&f->text, " THEN 1 WHEN ");
    ns_put_taken(a, f);
    ns_buf_adds(&f->text, " THEN 3 WHEN ");
  } else
    ns_buf_adds(&f->text, " THEN 1 WHEN "); /* its lock says so */
  ns_put_dead(a, f);
  ns_buf_adds(&f->text, " THEN 2 WHEN ");
  ns_put_waiting(a, f);
  ns_buf_adds(&f->text, " THEN 0 ELSE 4 END");
}

/* A time as µs since 1970; NULL: it tells nothing, or not more than seconds hold. */
static void micros(const ns_adopted *a, ns_filled *f, ns_part p) {
  if (ns_adopt_has(a, p) && a->parts[p]->kind == NS_FIELD_TIME)
    ns_put(a, f, "NULLIF(UNIX_TIMESTAMP(%c), 0) * 1000000, ", p);
  else if (ns_adopt_has(a, p) && a->parts[p]->kind == NS_FIELD_WHOLE &&
           p != NS_PART_STATUS)
    ns_put(a, f, "IF(%c BETWEEN 1 AND 99999999999, %c * 1000000, NULL), ", p, p);
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
    ns_put(a, f, "TIMESTAMPDIFF(MICROSECOND, NOW(6), %c)", p);
  else
    ns_put(a, f, "CAST(IF(%c > %n, LEAST(%c - %n, 99999999999) * 1000000, NULL) AS SIGNED)",
        p, p, p, p);
}

/* Texts of other character sets need not fit together. */
static void add_plain(ns_filled *f, const ns_field *c) {
  bool cast = *c->charset != '\0' && strcmp(c->charset, "utf8mb4") != 0;
  ns_buf_adds(&f->text, cast ? "CAST(t." : "t.");
  ns_put_name(f, c->name);
  ns_buf_adds(&f->text, cast ? " AS BINARY)" : "");
}

/* All that is in it, in 32 characters: each column behind its length. */
static void put_print(ns_adopted *a, ns_filled *f) {
  ns_buf_adds(&f->text, "MD5(CONCAT_WS(','");
  for (size_t i = 0; i < a->fields.n; i++) {
    const ns_field *c = &a->fields.items[i];
    ns_buf_adds(&f->text, c->nullable ? ", COALESCE(OCTET_LENGTH(t." : ", OCTET_LENGTH(t.");
    ns_put_name(f, c->name);
    ns_buf_adds(&f->text, c->nullable ? "), '-'), " : "), ");
    add_plain(f, c);
  }
  ns_buf_adds(&f->text, "))");
}

const ns_mark ns_marks_ends[] = {
    {"blamed", put_blamed}, {"childless", put_childless}, {"delay", put_delay},
    {"ended", put_ended}, {"failures", put_failures}, {"fate", put_fate},
    {"into", put_into}, {"into_columns", put_into_columns}, {"kind", put_kind},
    {"moved_columns", put_moved_columns}, {"old", put_old}, {"print", put_print},
    {"prunable", put_prunable}, {NULL, NULL}};
