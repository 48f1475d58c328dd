/*
** Claiming rows of an adopted table by what is written into them, and reading them as
** jobs.
**
** Three of the strategies do so, in one transaction: how they come by their rows is
** what they differ in. An UPDATE with a LIMIT does not say which rows it has changed, so
** it is followed by a look for the token, as the classic does; the other claimants know. A claim
** with a commit that was cut off is looked for by its token, too, which no other claimant can have
** written.
**
** Invariant: what is claimed here has its grip before its job, so whatever ends the call
** it is never forgotten.
*/
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adopt/table.h"
#include "buf.h"
#include "claim/claim.h"
#include "clock.h"
#include "db/db.h"

#define LOCK_FOR (10 * NS_SECOND) /* a claimer waits this long for its turn */

static ns_status no_memory(ns_err *err) {
  return ns_fail(err, NS_ENOMEM, "out of memory");
}

/* At most seven digits of base 36. */
int64_t ns_adopt_token(void) {
  return (int64_t)(ns_random() >> 28) + 1;
}

/* ------------------------------------------------------------------ grips */

ns_grip *ns_adopt_grip(ns_adopted *a, int64_t id, int64_t run) {
  for (size_t i = 0; i < a->n; i++)
    if (a->grips[i].id == id && a->grips[i].run == run)
      return &a->grips[i];
  return NULL;
}

void ns_adopt_let_go(ns_adopted *a, ns_grip *grip) {
  *grip = a->grips[--a->n];
}

/* ------------------------------------------------------------ rows as jobs */

static const ns_value *part_of(const ns_adopted *a, const ns_value *row,
                               ns_part p) {
  return a->parts[p] != NULL ? &row[a->parts[p] - a->fields.items] : NULL;
}

static int64_t part_int(const ns_adopted *a, const ns_value *row, ns_part p,
                        int64_t fallback) {
  const ns_value *v = part_of(a, row, p);
  return v != NULL && v->type == NS_INT ? v->i : fallback;
}

static void add_json(ns_buf *out, const ns_field *f, const ns_value *v) {
  if (v->type == NS_INT)
    ns_buf_addf(out, "%" PRId64, v->i);
  else if (v->type == NS_UINT) /* more than Lua's integers hold */
    ns_buf_addf(out, "\"%" PRIu64 "\"", (uint64_t)v->i);
  else if (v->type == NS_REAL)
    ns_buf_add_number(out, v->d);
  else if (f->json)
    ns_buf_add(out, v->s.p, v->s.n);
  else
    ns_buf_add_json(out, v->s);
}

void ns_adopt_row_json(const ns_adopted *a, const ns_value *row, ns_buf *out) {
  ns_buf_reset(out);
  ns_buf_addc(out, '{');
  for (size_t i = 0; i < a->fields.n; i++) {
    if (row[i].type == NS_NULL)
      continue;
    if (out->n > 1)
      ns_buf_addc(out, ',');
    ns_buf_add_json(out, ns_str(a->fields.items[i].name));
    ns_buf_addc(out, ':');
    add_json(out, &a->fields.items[i], &row[i]);
  }
  ns_buf_addc(out, '}');
}

/* One number for the table, of which together with the id a job's key is made. */
static int64_t table_nonce(const ns_adopted *a) {
  uint64_t h = UINT64_C(14695981039346656037);
  for (size_t i = 0; i < a->map.table.n; i++)
    h = (h ^ (unsigned char)a->map.table.p[i]) * UINT64_C(1099511628211);
  return (int64_t)(h >> 1);
}

/* Failures so far, counted up or down. */
static int64_t attempts_of(const ns_adopted *a, const ns_value *row) {
  int64_t left = part_int(a, row, NS_PART_ATTEMPTS_LEFT, 0);
  if (!ns_adopt_has(a, NS_PART_ATTEMPTS_LEFT))
    return part_int(a, row, NS_PART_ATTEMPTS, 0);
  return a->map.max_attempts > left ? a->map.max_attempts - left : 0;
}

static bool is_last(const ns_adopted *a, const ns_value *row) {
  if (ns_adopt_has(a, NS_PART_ATTEMPTS_LEFT))
    return part_int(a, row, NS_PART_ATTEMPTS_LEFT, 0) <= 1;
  return ns_adopt_has(a, NS_PART_ATTEMPTS) && a->map.max_attempts > 0 &&
         part_int(a, row, NS_PART_ATTEMPTS, 0) >= a->map.max_attempts - 1;
}

