/*
** The connection to MariaDB: opening it, closing it, and the session behind it. The server's
** answers are in link/answers.c; statements are in link/statement.c, link/send.c and
** link/rows.c. Lists of servers are in link/servers.c. Only these six files see mysql.h.
**
** Invariants: the socket is close-on-exec. After an error that loses the connection the link
** is dead for good. No assert for a dead link: no function makes it live again.
*/
#include "link/mariadb.h"

#include <mysqld_error.h>
#include <errmsg.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base.h"

#define MIN_SERVER 100600 /* MariaDB 10.6 */
#define CONNECT (3 * NS_SECOND)
#define HOST_READ (20 * NS_SECOND) /* read_timeout of a host */
#define READ (30 * NS_SECOND)      /* for other hosts */
/* Statements that a connection keeps open. The server's limit, 16,382 by default, is for all
** programs. A host has two such connections, a listener and one more per adopted table. */
#define HOST_PLACES 22
#define PLACES 9
/* A machine that vanishes is noticed by its silence, in seconds. */
#define PROBE_AFTER 15
#define PROBE_EVERY 5
#define PROBES 3
#define SILENCE_MAX 30
/* Where no server answers. */
#define NO_PORT 1
#define NO_SOCKET "/dev/null/none"

#ifndef POLLRDHUP
#define POLLRDHUP 0
#endif

/* ---------------------------------------------------------- connecting */

/* libmariadb would load plugins and option files from wherever these say. It may do so at any
** connect, so they are gone for good; once, before its own initialisation. $MYSQL_PWD stays for
** other programs: set_options overrides it. */
static void forget_environment(void) {
  static const char *const names[] = {"LIBMYSQL_PLUGINS", "MARIADB_PLUGIN_DIR", "MYSQL_HOME",
                                      "MARIADB_HOME"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    unsetenv(names[i]);
}

static pthread_once_t environment_once = PTHREAD_ONCE_INIT;

/* An address of this machine, or none was named. A name is not looked up: its address is not
** ours to tell. */
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
  return ns_fail(err, NS_EINVALID, "cannot read the %s '%.200s': %s", what, path, strerror(errno));
}

/* The library reads option files as the first step of connecting, and keeps their values when
** that fails. So the first try cannot get anywhere: it has no name and no password. After it we
** know which user the files name, and every option set from here on stands above them. */
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

/* The address that we connect to; NULL: this machine. A socket is of this one, whatever
** host a file names. */
static const char *host_of(const MYSQL *my, const ns_config *cfg) {
  if (cfg->socket != NULL)
    return "localhost";
  return cfg->host != NULL && cfg->host[0] != '\0' ? cfg->host : my->options.host;
}

static const char *database_of(const MYSQL *my, const ns_config *cfg) {
  return cfg->database != NULL ? cfg->database : my->options.db;
}

/* The TLS mode: verified by default to other machines, off on this one. */
static const char *tls_mode(const MYSQL *my, const ns_config *cfg) {
  bool asked = cfg->ca != NULL || cfg->cert != NULL || cfg->key != NULL;
  if (cfg->tls != NULL)
    return cfg->tls;
  return is_loopback(host_of(my, cfg)) && !asked ? "off" : "verify";
}

