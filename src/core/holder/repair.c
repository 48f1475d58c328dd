/*
** Repairing findings that holder/audit.c has seen twice. A job is looked at again under the
** lock of its row, in every place that it may be in. A row goes by one statement that asks
** again whether it is to be there.
**
** Invariant: a job that is put back gets a new run. So if the job was somewhere after all, that
** row is stale and does no harm. No assert: only the server knows the runs.
*/
#include <stdlib.h>
#include <string.h>

#include "claim/claim.h"
#include "db/db.h"
#include "handle.h"
#include "holder/holder.h"

#define AT_ONCE 16 /* jobs per transaction: so many the statements take */

/* A job, locked. */
typedef struct job {
  int64_t id, run, queue_id, rank, unmet, due, now, edges, kind;
  bool paused, lost_pause, told, scheduled, placed;
} job;

typedef struct work {
  const ns_stray *list; /* borrowed */
  size_t n;             /* AT_ONCE at most */
  job jobs[AT_ONCE];    /* the jobs that could be locked */
  size_t njobs;
  ns_audited done; /* by this transaction */
} work;

static ns_status count_repaired(ns_db *db, ns_wrong wrong, int64_t n, ns_err *err) {
  static const char *const what[] = {[NS_UNPLACED] = "nowhere",
                                     [NS_WAITS_TOO_LONG] = "waits",
                                     [NS_READY_TWICE] = "twice",
                                     [NS_KEY_OF_NONE] = "key"};
  return ns_db_run(db, NS_SQL_AUDIT_COUNT, (ns_value[]){ns_vtext(ns_str(what[wrong])), ns_vint(n)},
                   err);
}

/* ------------------------------------------------------------------- jobs */

static ns_status lock_jobs(ns_db *db, work *w, ns_err *err) {
  ns_buf list = NS_BUF_INIT;
  const ns_value *r;
  ns_status st;
  for (size_t i = 0; i < w->n; i++)
    ns_db_list_add_pair(&list, w->list[i].id, w->list[i].run);
  st = ns_db_list_run(db, NS_SQL_AUDIT_LOCK, NULL, &list, err);
  w->njobs = 0;
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_AUDIT_LOCK, &r, err)) == NS_OK && r != NULL &&
         w->njobs < AT_ONCE)
    w->jobs[w->njobs++] = (job){
        .id = r[0].i, .run = r[1].i, .queue_id = r[2].i, .rank = r[3].i,
        .unmet = r[4].i, .due = r[5].i, .now = r[6].i, .paused = r[7].i != 0,
        .lost_pause = r[8].i != 0, .told = r[9].i != 0, .scheduled = r[10].i != 0,
        .kind = r[11].i};
  return st;
}

/* Rows (job, run), or (job, how many edges). */
static ns_status find_places(ns_db *db, work *w, ns_sql sql, ns_err *err) {
  ns_value ids[AT_ONCE];
  const ns_value *r;
  ns_status st;
  for (size_t i = 0; i < AT_ONCE; i++)
    ids[i] = ns_vint(i < w->njobs ? w->jobs[i].id : 0);
  st = ns_db_run(db, sql, ids, err);
  while (st == NS_OK && (st = ns_db_row(db, sql, &r, err)) == NS_OK && r != NULL)
    for (size_t i = 0; i < w->njobs; i++) {
      job *j = &w->jobs[i];
      if (j->id != r[0].i)
        continue;
      if (sql == NS_SQL_AUDIT_EDGES_OF)
        j->edges = r[1].i;
      else
        j->placed = j->placed || j->run == r[1].i;
    }
  return st;
}

static ns_status put_back(ns_db *db, const job *j, bool now, ns_err *err) {
  int64_t run = j->run + 1;
  db->ring_due = db->ring_due || now;
  if (now)
    return ns_claim_promote_one(db, j->queue_id, j->rank, j->id, run, j->kind, err);
  return ns_db_bulk(db, NS_SQL_SETTLE_SCHEDULED,
                    (ns_column[]){{NS_INT, &j->due, NULL, NULL},
                                  {NS_INT, &j->id, NULL, NULL},
                                  {NS_INT, &j->queue_id, NULL, NULL},
                                  {NS_INT, &j->rank, NULL, NULL},
                                  {NS_INT, &run, NULL, NULL},
                                  {NS_INT, &j->kind, NULL, NULL}},
                    1, err);
}

/* A job that runs, or is about to, runs on. */
static ns_status audit_job(ns_db *db, work *w, const job *j, ns_err *err) {
  int64_t needs = j->edges + (j->paused && !j->lost_pause);
  bool fewer = needs < j->unmet;
  int64_t unmet = fewer ? needs : j->unmet;
  bool told = j->told && j->due > j->now;
  bool lost = !j->placed && (!j->scheduled || told) && unmet == 0 &&
              j->run < NS_MAX_RUN;
  ns_status st;
  if (!fewer && !lost && !(told && !j->placed))
    return NS_OK;
  st = ns_db_run(db, NS_SQL_AUDIT_JOB,
                 (ns_value[]){ns_vint(lost), ns_vint(unmet), ns_vint(unmet), ns_vint(j->lost_pause),
                              ns_vint(told && !j->placed), ns_vint(j->id)},
                 err);
  if (st == NS_OK && lost)
    st = put_back(db, j, told || j->due <= j->now, err);
  if (st == NS_OK)
    st = count_repaired(db, fewer || told ? NS_WAITS_TOO_LONG : NS_UNPLACED, 1, err);
  w->done.ids[w->done.jobs++] = j->id;
  return st;
}

