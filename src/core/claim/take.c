/*
** Taking rows of ready, by ranges over the known lanes of a queue; jobs that are claimed
** alone; sentinels, leases and claims in doubt.
**
** Invariant: nothing here waits for a row lock (claim/statement.c has the two forms of a
** claim). Floors move only after the commit, so rows of a claim that was rolled back are found
** again by the next one. While a job is held that was claimed alone, no other such job is held.
*/
#include "claim/claim.h"

#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "db/db.h"
#include "handle.h"

#define SWEEP_LATEST (5 * NS_SECOND)   /* from one to the next, where claims take long */
#define SENTINELS 1000                 /* put up at once */
#define FEW 1000                       /* rows: more take long without contention, too */
#define LATE_COMMIT (5 * NS_SECOND)    /* floors of empty lanes trail by this */
#define LATE_OF_SOME (NS_SECOND / 2)   /* ... of lanes where rows of other names lie */
#define HIDDEN_LATEST (60 * NS_SECOND) /* ... and are looked below at least so often */

void ns_claim_strictly(ns_db *db, bool strict) {
  db->claim.strict = strict;
}

/* ---------------------------------------------------------------- taking */

ns_status ns_claim_collect_rows(ns_db *db, ns_stmt *s, int64_t queue_id, ns_claim_rows *out,
                                ns_err *err) {
  const ns_value *row;
  ns_status st;
  while ((st = ns_stmt_fetch(db->link, s, &row, err)) == NS_OK && row != NULL) {
    if (!ns_grow(&out->items, &out->cap, out->n + 1, sizeof *out->items))
      return ns_no_memory(err);
    out->items[out->n++] =
        (ns_claim_row){queue_id, row[0].i, row[1].i, row[2].i, row[3].i, row[5].i, row[4].i != 0, false, false};
  }
  return st;
}

ns_status ns_claim_delete_rows(ns_db *db, const ns_claim_row *rows, size_t n, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  for (size_t i = 0; i < n; i++)
    ns_buf_addf(&list, "%c[%lld,%lld,%lld,%lld]", i > 0 ? ',' : '[', (long long)rows[i].queue_id,
                (long long)rows[i].rank, (long long)rows[i].ready_at, (long long)rows[i].id);
  return n == 0 ? NS_OK : ns_db_list_change(db, NS_SQL_CLAIM_DROP, NULL, &list, n, err);
}

static ns_status take_rows(ns_db *db, ns_bytes fast, ns_bytes skip, const ns_value *params,
                           int64_t queue_id, ns_claim_rows *out, ns_err *err) {
  size_t before = out->n;
  ns_stmt *s = NULL;
  bool slow;
  ns_status st =
      ns_claim_admission_met(db, ns_claim_form_run(db, fast, skip, params, &s, &slow, err), err);
  if (st == NS_OK)
    st = ns_claim_collect_rows(db, s, queue_id, out, err);
  if (st == NS_OK && slow)
    st = ns_claim_delete_rows(db, out->items + before, out->n - before, err);
  return st;
}

/* The form of a claim that passes rows of other names. A claimer that has met no contention is
** cut when that takes long. */
static ns_sql skipping_form(const ns_db *db, size_t want) {
  if (!ns_claim_admission_watches(db))
    return NS_SQL_CLAIM_SKIP;
  return want <= FEW ? NS_SQL_CLAIM_SKIP_SOON : NS_SQL_CLAIM_SKIP_LONG;
}

