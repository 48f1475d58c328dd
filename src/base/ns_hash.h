/*
** A hash of bytes, the same in every process and on every machine: FNV-1a, 64 bits. It
** tells texts apart that differ by chance, not those that somebody has made alike.
*/
#ifndef NS_HASH_H
#define NS_HASH_H

#include <stdint.h>

#include "ns_buf.h"

uint64_t ns_hash(ns_bytes s);

/* Both halves in one. */
uint32_t ns_hash_short(ns_bytes s);

#endif
