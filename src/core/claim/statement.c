/*
** The text of a claiming statement, and which of its two forms runs.
**
** The text has the lanes of one queue as ranges in the order of the key. It has the kinds of
** the names that this handle claims, made when names are given, paused or resumed. It depends
** only on the number of ranges and on whether all rows are wanted, so few statements are
** prepared.
**
** The fast form is a DELETE that gives up at once when it meets a row that another transaction
** has locked. Then the other form runs: a SELECT … SKIP LOCKED and a DELETE of its rows by key.
** It runs in the same cycle and for a growing number of cycles.
**
** Invariant: where a lock wait would end the whole transaction the fast form never runs. A
** number may stand for a second name, too, so claimed names are compared once more.
*/
#include "claim/claim.h"

#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "db/db.h"
#include "handle.h"

/* --------------------------------------------------------------------- names */

#define KINDS_MARK "/*kinds*/"

void ns_claim_filter_free(ns_claim_filter *o) {
  ns_buf_free(&o->names);
  ns_buf_free(&o->paused);
  ns_buf_free(&o->kinds);
}

const char *ns_claim_filter_kinds(const ns_claim_filter *o) {
  return o->kinds.n > 0 ? o->kinds.p : NULL;
}

void ns_claim_filter_text(const ns_claim_filter *o, ns_buf *text, ns_sql sql) {
  const char *kinds = ns_claim_filter_kinds(o);
  if (kinds != NULL && strstr(ns_sql_texts[sql], KINDS_MARK) != NULL)
    ns_buf_fill(text, ns_sql_texts[sql], KINDS_MARK, ns_str(kinds));
  else
    ns_buf_adds(text, ns_sql_texts[sql]);
}

/* Names that are each ended by NUL. */
static bool is_in_list(const ns_buf *list, ns_bytes name) {
  for (size_t at = 0; at < list->n; at += strlen(list->p + at) + 1)
    if (strlen(list->p + at) == name.n && memcmp(list->p + at, name.p, name.n) == 0)
      return true;
  return false;
}

bool ns_claim_filter_pauses(const ns_claim_filter *o, ns_bytes name) {
  return is_in_list(&o->paused, name);
}

bool ns_claim_filter_has(const ns_claim_filter *o, ns_bytes name) {
  return !ns_claim_filter_pauses(o, name) && (!o->some || is_in_list(&o->names, name));
}

static int by_bytes(const void *a, const void *b) {
  const ns_bytes *x = a;
  const ns_bytes *y = b;
  int order = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);
  return order != 0 ? order : (x->n > y->n) - (x->n < y->n);
}

/* Adds the kinds of the names of a list. Without 'any', the kind of rows with an unknown name is
** left out. '*n' counts them. */
static void add_kinds(ns_buf *kinds, const ns_buf *list, bool any, size_t *n) {
  for (size_t at = 0; at < list->n;) {
    ns_bytes name = ns_str(list->p + at);
    int64_t kind = ns_db_kind_of(name);
    at += name.n + 1;
    if (!any && kind == NS_KIND_ANY)
      continue;
    ns_buf_addf(kinds, "%s%lld", (*n)++ > 0 ? "," : "", (long long)kind);
  }
}

/* Makes the condition of the names that are wanted and paused. False: out of memory. */
static bool make_kinds(ns_claim_filter *o) {
  ns_buf not = NS_BUF_INIT;
  size_t n = 1;
  if (o->some) {
    ns_buf_addf(&o->kinds, " AND kind IN (%d", NS_KIND_ANY);
    add_kinds(&o->kinds, &o->names, true, &n);
    ns_buf_addc(&o->kinds, ')');
  }
  n = 0;
  add_kinds(&not, &o->paused, false, &n);
  if (n > 0)
    ns_buf_addf(&o->kinds, " AND kind NOT IN (%.*s)", (int)not.n, not.p);
  if (o->kinds.n > 0)
    ns_buf_addc(&o->kinds, '\0');
  o->kinds.oom = o->kinds.oom || not.oom;
  ns_buf_free(&not);
  return !o->names.oom && !o->paused.oom && !o->kinds.oom;
}

static bool is_same_list(const ns_buf *a, const ns_buf *b) {
  return a->n == b->n && (a->n == 0 || memcmp(a->p, b->p, a->n) == 0);
}

/* The floors may hide rows of the new names. */
static void replace_filter(ns_db *db, const ns_claim_filter *o) {
  ns_claim_filter_free(&db->claim.filter);
  db->claim.filter = *o;
  db->claim.lanes.some_names = ns_claim_filter_kinds(o) != NULL;
  db->claim.alone.id = 0;
  ns_claim_lanes_drop_floors(&db->claim.lanes);
}

/* Wants the names in 'o', which is taken over, less the paused ones. */
static ns_status use_filter(ns_db *db, ns_claim_filter *o, ns_err *err) {
  const ns_claim_filter *known = &db->claim.filter;
  const ns_buf *paused = &db->paused.names;
  size_t first = paused->n > 0 && paused->p[0] == '\0'; /* the empty name stands for queues */
  bool ok;
  if (paused->n > first)
    ns_buf_add(&o->paused, paused->p + first, paused->n - first);
  o->version = db->paused.version;
  ok = make_kinds(o);
  if (ok && (o->some != known->some || !is_same_list(&o->names, &known->names) ||
             !is_same_list(&o->paused, &known->paused))) {
    replace_filter(db, o);
    return NS_OK;
  }
  ns_claim_filter_free(o);
  if (ok)
    db->claim.filter.version = db->paused.version;
  return ok ? NS_OK : ns_no_memory(err);
}

