/*
** Settling a batch of verdicts on an open transaction.
*/
#ifndef NS_SETTLE_SETTLE_H
#define NS_SETTLE_SETTLE_H

#include "claim/claim.h"
#include "nightshift_host.h"

/* Writes the verdicts and their children; each gets its status: OK, STALE, or BUSY when another
** transaction holds its row. The BEGIN of the transaction may still be on its way: see
** ns_db_begun. Errors: failures of the whole batch. */
ns_status ns_settle_batch(ns_db *db, ns_verdict *v, size_t n, ns_err *err);

/* May this verdict, alone, be written in one statement (ns_settle_one)? It is the ack of a job of an
** adopted table's row, which leaves nothing else behind. */
bool ns_settle_one_open(ns_db *db, const ns_verdict *v);

/* Writes it and commits: it is OK. 'cycle': the number for the holder's row. '*cut': it may have
** been written all the same; else what fails is to be settled with all that it takes. Errors: those
** of the statement; GONE. */
ns_status ns_settle_one(ns_db *db, ns_verdict *v, int64_t cycle, bool *cut, ns_err *err);

/* After the commit: claims are forgotten in memory. */
void ns_settle_done(ns_db *db, const ns_verdict *v, size_t n);

/* Turns a verdict that the server refuses into a failure of its job. 'text'
** must outlive the verdict. */
void ns_settle_refuse(ns_verdict *v, const char *text);

/* Verdicts of a cycle that was cut at its commit and could not be asked about. */
typedef struct ns_settle_in_doubt {
  ns_verdict *items; /* tokens and statuses only; no bytes */
  size_t n, cap;
  size_t written;        /* the first ones are known to be written; their caller got GONE, and will
                         ** ask again */
  int64_t holder, cycle; /* the cycle that sent them, and its holder */
} ns_settle_in_doubt;

/* A handle's state of its verdicts: db->settle. */
typedef struct ns_settle_state {
  ns_settle_in_doubt doubt;
  ns_verdict *joined; /* written in the caller's transaction; owned */
  size_t njoined, capjoined;
  bool forgets;   /* done jobs without a parent leave no history */
  int64_t blamed; /* another holder: its claims are being settled; 0 */
} ns_settle_state;

#endif
