/*
** Pushing jobs: checks, ids, queues, and pushes in doubt, which were cut at their commit.
**
** Invariant: a push keeps its ids and nonces until it is known whether it was written. Its own
** call finds out by a replay. When the server cannot be asked any more that call fails with
** GONE, and the handle remembers the pushed jobs. The same push, made again, is a replay, too.
** No assert: it lasts over calls, and a caller may give up between them.
*/
#include "push/push.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "db/db.h"
#include "handle.h"

/* ----------------------------------------------------------- pushes in doubt */

#define REPEAT_WITHIN (60 * NS_SECOND) /* of GONE: then it is the same push */

/* Is there a row for this id and nonce? 'sql' says where to look. */
static ns_status find_written(ns_db *db, ns_sql sql, const ns_insert *row, bool *yes, ns_err *err) {
  const ns_value *found = NULL;
  const ns_value id = ns_vint(row->replaced ? row->kept : row->id);
  const ns_value nonce = ns_vint(row->nonce);
  ns_status st = ns_db_run(db, sql, (ns_value[]){id, nonce, id, nonce}, err);
  if (st == NS_OK)
    st = ns_db_row(db, sql, &found, err);
  *yes = found != NULL;
  return st;
}

/* The rows of 'from' that are not kept, into 'to'; how many. */
static size_t copy_fresh(ns_insert *to, const ns_insert *from, size_t n) {
  size_t k = 0;
  for (size_t i = 0; i < n; i++)
    if (from[i].kept == 0)
      to[k++] = from[i];
  return k;
}

/* Copies the findings about the fresh rows back to where they stood. */
static void copy_back(ns_insert *to, size_t n, const ns_insert *copy_fresh) {
  for (size_t i = 0; i < n; i++)
    if (to[i].kept == 0)
      to[i] = *copy_fresh++;
}

static ns_status insert_fresh(ns_db *db, ns_insert *rows, size_t n, ns_err *err) {
  ns_insert *some = malloc(n * sizeof *some);
  ns_status st;
  if (some == NULL)
    return ns_no_memory(err);
  st = ns_push_write(db, some, copy_fresh(some, rows, n), NULL, err);
  copy_back(rows, n, some);
  free(some);
  return st;
}

/* Writes the jobs of a push that are not kept on the open transaction: see ns_push_keep.
** '*yes': its first try did. A job that this first try has kept counts then. */
static ns_status insert_unkept(ns_db *db, ns_insert *rows, size_t n, bool *yes, ns_err *err) {
  ns_insert *before;
  ns_status st;
  size_t i = 0;
  *yes = false;
  while (i < n && rows[i].push->on_conflict == NS_REFUSE)
    i++;
  if (i == n)
    return ns_push_write(db, rows, n, NULL, err);
  if ((before = malloc(n * sizeof *before)) == NULL)
    return ns_no_memory(err);
  memcpy(before, rows, n * sizeof *before);
  if ((st = ns_push_keep(db, rows, n, yes, err)) == NS_OK && !*yes)
    st = insert_fresh(db, rows, n, err);
  if (*yes)
    memcpy(rows, before, n * sizeof *before);
  free(before);
  return st;
}

/* The first row that the earlier try wrote; n: none, so it did not matter. */
static size_t first_written(const ns_insert *rows, size_t n) {
  size_t i = 0;
  while (i < n && rows[i].kept != 0 && !rows[i].replaced)
    i++;
  return i;
}

