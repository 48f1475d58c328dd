/*
** Statements on the connection of a handle: statements of sql/query by their names, all others
** by their text. Each is run once, on the current connection. Some are a whole transaction. And
** lists as parameters, which the server takes apart (JSON_TABLE), so that one text serves any
** number of keys. The kind of a job's name, which is a parameter for the name.
**
** Invariant: prepared statements belong to the current connection: both caches are emptied with
** it. No statement of ours runs while the caller's own SQL has tables locked, or has left a
** transaction open.
*/
#include "db/db.h"

#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "handle.h"

void ns_db_forget_statements(ns_db *db) {
  memset(db->stmts, 0, sizeof db->stmts);
  ns_db_foresee_end(db);
  for (size_t i = 0; i < NS_TEXTS; i++)
    free(db->texts[i].sql);
  memset(db->texts, 0, sizeof db->texts);
  db->current = NULL;
  db->may_ring = false;
}

/* For assertions: does the session of a handle that is in no transaction have none open? */
static bool is_at_rest(const ns_db *db) {
  return db->in_tx || db->user_tx || db->connecting || db->link == NULL || ns_link_dead(db->link) ||
         !ns_link_is_open(db->link);
}

ns_status ns_db_session_begins(const ns_db *db, ns_err *err) {
  ns_assert(is_at_rest(db));
  return db->session.tables
             ? ns_fail(err, NS_ESTATE,
                       "the session has tables locked (LOCK TABLES): UNLOCK TABLES first, "
                       "or use db:lock")
             : NS_OK;
}

/* ------------------------------------------------------------- by name */

const char *ns_sql_text(const char *name) {
  for (size_t i = 0; i < NS_SQL_COUNT; i++)
    if (strcmp(ns_sql_names[i], name) == 0)
      return ns_sql_texts[i];
  return NULL;
}

const char *ns_sql_name(size_t i) {
  return i < NS_SQL_COUNT ? ns_sql_names[i] : NULL;
}

/* Looks and calls of a connect or a start, of which several are sent at once. */
static bool is_of_start(ns_sql sql) {
  static const ns_sql all[] = {
      NS_SQL_SERVER_NOW,        NS_SQL_SERVER_CLUSTER,   NS_SQL_HANDLE_SCHEMA,
      NS_SQL_RESCUE_HOLDERS,    NS_SQL_RESCUE_EXPIRED,   NS_SQL_RESCUE_ORPHANS,
      NS_SQL_DEPEND_PENDING_ANY, NS_SQL_HOLDER_LOCK,     NS_SQL_LISTEN_NUDGE,
      NS_SQL_DOCTOR_CALL_LISTEN, NS_SQL_DOCTOR_CALL_NUDGE, NS_SQL_DOCTOR_CALL_RING};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
    if (all[i] == sql)
      return true;
  return false;
}

/* Statements that need no place. Of a program they are also those of integers that it runs while it
** claims one job at a time. The rest are as many as there are places. */
static bool is_brief(const ns_db *db, ns_sql sql) {
  static const ns_sql brief[] = {
      NS_SQL_HOLDER_CYCLE,       NS_SQL_SETTLE_LEASE, NS_SQL_SETTLE_EXPIRY,
      NS_SQL_SETTLE_HIDDEN,      NS_SQL_HANDLE_IDS,   NS_SQL_CLAIM_ADMISSION_ENTER,
      NS_SQL_CLAIM_PROMOTE_NEXT, NS_SQL_CLAIM_ADMISSION_LEAVE};
  for (size_t i = 0; i < sizeof brief / sizeof brief[0]; i++)
    if (brief[i] == sql)
      return !db->cfg.host_session;
  return is_of_start(sql);
}

