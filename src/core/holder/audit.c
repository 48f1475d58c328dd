/*
** The audit: no live job is nowhere. A live job is ready, scheduled, waiting or claimed. The
** audit looks for jobs and rows in no such place, a stretch of rows at a time, all of it in
** rounds.
**
** A round reads live jobs into memory, and then the rows that place them. It follows the order in
** which a job goes through its places: edges, scheduled, ready, backlog, leases. So a job that
** moves meanwhile is met in at least one of them. Nothing is locked. A job that ends or returns
** meanwhile stands no more with the same run, which is asked last.
**
** A holder compares its own claims as well: are the claims that stand in the database in its
** memory? Only the holder can tell. No rescue would give back unknown claims, as the holder
** lives.
**
** Invariant: a finding of one round is a suspicion. It is repaired when the next round, 'every'
** later, finds it in the same state. Even then the repair first looks under the lock of its row
** (holder/repair.c). Asserted where a finding is kept to be repaired, and for the order of the
** jobs.
*/
#include "holder/holder.h"

#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "db/db.h"
#include "handle.h"
#include "settle/settle.h"

#define STRETCH 2000    /* rows per step */
#define LEASES 50       /* per step */
#define AT_ONCE 1000000 /* jobs in memory, 24 MB; more are looked at in turns */
#define STRAYS 1000     /* of a round; the rest are found by a later one */
#define EVERY (30 * NS_SECOND)
#define SHARE 100                 /* a hundredth of the server's time */
#define PAUSE (NS_SECOND * 4 / 5) /* at most, so that a round of a million ends in time */

typedef enum phase {
  REST,
  JOBS,
  EDGES,
  SCHEDULED,
  READY,
  BACKLOG,
  CLAIMED,
  STAND,
  SIGNALS,
  KEYS,
  PHASES
} phase;

/* A live job, and how many of the rows that place it were met. */
typedef struct place_seen {
  int64_t id;
  uint32_t run, unmet;
  uint32_t edges : 26;
  uint32_t scheduled : 1, ready : 1, backlog : 1, claimed : 1;
  uint32_t paused : 1;
  uint32_t wrong : 1; /* its pause is over, or its signal was sent */
} place_seen;

struct ns_audit {
  phase at;
  int64_t every;    /* µs between two looks at the same job */
  place_seen *jobs; /* sorted by id */
  size_t n, cap;
  int64_t from;      /* jobs behind this id are read next */
  bool all;          /* there are none behind them */
  bool first;        /* these are the first jobs of the round */
  int64_t mark[4];   /* where the phase goes on: a key */
  char key[4 * 190]; /* of unique_key and signal, the same */
  size_t nkey;
  ns_buf over;           /* "[[queue,key],…" of this step: their periods are over */
  size_t asked;          /* jobs[0…asked) have been asked whether they stand */
  ns_strays before, now; /* of the last round, and of this one */
  ns_strays twice;       /* to be repaired by this step */
};

/* ------------------------------------------------------------- suspicions */

void ns_holder_audit_free(ns_audit *c) {
  if (c == NULL)
    return;
  ns_holder_strays_free(&c->before);
  ns_holder_strays_free(&c->now);
  ns_holder_strays_free(&c->twice);
  ns_buf_free(&c->over);
  free(c->jobs);
  free(c);
}

static const ns_stray *is_known(const ns_strays *s, const ns_stray *x) {
  for (size_t i = 0; i < s->n; i++)
    if (s->items[i].wrong == x->wrong && s->items[i].id == x->id && s->items[i].run == x->run &&
        s->items[i].unmet == x->unmet && s->items[i].nkey == x->nkey &&
        (x->nkey == 0 || memcmp(s->items[i].key, x->key, x->nkey) == 0))
      return &s->items[i];
  return NULL;
}

