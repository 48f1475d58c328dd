/*
** An ear: a connection that sleeps in the server until a row of an adopted table may be
** claimable.
**
** While it has one of the table's named locks, the table's triggers end its query. They
** ring before whoever added the row commits, and a query is not ended when there is
** none; so the sleep begins with a look, in the same command, and that look sees what is
** not committed yet: a row that was added before it is seen, and who adds one later ends
** the sleep. Whoever is woken for a row that he cannot claim yet comes back after a
** pause, and sees it again.
**
** It is a compound statement because each statement in it has a read view of its own:
** a look and a sleep in one would hold up purge. The sleep is a wait for the named lock
** of our own work connection, for the reason that is in ns_listen.c.
**
** Invariant: the connection has a named lock only while it sleeps and runs nothing but
** these statements, so nobody else's query is ever ended.
*/
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ns_adopt.h"
#include "ns_time.h"

#define DEAF NS_SECOND    /* a sleep of one that has no lock, on average */
#define SLICE (NS_SECOND / 10) /* of a sleep */
#define ER_QUERY_INTERRUPTED 1317

struct ns_ear {
  ns_config cfg;   /* strings borrowed from the ns_db */
  ns_link *link;   /* NULL: not connected */
  ns_stmt *take, *leave;
  ns_buf name;     /* of the locks */
  ns_buf look;     /* adopt_stirs, spelled out */
  ns_buf text;     /* of the sleep */
  bool watch;      /* other holders, too */
  bool no_locks;   /* that tell of holders */
  pid_t owner;
  _Atomic int64_t thread; /* the server's id, read by other threads */
};

static void disconnect(ns_ear *e) {
  e->thread = 0;
  ns_link_close(e->link, e->owner != getpid());
  e->link = NULL;
  e->take = e->leave = NULL;
}

static ns_status prepare(ns_ear *e, ns_stmt **out, ns_sql sql, ns_err *err) {
  const char *text = ns_sql_texts[sql];
  return ns_link_prepare(e->link, out, text, strlen(text), err);
}

static ns_status get_ready(ns_ear *e, ns_err *err) {
  ns_status st;
  if (e->link != NULL && e->owner == getpid() && !ns_link_dead(e->link))
    return NS_OK;
  disconnect(e);
  e->owner = getpid();
  if ((st = ns_link_open(&e->link, &e->cfg, err)) != NS_OK)
    return st;
  e->thread = ns_link_thread(e->link);
  st = ns_link_text(e->link, ns_sql_texts[NS_SQL_ADOPT_EAR_SESSION], err);
  if (st == NS_OK)
    st = prepare(e, &e->take, NS_SQL_ADOPT_EAR, err);
  if (st == NS_OK)
    st = prepare(e, &e->leave, NS_SQL_ADOPT_EAR_LEAVE, err);
  if (st != NS_OK)
    disconnect(e);
  return st;
}

ns_status ns_ear_open(ns_ear **out, ns_adopted *a, bool watch, ns_err *err) {
  ns_ear *e = calloc(1, sizeof *e);
  ns_status st;
  *out = NULL;
  if (e == NULL)
    return ns_fail(err, NS_ENOMEM, "out of memory");
  ns_db_config(a->db, &e->cfg);
  if (e->cfg.read_timeout < 2 * NS_EAR_LONGEST) /* only silence lasts longer */
    e->cfg.read_timeout = 2 * NS_EAR_LONGEST;
  e->cfg.host_session = false;
  e->watch = watch;
  e->no_locks = a->db->no_locks;
  e->owner = getpid();
  a->heard = true;
  ns_buf_adds(&e->name, a->ear_name);
  st = ns_adopt_spell(a, NS_SQL_ADOPT_STIRS, &e->look, err);
  if (st == NS_OK && e->name.oom)
    st = ns_fail(err, NS_ENOMEM, "out of memory");
  if (st != NS_OK) {
    ns_ear_close(e);
    return st;
  }
  *out = e;
  return NS_OK;
}

void ns_ear_close(ns_ear *e) {
  if (e == NULL)
    return;
  disconnect(e);
  ns_buf_free(&e->name);
  ns_buf_free(&e->look);
  ns_buf_free(&e->text);
  free(e);
}

int64_t ns_ear_thread(const ns_ear *e) {
  return e->thread;
}

/* ---------------------------------------------------------------- sleeping */

static void write_sleep(ns_ear *e, int64_t holder, int64_t wait) {
  int64_t of = e->no_locks ? 0 : holder;
  int64_t slice = wait < SLICE ? wait : SLICE;
  ns_buf numbers = NS_BUF_INIT;
  ns_buf half = NS_BUF_INIT;
  ns_buf_addf(&numbers, "%" PRId64 ", %.6f, %" PRId64 ", %d", of,
              (double)slice / (double)NS_SECOND, (wait + slice - 1) / slice,
              e->watch && of != 0);
  ns_buf_fill(&half, ns_sql_texts[NS_SQL_ADOPT_EAR_SLEEP], "{numbers}",
              ns_buf_bytes(&numbers));
  ns_buf_addc(&half, '\0');
  ns_buf_reset(&e->text);
  if (!half.oom && !numbers.oom)
    ns_buf_fill(&e->text, half.p, "{look}", ns_buf_bytes(&e->look));
  ns_buf_addc(&e->text, '\0');
  e->text.oom = e->text.oom || half.oom || numbers.oom;
  ns_buf_free(&numbers);
  ns_buf_free(&half);
}

/* A ring that comes while we run something is a wake, not an error. */
static ns_status woken(ns_status st, bool *woke, ns_err *err) {
  if (st == NS_OK || err->sqlerr != ER_QUERY_INTERRUPTED)
    return st;
  *woke = true;
  ns_err_clear(err);
  return NS_OK;
}

static ns_status take(ns_ear *e, bool *heard, ns_err *err) {
  ns_value name = ns_vtext(ns_buf_bytes(&e->name));
  const ns_value *row = NULL;
  ns_status st = ns_stmt_run(e->link, e->take, &name, err);
  if (st == NS_OK)
    st = ns_stmt_fetch(e->link, e->take, &row, err);
  *heard = row != NULL;
  return st;
}

/* The next ring may hit this very statement. */
static void leave(ns_ear *e) {
  ns_err err;
  for (int tries = 0; tries < 3; tries++)
    if (ns_stmt_run(e->link, e->leave, NULL, &err) == NS_OK ||
        err.sqlerr != ER_QUERY_INTERRUPTED)
      return;
}

ns_status ns_ear_wait(ns_ear *e, int64_t holder, int64_t wait, bool *woke,
                      ns_err *err) {
  bool heard = false;
  ns_status st;
  *woke = false;
  ns_err_clear(err);
  if (wait <= 0 || (st = get_ready(e, err)) != NS_OK)
    return wait <= 0 ? NS_OK : st;
  st = woken(take(e, &heard, err), woke, err);
  if (wait > NS_EAR_LONGEST)
    wait = NS_EAR_LONGEST;
  if (!heard && wait > DEAF)
    wait = ns_jitter(DEAF, 0.5);
  if (st == NS_OK && !*woke) {
    write_sleep(e, holder, wait);
    st = e->text.oom ? ns_fail(err, NS_ENOMEM, "out of memory")
                     : woken(ns_link_text(e->link, e->text.p, err), woke, err);
  }
  if (!ns_link_dead(e->link))
    leave(e);
  return st;
}
