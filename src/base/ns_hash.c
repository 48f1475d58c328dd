/*
** FNV-1a.
*/
#include "ns_hash.h"

uint64_t ns_hash(ns_bytes s) {
  uint64_t h = UINT64_C(14695981039346656037);
  for (size_t i = 0; i < s.n; i++)
    h = (h ^ (unsigned char)s.p[i]) * UINT64_C(1099511628211);
  return h;
}

uint32_t ns_hash_short(ns_bytes s) {
  uint64_t h = ns_hash(s);
  return (uint32_t)(h ^ h >> 32);
}