/* From up to NS_LANES_MAX lanes of one queue, each from its floor on. While a job is
** held that has to be alone, further ones like it stay where they are. */
static ns_status take_from(ns_db *db, const ns_lane *lanes, size_t n, size_t want,
                           ns_claim_rows *out, ns_err *err) {
  ns_claim_ranges r;
  ns_buf fast = NS_BUF_INIT;
  ns_buf skip = NS_BUF_INIT;
  bool skip_alone = ns_claim_leases_alone(&db->claim.leases);
  const char *kinds = ns_claim_filter_kinds(&db->claim.filter);
  ns_status st;
  ns_claim_ranges_begin(&r, lanes->queue_id, skip_alone);
  db->claim.skipped_alone = db->claim.skipped_alone || skip_alone;
  for (size_t i = 0; i < n; i++)
    ns_claim_ranges_add(&r, lanes[i].rank, lanes[i].floor, lanes[i].end);
  ns_claim_ranges_end(&r, want);
  if (r.n == 0)
    return NS_OK;
  if ((st = ns_claim_ranges_text(&r, NS_SQL_CLAIM_FAST, kinds, &fast, err)) == NS_OK &&
      (st = ns_claim_ranges_text(&r, skipping_form(db, want), kinds, &skip, err)) == NS_OK)
    st = take_rows(db, ns_buf_bytes(&fast), ns_buf_bytes(&skip), r.params, lanes->queue_id, out,
                   err);
  ns_buf_free(&fast);
  ns_buf_free(&skip);
  return st;
}

/* Lanes above the first row had nothing, so their floors rise. Otherwise rows that other
** holders have claimed there would be read again and again. */
static void raise_passed_floors(ns_db *db, int64_t queue_id, const ns_claim_rows *out,
                                size_t before) {
  int64_t rank = out->n > before ? out->items[before].rank : INT64_MAX;
  ns_claim_lanes_raise(&db->claim.lanes, queue_id, rank, ns_now(db) - LATE_COMMIT);
}

/* From the known lanes, each above its floor, in true order. */
static ns_status take_lanes(ns_db *db, int64_t queue_id, size_t want, ns_claim_rows *out,
                            ns_err *err) {
  size_t before = out->n;
  size_t first;
  size_t n = ns_claim_lanes_of(&db->claim.lanes, queue_id, &first);
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < n && out->n - before < want; i += NS_LANES_MAX)
    st = take_from(db, &db->claim.lanes.items[first + i],
                   n - i < NS_LANES_MAX ? n - i : NS_LANES_MAX, want - (out->n - before), out, err);
  if (st == NS_OK)
    raise_passed_floors(db, queue_id, out, before);
  if (st == NS_OK && db->claim.lanes.some_names && out->n - before < want)
    ns_claim_lanes_exhaust(&db->claim.lanes.items[first], n, ns_now(db) - LATE_OF_SOME);
  return st;
}

/* Takes rows that a sweep has found so deep below a floor that the floor stays. */
static ns_status take_hidden(ns_db *db, ns_claim_queue *s, size_t want, ns_claim_rows *out,
                             ns_err *err) {
  const ns_lane_gap h = s->hidden;
  const ns_lane lane = {.queue_id = s->queue_id, .rank = h.rank, .floor = h.from, .end = h.to};
  size_t before = out->n;
  ns_status st;
  if (h.to == 0 || want == 0)
    return NS_OK;
  st = take_from(db, &lane, 1, want, out, err);
  s->hidden.to = 0;
  if (st == NS_OK && out->n - before == want)
    s->round = (ns_lane_gap){.rank = h.rank, .from = h.from - 1}; /* there may be more */
  return st;
}

/* A host with dear sweeps looks when it can afford it. */
static ns_status sweep_when_affordable(ns_db *db, ns_claim_queue *s, bool *news, ns_err *err) {
  if (db->is_host && !ns_claim_sweep_is_cheap(s) && !ns_claim_sweep_is_due(s)) {
    s->window.open = true;
    return NS_OK;
  }
  return ns_claim_sweep_run(db, s, !db->is_host, news, err);
}

/* Of a queue that has nothing no lane is in the middle, nor of one with claims of all names. */
static bool is_in_the_middle(const ns_db *db, const ns_claim_queue *s) {
  return s != NULL && !s->quiet && !s->admission.limited && ns_claim_prescan_goes_on(db, s->queue_id);
}

