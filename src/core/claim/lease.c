/*
** The batches that a handle has claimed, and reading their jobs, payloads and all, after
** the claim's commit. Few batches are open at a time; inside one, jobs are found by binary
** search. A batch may hold several runs of one job: rows of old runs stay in ready until a
** claim meets them.
**
** Invariant: 'open' of a batch is the number of its unsettled claims, and its row is deleted
** with the last of them. A claim that neither the read nor a second read brings was cancelled
** or moved in between. The second read sees committed rows and no snapshot. The claim is
** forgotten, and with the last one its lease.
*/
#include "claim/claim.h"

#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "db/db.h"
#include "handle.h"
#include "source/source.h"

void ns_claim_leases_free(ns_leases *l) {
  for (size_t i = 0; i < l->n; i++)
    free(l->items[i].jobs);
  free(l->items);
  *l = (ns_leases){0};
}

bool ns_claim_leases_settled(const ns_leases *l) {
  for (size_t i = 0; i < l->n; i++)
    for (size_t k = 0; k < l->items[i].n; k++)
      if (!l->items[i].jobs[k].settled)
        return false;
  return true;
}

/* For assertions: is 'open' of a batch right? */
static bool counts_open(const ns_lease *b) {
  size_t open = 0;
  for (size_t i = 0; i < b->n; i++)
    open += !b->jobs[i].settled;
  return open == b->open;
}

static int by_token(const void *a, const void *b) {
  const ns_claimed *x = a;
  const ns_claimed *y = b;
  return x->id != y->id ? (x->id > y->id) - (x->id < y->id) : (x->run > y->run) - (x->run < y->run);
}

bool ns_claim_leases_add(ns_leases *l, int64_t id, const ns_claimed *jobs, size_t n) {
  ns_claimed *copy = malloc(n * sizeof *copy);
  if (copy == NULL || !ns_grow(&l->items, &l->cap, l->n + 1, sizeof *l->items)) {
    free(copy);
    return false;
  }
  memcpy(copy, jobs, n * sizeof *copy);
  qsort(copy, n, sizeof *copy, by_token);
  l->items[l->n++] = (ns_lease){.id = id, .jobs = copy, .n = n, .open = n, .taken = ns_mono_us()};
  return true;
}

ns_lease *ns_claim_leases_batch(ns_leases *l, int64_t lease) {
  for (size_t i = 0; i < l->n; i++)
    if (l->items[i].id == lease)
      return &l->items[i];
  return NULL;
}

static ns_claimed *find_unsettled(ns_lease *b, int64_t id, int64_t run) {
  ns_claimed key = {.id = id, .run = run};
  ns_claimed *c = b != NULL ? bsearch(&key, b->jobs, b->n, sizeof key, by_token) : NULL;
  return c != NULL && !c->settled ? c : NULL;
}

ns_claimed *ns_claim_leases_find(ns_leases *l, int64_t lease, int64_t id, int64_t run) {
  return find_unsettled(ns_claim_leases_batch(l, lease), id, run);
}

ns_claimed *ns_claim_leases_find_any(ns_leases *l, int64_t id, int64_t run, ns_lease **batch) {
  for (size_t i = 0; i < l->n; i++) {
    ns_claimed *c = find_unsettled(&l->items[i], id, run);
    if (c != NULL && batch != NULL)
      *batch = &l->items[i];
    if (c != NULL)
      return c;
  }
  return NULL;
}

bool ns_claim_leases_alone(const ns_leases *l) {
  for (size_t i = 0; i < l->n; i++)
    if (l->items[i].alone)
      return true;
  return false;
}

bool ns_claim_leases_settle(ns_leases *l, int64_t lease, int64_t id, int64_t run) {
  ns_lease *b = ns_claim_leases_batch(l, lease);
  ns_claimed *c = find_unsettled(b, id, run);
  if (c == NULL)
    return false;
  c->settled = true;
  b->open--;
  ns_assert(counts_open(b));
  return b->open == 0;
}

