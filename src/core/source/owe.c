/*
** What rows of adopted tables do not say yet of their jobs: nightshift_owed. Who fails or ends
** a job adds to it, and who serves the table takes from it.
**
** Invariant: a row of it is written in the transaction that writes what it tells. It is only
** added to here, so no verdict waits for who has locked what is owed for the same row. No
** assert: what else the transaction writes is the caller's.
*/
#include <string.h>

#include "db/db.h"
#include "source/source.h"

void ns_source_note(ns_source_owed *owed, ns_bytes key, int64_t job, bool failed, int64_t due,
                    const char *outcome) {
  ns_origin origin;
  if (!ns_source_origin(key, &origin))
    return;
  ns_buf_addf(&owed->list, "%c[%lld,%lld,%lld,%d,", owed->n > 0 ? ',' : '[',
              (long long)origin.source, (long long)origin.row, (long long)job, failed);
  if (outcome != NULL)
    ns_buf_addf(&owed->list, "null,\"%s\"]", outcome);
  else
    ns_buf_addf(&owed->list, "%lld,null]", (long long)due);
  owed->n++;
}

ns_status ns_source_owe(ns_db *db, ns_source_owed *owed, ns_err *err) {
  size_t n = owed->n;
  owed->n = 0;
  return n > 0 ? ns_db_list_change(db, NS_SQL_SOURCE_OWE, NULL, &owed->list, n, err) : NS_OK;
}

enum { PAST_DONE, PAST_KEY, PAST_OWNER }; /* columns of source_past_job */

static ns_status refuse(int64_t job, const ns_value *past, ns_err *err) {
  if (past[PAST_DONE].i != 0)
    return ns_fail(err, NS_ESTATE,
                   "job %lld stands for a row that is done: only dead rows are retried",
                   (long long)job);
  ns_fail(err, NS_EDUPLICATE,
          "job %lld cannot run again: its row has job %lld, which has not finished",
          (long long)job, (long long)past[PAST_OWNER].i);
  if (err != NULL)
    err->job = past[PAST_OWNER].i;
  return NS_EDUPLICATE;
}

ns_status ns_source_retry(ns_db *db, int64_t job, bool *is_row, ns_err *err) {
  ns_source_owed owed = {0};
  ns_origin origin;
  const ns_value *past = NULL;
  ns_value id = ns_vint(job);
  ns_status st = ns_db_run(db, NS_SQL_SOURCE_PAST_JOB, &id, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_SOURCE_PAST_JOB, &past, err);
  *is_row = st == NS_OK && past != NULL && past[PAST_KEY].type == NS_TEXT &&
            ns_source_origin(past[PAST_KEY].s, &origin);
  if (!*is_row)
    return st;
  if (past[PAST_DONE].i != 0 || past[PAST_OWNER].type != NS_NULL)
    return refuse(job, past, err);
  ns_source_note(&owed, past[PAST_KEY].s, job, false, 0, "retry");
  return ns_source_owe(db, &owed, err);
}