/* There is room for the grip already: what is claimed is never forgotten. */
static bool add_job(ns_adopted *a, int64_t token, const ns_value *row,
                    ns_buf *json, ns_jobs *out) {
  ns_job *job;
  char *at;
  int64_t id = part_int(a, row, NS_PART_ID, 0);
  int64_t attempts = attempts_of(a, row);
  a->grips[a->n++] = (ns_grip){.id = id, .run = token, .holder = a->db->holder,
                               .last = is_last(a, row), .attempts = attempts,
                               .since = ns_now(a->db)};
  ns_adopt_row_json(a, row, json);
  if (json->oom || (job = ns_claim_jobs_add(out, json->n, &at)) == NULL)
    return false;
  memcpy(at, json->p, json->n);
  *job = (ns_job){.id = id, .run = token, .queue = a->map.table,
                  .name = a->map.name, .payload = {at, json->n},
                  .attempts = attempts, .max_attempts = a->map.max_attempts,
                  .max_polls = -1,
                  .priority = part_int(a, row, NS_PART_PRIORITY, NS_PRIORITY),
                  .parent = part_int(a, row, NS_PART_PARENT, 0),
                  .lease = -a->number, .timeout = NS_TIMEOUT,
                  .nonce = table_nonce(a)};
  return true;
}

ns_status ns_adopt_collect(ns_adopted *a, ns_seat *seat, ns_stmt *s, int64_t token,
                           ns_jobs *out, ns_err *err) {
  ns_buf json = NS_BUF_INIT;
  const ns_value *row;
  ns_status st;
  while ((st = ns_stmt_fetch(ns_adopt_link(a, seat), s, &row, err)) == NS_OK &&
         row != NULL) {
    if (!ns_grow(&a->grips, &a->cap, a->n + 1, sizeof *a->grips) ||
        !add_job(a, token, row, &json, out)) {
      st = no_memory(err);
      break;
    }
  }
  ns_buf_free(&json);
  return st;
}

/* ---------------------------------------------- claims written into the row */

typedef struct claim {
  ns_adopted *a;
  int64_t token;
  char claimant[NS_CLAIMANT];
  ns_call call;
  ns_buf ids;   /* "[id,…]", where the strategy knows them */
  bool found;   /* there are rows to read */
  ns_stmt *asked; /* reads them, and was sent; NULL: it was not */
} claim;

/* Where the table has no column for it: the claimant of these rows. */
static ns_status add_grips(claim *c, ns_err *err) {
  return ns_db_run(
      c->a->db, NS_SQL_ADOPT_GRIP_ADD,
      (ns_value[]){ns_vtext(c->a->map.table), ns_vtext(c->call.token), ns_vtext(c->call.rows)},
      err);
}

/* Marks the rows of the call. */
static ns_status mark(claim *c, ns_err *err) {
  ns_stmt *s;
  return ns_adopt_change(c->a, NULL, NS_SQL_ADOPT_TAKE, &c->call, NS_TAKE_FOR, &s, err);
}

static ns_status mark_one(claim *c, int64_t id, ns_buf *marked, ns_err *err) {
  char text[32];
  ns_status st;
  c->call.rows =
      (ns_bytes){text, (size_t)snprintf(text, sizeof text, "[%" PRId64 "]", id)};
  if ((st = mark(c, err)) == NS_OK)
    ns_db_list_add_id(marked, id);
  return st == NS_OK ? st : ns_adopt_refuse(c->a, id, st, err);
}

/* The server refuses one of them at least: the rest are ours. */
static ns_status mark_each(claim *c, ns_err *err) {
  ns_buf picked = c->ids;
  ns_status st = NS_OK;
  ns_err_clear(err);
  c->ids = (ns_buf)NS_BUF_INIT;
  for (char *at = picked.p; st == NS_OK && *at != ']';) {
    int64_t id = strtoll(at + 1, &at, 10);
    st = mark_one(c, id, &c->ids, err);
  }
  if (c->ids.n > 0)
    ns_buf_addc(&c->ids, ']');
  c->call.rows = ns_buf_bytes(&c->ids);
  ns_buf_free(&picked);
  return st == NS_OK && c->ids.oom ? no_memory(err) : st;
}

/* Rows are picked, then changed by key; other rows when all are refused. */
static ns_status by_key(claim *c, ns_err *err) {
  ns_status st;
  do {
    st = ns_adopt_pick(c->a, NULL, &c->call, &c->ids, err);
    if (st != NS_OK || c->ids.n == 0)
      return st;
    if (ns_adopt_is_refused(st = mark(c, err), err))
      st = mark_each(c, err);
  } while (st == NS_OK && c->ids.n == 0);
  c->found = st == NS_OK;
  return c->found && ns_adopt_by_grip(c->a) ? add_grips(c, err) : st;
}

