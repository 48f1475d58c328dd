/*
** What rows of adopted tables do not say yet of their jobs: nightshift_owed. Who fails or ends
** a job adds to it, and who serves the table takes from it.
**
** Invariant: a row of it is written in the transaction that writes what it tells. It is only
** added to here, so no verdict waits for who has locked what is owed for the same row. No
** assert: what else the transaction writes is the caller's.
*/
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
