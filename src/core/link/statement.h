/*
** Statements of one connection: parameters, rows, and sending ahead.
*/
#ifndef NS_LINK_STATEMENT_H
#define NS_LINK_STATEMENT_H

#include "link/connection.h"

typedef struct ns_stmt ns_stmt; /* a prepared statement of one link */

/* Prepares. Owned by the link, freed with it or by ns_stmt_free. A link keeps few
** statements open in the server, which has a limit for all programs together: the one that
** is used least makes room, and is prepared again with its next use. Its rows can be
** fetched until then. 'name' is there for good; NULL: nobody is told how long it takes. */
ns_status ns_link_prepare(ns_link *l, ns_stmt **out, const char *name, const char *sql,
                          size_t n, ns_err *err);

/* One that takes no place: it is sent as text, with its parameters spelled out. Those are
** integers, and so are all that its rows hold. */
ns_status ns_link_brief(ns_link *l, ns_stmt **out, const char *name, const char *sql,
                        size_t n, ns_err *err);

/* Until it is said no more, what is used makes no room: for who sends several ahead. */
void ns_link_hold(ns_link *l, bool yes);

/* Prepares it again if it has made room. */
ns_status ns_stmt_ready(ns_link *l, ns_stmt *s, ns_err *err);
void ns_stmt_free(ns_link *l, ns_stmt *s);
size_t ns_stmt_params(const ns_stmt *s);

/* Executes with bound parameters; rows wait on the client to be fetched. The
** previous rows of 's' are dropped. */
ns_status ns_stmt_run(ns_link *l, ns_stmt *s, const ns_value *params,
                      ns_err *err);

/* One column of an array-bound execution; 'type' NS_INT or NS_TEXT. */
typedef struct ns_column {
  ns_type type;
  const int64_t *ints;
  const ns_bytes *texts;    /* p == NULL: SQL NULL */
  const char *null;         /* NULL, or per row: non-zero is SQL NULL */
} ns_column;

/* Executes once per row, in as few round trips as the server's limit on packets
** allows: one, as a rule. Inside a transaction it fails or succeeds as a whole. */
ns_status ns_stmt_bulk(ns_link *l, ns_stmt *s, const ns_column *cols,
                       size_t nrows, ns_err *err);

/* Sending ahead: statements go out one behind the other, and their answers are read
** together, with those of the next statement that is run, so that all of them take
** one wait. What fails does not keep the server from running what was sent behind
** it; the first failure is that of the call that reads the answers. */
ns_status ns_link_send(ns_link *l, const char *sql, ns_err *err);
ns_status ns_stmt_send(ns_link *l, ns_stmt *s, const ns_column *cols,
                       size_t nrows, ns_err *err);

/* Sends an execution whose rows, if any, are to be had with ns_stmt_told. */
ns_status ns_stmt_ask(ns_link *l, ns_stmt *s, const ns_value *params,
                      ns_err *err);
/* What became of it, after the errors of what was sent before; its rows wait to be
** fetched. */
ns_status ns_stmt_told(ns_link *l, ns_stmt *s, ns_err *err);

/* Reads the answers that are due. Of errors the first wins; '*failed' (may be
** NULL): of which packet, counted from 0. */
ns_status ns_link_answers(ns_link *l, size_t *failed, ns_err *err);

/* Rows that those statements have changed together, but for those with rows. */
int64_t ns_link_changed(const ns_link *l);

/* The next row, borrowed until the next call on 's'; NULL after the last. */
ns_status ns_stmt_fetch(ns_link *l, ns_stmt *s, const ns_value **row,
                        ns_err *err);
size_t ns_stmt_columns(const ns_stmt *s);
const char *const *ns_stmt_names(const ns_stmt *s);
int64_t ns_stmt_affected(const ns_stmt *s);
int64_t ns_stmt_insert_id(const ns_stmt *s);

#endif
