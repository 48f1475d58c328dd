/*
** Claiming: the range claim over the known lanes, fair shares between queues,
** sentinels, leases.
**
** Invariant: nothing here waits for a row lock. The fast path deletes with a
** lock wait of zero; when it meets a row that somebody holds it gives way, for
** a growing number of cycles, to SELECT … SKIP LOCKED and deletes by key.
** Floors move only after the commit, so a claim that was rolled back is found
** again by the next one.
*/
#include "ns_claim.h"

#include <stdlib.h>
#include <string.h>

#include "ns_aging.h"
#include "ns_handle.h"
#include "ns_list.h"
#include "ns_paths.h"
#include "ns_queue.h"
#include "ns_range.h"
#include "ns_sweep.h"
#include "ns_time.h"

#define SWEEP_CLAIMS 8                 /* from one sweep to the next, at least */
#define SHARE 20                       /* 1/20 of the time: 5 % */
#define LATE_COMMIT (5 * NS_SECOND)    /* floors of empty lanes trail by this */
#define MANY 8                         /* queues to be asked one by one */
#define STIR_CHEAP INT64_C(20000)      /* µs: ask for the busy ones each time */

void ns_claim_strictly(ns_db *db, bool strict) {
  db->strict = strict;
}

/* ---------------------------------------------------------------- taking */

static ns_status collect(ns_db *db, ns_stmt *s, int64_t queue_id, ns_takes *out,
                         ns_err *err) {
  const ns_value *row;
  ns_status st;
  while ((st = ns_stmt_fetch(db->link, s, &row, err)) == NS_OK && row != NULL) {
    if (!ns_grow(&out->items, &out->cap, out->n + 1, sizeof *out->items))
      return ns_no_memory(err);
    out->items[out->n++] =
        (ns_take){queue_id, row[0].i, row[1].i, row[2].i, row[3].i,
                  row[4].i != 0};
  }
  return st;
}

/* Deletes by key the rows that the slow path has only locked. */
static ns_status drop_locked(ns_db *db, const ns_take *rows, size_t n,
                             ns_err *err) {
  int64_t *cols = malloc((4 * n + 1) * sizeof *cols);
  ns_status st;
  if (cols == NULL)
    return ns_no_memory(err);
  for (size_t i = 0; i < n; i++) {
    cols[i] = rows[i].queue_id;
    cols[n + i] = rows[i].rank;
    cols[2 * n + i] = rows[i].ready_at;
    cols[3 * n + i] = rows[i].id;
  }
  st = ns_bulk(db, NS_SQL_CLAIM_DROP,
               (ns_column[]){{NS_INT, cols, NULL, NULL},
                             {NS_INT, cols + n, NULL, NULL},
                             {NS_INT, cols + 2 * n, NULL, NULL},
                             {NS_INT, cols + 3 * n, NULL, NULL}},
               n, err);
  free(cols);
  return st;
}

static ns_status take_rows(ns_db *db, ns_bytes fast, ns_bytes skip,
                           const ns_value *params, int64_t queue_id,
                           ns_takes *out, ns_err *err) {
  size_t before = out->n;
  ns_stmt *s = NULL;
  bool slow;
  ns_status st = ns_paths_run(db, fast, skip, params, &s, &slow, err);
  if (st == NS_OK)
    st = collect(db, s, queue_id, out, err);
  if (st == NS_OK && slow)
    st = drop_locked(db, out->items + before, out->n - before, err);
  return st;
}

/* From up to NS_LANES_MAX lanes of one queue, each from its floor on. */
static ns_status take_from(ns_db *db, const ns_lane *lanes, size_t n,
                           size_t want, ns_takes *out, ns_err *err) {
  ns_ranges r;
  ns_buf fast = NS_BUF_INIT;
  ns_buf skip = NS_BUF_INIT;
  ns_status st;
  ns_ranges_begin(&r, lanes->queue_id);
  for (size_t i = 0; i < n; i++)
    ns_ranges_add(&r, lanes[i].rank, lanes[i].floor, NS_LANE_END);
  ns_ranges_end(&r, want);
  if ((st = ns_ranges_text(&r, NS_SQL_CLAIM_FAST, &fast, err)) == NS_OK &&
      (st = ns_ranges_text(&r, NS_SQL_CLAIM_SKIP, &skip, err)) == NS_OK)
    st = take_rows(db, ns_buf_bytes(&fast), ns_buf_bytes(&skip), r.params,
                   lanes->queue_id, out, err);
  ns_buf_free(&fast);
  ns_buf_free(&skip);
  return st;
}

