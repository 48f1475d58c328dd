/*
** The handle: opening and closing it, forks, reconnecting, and the server's clock.
** What is run on it is in ns_query.c; its transactions are in ns_tx.c.
**
** Invariant: a handle inherited over a fork never sends a byte on its parent's
** connection.
*/
#include "ns_handle.h"
#include "ns_nowhere.h"
#include "ns_queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ns_adopt.h"
#include "ns_await.h"
#include "ns_holder.h"
#include "ns_schema.h"
#include "ns_session.h"
#include "ns_time.h"

#define RETRY_SOON 150000 /* µs: the longest pause while others still wait */
#define RETRY_SOON_FOR (2 * NS_SECOND) /* for us to come back, up to this */
#define END_STEP 2000 /* µs between looks whether a session ended */
#define END_MAX (2 * NS_SECOND)
#define CLOSE_MAX (3 * NS_SECOND)
#define CONNECT_MIN NS_SECOND /* less time is not enough; the library counts seconds */

/* -------------------------------------------------------------- config */

/* The string fields of a config, for copying and freeing them alike. */
static const char **cfg_string(ns_config *cfg, size_t i) {
  const char **all[] = {&cfg->url,  &cfg->host,  &cfg->user, &cfg->password,
                        &cfg->database, &cfg->socket, &cfg->file, &cfg->group,
                        &cfg->tls,  &cfg->ca,    &cfg->cert, &cfg->key};
  return i < sizeof all / sizeof all[0] ? all[i] : NULL;
}

static bool cfg_copy(ns_config *to, const ns_config *from) {
  bool ok = true;
  const char **field;
  *to = *from;
  for (size_t i = 0; (field = cfg_string(to, i)) != NULL; i++)
    if (*field != NULL && (*field = strdup(*field)) == NULL)
      ok = false;
  return ok;
}

static void cfg_free(ns_config *cfg) {
  const char **field;
  for (size_t i = 0; (field = cfg_string(cfg, i)) != NULL; i++) {
    free((char *)(uintptr_t)*field);
    *field = NULL;
  }
}

static bool is_unset(const ns_config *cfg) {
  return cfg->url == NULL && cfg->host == NULL && cfg->socket == NULL &&
         cfg->database == NULL && cfg->file == NULL && cfg->group == NULL;
}

/* ---------------------------------------------------------- connecting */

/* The configuration with what the URL says filled in; borrows from both. */
static ns_config effective(const ns_db *db) {
  ns_config cfg = db->cfg;
  if (cfg.url != NULL)
    ns_url_fill(&db->url, &cfg);
  if (cfg.end_by != 0)
    cfg.connect_timeout = CONNECT_MIN;
  return cfg;
}

const ns_config *ns_db_config(const ns_db *db, ns_config *room) {
  *room = effective(db);
  return room;
}

static void drop_floors(ns_db *db) {
  ns_lanes_drop_floors(&db->lanes);
  db->due_floor = db->due_reached = 0;
  db->due_window = (ns_window){0};
}

/* Those of the handle and of its connection. */
static void add_slow(const ns_db *db, ns_counters *sum) {
  int64_t slowest;
  if (db->link == NULL)
    return;
  sum->slow += ns_link_slow(db->link, &slowest);
  sum->slowest = slowest > sum->slowest ? slowest : sum->slowest;
}

static void hang_up(ns_db *db) {
  add_slow(db, &db->count);
  ns_forget_statements(db);
  ns_link_close(db->link, ns_is_foreign(db));
  db->link = NULL;
  db->life = 0;
  db->ahead = 0;
  db->in_tx = false;
  db->gate.number = 0;
  db->session = (ns_left_behind){0};
  if (db->user_tx)
    db->broken_tx = true;
  drop_floors(db);
}

/* Notes the session of the link, which is lost for us. */
static void lose(ns_db *db) {
  if (db->link == NULL || db->life == 0 || ns_is_foreign(db))
    return;
  if (db->nlost == NS_GHOSTS)
    memmove(db->lost, db->lost + 1, --db->nlost * sizeof *db->lost);
  db->lost[db->nlost++] = (ns_session){ns_link_thread(db->link), db->life};
}

void ns_leave_session(ns_db *db) {
  lose(db);
  hang_up(db);
}

