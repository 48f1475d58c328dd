/*
** The connection to MariaDB, and the only file that includes mysql.h.
**
** Invariants: a prepared statement's rows are stored on the client before
** anything else runs on the connection, so statements never disturb each
** other; parameters are bound, never pasted; the socket is close-on-exec.
** After an error that loses the connection the link is dead for good. Answers
** that are due are read in the order of what was sent, before anything else.
*/
#include "ns_db.h"

#include <mysql.h>
#include <mysqld_error.h>
#include <errmsg.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ns_packet.h"
#include "ns_time.h"

#define MIN_SERVER 100600 /* MariaDB 10.6 */
#define VALUE_BYTES 18    /* a parameter on the wire, beside its text */
#define PACKET_SPARE 1024 /* of max_packet that is left alone */
#define ANSWERS_MAX 64    /* due at once: the server never waits for us to read */
#define HOST_READ (20 * NS_SECOND) /* read_timeout of a host */
/* A machine that vanishes is noticed by its silence, in seconds. */
#define PROBE_AFTER 15
#define PROBE_EVERY 5
#define PROBES 3
#define SILENCE_MAX 30
/* Where nobody answers. */
#define NO_PORT 1
#define NO_SOCKET "/dev/null/none"

#ifndef POLLRDHUP
#define POLLRDHUP 0
#endif

struct ns_link {
  MYSQL *my;
  bool dead;
  size_t max_packet; /* the server hangs up on a longer one; 0: not known */
  size_t sent, due;  /* statements since nothing was due, answers of them to come */
  size_t failed;     /* which was the first to fail, and how; status OK: none */
  ns_err failure;
  int64_t affected;  /* rows, of what has been answered */
  ns_stmt *asked;    /* one of them has rows; NULL: none, or they are here */
  size_t asked_at;   /* its number */
  ns_err refusal;    /* what became of the last such */
  ns_buf packet;     /* the execution that is sent */
  ns_stmt *stmts; /* all that were prepared, in a list */
};

struct ns_stmt {
  ns_stmt *next;
  MYSQL_STMT *st;
  size_t nparams;
  size_t ncols;        /* of the result; 0: no rows */
  const char **names;  /* ncols; point into fields */
  MYSQL_RES *meta;     /* owns what names point to; NULL without rows */
  MYSQL_BIND *binds;   /* ncols */
  ns_value *row;       /* ncols, handed out by fetch */
  unsigned long *lengths;
  my_bool *nulls;
  ns_buf text;         /* where text columns of one row land */
  int64_t affected, insert_id;
  ns_status outcome;   /* of the last time it was asked */
};

/* ------------------------------------------------------------- errors */

typedef struct ns_meaning {
  unsigned sqlerr;
  ns_status status;
} ns_meaning;

/* Everything else is NS_ESQL. Of NS_EBUSY 1213, 1205 and 1020 are retried. */
static const ns_meaning meanings[] = {
    {ER_LOCK_DEADLOCK, NS_EBUSY},        {ER_LOCK_WAIT_TIMEOUT, NS_EBUSY},
    {ER_CHECKREAD, NS_EBUSY},            {CR_SERVER_GONE_ERROR, NS_EGONE},
    /* the server's trouble, not the statement's: it may well work later */
    {ER_QUERY_INTERRUPTED, NS_EBUSY},    {ER_STATEMENT_TIMEOUT, NS_EBUSY},
    {ER_DISK_FULL, NS_EBUSY},            {ER_RECORD_FILE_FULL, NS_EBUSY},
    {ER_LOCK_TABLE_FULL, NS_EBUSY},      {ER_OUTOFMEMORY, NS_EBUSY},
    {ER_OUT_OF_RESOURCES, NS_EBUSY},     {ER_ERROR_DURING_COMMIT, NS_EBUSY},
    {ER_GET_ERRNO, NS_EBUSY},
    {CR_SERVER_LOST, NS_EGONE},          {CR_SERVER_LOST_EXTENDED, NS_EGONE},
    {CR_CONNECTION_ERROR, NS_EGONE},     {CR_CONN_HOST_ERROR, NS_EGONE},
    {CR_UNKNOWN_HOST, NS_EGONE},         {CR_IPSOCK_ERROR, NS_EGONE},
    {ER_CON_COUNT_ERROR, NS_EGONE},      {ER_SERVER_SHUTDOWN, NS_EGONE},
    {ER_NORMAL_SHUTDOWN, NS_EGONE},      {ER_CONNECTION_KILLED, NS_EGONE},
    {ER_NEW_ABORTING_CONNECTION, NS_EGONE}, {ER_ABORTING_CONNECTION, NS_EGONE},
    {4031, NS_EGONE},                    {ER_TOO_MANY_USER_CONNECTIONS, NS_EGONE},
    {ER_USER_LIMIT_REACHED, NS_EGONE},   {ER_UNKNOWN_COM_ERROR, NS_EGONE},
    {ER_OPTION_PREVENTS_STATEMENT, NS_EGONE}, /* read_only */
    {ER_ACCESS_DENIED_ERROR, NS_EDENIED}, {ER_DBACCESS_DENIED_ERROR, NS_EDENIED},
    {ER_ACCESS_DENIED_NO_PASSWORD_ERROR, NS_EDENIED},
    {ER_TABLEACCESS_DENIED_ERROR, NS_EDENIED},
    {ER_COLUMNACCESS_DENIED_ERROR, NS_EDENIED},
    {ER_PROCACCESS_DENIED_ERROR, NS_EDENIED},
    {ER_SPECIFIC_ACCESS_DENIED_ERROR, NS_EDENIED},
    {CR_SSL_CONNECTION_ERROR, NS_EDENIED},
    {ER_BAD_DB_ERROR, NS_ESCHEMA},       {ER_NO_DB_ERROR, NS_ESCHEMA},
    {ER_NO_SUCH_TABLE, NS_ESCHEMA},      {ER_SP_DOES_NOT_EXIST, NS_ESCHEMA},
    {ER_DUP_ENTRY, NS_EDUPLICATE},       {ER_DATA_TOO_LONG, NS_ETOOBIG},
    {ER_NET_PACKET_TOO_LARGE, NS_ETOOBIG}, {CR_NET_PACKET_TOO_LARGE, NS_ETOOBIG},
    {ER_TRUNCATED_WRONG_VALUE_FOR_FIELD, NS_EINVALID},
    {ER_CONSTRAINT_FAILED, NS_EINVALID}, {CR_OUT_OF_MEMORY, NS_ENOMEM},
};

