/*
** The connection of a handle: making it, losing it, making it again, for a single statement,
** too. Also forks, the server's clock, and the hooks that tell the parts above of all this.
**
** Invariant: a handle inherited over a fork never sends a byte on its parent's connection.
** Outside a transaction a statement that is run by name is run once more when the connection
** was lost. A list that lost an element for want of memory is never sent. The handle has its
** list of hooks from its opening on. It is in the order of the parts, each above the parts that
** it uses: closing goes through it backwards. That order is checked by spec/house_spec.lua.
*/
#include "db/db.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base.h"
#include "handle.h"

#define RETRY_SOON 150000              /* µs: the longest pause while other sessions still wait */
#define RETRY_SOON_FOR (2 * NS_SECOND) /* for us to come back, up to this */
#define RETRY_NEXT (NS_SECOND / 2)     /* the same of a list: another server takes over */
#define END_STEP 2000                  /* µs between looks whether a session ended */
#define END_MAX (2 * NS_SECOND)
#define CONNECT_MIN NS_SECOND /* less time is not enough; the library counts seconds */

/* ---------------------------------------------------------- connecting */

/* The configuration, completed from the URL; borrows from both. */
ns_config ns_db_config_value(const ns_db *db) {
  ns_config cfg = db->cfg;
  if (cfg.url != NULL)
    ns_url_fill(&db->url, &cfg);
  if (cfg.end_by != 0)
    cfg.connect_timeout = CONNECT_MIN;
  return cfg;
}

const ns_config *ns_db_config(const ns_db *db, ns_config *room) {
  *room = ns_db_config_value(db);
  return room;
}

void ns_db_add_slow(const ns_db *db, ns_counters *sum) {
  int64_t slowest;
  if (db->link == NULL)
    return;
  sum->slow += ns_link_slow(db->link, &slowest);
  sum->slowest = slowest > sum->slowest ? slowest : sum->slowest;
}

void ns_db_hang_up(ns_db *db) {
  ns_db_add_slow(db, &db->count);
  ns_db_forget_statements(db);
  ns_link_close(db->link, ns_is_foreign(db));
  db->link = NULL;
  db->life = 0;
  db->in_tx = false;
  db->session = (ns_left_behind){0};
  if (db->user_tx)
    db->broken_tx = true;
  ns_db_tell_lost(db);
}

/* Notes the session of the link, which is lost for us. */
static void note_lost_session(ns_db *db) {
  if (db->link == NULL || db->life == 0 || ns_is_foreign(db))
    return;
  if (db->nlost == NS_GHOSTS)
    memmove(db->lost, db->lost + 1, --db->nlost * sizeof *db->lost);
  db->lost[db->nlost++] = (ns_session){ns_link_thread(db->link), db->life};
}

void ns_db_leave_session(ns_db *db) {
  note_lost_session(db);
  ns_db_hang_up(db);
}

/* Ends a session and waits until it is gone. Usually it is already; then, or
** when the server will not do it, this returns at once. */
static ns_status end_session(ns_db *db, int64_t thread) {
  int64_t give_up = ns_mono_us() + END_MAX;
  char sql[40];
  ns_err err;
  ns_status st;
  snprintf(sql, sizeof sql, "KILL %lld", (long long)thread);
  while ((st = ns_db_text(db, sql, &err)) == NS_OK && ns_mono_us() < give_up)
    ns_sleep_us(END_STEP);
  return st;
}

/* A network that stops tells the server nothing: sessions that we have lost may live on there,
** with their locks and an open transaction. They are ended before anything is repeated, so that
** by then their outcome is settled. An id above our new one is of an earlier start, within the
** same second. */
static void end_lost_sessions(ns_db *db) {
  int64_t newest = ns_link_thread(db->link);
  for (; db->nlost > 0; db->nlost--) {
    const ns_session *s = &db->lost[db->nlost - 1];
    if (s->life == db->life && s->thread < newest && end_session(db, s->thread) == NS_EGONE)
      return;
  }
}