/* Ends a session and waits until it is gone. Usually it is already; then, or
** when the server will not do it, this returns at once. */
static ns_status end_session(ns_db *db, int64_t thread) {
  int64_t give_up = ns_mono_us() + END_MAX;
  char sql[40];
  ns_err err;
  ns_status st;
  snprintf(sql, sizeof sql, "KILL %lld", (long long)thread);
  while ((st = ns_text(db, sql, &err)) == NS_OK && ns_mono_us() < give_up)
    ns_sleep_us(END_STEP);
  return st;
}

/* A network that stops tells the server nothing: sessions that we have lost
** may live on there, with their locks and an open transaction. They are ended
** before anything is repeated, so that by then it is settled what they did.
** An id above our new one is of an earlier start, within the same second. */
static void end_lost(ns_db *db) {
  int64_t newest = ns_link_thread(db->link);
  for (; db->nlost > 0; db->nlost--) {
    const ns_session *s = &db->lost[db->nlost - 1];
    if (s->life == db->life && s->thread < newest &&
        end_session(db, s->thread) == NS_EGONE)
      return;
  }
}

/* A Galera node undoes what it has told others, lets half a claim be committed, and has
** named locks of its own: jobs are lost there, and run twice. */
static ns_status check_cluster(ns_db *db, ns_err *err) {
  const ns_value *row = NULL;
  ns_err none;
  if (ns_run(db, NS_SQL_SERVER_CLUSTER, NULL, &none) != NS_OK ||
      ns_row(db, NS_SQL_SERVER_CLUSTER, &row, &none) != NS_OK || row == NULL ||
      row[0].i == 0)
    return NS_OK;
  return ns_fail(err, NS_ESERVER,
                 "the server is a node of a Galera cluster (wsrep_on=ON), where jobs would "
                 "be lost and run twice; use one MariaDB with a semi-synchronous replica "
                 "to fail over to");
}

static ns_status connect_once(ns_db *db, ns_err *err) {
  ns_config cfg = effective(db);
  ns_status st = ns_link_open(&db->link, &cfg, err);
  int64_t now;
  if (st != NS_OK)
    return st;
  db->connecting = true;
  db->owner = getpid();
  db->current = NULL;
  if ((st = ns_server_now(db, &now, err)) == NS_OK)
    end_lost(db);
  if (st == NS_OK)
    st = check_cluster(db, err);
  if (st == NS_OK && !db->cfg.no_schema)
    st = ns_schema_check(db, err);
  if (st == NS_OK && db->holder != 0)
    st = ns_holder_resume(db, err);
  if (st == NS_OK)
    ns_slots_flush(db);
  db->connecting = false;
  if (st != NS_OK) {
    lose(db);
    hang_up(db);
  }
  return st;
}

/* In a forked child: the parent's claims and ids are not ours. */
static void disown(ns_db *db) {
  hang_up(db);
  ns_leases_free(&db->leases);
  db->holder = db->unread = db->doubt = 0;
  db->settling.n = db->settling.written = db->pushing.n = 0;
  db->ntx = db->nlost = db->nwronged = db->nexpired = 0;
  db->next_id = db->end_id = 0;
  db->user_tx = db->broken_tx = db->ended_tx = false;
  ns_listener_close(db->waiter);
  db->waiter = NULL;
  db->owner = getpid();
}

/* Starts or joins the private server, whose URL becomes ours; started again,
** it has the same one, which listeners have borrowed. The folder is that of the
** open, wherever the process has gone since. */
static ns_status use_private(ns_db *db, ns_err *err) {
  char *url;
  bool again = db->private_url != NULL;
  ns_status st = ns_private_start(db->private_dir, &url, err);
  if (st != NS_OK)
    return st;
  if (again) {
    if (strcmp(url, db->private_url) != 0)
      st = ns_fail(err, NS_EGONE,
                   "the private server has moved to another socket; open it "
                   "again");
    free(url);
    return st;
  }
  db->private_url = url;
  db->cfg.url = strdup(url);
  db->private_dir = getcwd(NULL, 0);
  return db->cfg.url != NULL && db->private_dir != NULL
             ? NS_OK
             : ns_no_memory(err);
}

