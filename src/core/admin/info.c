/*
** What a job looks like, live or in the history.
**
** Invariant: nothing here is locked; a job that moves into the history meanwhile is found in
** one of the two. No assert: it is a matter of two statements.
*/
#include "admin/admin.h"

#include <stdlib.h>
#include <string.h>

#include "db/db.h"

/* Columns of admin_info and admin_info_finished. */
enum {
  I_ID,
  I_RUN,
  I_QUEUE_ID,
  I_QUEUE,
  I_NAME,
  I_PAYLOAD,
  I_STATE,
  I_ATTEMPTS,
  I_POLLS,
  I_CRASHES,
  I_MAX_ATTEMPTS,
  I_MAX_POLLS,
  I_MAX_CRASHES,
  I_PRIORITY,
  I_PARENT,
  I_ROOT,
  I_CREATED,
  I_DUE,
  I_DEADLINE,
  I_TIMEOUT,
  I_NONCE,
  I_UKEY,
  I_UNMET,
  I_PROGRESS,
  I_STATUS,
  I_HOLDER,
  I_OUTCOME,
  I_REASON,
  I_ERROR,
  I_RESULT,
  I_FINISHED_AT,
  I_NOW,
  I_AWAITS,
  I_PHASE,
  I_DECAY,
  I_PAUSED,
  I_FOLLOWS,
  I_COUNT
};

void ns_info_free(ns_info *info) {
  ns_buf_free(&info->bytes);
  *info = NS_INFO_INIT;
}

/* Copies every text of the row; the pointers are set when all have landed. */
static bool keep_texts(ns_info *info, const ns_value *r) {
  ns_bytes *const to[I_COUNT] = {[I_QUEUE] = &info->job.queue,     [I_NAME] = &info->job.name,
                                 [I_PAYLOAD] = &info->job.payload, [I_STATE] = &info->job.state,
                                 [I_AWAITS] = &info->job.awaits,   [I_UKEY] = &info->unique,
                                 [I_STATUS] = &info->status_text,  [I_OUTCOME] = &info->where,
                                 [I_REASON] = &info->reason,       [I_ERROR] = &info->error,
                                 [I_RESULT] = &info->result};
  size_t total = 0;
  char *at;
  for (size_t i = 0; i < I_COUNT; i++)
    if (to[i] != NULL && r[i].type == NS_TEXT)
      total += r[i].s.n;
  if ((at = ns_buf_room(&info->bytes, total + 1)) == NULL)
    return false;
  info->bytes.n = total;
  for (size_t i = 0; i < I_COUNT; i++) {
    if (to[i] == NULL || r[i].type != NS_TEXT)
      continue;
    memcpy(at, r[i].s.p, r[i].s.n);
    *to[i] = (ns_bytes){at, r[i].s.n};
    at += r[i].s.n;
  }
  return true;
}

static void keep_numbers(ns_info *info, const ns_value *r) {
  ns_job *j = &info->job;
  j->id = r[I_ID].i;
  j->run = r[I_RUN].i;
  j->queue_id = r[I_QUEUE_ID].i;
  j->attempts = r[I_ATTEMPTS].i;
  j->polls = r[I_POLLS].i;
  j->crashes = r[I_CRASHES].i;
  j->max_attempts = r[I_MAX_ATTEMPTS].i;
  j->max_polls = ns_int_or(&r[I_MAX_POLLS], -1);
  info->max_crashes = r[I_MAX_CRASHES].i;
  info->decay = r[I_DECAY].i;
  j->priority = r[I_PRIORITY].i;
  j->parent = ns_int_or(&r[I_PARENT], 0);
  j->root = ns_int_or(&r[I_ROOT], 0);
  j->created = r[I_CREATED].i;
  j->due = r[I_DUE].i;
  j->deadline = ns_int_or(&r[I_DEADLINE], 0);
  j->timeout = r[I_TIMEOUT].i;
  j->nonce = r[I_NONCE].i;
  j->phase = r[I_PHASE].i;
  j->follows = r[I_FOLLOWS].i;
  info->unmet = r[I_UNMET].i;
  info->paused = ns_int_or(&r[I_PAUSED], 0);
  info->holder = ns_int_or(&r[I_HOLDER], 0);
  info->finished_at = ns_int_or(&r[I_FINISHED_AT], 0);
  info->progress = r[I_PROGRESS].type == NS_REAL ? r[I_PROGRESS].d : -1.0;
}

/* Looks in one table; '*found' says whether it was there. */
static ns_status read_info(ns_db *db, ns_sql sql, int64_t id, ns_info *info, bool *found,
                           ns_err *err) {
  const ns_value *r = NULL;
  ns_value param = ns_vint(id);
  ns_status st = ns_db_run(db, sql, &param, err);
  if (st == NS_OK)
    st = ns_db_row(db, sql, &r, err);
  *found = st == NS_OK && r != NULL;
  if (!*found)
    return st;
  if (!keep_texts(info, r))
    return ns_no_memory(err);
  keep_numbers(info, r);
  return NS_OK;
}

ns_status ns_admin_not_found(int64_t id, ns_err *err) {
  return ns_fail(err, NS_ENOTFOUND, "there is no job %lld, live or in the history", (long long)id);
}

ns_status ns_job_info(ns_db *db, int64_t id, ns_info *info, ns_err *err) {
  bool found = false;
  ns_status st;
  ns_info_free(info);
  ns_err_clear(err);
  if ((st = ns_db_ready(db, err)) != NS_OK)
    return st;
  st = read_info(db, NS_SQL_ADMIN_INFO, id, info, &found, err);
  if (st == NS_OK && !found)
    st = read_info(db, NS_SQL_ADMIN_INFO_FINISHED, id, info, &found, err);
  if (st == NS_OK && !found) /* it may have been retried in between */
    st = read_info(db, NS_SQL_ADMIN_INFO, id, info, &found, err);
  return st == NS_OK && !found ? ns_admin_not_found(id, err) : st;
}
