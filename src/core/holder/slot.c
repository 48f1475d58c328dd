/*
** Slots: locks and semaphores across hosts.
**
** Invariant: a slot is held by the row with its token and an owner that stands. The owner is a
** running job, by (id, run), or a living holder. Neither comes back once it is gone. So a row
** that was seen to be abandoned may be taken over while its token is still the same. A crash
** gives its slots back by itself. A holder without a connection is not dead yet: the rescue
** decides (holder/rescue.c). A waiter for its slot asks the rescue to look. Each slot that we
** take is in memory before its row is written and until its row is deleted. So a lost answer
** leaves a slot that is given back later, never one that no holder knows of.
**
** No statement here holds one row while it waits for another.
**
** Fairness: one of the holders that wait owns a named lock, is the next in line and looks
** often. A newcomer goes behind it. So a holder that releases a slot and wants it again at once
** does not shut all other waiters out. It is politeness only: a holder that has waited long
** enough takes a free slot, because the next in line may be a stopped process.
*/
#include "holder/holder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base.h"
#include "db/db.h"
#include "handle.h"

#define RACES 3                /* another was faster: so many looks before BUSY */
#define POLITE (2 * NS_SECOND) /* so long the next in line goes first */
#define NAP INT64_C(5000)      /* between the looks of the next in line */
#define LOOK_EVERY NS_SECOND   /* between looks at other holders, by the next in line */
#define LONG_NAP INT64_C(250000) /* between the looks of other waiters, at most */
#define PRUNE 500 /* rows of one prune */

/* --------------------------------------------------------------- memory */

static void forget_held(ns_slots *s, ns_held *h) {
  free((char *)(uintptr_t)h->name.p);
  *h = s->items[--s->n];
}

static void forget_all(ns_slots *s) {
  while (s->n > 0)
    forget_held(s, s->items);
  free(s->items);
  s->items = NULL;
  s->cap = 0;
}

/* The slots of this process; slots of a parent are not ours. */
static ns_slots *own_slots(ns_db *db) {
  ns_slots *s = &db->slots;
  if (s->process != getpid()) {
    forget_all(s);
    s->job = s->run = 0;
    s->next = s->suspect = false;
    s->process = getpid();
  }
  return s;
}

static ns_held *find_held(ns_slots *s, int64_t token) {
  for (size_t i = 0; i < s->n; i++)
    if (s->items[i].token == token)
      return &s->items[i];
  return NULL;
}

/* Is the owner of '*h' still this job, or this holder? */
static bool is_ours(const ns_db *db, const ns_held *h) {
  if (h->job != 0)
    return h->job == db->slots.job && h->run == db->slots.run;
  return h->holder == db->holder;
}

/* Adds a copy of '*h'. */
static ns_status remember_held(ns_slots *s, const ns_held *h, ns_err *err) {
  char *name = malloc(h->name.n);
  if (name == NULL || !ns_grow(&s->items, &s->cap, s->n + 1, sizeof *h)) {
    free(name);
    return ns_no_memory(err);
  }
  memcpy(name, h->name.p, h->name.n);
  s->items[s->n] = *h;
  s->items[s->n++].name = (ns_bytes){name, h->name.n};
  return NS_OK;
}

bool ns_slot_holds(const ns_db *db, int64_t token) {
  const ns_slots *s = &db->slots;
  if (s->process != getpid())
    return false;
  for (size_t i = 0; i < s->n; i++)
    if (s->items[i].token == token)
      return !s->items[i].dropped && is_ours(db, &s->items[i]);
  return false;
}

void ns_slot_owner(ns_db *db, int64_t job, int64_t run) {
  ns_slots *s = own_slots(db);
  s->job = job;
  s->run = run;
  for (size_t i = s->n; i-- > 0;) /* free by themselves: their run is over */
    if (s->items[i].job != 0 && !is_ours(db, &s->items[i]))
      forget_held(s, &s->items[i]);
}

/* -------------------------------------------------------------- giving back */

static ns_status lost(ns_err *err) {
  return ns_fail(err, NS_ESTALE,
                 "this slot is not held any more: its owner was taken for dead, "
                 "or its job has ended");
}

