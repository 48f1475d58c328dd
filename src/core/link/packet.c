/*
** Executions as they go over the wire. The client library has this, too, but it
** waits for the answer of each, and takes longer per value than the server.
**
** A single row:   id(4) flags(1) 1(4) nulls((n+7)/8) 1(1) types(2n) values
** Array-bound:    id(4) flags(2) types(2n), then per value: null(1) [value]
** Integers are eight bytes, texts their length (1, 3, 4 or 9 bytes) and bytes;
** everything little-endian.
**
** Invariant: room for all of a packet is made before its first byte is written.
*/
#include "link/packet.h"

#include <string.h>

#define T_INT 8            /* of the protocol: BIGINT, */
#define T_TEXT 254         /* STRING */
#define SENDS_TYPES 128
#define HEAD 16            /* bytes at most before the null bits and types */
#define INT_BYTES 9        /* a value at most, beside a text's bytes */
#define TEXT_BYTES 10

static char *put2(char *at, uint64_t v) {
  at[0] = (char)v;
  at[1] = (char)(v >> 8);
  return at + 2;
}

static char *put4(char *at, uint64_t v) {
  return put2(put2(at, v), v >> 16);
}

static char *put8(char *at, uint64_t v) {
  return put4(put4(at, v), v >> 32);
}

static char *put_length(char *at, size_t n) {
  if (n < 251) {
    *at = (char)n;
    return at + 1;
  }
  if (n < 65536) {
    *at = (char)252;
    return put2(at + 1, n);
  }
  if (n < 16777216) {
    *at = (char)253;
    put2(at + 1, n);
    at[3] = (char)(n >> 16);
    return at + 4;
  }
  *at = (char)254;
  return put8(at + 1, n);
}

static bool is_null(const ns_column *col, size_t row) {
  return (col->null != NULL && col->null[row] != 0) ||
         (col->type == NS_TEXT && col->texts[row].p == NULL);
}

static char *put_value(char *at, const ns_column *col, size_t row) {
  ns_bytes text;
  if (col->type == NS_INT)
    return put8(at, (uint64_t)col->ints[row]);
  text = col->texts[row];
  at = put_length(at, text.n);
  if (text.n > 0)
    memcpy(at, text.p, text.n);
  return at + text.n;
}

static char *put_types(char *at, const ns_column *cols, size_t ncols) {
  for (size_t c = 0; c < ncols; c++)
    at = put2(at, cols[c].type == NS_INT ? T_INT : T_TEXT);
  return at;
}

static char *put_one(char *at, const ns_column *cols, size_t ncols, size_t row) {
  char *nulls;
  *at++ = 0;
  at = put4(at, 1);
  if (ncols == 0)
    return at;
  nulls = at;
  memset(nulls, 0, (ncols + 7) / 8);
  at += (ncols + 7) / 8;
  *at++ = 1;
  at = put_types(at, cols, ncols);
  for (size_t c = 0; c < ncols; c++)
    if (is_null(&cols[c], row))
      nulls[c / 8] = (char)(nulls[c / 8] | 1 << c % 8);
    else
      at = put_value(at, &cols[c], row);
  return at;
}

static char *put_array(char *at, const ns_column *cols, size_t ncols,
                       size_t from, size_t nrows) {
  at = put_types(put2(at, SENDS_TYPES), cols, ncols);
  for (size_t i = from; i < from + nrows; i++)
    for (size_t c = 0; c < ncols; c++) {
      bool null = is_null(&cols[c], i);
      *at++ = null;
      if (!null)
        at = put_value(at, &cols[c], i);
    }
  return at;
}

/* Bytes of one row at most. */
static size_t row_size(const ns_column *cols, size_t ncols, size_t row) {
  size_t size = 0;
  for (size_t c = 0; c < ncols; c++)
    size += cols[c].type == NS_INT   ? INT_BYTES
            : is_null(&cols[c], row) ? 1
                                     : TEXT_BYTES + cols[c].texts[row].n;
  return size;
}

static size_t head_size(size_t ncols) {
  return HEAD + (ncols + 7) / 8 + 2 * ncols;
}

size_t ns_packet_rows(const ns_column *cols, size_t ncols, size_t from,
                      size_t nrows, size_t max) {
  size_t size = head_size(ncols);
  for (size_t i = from; i < nrows; i++) {
    size += row_size(cols, ncols, i);
    if (max > 0 && size > max)
      return i - from;
  }
  return nrows - from;
}

bool ns_packet_add(ns_buf *to, uint32_t id, const ns_column *cols, size_t ncols,
                   size_t from, size_t nrows) {
  size_t size = head_size(ncols);
  char *at;
  for (size_t i = from; i < from + nrows; i++)
    size += row_size(cols, ncols, i);
  if ((at = ns_buf_room(to, size)) == NULL)
    return false;
  at = put4(at, id);
  at = nrows == 1 ? put_one(at, cols, ncols, from)
                  : put_array(at, cols, ncols, from, nrows);
  to->n = (size_t)(at - to->p);
  return true;
}