void ns_claim_leases_drop(ns_leases *l, int64_t lease) {
  ns_lease *b = ns_claim_leases_batch(l, lease);
  if (b == NULL)
    return;
  free(b->jobs);
  l->n--;
  memmove(b, b + 1, (l->n - (size_t)(b - l->items)) * sizeof *b);
}

#define RUN_AGE_MAX INT64_C(99999999999999) /* 14 digits, see settle_done */

int64_t ns_claim_run_age(ns_db *db, int64_t lease, int64_t began) {
  const ns_lease *b =
      began == 0 && !db->is_host ? ns_claim_leases_batch(&db->claim.leases, lease) : NULL;
  int64_t since = b != NULL ? b->taken : began;
  int64_t age;
  if (since <= 0)
    return 0;
  age = ns_mono_us() - since;
  return age < 1 ? 1 : age < RUN_AGE_MAX ? age : RUN_AGE_MAX;
}

int64_t ns_claim_lease_of_other(ns_db *db, int64_t lease) {
  bool ours = db->is_host || db->settle.blamed != 0 ||
              ns_claim_leases_batch(&db->claim.leases, lease) != NULL;
  return ours ? 0 : lease;
}

size_t ns_claim_stretch(const ns_token *tokens, size_t n) {
  size_t len = 1;
  while (len < n && tokens[len].id == tokens[len - 1].id + 1 && tokens[len].run == tokens->run)
    len++;
  return len;
}

ns_status ns_claim_lease_delete(ns_db *db, const ns_lease *b, ns_err *err) {
  const int64_t lease = b->id; /* a reconnect may find that we are dead, and free it */
  const bool expires = b->span > 0;
  ns_column id = {NS_INT, &lease, NULL, NULL};
  ns_status st = ns_db_bulk_changing(db, NS_SQL_SETTLE_LEASE, &id, 1, 0, err);
  return st == NS_OK && expires ? ns_db_bulk_changing(db, NS_SQL_SETTLE_EXPIRY, &id, 1, 0, err)
                                : st;
}

void ns_claim_lease_leave(ns_db *db, const ns_lease *b) {
  const ns_column id = {NS_INT, &b->id, NULL, NULL};
  if (ns_db_send(db, NS_SQL_SETTLE_LEASE, &id, NULL) == NS_OK && b->span > 0)
    ns_db_send(db, NS_SQL_SETTLE_EXPIRY, &id, NULL);
}

/* -------------------------------------------------------------- reading jobs */

/* A block of memory that a job's bytes live in. */
typedef struct job_block {
  struct job_block *next;
  char bytes[];
} job_block;

void ns_jobs_free(ns_jobs *jobs) {
  job_block *b = jobs->memory;
  while (b != NULL) {
    job_block *next = b->next;
    free(b);
    b = next;
  }
  free(jobs->items);
  *jobs = NS_JOBS_INIT;
}

static ns_bytes keep_bytes(char **at, const ns_value *v) {
  ns_bytes kept = {*at, v->s.n};
  if (v->type != NS_TEXT)
    return NS_NONE;
  memcpy(*at, v->s.p, v->s.n);
  *at += v->s.n;
  return kept;
}

/* Columns of claim_read, claim_read_again and claim_stretch. */
enum {
  R_ID,
  R_RUN,
  R_QUEUE,
  R_NAME,
  R_PAYLOAD,
  R_STATE,
  R_ATTEMPTS,
  R_POLLS,
  R_CRASHES,
  R_MAX_ATTEMPTS,
  R_MAX_POLLS,
  R_PRIORITY,
  R_PARENT,
  R_ROOT,
  R_CREATED,
  R_DUE,
  R_DEADLINE,
  R_TIMEOUT,
  R_NONCE,
  R_NOW,
  R_PHASE,
  R_AWAITS,
  R_UKEY,
  R_FOLLOWS,
  R_GROUP,
  R_SIGNAL,
  R_SENT
};

static size_t text_length(const ns_value *v) {
  return v->type == NS_TEXT ? v->s.n : 0;
}

