/*
** Lists of names, a line each. No name has a line break in it.
*/
#include "dispatcher/served.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/alloc.h"
#include "ns_log.h"

/* Takes the first line off. False: there is none. */
static bool next_line(ns_bytes *lines, ns_bytes *line) {
  const char *end;
  if (lines->n == 0)
    return false;
  end = memchr(lines->p, '\n', lines->n);
  *line = *lines;
  if (end == NULL) {
    lines->n = 0;
    return true;
  }
  line->n = (size_t)(end - lines->p);
  lines->p = end + 1;
  lines->n -= line->n + 1;
  return true;
}

static bool same(ns_bytes a, ns_bytes b) {
  return a.n == b.n && memcmp(a.p, b.p, a.n) == 0;
}

static bool is_among(ns_bytes lines, ns_bytes name) {
  ns_bytes line;
  while (next_line(&lines, &line))
    if (same(line, name))
      return true;
  return false;
}

static void add_line(ns_buf *list, ns_bytes name) {
  if (list->n > 0)
    ns_buf_addc(list, '\n');
  ns_buf_add(list, name.p, name.n);
}

int64_t nsh_served_count(ns_bytes lines) {
  ns_bytes line;
  int64_t n = 0;
  while (next_line(&lines, &line))
    n++;
  return n;
}

int64_t nsh_served_pick(ns_buf *picked, ns_bytes lines, int64_t count,
                        const nsh_config *cfg) {
  bool more = nsh_served_count(lines) < count;
  int64_t n = 0;
  if (cfg->nonly == 0) {
    ns_buf_add(picked, lines.p, lines.n);
    return count;
  }
  for (size_t i = 0; i < cfg->nonly; i++)
    if (more || is_among(lines, cfg->only[i])) {
      add_line(picked, cfg->only[i]);
      n++;
    } else
      ns_log(NS_LOG_WARN, "only.no_handler", NS_FIELDS(ns_fb("name", cfg->only[i])));
  return n;
}

ns_status nsh_served_claim(ns_db *db, const char *lines, ns_err *err) {
  ns_bytes rest = lines != NULL ? ns_str(lines) : NS_NONE;
  ns_bytes *names = NULL;
  size_t cap = 0;
  size_t n = 0;
  ns_status st;
  nsh_must(ns_grow(&names, &cap, 1, sizeof *names));
  while (nsh_must(ns_grow(&names, &cap, n + 1, sizeof *names)),
         next_line(&rest, &names[n]))
    n++;
  st = ns_claim_only(db, lines != NULL ? names : NULL, n, err);
  free(names);
  return st;
}

void nsh_served_json(ns_buf *list, ns_bytes lines, int64_t count) {
  ns_bytes name;
  int64_t n;
  ns_buf_addc(list, '[');
  for (n = 0; next_line(&lines, &name); n++) {
    if (n > 0)
      ns_buf_addc(list, ',');
    ns_buf_add_json(list, name);
  }
  if (n < count)
    ns_buf_adds(list, n > 0 ? ",null" : "null");
  ns_buf_addc(list, ']');
}

void nsh_served_text(ns_buf *text, ns_bytes lines) {
  ns_bytes name;
  for (bool first = true; next_line(&lines, &name); first = false) {
    if (!first)
      ns_buf_adds(text, ", ");
    ns_buf_add(text, name.p, name.n);
  }
}

void nsh_served_queues(ns_buf *list, const nsh_config *cfg) {
  ns_buf_addc(list, '[');
  for (size_t i = 0; i < cfg->nqueues; i++) {
    if (i > 0)
      ns_buf_addc(list, ',');
    ns_buf_add_json(list, cfg->queues[i].name);
  }
  ns_buf_addc(list, ']');
}

bool nsh_served_has(const char *list, ns_bytes name) {
  ns_buf item = NS_BUF_INIT;
  size_t n = strlen(list);
  bool more = n > 5 && strcmp(list + n - 5, "null]") == 0;
  bool has;
  ns_buf_add_json(&item, name);
  nsh_must(!item.oom);
  has = memmem(list, n, item.p, item.n) != NULL; /* quotes inside have a backslash */
  ns_buf_free(&item);
  return has || more;
}

void nsh_served_reserves(ns_buf *list, const nsh_config *cfg) {
  for (size_t i = 0; i < cfg->nreserves; i++) {
    ns_buf_adds(list, i > 0 ? ",[" : "[[");
    ns_buf_add_json(list, cfg->reserves[i].name);
    ns_buf_addf(list, ",%zu]", cfg->reserves[i].workers);
  }
  ns_buf_addc(list, ']');
}
