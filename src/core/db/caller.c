/*
** The caller's own SQL: running it, and setting back the session that it may change. This file
** knows which statements are refused and which may leave something behind.
**
** Invariant: outside ns_begin and ns_commit no transaction of the caller's stays open and
** autocommit is on. So no statement of ours commits the caller's work. A statement that may
** have changed the session marks it. A session without a mark is as it was at connect, except
** for named locks that a trigger, view or function takes unseen. Asserted before a transaction
** of ours begins (ns_db_session_begins). A report that was interrupted outside a transaction is
** run once more; no other statement of the caller's is.
*/
#include "db/db.h"

#include <string.h>
#include <strings.h>

#include "base.h"
#include "handle.h"

/* -------------------------------------------------------------- the text */

static bool is_blank(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_wordly(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '$' || (unsigned char)c >= 0x80;
}

static ns_bytes skip_bytes(ns_bytes s, size_t n) {
  return n < s.n ? (ns_bytes){s.p + n, s.n - n} : (ns_bytes){s.p + s.n, 0};
}

static bool begins_with(ns_bytes s, const char *text) {
  size_t n = strlen(text);
  return s.n >= n && memcmp(s.p, text, n) == 0;
}

/* The text behind the first occurrence of 'end', or nothing. */
static ns_bytes text_behind(ns_bytes s, const char *end) {
  while (s.n > 0 && !begins_with(s, end))
    s = skip_bytes(s, 1);
  return skip_bytes(s, strlen(end));
}

/* The server runs the text of a comment with a version number. */
static ns_bytes open_comment(ns_bytes s) {
  s = skip_bytes(s, begins_with(s, "/*M!") ? 4 : 3);
  while (s.n > 0 && *s.p >= '0' && *s.p <= '9')
    s = skip_bytes(s, 1);
  return s;
}

/* Drops blanks and comments before the next word, sign or quoted text. */
static ns_bytes trim_left(ns_bytes s) {
  for (;;) {
    if (s.n > 0 && is_blank(*s.p))
      s = skip_bytes(s, 1);
    else if (begins_with(s, "#") || begins_with(s, "-- ") || begins_with(s, "--\n") ||
             begins_with(s, "--\t"))
      s = text_behind(s, "\n");
    else if (begins_with(s, "/*!") || begins_with(s, "/*M!"))
      s = open_comment(s);
    else if (begins_with(s, "/*"))
      s = text_behind(skip_bytes(s, 2), "*/");
    else if (begins_with(s, "*/"))
      s = skip_bytes(s, 2);
    else
      return s;
  }
}

/* A quoted text with its quotes; a doubled quote or one behind a \ does not end it. */
static size_t quoted_length(ns_bytes s) {
  char quote = *s.p;
  size_t i = 1;
  while (i < s.n && s.p[i] != quote)
    i += s.p[i] == '\\' && quote != '`' && i + 1 < s.n ? 2 : 1;
  return i < s.n ? i + 1 : s.n;
}

/* Takes the next word off a statement, or one sign, or a quoted text; empty: its end. */
static ns_bytes take_word(ns_bytes *sql) {
  ns_bytes s = trim_left(*sql);
  size_t n = 0;
  while (n < s.n && is_wordly(s.p[n]))
    n++;
  if (n == 0 && s.n > 0)
    n = *s.p == '\'' || *s.p == '"' || *s.p == '`' ? quoted_length(s) : 1;
  *sql = skip_bytes(s, n);
  return (ns_bytes){s.p, n};
}

/* The first word: a statement may stand in brackets. */
static ns_bytes take_verb(ns_bytes *sql) {
  ns_bytes word = take_word(sql);
  while (word.n == 1 && *word.p == '(')
    word = take_word(sql);
  return word;
}

static bool is_word(ns_bytes word, const char *text) {
  return word.n == strlen(text) && strncasecmp(word.p, text, word.n) == 0;
}

static bool is_one_of(ns_bytes word, const char *const *words) {
  for (; *words != NULL; words++)
    if (is_word(word, *words))
      return true;
  return false;
}

/* Does a statement, by its first words, leave the open transaction open? False: it may end
** it, by itself or in a procedure. */
static bool stays_inside(ns_bytes sql) {
  static const char *const words[] = {"SELECT", "INSERT",    "UPDATE",  "DELETE", "REPLACE",
                                      "WITH",   "SAVEPOINT", "RELEASE", NULL};
  ns_bytes word = take_verb(&sql);
  if (is_one_of(word, words))
    return true;
  if (!is_word(word, "ROLLBACK"))
    return false;
  word = take_word(&sql);
  return is_word(word, "TO") || (is_word(word, "WORK") && is_word(take_word(&sql), "TO"));
}

/* Does a SET assign to a variable that says how transactions begin and end? A variable of the
** caller's own (@autocommit), or one that is only read, does not count. */
static bool sets_transactions(ns_bytes sql) {
  static const char *const names[] = {"autocommit", "`autocommit`", "completion_type",
                                      "`completion_type`", NULL};
  size_t ats = 0;
  for (ns_bytes word = take_word(&sql); word.n > 0; word = take_word(&sql)) {
    ns_bytes rest = sql;
    ns_bytes next = take_word(&rest);
    if (ats != 1 && is_one_of(word, names) && (is_word(next, "=") || is_word(next, ":")))
      return true;
    ats = *word.p == '@' ? ats + 1 : 0;
  }
  return false;
}

/* Does a SET have the session take or give texts in another character set than ours? */
static bool sets_charset(ns_bytes sql) {
  static const char *const ours[] = {"utf8mb4", "'utf8mb4'", "\"utf8mb4\"", "`utf8mb4`", NULL};
  static const char *const names[] = {"character_set_client", "character_set_connection",
                                      "character_set_results", NULL};
  ns_bytes word = take_word(&sql);
  if (is_word(word, "GLOBAL"))
    return false;
  if (is_word(word, "NAMES") || is_word(word, "CHARSET"))
    return !is_one_of(take_word(&sql), ours);
  if (is_word(word, "CHARACTER"))
    return is_word(take_word(&sql), "SET") && !is_one_of(take_word(&sql), ours);
  for (size_t ats = 0; word.n > 0; word = take_word(&sql)) {
    ns_bytes rest = sql;
    ns_bytes next = take_word(&rest);
    if (is_word(next, ":"))
      next = take_word(&rest);
    if (ats != 1 && is_one_of(word, names) && is_word(next, "=") &&
        !is_one_of(take_word(&rest), ours))
      return true;
    ats = *word.p == '@' ? ats + 1 : 0;
  }
  return false;
}

/* Does it say that it begins or ends a transaction, or a part of one? */
static bool is_of_transactions(ns_bytes sql) {
  static const char *const words[] = {"COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", NULL};
  ns_bytes verb = take_verb(&sql);
  if (is_word(verb, "BEGIN")) /* NOT ATOMIC: a block of statements */
    return !is_word(take_word(&sql), "NOT");
  if (is_word(verb, "START"))
    return is_word(take_word(&sql), "TRANSACTION");
  if (is_word(verb, "XA"))
    return !is_word(take_word(&sql), "RECOVER");
  return is_one_of(verb, words) || (is_word(verb, "SET") && sets_transactions(sql));
}

/* Does it lock tables, 1, or unlock them, -1? FLUSH TABLES WITH READ LOCK, of all of them,
** does not count: transactions leave that as it is. */
static int lock_change(ns_bytes sql) {
  ns_bytes verb = take_word(&sql);
  ns_bytes word = take_word(&sql);
  bool flush = is_word(verb, "FLUSH");
  if (flush && (is_word(word, "LOCAL") || is_word(word, "NO_WRITE_TO_BINLOG")))
    word = take_word(&sql);
  if (!is_word(word, "TABLES") && !is_word(word, "TABLE"))
    return 0;
  if (!flush || is_word(word = take_word(&sql), "WITH"))
    return is_word(verb, "LOCK") ? 1 : is_word(verb, "UNLOCK") ? -1 : 0;
  for (; word.n > 0; word = take_word(&sql))
    if (is_word(word, "READ") || is_word(word, "EXPORT"))
      return 1;
  return 0;
}

/* Has it no words that change a session? Triggers and functions are the server's to tell. */
static bool is_plain(ns_bytes sql) {
  static const char *const verbs[] = {"SELECT",  "INSERT", "UPDATE", "DELETE",
                                      "REPLACE", "WITH",   "VALUES", NULL};
  static const char *const others[] = {"GET_LOCK", "RELEASE_LOCK", "RELEASE_ALL_LOCKS",
                                       "NEXTVAL",  "NEXT",         /* VALUE FOR */ NULL};
  if (!is_one_of(take_verb(&sql), verbs))
    return false;
  for (ns_bytes word = take_word(&sql); word.n > 0; word = take_word(&sql))
    if (*word.p == '@' || is_one_of(word, others))
      return false;
  return true;
}

/* --------------------------------------------------------------- the marks */

/* Default database and role, as a number: these alone are not set back. */
static ns_status read_place(ns_db *db, int64_t *place, ns_err *err) {
  const ns_value *row = NULL;
  ns_status st = ns_db_run(db, NS_SQL_SESSION_PLACE, NULL, err);
  *place = 0;
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_SESSION_PLACE, &row, err);
  if (st == NS_OK && row != NULL)
    *place = row[0].i + 1; /* 0: not known */
  return st;
}