ns_status ns_db_read_server(ns_db *db, int64_t *now, ns_err *err) {
  const ns_value *row;
  ns_status st = ns_db_row(db, NS_SQL_SERVER_NOW, &row, err);
  *now = 0;
  if (st != NS_OK || row == NULL)
    return st;
  *now = row[0].i;
  ns_db_note_now(db, *now);
  db->never_fast = (row[1].type == NS_INT && row[1].i != 0) || ns_link_cluster(db->link);
  ns_link_limit(db->link, row[2].i);
  db->life = ns_int_or(&row[3], 0);
  return NS_OK;
}

/* This node writes from now on, for the one that did has left the cluster, or there was none. */
static ns_status take_writing(ns_db *db, ns_bytes here, ns_bytes before, ns_err *err) {
  ns_status st = ns_db_run_once(db, NS_SQL_SERVER_TAKE,
                                (ns_value[]){ns_vtext(here), ns_vtext(before), ns_vtext(before)},
                                err);
  if (st == NS_OK && ns_db_affected(db, NS_SQL_SERVER_TAKE) == 0)
    return ns_fail(err, NS_EGONE, "another node of the cluster has begun to write");
  if (st == NS_EDENIED || st == NS_EBUSY) {
    st = ns_err_context(err, "no node of the cluster writes until a host has connected to one");
    err->status = st = NS_EGONE;
  }
  return st;
}

/* What the node before this one has committed is here: server_writable waits for it. */
static ns_status join_cluster(ns_db *db, ns_err *err) {
  const ns_value *row = NULL;
  char here[256];
  char before[256] = "";
  ns_status st = ns_link_servers_ask(db->link, err);
  if (st == NS_OK && (st = ns_db_run_once(db, NS_SQL_SERVER_NODE, NULL, err)) == NS_OK)
    st = ns_db_row(db, NS_SQL_SERVER_NODE, &row, err);
  if (row == NULL || row[0].type != NS_TEXT) /* there are no tables yet */
    return st == NS_ESCHEMA ? NS_OK : st;
  snprintf(here, sizeof here, "%.*s", (int)row[0].s.n, row[0].s.p);
  if (row[1].type == NS_TEXT)
    snprintf(before, sizeof before, "%.*s", (int)row[1].s.n, row[1].s.p);
  return strcmp(here, before) != 0 ? take_writing(db, ns_str(here), ns_str(before), err) : NS_OK;
}

/* A node of a Galera cluster has named locks of its own, and conflicts with other nodes show only
** at the commit. So one node writes: server_writable refuses the rest. A statement that fails for a
** lock may yet reach the other nodes, so claims try none. */
static ns_status check_cluster(ns_db *db, ns_err *err) {
  const ns_value *row = NULL;
  ns_err none;
  if (ns_db_run_once(db, NS_SQL_SERVER_CLUSTER, NULL, &none) != NS_OK ||
      ns_db_row(db, NS_SQL_SERVER_CLUSTER, &row, &none) != NS_OK || row == NULL || row[0].i == 0)
    return NS_OK;
  ns_link_set_cluster(db->link);
  db->never_fast = true;
  return join_cluster(db, err);
}

/* A handle that has been connected waits until its cluster has a node to write at. */
static ns_status soften(bool before, ns_status st, ns_err *err) {
  if (!before || st != NS_ESERVER)
    return st;
  if (err != NULL)
    err->status = NS_EGONE;
  return NS_EGONE;
}

/* Another server of a list may not have seen which ids were given to us. */
static void note_server(ns_db *db) {
  if (ns_link_place(db->link) > 0 && db->server != db->life)
    db->next_id = db->end_id = 0;
  db->server = db->life;
}

/* What is to be known of a server and its tables is asked with the settings of the session. */
static void ask_server(ns_db *db) {
  ns_db_foresee(db, NS_SQL_SERVER_NOW, NULL);
  ns_db_foresee(db, NS_SQL_SERVER_CLUSTER, NULL);
  if (!db->cfg.no_schema)
    ns_db_foresee(db, NS_SQL_HANDLE_SCHEMA, NULL);
}