/*
** The try that was cut at its commit may have happened, may still be committing, and its job
** may even end while we look. So it looks; it inserts, which waits for the old transaction and
** is a duplicate if its job lives. Then it looks into the history once more, where a job that
** ended in between must be by now.
*/
static ns_status replay_push(ns_db *db, ns_insert *rows, size_t n, bool *yes, ns_err *err) {
  ns_err second;
  size_t first = first_written(rows, n);
  ns_insert written;
  ns_status st = NS_OK;
  if (first == n)
    return insert_unkept(db, rows, n, yes, err);
  written = rows[first]; /* as that try has left it */
  st = find_written(db, NS_SQL_PUSH_REPLAYED, &written, yes, err);
  if (st != NS_OK || *yes)
    return st;
  st = insert_unkept(db, rows, n, yes, err);
  if (st == NS_OK && !*yes)
    st = find_written(db, NS_SQL_PUSH_REPLAYED_END, &written, yes, err);
  else if (st == NS_EDUPLICATE &&
           find_written(db, NS_SQL_PUSH_REPLAYED, &written, yes, &second) == NS_OK && *yes)
    st = NS_OK;
  if (*yes)
    rows[first] = written;
  return st;
}

/* ------------------------------------------------------------ remembering */

static void put_text(ns_buf *to, ns_bytes s) {
  ns_buf_addf(to, "%d %zu ", s.p != NULL, s.n);
  if (s.p != NULL)
    ns_buf_add(to, s.p, s.n);
}

/* Adds all values of a push, in bytes that differ when any value differs. */
static void put_content(ns_buf *to, ns_bytes queue, const ns_push *jobs, size_t n) {
  ns_buf_reset(to);
  for (size_t i = 0; i < n; i++) {
    const ns_push *p = &jobs[i];
    put_text(to, p->queue.p != NULL ? p->queue : queue);
    put_text(to, p->name);
    put_text(to, p->payload);
    put_text(to, p->unique);
    ns_buf_addf(to, "%lld %lld %d %lld %lld %lld %lld %lld %lld %lld %lld %lld ", (long long)p->id,
                (long long)p->delay, p->priority, (long long)p->decay, (long long)p->max_attempts,
                (long long)p->max_crashes, (long long)p->max_polls, (long long)p->max_phases,
                (long long)p->backoff, (long long)p->timeout, (long long)p->deadline,
                (long long)p->parent);
    put_text(to, p->after);
    put_text(to, p->tags);
    put_text(to, p->group);
    ns_buf_addf(to, "%lld ", (long long)p->at);
    ns_buf_addf(to, "%lld %lld %lld ", (long long)p->on_fail_run, (long long)p->on_conflict,
                (long long)p->period);
  }
}

/* The last push in doubt; NULL: there is none. */
static ns_given *last_given(const ns_push_in_doubt *d) {
  size_t i = d->n;
  while (i > 0 && !d->given[i - 1].first)
    i--;
  return i > 0 ? &d->given[i - 1] : NULL;
}

/* Is this the push that is in doubt, made again? Then its jobs. */
static ns_given *find_repeat(const ns_db *db, ns_bytes queue, const ns_push *jobs, size_t n) {
  const ns_push_in_doubt *d = &db->push;
  ns_given *last = last_given(d);
  ns_buf content = NS_BUF_INIT;
  bool same;
  if (last == NULL || last->left != n || ns_mono_us() > d->until)
    return NULL;
  put_content(&content, queue, jobs, n);
  same =
      !content.oom && content.n == d->content.n && memcmp(content.p, d->content.p, content.n) == 0;
  ns_buf_free(&content);
  return same ? last : NULL;
}

/* The jobs that the caller names by their ids, which are those of one push in doubt. */
static ns_status find_given(const ns_db *db, const ns_push *jobs, size_t n, ns_given **found,
                            ns_err *err) {
  const ns_push_in_doubt *d = &db->push;
  size_t at = d->n;
  size_t i = 0;
  for (size_t k = 0; k < n; k++)
    if (jobs[k].again == 0)
      return ns_fail(err, NS_EINVALID, "job %zu has no id, and others have; a push is repeated whole",
                     k + 1);
  while (at > 0 && d->given[at - 1].id != jobs[0].id)
    at--;
  if (at == 0)
    return ns_fail(err, NS_EINVALID,
                   "the id %lld was not given by a push on this handle that ended in GONE; push "
                   "without an id", (long long)jobs[0].id);
  *found = &d->given[at - 1];
  while (i < n && (*found)->first && (*found)->left == n && (*found)[i].id == jobs[i].id)
    i++;
  return i == n ? NS_OK
                : ns_fail(err, NS_EINVALID,
                          "the id %lld was given for a push of other jobs, too; repeat all of that "
                          "push, in its order", (long long)jobs[0].id);
}