static ns_status meaning_of(unsigned sqlerr) {
  for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++)
    if (meanings[i].sqlerr == sqlerr)
      return meanings[i].status;
  return NS_ESQL;
}

bool ns_link_retryable(const ns_err *err) {
  return err->sqlerr == ER_LOCK_DEADLOCK || err->sqlerr == ER_LOCK_WAIT_TIMEOUT ||
         err->sqlerr == ER_CHECKREAD;
}

/* Fills 'err' from the server's words and notes a lost connection. */
static ns_status refuse(ns_link *l, unsigned sqlerr, const char *text,
                        ns_err *err) {
  ns_status st = meaning_of(sqlerr);
  if (st == NS_EGONE && sqlerr != ER_OPTION_PREVENTS_STATEMENT)
    l->dead = true;
  ns_fail(err, st, "%s (%u)", text, sqlerr);
  if (err != NULL)
    err->sqlerr = sqlerr;
  return st;
}

static ns_status refuse_stmt(ns_link *l, ns_stmt *s, ns_err *err) {
  unsigned sqlerr = mysql_stmt_errno(s->st);
  /* a statement whose connection went away says so in its own words */
  if (sqlerr == CR_STMT_CLOSED || sqlerr == CR_NO_PREPARE_STMT)
    sqlerr = CR_SERVER_LOST;
  return refuse(l, sqlerr, mysql_stmt_error(s->st), err);
}

static ns_status gone(ns_err *err) {
  return ns_fail(err, NS_EGONE, "the connection to the server is lost");
}

static ns_status no_memory(ns_err *err) {
  return ns_fail(err, NS_ENOMEM, "out of memory");
}

/* ---------------------------------------------------------- connecting */

