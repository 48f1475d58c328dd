/*
** Ending jobs, and which of their dependents are to be notified later.
**
** Rows of history come from the job rows on the server, so a payload never travels twice.
** Results go as one JSON list; everything else is array-bound, one key per row.
**
** Many siblings that end at once on several hosts all have the same dependent. No verb waits
** for that row. A verb that finds it locked writes the ended job into nightshift_met, in the
** same transaction, and the dependent is notified later.
**
** Invariants: when a job's row goes, its unique key goes in the same transaction, or gets the
** instant from which it is free. Every dependent is decided, or its target is in nightshift_met.
** An edge with a target that has ended is there only while nightshift_met has that target. Only a
** transaction that has locked that row, or has just ended the target, deletes the edge. An assert
** sees that jobs end in a transaction; only the server knows their rows.
*/
#include "finish/finish.h"

#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "db/db.h"
#include "handle.h"
#include "source/source.h"
#include "wake/wake.h"

#define SAID 255 /* characters of a reason */
#define DEEP 32  /* levels of a tree that fail in one transaction */

static void add_text(ns_buf *list, const char *key, ns_bytes text) {
  if (text.p == NULL)
    return;
  ns_buf_addf(list, ",\"%s\":", key);
  ns_buf_add_json(list, text);
}

static void add_count(ns_buf *list, const char *key, int64_t n) {
  if (n >= 0)
    ns_buf_addf(list, ",\"%s\":%lld", key, (long long)n);
}

ns_bytes ns_finish_reason(ns_bytes text) {
  size_t n = 0;
  for (size_t chars = 0; n < text.n && chars < SAID; chars++) {
    size_t one = ns_utf8(text.p + n, text.n - n);
    n += one > 0 ? one : 1;
  }
  return n > 0 ? (ns_bytes){text.p, n} : NS_NONE;
}

static void add_reason(ns_buf *list, const ns_end *e) {
  ns_bytes said = ns_finish_reason(e->said);
  add_text(list, "r", said.p != NULL ? said : ns_str(e->reason));
  add_text(list, "e", said.n < e->said.n ? e->said : e->error);
}

/* The run that it ends with. */
static void add_run(ns_buf *list, const ns_end *e) {
  if (e->holder > 0)
    add_count(list, "h", e->holder);
  if (e->ago > 0)
    add_count(list, "s", e->ago);
  if (e->worker > 0)
    add_count(list, "w", e->worker);
  if (e->lease != 0)
    ns_buf_addf(list, ",\"l\":%lld", (long long)e->lease);
}

static void add_end(ns_buf *list, const ns_end *e) {
  ns_buf_addf(list, "%c{\"i\":%lld", list->n > 0 ? ',' : '[', (long long)e->id);
  add_text(list, "o", ns_str(e->outcome));
  add_reason(list, e);
  add_text(list, "x", e->result);
  add_count(list, "a", e->attempts);
  if (e->max_attempts > 0)
    add_count(list, "m", e->max_attempts);
  add_count(list, "p", e->polls);
  add_count(list, "c", e->crashes);
  add_run(list, e);
  ns_buf_addc(list, '}');
}

static ns_status write_history(ns_db *db, const ns_end *ends, size_t n,
                               ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  size_t k = 0;
  for (size_t i = 0; i < n; i++)
    if (!ends[i].forgotten) {
      add_end(&list, &ends[i]);
      k++;
    }
  return k > 0 ? ns_db_list_change(db, NS_SQL_SETTLE_FINISH, NULL, &list, k, err) : NS_OK;
}

/* Is the key the job's own, and only locked by another transaction? */
static ns_status is_held(ns_db *db, const ns_end *e, bool *yes, ns_err *err) {
  const ns_value *row = NULL;
  ns_status st = ns_db_run(db, NS_SQL_PUSH_UNIQUE_OWNER,
                           (ns_value[]){ns_vint(e->queue_id), ns_vtext(e->unique)}, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_PUSH_UNIQUE_OWNER, &row, err);
  *yes = row != NULL && row[0].i == e->id;
  return st;
}

/* "[number,queue,key]" */
static void add_key(ns_buf *list, int64_t number, const ns_end *e) {
  ns_buf_addf(list, "%c[%lld,%lld,", list->n > 0 ? ',' : '[', (long long)number,
              (long long)e->queue_id);
  ns_buf_add_json(list, e->unique);
  ns_buf_addc(list, ']');
}