#define MOST_GIVEN 100000 /* jobs; then the older half is forgotten */

/* Remembers a push. Out of memory: then a repeat is a new push. */
static void remember_push(ns_db *db, ns_bytes queue, ns_push *jobs, const ns_insert *rows,
                          size_t n) {
  ns_push_in_doubt *d = &db->push;
  d->until = 0;
  if (d->n > MOST_GIVEN) {
    size_t from = d->n / 2;
    while (from < d->n && !d->given[from].first)
      from++;
    memmove(d->given, d->given + from, (d->n - from) * sizeof *d->given);
    d->n -= from;
  }
  put_content(&d->content, queue, jobs, n);
  if (!ns_grow(&d->given, &d->cap, d->n + n, sizeof *d->given) || d->content.oom)
    return;
  for (size_t i = 0; i < n; i++) {
    int64_t kept = rows[i].replaced ? -rows[i].kept : rows[i].kept;
    d->given[d->n++] = (ns_given){.id = rows[i].id, .nonce = rows[i].nonce, .kept = kept,
                                  .left = n - i, .first = i == 0};
    jobs[i].id = rows[i].id;
    jobs[i].outcome = NS_IN_DOUBT;
  }
  d->until = ns_mono_us() + REPEAT_WITHIN;
}

/* A repeat has found out what became of its jobs: a later one is told the same. */
static void note_found(ns_given *given, const ns_push *jobs, size_t n) {
  for (size_t i = 0; i < n; i++) {
    given[i].job = jobs[i].id;
    given[i].outcome = jobs[i].outcome;
  }
}

static void tell_found(const ns_given *given, ns_push *jobs, size_t n) {
  for (size_t i = 0; i < n; i++) {
    jobs[i].id = given[i].job;
    jobs[i].outcome = given[i].outcome;
  }
}

/* Gives the repeat, as many rows, the ids and nonces of the push in doubt, and the jobs that it
** kept. */
static void take_remembered_ids(const ns_given *given, const ns_push *jobs, ns_insert *rows,
                                size_t n) {
  for (size_t i = 0; i < n; i++) {
    rows[i].push = &jobs[i];
    rows[i].deadline_in = -1;
    rows[i].id = given[i].id;
    rows[i].nonce = given[i].nonce;
    rows[i].replaced = given[i].kept < 0;
    rows[i].kept = llabs(given[i].kept);
  }
}

/* ------------------------------------------------------------------ hooks */

static void forked(ns_db *db) {
  db->push.n = 0;
}

static void closing(ns_db *db) {
  free(db->push.given);
  ns_buf_free(&db->push.content);
  db->push = (ns_push_in_doubt){0};
}

const ns_hooks ns_push_hooks = {.forked = forked, .closing = closing};

/* -------------------------------------------------------------------- a push */

ns_push ns_push_new(const char *name, const char *payload) {
  return (ns_push){.name = ns_str(name),
                   .payload = ns_str(payload),
                   .queue = NS_NONE,
                   .unique = NS_NONE,
                   .tags = NS_NONE,
                   .group = NS_NONE,
                   .priority = NS_PRIORITY,
                   .decay = NS_DECAY,
                   .max_attempts = NS_MAX_ATTEMPTS,
                   .max_crashes = NS_MAX_CRASHES,
                   .max_polls = -1,
                   .max_phases = -1,
                   .backoff = NS_BACKOFF,
                   .timeout = NS_TIMEOUT,
                   .deadline = -1};
}

