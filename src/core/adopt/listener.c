/*
** An ear: two connections that wait until a row of an adopted table may be claimable. One
** sleeps in the server, the other looks.
**
** While the sleeper has one of the table's named locks, the table's triggers end its query.
** They ring before the writer of the row commits, and a query is not ended when there is
** none; so the look comes when the other has fallen asleep, and sees what is not committed
** yet: a row that was added before it is seen, and who adds one later ends the sleep.
** A wake-up may come before the row can be claimed. The sleeper then pauses and looks again.
** In a long wait looks follow at times that grow apart.
**
** The sleep is a wait for the named lock of our own work connection, for the reason that
** is in wake/listener.c.
**
** Invariant: the sleeper never opens a table that has triggers, and has a named lock only
** while it sleeps. The server reads a table's triggers when it opens it, and when a KILL
** comes just then it keeps what it could not read, for all sessions: from then on no session could
** add a row.
*/
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "adopt/table.h"
#include "clock.h"

#define DEAF 10           /* slices of a sleep of one that has no lock, on average */
#define SLICE (NS_SECOND / 10) /* of a sleep */
#define NAP_FIRST SLICE   /* the first of a wait, with a look; each next takes four times */
#define ASLEEP_EVERY 300  /* µs between looks whether the sleeper sleeps … */
#define ASLEEP_TRIES 100  /* … and how many before it is taken for granted */
#define ER_QUERY_INTERRUPTED 1317

struct ns_ear {
  ns_config cfg;   /* strings borrowed from the ns_db; interrupt_fd is ours, or 0 */
  ns_link *link;   /* the sleeper; NULL: not connected */
  ns_link *eye;    /* who looks; as the sleeper */
  ns_stmt *sleep, *leave;         /* of the one … */
  ns_stmt *asleep, *stirs;        /* … and of the other */
  ns_buf name;     /* of the locks */
  ns_buf look;     /* adopt_stirs, spelled out */
  bool watch;      /* other holders, too */
  bool no_locks;   /* that tell of holders */
  pid_t owner;
  _Atomic int64_t thread; /* the server's id of the sleeper, read by other threads */
};

/* ------------------------------------------------------------- connecting */

static void disconnect(ns_ear *e) {
  bool foreign = e->owner != getpid();
  e->thread = 0;
  ns_link_close(e->link, foreign);
  ns_link_close(e->eye, foreign);
  e->link = e->eye = NULL;
  e->sleep = e->leave = e->asleep = e->stirs = NULL;
}

static ns_status prepare(ns_link *l, ns_stmt **out, ns_sql sql, ns_err *err) {
  const char *text = ns_sql_texts[sql];
  return ns_link_prepare(l, out, NULL, text, strlen(text), err);
}

static ns_status open_sleeper(ns_ear *e, ns_err *err) {
  ns_status st = ns_link_open(&e->link, &e->cfg, err);
  if (st == NS_OK)
    e->thread = ns_link_thread(e->link);
  if (st == NS_OK)
    st = prepare(e->link, &e->sleep, NS_SQL_ADOPT_EAR, err);
  return st == NS_OK ? prepare(e->link, &e->leave, NS_SQL_ADOPT_EAR_LEAVE, err) : st;
}

static ns_status open_eye(ns_ear *e, ns_err *err) {
  ns_status st = ns_link_open(&e->eye, &e->cfg, err);
  if (st == NS_OK)
    st = ns_link_text(e->eye, ns_sql_texts[NS_SQL_ADOPT_EAR_SESSION], err);
  if (st == NS_OK)
    st = prepare(e->eye, &e->asleep, NS_SQL_ADOPT_EAR_ASLEEP, err);
  return st == NS_OK ? ns_link_prepare(e->eye, &e->stirs, NULL, e->look.p, e->look.n, err) : st;
}

static ns_status get_ready(ns_ear *e, ns_err *err) {
  ns_status st;
  if (e->stirs != NULL && e->owner == getpid() && !ns_link_dead(e->link) &&
      !ns_link_dead(e->eye))
    return NS_OK;
  disconnect(e);
  e->owner = getpid();
  if ((st = open_sleeper(e, err)) != NS_OK || (st = open_eye(e, err)) != NS_OK)
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
  e->cfg.waits = NULL;
  if (e->cfg.read_timeout < 2 * NS_EAR_LONGEST) /* only silence lasts longer */
    e->cfg.read_timeout = 2 * NS_EAR_LONGEST;
  e->cfg.host_session = false;
  if (a->db->is_host && (e->cfg.interrupt_fd = ns_await_stop_open(err)) <= 0) {
    free(e);
    return err->status;
  }
  e->watch = watch;
  e->no_locks = a->db->no_locks;
  e->owner = getpid();
  a->heard = true;
  ns_buf_adds(&e->name, a->ear_name);
  st = ns_adopt_spell(a, NS_SQL_ADOPT_STIRS, &e->look, err);
  if (st == NS_OK && (e->name.oom || e->look.oom))
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
  ns_await_stop_close(e->cfg.interrupt_fd);
  ns_buf_free(&e->name);
  ns_buf_free(&e->look);
  free(e);
}

