/*
** Calling the hooks of a handle's parts, one after the other.
*/
#include "db/hooks.h"

#include "handle.h"

/* Those whose hook takes the handle alone. */
#define EACH(db, hook)                                                                \
  for (const ns_hooks *const *h_ = (db)->hooks; *h_ != NULL; h_++)                     \
    if ((*h_)->hook != NULL)                                                           \
    (*h_)->hook(db)

ns_status ns_hooks_connected(ns_db *db, ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && db->hooks[i] != NULL; i++)
    if (db->hooks[i]->connected != NULL)
      st = db->hooks[i]->connected(db, err);
  return st;
}

void ns_hooks_lost(ns_db *db) { EACH(db, lost); }

void ns_hooks_away(ns_db *db) { EACH(db, away); }

void ns_hooks_set_back(ns_db *db) { EACH(db, set_back); }

void ns_hooks_forked(ns_db *db) { EACH(db, forked); }

void ns_hooks_committed(ns_db *db, bool written) {
  for (size_t i = 0; db->hooks[i] != NULL; i++)
    if (db->hooks[i]->committed != NULL)
      db->hooks[i]->committed(db, written);
}

void ns_hooks_closing(ns_db *db) {
  size_t n = 0;
  while (db->hooks[n] != NULL)
    n++;
  while (n-- > 0)
    if (db->hooks[n]->closing != NULL)
      db->hooks[n]->closing(db);
}