/* ------------------------------------------------------------- checking */

/* Unlike a name a key may be any text: it is never shown as it is. */
static ns_status check_key(ns_bytes key, ns_err *err) {
  if (!ns_utf8_valid(key))
    return ns_fail(err, NS_EINVALID, "the unique key is not valid UTF-8");
  if (key.n > 0 && ns_utf8_count(key) <= NS_MAX_UNIQUE)
    return NS_OK;
  return ns_fail(err, NS_EINVALID, "the unique key has %zu characters; it must have 1 to %d",
                 ns_utf8_count(key), NS_MAX_UNIQUE);
}

static ns_status check_range(const char *what, int64_t value, int64_t min,
                             int64_t max, ns_err *err) {
  if (value < min || value > max)
    return ns_fail(err, NS_EINVALID, "%s is %lld; it must be %lld to %lld", what,
                   (long long)value, (long long)min, (long long)max);
  return NS_OK;
}

#define FAR (INT64_C(3155760000) * NS_SECOND) /* a century */

static ns_status check_numbers(const ns_push *p, ns_err *err) {
  ns_status st;
  if ((st = check_range("priority", p->priority, 0, 255, err)) != NS_OK ||
      (st = check_range("decay", p->decay, 0, 255, err)) != NS_OK ||
      (st = check_range("max_attempts", p->max_attempts, 1, 1000000, err)) != NS_OK ||
      (st = check_range("max_crashes", p->max_crashes, 1, 1000000, err)) != NS_OK ||
      (st = check_range("max_polls", p->max_polls, -1, 1000000000, err)) != NS_OK ||
      (st = check_range("max_phases", p->max_phases, -1, 1000000, err)) != NS_OK ||
      (st = check_range("delay (µs)", p->delay, 0, FAR, err)) != NS_OK ||
      (st = check_range("backoff (µs)", p->backoff, 0, FAR, err)) != NS_OK ||
      (st = check_range("timeout (µs)", p->timeout, 1, FAR, err)) != NS_OK)
    return st;
  return check_range("deadline (µs)", p->deadline, -1, FAR, err);
}

/* A key with its period and its conflicts; or none of the three. */
static ns_status check_unique(const ns_push *p, ns_err *err) {
  ns_status st;
  if (p->unique.p == NULL)
    return p->on_conflict == NS_REFUSE && p->period == 0
               ? NS_OK
               : ns_fail(err, NS_EINVALID,
                         "there is no unique key, but what is to be done with one");
  if ((st = check_key(p->unique, err)) != NS_OK ||
      (st = check_range("period (µs)", p->period, 0, FAR, err)) != NS_OK ||
      (st = check_range("on_conflict", p->on_conflict, NS_REFUSE, NS_REPLACE, err)) != NS_OK)
    return st;
  if (p->on_conflict == NS_REPLACE && (p->parent != 0 || p->after.p != NULL))
    return ns_fail(err, NS_EINVALID, "a job that replaces another has no 'parent' and no 'after'");
  return NS_OK;
}

static ns_status check_at(const ns_push *p, ns_err *err) {
  if (p->delay != 0)
    return ns_fail(err, NS_EINVALID, "'at' and 'delay' exclude each other");
  return check_range("at (µs)", p->at, 0, INT64_MAX / 2, err);
}

