/*
** The same tables adopted, and Nightshift's own: workers that take rows through the
** C library, each with a handle of its own, and wait for more as lua/nightshift does.
*/
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "clock.h"
#include "crew.h"
#include "nightshift_host.h"

#define LOOK 0.25 /* seconds between looks at holders, and … */
#define EVERY 1.0 /* … at a table without rows, as in adopt.lua */

struct crew_worker {
  ns_db *db;
  ns_adopted *table; /* NULL: our own tables */
  ns_jobs jobs;
  size_t batch, refused;
};

/* --------------------------------------------------------------- mappings */

#define TEXT(s) {(s), sizeof(s) - 1}
#define WORD(w) {.type = NS_TEXT, .s = TEXT(w)}
#define NUMBER(n) {.type = NS_INT, .i = (n)}

static const ns_mapping mappings[] = {
    {.table = TEXT("migration_task"),
     .parts = {[NS_PART_ID] = TEXT("id"),
               [NS_PART_STATUS] = TEXT("status"),
               [NS_PART_CLAIMED_BY] = TEXT("claimedBy"),
               [NS_PART_CLAIMED_AT] = TEXT("claimedAt"),
               [NS_PART_COMPLETED_AT] = TEXT("completedAt"),
               [NS_PART_ATTEMPTS] = TEXT("iteration")},
     .states = {[NS_ROW_OPEN] = WORD("open"),
                [NS_ROW_PROCESSING] = WORD("processing"),
                [NS_ROW_DONE] = WORD("complete")},
     .has_state = {[NS_ROW_OPEN] = true,
                   [NS_ROW_PROCESSING] = true,
                   [NS_ROW_DONE] = true}},
    {.table = TEXT("job_queue"),
     .parts = {[NS_PART_ID] = TEXT("id"),
               [NS_PART_STATUS] = TEXT("state"),
               [NS_PART_UPDATED] = TEXT("updated"),
               [NS_PART_STARTED] = TEXT("started")},
     .states = {[NS_ROW_OPEN] = WORD("NEW"),
                [NS_ROW_PROCESSING] = WORD("WORKING"),
                [NS_ROW_DONE] = WORD("DONE"),
                [NS_ROW_FAILED] = WORD("ERROR")},
     .has_state = {[NS_ROW_OPEN] = true,
                   [NS_ROW_PROCESSING] = true,
                   [NS_ROW_DONE] = true,
                   [NS_ROW_FAILED] = true}},
    {.table = TEXT("queue_table"),
     .parts = {[NS_PART_ID] = TEXT("id"),
               [NS_PART_STATUS] = TEXT("status"),
               [NS_PART_PRIORITY] = TEXT("priority"),
               [NS_PART_RETRY_AFTER] = TEXT("retry_after"),
               [NS_PART_ATTEMPTS_LEFT] = TEXT("attempts"),
               [NS_PART_PARENT] = TEXT("parent_id")},
     .states = {[NS_ROW_OPEN] = WORD("queued"),
                [NS_ROW_PROCESSING] = WORD("in_progress"),
                [NS_ROW_DONE] = WORD("processed"),
                [NS_ROW_FAILED] = WORD("failed")},
     .has_state = {[NS_ROW_OPEN] = true,
                   [NS_ROW_PROCESSING] = true,
                   [NS_ROW_DONE] = true,
                   [NS_ROW_FAILED] = true},
     .decay = 1,
     .max_attempts = 30},
    {.table = TEXT("checkout"),
     .parts = {[NS_PART_ID] = TEXT("id"),
               [NS_PART_STATUS] = TEXT("last_checkout"),
               [NS_PART_CLAIMED_BY] = TEXT("by_whom"),
               [NS_PART_CLAIMED_AT] = TEXT("last_checkout"),
               [NS_PART_COMPLETED_AT] = TEXT("done_at")},
     .states = {[NS_ROW_OPEN] = {.type = NS_NULL},
                [NS_ROW_PROCESSING] = WORD("now")},
     .has_state = {[NS_ROW_OPEN] = true, [NS_ROW_PROCESSING] = true}},
    {.table = TEXT("worker_queue"),
     .parts = {[NS_PART_ID] = TEXT("id"),
               [NS_PART_STATUS] = TEXT("is_done"),
               [NS_PART_ATTEMPTS] = TEXT("failure_count")},
     .states = {[NS_ROW_OPEN] = NUMBER(0), [NS_ROW_DONE] = NUMBER(1)},
     .has_state = {[NS_ROW_OPEN] = true, [NS_ROW_DONE] = true},
     .max_attempts = 3},
};

