/*
** What the parts of a handle do when its connection comes and goes. The connection, below
** them all, calls them through the list 'hooks' of the handle, and names none of them.
**
** Invariant: the list, which the handle has from its opening on, is in the order of the
** parts, each above those that it uses: closing goes through it backwards.
*/
#ifndef NS_DB_HOOKS_H
#define NS_DB_HOOKS_H

#include "nightshift.h"

/* Each may be NULL. None but 'connected' and 'committed' runs statements on the handle. */
typedef struct ns_hooks {
  /* A new session, on which nothing has been done yet. An error gives it up. */
  ns_status (*connected)(ns_db *db, ns_err *err);
  /* The session is gone, with its locks and what was open on it. */
  void (*lost)(ns_db *db);
  /* The server was there for nobody for a while, us included. */
  void (*away)(ns_db *db);
  /* The server's clock was set back. */
  void (*set_back)(ns_db *db);
  /* This is a forked child: what the parent holds is not ours. */
  void (*forked)(ns_db *db);
  /* The caller's transaction is over, and was written or not. */
  void (*committed)(ns_db *db, bool written);
  /* Gives back what is held (unless the process is a forked child), best effort, and frees. */
  void (*closing)(ns_db *db);
} ns_hooks;

/* The parts, in their order; the list ends in NULL. */
extern const ns_hooks ns_schema_hooks, ns_claim_hooks, ns_push_hooks, ns_finish_hooks,
    ns_settle_hooks, ns_holder_hooks, ns_rescue_hooks, ns_own_hooks, ns_leave_hooks,
    ns_listen_hooks, ns_slot_hooks, ns_pending_hooks, ns_adopt_hooks;

ns_status ns_hooks_connected(ns_db *db, ns_err *err);
void ns_hooks_lost(ns_db *db);
void ns_hooks_away(ns_db *db);
void ns_hooks_set_back(ns_db *db);
void ns_hooks_forked(ns_db *db);
void ns_hooks_committed(ns_db *db, bool written);
void ns_hooks_closing(ns_db *db);

#endif
