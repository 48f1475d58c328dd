/*
** Inserting jobs, in three ways: any jobs on an open transaction; several in a pipeline; or one
** in one statement. Rows are array-bound; columns that have their default in the whole batch
** are not sent. And whether there is room for them.
**
** Invariant: a job that may be claimed gets one row, in ready or in scheduled; any other job
** gets none. No assert: it is the condition of two lists, list_scheduled and ready_fill. No
** statement runs for tags where no job has any.
*/
#include "push/push.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "admission/admission.h"
#include "base.h"
#include "db/db.h"
#include "finish/finish.h"
#include "handle.h"

#define RING_WITHIN (10 * NS_SECOND) /* listeners look again by then anyway */

/* -------------------------------------------------------------- the rows */

enum { /* the columns of push_plain, and of push_job beside them, in its order */
  C_ID, C_QUEUE, C_NAME, C_PAYLOAD, C_PRIORITY, C_RANK, C_ATTEMPTS, C_CRASHES,
  C_BACKOFF, C_TIMEOUT, C_NONCE, C_DECAY, C_PLAIN,
  C_POLLS = C_PLAIN, C_DEADLINE, C_INHERITED, C_DELAY, C_AT, C_PARENT,
  C_ROOT, C_UNMET, C_ON_FAIL, C_UKEY, C_PAUSED, C_AFTER, C_PHASES, C_TAGGED, C_GROUP,
  C_COUNT
};

/* The columns of one batch; integers and texts side by side. */
typedef struct batch {
  size_t ncols;    /* C_PLAIN: all else is as the table has it by default */
  int64_t *ints;   /* ncols * n */
  ns_bytes *texts; /* ncols * n */
  char *nulls;     /* ncols * n */
  ns_buf after;    /* lists that are made here */
  ns_column cols[C_COUNT];
} batch;

static void batch_free(batch *b) {
  free(b->ints);
  free(b->texts);
  free(b->nulls);
  ns_buf_free(&b->after);
}

/* Room for "[parent,…" of a job that waits for its parent's end, and for the list of a job that
** its parent waits for. */
static bool make_after(batch *b, const ns_insert *rows, size_t n) {
  size_t total = 1;
  for (size_t i = 0; i < n; i++)
    if (rows[i].waits || rows[i].joins)
      total += rows[i].push->after.n + 24;
  return ns_buf_room(&b->after, total) != NULL;
}

/* Nothing about it is out of the ordinary, so most columns say nothing. */
static bool is_plain(const ns_insert *row) {
  const ns_push *p = row->push;
  return p->delay == 0 && p->at == 0 && p->tags.p == NULL && p->group.p == NULL &&
         p->max_polls < 0 &&
         p->max_phases < 0 && p->deadline < 0 && p->unique.p == NULL && p->after.p == NULL &&
         !p->on_fail_run && row->parent == 0 && row->unmet == 0 && row->paused == 0 &&
         row->deadline == 0;
}

static bool batch_make(batch *b, const ns_insert *rows, size_t n) {
  size_t i = 0;
  while (i < n && is_plain(&rows[i]))
    i++;
  b->ncols = i == n ? C_PLAIN : C_COUNT;
  b->ints = calloc(b->ncols * n, sizeof *b->ints);
  b->texts = calloc(b->ncols * n, sizeof *b->texts);
  b->nulls = calloc(b->ncols * n, 1);
  if (b->ints == NULL || b->texts == NULL || b->nulls == NULL ||
      !make_after(b, rows, n))
    return false;
  for (size_t c = 0; c < b->ncols; c++) {
    bool text =
        c == C_NAME || c == C_PAYLOAD || c == C_UKEY || c == C_AFTER || c == C_GROUP;
    b->cols[c] = (ns_column){text ? NS_TEXT : NS_INT, &b->ints[c * n],
                             &b->texts[c * n], &b->nulls[c * n]};
  }
  return true;
}

