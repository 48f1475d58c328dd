/*
** Rows of an adopted table on their way to a queue or to history: see adopt/move.c.
*/
#ifndef NS_ADOPT_MOVE_H
#define NS_ADOPT_MOVE_H

#include "adopt/table.h"

/* Where a row is, as far as is known. */
typedef enum ns_whereabouts {
  NS_AT_READ,    /* in the table; it has no mark of ours */
  NS_AT_MARKED,  /* in the table, and marked */
  NS_AT_GONE,    /* has its mark, and is in the table no more */
  NS_AT_SAME,    /* has its mark, and is in the table as it was read … */
  NS_AT_DIFFERS, /* … or not as it was read */
  NS_AT_OTHERS   /* another holder has decided about it, or it cannot be moved */
} ns_whereabouts;

/* A row on its way. */
typedef struct ns_mover {
  int64_t id, job;
  ns_row_kind kind;
  ns_whereabouts at, was; /* now, and at the end of the last try to arrive */
  bool changed;         /* between being read and being marked */
  int64_t priority, decay, attempts, max_attempts, nonce;
  int64_t delay, ended; /* µs; 0: none */
  size_t text, n;       /* its payload in the texts */
  char print[33];
} ns_mover;

typedef struct ns_move {
  ns_adopted *a;
  int64_t queue;
  ns_mover *rows;  /* by id */
  size_t n, cap;
  ns_buf texts;
  bool crashed;    /* it is what a drain has left */
  bool later;      /* some of them may be due later */
  int64_t moves;   /* before it was read: batches of all drains that had arrived */
  int64_t unfit;   /* rows that our tables do not take */
  int64_t jobs, done, dead; /* that have arrived */
  size_t from, to; /* of the transaction under way */
  bool all;        /* all that was marked has been deleted just now */
} ns_move;

void ns_move_free(ns_move *b);

/* Begins: before anything is read. Errors: GONE, BUSY. */
ns_status ns_move_begin(ns_move *b, ns_err *err);

/* Marks the rows. Errors: GONE, BUSY, NOMEM, SQL. */
ns_status ns_move_mark(ns_move *b, ns_err *err);

/* Deletes what is marked; and what is gone arrives, also when there was trouble with
** the rest, which stays. Errors: those of the table, too. */
ns_status ns_move_on(ns_move *b, ns_err *err);

#endif