/* The name of a statement in reports that it takes long; NULL: to wait is its
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

/* As ns_db_prepare, but it is prepared with its first run. */
static ns_status plan(ns_db *db, ns_sql sql, ns_err *err) {
  const char *text = ns_sql_texts[sql];
  ns_status st = need_link(db, err);
  if (st != NS_OK || db->stmts[sql] != NULL)
    return st;
  return is_brief(db, sql) ? ns_db_prepare(db, sql, err)
                           : ns_link_plan(db->link, &db->stmts[sql], reported_name(sql), text,
                                          strlen(text), err);
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

void ns_db_foresee(ns_db *db, ns_sql sql, const ns_value *params) {
  db->foreseen[sql] = ns_db_send_query(db, sql, params, NULL) == NS_OK;
}

void ns_db_foresee_end(ns_db *db) {
  memset(db->foreseen, 0, sizeof db->foreseen);
}

ns_status ns_db_run_once(ns_db *db, ns_sql sql, const ns_value *params, ns_err *err) {
  ns_status st = ns_db_session_begins(db, err);
  if (db->foreseen[sql]) {
    db->foreseen[sql] = false;
    return ns_db_read_answer(db, sql, err);
  }
  if (st == NS_OK)
    st = plan(db, sql, err);
  if (st == NS_OK)
    st = ns_stmt_run(db->link, db->stmts[sql], params, err);
  return ns_db_misfit(st, err);
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

/* ------------------------------------------------------- in one statement */

static ns_status run_whole(ns_db *db, ns_stmt *s, const ns_value *params, bool *cut, ns_err *err) {
  ns_status st = ns_db_misfit(ns_stmt_run(db->link, s, params, err), err);
  if (st == NS_OK)
    return NS_OK;
  *cut = st == NS_EGONE || (st == NS_EBUSY && !ns_link_retryable(err));
  /* handlers do not see a KILL */
  if (!ns_link_dead(db->link) && ns_link_text(db->link, "ROLLBACK", NULL) != NS_OK)
    ns_link_give_up(db->link);
  return st;
}

ns_status ns_db_run_whole(ns_db *db, ns_sql sql, const ns_value *params, bool *cut, ns_err *err) {
  ns_status st;
  *cut = false;
  if ((st = ns_db_ready(db, err)) != NS_OK || (st = ns_db_session_begins(db, err)) != NS_OK ||
      (st = ns_db_prepare(db, sql, err)) != NS_OK)
    return st;
  return run_whole(db, db->stmts[sql], params, cut, err);
}

ns_status ns_db_run_whole_text(ns_db *db, ns_bytes sql, const ns_value *params, ns_stmt **s,
                               bool *cut, ns_err *err) {
  ns_status st;
  *cut = false;
  if ((st = ns_db_ready(db, err)) != NS_OK || (st = ns_db_session_begins(db, err)) != NS_OK ||
      (st = ns_db_prepared(db, s, sql, err)) != NS_OK)
    return st;
  return run_whole(db, *s, params, cut, err);
}

/* --------------------------------------------------------------------- kinds */

int64_t ns_db_kind_of(ns_bytes name) {
  static const uint32_t table[16] = {0x00000000, 0x1DB71064, 0x3B6E20C8, 0x26D930AC,
                                     0x76DC4190, 0x6B6B51F4, 0x4DB26158, 0x5005713C,
                                     0xEDB88320, 0xF00F9344, 0xD6D6A3E8, 0xCB61B38C,
                                     0x9B64C2B0, 0x86D3D2D4, 0xA00AE278, 0xBDBDF21C};
  uint32_t crc = UINT32_MAX;
  for (size_t i = 0; i < name.n; i++) {
    crc ^= (unsigned char)name.p[i];
    crc = table[crc & 15] ^ (crc >> 4);
    crc = table[crc & 15] ^ (crc >> 4);
  }
  return (int64_t)(crc ^ UINT32_MAX);
}

ns_status ns_db_no_job(int64_t id, ns_err *err) {
  return ns_fail(err, NS_ENOTFOUND, "there is no job %lld, live or in the history", (long long)id);
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
