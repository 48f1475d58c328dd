/*
** Waiting for work without polling, and ringing those who wait.
**
** A listener sleeps in one statement on a connection of its own that owns no
** lock and no transaction. The statement looks first and sleeps then, so a
** row that was committed before it is seen, and a ring that comes later ends
** the sleep: error 1317, sleep value 1 and value 2 all mean "wake". Its
** marker, a comment `nightshift-wait …`, names the queues it waits for; a ring ends
** one statement of each kind, by query id, so it can never hit another query.
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
  ns_stmt *stmt;   /* of 'text' */
  ns_buf text;     /* the statement as prepared */
  pid_t owner;
  _Atomic int64_t thread; /* the server's id, read by other threads */
};

static ns_status connect_listener(ns_listener *l, ns_err *err) {
  ns_status st = ns_link_open(&l->link, &l->cfg, err);
  l->stmt = NULL;
  ns_buf_reset(&l->text);
  if (st == NS_OK)
    l->thread = ns_link_thread(l->link);
  return st;
}

static void disconnect(ns_listener *l) {
  l->thread = 0;
  ns_link_close(l->link, l->owner != getpid());
  l->link = NULL;
  l->stmt = NULL;
}

ns_status ns_listener_open(ns_listener **out, const ns_db *db, ns_err *err) {
  ns_listener *l = calloc(1, sizeof *l);
  ns_status st;
  *out = NULL;
  if (l == NULL)
    return ns_fail(err, NS_ENOMEM, "out of memory");
  ns_db_config(db, &l->cfg);
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
  free(l);
}

int64_t ns_listener_thread(const ns_listener *l) {
  return l->thread;
}

/* The statement for these queues: ids are numbers that we print ourselves,
** because the marker has to show them in the process list. */
static void write_text(const int64_t *ids, size_t n, ns_buf *text) {
  ns_buf list = NS_BUF_INIT;
  for (size_t i = 0; i < n; i++)
    ns_buf_addf(&list, "%c%lld", i > 0 ? ',' : '(', (long long)ids[i]);
  ns_buf_addc(&list, ')');
  ns_buf_fill(text, ns_sql_texts[n > 0 ? NS_SQL_LISTEN_WAIT : NS_SQL_LISTEN_REST],
              QUEUES_MARK, ns_buf_bytes(&list));
  text->oom = text->oom || list.oom;
  ns_buf_free(&list);
}

/* Prepares the statement unless it is the one of the last call. */
static ns_status prepare_wait(ns_listener *l, const int64_t *ids, size_t n,
                              ns_err *err) {
  ns_buf text = NS_BUF_INIT;
  ns_status st = NS_OK;
  write_text(ids, n, &text);
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

/* Sleeps in the server. A wake is a ring, or something that is there. */
static ns_status sleep_there(ns_listener *l, int64_t newest, int64_t wait,
                             bool *woke, ns_err *err) {
  ns_value params[] = {ns_vint(newest > 0 ? newest : INT32_MAX),
                       {.type = NS_REAL, .d = (double)wait / (double)NS_SECOND}};
  const ns_value *row = NULL;
  ns_status st = ns_stmt_run(l->link, l->stmt, params, err);
  if (st == NS_OK)
    st = ns_stmt_fetch(l->link, l->stmt, &row, err);
  if (st != NS_OK && err->sqlerr == ER_QUERY_INTERRUPTED) {
    *woke = true;
    return NS_OK;
  }
  *woke = st == NS_OK && row != NULL && row[0].i != 0;
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
  return st == NS_OK && wait > 0 ? sleep_there(l, newest, wait, woke, err) : st;
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
