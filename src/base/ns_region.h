/*
** The memory that the processes of a host share: the dict of nightshift.shared
** and the table of mutexes and semaphores. It is mapped before the first fork
** and has no name anywhere, so it ends with the last process that has it.
*/
#ifndef NS_REGION_H
#define NS_REGION_H

#include "ns_mutex.h"
#include "ns_shared.h"

#define NS_REGION_DEFAULT "1M"

typedef struct ns_region {
  ns_shared shared;
  ns_locks *locks;
  size_t mapped; /* bytes */
} ns_region;

/*
** Reads a size for the dict: "512K", "1M", "2G" or bytes, from 64K to 64G,
** and perhaps ",evict". Errors: INVALID.
*/
ns_status ns_region_parse(const char *text, size_t *size, bool *evict,
                          ns_err *err);

/* Maps a region for us and our later children. Errors: NOMEM. */
ns_status ns_region_map(ns_region **r, size_t size, bool evict, ns_err *err);
void ns_region_unmap(ns_region *r);

/*
** Maps the region of this process with a dict as 'text' says; NULL: as
** $NIGHTSHIFT_SHARED says, or the default.
** Errors: STATE when it is there already; INVALID, NOMEM.
*/
ns_status ns_region_open(const char *text, ns_err *err);

/* The region of this process, mapped now if need be; NULL: see 'err'. */
ns_region *ns_region_get(ns_err *err);

#endif
