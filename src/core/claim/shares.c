/*
** Shares: which of its queues a claim asks, and for how many jobs. And the claim of one job in
** one statement, for a program that has nothing else to look at.
**
** Of many queues most have nothing, and one statement tells which have jobs. Its answer is used
** for a while, as it may be dear. But a claim that would come back with too few jobs asks again
** about the empty ones. When more queues have work than are worth a statement each, one
** statement takes the first job of each.
**
** Invariant: a queue is left out only when it had nothing, or for a part of a second while
** other queues fill the claim. An assert sees that no claim takes more than was asked for; the
** rest of this is about cost.
*/
#include "claim/claim.h"

#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "db/db.h"
#include "handle.h"

#define MANY 8                   /* queues to be asked one by one */
#define FEW 4                    /* jobs of each: then one statement takes them */
#define SINGLY INT64_C(1000)     /* µs: cost of asking one queue, at most */
#define BUSY_CHEAP INT64_C(1000) /* µs: ask for the busy ones each time */
#define DEAR INT64_C(20000)      /* ... or rather ask all, from their floors on */
#define BUSY_LATEST (NS_SECOND / 2)
#define SHARE 20      /* 1/20 of the time: 5 % */
#define LOOK_EVERY 64 /* first jobs, until a queue is looked through */

/* The share of one queue in one claim. */
typedef struct share {
  const ns_weighted_queue *queue;
  ns_claim_queue *s;
  bool dry;     /* is not asked, or not any more */
  bool singly;  /* its jobs cannot be had in one statement with other queues' jobs */
  uint64_t lot; /* among queues of the same credit */
} share;

typedef struct shares {
  share *items;
  share **some; /* room for as many */
  size_t n;
} shares;

/* Makes the shares of a claim. The record of a new queue moves other records. */
static ns_status make_shares(ns_db *db, const ns_weighted_queue *queues, size_t n, shares *all,
                             ns_err *err) {
  size_t known;
  *all = (shares){calloc(n + 1, sizeof *all->items), calloc(n + 1, sizeof *all->some), n};
  if (all->items == NULL || all->some == NULL)
    return ns_no_memory(err);
  do {
    known = db->claim.lanes.nqueues;
    for (size_t i = 0; i < n; i++) {
      ns_claim_queue *s = ns_claim_queue_of(&db->claim.lanes, queues[i].queue_id);
      if (s == NULL)
        return ns_no_memory(err);
      if (s->admission.limited && !queues[i].limited) /* rows have come back below them */
        ns_claim_lanes_drop_floors_of(&db->claim.lanes, queues[i].queue_id);
      s->admission.limited = queues[i].limited;
      if (n == 1) /* there is nothing to do meanwhile */
        s->admission.rest_until = 0;
      all->items[i] = (share){.queue = &queues[i], .s = s};
    }
  } while (known != db->claim.lanes.nqueues);
  return NS_OK;
}

static void free_shares(shares *all) {
  free(all->items);
  free(all->some);
}

static size_t pick_shares(const shares *all, bool (*of)(const share *)) {
  size_t n = 0;
  for (size_t i = 0; i < all->n; i++)
    if (of(&all->items[i]))
      all->some[n++] = &all->items[i];
  return n;
}

/* ------------------------------------------------------ queues with jobs */

static ns_status ask_which_have_jobs(ns_db *db, share *const *of, size_t n, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  const ns_value *row;
  ns_status st;
  for (size_t i = 0; i < n; i++) {
    ns_db_list_add_id(&list, of[i]->queue->queue_id);
    of[i]->dry = of[i]->s->quiet = !of[i]->s->admission.limited; /* that has jobs elsewhere */
  }
  st = ns_db_list_run(db, NS_SQL_CLAIM_BUSY_QUEUES, NULL, &list, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_CLAIM_BUSY_QUEUES, &row, err)) == NS_OK &&
         row != NULL)
    of[row[0].i]->dry = of[row[0].i]->s->quiet = false;
  for (size_t i = 0; st == NS_OK && i < n; i++) /* a look below floors could find no more */
    of[i]->s->window.open = of[i]->s->window.open && !of[i]->dry;
  return st;
}

/* Does the question about all queues cost too much? It reads deleted rows, which floors spare
** single queues. */
static bool is_dear(const ns_db *db, size_t n) {
  return db->claim.busy_cost > DEAR && db->claim.busy_cost > (int64_t)n * SINGLY;
}

