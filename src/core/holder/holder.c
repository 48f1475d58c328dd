/*
** The holder: registering at the first claim, resuming after a reconnect,
** leaving. The session that did the registering owns the named lock
** 'nightshift:<database>:<holder>' for as long as it lives.
*/
#include "holder/holder.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "claim/claim.h"
#include "db/db.h"
#include "handle.h"
#include "ns_time.h"
#include "wake/peers.h"

#define LOCK_WAIT 2               /* seconds */

/* Where named locks serve, ours is to be had, if not at once: a rescuer or a
** listener may look at it, or the server has not missed our last session. */
static ns_status take_lock(ns_db *db, ns_err *err) {
  const ns_value *row = NULL;
  ns_status st = ns_db_run(db, NS_SQL_HOLDER_LOCKS, NULL, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_HOLDER_LOCKS, &row, err);
  if (st != NS_OK || row == NULL)
    return st;
  db->no_locks = row[0].i == 0;
  if (db->no_locks)
    return NS_OK;
  st =
      ns_db_run(db, NS_SQL_HOLDER_LOCK, (ns_value[]){ns_vint(db->holder), ns_vint(LOCK_WAIT)}, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_HOLDER_LOCK, &row, err);
  if (st == NS_OK && (row == NULL || row[0].type == NS_NULL || row[0].i != 1))
    st = ns_fail(err, NS_EGONE,
                 "the named lock of holder %lld is held by another session; "
                 "the server has not missed the last one yet",
                 (long long)db->holder);
  return st;
}

/* Watchers learn that there is one more; who does not is told by time. */
static void tell_neighbour(ns_db *db) {
  ns_err err;
  ns_db_run(db, NS_SQL_LISTEN_NUDGE, (ns_value[]){ns_vint(db->holder), ns_vint(1)}, &err);
}

/* Inside a transaction of ours the row appears with its commit. */
ns_status ns_register(ns_db *db, bool is_host, ns_err *err) {
  char host[256] = "";
  char place[NS_PLACE];
  int64_t id;
  ns_status st;
  if ((st = ns_db_ready(db, err)) != NS_OK || db->holder != 0)
    return st;
  if ((st = ns_take_ids(db, &id, 1, err)) != NS_OK)
    return st;
  gethostname(host, sizeof host - 1);
  ns_place(place);
  st = ns_db_run(db, NS_SQL_HOLDER_ADD,
                 (ns_value[]){ns_vint(id), ns_vtext(ns_str(is_host ? "host" : "handle")),
                              ns_vtext(ns_str(host)), ns_vint(getpid()), ns_vtext(ns_str(place)),
                              ns_vtext(ns_str(NS_VERSION))},
                 err);
  if (st != NS_OK)
    return st;
  db->holder = id;
  db->is_host = is_host;
  if ((st = take_lock(db, err)) != NS_OK) { /* nobody may hold without it */
    ns_err none;
    ns_value param = ns_vint(id);
    ns_db_run(db, NS_SQL_HOLDER_LEAVE, &param, &none);
    db->holder = 0;
  } else if (!db->in_tx)
    tell_neighbour(db);
  return st;
}

int64_t ns_holder_id(const ns_db *db) {
  return db->holder;
}

/* Without memory for it a job keeps the blame. */
static void remember_wronged(ns_db *db) {
  for (size_t i = 0; i < db->claim.leases.n; i++)
    for (size_t k = 0; k < db->claim.leases.items[i].n; k++) {
      const ns_claimed *c = &db->claim.leases.items[i].jobs[k];
      if (!c->settled && ns_grow(&db->wronged, &db->capwronged,
                                 db->nwronged + 1, sizeof *db->wronged))
        db->wronged[db->nwronged++] = (ns_token){c->id, c->run, false};
    }
}

void ns_holder_absolve(ns_db *db) {
  ns_err err;
  for (size_t i = 0; i < db->nwronged; i++)
    ns_db_run(db, NS_SQL_HOLDER_ABSOLVE,
              (ns_value[]){ns_vint(db->wronged[i].id), ns_vint(db->wronged[i].run)}, &err);
  db->nwronged = 0;
}