ns_status ns_push_check(const ns_push *p, int64_t max_payload, ns_err *err) {
  int64_t max = max_payload > 0 ? max_payload : NS_MAX_PAYLOAD;
  ns_status st = ns_db_name_check(p->name, "job name", NS_MAX_NAME, err);
  if (st == NS_OK && p->queue.p != NULL)
    st = ns_db_name_check(p->queue, "queue name", NS_MAX_QUEUE, err);
  if (st == NS_OK)
    st = check_unique(p, err);
  if (st == NS_OK && p->tags.p != NULL)
    st = ns_push_tags_check(p->tags, err);
  if (st == NS_OK && p->group.p != NULL)
    st = ns_push_group_check(p->group, err);
  if (st == NS_OK && p->at != 0)
    st = check_at(p, err);
  if (st == NS_OK && p->payload.p == NULL)
    st = ns_fail(err, NS_EINVALID, "the payload is absent; push null instead");
  if (st == NS_OK && p->payload.n > (uint64_t)max)
    st = ns_fail(err, NS_ETOOBIG,
                 "the payload has %zu bytes of JSON; the limit is %lld "
                 "(max_payload)",
                 p->payload.n, (long long)max);
  return st == NS_OK ? check_numbers(p, err) : st;
}

/* ----------------------------------------------------------------- pushing */

typedef struct work {
  ns_insert *rows;
  size_t n;
  bool rung; /* a ring went with the commit */
} work;

static ns_status push_run(ns_db *db, ns_tx *tx, ns_err *err) {
  work *w = tx->arg;
  return tx->replay ? replay_push(db, w->rows, w->n, &tx->done, err)
                    : insert_unkept(db, w->rows, w->n, &tx->done, err);
}

static ns_status resolve_queues(ns_db *db, ns_bytes queue, const ns_push *jobs,
                                work *w, ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < w->n; i++) {
    ns_bytes name = jobs[i].queue.p != NULL ? jobs[i].queue : queue;
    st = ns_queue_id(db, name, true, &w->rows[i].queue_id, err);
  }
  return st;
}

/* The jobs of a flow bring their ids. */
static ns_status give_ids(ns_db *db, const ns_push *jobs, work *w, ns_err *err) {
  int64_t *ids = malloc(w->n * sizeof *ids);
  size_t without = 0;
  ns_status st = NS_OK;
  for (size_t i = 0; i < w->n; i++)
    without += jobs[i].id <= 0;
  if (ids == NULL)
    st = ns_no_memory(err);
  else if (without > 0)
    st = ns_take_ids(db, ids, without, err);
  for (size_t i = 0, taken = 0; st == NS_OK && i < w->n; i++) {
    w->rows[i].push = &jobs[i];
    w->rows[i].deadline_in = -1;
    w->rows[i].id = jobs[i].id > 0 ? jobs[i].id : ids[taken++];
    w->rows[i].nonce = (int64_t)(ns_random() >> 1);
  }
  free(ids);
  return st;
}

static ns_status check_all(ns_db *db, const ns_push *jobs, size_t n,
                           ns_err *err) {
  for (size_t i = 0; i < n; i++) {
    char where[64];
    ns_status st = ns_push_check(&jobs[i], (int64_t)db->max_payload, err);
    if (st == NS_OK)
      continue;
    if (n == 1)
      return st;
    snprintf(where, sizeof where, "job %zu of %zu", i + 1, n);
    return ns_err_context(err, where);
  }
  return NS_OK;
}

static void note_ids(ns_db *db, ns_push *jobs, const work *w) {
  size_t kept = 0;
  for (size_t i = 0; i < w->n; i++) {
    bool keep = w->rows[i].kept != 0;
    jobs[i].id = keep ? w->rows[i].kept : w->rows[i].id;
    jobs[i].outcome = w->rows[i].replaced ? NS_REPLACED : keep ? NS_KEPT : NS_PUSHED;
    kept += keep;
    if (!keep)
      ns_db_tally_one(db, w->rows[i].queue_id, NS_N_PUSHED);
  }
  db->count.pushed += (int64_t)(w->n - kept);
  if (w->rung || !ns_push_starts_soon(w->rows, w->n))
    return;
  if (db->user_tx)
    db->ring_due = true;
  else
    ns_ring(db, NULL);
}