/* 'missing' is true for ends with a key, and becomes false where the key's row could be locked. */
static ns_status lock_keys(ns_db *db, ns_end *ends, size_t n, bool *missing, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  const ns_value *row;
  ns_status st;
  for (size_t i = 0; i < n; i++)
    if (missing[i])
      add_key(&list, (int64_t)i, &ends[i]);
  st = ns_db_list_run(db, NS_SQL_SETTLE_KEYS, NULL, &list, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_SETTLE_KEYS, &row, err)) == NS_OK &&
         row != NULL) {
    missing[row[0].i] = false;
    ends[row[0].i].key_row = row[1].i != 0 ? NS_KEY_STAYS : NS_KEY_FREED;
  }
  return st;
}

ns_status ns_finish_keys(ns_db *db, ns_end *ends, size_t n, bool *held, ns_err *err) {
  bool any = false;
  ns_status st = NS_OK;
  for (size_t i = 0; i < n; i++)
    any = (held[i] = ends[i].unique.p != NULL) || any;
  if (any)
    st = lock_keys(db, ends, n, held, err);
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (held[i]) {
      st = is_held(db, &ends[i], &held[i], err);
      ends[i].key_row = held[i] ? NS_KEY_FREED : NS_KEY_LOST;
    }
  return st;
}

static ns_status free_key(ns_db *db, const ns_end *e, ns_err *err) {
  return ns_db_bulk_changing(db, NS_SQL_SETTLE_UNIQUE,
                             (ns_column[]){{NS_INT, &e->queue_id, NULL, NULL},
                                           {NS_TEXT, NULL, &e->unique, NULL},
                                           {NS_INT, &e->id, NULL, NULL}},
                             1, 0, err);
}

/* The key of a job that is done before its period is over is free only then. */
static ns_status hold_keys(ns_db *db, const ns_end *ends, size_t n, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  for (size_t i = 0; i < n; i++)
    if (ends[i].key_row == NS_KEY_STAYS)
      add_key(&list, ends[i].id, &ends[i]);
  return ns_db_list_is_empty(&list)
             ? NS_OK
             : ns_db_list_run(db, NS_SQL_SETTLE_UNIQUE_HELD, NULL, &list, err);
}

/* A job's row may name a key that it has not any more, so fewer may go. */
static ns_status free_keys(ns_db *db, const ns_end *ends, size_t n, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  const ns_end *last = NULL;
  size_t k = 0;
  for (size_t i = 0; i < n; i++)
    if (ends[i].unique.p != NULL && ends[i].key_row == NS_KEY_FREED) {
      add_key(&list, ends[i].id, &ends[i]);
      last = &ends[i];
      k++;
    }
  if (k > 1)
    return ns_db_list_run(db, NS_SQL_SETTLE_UNIQUE_LIST, NULL, &list, err);
  ns_buf_free(&list);
  return k > 0 ? free_key(db, last, err) : NS_OK;
}

/* Notes the changes that the rows of these jobs in adopted tables are to get. */
static ns_status owe_rows(ns_db *db, const ns_end *ends, size_t n, ns_err *err) {
  ns_source_owed owed = {0};
  for (size_t i = 0; i < n; i++)
    ns_source_note(&owed, ends[i].unique, ends[i].id, ends[i].failed, 0, ends[i].outcome);
  return ns_source_owe(db, &owed, err);
}

static ns_status delete_jobs(ns_db *db, const ns_end *ends, size_t n,
                             ns_err *err) {
  ns_buf ids = NS_BUF_INIT;
  for (size_t i = 0; i < n; i++)
    ns_db_list_add_id(&ids, ends[i].id);
  return ns_db_list_change(db, NS_SQL_SETTLE_GONE, NULL, &ids, n, err);
}

