/*
** Migrations. Files of sql/schema are applied in order, each statement on its own, since
** MariaDB's DDL commits by itself. The version is written after the last statement of each
** file. A named lock lets one process migrate at a time.
**
** Invariant: a migration that was cut off is repeated from its file's first statement; "exists
** already" then counts as done. No assert: the server knows which tables exist.
**
** Procedures and views (routines.sql) hold no rows, so every migration makes them anew. So a
** routine that was dropped, or belongs to a deleted user, comes back.
**
** A statement waits for each transaction that uses its table, is inside its procedure or has
** read its view, and other sessions wait behind us. So each try of each statement is short.
*/
#include "db/db.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "handle.h"

#define ER_TABLE_EXISTS 1050
#define ER_SP_EXISTS 1304
#define ER_NO_SUCH 1146
#define ER_NO_SUPER_AND_BINLOG 1419
#define TRIES 10 /* of a second each */

const char *ns_schema_text(size_t i, int *version, const char **name) {
  const ns_schema_statement *s = ns_schema_statements;
  while (s->version != 0 && i-- > 0)
    s++;
  *version = s->version;
  *name = s->name;
  return s->text;
}

/* The version found; 0 when there are no tables. */
static ns_status read_version(ns_db *db, int *version, ns_err *err) {
  const ns_value *row = NULL;
  ns_status st = ns_db_run(db, NS_SQL_HANDLE_SCHEMA, NULL, err);
  *version = 0;
  if (st == NS_ESCHEMA && err->sqlerr == ER_NO_SUCH) {
    ns_err_clear(err);
    return NS_OK;
  }
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_HANDLE_SCHEMA, &row, err);
  if (st == NS_OK && row != NULL && row[0].type == NS_TEXT) {
    char digits[16];
    snprintf(digits, sizeof digits, "%.*s", (int)(row[0].s.n & 15), row[0].s.p);
    *version = atoi(digits);
  }
  return st;
}

static ns_status refuse_newer(int version, ns_err *err) {
  return ns_fail(err, NS_ESCHEMA,
                 "the tables have version %d, newer than the %d of this "
                 "library; upgrade the library",
                 version, NS_SCHEMA_VERSION);
}

static ns_status check_version(ns_db *db, ns_err *err) {
  int version;
  ns_status st = read_version(db, &version, err);
  if (st != NS_OK)
    return st;
  if (version == 0)
    return ns_fail(err, NS_ESCHEMA,
                   "there are no Nightshift tables in this database; run "
                   "`nightshift init`");
  if (version < NS_SCHEMA_VERSION)
    return ns_fail(err, NS_ESCHEMA,
                   "the tables have version %d, older than the %d of this "
                   "library; run `nightshift migrate`",
                   version, NS_SCHEMA_VERSION);
  return version > NS_SCHEMA_VERSION ? refuse_newer(version, err) : NS_OK;
}

static bool exists_already(const ns_err *err) {
  return err->sqlerr == ER_TABLE_EXISTS || err->sqlerr == ER_SP_EXISTS;
}

static void explain_binlog(ns_err *err) {
  ns_err why = *err;
  ns_fail(err, NS_EDENIED,
          "the server has a binary log and lets this user make no function: SET GLOBAL "
          "log_bin_trust_function_creators = ON, or let a user with SUPER do this "
          "(%.200s)",
          why.message);
}

static ns_status run_statement(ns_db *db, const ns_schema_statement *s, int most, ns_err *err) {
  ns_buf sql = NS_BUF_INIT;
  ns_status st = NS_EBUSY;
  ns_buf_adds(&sql, "SET STATEMENT lock_wait_timeout=1 FOR ");
  ns_buf_adds(&sql, s->text);
  ns_buf_add(&sql, "", 1);
  if (sql.oom)
    st = ns_no_memory(err);
  for (int tries = 0; st == NS_EBUSY && tries < most; tries++)
    st = ns_db_text(db, sql.p, err);
  ns_buf_free(&sql);
  if (st != NS_OK && err->sqlerr == ER_NO_SUPER_AND_BINLOG) {
    explain_binlog(err);
    return NS_EDENIED;
  }
  return st;
}

static ns_status apply_statement(ns_db *db, const ns_schema_statement *s, ns_err *err) {
  ns_status st = run_statement(db, s, TRIES, err);
  if (st != NS_OK && exists_already(err)) {
    ns_err_clear(err);
    return NS_OK;
  }
  return st == NS_OK ? NS_OK : ns_err_context(err, s->name);
}

static ns_status write_version(ns_db *db, int version, ns_err *err) {
  char sql[160];
  snprintf(sql, sizeof sql,
           "INSERT INTO nightshift_meta (name, value) VALUES ('schema', '%d') "
           "ON DUPLICATE KEY UPDATE value = VALUES(value)",
           version);
  return ns_db_text(db, sql, err);
}