/* Deletes the row of '*h'. STALE when it is not ours any more. */
static ns_status delete_row(ns_db *db, const ns_held *h, ns_err *err) {
  int64_t links = db->count.reconnects;
  ns_status st =
      ns_db_run(db, NS_SQL_SLOT_RELEASE,
                (ns_value[]){ns_vtext(h->name), ns_vint(h->slot), ns_vint(h->token)}, err);
  if (st != NS_OK || ns_db_affected(db, NS_SQL_SLOT_RELEASE) > 0 ||
      (links != db->count.reconnects && is_ours(db, h))) /* done before the cut */
    return st;
  return lost(err);
}

static bool is_done(ns_status st) {
  return st == NS_OK || st == NS_ESTALE;
}

/* Deletes the row of '*h' and forgets it; after a failure the item stays, dropped. The item is
** out of the list meanwhile: a reconnect flushes the list. */
static ns_status give_back_held(ns_db *db, ns_held *h, ns_err *err) {
  ns_slots *s = &db->slots;
  ns_held held = *h;
  ns_status st;
  *h = s->items[--s->n];
  held.dropped = true;
  st = delete_row(db, &held, err);
  if (is_done(st) || !ns_grow(&s->items, &s->cap, s->n + 1, sizeof held))
    free((char *)(uintptr_t)held.name.p);
  else
    s->items[s->n++] = held;
  return st;
}

static bool can_write(const ns_db *db) {
  return db->link != NULL && !ns_link_dead(db->link) && !db->user_tx &&
         !db->in_tx;
}

/* Gives back slots that could not be given back before: the server was away, or a transaction
** was open. Best effort; the rest stays. */
static void give_back_dropped(ns_db *db) {
  ns_slots *s = own_slots(db);
  ns_err none;
  s->next = s->next && !db->connecting; /* the named lock went with the link */
  for (size_t i = s->n; i-- > 0 && can_write(db);)
    if (i < s->n && s->items[i].dropped)
      give_back_held(db, &s->items[i], &none);
}

/* Gives everything back, best effort, and frees. */
static void give_back_all(ns_db *db) {
  ns_slots *s = own_slots(db);
  for (size_t i = 0; i < s->n; i++)
    s->items[i].dropped = true;
  give_back_dropped(db);
  forget_all(s);
}

ns_status ns_slot_release(ns_db *db, int64_t token, ns_err *err) {
  bool later = ns_in_transaction(db); /* no other session comes in before the commit */
  ns_status st = later ? NS_OK : ns_db_ready(db, err);
  ns_held *h = find_held(own_slots(db), token);
  if (h == NULL || h->dropped || !is_ours(db, h)) {
    if (h != NULL && !h->dropped)
      forget_held(&db->slots, h);
    return lost(err);
  }
  h->dropped = true;
  return later || st != NS_OK ? st : give_back_held(db, h, err);
}

/* ------------------------------------------------------------------- waiting */

/* Tries to be next in line; a session that is may ask again and again. */
static ns_status step_forward(ns_db *db, ns_bytes name, ns_err *err) {
  const ns_value *row = NULL;
  ns_value param = ns_vtext(name);
  ns_status st = NS_OK;
  if (!db->slots.next && (st = ns_db_run(db, NS_SQL_SLOT_NEXT, &param, err)) == NS_OK)
    st = ns_db_row(db, NS_SQL_SLOT_NEXT, &row, err);
  if (row != NULL)
    db->slots.next = row[0].type == NS_INT && row[0].i == 1;
  return st;
}

void ns_slot_give_up(ns_db *db, ns_bytes name) {
  ns_value param = ns_vtext(name);
  ns_err none;
  if (own_slots(db)->next && can_write(db))
    ns_db_run(db, NS_SQL_SLOT_NEXT_DONE, &param, &none);
  db->slots.next = false;
}

/* The pause before the next look: it grows by half with each, and is short for the next in line. */
static int64_t pause_before_look(const ns_db *db, int64_t waited) {
  int64_t us = NAP + (waited > 0 ? waited / 2 : 0);
  if (db->slots.next)
    us = NAP;
  return ns_jitter(us < LONG_NAP ? us : LONG_NAP, 0.5);
}

/* -------------------------------------------------------------------- taking */

/* The findings of a look at the slots of a name. */
typedef struct view {
  bool gone;      /* our own owner is */
  bool queued;    /* another is next in line */
  bool suspect;   /* the connection of a holder of one is gone */
  int64_t slot;   /* a free one, by chance; 0: none */
  int64_t token;  /* of the abandoned row that is in it; 0: there is no row */
  int64_t mine;   /* how many we hold ourselves */
  int64_t job, pid; /* the owner of one of them: a job, or else a process */
  char host[64];
} view;