ns_job *ns_claim_jobs_add(ns_jobs *jobs, size_t bytes, char **at) {
  job_block *b = malloc(sizeof *b + bytes + 1);
  if (b == NULL || !ns_grow(&jobs->items, &jobs->cap, jobs->n + 1, sizeof *jobs->items)) {
    free(b);
    return NULL;
  }
  b->next = jobs->memory;
  jobs->memory = b;
  *at = b->bytes;
  return &jobs->items[jobs->n++];
}

static bool add_job(ns_db *db, int64_t lease, const ns_value *r, ns_jobs *out) {
  size_t more = text_length(&r[R_STATE]) + text_length(&r[R_GROUP]) + text_length(&r[R_AWAITS]) +
                text_length(&r[R_SIGNAL]);
  ns_origin origin = {0};
  char *at;
  ns_job *job = ns_claim_jobs_add(out, r[R_NAME].s.n + r[R_PAYLOAD].s.n + more, &at);
  if (job == NULL)
    return false;
  if (r[R_UKEY].type == NS_TEXT && !ns_source_origin(r[R_UKEY].s, &origin))
    origin.row = 0;
  *job = (ns_job){.id = r[R_ID].i,
                  .run = r[R_RUN].i,
                  .lease = lease,
                  .queue_id = r[R_QUEUE].i,
                  .queue = ns_db_queue_name(db, r[R_QUEUE].i),
                  .name = keep_bytes(&at, &r[R_NAME]),
                  .payload = keep_bytes(&at, &r[R_PAYLOAD]),
                  .state = keep_bytes(&at, &r[R_STATE]),
                  .group = keep_bytes(&at, &r[R_GROUP]),
                  .awaits = keep_bytes(&at, &r[R_AWAITS]),
                  .signal = keep_bytes(&at, &r[R_SIGNAL]),
                  .heard = ns_int_or(&r[R_SENT], 0),
                  .attempts = r[R_ATTEMPTS].i,
                  .polls = r[R_POLLS].i,
                  .crashes = r[R_CRASHES].i,
                  .max_attempts = r[R_MAX_ATTEMPTS].i,
                  .max_polls = ns_int_or(&r[R_MAX_POLLS], -1),
                  .priority = r[R_PRIORITY].i,
                  .parent = ns_int_or(&r[R_PARENT], 0),
                  .root = ns_int_or(&r[R_ROOT], 0),
                  .created = r[R_CREATED].i,
                  .due = r[R_DUE].i,
                  .deadline = ns_int_or(&r[R_DEADLINE], 0),
                  .timeout = r[R_TIMEOUT].i,
                  .nonce = r[R_NONCE].i,
                  .phase = r[R_PHASE].i,
                  .follows = r[R_FOLLOWS].i,
                  .row = origin.row};
  return true;
}

/* Keeps the facts that the job's verdict needs. A verdict takes back exactly this signal:
** another may come meanwhile. */
static void note_claim(ns_db *db, int64_t lease, const ns_value *r) {
  ns_claimed *c = ns_claim_leases_find(&db->claim.leases, lease, r[R_ID].i, r[R_RUN].i);
  if (c == NULL)
    return;
  c->heard = ns_int_or(&r[R_SENT], 0);
  c->child = r[R_PARENT].type == NS_INT;
  c->plain = r[R_UKEY].type != NS_TEXT && r[R_AWAITS].type != NS_TEXT &&
             !(db->settle.forgets && (r[R_FOLLOWS].i & NS_HAS_TAGS));
  c->queue_id = r[R_QUEUE].i;
  c->due = (r[R_FOLLOWS].i & NS_HAS_AFTER) != 0 || r[R_PHASE].i > 0 ? 0 : r[R_DUE].i;
  c->keyed = r[R_UKEY].type == NS_TEXT && r[R_AWAITS].type != NS_TEXT &&
             !ns_source_origin(r[R_UKEY].s, &(ns_origin){0});
  if (r[R_UKEY].type == NS_TEXT && ns_source_is_served(db, r[R_UKEY].s))
    ns_source_origin(r[R_UKEY].s, &c->row);
}

