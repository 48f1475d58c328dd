/*
** The verbs: the same work as floor.c, done by Nightshift's C library.
**
**   verbs URL push JOBS BATCH    ns_push_jobs
**   verbs URL single JOBS        ns_push_jobs with one job
**   verbs URL claim JOBS BATCH   ns_cycle, one connection: settles a batch
**                                and claims the next one; history is on
**
** Prints one JSON line of the shape that floor prints. The database is a
** scratch one: its tables exist and are emptied first.
*/
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nightshift.h"

#define PAYLOAD 100 /* bytes, quotes included */
#define MAX_BATCH 10000

static ns_db *db;
static ns_err err;

static void check(ns_status st, const char *what) {
  if (st == NS_OK)
    return;
  fprintf(stderr, "verbs: %s: %s\n", what, err.message);
  exit(1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void empty_tables(void) {
  static const char *const tables[] = {"job", "ready", "lease", "finished",
                                       "scheduled"};
  char sql[64];
  ns_result result;
  for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
    snprintf(sql, sizeof sql, "TRUNCATE nightshift_%s", tables[i]);
    check(ns_execute(db, ns_str(sql), NULL, 0, &result, &err), sql);
  }
}

static void push_all(size_t jobs, size_t size) {
  static char payload[PAYLOAD + 1];
  static ns_push batch[MAX_BATCH];
  memset(payload, 'x', PAYLOAD);
  payload[0] = payload[PAYLOAD - 1] = '"';
  for (size_t done = 0; done < jobs; done += size) {
    if (size > jobs - done)
      size = jobs - done;
    for (size_t i = 0; i < size; i++)
      batch[i] = ns_push_new("noop", payload);
    check(ns_push_jobs(db, ns_str("bench"), batch, size, &err), "push");
  }
}

/* One verdict "done, no result" per claimed job. */
static void acknowledge(const ns_jobs *jobs, ns_verdict *verdicts) {
  for (size_t i = 0; i < jobs->n; i++) {
    const ns_job *job = &jobs->items[i];
    verdicts[i] = (ns_verdict){
        .id = job->id, .run = job->run, .lease = job->lease, .kind = NS_ACK};
  }
}

static void claim_all(size_t jobs, size_t size) {
  static ns_verdict verdicts[MAX_BATCH];
  ns_feed feed = {.weight = 1};
  check(ns_queue_id(db, ns_str("bench"), true, &feed.queue_id, &err), "queue");
  size_t settled = 0, before = 0;
  do {
    ns_jobs batch = NS_JOBS_INIT;
    check(ns_cycle(db, verdicts, before, &feed, 1, size, &batch, NULL, &err),
          "cycle");
    for (size_t i = 0; i < before; i++)
      check(verdicts[i].status, "settle");
    settled += before;
    before = batch.n;
    acknowledge(&batch, verdicts);
    ns_jobs_free(&batch);
  } while (before > 0);
  if (settled == jobs)
    return;
  fprintf(stderr, "verbs: %zu of %zu jobs settled\n", settled, jobs);
  exit(1);
}

static void usage(void) {
  fputs("usage: verbs URL push JOBS BATCH | single JOBS | claim JOBS BATCH\n",
        stderr);
  exit(2);
}

int main(int argc, char **argv) {
  if (argc < 4)
    usage();
  const char *what = argv[2];
  size_t jobs = strtoul(argv[3], NULL, 10);
  size_t size = argc > 4 ? strtoul(argv[4], NULL, 10) : 1;
  bool claims = strcmp(what, "claim") == 0;
  bool pushes = strcmp(what, "push") == 0 || strcmp(what, "single") == 0;
  if (jobs == 0 || size == 0 || size > MAX_BATCH || (!claims && !pushes))
    usage();
  ns_config cfg = NS_CONFIG_INIT;
  cfg.url = argv[1];
  check(ns_open(&db, &cfg, &err), "open");
  empty_tables();
  if (claims)
    push_all(jobs, 1000);
  double start = now();
  if (claims)
    claim_all(jobs, size);
  else
    push_all(jobs, size);
  double seconds = now() - start;
  printf("{\"what\":\"%s\",\"side\":\"core\",\"jobs\":%zu,\"batch\":%zu,"
         "\"history\":true,\"seconds\":%.6f,\"rate\":%.1f}\n",
         what, jobs, size, seconds, (double)jobs / seconds);
  ns_close(db);
  return 0;
}
