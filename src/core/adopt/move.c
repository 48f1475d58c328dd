/*
** Moving rows of an adopted table into ours, where they are jobs of a queue or history.
**
** The table may be of any engine, so nothing spans it and ours. A batch goes in three
** steps: its rows are marked (nightshift_drained, which has all that they will be);
** they are deleted from the table; they arrive, and their marks go. A mark is one
** drain's: a row that has one is not marked again. When another drain had something
** arrive between the reading and the marking, it may have been these rows; then marks
** count only for rows that are still there, as they were read.
** Rows are deleted only while they have their mark, and as they were read in every
** column, so no change is lost. What is locked or changed by then stays.
**
** Whatever ends a drain, the marks tell: other holders finish what it has left, by the same
** steps. One thing cannot be known then: whether a row that is there, and differs, was
** changed before it could be deleted, or has been given the id of one that was. So the
** row stays, and of its copy what would have been a job is history, as cancelled.
**
** Invariant: who has locked a mark decides about its row, looking at the table after;
** nothing arrives that is still in the table, and nothing without its mark.
*/
#include "adopt/move.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "db/db.h"

#define LEFT_MAX 1000 /* rows of a batch that is cleaned, as of drain_left */

void ns_move_free(ns_move *b) {
  free(b->rows);
  ns_buf_free(&b->texts);
}

static ns_mover *find(ns_move *b, int64_t id) {
  size_t low = 0;
  size_t high = b->n;
  while (low < high) {
    size_t mid = low + (high - low) / 2;
    if (b->rows[mid].id < id)
      low = mid + 1;
    else
      high = mid;
  }
  return low < b->n && b->rows[low].id == id ? &b->rows[low] : NULL;
}

/* "[[row,job],…]" of the rows in 'from' … 'to' that are where 'at' says. */
static ns_bytes list_of(const ns_move *b, ns_whereabouts at, ns_buf *text) {
  ns_buf_reset(text);
  for (size_t i = b->from; i < b->to; i++)
    if (b->rows[i].at == at)
      ns_db_list_add_pair(text, b->rows[i].id, b->rows[i].job);
  return ns_db_list_end(text).s;
}

/* --------------------------------------------------------------- marking */

enum { /* the columns of drain_mark, in its order */
  C_TAB, C_ROW, C_JOB, C_HOLDER, C_QUEUE, C_NAME, C_PAYLOAD, C_PRIORITY, C_DECAY,
  C_ATTEMPTS, C_MAX, C_NONCE, C_DELAY, C_OUTCOME, C_ENDED, C_PRINT, C_COUNT
};

typedef struct columns {
  int64_t *ints;   /* a column after the other */
  ns_bytes *texts;
  char *nulls;
  ns_column cols[C_COUNT];
} columns;

static void columns_free(columns *c) {
  free(c->ints);
  free(c->texts);
  free(c->nulls);
}

static bool columns_make(columns *c, size_t n) {
  c->ints = calloc(C_COUNT * n, sizeof *c->ints);
  c->texts = calloc(C_COUNT * n, sizeof *c->texts);
  c->nulls = calloc(C_COUNT * n, 1);
  if (c->ints == NULL || c->texts == NULL || c->nulls == NULL)
    return false;
  for (size_t i = 0; i < C_COUNT; i++) {
    bool text = i == C_TAB || i == C_NAME || i == C_PAYLOAD || i == C_OUTCOME ||
                i == C_PRINT;
    c->cols[i] = (ns_column){text ? NS_TEXT : NS_INT, &c->ints[i * n],
                             &c->texts[i * n], &c->nulls[i * n]};
  }
  return true;
}

static void mark_numbers(const ns_move *b, const ns_mover *m, int64_t *ints, size_t n) {
  ints[C_ROW * n] = m->id;
  ints[C_JOB * n] = m->job;
  ints[C_HOLDER * n] = b->a->db->holder;
  ints[C_QUEUE * n] = b->queue;
  ints[C_PRIORITY * n] = m->priority;
  ints[C_DECAY * n] = m->decay;
  ints[C_ATTEMPTS * n] = m->attempts;
  ints[C_MAX * n] = m->max_attempts;
  ints[C_NONCE * n] = m->nonce;
  ints[C_DELAY * n] = m->delay;
  ints[C_ENDED * n] = m->ended;
}

