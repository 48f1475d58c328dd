/*
** The jobs that are pushed when other jobs are dead, by the names in nightshift_on_dead. They are
** pushed by the transaction that ends those jobs.
**
** Invariant: nothing here keeps a job from ending. A job so pushed is within all limits of the
** tables, whatever the dead job was. Its unique key, dead:ID:RUN, is of this death alone, and a
** job with such a key pushes nothing when it is dead itself. No assert: only the server knows
** the rows.
*/
#include "finish/finish.h"

#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "db/db.h"
#include "handle.h"

/* A job to push for a dead one. */
typedef struct sequel {
  const ns_end *dead;
  int64_t run; /* of the dead job */
  int64_t queue;
  char name[NS_MAX_NAME + 1];
  char own[NS_MAX_QUEUE + 1]; /* the dead job's queue; "": not seen */
} sequel;

enum { D_N, D_RUN, D_QUEUE, D_NAME, D_OWN }; /* of settle_on_dead */

static void copy(char *to, size_t size, const ns_value *v) {
  size_t n = v->type != NS_TEXT ? 0 : v->s.n < size ? v->s.n : size - 1;
  if (n > 0) /* of no text, 'p' is NULL */
    memcpy(to, v->s.p, n);
  to[n] = '\0';
}

/* Is it dead, and not itself pushed for a dead job? */
static bool pushes(const ns_end *e) {
  static const size_t n = sizeof NS_FINISH_PREFIX - 1;
  bool is_sequel = e->unique.n >= n && memcmp(e->unique.p, NS_FINISH_PREFIX, n) == 0;
  return strcmp(e->outcome, "dead") == 0 && !e->forgotten && !is_sequel;
}

static ns_status ask(ns_db *db, const ns_end *ends, size_t n, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  for (size_t i = 0; i < n; i++)
    if (pushes(&ends[i]))
      ns_buf_addf(&list, "%c[%zu,%lld,%lld]", list.n > 0 ? ',' : '[', i, (long long)ends[i].id,
                  (long long)ends[i].queue_id);
  return ns_db_list_run(db, NS_SQL_SETTLE_ON_DEAD, NULL, &list, err);
}

/* Reads the jobs that the dead ones of 'ends' push; 'out' has room for 'ndead' of them. An answer
** that lacks one was interrupted. */
static ns_status find(ns_db *db, const ns_end *ends, size_t n, size_t ndead, sequel *out,
                      size_t *found, ns_err *err) {
  const ns_value *row;
  size_t seen = 0;
  ns_status st = ask(db, ends, n, err);
  *found = 0;
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_SETTLE_ON_DEAD, &row, err)) == NS_OK &&
         row != NULL && seen < ndead) {
    seen++;
    if (row[D_NAME].type != NS_TEXT)
      continue;
    sequel *x = &out[(*found)++];
    *x = (sequel){.dead = &ends[row[D_N].i], .run = row[D_RUN].i, .queue = row[D_QUEUE].i};
    copy(x->name, sizeof x->name, &row[D_NAME]);
    copy(x->own, sizeof x->own, &row[D_OWN]);
  }
  return st == NS_OK ? ns_db_check_changed((int64_t)seen, (int64_t)ndead, err) : st;
}

static void add_count(ns_buf *list, int64_t n) {
  if (n >= 0)
    ns_buf_addf(list, ",%lld", (long long)n);
  else
    ns_buf_adds(list, ",null");
}

static void add_job(ns_buf *list, const sequel *x, int64_t id) {
  ns_buf_addf(list, "%c[%lld,%lld,%lld,%lld,", list->n > 0 ? ',' : '[', (long long)id,
              (long long)(ns_random() >> 1), (long long)x->dead->id, (long long)x->queue);
  ns_buf_add_json(list, ns_str(x->name));
  ns_buf_addc(list, ',');
  if (x->own[0] != '\0')
    ns_buf_add_json(list, ns_str(x->own));
  else
    ns_buf_adds(list, "null");
  add_count(list, x->dead->attempts);
  add_count(list, x->dead->crashes);
  ns_buf_addc(list, ']');
}