/* Adds the ids of the list 'given', without 'id'. Absent: none is left. */
static ns_bytes after_without(batch *b, ns_bytes given, int64_t id) {
  size_t start = b->after.n;
  for (size_t i = 1; i + 1 < given.n;) {
    char *end;
    long long on = strtoll(given.p + i, &end, 10);
    if (on != id)
      ns_buf_addf(&b->after, "%c%lld", b->after.n > start ? ',' : '[', on);
    i = (size_t)(end - given.p) + 1;
  }
  if (b->after.n == start)
    return NS_NONE;
  ns_buf_addc(&b->after, ']');
  return (ns_bytes){b->after.p + start, b->after.n - start};
}

/* The jobs it is to wait for, as kept for a retry of its tree. */
static ns_bytes after_of(batch *b, const ns_insert *row) {
  ns_bytes given = row->push->after;
  size_t start = b->after.n;
  if (row->joins && given.p != NULL)
    return after_without(b, given, row->parent);
  if (!row->waits)
    return given;
  ns_buf_addf(&b->after, "[%lld", (long long)row->parent);
  if (given.n > 2)
    ns_buf_addf(&b->after, ",%.*s", (int)given.n - 1, given.p + 1);
  else
    ns_buf_addc(&b->after, ']');
  return (ns_bytes){b->after.p + start, b->after.n - start};
}

static void plain_row(batch *b, size_t n, size_t i, const ns_insert *row) {
  const ns_push *p = row->push;
  int64_t *ints = b->ints + i;
  ints[C_ID * n] = row->id;
  ints[C_QUEUE * n] = row->queue_id;
  ints[C_PRIORITY * n] = p->priority;
  ints[C_RANK * n] = 255 - p->priority;
  ints[C_ATTEMPTS * n] = p->max_attempts;
  ints[C_CRASHES * n] = p->max_crashes;
  ints[C_BACKOFF * n] = p->backoff;
  ints[C_TIMEOUT * n] = p->timeout;
  ints[C_NONCE * n] = row->nonce;
  ints[C_DECAY * n] = p->decay;
  b->texts[C_NAME * n + i] = p->name;
  b->texts[C_PAYLOAD * n + i] = p->payload;
}

static void full_row(batch *b, size_t n, size_t i, const ns_insert *row) {
  const ns_push *p = row->push;
  int64_t deadline = p->deadline >= 0 ? p->deadline : row->deadline_in;
  int64_t *ints = b->ints + i;
  char *nulls = b->nulls + i;
  ints[C_POLLS * n] = p->max_polls;
  ints[C_DEADLINE * n] = deadline;
  ints[C_INHERITED * n] = row->deadline;
  ints[C_DELAY * n] = p->delay;
  ints[C_AT * n] = p->at;
  ints[C_TAGGED * n] = p->tags.p != NULL;
  ints[C_PARENT * n] = row->parent;
  ints[C_ROOT * n] = row->root;
  ints[C_UNMET * n] = row->unmet;
  ints[C_ON_FAIL * n] = p->on_fail_run || row->behind != 0 ? 2 : 1; /* of the ENUM */
  ints[C_PAUSED * n] = row->paused;
  b->texts[C_UKEY * n + i] = p->unique;
  b->texts[C_AFTER * n + i] = after_of(b, row);
  b->texts[C_GROUP * n + i] = p->group;
  ints[C_PHASES * n] = p->max_phases;
  nulls[C_PHASES * n] = p->max_phases < 0;
  nulls[C_POLLS * n] = p->max_polls < 0;
  nulls[C_DEADLINE * n] = deadline < 0;
  nulls[C_INHERITED * n] = row->deadline == 0;
  nulls[C_PAUSED * n] = row->paused == 0;
  nulls[C_PARENT * n] = row->parent == 0;
  nulls[C_ROOT * n] = row->parent == 0;
}

static ns_status batch_fill(batch *b, const ns_insert *rows, size_t n,
                            ns_err *err) {
  if (!batch_make(b, rows, n))
    return ns_no_memory(err);
  for (size_t i = 0; i < n; i++) {
    plain_row(b, n, i, &rows[i]);
    if (b->ncols > C_PLAIN)
      full_row(b, n, i, &rows[i]);
  }
  return NS_OK;
}