/* The i-th candidate replaces the earlier ones with a chance of 1 in i, so each is as likely as
** the next. */
static bool is_drawn(int64_t i) {
  return ns_random() % (uint64_t)i == 0;
}

/* Picks one of the 'n' slots without a mark in 'taken'. */
static void pick_empty(view *v, const char *taken, int64_t n) {
  int64_t found = 0;
  for (int64_t i = 1; i <= n; i++)
    if (!taken[i] && is_drawn(++found))
      v->slot = i;
}

/* A row about a slot that is taken. */
static void see_owner(ns_db *db, view *v, const ns_value *row) {
  const ns_held *h = find_held(&db->slots, row[1].i);
  v->mine += h != NULL && !h->dropped && is_ours(db, h);
  v->job = ns_int_or(&row[5], 0);
  v->pid = ns_int_or(&row[6], 0);
  v->host[0] = '\0';
  if (row[7].type == NS_TEXT)
    snprintf(v->host, sizeof v->host, "%.*s", (int)row[7].s.n, row[7].s.p);
}

static ns_status read_view(ns_db *db, view *v, char *taken, ns_err *err) {
  const ns_value *row;
  int64_t found = 0;
  ns_status st;
  while ((st = ns_db_row(db, NS_SQL_SLOT_LOOK, &row, err)) == NS_OK && row != NULL) {
    bool gone = row[2].i != 0;
    taken[row[0].i] = true;
    v->suspect = v->suspect || row[4].i != 0;
    if (row[0].i == 0) {
      v->gone = gone;
      v->queued = row[3].i != 0;
    } else if (gone && is_drawn(++found)) {
      v->slot = row[0].i;
      v->token = row[1].i;
    } else if (!gone) {
      see_owner(db, v, row);
    }
  }
  return st;
}

/* Abandoned rows are taken first, so that they do not pile up. */
static ns_status look_for_free(ns_db *db, const ns_held *want, int64_t n, view *v, ns_err *err) {
  char *taken = calloc((size_t)n + 1, 1);
  ns_status st;
  *v = (view){.slot = 0};
  if (taken == NULL)
    return ns_no_memory(err);
  st = ns_db_run(db, NS_SQL_SLOT_LOOK,
                 (ns_value[]){ns_vint(want->job), ns_vint(want->run), ns_vint(want->holder),
                              ns_vtext(want->name), ns_vtext(want->name), ns_vint(n)},
                 err);
  if (st == NS_OK)
    st = read_view(db, v, taken, err);
  if (st == NS_OK && v->slot == 0)
    pick_empty(v, taken, n);
  free(taken);
  return st;
}

/* Writes the row. DUPLICATE or BUSY: another was faster. */
static ns_status write_row(ns_db *db, const ns_held *h, int64_t old_token,
                           ns_err *err) {
  bool by_job = h->job != 0;
  ns_sql sql = old_token != 0 ? NS_SQL_SLOT_TAKE_OVER : NS_SQL_SLOT_TAKE;
  ns_status st = ns_db_run(db, sql,
                           (ns_value[]){ns_vint(h->token), by_job ? ns_vint(h->job) : ns_vnull,
                                        by_job ? ns_vint(h->run) : ns_vnull,
                                        by_job ? ns_vnull : ns_vint(h->holder), ns_vtext(h->name),
                                        ns_vint(h->slot), ns_vint(old_token)},
                           err);
  if (st == NS_OK && ns_db_affected(db, sql) == 0)
    st = ns_fail(err, NS_EDUPLICATE, "slot %lld was taken by somebody else",
                 (long long)h->slot);
  return st;
}

/* The server has said so: ours was not written. */
static bool is_raced(ns_status st, const ns_err *err) {
  return st == NS_EDUPLICATE || (st == NS_EBUSY && ns_link_retryable(err));
}