static void mark_texts(const ns_move *b, const ns_mover *m, ns_bytes *texts, size_t n) {
  static const char *const outcomes[] = {NULL, "done", "dead"};
  texts[C_TAB * n] = b->a->map.table;
  texts[C_NAME * n] = b->a->map.name;
  texts[C_PAYLOAD * n] = (ns_bytes){b->texts.p + m->text, m->n};
  texts[C_OUTCOME * n] = m->kind == NS_MOVE_JOB ? NS_NONE : ns_str(outcomes[m->kind]);
  texts[C_PRINT * n] = *m->print != '\0' ? ns_str(m->print) : NS_NONE;
}

static ns_status write_marks(ns_move *b, ns_err *err) {
  columns c = {0};
  size_t n = b->to - b->from;
  ns_status st = columns_make(&c, n) ? NS_OK : ns_no_memory(err);
  for (size_t i = 0; st == NS_OK && i < n; i++) {
    const ns_mover *m = &b->rows[b->from + i];
    mark_numbers(b, m, c.ints + i, n);
    mark_texts(b, m, c.texts + i, n);
    c.nulls[C_DELAY * n + i] = m->delay == 0;
    c.nulls[C_ENDED * n + i] = m->ended <= 0;
  }
  if (st == NS_OK)
    st = ns_db_bulk_changing(b->a->db, NS_SQL_DRAIN_MARK, c.cols, n, 0, err);
  columns_free(&c);
  return st;
}

/* Rows that are in the table and have our marks are told from the rest. */
static ns_status look(ns_move *b, ns_bytes list, ns_err *err) {
  ns_call call = {.rows = list};
  const ns_value *row;
  ns_mover *m;
  ns_stmt *s;
  ns_status st = ns_adopt_run(b->a, NULL, NS_SQL_DRAIN_THERE, &call, &s, err);
  while (st == NS_OK && (st = ns_stmt_fetch(b->a->db->link, s, &row, err)) == NS_OK &&
         row != NULL)
    if ((m = find(b, row[0].i)) != NULL)
      m->at = row[1].i != 0 ? NS_AT_SAME : NS_AT_DIFFERS;
  return st;
}

static ns_status drop_marks(ns_move *b, ns_bytes list, ns_err *err) {
  return ns_db_run(b->a->db, NS_SQL_DRAIN_GONE,
                   (ns_value[]){ns_vtext(list), ns_vtext(b->a->map.table)}, err);
}

static void set_where(ns_move *b, ns_whereabouts from, ns_whereabouts to) {
  for (size_t i = b->from; i < b->to; i++)
    if (b->rows[i].at == from)
      b->rows[i].at = to;
}

/* -1: not known. */
static ns_status count_moves(const ns_move *b, int64_t *moves, ns_err *err) {
  const ns_value *row = NULL;
  ns_value table = ns_vtext(b->a->map.table);
  ns_status st = ns_db_run(b->a->db, NS_SQL_DRAIN_MOVES, &table, err);
  if (st == NS_OK)
    st = ns_db_row(b->a->db, NS_SQL_DRAIN_MOVES, &row, err);
  *moves = st == NS_OK && row != NULL ? row[0].i : -1;
  return st;
}

ns_status ns_move_begin(ns_move *b, ns_err *err) {
  return count_moves(b, &b->moves, err);
}

/* All rows are ours, and were not moved before they were marked: no other drain had marked one,
** and nothing has arrived since they were read. */
static ns_status is_simple(const ns_move *b, bool *simple, ns_err *err) {
  int64_t moves;
  ns_status st = NS_OK;
  *simple =
      b->moves >= 0 && ns_db_affected(b->a->db, NS_SQL_DRAIN_MARK) == (int64_t)(b->to - b->from);
  if (*simple && (st = count_moves(b, &moves, err)) == NS_OK)
    *simple = moves == b->moves;
  return st;
}

/* A row that is not there as it was read is let go, before its mark promised anything. */
static ns_status let_go(ns_move *b, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  ns_bytes ids = list_of(b, NS_AT_READ, &list);
  ns_status st = list.oom ? ns_no_memory(err) : look(b, ids, err);
  set_where(b, NS_AT_SAME, NS_AT_MARKED);
  for (size_t i = b->from; i < b->to; i++)
    b->rows[i].changed = b->rows[i].at == NS_AT_DIFFERS;
  set_where(b, NS_AT_DIFFERS, NS_AT_READ);
  ids = list_of(b, NS_AT_READ, &list);
  if (st == NS_OK && list.oom)
    st = ns_no_memory(err);
  if (st == NS_OK && ids.n > 2)
    st = drop_marks(b, ids, err);
  ns_buf_free(&list);
  return st;
}

