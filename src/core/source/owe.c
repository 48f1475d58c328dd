/*
** The row of an adopted table that a job stands for: its unique key is "row:SOURCE:ROW", both
** numbers in decimal. And the debts to such rows, which do not tell of their jobs yet:
** nightshift_owed. A transaction that fails or ends a job adds to it, and the server of the
** table takes from it.
**
** Invariants: one row has one key, so it has one live job at most. A debt is written in the
** transaction of the event that it tells. This file only adds debts, so no verdict waits for a
** lock on earlier debts to the same row. No assert: the rest of the transaction is the
** caller's.
*/
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "db/db.h"
#include "source/source.h"

/* ------------------------------------------------------------ which row */

/* The number from 'p' on, without a sign or a leading zero; NULL: there is none, or it is too
** large. */
static const char *read_number(const char *p, const char *end, int64_t *n) {
  const char *start = p;
  for (*n = 0; p < end && *p >= '0' && *p <= '9'; p++) {
    int digit = *p - '0';
    if (*n > (INT64_MAX - digit) / 10)
      return NULL;
    *n = *n * 10 + digit;
  }
  return p > start && *start != '0' ? p : NULL;
}

bool ns_source_origin(ns_bytes key, ns_origin *origin) {
  static const size_t prefix = sizeof NS_SOURCE_PREFIX - 1;
  const char *end;
  const char *p;
  if (key.p == NULL || key.n <= prefix || memcmp(key.p, NS_SOURCE_PREFIX, prefix) != 0)
    return false;
  end = key.p + key.n;
  p = read_number(key.p + prefix, end, &origin->source);
  if (p == NULL || p == end || *p != ':')
    return false;
  return read_number(p + 1, end, &origin->row) == end;
}

/* ------------------------------------------------------ debts to it */

void ns_source_note(ns_source_owed *owed, ns_bytes key, int64_t job, bool failed, int64_t due,
                    const char *outcome) {
  ns_origin row;
  if (!ns_source_origin(key, &row))
    return;
  if (!ns_grow(&owed->items, &owed->cap, owed->n + 1, sizeof *owed->items))
    owed->oom = true;
  else
    owed->items[owed->n++] = (ns_source_debt){
        .row = row, .job = job, .due = due, .failed = failed, .outcome = outcome};
}

void ns_source_owed_free(ns_source_owed *owed) {
  for (size_t i = 0; i < owed->n; i++)
    free(owed->items[i].why);
  free(owed->items);
  *owed = (ns_source_owed){0};
}

void ns_source_list_add(ns_buf *list, const ns_source_debt *d) {
  ns_buf_addf(list, "%c[%lld,%lld,%d,", list->n > 0 ? ',' : '[', (long long)d->row.row,
              (long long)d->job, d->failed);
  if (d->outcome != NULL)
    ns_buf_addf(list, "null,\"%s\",%lld,", d->outcome, (long long)d->row.source);
  else
    ns_buf_addf(list, "%lld,null,%lld,", (long long)d->due, (long long)d->row.source);
  if (d->why != NULL)
    ns_buf_add_json(list, ns_str(d->why));
  else
    ns_buf_adds(list, "null");
  ns_buf_addc(list, ']');
}

static ns_status write_rest(ns_db *db, const ns_source_owed *owed, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  size_t n = 0;
  for (size_t i = 0; i < owed->n; i++)
    if (!owed->items[i].paid) {
      ns_source_list_add(&list, &owed->items[i]);
      n++;
    }
  return n > 0 ? ns_db_list_change(db, NS_SQL_SOURCE_OWE, NULL, &list, n, err) : NS_OK;
}

ns_status ns_source_owe(ns_db *db, ns_source_owed *owed, ns_err *err) {
  ns_status st = owed->oom ? ns_no_memory(err) : NS_OK;
  if (st == NS_OK && owed->n > 0)
    st = ns_source_pay(db, owed->items, owed->n, err);
  if (st == NS_OK)
    st = write_rest(db, owed, err);
  ns_source_owed_free(owed);
  return st;
}

enum { PAST_DONE, PAST_KEY, PAST_OWNER }; /* columns of admin_past_row */

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
  ns_status st = ns_db_run(db, NS_SQL_ADMIN_PAST_ROW, &id, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_ADMIN_PAST_ROW, &past, err);
  *is_row = st == NS_OK && past != NULL && past[PAST_KEY].type == NS_TEXT &&
            ns_source_origin(past[PAST_KEY].s, &origin);
  if (!*is_row)
    return st;
  if (past[PAST_DONE].i != 0 || past[PAST_OWNER].type != NS_NULL)
    return refuse(job, past, err);
  ns_source_note(&owed, past[PAST_KEY].s, job, false, 0, "retry");
  return ns_source_owe(db, &owed, err);
}