/* libmariadb would load plugins and option files from wherever these say. It
** may do so at any connect, so they are gone for good; once, before its own
** initialisation. $MYSQL_PWD stays for others: set_options makes it idle. */
static void forget_environment(void) {
  static const char *const names[] = {"LIBMYSQL_PLUGINS", "MARIADB_PLUGIN_DIR",
                                      "MYSQL_HOME", "MARIADB_HOME"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    unsetenv(names[i]);
}

static pthread_once_t environment_once = PTHREAD_ONCE_INIT;

/* An address of this machine, or nobody named one. A name is not looked up:
** what it stands for is not ours to say. */
static bool is_loopback(const char *host) {
  struct in_addr v4;
  struct in6_addr v6;
  if (host == NULL || host[0] == '\0' || strcmp(host, "localhost") == 0)
    return true;
  if (inet_pton(AF_INET, host, &v4) == 1)
    return ntohl(v4.s_addr) >> 24 == 127;
  return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

/* The library's own words for a file that is missing do not name it. */
static ns_status check_file(const char *path, const char *what, ns_err *err) {
  if (path == NULL || access(path, R_OK) == 0)
    return NS_OK;
  return ns_fail(err, NS_EINVALID, "cannot read the %s '%.200s': %s", what, path,
                 strerror(errno));
}

/* The library reads option files as the first step of connecting, and keeps
** what they say when that fails. So the first try is one that cannot get
** anywhere, with no name and no password: after it we know whom the files name,
** and what is set from here on stands above them. */
static ns_status read_files(MYSQL *my, const ns_config *cfg, ns_err *err) {
  if (check_file(cfg->file, "file", err) != NS_OK)
    return NS_EINVALID;
  if (cfg->file != NULL)
    mysql_optionsv(my, MYSQL_READ_DEFAULT_FILE, cfg->file);
  if (cfg->group != NULL)
    mysql_optionsv(my, MYSQL_READ_DEFAULT_GROUP, cfg->group);
  if ((cfg->file != NULL || cfg->group != NULL) &&
      mysql_real_connect(my, "localhost", "", "", NULL, NO_PORT, NO_SOCKET,
                         CLIENT_REMEMBER_OPTIONS) != NULL)
    return ns_fail(err, NS_EGONE, "port %d of this machine is a database", NO_PORT);
  return NS_OK;
}

/* Whom we connect to; NULL: this machine. A socket is of this one, whatever
** host a file names. */
static const char *host_of(const MYSQL *my, const ns_config *cfg) {
  if (cfg->socket != NULL)
    return "localhost";
  return cfg->host != NULL && cfg->host[0] != '\0' ? cfg->host : my->options.host;
}

static const char *database_of(const MYSQL *my, const ns_config *cfg) {
  return cfg->database != NULL ? cfg->database : my->options.db;
}

/* TLS: verified by default to other machines, off on this one. */
static const char *tls_mode(const MYSQL *my, const ns_config *cfg) {
  bool asked = cfg->ca != NULL || cfg->cert != NULL || cfg->key != NULL;
  if (cfg->tls != NULL)
    return cfg->tls;
  return is_loopback(host_of(my, cfg)) && !asked ? "off" : "verify";
}

/* What the URL does not say stays as a file has it. */
static void set_path(MYSQL *my, enum mysql_option option, const char *path) {
  if (path != NULL)
    mysql_optionsv(my, option, path);
}

static ns_status set_tls(MYSQL *my, const ns_config *cfg, ns_err *err) {
  const char *tls = tls_mode(my, cfg);
  my_bool on = 1;
  my_bool verify = 1;
  if (strcmp(tls, "off") == 0)
    return NS_OK;
  if (strcmp(tls, "trust") == 0)
    verify = 0;
  else if (strcmp(tls, "verify") != 0)
    return ns_fail(err, NS_EINVALID,
                   "tls must be \"off\", \"verify\" or \"trust\", not \"%.20s\"",
                   tls);
  if (check_file(cfg->ca, "ca file", err) != NS_OK ||
      check_file(cfg->cert, "cert file", err) != NS_OK ||
      check_file(cfg->key, "key file", err) != NS_OK)
    return NS_EINVALID;
  set_path(my, MYSQL_OPT_SSL_KEY, cfg->key);
  set_path(my, MYSQL_OPT_SSL_CERT, cfg->cert);
  set_path(my, MYSQL_OPT_SSL_CA, cfg->ca);
  mysql_optionsv(my, MYSQL_OPT_SSL_ENFORCE, &on);
  mysql_optionsv(my, MYSQL_OPT_SSL_VERIFY_SERVER_CERT, &verify);
  return NS_OK;
}

/* The library counts whole seconds. */
static unsigned seconds(int64_t us) {
  return (unsigned)((us + NS_SECOND - 1) / NS_SECOND);
}

/* How long a reply may take; 0: for ever. A wait for a lock, which is a second at
** least, has to end before. */
static unsigned read_seconds(const ns_config *cfg) {
  unsigned asked = seconds(cfg->read_timeout);
  if (cfg->read_timeout <= 0)
    return cfg->host_session ? seconds(HOST_READ) : 0;
  return asked < 2 ? 2 : asked;
}

static void set_timeouts(MYSQL *my, const ns_config *cfg) {
  unsigned connecting =
      seconds(cfg->connect_timeout > 0 ? cfg->connect_timeout : 3 * NS_SECOND);
  unsigned reading = read_seconds(cfg);
  mysql_optionsv(my, MYSQL_OPT_CONNECT_TIMEOUT, &connecting);
  if (reading == 0)
    return;
  mysql_optionsv(my, MYSQL_OPT_READ_TIMEOUT, &reading);
  mysql_optionsv(my, MYSQL_OPT_WRITE_TIMEOUT, &reading);
}

static ns_status set_options(MYSQL *my, const ns_config *cfg, ns_err *err) {
  unsigned no_files = 0;
  ns_status st;
  mysql_optionsv(my, MARIADB_OPT_PASSWORD, ""); /* else $MYSQL_PWD; a file's wins */
  set_timeouts(my, cfg); /* a file's win */
  if ((st = read_files(my, cfg, err)) != NS_OK)
    return st;
  if (database_of(my, cfg) == NULL)
    return ns_fail(err, NS_EINVALID,
                   "no database is named; add it to the URL: "
                   "mysql://user@host/DATABASE");
  mysql_optionsv(my, MYSQL_SET_CHARSET_NAME, "utf8mb4");
  mysql_optionsv(my, MYSQL_OPT_LOCAL_INFILE, &no_files);
  mysql_optionsv(my, MYSQL_OPT_CONNECT_ATTR_ADD, "program_name", "nightshift");
  return set_tls(my, cfg, err);
}

static ns_status check_server(MYSQL *my, ns_err *err) {
  const char *info = mysql_get_server_info(my);
  if (!mariadb_connection(my) || mysql_get_server_version(my) < MIN_SERVER)
    return ns_fail(err, NS_ESERVER,
                   "the server says it is '%.60s'; Nightshift needs MariaDB "
                   "10.6 or later",
                   info != NULL ? info : "?");
  return NS_OK;
}

static ns_status no_tls(ns_err *err) {
  return ns_fail(err, NS_EDENIED,
                 "the server offers no TLS; set it up, or say tls=off to send "
                 "everything in plain text");
}

/* A TLS session that was asked for must be there. With "verify" the library
** sees to it before it sends anything; with "trust" it falls back to plain text
** when the server offers none. */
static ns_status check_tls(MYSQL *my, const ns_config *cfg, ns_err *err) {
  bool wanted = strcmp(tls_mode(my, cfg), "off") != 0;
  return wanted && mysql_get_ssl_cipher(my) == NULL ? no_tls(err) : NS_OK;
}

/* A wait for a lock ends before the wait for its reply does. */
static void session_text(char *text, size_t size, const ns_config *cfg) {
  unsigned reading = read_seconds(cfg);
  unsigned wait = reading > 0 && reading < 80 ? reading * 3 / 4 : 60;
  wait = wait > 0 ? wait : 1;
  snprintf(text, size,
           "SET SESSION sql_mode='STRICT_TRANS_TABLES,"
           "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION',"
           "time_zone='+00:00',autocommit=1,innodb_lock_wait_timeout=%u,"
           "lock_wait_timeout=%u%s",
           wait < 3 ? wait : 3, wait,
           cfg->host_session ? ",wait_timeout=30" : "");
}

/* Programs that are executed do not get the socket. When the server's machine
** is gone without a word the kernel finds out; a unix socket refuses these
** options, and does not need them. */
static void set_socket(int fd) {
  int on = 1;
  int after = PROBE_AFTER;
  int every = PROBE_EVERY;
  int probes = PROBES;
  if (fd < 0)
    return;
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &after, sizeof after);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
#ifdef TCP_USER_TIMEOUT
  unsigned silence = SILENCE_MAX * 1000;
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence, sizeof silence);
#endif
}