static ns_status ask_about(ns_db *db, shares *all, bool (*of)(const share *), ns_err *err) {
  int64_t start = ns_mono_us();
  ns_status st = ask_which_have_jobs(db, all->some, pick_shares(all, of), err);
  int64_t pause;
  db->claim.busy_cost = ns_mono_us() - start;
  pause = db->claim.busy_cost > BUSY_CHEAP ? db->claim.busy_cost * SHARE : 0;
  if (pause > BUSY_LATEST && !is_dear(db, all->n))
    pause = BUSY_LATEST;
  db->claim.busy_at = start + pause;
  return st;
}

static bool is_in_claim(const share *x) {
  return x->queue != NULL;
}

static bool is_left_out(const share *x) {
  return x->dry && x->s->quiet;
}

/* Leaves out queues without jobs. '*all_told': all queues with jobs now are asked. */
static ns_status leave_out_empty(ns_db *db, shares *all, bool *all_told, ns_err *err) {
  bool ask_all = all->n <= MANY || is_dear(db, all->n);
  *all_told = true;
  if (all->n > MANY && ns_mono_us() >= db->claim.busy_at)
    return ask_about(db, all, is_in_claim, err);
  for (size_t i = 0; i < all->n; i++) {
    share *x = &all->items[i];
    x->s->quiet = x->s->quiet && !ask_all;
    x->dry = x->s->quiet && x->queue->reserve == 0;
  }
  *all_told = ask_all;
  return NS_OK;
}

/* ------------------------------------------------------- one by one */

/* A queue that runs dry loses its saved credit. */
static void mark_dry(share *x) {
  x->dry = true;
  x->s->credit = x->s->credit < 0.0 ? x->s->credit : 0.0;
}

static ns_status take_queue(ns_db *db, ns_claim_queue *s, size_t want, ns_claim_rows *out,
                            ns_err *err) {
  if (ns_claim_is_alone_admitted(out))
    return NS_OK;
  return s->admission.limited ? ns_claim_take_limited(db, s, want, out, err)
                              : ns_claim_take_rows(db, s, want, out, err);
}

static ns_status take_from(ns_db *db, share *x, size_t want, ns_claim_rows *out, ns_err *err) {
  size_t before = out->n;
  ns_status st = take_queue(db, x->s, want, out, err);
  x->s->credit -= (double)(out->n - before);
  if (out->n - before < want)
    mark_dry(x);
  return st;
}

/* The share with the most credit that is still worth asking; NULL: none. */
static share *share_with_most_credit(const shares *all) {
  share *best = NULL;
  for (size_t i = 0; i < all->n; i++) {
    share *x = &all->items[i];
    if (!x->dry && (best == NULL || x->s->credit > best->s->credit))
      best = x;
  }
  return best;
}

/* Shares 'limit' among the shares that are not dry. */
static void give_credit(const shares *all, size_t limit) {
  int total = 0;
  for (size_t i = 0; i < all->n; i++)
    total += all->items[i].dry ? 0 : all->items[i].queue->weight;
  for (size_t i = 0; i < all->n; i++) {
    share *x = &all->items[i];
    if (!x->dry)
      x->s->credit += (double)limit * x->queue->weight / (total > 0 ? total : 1);
  }
}

/* ----------------------------------------------------- the first of each */

static int by_credit(const void *a, const void *b) {
  const share *x = *(share *const *)a;
  const share *y = *(share *const *)b;
  double d = y->s->credit - x->s->credit;
  return d != 0.0 ? (d > 0.0) - (d < 0.0) : (x->lot > y->lot) - (x->lot < y->lot);
}

static int by_queue(const void *a, const void *b) {
  const share *x = *(share *const *)a;
  const share *y = *(share *const *)b;
  return (x->queue->queue_id > y->queue->queue_id) - (x->queue->queue_id < y->queue->queue_id);
}

static int by_queue_id(const void *key, const void *element) {
  const int64_t *id = key;
  const share *x = *(share *const *)element;
  return (*id > x->queue->queue_id) - (*id < x->queue->queue_id);
}

/* Rows that come back are locked; of the rest 'singly' stays. */
static ns_status lock_firsts(ns_db *db, share **of, size_t n, ns_stmt *s, ns_claim_rows *out,
                             ns_err *err) {
  const ns_value *row;
  ns_status st;
  while ((st = ns_stmt_fetch(db->link, s, &row, err)) == NS_OK && row != NULL) {
    share *const *x = bsearch(&row[6].i, of, n, sizeof *of, by_queue_id);
    if (!ns_grow(&out->items, &out->cap, out->n + 1, sizeof *out->items))
      return ns_no_memory(err);
    out->items[out->n++] =
        (ns_claim_row){row[6].i, row[0].i, row[1].i, row[2].i, row[3].i, row[5].i, row[4].i != 0, false, false};
    if (x == NULL)
      continue;
    (*x)->singly = false;
    (*x)->s->credit -= 1.0;
    (*x)->s->since++;
    ns_claim_aging_count((*x)->s, 1, row[0].i);
  }
  return st;
}

