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

#include "base.h"
#include "claim/claim.h"
#include "db/db.h"
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
  ns_status st = ns_db_run(db, NS_SQL_PUSH_UNIQUE, params, err);
  *owner = (ns_key_owner){0};
  if (st != NS_EDUPLICATE || (st = find_owner(db, key, owner, err)) != NS_OK)
    return st;
  if (owner->done && (owner->left <= 0 || owner->job == key->job) &&
      ((st = take_over(db, key, &taken, err)) != NS_OK || taken ||
       (st = find_owner(db, key, owner, err)) != NS_OK)) {
    if (taken)
      ns_err_clear(err);
    return st;
  }
  return ns_fail(err, NS_EDUPLICATE, "the unique key is taken");
}

/* ------------------------------------------------------- keys that are taken */

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

/* ------------------------------------------------------------------ replacing */

/* The job that is to become another, locked. */
typedef struct standing {
  bool lives;
  bool begun; /* it has been parked: it is in the middle of its work */
  bool tagged;
  int64_t nonce, unmet;
  ns_claim_place at;
} standing;

static ns_status lock_standing(ns_db *db, int64_t id, standing *j, ns_err *err) {
  const ns_value *r = NULL;
  ns_value param = ns_vint(id);
  ns_status st = ns_db_run(db, NS_SQL_REPLACE_LIVE, &param, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_REPLACE_LIVE, &r, err);
  *j = (standing){.lives = st == NS_OK && r != NULL};
  if (!j->lives)
    return st;
  j->at = (ns_claim_place){r[0].i, r[1].i, id, r[2].i, r[4].i};
  j->unmet = r[3].i;
  j->nonce = r[5].i;
  j->begun = r[6].type != NS_NULL;
  j->tagged = r[7].i != 0;
  return NS_OK;
}

/* Is a job that waits, by a pause maybe, claimed all the same? */
static ns_status is_claimed(ns_db *db, const standing *j, bool *yes, ns_err *err) {
  const ns_value *row = NULL;
  ns_status st = ns_db_run(db, NS_SQL_ADMIN_HELD,
                           (ns_value[]){ns_vint(j->at.id), ns_vint(j->at.run)}, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_ADMIN_HELD, &row, err);
  *yes = row != NULL;
  return st;
}

/* Takes it from where it waits, so that no claim takes it. '*ours' false: one has, or it has
** begun. */
static ns_status withdraw(ns_db *db, const standing *j, bool *ours, ns_err *err) {
  bool claimed = false;
  ns_status st = NS_OK;
  *ours = false;
  if (j->begun)
    return NS_OK;
  if (j->unmet == 0)
    return ns_claim_withdraw(db, &j->at, ours, err);
  st = is_claimed(db, j, &claimed, err);
  *ours = !claimed;
  return st;
}

static ns_status update_job(ns_db *db, const standing *j, const ns_insert *row, ns_err *err) {
  const ns_push *p = row->push;
  const ns_value params[] = {ns_vint(j->at.run),
                             ns_vtext(p->name),
                             ns_vtext(p->payload),
                             ns_vint(p->priority),
                             ns_vint(255 - p->priority),
                             ns_vint(p->max_attempts),
                             ns_vint(p->max_crashes),
                             p->max_polls < 0 ? ns_vnull : ns_vint(p->max_polls),
                             p->max_phases < 0 ? ns_vnull : ns_vint(p->max_phases),
                             ns_vint(p->backoff),
                             ns_vint(p->timeout),
                             p->deadline < 0 ? ns_vnull : ns_vint(p->deadline),
                             ns_vint(p->decay),
                             ns_vint(row->nonce),
                             ns_vint(p->delay),
                             ns_vint(p->at),
                             ns_vint(p->tags.p != NULL),
                             ns_vopt(p->group),
                             ns_vint(j->at.run + 1),
                             ns_vint(j->at.id)};
  ns_status st = ns_db_run(db, NS_SQL_REPLACE_JOB, params, err);
  return st == NS_OK ? ns_db_check_changed(ns_db_affected(db, NS_SQL_REPLACE_JOB), 1, err) : st;
}

/* Where it waits from now on. A job that waits for others, or is paused, has no row there. */
static ns_status place(ns_db *db, const standing *j, const ns_insert *row, ns_err *err) {
  int64_t kind = ns_db_kind_of(row->push->name);
  if (j->unmet > 0)
    return NS_OK;
  if (row->push->delay == 0 && row->push->at == 0)
    return ns_claim_promote_one(db, j->at.queue_id, 255 - row->push->priority, j->at.id,
                                j->at.run + 1, kind, err);
  db->claim.promote_at = 0;
  return ns_db_run(db, NS_SQL_REPLACE_SCHEDULED, (ns_value[]){ns_vint(kind), ns_vint(j->at.id)},
                   err);
}

