/*
** Verdicts that wait to be written, told to people where nothing can be written: the text
** of a statement that sleeps is in the server's list of processes, for all who may see it.
** A prepared statement is shown without its parameters, so this one is put together.
*/
#include "handle.h"
#include "ns_time.h"

#define VERDICTS_MARK "(verdicts)"

/* {"holder":7,"n":2,"verdicts":[[id,run,µs],…]}: how long each has waited. */
static void add_json(ns_buf *text, int64_t holder, const ns_owed *list, size_t n,
                     size_t total) {
  int64_t now = ns_mono_us();
  ns_buf_addf(text, "{\"holder\":%lld,\"n\":%zu,\"verdicts\":[", (long long)holder, total);
  for (size_t i = 0; i < n && i < NS_OWED_SHOWN; i++)
    ns_buf_addf(text, "%s[%lld,%lld,%lld]", i > 0 ? "," : "", (long long)list[i].id,
                (long long)list[i].run, (long long)(now - list[i].since));
  ns_buf_adds(text, "]}");
}

ns_status ns_tell_owed(ns_db *db, int64_t holder, const ns_owed *list, size_t n,
                       size_t total, ns_err *err) {
  ns_buf json = NS_BUF_INIT;
  ns_buf sql = NS_BUF_INIT;
  ns_status st;
  add_json(&json, holder, list, n, total);
  ns_buf_fill(&sql, ns_sql_texts[NS_SQL_HOLDER_OWES], VERDICTS_MARK, ns_buf_bytes(&json));
  ns_buf_addc(&sql, '\0');
  st = json.oom || sql.oom ? ns_no_memory(err) : ns_db_text(db, sql.p, err);
  ns_buf_free(&json);
  ns_buf_free(&sql);
  return st;
}