/* Checks a statement of the caller's before it runs. Errors: as of a statement. STATE for a
** statement that begins or ends a transaction, outside ns_begin and ns_commit. STATE for one
** that names another character set than utf8mb4. */
static ns_status allow_statement(ns_db *db, ns_bytes sql, ns_err *err) {
  ns_status st = NS_OK;
  ns_bytes rest = sql;
  if (!ns_in_transaction(db) && is_of_transactions(sql))
    return ns_fail(err, NS_ESTATE,
                   "a transaction is begun and ended by db:transaction(function(tx) … end), "
                   "a part of it by tx:try(function(tx) … end); this statement was not run");
  if (is_word(take_verb(&rest), "SET") && sets_charset(rest))
    return ns_fail(err, NS_ESTATE,
                   "this connection's texts are UTF-8 (utf8mb4), jobs' too, and stay so; write "
                   "CONVERT(text USING latin1), say; this statement was not run");
  db->session.doubtful = !is_plain(sql);
  if (db->session.doubtful) {
    if (db->session.place == 0)
      st = read_place(db, &db->session.place, err);
    db->session.marked = true;
  }
  db->session.locking = lock_change(sql);
  db->session.used = true;
  return st;
}

/* Has the statement left a transaction open? An error does not say: a procedure may have begun
** a transaction before it failed. */
static bool left_open(ns_db *db, ns_status st) {
  if (st != NS_OK && db->session.doubtful && ns_db_text(db, "DO 0", NULL) != NS_OK)
    ns_link_give_up(db->link);
  return !ns_link_dead(db->link) && ns_link_is_open(db->link);
}

