/*
** The answers of the server: waiting for them, and how long that takes. And the server's
** errors: which of our codes each is, which may be tried again, and which a value can have
** caused.
**
** Invariants: an error that loses the connection makes its link dead. Of statements sent
** together only the first answer is waited for here, so no answer that the library has read
** ahead is waited for. No assert: both are the form of the code, a line each.
*/
#include "link/mariadb.h"

#include <errmsg.h>
#include <mysqld_error.h>
#include <string.h>
#include <sys/socket.h>

#include "base.h"

/* -------------------------------------------------------------------- errors */

typedef struct ns_meaning {
  unsigned sqlerr;
  ns_status status;
} ns_meaning;

/* Everything else is NS_ESQL. Of NS_EBUSY 1213, 1205 and 1020 are retried. */
static const ns_meaning meanings[] = {
    {ER_LOCK_DEADLOCK, NS_EBUSY},
    {ER_LOCK_WAIT_TIMEOUT, NS_EBUSY},
    {ER_CHECKREAD, NS_EBUSY},
    {CR_SERVER_GONE_ERROR, NS_EGONE},
    /* the server's trouble, not the statement's: it may well work later */
    {ER_QUERY_INTERRUPTED, NS_EBUSY},
    {ER_STATEMENT_TIMEOUT, NS_EBUSY},
    {ER_DISK_FULL, NS_EBUSY},
    {ER_RECORD_FILE_FULL, NS_EBUSY},
    {ER_LOCK_TABLE_FULL, NS_EBUSY},
    {ER_OUTOFMEMORY, NS_EBUSY},
    {ER_OUT_OF_RESOURCES, NS_EBUSY},
    {ER_ERROR_DURING_COMMIT, NS_EBUSY},
    {ER_GET_ERRNO, NS_EBUSY},
    {ER_MAX_PREPARED_STMT_COUNT_REACHED, NS_EBUSY},
    {CR_SERVER_LOST, NS_EGONE},
    {CR_SERVER_LOST_EXTENDED, NS_EGONE},
    {CR_CONNECTION_ERROR, NS_EGONE},
    {CR_CONN_HOST_ERROR, NS_EGONE},
    {CR_UNKNOWN_HOST, NS_EGONE},
    {CR_IPSOCK_ERROR, NS_EGONE},
    {ER_CON_COUNT_ERROR, NS_EGONE},
    {ER_SERVER_SHUTDOWN, NS_EGONE},
    {ER_NORMAL_SHUTDOWN, NS_EGONE},
    {ER_CONNECTION_KILLED, NS_EGONE},
    {ER_NEW_ABORTING_CONNECTION, NS_EGONE},
    {ER_ABORTING_CONNECTION, NS_EGONE},
    {4031, NS_EGONE},
    {ER_TOO_MANY_USER_CONNECTIONS, NS_EGONE},
    {ER_USER_LIMIT_REACHED, NS_EGONE},
    {ER_UNKNOWN_COM_ERROR, NS_EGONE},
    {ER_ACCESS_DENIED_ERROR, NS_EDENIED},
    {ER_DBACCESS_DENIED_ERROR, NS_EDENIED},
    {ER_ACCESS_DENIED_NO_PASSWORD_ERROR, NS_EDENIED},
    {ER_TABLEACCESS_DENIED_ERROR, NS_EDENIED},
    {ER_COLUMNACCESS_DENIED_ERROR, NS_EDENIED},
    {ER_PROCACCESS_DENIED_ERROR, NS_EDENIED},
    {ER_SPECIFIC_ACCESS_DENIED_ERROR, NS_EDENIED},
    {CR_SSL_CONNECTION_ERROR, NS_EDENIED},
    {ER_BAD_DB_ERROR, NS_ESCHEMA},
    {ER_NO_DB_ERROR, NS_ESCHEMA},
    {ER_NO_SUCH_TABLE, NS_ESCHEMA},
    {ER_SP_DOES_NOT_EXIST, NS_ESCHEMA},
    {ER_DUP_ENTRY, NS_EDUPLICATE},
    {ER_DATA_TOO_LONG, NS_ETOOBIG},
    {ER_NET_PACKET_TOO_LARGE, NS_ETOOBIG},
    {CR_NET_PACKET_TOO_LARGE, NS_ETOOBIG},
    {ER_TRUNCATED_WRONG_VALUE_FOR_FIELD, NS_EINVALID},
    {ER_CONSTRAINT_FAILED, NS_EINVALID},
    {CR_OUT_OF_MEMORY, NS_ENOMEM},
};

/* An option keeps a statement from being run. A read-only server will be writable again, or
** replaced; the limit of a session's memory is the server's trouble. */
static ns_status meaning_of_prevention(const char *text) {
  if (strstr(text, "read-only") != NULL || strstr(text, "read_only") != NULL ||
      strstr(text, "READ_ONLY") != NULL)
    return NS_EGONE;
  return strstr(text, "max-session-mem-used") != NULL ? NS_EBUSY : NS_ESQL;
}

static ns_status meaning_of(unsigned sqlerr, const char *text) {
  if (sqlerr == ER_OPTION_PREVENTS_STATEMENT)
    return meaning_of_prevention(text);
  if (sqlerr == ER_ERROR_DURING_COMMIT && strstr(text, "Primary Component") != NULL)
    return NS_EGONE; /* a node of a cluster that is cut off */
  if (sqlerr == ER_SIGNAL_EXCEPTION && strncmp(text, "Galera: ", 8) == 0)
    return NS_ESERVER; /* server_writable */
  for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++)
    if (meanings[i].sqlerr == sqlerr)
      return meanings[i].status;
  return NS_ESQL;
}

