/*
** Pushes in doubt: cut at their commit, and what becomes of them.
**
** Invariant: a push keeps its ids and nonces until it is known whether it was
** written. Its own call finds out by a replay; when the server cannot be asked any
** more that call fails with GONE, and the handle remembers what was pushed: the
** same push, made again, is a replay, too.
*/
#include "push/in_doubt.h"

#include <stdlib.h>
#include <string.h>

#include "db/db.h"
#include "ns_time.h"

#define REPEAT_WITHIN (60 * NS_SECOND) /* of GONE: then it is the same push */

/* Is there a row for this id and nonce? 'sql' says where to look. */
static ns_status look(ns_db *db, ns_sql sql, const ns_insert *row, bool *yes,
                      ns_err *err) {
  const ns_value *found = NULL;
  ns_status st = ns_db_run(
      db, sql,
      (ns_value[]){ns_vint(row->id), ns_vint(row->nonce), ns_vint(row->id), ns_vint(row->nonce)},
      err);
  if (st == NS_OK)
    st = ns_db_row(db, sql, &found, err);
  *yes = found != NULL;
  return st;
}

/* The rows of 'from' that are not kept, into 'to'; how many. */
static size_t fresh(ns_insert *to, const ns_insert *from, size_t n) {
  size_t k = 0;
  for (size_t i = 0; i < n; i++)
    if (from[i].kept == 0)
      to[k++] = from[i];
  return k;
}

/* What was found out about the fresh rows goes back to where they stood. */
static void give_back(ns_insert *to, size_t n, const ns_insert *fresh) {
  for (size_t i = 0; i < n; i++)
    if (to[i].kept == 0)
      to[i] = *fresh++;
}

static ns_status insert_fresh(ns_db *db, ns_insert *rows, size_t n, ns_err *err) {
  ns_insert *some = malloc(n * sizeof *some);
  ns_status st;
  if (some == NULL)
    return ns_no_memory(err);
  st = ns_insert_jobs(db, some, fresh(some, rows, n), NULL, err);
  give_back(rows, n, some);
  free(some);
  return st;
}

/* Whom the try that was cut has kept counts on when that one was written. */
ns_status ns_push_insert(ns_db *db, ns_insert *rows, size_t n, bool *yes, ns_err *err) {
  ns_insert *before;
  ns_status st;
  size_t i = 0;
  *yes = false;
  while (i < n && rows[i].push->keep == 0)
    i++;
  if (i == n)
    return ns_insert_jobs(db, rows, n, NULL, err);
  if ((before = malloc(n * sizeof *before)) == NULL)
    return ns_no_memory(err);
  memcpy(before, rows, n * sizeof *before);
  if ((st = ns_insert_keep(db, rows, n, yes, err)) == NS_OK && !*yes)
    st = insert_fresh(db, rows, n, err);
  if (*yes)
    memcpy(rows, before, n * sizeof *before);
  free(before);
  return st;
}

/* The first row that the earlier try wrote; n: none, so it did not matter. */
static size_t first_written(const ns_insert *rows, size_t n) {
  size_t i = 0;
  while (i < n && rows[i].kept != 0)
    i++;
  return i;
}

/*
** The try that was cut at its commit may have happened, may still be
** committing, and its job may even end while we look. So: look; insert, which
** waits for the old transaction and is a duplicate if its job lives; look into
** the history once more, where a job that ended in between must be by now.
*/
ns_status ns_push_replay(ns_db *db, ns_insert *rows, size_t n, bool *yes, ns_err *err) {
  ns_err second;
  size_t first = first_written(rows, n);
  ns_status st = NS_OK;
  if (first == n)
    return ns_push_insert(db, rows, n, yes, err);
  st = look(db, NS_SQL_PUSH_REPLAYED, &rows[first], yes, err);
  if (st != NS_OK || *yes)
    return st;
  st = ns_push_insert(db, rows, n, yes, err);
  if (st == NS_OK && !*yes)
    st = look(db, NS_SQL_PUSH_REPLAYED_END, &rows[first], yes, err);
  else if (st == NS_EDUPLICATE &&
           look(db, NS_SQL_PUSH_REPLAYED, &rows[first], yes, &second) == NS_OK && *yes)
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
    ns_buf_addf(to, "%lld %lld ", (long long)p->on_fail_run, (long long)p->keep);
  }
}

bool ns_push_repeats(const ns_db *db, ns_bytes queue, const ns_push *jobs, size_t n) {
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

void ns_push_remember(ns_db *db, ns_bytes queue, const ns_push *jobs, const ns_insert *rows,
                      size_t n) {
  ns_push_doubt *d = &db->pushing;
  int64_t *tokens = malloc(3 * n * sizeof *tokens);
  put_content(&d->content, queue, jobs, n);
  for (size_t i = 0; tokens != NULL && i < n; i++) {
    tokens[3 * i] = rows[i].id;
    tokens[3 * i + 1] = rows[i].nonce;
    tokens[3 * i + 2] = rows[i].kept;
  }
  free(d->tokens);
  d->tokens = tokens;
  d->n = tokens != NULL && !d->content.oom ? n : 0;
  d->until = ns_mono_us() + REPEAT_WITHIN;
}

void ns_push_number(const ns_db *db, const ns_push *jobs, ns_insert *rows) {
  const ns_push_doubt *d = &db->pushing;
  for (size_t i = 0; i < d->n; i++) {
    rows[i].push = &jobs[i];
    rows[i].deadline_in = -1;
    rows[i].id = d->tokens[3 * i];
    rows[i].nonce = d->tokens[3 * i + 1];
    rows[i].kept = d->tokens[3 * i + 2];
  }
}

/* ------------------------------------------------------------------ hooks */

static void forked(ns_db *db) {
  db->pushing.n = 0;
}

static void closing(ns_db *db) {
  free(db->pushing.tokens);
  ns_buf_free(&db->pushing.content);
  db->pushing = (ns_push_doubt){0};
}

const ns_hooks ns_push_hooks = {.forked = forked, .closing = closing};
