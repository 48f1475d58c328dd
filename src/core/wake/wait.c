/*
** Waiting for the ends of jobs, without polling.
**
** The wait has a connection of its own. There it writes an edge on each live job, under minus the
** connection's number, and sleeps. Who ends a job reads its edges in any case, and cuts these, as
** those of any job that is gone. After its commit it ends the sleep with KILL QUERY: see
** ns_wake_ended. So an end that no program waits for costs nothing more. The statement that sleeps
** looks at the edges first, so no end is missed. An end whose program died before it could ring is
** found with the next slice.
**
** The connection owns a named lock that says that it may be rung. It sleeps by waiting for another
** one, which the handle's own connection has: see listener.c for why that is no SLEEP().
**
** Invariant: when a wait is over its edges are gone, or its connection is. Edges of a connection
** that is gone are cut with the end of their job. No assert: only the server knows the rows.
*/
#include <string.h>

#include "base.h"
#include "db/db.h"
#include "handle.h"
#include "link/link.h"
#include "nightshift_admin.h"
#include "wake/wake.h"

#define SLICE (10 * NS_SECOND) /* from one look at the edges to the next */
#define ER_QUERY_INTERRUPTED 1317

/* A wait under way. */
typedef struct waiter {
  ns_link *link;
  ns_value list; /* "[id,…]" */
  ns_value me;   /* minus the number of the connection */
} waiter;

static ns_status run_on(waiter *w, ns_sql sql, const ns_value *params, const ns_value **row,
                        ns_err *err) {
  const char *text = ns_sql_texts[sql];
  ns_stmt *stmt;
  ns_status st = ns_link_prepare(w->link, &stmt, NULL, text, strlen(text), err);
  if (st == NS_OK)
    st = ns_stmt_run(w->link, stmt, params, err);
  return st == NS_OK && row != NULL ? ns_stmt_fetch(w->link, stmt, row, err) : st;
}

/* Sleeps until one of the edges is cut, and counts the rest. '*left' negative: it only counts. A
** ring ends the statement; then the next one counts. */
static ns_status sleep_once(waiter *w, int64_t wait, int64_t *left, ns_err *err) {
  char seconds[NS_NUMBER_SIZE];
  const ns_value *row = NULL;
  const ns_value params[] = {w->list, w->me, ns_vint(*left),
                             ns_vtext(ns_str(ns_number_seconds(wait, seconds)))};
  ns_status st = run_on(w, NS_SQL_WAIT_SLEEP, params, &row, err);
  if (st == NS_OK && row != NULL)
    *left = row[0].i;
  if (st == NS_OK || err->sqlerr != ER_QUERY_INTERRUPTED)
    return st;
  ns_err_clear(err);
  return NS_OK;
}

/* The lock that the other connection waits for. It goes with a lost connection: it is taken anew. */
static ns_status keep_asleep(ns_db *db, const waiter *w, ns_err *err) {
  ns_status st = ns_db_ready(db, err);
  return st == NS_OK ? ns_db_run(db, NS_SQL_WAIT_HOLD, &w->me, err) : st;
}

static ns_status sleep_until(ns_db *db, waiter *w, int64_t until, size_t *left, ns_err *err) {
  int64_t n = -1;
  int64_t now = 0;
  ns_status st = sleep_once(w, 0, &n, err);
  while (st == NS_OK && n != 0 && (now = ns_mono_us()) < until)
    if ((st = keep_asleep(db, w, err)) == NS_OK)
      st = sleep_once(w, until - now < SLICE ? until - now : SLICE, &n, err);
  *left = n > 0 ? (size_t)n : 0;
  return st;
}

static ns_status wait_on(ns_db *db, waiter *w, int64_t until, size_t *left, ns_err *err) {
  ns_err none;
  ns_status st;
  w->me = ns_vint(-ns_link_thread(w->link));
  st = run_on(w, NS_SQL_WAIT_RUNG, &w->me, NULL, err);
  if (st == NS_OK)
    st = run_on(w, NS_SQL_WAIT_ENTER, (ns_value[]){w->me, w->list}, NULL, err);
  if (st == NS_OK)
    st = sleep_until(db, w, until, left, err);
  for (int tries = 0; tries < 3; tries++) /* a late ring may end it */
    if (run_on(w, NS_SQL_WAIT_LEAVE, (ns_value[]){w->list, w->me}, NULL, &none) == NS_OK)
      break;
  ns_db_run(db, NS_SQL_WAIT_LET_GO, &w->me, &none);
  return st;
}

ns_status ns_wait(ns_db *db, ns_bytes ids, int64_t wait, size_t *left, ns_err *err) {
  waiter w = {.list = ns_vtext(ids)};
  int64_t until = ns_mono_us() + wait;
  ns_config cfg;
  ns_status st;
  *left = 0;
  ns_err_clear(err);
  if (ns_in_transaction(db))
    return ns_fail(err, NS_ESTATE,
                   "a wait inside a transaction would keep its locks from the jobs; wait before it, "
                   "or after it");
  if ((st = ns_db_ready(db, err)) != NS_OK)
    return st;
  cfg = ns_db_config_value(db);
  cfg.waits = NULL; /* waiting is its purpose */
  if (cfg.read_timeout < 2 * SLICE) /* only silence lasts longer */
    cfg.read_timeout = 2 * SLICE;
  cfg.host_session = false;
  if ((st = ns_link_open(&w.link, &cfg, err)) != NS_OK)
    return st;
  st = wait_on(db, &w, until, left, err);
  ns_link_close(w.link, false);
  return st;
}

/* ------------------------------------------------------------------- rings */

#define MOST 20000 /* bytes of the list of those that are rung together; others find out later */

void ns_wake_note(ns_db *db, int64_t job) {
  if (db->waiters.n < MOST)
    ns_db_list_add_id(&db->waiters, -job);
}

void ns_wake_ended(ns_db *db) {
  ns_value list;
  ns_err none;
  if (ns_db_list_is_empty(&db->waiters) || ns_in_transaction(db))
    return;
  list = ns_db_list_end(&db->waiters);
  if (!db->waiters.oom)
    ns_db_run(db, NS_SQL_WAIT_RING, &list, &none);
  ns_buf_free(&db->waiters);
}

static void forget(ns_db *db) {
  ns_buf_free(&db->waiters);
}

const ns_hooks ns_wake_wait_hooks = {.forked = forget, .closing = forget};
