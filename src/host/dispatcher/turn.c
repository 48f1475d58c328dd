/*
** What a dispatcher's turns go by: the queues that it claims from, the names that its scripts
** handle. And outages, and the signs of life of jobs.
**
** Invariants: a queue that is paused, or that was not asked for, is not served. While no handler
** is known, none is. An outage is logged once, with its end.
*/
#include "dispatcher/dispatcher.h"

#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "ipc/ipc.h"

#define ERROR_FIRST 50000 /* after a failed cycle, doubling */
#define ERROR_LAST (5 * NS_SECOND)

/* -------------------------------------------------------------------- queues */

static void add_queue(nsh_served *s, const nsh_config *cfg, const ns_queue_row *row, int weight) {
  size_t n = s->n + 1;
  if (row->paused) {
    nsh_must(ns_grow(&s->paused, &s->cappaused, s->npaused + 1, sizeof *s->paused));
    s->paused[s->npaused++] = row->id;
    return;
  }
  nsh_must(ns_grow(&s->items, &s->cap, n, sizeof *s->items));
  nsh_must(ns_grow(&s->pools, &s->cappools, n, sizeof *s->pools));
  s->items[s->n] = (ns_weighted_queue){
      .queue_id = row->id, .weight = weight, .limited = row->limited};
  s->pools[s->n++] = nsh_config_pool(cfg, ns_str(row->name));
}

static bool is_named(const nsh_weighted_queue *queue, const ns_queue_row *row) {
  return queue->name.n == strlen(row->name) && memcmp(queue->name.p, row->name, queue->name.n) == 0;
}

static void add_queues(nsh_served *s, const nsh_config *cfg, const ns_queue_row *rows, size_t n) {
  for (size_t i = 0; i < cfg->nqueues; i++)
    for (size_t k = 0; k < n; k++)
      if (is_named(&cfg->queues[i], &rows[k]))
        add_queue(s, cfg, &rows[k], cfg->queues[i].weight);
  for (size_t k = 0; cfg->nqueues == 0 && k < n; k++)
    add_queue(s, cfg, &rows[k], 1);
}

void nsh_served_make(nsh_served *s, const nsh_config *cfg, const ns_queue_row *rows, size_t n) {
  s->n = s->npaused = 0;
  if (!s->closed)
    add_queues(s, cfg, rows, n);
  ns_assert(s->n <= n && !(s->closed && s->n > 0));
  for (size_t i = 0; i < n; i++)
    if (rows[i].id > s->newest)
      s->newest = rows[i].id;
  s->made_at = ns_mono_us();
}

static ns_status make_queues(const nsh_config *cfg, ns_db *db, ns_err *err) {
  ns_status st = NS_OK;
  int64_t id;
  for (size_t i = 0; i < cfg->nqueues && st == NS_OK; i++)
    st = ns_queue_id(db, cfg->queues[i].name, true, &id, err);
  for (size_t i = 0; i < cfg->nreserves && st == NS_OK; i++)
    st = ns_queue_id(db, cfg->reserves[i].name, true, &id, err);
  return st;
}

ns_status nsh_served_open(nsh_served *s, const nsh_config *cfg, ns_db *db, ns_err *err) {
  ns_queue_row *rows;
  size_t n;
  ns_status st = make_queues(cfg, db, err);
  if (st != NS_OK)
    return st;
  if ((st = ns_queues(db, &rows, &n, err)) == NS_OK)
    nsh_served_make(s, cfg, rows, n);
  free(rows);
  return st;
}

size_t nsh_served_share(nsh_served *s, const nsh_room *room) {
  size_t limit = room->open;
  for (size_t i = 0; i < s->n; i++) {
    s->items[i].reserve = s->pools[i] > 0 ? room->own[s->pools[i]] : 0;
    limit += s->items[i].reserve;
  }
  return s->n > 0 ? limit : 0;
}

void nsh_served_free(nsh_served *s) {
  free(s->items);
  free(s->pools);
  free(s->paused);
}

/* --------------------------------------------------------------------- names */

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

