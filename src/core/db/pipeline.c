/*
** Writing in three waits, or in one, instead of one per statement.
**
** Invariant: in a volley autocommit is off before anything is sent and until the
** COMMIT. So when a statement fails and takes the transaction with it, what was sent behind
** it is in a transaction, too, that is rolled back; and COMMIT is sent only when
** every statement is known to have worked. The ring goes with it, behind it: it is
** run after the commit, and what becomes of it is not the push's concern. A session
** in which autocommit may still be off is given up. END commits what a COMMIT that a
** KILL has hit did not; such a push counts as cut.
*/
#include "db/pipeline.h"

#include "db/reset.h"
#include "ns_time.h"

#define BEGIN "SET autocommit=0"
#define END "SET autocommit=1"
#define RING_AGAIN (10 * NS_SECOND) /* after a refusal */

bool ns_ring_refused(const ns_db *db) {
  return ns_mono_us() < db->ring_at;
}

/* Preparing the call needs the right to it. */
bool ns_may_ring(ns_db *db) {
  ns_err none;
  if (ns_ring_refused(db))
    return false;
  if (db->may_ring)
    return true;
  switch (ns_try(db, NS_SQL_LISTEN_RING, &none)) {
  case NS_OK:
    return db->may_ring = true;
  case NS_EDENIED:
  case NS_ESCHEMA:
  case NS_ESQL:
    db->ring_at = ns_mono_us() + RING_AGAIN;
    return false;
  default: /* nothing is said about the right */
    return false;
  }
}

static ns_status prepare_all(ns_db *db, const ns_step *steps, size_t n,
                             ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (steps[i].nrows > 0)
      st = ns_prepare(db, steps[i].sql, err);
  return st;
}

static ns_status say(ns_db *db, const char *text, ns_err *err) {
  ns_status st = ns_link_send(db->link, text, err);
  return st == NS_OK ? ns_link_answers(db->link, NULL, err) : st;
}

/* Sends the steps and waits; not before BEGIN has worked: what is sent behind one
** that a KILL has hit would commit by itself. */
static ns_status fire(ns_db *db, const ns_step *steps, size_t n, ns_err *err) {
  ns_status st = say(db, BEGIN, err);
  ns_status answer;
  int64_t changes = 0;
  if (st != NS_OK)
    return st;
  for (size_t i = 0; st == NS_OK && i < n; i++) {
    changes += (int64_t)steps[i].changes;
    st = ns_stmt_send(db->link, db->stmts[steps[i].sql], steps[i].cols,
                      steps[i].nrows, err);
  }
  answer = ns_link_answers(db->link, NULL, st == NS_OK ? err : NULL);
  if (st != NS_OK || answer != NS_OK)
    return st != NS_OK ? st : answer;
  return ns_whole(ns_link_changed(db->link), changes, err);
}

/* Not in one go: behind a ROLLBACK that a KILL has hit, END would commit. */
static void roll_back(ns_db *db) {
  if (!ns_link_dead(db->link) &&
      (say(db, "ROLLBACK", NULL) != NS_OK || say(db, END, NULL) != NS_OK))
    ns_link_give_up(db->link);
}

/* What fails after the COMMIT leaves it as it is. */
static ns_status commit(ns_db *db, bool ring, bool *cut, ns_err *err) {
  enum { IS_COMMIT, IS_END, IS_RING };
  size_t failed = IS_RING;
  ns_status st = ns_link_send(db->link, "COMMIT", err);
  *cut = true;
  if (st != NS_OK)
    return st;
  if (ns_link_send(db->link, END, NULL) == NS_OK && ring)
    ns_link_send(db->link, ns_sql_texts[NS_SQL_LISTEN_RING], NULL);
  st = ns_link_answers(db->link, &failed, err);
  if (failed != IS_RING)
    ns_link_give_up(db->link);
  if (st == NS_OK || failed == IS_COMMIT)
    return st;
  ns_err_clear(err);
  return NS_OK;
}

ns_status ns_pipeline(ns_db *db, const ns_step *steps, size_t n, bool *ring, bool *cut,
                      ns_err *err) {
  ns_status st;
  *cut = false;
  if ((st = ns_ready(db, err)) != NS_OK || (st = ns_session_begins(db, err)) != NS_OK)
    return st;
  *ring = *ring && ns_may_ring(db);
  ns_link_hold(db->link, true);
  if ((st = prepare_all(db, steps, n, err)) != NS_OK) {
    ns_link_hold(db->link, false);
    return st;
  }
  ns_link_hold(db->link, false);
  if ((st = fire(db, steps, n, err)) == NS_OK)
    return commit(db, *ring, cut, err);
  roll_back(db);
  return ns_misfit(st, err);
}

/* ------------------------------------------------------- in one statement */

ns_status ns_at_once(ns_db *db, ns_sql sql, const ns_value *params, bool *cut,
                     ns_err *err) {
  ns_status st;
  *cut = false;
  if ((st = ns_ready(db, err)) != NS_OK || (st = ns_session_begins(db, err)) != NS_OK ||
      (st = ns_prepare(db, sql, err)) != NS_OK)
    return st;
  st = ns_misfit(ns_stmt_run(db->link, db->stmts[sql], params, err), err);
  if (st == NS_OK)
    return NS_OK;
  *cut = st == NS_EGONE || (st == NS_EBUSY && !ns_link_retryable(err));
  /* handlers do not see a KILL */
  if (!ns_link_dead(db->link) && ns_link_text(db->link, "ROLLBACK", NULL) != NS_OK)
    ns_link_give_up(db->link);
  return st;
}