ns_status ns_claim_only(ns_db *db, const ns_bytes *names, size_t n, ns_err *err) {
  ns_claim_filter o = {.some = names != NULL};
  ns_bytes *sorted = malloc((n + 1) * sizeof *sorted);
  if (sorted == NULL)
    return ns_no_memory(err);
  for (size_t i = 0; names != NULL && i < n; i++)
    sorted[i] = names[i];
  if (names != NULL)
    qsort(sorted, n, sizeof *sorted, by_bytes);
  for (size_t i = 0; names != NULL && i < n; i++) {
    ns_buf_add(&o.names, sorted[i].p, sorted[i].n);
    ns_buf_addc(&o.names, '\0');
  }
  free(sorted);
  return use_filter(db, &o, err);
}

ns_status ns_claim_obey(ns_db *db, ns_err *err) {
  ns_claim_filter o = {.some = db->claim.filter.some};
  if (db->claim.filter.version == db->paused.version)
    return NS_OK;
  ns_buf_add(&o.names, db->claim.filter.names.p, db->claim.filter.names.n);
  return use_filter(db, &o, err);
}

/* ----------------------------------------------------------- ranges of lanes */

#define LANE_MARK "/*lanes*/"
#define LANE_RANGE "(rank = ? AND ready_at >= ? AND ready_at < ?)"
#define LANE_NOT_ALONE "(rank = ? AND ready_at >= ? AND ready_at < ? AND NOT alone)"

void ns_claim_ranges_begin(ns_claim_ranges *r, int64_t queue_id, bool skip_alone) {
  r->n = 0;
  r->skip_alone = skip_alone;
  r->nparams = 0;
  r->params[r->nparams++] = ns_vint(queue_id);
}

void ns_claim_ranges_add(ns_claim_ranges *r, int64_t rank, int64_t from, int64_t to) {
  if (from >= to)
    return;
  r->params[r->nparams++] = ns_vint(rank);
  r->params[r->nparams++] = ns_vint(from);
  r->params[r->nparams++] = ns_vint(to);
  r->n++;
}

void ns_claim_ranges_end(ns_claim_ranges *r, size_t limit) {
  r->params[r->nparams++] = ns_vint((int64_t)limit);
}

ns_status ns_claim_ranges_text(const ns_claim_ranges *r, ns_sql sql, const char *kinds,
                               ns_buf *text, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  for (size_t i = 0; i < r->n; i++) {
    ns_buf_adds(&list, i > 0 ? " OR " : kinds != NULL ? "(" : "");
    ns_buf_adds(&list, r->skip_alone ? LANE_NOT_ALONE : LANE_RANGE);
  }
  if (kinds != NULL)
    ns_buf_addf(&list, ")%s", kinds);
  ns_buf_fill(text, ns_sql_texts[sql], LANE_MARK, ns_buf_bytes(&list));
  text->oom = text->oom || list.oom;
  ns_buf_free(&list);
  return text->oom ? ns_no_memory(err) : NS_OK;
}

/* ----------------------------------------------------------------- two forms */

#define PENALTY_MAX 64 /* cycles on the slow path */
#define ER_LOCK_WAIT 1205

/* A statement in its two forms, run on the path that is open. */
typedef struct forms {
  ns_stmt *fast, *skip;
} forms;

static bool note_collision(ns_db *db, const ns_err *err) {
  if (err->sqlerr != ER_LOCK_WAIT)
    return false;
  db->claim.lanes.penalty = db->claim.lanes.penalty * 2 + 1;
  if (db->claim.lanes.penalty > PENALTY_MAX)
    db->claim.lanes.penalty = PENALTY_MAX;
  db->claim.lanes.backoff = db->claim.lanes.penalty;
  return true;
}

/* True while the fast path is worth a try in this cycle: under contention it is not. */
static bool is_fast_open(ns_db *db) {
  if (db->never_fast || db->claim.admission.contended > 0)
    return false;
  if (db->claim.lanes.backoff == 0)
    return true;
  db->claim.lanes.backoff--;
  return false;
}

static ns_status prepare_form(ns_db *db, forms *p, ns_bytes fast, ns_bytes skip, bool want_fast,
                              ns_err *err) {
  p->fast = p->skip = NULL;
  return want_fast ? ns_db_prepared(db, &p->fast, fast, err)
                   : ns_db_prepared(db, &p->skip, skip, err);
}

ns_status ns_claim_form_run(ns_db *db, ns_bytes fast, ns_bytes skip, const ns_value *params,
                            ns_stmt **ran, bool *slow, ns_err *err) {
  forms p;
  bool try_fast = is_fast_open(db);
  ns_status st = prepare_form(db, &p, fast, skip, try_fast, err);
  ns_assert(!try_fast || !db->never_fast);
  *slow = !try_fast;
  if (st == NS_OK && try_fast) {
    *ran = p.fast;
    st = ns_stmt_run(db->link, p.fast, params, err);
    if (st == NS_OK && db->claim.lanes.penalty > 0)
      db->claim.lanes.penalty--;
    if (st != NS_EBUSY || !note_collision(db, err))
      return st;
    *slow = true;
    st = ns_db_prepared(db, &p.skip, skip, err);
  }
  if (st == NS_OK) {
    *ran = p.skip;
    st = ns_stmt_run(db->link, p.skip, params, err);
  }
  return st;
}