void ns_pause_up_to(const ns_db *db, int64_t *most, int64_t longest) {
  ns_await a = {.interrupt_fd = db->cfg.interrupt_fd,
                .patience = 1 + ns_jitter(*most / 2, 1.0)}; /* 0 is no limit */
  ns_await_input(&a, -1, NULL); /* of no socket: only that descriptor ends it */
  *most = *most * 2 < longest ? *most * 2 : longest;
}

/* The private server has gone with its guardian, say: it is started again. */
static ns_status connect_anyhow(ns_db *db, ns_err *err) {
  ns_status st = connect_once(db, err);
  if (st != NS_EGONE || db->private_url == NULL)
    return st;
  st = use_private(db, err);
  return st == NS_OK ? connect_once(db, err) : st;
}

bool ns_interrupted(const ns_db *db) {
  return db->cfg.interrupted != NULL && db->cfg.interrupted(db->cfg.interrupted_arg);
}

void ns_end_by(ns_db *db, int64_t at) {
  if (db->cfg.end_by == 0)
    db->cfg.end_by = at;
  if (db->link != NULL)
    ns_link_end_by(db->link, db->cfg.end_by);
}

/* Is there nobody any more who would wait for a connection? */
static bool is_over(const ns_db *db) {
  return ns_interrupted(db) ||
         (db->cfg.end_by != 0 && db->cfg.end_by - ns_mono_us() < CONNECT_MIN);
}

/* Connects, trying as long as the configuration says. */
static ns_status reconnect(ns_db *db, ns_err *err) {
  int64_t pause = NS_PAUSE_FIRST;
  int64_t soon = ns_mono_us() + RETRY_SOON_FOR;
  ns_status st;
  lose(db);
  hang_up(db);
  ns_watch_anew(db);
  db->count.reconnects++;
  while ((st = connect_anyhow(db, err)) == NS_EGONE &&
         db->cfg.keep_trying != NULL &&
         db->cfg.keep_trying(db->cfg.keep_trying_arg, err))
    ns_pause_up_to(db, &pause, ns_mono_us() < soon ? RETRY_SOON : NS_PAUSE_LONGEST);
  return st;
}

bool ns_is_foreign(const ns_db *db) {
  return db->owner != getpid();
}

bool ns_hung_up(ns_db *db) {
  if (ns_is_foreign(db) || db->link == NULL)
    return true;
  ns_link_look(db->link);
  return ns_link_dead(db->link);
}

void ns_renew(ns_db *db) {
  if (!ns_is_foreign(db) && !ns_in_transaction(db))
    hang_up(db);
}

ns_status ns_tx_ended(ns_err *err) {
  return ns_fail(err, NS_ESTATE,
                 "a statement in this transaction has ended it; roll back");
}

ns_status ns_ready(ns_db *db, ns_err *err) {
  if (ns_is_foreign(db))
    disown(db);
  if (db->link != NULL && !db->in_tx)
    ns_link_look(db->link);
  if (db->user_tx && db->barred)
    return ns_fail(err, NS_ESTATE,
                   "a transaction of this handle is open in a coroutine that does not run: "
                   "resume it to its end or close it first, or open another handle");
  if (db->user_tx && db->ended_tx)
    return ns_tx_ended(err);
  if (db->user_tx && (db->broken_tx || ns_link_dead(db->link)))
    return ns_fail(err, NS_EGONE,
                   "the transaction is lost with its connection; roll back "
                   "and run it again");
  if (db->session.used && !db->in_tx && !db->user_tx)
    ns_session_end(db);
  if (db->link != NULL && !ns_link_dead(db->link))
    return NS_OK;
  if (db->in_tx || db->connecting || is_over(db))
    return ns_fail(err, NS_EGONE, "the connection to the server is lost");
  return reconnect(db, err);
}

/* --------------------------------------------------------- open, close */

static ns_status open_parsed(ns_db *db, ns_err *err) {
  ns_status st = NS_OK;
  bool checked = !db->cfg.no_schema;
  int from;
  if (db->cfg.url != NULL)
    st = ns_url_parse(db->cfg.url, &db->url, err);
  if (st != NS_OK)
    return st;
  if (effective(db).max_payload > 0)
    db->max_payload = (size_t)effective(db).max_payload;
  if (db->private_url != NULL)
    db->cfg.no_schema = true; /* created below */
  st = connect_once(db, err);
  if (st == NS_OK && db->private_url != NULL && checked) {
    st = ns_schema_raise(db, false, &from, err);
    db->cfg.no_schema = false;
  }
  return st;
}

