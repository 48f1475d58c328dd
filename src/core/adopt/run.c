/*
** Running the statements of an adopted table, on the handle's connection or on a seat,
** and trying again where a row is locked for a moment.
*/
#include <stdlib.h>

#include "adopt/table.h"
#include "clock.h"

#define PAUSE_FIRST 100  /* µs between tries at a row that is locked, doubling */
#define PAUSE_LAST 10000

static ns_value slot_value(const ns_param *p, const ns_call *call) {
  switch (p->slot) {
  case NS_SLOT_ROW:
    return ns_vint(call->row);
  case NS_SLOT_ROWS:
    return ns_vtext(call->rows);
  case NS_SLOT_SHUNNED:
    return ns_vtext(call->shunned);
  case NS_SLOT_TOKEN:
    return ns_vopt(call->token);
  case NS_SLOT_LIMIT:
    return ns_vint(call->limit);
  case NS_SLOT_PAGE:
    return ns_vint(call->page);
  case NS_SLOT_DELAY:
    return call->delay;
  case NS_SLOT_ERROR:
    return ns_vopt(call->error);
  default:
    return p->value;
  }
}

static ns_status prepare(ns_adopted *a, ns_seat *seat, ns_sql sql,
                         const ns_filled *f, ns_stmt **s, ns_err *err) {
  ns_status st;
  if (seat == NULL)
    return ns_db_prepared(a->db, s, ns_buf_bytes(&f->text), err);
  st = seat->stmts[sql] != NULL
           ? NS_OK
           : ns_link_prepare(seat->link, &seat->stmts[sql], NULL, f->text.p, f->text.n,
                             err);
  *s = seat->stmts[sql];
  return st;
}

/* The statement and its parameters, '*values' to be freed. */
static ns_status bind(ns_adopted *a, ns_seat *seat, ns_sql sql, const ns_call *call,
                      ns_stmt **s, ns_value **values, ns_err *err) {
  const ns_filled *f;
  ns_status st = ns_adopt_fill(a, sql, &f, err);
  *values = NULL;
  if (st == NS_OK)
    st = prepare(a, seat, sql, f, s, err);
  if (st != NS_OK)
    return st;
  if ((*values = malloc((f->n + 1) * sizeof **values)) == NULL)
    return ns_fail(err, NS_ENOMEM, "out of memory");
  for (size_t i = 0; i < f->n; i++)
    (*values)[i] = slot_value(&f->params[i], call);
  return NS_OK;
}

ns_status ns_adopt_run(ns_adopted *a, ns_seat *seat, ns_sql sql,
                       const ns_call *call, ns_stmt **s, ns_err *err) {
  ns_value *values;
  ns_status st = bind(a, seat, sql, call, s, &values, err);
  if (st == NS_OK)
    st = ns_stmt_run(ns_adopt_link(a, seat), *s, values, err);
  free(values);
  return st;
}

ns_status ns_adopt_ask(ns_adopted *a, ns_sql sql, const ns_call *call, ns_stmt **s,
                       ns_err *err) {
  ns_value *values;
  ns_status st = bind(a, NULL, sql, call, s, &values, err);
  if (st == NS_OK)
    st = ns_stmt_ask(a->db->link, *s, values, err);
  free(values);
  return st;
}

bool ns_adopt_is_locked(const ns_adopted *a, ns_status st, const ns_err *err) {
  return st == NS_EBUSY && err->sqlerr == NS_LOCK_WAIT && !a->db->never_fast;
}

ns_status ns_adopt_change(ns_adopted *a, ns_seat *seat, ns_sql sql,
                          const ns_call *call, int64_t patience, ns_stmt **s,
                          ns_err *err) {
  int64_t give_up = ns_mono_us() + patience;
  int64_t pause = PAUSE_FIRST;
  ns_status st = ns_adopt_run(a, seat, sql, call, s, err);
  while (ns_adopt_is_locked(a, st, err) && ns_mono_us() < give_up) {
    ns_sleep_us(ns_jitter(pause, 0.5));
    pause = pause < PAUSE_LAST ? pause * 2 : pause;
    ns_err_clear(err);
    st = ns_adopt_run(a, seat, sql, call, s, err);
  }
  return st;
}
