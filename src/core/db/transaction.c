/*
** Transactions: our own, which are run again; the caller's, which ours join; and pipelines,
** which take three waits instead of one per statement. What a transaction has done in
** queues is counted with its commit. And what an action of people leaves in the audit, which is
** written in the transaction that does it.
**
** Invariants: a transaction that failed is rolled back before its function returns, whatever
** the reason. A session that would not roll back is given up: its next BEGIN would commit the
** open changes.
**
** In a pipeline autocommit is off before anything is sent and until the COMMIT. So when a
** statement fails and ends the transaction, the statements sent behind it are in a transaction,
** too, which is rolled back. And COMMIT is sent only when every statement is known to have
** worked. The ring goes behind it: it is run after the commit, and its outcome is not the
** push's concern. A session where autocommit may still be off is given up. When a KILL has hit
** the COMMIT, END commits the transaction; such a push counts as cut.
*/
#include "db/db.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base.h"
#include "handle.h"

#define TX_TRIES 20 /* of one unit of work, before NS_EBUSY */

/* ------------------------------------------------------ actions of people */

void ns_act_as(ns_db *db, ns_via via) {
  db->action.via = via;
}

/* Adds whole characters of a text, as far as they fit. */
static void add_what(ns_action *a, ns_bytes text) {
  size_t n = 0;
  while (n < text.n) {
    size_t one = ns_utf8(text.p + n, text.n - n);
    one = one > 0 ? one : 1;
    if (a->n + n + one >= sizeof a->what)
      break;
    n += one;
  }
  if (n > 0)
    memcpy(a->what + a->n, text.p, n);
  a->n += n;
}

bool ns_action_begin(ns_db *db, const char *verb, int64_t job, ns_bytes what, int64_t row) {
  ns_action *a = &db->action;
  char text[32];
  if (a->open)
    return false;
  *a = (ns_action){.via = a->via, .open = true, .job = job, .row = row};
  snprintf(a->verb, sizeof a->verb, "%s", verb);
  a->untold = a->via == NS_VIA_HANDLER && job != 0;
  if (job != 0) {
    snprintf(text, sizeof text, what.n > 0 ? "job %lld: " : "job %lld", (long long)job);
    add_what(a, ns_str(text));
  }
  add_what(a, what);
  return true;
}

int64_t ns_action_end(ns_db *db, bool begun) {
  if (begun)
    db->action.open = false;
  return db->action.row;
}

static ns_status add_row(ns_db *db, int64_t jobs, ns_err *err) {
  static const char *const names[] = {[NS_VIA_C] = "c",         [NS_VIA_LUA] = "lua",
                                      [NS_VIA_SHELL] = "shell", [NS_VIA_PAGE] = "page",
                                      [NS_VIA_HANDLER] = "handler"};
  ns_action *a = &db->action;
  char host[256] = "";
  ns_status st;
  gethostname(host, sizeof host - 1);
  st = ns_db_run(db, NS_SQL_AUDIT_ADD,
                 (ns_value[]){ns_vtext(ns_str(a->verb)), ns_vtext(((ns_bytes){a->what, a->n})),
                              ns_vpositive(a->job), ns_vint(jobs), ns_vtext(ns_str(host)),
                              ns_vint(getpid()), ns_vtext(ns_str(names[a->via]))},
                 err);
  if (st == NS_OK)
    a->row = ns_stmt_insert_id(db->stmts[NS_SQL_AUDIT_ADD]);
  return st;
}

/* A row of an earlier transaction of the action, unless that was rolled back. */
static ns_status add_jobs(ns_db *db, int64_t jobs, bool *there, ns_err *err) {
  ns_status st = ns_db_run(db, NS_SQL_AUDIT_MORE,
                           (ns_value[]){ns_vint(jobs), ns_vint(db->action.row)}, err);
  *there = st == NS_OK && ns_db_affected(db, NS_SQL_AUDIT_MORE) > 0;
  return st;
}

ns_status ns_action_note(ns_db *db, int64_t jobs, ns_err *err) {
  const ns_action *a = &db->action;
  bool there = false;
  ns_status st = NS_OK;
  if (!a->open || a->untold)
    return NS_OK;
  if (a->row != 0 && jobs != 0)
    st = add_jobs(db, jobs, &there, err);
  if (st == NS_OK && !there)
    st = add_row(db, jobs, err);
  return st == NS_EDENIED ? ns_err_context(err, "nothing was done, because the audit of actions "
                                                "cannot be written")
                          : st;
}

