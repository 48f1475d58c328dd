/*
** What floor.c and verbs.c share: how they are called, what they print, the
** clock. Both take the same options, so that one can stand beside the other.
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

#endif
