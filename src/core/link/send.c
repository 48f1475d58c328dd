/*
** Sending: statements that go out one behind the other and are answered together. Packets that
** run a prepared statement once for each row of some columns. Plain text.
**
** The client library has such packets, too, but it waits for each answer, and takes longer per
** value than the server.
**
**     A single row:   id(4) flags(1) 1(4) nulls((n+7)/8) 1(1) types(2n) values
**     Array-bound:    id(4) flags(2) types(2n), then per value: null(1) [value]
**
** Integers are eight bytes, texts their length (1, 3, 4 or 9 bytes) and bytes;
** everything little-endian.
**
** Invariants: no more than NS_DUE_MAX answers are due at once. Room for a whole packet is made
** before its first byte is written.
*/
#include "link/mariadb.h"

#include "base.h"

#include <errmsg.h>
#include <mysqld_error.h>
#include <string.h>

#define AHEAD 24   /* parameters at most of a statement that is sent with its preparation */
#define T_INT 8    /* of the protocol: BIGINT, */
#define T_TEXT 254 /* STRING */
#define SENDS_TYPES 128
#define HEAD 16     /* bytes at most before the null bits and types */
#define INT_BYTES 9 /* a value at most, beside a text's bytes */
#define TEXT_BYTES 10

static char *put2(char *at, uint64_t v) {
  at[0] = (char)v;
  at[1] = (char)(v >> 8);
  return at + 2;
}

static char *put4(char *at, uint64_t v) {
  return put2(put2(at, v), v >> 16);
}

static char *put8(char *at, uint64_t v) {
  return put4(put4(at, v), v >> 32);
}

static char *put_length(char *at, size_t n) {
  if (n < 251) {
    *at = (char)n;
    return at + 1;
  }
  if (n < 65536) {
    *at = (char)252;
    return put2(at + 1, n);
  }
  if (n < 16777216) {
    *at = (char)253;
    put2(at + 1, n);
    at[3] = (char)(n >> 16);
    return at + 4;
  }
  *at = (char)254;
  return put8(at + 1, n);
}

static bool is_null_at(const ns_column *col, size_t row) {
  return (col->null != NULL && col->null[row] != 0) ||
         (col->type == NS_TEXT && col->texts[row].p == NULL);
}

static char *put_value(char *at, const ns_column *col, size_t row) {
  ns_bytes text;
  if (col->type == NS_INT)
    return put8(at, (uint64_t)col->ints[row]);
  text = col->texts[row];
  at = put_length(at, text.n);
  if (text.n > 0)
    memcpy(at, text.p, text.n);
  return at + text.n;
}

static char *put_types(char *at, const ns_column *cols, size_t ncols) {
  for (size_t c = 0; c < ncols; c++)
    at = put2(at, cols[c].type == NS_INT ? T_INT : T_TEXT);
  return at;
}

static char *put_one(char *at, const ns_column *cols, size_t ncols, size_t row) {
  char *nulls;
  *at++ = 0;
  at = put4(at, 1);
  if (ncols == 0)
    return at;
  nulls = at;
  memset(nulls, 0, (ncols + 7) / 8);
  at += (ncols + 7) / 8;
  *at++ = 1;
  at = put_types(at, cols, ncols);
  for (size_t c = 0; c < ncols; c++)
    if (is_null_at(&cols[c], row))
      nulls[c / 8] = (char)(nulls[c / 8] | 1 << c % 8);
    else
      at = put_value(at, &cols[c], row);
  return at;
}

static char *put_array(char *at, const ns_column *cols, size_t ncols, size_t from, size_t nrows) {
  at = put_types(put2(at, SENDS_TYPES), cols, ncols);
  for (size_t i = from; i < from + nrows; i++)
    for (size_t c = 0; c < ncols; c++) {
      bool null = is_null_at(&cols[c], i);
      *at++ = null;
      if (!null)
        at = put_value(at, &cols[c], i);
    }
  return at;
}