bool ns_claim_is_shown(const ns_value *row) {
  return row[R_ID].type == NS_INT &&
         (row[R_AWAITS].type != NS_TEXT || row[R_SIGNAL].type == NS_TEXT);
}

ns_status ns_claim_read_row(ns_db *db, int64_t lease, const ns_value *row, ns_jobs *out,
                            ns_err *err) {
  note_claim(db, lease, row);
  return add_job(db, lease, row, out) ? NS_OK : ns_no_memory(err);
}

/* A job that has been read; NULL: it was not brought. */
static ns_job *find_read(const ns_jobs *out, size_t first, int64_t id, int64_t run) {
  for (size_t k = first; k < out->n; k++)
    if (out->items[k].id == id && out->items[k].run == run)
      return &out->items[k];
  return NULL;
}

/* Claims of this lease that were not brought are not ours any more. If we were declared dead
** during the read, neither are the brought ones. */
static ns_status forget_missing(ns_db *db, int64_t lease, ns_jobs *out, size_t first, ns_err *err) {
  ns_lease *b = ns_claim_leases_batch(&db->claim.leases, lease);
  ns_status st;
  if (b == NULL) {
    out->n = first;
    return NS_OK;
  }
  if (out->n - first == b->n)
    return NS_OK;
  for (size_t i = 0; i < b->n; i++)
    if (!b->jobs[i].settled && find_read(out, first, b->jobs[i].id, b->jobs[i].run) == NULL) {
      b->jobs[i].settled = true;
      b->open--;
    }
  ns_assert(counts_open(b));
  if (b->open > 0)
    return NS_OK;
  st = ns_claim_lease_delete(db, b, err);
  ns_claim_leases_drop(&db->claim.leases, lease);
  return st;
}

/* Runs a statement that reads jobs, and keeps them. */
static ns_status read_jobs(ns_db *db, int64_t lease, ns_sql sql, const ns_value *params,
                           ns_jobs *out, ns_err *err) {
  const ns_value *row = NULL;
  size_t first = out->n;
  ns_status st =
      db->ahead == sql ? ns_db_read_answer(db, sql, err) : ns_db_run(db, sql, params, err);
  db->ahead = 0;
  while (st == NS_OK && (st = ns_db_row(db, sql, &row, err)) == NS_OK && row != NULL) {
    if (out->n == first)
      ns_db_note_now(db, row[R_NOW].i);
    st = ns_claim_read_row(db, lease, row, out, err);
  }
  return st;
}

static ns_status read_list(ns_db *db, int64_t lease, const ns_token *t, size_t n, ns_jobs *out,
                           ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  ns_value param;
  ns_status st;
  for (size_t i = 0; i < n; i++)
    ns_db_list_add_pair(&list, t[i].id, t[i].run);
  param = ns_db_list_end(&list);
  st = list.oom ? ns_no_memory(err) : read_jobs(db, lease, NS_SQL_CLAIM_READ, &param, out, err);
  ns_buf_free(&list);
  return st;
}

/* Reads in the order of the tokens: long stretches as such, the tokens between as lists. */
static ns_status read_tokens(ns_db *db, int64_t lease, const ns_token *t, size_t n, ns_jobs *out,
                             ns_err *err) {
  size_t done = 0;
  ns_status st = NS_OK;
  for (size_t i = 0, len; st == NS_OK && i < n; i += len) {
    len = ns_claim_stretch(t + i, n - i);
    if (len < NS_STRETCH_LEAST)
      continue;
    if (i > done)
      st = read_list(db, lease, t + done, i - done, out, err);
    if (st == NS_OK)
      st = read_jobs(db, lease, NS_SQL_CLAIM_STRETCH,
                     (ns_value[]){ns_vint(t[i].id), ns_vint(t[i + len - 1].id), ns_vint(t[i].run)},
                     out, err);
    done = i + len;
  }
  return st == NS_OK && done < n ? read_list(db, lease, t + done, n - done, out, err) : st;
}

