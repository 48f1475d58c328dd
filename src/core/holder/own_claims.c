/*
** A holder's own claims: are those that stand in the database the ones that its memory
** has? Only the holder can tell, and nobody else would give back what it does not know
** of, for it lives.
*/
#include <stdlib.h>

#include "db/db.h"
#include "handle.h"
#include "holder/audit.h"
#include "ns_time.h"
#include "settle/settle.h"

static bool knows(ns_db *db, const ns_token *t) {
  for (size_t i = 0; i < db->claim.nexpired; i++)
    if (db->claim.expired[i].id == t->id && db->claim.expired[i].run == t->run)
      return true;
  return ns_claim_leases_find_any(&db->claim.leases, t->id, t->run, NULL) != NULL;
}

/* The claims that this handle does not know of. */
static ns_status list_unknown(ns_db *db, ns_token **list, size_t *n, ns_err *err) {
  ns_value holder = ns_vint(db->holder);
  const ns_value *r;
  size_t cap = 0;
  ns_status st = ns_db_run(db, NS_SQL_MEND_OWN, &holder, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_MEND_OWN, &r, err)) == NS_OK && r != NULL) {
    ns_token t = {.id = r[0].i, .run = r[1].i};
    if (knows(db, &t))
      continue;
    if (!ns_grow(list, &cap, *n + 1, sizeof **list))
      return ns_no_memory(err);
    (*list)[(*n)++] = t;
  }
  return st;
}

static ns_status give_back_run(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_token *t = tx->arg;
  ns_verdict v = {.id = t->id, .run = t->run, .kind = NS_LOST,
                  .error = ns_str("its holder did not know that it had it")};
  ns_status st = ns_settle_batch(db, &v, 1, err);
  if (st != NS_OK || v.status != NS_OK)
    return st;
  return ns_db_run(db, NS_SQL_MEND_COUNT, (ns_value[]){ns_vtext(ns_str("unknown")), ns_vint(1)},
                   err);
}

static bool was_unknown(const ns_db *db, const ns_token *t) {
  for (size_t i = 0; i < db->nunknown; i++)
    if (db->unknown[i].id == t->id && db->unknown[i].run == t->run)
      return true;
  return false;
}

/* Those that were unknown the last time, too. Their leases are empty then, and stay for
** the rescue of this holder. */
static ns_status give_back(ns_db *db, ns_token *list, size_t n, ns_rescued *sum,
                           ns_err *err) {
  ns_status st = NS_OK;
  db->blamed = db->holder;
  for (size_t i = 0; st == NS_OK && i < n; i++) {
    ns_tx tx = {.run = give_back_run, .arg = &list[i]};
    if (!was_unknown(db, &list[i]))
      continue;
    st = ns_db_transact(db, &tx, err);
    sum->jobs += st == NS_OK;
  }
  db->blamed = 0;
  return st;
}

ns_status ns_own_look(ns_db *db, ns_rescued *sum, ns_err *err) {
  ns_token *list = NULL;
  size_t n = 0;
  int64_t every = NS_SECOND;
  ns_status st;
  if (db->holder == 0 || ns_mono_us() < db->own_at || db->claim.in_doubt != 0 ||
      db->claim.unread != 0 || db->settling.n > db->settling.written || ns_in_transaction(db))
    return NS_OK;
  st = ns_mend_every(db, &every, err);
  if (st == NS_OK)
    st = list_unknown(db, &list, &n, err);
  if (st == NS_OK)
    st = give_back(db, list, n, sum, err);
  free(db->unknown);
  db->unknown = list;
  db->nunknown = n;
  db->own_at = ns_mono_us() + every;
  return st;
}

static void closing(ns_db *db) {
  free(db->unknown);
  db->unknown = NULL;
  db->nunknown = 0;
  ns_census_free(db->census);
  db->census = NULL;
}

const ns_hooks ns_own_hooks = {.closing = closing};
