/*
** Names and numbers. Queues by name and by id, pausing and listing them. Ids of jobs, leases
** and holders, from one sequence, a block at a time.
**
** A queue's row is created outside any open transaction. So a push that is not yet committed
** never makes other pushers into the same new queue wait.
**
** The names of jobs that are paused come with the queues, in the same answer.
**
** What has happened in a queue is counted here, by minutes of the server's clock, and told once a
** minute. A process that is killed loses what it has not told.
**
** Invariants: ids of queues never change, so they are cached, in two lists of the same
** queues, by id and by name. An id of the sequence is given once; a forked child takes none
** of its parent's block.
*/
#include "db/db.h"

#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "handle.h"

/* ASCII control characters, and U+0080 to U+009F, which are C2 80 to C2 9F. */
static bool is_control(ns_bytes name, size_t i) {
  unsigned char c = (unsigned char)name.p[i];
  unsigned char next = i + 1 < name.n ? (unsigned char)name.p[i + 1] : 0;
  return c < 32 || c == 127 || (c == 0xC2 && next < 0xA0);
}

ns_status ns_db_name_check(ns_bytes name, const char *what, size_t max, ns_err *err) {
  if (name.p == NULL || name.n == 0)
    return ns_fail(err, NS_EINVALID, "the %s is empty", what);
  if (name.n > max)
    return ns_fail(err, NS_EINVALID, "the %s has %zu bytes; the limit is %zu", what, name.n, max);
  for (size_t i = 0; i < name.n; i++)
    if (is_control(name, i))
      return ns_fail(err, NS_EINVALID, "the %s has a control character at byte %zu", what, i + 1);
  if (!ns_utf8_valid(name))
    return ns_fail(err, NS_EINVALID, "the %s is not valid UTF-8", what);
  return NS_OK;
}

/* ------------------------------------------------------------------- known */

static int by_name(ns_bytes name, const ns_queue_name *q) {
  int d = memcmp(name.p, q->name, name.n < q->n ? name.n : q->n);
  return d != 0 ? d : (name.n > q->n) - (name.n < q->n);
}

/* Where a name is or belongs in db->by_name; of the ids in db->queues, the same. */
static size_t place_of_name(const ns_db *db, ns_bytes name) {
  size_t first = 0;
  for (size_t end = db->nqueues; first < end;) {
    size_t middle = first + (end - first) / 2;
    if (by_name(name, db->by_name[middle]) > 0)
      first = middle + 1;
    else
      end = middle;
  }
  return first;
}

static size_t place_of_id(const ns_db *db, int64_t id) {
  size_t first = 0;
  for (size_t end = db->nqueues; first < end;) {
    size_t middle = first + (end - first) / 2;
    if (db->queues[middle]->id < id)
      first = middle + 1;
    else
      end = middle;
  }
  return first;
}

static ns_queue_name *cached_by_name(const ns_db *db, ns_bytes name) {
  size_t i = place_of_name(db, name);
  return i < db->nqueues && by_name(name, db->by_name[i]) == 0 ? db->by_name[i] : NULL;
}

static ns_queue_name *cached_by_id(const ns_db *db, int64_t id) {
  size_t i = place_of_id(db, id);
  return i < db->nqueues && db->queues[i]->id == id ? db->queues[i] : NULL;
}

static void insert_at(ns_queue_name **list, size_t n, size_t i, ns_queue_name *q) {
  ns_assert(i <= n);
  memmove(&list[i + 1], &list[i], (n - i) * sizeof *list);
  list[i] = q;
}

static void note_removed(ns_db *db, int64_t id, bool removed) {
  ns_queue_name *q = cached_by_id(db, id);
  if (q == NULL || q->removed == removed)
    return;
  q->removed = removed;
  if (removed)
    db->nremoved++;
  else
    db->nremoved--;
}

ns_queue_name *ns_db_queue_known(const ns_db *db, int64_t id) {
  return cached_by_id(db, id);
}

void ns_db_queue_bound(ns_db *db, int64_t id, int64_t bound) {
  ns_queue_name *q = cached_by_id(db, id);
  if (q == NULL || q->bound == bound)
    return;
  db->nbounded += (size_t)(q->bound == 0) - (size_t)(bound == 0);
  q->bound = bound;
  q->counted_until = 0;
}