/* Whoever died before us, and nobody has seen it: best effort. */
static void look_once(ns_db *db) {
  ns_rescued sum;
  ns_err err;
  int64_t again_in;
  if (db->cfg.no_schema)
    return;
  ns_look(db, &again_in, &sum, &err);
  db->rescued = sum; /* the first who asks is told */
  db->peers_at = ns_mono_us() + again_in;
}

ns_status ns_open(ns_db **out, const ns_config *cfg, ns_err *err) {
  ns_err none;
  ns_db *db = calloc(1, sizeof *db);
  ns_status st = NS_OK;
  *out = NULL;
  if (err == NULL)
    err = &none;
  if (db == NULL)
    return ns_no_memory(err);
  db->owner = getpid();
  db->max_payload = NS_MAX_PAYLOAD;
  if (!cfg_copy(&db->cfg, cfg))
    st = ns_no_memory(err);
  if (st == NS_OK && is_unset(cfg))
    st = use_private(db, err);
  if (st == NS_OK)
    st = open_parsed(db, err);
  if (st != NS_OK) {
    ns_close(db);
    return st;
  }
  look_once(db);
  *out = db;
  return NS_OK;
}

void ns_close(ns_db *db) {
  if (db == NULL)
    return;
  free(db->private_url); /* it is not started again for this */
  db->private_url = NULL;
  if (!ns_is_foreign(db)) {
    ns_end_by(db, ns_mono_us() + CLOSE_MAX);
    ns_rollback(db);
    ns_slots_leave(db);
    ns_adopts_leave(db);
    if (db->leases.n > 0 || (db->link != NULL && !ns_link_dead(db->link)))
      ns_holder_leave(db);
  }
  ns_adopts_free(db);
  hang_up(db);
  ns_listener_close(db->waiter);
  ns_leases_free(&db->leases);
  ns_lanes_free(&db->lanes);
  ns_only_free(&db->only);
  free(db->wronged);
  free(db->suspects.items);
  ns_queues_forget(db);
  free(db->tx_settled);
  free(db->expired);
  free(db->unknown);
  ns_census_free(db->census);
  free(db->late.items);
  free(db->settling.items);
  free(db->pushing.tokens);
  ns_buf_free(&db->pushing.content);
  ns_url_free(&db->url);
  cfg_free(&db->cfg);
  free(db->private_dir);
  free(db);
}

ns_counters ns_count(const ns_db *db) {
  ns_counters sum = db->count;
  add_slow(db, &sum);
  return sum;
}

/* ------------------------------------------------------------- the clock */

int64_t ns_now(const ns_db *db) {
  return ns_mono_us() + db->skew;
}

void ns_saw_now(ns_db *db, int64_t now) {
  int64_t skew = now - ns_mono_us();
  if (db->skew - skew > NS_SECOND) /* the server's clock stepped back */
    drop_floors(db);
  db->skew = skew;
}

ns_status ns_server_now(ns_db *db, int64_t *now, ns_err *err) {
  const ns_value *row;
  ns_status st = ns_ready(db, err);
  *now = 0;
  if (st == NS_OK)
    st = ns_run(db, NS_SQL_SERVER_NOW, NULL, err);
  if (st == NS_OK)
    st = ns_row(db, NS_SQL_SERVER_NOW, &row, err);
  if (st == NS_OK && row != NULL) {
    *now = row[0].i;
    ns_saw_now(db, *now);
    db->lanes.never_fast = row[1].type == NS_INT && row[1].i != 0;
    ns_link_limit(db->link, row[2].i);
    db->life = ns_int_or(&row[3], 0);
  }
  return st;
}

ns_status ns_ping(ns_db *db, ns_err *err) {
  int64_t now;
  ns_status st = ns_server_now(db, &now, err);
  if (st == NS_EGONE && !db->user_tx) /* found out by asking: once more */
    st = ns_server_now(db, &now, err);
  return st;
}