ns_status ns_take_lane(ns_db *db, const ns_lane *lane, size_t want,
                       ns_takes *out, ns_err *err) {
  return take_from(db, lane, 1, want, out, err);
}

/* Lanes above the first row had nothing: their floors rise, or rows that others have
** claimed there would be read again and again. */
static void note_passed(ns_db *db, int64_t queue_id, const ns_takes *out,
                        size_t before) {
  int64_t rank = out->n > before ? out->items[before].rank : INT64_MAX;
  ns_lanes_passed(&db->lanes, queue_id, rank, ns_now(db) - LATE_COMMIT);
}

/* From the known lanes, each above its floor, in true order. */
static ns_status take_lanes(ns_db *db, int64_t queue_id, size_t want,
                            ns_takes *out, ns_err *err) {
  size_t before = out->n;
  size_t first;
  size_t n = ns_lanes_of(&db->lanes, queue_id, &first);
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < n && out->n - before < want;
       i += NS_LANES_MAX)
    st = take_from(db, &db->lanes.items[first + i],
                   n - i < NS_LANES_MAX ? n - i : NS_LANES_MAX,
                   want - (out->n - before), out, err);
  if (st == NS_OK)
    note_passed(db, queue_id, out, before);
  return st;
}

/* A host whose sweeps are dear looks when it can afford it. */
static ns_status look_everywhere(ns_db *db, ns_sweep *s, bool *news, ns_err *err) {
  if (db->is_host && !ns_sweep_cheap(s) && !ns_sweep_due(s)) {
    s->window.open = true;
    return NS_OK;
  }
  return ns_sweep_run(db, s, !db->is_host, news, err);
}

/* In true order. When nothing is found, what floors hide is looked for. A claim that
** comes back short has seen all that is known. */
static ns_status take_in_order(ns_db *db, ns_sweep *s, size_t want,
                               ns_takes *out, ns_err *err) {
  size_t before = out->n;
  bool news = false;
  ns_status st = take_lanes(db, s->queue_id, want, out, err);
  if (st == NS_OK && out->n == before)
    st = look_everywhere(db, s, &news, err);
  if (st == NS_OK && news)
    st = take_lanes(db, s->queue_id, want, out, err);
  if (st != NS_OK)
    return st;
  if (out->n - before < want)
    ns_aging_rest(s);
  else
    ns_aging_passed(s, out->n - before, out->items[out->n - 1].rank);
  return NS_OK;
}

static ns_status take_queue(ns_db *db, int64_t queue_id, size_t want,
                            ns_takes *out, ns_err *err) {
  size_t before = out->n;
  ns_sweep *s = ns_lanes_sweep(&db->lanes, queue_id);
  ns_status st = NS_OK;
  bool news;
  if (s == NULL)
    return ns_no_memory(err);
  if (++s->since >= SWEEP_CLAIMS && ns_sweep_due(s))
    st = ns_sweep_run(db, s, false, &news, err);
  if (st == NS_OK && ns_aging_due(db, s))
    st = ns_aging_take(db, s, want, out, err);
  want -= out->n - before;
  return st == NS_OK && want > 0 ? take_in_order(db, s, want, out, err) : st;
}

/* ------------------------------------------------------- weighted shares */

/* The feed with the most credit that is still worth asking; -1: none. */
static int richest(ns_db *db, const ns_feed *feeds, const bool *dry,
                   size_t nfeeds) {
  int best = -1;
  double most = 0.0;
  for (size_t i = 0; i < nfeeds; i++) {
    const ns_sweep *s =
        dry[i] ? NULL : ns_lanes_sweep(&db->lanes, feeds[i].queue_id);
    if (s == NULL)
      continue;
    if (best < 0 || s->credit > most) {
      best = (int)i;
      most = s->credit;
    }
  }
  return best;
}

