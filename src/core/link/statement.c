/*
** Statements of one connection: preparing them, parameters, sending an execution. Its rows
** are in link/rows.c, sending ahead is in link/send.c.
**
** Invariants: parameters are bound, never pasted, but for the integers of a brief statement,
** which is sent as text. No more than 'places' statements of a link are open in the server:
** 'open' counts them.
*/
#include "link/mariadb.h"

#include "base.h"

#include <errmsg.h>
#include <mysqld_error.h>

#include <stdlib.h>
#include <string.h>

#define VALUE_BYTES 18 /* a parameter on the wire, beside its text */
#define CHECKED NS_DUE_MAX
#define COOLING 16     /* statements that make room, until uses count half */

/* ----------------------------------------------------------- preparing */

/* The statement that makes room: the least used, but none that is held. */
static ns_stmt *least_used(const ns_link *l) {
  ns_stmt *cold = NULL;
  for (ns_stmt *s = l->stmts; s != NULL; s = s->next)
    if (s->open && (l->held == 0 || s->used < l->held) &&
        (cold == NULL || s->heat < cold->heat || (s->heat == cold->heat && s->used < cold->used)))
      cold = s;
  return cold;
}

void ns_link_keep(ns_link *l, size_t n) {
  if (l->places < n)
    l->places = n;
}

void ns_link_hold(ns_link *l, bool yes) {
  l->held = yes ? l->clock + 1 : 0;
}

/* The server forgets the statement, without an answer. The answer to its last execution still
** comes. */
static void close_stmt(ns_link *l, ns_stmt *s) {
  unsigned char id[4];
  for (size_t i = 0; i < sizeof id; i++)
    id[i] = (unsigned char)(s->st->stmt_id >> (8 * i));
  s->open = false;
  l->open--;
  if (!l->dead)
    l->my->methods->db_command(l->my, COM_STMT_CLOSE, (char *)id, sizeof id, 1, NULL);
}

/* Closes the least used statements. After some time, earlier uses count half. */
static void make_room(ns_link *l) {
  ns_stmt *cold;
  while (l->open >= l->places && (cold = least_used(l)) != NULL) {
    close_stmt(l, cold);
    if (++l->closed % COOLING == 0)
      for (ns_stmt *s = l->stmts; s != NULL; s = s->next)
        s->heat /= 2;
  }
}

ns_status ns_stmt_send_prepare(ns_link *l, ns_stmt *s, ns_err *err) {
  my_bool on = 1;
  my_bool off = 0;
  int failed;
  make_room(l);
  ns_stmt_free_columns(s);
  if (s->st != NULL)
    mysql_stmt_close(s->st);
  if ((s->st = mysql_stmt_init(l->my)) == NULL)
    return ns_no_memory(err);
  mysql_stmt_attr_set(s->st, STMT_ATTR_UPDATE_MAX_LENGTH, &on);
  s->number = ++l->prepares;
  s->guess = (unsigned long)(s->number + l->skew);
  ns_link_sends(l);
  mysql_optionsv(l->my, MARIADB_OPT_SKIP_READ_RESPONSE, &on);
  failed = mysql_stmt_prepare(s->st, s->sql, (unsigned long)s->nsql);
  mysql_optionsv(l->my, MARIADB_OPT_SKIP_READ_RESPONSE, &off);
  return failed ? ns_stmt_refuse(l, s, err) : NS_OK;
}

ns_status ns_stmt_read_prepare(ns_link *l, ns_stmt *s, ns_err *err) {
  ns_status st;
  ns_link_waits(l, s->name);
  if ((st = ns_link_await(l, err)) == NS_OK && l->my->methods->db_read_prepare_response(s->st))
    st = ns_link_refused(l, err);
  ns_link_waited(l);
  if (st != NS_OK)
    return st;
  l->skew = (int64_t)s->st->stmt_id - s->number;
  s->nparams = mysql_stmt_param_count(s->st);
  s->open = true;
  l->open++;
  return NS_OK;
}

/* For assertions: is 'open' of a link right? */
static bool counts_open(const ns_link *l) {
  size_t open = 0;
  for (const ns_stmt *s = l->stmts; s != NULL; s = s->next)
    open += s->open;
  return open == l->open;
}