/* Jobs borrow the name, so a cell stays where it is. */
static ns_status cache_queue(ns_db *db, ns_bytes name, int64_t id, ns_err *err) {
  ns_queue_name *q;
  if (cached_by_id(db, id) != NULL)
    return NS_OK;
  if (!ns_grow(&db->queues, &db->capqueues, db->nqueues + 1, sizeof q) ||
      !ns_grow(&db->by_name, &db->capnames, db->nqueues + 1, sizeof q) ||
      (q = malloc(sizeof *q + name.n + 1)) == NULL)
    return ns_no_memory(err);
  *q = (ns_queue_name){.id = id, .n = name.n};
  memcpy(q->name, name.p, name.n);
  q->name[name.n] = '\0';
  insert_at(db->queues, db->nqueues, place_of_id(db, id), q);
  insert_at(db->by_name, db->nqueues, place_of_name(db, name), q);
  db->nqueues++;
  ns_assert(cached_by_id(db, id) == q && cached_by_name(db, name) == q);
  return NS_OK;
}

void ns_db_queues_free(ns_db *db) {
  for (size_t i = 0; i < db->nqueues; i++)
    free(db->queues[i]);
  free(db->queues);
  free(db->by_name);
  ns_buf_free(&db->paused.names);
}

ns_bytes ns_db_queue_name(const ns_db *db, int64_t id) {
  const ns_queue_name *q = cached_by_id(db, id);
  return q != NULL ? (ns_bytes){q->name, q->n} : NS_NONE;
}

/* -------------------------------------------------------------------- verbs */

static ns_status find_queue(ns_db *db, ns_bytes name, int64_t *id, ns_err *err) {
  const ns_value *row = NULL;
  ns_value param = ns_vtext(name);
  ns_status st = ns_db_run(db, NS_SQL_QUEUE_FIND, &param, err);
  *id = 0;
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_QUEUE_FIND, &row, err);
  if (st == NS_OK && row != NULL) {
    bool removed = row[1].i != 0;
    int64_t bound = ns_int_or(&row[2], 0);
    *id = row[0].i;
    if ((st = cache_queue(db, name, *id, err)) == NS_OK)
      note_removed(db, *id, removed);
    ns_db_queue_bound(db, *id, bound);
  }
  return st;
}

/* Creates or changes the row on a connection that has no transaction open. */
static ns_status write_queue(ns_db *db, ns_sql sql, ns_bytes name, ns_err *err) {
  const char *text = ns_sql_texts[sql];
  ns_value param = ns_vtext(name);
  ns_config cfg = ns_db_config_value(db);
  ns_link *other;
  ns_stmt *stmt;
  ns_status st;
  if (!db->user_tx && !db->in_tx)
    return ns_db_run(db, sql, &param, err);
  if ((st = ns_link_open(&other, &cfg, err)) != NS_OK)
    return st;
  st = ns_link_prepare(other, &stmt, NULL, text, strlen(text), err);
  if (st == NS_OK)
    st = ns_stmt_run(other, stmt, &param, err);
  ns_link_close(other, false);
  return st;
}

/* The queue is there again. */
static ns_status restore_queue(ns_db *db, const ns_queue_name *q, ns_err *err) {
  ns_status st = write_queue(db, NS_SQL_QUEUE_USED, (ns_bytes){q->name, q->n}, err);
  if (st == NS_OK)
    note_removed(db, q->id, false);
  return st;
}

void ns_db_queue_used(ns_db *db, int64_t id) {
  const ns_queue_name *q = db->nremoved > 0 ? cached_by_id(db, id) : NULL;
  ns_err none;
  if (q != NULL && q->removed)
    restore_queue(db, q, &none);
}

ns_status ns_queue_id(ns_db *db, ns_bytes name, bool create, int64_t *id, ns_err *err) {
  const ns_queue_name *q;
  ns_status st = ns_db_name_check(name, "queue name", NS_MAX_QUEUE, err);
  *id = 0;
  if (st != NS_OK)
    return st;
  if ((q = cached_by_name(db, name)) != NULL && !(create && q->removed)) {
    *id = q->id;
    return NS_OK;
  }
  if ((st = ns_db_ready(db, err)) == NS_OK)
    st = find_queue(db, name, id, err);
  if (st == NS_OK && *id == 0 && create) {
    if ((st = write_queue(db, NS_SQL_QUEUE_ADD, name, err)) == NS_OK)
      st = find_queue(db, name, id, err);
  }
  if (st == NS_OK && create && (q = cached_by_name(db, name)) != NULL && q->removed)
    st = restore_queue(db, q, err);
  if (st == NS_OK && *id == 0)
    return ns_fail(err, NS_ENOTFOUND, "there is no queue '%.*s'", (int)name.n, name.p);
  return st;
}