static ns_status suspect(ns_audit *c, const ns_stray *x, ns_err *err) {
  const ns_stray *before = is_known(&c->before, x);
  if (c->now.n >= STRAYS)
    return NS_OK;
  if (!ns_holder_strays_add(&c->now, x) || (before != NULL && !ns_holder_strays_add(&c->twice, before)))
    return ns_no_memory(err);
  ns_assert(c->twice.n <= c->now.n);
  return NS_OK;
}

static int64_t count_faults(const ns_strays *s) {
  int64_t n = 0;
  for (size_t i = 0; i < s->n; i++)
    n += ns_holder_is_fault(s->items[i].wrong);
  return n;
}

/* ----------------------------------------------------------------- phases */

static place_seen *find_job(const ns_audit *c, int64_t id) {
  size_t low = 0;
  size_t high = c->n;
  while (low < high) {
    size_t mid = low + (high - low) / 2;
    if (c->jobs[mid].id < id)
      low = mid + 1;
    else
      high = mid;
  }
  return low < c->n && c->jobs[low].id == id ? &c->jobs[low] : NULL;
}

/* Begins a phase at the start of its table. */
static void enter_phase(ns_audit *c, phase at) {
  c->at = at;
  memset(c->mark, 0, sizeof c->mark);
  c->mark[0] = INT64_MIN;
  c->nkey = 0;
  c->asked = 0;
}

static ns_status take_job(ns_audit *c, const ns_value *r, ns_err *err) {
  ns_assert(c->n == 0 || c->jobs[c->n - 1].id < r[0].i);
  if (!ns_grow(&c->jobs, &c->cap, c->n + 1, sizeof *c->jobs))
    return ns_no_memory(err);
  c->jobs[c->n++] = (place_seen){.id = r[0].i,
                                 .run = (uint32_t)r[1].i,
                                 .unmet = (uint32_t)r[2].i,
                                 .paused = r[3].i != 0,
                                 .wrong = r[4].i != 0 || r[5].i != 0};
  c->from = r[0].i;
  return NS_OK;
}

static ns_status take_edge(ns_audit *c, const ns_value *r, ns_err *err) {
  place_seen *s = find_job(c, r[1].i);
  (void)err;
  c->mark[0] = r[0].i;
  c->mark[1] = r[1].i;
  if (s != NULL)
    s->edges++;
  return NS_OK;
}

static ns_status take_scheduled(ns_audit *c, const ns_value *r, ns_err *err) {
  ns_stray x = {.wrong = NS_SCHEDULED_OF_NONE, .id = r[1].i, .run = r[2].i, .ready_at = r[0].i};
  place_seen *s = find_job(c, x.id);
  c->mark[0] = r[0].i;
  c->mark[1] = r[1].i;
  if (r[3].i != 0)
    return c->first ? suspect(c, &x, err) : NS_OK;
  if (s != NULL && s->run == (uint32_t)r[2].i)
    s->scheduled = true;
  return NS_OK;
}

/* A job that is claimed has no row here: leases are looked at behind this. */
static ns_status take_ready(ns_audit *c, const ns_value *r, ns_err *err) {
  ns_stray x = {.wrong = NS_READY_OF_NONE,
                .id = r[3].i,
                .run = r[4].i,
                .queue_id = r[0].i,
                .rank = r[1].i,
                .ready_at = r[2].i};
  place_seen *s = find_job(c, x.id);
  for (size_t i = 0; i < 4; i++)
    c->mark[i] = r[i].i;
  if (x.id != 0 && r[5].i != 0) /* 0: the end of a lane */
    return c->first ? suspect(c, &x, err) : NS_OK;
  if (s != NULL && s->run == (uint32_t)x.run)
    s->ready = true;
  for (size_t i = 0; i < c->before.n; i++) {
    ns_stray *b = &c->before.items[i];
    if (b->wrong == NS_READY_TWICE && b->id == x.id && b->run == x.run) {
      b->queue_id = x.queue_id;
      b->rank = x.rank;
      b->ready_at = x.ready_at;
    }
  }
  return NS_OK;
}