/* Asks about queues that gave no row: they are empty, or their first row is locked by another
** transaction, or has another name. */
static ns_status ask_about_rest(ns_db *db, share **of, size_t n, ns_err *err) {
  size_t k = 0;
  ns_status st;
  for (size_t i = 0; i < n; i++)
    if (of[i]->singly)
      of[k++] = of[i];
  st = k > 0 ? ask_which_have_jobs(db, of, k, err) : NS_OK;
  for (size_t i = 0; i < k; i++)
    if (of[i]->dry)
      mark_dry(of[i]);
  return st;
}

static ns_status take_firsts(ns_db *db, share **of, size_t n, ns_claim_rows *out, ns_err *err) {
  ns_buf text = NS_BUF_INIT;
  ns_buf list = NS_BUF_INIT;
  ns_stmt *s;
  size_t before = out->n;
  ns_status st;
  qsort(of, n, sizeof *of, by_queue);
  for (size_t i = 0; i < n; i++) {
    ns_db_list_add_id(&list, of[i]->queue->queue_id);
    of[i]->singly = true;
  }
  ns_claim_filter_text(&db->claim.filter, &text, NS_SQL_CLAIM_FIRSTS);
  ns_value ids = ns_db_list_end(&list);
  st = text.oom || list.oom ? ns_no_memory(err) : ns_db_prepared(db, &s, ns_buf_bytes(&text), err);
  if (st == NS_OK && (st = ns_stmt_run(db->link, s, &ids, err)) == NS_OK)
    st = lock_firsts(db, of, n, s, out, err);
  if (st == NS_OK)
    st = ns_claim_delete_rows(db, out->items + before, out->n - before, err);
  if (st == NS_OK && out->n - before < n)
    st = ask_about_rest(db, of, n, err);
  ns_buf_free(&text);
  ns_buf_free(&list);
  return st;
}

/* The first row of a queue hides lower lanes; their turn comes, too. */
static bool is_to_be_looked_through(const ns_db *db, const ns_claim_queue *s) {
  size_t first;
  return s->since >= LOOK_EVERY || (ns_claim_aging_due(db, s) &&
                                    ns_claim_lanes_of(&db->claim.lanes, s->queue_id, &first) > 1);
}

/* Are the rounds as dear as in is_dear? One dear round counts only when the next is dear, too:
** the machine may have been slow. */
static void rest_from_rounds(ns_db *db, int64_t start, size_t n) {
  int64_t cost = ns_mono_us() - start;
  bool dear = cost > DEAR + (int64_t)n * SINGLY;
  if (dear && db->claim.firsts_dear)
    db->claim.firsts_at = start + cost * SHARE;
  db->claim.firsts_dear = dear;
}

/* Takes one job of each of the 'n' queues, or of 'most' of them. They are picked by credit, and
** by lot, so that hosts do not all ask the same. */
static ns_status take_round(ns_db *db, shares *all, size_t n, size_t most, ns_claim_rows *out,
                            ns_err *err) {
  share **of = all->some;
  int64_t start = ns_mono_us();
  size_t k = 0;
  ns_status st = NS_OK;
  for (size_t i = 0; n > most && i < n; i++)
    of[i]->lot = ns_random();
  if (n > most)
    qsort(of, n, sizeof *of, by_credit);
  n = n < most ? n : most;
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (is_to_be_looked_through(db, of[i]->s))
      st = take_from(db, of[i], 1, out, err);
    else
      of[k++] = of[i];
  if (st == NS_OK && k > 0)
    st = take_firsts(db, of, k, out, err);
  rest_from_rounds(db, start, n);
  return st;
}

static bool has_turn(const share *x) {
  return !x->dry && !x->singly && !x->s->admission.limited;
}

/* While so many queues have work that each gets a few jobs only. */
static ns_status take_rounds(ns_db *db, shares *all, size_t limit, ns_claim_rows *out,
                             ns_err *err) {
  ns_status st = NS_OK;
  while (st == NS_OK) {
    size_t rest = limit - out->n;
    size_t n;
    if (all->n <= MANY || rest < 2 || ns_claim_leases_alone(&db->claim.leases) ||
        ns_mono_us() < db->claim.firsts_at || ns_claim_is_alone_admitted(out))
      break;
    n = pick_shares(all, has_turn);
    if (n <= MANY || n < rest / FEW)
      break;
    st = take_round(db, all, n, rest, out, err);
  }
  return st;
}

