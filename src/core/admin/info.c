/*
** The facts about a job, live or in the history.
**
** Invariant: nothing here is locked; a job that moves into the history meanwhile is found in
** one of the two tables. No assert: that takes two statements.
**
** Also whether a ring arrives. A real listener sleeps in the server, on a thread of its own,
** while the caller's handle rings as a pusher would.
**
** Invariant: a trial rings only when the server shows that the listener sleeps. A ring that
** comes while the listener still enters itself ends that call. It does so also with rights that
** would not end its sleep, as the procedure runs with the rights of the handle that rings. No
** assert: the trial waits for that a second at most, and rings then all the same.
*/
#include "handle.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "db/db.h"

/* Columns of admin_info and admin_info_finished. */
enum {
  I_ID,
  I_RUN,
  I_QUEUE_ID,
  I_QUEUE,
  I_NAME,
  I_PAYLOAD,
  I_STATE,
  I_ATTEMPTS,
  I_POLLS,
  I_CRASHES,
  I_MAX_ATTEMPTS,
  I_MAX_POLLS,
  I_MAX_CRASHES,
  I_PRIORITY,
  I_PARENT,
  I_ROOT,
  I_CREATED,
  I_DUE,
  I_DEADLINE,
  I_TIMEOUT,
  I_NONCE,
  I_UKEY,
  I_UNMET,
  I_PROGRESS,
  I_STATUS,
  I_HOLDER,
  I_OUTCOME,
  I_REASON,
  I_ERROR,
  I_RESULT,
  I_FINISHED_AT,
  I_STARTED,
  I_WORKER,
  I_HOST,
  I_PID,
  I_NOW,
  I_AWAITS,
  I_PHASE,
  I_DECAY,
  I_PAUSED,
  I_FOLLOWS,
  I_OUTPUT,
  I_GROUP,
  I_COUNT
};

void ns_info_free(ns_info *info) {
  ns_buf_free(&info->bytes);
  *info = NS_INFO_INIT;
}

/* Copies every text of the row; the pointers are set when all have landed. */
static bool keep_texts(ns_info *info, const ns_value *r) {
  ns_bytes *const to[I_COUNT] = {[I_QUEUE] = &info->job.queue,     [I_NAME] = &info->job.name,
                                 [I_PAYLOAD] = &info->job.payload, [I_STATE] = &info->job.state,
                                 [I_AWAITS] = &info->job.awaits,   [I_UKEY] = &info->unique,
                                 [I_STATUS] = &info->status_text,  [I_OUTCOME] = &info->where,
                                 [I_REASON] = &info->reason,       [I_ERROR] = &info->error,
                                 [I_RESULT] = &info->result,       [I_HOST] = &info->host,
                                 [I_OUTPUT] = &info->output,       [I_GROUP] = &info->job.group};
  size_t total = 0;
  char *at;
  for (size_t i = 0; i < I_COUNT; i++)
    if (to[i] != NULL && r[i].type == NS_TEXT)
      total += r[i].s.n;
  if ((at = ns_buf_room(&info->bytes, total + 1)) == NULL)
    return false;
  info->bytes.n = total;
  for (size_t i = 0; i < I_COUNT; i++) {
    if (to[i] == NULL || r[i].type != NS_TEXT)
      continue;
    memcpy(at, r[i].s.p, r[i].s.n);
    *to[i] = (ns_bytes){at, r[i].s.n};
    at += r[i].s.n;
  }
  return true;
}

static void keep_numbers(ns_info *info, const ns_value *r) {
  ns_job *j = &info->job;
  j->id = r[I_ID].i;
  j->run = r[I_RUN].i;
  j->queue_id = r[I_QUEUE_ID].i;
  j->attempts = r[I_ATTEMPTS].i;
  j->polls = r[I_POLLS].i;
  j->crashes = r[I_CRASHES].i;
  j->max_attempts = r[I_MAX_ATTEMPTS].i;
  j->max_polls = ns_int_or(&r[I_MAX_POLLS], -1);
  info->max_crashes = r[I_MAX_CRASHES].i;
  info->decay = r[I_DECAY].i;
  j->priority = r[I_PRIORITY].i;
  j->parent = ns_int_or(&r[I_PARENT], 0);
  j->root = ns_int_or(&r[I_ROOT], 0);
  j->created = r[I_CREATED].i;
  j->due = r[I_DUE].i;
  j->deadline = ns_int_or(&r[I_DEADLINE], 0);
  j->timeout = r[I_TIMEOUT].i;
  j->nonce = r[I_NONCE].i;
  j->phase = r[I_PHASE].i;
  j->follows = r[I_FOLLOWS].i;
  info->unmet = r[I_UNMET].i;
  info->paused = ns_int_or(&r[I_PAUSED], 0);
  info->holder = ns_int_or(&r[I_HOLDER], 0);
  info->finished_at = ns_int_or(&r[I_FINISHED_AT], 0);
  info->started = ns_int_or(&r[I_STARTED], 0);
  info->worker = ns_int_or(&r[I_WORKER], 0);
  info->pid = ns_int_or(&r[I_PID], 0);
  info->progress = r[I_PROGRESS].type == NS_REAL ? r[I_PROGRESS].d : -1.0;
}