/* Shares 'limit' among the feeds that are not dry. */
static void give_credit(ns_db *db, const ns_feed *feeds, const bool *dry,
                        size_t nfeeds, size_t limit) {
  int total = 0;
  for (size_t i = 0; i < nfeeds; i++)
    total += dry[i] ? 0 : feeds[i].weight;
  for (size_t i = 0; i < nfeeds; i++) {
    ns_sweep *s = ns_lanes_sweep(&db->lanes, feeds[i].queue_id);
    if (s != NULL && !dry[i])
      s->credit += (double)limit * feeds[i].weight / (total > 0 ? total : 1);
  }
}

static ns_status read_stirring(ns_db *db, const ns_feed *feeds, size_t n,
                               bool *dry, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  const ns_value *row;
  ns_status st;
  for (size_t i = 0; i < n; i++)
    ns_id_add(&list, feeds[i].queue_id);
  st = ns_list_run(db, NS_SQL_CLAIM_STIRRING, NULL, &list, err);
  memset(dry, true, n);
  while (st == NS_OK &&
         (st = ns_row(db, NS_SQL_CLAIM_STIRRING, &row, err)) == NS_OK &&
         row != NULL)
    dry[row[0].i] = false;
  return st;
}

/* Of many queues most have nothing: one statement tells, unless it has become
** dear, because it reads deleted rows that floors would spare. */
static ns_status leave_out_empty(ns_db *db, const ns_feed *feeds, size_t n,
                                 bool *dry, ns_err *err) {
  int64_t start = ns_mono_us();
  ns_status st;
  if (n <= MANY || start < db->stir_at)
    return NS_OK;
  st = read_stirring(db, feeds, n, dry, err);
  if (ns_mono_us() - start > STIR_CHEAP)
    db->stir_at = start + (ns_mono_us() - start) * SHARE;
  return st;
}

/* The places that are one queue's own. What is left of 'limit' is for all. */
static ns_status take_reserved(ns_db *db, const ns_feed *feeds, size_t nfeeds,
                               bool *dry, ns_takes *out, ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < nfeeds; i++) {
    size_t before = out->n;
    if (dry[i] || feeds[i].reserve == 0)
      continue;
    st = take_queue(db, feeds[i].queue_id, feeds[i].reserve, out, err);
    dry[i] = out->n - before < feeds[i].reserve;
  }
  return st;
}

/* One feed after the other. */
static ns_status take_strictly(ns_db *db, const ns_feed *feeds, size_t nfeeds,
                               size_t limit, const bool *dry, ns_takes *out,
                               ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < nfeeds && out->n < limit; i++)
    if (!dry[i])
      st = take_queue(db, feeds[i].queue_id, limit - out->n, out, err);
  return st;
}

/* Deficit round robin: who has most credit takes up to it; a queue that runs
** dry loses what it has saved; the rest goes round again. */
static ns_status take_shares(ns_db *db, const ns_feed *feeds, size_t nfeeds,
                             size_t limit, bool *dry, ns_takes *out,
                             ns_err *err) {
  ns_status st = NS_OK;
  int i;
  give_credit(db, feeds, dry, nfeeds, limit - out->n);
  while (st == NS_OK && out->n < limit &&
         (i = richest(db, feeds, dry, nfeeds)) >= 0) {
    ns_sweep *s = ns_lanes_sweep(&db->lanes, feeds[i].queue_id);
    size_t rest = limit - out->n;
    size_t before = out->n;
    size_t want;
    if (s->credit < 1.0) /* what dry queues left is shared out again */
      give_credit(db, feeds, dry, nfeeds, rest);
    want = s->credit >= 1.0 ? (size_t)s->credit : 1;
    if (want > rest || nfeeds == 1)
      want = rest;
    st = take_queue(db, feeds[i].queue_id, want, out, err);
    s = ns_lanes_sweep(&db->lanes, feeds[i].queue_id);
    s->credit -= (double)(out->n - before);
    if (out->n - before < want) {
      dry[i] = true;
      s->credit = s->credit < 0.0 ? s->credit : 0.0;
    }
  }
  return st;
}

