/*
** Mapping. The dict follows the header, the table of locks follows the dict.
*/
#include "ns_region.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SIZE_LEAST (UINT64_C(64) << 10)
#define SIZE_MOST (UINT64_C(64) << 30)
#define PAGE ((size_t)4096)

static size_t pages(size_t n) {
  return (n + PAGE - 1) & ~(PAGE - 1);
}

/* 0: no unit. */
static unsigned shift_of(char unit) {
  return unit == 'K' || unit == 'k'   ? 10
         : unit == 'M' || unit == 'm' ? 20
         : unit == 'G' || unit == 'g' ? 30
                                      : 0;
}

ns_status ns_region_parse(const char *text, size_t *size, bool *evict,
                          ns_err *err) {
  const char *s = text;
  uint64_t n = 0;
  unsigned shift;
  for (; *s >= '0' && *s <= '9' && n <= SIZE_MOST; s++)
    n = n * 10 + (uint64_t)(*s - '0');
  shift = shift_of(*s);
  if (shift > 0 && n <= SIZE_MOST) {
    n <<= shift;
    s++;
  }
  *evict = strcmp(s, ",evict") == 0;
  if ((*s != '\0' && !*evict) || n < SIZE_LEAST || n > SIZE_MOST)
    return ns_fail(err, NS_EINVALID,
                   "bad size of the shared dict '%.40s': expected 64K to 64G, "
                   "such as 512K, 1M or \"1M,evict\"", text);
  *size = (size_t)n;
  return NS_OK;
}

ns_status ns_region_map(ns_region **out, size_t size, bool evict,
                        ns_err *err) {
  size_t dict = pages(sizeof(ns_region));
  size_t locks = dict + pages(size);
  size_t all = locks + ns_locks_size();
  ns_region *r;
  void *p = mmap(NULL, all, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    return ns_fail(err, NS_ENOMEM, "shared memory of %zu bytes: %s", all,
                   strerror(errno));
  r = p;
  r->mapped = all;
  r->locks = ns_locks_make((char *)p + locks);
  if (r->locks == NULL ||
      !ns_shared_init(&r->shared, (char *)p + dict, size, evict)) {
    munmap(p, all);
    return ns_fail(err, NS_ENOMEM, "the system has no robust mutexes");
  }
  *out = r;
  return NS_OK;
}

void ns_region_unmap(ns_region *r) {
  if (r != NULL)
    munmap(r, r->mapped);
}

/* ----------------------------------------------------------- of this process */

static _Atomic(ns_region *) ours;

ns_status ns_region_open(const char *text, ns_err *err) {
  const char *env = getenv("NIGHTSHIFT_SHARED");
  ns_region *none = NULL;
  ns_region *r;
  size_t size;
  bool evict;
  ns_status st;
  if (text == NULL)
    text = env != NULL && *env != '\0' ? env : NS_REGION_DEFAULT;
  if ((st = ns_region_parse(text, &size, &evict, err)) != NS_OK ||
      (st = ns_region_map(&r, size, evict, err)) != NS_OK)
    return st;
  if (atomic_compare_exchange_strong(&ours, &none, r))
    return NS_OK;
  ns_region_unmap(r);
  return ns_fail(err, NS_ESTATE, "the shared memory is there already, its "
                                 "size cannot change any more");
}

/* Another thread may be faster; then its region is ours. */
ns_region *ns_region_get(ns_err *err) {
  ns_region *r = atomic_load(&ours);
  if (r != NULL)
    return r;
  ns_region_open(NULL, err);
  return atomic_load(&ours);
}
