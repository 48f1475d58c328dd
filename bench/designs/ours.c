/*
** Nightshift's own tables: workers that take jobs through the C library, each with a handle of
** its own, and wait for more as lua/nightshift does.
*/
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "bench.h"
#include "nightshift_host.h"

struct crew_worker {
  ns_db *db;
  ns_jobs jobs;
  size_t batch, refused;
};

/* ------------------------------------------------------------- the worker */

static void check(ns_status st, const char *what, const ns_err *err) {
  if (st != NS_OK)
    crew_die(what, err->message);
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
  return w;
}

/* Our own tables wait by themselves, and are told of new jobs. */
static size_t ours_claim(crew_worker *w, int64_t ids[CREW_BATCH]) {
  ns_err err;
  ns_jobs_free(&w->jobs);
  ns_status st = ns_claim(w->db, ns_str("bench"), w->batch, NS_SECOND, 0, &w->jobs, &err);
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
    st = ns_settle(w->db, &v, &err);
    w->refused += st == NS_EBUSY;
  } while (st == NS_EBUSY);
  check(st, "settle", &err);
  return true;
}

/* A claim waits by itself. */
static void ours_rest(crew_worker *w, double until) {
  (void)w;
  (void)until;
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
  return strcmp(ask->way, "own") == 0 ? &way : NULL;
}
