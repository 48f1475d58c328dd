/*
** Queues: names to ids, pausing, listing. A queue's row is created outside any
** open transaction, so a push that is not yet committed never makes other
** pushers into the same new queue wait. Ids never change: they are cached.
*/
#include "ns_queue.h"

#include <stdlib.h>
#include <string.h>

#include "ns_handle.h"

/* ASCII control characters, and U+0080 to U+009F, which are C2 80 to C2 9F. */
static bool is_control(ns_bytes name, size_t i) {
  unsigned char c = (unsigned char)name.p[i];
  unsigned char next = i + 1 < name.n ? (unsigned char)name.p[i + 1] : 0;
  return c < 32 || c == 127 || (c == 0xC2 && next < 0xA0);
}

ns_status ns_name_check(ns_bytes name, const char *what, size_t max,
                        ns_err *err) {
  if (name.p == NULL || name.n == 0)
    return ns_fail(err, NS_EINVALID, "the %s is empty", what);
  if (name.n > max)
    return ns_fail(err, NS_EINVALID, "the %s has %zu bytes; the limit is %zu",
                   what, name.n, max);
  for (size_t i = 0; i < name.n; i++)
    if (is_control(name, i))
      return ns_fail(err, NS_EINVALID,
                     "the %s has a control character at byte %zu", what, i + 1);
  if (!ns_utf8_valid(name))
    return ns_fail(err, NS_EINVALID, "the %s is not valid UTF-8", what);
  return NS_OK;
}

static ns_queue_name *cached(ns_db *db, ns_bytes name) {
  for (size_t i = 0; i < db->nqueues; i++) {
    ns_queue_name *q = &db->queues[i];
    if (q->n == name.n && memcmp(q->name, name.p, name.n) == 0)
      return q;
  }
  return NULL;
}

static ns_status remember(ns_db *db, ns_bytes name, int64_t id, ns_err *err) {
  ns_queue_name *q;
  if (cached(db, name) != NULL)
    return NS_OK;
  if (!ns_grow(&db->queues, &db->capqueues, db->nqueues + 1, sizeof *q))
    return ns_no_memory(err);
  q = &db->queues[db->nqueues++];
  memcpy(q->name, name.p, name.n);
  q->name[name.n] = '\0';
  q->n = name.n;
  q->id = id;
  return NS_OK;
}

ns_bytes ns_queue_name_of(const ns_db *db, int64_t id) {
  for (size_t i = 0; i < db->nqueues; i++)
    if (db->queues[i].id == id)
      return (ns_bytes){db->queues[i].name, db->queues[i].n};
  return NS_NONE;
}

static ns_status find(ns_db *db, ns_bytes name, int64_t *id, ns_err *err) {
  const ns_value *row = NULL;
  ns_value param = ns_vtext(name);
  ns_status st = ns_run(db, NS_SQL_QUEUE_FIND, &param, err);
  *id = 0;
  if (st == NS_OK)
    st = ns_row(db, NS_SQL_QUEUE_FIND, &row, err);
  if (st == NS_OK && row != NULL) {
    *id = row[0].i;
    st = remember(db, name, *id, err);
  }
  return st;
}

/* Creates the row on a connection that has no transaction open. */
static ns_status add(ns_db *db, ns_bytes name, ns_err *err) {
  ns_value param = ns_vtext(name);
  ns_db *other;
  ns_status st;
  if (!db->user_tx && !db->in_tx)
    return ns_run(db, NS_SQL_QUEUE_ADD, &param, err);
  ns_config cfg;
  if ((st = ns_open(&other, ns_db_config(db, &cfg), err)) != NS_OK)
    return st;
  st = ns_run(other, NS_SQL_QUEUE_ADD, &param, err);
  ns_close(other);
  return st;
}

ns_status ns_queue_id(ns_db *db, ns_bytes name, bool create, int64_t *id,
                      ns_err *err) {
  ns_queue_name *q;
  ns_status st = ns_name_check(name, "queue name", NS_MAX_QUEUE, err);
  *id = 0;
  if (st != NS_OK)
    return st;
  if ((q = cached(db, name)) != NULL) {
    *id = q->id;
    return NS_OK;
  }
  if ((st = ns_ready(db, err)) == NS_OK)
    st = find(db, name, id, err);
  if (st == NS_OK && *id == 0 && create) {
    if ((st = add(db, name, err)) == NS_OK)
      st = find(db, name, id, err);
  }
  if (st == NS_OK && *id == 0)
    return ns_fail(err, NS_ENOTFOUND, "there is no queue '%.*s'", (int)name.n,
                   name.p);
  return st;
}

ns_status ns_pause(ns_db *db, ns_bytes queue, bool paused, ns_err *err) {
  int64_t id;
  ns_status st = ns_queue_id(db, queue, false, &id, err);
  if (st == NS_OK)
    st = ns_ready(db, err);
  if (st == NS_OK)
    st = ns_run(db, NS_SQL_ADMIN_PAUSE,
                (ns_value[]){ns_vint(paused), ns_vtext(queue)}, err);
  if (st == NS_OK)
    ns_ring(db, NULL);
  return st;
}

ns_status ns_queue_paused(ns_db *db, int64_t id, bool *paused, ns_err *err) {
  const ns_value *row = NULL;
  ns_value param = ns_vint(id);
  ns_status st = ns_run(db, NS_SQL_QUEUE_PAUSED, &param, err);
  *paused = false;
  if (st == NS_OK)
    st = ns_row(db, NS_SQL_QUEUE_PAUSED, &row, err);
  if (st == NS_OK && row != NULL)
    *paused = row[0].i != 0;
  return st;
}

static bool append(ns_queue_row **rows, size_t *cap, size_t *n,
                   const ns_value *row) {
  ns_queue_row *q;
  size_t len = row[1].s.n < NS_MAX_QUEUE ? row[1].s.n : NS_MAX_QUEUE;
  if (!ns_grow(rows, cap, *n + 1, sizeof **rows))
    return false;
  q = &(*rows)[(*n)++];
  q->id = row[0].i;
  memcpy(q->name, row[1].s.p, len);
  q->name[len] = '\0';
  q->paused = row[2].i != 0;
  return true;
}

static ns_status read_list(ns_db *db, ns_queue_row **rows, size_t *n, ns_err *err) {
  const ns_value *row = NULL;
  size_t cap = 0;
  ns_status st = NS_OK;
  while (st == NS_OK &&
         (st = ns_row(db, NS_SQL_QUEUE_LIST, &row, err)) == NS_OK && row != NULL) {
    if (!append(rows, &cap, n, row))
      st = ns_no_memory(err);
    else
      st = remember(db, row[1].s, row[0].i, err);
  }
  if (st != NS_OK) {
    free(*rows);
    *rows = NULL;
    *n = 0;
  }
  return st;
}

ns_status ns_queues(ns_db *db, ns_queue_row **rows, size_t *n, ns_err *err) {
  ns_status st = ns_ready(db, err);
  *rows = NULL;
  *n = 0;
  if (st == NS_OK)
    st = ns_run(db, NS_SQL_QUEUE_LIST, NULL, err);
  return st == NS_OK ? read_list(db, rows, n, err) : st;
}

ns_status ns_queues_told(ns_db *db, ns_queue_row **rows, size_t *n, ns_err *err) {
  ns_status st = ns_told(db, NS_SQL_QUEUE_LIST, err);
  *rows = NULL;
  *n = 0;
  return st == NS_OK ? read_list(db, rows, n, err) : st;
}