static ns_status open_stmt(ns_link *l, ns_stmt *s, ns_err *err) {
  ns_status st;
  ns_link_take_answers(l);
  if (l->dead)
    return ns_link_gone(err);
  if ((st = ns_stmt_send_prepare(l, s, err)) == NS_OK)
    st = ns_stmt_read_prepare(l, s, err);
  ns_assert(counts_open(l) && (l->open <= l->places || l->held != 0));
  return st;
}

/* The marks for parameters in a text of ours: not those in quotes and comments. */
static size_t count_marks(const char *sql, size_t n) {
  size_t marks = 0;
  for (const char *end = sql + n; sql < end; sql++) {
    const char *close = *sql == '\'' || *sql == '"' || *sql == '`'
                            ? memchr(sql + 1, *sql, (size_t)(end - sql - 1))
                        : *sql == '/' && end - sql > 1 && sql[1] == '*' ? strstr(sql + 2, "*/")
                                                                        : NULL;
    marks += *sql == '?';
    sql = close != NULL ? close : sql;
  }
  return marks;
}

static ns_stmt *add_stmt(ns_link *l, const char *name, const char *sql, size_t n) {
  ns_stmt *s = calloc(1, sizeof *s);
  if (s == NULL || (s->sql = malloc(n + 1)) == NULL) {
    free(s);
    return NULL;
  }
  memcpy(s->sql, sql, n);
  s->sql[n] = '\0';
  s->name = name;
  s->nsql = n;
  s->next = l->stmts;
  l->stmts = s;
  return s;
}

void ns_stmt_warm(ns_link *l, ns_stmt *s) {
  s->used = ++l->clock;
  s->heat++;
}

ns_status ns_stmt_ready(ns_link *l, ns_stmt *s, ns_err *err) {
  ns_stmt_warm(l, s);
  return s->open || s->brief ? NS_OK : open_stmt(l, s, err);
}

ns_status ns_link_prepare(ns_link *l, ns_stmt **out, const char *name, const char *sql, size_t n,
                          ns_err *err) {
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

ns_status ns_link_plan(ns_link *l, ns_stmt **out, const char *name, const char *sql, size_t n,
                       ns_err *err) {
  if ((*out = add_stmt(l, name, sql, n)) == NULL)
    return ns_no_memory(err);
  (*out)->nparams = count_marks((*out)->sql, n);
  return NS_OK;
}

ns_status ns_link_brief(ns_link *l, ns_stmt **out, const char *name, const char *sql, size_t n,
                        ns_err *err) {
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
  ns_link_take_answers(l);
  while (*at != s)
    at = &(*at)->next;
  *at = s->next;
  l->open -= s->open;
  if (s->st != NULL) {
    mysql_stmt_free_result(s->st);
    mysql_stmt_close(s->st);
  }
  ns_stmt_free_columns(s);
  ns_buf_free(&s->text);
  ns_buf_free(&s->kept.bytes);
  free(s->kept.values);
  free(s->sql);
  free(s);
}

/* A packet behind it has had the server forget it, if its number was guessed right. */
static ns_status read_checked(ns_link *l, ns_stmt *s, ns_err *err) {
  ns_status st = ns_stmt_read_prepare(l, s, err);
  if (s->open && s->st->stmt_id == s->guess)
    s->st->stmt_id = 0; /* else the library has it forget that, too */
  ns_stmt_free(l, s);
  return st;
}

static ns_status send_checked(ns_link *l, ns_stmt **out, const char *sql, ns_err *err) {
  unsigned char id[4];
  ns_status st;
  if ((*out = add_stmt(l, NULL, sql, strlen(sql))) == NULL)
    return ns_no_memory(err);
  if ((st = ns_stmt_send_prepare(l, *out, err)) != NS_OK) {
    ns_stmt_free(l, *out);
    return st;
  }
  for (size_t i = 0; i < sizeof id; i++)
    id[i] = (unsigned char)((*out)->guess >> (8 * i));
  l->my->methods->db_command(l->my, COM_STMT_CLOSE, (char *)id, sizeof id, 1, NULL);
  return NS_OK;
}

/* Sends as many as may be due at once, and reads all answers. */
static ns_status check_some(ns_link *l, const char *const *texts, size_t n, ns_err *err) {
  ns_stmt *sent[CHECKED];
  ns_status st = NS_OK;
  ns_err why;
  size_t asked = 0;
  while (st == NS_OK && asked < n)
    if ((st = send_checked(l, &sent[asked], texts[asked], err)) == NS_OK)
      asked++;
  for (size_t i = 0; i < asked; i++) {
    ns_status one = read_checked(l, sent[i], &why);
    if (st == NS_OK && one != NS_OK) {
      st = one;
      *err = why;
    }
  }
  return st;
}

ns_status ns_link_check(ns_link *l, const char *const *texts, size_t n, ns_err *err) {
  size_t most = l->my->net.compress ? 1 : CHECKED;
  size_t part;
  ns_status st = ns_link_answers(l, NULL, err);
  if (st == NS_OK && l->dead)
    st = ns_link_gone(err);
  for (size_t i = 0; st == NS_OK && i < n; i += part) {
    part = n - i < most ? n - i : most;
    st = check_some(l, texts + i, part, err);
  }
  return st;
}

void ns_stmt_all_lost(ns_link *l) {
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
  case NS_BYTES:
    b->buffer_type = v->type == NS_TEXT ? MYSQL_TYPE_STRING : MYSQL_TYPE_BLOB;
    b->buffer = (void *)(uintptr_t)v->s.p;
    b->buffer_length = (unsigned long)v->s.n;
    break;
  }
}