/* Places that nobody may take but queues that have too few jobs stay empty. */
static size_t open_places(const ns_feed *feeds, size_t nfeeds, size_t limit) {
  for (size_t i = 0; i < nfeeds; i++)
    limit -= feeds[i].reserve < limit ? feeds[i].reserve : limit;
  return limit;
}

ns_status ns_take_ready(ns_db *db, const ns_feed *feeds, size_t nfeeds,
                        size_t limit, ns_takes *out, ns_err *err) {
  bool *dry = calloc(nfeeds + 1, sizeof *dry);
  size_t open = open_places(feeds, nfeeds, limit);
  ns_status st;
  if (dry == NULL)
    return ns_no_memory(err);
  if ((st = leave_out_empty(db, feeds, nfeeds, dry, err)) == NS_OK)
    st = take_reserved(db, feeds, nfeeds, dry, out, err);
  limit = out->n + open;
  if (st == NS_OK && open > 0)
    st = db->strict ? take_strictly(db, feeds, nfeeds, limit, dry, out, err)
                    : take_shares(db, feeds, nfeeds, limit, dry, out, err);
  free(dry);
  return st;
}

void ns_take_again(const ns_db *db, const ns_feed *feeds, size_t nfeeds,
                   int64_t *in) {
  for (size_t i = 0; db->is_host && i < nfeeds; i++) {
    const ns_sweep *s = ns_lanes_known(&db->lanes, feeds[i].queue_id);
    int64_t wait = s != NULL ? ns_window_when(&s->window) - ns_mono_us() : 0;
    if (wait > 0 && s->window.open && (*in < 0 || wait < *in))
      *in = wait; /* what is over is of a queue that was not asked */
  }
}

/* ------------------------------------------------------------ jobs alone */

static ns_status put_back(ns_db *db, const ns_take *t, ns_err *err) {
  return ns_run(db, NS_SQL_CLAIM_BACK,
                (ns_value[]){ns_vint(t->queue_id), ns_vint(t->rank),
                             ns_vint(t->ready_at), ns_vint(t->id),
                             ns_vint(t->run)},
                err);
}

/* A single one stays, unless another is held already. */
ns_status ns_take_apart(ns_db *db, ns_takes *takes, ns_err *err) {
  size_t kept = 0;
  ns_status st = NS_OK;
  if (takes->n == 1 && !ns_leases_alone(&db->leases))
    return NS_OK;
  for (size_t i = 0; st == NS_OK && i < takes->n; i++) {
    const ns_take *t = &takes->items[i];
    if (!t->alone) {
      takes->items[kept++] = *t;
      continue;
    }
    if (db->alone.id == 0)
      db->alone = *t;
    st = put_back(db, t, err);
  }
  takes->n = kept;
  return st;
}

/* Is there a place for a job of this queue? */
static bool is_fed(const ns_feed *feeds, size_t n, size_t limit,
                   int64_t queue_id) {
  for (size_t i = 0; i < n; i++)
    if (feeds[i].queue_id == queue_id)
      return feeds[i].reserve > 0 || open_places(feeds, n, limit) > 0;
  return false;
}

bool ns_take_alone_next(const ns_db *db, const ns_feed *feeds, size_t nfeeds,
                        size_t limit) {
  return db->alone.id != 0 && !ns_leases_alone(&db->leases) &&
         is_fed(feeds, nfeeds, limit, db->alone.queue_id);
}

/* The row may be gone or held: then somebody else has it. */
ns_status ns_take_alone(ns_db *db, const ns_feed *feeds, size_t nfeeds,
                        size_t limit, ns_takes *takes, ns_err *err) {
  const ns_take t = db->alone;
  ns_status st;
  if (!ns_take_alone_next(db, feeds, nfeeds, limit))
    return NS_OK;
  db->alone.id = 0;
  st = ns_run(db, NS_SQL_CLAIM_ALONE,
              (ns_value[]){ns_vint(t.queue_id), ns_vint(t.rank),
                           ns_vint(t.ready_at), ns_vint(t.id)},
              err);
  if (st == NS_EBUSY && err->sqlerr == NS_LOCK_WAIT &&
      !db->lanes.never_fast) {
    ns_err_clear(err);
    return NS_OK;
  }
  return st == NS_OK
             ? collect(db, db->stmts[NS_SQL_CLAIM_ALONE], t.queue_id, takes, err)
             : st;
}