static ns_sql batch_sql(const batch *b) {
  return b->ncols > C_PLAIN ? NS_SQL_PUSH_JOB : NS_SQL_PUSH_PLAIN;
}

/* -------------------------------------------------------- where they wait */

/* Nothing keeps it from being claimed, sooner or later. */
static bool is_free(const ns_insert *row) {
  return row->unmet == 0 && row->doomed == 0;
}

/* An instant may have passed: then the next claim promotes the job at once. */
static bool comes_later(const ns_insert *row) {
  return row->push->delay > 0 || row->push->at > 0;
}

/* The ready rows of a batch. */
typedef struct ready {
  int64_t *ints; /* one column after the other */
  ns_column cols[5];
  size_t n;
} ready;

static ns_status ready_fill(ready *r, const ns_insert *rows, size_t n,
                            ns_err *err) {
  int64_t *ints = r->ints = malloc(5 * n * sizeof *ints);
  size_t k = 0;
  if (ints == NULL)
    return ns_no_memory(err);
  for (size_t i = 0; i < n; i++)
    if (is_free(&rows[i]) && !comes_later(&rows[i])) {
      ints[k] = rows[i].queue_id;
      ints[n + k] = 255 - rows[i].push->priority;
      ints[2 * n + k] = (int64_t)k;
      ints[3 * n + k] = rows[i].id;
      ints[4 * n + k] = ns_db_kind_of(rows[i].push->name);
      k++;
    }
  for (size_t c = 0; c < 5; c++)
    r->cols[c] = (ns_column){NS_INT, ints + c * n, NULL, NULL};
  r->n = k;
  return NS_OK;
}

/* Lists the rows that come later; how many. */
static size_t list_scheduled(ns_buf *ids, const ns_insert *rows, size_t n) {
  size_t k = 0;
  for (size_t i = 0; i < n; i++)
    if (is_free(&rows[i]) && comes_later(&rows[i])) {
      ns_db_list_add_pair(ids, rows[i].id, ns_db_kind_of(rows[i].push->name));
      k++;
    }
  return k;
}

bool ns_push_starts_soon(const ns_insert *rows, size_t n) {
  for (size_t i = 0; i < n; i++)
    if ((rows[i].kept == 0 || rows[i].replaced) && is_free(&rows[i]) &&
        rows[i].push->delay < RING_WITHIN)
      return true;
  return false;
}

/* ------------------------------------------------------------------- room */

/* Children come in anyhow, or their parents would wait for ever; and jobs of schedules. */
static bool wants_room(const ns_insert *row) {
  return row->push->parent == 0 && row->push->anyhow == 0;
}

ns_status ns_push_room(ns_db *db, const ns_insert *rows, size_t n, ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0, next; st == NS_OK && i < n; i = next) {
    size_t wanted = 0;
    for (next = i; next < n && rows[next].queue_id == rows[i].queue_id; next++)
      wanted += wants_room(&rows[next]);
    if (wanted > 0)
      st = ns_admission_room(db, rows[i].queue_id, wanted, err);
  }
  return st;
}

/* -------------------------------------------------------- on a transaction */

static ns_status insert_rows(ns_db *db, const ns_insert *rows, size_t n,
                             ns_err *err) {
  batch b = {0};
  ns_status st = batch_fill(&b, rows, n, err);
  if (st == NS_OK)
    st = ns_db_bulk(db, batch_sql(&b), b.cols, n, err);
  batch_free(&b);
  return st;
}

static ns_status insert_ready(ns_db *db, const ns_insert *rows, size_t n,
                              ns_err *err) {
  ready r;
  ns_status st = ready_fill(&r, rows, n, err);
  if (st == NS_OK)
    st = ns_db_bulk(db, NS_SQL_PUSH_READY, r.cols, r.n, err);
  free(r.ints);
  return st;
}

static ns_status insert_scheduled(ns_db *db, const ns_insert *rows, size_t n,
                                  ns_err *err) {
  ns_buf ids = NS_BUF_INIT;
  size_t k = list_scheduled(&ids, rows, n);
  if (k == 0)
    return NS_OK;
  db->claim.promote_at = 0;
  return ns_db_list_change(db, NS_SQL_PUSH_SCHEDULED, NULL, &ids, k, err);
}

