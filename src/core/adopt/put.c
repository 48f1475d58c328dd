/*
** Names, values and states of an adopted table in the text of a statement. Where a
** statement has no parameters, as a trigger's body, values stand in it as literals.
*/
#include "adopt/put.h"

#include <stdarg.h>

void ns_adopt_add_name(ns_buf *out, const char *name) {
  ns_buf_addc(out, '`');
  for (; *name != '\0'; name++) {
    if (*name == '`')
      ns_buf_addc(out, '`');
    ns_buf_addc(out, *name);
  }
  ns_buf_addc(out, '`');
}

void ns_put_name(ns_filled *f, const char *name) {
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

void ns_put_value(ns_filled *f, ns_value v) {
  add_param(f, NS_SLOT_VALUE, v);
}

void ns_put_slot(ns_filled *f, ns_slot_of slot) {
  add_param(f, slot, ns_vnull);
}

const char *ns_put_alias(const ns_filled *f) {
  return f->alias != NULL ? f->alias : "t";
}

static const char *now_of(const ns_field *f) {
  return f->kind == NS_FIELD_WHOLE ? "UNIX_TIMESTAMP()" : "NOW(6)";
}

void ns_put(const ns_adopted *a, ns_filled *f, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  for (; *fmt != '\0'; fmt++) {
    if (*fmt != '%') {
      ns_buf_addc(&f->text, *fmt);
      continue;
    }
    switch (*++fmt) {
    case 'c':
      ns_buf_addf(&f->text, "%s.", ns_put_alias(f));
      ns_put_name(f, a->parts[va_arg(args, int)]->name);
      break;
    case 'n':
      ns_buf_adds(&f->text, now_of(a->parts[va_arg(args, int)]));
      break;
    case 'v':
      ns_put_value(f, va_arg(args, ns_value));
      break;
    case 'i':
      ns_buf_addf(&f->text, "%lld", (long long)va_arg(args, int64_t));
      break;
    default:
      ns_put_slot(f, (ns_slot_of)va_arg(args, int));
    }
  }
  va_end(args);
}

bool ns_adopt_by_column(const ns_adopted *a) {
  return ns_adopt_has(a, NS_PART_CLAIMED_BY) && a->map.strategy != NS_TRANSACTION;
}

/* A value of a column, in its collation: next to one of another an UPDATE would sort
** what the index has in order. */
static void add_alike(ns_filled *f, const ns_field *column, ns_value v) {
  bool text = v.type == NS_TEXT && *column->charset != '\0' && *column->collation != '\0';
  if (text)
    ns_buf_adds(&f->text, "CONVERT(");
  ns_put_value(f, v);
  if (text)
    ns_buf_addf(&f->text, " USING %s) COLLATE %s", column->charset, column->collation);
}

/* A time that is no special date of another state. */
static void put_other_time(const ns_adopted *a, ns_filled *f, const char *alias,
                           const ns_field *status) {
  ns_buf_adds(&f->text, " IS NOT NULL");
  for (size_t i = 0; i < NS_ROW_STATES; i++) {
    if (!ns_adopt_is_date(a, (ns_row_state)i))
      continue;
    ns_buf_addf(&f->text, " AND %s.", alias);
    ns_put_name(f, status->name);
    ns_buf_adds(&f->text, " <> ");
    ns_put_value(f, a->map.states[i]);
  }
}

bool ns_adopt_is_date(const ns_adopted *a, ns_row_state s) {
  const ns_value *v = &a->map.states[s];
  return a->parts[NS_PART_STATUS]->kind == NS_FIELD_TIME && a->map.has_state[s] &&
         v->type == NS_TEXT && v->s.n > 0 && v->s.p[0] >= '0' && v->s.p[0] <= '9';
}

void ns_put_in_state(const ns_adopted *a, ns_filled *f, const char *alias,
                     ns_row_state s) {
  const ns_field *status = a->parts[NS_PART_STATUS];
  ns_value v = a->map.states[s];
  ns_buf_addf(&f->text, "%s.", alias);
  ns_put_name(f, status->name);
  if (v.type == NS_NULL)
    ns_buf_adds(&f->text, " IS NULL");
  else if (status->kind == NS_FIELD_TIME && !ns_adopt_is_date(a, s))
    put_other_time(a, f, alias, status);
  else {
    ns_buf_adds(&f->text, " = ");
    add_alike(f, status, v);
  }
}

void ns_put_state(const ns_adopted *a, ns_filled *f, ns_row_state s) {
  const ns_field *status = a->parts[NS_PART_STATUS];
  if (a->map.states[s].type == NS_NULL)
    ns_buf_adds(&f->text, "NULL");
  else if (status->kind == NS_FIELD_TIME && !ns_adopt_is_date(a, s))
    ns_buf_adds(&f->text, now_of(status));
  else
    ns_put_value(f, a->map.states[s]);
}

/* Rows that are done stay in a state of open rows when only a date tells. */
void ns_put_not_done(const ns_adopted *a, ns_filled *f) {
  if (!a->map.has_state[NS_ROW_DONE])
    ns_put(a, f, " AND %c IS NULL", NS_PART_COMPLETED_AT);
}

void ns_put_nobodys(const ns_adopted *a, ns_filled *f, const char *yes,
                    const char *empty) {
  ns_put(a, f, a->parts[NS_PART_CLAIMED_BY]->nullable ? yes : empty,
      NS_PART_CLAIMED_BY);
}