static void mark_key(ns_audit *c, const ns_stray *x) {
  c->nkey = x->nkey < sizeof c->key ? x->nkey : sizeof c->key;
  memcpy(c->key, x->key, c->nkey);
}

/* Rows of a backlog: queue, group, rank, ready_at, job, run. */
static ns_status take_backlog(ns_audit *c, const ns_value *r, ns_err *err) {
  place_seen *s = find_job(c, r[4].i);
  const ns_stray group = {.key = (char *)(uintptr_t)r[1].s.p, .nkey = r[1].s.n};
  (void)err;
  c->mark[0] = r[0].i;
  for (size_t i = 1; i < 4; i++)
    c->mark[i] = r[i + 1].i;
  mark_key(c, &group);
  if (s != NULL && s->run == (uint32_t)r[5].i)
    s->backlog = true;
  return NS_OK;
}

static ns_status take_claim(ns_audit *c, const ns_value *r, ns_err *err) {
  place_seen *s = r[1].type != NS_NULL ? find_job(c, r[1].i) : NULL;
  (void)err;
  c->mark[0] = r[0].i;
  if (s != NULL && s->run == (uint32_t)r[2].i)
    s->claimed = true;
  return NS_OK;
}

static ns_status take_signal(ns_audit *c, const ns_value *r, ns_err *err) {
  ns_stray x = {.wrong = NS_SIGNAL_OF_NONE,
                .id = r[0].i,
                .key = (char *)(uintptr_t)r[1].s.p,
                .nkey = r[1].s.n};
  c->mark[0] = x.id;
  mark_key(c, &x);
  return r[2].i != 0 ? suspect(c, &x, err) : NS_OK;
}

static ns_status take_key(ns_audit *c, const ns_value *r, ns_err *err) {
  ns_stray x = {.wrong = NS_KEY_OF_NONE,
                .id = r[2].i,
                .queue_id = r[0].i,
                .key = (char *)(uintptr_t)r[1].s.p,
                .nkey = r[1].s.n};
  c->mark[0] = r[0].i;
  mark_key(c, &x);
  if (r[4].i != 0)
    ns_holder_add_key(&c->over, x.queue_id, r[1].s);
  return r[3].i != 0 ? suspect(c, &x, err) : NS_OK;
}

static ns_status ask_stretch(ns_db *db, ns_audit *c, ns_sql *sql, ns_err *err) {
  const int64_t *m = c->mark;
  const ns_value rows = ns_vint(STRETCH);
  const ns_value key = ns_vtext(((ns_bytes){c->key, c->nkey}));
  const ns_value jobs[] = {ns_vint(c->from), rows};
  const ns_value pairs[] = {ns_vint(m[0]), ns_vint(m[0]), ns_vint(m[1]), rows};
  const ns_value ready[] = {ns_vint(m[0]), ns_vint(m[0]), ns_vint(m[1]), ns_vint(m[0]),
                            ns_vint(m[1]), ns_vint(m[2]), ns_vint(m[0]), ns_vint(m[1]),
                            ns_vint(m[2]), ns_vint(m[3]), rows};
  const ns_value backlog[] = {ns_vint(m[0]), ns_vint(m[0]), key, ns_vint(m[0]), key, ns_vint(m[1]),
                              ns_vint(m[0]), key, ns_vint(m[1]), ns_vint(m[2]), ns_vint(m[0]), key,
                              ns_vint(m[1]), ns_vint(m[2]), ns_vint(m[3]), rows};
  const ns_value leases[] = {ns_vint(m[0]), ns_vint(LEASES)};
  const ns_value keys[] = {ns_vint(m[0]), ns_vint(m[0]), key, rows};
  const struct {
    ns_sql sql;
    const ns_value *params;
  } asks[PHASES] = {[JOBS] = {NS_SQL_AUDIT_JOBS, jobs},
                    [EDGES] = {NS_SQL_AUDIT_EDGES, pairs},
                    [SCHEDULED] = {NS_SQL_AUDIT_SCHEDULED, pairs},
                    [READY] = {NS_SQL_AUDIT_READY, ready},
                    [BACKLOG] = {NS_SQL_AUDIT_BACKLOG, backlog},
                    [CLAIMED] = {NS_SQL_AUDIT_LEASES, leases},
                    [SIGNALS] = {NS_SQL_AUDIT_SIGNALS, keys},
                    [KEYS] = {NS_SQL_AUDIT_KEYS, keys}};
  *sql = asks[c->at].sql;
  return ns_db_run(db, *sql, asks[c->at].params, err);
}