/* Bytes of one row at most. */
static size_t row_size(const ns_column *cols, size_t ncols, size_t row) {
  size_t size = 0;
  for (size_t c = 0; c < ncols; c++)
    size += cols[c].type == NS_INT      ? INT_BYTES
            : is_null_at(&cols[c], row) ? 1
                                        : TEXT_BYTES + cols[c].texts[row].n;
  return size;
}

static size_t head_size(size_t ncols) {
  return HEAD + (ncols + 7) / 8 + 2 * ncols;
}

static size_t packet_rows(const ns_column *cols, size_t ncols, size_t from, size_t nrows,
                          size_t max) {
  size_t size = head_size(ncols);
  for (size_t i = from; i < nrows; i++) {
    size += row_size(cols, ncols, i);
    if (max > 0 && size > max)
      return i - from;
  }
  return nrows - from;
}

static bool packet_add(ns_buf *to, uint32_t id, const ns_column *cols, size_t ncols, size_t from,
                       size_t nrows) {
  size_t size = head_size(ncols);
  char *at;
  for (size_t i = from; i < from + nrows; i++)
    size += row_size(cols, ncols, i);
  if ((at = ns_buf_room(to, size)) == NULL)
    return false;
  at = put4(at, id);
  at = nrows == 1 ? put_one(at, cols, ncols, from) : put_array(at, cols, ncols, from, nrows);
  ns_assert((size_t)(at - to->p) <= to->n + size);
  to->n = (size_t)(at - to->p);
  return true;
}

/* ------------------------------------------------------------- sending ahead */

/* With compression the library writes into the buffer that it reads from. */
static void note_sent(ns_link *l, const char *name, ns_stmt *asked) {
  l->names[l->sent % NS_DUE_MAX] = name;
  l->asks[l->sent++ % NS_DUE_MAX] = asked;
  l->due++;
  ns_assert(l->due <= NS_DUE_MAX && l->due <= l->sent);
  if (l->due >= NS_DUE_MAX || l->my->net.compress)
    ns_link_take_answer(l);
}

static ns_status send_text(ns_link *l, const char *name, const char *sql, ns_err *err) {
  if (l->dead)
    return ns_link_gone(err);
  ns_link_sends(l);
  if (mysql_send_query(l->my, sql, (unsigned long)strlen(sql)) != 0)
    return ns_link_refused(l, err);
  note_sent(l, name, NULL);
  return NS_OK;
}

ns_status ns_link_send(ns_link *l, const char *sql, ns_err *err) {
  return send_text(l, ns_link_name(sql), sql, err);
}

ns_status ns_link_save(ns_link *l, const char *sql, ns_err *err) {
  ns_status st;
  l->saved = false;
  l->saving = l->sent + 1;
  if ((st = ns_link_send(l, sql, err)) != NS_OK)
    l->saving = 0;
  return st;
}

bool ns_link_saved(const ns_link *l) {
  return l->saved;
}

/* Sends one packet. The library's own call for this waits for the answer; the call beneath it
** does not. */
static ns_status send_rows(ns_link *l, ns_stmt *s, const ns_column *cols, size_t from, size_t nrows,
                           ns_err *err) {
  ns_status st = ns_stmt_ready(l, s, err);
  if (st != NS_OK)
    return st;
  ns_buf_reset(&l->packet);
  if (!packet_add(&l->packet, (uint32_t)s->st->stmt_id, cols, s->nparams, from, nrows))
    return ns_no_memory(err);
  ns_link_sends(l);
  if (l->my->methods->db_command(l->my, nrows == 1 ? COM_STMT_EXECUTE : COM_STMT_BULK_EXECUTE,
                                 l->packet.p, l->packet.n, 1, NULL) != 0)
    return ns_link_refused(l, err);
  note_sent(l, s->name, NULL);
  return NS_OK;
}

