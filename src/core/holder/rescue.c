/*
** The rescue: finding holders that died and giving back their claims.
**
** A holder is dead when its process is gone from this machine. It is dead when its named lock
** has been free for the grace: time enough for a living holder to reconnect. A host is dead,
** too, when its beat has stood still. Its lock is not taken: the holder that declares it dead
** has the next half second for the rescue; then other holders help. A living holder that is
** declared dead by mistake loses its claims but does no harm: every verdict is fenced by (id,
** run). It finds out with its next cycle or reconnect. It then takes the blame from the jobs it
** has lost.
**
** Invariant: each lease is given back in one transaction that settles its jobs and deletes it.
** So if the rescuer ends, the next look goes on. A job that the server refuses to give back
** keeps its lease, but delays no other job: the look reports it in the end.
*/
#include "holder/holder.h"

#include <stdio.h>
#include <stdlib.h>

#include "base.h"
#include "claim/claim.h"
#include "db/db.h"
#include "finish/finish.h"
#include "handle.h"
#include "settle/settle.h"
#include "wake/wake.h"

#define GRACE NS_SECOND
#define GRACE_ALIVE (30 * NS_SECOND)   /* its process is there: it may come back */
#define TURN (NS_SECOND / 2)           /* the holder that declared it dead is left alone this
                                       ** long */
#define GRACE_STARTED (15 * NS_SECOND) /* after a start, or a promotion, all are reconnecting */
#define BEAT_MAX (30 * NS_SECOND)
#define BEAT_SEEN (12 * NS_SECOND)     /* longer than between two beats */
#define LOOK_EVERY (10 * NS_SECOND)
#define LOOK_SOON (NS_SECOND / 10)    /* while dependents are left to be told */
#define LOOK_ENDING (NS_SECOND / 100) /* a process that closed its connections may be ending */

static int64_t sooner(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static void no_later(int64_t *t, int64_t than) {
  if (than < *t)
    *t = than > 0 ? than : 0;
}

/* The findings of a look so far. */
typedef struct look {
  ns_rescued sum;
  int64_t again_in; /* µs */
  ns_buf past;      /* the ids of holders to delete */
  ns_err trouble;   /* the first that did not end it */
} look;

/* Trouble with one lease or holder does not keep the rest waiting. */
static ns_status note_trouble(look *k, ns_status st, ns_err *err) {
  if (st == NS_OK || st == NS_EGONE || st == NS_ENOMEM)
    return st;
  if (k->trouble.status == NS_OK)
    k->trouble = *err;
  ns_err_clear(err);
  return NS_OK;
}

/* ------------------------------------------------------------- one lease */

/* A lease to give back. */
typedef struct found {
  int64_t lease, holder;
  bool died; /* the holder's process is known to be no more */
} found;

/* A lease on its way back. */
typedef struct work {
  int64_t lease;
  ns_verdict *verdicts;
  size_t n, cap;
  size_t from, to; /* the verdicts of this transaction */
  bool whole;      /* no row of it was locked by another transaction */
  char error[64]; /* of the attempts, and of poison */
} work;

/* The instant so many µs ago, as of a verdict; 0 of 0. A machine may run for less long than that. */
static int64_t began_before(int64_t ago) {
  int64_t at = ns_mono_us() - ago;
  return ago == 0 ? 0 : at > 0 ? at : 1;
}

static ns_status read_tokens(ns_db *db, work *w, ns_err *err) {
  const ns_value *row;
  ns_value param = ns_vint(w->lease);
  ns_status st = ns_db_run(db, NS_SQL_RESCUE_TOKENS, &param, err);
  w->n = 0;
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_RESCUE_TOKENS, &row, err)) == NS_OK &&
         row != NULL) {
    if (!ns_grow(&w->verdicts, &w->cap, w->n + 1, sizeof *w->verdicts))
      return ns_no_memory(err);
    w->verdicts[w->n++] = (ns_verdict){.id = row[0].i, .run = row[1].i,
                                       .kind = NS_LOST,
                                       .began = began_before(ns_int_or(&row[2], 0)),
                                       .error = ns_str(w->error)};
  }
  return st;
}

static ns_status drop_lease(ns_db *db, int64_t lease, ns_err *err) {
  ns_column id = {NS_INT, &lease, NULL, NULL};
  ns_status st;
  ns_assert(db->in_tx || db->user_tx);
  st = ns_db_bulk_changing(db, NS_SQL_SETTLE_LEASE, &id, 1, 0, err);
  return st == NS_OK ? ns_db_bulk_changing(db, NS_SQL_SETTLE_EXPIRY, &id, 1, 0, err) : st;
}