/* The next rows of a phase; '*n': how many. */
static ns_status read_stretch(ns_db *db, ns_audit *c, size_t *n, ns_err *err) {
  static ns_status (*const take[PHASES])(ns_audit *, const ns_value *, ns_err *) = {
      [JOBS] = take_job,    [EDGES] = take_edge,    [SCHEDULED] = take_scheduled,
      [READY] = take_ready, [BACKLOG] = take_backlog, [CLAIMED] = take_claim,
      [SIGNALS] = take_signal, [KEYS] = take_key};
  const ns_value *row;
  ns_sql sql;
  ns_status st = ask_stretch(db, c, &sql, err);
  *n = 0;
  while (st == NS_OK && (st = ns_db_row(db, sql, &row, err)) == NS_OK && row != NULL) {
    ++*n;
    st = take[c->at](c, row, err);
  }
  return st;
}

/* --------------------------------------------------------------- judging */

/* Finds the damage of a job, as far as it was met; false: none. */
static bool judge_jobs(const place_seen *s, ns_stray *x) {
  *x = (ns_stray){.id = s->id, .run = s->run, .unmet = s->unmet};
  if (s->wrong || s->unmet > s->edges + s->paused)
    x->wrong = NS_WAITS_TOO_LONG;
  else if (s->unmet == 0 && !s->scheduled && !s->ready && !s->backlog && !s->claimed)
    x->wrong = NS_UNPLACED;
  else if (s->ready && s->claimed)
    x->wrong = NS_READY_TWICE;
  else
    return false;
  return true;
}

/* Most jobs that were met in no place have ended or returned meanwhile. */
static ns_status ask_standing(ns_db *db, ns_audit *c, size_t *n, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  const ns_value *row;
  ns_stray x;
  ns_status st;
  for (*n = 0; c->asked < c->n && *n < STRETCH; c->asked++)
    if (judge_jobs(&c->jobs[c->asked], &x)) {
      ns_buf_addf(&list, "%s[%lld,%lld,%lld]", list.n > 0 ? "," : "[", (long long)x.id,
                  (long long)x.run, (long long)x.unmet);
      ++*n;
    }
  if (*n == 0)
    return NS_OK;
  st = ns_db_list_run(db, NS_SQL_AUDIT_STAND, NULL, &list, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_AUDIT_STAND, &row, err)) == NS_OK && row != NULL)
    if (judge_jobs(find_job(c, row[0].i), &x))
      st = suspect(c, &x, err);
  return st;
}

/* ----------------------------------------------------------------- rounds */

ns_status ns_holder_audit_period(ns_db *db, int64_t *every, ns_err *err) {
  const ns_value *row = NULL;
  ns_status st = ns_db_run(db, NS_SQL_AUDIT_EVERY, NULL, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_AUDIT_EVERY, &row, err);
  *every = st == NS_OK && row != NULL && row[0].type == NS_INT && row[0].i > 0 ? row[0].i : EVERY;
  return st;
}

static ns_status begin_phase(ns_db *db, ns_audit *c, ns_audit_mode how, bool *ours, ns_err *err) {
  const ns_value *row = NULL;
  ns_status st = ns_holder_audit_period(db, &c->every, err);
  *ours = how != NS_AUDIT_SHARED || db->no_locks;
  if (st == NS_OK && !*ours && (st = ns_db_run(db, NS_SQL_AUDIT_BEGIN, NULL, err)) == NS_OK &&
      (st = ns_db_row(db, NS_SQL_AUDIT_BEGIN, &row, err)) == NS_OK && row != NULL)
    *ours = row[0].type == NS_INT && row[0].i == 1;
  if (st == NS_OK && *ours) {
    enter_phase(c, JOBS);
    c->from = 0;
    c->first = true;
  }
  return st;
}

