/*
** Unique keys of new jobs: taking them, and the jobs that stand in the way.
**
** A key has one row, from the push of its job to that job's end. A job that is done before the
** period of its push is over leaves the row until then.
**
** Invariant: at most one live job of a queue has a key, and the row names it. The row of a job that
** is done changes hands only by an UPDATE that looks once more. No assert: only the server knows
** the rows.
*/
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "db/db.h"
#include "err.h"
#include "handle.h"
#include "push/push.h"

#define SHOWN_KEY 100 /* bytes of a key in a message */

ns_value ns_push_period(const ns_push *p) {
  return p->period > 0 ? ns_vint(p->period) : ns_vnull;
}

/* The beginning of a key, whole characters, for a message. */
static void show_key(char out[SHOWN_KEY + 1], ns_bytes key) {
  size_t n = key.n < SHOWN_KEY ? key.n : SHOWN_KEY;
  while (n > 0 && n < key.n && ((unsigned char)key.p[n] & 0xC0) == 0x80)
    n--;
  for (size_t i = 0; i < n; i++) {
    unsigned char c = (unsigned char)key.p[i];
    out[i] = key.p[i];
    if (c < 32 || c == 127)
      out[i] = '?';
    else if (c == 0xC2 && i + 1 < n && (unsigned char)key.p[i + 1] < 0xA0) {
      out[i] = out[i + 1] = '?'; /* U+0080 to U+009F */
      i++;
    }
  }
  out[n] = '\0';
}

/* ------------------------------------------------------------------ one key */

static ns_status find_owner(ns_db *db, const ns_key *key, ns_key_owner *owner, ns_err *err) {
  const ns_value *row = NULL;
  const ns_value params[] = {ns_vint(key->queue), ns_vtext(key->text)};
  ns_status st = ns_db_run(db, NS_SQL_PUSH_UNIQUE_TAKEN, params, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_PUSH_UNIQUE_TAKEN, &row, err);
  *owner = (ns_key_owner){0};
  if (st == NS_OK && row != NULL)
    *owner = (ns_key_owner){row[0].i, row[1].type != NS_NULL, ns_int_or(&row[1], 0)};
  return st;
}

/* Takes a key whose period is over; one of several pushes does. */
static ns_status take_over(ns_db *db, const ns_key *key, bool *taken, ns_err *err) {
  const ns_value job = ns_vint(key->job);
  const ns_value params[] = {key->period > 0 ? ns_vint(key->period) : ns_vnull,
                             job,
                             job,
                             ns_vint(key->queue),
                             ns_vtext(key->text),
                             job};
  ns_status st = ns_db_run(db, NS_SQL_PUSH_UNIQUE_OVER, params, err);
  *taken = st == NS_OK && ns_db_affected(db, NS_SQL_PUSH_UNIQUE_OVER) == 1;
  return st;
}

ns_status ns_push_key_take(ns_db *db, const ns_key *key, ns_key_owner *owner, ns_err *err) {
  const ns_value params[] = {ns_vint(key->queue), ns_vtext(key->text), ns_vint(key->job),
                             key->period > 0 ? ns_vint(key->period) : ns_vnull};
  bool taken = false;
  ns_err none;
  ns_status st = ns_db_run(db, NS_SQL_PUSH_UNIQUE, params, err);
  *owner = (ns_key_owner){0};
  if (st != NS_EDUPLICATE || find_owner(db, key, owner, &none) != NS_OK || !owner->done ||
      (owner->left > 0 && owner->job != key->job))
    return st;
  ns_err_clear(err);
  if ((st = take_over(db, key, &taken, err)) != NS_OK || taken)
    return st;
  find_owner(db, key, owner, &none);
  return ns_fail(err, NS_EDUPLICATE, "the unique key is taken");
}

/* ----------------------------------------------------------- keys of a push */