/* The tags of jobs in the history stay, and so do the rows of their earlier runs. */
static ns_status forget_rest(ns_db *db, const ns_end *ends, size_t n, ns_err *err) {
  ns_buf tagged = NS_BUF_INIT;
  ns_buf tried = NS_BUF_INIT;
  ns_status st = NS_OK;
  for (size_t i = 0; i < n; i++) {
    if (ends[i].forgotten && ends[i].tagged)
      ns_db_list_add_id(&tagged, ends[i].id);
    if (ends[i].forgotten && ends[i].tried)
      ns_db_list_add_id(&tried, ends[i].id);
  }
  if (!ns_db_list_is_empty(&tagged))
    st = ns_db_list_run(db, NS_SQL_SETTLE_TAGS, NULL, &tagged, err);
  if (st == NS_OK && !ns_db_list_is_empty(&tried))
    return ns_db_list_run(db, NS_SQL_SETTLE_ATTEMPTS, NULL, &tried, err);
  ns_buf_free(&tried);
  return st;
}

/* By queue, for charts. */
static void count_ends(ns_db *db, const ns_end *ends, size_t n) {
  for (size_t i = 0; i < n; i++)
    ns_db_tally_one(db, ends[i].queue_id,
                    strcmp(ends[i].outcome, "done") == 0   ? NS_N_DONE
                    : strcmp(ends[i].outcome, "dead") == 0 ? NS_N_DEAD
                                                           : NS_N_CANCELLED);
}

static ns_status end_jobs(ns_db *db, const ns_end *ends, size_t n, ns_err *err) {
  ns_status st;
  ns_assert(db->in_tx || db->user_tx);
  count_ends(db, ends, n);
  if ((st = forget_rest(db, ends, n, err)) != NS_OK ||
      (st = write_history(db, ends, n, err)) != NS_OK ||
      (st = owe_rows(db, ends, n, err)) != NS_OK || (st = free_keys(db, ends, n, err)) != NS_OK ||
      (st = hold_keys(db, ends, n, err)) != NS_OK ||
      (st = ns_finish_on_dead(db, ends, n, err)) != NS_OK)
    return st;
  return delete_jobs(db, ends, n, err);
}

/* Tells the dependents of these jobs, and records the ones that cannot be told now. */
static ns_status resolve_dependents(ns_db *db, const ns_end *ends, size_t n,
                                    ns_failed_dependents *next, ns_err *err) {
  bool *held = NULL;
  ns_status st = ns_finish_resolve(db, ends, n, &held, next, err);
  if (st == NS_OK && held != NULL)
    st = ns_finish_pending_add(db, ends, n, held, err);
  free(held);
  return st;
}

/* Jobs that fail with other jobs are the next level. A very deep tree is ended in pieces, each
** in a transaction of its own. */
ns_status ns_finish_from(ns_db *db, struct ns_failed_dependents *level, ns_err *err) {
  ns_status st = NS_OK;
  for (int depth = 0; st == NS_OK && level->n > 0; depth++) {
    ns_failed_dependents next = {0};
    st = end_jobs(db, level->ends, level->n, err);
    if (st == NS_OK && depth < DEEP)
      st = resolve_dependents(db, level->ends, level->n, &next, err);
    else if (st == NS_OK)
      st = ns_finish_pending_add(db, level->ends, level->n, NULL, err);
    ns_finish_failed_free(level);
    *level = next;
  }
  ns_finish_failed_free(level);
  return st;
}

static ns_status notify_dependents(ns_db *db, const ns_end *ends, size_t n, ns_err *err) {
  ns_failed_dependents next = {0};
  ns_status st = resolve_dependents(db, ends, n, &next, err);
  if (st == NS_OK)
    return ns_finish_from(db, &next, err);
  ns_finish_failed_free(&next);
  return st;
}

/* Ids and outcomes only: the bytes are the caller's. */
static ns_status remember_ends(ns_db *db, const ns_end *ends, size_t n, ns_err *err) {
  ns_ended *late = &db->finish.late;
  if (!ns_grow(&late->items, &late->cap, late->n + n, sizeof *late->items))
    return ns_no_memory(err);
  for (size_t i = 0; i < n; i++)
    late->items[late->n++] = (ns_end){.id = ends[i].id, .outcome = ends[i].outcome};
  return NS_OK;
}

ns_status ns_finish_gone(ns_db *db, const ns_end *ends, size_t n, ns_err *err) {
  return db->finish.late.on ? remember_ends(db, ends, n, err) : notify_dependents(db, ends, n, err);
}

