/*
** Statements on a handle: those of sql/query by their names, the caller's own by their text,
** and lists as parameters, which the server takes apart (JSON_TABLE), so that one text
** serves any number of keys.
**
** Invariant: what is prepared belongs to the connection there is: both caches are emptied
** with it. Outside a transaction a statement that is run by name is run once more when the
** connection was lost, and so is a report when it was interrupted; no other statement is.
** A list that lost an element for want of memory is never sent.
*/
#include "db/inner.h"

#include "err.h"

#include <stdlib.h>
#include <string.h>

void ns_db_forget_statements(ns_db *db) {
  memset(db->stmts, 0, sizeof db->stmts);
  for (size_t i = 0; i < NS_TEXTS; i++)
    free(db->texts[i].sql);
  memset(db->texts, 0, sizeof db->texts);
  db->current = NULL;
  db->may_ring = false;
}

/* ------------------------------------------------------------- by name */

/* Statements of integers that a program runs while it claims one job at a time, and that
** need no place: the others are as many as there are places. */
static bool is_brief(const ns_db *db, ns_sql sql) {
  static const ns_sql brief[] = {
      NS_SQL_HOLDER_CYCLE,  NS_SQL_SETTLE_LEASE,          NS_SQL_SETTLE_EXPIRY,
      NS_SQL_SETTLE_HIDDEN, NS_SQL_QUEUE_PAUSED,          NS_SQL_CLAIM_PROMOTE_NEXT,
      NS_SQL_HANDLE_IDS,    NS_SQL_CLAIM_ADMISSION_ENTER, NS_SQL_CLAIM_ADMISSION_LEAVE};
  for (size_t i = 0; i < sizeof brief / sizeof brief[0]; i++)
    if (brief[i] == sql)
      return !db->cfg.host_session;
  return false;
}

/* What it is called where people are told that it takes long; NULL: to wait is its
** purpose. */
static const char *reported_name(ns_sql sql) {
  return sql == NS_SQL_CLAIM_ADMISSION_ENTER || sql == NS_SQL_HOLDER_LOCK ? NULL
                                                                          : ns_sql_names[sql];
}

/* A reconnect that failed has left no link: the next caller may come without a look
** at the connection. */
static ns_status need_link(const ns_db *db, ns_err *err) {
  return db->link != NULL ? NS_OK : ns_fail(err, NS_EGONE, "the connection to the server is lost");
}

ns_status ns_db_prepare(ns_db *db, ns_sql sql, ns_err *err) {
  const char *text = ns_sql_texts[sql];
  ns_stmt **s = &db->stmts[sql];
  ns_status st = need_link(db, err);
  if (st != NS_OK)
    return st;
  if (*s != NULL)
    return ns_stmt_ready(db->link, *s, err);
  return is_brief(db, sql)
             ? ns_link_brief(db->link, s, reported_name(sql), text, strlen(text), err)
             : ns_link_prepare(db->link, s, reported_name(sql), text, strlen(text), err);
}

ns_status ns_db_try(ns_db *db, ns_sql sql, ns_err *err) {
  ns_stmt *s;
  const char *text = ns_sql_texts[sql];
  ns_status st = need_link(db, err);
  if (st != NS_OK || (st = ns_link_prepare(db->link, &s, NULL, text, strlen(text), err)) != NS_OK)
    return st;
  ns_stmt_free(db->link, s);
  return NS_OK;
}

ns_status ns_db_misfit(ns_status st, ns_err *err) {
  static const unsigned misfits[] = {1054, 1136, 1364}; /* columns: unknown, of
                                           another number, without a default */
  for (size_t i = 0; i < sizeof misfits / sizeof misfits[0]; i++)
    if (st == NS_ESQL && err != NULL && err->sqlerr == misfits[i])
      st = err->status = NS_ESCHEMA;
  return st;
}

static ns_status run_named(ns_db *db, ns_sql sql, const ns_value *params, ns_err *err) {
  ns_status st = ns_db_session_begins(db, err);
  if (st == NS_OK)
    st = ns_db_prepare(db, sql, err);
  if (st == NS_OK)
    st = ns_stmt_run(db->link, db->stmts[sql], params, err);
  return ns_db_misfit(st, err);
}

/* Statements with a part that is put in later are left out: others need the
** same privileges. */
static ns_status probe_statement(ns_db *db, ns_sql sql, ns_err *err) {
  if (strstr(ns_sql_texts[sql], "/*lanes*/") != NULL || strchr(ns_sql_texts[sql], '{') != NULL ||
      strstr(ns_sql_texts[sql], "(queues)") != NULL)
    return NS_OK;
  return ns_db_try(db, sql, err);
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
  ns_status st = ns_db_ready(db, err);
  for (size_t i = 0; st == NS_OK && i < NS_SQL_COUNT; i++)
    if (is_of_holders(ns_sql_names[i]))
      st = probe_statement(db, (ns_sql)i, err);
  return st;
}