static ns_key key_of(const ns_insert *row) {
  return (ns_key){row->queue_id, row->push->unique, row->id, row->push->period};
}

/* 'row' met its unique key: 'owner' has it, or an earlier row of the same push, of which 'first'
** is the first. */
static ns_status refuse_taken_key(const ns_insert *first, const ns_insert *row,
                                  const ns_key_owner *owner, ns_err *err) {
  char shown[SHOWN_KEY + 1];
  show_key(shown, row->push->unique);
  for (; first < row; first++)
    if (first->id == owner->job)
      return ns_fail(err, NS_EDUPLICATE,
                     "the unique key '%s' stands twice in one push", shown);
  if (owner->done)
    ns_fail(err, NS_EDUPLICATE,
            "the unique key '%s' is held by job %lld, which is done, for %lld s more", shown,
            (long long)owner->job, (long long)((owner->left + NS_SECOND - 1) / NS_SECOND));
  else
    ns_fail(err, NS_EDUPLICATE, "the unique key '%s' is held by job %lld, which has not finished",
            shown, (long long)owner->job);
  if (err != NULL)
    err->job = owner->job;
  return NS_EDUPLICATE;
}

/* The server has locked the row that refused ours, so its owner stays for now. */
static ns_status keep_one(ns_db *db, ns_insert *row, ns_err *err) {
  ns_key key = key_of(row);
  ns_key_owner owner;
  ns_status st = ns_push_key_take(db, &key, &owner, err);
  row->kept = 0;
  if (st != NS_EDUPLICATE)
    return st;
  ns_err_clear(err);
  row->kept = owner.job;
  return owner.job != 0
             ? NS_OK
             : ns_fail(err, NS_EBUSY, "the unique key is let go and taken all the time");
}

ns_status ns_push_keep(ns_db *db, ns_insert *rows, size_t n, bool *again, ns_err *err) {
  ns_status st = NS_OK;
  *again = false;
  for (size_t i = 0; st == NS_OK && !*again && i < n; i++)
    if (rows[i].push->on_conflict != NS_REFUSE) {
      st = keep_one(db, &rows[i], err);
      *again = rows[i].kept == rows[i].id;
    }
  return st;
}

static bool takes_key(const ns_insert *row) {
  return row->push->unique.p != NULL && row->push->on_conflict == NS_REFUSE;
}

/* Inserts keys one by one, which tells the rows with a taken key. */
static ns_status take_each(ns_db *db, const ns_insert *rows, size_t n, ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < n; i++) {
    ns_key key = key_of(&rows[i]);
    ns_key_owner owner;
    if (!takes_key(&rows[i]))
      continue;
    st = ns_push_key_take(db, &key, &owner, err);
    if (st == NS_EDUPLICATE)
      st = refuse_taken_key(rows, &rows[i], &owner, err);
  }
  return st;
}

static void add_key(ns_buf *list, const ns_insert *row) {
  ns_buf_addf(list, "%c[%lld,%lld,", list->n > 0 ? ',' : '[', (long long)row->queue_id,
              (long long)row->id);
  ns_buf_add_json(list, row->push->unique);
  if (row->push->period > 0)
    ns_buf_addf(list, ",%lld", (long long)row->push->period);
  ns_buf_addc(list, ']');
}

ns_status ns_push_keys(ns_db *db, const ns_insert *rows, size_t n, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  size_t k = 0;
  ns_status st;
  for (size_t i = 0; i < n; i++)
    if (takes_key(&rows[i])) {
      add_key(&list, &rows[i]);
      k++;
    }
  if (k < 2) {
    ns_buf_free(&list);
    return k > 0 ? take_each(db, rows, n, err) : NS_OK;
  }
  st = ns_db_list_change(db, NS_SQL_PUSH_UNIQUE_LIST, NULL, &list, k, err);
  if (st != NS_EDUPLICATE)
    return st;
  ns_err_clear(err);
  return take_each(db, rows, n, err);
}