/* --------------------------------------------------- leases and payloads */

/* Before the commit: what cannot be remembered is not claimed. */
static bool hold(ns_db *db, const ns_takes *takes, int64_t lease,
                 int64_t span) {
  ns_claimed *claims = malloc((takes->n + 1) * sizeof *claims);
  bool ok = claims != NULL;
  for (size_t i = 0; ok && i < takes->n; i++)
    claims[i] =
        (ns_claimed){.id = takes->items[i].id, .run = takes->items[i].run};
  ok = ok && ns_leases_add(&db->leases, lease, claims, takes->n);
  if (ok) {
    ns_lease *b = ns_leases_batch(&db->leases, lease);
    b->span = span;
    b->alone = takes->n == 1 && takes->items[0].alone;
  }
  free(claims);
  return ok;
}

ns_status ns_take_lease(ns_db *db, const ns_takes *takes, int64_t span,
                        int64_t *lease, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  ns_value jobs;
  ns_status st;
  for (size_t i = 0; i < takes->n; i++)
    ns_pair_add(&list, takes->items[i].id, takes->items[i].run);
  jobs = ns_list_end(&list);
  st = list.oom ? ns_no_memory(err) : ns_take_ids(db, lease, 1, err);
  if (st == NS_OK)
    st = ns_send(db, NS_SQL_CLAIM_LEASE,
                 (ns_column[]){{NS_INT, lease, NULL, NULL},
                               {NS_INT, &db->holder, NULL, NULL},
                               {NS_TEXT, NULL, &jobs.s, NULL}},
                 err);
  if (st == NS_OK && span > 0)
    st = ns_run(db, NS_SQL_CLAIM_EXPIRY,
                (ns_value[]){ns_vint(*lease), ns_vint(span)}, err);
  ns_buf_free(&list);
  return st == NS_OK && !hold(db, takes, *lease, span) ? ns_no_memory(err) : st;
}

/* Lanes without a sentinel get one, best effort: it only saves time. */
static void put_sentinels(ns_db *db) {
  for (size_t i = 0; i < db->lanes.n; i++) {
    ns_lane *lane = &db->lanes.items[i];
    ns_err err;
    if (lane->sentinel)
      continue;
    lane->sentinel =
        ns_bulk(db, NS_SQL_CLAIM_SENTINEL,
                (ns_column[]){{NS_INT, &lane->queue_id, NULL, NULL},
                              {NS_INT, &lane->rank, NULL, NULL}},
                1, &err) == NS_OK;
  }
}

/* A lane that there is no memory for is left to the sweep. */
void ns_take_done(ns_db *db, const ns_takes *takes) {
  for (size_t i = 0; i < takes->n; i++) {
    const ns_take *t = &takes->items[i];
    ns_lanes_saw(&db->lanes, t->queue_id, t->rank, t->ready_at);
  }
  put_sentinels(db);
}

void ns_take_undo(ns_db *db, int64_t lease) {
  ns_leases_drop(&db->leases, lease);
}

void ns_take_doubt(ns_db *db, int64_t lease) {
  if (db->doubt != 0)
    ns_leases_drop(&db->leases, db->doubt);
  db->doubt = lease;
}

ns_status ns_take_resolve(ns_db *db, ns_err *err) {
  const ns_value *row = NULL;
  ns_value param = ns_vint(db->doubt);
  ns_status st = NS_OK;
  if (db->doubt == 0 || (st = ns_ready(db, err)) != NS_OK)
    return st; /* connected: the session that was cut is over */
  if ((st = ns_run(db, NS_SQL_CLAIM_STANDS, &param, err)) != NS_OK ||
      (st = ns_row(db, NS_SQL_CLAIM_STANDS, &row, err)) != NS_OK)
    return st;
  if (row != NULL)
    db->unread = db->doubt;
  else
    ns_leases_drop(&db->leases, db->doubt);
  db->doubt = 0;
  return NS_OK;
}