/* Takes rows in true order. When the lanes give nothing, rows hidden below floors are looked
** for. A claim that comes back short has seen all known rows. */
static ns_status take_in_order(ns_db *db, ns_claim_queue *s, size_t want, ns_claim_rows *out,
                               ns_err *err) {
  size_t before = out->n;
  bool news = false;
  ns_status st = take_lanes(db, s->queue_id, want, out, err);
  if (st == NS_OK && out->n == before && !is_in_the_middle(db, s))
    st = sweep_when_affordable(db, s, &news, err);
  if (st == NS_OK && news)
    st = take_hidden(db, s, want, out, err);
  if (st == NS_OK && news && out->n == before && db->claim.lanes.some_names)
    st = ns_claim_prescan_above(db, s, want, err);
  if (st == NS_OK && news && out->n == before)
    st = take_lanes(db, s->queue_id, want, out, err);
  if (st != NS_OK)
    return st;
  if (out->n - before < want)
    ns_claim_aging_reset(s);
  else
    ns_claim_aging_count(s, out->n - before, out->items[out->n - 1].rank);
  return NS_OK;
}

/* Is it time to look below the floors, whatever the claim finds? */
static bool is_sweep_due(const ns_claim_queue *s) {
  bool late = s->full && s->window.next > 0 && ns_mono_us() - s->window.next > SWEEP_LATEST;
  return ns_claim_sweep_is_due(s) && (s->since >= NS_SWEEP_CLAIMS || late);
}

/* The oldest rows of the lower lane that is next. */
static ns_status take_aged(ns_db *db, ns_claim_queue *s, size_t want, ns_claim_rows *out,
                           ns_err *err) {
  ns_lane lane;
  size_t n;
  ns_status st = ns_claim_aging_choose(db, s, want, &lane, &n, err);
  return st == NS_OK && n > 0 ? take_from(db, &lane, 1, n, out, err) : st;
}

void ns_claim_took(ns_claim_queue *s, size_t found, size_t want) {
  s->claimed_at = ns_mono_us();
  s->full = found == want;
}

ns_status ns_claim_take_rows(ns_db *db, ns_claim_queue *s, size_t want, ns_claim_rows *out,
                             ns_err *err) {
  size_t before = out->n;
  ns_status st = NS_OK;
  bool news;
  s->since++;
  if (is_sweep_due(s)) {
    st = ns_claim_sweep_run(db, s, false, &news, err);
    if (st == NS_OK)
      st = take_hidden(db, s, want, out, err);
  }
  if (st == NS_OK && db->claim.lanes.some_names)
    st = ns_claim_prescan_above(db, s, want, err);
  if (st == NS_OK && out->n == before && ns_claim_aging_due(db, s))
    st = take_aged(db, s, want, out, err);
  if (st == NS_OK && out->n - before < want)
    st = take_in_order(db, s, want - (out->n - before), out, err);
  ns_claim_took(s, out->n - before, want);
  return st;
}

/* ------------------------------------------------------------ after it */

/* A look that is not open is over, or none was asked for; an open one goes on by itself. */
static bool has_seen_all(const ns_scan_window *w, int64_t since) {
  return !w->open || w->seen_at >= since;
}

bool ns_looked_everywhere(const ns_db *db, const ns_weighted_queue *queues, size_t nqueues,
                          int64_t since) {
  for (size_t i = 0; i < nqueues; i++) {
    const ns_claim_queue *s = ns_claim_queue_known(&db->claim.lanes, queues[i].queue_id);
    if (s != NULL && (!has_seen_all(&s->window, since) || ns_admission_waits(&s->admission)))
      return false;
  }
  return has_seen_all(&db->claim.due_window, since);
}

/* While it is dear to look below the floors, listeners do not. */
static void limit_wait_for_hidden(const ns_db *db, int64_t queue_id, int64_t *in) {
  const ns_claim_queue *s = ns_claim_queue_known(&db->claim.lanes, queue_id);
  if (s != NULL && !ns_claim_sweep_is_cheap(s) && (*in < 0 || *in > HIDDEN_LATEST))
    *in = HIDDEN_LATEST;
}

