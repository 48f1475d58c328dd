/*
** Rows: reading the answer of an execution, storing its rows on the client, and handing them
** out one by one. And reading the answers to statements that were sent ahead.
**
** Invariants: due answers are read in the order of sending, before anything else. All rows of a
** statement are on the client before anything else runs on the connection. A row that is handed
** out is good until the next call on its statement. No assert for the first: the library
** refuses to send before it has read them.
*/
#include "link/mariadb.h"

#include "base.h"

#include <errmsg.h>
#include <mysqld_error.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------- columns */

/* Room for 'ncols' result columns. */
static bool make_columns(ns_stmt *s) {
  size_t n = s->ncols;
  s->names = calloc(n, sizeof *s->names);
  s->binds = calloc(n, sizeof *s->binds);
  s->row = calloc(n, sizeof *s->row);
  s->lengths = calloc(n, sizeof *s->lengths);
  s->nulls = calloc(n, sizeof *s->nulls);
  return s->names != NULL && s->binds != NULL && s->row != NULL && s->lengths != NULL &&
         s->nulls != NULL;
}

void ns_stmt_free_columns(ns_stmt *s) {
  mysql_free_result(s->meta);
  free(s->names);
  free(s->binds);
  free(s->row);
  free(s->lengths);
  free(s->nulls);
  s->meta = NULL;
  s->names = NULL;
  s->binds = NULL;
  s->row = NULL;
  s->lengths = NULL;
  s->nulls = NULL;
  s->ncols = 0;
}

static bool is_integer(const MYSQL_FIELD *f) {
  return f->type == MYSQL_TYPE_TINY || f->type == MYSQL_TYPE_SHORT || f->type == MYSQL_TYPE_INT24 ||
         f->type == MYSQL_TYPE_LONG || f->type == MYSQL_TYPE_LONGLONG || f->type == MYSQL_TYPE_YEAR;
}

static bool is_real(const MYSQL_FIELD *f) {
  return f->type == MYSQL_TYPE_FLOAT || f->type == MYSQL_TYPE_DOUBLE;
}

static void bind_column(ns_stmt *s, size_t i, const MYSQL_FIELD *f) {
  MYSQL_BIND *b = &s->binds[i];
  ns_value *v = &s->row[i];
  memset(b, 0, sizeof *b);
  b->is_null = &s->nulls[i];
  b->length = &s->lengths[i];
  if (is_integer(f)) {
    b->buffer_type = MYSQL_TYPE_LONGLONG;
    b->buffer = &v->i;
    b->is_unsigned = (f->flags & UNSIGNED_FLAG) != 0;
  } else if (is_real(f)) {
    b->buffer_type = MYSQL_TYPE_DOUBLE;
    b->buffer = &v->d;
  } else {
    b->buffer_type = MYSQL_TYPE_STRING;
    b->buffer_length = f->max_length + 1;
  }
}

/* Lays the text columns of a row out in s->text, each as long as its longest
** value in this result. */
static bool place_texts(ns_stmt *s) {
  size_t total = 0;
  char *at;
  for (size_t i = 0; i < s->ncols; i++)
    total += s->binds[i].buffer_length;
  ns_buf_reset(&s->text);
  if ((at = ns_buf_room(&s->text, total + 1)) == NULL)
    return false;
  for (size_t i = 0; i < s->ncols; i++)
    if (s->binds[i].buffer_type == MYSQL_TYPE_STRING) {
      s->binds[i].buffer = at;
      at += s->binds[i].buffer_length;
    }
  return true;
}

/* ---------------------------------------------------- of prepared statements */

/* An error took the place of the rows (a KILL QUERY, a time limit). libmariadb leaves the
** statement "waiting to be stored", and its next use would wait for rows that never come. So
** its state is set as if all rows had been read. */
static ns_status refuse_cut_rows(ns_link *l, ns_stmt *s, ns_err *err) {
  ns_status st = ns_stmt_refuse(l, s, err);
  s->st->state = MYSQL_STMT_FETCH_DONE;
  return st;
}

/* A DELETE … RETURNING that a KILL QUERY has hit may be answered with a plain OK. */
static ns_status refuse_missing_rows(ns_link *l, ns_stmt *s, ns_err *err) {
  s->st->state = MYSQL_STMT_FETCH_DONE;
  return ns_link_refuse(l, ER_QUERY_INTERRUPTED,
                        "the statement was interrupted: the server has answered "
                        "without its rows",
                        err);
}

