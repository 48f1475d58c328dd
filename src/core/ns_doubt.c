/*
** Pushes in doubt: cut at their commit, and what becomes of them.
**
** Invariant: a push keeps its ids and nonces until it is known whether it was
** written. Its own call finds out by a replay; when the server cannot be asked any
** more that call fails with GONE, and the handle remembers what was pushed: the
** same push, made again, is a replay, too.
*/
#include "ns_doubt.h"

#include <stdlib.h>
#include <string.h>

#include "ns_time.h"

#define REPEAT_WITHIN (60 * NS_SECOND) /* of GONE: then it is the same push */

/* Is there a row for this id and nonce? 'sql' says where to look. */
static ns_status look(ns_db *db, ns_sql sql, const ns_insert *row, bool *yes,
                      ns_err *err) {
  const ns_value *found = NULL;
  ns_status st = ns_run(db, sql,
                        (ns_value[]){ns_vint(row->id), ns_vint(row->nonce),
                                     ns_vint(row->id), ns_vint(row->nonce)},
                        err);
  if (st == NS_OK)
    st = ns_row(db, sql, &found, err);
  *yes = found != NULL;
  return st;
}

/*
** The try that was cut at its commit may have happened, may still be
** committing, and its job may even end while we look. So: look; insert, which
** waits for the old transaction and is a duplicate if its job lives; look into
** the history once more, where a job that ended in between must be by now.
*/
ns_status ns_doubt_replay(ns_db *db, ns_insert *rows, size_t n, bool *yes,
                          ns_err *err) {
  ns_err second;
  ns_status st = look(db, NS_SQL_PUSH_REPLAYED, rows, yes, err);
  if (st != NS_OK || *yes)
    return st;
  st = ns_insert_jobs(db, rows, n, NULL, err);
  if (st == NS_OK)
    st = look(db, NS_SQL_PUSH_REPLAYED_END, rows, yes, err);
  else if (st == NS_EDUPLICATE &&
           look(db, NS_SQL_PUSH_REPLAYED, rows, yes, &second) == NS_OK && *yes)
    st = NS_OK;
  return st;
}

/* ------------------------------------------------------------ remembering */

static void put_text(ns_buf *to, ns_bytes s) {
  ns_buf_addf(to, "%d %zu ", s.p != NULL, s.n);
  if (s.p != NULL)
    ns_buf_add(to, s.p, s.n);
}

/* All that a push asks for, in bytes that differ when anything does. */
static void put_content(ns_buf *to, ns_bytes queue, const ns_push *jobs,
                        size_t n) {
  ns_buf_reset(to);
  for (size_t i = 0; i < n; i++) {
    const ns_push *p = &jobs[i];
    put_text(to, p->queue.p != NULL ? p->queue : queue);
    put_text(to, p->name);
    put_text(to, p->payload);
    put_text(to, p->unique);
    ns_buf_addf(to, "%lld %lld %d %lld %lld %lld %lld %lld %lld %lld %lld %lld ",
                (long long)p->id, (long long)p->delay, p->priority,
                (long long)p->decay,
                (long long)p->max_attempts, (long long)p->max_crashes,
                (long long)p->max_polls, (long long)p->max_phases,
                (long long)p->backoff,
                (long long)p->timeout, (long long)p->deadline,
                (long long)p->parent);
    put_text(to, p->after);
    ns_buf_addf(to, "%lld ", (long long)p->on_fail_run);
  }
}

bool ns_doubt_repeats(const ns_db *db, ns_bytes queue, const ns_push *jobs,
                      size_t n) {
  const ns_push_doubt *d = &db->pushing;
  ns_buf content = NS_BUF_INIT;
  bool same;
  if (d->n != n || ns_mono_us() > d->until)
    return false;
  put_content(&content, queue, jobs, n);
  same = !content.oom && content.n == d->content.n &&
         memcmp(content.p, d->content.p, content.n) == 0;
  ns_buf_free(&content);
  return same;
}

void ns_doubt_push(ns_db *db, ns_bytes queue, const ns_push *jobs,
                   const ns_insert *rows, size_t n) {
  ns_push_doubt *d = &db->pushing;
  int64_t *tokens = malloc(2 * n * sizeof *tokens);
  put_content(&d->content, queue, jobs, n);
  for (size_t i = 0; tokens != NULL && i < n; i++) {
    tokens[2 * i] = rows[i].id;
    tokens[2 * i + 1] = rows[i].nonce;
  }
  free(d->tokens);
  d->tokens = tokens;
  d->n = tokens != NULL && !d->content.oom ? n : 0;
  d->until = ns_mono_us() + REPEAT_WITHIN;
}

void ns_doubt_number(const ns_db *db, const ns_push *jobs, ns_insert *rows) {
  const ns_push_doubt *d = &db->pushing;
  for (size_t i = 0; i < d->n; i++) {
    rows[i].push = &jobs[i];
    rows[i].deadline_in = -1;
    rows[i].id = d->tokens[2 * i];
    rows[i].nonce = d->tokens[2 * i + 1];
  }
}
