/*
** What an ns_db is inside, and how the core's files run statements on it.
**
** Invariant: between verbs a handle is outside any transaction of its own;
** 'link' is NULL or usable until proven dead, and every verb starts with
** ns_db_ready, which reconnects. All memory of prepared statements belongs to
** the link, so the caches below are emptied with it.
*/
#ifndef NS_HANDLE_H
#define NS_HANDLE_H

#include <sys/types.h>

#include "claim/claim.h"
#include "db/db.h"
#include "finish/finish.h"
#include "holder/rescue.h"
#include "holder/slot.h"
#include "link/url.h"
#include "nightshift_host.h"

#define NS_LOCK_WAIT 1205 /* the server's numbers: a lock wait that took too long, */
#define NS_RUN_AGAIN 1020 /* a row that has changed meanwhile */
#define NS_TEXTS 64 /* statements prepared from free text, kept per link */

typedef struct ns_text_stmt {
  char *sql;
  size_t n;
  ns_stmt *stmt;
  uint64_t used; /* of db->clock, for throwing the oldest out */
} ns_text_stmt;

typedef struct ns_queue_name {
  int64_t id;
  size_t n;
  char name[]; /* ends in NUL */
} ns_queue_name;

/* A push that said GONE after a cut at its commit: it may have happened. When
** the caller repeats it, it keeps its ids and nonces, and so stays one push. */
typedef struct ns_push_doubt {
  ns_buf content;      /* all that was asked, for recognising it */
  int64_t *tokens;     /* id, nonce, who is kept in its place; of each job */
  size_t n;            /* jobs; 0: nothing is in doubt */
  int64_t until;       /* monotonic: a repeat counts as one until then */
} ns_push_doubt;

/* Verdicts of a cycle that was cut at its commit and could not be asked about. */
typedef struct ns_settle_doubt {
  ns_verdict *items;   /* tokens and statuses only; no bytes */
  size_t n, cap;
  size_t written;      /* the first ones are known to be written; their caller,
                       ** who was told GONE, will ask again */
  int64_t holder, cycle; /* whose cycle the others were in */
} ns_settle_doubt;

#define NS_GHOSTS 8 /* sessions to end after a reconnect; the oldest give way */

/* A session that we have lost, and that the server may still have. */
typedef struct ns_session {
  int64_t thread; /* the server's id of it */
  int64_t life;   /* of the server that gave the id */
} ns_session;

/* What the caller's own SQL may have left on the session; see db/reset.c. */
typedef struct ns_left_behind {
  int64_t place; /* default database and role, a number; 0: not known */
  bool used;     /* there was such SQL, */
  bool marked;   /* and it may have changed the session */
  bool doubtful; /* the last of it may have */
  bool tables;   /* it has locked tables, which a transaction would unlock, */
  int locking;   /* and the last of it does, 1, or unlocks them, -1, where it works */
} ns_left_behind;

/* Jobs that have ended on the open transaction, and are to be told of last. */
typedef struct ns_ended {
  ns_end *items; /* ids and outcomes */
  size_t n, cap;
  bool on;
} ns_ended;

/* A row of history in the order of its ends. */
typedef struct ns_past_row {
  int64_t finished_at, id;
} ns_past_row;

struct ns_db {
  ns_config cfg;       /* strings owned: see cfg_copy */
  ns_url url;          /* owns what cfg.url was parsed into */
  size_t max_payload;  /* bytes of a payload, result or state */
  const struct ns_hooks *const *hooks; /* of its parts, in their order; ends in NULL */
  ns_status (*restart)(ns_db *db, ns_err *err); /* of a server that is ours; NULL */
  char *private_url;   /* of the private server; NULL: not ours */
  char *private_dir;   /* where it is, absolute */
  pid_t owner;         /* the process that opened the link */
  ns_link *link;       /* NULL: never opened, or given up */
  int64_t life;        /* which start of which server it leads to; 0: not asked */
  ns_session lost[NS_GHOSTS];
  size_t nlost;
  ns_stmt *stmts[NS_SQL_COUNT];
  ns_text_stmt texts[NS_TEXTS];
  ns_stmt *current;    /* what ns_fetch reads from; borrowed */
  uint64_t clock;      /* counts uses of texts */
  bool connecting;     /* the link is new and not ours to use yet */
  bool in_tx;          /* a transaction of the core is open */
  bool user_tx;        /* a transaction of the caller is open */
  bool broken_tx;      /* the server rolled the caller's back */
  bool ended_tx;       /* a statement of the caller's has ended it */
  bool barred;         /* the caller's is not for who asks: see ns_session_bar */
  ns_left_behind session;
  bool ring_due;       /* something was pushed: ring after the commit */
  bool may_ring;       /* so we have been told on this connection */
  int64_t ring_at;     /* monotonic: no ring before, it was refused; 0: none was */
  ns_queue_name **queues; /* those known to exist, by id, which never changes; owned */
  ns_queue_name **by_name; /* the same, in another order */
  size_t nqueues, capqueues, capnames;
  int64_t next_id, end_id; /* rest of the id block of this process */
  int64_t holder;      /* id of our holder row; 0: not registered */
  bool is_host;
  bool forgets;        /* done jobs without a parent leave no history */
  bool no_locks;       /* named locks do not serve here */
  int64_t assisted;    /* the holder that we look around for; 0: our own */
  int64_t blamed;      /* another holder, whose claims are being settled; 0 */
  ns_rescued rescued;  /* by the look at opening, not told yet */
  ns_suspects suspects; /* what earlier looks have seen */
  ns_token *unknown;   /* claims of ours that the last look did not know; owned */
  size_t nunknown;
  int64_t own_at;      /* monotonic: no such look before */
  struct ns_census *census; /* of jobs that are nowhere; owned; NULL: none yet */
  int64_t peers_at;         /* monotonic: an embedded handle's next look */
  int64_t cycle;            /* number of the last cycle that wrote */
  ns_sql ahead;             /* asks for the jobs of a claim, and was sent; 0: none */
  ns_err trouble;      /* the server's, with verdicts: the last */
  ns_settle_doubt settling; /* verdicts of which the same is true */
  ns_push_doubt pushing;    /* and a push */
  ns_verdict *tx_settled; /* verdicts written in the caller's transaction */
  size_t ntx, captx;
  ns_claim_state claim; /* where we claim, and what we hold */
  ns_token *wronged;   /* what we lost while we lived, to be absolved */
  size_t nwronged, capwronged;
  ns_slots slots;      /* of locks and semaphores */
  ns_adopted **adopted; /* existing tables that are queues; owned */
  size_t nadopted, capadopted;
  bool never_fast;     /* here a lock wait would end the whole transaction */
  int64_t skew;        /* server's clock minus our monotonic one, µs */
  ns_ended late;
  bool met_due;        /* nightshift_met has something for us */
  int64_t met_to;      /* the target in it where the next look begins */
  ns_past_row pruned_to[3]; /* where pruning goes on, per outcome */
  bool (*goes_on)(void *arg); /* between its transactions; NULL: as it is */
  void *goes_on_arg;
  int64_t swept_to;    /* the edge where the sweep goes on */
  ns_listener *waiter; /* second connection of an embedded waiting claim */
  ns_counters count;
};

/* Who held the claims that are being settled; 0: nobody. */
static inline int64_t ns_db_claimant(const ns_db *db) {
  return db->blamed != 0 ? db->blamed : db->holder;
}

#endif
