/*
** The session behind a handle's connection, as far as the caller's own SQL changes it:
** which statements are refused, which may leave something behind, and setting all of it
** back.
**
** Invariant: outside ns_begin and ns_commit no transaction of the caller's stays open and
** autocommit is on, so nothing of ours commits what the caller has begun. A statement
** that may have changed the session marks it; a session without a mark is as it was at
** connect, but for named locks that a trigger, view or function takes unseen. Asserted
** before a transaction of ours begins (ns_db_session_begins).
*/
#include "db/inner.h"

#include <string.h>
#include <strings.h>

#include "err.h"
#include "holder/holder.h"

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

/* What stands behind the first occurrence of 'end', or nothing. */
static ns_bytes text_behind(ns_bytes s, const char *end) {
  while (s.n > 0 && !begins_with(s, end))
    s = skip_bytes(s, 1);
  return skip_bytes(s, strlen(end));
}

/* What a comment with a version number in it says is run. */
static ns_bytes open_comment(ns_bytes s) {
  s = skip_bytes(s, begins_with(s, "/*M!") ? 4 : 3);
  while (s.n > 0 && *s.p >= '0' && *s.p <= '9')
    s = skip_bytes(s, 1);
  return s;
}

/* Without what stands before the next word, sign or quoted text. */
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

bool ns_db_stays_inside(ns_bytes sql) {
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

/* Does a SET assign to a variable that says how transactions begin and end? One of the
** caller's own (@autocommit) and one that is only read say nothing. */
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

ns_status ns_db_session_allows(ns_db *db, ns_bytes sql, ns_err *err) {
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

/* The caller's own is rolled back, no other follows it, and autocommit is on. A session that
** will not is given up. */
static void end_open_transaction(ns_db *db) {
  if (!ns_link_dead(db->link) && ns_db_text(db, "SET SESSION completion_type=0", NULL) != NS_OK)
    ns_link_give_up(db->link);
  ns_db_roll_back(db);
  if (!ns_link_dead(db->link) && ns_link_is_open(db->link) &&
      ns_db_text(db, "SET SESSION autocommit=1", NULL) != NS_OK)
    ns_link_give_up(db->link);
}

/* An error does not say what is open behind it: a procedure may have begun a transaction
** before it failed. */
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

ns_status ns_db_session_saw(ns_db *db, ns_status st, ns_err *err) {
  if (db->link == NULL || ns_link_dead(db->link))
    return st;
  st = speak_utf8(db, st, err);
  db->session.marked = db->session.marked || ns_link_is_marked(db->link);
  if (st == NS_OK && db->session.locking != 0)
    db->session.tables = db->session.locking > 0;
  if (ns_in_transaction(db) || !left_open(db, st))
    return st;
  end_open_transaction(db);
  if (st != NS_OK)
    return ns_err_context(err, "the transaction that this has left open was rolled back");
  return ns_fail(err, NS_ESTATE,
                 "this statement has left a transaction open, which was rolled back; use "
                 "db:transaction(function(tx) … end)");
}

void ns_db_session_end(ns_db *db) {
  if (db->link != NULL && !ns_link_dead(db->link) && ns_link_is_open(db->link))
    end_open_transaction(db);
}

/* -------------------------------------------------------------- setting back */

/* What takes locks unseen keeps them no longer, and LAST_INSERT_ID() tells of no other
** job's row. A holder's own lock stays. */
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
    db->session = (ns_left_behind){.place = db->session.place};
}

void ns_session_bar(ns_db *db, bool yes) {
  db->barred = yes;
}

void ns_session_reset(ns_db *db, bool *open) {
  *open = ns_in_transaction(db);
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
