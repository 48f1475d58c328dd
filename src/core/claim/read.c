/*
** Reading claimed jobs: payloads and all, after the claim's commit.
**
** Invariant: a claim that the read does not bring, nor a second one that sees what
** is committed and not what a snapshot shows, was cancelled or moved in between; it is
** forgotten, and its lease with it when that was its last one.
*/
#include <stdlib.h>
#include <string.h>

#include "claim/take.h"
#include "db/list.h"
#include "db/queue.h"
#include "handle.h"

/* A block of memory that a job's bytes live in. */
typedef struct block {
  struct block *next;
  char bytes[];
} block;

void ns_jobs_free(ns_jobs *jobs) {
  block *b = jobs->memory;
  while (b != NULL) {
    block *next = b->next;
    free(b);
    b = next;
  }
  free(jobs->items);
  *jobs = NS_JOBS_INIT;
}

static ns_bytes keep(char **at, const ns_value *v) {
  ns_bytes kept = {*at, v->s.n};
  if (v->type != NS_TEXT)
    return NS_NONE;
  memcpy(*at, v->s.p, v->s.n);
  *at += v->s.n;
  return kept;
}

/* Columns of claim_read, claim_read_again and claim_stretch. */
enum {
  R_ID, R_RUN, R_QUEUE, R_NAME, R_PAYLOAD, R_STATE, R_ATTEMPTS, R_POLLS,
  R_CRASHES, R_MAX_ATTEMPTS, R_MAX_POLLS, R_PRIORITY, R_PARENT, R_ROOT,
  R_CREATED, R_DUE, R_DEADLINE, R_TIMEOUT, R_NONCE, R_NOW, R_PHASE,
  R_AWAITS, R_KEYED, R_FOLLOWS, R_SIGNAL, R_SENT
};

static size_t length(const ns_value *v) {
  return v->type == NS_TEXT ? v->s.n : 0;
}

ns_job *ns_jobs_add(ns_jobs *jobs, size_t bytes, char **at) {
  block *b = malloc(sizeof *b + bytes + 1);
  if (b == NULL ||
      !ns_grow(&jobs->items, &jobs->cap, jobs->n + 1, sizeof *jobs->items)) {
    free(b);
    return NULL;
  }
  b->next = jobs->memory;
  jobs->memory = b;
  *at = b->bytes;
  return &jobs->items[jobs->n++];
}

static bool add_job(ns_db *db, int64_t lease, const ns_value *r, ns_jobs *out) {
  size_t more = length(&r[R_STATE]) + length(&r[R_AWAITS]) + length(&r[R_SIGNAL]);
  char *at;
  ns_job *job = ns_jobs_add(out, r[R_NAME].s.n + r[R_PAYLOAD].s.n + more, &at);
  if (job == NULL)
    return false;
  *job = (ns_job){
      .id = r[R_ID].i, .run = r[R_RUN].i, .lease = lease,
      .queue_id = r[R_QUEUE].i,
      .queue = ns_queue_name_of(db, r[R_QUEUE].i),
      .name = keep(&at, &r[R_NAME]), .payload = keep(&at, &r[R_PAYLOAD]),
      .state = keep(&at, &r[R_STATE]), .awaits = keep(&at, &r[R_AWAITS]),
      .signal = keep(&at, &r[R_SIGNAL]), .heard = ns_int_or(&r[R_SENT], 0),
      .attempts = r[R_ATTEMPTS].i, .polls = r[R_POLLS].i,
      .crashes = r[R_CRASHES].i, .max_attempts = r[R_MAX_ATTEMPTS].i,
      .max_polls = ns_int_or(&r[R_MAX_POLLS], -1), .priority = r[R_PRIORITY].i,
      .parent = ns_int_or(&r[R_PARENT], 0), .root = ns_int_or(&r[R_ROOT], 0),
      .created = r[R_CREATED].i, .due = r[R_DUE].i,
      .deadline = ns_int_or(&r[R_DEADLINE], 0), .timeout = r[R_TIMEOUT].i,
      .nonce = r[R_NONCE].i, .phase = r[R_PHASE].i,
      .follows = r[R_FOLLOWS].i};
  return true;
}

/* What its verdict has to know. It takes back exactly this signal: another may
** come meanwhile. */
static void note_claim(ns_db *db, int64_t lease, const ns_value *r) {
  ns_claimed *c = ns_leases_find(&db->leases, lease, r[R_ID].i, r[R_RUN].i);
  if (c == NULL)
    return;
  c->heard = ns_int_or(&r[R_SENT], 0);
  c->child = r[R_PARENT].type == NS_INT;
  c->plain = r[R_KEYED].i == 0 && r[R_AWAITS].type != NS_TEXT;
}

/* A job that has been read; NULL: it was not brought. */
static ns_job *brought(const ns_jobs *out, size_t first, int64_t id, int64_t run) {
  for (size_t k = first; k < out->n; k++)
    if (out->items[k].id == id && out->items[k].run == run)
      return &out->items[k];
  return NULL;
}

