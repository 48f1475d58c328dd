/*
** Waiting for work without polling, and ringing listeners.
**
** A listener sleeps in one statement, of several, on a connection of its own that owns no lock
** and no transaction. It enters itself in nightshift_listener, looks, and sleeps. A row that
** was committed before the look is seen. A transaction that commits later finds the entry and
** ends the sleep with KILL QUERY. So no wake-up is lost. Only a ring before its commit, as from
** a trigger, can meet us between two statements and end neither. So the sleep looks again in
** its first two seconds; so does a listener that was woken for nothing. Error 1317 and the
** errors of listen_wait mean "wake". The connection runs nothing but these statements, so a
** ring can never hit anything else. A listener that wakes has its answer before it deletes its
** entry. A listener that may not enter itself cannot be rung: it looks every second or so, each
** at moments of its own.
**
** While it sleeps it watches other holders. The sleep is a wait for the neighbour's named lock
** (our own without one). It looks now and then whether the locks of some other holders are
** free. The server lets go of a lock that the wait came to own before the wait ends. A dead
** holder is reported once; the rest is the work of holder/rescue.c. It is no SLEEP() where
** locks work: all sleepers of a server share a mutex. A KILL QUERY that finds it taken waits
** for two seconds, and all sleepers with it.
**
** Invariants: between two calls here the connection owns no lock and is in no transaction; it
** runs no other statements. No assert: only the server knows which locks a session owns, and
** asking it would be another statement.
*/
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base.h"
#include "claim/claim.h"
#include "db/db.h"
#include "handle.h"
#include "wake/wake.h"

#define LONGEST (10 * NS_SECOND)
#define UNRUNG NS_SECOND          /* average sleep of a listener that cannot be rung */
#define ASK_AGAIN (60 * NS_SECOND) /* whether it may be, by now */
#define SLICE (NS_SECOND / 4) /* how late another holder's death is seen */
#define LOOK (5 * NS_SECOND / 1000) /* from entering to the second look; then to */
#define LOOK_GROWS 4                /* the third so many times that, and so on, */
#define LOOK_MAX (2 * NS_SECOND)    /* while pauses are shorter than this */
#define ER_NO_PROCEDURE 1305
#define ER_QUERY_INTERRUPTED 1317
#define ER_WOKE 45000 /* and why: see listen_wait */
#define DEMOTED (2 * NS_SECOND) /* of a list of servers: the longest wait until it is asked again */
#define QUEUES_MARK "(queues)"
#define LOOK_MARK "{look}"
#define NEAR_MARK "/*near*/"
#define NEAR NS_SECOND /* so far below a floor; and the wait with the look that begins there */

/* The view of a wait. */
typedef struct ns_view {
  bool part;   /* it may miss something: the wait is short */
  ns_buf text; /* condition in SQL, ends in NUL */
  ns_buf next; /* of later waits, when claims are of some names, too; else empty */
} ns_view;

struct ns_listener {
  ns_config cfg;   /* strings borrowed from the ns_db; interrupt_fd is ours, or 0 */
  ns_link *link;   /* NULL: not connected */
  ns_stmt *in, *out; /* enter, and leave, the list of listeners to ring */
  ns_stmt *list;   /* the holders */
  ns_stmt *stmt;   /* of 'text' */
  ns_buf text;     /* the statement as prepared */
  ns_buf queues;   /* the list in it */
  _Atomic(ns_view *) view; /* of the next wait's looks, owned; NULL: of all there is */
  bool is_host, no_locks; /* as the ns_db said */
  bool listed;     /* entered, and not struck out yet */
  int64_t ask_at;  /* monotonic: when to try to enter again; 0: no refusal */
  int64_t neighbour; /* the holder with the lock that the wait asks for; 0: none's */
  ns_buf watched;  /* watched holders: "[id,…]" */
  ns_buf paused;   /* queues: the same */
  ns_buf slices;   /* of the wait: "[[seconds, whether a look follows],…]" */
  int64_t *told;   /* holders with a free lock that were told of */
  size_t ntold, captold;
  pid_t owner;
  _Atomic int64_t thread; /* the server's id of the session; other threads read it */
  _Atomic unsigned place; /* of its server in a list */
};

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static ns_status prepare_named(ns_listener *l, ns_stmt **out, ns_sql sql,
                               ns_err *err) {
  const char *text = ns_sql_texts[sql];
  return ns_link_plan(l->link, out, NULL, text, strlen(text), err);
}