/* A procedure may have changed the character set. A session that does not take ours back is
** given up. */
static ns_status speak_utf8(ns_db *db, ns_status st, ns_err *err) {
  if (ns_link_is_utf8(db->link))
    return st;
  if (ns_db_text(db, "SET NAMES utf8mb4 COLLATE utf8mb4_general_ci", NULL) != NS_OK)
    ns_link_give_up(db->link);
  return st != NS_OK ? st
                     : ns_fail(err, NS_ESTATE,
                               "this statement has changed the connection's character set, "
                               "which was set back: its texts are UTF-8 (utf8mb4)");
}

/* Runs after the caller's statement; 'st' is its outcome. STATE when the statement has left a
** transaction open outside ns_begin and ns_commit; the transaction is rolled back. */
static ns_status see_what_is_left(ns_db *db, ns_status st, ns_err *err) {
  if (db->link == NULL || ns_link_dead(db->link))
    return st;
  st = speak_utf8(db, st, err);
  db->session.marked = db->session.marked || ns_link_is_marked(db->link);
  if (st == NS_OK && db->session.locking != 0)
    db->session.tables = db->session.locking > 0;
  if (ns_in_transaction(db) || !left_open(db, st))
    return st;
  ns_db_session_end(db);
  if (st != NS_OK)
    return ns_err_context(err, "the transaction that this has left open was rolled back");
  return ns_fail(err, NS_ESTATE,
                 "this statement has left a transaction open, which was rolled back; use "
                 "db:transaction(function(tx) … end)");
}

