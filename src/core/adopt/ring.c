/*
** Triggers on an adopted table that ring the sleepers that wait for its rows.
**
** They are added where the mapping allows it, and only then; other handles use those that they see.
** A trigger of ours reads and writes no table. It finds the sleepers by
** named locks, their ears (adopt/listener.c), and ends their queries: no writer waits for it, and
** what goes wrong in it is passed over, so that the writer of a row never notices. It runs by the
** rights of who added it, who therefore has to keep the TRIGGER right; it reaches his own
** connections, and those of other accounts if he may end their queries.
**
** Invariant: a table is 'rung' while its triggers are of exactly the text that its
** mapping asks for, and reach us; otherwise it is looked at once a second.
*/
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "adopt/table.h"
#include "clock.h"

#define SEE_EVERY (60 * NS_SECOND) /* whether they are still there */
#define SEE_TRIES 5
#define SEE_AGAIN 20000
#define LOCK_TRIES 5               /* of a second each, for the table to be free */
#define ER_NO_SUPER_AND_BINLOG 1419

uint64_t ns_adopt_digest(ns_bytes text) {
  uint64_t h = UINT64_C(14695981039346656037);
  for (size_t i = 0; i < text.n; i++)
    h = (h ^ (unsigned char)text.p[i]) * UINT64_C(1099511628211);
  return h;
}

/* ------------------------------------------------------------- as they should be */

/* Asks for the name of its ears; '*reach': all users may be rung by us. */
static ns_status name_ear(ns_adopted *a, bool *reach, ns_err *err) {
  const ns_value *row = NULL;
  ns_value table = ns_vtext(a->map.table);
  ns_status st = ns_db_run(a->db, NS_SQL_ADOPT_EAR_NAME, &table, err);
  if (st == NS_OK)
    st = ns_db_row(a->db, NS_SQL_ADOPT_EAR_NAME, &row, err);
  if (st != NS_OK || row == NULL)
    return st;
  snprintf(a->ear_name, sizeof a->ear_name, "%.*s", (int)row[0].s.n, row[0].s.p);
  *reach = row[1].i != 0;
  return NS_OK;
}

/* The mark in both triggers: a number of what they say. */
static ns_status make_mark(ns_adopted *a, const char *reach, ns_err *err) {
  ns_buf text = NS_BUF_INIT;
  ns_status st;
  a->mark[0] = '\0';
  if ((st = ns_adopt_spell(a, NS_SQL_ADOPT_TRIGGER_INSERT, &text, err)) == NS_OK)
    st = ns_adopt_spell(a, NS_SQL_ADOPT_TRIGGER_UPDATE, &text, err);
  if (st == NS_OK)
    snprintf(a->mark, sizeof a->mark, "/* %016" PRIx64 " %s */",
             ns_adopt_digest(ns_buf_bytes(&text)), reach);
  ns_buf_free(&text);
  return st;
}

/* ------------------------------------------------------------------ as they are */

static bool contains(ns_bytes text, const char *what, size_t n) {
  for (size_t i = 0; i + n <= text.n; i++)
    if (memcmp(text.p + i, what, n) == 0)
      return true;
  return false;
}

/* Counts the triggers that are as they should be. */
static ns_status see_once(ns_adopted *a, size_t *good, ns_err *err) {
  const ns_value *row;
  ns_value prefix = ns_vtext(ns_str(NS_TRIGGER_PREFIX));
  size_t digest = strlen("/* ") + 16;
  ns_status st = ns_db_run(a->db, NS_SQL_ADOPT_TRIGGERS,
                           (ns_value[]){prefix, prefix, ns_vtext(a->map.table)}, err);
  *good = 0;
  while (st == NS_OK && (st = ns_db_row(a->db, NS_SQL_ADOPT_TRIGGERS, &row, err)) == NS_OK &&
         row != NULL)
    if (row[0].type == NS_TEXT && contains(row[0].s, a->mark, digest) &&
        (row[1].i != 0 || contains(row[0].s, " all */", 7)))
      ++*good;
  return st;
}

/* While another handle makes them the server may not show them. */
static ns_status see(ns_adopted *a, bool expected, size_t *good, ns_err *err) {
  ns_status st = see_once(a, good, err);
  for (int tries = 0; st == NS_OK && expected && *good < 2 && tries < SEE_TRIES; tries++) {
    ns_sleep_us(SEE_AGAIN);
    st = see_once(a, good, err);
  }
  return st;
}

/* ------------------------------------------------------------- adding, removing */

static ns_status say_denied(const ns_adopted *a, ns_err *err) {
  ns_err why = *err;
  if (why.sqlerr == ER_NO_SUPER_AND_BINLOG)
    return ns_fail(err, NS_EDENIED,
                   "adopt: with a binary log the server lets this user add no trigger "
                   "to '%s': SET GLOBAL log_bin_trust_function_creators = ON, or have "
                   "an administrator add it (%.200s)",
                   a->map.table.p, why.message);
  return ns_fail(err, NS_EDENIED,
                 "adopt: to add a trigger to '%s' this user needs the right: GRANT "
                 "TRIGGER, SELECT ON `%s` TO … (%.200s)",
                 a->map.table.p, a->map.table.p, why.message);
}