/* Claims of this lease that were not brought are not ours any more; nor are those that
** were, when we have been declared dead while they were read. */
static ns_status forget_missing(ns_db *db, int64_t lease, ns_jobs *out,
                                size_t first, ns_err *err) {
  ns_lease *b = ns_leases_batch(&db->leases, lease);
  ns_status st;
  if (b == NULL) {
    out->n = first;
    return NS_OK;
  }
  if (out->n - first == b->n)
    return NS_OK;
  for (size_t i = 0; i < b->n; i++)
    if (!b->jobs[i].settled &&
        brought(out, first, b->jobs[i].id, b->jobs[i].run) == NULL) {
      b->jobs[i].settled = true;
      b->open--;
    }
  if (b->open > 0)
    return NS_OK;
  st = ns_lease_delete(db, b, err);
  ns_leases_drop(&db->leases, lease);
  return st;
}

/* Runs a statement that reads jobs, and keeps them. */
static ns_status read_jobs(ns_db *db, int64_t lease, ns_sql sql,
                           const ns_value *params, ns_jobs *out, ns_err *err) {
  const ns_value *row = NULL;
  size_t first = out->n;
  ns_status st = db->ahead == sql ? ns_told(db, sql, err)
                                  : ns_run(db, sql, params, err);
  db->ahead = 0;
  while (st == NS_OK && (st = ns_row(db, sql, &row, err)) == NS_OK && row != NULL) {
    if (out->n == first)
      ns_saw_now(db, row[R_NOW].i);
    note_claim(db, lease, row);
    if (!add_job(db, lease, row, out))
      st = ns_no_memory(err);
  }
  return st;
}

static ns_status read_list(ns_db *db, int64_t lease, const ns_token *t, size_t n,
                           ns_jobs *out, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  ns_value param;
  ns_status st;
  for (size_t i = 0; i < n; i++)
    ns_pair_add(&list, t[i].id, t[i].run);
  param = ns_list_end(&list);
  st = list.oom ? ns_no_memory(err)
                : read_jobs(db, lease, NS_SQL_CLAIM_READ, &param, out, err);
  ns_buf_free(&list);
  return st;
}

/* In the order of the tokens: long stretches as such, what is between as lists. */
static ns_status read_tokens(ns_db *db, int64_t lease, const ns_token *t, size_t n,
                             ns_jobs *out, ns_err *err) {
  size_t done = 0;
  ns_status st = NS_OK;
  for (size_t i = 0, len; st == NS_OK && i < n; i += len) {
    len = ns_stretch(t + i, n - i);
    if (len < NS_STRETCH_LEAST)
      continue;
    if (i > done)
      st = read_list(db, lease, t + done, i - done, out, err);
    if (st == NS_OK)
      st = read_jobs(db, lease, NS_SQL_CLAIM_STRETCH,
                     (ns_value[]){ns_vint(t[i].id), ns_vint(t[i + len - 1].id),
                                  ns_vint(t[i].run)},
                     out, err);
    done = i + len;
  }
  return st == NS_OK && done < n ? read_list(db, lease, t + done, n - done, out, err)
                                 : st;
}

/* Woken, or past the deadline of its wait, and no signal was there to be seen. */
static bool is_silent(const ns_job *job) {
  return job->awaits.p != NULL && job->signal.p == NULL;
}

/* Of a job that was read twice the second reading stays. */
static void keep_last(ns_jobs *out, size_t first, size_t second) {
  for (size_t k = second; k < out->n; k++) {
    ns_job *job = &out->items[k];
    ns_job *old = brought(out, first, job->id, job->run);
    if (old != job) {
      *old = *job;
      *job = out->items[--out->n];
      k--;
    }
  }
}

/* What a snapshot may have been too old to show. */
static ns_status read_again(ns_db *db, int64_t lease, const ns_token *t, size_t n,
                            ns_jobs *out, size_t first, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  size_t second = out->n;
  ns_value param;
  ns_status st = NS_OK;
  for (size_t i = 0; i < n; i++) {
    const ns_job *job = brought(out, first, t[i].id, t[i].run);
    if (job == NULL || is_silent(job))
      ns_pair_add(&list, t[i].id, t[i].run);
  }
  if (!ns_list_is_empty(&list)) {
    param = ns_list_end(&list);
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
static ns_token *list_tokens(const ns_lease *b, const ns_takes *takes, size_t *n) {
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
void ns_take_ahead(ns_db *db, const ns_takes *takes) {
  ns_buf list = NS_BUF_INIT;
  ns_value param;
  if (takes->n >= NS_STRETCH_LEAST)
    return;
  for (size_t i = 0; i < takes->n; i++)
    ns_pair_add(&list, takes->items[i].id, takes->items[i].run);
  param = ns_list_end(&list);
  if (!list.oom && ns_ask(db, NS_SQL_CLAIM_READ, &param, NULL) == NS_OK)
    db->ahead = NS_SQL_CLAIM_READ;
  ns_buf_free(&list);
}

ns_status ns_take_read(ns_db *db, int64_t lease, const ns_takes *takes,
                       ns_jobs *out, ns_err *err) {
  const ns_lease *b = ns_leases_batch(&db->leases, lease);
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
  db->ahead = 0; /* what was asked for is not for another read */
  if (st == NS_OK)
    return forget_missing(db, lease, out, first, err);
  out->n = first; /* the next read brings all of them */
  return st;
}
