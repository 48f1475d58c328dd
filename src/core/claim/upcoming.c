/*
** What is scheduled and will be claimed here: whoever ends when nothing is left waits for
** that, and for nothing else. The rows are chosen as a claim chooses them, by queue and
** kind, and by the name itself, which a kind may share with others.
**
** Below the floor of promotion nothing is looked for: ns_looked_everywhere says when that
** can be trusted.
*/
#include <stdio.h>

#include "handle.h"

#define QUEUES_MARK "(queues)"
#define MOST 1000 /* rows that are read, and so jobs that are counted */

/* A row: run_at, now, name, queue. */
enum { U_RUN_AT, U_NOW, U_NAME, U_QUEUE };

/* The statement for these queues: ids are numbers that we print ourselves. */
static void write_text(const ns_db *db, const ns_feed *feeds, size_t n, ns_buf *text) {
  ns_buf chosen = NS_BUF_INIT;
  ns_buf list = NS_BUF_INIT;
  for (size_t i = 0; i < n; i++)
    ns_buf_addf(&list, "%c%lld", i > 0 ? ',' : '(', (long long)feeds[i].queue_id);
  ns_buf_addc(&list, ')');
  ns_filter_fill(&db->only, &chosen, NS_SQL_CLAIM_UPCOMING);
  ns_buf_addc(&chosen, '\0');
  if (!chosen.oom)
    ns_buf_fill(text, chosen.p, QUEUES_MARK, ns_buf_bytes(&list));
  text->oom = text->oom || chosen.oom || list.oom;
  ns_buf_free(&chosen);
  ns_buf_free(&list);
}

static void copy(char *to, size_t size, ns_bytes from) {
  snprintf(to, size, "%.*s", (int)from.n, from.p);
}

static void add(ns_upcoming *u, const ns_value *row) {
  u->last = row[U_RUN_AT].i;
  if (u->n++ > 0)
    return;
  u->first = u->last;
  u->in = u->first > row[U_NOW].i ? u->first - row[U_NOW].i : 0;
  copy(u->name, sizeof u->name, row[U_NAME].s);
  copy(u->queue, sizeof u->queue, row[U_QUEUE].s);
}

static ns_status collect(ns_db *db, ns_stmt *s, ns_upcoming *out, ns_err *err) {
  const ns_value *row;
  ns_status st;
  while ((st = ns_stmt_fetch(db->link, s, &row, err)) == NS_OK && row != NULL)
    if (ns_filter_has(&db->only, row[U_NAME].s))
      add(out, row);
  return st;
}

ns_status ns_look_ahead(ns_db *db, const ns_feed *feeds, size_t nfeeds, int64_t within,
                        ns_upcoming *out, ns_err *err) {
  const ns_value params[] = {ns_vint(db->due_floor), ns_vint(within), ns_vint(MOST)};
  ns_buf text = NS_BUF_INIT;
  ns_stmt *s;
  ns_status st;
  *out = (ns_upcoming){0};
  if (nfeeds == 0)
    return NS_OK;
  write_text(db, feeds, nfeeds, &text);
  if (text.oom)
    st = ns_no_memory(err);
  else if ((st = ns_ready(db, err)) == NS_OK &&
           (st = ns_prepared(db, &s, ns_buf_bytes(&text), err)) == NS_OK &&
           (st = ns_stmt_run(db->link, s, params, err)) == NS_OK)
    st = collect(db, s, out, err);
  ns_buf_free(&text);
  return st;
}
