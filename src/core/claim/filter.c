/*
** The set of names as two texts, made once when it is given: a handle claims with the
** same set again and again.
*/
#include "claim/filter.h"

#include <stdlib.h>
#include <string.h>

#include "db/kind.h"
#include "handle.h"

#define KINDS_MARK "/*kinds*/"

void ns_filter_free(ns_filter *o) {
  ns_buf_free(&o->names);
  ns_buf_free(&o->kinds);
}

const char *ns_filter_kinds(const ns_filter *o) {
  return o->kinds.n > 0 ? o->kinds.p : NULL;
}

void ns_filter_fill(const ns_filter *o, ns_buf *text, ns_sql sql) {
  const char *kinds = ns_filter_kinds(o);
  if (kinds != NULL && strstr(ns_sql_texts[sql], KINDS_MARK) != NULL)
    ns_buf_fill(text, ns_sql_texts[sql], KINDS_MARK, ns_str(kinds));
  else
    ns_buf_adds(text, ns_sql_texts[sql]);
}

bool ns_filter_has(const ns_filter *o, ns_bytes name) {
  for (size_t at = 0; at < o->names.n; at += strlen(o->names.p + at) + 1)
    if (strlen(o->names.p + at) == name.n &&
        memcmp(o->names.p + at, name.p, name.n) == 0)
      return true;
  return o->kinds.n == 0;
}

static int by_bytes(const void *a, const void *b) {
  const ns_bytes *x = a;
  const ns_bytes *y = b;
  int order = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);
  return order != 0 ? order : (x->n > y->n) - (x->n < y->n);
}

/* 'names' are sorted. False: out of memory. */
static bool make(ns_filter *o, const ns_bytes *names, size_t n) {
  ns_buf_addf(&o->kinds, " AND kind IN (%d", NS_KIND_ANY);
  for (size_t i = 0; i < n; i++) {
    ns_buf_add(&o->names, names[i].p, names[i].n);
    ns_buf_addc(&o->names, '\0');
    ns_buf_addf(&o->kinds, ",%lld", (long long)ns_kind_of(names[i]));
  }
  ns_buf_addc(&o->kinds, ')');
  ns_buf_addc(&o->kinds, '\0');
  return !o->names.oom && !o->kinds.oom;
}

static bool same(const ns_filter *a, const ns_filter *b) {
  return a->kinds.n == b->kinds.n && a->names.n == b->names.n &&
         (a->names.n == 0 || memcmp(a->names.p, b->names.p, a->names.n) == 0);
}

/* What the floors hide may be of the new names. */
static void replace(ns_db *db, const ns_filter *o) {
  ns_filter_free(&db->only);
  db->only = *o;
  db->lanes.some = ns_filter_kinds(o) != NULL;
  db->alone.id = 0;
  ns_lanes_drop_floors(&db->lanes);
}

ns_status ns_claim_only(ns_db *db, const ns_bytes *names, size_t n, ns_err *err) {
  ns_filter o = {NS_BUF_INIT, NS_BUF_INIT};
  ns_bytes *sorted = malloc((n + 1) * sizeof *sorted);
  bool ok = sorted != NULL;
  if (ok && names != NULL) {
    for (size_t i = 0; i < n; i++)
      sorted[i] = names[i];
    qsort(sorted, n, sizeof *sorted, by_bytes);
    ok = make(&o, sorted, n);
  }
  free(sorted);
  if (ok && !same(&db->only, &o))
    replace(db, &o);
  else
    ns_filter_free(&o);
  return ok ? NS_OK : ns_no_memory(err);
}