static void forget_statements(ns_listener *l) {
  l->stmt = l->in = l->out = l->list = NULL;
  l->listed = false;
}

static ns_status connect_listener(ns_listener *l, ns_err *err) {
  ns_status st = ns_link_open(&l->link, &l->cfg, err);
  forget_statements(l);
  ns_buf_reset(&l->text);
  if (st == NS_OK) {
    l->place = ns_link_place(l->link);
    l->thread = ns_link_thread(l->link);
  }
  if (st == NS_OK)
    st = prepare_named(l, &l->in, NS_SQL_LISTEN_IN, err);
  if (st == NS_OK)
    st = prepare_named(l, &l->out, NS_SQL_LISTEN_OUT, err);
  if (st == NS_OK)
    st = prepare_named(l, &l->list, NS_SQL_RESCUE_HOLDERS, err);
  return st;
}

static void disconnect(ns_listener *l) {
  l->thread = 0;
  ns_link_close(l->link, l->owner != getpid());
  l->link = NULL;
  forget_statements(l);
}

ns_status ns_listener_open(ns_listener **out, const ns_db *db, ns_err *err) {
  ns_listener *l = calloc(1, sizeof *l);
  ns_status st;
  *out = NULL;
  if (l == NULL)
    return ns_no_memory(err);
  ns_db_config(db, &l->cfg);
  l->cfg.waits = NULL; /* waiting is its purpose */
  if (l->cfg.read_timeout < 2 * LONGEST) /* only silence lasts longer */
    l->cfg.read_timeout = 2 * LONGEST;
  l->cfg.host_session = false;
  l->is_host = db->is_host;
  if (l->is_host && (l->cfg.interrupt_fd = ns_await_stop_open(err)) <= 0) {
    free(l);
    return err->status;
  }
  l->no_locks = db->no_locks;
  l->owner = getpid();
  if ((st = connect_listener(l, err)) != NS_OK) {
    ns_listener_close(l);
    return st;
  }
  *out = l;
  return NS_OK;
}

static void free_view(ns_view *v) {
  if (v != NULL) {
    ns_buf_free(&v->text);
    ns_buf_free(&v->next);
  }
  free(v);
}

void ns_listener_close(ns_listener *l) {
  if (l == NULL)
    return;
  disconnect(l);
  ns_await_stop_close(l->cfg.interrupt_fd);
  ns_buf_free(&l->text);
  ns_buf_free(&l->queues);
  ns_buf_free(&l->watched);
  ns_buf_free(&l->paused);
  ns_buf_free(&l->slices);
  free_view(atomic_load(&l->view));
  free(l->told);
  free(l);
}

void ns_listener_stop(ns_listener *l) {
  ns_await_stop(l->cfg.interrupt_fd);
}

int64_t ns_listener_thread(const ns_listener *l, const ns_db *db) {
  return db->link != NULL && ns_link_place(db->link) == l->place ? l->thread : 0;
}

/* Adds the condition of one queue. A sweep may have to read the rows below its floors in
** windows. Then the condition has its lanes instead, each from a while below its floor on. */
static bool add_near(ns_buf *text, const ns_db *db, int64_t queue_id) {
  const ns_claim_queue *s = ns_claim_queue_known(&db->claim.lanes, queue_id);
  size_t first;
  size_t n = ns_claim_lanes_of(&db->claim.lanes, queue_id, &first);
  const char *or = text->n > 0 ? " OR " : "";
  if ((!db->is_host && !db->claim.lanes.some_names) || s == NULL || ns_claim_sweep_is_cheap(s) ||
      n == 0) {
    ns_buf_addf(text, "%squeue_id = %lld", or, (long long)queue_id);
    return false;
  }
  for (size_t i = first; i < first + n; i++, or = " OR ")
    ns_buf_addf(text, "%s(queue_id = %lld AND rank = %lld AND ready_at >= %lld)", or,
                (long long)queue_id, (long long)db->claim.lanes.items[i].rank,
                (long long)(db->claim.lanes.items[i].floor - NEAR));
  return true;
}

