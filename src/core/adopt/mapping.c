/*
** The mapping of an adopted table: which of its live columns is used for what.
**
** Invariant: what has passed the check here is true of the table as it is: every
** name is that of a column, as the server writes it; every value of the status can
** be in its column; the states can be told apart. What is wrong is named, with what
** is there instead, before anything is written.
*/
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "adopt/table.h"
#include "clock.h"

#define LIST_TRIES 20
#define LIST_AGAIN 20000  /* µs */
#define CLAIMANT_LEAST 20 /* characters of claimed_by; see ns_adopt_claimant */

static const char *const part_names[NS_PARTS] = {
    "id", "status.column", "claimed_by", "claimed_at", "completed_at",
    "started", "updated", "retry_after", "host", "attempts", "attempts_left",
    "priority.column", "parent.column"};

static const char *const state_names[NS_ROW_STATES] = {
    "status.open", "status.processing", "status.done", "status.failed",
    "parent.done"};

static ns_status no_memory(ns_err *err) {
  return ns_fail(err, NS_ENOMEM, "out of memory");
}

/* ----------------------------------------------------------- own copies */

static bool copy_bytes(ns_bytes *s) {
  char *copy;
  if (s->p == NULL)
    return true;
  if ((copy = malloc(s->n + 1)) != NULL) {
    memcpy(copy, s->p, s->n);
    copy[s->n] = '\0';
  }
  s->p = copy;
  return copy != NULL;
}

/* Every text of a mapping, for copying and freeing them alike. */
static ns_bytes *map_text(ns_mapping *m, size_t i) {
  ns_bytes *first[] = {&m->table, &m->name, &m->time_zone, &m->given};
  if (i < 4)
    return first[i];
  if ((i -= 4) < NS_PARTS)
    return &m->parts[i];
  i -= NS_PARTS;
  return i < NS_ROW_STATES ? &m->states[i].s : NULL;
}

static bool copy_map(ns_mapping *to, const ns_mapping *from) {
  ns_bytes *s;
  bool ok = true;
  *to = *from;
  for (size_t i = 0; i < NS_ROW_STATES; i++)
    if (to->states[i].type != NS_TEXT)
      to->states[i].s = NS_NONE;
  for (size_t i = 0; (s = map_text(to, i)) != NULL; i++)
    ok = copy_bytes(s) && ok;
  return ok;
}

static void forget_fields(ns_adopted *a) {
  for (size_t i = 0; i < a->fields.n; i++)
    free(a->fields.items[i].type);
  free(a->fields.items);
  a->fields = (ns_fields){0};
}

void ns_adopt_forget_map(ns_adopted *a) {
  ns_bytes *s;
  for (size_t i = 0; (s = map_text(&a->map, i)) != NULL; i++)
    free((char *)(uintptr_t)s->p);
  forget_fields(a);
}

/* ------------------------------------------------------- the live columns */

static bool is_one_of(ns_bytes s, const char *words) {
  for (const char *w = words; *w != '\0'; w += strlen(w) + 1)
    if (strlen(w) == s.n && strncasecmp(w, s.p, s.n) == 0)
      return true;
  return false;
}

static ns_field_kind kind_of(ns_bytes type) {
  if (is_one_of(type, "tinyint\0smallint\0mediumint\0int\0bigint\0"))
    return NS_FIELD_WHOLE;
  if (is_one_of(type, "char\0varchar\0tinytext\0text\0mediumtext\0longtext\0"))
    return NS_FIELD_TEXT;
  if (is_one_of(type, "enum\0"))
    return NS_FIELD_WORDS;
  return is_one_of(type, "datetime\0timestamp\0date\0") ? NS_FIELD_TIME
                                                          : NS_FIELD_OTHER;
}

/* The limits of a whole number, so that counting stops there. */
static void set_limits(ns_field *f, ns_bytes type) {
  static const char *const names[] = {"tinyint", "smallint", "mediumint", "int"};
  static const int bits[] = {8, 16, 24, 32};
  bool natural = strstr(f->type, "unsigned") != NULL;
  f->least = natural ? 0 : INT64_MIN;
  f->most = INT64_MAX;
  for (size_t i = 0; i < 4; i++)
    if (strlen(names[i]) == type.n && strncasecmp(names[i], type.p, type.n) == 0) {
      f->most = (INT64_C(1) << (natural ? bits[i] : bits[i] - 1)) - 1;
      f->least = natural ? 0 : -f->most - 1;
    }
}