static ns_status insert_children(ns_db *db, const ns_insert *rows, size_t n,
                                 ns_err *err) {
  int64_t *ints = NULL;
  size_t k = 0;
  ns_status st;
  for (size_t i = 0; i < n; i++)
    k += rows[i].parent != 0;
  if (k == 0)
    return NS_OK;
  if ((ints = malloc(3 * k * sizeof *ints)) == NULL)
    return ns_no_memory(err);
  for (size_t i = 0, at = 0; i < n; i++)
    if (rows[i].parent != 0) {
      ints[at] = rows[i].parent;
      ints[k + at] = rows[i].seq;
      ints[2 * k + at++] = rows[i].id;
    }
  st = ns_db_bulk(db, NS_SQL_PUSH_CHILD,
                  (ns_column[]){{NS_INT, ints, NULL, NULL},
                                {NS_INT, ints + k, NULL, NULL},
                                {NS_INT, ints + 2 * k, NULL, NULL}},
                  k, err);
  free(ints);
  return st;
}

/* A row that was to wait for a job that has failed ends at once. */
static ns_status end_doomed(ns_db *db, const ns_insert *rows, size_t n,
                            ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < n; i++) {
    char why[64];
    if (rows[i].doomed == 0)
      continue;
    snprintf(why, sizeof why, "job %lld, which it waited for, failed",
             (long long)rows[i].doomed);
    st = ns_finish(db,
                   &(ns_end){.id = rows[i].id, .queue_id = rows[i].queue_id,
                             .outcome = "cancelled", .reason = "dependency",
                             .error = ns_str(why), .attempts = -1, .polls = -1,
                             .crashes = -1, .unique = rows[i].push->unique},
                   1, err);
  }
  return st;
}

static ns_status insert_found(ns_db *db, const ns_insert *rows, size_t n,
                              const ns_edges *edges, ns_err *err) {
  ns_status st;
  if ((st = ns_push_keys(db, rows, n, err)) != NS_OK ||
      (st = insert_rows(db, rows, n, err)) != NS_OK ||
      (st = ns_push_tags_write(db, rows, n, err)) != NS_OK ||
      (st = insert_children(db, rows, n, err)) != NS_OK ||
      (st = ns_push_edges_write(db, edges, err)) != NS_OK ||
      (st = ns_push_edges_join(db, rows, n, err)) != NS_OK ||
      (st = insert_scheduled(db, rows, n, err)) != NS_OK ||
      (st = insert_ready(db, rows, n, err)) != NS_OK)
    return st;
  return end_doomed(db, rows, n, err);
}

ns_status ns_push_write(ns_db *db, ns_insert *rows, size_t n, size_t *held, ns_err *err) {
  ns_edges edges = {.nowait = held != NULL};
  ns_status st;
  if (n == 0)
    return NS_OK;
  st = ns_push_edges_find(db, rows, n, &edges, err);
  if (held != NULL)
    *held = edges.held;
  if (st == NS_OK && edges.held == 0)
    st = insert_found(db, rows, n, &edges, err);
  ns_push_edges_free(&edges);
  return st;
}

/* -------------------------------------------------------------- in a pipeline */

/* The rows as columns. */
typedef struct pipelined {
  batch jobs;
  ready ready;
  ns_buf ids; /* of the jobs that come later */
  size_t nlater;
  size_t nlists; /* 0: there are none, else 1 */
  ns_bytes later;
  ns_column list;
} pipelined;

static ns_status pipelined_fill(pipelined *s, const ns_insert *rows, size_t n, ns_err *err) {
  ns_status st;
  if ((st = batch_fill(&s->jobs, rows, n, err)) != NS_OK ||
      (st = ready_fill(&s->ready, rows, n, err)) != NS_OK)
    return st;
  s->nlater = list_scheduled(&s->ids, rows, n);
  s->nlists = s->nlater > 0;
  s->later = ns_db_list_end(&s->ids).s;
  s->list = (ns_column){NS_TEXT, NULL, &s->later, NULL};
  return s->ids.oom ? ns_no_memory(err) : NS_OK;
}

