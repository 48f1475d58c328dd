/*
** Tags of jobs: checking a list of them, and writing the lists of many jobs in one statement.
**
** Invariant: no statement runs for jobs without tags. No assert: it is the last line below.
*/
#include "push/push.h"

#include "db/db.h"

/* Texts in "[\"a\",…]"; 0: it is no such list, or one of none. */
static size_t count_texts(ns_bytes list) {
  const char *p = list.p;
  const char *end = list.p + list.n;
  size_t n = 0;
  if (list.n < 2 || *p != '[' || end[-1] != ']')
    return 0;
  for (p++; p < end - 1; p++, n++) {
    if (*p++ != '"')
      return 0;
    for (; p < end - 1 && *p != '"'; p++)
      p += *p == '\\';
    if (++p >= end || (*p != ',' && p != end - 1))
      return 0;
  }
  return n;
}

ns_status ns_push_tags_check(ns_bytes tags, ns_err *err) {
  size_t n = count_texts(tags);
  if (n < 1 || n > NS_MAX_TAGS)
    return ns_fail(err, NS_EINVALID, "a job has 1 to %d tags, each a text, as a JSON list",
                   NS_MAX_TAGS);
  return NS_OK;
}

ns_status ns_push_tags_write(ns_db *db, const ns_insert *rows, size_t n, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  size_t k = 0;
  for (size_t i = 0; i < n; i++)
    if (rows[i].push->tags.p != NULL) {
      ns_buf_addf(&list, "%c[%lld,", k > 0 ? ',' : '[', (long long)rows[i].id);
      ns_buf_add(&list, rows[i].push->tags.p, rows[i].push->tags.n);
      ns_buf_addc(&list, ']');
      k += count_texts(rows[i].push->tags);
    }
  return k > 0 ? ns_db_list_change(db, NS_SQL_PUSH_TAGS, NULL, &list, k, err) : NS_OK;
}