ns_status ns_finish(ns_db *db, const ns_end *ends, size_t n, ns_err *err) {
  ns_status st;
  if (n == 0)
    return NS_OK;
  st = end_jobs(db, ends, n, err);
  return st == NS_OK ? ns_finish_gone(db, ends, n, err) : st;
}

void ns_finish_late(ns_db *db, bool on) {
  db->finish.late.on = on;
  db->finish.late.n = 0;
}

int ns_finish_by_id(const void *a, const void *b) {
  int64_t x = ((const ns_end *)a)->id;
  int64_t y = ((const ns_end *)b)->id;
  return (x > y) - (x < y);
}

/* Children that failed as they were spawned have come before their elders. */
ns_status ns_finish_notify(ns_db *db, ns_err *err) {
  ns_status st = NS_OK;
  if (db->finish.late.n > 1)
    qsort(db->finish.late.items, db->finish.late.n, sizeof *db->finish.late.items, ns_finish_by_id);
  if (db->finish.late.n > 0)
    st = notify_dependents(db, db->finish.late.items, db->finish.late.n, err);
  ns_finish_late(db, false);
  return st;
}

static void closing(ns_db *db) {
  free(db->finish.late.items);
  db->finish.late = (ns_ended){0};
}

const ns_hooks ns_finish_hooks = {.closing = closing};

/* -------------------------------------------------------------- pending ends */

#define AT_ONCE 1000 /* targets per look */
#define TRIES 8      /* of a handle: an eighth of a second */

/* --------------------------------------------------------- writing it down */

/* Writes into the history the jobs that have failed, or the ones that have not. */
static ns_status write_down(ns_db *db, const ns_end *ends, size_t n, const bool *picked,
                            bool failures, ns_err *err) {
  ns_value failure = ns_vint(failures);
  ns_buf ids = NS_BUF_INIT;
  for (size_t i = 0; i < n; i++)
    if ((picked == NULL || picked[i]) && (strcmp(ends[i].outcome, "done") != 0) == failures)
      ns_db_list_add_id(&ids, ends[i].id);
  if (ns_db_list_is_empty(&ids))
    return NS_OK;
  db->finish.pending_due = true;
  return ns_db_list_run(db, NS_SQL_DEPEND_PENDING_ADD, &failure, &ids, err);
}

ns_status ns_finish_pending_add(ns_db *db, const ns_end *ends, size_t n, const bool *picked,
                                ns_err *err) {
  ns_status st = write_down(db, ends, n, picked, false, err);
  return st == NS_OK ? write_down(db, ends, n, picked, true, err) : st;
}

/* ------------------------------------------------------------- telling it */

typedef struct pending_look {
  ns_end *ends; /* AT_ONCE of them */
  size_t n;
  bool held; /* something could not be told this time either */
} pending_look;

static ns_status read_pending(ns_db *db, pending_look *l, ns_err *err) {
  const ns_value *row;
  ns_status st = ns_db_run(db, NS_SQL_DEPEND_PENDING,
                           (ns_value[]){ns_vint(db->finish.pending_from), ns_vint(AT_ONCE)}, err);
  l->n = 0;
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_DEPEND_PENDING, &row, err)) == NS_OK &&
         row != NULL && l->n < AT_ONCE)
    l->ends[l->n++] = (ns_end){.id = row[0].i, .outcome = row[1].i != 0 ? "dead" : "done"};
  return st;
}

/* Targets without an edge that stays are resolved. */
static ns_status delete_resolved(ns_db *db, const pending_look *l, const bool *held, ns_err *err) {
  ns_buf ids = NS_BUF_INIT;
  size_t n = 0;
  for (size_t i = 0; i < l->n; i++)
    if (held == NULL || !held[i]) {
      ns_db_list_add_id(&ids, l->ends[i].id);
      n++;
    }
  return ns_db_list_change(db, NS_SQL_DEPEND_RESOLVED, NULL, &ids, n, err);
}

static ns_status notify_found(ns_db *db, pending_look *l, ns_err *err) {
  ns_failed_dependents next = {0};
  bool *held = NULL;
  ns_status st = read_pending(db, l, err);
  if (st != NS_OK || l->n == 0)
    return st;
  st = ns_finish_resolve(db, l->ends, l->n, &held, &next, err);
  l->held = held != NULL;
  if (st == NS_OK)
    st = delete_resolved(db, l, held, err);
  free(held);
  if (st == NS_OK)
    return ns_finish_from(db, &next, err);
  ns_finish_failed_free(&next);
  return st;
}

