/*
** The dummy database's adopted tables: in place of the core's functions that would reach a
** server, these check that what the binding hands them is within the contract of
** nightshift_adopt.h, and touch every byte of it. There is one table, number 1.
*/
#include "fuzz.h"

#include "nightshift_host.h"

ns_status __wrap_ns_adopt(ns_db *db, const ns_mapping *map, ns_adopted **out,
                          int64_t *number, ns_err *err);
ns_adopted *__wrap_ns_adopted_at(ns_db *db, int64_t number);
ns_status __wrap_ns_adopted_settle(ns_adopted *a, ns_verdict *v, size_t n, ns_err *err);
ns_status __wrap_ns_adopted_touch(ns_adopted *a, int64_t id, int64_t run, ns_err *err);
ns_status __wrap_ns_adopted_touch_many(ns_adopted *a, ns_sign *signs, size_t n,
                                       ns_err *err);
ns_status __wrap_ns_adopted_dead(ns_adopted *a, ns_bytes error, int64_t limit,
                                 ns_buf *json, ns_err *err);
ns_status __wrap_ns_adopted_dead_groups(ns_adopted *a, ns_bytes error, int64_t limit,
                                        ns_buf *json, ns_err *err);
ns_status __wrap_ns_adopted_retry(ns_adopted *a, int64_t id, ns_err *err);
ns_status __wrap_ns_adopted_retry_all(ns_adopted *a, ns_bytes error, int64_t *n,
                                      ns_err *err);
ns_status __wrap_ns_adopted_prune(ns_adopted *a, const ns_row_pruning *which, int64_t *n,
                                  ns_err *err);
ns_status __wrap_ns_adopted_drain(ns_adopted *a, ns_bytes queue, size_t limit,
                                  ns_drained *d, ns_err *err);

static volatile size_t sum; /* keeps the reads below */

static void touch(ns_bytes s) {
  for (size_t i = 0; i < s.n; i++)
    sum += (unsigned char)s.p[i];
}

/* Only its address is used. */
static ns_adopted *table(void) {
  static char it;
  return (ns_adopted *)(void *)&it;
}

ns_status __wrap_ns_adopt(ns_db *db, const ns_mapping *map, ns_adopted **out,
                          int64_t *number, ns_err *err) {
  FUZZ_CHECK(db != NULL && map->strategy >= NS_UPDATE_LIMIT &&
             map->strategy <= NS_NAMED_LOCK);
  touch(map->table);
  touch(map->name);
  touch(map->time_zone);
  touch(map->given);
  for (size_t i = 0; i < NS_PARTS; i++)
    touch(map->parts[i]);
  for (size_t i = 0; i < NS_ROW_STATES; i++) {
    FUZZ_CHECK(!map->has_state[i] || map->states[i].type == NS_NULL ||
               map->states[i].type == NS_INT || map->states[i].type == NS_TEXT);
    if (map->has_state[i] && map->states[i].type == NS_TEXT)
      touch(map->states[i].s);
  }
  if (map->table.n == 0)
    return ns_fail(err, NS_EINVALID, "a table without a name");
  *out = table();
  *number = 1;
  return NS_OK;
}

ns_adopted *__wrap_ns_adopted_at(ns_db *db, int64_t number) {
  FUZZ_CHECK(db != NULL);
  return number == 1 ? table() : NULL;
}

ns_status __wrap_ns_adopted_settle(ns_adopted *a, ns_verdict *v, size_t n, ns_err *err) {
  FUZZ_CHECK(a == table() && err != NULL);
  for (size_t i = 0; i < n; i++) {
    FUZZ_CHECK(v[i].kind >= NS_ACK && v[i].kind <= NS_MISSING && v[i].delay >= -1);
    touch(v[i].result);
    touch(v[i].error);
    touch(v[i].state);
    v[i].status = NS_OK;
  }
  return NS_OK;
}

ns_status __wrap_ns_adopted_touch(ns_adopted *a, int64_t id, int64_t run, ns_err *err) {
  FUZZ_CHECK(a == table());
  return id == run ? NS_OK : ns_fail(err, NS_ESTALE, "lost");
}

ns_status __wrap_ns_adopted_touch_many(ns_adopted *a, ns_sign *signs, size_t n,
                                       ns_err *err) {
  FUZZ_CHECK(a == table() && err != NULL);
  for (size_t i = 0; i < n; i++)
    touch(signs[i].text);
  return NS_OK;
}

static ns_status list(const ns_adopted *a, ns_bytes error, int64_t limit, ns_buf *json) {
  FUZZ_CHECK(a == table() && limit >= 0);
  touch(error);
  ns_buf_adds(json, "[]");
  return NS_OK;
}

ns_status __wrap_ns_adopted_dead(ns_adopted *a, ns_bytes error, int64_t limit,
                                 ns_buf *json, ns_err *err) {
  FUZZ_CHECK(err != NULL);
  return list(a, error, limit, json);
}

ns_status __wrap_ns_adopted_dead_groups(ns_adopted *a, ns_bytes error, int64_t limit,
                                        ns_buf *json, ns_err *err) {
  FUZZ_CHECK(err != NULL);
  return list(a, error, limit, json);
}

ns_status __wrap_ns_adopted_retry(ns_adopted *a, int64_t id, ns_err *err) {
  FUZZ_CHECK(a == table());
  return id > 0 ? NS_OK : ns_fail(err, NS_EINVALID, "no such row");
}

ns_status __wrap_ns_adopted_retry_all(ns_adopted *a, ns_bytes error, int64_t *n,
                                      ns_err *err) {
  FUZZ_CHECK(a == table() && err != NULL);
  touch(error);
  *n = 0;
  return NS_OK;
}

ns_status __wrap_ns_adopted_prune(ns_adopted *a, const ns_row_pruning *which, int64_t *n,
                                  ns_err *err) {
  FUZZ_CHECK(a == table() && err != NULL && which->older >= -1 && which->limit >= 0);
  touch(which->into);
  *n = 0;
  return NS_OK;
}

ns_status __wrap_ns_adopted_drain(ns_adopted *a, ns_bytes queue, size_t limit,
                                  ns_drained *d, ns_err *err) {
  FUZZ_CHECK(a == table() && err != NULL && limit > 0);
  touch(queue);
  d->jobs += 1;
  d->more = false;
  return NS_OK;
}
