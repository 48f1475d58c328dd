/*
** A holder: registering at the first claim, resuming after a reconnect, leaving. Signs of life
** of running jobs: rows for people to see, written for many jobs by one statement. They also
** renew a lease and find out which claims still hold. And verdicts that wait to be written.
**
** Such verdicts are shown where nothing can be written. The text of a statement that sleeps is
** in the server's list of processes, for all accounts that may see it. A prepared statement is
** shown without its parameters, so this one is put together.
**
** Invariants: the session that did the registering owns the named lock
** 'nightshift:<database>:<holder>' for as long as it lives. A sign of life is written only
** while its (id, run) stands. No assert: only the server knows the owner of a lock, and which runs
** stand.
*/
#include "holder/holder.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base.h"
#include "claim/claim.h"
#include "db/db.h"
#include "handle.h"
#include "wake/wake.h"

#define LOCK_WAIT 2               /* seconds */

/* Where named locks work, ours is free soon, if not at once. A rescuer or a listener may look
** at it, or the server has not missed our last session. */
static ns_status take_lock(ns_db *db, ns_err *err) {
  const ns_value *row = NULL;
  bool ours;
  ns_status st =
      ns_db_run(db, NS_SQL_HOLDER_LOCK, (ns_value[]){ns_vint(db->holder), ns_vint(LOCK_WAIT)}, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_HOLDER_LOCK, &row, err);
  ours = row != NULL && row[1].type != NS_NULL && row[1].i == 1;
  db->no_locks = row != NULL && row[0].i == 0;
  if (st == NS_OK && !db->no_locks && !ours)
    st = ns_fail(err, NS_EGONE,
                 "the named lock of holder %lld is held by another session; "
                 "the server has not missed the last one yet",
                 (long long)db->holder);
  return st;
}

/* Tells watchers that there is one more holder; a watcher that is not told learns it in time. The
** answer is not waited for. */
static void tell_neighbour(ns_db *db) {
  ns_db_send_query(db, NS_SQL_LISTEN_NUDGE, (ns_value[]){ns_vint(db->holder), ns_vint(1)}, NULL);
}

/* Writes the row, and takes the lock with it. Without a lock there is no row in the end. */
static ns_status enter_table(ns_db *db, int64_t holder, bool is_host, ns_err *err) {
  char host[256] = "";
  char place[NS_PLACE];
  ns_err none;
  ns_value id = ns_vint(holder);
  ns_status st;
  gethostname(host, sizeof host - 1);
  ns_wake_place(place);
  ns_db_foresee(db, NS_SQL_HOLDER_LOCK, (ns_value[]){id, ns_vint(LOCK_WAIT)});
  st = ns_db_run(db, NS_SQL_HOLDER_ADD,
                 (ns_value[]){id, ns_vtext(ns_str(is_host ? "host" : "handle")),
                              ns_vtext(ns_str(host)), ns_vint(getpid()), ns_vtext(ns_str(place)),
                              ns_vtext(ns_str(NS_VERSION)), ns_vint(ns_log_wall())},
                 err);
  db->holder = st == NS_OK ? holder : 0;
  if (st != NS_OK)
    ns_db_run(db, NS_SQL_HOLDER_UNLOCK, &id, &none);
  else if ((st = take_lock(db, err)) != NS_OK) {
    ns_db_run(db, NS_SQL_HOLDER_LEAVE, &id, &none);
    db->holder = 0;
  }
  ns_db_foresee_end(db);
  return st;
}

/* Inside a transaction of ours the row appears with its commit. */
ns_status ns_register(ns_db *db, bool is_host, ns_err *err) {
  int64_t id;
  ns_status st;
  if ((st = ns_db_ready(db, err)) != NS_OK || db->holder != 0)
    return st;
  if ((st = ns_take_ids(db, &id, 1, err)) != NS_OK)
    return st;
  if ((st = enter_table(db, id, is_host, err)) != NS_OK)
    return st;
  db->is_host = is_host;
  if (!db->in_tx)
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
      if (!c->settled && ns_grow(&db->rescue.wronged, &db->rescue.capwronged,
                                 db->rescue.nwronged + 1, sizeof *db->rescue.wronged))
        db->rescue.wronged[db->rescue.nwronged++] = (ns_token){c->id, c->run, false};
    }
}

