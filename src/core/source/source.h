/*
** Rows of adopted tables that jobs stand for. The unique key of such a job names its row. Each
** transaction that fails or ends the job records what the row is to say. The tables themselves
** are opened only by a handle that serves them, with statements that it was given.
*/
#ifndef NS_SOURCE_SOURCE_H
#define NS_SOURCE_SOURCE_H

#include "nightshift_host.h"

/* ------------------------------------------------ which row: owe.c */

#define NS_SOURCE_PREFIX "row:" /* of keys that name a row; no other key begins so */

/* A row: the id of its table in nightshift_source, and its own. */
typedef struct ns_origin {
  int64_t source, row;
} ns_origin;

/* The row that a unique key names. False: the key names no row, or is absent. */
bool ns_source_origin(ns_bytes key, ns_origin *origin);

/* ------------------------------------------------- debts to it: owe.c */

/* A change that a row is to get. */
typedef struct ns_source_debt {
  ns_origin row;
  int64_t job, due;
  bool failed;
  const char *outcome; /* NULL: the job lives, and is due at 'due' */
  bool paid;           /* nothing is owed any more */
  char *why;           /* the server's words, where it has refused it; owned; NULL */
} ns_source_debt;

typedef struct ns_source_owed {
  ns_source_debt *items;
  size_t n, cap;
  bool oom; /* one was lost */
} ns_source_owed;

/*
** Records a debt to the row of a job, if the job's key names one. The debt is one more failure,
** and the outcome ("done", "dead", "cancelled"), or NULL while it lives, and is due at 'due'. A
** list that has lost a debt fails when it is written.
*/
void ns_source_note(ns_source_owed *owed, ns_bytes key, int64_t job, bool failed, int64_t due,
                    const char *outcome);

/* Writes all recorded debts, on the open transaction, and frees them: into the rows that are
** held for it, or else into nightshift_owed. Errors: GONE, BUSY, NOMEM. */
ns_status ns_source_owe(ns_db *db, ns_source_owed *owed, ns_err *err);

void ns_source_owed_free(ns_source_owed *owed);

/* Adds a debt to the list of a statement: [row,job,failures,due,outcome,source,why]. */
void ns_source_list_add(ns_buf *list, const ns_source_debt *debt);

/*
** Retries a finished job that stands for a row, on the open transaction, and locks it. Its row
** is to be as new, and gets another job then. The finished one stays in the history. '*is_row'
** false: the job stands for no row, or has not finished, and nothing was done. Errors: STATE
** when the job is done, DUPLICATE when the row has a live job, GONE, BUSY, NOMEM.
*/
ns_status ns_source_retry(ns_db *db, int64_t job, bool *is_row, ns_err *err);

/* --------------------------------- rows that verdicts change themselves: pay.c */

typedef enum ns_standing {
  NS_ROW_UNKNOWN, /* locked by another session, say */
  NS_ROW_HELD,    /* locked, and the job's */
  NS_ROW_LOST     /* another program has taken or changed it, or it is gone */
} ns_standing;

typedef struct ns_source_row {
  ns_origin row;
  int64_t job;
  ns_standing standing;
} ns_source_row;

typedef struct ns_source_table ns_source_table;

/* A handle's state of such rows: db->source. */
typedef struct ns_source_state {
  ns_source_table *tables; /* that it serves */
  size_t ntables, captables;
  ns_source_row *rows; /* of the batch that is being settled, sorted by job */
  size_t nrows, caprows;
  bool careful; /* the last ns_source_end has failed: the next verdict is settled in steps */
} ns_source_state;

/* Does a key name a row of a table that is served? */
bool ns_source_is_served(const ns_db *db, ns_bytes key);

/* Adds the row of a job that is being settled, if the key names one of a served table. In the
** order of the jobs. Errors: NOMEM. */
ns_status ns_source_add(ns_db *db, ns_bytes key, int64_t job, ns_err *err);

/* Locks the rows that were added, on the open transaction, without a wait for locks. Errors: GONE,
** BUSY, NOMEM, SQL. */
ns_status ns_source_hold(ns_db *db, ns_err *err);

/* Has another program the row of this job? */
bool ns_source_has_lost(const ns_db *db, int64_t job);

/* Writes into the held rows, and marks the paid debts. Errors: GONE, BUSY, NOMEM. */
ns_status ns_source_pay(ns_db *db, ns_source_debt *debts, size_t n, ns_err *err);

/* Has the table of a row a statement for ns_source_end, and has the last one worked? */
bool ns_source_ends(const ns_db *db, const ns_origin *row);

/* A job of a row that is done, and leaves nothing else behind. */
typedef struct ns_source_last {
  ns_origin row;
  int64_t job, run, queue_id;
  int64_t lease;   /* of which it is the last open claim; 0: there are more */
  int64_t cycle;   /* the number for the holder's row */
  int64_t ago;     /* µs since the claim */
  ns_bytes result; /* may be absent */
} ns_source_last;

/* Ends it in one statement, which is a whole transaction, and writes its row. No job may wait
** for it, and the row must still be its own. '*cut' as of ns_db_run_whole. A failure is to be
** tried again with the steps of a settle. Errors: as of the statement; GONE. */
ns_status ns_source_end(ns_db *db, const ns_source_last *e, bool *cut, ns_err *err);

/* The batch is over: nothing is held for it any more. */
void ns_source_forget(ns_db *db);

#endif