static ns_status insert_jobs(ns_db *db, const sequel *items, size_t n, const int64_t *ids,
                             ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  for (size_t i = 0; i < n; i++)
    add_job(&list, &items[i], ids[i]);
  return ns_db_list_change(db, NS_SQL_SETTLE_ON_DEAD_PUSH, NULL, &list, n, err);
}

static ns_status insert_keys(ns_db *db, const sequel *items, size_t n, const int64_t *ids,
                             ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  for (size_t i = 0; i < n; i++)
    ns_buf_addf(&list, "%c[%lld,%lld,\"" NS_FINISH_PREFIX "%lld:%lld\"]", i > 0 ? ',' : '[',
                (long long)items[i].queue, (long long)ids[i], (long long)items[i].dead->id,
                (long long)items[i].run);
  return ns_db_list_change(db, NS_SQL_PUSH_UNIQUE_LIST, NULL, &list, n, err);
}

enum { R_QUEUE, R_RANK, R_OFFSET, R_ID, R_KIND, R_COUNT }; /* of push_ready */

static ns_status insert_ready(ns_db *db, const sequel *items, size_t n, const int64_t *ids,
                              ns_err *err) {
  int64_t *ints = malloc(R_COUNT * n * sizeof *ints);
  ns_column cols[R_COUNT];
  ns_status st;
  if (ints == NULL)
    return ns_no_memory(err);
  for (size_t i = 0; i < n; i++) {
    ints[R_QUEUE * n + i] = items[i].queue;
    ints[R_RANK * n + i] = 255 - NS_PRIORITY;
    ints[R_OFFSET * n + i] = (int64_t)i;
    ints[R_ID * n + i] = ids[i];
    ints[R_KIND * n + i] = ns_db_kind_of(ns_str(items[i].name));
  }
  for (size_t c = 0; c < R_COUNT; c++)
    cols[c] = (ns_column){NS_INT, ints + c * n, NULL, NULL};
  db->ring_due = true;
  st = ns_db_bulk(db, NS_SQL_PUSH_READY, cols, n, err);
  free(ints);
  return st;
}

static ns_status push(ns_db *db, const sequel *items, size_t n, const int64_t *ids, ns_err *err) {
  ns_status st = insert_jobs(db, items, n, ids, err);
  for (size_t i = 0; i < n; i++)
    ns_db_tally_one(db, items[i].queue, NS_N_PUSHED);
  if (st == NS_OK)
    st = insert_keys(db, items, n, ids, err);
  return st == NS_OK ? insert_ready(db, items, n, ids, err) : st;
}

ns_status ns_finish_on_dead(ns_db *db, const ns_end *ends, size_t n, ns_err *err) {
  sequel *items;
  int64_t *ids;
  size_t ndead = 0;
  size_t found = 0;
  ns_status st;
  for (size_t i = 0; i < n; i++)
    ndead += pushes(&ends[i]);
  if (ndead == 0)
    return NS_OK;
  items = malloc(ndead * sizeof *items);
  ids = malloc(ndead * sizeof *ids);
  st = items == NULL || ids == NULL ? ns_no_memory(err)
                                    : find(db, ends, n, ndead, items, &found, err);
  if (st == NS_OK && found > 0 && (st = ns_take_ids(db, ids, found, err)) == NS_OK)
    st = push(db, items, found, ids, err);
  free(ids);
  free(items);
  return st;
}

/* -------------------------------------------------------------- declaring */

static ns_status declare_run(ns_db *db, ns_tx *tx, ns_err *err) {
  const ns_value *lists = tx->arg; /* declared, handlers */
  bool any = lists[0].s.n > strlen("[]");
  ns_status st = any ? ns_db_run(db, NS_SQL_HOLDER_ON_DEAD_QUEUES, lists, err) : NS_OK;
  if (st == NS_OK && any)
    st = ns_db_run(db, NS_SQL_HOLDER_ON_DEAD, lists, err);
  return st == NS_OK ? ns_db_run(db, NS_SQL_HOLDER_ON_DEAD_OVER, lists, err) : st;
}

ns_status ns_declare_on_dead(ns_db *db, ns_bytes declared, ns_bytes handlers, ns_err *err) {
  ns_value lists[] = {ns_vtext(declared), ns_vtext(handlers)};
  ns_tx tx = {.run = declare_run, .arg = lists};
  ns_err_clear(err);
  return ns_db_transact(db, &tx, err);
}
