/*
** One connection to MariaDB, its statements, and the meaning of server errors. Everything above
** speaks through this interface, and never sees mysql.h.
**
** A link does not reconnect, retry or know about jobs. After a lost
** connection it is 'dead' and every call says NS_EGONE.
*/
#ifndef NS_LINK_LINK_H
#define NS_LINK_LINK_H

#include "nightshift_host.h"

/* The SQL of sql/query, embedded at build. */
extern const char *const ns_sql_names[]; /* NS_SQL_COUNT of them, sorted */
extern const char *const ns_sql_texts[];

/* ------------------------------------------ the connection: connection.c */

typedef struct ns_link ns_link;

/* Connects to one server, checks it and sends the settings of the session. Errors: GONE, DENIED,
** SERVER, SCHEMA (no such database), INVALID. */
ns_status ns_link_open_one(ns_link **out, const ns_config *cfg, ns_err *err);

/* Closes; 'foreign' (inherited over a fork) frees memory without a word to
** the server. NULL is allowed. */
void ns_link_close(ns_link *l, bool foreign);

bool ns_link_dead(const ns_link *l);

/* From now on it is dead: the state of its session is not known. */
void ns_link_give_up(ns_link *l);

/* Nothing is waited for after that; monotonic µs. */
void ns_link_end_by(ns_link *l, int64_t at);

/* From now on an answer may take as long as it takes; or the read timeout at most, as
** at first. */
void ns_link_wait_any_time(ns_link *l, bool patient);

int64_t ns_link_read_timeout(const ns_link *l); /* µs: how long an answer may take at first */

/* Asks the kernel whether the server has closed the connection while nothing
** was under way; then the link is dead. Costs no round trip. */
void ns_link_look(ns_link *l);

int64_t ns_link_thread(const ns_link *l); /* the server's id of it */
/* The static name of the statement that met the last deadlock or lock wait; NULL: it has none. */
const char *ns_link_conflict(const ns_link *l);

/* How many answers were slow, and µs of the slowest. */
int64_t ns_link_slow(const ns_link *l, int64_t *slowest);

/* The server's max_allowed_packet: a longer packet is TOO_BIG before it is sent. */
void ns_link_limit(ns_link *l, int64_t max_packet);

/* The state of the session in the server's last answer. Open: a transaction is open, or autocommit
** is off, so that the next statement would begin one. Marked: the answered statement has
** changed variables, the default database, the role, or another part of the session. The server
** does not see all such changes; db/caller.c finds the rest. */
bool ns_link_is_open(const ns_link *l);
/* Has the server said that it takes and gives texts in our character set? Of the last answer. */
bool ns_link_is_utf8(ns_link *l);
bool ns_link_is_marked(const ns_link *l);

/* Sets the session back to its state after ns_link_open, except for its default database and
** its role. The server forgets all statements, which are prepared anew when they are needed.
** The caller has read all answers. An error leaves the link dead. */
ns_status ns_link_reset(ns_link *l, const ns_config *cfg, ns_err *err);

/* ----------------------------------------------------- errors: answers.c */

/* True for 1213, 1205 and 1020: the transaction may simply be run again. */
bool ns_link_retryable(const ns_err *err);

/* True for errors that a value in a row can cause: a constraint, a range, an encoding, a size,
** or a trigger that refuses it. All other errors are the server's own trouble. */
bool ns_link_blames_value(const ns_err *err);

/* ----------------------------------------------- statements: statement.c */

typedef struct ns_stmt ns_stmt; /* a prepared statement of one link */

/* Prepares. Owned by the link, freed with it or by ns_stmt_free. A link keeps few statements
** open in the server, which has a limit for all programs together. The least used one is closed
** to make room, and is prepared again with its next use. Its rows can be fetched until then.
** 'name' is static; NULL: its time is not reported. */
ns_status ns_link_prepare(ns_link *l, ns_stmt **out, const char *name, const char *sql, size_t n,
                          ns_err *err);

