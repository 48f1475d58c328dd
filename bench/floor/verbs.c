/*
** The verbs: the same work as floor.c, done by Nightshift's C library.
**
**   verbs URL WHAT [JOBS [BATCH]] [OPTION=NUMBER…]    options: see bench.h
** WHAT is one of
**   push           ns_push_jobs, 'batch' jobs at a time
**   single         ns_push_jobs with one job
**   transaction    the same inside a transaction with a row of an application
**   claim          ns_cycle, one connection: settles a batch and claims the
**                  next one, as the host does
**   handles        'handles' threads with a handle each take jobs from one
**                  queue: ns_claim and ns_settle, or with batch > 1 ns_cycle
**
** Prints one JSON line of the shape that floor prints. The database is a
** scratch one: its tables exist and, without keep=1, are emptied first.
**
** Invariant: a run of claims has claimed and settled every job that was pushed,
** each exactly once; otherwise the program fails.
*/
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "nightshift_host.h"

static bench_options asked;
static const char *url;

static void die(const char *what, const char *why) {
  fprintf(stderr, "verbs: %s: %s\n", what, why);
  exit(1);
}

static void check(ns_status st, const char *what, const ns_err *err) {
  if (st != NS_OK)
    die(what, err->message);
}

static void execute(ns_db *db, const char *sql) {
  ns_err err;
  ns_result result;
  check(ns_execute(db, ns_str(sql), NULL, 0, &result, &err), sql, &err);
}

/* Of 200 handles that claim batches at one moment each may wait for half a minute. */
#define PATIENCE INT64_C(600000000) /* µs */

static ns_db *open_db(void) {
  ns_err err;
  ns_db *db;
  ns_config cfg = NS_CONFIG_INIT;
  cfg.url = url;
  cfg.read_timeout = PATIENCE;
  check(ns_open(&db, &cfg, &err), "open", &err);
  ns_forget_done(db, asked.history == 0);
  return db;
}

static void empty_tables(ns_db *db) {
  static const char *const tables[] = {"job", "ready", "lease", "finished",
                                       "scheduled"};
  char sql[64];
  for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
    snprintf(sql, sizeof sql, "TRUNCATE nightshift_%s", tables[i]);
    execute(db, sql);
  }
  execute(db, "CREATE OR REPLACE TABLE bench_order (id BIGINT AUTO_INCREMENT"
              " PRIMARY KEY, note VARCHAR(100)) ENGINE=InnoDB");
}

/* ------------------------------------------------------------------ push */

static char *payload; /* asked.payload bytes and a NUL */

static void push(ns_db *db, size_t n) {
  static ns_push batch[BENCH_MAX_BATCH];
  ns_err err;
  for (size_t i = 0; i < n; i++)
    batch[i] = ns_push_new("noop", payload);
  check(ns_push_jobs(db, ns_str("bench"), batch, n, &err), "push", &err);
}

static void push_all(ns_db *db, size_t size) {
  for (size_t done = 0; done < asked.jobs; done += size) {
    if (size > asked.jobs - done)
      size = asked.jobs - done;
    push(db, size);
  }
}

static void push_in_transactions(ns_db *db) {
  ns_err err;
  for (size_t i = 0; i < asked.jobs; i++) {
    check(ns_begin(db, &err), "begin", &err);
    execute(db, "INSERT INTO bench_order (note) VALUES ('paid')");
    push(db, 1);
    check(ns_commit(db, &err), "commit", &err);
  }
}

/* --------------------------------------------------------- claim and ack */

/* A claimer: a handle, and the ids of what it has claimed and settled. */
typedef struct claimer {
  ns_db *db;
  pthread_t thread;
  int64_t queue_id;
  int64_t *settled; /* room for all jobs: any of them may come here */
  size_t n;
  ns_verdict verdicts[BENCH_MAX_BATCH];
} claimer;

static claimer *new_claimer(ns_db *db) {
  ns_err err;
  claimer *c = calloc(1, sizeof *c);
  if (c == NULL || (c->settled = calloc(asked.jobs, sizeof *c->settled)) == NULL)
    die("start", "no memory");
  c->db = db;
  check(ns_queue_id(db, ns_str("bench"), true, &c->queue_id, &err), "queue",
        &err);
  return c;
}

static void free_claimer(claimer *c) {
  free(c->settled);
  free(c);
}

static ns_verdict done(const ns_job *job) {
  return (ns_verdict){
      .id = job->id, .run = job->run, .lease = job->lease, .kind = NS_ACK};
}

static void note_settled(claimer *c, const ns_verdict *v) {
  ns_err none = {.message = "a verdict was refused"};
  check(v->status, "settle", &none);
  if (c->n == asked.jobs)
    die("settle", "more jobs than were pushed");
  c->settled[c->n++] = v->id;
}