ns_status ns_db_connect(ns_db *db, ns_err *err) {
  ns_config cfg = ns_db_config_value(db);
  bool before = db->server != 0;
  ns_status st = ns_link_open_ahead(&db->link, &cfg, err);
  int64_t now;
  if (st != NS_OK)
    return soften(before, st, err);
  db->connecting = true;
  db->owner = getpid();
  db->current = NULL;
  ask_server(db);
  if ((st = ns_db_run_once(db, NS_SQL_SERVER_NOW, NULL, err)) == NS_OK)
    st = ns_db_read_server(db, &now, err);
  if (st == NS_OK)
    note_server(db);
  if (st == NS_OK)
    end_lost_sessions(db);
  if (st == NS_OK)
    st = check_cluster(db, err);
  if (st == NS_OK)
    st = ns_db_tell_connected(db, err);
  ns_db_foresee_end(db);
  db->connecting = false;
  if (st != NS_OK) {
    note_lost_session(db);
    ns_db_hang_up(db);
  }
  return soften(before, st, err);
}

/* In a forked child: the parent's claims and ids are not ours. */
static void become_child(ns_db *db) {
  ns_db_hang_up(db);
  db->nlost = 0;
  db->next_id = db->end_id = 0;
  db->user_tx = db->broken_tx = db->ended_tx = false;
  db->owner = getpid();
  ns_db_tell_forked(db);
}

void ns_db_pause_up_to(const ns_db *db, int64_t *most, int64_t longest) {
  ns_await a = {.interrupt_fd = db->cfg.interrupt_fd,
                .limit = 1 + ns_jitter(*most / 2, 1.0)}; /* 0 is no limit */
  ns_await_input(&a, -1, NULL); /* of no socket: only that descriptor ends it */
  *most = *most * 2 < longest ? *most * 2 : longest;
}

/* A server of our own that has gone, with its guardian say, is started again. */
static ns_status connect_or_restart(ns_db *db, ns_err *err) {
  ns_status st = ns_db_connect(db, err);
  if (st != NS_EGONE || db->restart == NULL)
    return st;
  st = db->restart(db, err);
  return st == NS_OK ? ns_db_connect(db, err) : st;
}

bool ns_db_is_interrupted(const ns_db *db) {
  return db->cfg.interrupted != NULL && db->cfg.interrupted(db->cfg.interrupted_arg);
}

void ns_end_by(ns_db *db, int64_t at) {
  if (db->cfg.end_by == 0)
    db->cfg.end_by = at;
  if (db->link != NULL)
    ns_link_end_by(db->link, db->cfg.end_by);
}

/* Is there no caller any more that would wait for a connection? */
static bool is_no_time_left(const ns_db *db) {
  return ns_db_is_interrupted(db) ||
         (db->cfg.end_by != 0 && db->cfg.end_by - ns_mono_us() < CONNECT_MIN);
}

/* Connects, trying as long as the configuration says. */
static ns_status reconnect(ns_db *db, ns_err *err) {
  int64_t pause = NS_PAUSE_FIRST;
  int64_t late = ns_link_servers_are(ns_db_config_value(db).host) ? RETRY_NEXT : NS_PAUSE_LONGEST;
  int64_t soon = ns_mono_us() + RETRY_SOON_FOR;
  ns_status st;
  note_lost_session(db);
  ns_db_hang_up(db);
  ns_db_tell_away(db);
  db->count.reconnects++;
  while ((st = connect_or_restart(db, err)) == NS_EGONE && db->cfg.keep_trying != NULL &&
         db->cfg.keep_trying(db->cfg.keep_trying_arg, err))
    ns_db_pause_up_to(db, &pause, ns_mono_us() < soon ? RETRY_SOON : late);
  return st;
}