/* ---------------------------------------------------------------- running it */

#define SAVEPOINT_UNKNOWN 1305
#define INTERRUPTED 1317 /* by a KILL QUERY */

/* "@name" stands for a statement of sql/query, "@:text" for another of the library's own. */
static ns_status resolve_name(ns_bytes *sql, ns_err *err) {
  char name[64];
  const char *text;
  if (sql->n < 2 || sql->p[0] != '@')
    return NS_OK;
  if (sql->p[1] == ':') {
    *sql = (ns_bytes){sql->p + 2, sql->n - 2};
    return NS_OK;
  }
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

/* A table or routine that the caller's own SQL misses is the caller's, unless it has one of our
** names. */
static ns_status blame_caller(ns_status st, ns_err *err) {
  bool ours = strstr(err->message, "nightshift_") != NULL;
  return st == NS_ESCHEMA && !ours ? (err->status = NS_ESQL) : st;
}

/* Runs a statement that may end the caller's transaction, by itself or in a procedure: then a
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

/* Reports for people and handlers; they have no effects. */
static bool is_report(ns_bytes name) {
  return (name.n > 8 && memcmp(name.p, "@report_", 8) == 0) ||
         (name.n == 13 && memcmp(name.p, "@edge_results", 13) == 0) ||
         (name.n == 11 && memcmp(name.p, "@edge_count", 11) == 0);
}

/* A report outside a transaction that was cut is asked for once more. A handler that asks for
** the results of a job has no use for the news of a KILL. */
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
  bool watched = ns_in_transaction(db) && !ours && !stays_inside(sql);
  bool report = is_report(sql);
  *result = (ns_result){0};
  ns_err_clear(err);
  if ((st = resolve_name(&sql, err)) != NS_OK || (st = ns_db_ready(db, err)) != NS_OK ||
      (!ours && (st = allow_statement(db, sql, err)) != NS_OK))
    return st;
  st = watched  ? execute_watched(db, sql, params, nparams, err)
       : report ? execute_report(db, sql, params, nparams, err)
                : execute_text(db, sql, params, nparams, err);
  st = blame_caller(st, err);
  if (db->user_tx && ends_transaction(db, err))
    db->broken_tx = true;
  if (!ours)
    st = see_what_is_left(db, st, err);
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

/* -------------------------------------------------------------- setting back */

/* A session that took locks unseen releases them, and LAST_INSERT_ID() tells of no other job's
** row. A holder's own lock stays. */
static bool forget_unseen(ns_db *db) {
  return ns_db_text(db,
                    db->holder != 0 ? "DO LAST_INSERT_ID(0)"
                                    : "DO RELEASE_ALL_LOCKS(), LAST_INSERT_ID(0)",
                    NULL) == NS_OK;
}

/* False: only another connection is as it should be. */
static bool reset_session(ns_db *db) {
  ns_config room;
  ns_err none;
  int64_t before = db->session.place;
  int64_t place;
  db->current = NULL;
  db->may_ring = db->session.tables = false;
  return before != 0 && ns_link_reset(db->link, ns_db_config(db, &room), &none) == NS_OK &&
         read_place(db, &place, &none) == NS_OK && place == before;
}

/* A holder has a named lock and maybe claims, which are taken up again as after any loss. */
static void clean_session(ns_db *db) {
  bool done = db->session.marked ? db->holder == 0 && reset_session(db) : forget_unseen(db);
  if (!done)
    ns_db_leave_session(db);
  else
    db->session = (ns_left_behind){.place = db->session.place,
                                   .hurried = !db->session.marked && db->session.hurried};
}

void ns_session_bar(ns_db *db, bool yes) {
  db->barred = yes;
}

void ns_session_reset(ns_db *db, bool *open) {
  *open = ns_in_transaction(db);
  db->action.open = false;
  if (db->user_tx)
    ns_rollback(db);
  if (db->link == NULL || ns_is_foreign(db) || ns_link_dead(db->link))
    return;
  ns_link_answers(db->link, NULL, NULL);
  if (db->session.used && ns_link_is_open(db->link)) {
    *open = true;
    ns_db_session_end(db);
  }
  if (!ns_link_dead(db->link) && db->session.used)
    clean_session(db);
}