static ns_status settle_some(ns_db *db, ns_tx *tx, ns_err *err) {
  work *w = tx->arg;
  ns_status st = ns_settle_batch(db, &w->verdicts[w->from], w->to - w->from, err);
  for (size_t i = w->from; st == NS_OK && i < w->to; i++) {
    const ns_verdict *v = &w->verdicts[i];
    w->whole = w->whole && v->status != NS_EBUSY;
    if (v->status == NS_OK)
      st = ns_db_bulk_changing(db, NS_SQL_SETTLE_HIDDEN,
                               (ns_column[]){{NS_INT, &v->id, NULL, NULL}}, 1, 0, err);
  }
  return st;
}

static ns_status settle_all(ns_db *db, ns_tx *tx, ns_err *err) {
  work *w = tx->arg;
  ns_status st = read_tokens(db, w, err);
  w->whole = true;
  w->from = 0;
  w->to = w->n;
  if (st == NS_OK)
    st = settle_some(db, tx, err);
  return st == NS_OK && w->whole ? drop_lease(db, w->lease, err) : st;
}

static void count_returned(const work *w, ns_rescued *sum) {
  for (size_t i = w->from; i < w->to; i++) {
    bool back = w->verdicts[i].status == NS_OK;
    sum->jobs += back;
    sum->poison += back && w->verdicts[i].dead;
  }
}

/* The server refuses the jobs together: gives back the ones that it accepts alone. The lease
** stays; a later look drops the rest of it. */
static ns_status give_back_each(ns_db *db, work *w, look *k, ns_err *err) {
  ns_tx tx = {.run = settle_some, .arg = w};
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < w->n; i++) {
    w->from = i;
    w->to = i + 1;
    st = ns_db_transact(db, &tx, err);
    if (st == NS_OK)
      count_returned(w, &k->sum);
    st = note_trouble(k, st, err);
  }
  return st;
}

/* Gives back the claims that a lease still has. '*whole' is false when some are left: another
** look goes on. */
static ns_status give_back(ns_db *db, found f, look *k, bool *whole,
                           ns_err *err) {
  work w = {.lease = f.lease};
  ns_tx tx = {.run = settle_all, .arg = &w};
  ns_status st;
  snprintf(w.error, sizeof w.error,
           f.died ? "holder %lld died with it" : "holder %lld was lost with it",
           (long long)f.holder);
  db->settle.blamed = f.holder;
  st = ns_db_transact(db, &tx, err);
  *whole = st == NS_OK && w.whole;
  if (st == NS_OK)
    count_returned(&w, &k->sum);
  if (st == NS_OK && !w.whole)
    no_later(&k->again_in, GRACE);
  if (note_trouble(k, st, err) == NS_OK && st != NS_OK)
    st = give_back_each(db, &w, k, err);
  db->settle.blamed = 0;
  free(w.verdicts);
  return st;
}

/* ------------------------------------------------------------ one holder */

static ns_suspect *find_suspect(const ns_suspects *s, int64_t id) {
  for (size_t i = 0; i < s->n; i++)
    if (s->items[i].id == id)
      return &s->items[i];
  return NULL;
}

static ns_status list_leases(ns_db *db, int64_t holder, int64_t *ids, size_t *n,
                             ns_err *err) {
  const ns_value *row;
  ns_value param = ns_vint(holder);
  ns_status st = ns_db_run(db, NS_SQL_RESCUE_LEASES, &param, err);
  *n = 0;
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_RESCUE_LEASES, &row, err)) == NS_OK &&
         row != NULL && *n < 100)
    ids[(*n)++] = row[0].i;
  return st;
}

/* Gives back all leases of a dead holder. '*whole': none is left. */
static ns_status empty_hands(ns_db *db, const ns_peer *p, look *k, bool *whole,
                             ns_err *err) {
  int64_t ids[100];
  size_t n = 1;
  ns_status st = NS_OK;
  *whole = true;
  while (st == NS_OK && n > 0 && *whole) {
    st = list_leases(db, p->id, ids, &n, err);
    for (size_t i = 0; st == NS_OK && i < n; i++) {
      bool all;
      st = give_back(db, (found){ids[i], p->id, p->gone}, k, &all, err);
      *whole = *whole && all;
    }
  }
  return st;
}