ns_status ns_may(ns_db *db, const char *name, ns_err *err) {
  ns_status st = ns_db_ready(db, err);
  size_t i = 0;
  while (i < NS_SQL_COUNT && strcmp(ns_sql_names[i], name) != 0)
    i++;
  if (i == NS_SQL_COUNT)
    return ns_fail(err, NS_ENOTFOUND, "no statement is named '%.60s'", name);
  return st == NS_OK ? probe_statement(db, (ns_sql)i, err) : st;
}

/* A connection may be lost between the look at its socket and the statement. */
ns_status ns_db_run(ns_db *db, ns_sql sql, const ns_value *params, ns_err *err) {
  ns_status st = run_named(db, sql, params, err);
  if (st != NS_EGONE || db->in_tx || db->user_tx || db->connecting ||
      (st = ns_db_ready(db, err)) != NS_OK)
    return st;
  if ((st = run_named(db, sql, params, err)) == NS_EGONE) /* read-only: for others too */
    ns_db_tell_away(db);
  return st;
}

ns_status ns_db_send_query(ns_db *db, ns_sql sql, const ns_value *params, ns_err *err) {
  ns_status st = ns_db_prepare(db, sql, err);
  return st == NS_OK ? ns_stmt_ask(db->link, db->stmts[sql], params, err) : st;
}

ns_status ns_db_read_answer(ns_db *db, ns_sql sql, ns_err *err) {
  return ns_db_misfit(ns_stmt_told(db->link, db->stmts[sql], err), err);
}

ns_status ns_db_send(ns_db *db, ns_sql sql, const ns_column *cols, ns_err *err) {
  ns_status st = ns_db_prepare(db, sql, err);
  return st == NS_OK ? ns_stmt_send(db->link, db->stmts[sql], cols, 1, err) : st;
}

/* A server that a KILL QUERY has hit may leave off in the middle and say OK. */
ns_status ns_db_check_changed(int64_t changed, int64_t expected, ns_err *err) {
  if (changed >= expected)
    return NS_OK;
  ns_fail(err, NS_EBUSY, "the server has changed %lld rows of %lld: the statement was interrupted",
          (long long)changed, (long long)expected);
  if (err != NULL)
    err->sqlerr = NS_RUN_AGAIN;
  return NS_EBUSY;
}

ns_status ns_db_bulk(ns_db *db, ns_sql sql, const ns_column *cols, size_t nrows, ns_err *err) {
  return ns_db_bulk_changing(db, sql, cols, nrows, (int64_t)nrows, err);
}

ns_status ns_db_bulk_changing(ns_db *db, ns_sql sql, const ns_column *cols, size_t nrows,
                              int64_t changes, ns_err *err) {
  bool there = nrows == 0 && db->stmts[sql] != NULL; /* nothing to prepare it for */
  ns_status st = there ? NS_OK : ns_db_prepare(db, sql, err);
  if (st == NS_OK)
    st = ns_stmt_bulk(db->link, db->stmts[sql], cols, nrows, err);
  if (st == NS_OK)
    st = ns_db_check_changed(ns_db_affected(db, sql), changes, err);
  return ns_db_misfit(st, err);
}

ns_status ns_db_row(ns_db *db, ns_sql sql, const ns_value **row, ns_err *err) {
  ns_assert(db->link != NULL && db->stmts[sql] != NULL);
  return ns_stmt_fetch(db->link, db->stmts[sql], row, err);
}

int64_t ns_db_affected(const ns_db *db, ns_sql sql) {
  return ns_stmt_affected(db->stmts[sql]);
}

/* ------------------------------------------------------------- by text */

ns_status ns_db_text(ns_db *db, const char *sql, ns_err *err) {
  ns_status st = need_link(db, err);
  return st == NS_OK ? ns_link_text(db->link, sql, err) : st;
}

