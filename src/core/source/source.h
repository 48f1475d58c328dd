/*
** Rows of adopted tables that jobs stand for. The unique key of such a job names its row, and
** each transaction that fails or ends the job notes down what the row is to say. Nothing here
** opens the table itself.
*/
#ifndef NS_SOURCE_SOURCE_H
#define NS_SOURCE_SOURCE_H

#include "nightshift_host.h"

/* ------------------------------------------------ which row: origin.c */

#define NS_SOURCE_PREFIX "row:" /* of keys that name a row; no other key begins so */

/* A row: the id of its table in nightshift_source, and its own. */
typedef struct ns_origin {
  int64_t source, row;
} ns_origin;

/* The row that a unique key names. False: it is no such key, or absent. */
bool ns_source_origin(ns_bytes key, ns_origin *origin);

/* ------------------------------------------------- what it is owed: owe.c */

/* Rows of nightshift_owed on their way there. */
typedef struct ns_source_owed {
  ns_buf list; /* "[[source,row,job,failures,due,outcome],…" */
  size_t n;
} ns_source_owed;

/*
** Notes what the row of a job is to say, if the job's key names one: how often it has failed
** more, and its outcome ("done", "dead", "cancelled"), or NULL while it lives, and is due at
** 'due'. A list that has lost something says so when it is written.
*/
void ns_source_note(ns_source_owed *owed, ns_bytes key, int64_t job, bool failed, int64_t due,
                    const char *outcome);

/* Writes all that was noted, on the open transaction, and frees it. Errors: GONE, BUSY, NOMEM. */
ns_status ns_source_owe(ns_db *db, ns_source_owed *owed, ns_err *err);

/*
** Retries a finished job that stands for a row, on the open transaction, and locks it: its row is
** to be as new, and gets another job then. The finished one stays in the history. '*is_row' false:
** it is no such job, or has not finished, and nothing was done. Errors: STATE when the job is done,
** DUPLICATE when the row has a live job, GONE, BUSY, NOMEM.
*/
ns_status ns_source_retry(ns_db *db, int64_t job, bool *is_row, ns_err *err);

#endif