void ns_claim_next_look(const ns_db *db, const ns_weighted_queue *queues, size_t nqueues, bool none,
                        int64_t began, int64_t *in) {
  for (size_t i = 0; i < nqueues; i++) {
    const ns_claim_queue *s = ns_claim_queue_known(&db->claim.lanes, queues[i].queue_id);
    if (s != NULL)
      *in = is_in_the_middle(db, s) ? 0 : ns_admission_next(&s->admission, *in);
  }
  for (size_t i = 0; db->claim.lanes.some_names && none && i < nqueues; i++)
    limit_wait_for_hidden(db, queues[i].queue_id, in);
  for (size_t i = 0; db->is_host && none && i < nqueues; i++) {
    const ns_claim_queue *s = ns_claim_queue_known(&db->claim.lanes, queues[i].queue_id);
    int64_t rest = s != NULL ? ns_claim_window_when(&s->window) - ns_mono_us() : 0;
    int64_t wait = rest <= 0 && s != NULL && s->claimed_at >= began ? NS_LOOK_MIN : rest;
    if (wait > 0 && s->window.open && (*in < 0 || wait < *in))
      *in = wait; /* the time over is that of a queue that was not asked */
  }
}

/* ------------------------------------------------------------ jobs alone */

static ns_status put_back(ns_db *db, const ns_claim_row *t, ns_err *err) {
  return ns_db_run(db, NS_SQL_CLAIM_BACK,
                   (ns_value[]){ns_vint(t->queue_id), ns_vint(t->rank), ns_vint(t->ready_at),
                                ns_vint(t->id), ns_vint(t->run), ns_vint(t->kind)},
                   err);
}

/* A single one stays, unless another is held already. */
ns_status ns_claim_separate(ns_db *db, ns_claim_rows *takes, ns_err *err) {
  size_t kept = 0;
  ns_status st = NS_OK;
  if (takes->n == 1 && !ns_claim_leases_alone(&db->claim.leases))
    return NS_OK;
  for (size_t i = 0; st == NS_OK && i < takes->n; i++) {
    const ns_claim_row *t = &takes->items[i];
    if (!t->alone) {
      takes->items[kept++] = *t;
      continue;
    }
    db->claim.skipped_alone = true;
    if (db->claim.alone.id == 0)
      db->claim.alone = *t;
    st = put_back(db, t, err);
  }
  takes->n = kept;
  return st;
}

size_t ns_claim_open_places(const ns_weighted_queue *queues, size_t nqueues, size_t limit) {
  for (size_t i = 0; i < nqueues; i++)
    limit -= queues[i].reserve < limit ? queues[i].reserve : limit;
  return limit;
}

/* Is there a place for a job of this queue? */
static bool has_place(const ns_weighted_queue *queues, size_t n, size_t limit, int64_t queue_id) {
  for (size_t i = 0; i < n; i++)
    if (queues[i].queue_id == queue_id)
      return queues[i].reserve > 0 || ns_claim_open_places(queues, n, limit) > 0;
  return false;
}

static bool knows_alone(const ns_db *db, const ns_weighted_queue *queues, size_t nqueues,
                        size_t limit) {
  return db->claim.alone.id != 0 && has_place(queues, nqueues, limit, db->claim.alone.queue_id);
}

bool ns_claim_alone_next(const ns_db *db, const ns_weighted_queue *queues, size_t nqueues,
                         size_t limit) {
  if (ns_claim_leases_alone(&db->claim.leases))
    return false;
  return knows_alone(db, queues, nqueues, limit) || (db->claim.skipped_alone && limit > 0);
}

