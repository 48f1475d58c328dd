/*
** Lines on rows of adopted tables that come back. Where a job's own lines have what its
** worker knows, these have what the table's people look for: whose claim it was, since
** when, and when the row may be claimed again. The time of a reset is the line's own.
*/
#include "dispatcher/row_log.h"

#include "ns_log.h"

static bool has_failed(const ns_verdict *v) {
  return v->status == NS_OK && (v->kind == NS_FAIL || v->kind == NS_DISCARD ||
                                v->kind == NS_EXPIRE || v->kind == NS_CRASH ||
                                v->kind == NS_MISSING || v->kind == NS_LOST);
}

/* An instant; left out when it is not known. */
static ns_field instant(const char *key, char text[NS_LOG_TIME], int64_t us) {
  if (us <= 0)
    return ns_fs(key, NULL);
  ns_log_time(text, us);
  return ns_fs(key, text);
}

static void log_failed(ns_bytes table, const ns_verdict *v) {
  char claimant[NS_CLAIMANT];
  char since[NS_LOG_TIME];
  char next[NS_LOG_TIME];
  ns_log(NS_LOG_WARN, "row.failed",
         NS_FIELDS(ns_fb("table", table), ns_fi("id", v->id),
                   ns_fb("claim", ns_adopt_claimant(claimant, v->row.holder, v->run)),
                   instant("claimed_at", since, v->row.since),
                   ns_fi("attempts", v->row.failures),
                   ns_fs("then", v->dead ? "dead" : "open"),
                   instant("next", next, v->dead ? 0 : v->row.next),
                   ns_fb("error", ns_first_line(v->error))));
}

void nsh_row_log_failed(ns_bytes table, const ns_verdict *verdicts, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (has_failed(&verdicts[i]))
      log_failed(table, &verdicts[i]);
}

void nsh_row_log_refused(ns_bytes table, ns_adopted *a) {
  size_t n;
  const ns_refusal *refusals = ns_adopted_refusals(a, &n);
  for (size_t i = 0; i < n; i++)
    ns_log(NS_LOG_WARN, "row.refused",
           NS_FIELDS(ns_fb("table", table), ns_fi("id", refusals[i].id),
                     ns_fs("error", refusals[i].why)));
}

static void log_reset(ns_bytes table, const ns_reset *r) {
  char since[NS_LOG_TIME];
  ns_log(NS_LOG_WARN, "row.reset",
         NS_FIELDS(ns_fb("table", table), ns_fi("id", r->id),
                   ns_fs("claim", r->claimant[0] != '\0' ? r->claimant : NULL),
                   instant("claimed_at", since, r->since), ns_fs("why", r->why)));
}

void nsh_row_log_reset(ns_bytes table, ns_adopted *a) {
  size_t n;
  const ns_reset *resets = ns_adopted_resets(a, &n);
  for (size_t i = 0; i < n; i++)
    log_reset(table, &resets[i]);
  if (n > 0)
    ns_log(NS_LOG_WARN, "rescue",
           NS_FIELDS(ns_fb("table", table), ns_fi("rows", (int64_t)n)));
}
