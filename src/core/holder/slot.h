/*
** What a handle remembers of the slots it has taken. The verbs on them are in
** nightshift.h.
*/
#ifndef NS_HOLDER_SLOT_H
#define NS_HOLDER_SLOT_H

#include <sys/types.h>

#include "nightshift_host.h"

/* A slot that is ours, or that is still to be given back. */
typedef struct ns_held {
  int64_t token;
  int64_t slot;
  int64_t job, run; /* its owner; job 0: the holder is */
  int64_t holder;
  ns_bytes name;    /* owned */
  bool dropped;     /* to be deleted once the server can be asked */
} ns_held;

typedef struct ns_slots {
  ns_held *items;
  size_t n, cap;
  int64_t job, run; /* the running job, which owns what is taken; job 0: none */
  bool next;        /* we may own the named lock of who is next in line */
  bool suspect;     /* who has what we wait for may be dead, and was looked at */
  int64_t look_at;  /* monotonic: look at other holders again */
  pid_t process;    /* a forked child has no slots */
} ns_slots;

/* Deletes rows of owners that are gone. Errors: GONE, BUSY. */
ns_status ns_slots_prune(ns_db *db, ns_err *err);

#endif