/* Does the work of a transaction, and writes what it has been for the audit. */
static ns_status run_noted(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_status st;
  tx->jobs = -1;
  st = tx->run(db, tx, err);
  return st == NS_OK && tx->jobs >= 0 ? ns_action_note(db, tx->jobs, err) : st;
}

/* ----------------------------------------------------------------- ours */

/* The place of a statement; the last one is that of all without a place or name. */
static ns_conflict *conflict_of(ns_counters *count, const char *name) {
  ns_conflict *c = count->conflicts;
  for (size_t i = 0; name != NULL && i < NS_CONFLICTS - 1; i++, c++) {
    if (c->statement[0] == '\0')
      snprintf(c->statement, sizeof c->statement, "%s", name);
    if (strncmp(c->statement, name, sizeof c->statement - 1) == 0)
      return c;
  }
  c = &count->conflicts[NS_CONFLICTS - 1];
  snprintf(c->statement, sizeof c->statement, "other");
  return c;
}

void ns_db_count_retry(ns_db *db, const ns_err *err) {
  const char *name = db->link != NULL ? ns_link_conflict(db->link) : NULL;
  if (err->sqlerr == 1213) {
    db->count.deadlocks++;
    conflict_of(&db->count, name)->deadlocks++;
  } else if (err->sqlerr == NS_LOCK_WAIT) {
    db->count.lock_waits++;
    conflict_of(&db->count, name)->lock_waits++;
  } else
    db->count.changed++;
}

static void end_failed(ns_db *db) {
  if (db->in_tx)
    ns_db_roll_back(db);
  db->in_tx = false;
}

ns_status ns_db_begun(ns_db *db, ns_err *err) {
  return ns_link_answers(db->link, NULL, err);
}

static ns_status commit_tx(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_status st = ns_link_send(db->link, "COMMIT", err);
  if (st == NS_OK && tx->ahead != NULL)
    tx->ahead(db, tx);
  return st == NS_OK ? ns_link_answers(db->link, NULL, err) : st;
}

/* -------------------------------------------------------------- its counts */

/* Those from 'from' to 'until' were written; all are forgotten. */
static void count_written(ns_db *db, size_t from, size_t until) {
  ns_tallies *l = &db->tallies;
  for (size_t i = from; i < until; i++)
    ns_db_minutes_add(db, &l->items[i]);
  l->n = l->floor = 0;
}

static void keep_tallies(ns_db *db, size_t n) {
  if (n < db->tallies.n)
    db->tallies.n = n;
  db->tallies.floor = db->tallies.n;
}

/* After a try that began behind 'from' of them, which are those of an earlier one that was cut.
** A cut one may turn out to have been written; then the earlier one was not. */
static void end_try(ns_db *db, const ns_tx *tx, size_t from, ns_status st, bool cut) {
  ns_tallies *l = &db->tallies;
  if (st == NS_OK) {
    count_written(db, tx->done ? 0 : from, tx->done ? from : l->n);
  } else if (!cut) {
    l->n = from;
  } else if (from > 0) {
    l->n -= from;
    memmove(l->items, l->items + from, l->n * sizeof *l->items);
  }
}

/* One try: begin, run, commit. '*cut' is set when the commit was sent. */
static ns_status try_once(ns_db *db, ns_tx *tx, bool *cut, ns_err *err) {
  ns_status st = ns_db_session_begins(db, err);
  size_t from;
  *cut = false;
  if (st != NS_OK)
    return st;
  keep_tallies(db, tx->replay ? db->tallies.n : 0);
  from = db->tallies.n;
  st = ns_link_send(db->link, "START TRANSACTION", err);
  db->ahead = 0;
  db->in_tx = true;
  if (st == NS_OK && !tx->looks)
    st = ns_db_begun(db, err);
  if (st == NS_OK && (st = run_noted(db, tx, err)) == NS_OK)
    st = ns_db_begun(db, err); /* and all else that was sent has worked */
  if (st == NS_OK && !tx->done) {
    *cut = true;
    st = commit_tx(db, tx, err);
    if (st == NS_OK)
      db->in_tx = false;
  }
  end_failed(db);
  end_try(db, tx, from, st, *cut);
  ns_assert(!db->in_tx);
  return st;
}

#define SAVE "SAVEPOINT nightshift"