void ns_listen_near(ns_listener *l, const ns_db *db, const int64_t *queue_ids,
                    size_t n) {
  ns_view *v = calloc(1, sizeof *v);
  const char *kinds = ns_claim_filter_kinds(&db->claim.filter);
  if (v == NULL)
    return;
  for (size_t i = 0; i < n; i++)
    v->part = add_near(&v->text, db, queue_ids[i]) || v->part;
  if (!v->part)
    ns_buf_reset(&v->text);
  if (kinds != NULL) { /* a listener that looks at more jobs than it claims would not sleep */
    ns_buf_addf(&v->text, "%s)%s AND (TRUE", v->part ? "" : "TRUE", kinds);
    ns_buf_add(&v->next, v->text.p, v->text.n);
    ns_buf_addc(&v->next, '\0');
    v->part = false;
  }
  if (ns_claim_leases_alone(&db->claim.leases))
    ns_buf_adds(&v->text, v->text.n > 0 ? ") AND (NOT alone" : "NOT alone");
  if (v->text.n == 0 || v->text.oom || v->next.oom) {
    free_view(v);
    v = NULL;
  } else
    ns_buf_addc(&v->text, '\0');
  free_view(atomic_exchange(&l->view, v));
}

/* Replaces a mark in '*text', which ends in NUL. */
static void fill_mark(ns_buf *text, const char *mark, ns_bytes by) {
  ns_buf filled = NS_BUF_INIT;
  if (!text->oom)
    ns_buf_fill(&filled, text->p, mark, by);
  ns_buf_addc(&filled, '\0');
  filled.oom = filled.oom || text->oom;
  ns_buf_free(text);
  *text = filled;
}

/* The statement for these queues: ids are numbers that we print ourselves. */
static void write_text(ns_listener *l, const int64_t *ids, size_t n,
                       const char *near, ns_buf *text) {
  ns_sql look = n > 0 ? NS_SQL_LISTEN_LOOK : NS_SQL_LISTEN_LOOK_REST;
  ns_buf_reset(&l->queues);
  ns_buf_addc(&l->queues, '(');
  for (size_t i = 0; i < n; i++)
    ns_buf_addf(&l->queues, "%s%lld", i > 0 ? "," : "", (long long)ids[i]);
  ns_buf_addc(&l->queues, ')');
  ns_buf_adds(text, ns_sql_texts[NS_SQL_LISTEN_WAIT]);
  ns_buf_addc(text, '\0');
  fill_mark(text, LOOK_MARK, ns_str(ns_sql_texts[look]));
  fill_mark(text, QUEUES_MARK, ns_buf_bytes(&l->queues));
  fill_mark(text, NEAR_MARK, ns_str(near));
  text->oom = text->oom || l->queues.oom;
}

/* Prepares the statement unless the last call had the same. */
static ns_status prepare_wait(ns_listener *l, const int64_t *ids, size_t n,
                              const char *near, ns_err *err) {
  ns_buf text = NS_BUF_INIT;
  ns_status st = NS_OK;
  write_text(l, ids, n, near, &text);
  if (text.oom)
    st = ns_no_memory(err);
  else if (l->stmt == NULL || text.n != l->text.n ||
           memcmp(text.p, l->text.p, text.n) != 0) {
    ns_stmt_free(l->link, l->stmt);
    ns_buf_free(&l->text);
    l->text = text;
    text = NS_BUF_INIT;
    st = ns_link_prepare(l->link, &l->stmt, NULL, l->text.p, l->text.n - 1, err);
  }
  ns_buf_free(&text);
  return st;
}

/* -------------------------------------------------------------- watching */

static bool was_told(const ns_listener *l, int64_t id) {
  for (size_t i = 0; i < l->ntold; i++)
    if (l->told[i] == id)
      return true;
  return false;
}

/* Remembers holders with a free lock; '*news': one of them is new. */
static bool remember_free_holders(ns_listener *l, const ns_peers *peers, int64_t me, bool *news) {
  size_t n = 0;
  int64_t *free_ones = NULL;
  size_t cap = 0;
  for (size_t i = 0; i < peers->n; i++) {
    const ns_peer *p = &peers->items[i];
    if (!p->free || p->id == me)
      continue;
    if (!ns_grow(&free_ones, &cap, n + 1, sizeof *free_ones))
      return false;
    free_ones[n++] = p->id;
    *news = *news || !was_told(l, p->id);
  }
  free(l->told);
  l->told = free_ones;
  l->ntold = n;
  l->captold = cap;
  return true;
}