static void end_round(ns_audit *c, ns_audited *sum) {
  ns_strays empty = c->before;
  sum->seen = count_faults(&c->now);
  sum->round = true;
  ns_holder_strays_clear(&empty);
  c->before = c->now;
  c->now = empty;
  free(c->jobs);
  c->jobs = NULL;
  c->n = c->cap = 0;
  c->at = REST;
}

/* The phase has come to its end, or memory is full of jobs. */
static void next_stretch(ns_audit *c, ns_audited *sum) {
  if (c->at == KEYS) {
    end_round(c, sum);
  } else if (c->at == STAND) {
    c->n = 0;
    c->first = false;
    enter_phase(c, c->all ? SIGNALS : JOBS);
  } else {
    enter_phase(c, c->at + 1);
  }
}

/* Runs one statement; '*n': rows. */
static ns_status look_for_strays(ns_db *db, ns_audit *c, size_t *n, ns_audited *sum, ns_err *err) {
  bool more;
  ns_status st = c->at == STAND ? ask_standing(db, c, n, err) : read_stretch(db, c, n, err);
  if (st != NS_OK)
    return st;
  more = c->at == CLAIMED ? *n > 0 : c->at == STAND ? c->asked < c->n : *n >= STRETCH;
  if (c->at == JOBS) {
    c->all = !more;
    more = more && c->n < AT_ONCE;
  }
  if (!more)
    next_stretch(c, sum);
  return NS_OK;
}

/* Runs as many statements as read a stretch of rows, and repairs the findings that they confirm. */
static ns_status run_step(ns_db *db, ns_audit *c, ns_audit_mode how, ns_audited *sum, ns_err *err) {
  bool ours = true;
  size_t rows = 0;
  ns_status st = c->at == REST ? begin_phase(db, c, how, &ours, err) : NS_OK;
  while (st == NS_OK && ours && rows < STRETCH && !sum->round) {
    size_t n = 0;
    st = look_for_strays(db, c, &n, sum, err);
    rows += n;
  }
  sum->twice += count_faults(&c->twice);
  if (st == NS_OK && how != NS_AUDIT_LOOK && c->over.n > 0)
    st = ns_holder_free_keys(db, &c->over, err);
  ns_buf_free(&c->over);
  if (st == NS_OK && how != NS_AUDIT_LOOK && c->twice.n > 0)
    st = ns_holder_repair(db, c->twice.items, c->twice.n, sum, err);
  ns_holder_strays_clear(&c->twice);
  return st;
}

ns_status ns_audit_step(ns_db *db, ns_audit_mode how, int64_t *again_in, ns_audited *sum,
                        ns_err *err) {
  int64_t begun = ns_mono_us();
  ns_status st;
  *sum = (ns_audited){0};
  *again_in = EVERY;
  ns_err_clear(err);
  if (ns_in_transaction(db))
    return ns_fail(err, NS_ESTATE, "the look for lost jobs cannot run inside a transaction");
  if ((st = ns_db_ready(db, err)) != NS_OK)
    return st;
  if (db->rescue.audit == NULL && (db->rescue.audit = calloc(1, sizeof *db->rescue.audit)) == NULL)
    return ns_no_memory(err);
  st = run_step(db, db->rescue.audit, how, sum, err);
  *again_in = (SHARE - 1) * (ns_mono_us() - begun);
  if (db->rescue.audit->at == REST && *again_in < db->rescue.audit->every)
    *again_in = db->rescue.audit->every;
  else if (db->rescue.audit->at != REST && *again_in > PAUSE)
    *again_in = PAUSE;
  return st;
}