/* Brings the rows to the client and binds the columns. */
static ns_status store_rows(ns_link *l, ns_stmt *s, ns_err *err) {
  MYSQL_FIELD *fields;
  size_t n = mysql_stmt_field_count(s->st);
  if (n != s->ncols)
    ns_stmt_free_columns(s);
  if (n == 0)
    return NS_OK;
  if (mysql_stmt_store_result(s->st) != 0)
    return refuse_cut_rows(l, s, err);
  mysql_free_result(s->meta);
  s->meta = mysql_stmt_result_metadata(s->st);
  if (s->ncols == 0) {
    s->ncols = n;
    if (!make_columns(s)) {
      ns_stmt_free_columns(s);
      return ns_no_memory(err);
    }
  }
  if (s->meta == NULL)
    return ns_no_memory(err);
  fields = mysql_fetch_fields(s->meta);
  for (size_t i = 0; i < n; i++) {
    s->names[i] = fields[i].name;
    bind_column(s, i, &fields[i]);
  }
  if (!place_texts(s))
    return ns_no_memory(err);
  return mysql_stmt_bind_result(s->st, s->binds) == 0 ? NS_OK : ns_stmt_refuse(l, s, err);
}

static void forget_kept(ns_kept *k) {
  k->on = false;
  k->n = k->at = 0;
  ns_buf_reset(&k->bytes);
}

static ns_status read_execution(ns_link *l, ns_stmt *s, ns_err *err) {
  ns_status st = ns_link_await(l, err);
  forget_kept(&s->kept);
  if (st != NS_OK)
    return st;
  l->my->field_count = 0; /* that of an earlier answer */
  if (l->my->methods->db_read_execute_response(s->st) != 0)
    return ns_stmt_refuse(l, s, err);
  if (mysql_stmt_field_count(s->st) > 0 && l->my->field_count == 0)
    return refuse_missing_rows(l, s, err);
  s->affected = (int64_t)mysql_stmt_affected_rows(s->st);
  s->insert_id = (int64_t)mysql_stmt_insert_id(s->st);
  return store_rows(l, s, err);
}

/* Fetches a row from the stored ones. */
static ns_status fetch_row(ns_link *l, ns_stmt *s, const ns_value **row, ns_err *err) {
  const MYSQL_FIELD *fields;
  int rc = mysql_stmt_fetch(s->st);
  *row = NULL;
  if (rc == MYSQL_NO_DATA) {
    mysql_stmt_free_result(s->st);
    return NS_OK;
  }
  if (rc == 1)
    return ns_stmt_refuse(l, s, err);
  fields = mysql_fetch_fields(s->meta);
  for (size_t i = 0; i < s->ncols; i++) {
    ns_value *v = &s->row[i];
    if (s->nulls[i])
      v->type = NS_NULL;
    else if (s->binds[i].buffer_type == MYSQL_TYPE_LONGLONG)
      v->type = (fields[i].flags & UNSIGNED_FLAG) && v->i < 0 ? NS_UINT : NS_INT;
    else if (s->binds[i].buffer_type == MYSQL_TYPE_DOUBLE)
      v->type = NS_REAL;
    else {
      v->type = NS_TEXT;
      v->s = (ns_bytes){s->binds[i].buffer, s->lengths[i]};
    }
  }
  *row = s->row;
  return NS_OK;
}

/* ----------------------------------------------------------------- of a CALL */

static bool keep_row(ns_kept *k, const ns_value *row, size_t n) {
  if (!ns_grow(&k->values, &k->cap, k->n + n, sizeof *row))
    return false;
  for (size_t i = 0; i < n; i++) {
    if (row[i].type == NS_TEXT)
      ns_buf_add(&k->bytes, row[i].s.p, row[i].s.n);
    k->values[k->n++] = row[i];
  }
  return !k->bytes.oom;
}

/* Names and texts are where they stay. */
static void place_kept(ns_stmt *s) {
  ns_kept *k = &s->kept;
  const char *at = k->bytes.p;
  for (size_t i = 0; i < s->ncols; i++) {
    s->names[i] = at;
    at += strlen(at) + 1;
  }
  for (size_t i = 0; i < k->n; i++)
    if (k->values[i].type == NS_TEXT) {
      k->values[i].s.p = at;
      at += k->values[i].s.n;
    }
}

/* The packet behind the rows takes their place in the library. */
static ns_status keep_rows(ns_link *l, ns_stmt *s, ns_err *err) {
  ns_kept *k = &s->kept;
  const ns_value *row;
  ns_status st;
  k->on = true;
  for (size_t i = 0; i < s->ncols; i++)
    ns_buf_add(&k->bytes, s->names[i], strlen(s->names[i]) + 1);
  while ((st = fetch_row(l, s, &row, err)) == NS_OK && row != NULL)
    if (!keep_row(k, row, s->ncols))
      return ns_no_memory(err);
  if (st == NS_OK && k->bytes.oom)
    st = ns_no_memory(err);
  if (st == NS_OK)
    place_kept(s);
  return st;
}

static const ns_value *next_kept(ns_stmt *s) {
  ns_kept *k = &s->kept;
  if (k->at >= k->n)
    return NULL;
  k->at += s->ncols;
  ns_assert(k->at <= k->n);
  return k->values + k->at - s->ncols;
}