static ns_status give_key(ns_db *db, const ns_insert *row, int64_t job, ns_err *err) {
  const ns_value params[] = {ns_vint(job), ns_push_period(row->push), ns_vint(row->queue_id),
                             ns_vtext(row->push->unique)};
  return ns_db_run(db, NS_SQL_REPLACE_GIVE, params, err);
}

static ns_status replace_tags(ns_db *db, const standing *j, const ns_insert *row, ns_err *err) {
  ns_buf ids = NS_BUF_INIT;
  ns_insert kept = *row;
  ns_status st = NS_OK;
  kept.id = j->at.id;
  if (j->tagged) {
    ns_db_list_add_id(&ids, kept.id);
    st = ns_db_list_run(db, NS_SQL_SETTLE_TAGS, NULL, &ids, err);
  }
  return st == NS_OK ? ns_push_tags_write(db, &kept, 1, err) : st;
}

/* 'j' has the key of 'row', or had it: it becomes the job of 'row', or 'row' follows it. */
static ns_status replace_standing(ns_db *db, const standing *j, ns_insert *row, ns_err *err) {
  bool ours = false;
  ns_status st = j->lives ? withdraw(db, j, &ours, err) : NS_OK;
  if (st != NS_OK)
    return st;
  if (!ours) {
    row->behind = j->lives ? j->at.id : 0;
    return give_key(db, row, row->id, err);
  }
  row->kept = j->at.id;
  row->replaced = true;
  if ((st = give_key(db, row, j->at.id, err)) == NS_OK &&
      (st = update_job(db, j, row, err)) == NS_OK &&
      (st = replace_tags(db, j, row, err)) == NS_OK)
    st = place(db, j, row, err);
  return st;
}

/* Takes the key of 'row', or locks it as it is; '*job' gets its owner, '*done': who has ended. */
static ns_status lock_key(ns_db *db, const ns_insert *row, bool *taken, int64_t *job, bool *done,
                          ns_err *err) {
  const ns_value *owner = NULL;
  const ns_value params[] = {ns_vint(row->queue_id), ns_vtext(row->push->unique), ns_vint(row->id),
                             ns_push_period(row->push)};
  ns_status st = ns_db_run(db, NS_SQL_REPLACE_LOCK, params, err);
  *taken = st == NS_OK && ns_db_affected(db, NS_SQL_REPLACE_LOCK) == 1;
  if (st != NS_OK || *taken || (st = ns_db_run(db, NS_SQL_REPLACE_OWNER, params, err)) != NS_OK ||
      (st = ns_db_row(db, NS_SQL_REPLACE_OWNER, &owner, err)) != NS_OK)
    return st;
  if (owner == NULL) /* a KILL has hit one of the two */
    return ns_fail(err, NS_EBUSY, "the unique key could not be locked");
  *job = owner[0].i;
  *done = owner[1].i != 0;
  return NS_OK;
}

/* 'first': of the push. '*again': an earlier try has written 'row'. */
static ns_status replace_one(ns_db *db, const ns_insert *first, ns_insert *row, bool *again,
                             ns_err *err) {
  standing j = {0};
  int64_t owner = 0;
  bool taken = false;
  bool done = false;
  ns_status st = lock_key(db, row, &taken, &owner, &done, err);
  row->kept = row->behind = 0;
  row->replaced = false;
  if (st != NS_OK || taken)
    return st;
  for (const ns_insert *r = first; r < row; r++)
    if (r->id == owner || (r->replaced && r->kept == owner))
      return refuse_taken_key(first, row, &(ns_key_owner){.job = r->id}, err);
  if (owner == row->id && !done)
    row->kept = owner;
  else if (!done && (st = lock_standing(db, owner, &j, err)) == NS_OK && j.nonce == row->nonce)
    row->replaced = (row->kept = owner) != 0;
  *again = row->kept != 0;
  return st == NS_OK && !*again ? replace_standing(db, &j, row, err) : st;
}

/* --------------------------------------------------------- keys of a push */

ns_status ns_push_keep(ns_db *db, ns_insert *rows, size_t n, bool *again, ns_err *err) {
  ns_status st = NS_OK;
  *again = false;
  for (size_t i = 0; st == NS_OK && !*again && i < n; i++)
    if (rows[i].push->on_conflict == NS_KEEP) {
      st = keep_one(db, &rows[i], err);
      *again = rows[i].kept == rows[i].id;
    } else if (rows[i].push->on_conflict == NS_REPLACE)
      st = replace_one(db, rows, &rows[i], again, err);
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
