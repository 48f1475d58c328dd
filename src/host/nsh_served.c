/*
** Lists of names, a line each. No name has a line break in it.
*/
#include "nsh_served.h"

#include <string.h>

#include "nsh_memory.h"

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