/* Woken, or past the deadline of its wait, and no signal was there to be seen. */
static bool is_silent(const ns_job *job) {
  return job->awaits.p != NULL && job->signal.p == NULL;
}

/* Of a job that was read twice the second reading stays. */
static void keep_last(ns_jobs *out, size_t first, size_t second) {
  for (size_t k = second; k < out->n; k++) {
    ns_job *job = &out->items[k];
    ns_job *old = find_read(out, first, job->id, job->run);
    if (old != job) {
      *old = *job;
      *job = out->items[--out->n];
      k--;
    }
  }
}

/* Reads again, without a snapshot, the jobs that an old snapshot may not show. */
static ns_status read_again(ns_db *db, int64_t lease, const ns_token *t, size_t n, ns_jobs *out,
                            size_t first, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  size_t second = out->n;
  ns_value param;
  ns_status st = NS_OK;
  for (size_t i = 0; i < n; i++) {
    const ns_job *job = find_read(out, first, t[i].id, t[i].run);
    if (job == NULL || is_silent(job))
      ns_db_list_add_pair(&list, t[i].id, t[i].run);
  }
  if (!ns_db_list_is_empty(&list)) {
    param = ns_db_list_end(&list);
    st = list.oom ? ns_no_memory(err)
                  : read_jobs(db, lease, NS_SQL_CLAIM_READ_AGAIN, &param, out, err);
    keep_last(out, first, second);
  }
  ns_buf_free(&list);
  return st;
}

/* Is there a reason to? */
static bool is_doubtful(const ns_jobs *out, size_t first, size_t n) {
  bool silent = false;
  for (size_t k = first; k < out->n; k++)
    silent = silent || is_silent(&out->items[k]);
  return silent || out->n - first < n;
}

/* The tokens of a lease: in the order they were taken, or else by id. NULL: no
** memory. */
static ns_token *list_tokens(const ns_lease *b, const ns_claim_rows *takes, size_t *n) {
  size_t most = takes != NULL ? takes->n : b->n;
  ns_token *t = malloc((most + 1) * sizeof *t);
  *n = 0;
  for (size_t i = 0; t != NULL && i < most; i++)
    if (takes != NULL)
      t[(*n)++] = (ns_token){takes->items[i].id, takes->items[i].run, false};
    else if (!b->jobs[i].settled)
      t[(*n)++] = (ns_token){b->jobs[i].id, b->jobs[i].run, false};
  return t;
}

/* A few jobs in a list: of many the commit does not wait for the sending. */
void ns_claim_read_ahead(ns_db *db, const ns_claim_rows *takes) {
  ns_buf list = NS_BUF_INIT;
  ns_value param;
  if (takes->n >= NS_STRETCH_LEAST)
    return;
  for (size_t i = 0; i < takes->n; i++)
    ns_db_list_add_pair(&list, takes->items[i].id, takes->items[i].run);
  param = ns_db_list_end(&list);
  if (!list.oom && ns_db_send_query(db, NS_SQL_CLAIM_READ, &param, NULL) == NS_OK)
    db->ahead = NS_SQL_CLAIM_READ;
  ns_buf_free(&list);
}

ns_status ns_claim_read(ns_db *db, int64_t lease, const ns_claim_rows *takes, ns_jobs *out,
                        ns_err *err) {
  const ns_lease *b = ns_claim_leases_batch(&db->claim.leases, lease);
  size_t first = out->n;
  size_t n;
  ns_token *t;
  ns_status st;
  if (b == NULL)
    return NS_OK;
  t = list_tokens(b, takes, &n);
  st = t == NULL ? ns_no_memory(err) : read_tokens(db, lease, t, n, out, err);
  if (st == NS_OK && is_doubtful(out, first, n))
    st = read_again(db, lease, t, n, out, first, err);
  free(t);
  db->ahead = 0; /* the answer sent for ahead is not for another read */
  if (st == NS_OK)
    return forget_missing(db, lease, out, first, err);
  out->n = first; /* the next read brings all of them */
  return st;
}