ns_status ns_finish_pending_notify(ns_db *db, ns_err *err) {
  pending_look l = {.ends = malloc(AT_ONCE * sizeof *l.ends)};
  ns_status st = l.ends == NULL ? ns_no_memory(err) : NS_OK;
  db->finish.pending_due = false;
  if (st == NS_OK)
    st = notify_found(db, &l, err);
  db->finish.pending_due = db->finish.pending_due || st != NS_OK || l.held || l.n == AT_ONCE ||
                           db->finish.pending_from != 0; /* the rows before it have been held */
  db->finish.pending_from = st == NS_OK && l.n == AT_ONCE ? l.ends[l.n - 1].id : 0;
  free(l.ends);
  return st;
}

static ns_status notify_run(ns_db *db, ns_tx *tx, ns_err *err) {
  (void)tx;
  return ns_finish_pending_notify(db, err);
}

ns_status ns_finish_pending_look(ns_db *db, ns_err *err) {
  ns_tx tx = {.run = notify_run};
  const ns_value *row = NULL;
  ns_status st = NS_OK;
  if (!db->finish.pending_due &&
      (st = ns_db_run(db, NS_SQL_DEPEND_PENDING_ANY, NULL, err)) == NS_OK)
    st = ns_db_row(db, NS_SQL_DEPEND_PENDING_ANY, &row, err);
  if (st != NS_OK || (!db->finish.pending_due && row == NULL))
    return st;
  st = ns_db_transact(db, &tx, err);
  if (st == NS_OK && db->ring_due && !db->is_host) {
    ns_ring(db, NULL);
    db->ring_due = false;
  }
  ns_wake_ended(db);
  return st;
}

void ns_finish_pending_retry(ns_db *db) {
  ns_err none;
  int64_t pause = 1000;
  ns_wake_ended(db);
  for (int tries = 0;
       db->finish.pending_due && !db->is_host && !ns_in_transaction(db) && tries < TRIES; tries++) {
    if (tries > 0)
      ns_sleep_us(ns_jitter(pause, 0.5));
    pause *= tries > 0 ? 2 : 1;
    if (ns_finish_pending_look(db, &none) != NS_OK)
      break;
  }
  if (db->finish.pending_due)
    db->rescue.look_at = 0; /* a claim that waits looks again */
}

bool ns_unfinished(const ns_db *db) {
  return db->finish.pending_due;
}

/* ---------------------------------------------------------------- sweeping */

static ns_status find_dangling_run(ns_db *db, ns_tx *tx, ns_err *err) {
  int64_t *at = tx->arg;
  const ns_value *row;
  ns_buf ids[2] = {NS_BUF_INIT, NS_BUF_INIT}; /* done; failed, or unknown */
  size_t n = 0;
  ns_status st =
      ns_db_run(db, NS_SQL_DEPEND_DANGLING, (ns_value[]){ns_vint(*at), ns_vint(AT_ONCE)}, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_DEPEND_DANGLING, &row, err)) == NS_OK &&
         row != NULL) {
    n++;
    *at = row[0].i;
    if (row[1].i != 0)
      ns_db_list_add_id(&ids[row[2].i != 0], row[0].i);
  }
  if (n < AT_ONCE)
    *at = 0;
  for (int k = 0; k < 2; k++) {
    ns_value failure = ns_vint(k);
    bool any = !ns_db_list_is_empty(&ids[k]);
    db->finish.pending_due = db->finish.pending_due || any;
    if (st == NS_OK && any)
      st = ns_db_list_run(db, NS_SQL_DEPEND_PENDING_ADD, &failure, &ids[k], err);
    ns_buf_free(&ids[k]);
  }
  return st;
}

ns_status ns_finish_pending_repair(ns_db *db, ns_err *err) {
  ns_tx tx = {.run = find_dangling_run, .arg = &db->finish.edges_from};
  return ns_db_transact(db, &tx, err);
}

/* ------------------------------------------------------------------- hooks */

static void committed(ns_db *db, bool written) {
  if (written)
    ns_finish_pending_retry(db);
}

const ns_hooks ns_finish_pending_hooks = {.committed = committed};
