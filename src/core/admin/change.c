/*
** Deleting a job, and changing what its push has said.
**
** A job that no claim has is first taken out of ready or scheduled, by key. So of a claim and a
** change exactly one has the row, and the other finds none. A live job that is deleted ends as a
** cancelled one does, but leaves no history. One that is changed waits again, under its next run.
**
** Invariant: when a delete has been committed no row has the job's payload, result, errors, log
** or signals. A row of nightshift_child stays as long as jobs below the deleted one are there:
** pruning finds them by it. No assert: only the server knows the rows.
*/
#include "admin/admin.h"

#include <stdio.h>
#include <string.h>

#include "db/db.h"
#include "finish/finish.h"
#include "push/push.h"
#include "source/source.h"

static ns_status is_claimed(int64_t id, ns_err *err) {
  return ns_fail(err, NS_ESTATE, "job %lld is running: cancel it first, or wait for its end",
                 (long long)id);
}

/* Refuses a job that a claim has. Otherwise none gets it before our commit. */
static ns_status take_unclaimed(ns_db *db, const ns_admin_work *w, ns_err *err) {
  const ns_value params[] = {ns_vint(w->id), ns_vint(w->now.run)};
  const ns_value *row = NULL;
  bool taken = true;
  ns_status st;
  if (w->now.unmet == 0)
    st = ns_admin_take(db, w, &taken, err);
  else if ((st = ns_db_run(db, NS_SQL_ADMIN_HELD, params, err)) == NS_OK)
    st = ns_db_row(db, NS_SQL_ADMIN_HELD, &row, err);
  if (st == NS_OK && (!taken || row != NULL))
    return is_claimed(w->id, err);
  return st;
}

/* Runs a statement about one job; is there a row? */
static ns_status has_row(ns_db *db, ns_sql sql, int64_t id, bool *yes, ns_err *err) {
  const ns_value *row = NULL;
  ns_value param = ns_vint(id);
  ns_status st = ns_db_run(db, sql, &param, err);
  if (st == NS_OK)
    st = ns_db_row(db, sql, &row, err);
  *yes = row != NULL;
  return st;
}

/* A live parent reads the results of its children. */
static ns_status check_parent(ns_db *db, int64_t id, int64_t parent, ns_err *err) {
  bool lives = false;
  ns_status st = parent != 0 ? has_row(db, NS_SQL_EDGE_THERE, parent, &lives, err) : NS_OK;
  if (st == NS_OK && lives)
    return ns_fail(err, NS_ESTATE,
                   "job %lld is a child of job %lld, which has not finished and may read its "
                   "result: wait for that one's end, or cancel it, first",
                   (long long)id, (long long)parent);
  return st;
}

/* The link to its parent, unless jobs below it are found by that. */
static ns_status delete_link(ns_db *db, int64_t id, int64_t parent, ns_err *err) {
  char text[96];
  const ns_value *row = NULL;
  ns_value list = ns_vtext(NS_NONE);
  bool above = false;
  ns_status st = NS_OK;
  if (parent == 0 || (st = has_row(db, NS_SQL_ADMIN_BELOW, id, &above, err)) != NS_OK || above)
    return st;
  if ((st = ns_db_run(db, NS_SQL_ADMIN_LINK, (ns_value[]){ns_vint(parent), ns_vint(id)}, err)) !=
          NS_OK ||
      (st = ns_db_row(db, NS_SQL_ADMIN_LINK, &row, err)) != NS_OK || row == NULL)
    return st;
  snprintf(text, sizeof text, "[[%lld,%lld,%lld]]", (long long)parent, (long long)row[0].i,
           (long long)id);
  list.s = ns_str(text);
  return ns_db_run(db, NS_SQL_PRUNE_LINKS, &list, err);
}

