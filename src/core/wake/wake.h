/*
** Other holders: the facts about them in the table and their locks, and which of them a
** listener watches. Pure memory, except for a look at this machine's processes.
*/
#ifndef NS_WAKE_WAKE_H
#define NS_WAKE_WAKE_H

#include <sys/types.h>

#include "nightshift_host.h"

/* A holder as a row of rescue_holders tells. */
typedef struct ns_peer {
  int64_t id;
  int64_t beat;   /* when it last wrote, by the server's clock */
  int64_t silent; /* µs since then */
  bool is_host;
  bool dead;  /* it was declared so */
  bool free;  /* no session owns its named lock */
  bool elsewhere; /* it was with another server, and may be on its way to this one */
  bool gone;  /* it ran on this machine and its process is no more */
  bool alive; /* its process is seen on this machine, and not stopped */
} ns_peer;

/* ------------------------------------- programs that wait for ends: ring.c */

/* An edge of a job that has ended on the open transaction has a negative 'job': it is a waiter's. */
void ns_wake_note(ns_db *db, int64_t job);

/* After a commit: rings the waiters that were noted. Best effort; without any it does nothing. */
void ns_wake_ended(ns_db *db);

#define NS_PLACE 64 /* bytes of a place */

typedef struct ns_peers {
  ns_peer *items; /* sorted by id */
  size_t n, cap;
  char here[NS_PLACE]; /* our own place, once asked for */
} ns_peers;

/* This boot of this machine and its space of process ids: within one place a
** process id means one process. */
void ns_wake_place(char out[NS_PLACE]);

/* Is process 'pid' of this place there, and for 'age' µs? Otherwise its number has been
** given to another. Stopped ones are there, zombies are not. */
bool ns_wake_process_is(pid_t pid, int64_t age);

/* Adds a row of rescue_holders. False: out of memory. */
bool ns_wake_peers_add(ns_peers *p, const ns_value *row);
void ns_wake_peers_free(ns_peers *p);

/*
** The holders that holder 'me' watches: the living ones behind it in the ring of ids. The
** first is the neighbour (0: none), the rest are written as "[id,…]". Hosts
** go on up to the next host, so that between them no holder is left out.
*/
int64_t ns_wake_peers_watched(const ns_peers *p, int64_t me, bool is_host, ns_buf *others);

#endif