ns_status ns_db_unjoin(ns_db *db, ns_err *err) {
  ns_status st = NS_EGONE;
  if (db->link != NULL)
    ns_link_answers(db->link, NULL, NULL);
  if (db->link != NULL && ns_link_saved(db->link))
    st = ns_db_text(db, "ROLLBACK TO " SAVE, err);
  else
    ns_fail(err, st, "the savepoint of a verb is lost");
  if (st != NS_OK)
    db->broken_tx = true;
  return st;
}

/* In the caller's transaction: join it. A failure leaves nothing behind for the caller to
** commit. When the server has ended the whole transaction, the savepoint is gone with it. The
** savepoint goes out with the first statement. One that was not made must not be gone back to: that
** would be the one of an earlier verb. */
static ns_status join_callers(ns_db *db, ns_tx *tx, ns_err *err) {
  size_t from = db->tallies.n;
  ns_status st;
  if ((st = ns_db_ready(db, err)) != NS_OK || (st = ns_link_save(db->link, SAVE, err)) != NS_OK)
    return st;
  db->tallies.floor = from;
  if ((st = run_noted(db, tx, err)) == NS_OK)
    st = ns_db_begun(db, err);
  if (st == NS_OK)
    return NS_OK;
  keep_tallies(db, from);
  ns_db_unjoin(db, NULL);
  return st;
}

/* It is not known whether an earlier try was written: its COMMIT was refused (a KILL QUERY),
** and so were all questions about it. */
static ns_status fail_in_doubt(ns_err *err) {
  unsigned sqlerr = err->sqlerr;
  ns_status st = ns_fail(err, NS_EGONE,
                         "the commit was interrupted, and whether it was written "
                         "could not be found out");
  err->sqlerr = sqlerr;
  return st;
}

/* Has another transaction kept a lock from us for as long as a reply may take? */
static bool is_locked_out(const ns_db *db, int64_t since, const ns_err *err) {
  return err->sqlerr == NS_LOCK_WAIT && db->link != NULL &&
         ns_mono_us() - since >= ns_link_read_timeout(db->link);
}

ns_status ns_db_transact(ns_db *db, ns_tx *tx, ns_err *err) {
  int64_t pause = 1000;
  int64_t rest = NS_PAUSE_FIRST;
  int lost = 0;
  int tries = 0;
  int64_t since = tx->began != 0 ? tx->began : ns_mono_us();
  ns_status st = NS_OK;
  tx->done = false;
  if (ns_in_transaction(db))
    return join_callers(db, tx, err);
  ns_assert(!db->in_tx);
  keep_tallies(db, 0);
  while (tries < TX_TRIES) {
    bool cut = false;
    ns_err_clear(err);
    /* BUSY: the session that was cut is still at its commit */
    if ((st = ns_db_ready(db, err)) == NS_OK)
      st = try_once(db, tx, &cut, err);
    else if (st != NS_EBUSY)
      return st;
    if (st == NS_EGONE && (db->cfg.keep_trying != NULL || lost++ < 2)) {
      tx->replay = tx->replay || cut;
      since = ns_mono_us();        /* no other session could have let go */
      if (!ns_link_dead(db->link)) /* read-only: wait for it to end */
        ns_db_pause_up_to(db, &rest, NS_PAUSE_LONGEST);
      if (db->cfg.keep_trying == NULL || db->cfg.keep_trying(db->cfg.keep_trying_arg, err))
        continue;
    }
    if (st != NS_EBUSY || !(ns_link_retryable(err) || cut || tx->replay))
      return st;
    if (tx->once && ns_link_retryable(err) && !tx->replay)
      return st;
    tx->replay = tx->replay || (cut && !ns_link_retryable(err));
    ns_db_count_retry(db, err);
    if (is_locked_out(db, since, err))
      break;
    tries++;
    ns_sleep_us(ns_jitter(pause, 0.5));
    if (pause < 100000)
      pause *= 2;
  }
  if (tx->replay)
    return fail_in_doubt(err);
  return ns_err_context(err, tries < TX_TRIES ? "somebody keeps a lock" : "gave up after 20 tries");
}

/* ---------------------------------------------------------- the caller's */