/* An open transaction has used the table: all other sessions would wait behind us, so we
** wait a second at a time. */
static ns_status alter(ns_adopted *a, ns_sql sql, ns_err *err) {
  ns_buf text = NS_BUF_INIT;
  ns_status st = ns_adopt_spell(a, sql, &text, err);
  ns_buf_addc(&text, '\0');
  if (st == NS_OK && text.oom)
    st = ns_fail(err, NS_ENOMEM, "out of memory");
  for (int tries = 0; st == NS_OK; tries++) {
    st = ns_link_text(a->db->link, text.p, err);
    if (st != NS_EBUSY || tries + 1 >= LOCK_TRIES)
      break;
    ns_sleep_us(ns_jitter(NS_SECOND / 5, 0.5));
    ns_err_clear(err);
    st = NS_OK;
  }
  ns_buf_free(&text);
  if (st == NS_EDENIED || err->sqlerr == ER_NO_SUPER_AND_BINLOG)
    return say_denied(a, err);
  if (st == NS_EBUSY)
    ns_fail(err, NS_EBUSY,
            "adopt: no trigger can be added to or dropped from '%s' now: a transaction "
            "that has used it is still open; try again",
            a->map.table.p);
  return st;
}

static ns_status refuse_inside(const ns_adopted *a, ns_err *err) {
  return ns_in_transaction(a->db)
             ? ns_fail(err, NS_ESTATE,
                       "a trigger cannot be added or dropped inside a transaction, "
                       "which it would commit")
             : NS_OK;
}

static ns_status add(ns_adopted *a, bool reach, ns_err *err) {
  ns_status st = refuse_inside(a, err);
  if (st == NS_OK)
    st = make_mark(a, reach ? "all" : "own", err);
  if (st == NS_OK)
    st = alter(a, NS_SQL_ADOPT_TRIGGER_INSERT, err);
  return st == NS_OK ? alter(a, NS_SQL_ADOPT_TRIGGER_UPDATE, err) : st;
}

ns_status ns_adopt_rings(ns_adopted *a, ns_err *err) {
  bool reach = false;
  size_t good = 0;
  ns_status st = name_ear(a, &reach, err);
  if (st == NS_OK)
    st = make_mark(a, "all", err);
  if (st == NS_OK)
    st = see(a, false, &good, err);
  if (st == NS_OK && good < 2 && a->map.allow_alter &&
      (st = add(a, reach, err)) == NS_OK)
    st = see(a, true, &good, err);
  a->rung = st == NS_OK && good == 2;
  a->rings_at = ns_mono_us() + ns_jitter(SEE_EVERY, 0.2);
  return st;
}

ns_status ns_adopt_hear(ns_adopted *a, ns_err *err) {
  size_t good;
  ns_status st;
  if (!a->rung || ns_mono_us() < a->rings_at)
    return NS_OK;
  if ((st = see(a, true, &good, err)) == NS_OK)
    a->rung = good == 2;
  a->rings_at = ns_mono_us() + ns_jitter(SEE_EVERY, 0.2);
  return st;
}

bool ns_adopted_rung(const ns_adopted *a) {
  return a->rung;
}

ns_status ns_adopted_drop_triggers(ns_adopted *a, ns_err *err) {
  ns_status st;
  ns_err_clear(err);
  if ((st = refuse_inside(a, err)) == NS_OK && (st = ns_db_ready(a->db, err)) == NS_OK)
    st = alter(a, NS_SQL_ADOPT_TRIGGER_DROP_INSERT, err);
  if (st == NS_OK)
    st = alter(a, NS_SQL_ADOPT_TRIGGER_DROP_UPDATE, err);
  if (st == NS_OK)
    a->rung = false;
  return st;
}

/* ---------------------------------------------------------------------- waiting */

#define PAUSE_FIRST 1000
#define PAUSE_LAST NS_SECOND

/* After wakes that found nothing: who has rung has not committed. */
static int64_t longer(int64_t pause) {
  return pause == 0 ? PAUSE_FIRST : pause * 4 < PAUSE_LAST ? pause * 4 : PAUSE_LAST;
}

ns_status ns_adopted_wait(ns_adopted *a, int64_t us, ns_err *err) {
  int64_t left = us < a->ear_pause ? us : a->ear_pause;
  int64_t freed;
  bool woke;
  ns_status st;
  ns_err_clear(err);
  if (ns_in_transaction(a->db))
    return ns_fail(err, NS_ESTATE, "a transaction is open");
  ns_adopt_own(a);
  if (!a->rung)
    return NS_OK;
  ns_sleep_us(left);
  us = us - left < a->claim_at - ns_mono_us() ? us - left : a->claim_at - ns_mono_us();
  if ((st = ns_register(a->db, a->db->is_host, err)) == NS_OK && a->ear == NULL)
    st = ns_ear_open(&a->ear, a, true, err);
  if (st == NS_OK)
    st = ns_ear_wait(a->ear, a->db->holder, us, &woke, err);
  if (st != NS_OK && ns_db_is_interrupted(a->db))
    return st;
  if (st != NS_OK) { /* no second connection to be had: look as if no trigger rang */
    ns_sleep_us(ns_jitter(NS_SECOND, 0.25));
    woke = st != NS_ENOMEM;
  }
  if (st == NS_ENOMEM)
    return st;
  a->ear_pause = woke ? longer(a->ear_pause) : 0;
  st = ns_adopted_look(a, false, &freed, err);
  if (woke)
    ns_adopt_stir(a);
  return st;
}