/* Columns of adopt_columns. */
enum { C_NAME, C_DATA_TYPE, C_TYPE, C_LENGTH, C_NULLABLE, C_PRIMARY, C_JSON,
       C_CHARSET, C_COLLATION, C_GENERATED };

/* A name of the server's that goes into statements as it is. */
static void copy_word(char out[65], const ns_value *v) {
  static const char chars[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                              "0123456789_";
  if (v->type == NS_TEXT)
    snprintf(out, 65, "%.*s", (int)v->s.n, v->s.p);
  if (strspn(out, chars) != strlen(out))
    out[0] = '\0';
}

static bool add_field(ns_fields *all, const ns_value *row) {
  ns_bytes type = row[C_TYPE].s;
  ns_field *f;
  if (!ns_grow(&all->items, &all->cap, all->n + 1, sizeof *f))
    return false;
  f = &all->items[all->n];
  *f = (ns_field){.kind = kind_of(row[C_DATA_TYPE].s),
                  .nullable = row[C_NULLABLE].i != 0,
                  .primary = row[C_PRIMARY].i != 0, .json = row[C_JSON].i != 0,
                  .generated = row[C_GENERATED].i != 0};
  snprintf(f->name, sizeof f->name, "%.*s", (int)row[C_NAME].s.n,
           row[C_NAME].s.p);
  copy_word(f->charset, &row[C_CHARSET]);
  copy_word(f->collation, &row[C_COLLATION]);
  if (!copy_bytes(&type))
    return false;
  f->type = (char *)(uintptr_t)type.p;
  all->n++;
  set_limits(f, row[C_DATA_TYPE].s);
  if (f->kind == NS_FIELD_TEXT)
    f->most = row[C_LENGTH].type == NS_INT ? row[C_LENGTH].i : INT64_MAX;
  return true;
}

static ns_status list_fields(ns_adopted *a, ns_err *err) {
  const ns_value *row;
  ns_value table = ns_vtext(a->map.table);
  ns_status st = ns_db_run(a->db, NS_SQL_ADOPT_COLUMNS, (ns_value[]){table, table, table}, err);
  while (st == NS_OK && (st = ns_db_row(a->db, NS_SQL_ADOPT_COLUMNS, &row, err)) == NS_OK &&
         row != NULL)
    if (!add_field(&a->fields, row))
      return no_memory(err);
  return st;
}

/* Waits for a session that alters it. */
static bool is_there(ns_adopted *a) {
  ns_call none = {0};
  ns_err err;
  ns_stmt *s;
  return ns_adopt_run(a, NULL, NS_SQL_ADOPT_THERE, &none, &s, &err) == NS_OK;
}

/* While another session changes the table, the server's lists may lack it, or its key. */
static bool is_whole(const ns_adopted *a) {
  for (size_t i = 0; i < a->fields.n; i++)
    if (a->fields.items[i].primary)
      return true;
  return false;
}

static ns_status read_fields(ns_adopted *a, ns_err *err) {
  ns_status st = list_fields(a, err);
  for (int tries = 0; st == NS_OK && !is_whole(a) && tries < LIST_TRIES && is_there(a);
       tries++) {
    ns_sleep_us(LIST_AGAIN);
    forget_fields(a);
    st = list_fields(a, err);
  }
  if (st == NS_OK && a->fields.n == 0)
    return ns_fail(err, NS_ENOTFOUND,
                   "adopt: there is no table '%s' in this database, or this "
                   "user may not see it",
                   a->map.table.p);
  return st;
}

/* ---------------------------------------------------------------- columns */

static void list_columns(const ns_adopted *a, ns_buf *out) {
  for (size_t i = 0; i < a->fields.n; i++)
    ns_buf_addf(out, "%s%s", i > 0 ? ", " : "", a->fields.items[i].name);
  ns_buf_addc(out, '\0');
}

static ns_status no_column(const ns_adopted *a, ns_part p, ns_err *err) {
  ns_buf names = NS_BUF_INIT;
  list_columns(a, &names);
  ns_fail(err, NS_EINVALID, "adopt: %s: table '%s' has no column '%.64s'; it has: %s",
          part_names[p], a->map.table.p, a->map.parts[p].p,
          names.oom ? "" : names.p);
  ns_buf_free(&names);
  return NS_EINVALID;
}

static ns_status find_column(ns_adopted *a, ns_part p, ns_err *err) {
  ns_bytes name = a->map.parts[p];
  if (name.p == NULL)
    return NS_OK;
  for (size_t i = 0; i < a->fields.n; i++)
    if (strlen(a->fields.items[i].name) == name.n &&
        strncasecmp(a->fields.items[i].name, name.p, name.n) == 0) {
      a->parts[p] = &a->fields.items[i];
      return NS_OK;
    }
  return no_column(a, p, err);
}

static ns_status misfit(const ns_adopted *a, ns_part p, const char *wants,
                        ns_err *err) {
  return ns_fail(err, NS_EINVALID, "adopt: %s: column '%s' is %s; it must be %s",
                 part_names[p], a->parts[p]->name, a->parts[p]->type, wants);
}

/* From these times it is reckoned how much later it is: a day is not enough for that. */
static bool is_reckoned(const ns_adopted *a, ns_part p) {
  return p == NS_PART_RETRY_AFTER || (p == NS_PART_CLAIMED_AT && a->map.overdue > 0);
}

static ns_status check_time(const ns_adopted *a, ns_part p, ns_err *err) {
  const ns_field *f = a->parts[p];
  if (f->kind == NS_FIELD_WHOLE)
    return f->most >= INT32_MAX ? NS_OK
                                : misfit(a, p, "INT or BIGINT to hold seconds since 1970", err);
  if (f->kind != NS_FIELD_TIME)
    return misfit(a, p, "a date and time, or whole seconds since 1970", err);
  return strcasecmp(f->type, "date") == 0 && is_reckoned(a, p)
             ? misfit(a, p, "a date with a time", err)
             : NS_OK;
}

static ns_status check_counter(const ns_adopted *a, ns_part p, ns_err *err) {
  const ns_field *f = a->parts[p];
  if (f->kind != NS_FIELD_WHOLE)
    return misfit(a, p, "a whole number", err);
  if (a->map.max_attempts <= f->most)
    return NS_OK;
  return ns_fail(err, NS_EINVALID,
                 "adopt: max_attempts: column '%s' is %s and ends at %lld, before %lld",
                 f->name, f->type, (long long)f->most, (long long)a->map.max_attempts);
}

/* Is a part of the kind that it is used as? */
static ns_status check_kind(const ns_adopted *a, ns_part p, ns_err *err) {
  const ns_field *f = a->parts[p];
  if (f == NULL || p == NS_PART_STATUS)
    return NS_OK;
  if (p >= NS_PART_CLAIMED_AT && p <= NS_PART_RETRY_AFTER)
    return check_time(a, p, err);
  if (p == NS_PART_ATTEMPTS || p == NS_PART_ATTEMPTS_LEFT)
    return check_counter(a, p, err);
  if (p == NS_PART_HOST)
    return f->kind == NS_FIELD_TEXT ? NS_OK : misfit(a, p, "text", err);
  if (p == NS_PART_CLAIMED_BY)
    return f->kind == NS_FIELD_TEXT && f->most >= CLAIMANT_LEAST
               ? NS_OK
               : misfit(a, p, "text of 20 characters or more", err);
  return f->kind == NS_FIELD_WHOLE ? NS_OK : misfit(a, p, "a whole number", err);
}

/* A row is one row of its id, and found by it. */
static ns_status check_key(const ns_adopted *a, ns_err *err) {
  const char *name = a->parts[NS_PART_ID]->name;
  const char *table = a->map.table.p;
  const ns_field *key = NULL;
  size_t n = 0;
  for (size_t i = 0; i < a->fields.n; i++)
    if (a->fields.items[i].primary) {
      key = &a->fields.items[i];
      n++;
    }
  if (n == 1 && key == a->parts[NS_PART_ID])
    return NS_OK;
  if (n == 0)
    return ns_fail(err, NS_EINVALID,
                   "adopt: id: column '%s' must be the primary key, by itself, and '%s' "
                   "has none: ALTER TABLE `%s` ADD PRIMARY KEY (`%s`)",
                   name, table, table, name);
  if (n == 1)
    return ns_fail(err, NS_EINVALID,
                   "adopt: id: column '%s' must be the primary key, by itself, and that "
                   "is '%s': name that",
                   name, key->name);
  return ns_fail(err, NS_EINVALID,
                 "adopt: id: column '%s' must be the primary key, by itself, and that has "
                 "%zu columns: make them a UNIQUE key, and a number the primary one",
                 name, n);
}

/* All but what a claim and a verdict only read. */
static bool is_written(const ns_adopted *a, ns_part p) {
  return p != NS_PART_ID && p != NS_PART_PARENT &&
         (p != NS_PART_PRIORITY || a->map.decay > 0);
}

static ns_status check_written(const ns_adopted *a, ns_err *err) {
  for (size_t p = 0; p < NS_PARTS; p++)
    if (a->parts[p] != NULL && a->parts[p]->generated && is_written(a, (ns_part)p))
      return ns_fail(err, NS_EINVALID,
                     "adopt: %s: column '%s' is GENERATED, and here it must be one that "
                     "can be written",
                     part_names[p], a->parts[p]->name);
  return NS_OK;
}

/* A date may say what a status would, and be the date of just that. */
static bool may_share(const ns_adopted *a, size_t p, size_t with) {
  return p == NS_PART_STATUS && a->parts[p]->kind == NS_FIELD_TIME &&
         (with == NS_PART_CLAIMED_AT || with == NS_PART_COMPLETED_AT);
}

static ns_status check_shared(const ns_adopted *a, ns_err *err) {
  for (size_t p = 0; p < NS_PARTS; p++)
    for (size_t q = p + 1; q < NS_PARTS; q++)
      if (a->parts[p] != NULL && a->parts[p] == a->parts[q] && !may_share(a, p, q))
        return ns_fail(err, NS_EINVALID,
                       "adopt: %s and %s are both column '%s': each needs one of its own",
                       part_names[p], part_names[q], a->parts[p]->name);
  return NS_OK;
}

static ns_status check_needed(const ns_adopted *a, ns_err *err) {
  const ns_mapping *m = &a->map;
  if (m->parts[NS_PART_ID].p == NULL || m->parts[NS_PART_STATUS].p == NULL)
    return ns_fail(err, NS_EINVALID, "adopt: '%s' is needed",
                   part_names[m->parts[NS_PART_ID].p == NULL ? NS_PART_ID
                                                            : NS_PART_STATUS]);
  if (ns_adopt_by_grip(a) && m->strategy == NS_UPDATE_LIMIT)
    return ns_fail(err, NS_EINVALID,
                   "adopt: an UPDATE with a LIMIT does not say which rows it took: "
                   "name a 'claimed_by' column that does, or take another strategy");
  if (ns_adopt_by_grip(a) && !m->has_state[NS_ROW_PROCESSING])
    return ns_fail(err, NS_EINVALID,
                   "adopt: what shows that a row of '%s' is taken? "
                   "'status.processing', a 'claimed_by' column, or, with strategy "
                   "\"transaction\", the row's lock",
                   m->table.p);
  if (m->overdue > 0 && !ns_adopt_has(a, NS_PART_CLAIMED_AT))
    return ns_fail(err, NS_EINVALID,
                   "adopt: 'overdue' needs to know since when a row is claimed: "
                   "name the column 'claimed_at'");
  if (ns_adopt_has(a, NS_PART_ATTEMPTS) && ns_adopt_has(a, NS_PART_ATTEMPTS_LEFT))
    return ns_fail(err, NS_EINVALID,
                   "adopt: attempts are counted up ('attempts') or down "
                   "('attempts_left'), not both");
  return NS_OK;
}

/* ---------------------------------------------------------- status values */

static bool is_now(ns_value v) {
  return v.type == NS_TEXT && v.s.n == 3 && memcmp(v.s.p, "now", 3) == 0;
}

/* "2024-12-31", or with a time, " 23:59:59". The server says whether there is such a day. */
static bool is_date(ns_value v) {
  static const char like[] = "0000-00-00 00:00:00";
  if (v.type != NS_TEXT || (v.s.n != 10 && v.s.n != sizeof like - 1))
    return false;
  for (size_t i = 0; i < v.s.n; i++)
    if (like[i] == '0' ? v.s.p[i] < '0' || v.s.p[i] > '9' : v.s.p[i] != like[i])
      return false;
  return true;
}

/* Is a text among the words of "enum('a','b''c')"? */
static bool is_word(const char *type, ns_bytes text) {
  const char *p = strchr(type, '\'');
  while (p != NULL) {
    size_t n = 0;
    bool same = true;
    for (p++; *p != '\0' && (p[0] != '\'' || p[1] == '\''); p++, n++) {
      p += p[0] == '\'';
      same = same && n < text.n && text.p[n] == *p;
    }
    if (same && n == text.n)
      return true;
    p = *p != '\0' ? strchr(p + 1, '\'') : NULL;
  }
  return false;
}

static ns_status bad_value(const ns_adopted *a, ns_row_state s, const char *why,
                           ns_err *err) {
  char shown[80] = "NULL";
  const ns_value *v = &a->map.states[s];
  if (v->type == NS_TEXT)
    snprintf(shown, sizeof shown, "'%.64s'", v->s.p);
  else if (v->type == NS_INT)
    snprintf(shown, sizeof shown, "%" PRId64, v->i);
  return ns_fail(err, NS_EINVALID,
                 "adopt: %s: %s is no value of column '%s', which %s %s",
                 state_names[s], shown, a->parts[NS_PART_STATUS]->name, why,
                 a->parts[NS_PART_STATUS]->type);
}

static ns_status check_value(const ns_adopted *a, ns_row_state s, ns_err *err) {
  const ns_field *f = a->parts[NS_PART_STATUS];
  ns_value v = a->map.states[s];
  if (!a->map.has_state[s])
    return NS_OK;
  if (v.type == NS_NULL)
    return f->nullable ? NS_OK : bad_value(a, s, "is never NULL:", err);
  if (f->kind == NS_FIELD_WORDS && (v.type != NS_TEXT || !is_word(f->type, v.s)))
    return bad_value(a, s, "is", err);
  if (f->kind == NS_FIELD_TIME && !is_now(v) && !is_date(v))
    return bad_value(a, s, "knows \"now\", null and dates and is", err);
  if (f->kind == NS_FIELD_WHOLE &&
      (v.type != NS_INT || v.i < f->least || v.i > f->most))
    return bad_value(a, s, "is", err);
  return NS_OK;
}

static bool same_value(ns_value x, ns_value y) {
  if (x.type != y.type)
    return false;
  if (x.type == NS_TEXT)
    return x.s.n == y.s.n && strncasecmp(x.s.p, y.s.p, x.s.n) == 0;
  return x.type == NS_NULL || x.i == y.i;
}

static ns_status check_apart(const ns_adopted *a, ns_err *err) {
  for (size_t i = 0; i < NS_ROW_PARENT_DONE; i++)
    for (size_t k = i + 1; k < NS_ROW_PARENT_DONE; k++)
      if (a->map.has_state[i] && a->map.has_state[k] &&
          same_value(a->map.states[i], a->map.states[k]))
        return ns_fail(err, NS_EINVALID,
                       "adopt: %s and %s are the same, so nobody can tell such "
                       "rows apart",
                       state_names[i], state_names[k]);
  return NS_OK;
}

static ns_status check_states(const ns_adopted *a, ns_err *err) {
  const ns_mapping *m = &a->map;
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < NS_ROW_STATES; i++)
    st = check_value(a, (ns_row_state)i, err);
  if (st == NS_OK)
    st = check_apart(a, err);
  if (st != NS_OK)
    return st;
  if (!m->has_state[NS_ROW_OPEN])
    return ns_fail(err, NS_EINVALID, "adopt: 'status.open' is needed");
  if (!m->has_state[NS_ROW_DONE] && !ns_adopt_has(a, NS_PART_COMPLETED_AT))
    return ns_fail(err, NS_EINVALID,
                   "adopt: how is a row marked as done? By 'status.done', or by "
                   "a 'completed_at' column");
  return NS_OK;
}