static ns_status mark_run(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_move *b = tx->arg;
  bool simple = false;
  ns_status st;
  (void)db;
  for (size_t i = b->from; i < b->to; i++) {
    b->rows[i].at = NS_AT_READ;
    b->rows[i].changed = false;
  }
  if ((st = write_marks(b, err)) == NS_OK && !tx->replay)
    st = is_simple(b, &simple, err);
  if (st != NS_OK || !simple)
    return st == NS_OK ? let_go(b, err) : st;
  set_where(b, NS_AT_READ, NS_AT_MARKED);
  return NS_OK;
}

/* The row itself is refused: a payload that our tables do not take. */
static bool is_unfit(ns_status st, const ns_err *err) {
  static const unsigned codes[] = {1366, 1406, 4025}; /* bytes, length, a CHECK */
  if (st == NS_ETOOBIG)
    return true;
  for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
    if (st != NS_OK && (unsigned)err->sqlerr == codes[i])
      return true;
  return false;
}

/* Of rows that are refused together, those are marked that are not by themselves. */
static ns_status mark(ns_move *b, size_t from, size_t to, ns_err *err) {
  ns_tx tx = {.run = mark_run, .arg = b};
  ns_status st;
  b->from = from;
  b->to = to;
  if (from == to)
    return NS_OK;
  st = ns_db_transact(b->a->db, &tx, err);
  if (!is_unfit(st, err))
    return st;
  set_where(b, NS_AT_MARKED, NS_AT_READ);
  if (to - from == 1) {
    b->rows[from].at = NS_AT_OTHERS;
    b->unfit++;
    return NS_OK;
  }
  ns_err_clear(err);
  st = mark(b, from, from + (to - from) / 2, err);
  return st == NS_OK ? mark(b, from + (to - from) / 2, to, err) : st;
}

ns_status ns_move_mark(ns_move *b, ns_err *err) {
  return mark(b, 0, b->n, err);
}

/* -------------------------------------------------------------- deleting */

static int64_t count_of(const ns_move *b, ns_whereabouts at) {
  int64_t n = 0;
  for (size_t i = b->from; i < b->to; i++)
    n += b->rows[i].at == at;
  return n;
}

/* Locks those of the rows that are not locked, as a list. */
static ns_status lock_free(ns_move *b, ns_call *call, ns_buf *list, ns_err *err) {
  const ns_value *row;
  const ns_mover *m;
  ns_stmt *s;
  ns_status st = ns_adopt_run(b->a, NULL, NS_SQL_DRAIN_FREE, call, &s, err);
  ns_buf_reset(list);
  while (st == NS_OK && (st = ns_stmt_fetch(b->a->db->link, s, &row, err)) == NS_OK &&
         row != NULL)
    if ((m = find(b, row[0].i)) != NULL)
      ns_db_list_add_pair(list, m->id, m->job);
  call->rows = ns_db_list_end(list).s;
  return st == NS_OK && list->oom ? ns_no_memory(err) : st;
}

static ns_status run_delete(ns_move *b, const ns_call *call, int64_t *deleted,
                            ns_err *err) {
  ns_stmt *s;
  ns_status st = ns_adopt_run(b->a, NULL, NS_SQL_DRAIN_DELETE, call, &s, err);
  *deleted = st == NS_OK ? ns_stmt_affected(s) : 0;
  return st;
}

/* Rows that are locked, perhaps because they are worked on, are left. */
static ns_status delete_run(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_move *b = tx->arg;
  ns_buf list = NS_BUF_INIT;
  ns_buf free_ones = NS_BUF_INIT;
  ns_call call = {.rows = list_of(b, NS_AT_MARKED, &list)};
  int64_t deleted = 0;
  ns_status st = list.oom ? ns_no_memory(err)
                          : run_delete(b, &call, &deleted, err);
  b->all = st == NS_OK && !tx->replay && deleted == count_of(b, NS_AT_MARKED);
  if (st == NS_EBUSY && err->sqlerr == NS_LOCK_WAIT) {
    ns_db_count_retry(db, err);
    ns_err_clear(err);
    if ((st = lock_free(b, &call, &free_ones, err)) == NS_OK && call.rows.n > 2)
      st = run_delete(b, &call, &deleted, err);
  }
  ns_buf_free(&list);
  ns_buf_free(&free_ones);
  return st;
}

/* -------------------------------------------------------------- arriving */

/* The lists of what is to be done with rows. */
typedef struct fates {
  ns_buf jobs, past, doubt, over;
} fates;

