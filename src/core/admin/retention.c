/*
** Retention: how long, and how many, ended jobs of each queue and outcome are kept. And rows of the
** audit of actions.
**
** A rule by number is worked out by counting. The rows of an outcome are read from the newest
** down, a page at a time. Each queue with such a rule has a cut where it has one more than it
** keeps. That row and all older ones of the queue may go. Nothing is locked meanwhile.
**
** Invariant: a cut had 'most' newer rows of its queue when it was found, so the newest ones stay,
** whatever ends later. No assert: the server has the rows.
*/
#include <stdlib.h>
#include <string.h>

#include "admin/admin.h"

#define FOREVER (INT64_MAX / 2) /* an age that no row has */

const char *const ns_admin_outcomes[NS_OUTCOMES] = {"done", "dead", "cancelled"};

static ns_keep *rule_of(const ns_keeps *k, int64_t queue_id) {
  size_t low = 0;
  size_t high = k->n;
  while (low < high) {
    size_t mid = (low + high) / 2;
    if (k->items[mid].queue_id == queue_id)
      return &k->items[mid];
    if (k->items[mid].queue_id < queue_id)
      low = mid + 1;
    else
      high = mid;
  }
  return NULL;
}

static bool add_rule(ns_keeps *k, ns_keep rule) {
  size_t at = k->n;
  if (!ns_grow(&k->items, &k->cap, k->n + 1, sizeof *k->items))
    return false;
  for (; at > 0 && k->items[at - 1].queue_id > rule.queue_id; at--)
    k->items[at] = k->items[at - 1];
  k->items[at] = rule;
  k->n++;
  return true;
}

/* One age for all queues. */
static ns_status fix_age(ns_keeps *k, int64_t age, ns_err *err) {
  k->n = 0;
  if (!add_rule(k, (ns_keep){.age = age, .most = -1}))
    return ns_no_memory(err);
  ns_admin_rules_recount(k);
  return NS_OK;
}

bool ns_admin_rules_is_plain(const ns_keeps *k) {
  return k->n == 1 && k->items[0].most < 0;
}

void ns_admin_rules_free(ns_retention *r) {
  for (size_t i = 0; i < NS_OUTCOMES; i++)
    free(r->of[i].items);
  ns_buf_free(&r->text);
  memset(r, 0, sizeof *r);
}

/* ----------------------------------------------------------------- reading */

enum { R_QUEUE, R_OUTCOME, R_AGE, R_MOST };

/* A value that a queue's rule lacks is that of all queues, whose rule comes first. */
static bool take_rule(ns_retention *r, const ns_value *row) {
  ns_keeps *k = &r->of[row[R_OUTCOME].i - 1];
  ns_keep rule = {.queue_id = row[R_QUEUE].i, .age = ns_int_or(&row[R_AGE], k->items[0].age),
                  .most = ns_int_or(&row[R_MOST], k->items[0].most)};
  ns_buf_addf(&r->text, "%lld,%lld,%lld,%lld;", (long long)rule.queue_id,
              (long long)row[R_OUTCOME].i, (long long)rule.age, (long long)rule.most);
  if (rule.queue_id != 0)
    return add_rule(k, rule);
  k->items[0] = rule;
  return true;
}

static ns_status read_rules(ns_db *db, ns_retention *r, ns_err *err) {
  const ns_value *row;
  ns_status st = NS_OK;
  for (size_t i = 0; st == NS_OK && i < NS_OUTCOMES; i++)
    st = fix_age(&r->of[i], i == 0 ? NS_KEEP_DONE : NS_KEEP_DEAD, err);
  if (st == NS_OK)
    st = ns_db_run(db, NS_SQL_PRUNE_RULES, NULL, err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_PRUNE_RULES, &row, err)) == NS_OK &&
         row != NULL)
    if (!take_rule(r, row))
      st = ns_no_memory(err);
  for (size_t i = 0; i < NS_OUTCOMES; i++)
    ns_admin_rules_recount(&r->of[i]);
  return st == NS_OK && r->text.oom ? ns_no_memory(err) : st;
}

/* '*changed': they are others than 'r' had; then counting begins anew. */
static ns_status read_anew(ns_db *db, ns_retention *r, bool *changed, ns_err *err) {
  ns_retention now = {0};
  ns_status st = read_rules(db, &now, err);
  *changed = st == NS_OK && (r->of[0].n == 0 || now.text.n != r->text.n ||
                             (now.text.n > 0 && memcmp(now.text.p, r->text.p, now.text.n) != 0));
  if (*changed) {
    ns_retention old = *r;
    *r = now;
    now = old;
  }
  ns_admin_rules_free(&now);
  return st;
}

/* The rules of a host, which stay with its handle: counting goes on where it was. */
static ns_status take_kept(ns_db *db, ns_retention **keep, ns_err *err) {
  bool changed;
  ns_status st;
  if (db->retention == NULL && (db->retention = calloc(1, sizeof *db->retention)) == NULL)
    return ns_no_memory(err);
  *keep = db->retention;
  st = read_anew(db, db->retention, &changed, err);
  if (changed)
    memset(db->pruned_to, 0, sizeof db->pruned_to);
  return st;
}