/* No statement waits: what the UPDATE has locked when it meets a row of another session, or one
** that is refused, is let go, and others are picked. */
static ns_status by_update(claim *c, ns_err *err) {
  ns_stmt *s;
  ns_status st;
  if (ns_adopted_refuses(c->a))
    return by_key(c, err);
  if ((st = ns_db_begun(c->a->db, err)) != NS_OK)
    return st;
  st = ns_adopt_run(c->a, NULL, NS_SQL_ADOPT_CLAIM, &c->call, &s, err);
  c->found = st == NS_OK && ns_stmt_affected(s) > 0;
  if ((st != NS_EBUSY || err->sqlerr != NS_LOCK_WAIT) && !ns_adopt_is_refused(st, err))
    return st;
  ns_err_clear(err);
  if ((st = ns_db_text(c->a->db, "ROLLBACK", err)) == NS_OK &&
      (st = ns_db_text(c->a->db, "START TRANSACTION", err)) == NS_OK)
    st = by_key(c, err);
  return st;
}

/* Whether a claim that was cut at its commit has happened. */
static ns_status look_for_token(claim *c, ns_err *err) {
  const ns_value *row = NULL;
  ns_stmt *s;
  ns_status st = ns_adopt_run(c->a, NULL, NS_SQL_ADOPT_READ, &c->call, &s, err);
  if (st == NS_OK)
    st = ns_stmt_fetch(c->a->db->link, s, &row, err);
  c->found = st == NS_OK && row != NULL; /* they are read by the token */
  return st;
}

static ns_status claim_rows(ns_db *db, ns_tx *tx, ns_err *err) {
  claim *c = tx->arg;
  ns_status st = NS_OK;
  (void)db;
  c->found = false;
  c->asked = NULL;
  ns_buf_reset(&c->ids);
  if (tx->replay && (st = look_for_token(c, err)) == NS_OK && c->found)
    tx->done = true;
  if (st != NS_OK || c->found)
    return st;
  if ((st = ns_adopt_enter(c->a, NULL, err)) == NS_OK)
    st = c->a->map.strategy == NS_UPDATE_LIMIT ? by_update(c, err) : by_key(c, err);
  ns_adopt_leave(c->a, NULL);
  return st;
}

/* By their ids, where they are known. */
static ns_sql reader(claim *c) {
  c->call.rows = ns_buf_bytes(&c->ids);
  return c->ids.n > 0 ? NS_SQL_ADOPT_READ_LIST : NS_SQL_ADOPT_READ;
}

/* Behind the COMMIT: what it has made ours. */
static void read_ahead(ns_db *db, ns_tx *tx) {
  claim *c = tx->arg;
  ns_err none;
  (void)db;
  if (c->found && ns_adopt_ask(c->a, reader(c), &c->call, &c->asked, &none) != NS_OK)
    c->asked = NULL;
}

static ns_status read_claimed(claim *c, ns_jobs *out, ns_err *err) {
  ns_db *db = c->a->db;
  ns_stmt *s = c->asked;
  ns_status st;
  if (s != NULL && !ns_link_dead(db->link)) /* a dead link ends with its statements */
    st = ns_stmt_told(db->link, s, err);
  else if ((st = ns_db_ready(db, err)) == NS_OK)
    st = ns_adopt_run(c->a, NULL, reader(c), &c->call, &s, err);
  return st == NS_OK ? ns_adopt_collect(c->a, NULL, s, c->token, out, err) : st;
}

static ns_status claim_and_read(claim *c, ns_jobs *out, ns_err *err) {
  ns_adopted *a = c->a;
  ns_tx tx = {.run = claim_rows, .ahead = read_ahead, .arg = c,
              .replay = a->in_doubt != 0, .looks = true};
  bool replay = tx.replay;
  bool doubtful;
  ns_status st;
  a->in_doubt = c->token; /* until its rows are here */
  a->doubter = a->db->holder;
  st = ns_db_transact(a->db, &tx, err);
  doubtful = st == NS_EGONE || st == NS_ENOMEM || (st != NS_OK && replay);
  if (st == NS_OK && c->found) { /* they are ours, though they may not be read now */
    st = read_claimed(c, out, err);
    doubtful = st != NS_OK;
  }
  if (!doubtful)
    a->in_doubt = 0;
  return st;
}

/* A claim that an earlier call could not finish is finished by this one. */
static ns_status claim_written(ns_adopted *a, size_t limit, ns_jobs *out,
                               ns_err *err) {
  claim c = {.a = a, .call = {.limit = (int64_t)limit}};
  ns_status st = ns_register(a->db, a->db->is_host, err);
  if (st != NS_OK)
    return st;
  if (a->doubter != a->db->holder)
    a->in_doubt = 0;
  c.token = a->in_doubt != 0 ? a->in_doubt : ns_adopt_token();
  c.call.token = ns_adopt_claimant(c.claimant, a->db->holder, c.token);
  st = claim_and_read(&c, out, err);
  ns_buf_free(&c.ids);
  return st;
}