/* The row may be gone or held: then another claim has it. */
ns_status ns_claim_take_alone(ns_db *db, const ns_weighted_queue *queues, size_t nqueues,
                              size_t limit, ns_claim_rows *takes, ns_err *err) {
  const ns_claim_row t = db->claim.alone;
  ns_status st;
  if (ns_claim_leases_alone(&db->claim.leases) || !knows_alone(db, queues, nqueues, limit))
    return NS_OK;
  db->claim.alone.id = 0;
  st = ns_db_run(
      db, NS_SQL_CLAIM_ALONE,
      (ns_value[]){ns_vint(t.queue_id), ns_vint(t.rank), ns_vint(t.ready_at), ns_vint(t.id)}, err);
  if (st == NS_EBUSY && err->sqlerr == NS_LOCK_WAIT && !db->never_fast) {
    ns_err_clear(err);
    return NS_OK;
  }
  return st == NS_OK ? ns_claim_collect_rows(db, db->stmts[NS_SQL_CLAIM_ALONE], t.queue_id, takes, err) : st;
}

/* --------------------------------------------------- leases and payloads */

/* For assertions: how many of them are to be claimed alone? */
static size_t count_alone(const ns_claim_rows *rows) {
  size_t n = 0;
  for (size_t i = 0; i < rows->n; i++)
    n += rows->items[i].alone;
  return n;
}

bool ns_claim_remember(ns_db *db, const ns_claim_rows *takes, int64_t lease, int64_t span) {
  ns_claimed *claims = malloc((takes->n + 1) * sizeof *claims);
  bool ok = claims != NULL;
  ns_assert(count_alone(takes) == 0 ||
            (takes->n == 1 && !ns_claim_leases_alone(&db->claim.leases)));
  for (size_t i = 0; ok && i < takes->n; i++)
    claims[i] = (ns_claimed){.id = takes->items[i].id,
                             .run = takes->items[i].run,
                             .granted = takes->items[i].limited};
  ok = ok && ns_claim_leases_add(&db->claim.leases, lease, claims, takes->n);
  if (ok) {
    ns_lease *b = ns_claim_leases_batch(&db->claim.leases, lease);
    b->span = span;
    b->alone = takes->n == 1 && takes->items[0].alone;
  }
  free(claims);
  return ok;
}

ns_status ns_claim_lease(ns_db *db, const ns_claim_rows *takes, int64_t span, int64_t *lease,
                         ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  ns_value jobs;
  ns_status st;
  for (size_t i = 0; i < takes->n; i++)
    ns_db_list_add_pair(&list, takes->items[i].id, takes->items[i].run);
  jobs = ns_db_list_end(&list);
  *lease = db->claim.reserved;
  db->claim.reserved = 0;
  st = list.oom ? ns_no_memory(err) : *lease != 0 ? NS_OK : ns_take_ids(db, lease, 1, err);
  if (st == NS_OK && span > 0)
    st = ns_db_run(db, NS_SQL_CLAIM_EXPIRY, (ns_value[]){ns_vint(*lease), ns_vint(span)}, err);
  if (st == NS_OK) /* behind it there are looks, and the cycle's number (holder_cycle) */
    st = ns_db_send(db, NS_SQL_CLAIM_LEASE,
                    (ns_column[]){{NS_INT, lease, NULL, NULL},
                                  {NS_INT, &db->holder, NULL, NULL},
                                  {NS_TEXT, NULL, &jobs.s, NULL}},
                    err);
  ns_buf_free(&list);
  return st == NS_OK && !ns_claim_remember(db, takes, *lease, span) ? ns_no_memory(err) : st;
}

/* Lanes without a sentinel get one, best effort: it only saves time. */
static void put_sentinels(ns_db *db) {
  int64_t queues[SENTINELS];
  int64_t ranks[SENTINELS];
  ns_lane *lanes[SENTINELS];
  size_t n = 0;
  ns_err err;
  for (size_t i = 0; n < SENTINELS && i < db->claim.lanes.n; i++)
    if (!db->claim.lanes.items[i].sentinel)
      lanes[n++] = &db->claim.lanes.items[i];
  for (size_t i = 0; i < n; i++) {
    queues[i] = lanes[i]->queue_id;
    ranks[i] = lanes[i]->rank;
  }
  if (n == 0 ||
      ns_db_bulk_changing(db, NS_SQL_CLAIM_SENTINEL,
                          (ns_column[]){{NS_INT, queues, NULL, NULL}, {NS_INT, ranks, NULL, NULL}},
                          n, 0, &err) != NS_OK)
    return;
  for (size_t i = 0; i < n; i++)
    lanes[i]->sentinel = true;
}

