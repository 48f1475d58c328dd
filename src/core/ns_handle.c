/*
** The handle: opening, forks, reconnecting, statements by name, and the one
** place where transactions are begun, committed and repeated.
**
** Invariant: a transaction that failed is rolled back before its function
** returns, whatever the reason; a handle inherited over a fork never sends a
** byte on its parent's connection.
*/
#include "ns_handle.h"

#include "ns_depend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ns_holder.h"
#include "ns_queue.h"
#include "ns_schema.h"
#include "ns_settle.h"
#include "ns_time.h"

#define TX_TRIES 20 /* of one unit of work, before NS_EBUSY */
#define RETRY_FIRST 50000            /* µs between attempts to connect, at most; */
#define RETRY_LONGEST (3 * NS_SECOND) /* doubling up to this */
#define RETRY_SOON 150000            /* and at first, while others still wait */
#define RETRY_SOON_FOR (2 * NS_SECOND) /* for us to come back, up to this */
#define END_STEP 2000                /* µs between looks whether a session ended */
#define END_MAX (2 * NS_SECOND)

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
  return cfg;
}

const ns_config *ns_db_config(const ns_db *db, ns_config *room) {
  *room = effective(db);
  return room;
}

static void forget_statements(ns_db *db) {
  memset(db->stmts, 0, sizeof db->stmts);
  for (size_t i = 0; i < NS_TEXTS; i++)
    free(db->texts[i].sql);
  memset(db->texts, 0, sizeof db->texts);
  db->current = NULL;
}

static void drop_floors(ns_db *db) {
  ns_lanes_drop_floors(&db->lanes);
  db->due_floor = db->due_reached = 0;
  db->due_window = (ns_window){0};
}

static void hang_up(ns_db *db) {
  forget_statements(db);
  ns_link_close(db->link, ns_is_foreign(db));
  db->link = NULL;
  db->life = 0;
  db->ahead = 0;
  db->in_tx = false;
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
  db->ntx = db->nlost = db->nwronged = 0;
  db->next_id = db->end_id = 0;
  db->user_tx = db->broken_tx = false;
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
             : ns_fail(err, NS_ENOMEM, "out of memory");
}

