/*
** Statements of one connection: preparing, parameters, rows, and sending ahead.
**
** Invariants: a prepared statement's rows are stored on the client before
** anything else runs on the connection, so statements never disturb each
** other; parameters are bound, never pasted, but for integers of what is sent as text
** (brief). No more than 'places' statements of a link are open in the server. Answers that are due are read in the
** order of what was sent, before anything else.
*/
#include "link/statement.h"

#include "link/mariadb.h"

#include <errmsg.h>
#include <mysqld_error.h>

#include <stdlib.h>
#include <string.h>

#include "link/packet.h"

#define VALUE_BYTES 18    /* a parameter on the wire, beside its text */
#define PACKET_SPARE 1024 /* of max_packet that is left alone */
#define COOLING 16        /* statements that make room, until uses count half */

/* Rows that are read before what comes behind them. */
typedef struct ns_kept {
  bool on;
  ns_value *values; /* row by row */
  size_t n, cap;
  size_t at;        /* the next that is handed out */
  ns_buf bytes;     /* names of columns, then texts, in their order */
} ns_kept;

struct ns_stmt {
  ns_stmt *next;
  MYSQL_STMT *st;      /* NULL: brief */
  const char *name;    /* for whoever is told of waits; NULL: nobody is */
  char *sql;           /* owned */
  size_t nsql;
  bool brief;          /* it is sent as text */
  bool open;           /* the server knows it */
  uint64_t heat, used; /* how often lately, and when last, by the link's clock */
  size_t nparams;
  size_t ncols;        /* of the result; 0: no rows */
  const char **names;  /* ncols; point into fields */
  MYSQL_RES *meta;     /* owns what names point to; NULL without rows */
  MYSQL_BIND *binds;   /* ncols */
  ns_value *row;       /* ncols, handed out by fetch */
  unsigned long *lengths;
  my_bool *nulls;
  ns_buf text;         /* where text columns of one row land */
  ns_kept kept;        /* the rows of a CALL */
  int64_t affected, insert_id;
  ns_status outcome;   /* of the last time it was asked */
};

static ns_status refuse_stmt(ns_link *l, ns_stmt *s, ns_err *err) {
  unsigned sqlerr = mysql_stmt_errno(s->st);
  /* a statement whose connection went away says so in its own words */
  if (sqlerr == CR_STMT_CLOSED || sqlerr == CR_NO_PREPARE_STMT)
    sqlerr = CR_SERVER_LOST;
  return ns_link_refuse(l, sqlerr, mysql_stmt_error(s->st), err);
}

/* ----------------------------------------------------------- preparing */

static void take_answers(ns_link *l);

/* Room for 'ncols' result columns. */
static bool make_columns(ns_stmt *s) {
  size_t n = s->ncols;
  s->names = calloc(n, sizeof *s->names);
  s->binds = calloc(n, sizeof *s->binds);
  s->row = calloc(n, sizeof *s->row);
  s->lengths = calloc(n, sizeof *s->lengths);
  s->nulls = calloc(n, sizeof *s->nulls);
  return s->names != NULL && s->binds != NULL && s->row != NULL &&
         s->lengths != NULL && s->nulls != NULL;
}