/* A CALL answers with a status after its rows, and maybe with more rows before it, which no
** caller is given. All results are taken, so that the end of the call is known: its outcome,
** and whether a transaction is open. */
static ns_status finish_call(ns_link *l, ns_stmt *s, ns_err *err) {
  ns_status st = s->ncols > 0 && mysql_stmt_more_results(s->st) ? keep_rows(l, s, err) : NS_OK;
  while (mysql_stmt_more_results(s->st))
    if (mysql_stmt_next_result(s->st) > 0)
      return ns_stmt_refuse(l, s, err);
  return st;
}

/* ------------------------------------------------------- of brief statements */

static ns_status read_brief(ns_link *l, ns_stmt *s, ns_err *err) {
  ns_status st = ns_link_await(l, err);
  if (st != NS_OK)
    return st;
  if (mysql_read_query_result(l->my) != 0)
    return ns_link_refused(l, err);
  s->affected = (int64_t)mysql_affected_rows(l->my);
  if ((s->ncols = mysql_field_count(l->my)) == 0)
    return NS_OK;
  if ((s->meta = mysql_store_result(l->my)) == NULL) {
    s->ncols = 0;
    return ns_link_refused(l, err);
  }
  if (make_columns(s))
    return NS_OK;
  ns_stmt_free_columns(s);
  return ns_no_memory(err);
}

static bool is_text(const MYSQL_FIELD *f) {
  return f->type == MYSQL_TYPE_VARCHAR || f->type == MYSQL_TYPE_VAR_STRING ||
         f->type == MYSQL_TYPE_STRING ||
         (f->type >= MYSQL_TYPE_TINY_BLOB && f->type <= MYSQL_TYPE_BLOB);
}

/* Of integers and texts. */
static void fetch_brief(ns_stmt *s, const ns_value **row) {
  MYSQL_ROW texts = mysql_fetch_row(s->meta);
  const MYSQL_FIELD *fields = mysql_fetch_fields(s->meta);
  const unsigned long *lengths = mysql_fetch_lengths(s->meta);
  if (texts == NULL)
    return;
  for (size_t i = 0; i < s->ncols; i++)
    if (texts[i] != NULL && is_text(&fields[i]))
      s->row[i] = (ns_value){.type = NS_TEXT, .s = {texts[i], lengths[i]}};
    else
      s->row[i] = (ns_value){.type = texts[i] == NULL ? NS_NULL : NS_INT,
                             .i = texts[i] == NULL ? 0 : strtoll(texts[i], NULL, 10)};
  *row = s->row;
}

/* -------------------------------------------------------------------- of any */

ns_status ns_stmt_read_execution(ns_link *l, ns_stmt *s, ns_err *err) {
  ns_status st;
  ns_link_waits(l, s->name);
  if (s->brief)
    st = read_brief(l, s, err);
  else if ((st = read_execution(l, s, err)) == NS_OK)
    st = finish_call(l, s, err);
  ns_link_waited(l);
  return st;
}

void ns_link_take_answer(ns_link *l) {
  size_t number = l->sent - l->due--;
  ns_status st;
  ns_err err;
  bool read;
  ns_stmt *s = l->asks[number % NS_DUE_MAX];
  if (s != NULL) {
    s->asked = false;
    s->outcome = ns_stmt_read_execution(l, s, &s->refusal);
    return;
  }
  ns_link_waits(l, l->names[number % NS_DUE_MAX]);
  st = ns_link_await(l, &err);
  read = st == NS_OK && mysql_read_query_result(l->my) == 0;
  ns_link_waited(l);
  if (number + 1 == l->saving) {
    l->saving = 0;
    l->saved = read;
  }
  if (read) {
    if (number >= l->counted)
      l->affected += (int64_t)mysql_affected_rows(l->my);
    return;
  }
  if (st == NS_OK)
    ns_link_refused(l, &err);
  if (l->failure.status != NS_OK)
    return;
  l->failure = err;
  l->failed = number;
}

void ns_link_take_answers(ns_link *l) {
  while (l->due > 0)
    ns_link_take_answer(l);
}

ns_status ns_stmt_fetch(ns_link *l, ns_stmt *s, const ns_value **row, ns_err *err) {
  *row = NULL;
  if (s->ncols == 0)
    return NS_OK;
  if (s->brief)
    fetch_brief(s, row);
  else if (s->kept.on)
    *row = next_kept(s);
  else
    return fetch_row(l, s, row, err);
  return NS_OK;
}

size_t ns_stmt_columns(const ns_stmt *s) {
  return s->ncols;
}

const char *const *ns_stmt_names(const ns_stmt *s) {
  return s->names;
}

int64_t ns_stmt_affected(const ns_stmt *s) {
  return s->affected;
}

int64_t ns_stmt_insert_id(const ns_stmt *s) {
  return s->insert_id;
}