/* Takes slot want->slot. When it fails, but not because another was faster, our row may be
** there: it is deleted before the next look. */
static ns_status take_slot(ns_db *db, const ns_held *want, int64_t old_token, ns_err *err) {
  ns_slots *s = &db->slots;
  int64_t links = db->count.reconnects;
  ns_held *mine;
  ns_status st = remember_held(s, want, err);
  if (st != NS_OK)
    return st;
  ns_assert(find_held(s, want->token) != NULL);
  st = write_row(db, want, old_token, err);
  if ((mine = find_held(s, want->token)) == NULL || (st == NS_OK && is_ours(db, mine)))
    return st;
  if (links == db->count.reconnects && is_raced(st, err))
    forget_held(s, mine);
  else
    mine->dropped = true;
  return st == NS_OK ? ns_fail(err, NS_EDUPLICATE, "our holder has changed") : st;
}

/* Sets the owner that the slot is going to have. */
static ns_status set_owner(ns_db *db, ns_held *want, ns_err *err) {
  ns_status st = NS_OK;
  want->job = db->slots.job;
  want->run = db->slots.run;
  if (want->job == 0)
    st = ns_register(db, db->is_host, err);
  want->holder = want->job == 0 ? db->holder : 0;
  return st;
}

/* Our own owner is gone. A holder starts anew, '*raced' with a new id. */
static ns_status owner_gone(ns_db *db, const ns_held *want, bool *raced,
                            ns_err *err) {
  ns_status st;
  if (want->job != 0)
    return ns_fail(err, NS_ESTALE,
                   "job %lld, run %lld, does not stand any more: it was "
                   "cancelled, or its host was taken for dead",
                   (long long)want->job, (long long)want->run);
  st = ns_beat(db, err);
  *raced = st == NS_OK;
  return st;
}

/* All are taken. Waiters look after the dead, too. They look at once when a holder that may
** have our slot is suspect and has not been looked at yet. The next in line does so every
** second, because a job does not tell its holder. */
static void look_after(ns_db *db, bool suspect) {
  ns_slots *s = &db->slots;
  int64_t now = ns_mono_us();
  if ((suspect && !s->suspect) || (s->next && now >= s->look_at)) {
    db->rescue.look_at = 0;
    s->look_at = now + LOOK_EVERY;
  }
  s->suspect = suspect;
  ns_holder_look_around(db);
}

/* None is free. A holder that would wait for itself alone is told so. */
static ns_status refuse_taken(const ns_held *want, const view *v, int64_t n, bool waits,
                              ns_err *err) {
  char what[NS_MAX_SLOT_NAME * 4 + 40];
  bool ours = waits && v->mine == n;
  if (n == 1)
    snprintf(what, sizeof what, "'%.*s' is", (int)want->name.n, want->name.p);
  else
    snprintf(what, sizeof what, "all %lld slots of '%.*s' are", (long long)n,
             (int)want->name.n, want->name.p);
  if (ours)
    return ns_fail(err, NS_ESTATE,
                   "%s held by this %s already, which would wait for itself",
                   what, want->job != 0 ? "job" : "handle");
  if (n == 1 && v->job != 0)
    return ns_fail(err, NS_EBUSY, "%s held by job %lld", what, (long long)v->job);
  if (n == 1 && v->pid != 0)
    return ns_fail(err, NS_EBUSY, "%s held by process %lld on %s", what,
                   (long long)v->pid, v->host);
  return ns_fail(err, NS_EBUSY, "%s taken", what);
}

/* One look and, when there is a free slot, one write. '*raced': another was
** faster, and another look may find another slot. */
static ns_status try_to_take(ns_db *db, ns_held *want, int64_t n, int64_t waited, bool *raced,
                             ns_err *err) {
  view v;
  ns_status st;
  *raced = false;
  give_back_dropped(db);
  if ((st = ns_db_ready(db, err)) == NS_OK)
    st = set_owner(db, want, err);
  if (st == NS_OK && waited > 0)
    st = step_forward(db, want->name, err);
  if (st != NS_OK || (st = look_for_free(db, want, n, &v, err)) != NS_OK)
    return st;
  if (v.gone)
    return owner_gone(db, want, raced, err);
  if (v.slot == 0 && waited > 0)
    look_after(db, v.suspect);
  if (v.slot != 0 && v.queued && waited >= 0 && waited < POLITE)
    return ns_fail(err, NS_EBUSY, "others have waited longer for '%.*s'",
                   (int)want->name.n, want->name.p);
  if (v.slot == 0)
    return refuse_taken(want, &v, n, waited >= 0, err);
  want->slot = v.slot;
  want->token = (int64_t)(ns_random() >> 2) + 1;
  st = take_slot(db, want, v.token, err);
  *raced = st != NS_OK && is_raced(st, err);
  return st;
}

