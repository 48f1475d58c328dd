/*
** How far ahead jobs are claimed and sent. And the data for that: the pace of handlers, the
** names of jobs, the lines of claimed jobs that no worker has yet.
**
** Invariants: work is fetched ahead only as far as it hides a wait that exists. Claiming ahead
** hides the database cycle, sending ahead hides the way through the host. For handlers much
** longer than either, both are zero, so no job waits behind another while a worker is idle. A
** name lives at least as long as tasks point to it. A load lives until the last of its jobs has
** left its line.
*/
#ifndef NSH_POOL_PREFETCH_H
#define NSH_POOL_PREFETCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "buf.h"
#include "exchange/exchange.h"

/* -------------------------------------------------------------------- pace */

typedef struct nsh_pace {
  double micros; /* running mean of a handler's wall time; < 0: unknown */
  double bytes;  /* the same of a payload's size */
} nsh_pace;

#define NSH_PACE_INIT ((nsh_pace){-1, -1})

void nsh_pace_ran(nsh_pace *p, int64_t micros);
void nsh_pace_claimed(nsh_pace *p, size_t bytes);

/* Jobs one worker may have in its hands, the running one included: 1..64. */
uint32_t nsh_pace_window(const nsh_pace *p);

/* Jobs the host may hold for 'workers' workers, running ones included. */
size_t nsh_pace_target(const nsh_pace *p, size_t workers);

/* A handler known to be so short that finished verdicts may wait for it. */
bool nsh_pace_brief(const nsh_pace *p);

/* ------------------------------------------------------------- crash loops */

/* Workers that die one after the other without finishing a job. */
typedef struct nsh_crash_loop {
  int crashes;   /* since a job was completed */
  int64_t since; /* of the first of them, monotonic µs */
  int64_t wary;  /* until when jobs that kill workers are reckoned with */
} nsh_crash_loop;

void nsh_crash_loop_crash(nsh_crash_loop *c, int64_t now);
void nsh_crash_loop_over(nsh_crash_loop *c); /* a job was completed */

/* A crash loop is on, or one has been within the last minute. */
bool nsh_crash_loop_wary(const nsh_crash_loop *c, int64_t now);

/* µs to wait before the next fork; 0: fork at once. */
int64_t nsh_crash_loop_delay(const nsh_crash_loop *c);

/* ------------------------------------------------------------------- names */

/* The name of jobs, with the pace of its handler. */
typedef struct nsh_name {
  char *text; /* NUL-terminated */
  size_t n;
  nsh_pace pace;
  size_t tasks;  /* that point here */
  uint32_t uses; /* halved whenever names are forgotten */
  int64_t told;  /* monotonic µs: when it was logged that this host has no handler for it */
} nsh_name;

#define NSH_NAMES_MAX 1000 /* beside the names that tasks have */

/* The job names a host has met, each stored once. Pushers choose the names, so their number is
** limited: beyond NSH_NAMES_MAX, names that no task has and that are rarely met are forgotten. */
typedef struct nsh_names {
  nsh_name **items; /* open addressing; 'cap' is a power of two */
  size_t n, cap;
} nsh_names;

/* The entry of a name, made when new. Without a task it is valid until the next call. */
nsh_name *nsh_names_get(nsh_names *names, ns_bytes text);
void nsh_names_free(nsh_names *names);

/* ----------------------------------------------------------- lines of jobs */

typedef struct nsh_waiting {
  const ns_job *job;
  nsh_load *load;   /* that the job's bytes are in */
  uint64_t arrival; /* counts over all lines */
} nsh_waiting;

/* A line of claimed jobs that no worker has yet, in the order they came. There is one per pool.
** The jobs of a reserved queue wait by themselves, so that the workers kept for them find them,
** however many other jobs wait. */
typedef struct nsh_prefetch {
  nsh_waiting *items; /* ring of 'cap', a power of two */
  size_t first, n, cap;
} nsh_prefetch;

/* Joins the line. */
void nsh_prefetch_add(nsh_prefetch *b, const nsh_waiting *w);

/* The first job of a line that is not empty. */
const nsh_waiting *nsh_prefetch_first(const nsh_prefetch *b);

/* The first job leaves; its bytes are gone then, too. */
void nsh_prefetch_pop(nsh_prefetch *b);

/* Takes all jobs out of the line for which 'leaves' is true, in one pass; returns how many. */
size_t nsh_prefetch_drop(nsh_prefetch *b, bool (*leaves)(void *arg, const ns_job *job), void *arg);

void nsh_prefetch_free(nsh_prefetch *b);

#endif
