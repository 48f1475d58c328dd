/*
** The visible state of adopted tables: how many rows are in which state, and what
** running jobs show. Of those nightshift_grip has a row, with their claim or from their
** first sign of life on.
**
** Invariant: such a row goes with the claim that its claimant says, so what it shows is
** of that run.
*/
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "adopt/table.h"

#define NOTE_MAX 255 /* bytes */

/* ----------------------------------------------------------- signs of life */

/* Cut at a character. */
static ns_bytes cut(ns_bytes text) {
  if (text.n > NOTE_MAX) {
    text.n = NOTE_MAX;
    while (text.n > 0 && ((unsigned char)text.p[text.n] & 0xC0) == 0x80)
      text.n--;
  }
  return text;
}

static ns_status show(ns_adopted *a, ns_grip *grip, const ns_sign *s, ns_err *err) {
  char claimant[NS_CLAIMANT];
  ns_value progress = {.type = NS_REAL, .d = s->progress};
  ns_bytes who = ns_adopt_claimant(claimant, grip->holder, s->run);
  ns_status st =
      ns_db_run(a->db, NS_SQL_ADOPT_NOTE,
                (ns_value[]){ns_vtext(a->map.table), ns_vint(s->id), ns_vtext(who),
                             s->worker_pid > 0 ? ns_vint(s->worker_pid) : ns_vnull,
                             s->progress >= 0.0 ? progress : ns_vnull, ns_vopt(cut(s->text))},
                err);
  grip->shown = grip->shown || st == NS_OK;
  return st;
}

/* A claim that does not hold is 'lost', and nothing is shown of it; nor of a row of a program that
** is no holder, as with NS_TRANSACTION: it would not be known
** when it is gone. */
static ns_status touch_one(ns_adopted *a, ns_sign *s, ns_err *err) {
  ns_status st = ns_adopted_touch(a, s->id, s->run, err);
  ns_grip *grip = ns_adopt_grip(a, s->id, s->run);
  s->lost = st == NS_ESTALE || grip == NULL;
  if (s->lost)
    return NS_OK;
  return st == NS_OK && grip->holder != 0 ? show(a, grip, s, err) : st;
}

ns_status ns_adopted_touch_many(ns_adopted *a, ns_sign *signs, size_t n,
                                ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; i < n && st == NS_OK; i++)
    st = touch_one(a, &signs[i], err);
  return st;
}

ns_status ns_adopt_unshow(ns_adopted *a, int64_t id, ns_bytes claimant,
                          ns_err *err) {
  return ns_db_run(a->db, NS_SQL_ADOPT_GRIP_DROP,
                   (ns_value[]){ns_vtext(a->map.table), ns_vint(id), ns_vtext(claimant)}, err);
}

/* --------------------------------------------------------------- of the dead */

typedef struct left {
  int64_t id;
  char claimant[NS_CLAIMANT];
} left;

typedef struct lefts {
  left *items;
  size_t n, cap;
} lefts;

static ns_status list_lefts(ns_adopted *a, lefts *l, ns_err *err) {
  const ns_value *row;
  ns_value table = ns_vtext(a->map.table);
  ns_status st = ns_db_run(a->db, NS_SQL_ADOPT_GRIPS, &table, err);
  while (st == NS_OK && (st = ns_db_row(a->db, NS_SQL_ADOPT_GRIPS, &row, err)) == NS_OK &&
         row != NULL) {
    left *x;
    if (!ns_grow(&l->items, &l->cap, l->n + 1, sizeof *l->items))
      return ns_fail(err, NS_ENOMEM, "out of memory");
    if (row[1].s.n >= NS_CLAIMANT)
      continue;
    x = &l->items[l->n++];
    x->id = row[0].i;
    memcpy(x->claimant, row[1].s.p, row[1].s.n);
    x->claimant[row[1].s.n] = '\0';
  }
  return st;
}

ns_status ns_adopt_tidy(ns_adopted *a, ns_err *err) {
  lefts l = {0};
  ns_stmt *s;
  ns_status st = list_lefts(a, &l, err);
  for (size_t i = 0; i < l.n && st == NS_OK; i++) {
    ns_call call = {.row = l.items[i].id, .token = ns_str(l.items[i].claimant)};
    st = ns_adopt_run(a, NULL, NS_SQL_ADOPT_GRIP_TIDY, &call, &s, err);
    if (ns_adopt_is_locked(a, st, err))
      st = NS_OK; /* the next look sees it again */
  }
  free(l.items);
  return st;
}

/* ------------------------------------------------------------------ counts */

/* Claims of this handle that nothing in the database tells. */
static int64_t untold(const ns_adopted *a) {
  int64_t n = 0;
  for (size_t i = 0; i < a->n && !ns_adopt_tells_taken(a); i++)
    n += !a->grips[i].shown;
  return n;
}

ns_status ns_adopted_count(ns_adopted *a, int64_t most, ns_row_counts *out,
                           ns_err *err) {
  int64_t *counts[] = {&out->ready, &out->waiting, &out->running, &out->done,
                       &out->dead};
  const ns_value *row = NULL;
  ns_call call = {.limit = most};
  ns_stmt *s;
  ns_status st;
  *out = (ns_row_counts){0};
  ns_err_clear(err);
  ns_adopt_own(a);
  if ((st = ns_db_ready(a->db, err)) == NS_OK)
    st = ns_adopt_run(a, NULL, NS_SQL_ADOPT_COUNTS, &call, &s, err);
  if (st == NS_OK)
    st = ns_stmt_fetch(a->db->link, s, &row, err);
  for (size_t i = 0; row != NULL && i < 5; i++)
    *counts[i] = ns_int_or(&row[i], 0);
  if (st == NS_OK)
    out->running += untold(a);
  return st;
}
