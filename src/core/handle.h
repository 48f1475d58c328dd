/*
** The inside of an ns_db, and how the core's files run statements on it.
**
** Invariant: between verbs a handle is outside any transaction of its own. 'link' is NULL or
** usable until proven dead. Every verb starts with ns_db_ready, which reconnects. All memory of
** prepared statements belongs to the link, so the caches below are emptied with it.
*/
#ifndef NS_HANDLE_H
#define NS_HANDLE_H

#include <sys/types.h>

#include "claim/claim.h"
#include "db/db.h"
#include "finish/finish.h"
#include "holder/holder.h"
#include "link/link.h"
#include "nightshift_host.h"
#include "push/push.h"
#include "settle/settle.h"
#include "source/source.h"

/* A row of history in the order of its ends. */
typedef struct ns_past_row {
  int64_t finished_at, id;
} ns_past_row;

struct ns_db {
  ns_config cfg;       /* strings owned: see cfg_copy */
  ns_url url;          /* owns the parts of cfg.url */
  size_t max_payload;  /* bytes of a payload, result or state */
  const struct ns_hooks *const *hooks; /* of its parts, in their order; ends in NULL */
  ns_status (*restart)(ns_db *db, ns_err *err); /* of a server that is ours; NULL */
  char *private_url;   /* of the private server; NULL: not ours */
  char *private_dir;   /* where it is, absolute */
  pid_t owner;         /* the process that opened the link */
  ns_link *link;       /* NULL: never opened, or given up */
  int64_t life;        /* the start of the server that it leads to; 0: not asked */
  int64_t server;      /* the same of the last link */
  ns_session lost[NS_GHOSTS];
  size_t nlost;
  ns_stmt *stmts[NS_SQL_COUNT];
  bool foreseen[NS_SQL_COUNT]; /* was sent, and its next run takes the answer */
  ns_text_stmt texts[NS_TEXTS];
  ns_stmt *current;    /* source of ns_fetch; borrowed */
  uint64_t clock;      /* counts uses of texts */
  bool connecting;     /* the link is new and not ours to use yet */
  bool in_tx;          /* a transaction of the core is open */
  bool user_tx;        /* a transaction of the caller is open */
  bool broken_tx;      /* the server rolled the caller's back */
  bool ended_tx;       /* a statement of the caller's has ended it */
  bool barred;         /* the caller's transaction is not for this thread of control: see
                       ** ns_session_bar */
  ns_left_behind session;
  ns_buf waiters;      /* connections that wait for jobs which a transaction has ended: "[id,…" */
  ns_buf passed;       /* ordered groups that jobs may have left: "[[queue,group],…" */
  bool ring_due;       /* something was pushed: ring after the commit */
  bool may_ring;       /* so we have been told on this connection */
  int64_t ring_at;     /* monotonic: no ring before, it was refused; 0: none was */
  ns_queue_name **queues; /* known queues, by id, which never changes; owned */
  ns_queue_name **by_name; /* the same, in another order */
  size_t nqueues, capqueues, capnames;
  size_t nremoved;     /* how many of them are known to be removed */
  size_t nbounded;     /* ... and how many to have a bound */
  ns_bounds bounds;
  ns_paused paused; /* names */
  ns_tallies tallies;  /* what its open transaction has done */
  ns_minutes minutes;  /* what has happened in queues, by minutes */
  int64_t next_id, end_id; /* rest of the id block of this process */
  int64_t holder;      /* id of our holder row; 0: not registered */
  bool is_host;
  bool no_locks;            /* named locks do not serve here */
  int64_t cycle;            /* number of the last cycle that wrote */
  ns_sql ahead;             /* asks for the jobs of a claim, and was sent; 0: none */
  ns_err trouble;      /* the server's, with verdicts: the last */
  ns_push_in_doubt push;  /* a push that may have been written */
  ns_source_state source; /* rows of adopted tables that its own verdicts change */
  ns_finish_state finish; /* ended jobs with dependents to be notified */
  ns_settle_state settle; /* verdicts in doubt, or in the caller's transaction */
  ns_rescue_state rescue; /* results of the looks at other holders, and at our own claims */
  ns_claim_state claim;   /* where this handle claims, and which claims it holds */
  ns_slots slots;      /* of locks and semaphores */
  bool never_fast;     /* here a lock wait would end the whole transaction */
  int64_t skew;        /* server's clock minus our monotonic one, µs */
  ns_past_row pruned_to[3]; /* where pruning goes on, per outcome */
  size_t prune_turn;        /* the outcome that it begins with, modulo 3 */
  struct ns_retention *retention; /* what it goes by; owned; NULL: not read yet */
  bool (*goes_on)(void *arg); /* between its transactions; NULL: as it is */
  void *goes_on_arg;
  void (*pruned)(void *arg, int64_t deleted); /* behind each of them; NULL: nothing is */
  void *pruned_arg;
  ns_listener *waiter; /* second connection of an embedded waiting claim */
  ns_action action;    /* of people */
  ns_counters count;
};

/* The holder of the claims that are being settled; 0: none. */
static inline int64_t ns_db_claimant(const ns_db *db) {
  return db->settle.blamed != 0 ? db->settle.blamed : db->holder;
}

#endif