bool ns_link_retryable(const ns_err *err) {
  return err->sqlerr == ER_LOCK_DEADLOCK || err->sqlerr == ER_LOCK_WAIT_TIMEOUT ||
         err->sqlerr == ER_CHECKREAD;
}

static const unsigned of_values[] = {
    ER_BAD_NULL_ERROR,
    ER_DUP_ENTRY,
    ER_TOO_BIG_ROWSIZE,
    ER_INVALID_USE_OF_NULL,
    ER_NET_PACKET_TOO_LARGE,
    ER_NO_REFERENCED_ROW,
    ER_WARN_NULL_TO_NOTNULL,
    ER_WARN_DATA_OUT_OF_RANGE,
    WARN_DATA_TRUNCATED,
    ER_TRUNCATED_WRONG_VALUE,
    ER_INVALID_CHARACTER_STRING,
    ER_WARN_ALLOWED_PACKET_OVERFLOWED,
    ER_DIVISION_BY_ZERO,
    ER_TRUNCATED_WRONG_VALUE_FOR_FIELD,
    ER_ILLEGAL_VALUE_FOR_TYPE,
    ER_VIEW_CHECK_FAILED,
    ER_DATA_TOO_LONG,
    ER_WRONG_VALUE_FOR_TYPE,
    ER_DATETIME_FUNCTION_OVERFLOW,
    ER_NO_REFERENCED_ROW_2,
    ER_WRONG_VALUE,
    ER_NO_PARTITION_FOR_GIVEN_VALUE,
    ER_DUP_ENTRY_WITH_KEY_NAME,
    ER_SIGNAL_EXCEPTION,
    ER_DATA_OUT_OF_RANGE,
    ER_UNDO_RECORD_TOO_BIG,
    ER_CONSTRAINT_FAILED,
    ER_ILLEGAL_PARAMETER_DATA_TYPES2_FOR_OPERATION,
    ER_JSON_BAD_CHR,
    ER_JSON_NOT_JSON_CHR,
    ER_JSON_EOS,
    ER_JSON_SYNTAX,
    ER_JSON_ESCAPING,
    ER_JSON_DEPTH,
};

bool ns_link_blames_value(const ns_err *err) {
  for (size_t i = 0; i < sizeof of_values / sizeof of_values[0]; i++)
    if (of_values[i] == err->sqlerr)
      return true;
  return false;
}

ns_status ns_link_refuse(ns_link *l, unsigned sqlerr, const char *text, ns_err *err) {
  ns_status st = meaning_of(sqlerr, text);
  if (st == NS_EGONE && (sqlerr != ER_OPTION_PREVENTS_STATEMENT || l->place > 0))
    l->dead = true; /* of a list another server may be writable */
  ns_fail(err, st, "%s (%u)", text, sqlerr);
  if (err != NULL)
    err->sqlerr = sqlerr;
  if (sqlerr == ER_LOCK_DEADLOCK || sqlerr == ER_LOCK_WAIT_TIMEOUT)
    l->conflict = l->last;
  return st;
}

ns_status ns_link_refused(ns_link *l, ns_err *err) {
  return ns_link_refuse(l, mysql_errno(l->my), mysql_error(l->my), err);
}

ns_status ns_stmt_refuse(ns_link *l, ns_stmt *s, ns_err *err) {
  unsigned sqlerr = mysql_stmt_errno(s->st);
  /* a statement on a connection that went away says so in its own words */
  if (sqlerr == CR_STMT_CLOSED || sqlerr == CR_NO_PREPARE_STMT)
    sqlerr = CR_SERVER_LOST;
  return ns_link_refuse(l, sqlerr, mysql_stmt_error(s->st), err);
}

ns_status ns_link_gone(ns_err *err) {
  return ns_fail(err, NS_EGONE, "the connection to the server is lost");
}

/* ------------------------------------------------------------------- waiting */

void ns_link_sends(ns_link *l) {
  if (l->due == 0)
    l->flowing = false;
}

/* The server finds the socket shut, and ends the session. */
ns_status ns_link_await(ns_link *l, ns_err *err) {
  int fd = (int)mysql_get_socket(l->my);
  ns_status st;
  if (l->dead)
    return ns_link_gone(err);
  if (l->flowing)
    return NS_OK;
  l->flowing = true;
  if ((st = ns_await_input(&l->await, fd, err)) == NS_OK)
    return NS_OK;
  l->dead = true;
  shutdown(fd, SHUT_RDWR);
  return st;
}

/* -------------------------------------------------- how long they take */

const char *ns_link_name(const char *sql) {
  static const char *const names[] = {"COMMIT", "ROLLBACK"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (strncmp(sql, names[i], strlen(names[i])) == 0)
      return names[i];
  return NULL;
}

void ns_link_waits(ns_link *l, const char *name) {
  l->waiting = l->last = name;
  if (name == NULL)
    return;
  l->waits_since = ns_mono_us();
  if (l->waits != NULL)
    l->waits(l->waits_arg, name, (int64_t)mysql_thread_id(l->my), l->waits_since);
}

void ns_link_waited(ns_link *l) {
  int64_t now;
  int64_t took;
  if (l->waiting == NULL)
    return;
  now = ns_mono_us();
  took = now - l->waits_since;
  l->waiting = NULL;
  l->slow += took > NS_SLOW;
  l->slowest = took > l->slowest ? took : l->slowest;
  if (l->waits != NULL)
    l->waits(l->waits_arg, NULL, (int64_t)mysql_thread_id(l->my), now);
}

const char *ns_link_conflict(const ns_link *l) {
  return l->conflict;
}

int64_t ns_link_slow(const ns_link *l, int64_t *slowest) {
  *slowest = l->slowest;
  return l->slow;
}