static ns_status set_session(ns_link *l, const ns_config *cfg, ns_err *err) {
  char text[256];
  ns_status st;
  set_socket((int)mysql_get_socket(l->my));
  session_text(text, sizeof text, cfg);
  if ((st = check_server(l->my, err)) != NS_OK ||
      (st = check_tls(l->my, cfg, err)) != NS_OK)
    return st;
  st = ns_link_text(l, text, err);
  if (st == NS_OK)
    st = ns_link_text(
        l, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", err);
  return st;
}

/* The session that verify asked for did not come about. */
static ns_status refuse_tls(const ns_link *l, ns_err *err) {
  if ((l->my->server_capabilities & CLIENT_SSL) == 0)
    return no_tls(err);
  return ns_fail(err, NS_EDENIED, "%s (%d)", mysql_error(l->my),
                 CR_SSL_CONNECTION_ERROR);
}

/* Says what to do where the server's words alone do not. */
static ns_status refuse_connect(ns_link *l, const ns_config *cfg, ns_err *err) {
  unsigned sqlerr = mysql_errno(l->my);
  ns_status st = refuse(l, sqlerr, mysql_error(l->my), err);
  if (sqlerr == CR_SSL_CONNECTION_ERROR)
    refuse_tls(l, err);
  else if (sqlerr == ER_BAD_DB_ERROR)
    ns_fail(err, NS_ESCHEMA,
            "the database '%.64s' does not exist; create it, then run "
            "`nightshift init`",
            database_of(l->my, cfg));
  else if (st == NS_EDENIED)
    ns_err_context(err, "access denied");
  else if (st != NS_ESCHEMA) /* whatever the reason: it cannot be reached */
    ns_fail(err, NS_EGONE, "cannot connect: %s (%u)", mysql_error(l->my), sqlerr);
  err->sqlerr = sqlerr;
  return err->status;
}

ns_status ns_link_open(ns_link **out, const ns_config *cfg, ns_err *err) {
  ns_link *l = calloc(1, sizeof *l);
  ns_status st;
  *out = NULL;
  pthread_once(&environment_once, forget_environment);
  if (l == NULL || (l->my = mysql_init(NULL)) == NULL) {
    free(l);
    return no_memory(err);
  }
  st = set_options(l->my, cfg, err);
  if (st == NS_OK &&
      mysql_real_connect(l->my, host_of(l->my, cfg), cfg->user, cfg->password,
                         database_of(l->my, cfg), cfg->port, cfg->socket,
                         CLIENT_REMEMBER_OPTIONS) == NULL)
    st = refuse_connect(l, cfg, err);
  if (st == NS_OK)
    st = set_session(l, cfg, err);
  if (st != NS_OK) {
    ns_link_close(l, false);
    return st;
  }
  *out = l;
  return NS_OK;
}

void ns_link_close(ns_link *l, bool foreign) {
  if (l == NULL)
    return;
  if (foreign) { /* the parent's session: free memory, say nothing */
    int fd = (int)mysql_get_socket(l->my);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (fd >= 0 && null >= 0)
      dup2(null, fd);
    if (null >= 0)
      close(null);
  }
  while (l->stmts != NULL)
    ns_stmt_free(l, l->stmts);
  mysql_close(l->my);
  ns_buf_free(&l->packet);
  free(l);
}

bool ns_link_dead(const ns_link *l) {
  return l->dead;
}

void ns_link_give_up(ns_link *l) {
  l->dead = true;
}

void ns_link_look(ns_link *l) {
  struct pollfd fd = {.fd = (int)mysql_get_socket(l->my), .events = POLLRDHUP};
  if (!l->dead && poll(&fd, 1, 0) > 0 &&
      (fd.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0)
    l->dead = true;
}

int64_t ns_link_thread(const ns_link *l) {
  return (int64_t)mysql_thread_id(l->my);
}

void ns_link_limit(ns_link *l, int64_t max_packet) {
  l->max_packet = max_packet > 0 ? (size_t)max_packet : 0;
}

unsigned ns_link_version(const ns_link *l) {
  return (unsigned)mysql_get_server_version(l->my);
}

/* ---------------------------------------------------------- statements */

/* Drops every result the last text statement left (a CALL leaves several). */
static ns_status drain(ns_link *l, ns_err *err) {
  int more;
  do {
    MYSQL_RES *res = mysql_store_result(l->my);
    mysql_free_result(res);
    if (mysql_errno(l->my) != 0)
      return refuse(l, mysql_errno(l->my), mysql_error(l->my), err);
    more = mysql_next_result(l->my);
  } while (more == 0);
  if (more > 0)
    return refuse(l, mysql_errno(l->my), mysql_error(l->my), err);
  return NS_OK;
}

static void take_answers(ns_link *l);

ns_status ns_link_text(ns_link *l, const char *sql, ns_err *err) {
  ns_status st = ns_link_answers(l, NULL, err);
  if (st != NS_OK)
    return st;
  if (l->dead)
    return gone(err);
  if (mysql_real_query(l->my, sql, (unsigned long)strlen(sql)) != 0)
    return refuse(l, mysql_errno(l->my), mysql_error(l->my), err);
  return drain(l, err);
}

/* Room for 'ncols' result columns. */
static bool make_columns(ns_stmt *s) {
  size_t n = s->ncols;
  s->names = calloc(n, sizeof *s->names);
  s->binds = calloc(n, sizeof *s->binds);
  s->row = calloc(n, sizeof *s->row);
  s->lengths = calloc(n, sizeof *s->lengths);
  s->nulls = calloc(n, sizeof *s->nulls);
  return s->names != NULL && s->binds != NULL && s->row != NULL &&
         s->lengths != NULL && s->nulls != NULL;
}

ns_status ns_link_prepare(ns_link *l, ns_stmt **out, const char *sql, size_t n,
                          ns_err *err) {
  ns_stmt *s;
  my_bool on = 1;
  *out = NULL;
  take_answers(l);
  if (l->dead)
    return gone(err);
  s = calloc(1, sizeof *s);
  if (s == NULL || (s->st = mysql_stmt_init(l->my)) == NULL) {
    free(s);
    return no_memory(err);
  }
  s->next = l->stmts;
  l->stmts = s;
  mysql_stmt_attr_set(s->st, STMT_ATTR_UPDATE_MAX_LENGTH, &on);
  if (mysql_stmt_prepare(s->st, sql, (unsigned long)n) != 0) {
    ns_status st = refuse_stmt(l, s, err);
    ns_stmt_free(l, s);
    return st;
  }
  s->nparams = mysql_stmt_param_count(s->st);
  *out = s;
  return NS_OK;
}

static void free_columns(ns_stmt *s) {
  mysql_free_result(s->meta);
  free(s->names);
  free(s->binds);
  free(s->row);
  free(s->lengths);
  free(s->nulls);
  s->meta = NULL;
  s->names = NULL;
  s->binds = NULL;
  s->row = NULL;
  s->lengths = NULL;
  s->nulls = NULL;
  s->ncols = 0;
}

void ns_stmt_free(ns_link *l, ns_stmt *s) {
  ns_stmt **at = &l->stmts;
  if (s == NULL)
    return;
  take_answers(l);
  while (*at != s)
    at = &(*at)->next;
  *at = s->next;
  mysql_stmt_free_result(s->st);
  mysql_stmt_close(s->st);
  free_columns(s);
  ns_buf_free(&s->text);
  free(s);
}

size_t ns_stmt_params(const ns_stmt *s) {
  return s->nparams;
}

/* ---------------------------------------------------------- parameters */

static void bind_value(MYSQL_BIND *b, const ns_value *v) {
  memset(b, 0, sizeof *b);
  switch (v->type) {
  case NS_NULL:
    b->buffer_type = MYSQL_TYPE_NULL;
    break;
  case NS_INT:
  case NS_UINT:
    b->buffer_type = MYSQL_TYPE_LONGLONG;
    b->buffer = (void *)(uintptr_t)&v->i;
    b->is_unsigned = v->type == NS_UINT;
    break;
  case NS_REAL:
    b->buffer_type = MYSQL_TYPE_DOUBLE;
    b->buffer = (void *)(uintptr_t)&v->d;
    break;
  case NS_TEXT:
    b->buffer_type = MYSQL_TYPE_STRING;
    b->buffer = (void *)(uintptr_t)v->s.p;
    b->buffer_length = (unsigned long)v->s.n;
    break;
  }
}

/* A packet over the limit costs the connection, and would cost the next one
** too when it is sent again: it is refused here. */
static bool fits(const ns_link *l, size_t texts, size_t nvalues) {
  return l->max_packet == 0 ||
         texts + VALUE_BYTES * nvalues + PACKET_SPARE <= l->max_packet;
}

static ns_status too_big(const ns_link *l, ns_err *err) {
  return ns_fail(err, NS_ETOOBIG,
                 "the statement is over the %zu bytes that the server takes "
                 "(max_allowed_packet)",
                 l->max_packet);
}

static ns_status bind_params(ns_link *l, ns_stmt *s, MYSQL_BIND *binds,
                             ns_err *err) {
  return s->nparams == 0 || mysql_stmt_bind_param(s->st, binds) == 0
             ? NS_OK
             : refuse_stmt(l, s, err);
}

/* -------------------------------------------------------------- result */

static bool is_integer(const MYSQL_FIELD *f) {
  return f->type == MYSQL_TYPE_TINY || f->type == MYSQL_TYPE_SHORT ||
         f->type == MYSQL_TYPE_INT24 || f->type == MYSQL_TYPE_LONG ||
         f->type == MYSQL_TYPE_LONGLONG || f->type == MYSQL_TYPE_YEAR;
}

static bool is_real(const MYSQL_FIELD *f) {
  return f->type == MYSQL_TYPE_FLOAT || f->type == MYSQL_TYPE_DOUBLE;
}

static void bind_column(ns_stmt *s, size_t i, const MYSQL_FIELD *f) {
  MYSQL_BIND *b = &s->binds[i];
  ns_value *v = &s->row[i];
  memset(b, 0, sizeof *b);
  b->is_null = &s->nulls[i];
  b->length = &s->lengths[i];
  if (is_integer(f)) {
    b->buffer_type = MYSQL_TYPE_LONGLONG;
    b->buffer = &v->i;
    b->is_unsigned = (f->flags & UNSIGNED_FLAG) != 0;
  } else if (is_real(f)) {
    b->buffer_type = MYSQL_TYPE_DOUBLE;
    b->buffer = &v->d;
  } else {
    b->buffer_type = MYSQL_TYPE_STRING;
    b->buffer_length = f->max_length + 1;
  }
}

/* Lays the text columns of a row out in s->text, each as long as its longest
** value in this result. */
static bool place_texts(ns_stmt *s) {
  size_t total = 0;
  char *at;
  for (size_t i = 0; i < s->ncols; i++)
    total += s->binds[i].buffer_length;
  ns_buf_reset(&s->text);
  if ((at = ns_buf_room(&s->text, total + 1)) == NULL)
    return false;
  for (size_t i = 0; i < s->ncols; i++)
    if (s->binds[i].buffer_type == MYSQL_TYPE_STRING) {
      s->binds[i].buffer = at;
      at += s->binds[i].buffer_length;
    }
  return true;
}

/* An error took the place of the rows (a KILL QUERY, a time limit). libmariadb
** leaves the statement "waiting to be stored", and its next use would wait for
** rows that never come: say that they have all been seen. */
static ns_status cut_off(ns_link *l, ns_stmt *s, ns_err *err) {
  ns_status st = refuse_stmt(l, s, err);
  s->st->state = MYSQL_STMT_FETCH_DONE;
  return st;
}

/* Brings the rows to the client and binds the columns. */
static ns_status store(ns_link *l, ns_stmt *s, ns_err *err) {
  MYSQL_FIELD *fields;
  size_t n = mysql_stmt_field_count(s->st);
  if (n != s->ncols)
    free_columns(s);
  if (n == 0)
    return NS_OK;
  if (mysql_stmt_store_result(s->st) != 0)
    return cut_off(l, s, err);
  mysql_free_result(s->meta);
  s->meta = mysql_stmt_result_metadata(s->st);
  if (s->ncols == 0) {
    s->ncols = n;
    if (!make_columns(s)) {
      free_columns(s);
      return no_memory(err);
    }
  }
  if (s->meta == NULL)
    return no_memory(err);
  fields = mysql_fetch_fields(s->meta);
  for (size_t i = 0; i < n; i++) {
    s->names[i] = fields[i].name;
    bind_column(s, i, &fields[i]);
  }
  if (!place_texts(s))
    return no_memory(err);
  return mysql_stmt_bind_result(s->st, s->binds) == 0 ? NS_OK
                                                      : refuse_stmt(l, s, err);
}

/* The library sends, and does not wait for the answer. */
static ns_status send_execution(ns_link *l, ns_stmt *s, ns_err *err) {
  my_bool on = 1;
  my_bool off = 0;
  int failed;
  mysql_optionsv(l->my, MARIADB_OPT_SKIP_READ_RESPONSE, &on);
  failed = mysql_stmt_execute(s->st);
  mysql_optionsv(l->my, MARIADB_OPT_SKIP_READ_RESPONSE, &off);
  return failed ? refuse_stmt(l, s, err) : NS_OK;
}

static ns_status read_execution(ns_link *l, ns_stmt *s, ns_err *err) {
  if (l->dead)
    return gone(err);
  if (l->my->methods->db_read_execute_response(s->st) != 0)
    return refuse_stmt(l, s, err);
  s->affected = (int64_t)mysql_stmt_affected_rows(s->st);
  s->insert_id = (int64_t)mysql_stmt_insert_id(s->st);
  return store(l, s, err);
}

/* A CALL answers with a status after its rows: take all of it. */
static ns_status finish_call(ns_link *l, ns_stmt *s, ns_err *err) {
  while (mysql_stmt_more_results(s->st))
    if (mysql_stmt_next_result(s->st) > 0)
      return refuse_stmt(l, s, err);
  return NS_OK;
}

/* Its answer comes after those that are due. */
static ns_status send_stmt(ns_link *l, ns_stmt *s, const ns_value *params,
                           ns_err *err) {
  MYSQL_BIND few[24];
  MYSQL_BIND *binds = few;
  ns_status st;
  unsigned one = 0;
  size_t texts = 0;
  if (l->dead)
    return gone(err);
  for (size_t i = 0; i < s->nparams; i++)
    texts += params[i].type == NS_TEXT ? params[i].s.n : 0;
  if (!fits(l, texts, s->nparams))
    return too_big(l, err);
  mysql_stmt_free_result(s->st);
  if (s->nparams > sizeof few / sizeof few[0] &&
      (binds = calloc(s->nparams, sizeof *binds)) == NULL)
    return no_memory(err);
  for (size_t i = 0; i < s->nparams; i++)
    bind_value(&binds[i], &params[i]);
  mysql_stmt_attr_set(s->st, STMT_ATTR_ARRAY_SIZE, &one);
  if ((st = bind_params(l, s, binds, err)) == NS_OK)
    st = send_execution(l, s, err);
  if (binds != few)
    free(binds);
  return st;
}

static ns_status read_stmt(ns_link *l, ns_stmt *s, ns_err *err) {
  ns_status st = read_execution(l, s, err);
  return st == NS_OK && s->ncols == 0 ? finish_call(l, s, err) : st;
}

ns_status ns_stmt_run(ns_link *l, ns_stmt *s, const ns_value *params,
                      ns_err *err) {
  ns_status st = send_stmt(l, s, params, err);
  ns_status before = ns_link_answers(l, NULL, st == NS_OK ? err : NULL);
  if (st != NS_OK)
    return st;
  st = read_stmt(l, s, before == NS_OK ? err : NULL);
  return before != NS_OK ? before : st;
}

/* ------------------------------------------------------- sending ahead */

/* Reads the answer that is due first; one that never comes is a failure. */
static void take_answer(ns_link *l) {
  size_t number = l->sent - l->due--;
  ns_err err;
  if (l->asked != NULL && l->asked_at == number) {
    ns_stmt *s = l->asked;
    l->asked = NULL;
    s->outcome = read_stmt(l, s, &l->refusal);
    return;
  }
  if (l->dead)
    gone(&err);
  else if (mysql_read_query_result(l->my) == 0) {
    l->affected += (int64_t)mysql_affected_rows(l->my);
    return;
  } else
    refuse(l, mysql_errno(l->my), mysql_error(l->my), &err);
  if (l->failure.status != NS_OK)
    return;
  l->failure = err;
  l->failed = number;
}

/* With compression the library keeps what it writes where it reads. */
static void sent(ns_link *l) {
  l->sent++;
  l->due++;
  if (l->due >= ANSWERS_MAX || l->my->net.compress)
    take_answer(l);
}

static ns_status unsent(ns_link *l, ns_err *err) {
  return refuse(l, mysql_errno(l->my), mysql_error(l->my), err);
}

ns_status ns_link_send(ns_link *l, const char *sql, ns_err *err) {
  if (l->dead)
    return gone(err);
  if (mysql_send_query(l->my, sql, (unsigned long)strlen(sql)) != 0)
    return unsent(l, err);
  sent(l);
  return NS_OK;
}

/* One packet. The library's own call for this waits for the answer; what is
** beneath it does not. */
static ns_status send_rows(ns_link *l, ns_stmt *s, const ns_column *cols,
                           size_t from, size_t nrows, ns_err *err) {
  ns_buf_reset(&l->packet);
  if (!ns_packet_add(&l->packet, (uint32_t)s->st->stmt_id, cols, s->nparams, from,
                     nrows))
    return no_memory(err);
  if (l->my->methods->db_command(
          l->my, nrows == 1 ? COM_STMT_EXECUTE : COM_STMT_BULK_EXECUTE,
          l->packet.p, l->packet.n, 1, NULL) != 0)
    return unsent(l, err);
  sent(l);
  return NS_OK;
}

/* As many rows from 'from' on as go into a packet; '*n': how many. */
static ns_status send_part(ns_link *l, ns_stmt *s, const ns_column *cols,
                           size_t from, size_t nrows, size_t *n, ns_err *err) {
  size_t max = l->max_packet > PACKET_SPARE ? l->max_packet - PACKET_SPARE : 0;
  *n = ns_packet_rows(cols, s->nparams, from, nrows, max);
  return *n > 0 ? send_rows(l, s, cols, from, *n, err) : too_big(l, err);
}

ns_status ns_stmt_send(ns_link *l, ns_stmt *s, const ns_column *cols,
                       size_t nrows, ns_err *err) {
  ns_status st = NS_OK;
  size_t n;
  if (l->dead)
    return gone(err);
  for (size_t from = 0; st == NS_OK && from < nrows; from += n)
    st = send_part(l, s, cols, from, nrows, &n, err);
  return st;
}

/* What failed is told by ns_link_answers. */
static void take_answers(ns_link *l) {
  while (l->due > 0)
    take_answer(l);
}

ns_status ns_stmt_ask(ns_link *l, ns_stmt *s, const ns_value *params,
                      ns_err *err) {
  ns_status st;
  if (l->asked != NULL)
    take_answers(l);
  if ((st = send_stmt(l, s, params, err)) != NS_OK)
    return st;
  l->asked = s;
  l->asked_at = l->sent;
  sent(l);
  return NS_OK;
}

ns_status ns_stmt_told(ns_link *l, ns_stmt *s, ns_err *err) {
  ns_status st = ns_link_answers(l, NULL, err);
  if (st != NS_OK)
    return st;
  if (s->outcome != NS_OK)
    *err = l->refusal;
  return s->outcome;
}

ns_status ns_link_answers(ns_link *l, size_t *failed, ns_err *err) {
  ns_status st;
  take_answers(l);
  if ((st = l->failure.status) != NS_OK) {
    if (err != NULL)
      *err = l->failure;
    if (failed != NULL)
      *failed = l->failed;
  }
  l->failure.status = NS_OK;
  l->sent = 0;
  return st;
}

/* A part that fails may end the transaction, so the next one waits for it. */
ns_status ns_stmt_bulk(ns_link *l, ns_stmt *s, const ns_column *cols,
                       size_t nrows, ns_err *err) {
  ns_status st = NS_OK;
  size_t n;
  if (l->dead)
    return gone(err);
  l->affected = 0;
  for (size_t from = 0; st == NS_OK && from < nrows; from += n)
    if ((st = send_part(l, s, cols, from, nrows, &n, err)) == NS_OK)
      st = ns_link_answers(l, NULL, err);
  s->affected = l->affected;
  return st;
}

ns_status ns_stmt_fetch(ns_link *l, ns_stmt *s, const ns_value **row,
                        ns_err *err) {
  const MYSQL_FIELD *fields;
  int rc;
  *row = NULL;
  if (s->ncols == 0)
    return NS_OK;
  rc = mysql_stmt_fetch(s->st);
  if (rc == MYSQL_NO_DATA) {
    mysql_stmt_free_result(s->st);
    return finish_call(l, s, err);
  }
  if (rc == 1)
    return refuse_stmt(l, s, err);
  fields = mysql_fetch_fields(s->meta);
  for (size_t i = 0; i < s->ncols; i++) {
    ns_value *v = &s->row[i];
    if (s->nulls[i])
      v->type = NS_NULL;
    else if (s->binds[i].buffer_type == MYSQL_TYPE_LONGLONG)
      v->type = (fields[i].flags & UNSIGNED_FLAG) && v->i < 0 ? NS_UINT : NS_INT;
    else if (s->binds[i].buffer_type == MYSQL_TYPE_DOUBLE)
      v->type = NS_REAL;
    else {
      v->type = NS_TEXT;
      v->s = (ns_bytes){s->binds[i].buffer, s->lengths[i]};
    }
  }
  *row = s->row;
  return NS_OK;
}

size_t ns_stmt_columns(const ns_stmt *s) {
  return s->ncols;
}

const char *const *ns_stmt_names(const ns_stmt *s) {
  return s->names;
}

int64_t ns_stmt_affected(const ns_stmt *s) {
  return s->affected;
}

int64_t ns_stmt_insert_id(const ns_stmt *s) {
  return s->insert_id;
}
