/*
** The job names a host has met, each stored once, with the pace of its
** handler. Entries live as long as the table, so tasks point to them.
*/
#ifndef NSH_NAMES_H
#define NSH_NAMES_H

#include "ns_buf.h"
#include "nsh_pace.h"

typedef struct nsh_name {
  char *text;  /* NUL-terminated */
  size_t n;
  nsh_pace pace;
} nsh_name;

typedef struct nsh_names {
  nsh_name **items; /* open addressing; 'cap' is a power of two */
  size_t n, cap;
} nsh_names;

/* The entry of a name, made when new. */
nsh_name *nsh_names_get(nsh_names *names, ns_bytes text);
void nsh_names_free(nsh_names *names);

#endif