static ns_status delete_traces(ns_db *db, int64_t id, int64_t parent, ns_err *err) {
  static const ns_sql all[] = {NS_SQL_PRUNE_FINISHED, NS_SQL_PRUNE_ATTEMPTS, NS_SQL_PRUNE_SIGNALS,
                               NS_SQL_PRUNE_PAUSES, NS_SQL_PRUNE_TAGS};
  char text[32];
  ns_value list;
  ns_status st = NS_OK;
  snprintf(text, sizeof text, "[%lld]", (long long)id);
  list = ns_vtext(ns_str(text));
  for (size_t i = 0; st == NS_OK && i < sizeof all / sizeof *all; i++)
    st = ns_db_run(db, all[i], &list, err);
  return st == NS_OK ? delete_link(db, id, parent, err) : st;
}

static ns_status free_key(ns_db *db, int64_t queue, ns_bytes key, int64_t id, ns_err *err) {
  return ns_db_bulk_changing(db, NS_SQL_SETTLE_UNIQUE,
                             (ns_column[]){{NS_INT, &queue, NULL, NULL},
                                           {NS_TEXT, NULL, &key, NULL},
                                           {NS_INT, &id, NULL, NULL}},
                             1, 0, err);
}

static ns_status end_live(ns_db *db, const ns_admin_work *w, ns_err *err) {
  ns_end end = {.id = w->id, .queue_id = w->now.queue_id, .outcome = "cancelled",
                .reason = "deleted", .attempts = -1, .polls = -1, .crashes = -1,
                .forgotten = true};
  ns_status st = take_unclaimed(db, w, err);
  if (w->now.key.n > 0)
    end.unique = ns_buf_bytes(&w->now.key);
  if (st == NS_OK)
    st = ns_db_bulk_changing(db, NS_SQL_SETTLE_HIDDEN, (ns_column[]){{NS_INT, &w->id, NULL, NULL}},
                             1, 0, err);
  return st == NS_OK ? ns_finish(db, &end, 1, err) : st;
}

/* Of a job that was retried between the two looks the first one was right. */
static ns_status find_job(ns_db *db, ns_admin_work *w, ns_err *err) {
  ns_status st = ns_admin_lock_live(db, w->id, &w->now, err);
  if (st == NS_OK && !w->now.found)
    st = ns_admin_lock_past(db, w->id, &w->then, err);
  if (st == NS_OK && !w->now.found && w->then.outcome[0] == '\0')
    st = ns_admin_lock_live(db, w->id, &w->now, err);
  return st;
}

static ns_status delete_run(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_admin_work *w = tx->arg;
  const bool *ended = w->arg;
  int64_t parent;
  ns_status st = find_job(db, w, err);
  if (st != NS_OK)
    return st;
  if ((!w->now.found && w->then.outcome[0] == '\0') || (ended != NULL && *ended == w->now.found))
    return tx->replay ? NS_OK : ns_db_no_job(w->id, err);
  tx->jobs = 1;
  parent = w->now.found ? w->now.parent : w->then.parent;
  st = check_parent(db, w->id, parent, err);
  if (st == NS_OK && w->now.found)
    st = end_live(db, w, err);
  else if (st == NS_OK && w->then.key.n > 0) /* it may have it, for a period */
    st = free_key(db, w->then.queue_id, ns_buf_bytes(&w->then.key), w->id, err);
  return st == NS_OK ? delete_traces(db, w->id, parent, err) : st;
}

ns_status ns_delete(ns_db *db, int64_t id, ns_err *err) {
  ns_admin_work w = {.verb = "delete", .id = id};
  ns_err_clear(err);
  return ns_admin_run(db, &w, delete_run, err);
}

ns_status ns_delete_if(ns_db *db, int64_t id, bool ended, ns_err *err) {
  ns_admin_work w = {.verb = "delete", .id = id, .arg = &ended};
  ns_err_clear(err);
  return ns_admin_run(db, &w, delete_run, err);
}

/* ------------------------------------------------------------------ update */

