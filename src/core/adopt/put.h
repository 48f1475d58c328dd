/*
** Pieces of the text of an adopted table's statements: names, values, states, and the
** marks of its templates.
**
** Invariant: what comes from a mapping goes into the text in one of two ways only: a
** name of a live column or table, in backticks, or a ? with its value bound.
** (Literals of a trigger, the time zone and a column's collation are the exceptions:
** the first are numbers or hexadecimal, the rest were checked letter by letter.)
*/
#ifndef NS_ADOPT_PUT_H
#define NS_ADOPT_PUT_H

#include "adopt/table.h"

/*
** Adds 'fmt', in which %c is the next part's column, %n its present time, %v a
** value, %i a number that stands in the text, and %s a slot; each takes an argument.
*/
void ns_put(const ns_adopted *a, ns_filled *f, const char *fmt, ...);

void ns_put_name(ns_filled *f, const char *name);
void ns_put_value(ns_filled *f, ns_value v);
void ns_put_slot(ns_filled *f, ns_slot_of slot);

/* The alias of the row: "t", or as a trigger calls it. */
const char *ns_put_alias(const ns_filled *f);

/* Is a state of a column of dates one special date? Else it is any other date. */
bool ns_adopt_is_date(const ns_adopted *a, ns_row_state s);

/* The condition that a row, known as 'alias', is in a state; the value that puts one
** there; and "AND it is not done" where only a date tells. */
void ns_put_in_state(const ns_adopted *a, ns_filled *f, const char *alias,
                     ns_row_state s);
void ns_put_state(const ns_adopted *a, ns_filled *f, ns_row_state s);
void ns_put_not_done(const ns_adopted *a, ns_filled *f);

/* Does the row itself say who has it? */
bool ns_adopt_by_column(const ns_adopted *a);

/* 'yes' or 'empty', formats for claimed_by: where unclaimed is NULL, or ''. */
void ns_put_nobodys(const ns_adopted *a, ns_filled *f, const char *yes,
                    const char *empty);

/* ------------------------------------------------------------------- marks */

/* "{name}" in a template, and what stands for it. */
typedef struct ns_mark {
  const char *name;
  void (*put)(ns_adopted *a, ns_filled *f);
} ns_mark;

/* Each ends with a name of NULL. Which rows (adopt/where.c); what becomes of those
** that have ended, or move (adopt/ends.c); assignments (adopt/set.c). */
extern const ns_mark ns_marks_where[], ns_marks_ends[], ns_marks_set[];

/* adopt/text.c: adds a template. */
void ns_put_text(ns_adopted *a, ns_filled *f, const char *text);

/* adopt/where.c: claimed rows; unclaimed rows that are not at their
** end; that are done; that are never claimed again. */
void ns_put_taken(ns_adopted *a, ns_filled *f);
void ns_put_waiting(ns_adopted *a, ns_filled *f);
void ns_put_finished(ns_adopted *a, ns_filled *f);
void ns_put_dead(ns_adopted *a, ns_filled *f);

#endif
