/*
** Signals: values sent to jobs from outside, which a parked job waits for.
*/
#include "db/db.h"
#include "handle.h"

#define USUAL_MAX (1 << 20) /* bytes that the procedure takes unless told */

static ns_status check_name(ns_bytes name, ns_err *err) {
  return name.p == NULL || name.n == 0 ? NS_OK
                                       : ns_db_name_check(name, "signal name", NS_MAX_SIGNAL, err);
}

static ns_status check_live(ns_db *db, int64_t id, ns_err *err) {
  ns_value param = ns_vint(id);
  const ns_value *row = NULL;
  ns_status st = ns_db_run(db, NS_SQL_SIGNAL_LIVE, &param, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_SIGNAL_LIVE, &row, err);
  if (st == NS_OK && row == NULL)
    return ns_fail(err, NS_ENOTFOUND, "no live job has the id %lld",
                   (long long)id);
  return st;
}

typedef struct work {
  int64_t id;
  ns_bytes value, name;
} work;

static ns_status send(ns_db *db, ns_tx *tx, ns_err *err) {
  const work *w = tx->arg;
  ns_value limit = ns_vint((int64_t)db->max_payload);
  ns_status st = check_live(db, w->id, err);
  if (st == NS_OK && w->value.n > USUAL_MAX)
    st = ns_db_run(db, NS_SQL_SIGNAL_LIMIT, &limit, err);
  if (st == NS_OK)
    st = ns_db_run(db, NS_SQL_SIGNAL_CALL,
                   (ns_value[]){ns_vint(w->id), ns_vtext(w->value),
                                w->name.p != NULL ? ns_vtext(w->name) : ns_vnull},
                   err);
  return st;
}

ns_status ns_signal(ns_db *db, int64_t id, ns_bytes value, ns_bytes name,
                    ns_err *err) {
  work w = {id, value, name};
  ns_tx tx = {.run = send, .arg = &w};
  ns_status st = check_name(name, err);
  if (st == NS_OK && value.n > db->max_payload)
    st = ns_fail(err, NS_ETOOBIG,
                 "the value has %zu bytes of JSON; the limit is %zu (max_payload)",
                 value.n, db->max_payload);
  if (st == NS_OK)
    st = ns_db_transact(db, &tx, err);
  db->claim.promote_at = 0; /* at what is due: it may be by now */
  if (st == NS_OK && db->user_tx)
    db->ring_due = true;
  else if (st == NS_OK)
    ns_ring(db, NULL);
  return st;
}