/* None of the rows waits for a job, and none of several has a key: the error could not tell
** which one was taken. */
static bool is_simple(const ns_insert *rows, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const ns_push *p = rows[i].push;
    if (p->parent != 0 || p->after.p != NULL || p->tags.p != NULL || p->at != 0 ||
        (n > 1 ? p->unique.p != NULL : p->max_phases >= 0))
      return false;
  }
  return true;
}

/* May the slow way do more, or find out more? A taken key has an owner; and a server may not
** prepare statements that other servers do. */
static bool has_hope(ns_status st, const ns_insert *first, const ns_err *err) {
  return st == NS_EGONE || st == NS_ESQL || ns_link_retryable(err) ||
         (st == NS_EDUPLICATE && first->push->unique.p != NULL);
}

/* At once, if that can be. */
static ns_status write_jobs(ns_db *db, work *w, ns_tx *tx, ns_err *err) {
  bool ring = ns_push_starts_soon(w->rows, w->n);
  bool cut = false;
  ns_status st;
  if (tx->replay || ns_in_transaction(db) || !is_simple(w->rows, w->n))
    return ns_db_transact(db, tx, err);
  st = w->n == 1 ? ns_push_write_one(db, w->rows, &ring, &cut, err)
                 : ns_push_write_pipelined(db, w->rows, w->n, &ring, &cut, err);
  if (st == NS_OK) {
    db->count.rings += ring;
    w->rung = ring || ns_db_ring_refused(db);
    return NS_OK;
  }
  if (ns_link_retryable(err))
    ns_db_count_retry(db, err);
  if (!cut && !has_hope(st, w->rows, err))
    return st;
  tx->replay = cut;
  return ns_db_transact(db, tx, err);
}

/* Is it a repeat of a push in doubt, by its ids or by its content? '*repeat' NULL: no. */
static ns_status find_doubt(const ns_db *db, ns_bytes queue, const ns_push *jobs, size_t n,
                            ns_given **repeat, ns_err *err) {
  size_t i = 0;
  while (i < n && jobs[i].again == 0)
    i++;
  if (i < n)
    return find_given(db, jobs, n, repeat, err);
  *repeat = find_repeat(db, queue, jobs, n);
  return NS_OK;
}

ns_status ns_push_jobs(ns_db *db, ns_bytes queue, ns_push *jobs, size_t n,
                       ns_err *err) {
  work w = {NULL, n, false};
  ns_tx tx = {.run = push_run, .arg = &w, .began = ns_mono_us()};
  ns_given *repeat = NULL;
  ns_status st;
  ns_err_clear(err);
  if (n == 0)
    return NS_OK;
  if ((st = check_all(db, jobs, n, err)) != NS_OK ||
      (st = find_doubt(db, queue, jobs, n, &repeat, err)) != NS_OK)
    return st;
  if (repeat != NULL && repeat->job != 0) {
    tell_found(repeat, jobs, n);
    return NS_OK;
  }
  if ((w.rows = calloc(n, sizeof *w.rows)) == NULL)
    return ns_no_memory(err);
  if ((tx.replay = repeat != NULL))
    take_remembered_ids(repeat, jobs, w.rows, n);
  else
    st = give_ids(db, jobs, &w, err);
  if (st == NS_OK && (st = resolve_queues(db, queue, jobs, &w, err)) == NS_OK && !tx.replay)
    st = ns_push_room(db, w.rows, n, err);
  if (st == NS_OK)
    st = write_jobs(db, &w, &tx, err);
  if (st == NS_EGONE && tx.replay)
    remember_push(db, queue, jobs, w.rows, n);
  else if (repeat != NULL)
    db->push.until = 0; /* decided, either way: the same content is a new push */
  if (st == NS_OK)
    note_ids(db, jobs, &w);
  if (st == NS_OK && repeat != NULL && !db->user_tx) /* a transaction may roll back */
    note_found(repeat, jobs, n);
  free(w.rows);
  ns_db_minutes_tell(db, false);
  return st;
}