/* ------------------------------------------------------------ the time zone */

/* Written into statements, so it may only look like a time zone. */
static ns_status check_zone(ns_adopted *a, ns_err *err) {
  static const char chars[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                              "0123456789_/+:-";
  ns_bytes zone = a->map.time_zone;
  ns_call none = {0};
  ns_stmt *s;
  ns_status st;
  if (zone.n == 0 || zone.n > 64 || strspn(zone.p, chars) != zone.n)
    return ns_fail(err, NS_EINVALID,
                   "adopt: time_zone must be like \"+02:00\" or "
                   "\"Europe/Vienna\", not '%.64s'",
                   zone.p);
  st = ns_adopt_run(a, NULL, NS_SQL_ADOPT_ZONE, &none, &s, err);
  if (st == NS_ESQL)
    return ns_fail(err, NS_EINVALID,
                   "adopt: the server does not know the time zone '%s'; names "
                   "like Europe/Vienna need its tables: mariadb-tzinfo-to-sql",
                   zone.p);
  return st;
}

/* The server's own zone, in which other programs write into DATETIME columns. */
static ns_status server_zone(ns_adopted *a, ns_err *err) {
  const ns_value *row = NULL;
  ns_status st;
  if (a->map.time_zone.p != NULL)
    return NS_OK;
  if ((st = ns_db_run(a->db, NS_SQL_ADOPT_VERSION, NULL, err)) == NS_OK)
    st = ns_db_row(a->db, NS_SQL_ADOPT_VERSION, &row, err);
  if (st != NS_OK || row == NULL)
    return st;
  a->map.time_zone = row[1].s;
  return copy_bytes(&a->map.time_zone) ? NS_OK : no_memory(err);
}

/* --------------------------------------------------------------- all of it */

/* Ours are no application's, and change under locks of their own. */
static ns_status check_table(ns_bytes table, ns_err *err) {
  static const char ours[] = "nightshift_";
  if (table.p == NULL)
    return ns_fail(err, NS_EINVALID, "adopt: 'table' is needed");
  if (strncasecmp(table.p, ours, sizeof ours - 1) == 0)
    return ns_fail(err, NS_EINVALID,
                   "adopt: '%s' is, by its name, a table of nightshift's own", table.p);
  return NS_OK;
}

static ns_status check_limits(const ns_mapping *m, ns_err *err) {
  if (m->decay < 0 || m->max_attempts < 0 || m->overdue < 0)
    return ns_fail(err, NS_EINVALID, "adopt: %s must not be negative",
                   m->decay < 0          ? "priority.decay"
                   : m->max_attempts < 0 ? "max_attempts"
                                         : "overdue");
  return NS_OK;
}

ns_status ns_adopt_check(ns_adopted *a, const ns_mapping *map, ns_err *err) {
  ns_status st;
  if (!copy_map(&a->map, map))
    return no_memory(err);
  if ((st = check_table(a->map.table, err)) != NS_OK)
    return st;
  if (a->map.name.p == NULL) {
    a->map.name = a->map.table;
    if (!copy_bytes(&a->map.name))
      return no_memory(err);
  }
  if ((st = check_limits(&a->map, err)) == NS_OK)
    st = read_fields(a, err);
  for (size_t p = 0; st == NS_OK && p < NS_PARTS; p++)
    if ((st = find_column(a, (ns_part)p, err)) == NS_OK)
      st = check_kind(a, (ns_part)p, err);
  if (st == NS_OK)
    st = check_needed(a, err);
  if (st == NS_OK)
    st = check_key(a, err);
  if (st == NS_OK)
    st = check_written(a, err);
  if (st == NS_OK)
    st = check_shared(a, err);
  if (st == NS_OK)
    st = check_states(a, err);
  if (st == NS_OK)
    st = server_zone(a, err);
  return st == NS_OK ? check_zone(a, err) : st;
}
