/*
** Memory that is there or the process is not.
*/
#include "ipc/alloc.h"

#include <stdlib.h>

#include "ns_log.h"
#include "ns_time.h"

void nsh_must(bool ok) {
  if (ok)
    return;
  ns_log(NS_LOG_ERROR, "host.no_memory", NULL, 0);
  ns_log_flush(NS_SECOND / 10);
  abort();
}

void *nsh_alloc(size_t n) {
  void *p = calloc(1, n > 0 ? n : 1);
  nsh_must(p != NULL);
  return p;
}