/* A path that the URL does not give stays as a file has it. */
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
    return ns_fail(err, NS_EINVALID, "tls must be \"off\", \"verify\" or \"trust\", not \"%.20s\"",
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

/* How long a reply may take. A wait for a lock, which is a second at least, has to
** end before. */
static unsigned read_seconds(const ns_config *cfg) {
  unsigned asked = seconds(cfg->read_timeout);
  if (cfg->read_timeout <= 0)
    return seconds(cfg->host_session ? HOST_READ : READ);
  return asked < 2 ? 2 : asked;
}

static int64_t connect_timeout(const ns_config *cfg) {
  return cfg->connect_timeout > 0 ? cfg->connect_timeout : CONNECT;
}

static void set_timeouts(MYSQL *my, const ns_config *cfg) {
  unsigned connecting = seconds(connect_timeout(cfg));
  unsigned reading = read_seconds(cfg);
  mysql_optionsv(my, MYSQL_OPT_CONNECT_TIMEOUT, &connecting);
  mysql_optionsv(my, MYSQL_OPT_READ_TIMEOUT, &reading);
  mysql_optionsv(my, MYSQL_OPT_WRITE_TIMEOUT, &reading);
}

static ns_status set_options(MYSQL *my, const ns_config *cfg, ns_err *err) {
  unsigned no_files = 0;
  ns_status st;
  mysql_optionsv(my, MARIADB_OPT_PASSWORD, ""); /* else $MYSQL_PWD; a file's wins */
  set_timeouts(my, cfg);                        /* a file's win */
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

/* A wait for a lock ends before the wait for its reply does. Settings that a server may have
** for all sessions and that would break us are set back. These are chained transactions, cut
** results, refused changes without a key, sorts without room, checks that are off, and a
** stopped clock. Another character set than the agreed one (init_connect) is set back, too. */
static void session_text(char *text, size_t size, const ns_config *cfg) {
  unsigned reading = read_seconds(cfg);
  unsigned wait = reading < 80 ? reading * 3 / 4 : 60;
  wait = wait > 0 ? wait : 1;
  snprintf(text, size,
           "SET NAMES 'utf8mb4' COLLATE 'utf8mb4_general_ci',"
           "sql_mode='STRICT_TRANS_TABLES,"
           "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION',"
           "time_zone='+00:00',autocommit=1,completion_type=0,"
           "sql_select_limit=18446744073709551615,sql_safe_updates=0,sql_big_selects=1,"
           "sql_auto_is_null=0,unique_checks=1,foreign_key_checks=1,"
           "check_constraint_checks=1,max_recursive_iterations=4294967295,"
           "session_track_state_change=1,"
           "session_track_system_variables='character_set_client,character_set_results',"
           "timestamp=DEFAULT,group_concat_max_len=1048576,"
           "div_precision_increment=4,lc_time_names='en_US',standard_compliant_cte=1,sql_notes=1,"
           "sort_buffer_size=GREATEST(@@sort_buffer_size,262144),"
           "innodb_lock_wait_timeout=%u,lock_wait_timeout=%u%s",
           wait < 3 ? wait : 3, wait, cfg->host_session ? ",wait_timeout=30" : "");
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
  ns_assert((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &after, sizeof after);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
#ifdef TCP_USER_TIMEOUT
  unsigned silence = SILENCE_MAX * 1000;
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence, sizeof silence);
#endif
}

static ns_status send_session(ns_link *l, const ns_config *cfg, ns_err *err) {
  char text[1536];
  ns_status st;
  set_socket((int)mysql_get_socket(l->my));
  session_text(text, sizeof text, cfg);
  if ((st = check_server(l->my, err)) != NS_OK || (st = check_tls(l->my, cfg, err)) != NS_OK)
    return st;
  if ((st = ns_link_send(l, text, err)) != NS_OK)
    return st;
  return ns_link_send(l, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE", err);
}

/* The session that verify asked for did not come about. */
static ns_status refuse_tls(const ns_link *l, ns_err *err) {
  if ((l->my->server_capabilities & CLIENT_SSL) == 0)
    return no_tls(err);
  return ns_fail(err, NS_EDENIED, "%s (%d)", mysql_error(l->my), CR_SSL_CONNECTION_ERROR);
}

/* The kernel takes connections for a server that is stopped or swaps, and then it says nothing.
** A refused connection, or one to a machine that does not answer, fails otherwise. */
static bool is_frozen(unsigned sqlerr, const ns_config *cfg, int64_t took) {
  int64_t limit = read_seconds(cfg) * NS_SECOND;
  if (connect_timeout(cfg) < limit)
    limit = connect_timeout(cfg);
  return (sqlerr == CR_SERVER_LOST || sqlerr == CR_SERVER_LOST_EXTENDED) && took >= limit * 9 / 10;
}

#define PORT 3306 /* unless one is named */

/* Where the server was looked for; "": at the library's own socket, which its words name. */
static void place_of(const ns_link *l, const ns_config *cfg, char *text, size_t size) {
  const char *host = host_of(l->my, cfg);
  const char *socket = cfg->socket != NULL ? cfg->socket : l->my->options.unix_socket;
  unsigned port = cfg->port > 0 ? cfg->port : l->my->options.port;
  if (host != NULL && host[0] != '\0' && strcmp(host, "localhost") != 0)
    snprintf(text, size, " to %.200s, port %u", host, port > 0 ? port : PORT);
  else
    snprintf(text, size, "%s%.200s", socket != NULL ? " to socket " : "",
             socket != NULL ? socket : "");
}

/* The library's words end with the errno of the connect. Of TCP that is the one of a connect
** under way, whatever has refused it. */
static const char *reason_of(const ns_link *l, const char *place) {
  const char *words = mysql_error(l->my);
  const char *number = strrchr(words, '(');
  int code = number != NULL ? atoi(number + 1) : 0;
  if (place[0] == '\0' || mysql_errno(l->my) != CR_CONNECTION_ERROR || code <= 0)
    return words;
  return code == EINPROGRESS ? "refused: no server listens there, or nothing leads there"
                             : strerror(code);
}

/* Whatever the reason: the server cannot be reached. 'took': µs. */
static void say_unreachable(const ns_link *l, const ns_config *cfg, int64_t took, ns_err *err) {
  unsigned sqlerr = mysql_errno(l->my);
  char place[256];
  place_of(l, cfg, place, sizeof place);
  if (is_frozen(sqlerr, cfg, took))
    ns_fail(err, NS_EGONE,
            "cannot connect%s: the server takes connections and does not answer: it is "
            "frozen, or overloaded (%u)",
            place, sqlerr);
  else
    ns_fail(err, NS_EGONE, "cannot connect%s: %s (%u)", place, reason_of(l, place), sqlerr);
}

/* Adds advice to the server's words where they alone do not help. 'took': µs. */
static ns_status refuse_connect(ns_link *l, const ns_config *cfg, int64_t took, ns_err *err) {
  unsigned sqlerr = mysql_errno(l->my);
  ns_status st = ns_link_refuse(l, sqlerr, mysql_error(l->my), err);
  if (sqlerr == CR_SSL_CONNECTION_ERROR)
    refuse_tls(l, err);
  else if (sqlerr == ER_BAD_DB_ERROR)
    ns_fail(err, NS_ESCHEMA,
            "the database '%.64s' does not exist; create it, then run "
            "`nightshift init`",
            database_of(l->my, cfg));
  else if (st == NS_EDENIED)
    ns_err_context(err, "access denied");
  else if (sqlerr == ER_WRONG_DB_NAME || sqlerr == ER_INVALID_CHARACTER_STRING)
    ns_fail(err, NS_EINVALID, "the server takes no such name of a database: %s (%u)",
            mysql_error(l->my), sqlerr);
  else if (st != NS_ESCHEMA)
    say_unreachable(l, cfg, took, err);
  err->sqlerr = sqlerr;
  return err->status;
}

/* All links of this process, for ns_owns_socket; several threads have links. */
static ns_link *links;
static pthread_mutex_t links_lock = PTHREAD_MUTEX_INITIALIZER;

static void add_to_links(ns_link *l) {
  pthread_mutex_lock(&links_lock);
  l->next = links;
  links = l;
  pthread_mutex_unlock(&links_lock);
}

static void remove_from_links(const ns_link *l) {
  pthread_mutex_lock(&links_lock);
  for (ns_link **p = &links; *p != NULL; p = &(*p)->next)
    if (*p == l) {
      *p = l->next;
      break;
    }
  pthread_mutex_unlock(&links_lock);
}

size_t ns_connections(void) {
  size_t n = 0;
  pthread_mutex_lock(&links_lock);
  for (const ns_link *l = links; l != NULL; l = l->next)
    n++;
  pthread_mutex_unlock(&links_lock);
  return n;
}

bool ns_owns_socket(int fd) {
  bool found = false;
  pthread_mutex_lock(&links_lock);
  for (const ns_link *l = links; l != NULL; l = l->next)
    found = found || (int)mysql_get_socket(l->my) == fd;
  pthread_mutex_unlock(&links_lock);
  return found;
}

const char *ns_client_version(void) {
  return mysql_get_client_info();
}

static bool is_ascii(const char *text) {
  while (*text != '\0' && (unsigned char)*text < 0x80)
    text++;
  return *text == '\0';
}

/* Into no database yet, whatever a file says. */
static bool connect_outside(MYSQL *my, const ns_config *cfg) {
  char *named = my->options.db;
  bool good;
  my->options.db = NULL;
  good = mysql_real_connect(my, host_of(my, cfg), cfg->user, cfg->password, NULL, cfg->port,
                            cfg->socket, CLIENT_REMEMBER_OPTIONS) != NULL;
  my->options.db = named;
  return good;
}

/* A server may give all clients a character set of its own (character_set_client_handshake
** OFF). It reads the name of the database in that set, so such a name comes behind SET NAMES. */
static ns_status join_server(ns_link *l, const ns_config *cfg, ns_err *err) {
  int64_t since = ns_mono_us();
  const char *database = database_of(l->my, cfg);
  bool good =
      is_ascii(database)
          ? mysql_real_connect(l->my, host_of(l->my, cfg), cfg->user, cfg->password, database,
                               cfg->port, cfg->socket, CLIENT_REMEMBER_OPTIONS) != NULL
          : connect_outside(l->my, cfg) && mysql_query(l->my, "SET NAMES 'utf8mb4'") == 0 &&
                mysql_select_db(l->my, database) == 0;
  return good ? NS_OK : refuse_connect(l, cfg, ns_mono_us() - since, err);
}

ns_status ns_link_open_one(ns_link **out, const ns_config *cfg, ns_err *err) {
  ns_link *l = calloc(1, sizeof *l);
  ns_status st;
  *out = NULL;
  pthread_once(&environment_once, forget_environment);
  if (l == NULL || (l->my = mysql_init(NULL)) == NULL) {
    free(l);
    return ns_no_memory(err);
  }
  l->places = cfg->host_session ? HOST_PLACES : PLACES;
  ns_link_keep(l, cfg->statements);
  l->read_timeout = read_seconds(cfg) * NS_SECOND;
  l->await = (ns_await){cfg->interrupted, cfg->interrupted_arg, cfg->interrupt_fd,
                        cfg->end_by,      l->read_timeout,      0};
  l->waits = cfg->waits;
  l->waits_arg = cfg->waits_arg;
  st = set_options(l->my, cfg, err);
  if (st == NS_OK)
    st = join_server(l, cfg, err);
  if (st == NS_OK)
    st = send_session(l, cfg, err);
  if (st != NS_OK) {
    ns_link_close(l, false);
    return st;
  }
  add_to_links(l);
  *out = l;
  return NS_OK;
}

void ns_link_close(ns_link *l, bool foreign) {
  if (l == NULL)
    return;
  remove_from_links(l);
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

bool ns_link_is_open(const ns_link *l) {
  unsigned status = l->my->server_status;
  return (status & SERVER_STATUS_IN_TRANS) != 0 || (status & SERVER_STATUS_AUTOCOMMIT) == 0;
}

/* The tracker gives names and values of variables in turn. */
bool ns_link_is_utf8(ns_link *l) {
  const char *text;
  size_t n;
  bool results = false;
  bool more = mysql_session_track_get_first(l->my, SESSION_TRACK_SYSTEM_VARIABLES, &text, &n) == 0;
  for (; more;
       more = mysql_session_track_get_next(l->my, SESSION_TRACK_SYSTEM_VARIABLES, &text, &n) == 0) {
    if (results && (n != strlen("utf8mb4") || memcmp(text, "utf8mb4", n) != 0))
      return false;
    results = n == strlen("character_set_results") && memcmp(text, "character_set_results", n) == 0;
  }
  return strcmp(mysql_character_set_name(l->my), "utf8mb4") == 0;
}

bool ns_link_is_marked(const ns_link *l) {
  return (l->my->server_status & SERVER_SESSION_STATE_CHANGED) != 0;
}

ns_status ns_link_reset(ns_link *l, const ns_config *cfg, ns_err *err) {
  ns_server at;
  ns_config one;
  ns_status st;
  if (l->dead)
    return ns_link_gone(err);
  st = mysql_reset_connection(l->my) == 0 ? NS_OK : ns_link_refused(l, err);
  ns_stmt_all_lost(l);
  if (st == NS_OK)
    st = send_session(l, ns_link_servers_config(cfg, l->place, &at, &one), err);
  if (st == NS_OK)
    st = ns_link_answers(l, NULL, err);
  if (st != NS_OK)
    ns_link_give_up(l);
  return st;
}

bool ns_link_dead(const ns_link *l) {
  return l->dead;
}

void ns_link_give_up(ns_link *l) {
  l->dead = true;
}

void ns_link_look(ns_link *l) {
  struct pollfd fd = {.fd = (int)mysql_get_socket(l->my), .events = POLLRDHUP};
  if (!l->dead && poll(&fd, 1, 0) > 0 && (fd.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0)
    l->dead = true;
}

void ns_link_end_by(ns_link *l, int64_t at) {
  l->await.end_by = at;
}

void ns_link_wait_any_time(ns_link *l, bool patient) {
  l->await.limit = patient ? 0 : l->read_timeout;
}

int64_t ns_link_read_timeout(const ns_link *l) {
  return l->read_timeout;
}

int64_t ns_link_thread(const ns_link *l) {
  return (int64_t)mysql_thread_id(l->my);
}

void ns_link_limit(ns_link *l, int64_t max_packet) {
  l->max_packet = max_packet > 0 ? (size_t)max_packet : 0;
}
