/*
** Waiting for work without polling, and ringing those who wait.
**
** A listener sleeps in one statement, of several, on a connection of its own that owns no
** lock and no transaction. It enters itself in nightshift_listener, looks, and
** sleeps: a row that was committed before the look is seen, and whoever commits
** later finds the entry and ends the sleep with KILL QUERY. So no wake-up is
** lost. Only a ring before its commit, as from a trigger, can meet us between two
** statements and end neither: so the sleep looks again in its first two seconds,
** as whoever was woken for nothing does. Error 1317 and those of listen_wait mean
** "wake".
** The connection runs nothing but these statements, so a ring can never hit
** anything else. Who is awake is told so before it strikes itself out. Who may not
** enter itself cannot be rung: it looks every second or so, each at moments of its
** own.
**
** While it sleeps it watches other holders: the sleep is a wait for the
** neighbour's named lock (our own without one), and looks now and then whether those of
** some others are free. Whoever is found dead is told of once; what follows is
** ns_rescue's. It is no SLEEP() where locks serve: all of a server share a mutex, and a
** KILL QUERY that finds it taken waits for two seconds, and all sleepers with it.
*/
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ns_handle.h"
#include "ns_peers.h"
#include "ns_queue.h"
#include "ns_sweep.h"
#include "ns_time.h"

#define LONGEST (10 * NS_SECOND)
#define UNRUNG NS_SECOND          /* a sleep of one that cannot be rung, on average */
#define ASK_AGAIN (60 * NS_SECOND) /* whether it may be, by now */
#define SLICE (NS_SECOND / 4) /* how late another holder's death is seen */
#define LOOK (5 * NS_SECOND / 1000) /* from entering to the second look; then to */
#define LOOK_GROWS 4                /* the third so many times that, and so on, */
#define LOOK_MAX (2 * NS_SECOND)    /* while pauses are shorter than this */
#define ER_NO_PROCEDURE 1305
#define ER_QUERY_INTERRUPTED 1317
#define ER_WOKE 45000 /* and why: see listen_wait */
#define QUEUES_MARK "(queues)"
#define LOOK_MARK "{look}"
#define NEAR_MARK "/*near*/"
#define NEAR NS_SECOND /* so far below a floor; and the wait whose look begins there */

struct ns_listener {
  ns_config cfg;   /* strings borrowed from the ns_db */
  ns_link *link;   /* NULL: not connected */
  ns_stmt *in, *out; /* enter, and leave, the list of those to ring */
  ns_stmt *list, *unlock; /* the holders; giving a lock back */
  ns_stmt *stmt;   /* of 'text' */
  ns_buf text;     /* the statement as prepared */
  ns_buf queues;   /* the list in it */
  _Atomic(char *) near; /* where its first look may begin, owned; NULL: anywhere */
  bool is_host, no_locks; /* as the ns_db said */
  bool listed;     /* entered, and not struck out yet */
  int64_t ask_at;  /* monotonic: when to try to enter again; 0: no refusal */
  int64_t neighbour; /* whose lock the wait asks for; 0: nobody's */
  ns_buf watched;  /* other holders: "[id,…]" */
  ns_buf slices;   /* of the wait: "[[seconds, whether a look follows],…]" */
  int64_t *told;   /* holders with a free lock that were told of */
  size_t ntold, captold;
  pid_t owner;
  _Atomic int64_t thread; /* the server's id, read by other threads */
};

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static ns_status prepare_named(ns_listener *l, ns_stmt **out, ns_sql sql,
                               ns_err *err) {
  const char *text = ns_sql_texts[sql];
  return ns_link_prepare(l->link, out, text, strlen(text), err);
}

static void forget_statements(ns_listener *l) {
  l->stmt = l->in = l->out = l->list = l->unlock = NULL;
  l->listed = false;
}

static ns_status connect_listener(ns_listener *l, ns_err *err) {
  ns_status st = ns_link_open(&l->link, &l->cfg, err);
  forget_statements(l);
  ns_buf_reset(&l->text);
  if (st == NS_OK)
    l->thread = ns_link_thread(l->link);
  if (st == NS_OK)
    st = prepare_named(l, &l->in, NS_SQL_LISTEN_IN, err);
  if (st == NS_OK)
    st = prepare_named(l, &l->out, NS_SQL_LISTEN_OUT, err);
  if (st == NS_OK)
    st = prepare_named(l, &l->list, NS_SQL_RESCUE_HOLDERS, err);
  if (st == NS_OK)
    st = prepare_named(l, &l->unlock, NS_SQL_LISTEN_RELEASE, err);
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
  if (l->cfg.read_timeout < 2 * LONGEST) /* only silence lasts longer */
    l->cfg.read_timeout = 2 * LONGEST;
  l->cfg.host_session = false;
  l->is_host = db->is_host;
  l->no_locks = db->no_locks;
  l->owner = getpid();
  if ((st = connect_listener(l, err)) != NS_OK) {
    ns_listener_close(l);
    return st;
  }
  *out = l;
  return NS_OK;
}