void ns_ear_stop(ns_ear *e) {
  ns_await_stop(e->cfg.interrupt_fd);
}

int64_t ns_ear_thread(const ns_ear *e) {
  return e->thread;
}

/* --------------------------------------------------------------- the sleeper */

static ns_status fall_asleep(ns_ear *e, int64_t holder, int64_t us, ns_err *err) {
  int64_t of = e->no_locks ? 0 : holder;
  int64_t slice = us < SLICE ? us : SLICE;
  return ns_stmt_ask(e->link, e->sleep,
                     (ns_value[]){ns_vtext(ns_buf_bytes(&e->name)), ns_vint(of),
                                  ns_vint(slice), ns_vint((us + slice - 1) / slice),
                                  ns_vint(ns_jitter(DEAF, 0.5)),
                                  ns_vint(e->watch && of != 0)},
                     err);
}

/* A ring is no error. */
static ns_status wake(ns_ear *e, bool *woke, ns_err *err) {
  ns_status st = ns_stmt_told(e->link, e->sleep, err);
  *woke = st != NS_OK && err->sqlerr == ER_QUERY_INTERRUPTED;
  if (*woke)
    ns_err_clear(err);
  return *woke ? NS_OK : st;
}

/* The next ring may hit this very statement. */
static void leave(ns_ear *e) {
  ns_err err;
  for (int tries = 0; tries < 3; tries++)
    if (ns_stmt_run(e->link, e->leave, NULL, &err) == NS_OK ||
        err.sqlerr != ER_QUERY_INTERRUPTED)
      return;
}

/* ------------------------------------------------------------------- the eye */

/* Asks for one number. */
static ns_status ask(ns_ear *e, ns_stmt *s, const ns_value *params, bool *yes,
                     ns_err *err) {
  const ns_value *row = NULL;
  ns_status st = ns_stmt_run(e->eye, s, params, err);
  if (st == NS_OK)
    st = ns_stmt_fetch(e->eye, s, &row, err);
  *yes = row != NULL && row[0].i != 0;
  return st;
}

static ns_status await_sleep(ns_ear *e, ns_err *err) {
  ns_value params[] = {ns_vint(e->thread), ns_vtext(ns_buf_bytes(&e->name))};
  bool yes = false;
  ns_status st = ask(e, e->asleep, params, &yes, err);
  for (int tries = 1; st == NS_OK && !yes && tries < ASLEEP_TRIES; tries++) {
    ns_sleep_us(ASLEEP_EVERY);
    st = ask(e, e->asleep, params, &yes, err);
  }
  return st;
}

/* There is a row: no ring is needed. */
static ns_status end_sleep(ns_ear *e, ns_err *err) {
  char sql[64];
  snprintf(sql, sizeof sql, "KILL QUERY %" PRId64, e->thread);
  return ns_link_text(e->eye, sql, err);
}

static ns_status look(ns_ear *e, bool *found, ns_err *err) {
  ns_status st = await_sleep(e, err);
  *found = false;
  if (st == NS_OK)
    st = ask(e, e->stirs, NULL, found, err);
  return st == NS_OK && *found ? end_sleep(e, err) : st;
}

/* ---------------------------------------------------------------------- both */

static ns_status nap(ns_ear *e, int64_t holder, int64_t us, bool *woke, ns_err *err) {
  bool found = false;
  ns_status st = fall_asleep(e, holder, us, err);
  if (st == NS_OK && (st = look(e, &found, err)) != NS_OK) {
    disconnect(e); /* no caller waits for the sleeper */
    return st;
  }
  if (st == NS_OK)
    st = wake(e, woke, err);
  *woke = *woke || (st == NS_OK && found);
  if (!ns_link_dead(e->link))
    leave(e);
  return st;
}

ns_status ns_ear_wait(ns_ear *e, int64_t holder, int64_t wait, bool *woke,
                      ns_err *err) {
  int64_t until = ns_mono_us() + (wait < NS_EAR_LONGEST ? wait : NS_EAR_LONGEST);
  int64_t length = NAP_FIRST;
  int64_t left;
  ns_status st = NS_OK;
  *woke = false;
  ns_err_clear(err);
  while (st == NS_OK && !*woke && (left = until - ns_mono_us()) > 0) {
    if ((st = get_ready(e, err)) == NS_OK)
      st = nap(e, holder, left < length ? left : length, woke, err);
    length *= 4;
  }
  return st;
}