bool ns_is_foreign(const ns_db *db) {
  return db->owner != getpid();
}

bool ns_in_transaction(const ns_db *db) {
  return db->user_tx && !ns_is_foreign(db);
}

bool ns_hung_up(ns_db *db) {
  if (ns_is_foreign(db) || db->link == NULL)
    return true;
  ns_link_look(db->link);
  return ns_link_dead(db->link);
}

void ns_renew(ns_db *db) {
  if (!ns_is_foreign(db) && !ns_in_transaction(db))
    ns_db_hang_up(db);
}

/* ------------------------------------------------- an open transaction */

void ns_db_roll_back(ns_db *db) {
  if (db->link == NULL || ns_is_foreign(db))
    return;
  ns_link_answers(db->link, NULL, NULL);
  if (!ns_link_dead(db->link) && ns_db_text(db, "ROLLBACK", NULL) != NS_OK)
    ns_link_give_up(db->link);
}

/* The caller's transaction is rolled back, no other follows it, and autocommit is on. A session
** where that fails is given up. */
static void end_open_transaction(ns_db *db) {
  if (!ns_link_dead(db->link) && ns_db_text(db, "SET SESSION completion_type=0", NULL) != NS_OK)
    ns_link_give_up(db->link);
  ns_db_roll_back(db);
  if (!ns_link_dead(db->link) && ns_link_is_open(db->link) &&
      ns_db_text(db, "SET SESSION autocommit=1", NULL) != NS_OK)
    ns_link_give_up(db->link);
}

void ns_db_session_end(ns_db *db) {
  if (db->link != NULL && !ns_link_dead(db->link) && ns_link_is_open(db->link))
    end_open_transaction(db);
}

ns_status ns_db_tx_ended(ns_err *err) {
  return ns_fail(err, NS_ESTATE, "a statement in this transaction has ended it; roll back");
}

ns_status ns_db_ready(ns_db *db, ns_err *err) {
  if (ns_is_foreign(db))
    become_child(db);
  ns_assert(!ns_is_foreign(db));
  if (db->link != NULL && !db->in_tx)
    ns_link_look(db->link);
  if (db->user_tx && db->barred)
    return ns_fail(err, NS_ESTATE,
                   "a transaction of this handle is open in a coroutine that does not run: "
                   "resume it to its end or close it first, or open another handle");
  if (db->user_tx && db->ended_tx)
    return ns_db_tx_ended(err);
  if (db->user_tx && (db->broken_tx || ns_link_dead(db->link)))
    return ns_fail(err, NS_EGONE,
                   "the transaction is lost with its connection; roll back "
                   "and run it again");
  if (db->session.used && !db->in_tx && !db->user_tx)
    ns_db_session_end(db);
  if (db->link != NULL && !db->in_tx && !db->user_tx && !db->connecting)
    ns_link_servers_ask(db->link, NULL); /* one that was demoted is dead by that */
  if (db->link != NULL && !ns_link_dead(db->link))
    return NS_OK;
  if (db->in_tx || db->connecting || is_no_time_left(db))
    return ns_fail(err, NS_EGONE, "the connection to the server is lost");
  return reconnect(db, err);
}

/* ---------------------------------------------- idle within a transaction */

#define HURRY                                                                                      \
  "SET SESSION idle_transaction_timeout=5,idle_write_transaction_timeout=5,"                       \
  "idle_readonly_transaction_timeout=5"
#define TAKE_TIME                                                                                  \
  "SET SESSION idle_transaction_timeout=DEFAULT,idle_write_transaction_timeout=DEFAULT,"           \
  "idle_readonly_transaction_timeout=DEFAULT"

ns_status ns_db_hurry(ns_db *db, ns_err *err) {
  if (db->session.hurried || db->user_tx)
    return NS_OK;
  db->session.hurried = true;
  return ns_link_send(db->link, HURRY, err);
}

ns_status ns_db_take_time(ns_db *db, ns_err *err) {
  if (!db->session.hurried)
    return NS_OK;
  db->session.hurried = false;
  return ns_db_text(db, TAKE_TIME, err);
}

