/*
** Signs of life of running jobs: rows for people to see, written for many jobs
** by one statement, which also renew a lease and find out which claims still
** hold.
**
** Invariant: a row is written only while its (id, run) stands.
*/
#include <stdlib.h>

#include "db/db.h"
#include "handle.h"
#include "ns_number.h"

#define TEXT_MAX 255 /* bytes */

static int by_token(const void *a, const void *b) {
  const ns_sign *x = a;
  const ns_sign *y = b;
  return x->id != y->id ? (x->id > y->id) - (x->id < y->id)
                        : (x->run > y->run) - (x->run < y->run);
}

/* Cut at a character. */
static ns_bytes cut(ns_bytes text) {
  if (text.n > TEXT_MAX) {
    text.n = TEXT_MAX;
    while (text.n > 0 && ((unsigned char)text.p[text.n] & 0xC0) == 0x80)
      text.n--;
  }
  return text;
}

/* [id,run,worker,progress,text] */
static void add_sign(ns_buf *list, const ns_sign *s) {
  ns_buf_addf(list, "%c[%lld,%lld,", list->n > 0 ? ',' : '[', (long long)s->id,
              (long long)s->run);
  if (s->worker_pid > 0)
    ns_buf_addf(list, "%lld,", (long long)s->worker_pid);
  else
    ns_buf_adds(list, "null,");
  if (s->progress >= 0.0)
    ns_buf_add_number(list, s->progress);
  else
    ns_buf_adds(list, "null");
  ns_buf_addc(list, ',');
  if (s->text.p != NULL)
    ns_buf_add_json(list, cut(s->text));
  else
    ns_buf_adds(list, "null");
  ns_buf_addc(list, ']');
}

static ns_status show(ns_db *db, const ns_sign *signs, size_t n, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  ns_value holder = ns_vint(db->holder);
  for (size_t i = 0; i < n; i++)
    add_sign(&list, &signs[i]);
  return ns_db_list_run(db, NS_SQL_SETTLE_SHOWN, &holder, &list, err);
}

/* Which of them stand? */
static ns_status find_lost(ns_db *db, ns_sign *signs, size_t n, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  const ns_value *row;
  ns_status st;
  for (size_t i = 0; i < n; i++) {
    ns_db_list_add_pair(&list, signs[i].id, signs[i].run);
    signs[i].lost = true;
  }
  st = ns_db_list_run(db, NS_SQL_SETTLE_STANDS, NULL, &list, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_SETTLE_STANDS, &row, err)) == NS_OK &&
         row != NULL) {
    ns_sign key = {.id = row[0].i, .run = row[1].i};
    ns_sign *s = bsearch(&key, signs, n, sizeof key, by_token);
    if (s != NULL)
      s->lost = false;
  }
  ns_buf_free(&list);
  return st;
}

/* The claim of a job that stands is ours, or has been forgotten; its lease lasts
** longer by this. */
static ns_status renew(ns_db *db, ns_sign *s, ns_err *err) {
  ns_lease *batch = NULL;
  ns_claimed *c = ns_claim_leases_find_any(&db->claim.leases, s->id, s->run, &batch);
  s->lost = s->lost || c == NULL;
  if (s->lost)
    return NS_OK;
  c->shown = true;
  return batch->span == 0 ? NS_OK
                          : ns_db_run(db, NS_SQL_SETTLE_RENEW,
                                      (ns_value[]){ns_vint(batch->span), ns_vint(batch->id)}, err);
}

ns_status ns_touch_many(ns_db *db, ns_sign *signs, size_t n, ns_err *err) {
  ns_status st = NS_OK;
  char text[NS_NUMBER_SIZE];
  for (size_t i = 0; i < n && st == NS_OK; i++)
    if (signs[i].progress > 1.0)
      st = ns_fail(err, NS_EINVALID, "progress is %s; it must be 0 to 1",
                   ns_number(signs[i].progress, text));
  if (st == NS_OK)
    st = ns_db_ready(db, err);
  if (st != NS_OK || n == 0)
    return st;
  qsort(signs, n, sizeof *signs, by_token);
  st = show(db, signs, n, err);
  signs[0].lost = st == NS_OK && ns_db_affected(db, NS_SQL_SETTLE_SHOWN) == 0;
  if (st == NS_OK && n > 1) /* how many rows it wrote does not tell which */
    st = find_lost(db, signs, n, err);
  for (size_t i = 0; i < n && st == NS_OK; i++)
    st = renew(db, &signs[i], err);
  return st;
}

ns_status ns_touch(ns_db *db, int64_t id, int64_t run, int64_t worker_pid,
                   double progress, ns_bytes text, ns_err *err) {
  ns_sign s = {.id = id, .run = run, .worker_pid = worker_pid,
               .progress = progress, .text = text};
  ns_status st = ns_touch_many(db, &s, 1, err);
  if (st == NS_OK && s.lost)
    st = ns_fail(err, NS_ESTALE, "the claim of job %lld, run %lld, is lost",
                 (long long)id, (long long)run);
  return st;
}
