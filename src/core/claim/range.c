/*
** Ranges of lanes as the text and the parameters of a statement. The text depends
** on their number, and on whether all rows are meant, only, so that few are prepared.
*/
#include "claim/range.h"

#define LANE_MARK "/*lanes*/"
#define LANE_RANGE "(rank = ? AND ready_at >= ? AND ready_at < ?)"
#define LANE_CROWD "(rank = ? AND ready_at >= ? AND ready_at < ? AND NOT alone)"

void ns_ranges_begin(ns_ranges *r, int64_t queue_id, bool crowd) {
  r->n = 0;
  r->crowd = crowd;
  r->nparams = 0;
  r->params[r->nparams++] = ns_vint(queue_id);
}

void ns_ranges_add(ns_ranges *r, int64_t rank, int64_t from, int64_t to) {
  if (from >= to)
    return;
  r->params[r->nparams++] = ns_vint(rank);
  r->params[r->nparams++] = ns_vint(from);
  r->params[r->nparams++] = ns_vint(to);
  r->n++;
}

void ns_ranges_end(ns_ranges *r, size_t limit) {
  r->params[r->nparams++] = ns_vint((int64_t)limit);
}

ns_status ns_ranges_text(const ns_ranges *r, ns_sql sql, const char *kinds, ns_buf *text,
                         ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  for (size_t i = 0; i < r->n; i++) {
    ns_buf_adds(&list, i > 0 ? " OR " : kinds != NULL ? "(" : "");
    ns_buf_adds(&list, r->crowd ? LANE_CROWD : LANE_RANGE);
  }
  if (kinds != NULL)
    ns_buf_addf(&list, ")%s", kinds);
  ns_buf_fill(text, ns_sql_texts[sql], LANE_MARK, ns_buf_bytes(&list));
  text->oom = text->oom || list.oom;
  ns_buf_free(&list);
  return text->oom ? ns_no_memory(err) : NS_OK;
}