/* A holder that owns its once free lock again has come back. */
static ns_status declare_dead(ns_db *db, const ns_peer *p, bool *dead, ns_err *err) {
  ns_suspect *s = find_suspect(&db->rescue.suspects, p->id);
  ns_status st = ns_db_run(db, NS_SQL_RESCUE_DEAD,
                           (ns_value[]){ns_vint(p->id), ns_vint(s->ours ? 0 : TURN),
                                        ns_vint(p->beat), ns_vint(p->free && !db->no_locks)},
                           err);
  *dead = st == NS_OK && ns_db_affected(db, NS_SQL_RESCUE_DEAD) > 0;
  s->ours = s->ours || *dead;
  return st;
}

/* Rescues a holder that is taken for dead, unless another holder is at it. */
static ns_status rescue_holder(ns_db *db, const ns_peer *p, look *k, ns_err *err) {
  ns_value id = ns_vint(p->id);
  bool dead;
  bool whole;
  ns_status st = declare_dead(db, p, &dead, err);
  if (st == NS_OK && !dead && p->dead) {
    no_later(&k->again_in, TURN);
    k->sum.suspects++;
  }
  if (st != NS_OK || !dead)
    return st;
  k->sum.holders += !p->dead;
  st = empty_hands(db, p, k, &whole, err);
  k->sum.suspects += !whole;
  return st == NS_OK ? ns_db_run(db, NS_SQL_RESCUE_NOTICES, &id, err) : st;
}

/* -------------------------------------------------------------- suspicion */

/* Adds the new finding to earlier ones. False: out of memory. */
static bool remember_holder(ns_suspects *s, const ns_peers *peers, int64_t now) {
  ns_suspects next = {0};
  if (!ns_grow(&next.items, &next.cap, peers->n + 1, sizeof *next.items))
    return false;
  for (size_t i = 0; i < peers->n; i++) {
    const ns_peer *p = &peers->items[i];
    const ns_suspect *old = find_suspect(s, p->id);
    bool still = old != NULL && old->beat == p->beat;
    next.items[next.n++] = (ns_suspect){
        p->id, p->beat, still ? old->beat_since : now,
        !p->free                                   ? 0
        : old != NULL && old->free_since != 0 ? old->free_since
                                                   : now,
        old != NULL && old->ours && p->dead};
  }
  free(s->items);
  *s = next;
  return true;
}

/* The silence of other holders may have been our own, or all holders'. No holder is declared
** dead because of it. */
static void watch_anew(ns_db *db) {
  int64_t now = ns_mono_us();
  for (size_t i = 0; i < db->rescue.suspects.n; i++) {
    ns_suspect *s = &db->rescue.suspects.items[i];
    s->beat_since = now;
    s->free_since = s->free_since != 0 ? now : 0;
  }
}

/* Below zero when the server's clock was set back behind its start. */
static ns_status uptime(ns_db *db, int64_t *up, ns_err *err) {
  const ns_value *row = NULL;
  ns_status st = ns_db_run(db, NS_SQL_HANDLE_UPTIME, NULL, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_HANDLE_UPTIME, &row, err);
  *up = st == NS_OK && row != NULL ? row[0].i * NS_SECOND : 0;
  return st;
}

/* Has its lock been free for the grace? The grace is longer for a holder with a process that is
** seen to live. It is longer after a start of the server, too, and when a replica has become the
** primary: all holders are coming back. */
static ns_status dead_by_lock(ns_db *db, const ns_peer *p, const ns_suspect *s,
                              int64_t now, int64_t *in, ns_err *err) {
  int64_t up;
  ns_status st;
  *in = INT64_MAX;
  if (s->free_since == 0)
    return NS_OK;
  *in = s->free_since + (p->alive ? GRACE_ALIVE : p->elsewhere ? GRACE_STARTED : GRACE) - now;
  if ((st = uptime(db, &up, err)) == NS_OK && up >= 0 && up < GRACE_STARTED &&
      GRACE_STARTED - up > *in)
    *in = GRACE_STARTED - up;
  return st;
}

/* The µs until its beat has stood still long enough, by the server's clock and by ours. */
static int64_t dead_by_beat(const ns_peer *p, const ns_suspect *s, int64_t now) {
  int64_t watched = s->beat_since + BEAT_SEEN - now;
  if (!p->is_host || p->silent <= BEAT_MAX / 2)
    return INT64_MAX;
  return BEAT_MAX - p->silent > watched ? BEAT_MAX - p->silent : watched;
}