/* Sends a row of a statement that is sent as text. */
static ns_status send_brief_row(ns_link *l, const ns_stmt *s, const ns_column *cols, size_t row,
                                ns_err *err) {
  ns_status st = ns_stmt_spell(l, s, NULL, cols, row, err);
  if (st != NS_OK)
    return st;
  ns_buf_addc(&l->packet, '\0');
  return l->packet.oom ? ns_no_memory(err) : send_text(l, s->name, l->packet.p, err);
}

/* Sends as many rows, from 'from' on, as go into a packet; '*n': how many. */
static ns_status send_part(ns_link *l, ns_stmt *s, const ns_column *cols, size_t from, size_t nrows,
                           size_t *n, ns_err *err) {
  if (s->brief) {
    *n = 1;
    return send_brief_row(l, s, cols, from, err);
  }
  size_t max = l->max_packet > NS_PACKET_SPARE ? l->max_packet - NS_PACKET_SPARE : 0;
  *n = packet_rows(cols, s->nparams, from, l->cluster ? from + 1 : nrows, max);
  return *n > 0 ? send_rows(l, s, cols, from, *n, err) : ns_stmt_too_big(l, err);
}

/* In a transaction that a node of a cluster has undone, the next statement would commit by itself.
** A pipeline has autocommit off. The failure stays, for ns_link_answers. */
static ns_status settle_before(ns_link *l, ns_err *err) {
  const ns_err *why = &l->failure;
  if (!l->cluster || l->due == 0 || (l->my->server_status & SERVER_STATUS_AUTOCOMMIT) == 0)
    return NS_OK;
  while (l->due > 0) {
    const ns_stmt *asked = l->asks[(l->sent - l->due) % NS_DUE_MAX];
    ns_link_take_answer(l);
    if (asked != NULL && asked->outcome != NS_OK && asked->refusal.sqlerr == ER_LOCK_DEADLOCK)
      why = &asked->refusal;
  }
  if (why->status != NS_OK && err != NULL)
    *err = *why;
  return why->status;
}

ns_status ns_stmt_send(ns_link *l, ns_stmt *s, const ns_column *cols, size_t nrows, ns_err *err) {
  ns_status st = settle_before(l, err);
  size_t n;
  if (l->dead)
    return ns_link_gone(err);
  for (size_t from = 0; st == NS_OK && from < nrows; from += n)
    st = send_part(l, s, cols, from, nrows, &n, err);
  return st;
}

ns_status ns_stmt_ask(ns_link *l, ns_stmt *s, const ns_value *params, ns_err *err) {
  ns_status st;
  if (s->asked)
    ns_link_take_answers(l);
  if ((st = ns_stmt_send_execution(l, s, params, err)) != NS_OK)
    return st;
  s->asked = true;
  note_sent(l, s->name, s);
  return NS_OK;
}

ns_status ns_stmt_told(ns_link *l, ns_stmt *s, ns_err *err) {
  ns_status st = ns_link_answers(l, NULL, err);
  if (st != NS_OK)
    return st;
  if (s->outcome != NS_OK)
    *err = s->refusal;
  return s->outcome;
}