/* A statement of ours that is prepared when it is used: its first ns_stmt_run sends both together.
** Marks for parameters stand outside of its quotes and comments. Errors: NOMEM; others come with
** the run. */
ns_status ns_link_plan(ns_link *l, ns_stmt **out, const char *name, const char *sql, size_t n,
                       ns_err *err);

/* Prepares these texts and forgets them, many in one wait: may we run them, and do their tables
** exist? Returns the first failure. */
ns_status ns_link_check(ns_link *l, const char *const *texts, size_t n, ns_err *err);

/* A statement that takes no place: it is sent as text, with its parameters spelled out. The
** parameters are integers, the values of its rows integers and texts. */
ns_status ns_link_brief(ns_link *l, ns_stmt **out, const char *name, const char *sql, size_t n,
                        ns_err *err);

/* From now on it keeps at least so many open. */
void ns_link_keep(ns_link *l, size_t n);

/* 'yes': from now on no statement in use is closed to make room; for callers that send several
** ahead. */
void ns_link_hold(ns_link *l, bool yes);

/* Prepares it again if it has made room. */
ns_status ns_stmt_ready(ns_link *l, ns_stmt *s, ns_err *err);
void ns_stmt_free(ns_link *l, ns_stmt *s);
size_t ns_stmt_params(const ns_stmt *s);

/* The next row, borrowed until the next call on 's'; NULL after the last. */
ns_status ns_stmt_fetch(ns_link *l, ns_stmt *s, const ns_value **row, ns_err *err);
size_t ns_stmt_columns(const ns_stmt *s);
const char *const *ns_stmt_names(const ns_stmt *s);
int64_t ns_stmt_affected(const ns_stmt *s);
int64_t ns_stmt_insert_id(const ns_stmt *s);

/* ------------------------------------------------------- sending: send.c */

/* Runs plain text that returns no rows of interest (they are dropped). */
ns_status ns_link_text(ns_link *l, const char *sql, ns_err *err);

/* Executes with bound parameters; rows wait on the client to be fetched. The
** previous rows of 's' are dropped. */
ns_status ns_stmt_run(ns_link *l, ns_stmt *s, const ns_value *params, ns_err *err);

/* One column of an array-bound execution; 'type' NS_INT or NS_TEXT. */
typedef struct ns_column {
  ns_type type;
  const int64_t *ints;
  const ns_bytes *texts; /* p == NULL: SQL NULL */
  const char *null;      /* NULL, or per row: non-zero is SQL NULL */
} ns_column;

/* Executes once per row, in as few round trips as the server's limit on packets
** allows: one, as a rule. Inside a transaction it fails or succeeds as a whole. */
ns_status ns_stmt_bulk(ns_link *l, ns_stmt *s, const ns_column *cols, size_t nrows, ns_err *err);

/* Sending ahead: statements go out one behind the other. Their answers are read together with
** the answer of the next statement that is run, so all of them take one wait. A failed
** statement does not keep the server from running the statements behind it. The call that reads
** the answers returns the first failure. */
ns_status ns_link_send(ns_link *l, const char *sql, ns_err *err);
ns_status ns_stmt_send(ns_link *l, ns_stmt *s, const ns_column *cols, size_t nrows, ns_err *err);

/* Sends a SAVEPOINT ahead. Has the server made the last one that was sent so? Not known while its
** answer is due: no. */
ns_status ns_link_save(ns_link *l, const char *sql, ns_err *err);
bool ns_link_saved(const ns_link *l);

/* Sends an execution; its rows, if any, are to be had with ns_stmt_told. Several statements may be
** asked before the first is told. */
ns_status ns_stmt_ask(ns_link *l, ns_stmt *s, const ns_value *params, ns_err *err);
/* Reads the outcome of 's', after the errors of statements sent before it; its rows wait to be
** fetched. */
ns_status ns_stmt_told(ns_link *l, ns_stmt *s, ns_err *err);