ns_change ns_change_new(void) {
  return (ns_change){.payload = NS_NONE, .queue = NS_NONE, .priority = -1, .due = -1,
                     .max_attempts = -1, .tags = NS_NONE, .group = NS_NONE};
}

typedef struct update {
  const ns_change *change;
  const ns_expected *expected; /* NULL: any job */
  int64_t queue_id; /* the new one; 0: as it is */
  int64_t run;      /* of the first try */
} update;

static ns_value optional(int64_t n) {
  return n >= 0 ? ns_vint(n) : ns_vnull;
}

/* Its row of an adopted table says which payload it has, and is served from one queue. */
static ns_status check_row(const ns_admin_work *w, const ns_buf *key, const ns_change *c,
                           ns_err *err) {
  ns_origin row;
  if (!ns_source_origin(ns_buf_bytes(key), &row) || (c->payload.p == NULL && c->queue.p == NULL))
    return NS_OK;
  return ns_fail(err, NS_ESTATE,
                 "job %lld stands for a row of an adopted table: its payload and its queue are "
                 "that row's and that table's",
                 (long long)w->id);
}

static ns_status check_live(const ns_admin_work *w, const ns_change *c, ns_err *err) {
  if (c->due >= 0 && w->now.awaits)
    return ns_fail(err, NS_ESTATE,
                   "job %lld waits for a signal, and is due with it, or at that wait's deadline",
                   (long long)w->id);
  if (c->max_attempts >= 0 && c->max_attempts <= w->now.attempts)
    return ns_fail(err, NS_EINVALID,
                   "max_attempts is %lld, and job %lld has failed %lld times already",
                   (long long)c->max_attempts, (long long)w->id, (long long)w->now.attempts);
  return check_row(w, &w->now.key, c, err);
}

static ns_status has_gone_on(const ns_admin_work *w, ns_err *err) {
  return ns_fail(err, NS_ESTATE, "job %lld has gone on, or was changed, since it was looked at",
                 (long long)w->id);
}

/* A try that was cut at its commit may have written the new payload. */
static ns_status check_payload(ns_db *db, const ns_admin_work *w, const update *u, bool replay,
                               ns_err *err) {
  ns_sql sql = w->now.found ? NS_SQL_ADMIN_PAYLOAD : NS_SQL_ADMIN_PAYLOAD_PAST;
  const ns_value *row = NULL;
  ns_status st = ns_db_run(db, sql,
                           (ns_value[]){ns_vtext(u->expected->payload),
                                        ns_vopt(u->change->payload), ns_vint(w->id)},
                           err);
  if (st == NS_OK)
    st = ns_db_row(db, sql, &row, err);
  if (st == NS_OK && (row == NULL || (row[0].i == 0 && !(replay && row[1].i != 0))))
    return has_gone_on(w, err);
  return st;
}

static ns_status check_expected(ns_db *db, const ns_admin_work *w, const update *u, bool replay,
                                ns_err *err) {
  const ns_expected *e = u->expected;
  int64_t run = w->now.found ? w->now.run : w->then.run;
  if (e == NULL)
    return NS_OK;
  if ((!e->either && e->ended == w->now.found) || (e->run != 0 && e->run != run))
    return has_gone_on(w, err);
  return e->payload.p != NULL ? check_payload(db, w, u, replay, err) : NS_OK;
}

/* The job's key belongs to its queue. */
static ns_status move_key(ns_db *db, const ns_admin_work *w, int64_t queue, ns_err *err) {
  const ns_key key = {queue, ns_buf_bytes(&w->now.key), w->id, 0};
  ns_key_owner owner;
  ns_status st;
  if (key.text.n == 0)
    return NS_OK;
  if ((st = ns_push_key_take(db, &key, &owner, err)) == NS_OK)
    st = ns_db_run(db, NS_SQL_ADMIN_KEY_HELD,
                   (ns_value[]){ns_vint(w->now.queue_id), ns_vint(w->id), ns_vint(queue),
                                ns_vtext(key.text)},
                   err);
  if (st == NS_OK)
    return free_key(db, w->now.queue_id, key.text, w->id, err);
  if (st != NS_EDUPLICATE)
    return st;
  ns_fail(err, NS_EDUPLICATE, "job %lld cannot go there: job %lld of that queue, which %s, has its "
          "unique key", (long long)w->id, (long long)owner.job,
          owner.done ? "is done within its period" : "has not finished");
  if (err != NULL)
    err->job = owner.job;
  return NS_EDUPLICATE;
}