/* A packet over the limit costs the connection, and would cost the next one
** too when it is sent again: it is refused here. */
static bool fits_packet(const ns_link *l, size_t texts, size_t nvalues) {
  return l->max_packet == 0 || texts + VALUE_BYTES * nvalues + NS_PACKET_SPARE <= l->max_packet;
}

ns_status ns_stmt_too_big(const ns_link *l, ns_err *err) {
  return ns_fail(err, NS_ETOOBIG,
                 "the statement is over the %zu bytes that the server takes "
                 "(max_allowed_packet)",
                 l->max_packet);
}

static ns_status bind_params(ns_link *l, ns_stmt *s, MYSQL_BIND *binds, ns_err *err) {
  return s->nparams == 0 || mysql_stmt_bind_param(s->st, binds) == 0 ? NS_OK
                                                                     : ns_stmt_refuse(l, s, err);
}

/* The library sends, and does not wait for the answer. */
static ns_status send_execution(ns_link *l, ns_stmt *s, ns_err *err) {
  my_bool on = 1;
  my_bool off = 0;
  int failed;
  mysql_optionsv(l->my, MARIADB_OPT_SKIP_READ_RESPONSE, &on);
  failed = mysql_stmt_execute(s->st);
  mysql_optionsv(l->my, MARIADB_OPT_SKIP_READ_RESPONSE, &off);
  return failed ? ns_stmt_refuse(l, s, err) : NS_OK;
}

ns_status ns_stmt_spell(ns_link *l, const ns_stmt *s, const ns_value *params, const ns_column *cols,
                        size_t row, ns_err *err) {
  const char *at = s->sql;
  const char *end = at + s->nsql;
  const char *mark;
  ns_buf_reset(&l->packet);
  for (size_t k = 0; (mark = memchr(at, '?', (size_t)(end - at))) != NULL; k++) {
    int64_t v = cols != NULL ? cols[k].ints[row] : params[k].i;
    ns_buf_add(&l->packet, at, (size_t)(mark - at));
    ns_buf_addf(&l->packet, "%lld", (long long)v);
    at = mark + 1;
  }
  ns_buf_add(&l->packet, at, (size_t)(end - at));
  return l->packet.oom ? ns_no_memory(err) : NS_OK;
}

static ns_status send_brief(ns_link *l, ns_stmt *s, const ns_value *params, ns_err *err) {
  ns_status st = ns_stmt_spell(l, s, params, NULL, 0, err);
  ns_stmt_free_columns(s);
  ns_link_sends(l);
  if (st == NS_OK && mysql_send_query(l->my, l->packet.p, (unsigned long)l->packet.n) != 0)
    st = ns_link_refused(l, err);
  return st;
}

ns_status ns_stmt_send_execution(ns_link *l, ns_stmt *s, const ns_value *params, ns_err *err) {
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
    texts += params[i].type == NS_TEXT || params[i].type == NS_BYTES ? params[i].s.n : 0;
  if (!fits_packet(l, texts, s->nparams))
    return ns_stmt_too_big(l, err);
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
