/*
** Ids of jobs, leases and holders, out of one sequence, a block at a time.
**
** Invariant: an id is given once; a forked child takes none of its parent's block.
*/
#include "handle.h"

#define ID_BLOCK 100

/* '*taken' of 'n' ids: a KILL QUERY may leave out some of the blocks. */
static ns_status take_blocks(ns_db *db, int64_t *ids, size_t n, size_t *taken,
                             ns_err *err) {
  const ns_value *row;
  ns_value param = ns_vint((int64_t)((n + ID_BLOCK - 1) / ID_BLOCK));
  size_t i = 0;
  ns_status st = ns_run(db, NS_SQL_HANDLE_IDS, &param, err);
  while (st == NS_OK &&
         (st = ns_row(db, NS_SQL_HANDLE_IDS, &row, err)) == NS_OK && row != NULL) {
    int64_t id;
    int64_t end;
    if (row[0].i < 0 || row[0].i >= INT64_MAX / ID_BLOCK)
      return ns_fail(err, NS_ESQL,
                     "the sequence nightshift_id has been set to %lld, and ids "
                     "have run out; nightshift doctor says what to do",
                     (long long)row[0].i);
    id = row[0].i * ID_BLOCK;
    end = id + ID_BLOCK;
    while (id < end && i < n)
      ids[i++] = id++;
    db->next_id = id; /* what the last block has left */
    db->end_id = end;
  }
  *taken = i;
  return st;
}

ns_status ns_take_ids(ns_db *db, int64_t *ids, size_t n, ns_err *err) {
  ns_status st = ns_ready(db, err); /* also drops a parent process's block */
  while (st == NS_OK && n > 0 && db->next_id < db->end_id) {
    *ids++ = db->next_id++;
    n--;
  }
  while (st == NS_OK && n > 0) {
    size_t part = n < 50000 ? n : 50000; /* the server recurses 1000 deep */
    size_t taken = 0;
    st = take_blocks(db, ids, part, &taken, err);
    if (st == NS_OK && taken == 0)
      st = ns_fail(err, NS_EBUSY, "the server gave no ids: the statement was interrupted");
    ids += taken;
    n -= taken;
  }
  return st;
}