int64_t nsh_served_pick(ns_buf *picked, ns_bytes lines, int64_t count, const nsh_config *cfg) {
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
  while (nsh_must(ns_grow(&names, &cap, n + 1, sizeof *names)), next_line(&rest, &names[n]))
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

void nsh_served_queues_json(ns_buf *list, const nsh_config *cfg) {
  ns_buf_addc(list, '[');
  for (size_t i = 0; i < cfg->nqueues; i++) {
    if (i > 0)
      ns_buf_addc(list, ',');
    ns_buf_add_json(list, cfg->queues[i].name);
  }
  ns_buf_addc(list, ']');
}

void nsh_served_reserves_json(ns_buf *list, const nsh_config *cfg) {
  for (size_t i = 0; i < cfg->nreserves; i++) {
    ns_buf_adds(list, i > 0 ? ",[" : "[[");
    ns_buf_add_json(list, cfg->reserves[i].name);
    ns_buf_addf(list, ",%zu]", cfg->reserves[i].workers);
  }
  ns_buf_addc(list, ']');
}

/* ------------------------------------------------------------- outages */

void nsh_back_off(nsh_dispatch *d, const ns_err *err) {
  ns_log(NS_LOG_ERROR, "db.error",
         NS_FIELDS(ns_fs("code", ns_code(err->status)), ns_fi("number", err->sqlerr),
                   ns_fs("message", err->message)));
  nsh_count(&d->exchange->counts.errors[err->status], 1);
  d->error_wait = d->error_wait == 0 ? ERROR_FIRST : d->error_wait * 2;
  d->error_wait = nsh_sooner(d->error_wait, ERROR_LAST);
  d->error_at = ns_mono_us() + d->error_wait;
  if (err->status == NS_EDENIED) /* so that a right granted since counts */
    ns_renew(d->db);
  nsh_exchange_lock(d->exchange);
  d->exchange->cycling = false;
  nsh_exchange_unlock(d->exchange);
}

void nsh_recovered(nsh_dispatch *d) {
  d->error_wait = d->error_at = 0;
  if (atomic_exchange(&d->exchange->away, false))
    ns_log(NS_LOG_INFO, "db.back", NULL, 0);
}

bool nsh_keep_trying(void *arg, const ns_err *why) {
  nsh_dispatch *d = arg;
  nsh_exchange_moved(d->exchange, true);
  if (!atomic_load(&d->opened) || atomic_load(&d->exchange->give_up))
    return false;
  if (atomic_exchange(&d->exchange->away, true))
    return true;
  ns_log(NS_LOG_WARN, "db.lost", NS_FIELDS(ns_fs("why", why->message)));
  d->exchange->notify(d->exchange->notify_arg); /* a host that ends need not wait for it */
  return true;
}

/* ------------------------------------------------------- signs of life */

size_t nsh_turn_signs(const nsh_turn *t, ns_sign *signs) {
  size_t n = 0;
  for (size_t i = 0; i < t->ntouches; i++) {
    const nsh_touch *p = &t->touches[i];
    signs[n++] = (ns_sign){.id = p->id,
                             .run = p->run,
                             .worker_pid = p->pid,
                             .progress = p->progress,
                             .text = {p->text, p->n},
                             .began = p->began};
  }
  return n;
}

static int by_token(const void *a, const void *b) {
  const ns_sign *x = a;
  const ns_sign *y = b;
  return x->id != y->id ? (x->id > y->id) - (x->id < y->id) : (x->run > y->run) - (x->run < y->run);
}

/* There may be as many as the host has workers, so they are sorted. */
void nsh_turn_lost(nsh_dispatch *d, const nsh_turn *t, ns_sign *signs, size_t n) {
  bool any = false;
  qsort(signs, n, sizeof *signs, by_token); /* signs come in the order of workers */
  nsh_exchange_lock(d->exchange);
  for (size_t i = 0; i < t->ntouches; i++) {
    ns_sign key = {.id = t->touches[i].id, .run = t->touches[i].run};
    const ns_sign *s = bsearch(&key, signs, n, sizeof key, by_token);
    if (s != NULL && s->lost) {
      nsh_exchange_lose(d->exchange, &t->touches[i]);
      any = true;
    }
  }
  nsh_exchange_unlock(d->exchange);
  if (any)
    d->exchange->notify(d->exchange->notify_arg);
}