static bool has_tags(ns_bytes tags) {
  return tags.p != NULL && tags.n > strlen("[]");
}

static ns_value new_group(const ns_change *c) {
  return c->group.n > 0 ? ns_vtext(c->group) : ns_vnull;
}

/* In the place of the ones that it has. */
static ns_status write_tags(ns_db *db, int64_t id, ns_bytes tags, ns_err *err) {
  char text[32];
  ns_push push = ns_push_new("any", "null");
  ns_insert row = {.push = &push, .id = id};
  ns_value list;
  ns_status st;
  if (tags.p == NULL)
    return NS_OK;
  snprintf(text, sizeof text, "[%lld]", (long long)id);
  list = ns_vtext(ns_str(text));
  if (has_tags(tags))
    push.tags = tags;
  st = ns_db_run(db, NS_SQL_PRUNE_TAGS, &list, err);
  return st == NS_OK ? ns_push_tags_write(db, &row, 1, err) : st;
}

/* Where and when it waits from now on. A due time behind its deadline would be too late. */
static void place_anew(ns_live *j, const update *u) {
  const ns_change *c = u->change;
  if (u->queue_id != 0)
    j->queue_id = u->queue_id;
  if (c->priority >= 0)
    j->rank = 255 - c->priority;
  if (c->due >= 0)
    j->due = j->deadline != 0 && c->due > j->deadline ? j->deadline : c->due;
}

static ns_status write_live(ns_db *db, ns_admin_work *w, const update *u, ns_err *err) {
  const ns_change *c = u->change;
  bool moves = w->now.unmet == 0;
  ns_status st = take_unclaimed(db, w, err);
  if (st == NS_OK && u->queue_id != 0 && u->queue_id != w->now.queue_id)
    st = move_key(db, w, u->queue_id, err);
  if (st != NS_OK)
    return st;
  place_anew(&w->now, u);
  st = ns_db_run(db, NS_SQL_ADMIN_UPDATE,
                 (ns_value[]){ns_vint(moves), ns_vint(w->now.queue_id), ns_vint(w->now.rank),
                              optional(c->priority), c->due >= 0 ? ns_vint(w->now.due) : ns_vnull,
                              optional(c->due), optional(c->max_attempts), ns_vopt(c->payload),
                              c->tags.p != NULL ? ns_vint(has_tags(c->tags)) : ns_vnull,
                              ns_vint(c->group.p != NULL), new_group(c), ns_vint(w->id)},
                 err);
  if (st == NS_OK)
    st = write_tags(db, w->id, c->tags, err);
  return st == NS_OK && moves ? ns_admin_queue_again(db, w, err) : st;
}

static ns_status write_past(ns_db *db, const ns_admin_work *w, const update *u, ns_err *err) {
  const ns_change *c = u->change;
  ns_status st;
  if (strcmp(w->then.outcome, "done") == 0)
    return ns_fail(err, NS_ESTATE, "job %lld is done; only a dead or cancelled one is changed, "
                   "for its retry", (long long)w->id);
  if (c->due >= 0)
    return ns_fail(err, NS_ESTATE, "job %lld is %s: it is due when it is retried",
                   (long long)w->id, w->then.outcome);
  if ((st = check_row(w, &w->then.key, c, err)) != NS_OK)
    return st;
  st = ns_db_run(db, NS_SQL_ADMIN_UPDATE_PAST,
                 (ns_value[]){ns_vint(u->queue_id != 0 ? u->queue_id : w->then.queue_id),
                              optional(c->priority), optional(c->max_attempts),
                              ns_vopt(c->payload), ns_vint(c->group.p != NULL), new_group(c),
                              ns_vint(w->id)},
                 err);
  return st == NS_OK ? write_tags(db, w->id, c->tags, err) : st;
}