void ns_holder_absolve(ns_db *db) {
  ns_err err;
  for (size_t i = 0; i < db->rescue.nwronged; i++)
    ns_db_run(db, NS_SQL_HOLDER_ABSOLVE,
              (ns_value[]){ns_vint(db->rescue.wronged[i].id), ns_vint(db->rescue.wronged[i].run)},
              &err);
  db->rescue.nwronged = 0;
}

/* We were declared dead: no claim is ours any more, nor the id. */
static void lose_claims(ns_db *db) {
  remember_wronged(db);
  ns_claim_leases_free(&db->claim.leases);
  db->holder = db->claim.unread = db->claim.in_doubt = 0;
  db->claim.alone.id = 0;
}

/* Another holder has declared us dead. */
static ns_status forget_claims(ns_db *db, ns_err *err) {
  ns_value param = ns_vint(db->holder);
  ns_status st;
  ns_db_run(db, NS_SQL_HOLDER_UNLOCK, &param, err);
  lose_claims(db);
  if ((st = ns_register(db, db->is_host, err)) == NS_OK)
    ns_holder_absolve(db);
  return st;
}

/* Takes the lock again and says where we are now. A holder that was declared dead meanwhile
** starts anew, without claims. */
static ns_status resume_holder(ns_db *db, ns_err *err) {
  ns_value param = ns_vint(db->holder);
  ns_status st = take_lock(db, err);
  if (st == NS_OK)
    st = ns_db_run(db, NS_SQL_HOLDER_RESUME, &param, err);
  if (st != NS_OK || ns_db_affected(db, NS_SQL_HOLDER_RESUME) > 0)
    return st;
  return forget_claims(db, err);
}

ns_status ns_beat(ns_db *db, ns_err *err) {
  ns_status st = ns_db_ready(db, err);
  if (st != NS_OK || db->holder == 0)
    return st;
  if ((st = ns_db_run(db, NS_SQL_HOLDER_BEAT,
                      (ns_value[]){ns_vint(ns_log_wall()), ns_vint(db->holder)}, err)) != NS_OK)
    return st;
  if (ns_db_affected(db, NS_SQL_HOLDER_BEAT) == 0)
    return forget_claims(db, err);
  ns_db_minutes_tell(db, db->is_host);
  return NS_OK;
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
                                text_or_null(s->load_error), ns_vint(s->wanted),
                                ns_vint(s->tuned), text_or_null(s->refused)},
                   err);
}

/* [["settle_lock",3,0],…], of all with a conflict; NULL: there were none. */
static ns_value conflicts_json(const ns_counters *count, ns_buf *text) {
  for (size_t i = 0; i < NS_CONFLICTS; i++) {
    const ns_conflict *c = &count->conflicts[i];
    if (c->deadlocks + c->lock_waits > 0)
      ns_buf_addf(text, "%s[\"%s\",%lld,%lld]", text->n > 0 ? "," : "[", c->statement,
                  (long long)c->deadlocks, (long long)c->lock_waits);
  }
  if (text->n == 0)
    return ns_vnull;
  ns_buf_addc(text, ']');
  return ns_vtext(ns_buf_bytes(text));
}

ns_status ns_tell_workers(ns_db *db, const ns_workers *w, ns_err *err) {
  ns_buf text = NS_BUF_INIT;
  ns_status st = ns_db_ready(db, err);
  ns_value conflicts = conflicts_json(&db->count, &text);
  if (st == NS_OK && text.oom)
    st = ns_no_memory(err);
  if (st == NS_OK && db->holder != 0)
    st = ns_db_run(db, NS_SQL_HOLDER_WORKERS,
                   (ns_value[]){ns_vint(w->up), ns_vint(w->busy), ns_vint(w->leaving),
                                ns_vint(w->loads), ns_vint(w->old), conflicts, ns_vint(db->holder)},
                   err);
  ns_buf_free(&text);
  return st;
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
  lose_claims(db);
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
    (*list)[*n].workers = row[0].i == 0 ? row[1].i : 0;
    copy_why((*list)[(*n)++].why, sizeof (*list)->why, &row[3]);
  }
  return st;
}

