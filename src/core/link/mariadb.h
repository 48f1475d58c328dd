/*
** Shared declarations of the files of link/ about libmariadb: the inside of a link and of a
** statement. No other file may include this, or mysql.h.
*/
#ifndef NS_LINK_MARIADB_H
#define NS_LINK_MARIADB_H

#include <mysql.h>

#include "base.h"
#include "link/link.h"

#define NS_PACKET_SPARE 1024 /* bytes of max_packet that are left alone */
#define NS_DUE_MAX 64        /* answers due at once: the server never waits for us to read */

struct ns_link {
  MYSQL *my;
  bool dead;
  unsigned place;    /* of the server in its list, from 1 on; 0: it is the only one */
  bool cluster;      /* the server is a node of a cluster */
  int64_t ask_at;    /* monotonic: when to ask the server of a list again whether it can write */
  size_t max_packet; /* the server hangs up on a longer one; 0: not known */
  size_t sent, due;  /* statements since nothing was due, answers of them to come */
  size_t failed;     /* which was the first to fail, and how; status OK: none */
  size_t saving;     /* the number of a SAVEPOINT that is due, and one; 0: none is */
  bool saved;        /* it has been made */
  ns_err failure;
  size_t counted;                /* number of the first packet whose rows are counted, and the rows
                                 ** counted so far */
  int64_t affected;              /* answered */
  int64_t changed;               /* the same when all had been */
  ns_buf packet;                 /* the execution that is sent */
  ns_stmt *stmts;                /* all there are, in a list */
  size_t open, places;           /* how many of them the server knows, and may at most */
  uint64_t clock;                /* counts their uses */
  uint64_t held;                 /* statements used from here on are not closed to make room; 0: all
                                 ** may be */
  uint64_t closed;               /* how many have made room */
  int64_t prepares;              /* how many were sent to be prepared; the server numbers them, */
  int64_t skew;                  /* with numbers that are so much higher */
  ns_link *next;                 /* of the open links of this process */
  ns_await await;                /* how an answer is waited for */
  int64_t read_timeout;          /* µs: how long an answer may take */
  bool flowing;                  /* the first answer to the packets sent has come */
  const char *names[NS_DUE_MAX]; /* of the answers due, by number modulo so many */
  ns_stmt *asks[NS_DUE_MAX];     /* and the statements that they are for; NULL: only its outcome
                                 ** counts */
  void (*waits)(void *arg, const char *what, int64_t thread, int64_t at);
  void *waits_arg;       /* as the ns_config says */
  const char *waiting;   /* the name of the statement that is waited for; NULL: it has none */
  const char *last;      /* the same when it has been waited for */
  const char *conflict;  /* the same of the last deadlock or lock wait */
  int64_t waits_since;   /* monotonic */
  int64_t slow, slowest; /* as the ns_counters say */
};

/* Rows that are read before the results behind them. */
typedef struct ns_kept {
  bool on;
  ns_value *values; /* row by row */
  size_t n, cap;
  size_t at;    /* the next that is handed out */
  ns_buf bytes; /* names of columns, then texts, in their order */
} ns_kept;

struct ns_stmt {
  ns_stmt *next;
  MYSQL_STMT *st;   /* NULL: brief */
  const char *name; /* for reports of waits; NULL: none is made */
  char *sql;        /* owned */
  size_t nsql;
  bool brief;          /* it is sent as text */
  bool open;           /* the server knows it */
  int64_t number;      /* of the sending that prepares it, */
  unsigned long guess; /* and the server's number that it should get */
  uint64_t heat, used; /* how often lately, and when last, by the link's clock */
  size_t nparams;
  size_t ncols;       /* of the result; 0: no rows */
  const char **names; /* ncols; point into fields */
  MYSQL_RES *meta;    /* owns the names; NULL without rows */
  MYSQL_BIND *binds;  /* ncols */
  ns_value *row;      /* ncols, handed out by fetch */
  unsigned long *lengths;
  my_bool *nulls;
  ns_buf text;  /* where text columns of one row land */
  ns_kept kept; /* the rows of a CALL */
  int64_t affected, insert_id;
  bool asked;        /* its answer is due */
  ns_status outcome; /* of the last time it was asked, */
  ns_err refusal;    /* and the error */
};

/* Fills 'err' (may be NULL) from the server's words and notes a lost connection. */
ns_status ns_link_refuse(ns_link *l, unsigned sqlerr, const char *text, ns_err *err);

/* Refuses with the connection's own error of its last call. */
ns_status ns_link_refused(ns_link *l, ns_err *err);

/* Refuses with a prepared statement's error of its last call. */
ns_status ns_stmt_refuse(ns_link *l, ns_stmt *s, ns_err *err);

/* The server has forgotten all statements. */
void ns_stmt_all_lost(ns_link *l);

/* Frees the room for the columns of its result. */
void ns_stmt_free_columns(ns_stmt *s);

/* Sends it to be prepared, and reads the answer to that, behind those that are due. In between,
** other packets may be sent. */
ns_status ns_stmt_send_prepare(ns_link *l, ns_stmt *s, ns_err *err);
ns_status ns_stmt_read_prepare(ns_link *l, ns_stmt *s, ns_err *err);

/* The same as ns_stmt_ready of a statement that the server knows. */
void ns_stmt_warm(ns_link *l, ns_stmt *s);

/* Sends an execution; its answer comes after the ones that are due. */
ns_status ns_stmt_send_execution(ns_link *l, ns_stmt *s, const ns_value *params, ns_err *err);

/* Reads its answer, and its rows, to be fetched. */
ns_status ns_stmt_read_execution(ns_link *l, ns_stmt *s, ns_err *err);

/* Puts the text of a brief statement into 'packet'. Its marks are replaced by the integers of
** 'params', or else of a row of 'cols'. */
ns_status ns_stmt_spell(ns_link *l, const ns_stmt *s, const ns_value *params, const ns_column *cols,
                        size_t row, ns_err *err);

/* TOO_BIG: over the server's limit. */
ns_status ns_stmt_too_big(const ns_link *l, ns_err *err);

/* Reads the first answer that is due, or all that are due; an answer that never comes is a
** failure. ns_link_answers returns the failure. */
void ns_link_take_answer(ns_link *l);
void ns_link_take_answers(ns_link *l);

/* Before something is sent: if nothing else is due its answer is to be waited for. */
void ns_link_sends(ns_link *l);

/* Waits for the first answer to the packets sent; later answers have the library's read
** timeout. So data that the library has read ahead is never waited for. Errors: GONE, when
** there is none in time or the wait is interrupted. */
ns_status ns_link_await(ns_link *l, ns_err *err);

/* Before an answer is read, and after: how long it takes is counted and told. 'name' as
** for ns_link_prepare. */
void ns_link_waits(ns_link *l, const char *name);
void ns_link_waited(ns_link *l);

/* The name of a statement that ends a transaction; NULL of other statements. */
const char *ns_link_name(const char *sql);

/* The configuration for the server at a place of a list. It borrows from 'cfg' and from '*at',
** which is filled. */
const ns_config *ns_link_servers_config(const ns_config *cfg, unsigned place, ns_server *at,
                                   ns_config *room);

/* Writes the error of a dead link. */
ns_status ns_link_gone(ns_err *err);

#endif