static ns_status check_name(ns_bytes name, int64_t n, ns_err *err) {
  size_t characters = ns_utf8_count(name);
  ns_status st = ns_db_name_check(name, "slot's name", 4 * NS_MAX_SLOT_NAME, err);
  if (st == NS_OK && characters > NS_MAX_SLOT_NAME)
    st = ns_fail(err, NS_EINVALID,
                 "the slot's name has %zu characters; the limit is %d",
                 characters, NS_MAX_SLOT_NAME);
  if (st == NS_OK && (n < 1 || n > NS_MAX_SLOTS))
    st = ns_fail(err, NS_EINVALID, "%lld slots; there may be 1 to %d",
                 (long long)n, NS_MAX_SLOTS);
  return st;
}

ns_status ns_slot_acquire(ns_db *db, ns_bytes name, int64_t n, int64_t waited,
                          int64_t *token, int64_t *again_in, ns_err *err) {
  ns_held want = {.name = name};
  bool raced = true;
  ns_status st = check_name(name, n, err);
  *token = *again_in = 0;
  if (st == NS_OK && ns_in_transaction(db))
    st = ns_fail(err, NS_ESTATE,
                 "a slot cannot be taken inside a transaction, which nobody "
                 "sees yet; take it first, then begin");
  if (st != NS_OK)
    return st;
  for (int tries = 0; raced && tries < RACES; tries++)
    st = try_to_take(db, &want, n, waited, &raced, err);
  *again_in = pause_before_look(db, waited);
  if (raced)
    return ns_fail(err, NS_EBUSY, "others were faster at the slots of '%.*s'",
                   (int)name.n, name.p);
  if (st == NS_OK) {
    *token = want.token;
    ns_slot_give_up(db, name);
  }
  return st;
}

/* ------------------------------------------------------------------- pruning */

ns_status ns_holder_slots_prune(ns_db *db, ns_err *err) {
  ns_slots gone = {0}; /* their rows; a list of its own */
  ns_value limit = ns_vint(PRUNE);
  const ns_value *row;
  ns_status st = ns_db_run(db, NS_SQL_SLOT_GONE, &limit, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_SLOT_GONE, &row, err)) == NS_OK && row != NULL)
    st = remember_held(&gone, &(ns_held){.name = row[0].s, .slot = row[1].i, .token = row[2].i},
                       err);
  for (size_t i = 0; st == NS_OK && i < gone.n; i++) {
    st = delete_row(db, &gone.items[i], err);
    if (st == NS_ESTALE) /* taken over meanwhile */
      st = NS_OK;
  }
  forget_all(&gone);
  return st;
}

/* ------------------------------------------------------------------- hooks */

static ns_status connected(ns_db *db, ns_err *err) {
  (void)err;
  give_back_dropped(db);
  return NS_OK;
}

static void committed(ns_db *db, bool written) {
  (void)written;
  give_back_dropped(db);
}

/* Slots of a job end with its run. */
static bool holds_for_itself(ns_db *db) {
  const ns_slots *s = own_slots(db);
  for (size_t i = 0; i < s->n; i++)
    if (s->items[i].job == 0)
      return true;
  return false;
}

/* Goes on as long as a connect still has time before the close is over. */
static bool has_time(void *arg, const ns_err *why) {
  const ns_db *db = arg;
  (void)why;
  return db->cfg.end_by - ns_mono_us() > NS_SECOND;
}

/* While this process lives, no other holder takes the slots of a handle without a connection for
** half a minute. Of a list another server may soon be there, to which they are given back. */
static void reach_next_server(ns_db *db) {
  ns_err none;
  const char *hosts = ns_db_config_value(db).host;
  if (can_write(db) || db->user_tx || !holds_for_itself(db) || hosts == NULL ||
      strchr(hosts, ',') == NULL)
    return;
  db->cfg.keep_trying = has_time;
  db->cfg.keep_trying_arg = db;
  ns_db_ready(db, &none);
  db->cfg.keep_trying = NULL;
}

static void closing(ns_db *db) {
  if (ns_is_foreign(db))
    return;
  reach_next_server(db);
  give_back_all(db);
}

const ns_hooks ns_holder_slot_hooks = {
    .connected = connected, .committed = committed, .closing = closing};
