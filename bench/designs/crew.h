/*
** Workers at one table: what a way of taking rows offers to the program that measures it.
**
** A worker is a process with a connection of its own, which takes rows, runs them
** and marks them as done. The ways are bare.c's, published SQL without anything of
** Nightshift, and ours.c's; strategies.c starts the workers, counts and measures.
**
** Any error but those that a crowd brings (a deadlock, a lock that was not to be
** had) ends the program with status 1.
*/
#ifndef CREW_H
#define CREW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
