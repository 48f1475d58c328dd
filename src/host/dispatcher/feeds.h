/*
** The queues that a host claims from, as the core wants to have them: with their
** weights, and with the room of the workers that are reserved for them.
**
** Invariant: a queue that is paused, or that was not asked for, is no feed.
*/
#ifndef NSH_DISPATCHER_FEEDS_H
#define NSH_DISPATCHER_FEEDS_H

#include "dispatcher/exchange.h"

typedef struct nsh_feeds {
  ns_feed *items;
  size_t *pools;   /* of each */
  size_t n, cap, cappools;
  int64_t *paused; /* queues that would be feeds, too */
  size_t npaused, cappaused;
  bool closed;     /* there is nothing to claim for: no handler is known */
  int64_t newest;  /* greatest queue id seen */
  int64_t made_at; /* monotonic µs: when the queues were read */
} nsh_feeds;

void nsh_feeds_free(nsh_feeds *f);

/* Reads the queues; those that were named exist from now on. Errors: as
** ns_queue_id. */
ns_status nsh_feeds_open(nsh_feeds *f, const nsh_config *cfg, ns_db *db,
                         ns_err *err);

/* From the queues as they are now: those that were named, in that order, or all. */
void nsh_feeds_make(nsh_feeds *f, const nsh_config *cfg,
                    const ns_queue_row *rows, size_t n);

/* Shares the room out; how many jobs to claim. What is reserved for a queue that
** is not served now is nobody's. */
size_t nsh_feeds_limit(nsh_feeds *f, const nsh_room *room);

#endif