/* ------------------------------------------------------------- the clock */

int64_t ns_now(const ns_db *db) {
  return ns_mono_us() + db->skew;
}

void ns_db_note_now(ns_db *db, int64_t now) {
  int64_t skew = now - ns_mono_us();
  if (db->skew - skew > NS_SECOND) /* the server's clock stepped back */
    ns_db_tell_set_back(db);
  db->skew = skew;
}

ns_status ns_server_now(ns_db *db, int64_t *now, ns_err *err) {
  ns_status st = ns_db_ready(db, err);
  *now = 0;
  if (st == NS_OK)
    st = ns_db_run(db, NS_SQL_SERVER_NOW, NULL, err);
  return st == NS_OK ? ns_db_read_server(db, now, err) : st;
}

ns_status ns_ping(ns_db *db, ns_err *err) {
  int64_t now;
  ns_status st = ns_server_now(db, &now, err);
  if (st == NS_EGONE && !db->user_tx) /* found out by asking: once more */
    st = ns_server_now(db, &now, err);
  return st;
}

/* ------------------------------------------------ statements that reconnect */

/* A connection may be lost between the look at its socket and the statement. */
ns_status ns_db_run(ns_db *db, ns_sql sql, const ns_value *params, ns_err *err) {
  ns_status st = ns_db_run_once(db, sql, params, err);
  if (st != NS_EGONE || db->in_tx || db->user_tx || db->connecting ||
      (st = ns_db_ready(db, err)) != NS_OK)
    return st;
  if ((st = ns_db_run_once(db, sql, params, err)) == NS_EGONE) /* read-only for all handles */
    ns_db_tell_away(db);
  return st;
}

ns_status ns_db_list_run(ns_db *db, ns_sql sql, const ns_value *first, ns_buf *list, ns_err *err) {
  ns_value params[2];
  size_t n = 0;
  ns_status st;
  if (first != NULL)
    params[n++] = *first;
  params[n] = ns_db_list_end(list);
  st = list->oom ? ns_no_memory(err) : ns_db_run(db, sql, params, err);
  ns_buf_free(list);
  return st;
}

ns_status ns_db_list_change(ns_db *db, ns_sql sql, const ns_value *first, ns_buf *list, size_t n,
                            ns_err *err) {
  ns_status st = ns_db_list_run(db, sql, first, list, err);
  return st == NS_OK ? ns_db_check_changed(ns_db_affected(db, sql), (int64_t)n, err) : st;
}

/* --------------------------------------------------------------------- hooks */

/* Parts with a hook that takes the handle alone. */
#define EACH(db, hook)                                                                             \
  for (const ns_hooks *const *h_ = (db)->hooks; *h_ != NULL; h_++)                                 \
    if ((*h_)->hook != NULL)                                                                       \
  (*h_)->hook(db)

ns_status ns_db_tell_connected(ns_db *db, ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && db->hooks[i] != NULL; i++)
    if (db->hooks[i]->connected != NULL)
      st = db->hooks[i]->connected(db, err);
  return st;
}

void ns_db_tell_lost(ns_db *db) {
  EACH(db, lost);
}

void ns_db_tell_away(ns_db *db) {
  EACH(db, away);
}

void ns_db_tell_set_back(ns_db *db) {
  EACH(db, set_back);
}

void ns_db_tell_forked(ns_db *db) {
  EACH(db, forked);
}

void ns_db_tell_committed(ns_db *db, bool written) {
  for (size_t i = 0; db->hooks[i] != NULL; i++)
    if (db->hooks[i]->committed != NULL)
      db->hooks[i]->committed(db, written);
}

void ns_db_tell_closing(ns_db *db) {
  size_t n = 0;
  while (db->hooks[n] != NULL)
    n++;
  while (n-- > 0)
    if (db->hooks[n]->closing != NULL)
      db->hooks[n]->closing(db);
}
