/*
** Transactions of the core.
*/
#ifndef NS_DB_TRANSACTION_H
#define NS_DB_TRANSACTION_H

#include "handle.h"

/*
** A unit of work that can be run again. 'run' does it on an open
** transaction; ns_transact begins, commits, and repeats it after 1213, 1205,
** 1020 (with jitter) and after a lost connection. Locks that others keep are waited
** for as long as a reply, from 'began' on (monotonic µs; 0: now); the last wait may
** end later. 'replay' is true when an
** earlier try was cut at its COMMIT, whose fate only 'run' can find out (the
** session that was cut is over by then); it sets 'done' when that commit turns
** out to have happened. It may be true from the start: the earlier try was an
** earlier call. Inside a transaction of the caller 'run' simply joins it, once.
** What 'looks' only reads until it has called ns_begun, so that its first statement
** goes out together with the one that begins. 'ahead' (may be NULL) asks, behind the
** COMMIT, for what is to be read after it; best effort. What is done 'once' is not
** repeated after 1213, 1205 and 1020, but BUSY.
*/
typedef struct ns_tx {
  ns_status (*run)(ns_db *db, struct ns_tx *tx, ns_err *err);
  void (*ahead)(ns_db *db, struct ns_tx *tx);
  void *arg;
  int64_t began;
  bool replay;
  bool done;
  bool looks;
  bool once;
} ns_tx;

ns_status ns_transact(ns_db *db, ns_tx *tx, ns_err *err);

/* From here on what is written is part of the transaction. What is sent behind a
** beginning that a KILL has hit would commit by itself. */
ns_status ns_begun(ns_db *db, ns_err *err);

/* Rolls the session back; one that will not is given up. */
void ns_take_back(ns_db *db);

/* Counts an error after which a transaction is run again. */
void ns_count_retry(ns_db *db, const ns_err *err);

#endif
