/*
** Waiting for work without polling, and ringing those who wait.
**
** A listener sleeps in one statement on a connection of its own that owns no
** lock and no transaction. It enters itself in nightshift_listener, looks, and
** sleeps: a row that was committed before the look is seen, and whoever commits
** later finds the entry and ends the sleep with KILL QUERY. So no wake-up is
** lost. Error 1317, sleep value 1 and value 2 all mean "wake". The connection
** runs nothing but these statements, so a ring can never hit anything else.
*/
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ns_handle.h"
#include "ns_queue.h"
#include "ns_time.h"

#define LONGEST (10 * NS_SECOND)
#define ER_QUERY_INTERRUPTED 1317
#define QUEUES_MARK "(queues)"

struct ns_listener {
  ns_config cfg;   /* strings borrowed from the ns_db */
  ns_link *link;   /* NULL: not connected */
  ns_stmt *in, *out; /* enter, and leave, the list of those to ring */
  ns_stmt *stmt;   /* of 'text' */
  ns_buf text;     /* the statement as prepared */
  ns_buf queues;   /* the list in it */
  pid_t owner;
  _Atomic int64_t thread; /* the server's id, read by other threads */
};

static ns_status prepare_named(ns_listener *l, ns_stmt **out, ns_sql sql,
                               ns_err *err) {
  const char *text = ns_sql_texts[sql];
  return ns_link_prepare(l->link, out, text, strlen(text), err);
}

static ns_status connect_listener(ns_listener *l, ns_err *err) {
  ns_status st = ns_link_open(&l->link, &l->cfg, err);
  l->stmt = l->in = l->out = NULL;
  ns_buf_reset(&l->text);
  if (st == NS_OK)
    l->thread = ns_link_thread(l->link);
  if (st == NS_OK)
    st = prepare_named(l, &l->in, NS_SQL_LISTEN_IN, err);
  if (st == NS_OK)
    st = prepare_named(l, &l->out, NS_SQL_LISTEN_OUT, err);
  return st;
}

static void disconnect(ns_listener *l) {
  l->thread = 0;
  ns_link_close(l->link, l->owner != getpid());
  l->link = NULL;
  l->stmt = l->in = l->out = NULL;
}

ns_status ns_listener_open(ns_listener **out, const ns_db *db, ns_err *err) {
  ns_listener *l = calloc(1, sizeof *l);
  ns_status st;
  *out = NULL;
  if (l == NULL)
    return ns_fail(err, NS_ENOMEM, "out of memory");
  ns_db_config(db, &l->cfg);
  if (l->cfg.host_session || l->cfg.read_timeout > 0) /* longer than the sleep */
    l->cfg.read_timeout = l->cfg.read_timeout > 2 * LONGEST
                              ? l->cfg.read_timeout
                              : 2 * LONGEST;
  l->cfg.host_session = false;
  l->owner = getpid();
  if ((st = connect_listener(l, err)) != NS_OK) {
    ns_listener_close(l);
    return st;
  }
  *out = l;
  return NS_OK;
}

void ns_listener_close(ns_listener *l) {
  if (l == NULL)
    return;
  disconnect(l);
  ns_buf_free(&l->text);
  ns_buf_free(&l->queues);
  free(l);
}

int64_t ns_listener_thread(const ns_listener *l) {
  return l->thread;
}

/* The statement for these queues: ids are numbers that we print ourselves. */
static void write_text(ns_listener *l, const int64_t *ids, size_t n,
                       ns_buf *text) {
  ns_buf_reset(&l->queues);
  for (size_t i = 0; i < n; i++)
    ns_buf_addf(&l->queues, "%c%lld", i > 0 ? ',' : '(', (long long)ids[i]);
  ns_buf_addc(&l->queues, ')');
  ns_buf_fill(text, ns_sql_texts[n > 0 ? NS_SQL_LISTEN_WAIT : NS_SQL_LISTEN_REST],
              QUEUES_MARK, ns_buf_bytes(&l->queues));
  text->oom = text->oom || l->queues.oom;
}

/* Prepares the statement unless it is the one of the last call. */
static ns_status prepare_wait(ns_listener *l, const int64_t *ids, size_t n,
                              ns_err *err) {
  ns_buf text = NS_BUF_INIT;
  ns_status st = NS_OK;
  write_text(l, ids, n, &text);
  if (text.oom)
    st = ns_fail(err, NS_ENOMEM, "out of memory");
  else if (l->stmt == NULL || text.n != l->text.n ||
           memcmp(text.p, l->text.p, text.n) != 0) {
    ns_stmt_free(l->link, l->stmt);
    ns_buf_free(&l->text);
    l->text = text;
    text = NS_BUF_INIT;
    st = ns_link_prepare(l->link, &l->stmt, l->text.p, l->text.n, err);
  }
  ns_buf_free(&text);
  return st;
}

/* A ring that comes while we run something is a wake, not an error. */
static ns_status woken(ns_status st, bool *woke, ns_err *err) {
  if (st == NS_OK || err->sqlerr != ER_QUERY_INTERRUPTED)
    return st;
  *woke = true;
  ns_err_clear(err);
  return NS_OK;
}

/* Looks, and sleeps in the server. A wake is a ring, or what was there. */
static ns_status sleep_there(ns_listener *l, int64_t newest, int64_t wait,
                             bool *woke, ns_err *err) {
  ns_value params[] = {ns_vint(newest > 0 ? newest : INT32_MAX),
                       {.type = NS_REAL, .d = (double)wait / (double)NS_SECOND}};
  const ns_value *row = NULL;
  ns_status st = ns_stmt_run(l->link, l->stmt, params, err);
  if (st == NS_OK)
    st = ns_stmt_fetch(l->link, l->stmt, &row, err);
  if (st == NS_OK && row != NULL && row[0].i != 0)
    *woke = true;
  return woken(st, woke, err);
}

static ns_status sleep_listed(ns_listener *l, int64_t newest, int64_t wait,
                              bool *woke, ns_err *err) {
  ns_value queues = ns_vtext(ns_buf_bytes(&l->queues));
  ns_status st = woken(ns_stmt_run(l->link, l->in, &queues, err), woke, err);
  if (st == NS_OK && !*woke)
    st = sleep_there(l, newest, wait, woke, err);
  if (st == NS_OK)
    st = woken(ns_stmt_run(l->link, l->out, NULL, err), woke, err);
  return st;
}

ns_status ns_listen(ns_listener *l, const int64_t *queue_ids, size_t n,
                    int64_t newest, int64_t max_wait, bool *woke, ns_err *err) {
  int64_t wait = max_wait < LONGEST ? max_wait : LONGEST;
  ns_status st = NS_OK;
  *woke = false;
  ns_err_clear(err);
  if (l->owner != getpid()) {
    disconnect(l);
    l->owner = getpid();
  }
  if (l->link == NULL || ns_link_dead(l->link)) {
    disconnect(l);
    st = connect_listener(l, err);
  }
  if (st == NS_OK)
    st = prepare_wait(l, queue_ids, n, err);
  return st == NS_OK && wait > 0 ? sleep_listed(l, newest, wait, woke, err) : st;
}

ns_status ns_ring(ns_db *db, ns_err *err) {
  ns_err none;
  ns_status st;
  if (err == NULL)
    err = &none;
  if ((st = ns_ready(db, err)) != NS_OK)
    return st;
  db->count.rings++;
  return ns_run(db, NS_SQL_LISTEN_RING, NULL, err);
}