/* µs until 'p' counts as dead; INT64_MAX: it lives. */
static ns_status time_to_death(ns_db *db, const ns_peer *p, int64_t now, int64_t *in, ns_err *err) {
  const ns_suspect *s = find_suspect(&db->rescue.suspects, p->id);
  ns_status st;
  *in = 0;
  if (p->dead || p->gone)
    return NS_OK;
  st = dead_by_lock(db, p, s, now, in, err);
  no_later(in, dead_by_beat(p, s, now));
  return st;
}

/* µs until a process whose connections have closed may be gone: one that is killed closes them
** before it is. Looks at it follow soon, and then later and later. */
static int64_t time_to_end(const ns_db *db, const ns_peer *p, int64_t now) {
  const ns_suspect *s = find_suspect(&db->rescue.suspects, p->id);
  int64_t free_for = s->free_since != 0 ? now - s->free_since : 0;
  if (!p->alive || s->free_since == 0)
    return INT64_MAX;
  return free_for > LOOK_ENDING ? free_for : LOOK_ENDING;
}

/* ------------------------------------------------------------------ looks */

enum { H_ID = 0, H_PAST = 9 };

static ns_status list_peers(ns_db *db, ns_peers *peers, ns_buf *past, ns_err *err) {
  const ns_value *row;
  ns_value locks = ns_vint(!db->no_locks);
  ns_status st = ns_db_run(db, NS_SQL_RESCUE_HOLDERS, &locks, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_RESCUE_HOLDERS, &row, err)) == NS_OK &&
         row != NULL)
    if (ns_int_or(&row[H_PAST], 0) != 0)
      ns_db_list_add_id(past, row[H_ID].i);
    else if (row[H_ID].i != db->holder && row[H_ID].i != db->rescue.assisted &&
             !ns_wake_peers_add(peers, row))
      st = ns_no_memory(err);
  return st;
}

static ns_status look_at_holders(ns_db *db, look *k, ns_err *err) {
  ns_peers peers = {0};
  int64_t now = ns_mono_us();
  ns_status st = list_peers(db, &peers, &k->past, err);
  if (st == NS_OK && !remember_holder(&db->rescue.suspects, &peers, now))
    st = ns_no_memory(err);
  for (size_t i = 0; st == NS_OK && i < peers.n; i++) {
    int64_t in;
    st = time_to_death(db, &peers.items[i], now, &in, err);
    if (st == NS_OK && in <= 0)
      st = note_trouble(k, rescue_holder(db, &peers.items[i], k, err), err);
    else
      no_later(&k->again_in, sooner(in, time_to_end(db, &peers.items[i], now)));
    k->sum.suspects += in > 0 && in < INT64_MAX;
  }
  ns_wake_peers_free(&peers);
  return st;
}

/* Lists leases that were not touched in time, and leases of unknown holders; the listings are
** read to their end before any other statement runs. */
static ns_status list_leftovers(ns_db *db, found *list, size_t max, size_t *n,
                                int64_t *again_in, ns_err *err) {
  const ns_value *row;
  ns_status st = ns_db_run(db, NS_SQL_RESCUE_EXPIRED, NULL, err);
  *n = 0;
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_RESCUE_EXPIRED, &row, err)) == NS_OK &&
         row != NULL) {
    if (row[2].i > 0)
      no_later(again_in, row[2].i);
    else if (*n < max)
      list[(*n)++] = (found){row[0].i, ns_int_or(&row[1], 0), false};
  }
  if (st == NS_OK)
    st = ns_db_run(db, NS_SQL_RESCUE_ORPHANS, NULL, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_RESCUE_ORPHANS, &row, err)) == NS_OK &&
         row != NULL)
    if (*n < max)
      list[(*n)++] = (found){row[0].i, row[1].i, false};
  return st;
}

static ns_status look_at_leases(ns_db *db, look *k, ns_err *err) {
  found list[200];
  size_t n;
  ns_status st = list_leftovers(db, list, 200, &n, &k->again_in, err);
  for (size_t i = 0; st == NS_OK && i < n; i++) {
    bool whole;
    st = give_back(db, list[i], k, &whole, err);
  }
  return st;
}