/* A lane that there is no memory for is left to the sweep. */
void ns_claim_committed(ns_db *db, const ns_claim_rows *takes) {
  ns_assert(!db->in_tx);
  for (size_t i = 0; i < takes->n; i++) {
    const ns_claim_row *t = &takes->items[i];
    if (t->beyond)
      continue;
    ns_lane *lane = ns_claim_lanes_learn(&db->claim.lanes, t->queue_id, t->rank, t->ready_at);
    if (lane != NULL)
      lane->left--;
  }
  put_sentinels(db);
}

void ns_claim_undo(ns_db *db, int64_t lease) {
  ns_claim_leases_drop(&db->claim.leases, lease);
}

void ns_claim_in_doubt(ns_db *db, int64_t lease) {
  if (db->claim.in_doubt != 0)
    ns_claim_leases_drop(&db->claim.leases, db->claim.in_doubt);
  db->claim.in_doubt = lease;
}

/* The jobs of the lease in doubt, as its row has them; none: there is no row. */
static ns_status read_doubtful(ns_db *db, ns_claim_rows *jobs, ns_err *err) {
  const ns_value *row = NULL;
  ns_value param = ns_vint(db->claim.in_doubt);
  ns_status st = ns_db_run(db, NS_SQL_CLAIM_STANDS, &param, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_CLAIM_STANDS, &row, err)) == NS_OK &&
         row != NULL) {
    if (!ns_grow(&jobs->items, &jobs->cap, jobs->n + 1, sizeof *jobs->items))
      return ns_no_memory(err);
    jobs->items[jobs->n++] = (ns_claim_row){.id = row[0].i, .run = row[1].i};
  }
  return st;
}

ns_status ns_claim_resolve(ns_db *db, ns_err *err) {
  const int64_t lease = db->claim.in_doubt;
  ns_claim_rows jobs = {0};
  ns_status st = NS_OK;
  if (lease == 0 || (st = ns_db_ready(db, err)) != NS_OK)
    return st; /* connected: the session that was cut is over */
  st = read_doubtful(db, &jobs, err);
  if (st == NS_OK && jobs.n > 0 && ns_claim_leases_batch(&db->claim.leases, lease) == NULL &&
      !ns_claim_remember(db, &jobs, lease, 0))
    st = ns_no_memory(err);
  if (st == NS_OK && jobs.n > 0)
    db->claim.unread = lease;
  else if (st == NS_OK)
    ns_claim_leases_drop(&db->claim.leases, lease);
  if (st == NS_OK)
    db->claim.in_doubt = 0;
  free(jobs.items);
  return st;
}

/* ------------------------------------------------------------------- hooks */

static void drop_floors(ns_db *db) {
  ns_claim_lanes_drop_floors(&db->claim.lanes);
  db->claim.due_floor = db->claim.due_reached = 0;
  db->claim.due_window = (ns_scan_window){0};
}

static void lost(ns_db *db) {
  db->ahead = 0;
  db->claim.admission.number = 0; /* the lock went with the session */
  db->claim.reserved = 0;         /* another server may give the same id */
  drop_floors(db);
}

static void forked(ns_db *db) {
  ns_claim_leases_free(&db->claim.leases);
  db->claim.unread = db->claim.in_doubt = db->claim.reserved = 0;
  db->claim.nexpired = 0;
}

static void closing(ns_db *db) {
  forked(db);
  ns_claim_lanes_free(&db->claim.lanes);
  ns_claim_filter_free(&db->claim.filter);
  free(db->claim.expired);
  free(db->claim.moved.items);
  db->claim.expired = NULL;
  db->claim.moved = (ns_claim_rows){0};
}

const ns_hooks ns_claim_hooks = {
    .lost = lost, .set_back = drop_floors, .forked = forked, .closing = closing};