static void add_paused(ns_paused *p, ns_bytes name) {
  ns_buf_add(&p->names, name.p, name.n);
  ns_buf_addc(&p->names, '\0');
  p->mark += ns_db_kind_of(name) + 1;
}

/* Takes over the names that an answer has told. 'st': of reading it. */
static ns_status keep_paused(ns_db *db, ns_paused *p, ns_status st, ns_err *err) {
  ns_paused *known = &db->paused;
  bool same = p->names.n == known->names.n &&
              (p->names.n == 0 || memcmp(p->names.p, known->names.p, p->names.n) == 0);
  if (st == NS_OK && p->names.oom)
    st = ns_no_memory(err);
  if (st != NS_OK || same) {
    ns_buf_free(&p->names);
    return st;
  }
  ns_buf_free(&known->names);
  p->version = known->version + 1;
  *known = *p;
  return NS_OK;
}

ns_bytes ns_paused_names(const ns_db *db, int64_t *mark) {
  *mark = db->paused.mark;
  return ns_buf_bytes(&db->paused.names);
}

static ns_status read_paused(ns_db *db, ns_err *err) {
  const ns_value *row = NULL;
  ns_paused names = {0};
  ns_status st = ns_db_run(db, NS_SQL_QUEUE_PAUSED_NAMES, NULL, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_QUEUE_PAUSED_NAMES, &row, err)) == NS_OK &&
         row != NULL)
    add_paused(&names, row[0].s);
  return keep_paused(db, &names, st, err);
}

/* The empty name is the first, and stands for every queue. */
static bool is_all_paused(const ns_db *db) {
  return db->paused.names.n > 0 && db->paused.names.p[0] == '\0';
}

ns_status ns_db_queue_paused(ns_db *db, int64_t id, bool *paused, bool *limited, ns_err *err) {
  const ns_value *row = NULL;
  ns_value param = ns_vint(id);
  int64_t mark = 0;
  bool known = false;
  ns_status st = ns_db_run(db, NS_SQL_QUEUE_PAUSED, &param, err);
  *paused = *limited = false;
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_QUEUE_PAUSED, &row, err)) == NS_OK &&
         row != NULL) {
    known = true;
    *paused = row[0].i != 0;
    *limited = row[3].i != 0;
    mark += row[1].type != NS_NULL ? row[1].i + 1 : 0;
    note_removed(db, id, row[2].i != 0);
  }
  if (st == NS_OK && known && mark != db->paused.mark)
    st = read_paused(db, err);
  *paused = *paused || (known && is_all_paused(db));
  return st;
}

static bool append_row(ns_queue_row **rows, size_t *cap, size_t *n, const ns_value *row) {
  ns_queue_row *q;
  size_t len = row[1].s.n < NS_MAX_QUEUE ? row[1].s.n : NS_MAX_QUEUE;
  if (!ns_grow(rows, cap, *n + 1, sizeof **rows))
    return false;
  q = &(*rows)[(*n)++];
  q->id = row[0].i;
  memcpy(q->name, row[1].s.p, len);
  q->name[len] = '\0';
  q->paused = row[2].i != 0;
  q->removed = row[3].i != 0;
  q->limited = row[4].i != 0;
  q->bounded = ns_int_or(&row[5], 0) > 0;
  return true;
}

static ns_status read_list(ns_db *db, ns_queue_row **rows, size_t *n, ns_err *err) {
  const ns_value *row = NULL;
  ns_paused names = {0};
  size_t cap = 0;
  ns_status st = NS_OK;
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_QUEUE_LIST, &row, err)) == NS_OK &&
         row != NULL) {
    if (row[0].i == 0)
      add_paused(&names, row[1].s);
    else if (!append_row(rows, &cap, n, row))
      st = ns_no_memory(err);
    else if ((st = cache_queue(db, row[1].s, row[0].i, err)) == NS_OK) {
      note_removed(db, row[0].i, row[3].i != 0);
      ns_db_queue_bound(db, row[0].i, ns_int_or(&row[5], 0));
    }
  }
  if ((st = keep_paused(db, &names, st, err)) != NS_OK) {
    free(*rows);
    *rows = NULL;
    *n = 0;
  }
  for (size_t i = 0; i < *n && is_all_paused(db); i++)
    (*rows)[i].paused = true;
  return st;
}

ns_status ns_queues(ns_db *db, ns_queue_row **rows, size_t *n, ns_err *err) {
  ns_status st = ns_db_ready(db, err);
  *rows = NULL;
  *n = 0;
  if (st == NS_OK)
    st = ns_db_run(db, NS_SQL_QUEUE_LIST, NULL, err);
  return st == NS_OK ? read_list(db, rows, n, err) : st;
}

