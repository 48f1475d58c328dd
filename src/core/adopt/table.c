/*
** Adopted tables of a handle: their list, their end, and what a fork does to them.
**
** Invariant: a table belongs to the handle that adopted it and ends with it; who
** closes gives its rows back before the holder leaves.
*/
#include "adopt/table.h"
#include "db/db.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void free_seats(ns_adopted *a, bool foreign) {
  for (size_t i = 0; i < a->nseats; i++)
    ns_link_close(a->seats[i].link, foreign);
  free(a->seats);
  a->seats = NULL;
  a->nseats = a->capseats = 0;
}

static void adopted_free(ns_adopted *a) {
  free_seats(a, a->process != getpid());
  ns_ear_close(a->ear);
  for (size_t i = 0; i < NS_SQL_COUNT; i++) {
    ns_buf_free(&a->stmts[i].text);
    free(a->stmts[i].params);
  }
  free(a->grips);
  free(a->resets.items);
  free(a->refusals.items);
  ns_buf_free(&a->refusals.ids);
  ns_buf_free(&a->into);
  ns_buf_free(&a->host);
  ns_adopt_forget_map(a);
  free(a);
}

void ns_adopt_own(ns_adopted *a) {
  if (a->process == getpid())
    return;
  free_seats(a, true);
  a->n = 0;
  a->in_doubt = 0;
  a->process = getpid();
}

static void name_host(ns_adopted *a) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  ns_buf_adds(&a->host, host);
}

/* People may decide things of it from now on. Who may not write that can still look. */
static ns_status make_known(ns_adopted *a, ns_err *err) {
  ns_status st;
  if (ns_in_transaction(a->db))
    return NS_OK; /* its first claim does it */
  st = ns_adopt_control(a, err);
  return st == NS_EDENIED ? NS_OK : st;
}

ns_status ns_adopt(ns_db *db, const ns_mapping *map, ns_adopted **out,
                   int64_t *number, ns_err *err) {
  ns_adopted *a = calloc(1, sizeof *a);
  ns_status st;
  *out = NULL;
  ns_err_clear(err);
  if (a == NULL ||
      !ns_grow(&db->adopted, &db->capadopted, db->nadopted + 1, sizeof a)) {
    free(a);
    return ns_fail(err, NS_ENOMEM, "out of memory");
  }
  a->db = db;
  a->process = getpid();
  a->error_to = INT64_MIN;
  name_host(a);
  if ((st = ns_db_ready(db, err)) == NS_OK)
    st = ns_adopt_check(a, map, err);
  if (st == NS_OK && db->is_host) /* all it does is claim; other holders may drain */
    st = ns_adopt_lockable(a, err);
  if (st == NS_OK)
    st = ns_adopt_rings(a, err);
  if (st == NS_OK)
    st = make_known(a, err);
  if (st != NS_OK) {
    adopted_free(a);
    return st;
  }
  db->adopted[db->nadopted++] = *out = a;
  a->number = (int64_t)db->nadopted;
  if (number != NULL)
    *number = a->number;
  return NS_OK;
}

ns_adopted *ns_adopted_at(ns_db *db, int64_t number) {
  return number >= 1 && (uint64_t)number <= db->nadopted
             ? db->adopted[number - 1]
             : NULL;
}

/* Writes in base 36, which CONV() reads and a collation without case bears; returns where
** it ends. */
static char *put_base36(char *out, uint64_t v) {
  static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
  char back[13]; /* as many as 64 bits take */
  size_t n = 0;
  do {
    back[n++] = digits[v % 36];
    v /= 36;
  } while (v > 0);
  while (n > 0)
    *out++ = back[--n];
  return out;
}

ns_bytes ns_adopt_claimant(char out[NS_CLAIMANT], int64_t holder,
                           int64_t token) {
  char *end = out;
  memcpy(end, "ns:", 3);
  end = put_base36(end + 3, (uint64_t)holder);
  *end++ = ':';
  end = put_base36(end, (uint64_t)token);
  *end = '\0';
  return (ns_bytes){out, (size_t)(end - out)};
}

/* One release per claim that is left. */
static void give_all_back(ns_adopted *a) {
  ns_err err;
  ns_verdict *all = calloc(a->n + 1, sizeof *all);
  size_t n = a->n;
  if (all == NULL)
    return; /* other holders find it dead, or overdue */
  for (size_t i = 0; i < n; i++)
    all[i] = (ns_verdict){.id = a->grips[i].id, .run = a->grips[i].run,
                          .kind = NS_RELEASE};
  if (n > 0)
    ns_adopted_settle(a, all, n, &err);
  free(all);
}

static void leave_all(ns_db *db) {
  for (size_t i = 0; i < db->nadopted; i++)
    give_all_back(db->adopted[i]);
}

static void free_all(ns_db *db) {
  for (size_t i = 0; i < db->nadopted; i++)
    adopted_free(db->adopted[i]);
  free(db->adopted);
  db->adopted = NULL;
  db->nadopted = db->capadopted = 0;
}

/* ------------------------------------------------------------------- hooks */

static void closing(ns_db *db) {
  if (!ns_is_foreign(db))
    leave_all(db);
  free_all(db);
}

const ns_hooks ns_adopt_hooks = {.closing = closing};