/* Looks in one table; '*found' says whether it was there. */
static ns_status read_info(ns_db *db, ns_sql sql, int64_t id, ns_info *info, bool *found,
                           ns_err *err) {
  const ns_value *r = NULL;
  ns_value param = ns_vint(id);
  ns_status st = ns_db_run(db, sql, &param, err);
  if (st == NS_OK)
    st = ns_db_row(db, sql, &r, err);
  *found = st == NS_OK && r != NULL;
  if (!*found)
    return st;
  if (!keep_texts(info, r))
    return ns_no_memory(err);
  keep_numbers(info, r);
  return NS_OK;
}

ns_status ns_job_info(ns_db *db, int64_t id, ns_info *info, ns_err *err) {
  bool found = false;
  ns_status st;
  ns_info_free(info);
  ns_err_clear(err);
  if ((st = ns_db_ready(db, err)) != NS_OK)
    return st;
  st = read_info(db, NS_SQL_ADMIN_INFO, id, info, &found, err);
  if (st == NS_OK && !found)
    st = read_info(db, NS_SQL_ADMIN_INFO_FINISHED, id, info, &found, err);
  if (st == NS_OK && !found) /* it may have been retried in between */
    st = read_info(db, NS_SQL_ADMIN_INFO, id, info, &found, err);
  return st == NS_OK && !found ? ns_db_no_job(id, err) : st;
}

/* ------------------------------------------------------------------ schedules */

ns_status ns_schedule_next(ns_db *db, int64_t *in, ns_err *err) {
  const ns_value *row = NULL;
  ns_status st;
  *in = -1;
  ns_err_clear(err);
  if ((st = ns_db_ready(db, err)) == NS_OK &&
      (st = ns_db_run(db, NS_SQL_SCHEDULE_NEXT, NULL, err)) == NS_OK)
    st = ns_db_row(db, NS_SQL_SCHEDULE_NEXT, &row, err);
  if (st == NS_OK && row != NULL)
    *in = row[0].i;
  return st;
}

/* ------------------------------------------------------------ a ring, on trial */

#define TRY_MAX (2 * NS_SECOND)
#define LOOK 2000          /* µs from one look whether it sleeps to the next, */
#define LOOK_MAX NS_SECOND /* and in all, should the server not show it */
#define RING_FIRST 5000    /* µs to the second ring, then doubling */

typedef struct sleeper {
  ns_listener *listener;
  unsigned woke;
  ns_status st;
  ns_err err;
  int64_t until;    /* when it woke, monotonic µs */
  atomic_bool done; /* all of the above is written */
} sleeper;

static void *sleep_once(void *arg) {
  sleeper *s = arg;
  s->st = ns_listen(s->listener, &(ns_awaited){.newest = -1}, TRY_MAX, &s->woke, &s->err);
  s->until = ns_mono_us();
  ns_listen_leave(s->listener);
  atomic_store(&s->done, true);
  return NULL;
}

static ns_status await_sleep(ns_db *db, sleeper *s, ns_err *err) {
  int64_t until = ns_mono_us() + LOOK_MAX;
  const ns_value *row = NULL;
  ns_status st = NS_OK;
  while (st == NS_OK && row == NULL && !atomic_load(&s->done) && ns_mono_us() < until) {
    ns_value thread = ns_vint(ns_listener_thread(s->listener, db));
    ns_sleep_us(LOOK);
    if ((st = ns_db_run(db, NS_SQL_DOCTOR_SLEEPS, &thread, err)) == NS_OK)
      st = ns_db_row(db, NS_SQL_DOCTOR_SLEEPS, &row, err);
  }
  return st;
}

/* Rings again and again: one may come between two looks of the sleep. */
static ns_status ring_until(ns_db *db, sleeper *s, int64_t *rang, ns_err *err) {
  ns_status st = await_sleep(db, s, err);
  for (int64_t pause = RING_FIRST; st == NS_OK && !atomic_load(&s->done); pause *= 2) {
    *rang = ns_mono_us();
    st = ns_ring(db, err);
    ns_sleep_us(pause);
  }
  return st;
}

ns_status ns_ring_try(ns_db *db, int64_t *took, ns_err *err) {
  sleeper s = {.woke = 0};
  pthread_t thread;
  int64_t rang = 0;
  ns_status st = ns_listener_open(&s.listener, db, err);
  *took = -1;
  if (st != NS_OK)
    return st;
  if (pthread_create(&thread, NULL, sleep_once, &s) != 0) {
    ns_listener_close(s.listener);
    return ns_fail(err, NS_ENOMEM, "no thread for a listener");
  }
  st = ring_until(db, &s, &rang, err);
  pthread_join(thread, NULL);
  ns_listener_close(s.listener);
  if (st == NS_OK && s.st != NS_OK) {
    *err = s.err;
    st = s.st;
  }
  if (st == NS_OK && s.woke)
    *took = s.until > rang ? s.until - rang : 0;
  return st;
}