/* Settles a batch and claims the next one, until there is none. */
static void claim_in_cycles(claimer *c) {
  ns_weighted_queue queue = {.queue_id = c->queue_id, .weight = 1};
  ns_want want = {.queues = &queue, .nqueues = 1, .limit = asked.batch};
  size_t before = 0;
  do {
    ns_err err;
    ns_jobs batch = NS_JOBS_INIT;
    check(ns_cycle(c->db, c->verdicts, before, &want, &batch, NULL, &err), "cycle",
          &err);
    for (size_t i = 0; i < before; i++)
      note_settled(c, &c->verdicts[i]);
    before = batch.n;
    for (size_t i = 0; i < before; i++)
      c->verdicts[i] = done(&batch.items[i]);
    ns_jobs_free(&batch);
  } while (before > 0);
}

static void claim_singly(claimer *c) {
  ns_jobs one = NS_JOBS_INIT;
  do {
    ns_err err;
    ns_jobs_free(&one);
    check(ns_claim(c->db, ns_str("bench"), 1, 0, 0, &one, &err), "claim", &err);
    if (one.n == 1) {
      ns_verdict v = done(&one.items[0]);
      check(ns_settle(c->db, &v, &err), "settle", &err);
      v.status = NS_OK;
      note_settled(c, &v);
    }
  } while (one.n == 1);
  ns_jobs_free(&one);
}

static int by_id(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* Every job once, however many claimed. */
static void check_once(claimer **all, size_t n) {
  int64_t *ids = calloc(asked.jobs, sizeof *ids);
  size_t sum = 0;
  if (ids == NULL)
    die("check", "no memory");
  for (size_t i = 0; i < n; i++) {
    if (all[i]->n > asked.jobs - sum)
      die("check", "more jobs than were pushed");
    memcpy(ids + sum, all[i]->settled, all[i]->n * sizeof *ids);
    sum += all[i]->n;
  }
  qsort(ids, sum, sizeof *ids, by_id);
  for (size_t i = 1; i < sum; i++)
    if (ids[i] == ids[i - 1])
      die("check", "a job was claimed twice");
  if (sum != asked.jobs)
    die("check", "not every job was claimed");
  free(ids);
}

static void claim_all(ns_db *db) {
  claimer *c = new_claimer(db);
  double start = bench_clock();
  claim_in_cycles(c);
  double seconds = bench_clock() - start;
  check_once(&c, 1);
  free_claimer(c);
  bench_print(&asked, seconds);
}

/* ----------------------------------------------------- concurrent handles */

static pthread_barrier_t start_line;

/* The handle is a registered holder before the clock starts. */
static void *run_claimer(void *arg) {
  claimer *c = arg;
  ns_err err;
  check(ns_register(c->db, false, &err), "register", &err);
  pthread_barrier_wait(&start_line);
  if (asked.batch > 1)
    claim_in_cycles(c);
  else
    claim_singly(c);
  return NULL;
}

static void claim_together(void) {
  claimer **all = calloc(asked.handles, sizeof *all);
  if (all == NULL)
    die("start", "no memory");
  pthread_barrier_init(&start_line, NULL, (unsigned)asked.handles + 1);
  for (size_t i = 0; i < asked.handles; i++) {
    all[i] = new_claimer(open_db());
    if (pthread_create(&all[i]->thread, NULL, run_claimer, all[i]) != 0)
      die("start", "no thread");
  }
  pthread_barrier_wait(&start_line);
  double start = bench_clock();
  for (size_t i = 0; i < asked.handles; i++)
    pthread_join(all[i]->thread, NULL);
  double seconds = bench_clock() - start;
  check_once(all, asked.handles);
  for (size_t i = 0; i < asked.handles; i++) {
    ns_close(all[i]->db);
    free_claimer(all[i]);
  }
  free(all);
  bench_print(&asked, seconds);
}

/* ------------------------------------------------------------------ main */

static bool is(const char *what) { return strcmp(asked.what, what) == 0; }

/* Does what was asked for; false: it is none of ours. */
static bool measure(ns_db *db) {
  bool claims = is("claim"), together = is("handles");
  if (claims || together)
    push_all(db, bench_fill(&asked));
  if (claims) {
    claim_all(db);
    return true;
  } else if (together) {
    claim_together();
    return true;
  }
  double start = bench_clock();
  if (is("push"))
    push_all(db, asked.batch);
  else if (is("single"))
    push_all(db, 1);
  else if (is("transaction"))
    push_in_transactions(db);
  else
    return false;
  bench_print(&asked, bench_clock() - start);
  return true;
}

int main(int argc, char **argv) {
  if (argc < 3 || !bench_read(&asked, argc - 2, argv + 2)) {
    fputs("usage: verbs URL push|single|transaction|claim|handles" BENCH_USAGE,
          stderr);
    return 2;
  }
  url = argv[1];
  payload = calloc(asked.payload + 1, 1);
  if (payload == NULL)
    die("start", "no memory");
  bench_payload(payload, asked.payload);
  ns_db *db = open_db();
  if (!asked.keep)
    empty_tables(db);
  bool known = measure(db);
  if (!known)
    fprintf(stderr, "verbs: what is '%s'?\n", asked.what);
  ns_close(db);
  free(payload);
  return known ? 0 : 2;
}