/* Applies all files after 'version', in order. */
static ns_status apply_statements(ns_db *db, int version, ns_err *err) {
  const ns_schema_statement *s = ns_schema_statements;
  ns_status st = NS_OK;
  for (; st == NS_OK && s->version != 0; s++) {
    if (s->version <= version)
      continue;
    st = apply_statement(db, s, err);
    if (st == NS_OK && s[1].version != s->version)
      st = write_version(db, s->version, err);
  }
  return st;
}

/* A transaction that has called a function keeps it to its end (a procedure only while it
** runs). A function in use exists, has an owner, and is the newest: apply_all has made all that
** is newer than the tables were. So it stays. */
static ns_status replace_routine(ns_db *db, const ns_schema_statement *s, ns_err *err) {
  bool function = strncmp(s->text, "CREATE OR REPLACE FUNCTION ", 27) == 0;
  ns_status st = run_statement(db, s, function ? 1 : TRIES, err);
  if (st == NS_EBUSY && function) {
    ns_err_clear(err);
    return NS_OK;
  }
  return st == NS_OK ? NS_OK : ns_err_context(err, s->name);
}

static ns_status replace_routines(ns_db *db, ns_err *err) {
  ns_status st = NS_OK;
  for (const ns_schema_statement *s = ns_schema_statements; st == NS_OK && s->version != 0; s++)
    if (strncmp(s->text, "CREATE OR REPLACE ", 18) == 0)
      st = replace_routine(db, s, err);
  return st;
}

static ns_status upgrade_schema(ns_db *db, bool anew, int *from, ns_err *err) {
  ns_status st = read_version(db, from, err);
  if (st == NS_OK && *from > NS_SCHEMA_VERSION)
    return refuse_newer(*from, err);
  if (st == NS_OK)
    st = apply_statements(db, *from, err);
  return st == NS_OK && anew && *from > 0 ? replace_routines(db, err) : st;
}

ns_status ns_db_schema_raise(ns_db *db, bool anew, int *from, ns_err *err) {
  bool check = !db->cfg.no_schema;
  ns_status st;
  *from = 0;
  ns_err_clear(err);
  db->cfg.no_schema = true; /* also when this has to reconnect */
  if ((st = ns_db_ready(db, err)) == NS_OK) {
    ns_link_wait_any_time(db->link, true); /* a table may have many rows */
    st = ns_db_text(db, "DO GET_LOCK(CONCAT('nightshift-migrate:', MD5(DATABASE())), 30)", err);
  }
  if (st == NS_OK)
    st = upgrade_schema(db, anew, from, err);
  if (db->link != NULL) {
    ns_db_text(db, "DO RELEASE_LOCK(CONCAT('nightshift-migrate:', MD5(DATABASE())))", NULL);
    ns_link_wait_any_time(db->link, false);
  }
  db->cfg.no_schema = !check;
  return st;
}

ns_status ns_migrate(ns_db *db, int *from, ns_err *err) {
  int version;
  ns_status st = ns_db_schema_raise(db, true, &version, err);
  if (from != NULL)
    *from = version;
  return st;
}

static ns_status connected(ns_db *db, ns_err *err) {
  return db->cfg.no_schema ? NS_OK : check_version(db, err);
}

const ns_hooks ns_db_schema_hooks = {.connected = connected};

/* --------------------------------------------------------------- privileges */

/* Statements with a part that is put in later are left out: other statements need the same
** privileges. */
static bool is_whole(const char *sql) {
  return strstr(sql, "/*lanes*/") == NULL && strchr(sql, '{') == NULL &&
         strstr(sql, "(queues)") == NULL;
}

/* Does a holder need the statement? Verbs from outside, with their audit, and reports need other
** privileges, or more. */
static bool is_of_holders(const char *name) {
  static const char *const others[] = {"admin_", "audit_", "doctor_", "prune_", "report_", "testing_"};
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
    if (strncmp(name, others[i], strlen(others[i])) == 0)
      return false;
  return true;
}

ns_status ns_probe(ns_db *db, ns_err *err) {
  const char *texts[NS_SQL_COUNT];
  ns_status st = ns_db_ready(db, err);
  size_t n = 0;
  for (size_t i = 0; i < NS_SQL_COUNT; i++)
    if (is_of_holders(ns_sql_names[i]) && is_whole(ns_sql_texts[i]))
      texts[n++] = ns_sql_texts[i];
  return st == NS_OK ? ns_link_check(db->link, texts, n, err) : st;
}

ns_status ns_may(ns_db *db, const char *name, ns_err *err) {
  ns_status st = ns_db_ready(db, err);
  size_t i = 0;
  while (i < NS_SQL_COUNT && strcmp(ns_sql_names[i], name) != 0)
    i++;
  if (i == NS_SQL_COUNT)
    return ns_fail(err, NS_ENOTFOUND, "no statement is named '%.60s'", name);
  return st == NS_OK && is_whole(ns_sql_texts[i]) ? ns_db_try(db, (ns_sql)i, err) : st;
}
