/*
** Plain acks: jobs that are done and leave nothing else behind. Where their ids
** come in stretches, as they were pushed, two statements move a whole stretch to
** the history: nothing is read first, and nothing is parsed.
**
** Invariant: a stretch holds claims of ours only, so its range of keys is touched
** by nobody else; what somebody holds, or has taken from us, is not written and
** is left to be settled one by one.
*/
#include "ns_done.h"

#include <stdlib.h>

#include "ns_finish.h"
#include "ns_handle.h"

static ns_status no_memory(ns_err *err) {
  return ns_fail(err, NS_ENOMEM, "out of memory");
}

static bool is_plain(ns_db *db, const ns_fate *f) {
  const ns_verdict *v = f->v;
  const ns_claimed *c;
  if (v->kind != NS_ACK || v->nchildren > 0 || v->result.p != NULL)
    return false;
  c = ns_leases_find(&db->leases, v->lease, v->id, v->run);
  return c != NULL && c->plain;
}

static void settled(ns_fate *f) {
  f->gone = true;
  f->v->status = NS_OK;
  f->v->dead = false;
}

/* Some are held, or not ours any more: those that were written are settled. */
static ns_status settle_some(ns_db *db, ns_fate *fates, size_t n, ns_err *err) {
  ns_value range[] = {ns_vint(fates[0].v->id), ns_vint(fates[n - 1].v->id)};
  ns_buf ids = NS_BUF_INIT;
  const ns_value *row = NULL;
  ns_value list;
  ns_status st = ns_run(db, NS_SQL_SETTLE_DONE_OURS, range, err);
  while (st == NS_OK &&
         (st = ns_row(db, NS_SQL_SETTLE_DONE_OURS, &row, err)) == NS_OK &&
         row != NULL) {
    settled(&fates[row[0].i - fates[0].v->id]);
    ns_buf_addf(&ids, "%c%lld", ids.n > 0 ? ',' : '[', (long long)row[0].i);
  }
  if (st != NS_OK || ids.n == 0) {
    ns_buf_free(&ids);
    return st;
  }
  ns_buf_addc(&ids, ']');
  list = ns_vtext(ns_buf_bytes(&ids));
  st = ids.oom ? no_memory(err) : ns_run(db, NS_SQL_SETTLE_GONE, &list, err);
  ns_buf_free(&ids);
  return st;
}

static ns_status settle_stretch(ns_db *db, ns_fate *fates, size_t n, ns_err *err) {
  ns_value params[] = {
      ns_claimant(db) != 0 ? ns_vint(ns_claimant(db)) : ns_vnull,
      ns_vint(fates[0].v->id), ns_vint(fates[n - 1].v->id),
      ns_vint(fates[0].v->run), ns_vint((int64_t)n)};
  ns_status st = ns_run(db, NS_SQL_SETTLE_DONE, params, err);
  if (st != NS_OK)
    return st;
  if (ns_affected(db, NS_SQL_SETTLE_DONE) < (int64_t)n)
    return settle_some(db, fates, n, err);
  for (size_t i = 0; i < n; i++)
    settled(&fates[i]);
  return ns_run(db, NS_SQL_SETTLE_DONE_GONE, params + 1, err);
}

/* 'tokens' has zeros for those that are not plain. */
static ns_status settle_stretches(ns_db *db, ns_fate *fates, size_t n,
                                  const ns_token *tokens, ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0, len; st == NS_OK && i < n; i += len) {
    len = ns_stretch(tokens + i, n - i);
    if (len >= NS_STRETCH_LEAST && tokens[i].id != 0)
      st = settle_stretch(db, fates + i, len, err);
  }
  return st;
}

/* Those that are settled go to the end. */
static size_t part(ns_fate *fates, size_t n, ns_fate *gone) {
  size_t kept = 0;
  size_t k = 0;
  for (size_t i = 0; i < n; i++)
    if (fates[i].gone)
      gone[k++] = fates[i];
    else
      fates[kept++] = fates[i];
  for (size_t i = 0; i < k; i++)
    fates[kept + i] = gone[i];
  return kept;
}

static ns_status tell(ns_db *db, const ns_fate *gone, size_t n, ns_err *err) {
  ns_end *ends = calloc(n + 1, sizeof *ends);
  ns_status st;
  if (ends == NULL)
    return no_memory(err);
  for (size_t i = 0; i < n; i++)
    ends[i] = (ns_end){.id = gone[i].v->id, .outcome = "done"};
  st = ns_finish_gone(db, ends, n, err);
  free(ends);
  return st;
}

ns_status ns_done(ns_db *db, ns_fate *fates, size_t n, size_t *rest, ns_err *err) {
  ns_token *tokens;
  ns_fate *gone;
  ns_status st;
  *rest = n;
  if (n < NS_STRETCH_LEAST)
    return NS_OK;
  tokens = malloc(n * sizeof *tokens);
  gone = malloc(n * sizeof *gone);
  st = tokens != NULL && gone != NULL ? NS_OK : no_memory(err);
  for (size_t i = 0; st == NS_OK && i < n; i++)
    tokens[i] = is_plain(db, &fates[i])
                    ? (ns_token){fates[i].v->id, fates[i].v->run, false}
                    : (ns_token){0};
  if (st == NS_OK)
    st = settle_stretches(db, fates, n, tokens, err);
  if (st == NS_OK)
    *rest = part(fates, n, gone);
  if (st == NS_OK && *rest < n)
    st = tell(db, fates + *rest, n - *rest, err);
  free(gone);
  free(tokens);
  return st;
}