ns_status ns_db_queues_read(ns_db *db, ns_queue_row **rows, size_t *n, ns_err *err) {
  ns_status st = ns_db_read_answer(db, NS_SQL_QUEUE_LIST, err);
  *rows = NULL;
  *n = 0;
  return st == NS_OK ? read_list(db, rows, n, err) : st;
}

/* ----------------------------------------------------------------------- ids */

#define ID_BLOCK 100

/* '*taken' of 'n' ids: a KILL QUERY may leave out some of the blocks. */
static ns_status take_blocks(ns_db *db, int64_t *ids, size_t n, size_t *taken, ns_err *err) {
  const ns_value *row;
  ns_value param = ns_vint((int64_t)((n + ID_BLOCK - 1) / ID_BLOCK));
  size_t i = 0;
  ns_status st = ns_db_run(db, NS_SQL_HANDLE_IDS, &param, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_HANDLE_IDS, &row, err)) == NS_OK &&
         row != NULL) {
    int64_t id;
    int64_t end;
    if (row[0].i < 0 || row[0].i >= INT64_MAX / ID_BLOCK)
      return ns_fail(err, NS_ESQL,
                     "the sequence nightshift_id has been set to %lld, and ids "
                     "have run out; nightshift doctor says what to do",
                     (long long)row[0].i);
    db->bounds.seen = row[1].i;
    id = row[0].i * ID_BLOCK;
    end = id + ID_BLOCK;
    while (id < end && i < n)
      ids[i++] = id++;
    db->next_id = id; /* the rest of the last block */
    db->end_id = end;
  }
  ns_assert(db->next_id <= db->end_id);
  *taken = i;
  return st;
}

ns_status ns_take_ids(ns_db *db, int64_t *ids, size_t n, ns_err *err) {
  ns_status st = ns_db_ready(db, err); /* also drops a parent process's block */
  while (st == NS_OK && n > 0 && db->next_id < db->end_id) {
    *ids++ = db->next_id++;
    n--;
  }
  while (st == NS_OK && n > 0) {
    size_t part = n < 50000 ? n : 50000; /* the server recurses 1000 deep */
    size_t taken = 0;
    st = take_blocks(db, ids, part, &taken, err);
    if (st == NS_OK && taken == 0)
      st = ns_fail(err, NS_EBUSY, "the server gave no ids: the statement was interrupted");
    ids += taken;
    n -= taken;
  }
  return st;
}

/* ------------------------------------------------------------------- minutes */

#define MINUTE (60 * NS_SECOND)
#define QUEUES_MAX 100      /* of a handle's minute; the rest is counted among all queues only */
#define MINUTES_MAX 1000    /* entries; more are not counted: none could be told for long */
#define PRUNED_AT_ONCE 1000 /* as prune_minutes has it */
#define PRUNED_MOST 10000   /* by a bounded prune */
#define CLOSE_TRIES 5       /* of a handle that is closed, a hundredth of a second apart */
#define TALLY_LOOK 8        /* back, for one of the same queue */

/* The entry of a queue in a minute, made when new; NULL: there are too many. */
static ns_tally *minute_of(ns_minutes *m, int64_t at, int64_t queue_id) {
  if (m->first >= m->n || m->items[m->first].at != at)
    m->first = m->n;
  for (size_t i = m->first; i < m->n; i++)
    if (m->items[i].sums.queue_id == queue_id)
      return &m->items[i].sums;
  if (m->n - m->first > QUEUES_MAX || m->n >= MINUTES_MAX ||
      !ns_grow(&m->items, &m->cap, m->n + 1, sizeof *m->items))
    return NULL;
  m->items[m->n] = (ns_minute){.at = at, .sums.queue_id = queue_id};
  return &m->items[m->n++].sums;
}

void ns_db_minutes_add(ns_db *db, const ns_tally *t) {
  ns_minutes *m = &db->minutes;
  const int64_t at = ns_now(db) / MINUTE;
  const int64_t queues[] = {0, t->queue_id};
  if (m->tell_at == 0)
    m->tell_at = ns_mono_us() + MINUTE;
  for (size_t i = 0; i < 2; i++) {
    ns_tally *sums = minute_of(m, at, queues[i]);
    if (sums != NULL)
      ns_db_tally_sum(sums, t);
  }
}

void ns_db_tally_sum(ns_tally *to, const ns_tally *t) {
  for (size_t i = 0; i < NS_N_COUNT; i++)
    if (i != NS_N_LONGEST_WAIT && i != NS_N_LONGEST_RUN)
      to->n[i] += t->n[i];
    else if (to->n[i] < t->n[i])
      to->n[i] = t->n[i];
}