static ns_status jobs_run(ns_db *db, ns_tx *tx, ns_err *err) {
  static const ns_sql places[] = {NS_SQL_AUDIT_READY_OF, NS_SQL_AUDIT_LEASED,
                                  NS_SQL_AUDIT_EDGES_OF};
  work *w = tx->arg;
  ns_status st = lock_jobs(db, w, err);
  w->done = (ns_audited){0};
  for (size_t i = 0; st == NS_OK && w->njobs > 0 && i < 3; i++)
    st = find_places(db, w, places[i], err);
  for (size_t i = 0; st == NS_OK && i < w->njobs; i++)
    st = audit_job(db, w, &w->jobs[i], err);
  return st;
}

/* ------------------------------------------------------------ suspicions */

void ns_holder_strays_clear(ns_strays *s) {
  for (size_t i = 0; i < s->n; i++)
    free(s->items[i].key);
  s->n = 0;
}

void ns_holder_strays_free(ns_strays *s) {
  ns_holder_strays_clear(s);
  free(s->items);
  *s = (ns_strays){0};
}

bool ns_holder_strays_add(ns_strays *s, const ns_stray *x) {
  ns_stray copy = *x;
  if (!ns_grow(&s->items, &s->cap, s->n + 1, sizeof *s->items))
    return false;
  if (x->key != NULL && (copy.key = malloc(x->nkey + 1)) == NULL)
    return false;
  if (x->key != NULL)
    memcpy(copy.key, x->key, x->nkey);
  s->items[s->n++] = copy;
  return true;
}

/* ------------------------------------------------------------------- rows */

/* A row that another transaction holds stays until the next round. */
static ns_status audit_row(ns_db *db, const ns_stray *x, ns_audited *sum, ns_err *err) {
  const ns_value id = ns_vint(x->id);
  const ns_value row[] = {ns_vint(x->queue_id), ns_vint(x->rank), ns_vint(x->ready_at), id,
                          ns_vint(x->run)};
  const ns_value due[] = {ns_vint(x->ready_at), id, ns_vint(x->run)};
  const ns_value key[] = {ns_vint(x->queue_id), ns_vtext(((ns_bytes){x->key, x->nkey})), id};
  const ns_value signal[] = {id, key[1]};
  const struct {
    ns_sql sql;
    const ns_value *params;
  } goes[] = {[NS_READY_TWICE] = {NS_SQL_AUDIT_TWICE, row},
              [NS_READY_OF_NONE] = {NS_SQL_AUDIT_ROW, row},
              [NS_SCHEDULED_OF_NONE] = {NS_SQL_AUDIT_DUE, due},
              [NS_SIGNAL_OF_NONE] = {NS_SQL_AUDIT_SIGNAL, signal},
              [NS_KEY_OF_NONE] = {NS_SQL_AUDIT_KEY, key}};
  ns_sql sql = goes[x->wrong].sql;
  ns_status st = ns_db_run(db, sql, goes[x->wrong].params, err);
  int64_t gone = st == NS_OK ? ns_db_affected(db, sql) : 0;
  if (st == NS_EBUSY) {
    ns_err_clear(err);
    st = NS_OK;
  }
  if (gone == 0 || !ns_holder_is_fault(x->wrong))
    return st;
  sum->rows += gone;
  return count_repaired(db, x->wrong, gone, err);
}

void ns_holder_add_key(ns_buf *list, int64_t queue, ns_bytes key) {
  ns_buf_addf(list, "%c[%lld,", list->n > 0 ? ',' : '[', (long long)queue);
  ns_buf_add_json(list, key);
  ns_buf_addc(list, ']');
}

ns_status ns_holder_free_keys(ns_db *db, ns_buf *list, ns_err *err) {
  ns_status st = ns_db_list_run(db, NS_SQL_AUDIT_KEYS_OVER, NULL, list, err);
  if (st != NS_EBUSY)
    return st;
  ns_err_clear(err);
  return NS_OK;
}

ns_status ns_holder_repair(ns_db *db, const ns_stray *list, size_t n, ns_audited *sum,
                           ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < n;) {
    work w = {.list = list + i};
    ns_tx tx = {.run = jobs_run, .arg = &w};
    while (i < n && w.n < AT_ONCE && list[i].wrong <= NS_WAITS_TOO_LONG)
      w.n++, i++;
    if (w.n == 0) {
      st = audit_row(db, &list[i++], sum, err);
      continue;
    }
    st = ns_db_transact(db, &tx, err);
    for (int64_t k = 0; st == NS_OK && k < w.done.jobs; k++)
      if (sum->jobs < NS_AUDITED_IDS)
        sum->ids[sum->jobs++] = w.done.ids[k];
      else
        sum->jobs++;
  }
  if (db->ring_due && st == NS_OK)
    ns_ring(db, NULL);
  db->ring_due = false;
  return st;
}