/* Reads the answers that are due. The first error wins; '*failed' (may be NULL): the number of
** its packet, counted from 0. */
ns_status ns_link_answers(ns_link *l, size_t *failed, ns_err *err);

/* Rows that the answered statements have changed together; statements that give rows are not
** counted. */
int64_t ns_link_changed(const ns_link *l);

/* ---------------------------------------------- a list of servers: servers.c */

/* One of a list. */
typedef struct ns_server {
  char host[256]; /* a name, an address, or the path of a socket; ends in NUL */
  unsigned port;  /* 0: the port of the whole list */
  bool socket;
} ns_server;

/* Connects to the first server of cfg->host that answers and can write; one that is no list is
** taken as it is. Errors: as ns_link_open_one; GONE when one of the list may be there soon. */
ns_status ns_link_open(ns_link **out, const ns_config *cfg, ns_err *err);

/* As ns_link_open, but the settings of the session have only been sent. The caller asks no more
** than looks behind them, and reads the answers. */
ns_status ns_link_open_ahead(ns_link **out, const ns_config *cfg, ns_err *err);

/* The place of the server in its list, from 1 on; 0: it is the only one. */
unsigned ns_link_place(const ns_link *l);

/* The server is a node of a cluster. It may undo a transaction at any time, and then answers OK to
** a packet of many rows. So each row has a packet of its own, and what is sent outside a pipeline
** goes only when all before it has worked. ns_link_servers_ask asks it as one of a list. */
void ns_link_set_cluster(ns_link *l);
bool ns_link_cluster(const ns_link *l);

/* Is the server of a list, or of a cluster, still one that can write? It is asked once a second at
** most; the link of one that cannot is dead. A node that is cut off or was frozen shows old rows.
** They are read for no longer than that, and other nodes need more time to go on without it.
** Outside transactions. Errors: GONE, as of any statement; SERVER: another node of the cluster
** writes. */
ns_status ns_link_servers_ask(ns_link *l, ns_err *err);

/* Is the text a list, or the path of a socket? */
bool ns_link_servers_are(const char *hosts);

/* Takes the first server off a list; the rest is "" behind the last. Errors: INVALID. */
ns_status ns_link_servers_next(const char **list, ns_server *out, ns_err *err);
ns_status ns_link_servers_check(const char *list, ns_err *err);

/* ------------------------------------------------------ database URLs: url.c */

/*
** Database URLs: mysql:// or mariadb://user:password@host:port/database?k=v
**
** Parsing is a pure function of the bytes of the URL. Parts may be empty or percent-encoded; an
** IPv6 host stands in [brackets]. Hosts between commas are a list, in which each may have a port
** and a path, with its slashes encoded, is a unix socket. The keys of the query are fields of
** ns_config, each at most once: unix_socket, tls, ca, cert, key, connect_timeout, read_timeout,
** max_payload, file, group. No message of a failed parse shows any part that could belong to
** the password.
*/
typedef struct ns_url {
  char *text; /* owned: the decoded parts below live in it */
  /* NULL: absent or empty; only 'password' may be "" */
  const char *host, *user, *password, *database, *socket; /* a list's host: see servers.c */
  const char *file, *group, *tls, *ca, *cert, *key;
  unsigned port;           /* 0: absent */
  int64_t connect_timeout; /* µs; 0: absent */
  int64_t read_timeout;    /* likewise */
  int64_t max_payload;     /* bytes; 0: absent */
} ns_url;

#define NS_URL_INIT ((ns_url){0})

/* Fills '*out'; on failure '*out' is empty. Errors: INVALID, NOMEM. */
ns_status ns_url_parse(const char *url, ns_url *out, ns_err *err);

/* Frees; the URL is empty afterwards. Twice is harmless. */
void ns_url_free(ns_url *u);

/* Sets the absent fields of 'cfg'; they borrow from 'u'. */
void ns_url_fill(const ns_url *u, ns_config *cfg);

/* Adds 'text' percent-encoded; '/' stays as it is. */
void ns_url_encode(ns_buf *out, const char *text);

#endif
