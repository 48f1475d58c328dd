/*
** The statements of an adopted table: templates of sql/query/adopt.sql and drain.sql
** with marks that are filled in, once each. Marks that stand for a name, a parameter or the
** time zone are here; adopt/put.h says where the rest are.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adopt/put.h"

#define TRIGGER_TABLE_MAX 40 /* letters of a table in the name of a trigger */

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
  ns_put_name(f, a->map.table.p);
}

static void put_id(ns_adopted *a, ns_filled *f) {
  ns_put(a, f, "%c", NS_PART_ID);
}

static void put_key(ns_adopted *a, ns_filled *f) {
  ns_put_name(f, a->parts[NS_PART_ID]->name);
}

static void put_parent(ns_adopted *a, ns_filled *f) {
  ns_put(a, f, "%c", NS_PART_PARENT);
}

static void put_parent_key(ns_adopted *a, ns_filled *f) {
  ns_put_name(f, a->parts[NS_PART_PARENT]->name);
}

static void put_columns(ns_adopted *a, ns_filled *f) {
  for (size_t i = 0; i < a->fields.n; i++) {
    ns_buf_adds(&f->text, i > 0 ? ", t." : "t.");
    ns_put_name(f, a->fields.items[i].name);
  }
}

static void put_delay(ns_adopted *a, ns_filled *f) {
  (void)a;
  ns_put_slot(f, NS_SLOT_DELAY);
}

static void put_row(ns_adopted *a, ns_filled *f) {
  (void)a;
  ns_put_slot(f, NS_SLOT_ROW);
}

static void put_rows(ns_adopted *a, ns_filled *f) {
  (void)a;
  ns_put_slot(f, NS_SLOT_ROWS);
}

static void put_token(ns_adopted *a, ns_filled *f) {
  (void)a;
  ns_put_slot(f, NS_SLOT_TOKEN);
}

static void put_limit(ns_adopted *a, ns_filled *f) {
  (void)a;
  ns_put_slot(f, NS_SLOT_LIMIT);
}

static void put_page(ns_adopted *a, ns_filled *f) {
  (void)a;
  ns_put_slot(f, NS_SLOT_PAGE);
}

static void put_shunned(ns_adopted *a, ns_filled *f) {
  (void)a;
  ns_put_slot(f, NS_SLOT_SHUNNED);
}

static void put_table_value(ns_adopted *a, ns_filled *f) {
  ns_put_value(f, ns_vtext(a->map.table));
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

static void put_ring(ns_adopted *a, ns_filled *f) {
  ns_put_text(a, f, ns_sql_texts[NS_SQL_ADOPT_RING]);
}

static const ns_mark marks[] = {
    {":delay", put_delay}, {":limit", put_limit}, {":page", put_page}, {":row", put_row},
    {":rows", put_rows}, {":shunned", put_shunned}, {":table", put_table_value},
    {":token", put_token}, {"at_once", put_at_once}, {"columns", put_columns}, {"id", put_id},
    {"key", put_key}, {"parent", put_parent}, {"parent_key", put_parent_key},
    {"ring", put_ring}, {"table", put_table}, {"trigger_insert", put_trigger_insert},
    {"trigger_update", put_trigger_update}, {"zone", put_zone}, {NULL, NULL}};

static const ns_mark *const all[] = {marks, ns_marks_where, ns_marks_ends, ns_marks_set};

/* An unknown mark is a mistake in adopt.sql, which the server tells of. */
static void fill_mark(ns_adopted *a, ns_filled *f, const char *name, size_t n) {
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
    for (const ns_mark *m = all[i]; m->name != NULL; m++)
      if (strlen(m->name) == n && memcmp(m->name, name, n) == 0)
        m->put(a, f);
}

void ns_put_text(ns_adopted *a, ns_filled *f, const char *text) {
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
  ns_put_text(a, f, ns_sql_texts[sql]);
  return f->text.oom ? ns_fail(err, NS_ENOMEM, "out of memory") : NS_OK;
}

ns_status ns_adopt_spell(ns_adopted *a, ns_sql sql, ns_buf *out, ns_err *err) {
  ns_filled f = {.literal = true};
  ns_put_text(a, &f, ns_sql_texts[sql]);
  ns_buf_add(out, f.text.p, f.text.n);
  out->oom = out->oom || f.text.oom;
  ns_buf_free(&f.text);
  free(f.params);
  return out->oom ? ns_fail(err, NS_ENOMEM, "out of memory") : NS_OK;
}