void ns_holder_lost(ns_db *db) {
  remember_wronged(db);
  ns_claim_leases_free(&db->claim.leases);
  db->holder = db->claim.unread = db->claim.in_doubt = 0;
  db->claim.alone.id = 0;
}

/* Somebody has declared us dead. */
static ns_status start_anew(ns_db *db, ns_err *err) {
  ns_value param = ns_vint(db->holder);
  ns_status st;
  ns_db_run(db, NS_SQL_HOLDER_UNLOCK, &param, err);
  ns_holder_lost(db);
  if ((st = ns_register(db, db->is_host, err)) == NS_OK)
    ns_holder_absolve(db);
  return st;
}

/* Takes the lock again and says where we are now. A holder that was declared dead meanwhile
** starts anew, without claims. */
static ns_status resume(ns_db *db, ns_err *err) {
  ns_value param = ns_vint(db->holder);
  ns_status st = take_lock(db, err);
  if (st == NS_OK)
    st = ns_db_run(db, NS_SQL_HOLDER_RESUME, &param, err);
  if (st != NS_OK || ns_db_affected(db, NS_SQL_HOLDER_RESUME) > 0)
    return st;
  return start_anew(db, err);
}

ns_status ns_beat(ns_db *db, ns_err *err) {
  ns_value param = ns_vint(db->holder);
  ns_status st = ns_db_ready(db, err);
  if (st != NS_OK || db->holder == 0)
    return st;
  if ((st = ns_db_run(db, NS_SQL_HOLDER_BEAT, &param, err)) != NS_OK ||
      ns_db_affected(db, NS_SQL_HOLDER_BEAT) > 0)
    return st;
  return start_anew(db, err);
}

static ns_value text_or_null(ns_bytes s) {
  return s.p != NULL ? ns_vtext(s) : ns_vnull;
}

ns_status ns_serves(ns_db *db, const ns_serving *s, ns_err *err) {
  ns_status st = ns_db_ready(db, err);
  if (st != NS_OK || db->holder == 0)
    return st;
  if ((st = ns_db_run(db, NS_SQL_HOLDER_SERVED_PAST, NULL, err)) != NS_OK)
    return st;
  return ns_db_run(db, NS_SQL_HOLDER_SERVES,
                   (ns_value[]){ns_vint(db->holder), ns_vint(s->workers), text_or_null(s->queues),
                                ns_vtext(s->handlers), text_or_null(s->reserves),
                                text_or_null(s->scripts), text_or_null(s->files),
                                ns_vint(s->load_began), ns_vint(s->load_ended),
                                text_or_null(s->load_error)},
                   err);
}

ns_status ns_tell_workers(ns_db *db, const ns_workers *w, ns_err *err) {
  ns_status st = ns_db_ready(db, err);
  if (st != NS_OK || db->holder == 0)
    return st;
  return ns_db_run(db, NS_SQL_HOLDER_WORKERS,
                   (ns_value[]){ns_vint(w->up), ns_vint(w->busy), ns_vint(w->leaving),
                                ns_vint(w->loads), ns_vint(w->old), ns_vint(db->holder)},
                   err);
}

/* Another run of the cycle, for a holder that has no claims any more. */
static ns_status declared_dead(ns_db *db, ns_err *err) {
  ns_value param = ns_vint(db->holder);
  ns_status st = ns_fail(err, NS_EBUSY,
                         "holder %lld was declared dead and its claims were "
                         "given to others",
                         (long long)db->holder);
  ns_err none;
  ns_db_run(db, NS_SQL_HOLDER_UNLOCK, &param, &none);
  ns_holder_lost(db);
  err->sqlerr = NS_RUN_AGAIN;
  return st;
}

ns_status ns_holder_cycle(ns_db *db, int64_t number, ns_err *err) {
  ns_status st =
      ns_db_run(db, NS_SQL_HOLDER_CYCLE, (ns_value[]){ns_vint(number), ns_vint(db->holder)}, err);
  if (st == NS_OK && ns_db_affected(db, NS_SQL_HOLDER_CYCLE) == 0)
    return declared_dead(db, err);
  return st;
}

