/*
** Gates: a crowd of claimers goes past each other's rows a few at a time.
**
** A gate is a named lock. Who goes in by one has it until its claim is committed. Claims
** are as right without: a gate is only asked for by who has felt a crowd, and never waited
** for longer than a bounded time.
*/
#ifndef NS_CLAIM_GATE_H
#define NS_CLAIM_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include "nightshift.h"

/* What a claimer remembers of crowds. */
typedef struct ns_gate {
  int wary;       /* claims that still ask for a gate; 0: it feels alone */
  int64_t place;  /* what the crowd is at: a queue, */
  int64_t number; /* and which of its gates we are in by, from 1 on; 0: none */
  bool left;      /* the statement that leaves it was sent */
  unsigned stuck; /* gates that are not asked for, a bit each: who is in stays there, */
  int64_t stuck_until; /* ... until then (monotonic) */
} ns_gate;

/* May a look be cut when it takes long, as from then on a gate is to be had? Not of who
** is wary or in one, nor of hosts, which are few, nor where named locks do not serve. */
bool ns_gate_watches(const ns_db *db);

/* The error of a look that was cut because others are at it becomes one after which the
** transaction runs again, by a gate. Others stay as they are. */
ns_status ns_gate_felt(ns_db *db, ns_status st, ns_err *err);

/* Goes in by a gate of 'place', if this claimer is wary; it may as well go in without.
** In the transaction, before it has any locks. Errors: those of any statement. */
ns_status ns_gate_enter(ns_db *db, int64_t place, ns_err *err);

/* Sends the statement that leaves it, behind a COMMIT; best effort. */
void ns_gate_leave_ahead(ns_db *db);

/* After the transaction, whatever became of it. 'whole': no answer was an error. */
void ns_gate_leave(ns_db *db, bool whole);

#endif
