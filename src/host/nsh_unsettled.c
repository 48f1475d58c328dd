/*
** What the database says of verdicts. Written, or too late to be: done with.
** Held by somebody: a little later. Refused: as something milder.
*/
#include "nsh_unsettled.h"

#include <stdio.h>

#include "ns_log.h"

#define LOCKED_RETRY 5000 /* µs: verdicts whose row somebody else holds */

void nsh_unsettled_free(nsh_unsettled *u) {
  nsh_batch_free(&u->batch);
  nsh_batch_free(&u->later);
}

void nsh_unsettled_take(nsh_unsettled *u, nsh_batch *fresh) {
  nsh_batch empty = u->batch;
  if (u->batch.n > 0)
    return;
  u->batch = *fresh;
  *fresh = empty;
  for (size_t i = 0; i < u->later.n; i++)
    nsh_batch_copy(&u->batch, &u->later.items[i]);
  nsh_batch_clear(&u->later);
  u->again_at = INT64_MAX;
}

/* Logs what a cycle said about one verdict. One whose row somebody else holds
** (BUSY) is written a little later, and no news. */
static void log_verdict(const ns_verdict *v) {
  ns_field id = ns_fi("id", v->id);
  if (v->status == NS_EBUSY)
    return;
  if (v->status == NS_ESTALE)
    ns_log(NS_LOG_WARN, "job.stale", NS_FIELDS(id, ns_fi("run", v->run)));
  else if (v->status != NS_OK)
    ns_log(NS_LOG_ERROR, "job.refused",
           NS_FIELDS(id, ns_fs("code", ns_code(v->status)),
                     ns_fi("kind", (int64_t)v->kind)));
  else if (v->dead)
    ns_log(NS_LOG_WARN, "job.dead",
           NS_FIELDS(id, ns_fb("reason", ns_first_line(v->error))));
}

/* A verdict the database would not take becomes a failure, and a failure it
** would not take a release, so that the job does not stay claimed. */
static bool soften(nsh_batch *b, ns_verdict *v) {
  char text[64];
  if (v->kind == NS_RELEASE)
    return false;
  v->kind = v->kind == NS_FAIL ? NS_RELEASE : NS_FAIL;
  snprintf(text, sizeof text, "the verdict was refused: %s",
           ns_code(v->status));
  v->error = v->kind == NS_FAIL ? nsh_batch_keep(b, ns_str(text)) : NS_NONE;
  v->result = v->state = v->log = NS_NONE;
  v->nchildren = 0;
  v->delay = -1;
  return true;
}

size_t nsh_unsettled_sort(nsh_unsettled *u, int64_t now) {
  size_t settled = 0;
  for (size_t i = 0; i < u->batch.n; i++) {
    ns_verdict *v = &u->batch.items[i];
    log_verdict(v);
    bool refused = v->status != NS_OK && v->status != NS_ESTALE &&
                   v->status != NS_EBUSY;
    if (v->status == NS_EBUSY || (refused && soften(&u->batch, v))) {
      v->status = NS_OK;
      nsh_batch_copy(&u->later, v);
      u->again_at = now + LOCKED_RETRY;
    } else
      settled++;
  }
  nsh_batch_clear(&u->batch);
  return settled;
}