/* Deletes dead holders; every holder that asks for deaths has had the time to. Other holders
** may do the same at once. */
static ns_status delete_dead(ns_db *db, look *k, ns_err *err) {
  ns_value list = ns_db_list_end(&k->past);
  ns_status st = k->past.oom ? ns_no_memory(err) : ns_db_run(db, NS_SQL_RESCUE_ENDED, &list, err);
  if (st == NS_OK)
    st = ns_db_run(db, NS_SQL_RESCUE_PAST, &list, err);
  if (st == NS_OK)
    st = ns_db_run(db, NS_SQL_RESCUE_DELETE, &list, err);
  return st == NS_EBUSY ? NS_OK : note_trouble(k, st, err);
}

/* What a look reads is asked at once. */
static void ask_ahead(ns_db *db) {
  ns_value locks = ns_vint(!db->no_locks);
  ns_db_foresee(db, NS_SQL_RESCUE_HOLDERS, &locks);
  ns_db_foresee(db, NS_SQL_RESCUE_EXPIRED, NULL);
  ns_db_foresee(db, NS_SQL_RESCUE_ORPHANS, NULL);
  if (!db->finish.pending_due)
    ns_db_foresee(db, NS_SQL_DEPEND_PENDING_ANY, NULL);
}

static ns_status look_at_all(ns_db *db, look *k, ns_err *err) {
  ns_status st = ns_db_ready(db, err);
  if (st == NS_OK)
    ask_ahead(db);
  if (st == NS_OK)
    st = look_at_holders(db, k, err);
  if (st == NS_OK)
    st = look_at_leases(db, k, err);
  if (st == NS_OK && !ns_db_list_is_empty(&k->past))
    st = delete_dead(db, k, err);
  if (k->sum.jobs > 0)
    ns_ring(db, NULL);
  db->ring_due = false;
  ns_wake_ended(db);
  return st;
}

ns_status ns_look(ns_db *db, int64_t *again_in, ns_rescued *sum, ns_err *err) {
  look k = {.sum = db->rescue.rescued, .again_in = LOOK_EVERY, .past = NS_BUF_INIT};
  ns_status st;
  db->rescue.rescued = (ns_rescued){0};
  ns_err_clear(err);
  st = ns_in_transaction(db)
           ? ns_fail(err, NS_ESTATE, "a rescue cannot run inside a transaction")
           : look_at_all(db, &k, err);
  if (st == NS_OK)
    st = ns_finish_pending_look(db, err);
  ns_db_foresee_end(db);
  if (st == NS_OK && !db->is_host)
    st = ns_release_unknown(db, &k.sum, err);
  ns_buf_free(&k.past);
  *sum = k.sum;
  *again_in = db->finish.pending_due && k.again_in > LOOK_SOON ? LOOK_SOON : k.again_in;
  if (st == NS_OK && k.trouble.status != NS_OK) {
    *err = k.trouble;
    st = k.trouble.status;
  }
  if (st == NS_EBUSY)
    no_later(again_in, GRACE);
  ns_db_minutes_tell(db, db->rescue.assisted != 0);
  return st;
}

void ns_assist(ns_db *db, int64_t holder, bool locks) {
  db->rescue.assisted = holder;
  db->no_locks = !locks;
}

bool ns_uses_locks(const ns_db *db) {
  return !db->no_locks;
}

void ns_holder_look_around(ns_db *db) {
  int64_t again_in;
  ns_rescued sum;
  ns_err err;
  ns_db_minutes_tell(db, false);
  if (ns_mono_us() < db->rescue.look_at || db->is_host)
    return;
  ns_look(db, &again_in, &sum, &err);
  db->rescue.look_at = ns_mono_us() + (again_in > 0 ? again_in : 1);
}

void ns_holder_look_when_due(ns_db *db) {
  const ns_value *row = NULL;
  ns_err err;
  if (ns_db_run(db, NS_SQL_RESCUE_NEXT, NULL, &err) == NS_OK &&
      ns_db_row(db, NS_SQL_RESCUE_NEXT, &row, &err) == NS_OK && row != NULL &&
      row[0].type == NS_INT)
    no_later(&db->rescue.look_at, ns_mono_us() + row[0].i);
}

/* ------------------------------------------------------------------- hooks */

static void closing(ns_db *db) {
  free(db->rescue.suspects.items);
  db->rescue.suspects = (ns_suspects){0};
}

const ns_hooks ns_holder_rescue_hooks = {.away = watch_anew, .closing = closing};