/* Ends the lists that are not empty. False: out of memory. */
static bool fates_end(fates *f) {
  ns_buf *all[] = {&f->jobs, &f->past, &f->doubt, &f->over};
  bool fine = true;
  for (size_t i = 0; i < 4; i++) {
    if (all[i]->n > 0)
      ns_buf_addc(all[i], ']');
    fine = fine && !all[i]->oom;
  }
  return fine;
}

static void fates_free(fates *f) {
  ns_buf_free(&f->jobs);
  ns_buf_free(&f->past);
  ns_buf_free(&f->doubt);
  ns_buf_free(&f->over);
}

/* Locks the marks, and looks where their rows are; of a row that has none any more
** another holder has decided. */
static ns_status hold(ns_move *b, ns_err *err) {
  ns_db *db = b->a->db;
  ns_buf list = NS_BUF_INIT;
  ns_bytes all = list_of(b, NS_AT_MARKED, &list);
  const ns_value *row;
  ns_mover *m;
  ns_status st = list.oom ? ns_no_memory(err)
                          : ns_db_run(db, NS_SQL_DRAIN_HOLD,
                                      (ns_value[]){ns_vtext(all), ns_vtext(b->a->map.table)}, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_DRAIN_HOLD, &row, err)) == NS_OK && row != NULL)
    if ((m = find(b, row[0].i)) != NULL)
      m->at = NS_AT_GONE;
  set_where(b, NS_AT_MARKED, NS_AT_OTHERS);
  if (st == NS_OK && !b->all)
    st = look(b, all, err);
  ns_buf_free(&list);
  return st;
}

/* Copies that a crash has left in the table: the same row is for another time; of one that
** differs the copy is kept, and not run. */
static void decide(ns_move *b, fates *f) {
  for (size_t i = b->from; i < b->to; i++) {
    const ns_mover *m = &b->rows[i];
    bool differs = m->at == NS_AT_DIFFERS;
    bool waits = m->at == NS_AT_SAME && b->crashed;
    if (m->at == NS_AT_OTHERS || m->at == NS_AT_READ || waits)
      continue;
    ns_db_list_add_pair(&f->over, m->id, m->job);
    if (m->at == NS_AT_GONE && m->kind == NS_MOVE_JOB)
      ns_db_list_add_pair(&f->jobs, m->id, m->job);
    else if (m->at == NS_AT_GONE || (differs && b->crashed))
      ns_db_list_add_pair(&f->past, m->id, m->job);
    if (differs && b->crashed && m->kind == NS_MOVE_JOB)
      ns_db_list_add_pair(&f->doubt, m->id, m->job);
  }
}

static ns_status write_past(ns_move *b, fates *f, ns_err *err) {
  ns_db *db = b->a->db;
  ns_value table = ns_vtext(b->a->map.table);
  ns_status st = NS_OK;
  if (f->doubt.n > 0)
    st = ns_db_run(db, NS_SQL_DRAIN_DOUBT, (ns_value[]){ns_vtext(ns_buf_bytes(&f->doubt)), table},
                   err);
  if (st == NS_OK && f->past.n > 0)
    st = ns_db_run(db, NS_SQL_DRAIN_HISTORY,
                   (ns_value[]){table, ns_vint(NS_MAX_CRASHES), ns_vint(NS_BACKOFF),
                                ns_vint(NS_TIMEOUT), ns_vtext(ns_buf_bytes(&f->past)), table},
                   err);
  return st;
}

static ns_status write_jobs(ns_move *b, fates *f, ns_err *err) {
  ns_db *db = b->a->db;
  ns_value list = ns_vtext(ns_buf_bytes(&f->jobs));
  ns_status st;
  if (f->jobs.n == 0)
    return NS_OK;
  st = ns_db_run(db, NS_SQL_DRAIN_JOB,
                 (ns_value[]){ns_vint(NS_MAX_CRASHES), ns_vint(NS_BACKOFF), ns_vint(NS_TIMEOUT),
                              list, ns_vtext(b->a->map.table)},
                 err);
  if (st == NS_OK && b->later) {
    db->claim.promote_at = 0;
    st = ns_db_run(db, NS_SQL_DRAIN_SCHEDULED, &list, err);
  }
  return st == NS_OK ? ns_db_run(db, NS_SQL_DRAIN_READY, &list, err) : st;
}

