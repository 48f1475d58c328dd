/*
** Deleting a job.
**
** A job that no claim has is first taken out of ready or scheduled, by key. So of a claim and a
** delete exactly one has the row, and the other finds none. A live job ends as a cancelled one
** does, but leaves no history.
**
** Invariant: when a delete has been committed no row has the job's payload, result, errors, log
** or signals. A row of nightshift_child stays as long as jobs below the deleted one are there:
** pruning finds them by it. No assert: only the server knows the rows.
*/
#include "admin/inner.h"

#include <stdio.h>
#include <string.h>

#include "db/db.h"
#include "finish/finish.h"

static ns_status is_claimed(int64_t id, ns_err *err) {
  return ns_fail(err, NS_ESTATE, "job %lld is running: cancel it first, or wait for its end",
                 (long long)id);
}

/* Refuses a job that a claim has. Otherwise none gets it before our commit. */
static ns_status take_unclaimed(ns_db *db, const ns_admin_work *w, ns_err *err) {
  const ns_value params[] = {ns_vint(w->id), ns_vint(w->now.run)};
  const ns_value *row = NULL;
  bool taken = true;
  ns_status st;
  if (w->now.unmet == 0)
    st = ns_admin_take(db, w, &taken, err);
  else if ((st = ns_db_run(db, NS_SQL_ADMIN_HELD, params, err)) == NS_OK)
    st = ns_db_row(db, NS_SQL_ADMIN_HELD, &row, err);
  if (st == NS_OK && (!taken || row != NULL))
    return is_claimed(w->id, err);
  return st;
}

/* Runs a statement about one job; is there a row? */
static ns_status has_row(ns_db *db, ns_sql sql, int64_t id, bool *yes, ns_err *err) {
  const ns_value *row = NULL;
  ns_value param = ns_vint(id);
  ns_status st = ns_db_run(db, sql, &param, err);
  if (st == NS_OK)
    st = ns_db_row(db, sql, &row, err);
  *yes = row != NULL;
  return st;
}

/* A live parent reads the results of its children. */
static ns_status check_parent(ns_db *db, int64_t id, int64_t parent, ns_err *err) {
  bool lives = false;
  ns_status st = parent != 0 ? has_row(db, NS_SQL_EDGE_THERE, parent, &lives, err) : NS_OK;
  if (st == NS_OK && lives)
    return ns_fail(err, NS_ESTATE,
                   "job %lld is a child of job %lld, which has not finished and may read its "
                   "result: wait for that one's end, or cancel it, first",
                   (long long)id, (long long)parent);
  return st;
}

/* The link to its parent, unless jobs below it are found by that. */
static ns_status delete_link(ns_db *db, int64_t id, int64_t parent, ns_err *err) {
  char text[96];
  const ns_value *row = NULL;
  ns_value list = ns_vtext(NS_NONE);
  bool above = false;
  ns_status st = NS_OK;
  if (parent == 0 || (st = has_row(db, NS_SQL_ADMIN_BELOW, id, &above, err)) != NS_OK || above)
    return st;
  if ((st = ns_db_run(db, NS_SQL_ADMIN_LINK, (ns_value[]){ns_vint(parent), ns_vint(id)}, err)) !=
          NS_OK ||
      (st = ns_db_row(db, NS_SQL_ADMIN_LINK, &row, err)) != NS_OK || row == NULL)
    return st;
  snprintf(text, sizeof text, "[[%lld,%lld,%lld]]", (long long)parent, (long long)row[0].i,
           (long long)id);
  list.s = ns_str(text);
  return ns_db_run(db, NS_SQL_PRUNE_LINKS, &list, err);
}

static ns_status delete_traces(ns_db *db, int64_t id, int64_t parent, ns_err *err) {
  static const ns_sql all[] = {NS_SQL_PRUNE_FINISHED, NS_SQL_PRUNE_ATTEMPTS, NS_SQL_PRUNE_SIGNALS,
                               NS_SQL_PRUNE_PAUSES};
  char text[32];
  ns_value list;
  ns_status st = NS_OK;
  snprintf(text, sizeof text, "[%lld]", (long long)id);
  list = ns_vtext(ns_str(text));
  for (size_t i = 0; st == NS_OK && i < sizeof all / sizeof *all; i++)
    st = ns_db_run(db, all[i], &list, err);
  return st == NS_OK ? delete_link(db, id, parent, err) : st;
}

static ns_status end_live(ns_db *db, const ns_admin_work *w, ns_err *err) {
  ns_end end = {.id = w->id, .queue_id = w->now.queue_id, .outcome = "cancelled",
                .reason = "deleted", .attempts = -1, .polls = -1, .crashes = -1,
                .forgotten = true};
  ns_status st = take_unclaimed(db, w, err);
  if (w->now.key.n > 0)
    end.unique = ns_buf_bytes(&w->now.key);
  if (st == NS_OK)
    st = ns_db_bulk_changing(db, NS_SQL_SETTLE_HIDDEN, (ns_column[]){{NS_INT, &w->id, NULL, NULL}},
                             1, 0, err);
  return st == NS_OK ? ns_finish(db, &end, 1, err) : st;
}

/* Of a job that was retried between the two looks the first one was right. */
static ns_status find_job(ns_db *db, ns_admin_work *w, ns_err *err) {
  ns_status st = ns_admin_lock_live(db, w->id, &w->now, err);
  if (st == NS_OK && !w->now.found)
    st = ns_admin_lock_past(db, w->id, &w->then, err);
  if (st == NS_OK && !w->now.found && w->then.outcome[0] == '\0')
    st = ns_admin_lock_live(db, w->id, &w->now, err);
  return st;
}

static ns_status delete_run(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_admin_work *w = tx->arg;
  int64_t parent;
  ns_status st = find_job(db, w, err);
  if (st != NS_OK)
    return st;
  if (!w->now.found && w->then.outcome[0] == '\0')
    return tx->replay ? NS_OK : ns_db_no_job(w->id, err);
  parent = w->now.found ? w->now.parent : w->then.parent;
  st = check_parent(db, w->id, parent, err);
  if (st == NS_OK && w->now.found)
    st = end_live(db, w, err);
  return st == NS_OK ? delete_traces(db, w->id, parent, err) : st;
}

ns_status ns_delete(ns_db *db, int64_t id, ns_err *err) {
  ns_admin_work w = {.id = id};
  ns_err_clear(err);
  return ns_admin_run(db, &w, delete_run, err);
}
