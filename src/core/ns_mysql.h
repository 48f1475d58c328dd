/*
** What ns_db.c and ns_stmt.c share of libmariadb: the inside of a link. Nobody
** else may include this, or mysql.h.
*/
#ifndef NS_MYSQL_H
#define NS_MYSQL_H

#include <mysql.h>

#include "ns_db.h"
#include "ns_stmt.h"

struct ns_link {
  MYSQL *my;
  bool dead;
  size_t max_packet; /* the server hangs up on a longer one; 0: not known */
  size_t sent, due;  /* statements since nothing was due, answers of them to come */
  size_t failed;     /* which was the first to fail, and how; status OK: none */
  ns_err failure;
  int64_t affected;  /* rows, of what has been answered */
  ns_stmt *asked;    /* one of them has rows; NULL: none, or they are here */
  size_t asked_at;   /* its number */
  ns_err refusal;    /* what became of the last such */
  ns_buf packet;     /* the execution that is sent */
  ns_stmt *stmts;    /* all that were prepared, in a list */
};

/* Fills 'err' (may be NULL) from the server's words and notes a lost connection. */
ns_status ns_link_refuse(ns_link *l, unsigned sqlerr, const char *text,
                         ns_err *err);

/* The same with what the connection itself says of its last call. */
ns_status ns_link_refused(ns_link *l, ns_err *err);

/* What is said of a dead one. */
ns_status ns_link_gone(ns_err *err);

#endif