/* The cached statement of this text, or the place for it. */
static ns_text_stmt *text_slot(ns_db *db, ns_bytes sql) {
  ns_text_stmt *oldest = &db->texts[0];
  ns_assert(db->link != NULL);
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

static ns_status prepare_cached(ns_db *db, ns_stmt **out, ns_bytes sql, bool brief, ns_err *err) {
  ns_status st = need_link(db, err);
  ns_text_stmt *slot;
  *out = NULL;
  if (st != NS_OK)
    return st;
  slot = text_slot(db, sql);
  if (slot->sql == NULL) {
    char *copy = malloc(sql.n + 1);
    if (copy == NULL)
      return ns_no_memory(err);
    memcpy(copy, sql.p, sql.n);
    st = brief ? ns_link_brief(db->link, &slot->stmt, NULL, copy, sql.n, err)
               : ns_link_prepare(db->link, &slot->stmt, NULL, copy, sql.n, err);
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

ns_status ns_db_prepared(ns_db *db, ns_stmt **out, ns_bytes sql, ns_err *err) {
  return prepare_cached(db, out, sql, false, err);
}

ns_status ns_db_prepared_brief(ns_db *db, ns_stmt **out, ns_bytes sql, ns_err *err) {
  return prepare_cached(db, out, sql, !db->cfg.host_session, err);
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

#define SAVEPOINT_UNKNOWN 1305
#define INTERRUPTED 1317 /* by a KILL QUERY */

/* "@name" stands for a statement of sql/query. */
static ns_status resolve_name(ns_bytes *sql, ns_err *err) {
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
  return err->sqlerr == 1213 || err->sqlerr == 1020 || (err->sqlerr == 1205 && db->never_fast);
}

static ns_status execute_text(ns_db *db, ns_bytes sql, const ns_value *params, size_t nparams,
                              ns_err *err) {
  ns_stmt *s;
  ns_status st = ns_db_prepared(db, &s, sql, err);
  if (st != NS_OK)
    return st;
  if (ns_stmt_params(s) != nparams)
    return ns_fail(err, NS_EINVALID, "the statement has %zu placeholders but %zu values came",
                   ns_stmt_params(s), nparams);
  db->current = s;
  return ns_stmt_run(db->link, s, params, err);
}

/* A table or routine that the caller's own SQL misses is the caller's, unless it bears
** one of our names. */
static ns_status blame_caller(ns_status st, ns_err *err) {
  bool ours = strstr(err->message, "nightshift_") != NULL;
  return st == NS_ESCHEMA && !ours ? (err->status = NS_ESQL) : st;
}

/* One that may end the caller's transaction, by itself or in a procedure: then a
** savepoint from before it is gone. */
static ns_status execute_watched(ns_db *db, ns_bytes sql, const ns_value *params, size_t nparams,
                                 ns_err *err) {
  ns_err lost;
  ns_status st = ns_db_text(db, "SAVEPOINT nightshift_kept", err);
  if (st != NS_OK)
    return st;
  st = execute_text(db, sql, params, nparams, err);
  if (ns_db_text(db, "RELEASE SAVEPOINT nightshift_kept", &lost) == NS_OK ||
      lost.sqlerr != SAVEPOINT_UNKNOWN || ends_transaction(db, err))
    return st;
  db->ended_tx = true;
  return ns_fail(err, NS_ESTATE,
                 "this statement has ended the transaction: what came before it "
                 "is decided, and nothing can follow it");
}

/* What people and handlers are told; those have no effects. */
static bool is_report(ns_bytes name) {
  return (name.n > 8 && memcmp(name.p, "@report_", 8) == 0) ||
         (name.n == 13 && memcmp(name.p, "@edge_results", 13) == 0) ||
         (name.n == 11 && memcmp(name.p, "@edge_count", 11) == 0);
}

/* A report outside a transaction that was cut is asked for once more: a handler that asks for
** the results of a job has no use for the news that a KILL has met it. */
static ns_status execute_report(ns_db *db, ns_bytes sql, const ns_value *params, size_t nparams,
                                ns_err *err) {
  bool alone = !ns_in_transaction(db);
  ns_status st = execute_text(db, sql, params, nparams, err);
  if (!alone || (st != NS_EGONE && err->sqlerr != INTERRUPTED))
    return st;
  ns_err_clear(err);
  st = ns_db_ready(db, err);
  return st == NS_OK ? execute_text(db, sql, params, nparams, err) : st;
}

ns_status ns_execute(ns_db *db, ns_bytes sql, const ns_value *params, size_t nparams,
                     ns_result *result, ns_err *err) {
  ns_status st;
  bool ours = sql.n > 0 && sql.p[0] == '@';
  bool watched = ns_in_transaction(db) && !ours && !ns_db_stays_inside(sql);
  bool report = is_report(sql);
  *result = (ns_result){0};
  ns_err_clear(err);
  if ((st = resolve_name(&sql, err)) != NS_OK || (st = ns_db_ready(db, err)) != NS_OK ||
      (!ours && (st = ns_db_session_allows(db, sql, err)) != NS_OK))
    return st;
  st = watched  ? execute_watched(db, sql, params, nparams, err)
       : report ? execute_report(db, sql, params, nparams, err)
                : execute_text(db, sql, params, nparams, err);
  st = blame_caller(st, err);
  if (db->user_tx && ends_transaction(db, err))
    db->broken_tx = true;
  if (!ours)
    st = ns_db_session_saw(db, st, err);
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

/* --------------------------------------------------------------------- lists */

void ns_db_list_add_id(ns_buf *list, int64_t id) {
  ns_buf_addf(list, "%c%lld", list->n > 0 ? ',' : '[', (long long)id);
}

void ns_db_list_add_pair(ns_buf *list, int64_t id, int64_t run) {
  ns_buf_addf(list, "%s[%lld,%lld]", list->n > 0 ? "," : "[", (long long)id, (long long)run);
}

bool ns_db_list_is_empty(const ns_buf *list) {
  return list->n == 0 && !list->oom;
}

ns_value ns_db_list_end(ns_buf *list) {
  ns_buf_adds(list, list->n > 0 ? "]" : "[]");
  return ns_vtext(ns_buf_bytes(list));
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
