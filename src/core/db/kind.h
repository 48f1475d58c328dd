/*
** The kind of a job: a number that stands for its name in the rows of ready and
** scheduled, so that a claim can tell what it wants without reading jobs.
*/
#ifndef NS_DB_KIND_H
#define NS_DB_KIND_H

#include <stdint.h>

#include "ns_buf.h"

#define NS_KIND_ANY 0 /* of a row whose writer did not know: anybody may claim it */

/* CRC32 of the bytes of a name, as the server's CRC32() has it. Two names may share
** one. */
int64_t ns_kind_of(ns_bytes name);

#endif
