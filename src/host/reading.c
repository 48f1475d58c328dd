/*
** Texts that come from scripts are cut and made valid here, so that the server takes them.
*/
#include "reading.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/ipc.h"

#define ERROR_MAX 4096  /* bytes that are kept of an error */
#define FILES_MAX 20000 /* and of a list, which is not cut but left out */

void nsh_reading_free(nsh_reading *r) {
  free((void *)r->files.p);
  free((void *)r->error.p);
  *r = (nsh_reading){.began = 0};
}

/* Owned, with a zero behind it; absent stays absent. */
static ns_bytes copy(ns_bytes s) {
  ns_buf text = NS_BUF_INIT;
  if (s.p == NULL)
    return s;
  ns_buf_add_utf8(&text, s);
  ns_buf_addc(&text, '\0');
  nsh_must(!text.oom);
  return (ns_bytes){text.p, text.n - 1};
}

void nsh_reading_done(nsh_reading *r, const char *version, ns_bytes files, int64_t began) {
  nsh_reading_free(r);
  nsh_version_copy(r->version, ns_str(version));
  r->files = copy(files.n <= FILES_MAX ? files : ns_str("[]"));
  r->began = began;
}

void nsh_reading_failed(nsh_reading *r, ns_bytes runs, ns_bytes error, int64_t began) {
  nsh_version_copy(r->version, runs);
  free((void *)r->error.p);
  if (error.n > ERROR_MAX)
    error.n = ERROR_MAX;
  r->error = copy(error);
  r->began = began;
  r->ended = 0;
}

void nsh_reading_copy(nsh_reading *to, const nsh_reading *from) {
  nsh_reading_free(to);
  *to = *from;
  to->files = copy(from->files);
  to->error = copy(from->error);
}

void nsh_version_copy(char to[NSH_VERSION_SIZE], ns_bytes s) {
  size_t n = 0;
  while (n < s.n && n < NSH_VERSION_SIZE - 1 && isxdigit((unsigned char)s.p[n])) {
    to[n] = s.p[n];
    n++;
  }
  to[n] = '\0';
}