/* Reads the holders, and decides which to watch. */
static ns_status look_at_holders(ns_listener *l, int64_t me, unsigned *woke, ns_err *err) {
  ns_value locks = ns_vint(!l->no_locks);
  ns_peers peers = {0};
  const ns_value *row;
  bool news = false;
  bool ok = true;
  ns_status st = NS_OK;
  l->neighbour = 0;
  ns_buf_reset(&l->watched);
  ns_buf_adds(&l->watched, "[]");
  if (me == 0 || l->no_locks)
    return l->watched.oom ? ns_no_memory(err) : NS_OK;
  st = ns_stmt_run(l->link, l->list, &locks, err);
  while (st == NS_OK && ok &&
         (st = ns_stmt_fetch(l->link, l->list, &row, err)) == NS_OK && row != NULL)
    ok = ns_wake_peers_add(&peers, row);
  ok = ok && remember_free_holders(l, &peers, me, &news);
  if (st == NS_OK && ok)
    l->neighbour = ns_wake_peers_watched(&peers, me, l->is_host, &l->watched);
  if (st == NS_OK && ok && l->neighbour == 0)
    l->neighbour = me;
  ns_wake_peers_free(&peers);
  if (news)
    *woke |= NS_WOKE_GONE;
  return st == NS_OK && (!ok || l->watched.oom)
             ? ns_no_memory(err)
             : st;
}

/* Cuts the wait into slices, each up to the next look: at ready rows, at growing intervals, or
** at the watched holders. */
static void cut_wait(ns_listener *l, int64_t wait) {
  int64_t watch = l->watched.n > 2 ? SLICE : wait;
  int64_t pause = LOOK;
  int64_t look = pause;
  int64_t slice;
  char seconds[NS_NUMBER_SIZE];
  ns_buf_reset(&l->slices);
  for (int64_t at = 0; at < wait; at += slice) {
    slice = least(watch, wait - at);
    slice = at < look ? least(slice, look - at) : slice;
    ns_buf_addf(&l->slices, "%c[%s,%d]", l->slices.n > 0 ? ',' : '[',
                ns_number_seconds(slice, seconds), at + slice == look);
    if (at + slice == look && (pause *= LOOK_GROWS) < LOOK_MAX)
      look += pause;
  }
  ns_buf_addc(&l->slices, ']');
}

/* --------------------------------------------------------------- waiting */

/* A ring that comes while we run a statement is a wake, not an error; so is the event that a
** wait ended for. */
static ns_status judge_wake(ns_status st, unsigned *woke, ns_err *err) {
  static const unsigned why[] = {0, 0, NS_WOKE_WORK, NS_WOKE_GONE, NS_WOKE_NOTICE};
  if (st != NS_OK && err->sqlerr == ER_QUERY_INTERRUPTED)
    *woke |= NS_WOKE_WORK | NS_WOKE_NOTICE;
  else if (st == NS_ESQL && err->sqlerr > ER_WOKE && err->sqlerr <= ER_WOKE + 4)
    *woke |= why[err->sqlerr - ER_WOKE];
  else
    return st;
  ns_err_clear(err);
  return NS_OK;
}

static void list_paused(ns_listener *l, const ns_awaited *what) {
  ns_buf_reset(&l->paused);
  ns_buf_addc(&l->paused, '[');
  for (size_t i = 0; i < what->npaused; i++)
    ns_buf_addf(&l->paused, "%s%lld", i > 0 ? "," : "", (long long)what->paused[i]);
  ns_buf_addc(&l->paused, ']');
}

/* Looks, and sleeps in the server. A wake is a ring, or work that was there. */
static ns_status sleep_there(ns_listener *l, const ns_awaited *what, unsigned *woke,
                             ns_err *err) {
  ns_value params[] = {ns_vtext(ns_buf_bytes(&l->slices)), ns_vint(l->neighbour),
                       ns_vtext(ns_buf_bytes(&l->watched)),
                       ns_vint(what->newest >= 0 ? what->newest : INT32_MAX),
                       ns_vtext(ns_buf_bytes(&l->paused)), ns_vint(what->names),
                       ns_vint(what->holder)};
  ns_status st = judge_wake(ns_stmt_run(l->link, l->stmt, params, err), woke, err);
  if (l->neighbour == what->holder && (*woke & NS_WOKE_GONE))
    *woke |= NS_WOKE_WORK; /* it was our own work connection's: it looks, and is back */
  return st;
}

/* No EXECUTE, or the procedure or its definer is gone. */
static bool is_refusal(ns_status st, const ns_err *err) {
  return st == NS_ESQL || st == NS_EDENIED || err->sqlerr == ER_NO_PROCEDURE;
}