void ns_listener_close(ns_listener *l) {
  if (l == NULL)
    return;
  disconnect(l);
  ns_buf_free(&l->text);
  ns_buf_free(&l->queues);
  ns_buf_free(&l->watched);
  ns_buf_free(&l->slices);
  free(atomic_load(&l->near));
  free(l->told);
  free(l);
}

int64_t ns_listener_thread(const ns_listener *l) {
  return l->thread;
}

/* One queue, or its lanes from a while below their floors on when there is so much
** below that a sweep takes it in panes. */
static bool add_near(ns_buf *text, const ns_db *db, int64_t queue_id) {
  const ns_sweep *s = ns_lanes_known(&db->lanes, queue_id);
  size_t first;
  size_t n = ns_lanes_of(&db->lanes, queue_id, &first);
  const char *or = text->n > 0 ? " OR " : "";
  if (s == NULL || ns_sweep_cheap(s) || n == 0) {
    ns_buf_addf(text, "%squeue_id = %lld", or, (long long)queue_id);
    return false;
  }
  for (size_t i = first; i < first + n; i++, or = " OR ")
    ns_buf_addf(text, "%s(queue_id = %lld AND rank = %lld AND ready_at >= %lld)", or,
                (long long)queue_id, (long long)db->lanes.items[i].rank,
                (long long)(db->lanes.items[i].floor - NEAR));
  return true;
}

void ns_listen_near(ns_listener *l, const ns_db *db, const int64_t *queue_ids,
                    size_t n) {
  ns_buf text = NS_BUF_INIT;
  bool any = false;
  for (size_t i = 0; i < n; i++)
    any = add_near(&text, db, queue_ids[i]) || any;
  ns_buf_addc(&text, '\0');
  if (!any || text.oom)
    ns_buf_free(&text);
  free(atomic_exchange(&l->near, text.p));
}

/* Replaces a mark in '*text', which ends in NUL. */
static void fill(ns_buf *text, const char *mark, ns_bytes by) {
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
  fill(text, LOOK_MARK, ns_str(ns_sql_texts[look]));
  fill(text, QUEUES_MARK, ns_buf_bytes(&l->queues));
  fill(text, NEAR_MARK, ns_str(near));
  text->oom = text->oom || l->queues.oom;
}

/* Prepares the statement unless it is the one of the last call. */
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
    st = ns_link_prepare(l->link, &l->stmt, l->text.p, l->text.n - 1, err);
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