ns_status ns_begin(ns_db *db, ns_err *err) {
  ns_status st;
  if (ns_in_transaction(db) && db->barred)
    return ns_db_ready(db, err);
  if (ns_in_transaction(db))
    return ns_fail(err, NS_ESTATE, "a transaction is open already; they do not nest");
  if ((st = ns_db_ready(db, err)) == NS_OK && (st = ns_db_session_begins(db, err)) != NS_OK)
    return st;
  if (st == NS_OK && (st = ns_db_take_time(db, err)) == NS_OK)
    st = ns_db_text(db, "START TRANSACTION", err);
  if (st == NS_EGONE && (st = ns_db_ready(db, err)) == NS_OK) /* as in ns_db_run */
    st = ns_db_text(db, "START TRANSACTION", err);
  if (st != NS_OK) {
    ns_db_roll_back(db);
    return st;
  }
  db->user_tx = true;
  db->broken_tx = db->ended_tx = false;
  keep_tallies(db, 0);
  return NS_OK;
}

/* A COMMIT that the server has refused: BUSY when the transaction is still open, so
** that nothing was written; else GONE. */
static ns_status judge_refused_commit(ns_db *db, ns_status st, ns_err *err) {
  const ns_value *row = NULL;
  ns_err none;
  bool open = st != NS_EGONE && ns_db_run(db, NS_SQL_HANDLE_OPEN, NULL, &none) == NS_OK &&
              ns_db_row(db, NS_SQL_HANDLE_OPEN, &row, &none) == NS_OK && row != NULL &&
              row[0].i == 1;
  ns_db_roll_back(db);
  return open || st != NS_EBUSY ? st : fail_in_doubt(err);
}

static void end_transaction(ns_db *db, bool written) {
  db->user_tx = db->broken_tx = db->ended_tx = false;
  ns_db_session_end(db);
  count_written(db, 0, written ? db->tallies.n : 0);
  ns_db_tell_committed(db, written);
}

ns_status ns_commit(ns_db *db, ns_err *err) {
  bool broken = db->broken_tx;
  ns_status st;
  if (!db->user_tx)
    return ns_fail(err, NS_ESTATE, "no transaction is open");
  if (db->ended_tx && !ns_is_foreign(db)) {
    ns_rollback(db);
    return ns_db_tx_ended(err);
  }
  if (broken || ns_is_foreign(db)) {
    ns_rollback(db);
    return ns_fail(err, NS_EBUSY,
                   "the server has rolled this transaction back (deadlock or "
                   "lost connection); run it again");
  }
  if ((st = ns_db_text(db, "COMMIT", err)) != NS_OK)
    st = judge_refused_commit(db, st, err);
  end_transaction(db, st == NS_OK);
  ns_db_minutes_tell(db, false);
  return st;
}

void ns_rollback(ns_db *db) {
  if (!db->user_tx)
    return;
  ns_db_roll_back(db);
  if (db->ended_tx && !ns_is_foreign(db) && db->link != NULL && !ns_link_dead(db->link))
    ns_link_text(db->link, "UNLOCK TABLES", NULL); /* if it locked tables */
  end_transaction(db, false);
}

static ns_status run_at_depth(ns_db *db, const char *verb, int64_t depth, ns_err *err) {
  char sql[64];
  ns_status st;
  if (!ns_in_transaction(db))
    return ns_fail(err, NS_ESTATE, "no transaction is open");
  if ((st = ns_db_ready(db, err)) != NS_OK)
    return st;
  snprintf(sql, sizeof sql, "%s nightshift_%lld", verb, (long long)depth);
  return ns_db_text(db, sql, err);
}

#define MARK_TALLIES 32 /* bits of a mark below those that count tallies */

ns_status ns_savepoint(ns_db *db, int64_t depth, int64_t *mark, ns_err *err) {
  *mark = (int64_t)db->settle.njoined | (int64_t)db->tallies.n << MARK_TALLIES;
  db->tallies.floor = db->tallies.n;
  return run_at_depth(db, "SAVEPOINT", depth, err);
}

ns_status ns_undo(ns_db *db, int64_t depth, int64_t mark, ns_err *err) {
  ns_status st = run_at_depth(db, "ROLLBACK TO SAVEPOINT", depth, err);
  if (st != NS_OK && ns_in_transaction(db))
    db->broken_tx = true;
  if (mark < 0)
    return st;
  keep_tallies(db, (size_t)(mark >> MARK_TALLIES));
  mark &= (INT64_C(1) << MARK_TALLIES) - 1;
  if ((size_t)mark < db->settle.njoined)
    db->settle.njoined = (size_t)mark; /* the verdicts after the mark are not settled any more */
  return st;
}

/* ---------------------------------------------------------------- sent whole */