static void pipelined_free(pipelined *s) {
  batch_free(&s->jobs);
  free(s->ready.ints);
  ns_buf_free(&s->ids);
}

ns_status ns_push_write_pipelined(ns_db *db, const ns_insert *rows, size_t n, bool *ring, bool *cut,
                                  ns_err *err) {
  pipelined s = {0};
  ns_status st = pipelined_fill(&s, rows, n, err);
  ns_step steps[] = {
      {batch_sql(&s.jobs), s.jobs.cols, n, n},
      {NS_SQL_PUSH_SCHEDULED, &s.list, s.nlists, s.nlater},
      {NS_SQL_PUSH_READY, s.ready.cols, s.ready.n, s.ready.n}};
  if (st == NS_OK)
    st = ns_db_pipeline(db, steps, sizeof steps / sizeof steps[0], ring, cut, err);
  if (s.nlists > 0)
    db->claim.promote_at = 0;
  pipelined_free(&s);
  return st;
}

/* ------------------------------------------------------------------ alone */

enum { /* the params of push_one */
  O_QUEUE, O_ID, O_DELAY, O_RANK, O_KEY, O_PERIOD, O_RING, O_KIND, O_NAME, O_PAYLOAD,
  O_PRIORITY, O_ATTEMPTS, O_CRASHES, O_BACKOFF, O_TIMEOUT, O_NONCE, O_DECAY, O_POLLS,
  O_DEADLINE, O_ON_FAIL, O_GROUP, O_COUNT
};

ns_status ns_push_write_one(ns_db *db, const ns_insert *row, bool *ring, bool *cut, ns_err *err) {
  const ns_push *p = row->push;
  ns_status st = ns_db_ready(db, err);
  *ring = st == NS_OK && *ring && ns_db_may_ring(db);
  const ns_value params[O_COUNT] = {[O_QUEUE] = ns_vint(row->queue_id),
                                    [O_ID] = ns_vint(row->id),
                                    [O_DELAY] = ns_vint(p->delay),
                                    [O_RANK] = ns_vint(255 - p->priority),
                                    [O_KEY] = ns_vopt(p->unique),
                                    [O_PERIOD] = ns_push_period(p),
                                    [O_RING] = ns_vint(*ring),
                                    [O_KIND] = ns_vint(ns_db_kind_of(p->name)),
                                    [O_NAME] = ns_vtext(p->name),
                                    [O_PAYLOAD] = ns_vtext(p->payload),
                                    [O_PRIORITY] = ns_vint(p->priority),
                                    [O_ATTEMPTS] = ns_vint(p->max_attempts),
                                    [O_CRASHES] = ns_vint(p->max_crashes),
                                    [O_BACKOFF] = ns_vint(p->backoff),
                                    [O_TIMEOUT] = ns_vint(p->timeout),
                                    [O_NONCE] = ns_vint(row->nonce),
                                    [O_DECAY] = ns_vint(p->decay),
                                    [O_POLLS] = p->max_polls < 0 ? ns_vnull : ns_vint(p->max_polls),
                                    [O_DEADLINE] =
                                        p->deadline < 0 ? ns_vnull : ns_vint(p->deadline),
                                    [O_ON_FAIL] = ns_vint(p->on_fail_run ? 2 : 1),
                                    [O_GROUP] = ns_vopt(p->group)};
  if (p->delay > 0)
    db->claim.promote_at = 0;
  return st == NS_OK ? ns_db_run_whole(db, NS_SQL_PUSH_ONE, params, cut, err) : st;
}

/* -------------------------------------------------------------- tags, group */

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

ns_status ns_push_group_check(ns_bytes group, ns_err *err) {
  ns_status st = ns_db_name_check(group, "group", SIZE_MAX, err);
  if (st != NS_OK || ns_utf8_count(group) <= NS_MAX_GROUP)
    return st;
  return ns_fail(err, NS_EINVALID, "the group has %zu characters; it must have 1 to %d",
                 ns_utf8_count(group), NS_MAX_GROUP);
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