/* ------------------------------------------------------- under a named lock */

/* A host has other tables to claim for, and comes again. '*got': it is ours. */
static ns_status take_lock(ns_adopted *a, bool *got, ns_err *err) {
  ns_value patience = ns_vint(a->db->is_host ? 0 : ns_adopt_stand(a));
  int64_t give_up = ns_mono_us() + (a->db->is_host ? 0 : LOCK_FOR);
  const ns_value *row = NULL;
  ns_status st;
  do {
    ns_value params[] = {ns_vtext(a->map.table), patience};
    if ((st = ns_db_run(a->db, NS_SQL_ADOPT_LOCK, params, err)) == NS_OK)
      st = ns_db_row(a->db, NS_SQL_ADOPT_LOCK, &row, err);
    *got = st == NS_OK && row != NULL && row[0].type == NS_INT && row[0].i == 1;
    if (st != NS_OK || *got)
      return st;
  } while (ns_mono_us() < give_up);
  if (a->db->is_host)
    return NS_OK;
  return ns_fail(err, NS_EBUSY,
                 "others have claimed from '%s' for 10 s, under the named lock",
                 a->map.table.p);
}

static ns_status claim_locked(ns_adopted *a, size_t limit, ns_jobs *out,
                              ns_err *err) {
  ns_value table = ns_vtext(a->map.table);
  ns_err none;
  bool got = false;
  ns_status st = ns_register(a->db, a->db->is_host, err); /* other sessions wait for less */
  if (st == NS_OK)
    st = take_lock(a, &got, err);
  if (st != NS_OK || !got) {
    ns_adopt_passed(a);
    return st;
  }
  st = claim_written(a, limit, out, err);
  ns_db_run(a->db, NS_SQL_ADOPT_UNLOCK, &table, &none); /* without an owner after a reconnect */
  return st;
}

/* ------------------------------------------------------------------ a claim */

/* Asked until it does: tables are altered. */
ns_status ns_adopt_lockable(ns_adopted *a, ns_err *err) {
  const ns_value *row = NULL;
  ns_value table = ns_vtext(a->map.table);
  ns_status st = a->lockable ? NS_OK : ns_db_run(a->db, NS_SQL_ADOPT_ENGINE, &table, err);
  if (st == NS_OK && !a->lockable)
    st = ns_db_row(a->db, NS_SQL_ADOPT_ENGINE, &row, err);
  if (st != NS_OK || row == NULL || row[0].type != NS_TEXT)
    return st;
  a->lockable = row[0].s.n == 6 && memcmp(row[0].s.p, "InnoDB", 6) == 0;
  if (a->lockable)
    return NS_OK;
  return ns_fail(err, NS_EINVALID,
                 "table '%s' is %.*s, which has no row locks: ALTER TABLE %s "
                 "ENGINE=InnoDB, or move its rows out with nightshift adopt "
                 "--drain-into",
                 a->map.table.p, (int)row[0].s.n, row[0].s.p, a->map.table.p);
}

ns_status ns_adopted_claim(ns_adopted *a, size_t limit, ns_jobs *out,
                           ns_err *err) {
  size_t before = out->n;
  size_t earlier;
  int64_t freed;
  ns_status st;
  ns_err_clear(err);
  if (ns_in_transaction(a->db))
    return ns_fail(err, NS_ESTATE,
                   "rows of an adopted table cannot be claimed inside a "
                   "transaction, which nobody sees yet");
  ns_adopt_own(a);
  st = ns_adopted_look(a, false, &freed, err);
  if (st == NS_OK || st == NS_EBUSY)
    st = ns_db_ready(a->db, err);
  if (st == NS_OK)
    st = ns_adopt_lockable(a, err);
  if (st == NS_OK)
    st = ns_adopt_allow(a, &limit, err);
  if (st != NS_OK || limit == 0)
    return st;
  if (!a->db->is_host)
    ns_adopted_refusals(a, &earlier);
  switch (a->map.strategy) {
  case NS_TRANSACTION:
    st = ns_adopt_claim_locks(a, limit, out, err);
    break;
  case NS_NAMED_LOCK:
    st = claim_locked(a, limit, out, err);
    break;
  default:
    st = claim_written(a, limit, out, err);
  }
  a->db->count.claimed += (int64_t)(out->n - before);
  if (st == NS_OK && a->rung && a->heard && out->n == before)
    st = ns_adopt_idle(a, err);
  ns_adopt_claimed(a, limit, out->n - before);
  if (st == NS_OK && out->n == before && !a->db->is_host)
    st = ns_adopt_tell_refused(a, err);
  return st;
}