/* Any moment between now and 'most' (full jitter): whoever lost the server
** together with us must not come back together with us. */
static void pause_up_to(int64_t *most, int64_t longest) {
  ns_sleep_us(ns_jitter(*most / 2, 1.0));
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

/* The silence of others may have been our own, or everybody's: nobody is
** declared dead for what was seen before. */
static void watch_anew(ns_db *db) {
  int64_t now = ns_mono_us();
  for (size_t i = 0; i < db->suspects.n; i++) {
    ns_suspect *s = &db->suspects.items[i];
    s->beat_since = now;
    s->free_since = s->free_since != 0 ? now : 0;
  }
}

/* Connects, trying as long as the configuration says. */
static ns_status reconnect(ns_db *db, ns_err *err) {
  int64_t pause = RETRY_FIRST;
  int64_t soon = ns_mono_us() + RETRY_SOON_FOR;
  ns_status st;
  lose(db);
  hang_up(db);
  watch_anew(db);
  db->count.reconnects++;
  while ((st = connect_anyhow(db, err)) == NS_EGONE &&
         db->cfg.keep_trying != NULL &&
         db->cfg.keep_trying(db->cfg.keep_trying_arg, err))
    pause_up_to(&pause, ns_mono_us() < soon ? RETRY_SOON : RETRY_LONGEST);
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

ns_status ns_ready(ns_db *db, ns_err *err) {
  if (ns_is_foreign(db))
    disown(db);
  if (db->link != NULL && !db->in_tx)
    ns_link_look(db->link);
  if (db->user_tx && (db->broken_tx || ns_link_dead(db->link)))
    return ns_fail(err, NS_EGONE,
                   "the transaction is lost with its connection; roll back "
                   "and run it again");
  if (db->link != NULL && !ns_link_dead(db->link))
    return NS_OK;
  if (db->in_tx || db->connecting)
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
    return ns_fail(err, NS_ENOMEM, "out of memory");
  db->owner = getpid();
  db->max_payload = NS_MAX_PAYLOAD;
  if (!cfg_copy(&db->cfg, cfg))
    st = ns_fail(err, NS_ENOMEM, "out of memory");
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
    ns_rollback(db);
    ns_slots_leave(db);
    if (db->leases.n > 0 || (db->link != NULL && !ns_link_dead(db->link)))
      ns_holder_leave(db);
  }
  hang_up(db);
  ns_listener_close(db->waiter);
  ns_leases_free(&db->leases);
  ns_lanes_free(&db->lanes);
  free(db->wronged);
  free(db->suspects.items);
  free(db->queues);
  free(db->tx_settled);
  free(db->expired);
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
  return db->count;
}

/* ---------------------------------------------------------- statements */

ns_status ns_prepare(ns_db *db, ns_sql sql, ns_err *err) {
  const char *text = ns_sql_texts[sql];
  if (db->stmts[sql] != NULL)
    return NS_OK;
  return ns_link_prepare(db->link, &db->stmts[sql], text, strlen(text), err);
}

ns_status ns_misfit(ns_status st, ns_err *err) {
  static const unsigned misfits[] = {1054, 1136, 1364}; /* columns: unknown, of
                                           another number, without a default */
  for (size_t i = 0; i < sizeof misfits / sizeof misfits[0]; i++)
    if (st == NS_ESQL && err != NULL && err->sqlerr == misfits[i])
      st = err->status = NS_ESCHEMA;
  return st;
}

static ns_status run(ns_db *db, ns_sql sql, const ns_value *params,
                     ns_err *err) {
  ns_status st = ns_prepare(db, sql, err);
  if (st == NS_OK)
    st = ns_stmt_run(db->link, db->stmts[sql], params, err);
  return ns_misfit(st, err);
}

/* Statements with a part that is put in later are left out: others need the
** same privileges. */
static ns_status probe(ns_db *db, ns_sql sql, ns_err *err) {
  if (strstr(ns_sql_texts[sql], "/*lanes*/") != NULL ||
      strstr(ns_sql_texts[sql], "(queues)") != NULL)
    return NS_OK;
  return ns_prepare(db, sql, err);
}

/* Verbs from outside and what people look at need more, or something else. */
static bool is_of_holders(const char *name) {
  static const char *const others[] = {"admin_", "doctor_", "prune_", "report_"};
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
    if (strncmp(name, others[i], strlen(others[i])) == 0)
      return false;
  return true;
}

ns_status ns_probe(ns_db *db, ns_err *err) {
  ns_status st = ns_ready(db, err);
  for (size_t i = 0; st == NS_OK && i < NS_SQL_COUNT; i++)
    if (is_of_holders(ns_sql_names[i]))
      st = probe(db, (ns_sql)i, err);
  return st;
}

ns_status ns_may(ns_db *db, const char *name, ns_err *err) {
  ns_status st = ns_ready(db, err);
  size_t i = 0;
  while (i < NS_SQL_COUNT && strcmp(ns_sql_names[i], name) != 0)
    i++;
  if (i == NS_SQL_COUNT)
    return ns_fail(err, NS_ENOTFOUND, "no statement is named '%.60s'", name);
  return st == NS_OK ? probe(db, (ns_sql)i, err) : st;
}

/* A connection may be lost between the look at its socket and the statement. */
ns_status ns_run(ns_db *db, ns_sql sql, const ns_value *params, ns_err *err) {
  ns_status st = run(db, sql, params, err);
  if (st != NS_EGONE || db->in_tx || db->user_tx || db->connecting ||
      (st = ns_ready(db, err)) != NS_OK)
    return st;
  if ((st = run(db, sql, params, err)) == NS_EGONE) /* read-only: for others too */
    watch_anew(db);
  return st;
}

ns_status ns_ask(ns_db *db, ns_sql sql, const ns_value *params, ns_err *err) {
  ns_status st = ns_prepare(db, sql, err);
  return st == NS_OK ? ns_stmt_ask(db->link, db->stmts[sql], params, err) : st;
}

ns_status ns_told(ns_db *db, ns_sql sql, ns_err *err) {
  return ns_misfit(ns_stmt_told(db->link, db->stmts[sql], err), err);
}

ns_status ns_send(ns_db *db, ns_sql sql, const ns_column *cols, ns_err *err) {
  ns_status st = ns_prepare(db, sql, err);
  return st == NS_OK ? ns_stmt_send(db->link, db->stmts[sql], cols, 1, err) : st;
}

ns_status ns_bulk(ns_db *db, ns_sql sql, const ns_column *cols, size_t nrows,
                  ns_err *err) {
  ns_status st = ns_prepare(db, sql, err);
  if (st == NS_OK)
    st = ns_stmt_bulk(db->link, db->stmts[sql], cols, nrows, err);
  return ns_misfit(st, err);
}

ns_status ns_row(ns_db *db, ns_sql sql, const ns_value **row, ns_err *err) {
  return ns_stmt_fetch(db->link, db->stmts[sql], row, err);
}

int64_t ns_affected(const ns_db *db, ns_sql sql) {
  return ns_stmt_affected(db->stmts[sql]);
}

ns_status ns_text(ns_db *db, const char *sql, ns_err *err) {
  return ns_link_text(db->link, sql, err);
}

/* The cached statement of this text, or the place for it. */
static ns_text_stmt *text_slot(ns_db *db, ns_bytes sql) {
  ns_text_stmt *oldest = &db->texts[0];
  for (size_t i = 0; i < NS_TEXTS; i++) {
    ns_text_stmt *t = &db->texts[i];
    if (t->sql != NULL && t->n == sql.n && memcmp(t->sql, sql.p, sql.n) == 0)
      return t;
    if (t->used < oldest->used)
      oldest = t;
  }
  if (oldest->sql != NULL) {
    if (db->current == oldest->stmt)
      db->current = NULL;
    ns_stmt_free(db->link, oldest->stmt);
    free(oldest->sql);
    *oldest = (ns_text_stmt){0};
  }
  return oldest;
}

ns_status ns_prepared(ns_db *db, ns_stmt **out, ns_bytes sql, ns_err *err) {
  ns_text_stmt *slot = text_slot(db, sql);
  ns_status st;
  *out = NULL;
  if (slot->sql == NULL) {
    char *copy = malloc(sql.n + 1);
    if (copy == NULL)
      return ns_fail(err, NS_ENOMEM, "out of memory");
    memcpy(copy, sql.p, sql.n);
    st = ns_link_prepare(db->link, &slot->stmt, sql.p, sql.n, err);
    if (st != NS_OK) {
      free(copy);
      return st;
    }
    slot->sql = copy;
    slot->n = sql.n;
  }
  slot->used = ++db->clock;
  *out = slot->stmt;
  return NS_OK;
}

/* --------------------------------------------------------- transactions */

void ns_count_retry(ns_db *db, const ns_err *err) {
  if (err->sqlerr == 1213)
    db->count.deadlocks++;
  else if (err->sqlerr == 1205)
    db->count.lock_waits++;
  else
    db->count.changed++;
}

static void roll_back(ns_db *db) {
  if (db->in_tx && db->link != NULL)
    ns_link_answers(db->link, NULL, NULL);
  if (db->in_tx && db->link != NULL && !ns_link_dead(db->link))
    ns_link_text(db->link, "ROLLBACK", NULL);
  db->in_tx = false;
}

ns_status ns_begun(ns_db *db, ns_err *err) {
  return ns_link_answers(db->link, NULL, err);
}

static ns_status commit(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_status st = ns_link_send(db->link, "COMMIT", err);
  if (st == NS_OK && tx->ahead != NULL)
    tx->ahead(db, tx);
  return st == NS_OK ? ns_link_answers(db->link, NULL, err) : st;
}

/* One try: begin, run, commit. '*cut' is set when the commit was sent. */
static ns_status try_once(ns_db *db, ns_tx *tx, bool *cut, ns_err *err) {
  ns_status st = ns_link_send(db->link, "START TRANSACTION", err);
  *cut = false;
  db->ahead = 0;
  if (st == NS_OK && !tx->looks)
    st = ns_begun(db, err);
  if (st != NS_OK)
    return st;
  db->in_tx = true;
  if ((st = tx->run(db, tx, err)) == NS_OK)
    st = ns_begun(db, err); /* and all else that was sent has worked */
  if (st == NS_OK && !tx->done) {
    *cut = true;
    st = commit(db, tx, err);
    if (st == NS_OK)
      db->in_tx = false;
  }
  roll_back(db);
  return st;
}

/* In the caller's transaction: join it. What fails leaves nothing behind for
** the caller to commit; when the server has ended the whole transaction, the
** savepoint is gone with it. */
static ns_status join(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_status st;
  if ((st = ns_ready(db, err)) != NS_OK ||
      (st = ns_text(db, "SAVEPOINT nightshift", err)) != NS_OK)
    return st;
  st = tx->run(db, tx, err);
  if (st != NS_OK &&
      ns_text(db, "ROLLBACK TO SAVEPOINT nightshift", NULL) != NS_OK)
    db->broken_tx = true;
  return st;
}

ns_status ns_transact(ns_db *db, ns_tx *tx, ns_err *err) {
  int64_t pause = 1000;
  int64_t rest = RETRY_FIRST;
  int lost = 0;
  ns_status st = NS_OK;
  tx->done = false;
  if (ns_in_transaction(db))
    return join(db, tx, err);
  for (int tries = 0; tries < TX_TRIES;) {
    bool cut = false;
    ns_err_clear(err);
    /* BUSY: the session that was cut is still at its commit */
    if ((st = ns_ready(db, err)) == NS_OK)
      st = try_once(db, tx, &cut, err);
    else if (st != NS_EBUSY)
      return st;
    if (st == NS_EGONE && (db->cfg.keep_trying != NULL || lost++ < 2)) {
      tx->replay = tx->replay || cut;
      if (!ns_link_dead(db->link)) /* read-only: wait for it to end */
        pause_up_to(&rest, RETRY_LONGEST);
      if (db->cfg.keep_trying == NULL ||
          db->cfg.keep_trying(db->cfg.keep_trying_arg, err))
        continue;
    }
    if (st != NS_EBUSY || !ns_link_retryable(err))
      return st;
    ns_count_retry(db, err);
    tries++;
    ns_sleep_us(ns_jitter(pause, 0.5));
    if (pause < 100000)
      pause *= 2;
  }
  return ns_err_context(err, "gave up after 20 tries");
}

ns_status ns_begin(ns_db *db, ns_err *err) {
  ns_status st;
  if (ns_in_transaction(db))
    return ns_fail(err, NS_ESTATE,
                   "a transaction is open already; they do not nest");
  if ((st = ns_ready(db, err)) == NS_OK)
    st = ns_text(db, "START TRANSACTION", err);
  if (st == NS_EGONE && (st = ns_ready(db, err)) == NS_OK) /* as in ns_run */
    st = ns_text(db, "START TRANSACTION", err);
  if (st != NS_OK)
    return st;
  db->user_tx = true;
  db->broken_tx = false;
  return NS_OK;
}

ns_status ns_commit(ns_db *db, ns_err *err) {
  bool broken = db->broken_tx;
  ns_status st;
  if (!db->user_tx)
    return ns_fail(err, NS_ESTATE, "no transaction is open");
  if (broken || ns_is_foreign(db)) {
    ns_rollback(db);
    return ns_fail(err, NS_EBUSY,
                   "the server has rolled this transaction back (deadlock or "
                   "lost connection); run it again");
  }
  st = ns_text(db, "COMMIT", err);
  db->user_tx = false;
  if (st == NS_OK) {
    ns_settle_joined(db);
    if (db->ring_due)
      ns_ring(db, NULL);
  }
  db->ntx = 0;
  db->ring_due = false;
  ns_slots_flush(db);
  if (st == NS_OK)
    ns_depend_rest(db);
  return st;
}

void ns_rollback(ns_db *db) {
  if (!db->user_tx)
    return;
  if (!ns_is_foreign(db) && db->link != NULL && !ns_link_dead(db->link))
    ns_link_text(db->link, "ROLLBACK", NULL);
  db->user_tx = db->broken_tx = db->ring_due = false;
  db->ntx = 0;
  ns_slots_flush(db);
}

bool ns_in_transaction(const ns_db *db) {
  return db->user_tx && !ns_is_foreign(db);
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

/* -------------------------------------------------- the caller's own SQL */

const char *ns_sql_text(const char *name) {
  for (size_t i = 0; i < NS_SQL_COUNT; i++)
    if (strcmp(ns_sql_names[i], name) == 0)
      return ns_sql_texts[i];
  return NULL;
}

const char *ns_sql_name(size_t i) {
  return i < NS_SQL_COUNT ? ns_sql_names[i] : NULL;
}

/* "@name" stands for a statement of sql/query. */
static ns_status resolve(ns_bytes *sql, ns_err *err) {
  char name[64];
  const char *text;
  if (sql->n < 2 || sql->p[0] != '@')
    return NS_OK;
  if (sql->n - 1 >= sizeof name)
    return ns_fail(err, NS_ENOTFOUND, "no statement has so long a name");
  memcpy(name, sql->p + 1, sql->n - 1);
  name[sql->n - 1] = '\0';
  if ((text = ns_sql_text(name)) == NULL)
    return ns_fail(err, NS_ENOTFOUND, "no statement is named '%s'", name);
  *sql = ns_str(text);
  return NS_OK;
}

/* The server has rolled back more than the statement. */
static bool ends_transaction(const ns_db *db, const ns_err *err) {
  return err->sqlerr == 1213 || err->sqlerr == 1020 ||
         (err->sqlerr == 1205 && db->lanes.never_fast);
}

static ns_status execute(ns_db *db, ns_bytes sql, const ns_value *params,
                         size_t nparams, ns_err *err) {
  ns_stmt *s;
  ns_status st = ns_prepared(db, &s, sql, err);
  if (st != NS_OK)
    return st;
  if (ns_stmt_params(s) != nparams)
    return ns_fail(err, NS_EINVALID,
                   "the statement has %zu placeholders but %zu values came",
                   ns_stmt_params(s), nparams);
  db->current = s;
  return ns_stmt_run(db->link, s, params, err);
}

ns_status ns_execute(ns_db *db, ns_bytes sql, const ns_value *params,
                     size_t nparams, ns_result *result, ns_err *err) {
  ns_status st;
  *result = (ns_result){0};
  ns_err_clear(err);
  if ((st = resolve(&sql, err)) != NS_OK || (st = ns_ready(db, err)) != NS_OK)
    return st;
  st = execute(db, sql, params, nparams, err);
  if (db->user_tx && ends_transaction(db, err))
    db->broken_tx = true;
  if (st != NS_OK) {
    db->current = NULL;
    return st;
  }
  result->ncols = ns_stmt_columns(db->current);
  result->names = ns_stmt_names(db->current);
  result->affected = ns_stmt_affected(db->current);
  result->insert_id = ns_stmt_insert_id(db->current);
  return NS_OK;
}

ns_status ns_fetch(ns_db *db, const ns_value **row, ns_err *err) {
  *row = NULL;
  if (db->current == NULL || db->link == NULL || ns_is_foreign(db))
    return NS_OK;
  return ns_stmt_fetch(db->link, db->current, row, err);
}
