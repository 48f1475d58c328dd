/*
** How a host has last read its scripts, for people: which version of them it runs, and why
** a later one could not be read.
*/
#ifndef NSH_READING_H
#define NSH_READING_H

#include <stdint.h>

#include "buf.h"

#define NSH_VERSION_SIZE 9 /* bytes of a version of scripts, with its zero */

typedef struct nsh_reading {
  char version[NSH_VERSION_SIZE]; /* of what runs; "": nothing does */
  ns_bytes files; /* of what: [["name","version"],…]; owned */
  ns_bytes error; /* why the last reading failed; absent: it did not; owned */
  int64_t began;  /* monotonic µs: that reading */
  int64_t ended;  /* µs by the server's clock, once it has been told; 0: not yet */
} nsh_reading;

void nsh_reading_free(nsh_reading *r);

/* It has ended well. */
void nsh_reading_done(nsh_reading *r, const char *version, ns_bytes files, int64_t began);

/* It has failed. What was read before goes on, if it is still there: 'runs' (absent: it is
** not). */
void nsh_reading_failed(nsh_reading *r, ns_bytes runs, ns_bytes error, int64_t began);

/* 'to' becomes like 'from'. */
void nsh_reading_copy(nsh_reading *to, const nsh_reading *from);

/* Keeps the hexadecimal digits that 's' begins with: a script may have meddled with it. */
void nsh_version_copy(char to[NSH_VERSION_SIZE], ns_bytes s);

#endif
