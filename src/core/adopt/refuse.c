/*
** Rows that the server refuses to mark as taken: a trigger of the table's people fails on
** them, or a constraint. The rows behind them are claimed all the same; these are left
** alone for a minute, and then tried again.
**
** Invariant: what is refused is known in the order in which it will be tried again, and
** only to this handle.
*/
#include <stdlib.h>
#include <string.h>

#include "adopt/table.h"
#include "clock.h"
#include "db/db.h"

#define REFUSED_FOR (60 * NS_SECOND)
#define REFUSED_MAX 1000 /* more are the table's fault, which the claim fails with */

/* The table is not what it was when it was adopted. */
enum { BAD_FIELD = 1054, PARSE_ERROR = 1064, DATA_TRUNCATED = 1265 };

bool ns_adopt_is_refused(ns_status st, const ns_err *err) {
  return (st == NS_ESQL || st == NS_EDUPLICATE || st == NS_EINVALID || st == NS_ETOOBIG) &&
         err->sqlerr != 0 && err->sqlerr != BAD_FIELD && err->sqlerr != PARSE_ERROR &&
         err->sqlerr != DATA_TRUNCATED;
}

ns_status ns_adopt_refuse(ns_adopted *a, int64_t id, ns_status st, ns_err *err) {
  ns_refusals *l = &a->refusals;
  ns_refusal *r;
  if (!ns_adopt_is_refused(st, err) || l->n == REFUSED_MAX)
    return st;
  if (!ns_grow(&l->items, &l->cap, l->n + 1, sizeof *l->items))
    return ns_fail(err, NS_ENOMEM, "out of memory");
  r = &l->items[l->n++];
  *r = (ns_refusal){.id = id, .until = ns_mono_us() + REFUSED_FOR};
  memcpy(r->why, err->message, sizeof r->why);
  ns_err_clear(err);
  return NS_OK;
}

/* Rows that have waited long enough are tried again. */
static void drop_over(ns_refusals *l) {
  int64_t now = ns_mono_us();
  size_t over = 0;
  while (over < l->n && l->items[over].until <= now)
    over++;
  if (over == 0)
    return;
  l->n -= over;
  memmove(l->items, l->items + over, l->n * sizeof *l->items);
  l->told = l->told > over ? l->told - over : 0;
}

bool ns_adopted_refuses(ns_adopted *a) {
  drop_over(&a->refusals);
  return a->refusals.n > 0;
}

ns_status ns_adopt_shunned(ns_adopted *a, ns_bytes *ids, ns_err *err) {
  ns_refusals *l = &a->refusals;
  *ids = ns_str("[]");
  if (!ns_adopted_refuses(a))
    return NS_OK;
  ns_buf_reset(&l->ids);
  for (size_t i = 0; i < l->n; i++)
    ns_db_list_add_id(&l->ids, l->items[i].id);
  ns_buf_addc(&l->ids, ']');
  *ids = ns_buf_bytes(&l->ids);
  return l->ids.oom ? ns_fail(err, NS_ENOMEM, "out of memory") : NS_OK;
}

const ns_refusal *ns_adopted_refusals(ns_adopted *a, size_t *n) {
  ns_refusals *l = &a->refusals;
  size_t told = l->told;
  *n = l->n - told;
  l->told = l->n;
  return *n > 0 ? l->items + told : NULL;
}

ns_status ns_adopt_tell_refused(ns_adopted *a, ns_err *err) {
  size_t n;
  const ns_refusal *r = ns_adopted_refusals(a, &n);
  if (n == 0)
    return NS_OK;
  return ns_fail(err, NS_ESQL, "row %lld of '%s' cannot be claimed: %s",
                 (long long)r[n - 1].id, a->map.table.p, r[n - 1].why);
}
