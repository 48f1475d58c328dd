/*
** A single handle: its claim, made of cycles that only claim with sleeps between them. And
** giving back its claims when it closes.
**
** Invariants: no transaction is open while it sleeps, and the handle's own connection is idle:
** a second one listens. It sleeps no longer than until a job is due, or it is time to look
** after other holders. A handle that was woken for nothing listens again at once. A row that is
** not committed yet is found by the looks of that sleep. Closing waits for no lock longer than
** LEAVE_MAX; the rest is found by other holders, which see this one dead.
*/

#include <stdlib.h>

#include "base.h"
#include "claim/claim.h"
#include "cycle/cycle.h"
#include "db/db.h"
#include "handle.h"
#include "link/link.h"

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* Sleeps until there is a reason to look again, or 'until'. */
static ns_status wait_for_work(ns_db *db, int64_t queue_id, bool paused, int64_t until,
                               int64_t next_due, ns_err *err) {
  int64_t now = ns_mono_us();
  int64_t wait;
  unsigned why = 0;
  ns_status st = NS_OK;
  ns_assert(!db->in_tx);
  ns_holder_look_when_due(db);
  wait = least(until - now, db->rescue.look_at - now);
  if (next_due >= 0)
    wait = least(wait, next_due);
  if (wait <= 0)
    return NS_OK;
  if (db->waiter == NULL)
    st = ns_listener_open(&db->waiter, db, err);
  if (st == NS_OK)
    ns_listen_near(db->waiter, db, &queue_id, 1);
  if (st == NS_OK)
    st = ns_listen(db->waiter,
                   &(ns_awaited){.queues = &queue_id,
                                 .nqueues = !paused,
                                 .paused = &queue_id,
                                 .npaused = paused,
                                 .names = db->paused.mark,
                                 .newest = -1,
                                 .holder = db->holder},
                   wait, &why, err);
  if (db->waiter != NULL)
    ns_listen_leave(db->waiter);
  if (st != NS_OK && ns_db_is_interrupted(db))
    return st;
  if (st != NS_OK) /* no second connection to be had: look now and then */
    ns_sleep_us(least(wait, ns_jitter(200000, 0.5)));
  if (why & NS_WOKE_GONE)
    db->rescue.look_at = 0;
  return NS_OK;
}

/* Runs one cycle that only claims. */
static ns_status claim_once(ns_db *db, const ns_weighted_queue *queue, size_t limit, int64_t lease,
                            ns_jobs *out, int64_t *next_due, ns_err *err) {
  ns_want want = {.queues = queue, .nqueues = 1, .limit = limit};
  ns_status st;
  db->claim.span = lease;
  st = ns_cycle(db, NULL, 0, &want, out, next_due, err);
  db->claim.span = 0;
  if (st == NS_OK && lease > 0 && out->n > 0)
    ns_ring(db, NULL); /* claimers that sleep learn when it ends */
  return st;
}

ns_status ns_claim(ns_db *db, ns_bytes queue, size_t limit, int64_t wait, int64_t lease,
                   ns_jobs *out, ns_err *err) {
  int64_t until = ns_mono_us() + wait;
  int64_t next_due;
  ns_weighted_queue from = {.weight = 1};
  ns_status st = ns_queue_id(db, queue, true, &from.queue_id, err);
  while (st == NS_OK) {
    bool paused = false;
    int64_t taken = db->count.claimed;
    ns_holder_look_around(db);
    next_due = -1;
    if ((st = ns_db_ready(db, err)) == NS_OK && limit == 1 && lease == 0)
      st = ns_cycle_one(db, from.queue_id, out, err);
    if (st != NS_OK || out->n > 0)
      break;
    st = ns_db_queue_paused(db, from.queue_id, &paused, &from.limited, err);
    if (st == NS_OK)
      st = ns_claim_obey(db, err);
    if (st == NS_OK && (!paused || ns_in_transaction(db))) /* there it is refused */
      st = claim_once(db, &from, limit, lease, out, &next_due, err);
    if (st == NS_OK && out->n == 0 &&
        (db->count.claimed > taken || next_due == 0 || ns_claim_alone_next(db, &from, 1, limit)))
      continue; /* rows of jobs that are gone or too late, or one to be taken
                ** alone */
    if (st != NS_OK || out->n > 0 || ns_mono_us() >= until)
      break;
    st = wait_for_work(db, from.queue_id, paused, until, next_due, err);
  }
  return st;
}

/* ------------------------------------------------------------------- closing */

#define LEAVE_MAX (3 * NS_SECOND) /* a close waits this long for locked rows */

/* Makes one release verdict per open claim; false: there was no memory for some. */
static bool list_releases(const ns_leases *leases, ns_verdict **out, size_t *n) {
  ns_verdict *all = NULL;
  size_t cap = 0;
  bool whole = true;
  *n = 0;
  for (size_t i = 0; i < leases->n; i++)
    for (size_t k = 0; k < leases->items[i].n; k++) {
      const ns_claimed *c = &leases->items[i].jobs[k];
      if (c->settled)
        continue;
      whole = whole && ns_grow(&all, &cap, *n + 1, sizeof *all);
      if (!whole)
        continue;
      all[(*n)++] = (ns_verdict){
          .id = c->id, .run = c->run, .lease = leases->items[i].id, .kind = NS_RELEASE};
    }
  *out = all;
  return whole;
}

/* Gives everything back, trying again while another transaction holds rows of it. */
static void release_all(ns_db *db, ns_err *err) {
  int64_t give_up = ns_mono_us() + LEAVE_MAX;
  ns_status st = ns_claim_resolve(db, err);
  bool gave = false;
  size_t n = 1;
  while (st == NS_OK) {
    ns_verdict *all;
    bool whole = list_releases(&db->claim.leases, &all, &n);
    if (n > 0)
      st = ns_cycle(db, all, n, NULL, NULL, NULL, err);
    else if (!whole)
      st = ns_no_memory(err);
    free(all);
    gave = gave || n > 0;
    if (n == 0 || ns_mono_us() > give_up)
      break;
    if (db->claim.leases.n > 0)
      ns_sleep_us(ns_jitter(20000, 0.5));
  }
  if (gave && st == NS_OK)
    ns_ring(db, NULL);
}

static void closing(ns_db *db) {
  bool reachable = db->link != NULL && !ns_link_dead(db->link);
  ns_err err;
  if (db->holder == 0 || ns_is_foreign(db) || (db->claim.leases.n == 0 && !reachable))
    return;
  release_all(db, &err);
}

const ns_hooks ns_cycle_hooks = {.closing = closing};