/* A try that was cut at its commit did happen when no mark is left: then its fates are
** as it knew them. */
static void recall(ns_move *b) {
  for (size_t i = b->from; i < b->to; i++)
    if (b->rows[i].at != NS_AT_OTHERS && b->rows[i].at != NS_AT_READ)
      return;
  for (size_t i = b->from; i < b->to; i++)
    b->rows[i].at = b->rows[i].was;
}

static ns_status arrive_run(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_move *b = tx->arg;
  ns_value table = ns_vtext(b->a->map.table);
  fates f = {NS_BUF_INIT, NS_BUF_INIT, NS_BUF_INIT, NS_BUF_INIT};
  ns_status st;
  for (size_t i = b->from; i < b->to; i++) {
    ns_mover *m = &b->rows[i];
    m->was = m->at;
    m->at = m->at == NS_AT_READ ? NS_AT_READ : NS_AT_MARKED;
  }
  if ((st = hold(b, err)) == NS_OK) {
    decide(b, &f);
    if (!fates_end(&f))
      st = ns_no_memory(err);
  }
  if (st == NS_OK && f.over.n > 0 && (st = write_past(b, &f, err)) == NS_OK &&
      (st = write_jobs(b, &f, err)) == NS_OK &&
      (st = drop_marks(b, ns_buf_bytes(&f.over), err)) == NS_OK)
    st = ns_db_run(db, NS_SQL_DRAIN_MOVED, &table, err);
  fates_free(&f);
  if (st == NS_OK && tx->replay)
    recall(b);
  return st;
}

static void count_arrived(ns_move *b) {
  for (size_t i = 0; i < b->n; i++) {
    const ns_mover *m = &b->rows[i];
    bool there = m->at == NS_AT_GONE || (b->crashed && m->at == NS_AT_DIFFERS);
    b->jobs += there && m->at == NS_AT_GONE && m->kind == NS_MOVE_JOB;
    b->done += there && m->kind == NS_MOVE_DONE;
    b->dead += there && (m->kind == NS_MOVE_DEAD || (m->at == NS_AT_DIFFERS &&
                                                     m->kind == NS_MOVE_JOB));
  }
}

ns_status ns_move_on(ns_move *b, ns_err *err) {
  ns_db *db = b->a->db;
  ns_tx deletion = {.run = delete_run, .arg = b};
  ns_tx arrival = {.run = arrive_run, .arg = b};
  int64_t before = b->jobs;
  ns_err trouble;
  ns_status st;
  b->from = 0;
  b->to = b->n;
  b->all = false;
  if (count_of(b, NS_AT_MARKED) == 0)
    return NS_OK;
  st = ns_db_transact(db, &deletion, err);
  trouble = *err;
  if (st == NS_EGONE || st == NS_ENOMEM)
    return st;
  ns_err_clear(err);
  if (ns_db_transact(db, &arrival, err) != NS_OK)
    return err->status;
  count_arrived(b);
  db->count.pushed += b->jobs - before;
  if (b->jobs > before)
    ns_ring(db, NULL);
  if (st != NS_OK)
    *err = trouble;
  return st;
}

/* -------------------------------------------------------------- cleaning */

static ns_status list_left(ns_move *b, int64_t from, ns_err *err) {
  ns_db *db = b->a->db;
  const ns_value *row;
  ns_status st =
      ns_db_run(db, NS_SQL_DRAIN_LEFT,
                (ns_value[]){ns_vtext(b->a->map.table), ns_vint(from), ns_vint(db->holder)}, err);
  b->n = 0;
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_DRAIN_LEFT, &row, err)) == NS_OK &&
         row != NULL) {
    if (!ns_grow(&b->rows, &b->cap, b->n + 1, sizeof *b->rows))
      return ns_no_memory(err);
    b->rows[b->n++] = (ns_mover){.id = row[0].i, .job = row[1].i, .at = NS_AT_MARKED,
                              .kind = row[2].i != 0 ? NS_MOVE_JOB : NS_MOVE_DONE};
  }
  return st;
}

ns_status ns_adopt_clean(ns_adopted *a, int64_t *moved, ns_err *err) {
  ns_move b = {.a = a, .crashed = true, .later = true, .texts = NS_BUF_INIT};
  int64_t from = INT64_MIN;
  ns_status st;
  do { /* 'b' counts on */
    st = list_left(&b, from, err);
    if (st == NS_OK && b.n > 0) {
      from = b.rows[b.n - 1].id;
      st = ns_move_on(&b, err);
    }
  } while (st == NS_OK && b.n == LEFT_MAX && from++ < INT64_MAX);
  *moved += b.jobs + b.done + b.dead;
  ns_move_free(&b);
  return st;
}