/* Enters the listener under its kind: a ring wakes one of each kind. */
static ns_status insert_entry(ns_listener *l, int64_t holder, ns_err *err) {
  ns_buf kind = NS_BUF_INIT;
  ns_status st;
  ns_buf_add(&kind, l->queues.p, l->queues.n);
  ns_buf_add(&kind, l->paused.p, l->paused.n);
  st = kind.oom ? ns_no_memory(err)
                : ns_stmt_run(l->link, l->in,
                              (ns_value[]){ns_vtext(ns_buf_bytes(&kind)), ns_vint(holder)},
                              err);
  ns_buf_free(&kind);
  return st;
}

/* Asks for rings; 'l->listed' says whether they will come. */
static ns_status enter_list(ns_listener *l, int64_t holder, unsigned *woke, ns_err *err) {
  ns_status st;
  if (l->ask_at != 0 && ns_mono_us() < l->ask_at)
    return NS_OK;
  st = judge_wake(insert_entry(l, holder, err), woke, err);
  l->ask_at = 0;
  l->listed = st == NS_OK;
  if (st == NS_OK || !is_refusal(st, err))
    return st;
  l->ask_at = ns_mono_us() + ASK_AGAIN;
  ns_err_clear(err);
  return NS_OK;
}

/* The next ring may hit this very statement. */
static void leave_list(ns_listener *l) {
  ns_err err;
  for (int tries = 0; tries < 3; tries++)
    if (ns_stmt_run(l->link, l->out, NULL, &err) == NS_OK ||
        err.sqlerr != ER_QUERY_INTERRUPTED)
      return;
}

void ns_listen_leave(ns_listener *l) {
  if (l->link == NULL || l->owner != getpid())
    return;
  if (l->listed)
    leave_list(l);
  l->listed = false;
}

static ns_status sleep_listed(ns_listener *l, const ns_awaited *what, int64_t wait,
                              unsigned *woke, ns_err *err) {
  ns_status st;
  list_paused(l, what);
  st = enter_list(l, what->holder, woke, err);
  if (st == NS_OK && *woke == 0)
    st = judge_wake(look_at_holders(l, what->holder, woke, err), woke, err);
  if (!l->listed)
    wait = least(wait, ns_jitter(UNRUNG, 0.5));
  cut_wait(l, wait);
  if (st == NS_OK && (l->slices.oom || l->paused.oom))
    st = ns_no_memory(err);
  if (st == NS_OK && *woke == 0)
    st = sleep_there(l, what, woke, err);
  return st;
}

static ns_status get_ready(ns_listener *l, ns_err *err) {
  if (l->owner != getpid()) {
    disconnect(l);
    l->owner = getpid();
  }
  if (l->link != NULL && ns_link_servers_ask(l->link, NULL) == NS_OK && !ns_link_dead(l->link))
    return NS_OK;
  disconnect(l);
  return connect_listener(l, err);
}

/* Keeps the view, or the rest of it, for later waits, unless there is another. */
static void keep_view(ns_listener *l, ns_view *v) {
  ns_view *none = NULL;
  if (v != NULL && v->next.n > 0) {
    ns_buf_reset(&v->text);
    ns_buf_add(&v->text, v->next.p, v->next.n);
    if (!v->text.oom && atomic_compare_exchange_strong(&l->view, &none, v))
      return;
  }
  free_view(v);
}

ns_status ns_listen(ns_listener *l, const ns_awaited *what, int64_t max_wait,
                    unsigned *woke, ns_err *err) {
  ns_view *v = atomic_exchange(&l->view, NULL);
  bool all = v == NULL || v->text.oom;
  int64_t wait = least(max_wait, !all && v->part ? NEAR : LONGEST);
  ns_status st;
  *woke = 0;
  ns_err_clear(err);
  if ((st = get_ready(l, err)) == NS_OK)
    st = prepare_wait(l, what->queues, what->nqueues, all ? "TRUE" : v->text.p, err);
  keep_view(l, v);
  if (st == NS_OK && ns_link_place(l->link) > 0)
    wait = least(wait, DEMOTED);
  return st == NS_OK && wait > 0 ? sleep_listed(l, what, wait, woke, err) : st;
}

/* ------------------------------------------------------------------- hooks */

/* Closes the listener of an embedded handle that waits. */
static void close_waiter(ns_db *db) {
  ns_listener_close(db->waiter);
  db->waiter = NULL;
}

const ns_hooks ns_wake_listen_hooks = {.forked = close_waiter, .closing = close_waiter};