/* The number is gone with the row of a holder that was dead for long. Ended or failed jobs show
** that the cycle was written, for it was written whole. */
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
  if (st != NS_EDENIED) /* an account with older grants does not know */
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
  if (ns_db_run(db, NS_SQL_HOLDER_LEAVE_PAST, &param, &err) == NS_OK)
    ns_db_run(db, NS_SQL_RESCUE_NOTICES, &param, &err);
}

ns_status ns_holder_past_prune(ns_db *db, ns_err *err) {
  const ns_value *row = NULL;
  ns_value until;
  ns_status st = ns_db_run(db, NS_SQL_PRUNE_PAST_UNTIL, NULL, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_PRUNE_PAST_UNTIL, &row, err);
  if (st != NS_OK || row == NULL)
    return st;
  until = row[0];
  return ns_db_run(db, NS_SQL_PRUNE_PAST_HOLDERS, &until, err);
}

/* ------------------------------------------------------------------- hooks */

static ns_status connected(ns_db *db, ns_err *err) {
  return db->holder != 0 ? resume_holder(db, err) : NS_OK;
}

static void forked(ns_db *db) {
  db->holder = 0;
  db->rescue.nwronged = 0;
}

/* The row stays as long as a claim names it. */
static void closing(ns_db *db) {
  bool reachable = db->link != NULL && !ns_link_dead(db->link);
  if (!ns_is_foreign(db) && db->holder != 0 && reachable && db->claim.in_doubt == 0 &&
      ns_claim_leases_settled(&db->claim.leases))
    leave_table(db);
  db->holder = 0;
  free(db->rescue.wronged);
  db->rescue.wronged = NULL;
  db->rescue.nwronged = db->rescue.capwronged = 0;
}

const ns_hooks ns_holder_hooks = {
    .connected = connected, .forked = forked, .closing = closing};

/* ------------------------------------------------------------- signs of life */

#define TEXT_MAX 255 /* bytes */

static int by_token(const void *a, const void *b) {
  const ns_sign *x = a;
  const ns_sign *y = b;
  return x->id != y->id ? (x->id > y->id) - (x->id < y->id) : (x->run > y->run) - (x->run < y->run);
}

/* Cut at a character. */
static ns_bytes cut_text(ns_bytes text) {
  if (text.n > TEXT_MAX) {
    text.n = TEXT_MAX;
    while (text.n > 0 && ((unsigned char)text.p[text.n] & 0xC0) == 0x80)
      text.n--;
  }
  return text;
}

/* [id,run,worker,progress,text,µs since its start] */
static void add_sign(ns_buf *list, const ns_sign *s, int64_t age) {
  ns_buf_addf(list, "%c[%lld,%lld,", list->n > 0 ? ',' : '[', (long long)s->id, (long long)s->run);
  if (s->worker_pid > 0)
    ns_buf_addf(list, "%lld,", (long long)s->worker_pid);
  else
    ns_buf_adds(list, "null,");
  if (s->progress >= 0.0)
    ns_buf_add_number(list, s->progress);
  else
    ns_buf_adds(list, "null");
  ns_buf_addc(list, ',');
  if (s->text.p != NULL)
    ns_buf_add_json(list, cut_text(s->text));
  else
    ns_buf_adds(list, "null");
  ns_buf_addf(list, ",%lld]", (long long)age);
}

/* Of a program, since its claim. */
static int64_t sign_age(ns_db *db, const ns_sign *s) {
  ns_lease *batch = NULL;
  if (s->began == 0)
    ns_claim_leases_find_any(&db->claim.leases, s->id, s->run, &batch);
  return ns_claim_run_age(db, batch != NULL ? batch->id : 0, s->began);
}

static ns_status show_signs(ns_db *db, const ns_sign *signs, size_t n, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  ns_value holder = ns_vint(db->holder);
  for (size_t i = 0; i < n; i++)
    add_sign(&list, &signs[i], sign_age(db, &signs[i]));
  return ns_db_list_run(db, NS_SQL_SETTLE_SHOWN, &holder, &list, err);
}