/* The ages that the caller gives, and rules for the others. */
static ns_status take_given(ns_db *db, ns_retention *keep, const int64_t *given, ns_err *err) {
  bool changed;
  ns_status st = NS_OK;
  if (given[0] == NS_KEEP_BY_RULE || given[1] == NS_KEEP_BY_RULE)
    st = read_anew(db, keep, &changed, err);
  for (size_t i = 0; st == NS_OK && i < NS_OUTCOMES; i++)
    if (given[i] != NS_KEEP_BY_RULE)
      st = fix_age(&keep->of[i], given[i], err);
  return st;
}

ns_status ns_admin_rules_take(ns_db *db, const int64_t *given, bool bounded, ns_retention *own,
                              ns_retention **keep, ns_err *err) {
  for (size_t i = 0; i < NS_OUTCOMES; i++)
    bounded = bounded && given[i] == NS_KEEP_BY_RULE;
  *keep = own;
  return bounded ? take_kept(db, keep, err) : take_given(db, own, given, err);
}

/* ---------------------------------------------------------------- counting */

void ns_admin_rules_recount(ns_keeps *k) {
  k->at = (ns_past_row){INT64_MAX, INT64_MAX};
  k->counted = true;
  for (size_t i = 0; i < k->n; i++) {
    k->items[i].seen = 0;
    k->items[i].cut = (ns_past_row){0, 0};
    k->counted = k->counted && k->items[i].most < 0;
  }
}

/* Any queue may have rows further down that the rule of all queues is for. */
static bool all_found(const ns_keeps *k) {
  for (size_t i = 0; i < k->n; i++)
    if (k->items[i].most >= 0 && (i == 0 || k->items[i].cut.id == 0))
      return false;
  return true;
}

static ns_status count_row(ns_keeps *k, int64_t queue_id, ns_past_row row, ns_err *err) {
  ns_keep *rule = rule_of(k, queue_id);
  k->at = row;
  if (rule == NULL && k->items[0].most >= 0) {
    ns_keep own = {.queue_id = queue_id, .age = k->items[0].age, .most = k->items[0].most};
    if (!add_rule(k, own))
      return ns_no_memory(err);
    rule = rule_of(k, queue_id);
  }
  if (rule != NULL && rule->most >= 0 && rule->cut.id == 0 && ++rule->seen > rule->most)
    rule->cut = row;
  return NS_OK;
}

ns_status ns_admin_rules_count(ns_db *db, const char *outcome, ns_keeps *k, ns_err *err) {
  const ns_value *row;
  size_t n = 0;
  ns_status st = ns_db_run(db, NS_SQL_PRUNE_COUNT,
                           (ns_value[]){ns_vtext(ns_str(outcome)), ns_vint(k->at.finished_at),
                                        ns_vint(k->at.finished_at), ns_vint(k->at.id),
                                        ns_vint(NS_PAST_PAGE)},
                           err);
  while (st == NS_OK && (st = ns_db_row(db, NS_SQL_PRUNE_COUNT, &row, err)) == NS_OK &&
         row != NULL) {
    st = count_row(k, row[2].i, (ns_past_row){row[1].i, row[0].i}, err);
    n++;
  }
  k->counted = st == NS_OK && (n < NS_PAST_PAGE || all_found(k));
  return st;
}

/* ------------------------------------------------------------------ asking */

static bool is_cut(const ns_keep *rule, ns_past_row row) {
  const ns_past_row *cut = &rule->cut;
  return cut->id != 0 && (row.finished_at < cut->finished_at ||
                          (row.finished_at == cut->finished_at && row.id <= cut->id));
}

bool ns_admin_rules_goes(const ns_keeps *k, int64_t queue_id, int64_t age, ns_past_row row) {
  const ns_keep *rule = rule_of(k, queue_id);
  if (rule == NULL)
    rule = &k->items[0];
  return (rule->age >= 0 && age >= rule->age) || is_cut(rule, row);
}

void ns_admin_rules_bounds(const ns_keeps *k, int64_t *age, int64_t *cut) {
  *age = FOREVER;
  *cut = 0;
  for (size_t i = 0; i < k->n; i++) {
    const ns_keep *rule = &k->items[i];
    if (rule->age >= 0 && rule->age < *age)
      *age = rule->age;
    if (rule->cut.finished_at > *cut)
      *cut = rule->cut.finished_at;
  }
}

/* -------------------------------------------------------------- the audit */

#define KEEP_AUDIT INT64_C(7776000000000) /* µs: 90 days */
#define MOST_AUDIT 100000                 /* rows */

ns_status ns_admin_audit_prune(ns_db *db, ns_err *err) {
  const ns_value *row = NULL;
  const ns_value limits[] = {ns_vint(KEEP_AUDIT), ns_vint(MOST_AUDIT)};
  ns_value until;
  ns_status st = ns_db_run(db, NS_SQL_PRUNE_AUDIT_UNTIL, limits, err);
  if (st == NS_OK)
    st = ns_db_row(db, NS_SQL_PRUNE_AUDIT_UNTIL, &row, err);
  if (st != NS_OK || row == NULL)
    return st;
  until = row[0];
  return ns_db_run(db, NS_SQL_PRUNE_AUDIT, &until, err);
}

static void closing(ns_db *db) {
  if (db->retention != NULL)
    ns_admin_rules_free(db->retention);
  free(db->retention);
  db->retention = NULL;
}

const ns_hooks ns_admin_retention_hooks = {.closing = closing};
