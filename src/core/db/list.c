/*
** Lists as parameters of statements. The server takes them apart (JSON_TABLE), so
** that one text serves any number of keys.
**
** Invariant: a list that lost an element for want of memory is never sent.
*/
#include "db/list.h"

void ns_id_add(ns_buf *list, int64_t id) {
  ns_buf_addf(list, "%c%lld", list->n > 0 ? ',' : '[', (long long)id);
}

void ns_pair_add(ns_buf *list, int64_t id, int64_t run) {
  ns_buf_addf(list, "%s[%lld,%lld]", list->n > 0 ? "," : "[", (long long)id,
              (long long)run);
}

bool ns_list_is_empty(const ns_buf *list) {
  return list->n == 0 && !list->oom;
}

ns_value ns_list_end(ns_buf *list) {
  ns_buf_adds(list, list->n > 0 ? "]" : "[]");
  return ns_vtext(ns_buf_bytes(list));
}

ns_status ns_list_run(ns_db *db, ns_sql sql, const ns_value *first, ns_buf *list,
                      ns_err *err) {
  ns_value params[2];
  size_t n = 0;
  ns_status st;
  if (first != NULL)
    params[n++] = *first;
  params[n] = ns_list_end(list);
  st = list->oom ? ns_no_memory(err) : ns_run(db, sql, params, err);
  ns_buf_free(list);
  return st;
}

ns_status ns_list_change(ns_db *db, ns_sql sql, const ns_value *first, ns_buf *list,
                         size_t n, ns_err *err) {
  ns_status st = ns_list_run(db, sql, first, list, err);
  return st == NS_OK ? ns_whole(ns_affected(db, sql), (int64_t)n, err) : st;
}