static void free_columns(ns_stmt *s) {
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

/* Who makes room: the one used least, but none that is held. */
static ns_stmt *coldest(const ns_link *l) {
  ns_stmt *cold = NULL;
  for (ns_stmt *s = l->stmts; s != NULL; s = s->next)
    if (s->open && (l->held == 0 || s->used < l->held) &&
        (cold == NULL || s->heat < cold->heat ||
         (s->heat == cold->heat && s->used < cold->used)))
      cold = s;
  return cold;
}

void ns_link_hold(ns_link *l, bool yes) {
  l->held = yes ? l->clock + 1 : 0;
}

/* The server forgets it; it says nothing to that. What it was asked last it answers. */
static void close_stmt(ns_link *l, ns_stmt *s) {
  unsigned char id[4];
  for (size_t i = 0; i < sizeof id; i++)
    id[i] = (unsigned char)(s->st->stmt_id >> (8 * i));
  s->open = false;
  l->open--;
  if (!l->dead)
    l->my->methods->db_command(l->my, COM_STMT_CLOSE, (char *)id, sizeof id, 1, NULL);
}

/* After some time, what was used often counts half. */
static void make_room(ns_link *l) {
  ns_stmt *cold;
  while (l->open >= l->places && (cold = coldest(l)) != NULL) {
    close_stmt(l, cold);
    if (++l->closed % COOLING == 0)
      for (ns_stmt *s = l->stmts; s != NULL; s = s->next)
        s->heat /= 2;
  }
}

/* The library sends, and does not wait for the answer. */
static ns_status prepare(ns_link *l, ns_stmt *s, ns_err *err) {
  my_bool on = 1;
  my_bool off = 0;
  ns_status st;
  int failed;
  ns_link_sends(l);
  mysql_optionsv(l->my, MARIADB_OPT_SKIP_READ_RESPONSE, &on);
  failed = mysql_stmt_prepare(s->st, s->sql, (unsigned long)s->nsql);
  mysql_optionsv(l->my, MARIADB_OPT_SKIP_READ_RESPONSE, &off);
  if (failed)
    return refuse_stmt(l, s, err);
  ns_link_waits(l, s->name);
  if ((st = ns_link_await(l, err)) == NS_OK &&
      l->my->methods->db_read_prepare_response(s->st))
    st = ns_link_refused(l, err);
  ns_link_waited(l);
  return st;
}

static ns_status open_stmt(ns_link *l, ns_stmt *s, ns_err *err) {
  my_bool on = 1;
  ns_status st;
  take_answers(l);
  if (l->dead)
    return ns_link_gone(err);
  make_room(l);
  free_columns(s);
  if (s->st != NULL)
    mysql_stmt_close(s->st);
  if ((s->st = mysql_stmt_init(l->my)) == NULL)
    return ns_no_memory(err);
  mysql_stmt_attr_set(s->st, STMT_ATTR_UPDATE_MAX_LENGTH, &on);
  if ((st = prepare(l, s, err)) != NS_OK)
    return st;
  s->nparams = mysql_stmt_param_count(s->st);
  s->open = true;
  l->open++;
  return NS_OK;
}

static ns_stmt *add_stmt(ns_link *l, const char *name, const char *sql, size_t n) {
  ns_stmt *s = calloc(1, sizeof *s);
  if (s == NULL || (s->sql = malloc(n + 1)) == NULL) {
    free(s);
    return NULL;
  }
  memcpy(s->sql, sql, n);
  s->name = name;
  s->nsql = n;
  s->next = l->stmts;
  l->stmts = s;
  return s;
}

ns_status ns_stmt_ready(ns_link *l, ns_stmt *s, ns_err *err) {
  s->used = ++l->clock;
  s->heat++;
  return s->open || s->brief ? NS_OK : open_stmt(l, s, err);
}

ns_status ns_link_prepare(ns_link *l, ns_stmt **out, const char *name, const char *sql,
                          size_t n, ns_err *err) {
  ns_stmt *s = add_stmt(l, name, sql, n);
  ns_status st;
  *out = NULL;
  if (s == NULL)
    return ns_no_memory(err);
  if ((st = ns_stmt_ready(l, s, err)) != NS_OK) {
    ns_stmt_free(l, s);
    return st;
  }
  *out = s;
  return NS_OK;
}

ns_status ns_link_brief(ns_link *l, ns_stmt **out, const char *name, const char *sql,
                        size_t n, ns_err *err) {
  if ((*out = add_stmt(l, name, sql, n)) == NULL)
    return ns_no_memory(err);
  (*out)->brief = true;
  for (size_t i = 0; i < n; i++)
    (*out)->nparams += sql[i] == '?';
  return NS_OK;
}

void ns_stmt_free(ns_link *l, ns_stmt *s) {
  ns_stmt **at = &l->stmts;
  if (s == NULL)
    return;
  take_answers(l);
  while (*at != s)
    at = &(*at)->next;
  *at = s->next;
  l->open -= s->open;
  if (s->st != NULL) {
    mysql_stmt_free_result(s->st);
    mysql_stmt_close(s->st);
  }
  free_columns(s);
  ns_buf_free(&s->text);
  ns_buf_free(&s->kept.bytes);
  free(s->kept.values);
  free(s->sql);
  free(s);
}

void ns_stmts_lost(ns_link *l) {
  for (ns_stmt *s = l->stmts; s != NULL; s = s->next)
    s->open = false;
  l->open = 0;
}

size_t ns_stmt_params(const ns_stmt *s) {
  return s->nparams;
}

/* ---------------------------------------------------------- parameters */

static void bind_value(MYSQL_BIND *b, const ns_value *v) {
  memset(b, 0, sizeof *b);
  switch (v->type) {
  case NS_NULL:
    b->buffer_type = MYSQL_TYPE_NULL;
    break;
  case NS_INT:
  case NS_UINT:
    b->buffer_type = MYSQL_TYPE_LONGLONG;
    b->buffer = (void *)(uintptr_t)&v->i;
    b->is_unsigned = v->type == NS_UINT;
    break;
  case NS_REAL:
    b->buffer_type = MYSQL_TYPE_DOUBLE;
    b->buffer = (void *)(uintptr_t)&v->d;
    break;
  case NS_TEXT:
    b->buffer_type = MYSQL_TYPE_STRING;
    b->buffer = (void *)(uintptr_t)v->s.p;
    b->buffer_length = (unsigned long)v->s.n;
    break;
  }
}

/* A packet over the limit costs the connection, and would cost the next one
** too when it is sent again: it is refused here. */
static bool fits(const ns_link *l, size_t texts, size_t nvalues) {
  return l->max_packet == 0 ||
         texts + VALUE_BYTES * nvalues + PACKET_SPARE <= l->max_packet;
}

static ns_status too_big(const ns_link *l, ns_err *err) {
  return ns_fail(err, NS_ETOOBIG,
                 "the statement is over the %zu bytes that the server takes "
                 "(max_allowed_packet)",
                 l->max_packet);
}

static ns_status bind_params(ns_link *l, ns_stmt *s, MYSQL_BIND *binds,
                             ns_err *err) {
  return s->nparams == 0 || mysql_stmt_bind_param(s->st, binds) == 0
             ? NS_OK
             : refuse_stmt(l, s, err);
}

/* -------------------------------------------------------------- result */

static bool is_integer(const MYSQL_FIELD *f) {
  return f->type == MYSQL_TYPE_TINY || f->type == MYSQL_TYPE_SHORT ||
         f->type == MYSQL_TYPE_INT24 || f->type == MYSQL_TYPE_LONG ||
         f->type == MYSQL_TYPE_LONGLONG || f->type == MYSQL_TYPE_YEAR;
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

/* An error took the place of the rows (a KILL QUERY, a time limit). libmariadb
** leaves the statement "waiting to be stored", and its next use would wait for
** rows that never come: say that they have all been seen. */
static ns_status cut_off(ns_link *l, ns_stmt *s, ns_err *err) {
  ns_status st = refuse_stmt(l, s, err);
  s->st->state = MYSQL_STMT_FETCH_DONE;
  return st;
}

/* A DELETE … RETURNING that a KILL QUERY has hit may be answered with a plain OK. */
static ns_status no_rows(ns_link *l, ns_stmt *s, ns_err *err) {
  s->st->state = MYSQL_STMT_FETCH_DONE;
  return ns_link_refuse(l, ER_QUERY_INTERRUPTED,
                        "the statement was interrupted: the server has answered "
                        "without its rows",
                        err);
}

/* Brings the rows to the client and binds the columns. */
static ns_status store(ns_link *l, ns_stmt *s, ns_err *err) {
  MYSQL_FIELD *fields;
  size_t n = mysql_stmt_field_count(s->st);
  if (n != s->ncols)
    free_columns(s);
  if (n == 0)
    return NS_OK;
  if (mysql_stmt_store_result(s->st) != 0)
    return cut_off(l, s, err);
  mysql_free_result(s->meta);
  s->meta = mysql_stmt_result_metadata(s->st);
  if (s->ncols == 0) {
    s->ncols = n;
    if (!make_columns(s)) {
      free_columns(s);
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
  return mysql_stmt_bind_result(s->st, s->binds) == 0 ? NS_OK
                                                      : refuse_stmt(l, s, err);
}

static void forget_kept(ns_kept *k) {
  k->on = false;
  k->n = k->at = 0;
  ns_buf_reset(&k->bytes);
}

/* The library sends, and does not wait for the answer. */
static ns_status send_execution(ns_link *l, ns_stmt *s, ns_err *err) {
  my_bool on = 1;
  my_bool off = 0;
  int failed;
  mysql_optionsv(l->my, MARIADB_OPT_SKIP_READ_RESPONSE, &on);
  failed = mysql_stmt_execute(s->st);
  mysql_optionsv(l->my, MARIADB_OPT_SKIP_READ_RESPONSE, &off);
  return failed ? refuse_stmt(l, s, err) : NS_OK;
}

static ns_status read_execution(ns_link *l, ns_stmt *s, ns_err *err) {
  ns_status st = ns_link_await(l, err);
  forget_kept(&s->kept);
  if (st != NS_OK)
    return st;
  l->my->field_count = 0; /* that of an earlier answer */
  if (l->my->methods->db_read_execute_response(s->st) != 0)
    return refuse_stmt(l, s, err);
  if (mysql_stmt_field_count(s->st) > 0 && l->my->field_count == 0)
    return no_rows(l, s, err);
  s->affected = (int64_t)mysql_stmt_affected_rows(s->st);
  s->insert_id = (int64_t)mysql_stmt_insert_id(s->st);
  return store(l, s, err);
}

/* From what has been stored. */
static ns_status fetch_row(ns_link *l, ns_stmt *s, const ns_value **row, ns_err *err) {
  const MYSQL_FIELD *fields;
  int rc = mysql_stmt_fetch(s->st);
  *row = NULL;
  if (rc == MYSQL_NO_DATA) {
    mysql_stmt_free_result(s->st);
    return NS_OK;
  }
  if (rc == 1)
    return refuse_stmt(l, s, err);
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

/* ---------------------------------------------------------------- of a CALL */

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

/* What comes behind the rows takes their place in the library. */
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
  return k->values + k->at - s->ncols;
}

/* A CALL answers with a status after its rows, and maybe with more rows before it, which
** nobody is given. All of it is taken, so that its end is known: what it was, and whether a
** transaction is open. */
static ns_status finish_call(ns_link *l, ns_stmt *s, ns_err *err) {
  ns_status st = s->ncols > 0 && mysql_stmt_more_results(s->st) ? keep_rows(l, s, err) : NS_OK;
  while (mysql_stmt_more_results(s->st))
    if (mysql_stmt_next_result(s->st) > 0)
      return refuse_stmt(l, s, err);
  return st;
}

/* ---------------------------------------------------------------- as text */

/* With the integers of 'params', or else of a row of 'cols', in the place of its marks. */
static ns_status spell(ns_link *l, const ns_stmt *s, const ns_value *params,
                       const ns_column *cols, size_t row, ns_err *err) {
  size_t k = 0;
  ns_buf_reset(&l->packet);
  for (size_t i = 0; i < s->nsql; i++) {
    int64_t v;
    if (s->sql[i] != '?') {
      ns_buf_addc(&l->packet, s->sql[i]);
      continue;
    }
    v = params != NULL ? params[k].i : cols[k].ints[row];
    ns_buf_addf(&l->packet, "%lld", (long long)v);
    k++;
  }
  return l->packet.oom ? ns_no_memory(err) : NS_OK;
}

static ns_status send_brief(ns_link *l, ns_stmt *s, const ns_value *params,
                            ns_err *err) {
  ns_status st = spell(l, s, params, NULL, 0, err);
  free_columns(s);
  ns_link_sends(l);
  if (st == NS_OK &&
      mysql_send_query(l->my, l->packet.p, (unsigned long)l->packet.n) != 0)
    st = ns_link_refused(l, err);
  return st;
}

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
  free_columns(s);
  return ns_no_memory(err);
}

/* Of integers. */
static void fetch_brief(ns_stmt *s, const ns_value **row) {
  MYSQL_ROW texts = mysql_fetch_row(s->meta);
  if (texts == NULL)
    return;
  for (size_t i = 0; i < s->ncols; i++) {
    s->row[i].type = texts[i] == NULL ? NS_NULL : NS_INT;
    s->row[i].i = texts[i] == NULL ? 0 : strtoll(texts[i], NULL, 10);
  }
  *row = s->row;
}

/* ---------------------------------------------------------------- prepared */

/* Its answer comes after those that are due. */
static ns_status send_stmt(ns_link *l, ns_stmt *s, const ns_value *params,
                           ns_err *err) {
  MYSQL_BIND few[24];
  MYSQL_BIND *binds = few;
  ns_status st;
  unsigned one = 0;
  size_t texts = 0;
  if (l->dead)
    return ns_link_gone(err);
  if ((st = ns_stmt_ready(l, s, err)) != NS_OK)
    return st;
  if (s->brief)
    return send_brief(l, s, params, err);
  for (size_t i = 0; i < s->nparams; i++)
    texts += params[i].type == NS_TEXT ? params[i].s.n : 0;
  if (!fits(l, texts, s->nparams))
    return too_big(l, err);
  mysql_stmt_free_result(s->st);
  if (s->nparams > sizeof few / sizeof few[0] &&
      (binds = calloc(s->nparams, sizeof *binds)) == NULL)
    return ns_no_memory(err);
  for (size_t i = 0; i < s->nparams; i++)
    bind_value(&binds[i], &params[i]);
  ns_link_sends(l);
  mysql_stmt_attr_set(s->st, STMT_ATTR_ARRAY_SIZE, &one);
  if ((st = bind_params(l, s, binds, err)) == NS_OK)
    st = send_execution(l, s, err);
  if (binds != few)
    free(binds);
  return st;
}

static ns_status read_stmt(ns_link *l, ns_stmt *s, ns_err *err) {
  ns_status st;
  ns_link_waits(l, s->name);
  if (s->brief)
    st = read_brief(l, s, err);
  else if ((st = read_execution(l, s, err)) == NS_OK)
    st = finish_call(l, s, err);
  ns_link_waited(l);
  return st;
}

ns_status ns_stmt_run(ns_link *l, ns_stmt *s, const ns_value *params,
                      ns_err *err) {
  ns_status st;
  ns_status before;
  st = send_stmt(l, s, params, err);
  before = ns_link_answers(l, NULL, st == NS_OK ? err : NULL);
  if (st != NS_OK)
    return st;
  st = read_stmt(l, s, before == NS_OK ? err : NULL);
  return before != NS_OK ? before : st;
}

/* ------------------------------------------------------- sending ahead */

/* Reads the answer that is due first; one that never comes is a failure. */
static void take_answer(ns_link *l) {
  size_t number = l->sent - l->due--;
  ns_status st;
  ns_err err;
  bool read;
  if (l->asked != NULL && l->asked_at == number) {
    ns_stmt *s = l->asked;
    l->asked = NULL;
    s->outcome = read_stmt(l, s, &l->refusal);
    return;
  }
  ns_link_waits(l, l->names[number % NS_DUE_MAX]);
  st = ns_link_await(l, &err);
  read = st == NS_OK && mysql_read_query_result(l->my) == 0;
  ns_link_waited(l);
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

/* With compression the library keeps what it writes where it reads. */
static void sent(ns_link *l, const char *name) {
  l->names[l->sent++ % NS_DUE_MAX] = name;
  l->due++;
  if (l->due >= NS_DUE_MAX || l->my->net.compress)
    take_answer(l);
}

static ns_status send_text(ns_link *l, const char *name, const char *sql, ns_err *err) {
  if (l->dead)
    return ns_link_gone(err);
  ns_link_sends(l);
  if (mysql_send_query(l->my, sql, (unsigned long)strlen(sql)) != 0)
    return ns_link_refused(l, err);
  sent(l, name);
  return NS_OK;
}

ns_status ns_link_send(ns_link *l, const char *sql, ns_err *err) {
  return send_text(l, ns_link_name(sql), sql, err);
}

/* One packet. The library's own call for this waits for the answer; what is
** beneath it does not. */
static ns_status send_rows(ns_link *l, ns_stmt *s, const ns_column *cols,
                           size_t from, size_t nrows, ns_err *err) {
  ns_status st = ns_stmt_ready(l, s, err);
  if (st != NS_OK)
    return st;
  ns_buf_reset(&l->packet);
  if (!ns_packet_add(&l->packet, (uint32_t)s->st->stmt_id, cols, s->nparams, from,
                     nrows))
    return ns_no_memory(err);
  ns_link_sends(l);
  if (l->my->methods->db_command(
          l->my, nrows == 1 ? COM_STMT_EXECUTE : COM_STMT_BULK_EXECUTE,
          l->packet.p, l->packet.n, 1, NULL) != 0)
    return ns_link_refused(l, err);
  sent(l, s->name);
  return NS_OK;
}

/* A row of one that is sent as text. */
static ns_status send_brief_row(ns_link *l, const ns_stmt *s, const ns_column *cols,
                                size_t row, ns_err *err) {
  ns_status st = spell(l, s, NULL, cols, row, err);
  if (st != NS_OK)
    return st;
  ns_buf_addc(&l->packet, '\0');
  return l->packet.oom ? ns_no_memory(err) : send_text(l, s->name, l->packet.p, err);
}

/* As many rows from 'from' on as go into a packet; '*n': how many. */
static ns_status send_part(ns_link *l, ns_stmt *s, const ns_column *cols,
                           size_t from, size_t nrows, size_t *n, ns_err *err) {
  if (s->brief) {
    *n = 1;
    return send_brief_row(l, s, cols, from, err);
  }
  size_t max = l->max_packet > PACKET_SPARE ? l->max_packet - PACKET_SPARE : 0;
  *n = ns_packet_rows(cols, s->nparams, from, nrows, max);
  return *n > 0 ? send_rows(l, s, cols, from, *n, err) : too_big(l, err);
}

ns_status ns_stmt_send(ns_link *l, ns_stmt *s, const ns_column *cols,
                       size_t nrows, ns_err *err) {
  ns_status st = NS_OK;
  size_t n;
  if (l->dead)
    return ns_link_gone(err);
  for (size_t from = 0; st == NS_OK && from < nrows; from += n)
    st = send_part(l, s, cols, from, nrows, &n, err);
  return st;
}

/* What failed is told by ns_link_answers. */
static void take_answers(ns_link *l) {
  while (l->due > 0)
    take_answer(l);
}

ns_status ns_stmt_ask(ns_link *l, ns_stmt *s, const ns_value *params,
                      ns_err *err) {
  ns_status st;
  if (l->asked != NULL)
    take_answers(l);
  if ((st = send_stmt(l, s, params, err)) != NS_OK)
    return st;
  l->asked = s;
  l->asked_at = l->sent;
  sent(l, s->name);
  return NS_OK;
}

ns_status ns_stmt_told(ns_link *l, ns_stmt *s, ns_err *err) {
  ns_status st = ns_link_answers(l, NULL, err);
  if (st != NS_OK)
    return st;
  if (s->outcome != NS_OK)
    *err = l->refusal;
  return s->outcome;
}

ns_status ns_link_answers(ns_link *l, size_t *failed, ns_err *err) {
  ns_status st;
  take_answers(l);
  if ((st = l->failure.status) != NS_OK) {
    if (err != NULL)
      *err = l->failure;
    if (failed != NULL)
      *failed = l->failed;
  }
  l->failure.status = NS_OK;
  l->sent = 0;
  l->changed = l->affected;
  l->affected = 0;
  l->counted = 0;
  return st;
}

/* A part that fails may end the transaction, so the next one waits for it. */
ns_status ns_stmt_bulk(ns_link *l, ns_stmt *s, const ns_column *cols,
                       size_t nrows, ns_err *err) {
  ns_status st = NS_OK;
  size_t n;
  if (l->dead)
    return ns_link_gone(err);
  l->counted = l->sent;
  l->affected = s->affected = 0;
  for (size_t from = 0; st == NS_OK && from < nrows; from += n)
    if ((st = send_part(l, s, cols, from, nrows, &n, err)) == NS_OK) {
      st = ns_link_answers(l, NULL, err);
      s->affected += l->changed;
    }
  return st;
}

int64_t ns_link_changed(const ns_link *l) {
  return l->changed;
}

/* ---------------------------------------------------------------- rows */

ns_status ns_stmt_fetch(ns_link *l, ns_stmt *s, const ns_value **row,
                        ns_err *err) {
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