/* Finds the signs with a run that stands no more. */
static ns_status find_lost(ns_db *db, ns_sign *signs, size_t n, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  const ns_value *row;
  ns_status st;
  for (size_t i = 0; i < n; i++) {
    ns_db_list_add_pair(&list, signs[i].id, signs[i].run);
    signs[i].lost = true;
  }
  st = ns_db_list_run(db, NS_SQL_SETTLE_STANDS, NULL, &list, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_SETTLE_STANDS, &row, err)) == NS_OK &&
         row != NULL) {
    ns_sign key = {.id = row[0].i, .run = row[1].i};
    ns_sign *s = bsearch(&key, signs, n, sizeof key, by_token);
    if (s != NULL)
      s->lost = false;
  }
  ns_buf_free(&list);
  return st;
}

/* The claim of a job that stands is ours, or has been forgotten; its lease lasts
** longer by this. */
static ns_status renew_lease(ns_db *db, ns_sign *s, ns_err *err) {
  ns_lease *batch = NULL;
  ns_claimed *c = ns_claim_leases_find_any(&db->claim.leases, s->id, s->run, &batch);
  s->lost = s->lost || c == NULL;
  if (s->lost)
    return NS_OK;
  c->shown = true;
  return batch->span == 0 ? NS_OK
                          : ns_db_run(db, NS_SQL_SETTLE_RENEW,
                                      (ns_value[]){ns_vint(batch->span), ns_vint(batch->id)}, err);
}

ns_status ns_touch_many(ns_db *db, ns_sign *signs, size_t n, ns_err *err) {
  ns_status st = NS_OK;
  char text[NS_NUMBER_SIZE];
  for (size_t i = 0; i < n && st == NS_OK; i++)
    if (signs[i].progress > 1.0)
      st = ns_fail(err, NS_EINVALID, "progress is %s; it must be 0 to 1",
                   ns_number(signs[i].progress, text));
  if (st == NS_OK)
    st = ns_db_ready(db, err);
  if (st != NS_OK || n == 0)
    return st;
  qsort(signs, n, sizeof *signs, by_token);
  st = show_signs(db, signs, n, err);
  signs[0].lost = st == NS_OK && ns_db_affected(db, NS_SQL_SETTLE_SHOWN) == 0;
  if (st == NS_OK && n > 1) /* how many rows it wrote does not tell which */
    st = find_lost(db, signs, n, err);
  for (size_t i = 0; i < n && st == NS_OK; i++)
    st = renew_lease(db, &signs[i], err);
  return st;
}

ns_status ns_touch(ns_db *db, int64_t id, int64_t run, int64_t worker_pid, double progress,
                   ns_bytes text, ns_err *err) {
  ns_sign s = {.id = id, .run = run, .worker_pid = worker_pid, .progress = progress, .text = text};
  ns_status st = ns_touch_many(db, &s, 1, err);
  if (st == NS_OK && s.lost)
    st = ns_fail(err, NS_ESTALE, "the claim of job %lld, run %lld, is lost", (long long)id,
                 (long long)run);
  return st;
}

/* -------------------------------------------------------- verdicts that wait */

#define VERDICTS_MARK "(verdicts)"

/* {"holder":7,"n":2,"verdicts":[[id,run,µs],…]}: how long each has waited. */
static void add_json(ns_buf *text, int64_t holder, const ns_owed *list, size_t n, size_t total) {
  int64_t now = ns_mono_us();
  ns_buf_addf(text, "{\"holder\":%lld,\"n\":%zu,\"verdicts\":[", (long long)holder, total);
  for (size_t i = 0; i < n && i < NS_OWED_SHOWN; i++)
    ns_buf_addf(text, "%s[%lld,%lld,%lld]", i > 0 ? "," : "", (long long)list[i].id,
                (long long)list[i].run, (long long)(now - list[i].since));
  ns_buf_adds(text, "]}");
}

ns_status ns_tell_owed(ns_db *db, int64_t holder, const ns_owed *list, size_t n, size_t total,
                       ns_err *err) {
  ns_buf json = NS_BUF_INIT;
  ns_buf sql = NS_BUF_INIT;
  ns_status st;
  add_json(&json, holder, list, n, total);
  ns_buf_fill(&sql, ns_sql_texts[NS_SQL_HOLDER_OWES], VERDICTS_MARK, ns_buf_bytes(&json));
  ns_buf_addc(&sql, '\0');
  st = json.oom || sql.oom ? ns_no_memory(err) : ns_db_text(db, sql.p, err);
  ns_buf_free(&json);
  ns_buf_free(&sql);
  return st;
}