/* Cut at a character. */
static void copy_why(char *to, size_t size, const ns_value *v) {
  size_t n = v->type != NS_TEXT ? 0 : v->s.n < size ? v->s.n : size - 1;
  while (n > 0 && n < v->s.n && ((unsigned char)v->s.p[n] & 0xC0) == 0x80)
    n--;
  if (n > 0) /* of no text, 'p' is NULL */
    memcpy(to, v->s.p, n);
  to[n] = '\0';
}

ns_status ns_notices(ns_db *db, ns_notice **list, size_t *n, ns_err *err) {
  const ns_value *row;
  size_t cap = 0;
  ns_value holder = ns_vint(db->holder);
  ns_status st = ns_db_run(db, NS_SQL_HOLDER_NOTICES, &holder, err);
  *list = NULL;
  *n = 0;
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_HOLDER_NOTICES, &row, err)) == NS_OK &&
         row != NULL) {
    if (!ns_grow(list, &cap, *n + 1, sizeof **list))
      return ns_no_memory(err);
    (*list)[*n].token = (ns_token){row[0].i, row[1].i, row[2].i != 0};
    copy_why((*list)[(*n)++].why, sizeof (*list)->why, &row[3]);
  }
  return st;
}

/* The number is gone with the row of a holder that was dead for long. What was done, or
** has failed, shows that the cycle was written, for it was written whole. */
static ns_status look_for_traces(ns_db *db, const ns_doubtful *c, bool *yes, ns_err *err) {
  const ns_value *row = NULL;
  ns_value who = ns_vint(c->holder);
  ns_buf list = NS_BUF_INIT;
  ns_status st;
  for (size_t i = 0; i < c->n; i++)
    if (c->verdicts[i].status == NS_OK)
      ns_db_list_add_pair(&list, c->verdicts[i].id, c->verdicts[i].run);
  if (ns_db_list_is_empty(&list))
    return NS_OK;
  st = ns_db_list_run(db, NS_SQL_HOLDER_TRACES, &who, &list, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_HOLDER_TRACES, &row, err);
  *yes = st == NS_OK && row != NULL;
  if (st != NS_EDENIED) /* whose grants are older does not know */
    return st;
  ns_err_clear(err);
  return NS_OK;
}

ns_status ns_holder_committed(ns_db *db, const ns_doubtful *c, bool *yes, ns_err *err) {
  const ns_value *row = NULL;
  ns_value param = ns_vint(c->holder);
  ns_status st = ns_db_run(db, NS_SQL_HOLDER_NOW, &param, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_HOLDER_NOW, &row, err);
  *yes = st == NS_OK && row != NULL && row[0].i >= c->number;
  return st == NS_OK && row == NULL ? look_for_traces(db, c, yes, err) : st;
}

static void leave_table(ns_db *db) {
  ns_err err;
  ns_value param = ns_vint(db->holder);
  if (db->is_host)
    ns_db_run(db, NS_SQL_HOLDER_SERVED, &param, &err); /* for people only */
  if (ns_db_run(db, NS_SQL_HOLDER_LEAVE, &param, &err) == NS_OK)
    ns_db_run(db, NS_SQL_RESCUE_NOTICES, &param, &err);
}

/* ------------------------------------------------------------------- hooks */

static ns_status connected(ns_db *db, ns_err *err) {
  return db->holder != 0 ? resume(db, err) : NS_OK;
}

static void forked(ns_db *db) {
  db->holder = 0;
  db->nwronged = 0;
}

/* The row stays as long as a claim names it. */
static void closing(ns_db *db) {
  bool reachable = db->link != NULL && !ns_link_dead(db->link);
  if (!ns_is_foreign(db) && db->holder != 0 && reachable && db->claim.in_doubt == 0 &&
      ns_claim_leases_settled(&db->claim.leases))
    leave_table(db);
  db->holder = 0;
  free(db->wronged);
  db->wronged = NULL;
  db->nwronged = db->capwronged = 0;
}

const ns_hooks ns_holder_hooks = {
    .connected = connected, .forked = forked, .closing = closing};