/* ----------------------------------------------------- a holder's own claims */

static bool knows_claim(ns_db *db, const ns_token *t) {
  for (size_t i = 0; i < db->claim.nexpired; i++)
    if (db->claim.expired[i].id == t->id && db->claim.expired[i].run == t->run)
      return true;
  return ns_claim_leases_find_any(&db->claim.leases, t->id, t->run, NULL) != NULL;
}

/* The claims that this handle does not know of. */
static ns_status list_unknown(ns_db *db, ns_token **list, size_t *n, ns_err *err) {
  ns_value holder = ns_vint(db->holder);
  const ns_value *r;
  size_t cap = 0;
  ns_status st = ns_db_run(db, NS_SQL_AUDIT_OWN, &holder, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_AUDIT_OWN, &r, err)) == NS_OK && r != NULL) {
    ns_token t = {.id = r[0].i, .run = r[1].i};
    if (knows_claim(db, &t))
      continue;
    if (!ns_grow(list, &cap, *n + 1, sizeof **list))
      return ns_no_memory(err);
    (*list)[(*n)++] = t;
  }
  return st;
}

static ns_status give_back_run(ns_db *db, ns_tx *tx, ns_err *err) {
  ns_token *t = tx->arg;
  ns_verdict v = {.id = t->id,
                  .run = t->run,
                  .kind = NS_LOST,
                  .error = ns_str("its holder did not know that it had it")};
  ns_status st = ns_settle_batch(db, &v, 1, err);
  if (st != NS_OK || v.status != NS_OK)
    return st;
  return ns_db_run(db, NS_SQL_AUDIT_COUNT, (ns_value[]){ns_vtext(ns_str("unknown")), ns_vint(1)},
                   err);
}

static bool was_unknown(const ns_db *db, const ns_token *t) {
  for (size_t i = 0; i < db->rescue.nunknown; i++)
    if (db->rescue.unknown[i].id == t->id && db->rescue.unknown[i].run == t->run)
      return true;
  return false;
}

/* Gives back claims that were unknown the last time, too. Their leases are empty then, and stay for
** the rescue of this holder. */
static ns_status give_back_unknown(ns_db *db, ns_token *list, size_t n, ns_rescued *sum,
                                   ns_err *err) {
  ns_status st = NS_OK;
  db->settle.blamed = db->holder;
  for (size_t i = 0; st == NS_OK && i < n; i++) {
    ns_tx tx = {.run = give_back_run, .arg = &list[i]};
    if (!was_unknown(db, &list[i]))
      continue;
    st = ns_db_transact(db, &tx, err);
    sum->jobs += st == NS_OK;
  }
  db->settle.blamed = 0;
  return st;
}

ns_status ns_release_unknown(ns_db *db, ns_rescued *sum, ns_err *err) {
  ns_token *list = NULL;
  size_t n = 0;
  int64_t every = NS_SECOND;
  ns_status st;
  if (db->holder == 0 || ns_mono_us() < db->rescue.own_at || db->claim.in_doubt != 0 ||
      db->claim.unread != 0 || db->settle.doubt.n > db->settle.doubt.written ||
      ns_in_transaction(db))
    return NS_OK;
  st = ns_holder_audit_period(db, &every, err);
  if (st == NS_OK)
    st = list_unknown(db, &list, &n, err);
  if (st == NS_OK)
    st = give_back_unknown(db, list, n, sum, err);
  free(db->rescue.unknown);
  db->rescue.unknown = list;
  db->rescue.nunknown = n;
  db->rescue.own_at = ns_mono_us() + every;
  return st;
}

static void closing(ns_db *db) {
  free(db->rescue.unknown);
  db->rescue.unknown = NULL;
  db->rescue.nunknown = 0;
  ns_holder_audit_free(db->rescue.audit);
  db->rescue.audit = NULL;
}

const ns_hooks ns_holder_audit_hooks = {.closing = closing};