/* ------------------------------------------------------------- the claim */

/* Takes jobs for the places reserved to one queue. The rest of the limit is for all queues. */
static ns_status take_reserved(ns_db *db, const shares *all, ns_claim_rows *out, ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < all->n; i++) {
    share *x = &all->items[i];
    size_t before = out->n;
    if (x->dry || x->queue->reserve == 0)
      continue;
    st = take_queue(db, x->s, x->queue->reserve, out, err);
    x->dry = out->n - before < x->queue->reserve;
  }
  return st;
}

/* Claims from one queue after the other. */
static ns_status take_strictly(ns_db *db, const shares *all, size_t limit, ns_claim_rows *out,
                               ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < all->n && out->n < limit; i++)
    if (!all->items[i].dry)
      st = take_queue(db, all->items[i].s, limit - out->n, out, err);
  return st;
}

/* Deficit round robin: the queue with most credit takes up to it; the rest of the limit goes
** round again. */
static ns_status take_shares(ns_db *db, shares *all, size_t limit, ns_claim_rows *out,
                             ns_err *err) {
  ns_status st;
  share *x;
  give_credit(all, limit - out->n);
  st = take_rounds(db, all, limit, out, err);
  while (st == NS_OK && out->n < limit && (x = share_with_most_credit(all)) != NULL) {
    size_t rest = limit - out->n;
    size_t want;
    if (x->s->credit < 1.0) /* shares of dry queues are shared out again */
      give_credit(all, rest);
    want = x->s->credit >= 1.0 ? (size_t)x->s->credit : 1;
    if (want > rest || all->n == 1)
      want = rest;
    st = take_from(db, x, want, out, err);
  }
  return st;
}

static ns_status take_open(ns_db *db, shares *all, size_t limit, ns_claim_rows *out, ns_err *err) {
  return db->claim.strict ? take_strictly(db, all, limit, out, err)
                          : take_shares(db, all, limit, out, err);
}

static ns_status take_all(ns_db *db, shares *all, size_t open, ns_claim_rows *out, ns_err *err) {
  bool all_told;
  size_t limit;
  ns_status st = leave_out_empty(db, all, &all_told, err);
  if (st == NS_OK)
    st = take_reserved(db, all, out, err);
  limit = out->n + open;
  if (st == NS_OK && open > 0)
    st = take_open(db, all, limit, out, err);
  if (st != NS_OK || all_told || out->n >= limit)
    return st;
  st = ask_about(db, all, is_left_out, err);
  return st == NS_OK ? take_open(db, all, limit, out, err) : st;
}

/* Claims went past rows that are to be claimed alone, and so did floors. */
static void lower_floors_for_alone(ns_db *db) {
  if (!db->claim.skipped_alone || ns_claim_leases_alone(&db->claim.leases))
    return;
  db->claim.skipped_alone = false;
  ns_claim_lanes_drop_floors(&db->claim.lanes);
}

ns_status ns_claim_take(ns_db *db, const ns_weighted_queue *queues, size_t nqueues, size_t limit,
                        ns_claim_rows *out, ns_err *err) {
  shares all;
  ns_status st;
  lower_floors_for_alone(db);
  st = make_shares(db, queues, nqueues, &all, err);
  if (st == NS_OK)
    st = take_all(db, &all, ns_claim_open_places(queues, nqueues, limit), out, err);
  ns_assert(out->n <= limit || nqueues == 0);
  free_shares(&all);
  return st;
}

/* ------------------------------------------------------- one job in one statement */
/*
** A program that claims one job after the other, and has nothing else to look at, sends claim_one.
** It is a whole transaction. Jobs are found in the known lanes, in the order of an ordinary claim,
** past rows that other transactions have locked.
**
** Invariants: the lease's id is known before the statement is sent, so a claim that was cut is
** resolved by its lease (claim/take.c). Every other failure has claimed nothing. No assert: the
** transaction is the server's.
*/

#define UNSEEN (NS_SECOND / 10) /* an ordinary claim is this late at most */

/* Is it time to look below the floors, or at lower lanes? */
static bool is_look_due(const ns_db *db, const ns_claim_queue *s, size_t lanes) {
  int64_t now = ns_mono_us();
  bool late = now > db->claim.promote_at + UNSEEN || now > s->window.next + UNSEEN;
  return (s->since >= NS_SWEEP_CLAIMS && late) || s->hidden.to != 0 ||
         (lanes > 1 && ns_claim_aging_due(db, s));
}