#define BEGIN "SET autocommit=0"
#define END "SET autocommit=1"
#define RING_AGAIN (10 * NS_SECOND) /* after a refusal */

bool ns_db_ring_refused(const ns_db *db) {
  return ns_mono_us() < db->ring_at;
}

/* Preparing the call needs the right to it. */
bool ns_db_may_ring(ns_db *db) {
  ns_err none;
  if (ns_db_ring_refused(db))
    return false;
  if (db->may_ring)
    return true;
  switch (ns_db_try(db, NS_SQL_LISTEN_RING, &none)) {
  case NS_OK:
    return db->may_ring = true;
  case NS_EDENIED:
  case NS_ESCHEMA:
  case NS_ESQL:
    db->ring_at = ns_mono_us() + RING_AGAIN;
    return false;
  default: /* nothing is said about the right */
    return false;
  }
}

static ns_status prepare_all(ns_db *db, const ns_step *steps, size_t n, ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (steps[i].nrows > 0)
      st = ns_db_prepare(db, steps[i].sql, err);
  return st;
}

static ns_status run_plain(ns_db *db, const char *text, ns_err *err) {
  ns_status st = ns_link_send(db->link, text, err);
  return st == NS_OK ? ns_link_answers(db->link, NULL, err) : st;
}

/* Sends the steps and waits, but only once BEGIN has worked: steps sent behind a BEGIN that a
** KILL has hit would commit by themselves. */
static ns_status send_steps(ns_db *db, const ns_step *steps, size_t n, ns_err *err) {
  ns_status st = run_plain(db, BEGIN, err);
  ns_status answer;
  int64_t changes = 0;
  if (st != NS_OK)
    return st;
  for (size_t i = 0; st == NS_OK && i < n; i++) {
    changes += (int64_t)steps[i].changes;
    st = ns_stmt_send(db->link, db->stmts[steps[i].sql], steps[i].cols, steps[i].nrows, err);
  }
  answer = ns_link_answers(db->link, NULL, st == NS_OK ? err : NULL);
  if (st != NS_OK || answer != NS_OK)
    return st != NS_OK ? st : answer;
  return ns_db_check_changed(ns_link_changed(db->link), changes, err);
}

/* Not in one go: behind a ROLLBACK that a KILL has hit, END would commit. */
static void roll_back_pipeline(ns_db *db) {
  if (!ns_link_dead(db->link) &&
      (run_plain(db, "ROLLBACK", NULL) != NS_OK || run_plain(db, END, NULL) != NS_OK))
    ns_link_give_up(db->link);
}

/* A failure after the COMMIT leaves it as it is. */
static ns_status commit_pipeline(ns_db *db, bool ring, bool *cut, ns_err *err) {
  enum { IS_COMMIT, IS_END, IS_RING };
  size_t failed = IS_RING;
  ns_status st = ns_link_send(db->link, "COMMIT", err);
  *cut = true;
  if (st != NS_OK)
    return st;
  if (ns_link_send(db->link, END, NULL) == NS_OK && ring)
    ns_link_send(db->link, ns_sql_texts[NS_SQL_LISTEN_RING], NULL);
  st = ns_link_answers(db->link, &failed, err);
  if (failed != IS_RING)
    ns_link_give_up(db->link);
  if (st == NS_OK || failed == IS_COMMIT)
    return st;
  ns_err_clear(err);
  return NS_OK;
}

ns_status ns_db_pipeline(ns_db *db, const ns_step *steps, size_t n, bool *ring, bool *cut,
                         ns_err *err) {
  ns_status st;
  *cut = false;
  if ((st = ns_db_ready(db, err)) != NS_OK || (st = ns_db_session_begins(db, err)) != NS_OK)
    return st;
  *ring = *ring && ns_db_may_ring(db);
  ns_link_hold(db->link, true);
  if ((st = prepare_all(db, steps, n, err)) != NS_OK) {
    ns_link_hold(db->link, false);
    return st;
  }
  ns_link_hold(db->link, false);
  if ((st = send_steps(db, steps, n, err)) == NS_OK) {
    st = commit_pipeline(db, *ring, cut, err);
    ns_assert(ns_link_dead(db->link) || !ns_link_is_open(db->link));
    return st;
  }
  roll_back_pipeline(db);
  ns_assert(ns_link_dead(db->link) || !ns_link_is_open(db->link));
  return ns_db_misfit(st, err);
}