void ns_db_tally(ns_db *db, const ns_tally *t) {
  ns_tallies *l = &db->tallies;
  if (!db->in_tx && !db->user_tx) {
    ns_db_minutes_add(db, t);
    return;
  }
  for (size_t i = l->n; i > l->floor && l->n - i < TALLY_LOOK; i--)
    if (l->items[i - 1].queue_id == t->queue_id) {
      ns_db_tally_sum(&l->items[i - 1], t);
      return;
    }
  if (ns_grow(&l->items, &l->cap, l->n + 1, sizeof *l->items))
    l->items[l->n++] = *t;
}

void ns_db_tally_one(ns_db *db, int64_t queue_id, ns_counted what) {
  ns_tally t = {.queue_id = queue_id};
  t.n[what] = 1;
  ns_db_tally(db, &t);
}

/* "[minute,queue,…]" of each */
static ns_status write_minutes(ns_db *db, ns_err *err) {
  const ns_minutes *m = &db->minutes;
  ns_buf list = NS_BUF_INIT;
  ns_value param;
  ns_status st;
  for (size_t i = 0; i < m->n; i++) {
    ns_buf_addf(&list, "%c[%lld,%lld", i > 0 ? ',' : '[', (long long)m->items[i].at,
                (long long)m->items[i].sums.queue_id);
    for (size_t k = 0; k < NS_N_COUNT; k++)
      ns_buf_addf(&list, ",%lld", (long long)m->items[i].sums.n[k]);
    ns_buf_addc(&list, ']');
  }
  param = ns_db_list_end(&list);
  st = list.oom ? ns_no_memory(err) : ns_db_run_once(db, NS_SQL_HANDLE_MINUTES, &param, err);
  ns_buf_free(&list);
  return st;
}

/* Another handle may hold the rows for a moment, or the caller's own SQL has locked tables. After
** any other failure they are forgotten: they may be written, or cannot be. */
static bool try_to_tell(ns_db *db) {
  ns_err none;
  ns_status st = write_minutes(db, &none);
  if (st == NS_EBUSY || st == NS_ESTATE)
    return false;
  db->minutes.n = db->minutes.first = 0;
  return true;
}

/* Without connecting again. */
static bool is_reachable(ns_db *db) {
  ns_err none;
  return db->link != NULL && !ns_link_dead(db->link) && !ns_is_foreign(db) && !db->in_tx &&
         !db->user_tx && !ns_hung_up(db) && ns_db_ready(db, &none) == NS_OK;
}

void ns_db_minutes_tell(ns_db *db, bool over) {
  const ns_minutes *m = &db->minutes;
  if (m->n == 0 || (over ? m->items[0].at == ns_now(db) / MINUTE : ns_mono_us() < m->tell_at) ||
      !is_reachable(db))
    return;
  try_to_tell(db);
  db->minutes.told = true;
  db->bounds.read = db->bounds.seen - 1; /* the next push looks at them again */
  db->minutes.tell_at = ns_mono_us() + MINUTE;
}

int64_t ns_tell_minutes(ns_db *db) {
  ns_minutes *m = &db->minutes;
  int64_t left;
  if (m->n > 0 && !m->told)
    m->tell_at = 1;
  ns_db_minutes_tell(db, false);
  left = m->tell_at - ns_mono_us();
  return m->n == 0 ? 0 : left > 1 ? left : 1;
}

ns_status ns_db_minutes_prune(ns_db *db, bool bounded, ns_err *err) {
  size_t most = bounded ? PRUNED_MOST / PRUNED_AT_ONCE : SIZE_MAX;
  ns_status st;
  do
    st = ns_db_run(db, NS_SQL_PRUNE_MINUTES, NULL, err);
  while (st == NS_OK && --most > 0 &&
         ns_db_affected(db, NS_SQL_PRUNE_MINUTES) >= PRUNED_AT_ONCE);
  return st;
}

static void minutes_forked(ns_db *db) {
  db->minutes.n = db->minutes.first = db->tallies.n = 0;
}

static void minutes_closing(ns_db *db) {
  for (int i = 0; i < CLOSE_TRIES && db->minutes.n > 0 && is_reachable(db) && !try_to_tell(db); i++)
    ns_sleep_us(ns_jitter(10000, 0.5));
  free(db->minutes.items);
  free(db->tallies.items);
  db->minutes = (ns_minutes){0};
  db->tallies = (ns_tallies){0};
}

const ns_hooks ns_db_minutes_hooks = {.forked = minutes_forked, .closing = minutes_closing};
