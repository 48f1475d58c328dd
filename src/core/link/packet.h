/*
** Executions as they go over the wire: the packet that runs a prepared
** statement once for each row of some columns.
*/
#ifndef NS_LINK_PACKET_H
#define NS_LINK_PACKET_H

#include <stdint.h>

#include "link/statement.h"

/* How many of 'nrows' rows from 'from' on go into a packet of at most 'max' bytes
** (0: no limit); 0: not even one. */
size_t ns_packet_rows(const ns_column *cols, size_t ncols, size_t from,
                      size_t nrows, size_t max);

/* Adds the execution of statement 'id' (the server's number of it) with 'nrows'
** rows from 'from' on: a plain one for a single row, else an array-bound one.
** False: out of memory, and then 'to' is oom. */
bool ns_packet_add(ns_buf *to, uint32_t id, const ns_column *cols, size_t ncols,
                   size_t from, size_t nrows);

#endif