static const ns_mapping *mapping_of(const char *table) {
  for (size_t i = 0; i < sizeof mappings / sizeof *mappings; i++)
    if (strcmp(mappings[i].table.p, table) == 0)
      return &mappings[i];
  return NULL;
}

/* NS_STRATEGIES of them, in the order of the enum. */
static const char *const strategies[] = {"update_limit", "skip_locked",
                                         "transaction", "named_lock"};
#define NS_STRATEGIES (sizeof strategies / sizeof *strategies)

static ns_strategy strategy_of(const char *name) {
  size_t i = 0;
  while (i < NS_STRATEGIES && strcmp(strategies[i], name) != 0)
    i++;
  return (ns_strategy)i;
}

/* ------------------------------------------------------------- the worker */

static void check(ns_status st, const char *what, const ns_err *err) {
  if (st != NS_OK)
    crew_die(what, err->message);
}

static void adopt(crew_worker *w, const crew_ask *ask) {
  ns_err err;
  ns_mapping map = *mapping_of(ask->table);
  map.strategy = strategy_of(ask->strategy);
  map.overdue = ask->overdue * NS_SECOND;
  if (map.parts[NS_PART_CLAIMED_AT].p == NULL)
    map.overdue = 0;
  check(ns_adopt(w->db, &map, &w->table, NULL, &err), "adopt", &err);
}

static crew_worker *ours_open(const crew_ask *ask, size_t number) {
  ns_err err;
  ns_config cfg = NS_CONFIG_INIT;
  crew_worker *w = calloc(1, sizeof *w);
  (void)number;
  if (w == NULL)
    crew_die("start", "no memory");
  cfg.url = ask->url;
  check(ns_open(&w->db, &cfg, &err), "open", &err);
  check(ns_register(w->db, false, &err), "register", &err);
  w->batch = ask->batch;
  if (strcmp(ask->way, "adopt") == 0)
    adopt(w, ask);
  return w;
}

/* Our own tables wait by themselves, and are told of new jobs. */
static size_t ours_claim(crew_worker *w, int64_t ids[CREW_BATCH]) {
  ns_err err;
  ns_jobs_free(&w->jobs);
  ns_status st =
      w->table != NULL
          ? ns_adopted_claim(w->table, w->batch, &w->jobs, &err)
          : ns_claim(w->db, ns_str("bench"), w->batch, NS_SECOND, 0, &w->jobs,
                     &err);
  if (st == NS_EBUSY)
    w->refused++;
  else
    check(st, "claim", &err);
  for (size_t i = 0; i < w->jobs.n; i++)
    ids[i] = w->jobs.items[i].id;
  return w->jobs.n;
}

static bool ours_done(crew_worker *w, size_t i) {
  ns_err err;
  const ns_job *job = &w->jobs.items[i];
  ns_verdict v = {.id = job->id, .run = job->run, .lease = job->lease,
                  .kind = NS_ACK};
  ns_status st;
  do {
    st = w->table != NULL ? ns_adopted_settle(w->table, &v, 1, &err)
                          : ns_settle(w->db, &v, &err);
    w->refused += st == NS_EBUSY;
  } while (st == NS_EBUSY);
  check(st, "settle", &err);
  return w->table == NULL || v.status == NS_OK;
}

static void ours_rest(crew_worker *w, double until) {
  double again = bench_clock() + EVERY * (0.75 + (double)rand() / RAND_MAX / 2);
  int64_t freed = 0;
  ns_err err;
  if (w->table == NULL)
    return;
  until = again < until ? again : until;
  while (freed == 0 && bench_clock() < until) {
    double left = until - bench_clock();
    ns_sleep_us((int64_t)((left < LOOK ? left : LOOK) * 1e6));
    ns_status st = ns_adopted_look(w->table, false, &freed, &err);
    if (st != NS_EBUSY)
      check(st, "look", &err);
  }
}

static size_t ours_refused(const crew_worker *w) { return w->refused; }

/* A handle ends its statements itself. */
static unsigned long ours_session(const crew_worker *w) {
  (void)w;
  return 0;
}

static void ours_close(crew_worker *w) {
  ns_jobs_free(&w->jobs);
  ns_close(w->db);
  free(w);
}

const crew_way *crew_ours(const crew_ask *ask) {
  static const crew_way way = {ours_open, ours_claim, ours_done, ours_rest,
                               ours_refused, ours_session, ours_close};
  bool adopted = strcmp(ask->way, "adopt") == 0 &&
                 mapping_of(ask->table) != NULL &&
                 (size_t)strategy_of(ask->strategy) < NS_STRATEGIES;
  return adopted || strcmp(ask->way, "own") == 0 ? &way : NULL;
}