/* A try that was cut at its commit has given the job its next run, if it was written. */
static ns_status update_run(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_admin_work *w = tx->arg;
  update *u = w->arg;
  int64_t run;
  ns_status st = find_job(db, w, err);
  if (st != NS_OK)
    return st;
  if (!w->now.found && w->then.outcome[0] == '\0')
    return ns_db_no_job(w->id, err);
  run = w->now.found ? w->now.run : w->then.run;
  if (tx->replay && u->run != 0 && run > u->run)
    return NS_OK;
  u->run = run;
  if ((st = check_expected(db, w, u, tx->replay, err)) != NS_OK)
    return st;
  tx->jobs = 1;
  if (!w->now.found)
    return write_past(db, w, u, err);
  st = check_live(w, u->change, err);
  return st == NS_OK ? write_live(db, w, u, err) : st;
}

static ns_status check_change(ns_db *db, const ns_change *c, ns_err *err) {
  ns_push p = ns_push_new("any", "null");
  if (c->payload.p != NULL)
    p.payload = c->payload;
  p.queue = c->queue;
  if (has_tags(c->tags))
    p.tags = c->tags;
  if (c->group.n > 0)
    p.group = c->group;
  if (c->priority >= 0)
    p.priority = c->priority < 256 ? (int)c->priority : 256;
  if (c->max_attempts >= 0)
    p.max_attempts = c->max_attempts;
  return ns_push_check(&p, (int64_t)db->max_payload, err);
}

/* What a change is about, for the audit: the names of what is to be different, and short values. */
static ns_bytes told_change(const ns_change *c, char *room, size_t size) {
  ns_buf text = NS_BUF_INIT;
  size_t n;
  if (c->payload.p != NULL)
    ns_buf_adds(&text, ", payload");
  if (c->queue.p != NULL)
    ns_buf_addf(&text, ", queue %.*s", (int)c->queue.n, c->queue.p);
  if (c->priority >= 0)
    ns_buf_addf(&text, ", priority %lld", (long long)c->priority);
  if (c->due >= 0)
    ns_buf_adds(&text, ", due");
  if (c->max_attempts >= 0)
    ns_buf_addf(&text, ", max_attempts %lld", (long long)c->max_attempts);
  if (c->tags.p != NULL)
    ns_buf_adds(&text, ", tags");
  if (c->group.p != NULL)
    ns_buf_adds(&text, ", group");
  n = text.n > 2 && text.n - 2 < size ? text.n - 2 : 0;
  if (n > 0)
    memcpy(room, text.p + 2, n);
  ns_buf_free(&text);
  return (ns_bytes){room, n};
}

ns_status ns_update(ns_db *db, int64_t id, const ns_change *change, ns_err *err) {
  return ns_update_if(db, id, change, NULL, err);
}

ns_status ns_update_if(ns_db *db, int64_t id, const ns_change *change, const ns_expected *expected,
                       ns_err *err) {
  update u = {.change = change, .expected = expected};
  ns_admin_work w = {.verb = "update", .id = id, .arg = &u};
  char room[160 + NS_MAX_QUEUE];
  ns_status st;
  ns_err_clear(err);
  w.detail = told_change(change, room, sizeof room);
  if ((st = check_change(db, change, err)) == NS_OK && change->queue.p != NULL)
    st = ns_queue_id(db, change->queue, true, &u.queue_id, err);
  return st == NS_OK ? ns_admin_run(db, &w, update_run, err) : st;
}
