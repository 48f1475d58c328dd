/*
** A handle that closes gives back what it has claimed.
**
** Invariant: it waits for no lock longer than LEAVE_MAX; what is left is found by others,
** who see the holder dead.
*/
#include <stdlib.h>

#include "claim/claim.h"
#include "db/db.h"
#include "handle.h"
#include "link/link.h"
#include "ns_time.h"

#define LEAVE_MAX (3 * NS_SECOND) /* a close waits this long for locked rows */

/* One release verdict per open claim; false: there was no memory for some. */
static bool releases(const ns_leases *leases, ns_verdict **out, size_t *n) {
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
      all[(*n)++] = (ns_verdict){.id = c->id, .run = c->run,
                                 .lease = leases->items[i].id,
                                 .kind = NS_RELEASE};
    }
  *out = all;
  return whole;
}

/* Gives everything back, trying again while somebody holds rows of it. */
static void release_all(ns_db *db, ns_err *err) {
  int64_t give_up = ns_mono_us() + LEAVE_MAX;
  ns_status st = ns_claim_resolve(db, err);
  bool gave = false;
  size_t n = 1;
  while (st == NS_OK) {
    ns_verdict *all;
    bool whole = releases(&db->claim.leases, &all, &n);
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

const ns_hooks ns_leave_hooks = {.closing = closing};