ns_status ns_link_answers(ns_link *l, size_t *failed, ns_err *err) {
  ns_status st;
  ns_link_take_answers(l);
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
ns_status ns_stmt_bulk(ns_link *l, ns_stmt *s, const ns_column *cols, size_t nrows, ns_err *err) {
  ns_status st = settle_before(l, err);
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

/* ------------------------------------------------------- sending and waiting */

/* A parameter as a column of one row. False: the packets here have no such values. */
static bool as_column(const ns_value *v, ns_column *col) {
  static const char null = 1;
  *col = (ns_column){v->type == NS_INT ? NS_INT : NS_TEXT, &v->i, &v->s,
                     v->type == NS_NULL ? &null : NULL};
  return v->type == NS_NULL || v->type == NS_INT || (v->type == NS_TEXT && v->s.p != NULL);
}

/* Writes the execution of a statement that the server is about to know. False: it is one that has
** to be prepared first. */
static bool write_ahead(ns_link *l, const ns_stmt *s, const ns_value *params) {
  ns_column cols[AHEAD];
  size_t spare = l->max_packet > NS_PACKET_SPARE ? l->max_packet - NS_PACKET_SPARE : SIZE_MAX;
  if (s->open || s->brief || l->dead || l->my->net.compress || s->nparams > AHEAD)
    return false;
  for (size_t i = 0; i < s->nparams; i++)
    if (!as_column(&params[i], &cols[i]))
      return false;
  if (packet_rows(cols, s->nparams, 0, 1, spare) == 0)
    return false;
  ns_buf_reset(&l->packet);
  return packet_add(&l->packet, 0, cols, s->nparams, 0, 1);
}

/* Its packet was sent with a wrong number, or the preparation has failed: the answer to it says
** that the server knows no such statement. */
static void drop_answer(ns_link *l, ns_status st) {
  if (!l->dead && st != NS_OK && mysql_read_query_result(l->my) != 0)
    ns_link_refused(l, NULL);
}

#define UNKNOWN_STATEMENT 1243

/* Prepares and runs in one wait. The server's numbers of statements follow each other, so the
** execution can name the next one. No other statement of this session has had that number. */
static ns_status run_ahead(ns_link *l, ns_stmt *s, const ns_value *params, ns_err *err) {
  ns_err why;
  ns_status before;
  ns_status st;
  ns_stmt_warm(l, s);
  if ((st = ns_stmt_send_prepare(l, s, err)) != NS_OK)
    return st;
  put4(l->packet.p, s->guess);
  if (l->my->methods->db_command(l->my, COM_STMT_EXECUTE, l->packet.p, l->packet.n, 1, NULL) != 0)
    return ns_link_refused(l, err);
  before = ns_link_answers(l, NULL, err);
  if ((st = ns_stmt_read_prepare(l, s, &why)) != NS_OK)
    drop_answer(l, st);
  else if ((st = ns_stmt_read_execution(l, s, &why)) != NS_OK && before == NS_OK &&
           why.sqlerr == UNKNOWN_STATEMENT)
    return ns_stmt_run(l, s, params, err);
  if (before == NS_OK && st != NS_OK && err != NULL)
    *err = why;
  return before != NS_OK ? before : st;
}

ns_status ns_stmt_run(ns_link *l, ns_stmt *s, const ns_value *params, ns_err *err) {
  ns_status before;
  ns_status st = settle_before(l, err);
  if (st != NS_OK)
    return st;
  if (s->asked)
    ns_link_take_answers(l);
  if (write_ahead(l, s, params))
    return run_ahead(l, s, params, err);
  st = ns_stmt_send_execution(l, s, params, err);
  before = ns_link_answers(l, NULL, st == NS_OK ? err : NULL);
  if (st != NS_OK)
    return st;
  st = ns_stmt_read_execution(l, s, before == NS_OK ? err : NULL);
  return before != NS_OK ? before : st;
}

/* Drops every result the last text statement left (a CALL leaves several). */
static ns_status drain(ns_link *l, ns_err *err) {
  int more;
  do {
    MYSQL_RES *res = mysql_store_result(l->my);
    mysql_free_result(res);
    if (mysql_errno(l->my) != 0)
      return ns_link_refused(l, err);
    more = mysql_next_result(l->my);
  } while (more == 0);
  if (more > 0)
    return ns_link_refused(l, err);
  return NS_OK;
}

ns_status ns_link_text(ns_link *l, const char *sql, ns_err *err) {
  ns_status st = ns_link_answers(l, NULL, err);
  if (st != NS_OK)
    return st;
  if (l->dead)
    return ns_link_gone(err);
  ns_link_sends(l);
  if (mysql_send_query(l->my, sql, (unsigned long)strlen(sql)) != 0)
    return ns_link_refused(l, err);
  ns_link_waits(l, ns_link_name(sql));
  if ((st = ns_link_await(l, err)) == NS_OK && mysql_read_query_result(l->my) != 0)
    st = ns_link_refused(l, err);
  ns_link_waited(l);
  return st == NS_OK ? drain(l, err) : st;
}
