/*
** What the C programs of the bench share. floor.c and verbs.c: how they are called, what they
** print, the clock. Both take the same options, so that one can stand beside the other.
**
** The programs of bench/designs: workers at one table, and what a way of taking rows offers to
** the program that measures it. A worker is a process with a connection of its own, which takes
** rows, runs them and marks them as done. The ways are bare.c's, published SQL without anything of
** Nightshift, and ours.c's; strategies.c starts the workers, counts and measures. Any error but
** those that a crowd brings (a deadlock, a lock that was not to be had) ends the program with
** status 1.
*/
#ifndef BENCH_H
#define BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BENCH_MAX_BATCH 10000

typedef struct bench_options {
  const char *what;
  size_t jobs, batch;
  size_t payload; /* bytes of JSON per job, quotes included; at least 2 */
  size_t handles; /* that claim at one time */
  size_t history; /* 1: a row per ended job; 0: jobs that are done leave none */
  size_t keep;    /* 1: the tables are not emptied first */
} bench_options;

#define BENCH_USAGE                                                            \
  " [JOBS [BATCH [HISTORY]]]"                                                  \
  " [jobs=1000] [batch=1] [history=1] [payload=100] [handles=1] [keep=0]\n"

/* Reads one "name=number". */
static inline bool bench_option(bench_options *o, const char *text) {
  static const struct {
    const char *name;
    size_t offset;
  } known[] = {{"jobs", offsetof(bench_options, jobs)},
               {"batch", offsetof(bench_options, batch)},
               {"payload", offsetof(bench_options, payload)},
               {"handles", offsetof(bench_options, handles)},
               {"history", offsetof(bench_options, history)},
               {"keep", offsetof(bench_options, keep)}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    size_t n = strlen(known[i].name);
    if (strncmp(text, known[i].name, n) != 0 || text[n] != '=')
      continue;
    size_t value = strtoul(text + n + 1, NULL, 10);
    memcpy((char *)o + known[i].offset, &value, sizeof value);
    return true;
  }
  return false;
}

/* A number without a name: JOBS, BATCH and HISTORY, in this order. */
static inline bool bench_number(bench_options *o, int place, const char *text) {
  size_t *const at[] = {&o->jobs, &o->batch, &o->history};
  char *end;
  if (place >= (int)(sizeof at / sizeof *at))
    return false;
  *at[place] = strtoul(text, &end, 10);
  return *text != '\0' && *end == '\0';
}

/* argv[0] is what to do; the rest are options. False: misuse. */
static inline bool bench_read(bench_options *o, int argc, char **argv) {
  *o = (bench_options){.jobs = 1000, .batch = 1, .payload = 100, .handles = 1,
                       .history = 1};
  if (argc < 1)
    return false;
  o->what = argv[0];
  int place = 0;
  for (int i = 1; i < argc; i++)
    if (!bench_option(o, argv[i]) && !bench_number(o, place++, argv[i]))
      return false;
  return o->jobs > 0 && o->batch > 0 && o->batch <= BENCH_MAX_BATCH &&
         o->payload >= 2 && o->handles > 0;
}

/* Jobs per push when a queue is filled: packets stay below 8 MB. */
static inline size_t bench_fill(const bench_options *o) {
  size_t most = 8000000 / (o->payload + 100);
  return most < 1 ? 1 : most > 1000 ? 1000 : most;
}

/* A payload as both sides push it: a JSON string of 'n' bytes, in 'to'. */
static inline void bench_payload(char *to, size_t n) {
  memset(to, 'x', n);
  to[0] = to[n - 1] = '"';
}

static inline double bench_clock(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The one line of output. */
static inline void bench_print(const bench_options *o, double seconds) {
  printf("{\"what\":\"%s\",\"jobs\":%zu,\"batch\":%zu,\"payload\":%zu,"
         "\"handles\":%zu,\"seconds\":%.6f,\"rate\":%.1f}\n",
         o->what, o->jobs, o->batch, o->payload, o->handles, seconds,
         (double)o->jobs / seconds);
}

/* ----------------------------------------------------------------- the crew */

#define CREW_BATCH 10 /* rows that a claim takes at most */

/* What was asked on the command line. */
typedef struct crew_ask {
  const char *socket, *database; /* for bare SQL */
  const char *url;               /* for Nightshift */
  const char *way, *table;
  size_t workers, batch;
  double seconds; /* how long they work */
  double job;     /* seconds that a job takes */
  double gap;     /* seconds that a worker loses between lock and late mark */
  int overdue;    /* seconds after which a claim is reset, where that is the design */
  double limit;   /* seconds that a dead worker's rows are waited for */
} crew_ask;

/* What a worker of either kind is, to its own file. */
typedef struct crew_worker crew_worker;

typedef struct crew_way {
  crew_worker *(*open)(const crew_ask *ask, size_t number);
  /* Takes rows; how many. 0: there were none, or the crowd was in the way. */
  size_t (*claim)(crew_worker *w, int64_t ids[CREW_BATCH]);
  /* The i-th row of the last claim has run. False: the mark was undone. */
  bool (*done)(crew_worker *w, size_t i);
  /* Waits after a claim without rows, as this way does; not beyond 'until', of
  ** bench_clock. */
  void (*rest)(crew_worker *w, double until);
  /* Claims and marks that the server refused so far. */
  size_t (*refused)(const crew_worker *w);
  /* The number of its connection to the server, 0: of no interest. */
  unsigned long (*session)(const crew_worker *w);
  /* Gives back what it has and goes. */
  void (*close)(crew_worker *w);
} crew_way;

/* NULL: there is none of that name. */
const crew_way *crew_bare(const crew_ask *ask);
const crew_way *crew_ours(const crew_ask *ask);

/* Ends the program with these words. */
_Noreturn void crew_die(const char *what, const char *why);

/* Sleeps so many seconds. */
void crew_nap(double seconds);

#endif