/* Holders whose lock is free: '*news' says whether one of them is new. */
static bool tell(ns_listener *l, const ns_peers *peers, int64_t me, bool *news) {
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

/* Reads who is there, and decides whom to watch. */
static ns_status look_around(ns_listener *l, int64_t me, unsigned *woke,
                             ns_err *err) {
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
    ok = ns_peers_add(&peers, row);
  ok = ok && tell(l, &peers, me, &news);
  if (st == NS_OK && ok)
    l->neighbour = ns_peers_watched(&peers, me, l->is_host, &l->watched);
  if (st == NS_OK && ok && l->neighbour == 0)
    l->neighbour = me;
  ns_peers_free(&peers);
  if (news)
    *woke |= NS_WOKE_GONE;
  return st == NS_OK && (!ok || l->watched.oom)
             ? ns_no_memory(err)
             : st;
}

/* The wait in slices, each up to the next look: at what is ready, at times that
** grow apart, or at the holders watched. */
static void cut_wait(ns_listener *l, int64_t wait) {
  int64_t watch = l->watched.n > 2 ? SLICE : wait;
  int64_t pause = LOOK;
  int64_t look = pause;
  int64_t slice;
  ns_buf_reset(&l->slices);
  for (int64_t at = 0; at < wait; at += slice) {
    slice = least(watch, wait - at);
    slice = at < look ? least(slice, look - at) : slice;
    ns_buf_addf(&l->slices, "%c[%.6f,%d]", l->slices.n > 0 ? ',' : '[',
                (double)slice / (double)NS_SECOND, at + slice == look);
    if (at + slice == look && (pause *= LOOK_GROWS) < LOOK_MAX)
      look += pause;
  }
  ns_buf_addc(&l->slices, ']');
}

/* --------------------------------------------------------------- waiting */

/* A ring that comes while we run something is a wake, not an error; so is what a wait
** ended for. */
static ns_status woken(ns_status st, unsigned *woke, ns_err *err) {
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

/* Looks, and sleeps in the server. A wake is a ring, or what was there. */
static ns_status sleep_there(ns_listener *l, int64_t newest, int64_t holder,
                             unsigned *woke, ns_err *err) {
  ns_value params[] = {ns_vtext(ns_buf_bytes(&l->slices)), ns_vint(l->neighbour),
                       ns_vtext(ns_buf_bytes(&l->watched)),
                       ns_vint(newest > 0 ? newest : INT32_MAX), ns_vint(holder)};
  ns_status st = ns_stmt_run(l->link, l->stmt, params, err);
  bool rung = st != NS_OK && err->sqlerr == ER_QUERY_INTERRUPTED;
  st = woken(st, woke, err);
  if (st == NS_OK && !rung && !(*woke & NS_WOKE_GONE))
    l->neighbour = 0; /* its lock did not become ours */
  if (l->neighbour == holder && (*woke & NS_WOKE_GONE))
    *woke |= NS_WOKE_WORK; /* it was our own work connection's: it looks, and is back */
  return st;
}

/* No EXECUTE, or the procedure or its definer is gone. */
static bool is_refusal(ns_status st, const ns_err *err) {
  return st == NS_ESQL || st == NS_EDENIED || err->sqlerr == ER_NO_PROCEDURE;
}

/* Asks for rings; 'l->listed' says whether they will come. */
static ns_status enter(ns_listener *l, int64_t holder, unsigned *woke,
                       ns_err *err) {
  ns_value in[] = {ns_vtext(ns_buf_bytes(&l->queues)), ns_vint(holder)};
  ns_status st;
  if (l->ask_at != 0 && ns_mono_us() < l->ask_at)
    return NS_OK;
  st = woken(ns_stmt_run(l->link, l->in, in, err), woke, err);
  l->ask_at = 0;
  l->listed = st == NS_OK;
  if (st == NS_OK || !is_refusal(st, err))
    return st;
  l->ask_at = ns_mono_us() + ASK_AGAIN;
  ns_err_clear(err);
  return NS_OK;
}

/* The next ring may hit this very statement. */
static void insist(ns_listener *l, ns_stmt *s, const ns_value *params) {
  ns_err err;
  for (int tries = 0; tries < 3; tries++)
    if (ns_stmt_run(l->link, s, params, &err) == NS_OK ||
        err.sqlerr != ER_QUERY_INTERRUPTED)
      return;
}

void ns_listen_leave(ns_listener *l) {
  ns_value id = ns_vint(l->neighbour);
  if (l->link == NULL || l->owner != getpid())
    return;
  if (l->neighbour != 0) /* its lock may be ours now, whatever ended the wait */
    insist(l, l->unlock, &id);
  if (l->listed)
    insist(l, l->out, NULL);
  l->listed = false;
  l->neighbour = 0;
}

static ns_status sleep_listed(ns_listener *l, int64_t newest, int64_t holder,
                              int64_t wait, unsigned *woke, ns_err *err) {
  ns_status st = enter(l, holder, woke, err);
  l->neighbour = 0;
  if (st == NS_OK && *woke == 0)
    st = woken(look_around(l, holder, woke, err), woke, err);
  if (!l->listed)
    wait = least(wait, ns_jitter(UNRUNG, 0.5));
  cut_wait(l, wait);
  if (st == NS_OK && l->slices.oom)
    st = ns_no_memory(err);
  if (st == NS_OK && *woke == 0)
    st = sleep_there(l, newest, holder, woke, err);
  return st;
}

static ns_status get_ready(ns_listener *l, ns_err *err) {
  if (l->owner != getpid()) {
    disconnect(l);
    l->owner = getpid();
  }
  if (l->link != NULL && !ns_link_dead(l->link))
    return NS_OK;
  disconnect(l);
  return connect_listener(l, err);
}

ns_status ns_listen(ns_listener *l, const int64_t *queue_ids, size_t n,
                    int64_t newest, int64_t holder, int64_t max_wait,
                    unsigned *woke, ns_err *err) {
  char *near = atomic_exchange(&l->near, NULL);
  int64_t wait = least(max_wait, near != NULL ? NEAR : LONGEST);
  ns_status st;
  *woke = 0;
  ns_err_clear(err);
  if ((st = get_ready(l, err)) == NS_OK)
    st = prepare_wait(l, queue_ids, n, near != NULL ? near : "TRUE", err);
  free(near);
  return st == NS_OK && wait > 0 ? sleep_listed(l, newest, holder, wait, woke, err)
                                 : st;
}

/* --------------------------------------------------------------- ringing */

ns_status ns_ring(ns_db *db, ns_err *err) {
  ns_err none;
  ns_status st;
  if (err == NULL)
    err = &none;
  if ((st = ns_ready(db, err)) != NS_OK)
    return st;
  db->count.rings++;
  return ns_run(db, NS_SQL_LISTEN_RING, NULL, err);
}