bool ns_claim_one_open(const ns_db *db, int64_t queue_id) {
  const ns_claim_state *c = &db->claim;
  const ns_claim_queue *s = ns_claim_queue_known(&c->lanes, queue_id);
  bool is_alone = c->alone.id != 0 || c->skipped_alone || ns_claim_leases_alone(&c->leases);
  bool is_crowded = c->admission.contended > 0 || c->admission.number != 0;
  bool is_behind = c->unread != 0 || c->in_doubt != 0 || c->nexpired > 0;
  size_t first;
  size_t n = ns_claim_lanes_of(&c->lanes, queue_id, &first);
  return db->holder != 0 && !db->is_host && !db->user_tx && s != NULL && !s->admission.limited &&
         n > 0 && n <= NS_LANES_MAX && !is_alone && !is_crowded && !is_behind &&
         db->paused.names.n == 0 && ns_claim_filter_kinds(&c->filter) == NULL &&
         !is_look_due(db, s, n);
}

/* Runs it. '*row' has the columns of claim_read, and those below; NULL: nothing was claimed. */
static ns_status ask_for_one(ns_db *db, const ns_claim_ranges *r, int64_t lease, ns_stmt **s,
                             const ns_value **row, bool *cut, ns_err *err) {
  ns_value params[3 * NS_LANES_MAX + 4] = {ns_vint(lease), ns_vint(db->holder),
                                           ns_vint(db->claim.due_floor)};
  ns_buf text = NS_BUF_INIT;
  ns_status st = ns_claim_ranges_text(r, NS_SQL_CLAIM_ONE, NULL, &text, err);
  memcpy(params + 3, r->params, r->nparams * sizeof *params);
  if (st == NS_OK)
    st = ns_db_run_whole_text(db, ns_buf_bytes(&text), params, s, cut, err);
  if (st != NS_OK && ns_link_retryable(err))
    ns_db_count_retry(db, err);
  if (st == NS_OK)
    st = ns_stmt_fetch(db->link, *s, row, err);
  ns_buf_free(&text);
  return st;
}

/* Behind the columns of claim_read. */
enum { C_RANK, C_AT, C_ID, C_RUN, C_COUNT };

/* The claim is committed. One that cannot be remembered now is found by its lease; a job that
** cannot be given now is read again by an ordinary claim. */
static ns_status note_one(ns_db *db, ns_claim_row *t, int64_t lease, const ns_value *row,
                          ns_jobs *out, ns_err *err) {
  const ns_claim_rows takes = {t, 1, 1};
  ns_status st = NS_OK;
  if (!ns_claim_remember(db, &takes, lease, 0)) {
    ns_claim_in_doubt(db, lease);
    return ns_no_memory(err);
  }
  db->count.claimed++;
  ns_claim_committed(db, &takes);
  db->claim.unread = lease;
  if (ns_claim_is_shown(row) && (st = ns_claim_read_row(db, lease, row, out, err)) == NS_OK)
    db->claim.unread = 0;
  return st;
}

ns_status ns_claim_one(ns_db *db, int64_t queue_id, ns_jobs *out, ns_err *err) {
  ns_claim_queue *s = ns_claim_queue_of(&db->claim.lanes, queue_id);
  const ns_value *row = NULL;
  const ns_value *where;
  ns_claim_ranges r;
  ns_stmt *stmt = NULL;
  ns_claim_row t;
  bool cut = false;
  int64_t lease;
  size_t first;
  size_t n = ns_claim_lanes_of(&db->claim.lanes, queue_id, &first);
  ns_claim_ranges_begin(&r, queue_id, true);
  for (size_t i = first; i < first + n; i++)
    ns_claim_ranges_add(&r, db->claim.lanes.items[i].rank, db->claim.lanes.items[i].floor,
                        db->claim.lanes.items[i].end);
  if (s == NULL || r.n == 0 || ns_take_ids(db, &lease, 1, err) != NS_OK ||
      ask_for_one(db, &r, lease, &stmt, &row, &cut, err) != NS_OK || row == NULL) {
    if (cut)
      ns_claim_in_doubt(db, lease);
    db->claim.promote_at = 0; /* a job may be due */
    ns_err_clear(err);
    return NS_OK;
  }
  where = row + ns_stmt_columns(stmt) - C_COUNT;
  t = (ns_claim_row){.queue_id = queue_id,
                     .rank = where[C_RANK].i,
                     .ready_at = where[C_AT].i,
                     .id = where[C_ID].i,
                     .run = where[C_RUN].i};
  s->since++;
  ns_claim_aging_count(s, 1, t.rank);
  ns_claim_took(s, 1, 1);
  return note_one(db, &t, lease, row, out, err);
}
