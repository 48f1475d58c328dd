/*
** Queues become feeds anew whenever they are read: one may have been made, paused
** or resumed meanwhile.
*/
#include "dispatcher/feeds.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/alloc.h"
#include "ns_time.h"

void nsh_feeds_free(nsh_feeds *f) {
  free(f->items);
  free(f->pools);
  free(f->paused);
}

static void add(nsh_feeds *f, const nsh_config *cfg, const ns_queue_row *row,
                int weight) {
  size_t n = f->n + 1;
  if (row->paused) {
    nsh_must(ns_grow(&f->paused, &f->cappaused, f->npaused + 1, sizeof *f->paused));
    f->paused[f->npaused++] = row->id;
    return;
  }
  nsh_must(ns_grow(&f->items, &f->cap, n, sizeof *f->items));
  nsh_must(ns_grow(&f->pools, &f->cappools, n, sizeof *f->pools));
  f->items[f->n] = (ns_feed){.queue_id = row->id, .weight = weight};
  f->pools[f->n++] = nsh_config_pool(cfg, ns_str(row->name));
}

static bool is_named(const nsh_feed *feed, const ns_queue_row *row) {
  return feed->name.n == strlen(row->name) &&
         memcmp(feed->name.p, row->name, feed->name.n) == 0;
}

static void add_all(nsh_feeds *f, const nsh_config *cfg,
                    const ns_queue_row *rows, size_t n) {
  for (size_t i = 0; i < cfg->nqueues; i++)
    for (size_t k = 0; k < n; k++)
      if (is_named(&cfg->queues[i], &rows[k]))
        add(f, cfg, &rows[k], cfg->queues[i].weight);
  for (size_t k = 0; cfg->nqueues == 0 && !cfg->no_queues && k < n; k++)
    add(f, cfg, &rows[k], 1);
}

void nsh_feeds_make(nsh_feeds *f, const nsh_config *cfg,
                    const ns_queue_row *rows, size_t n) {
  f->n = f->npaused = 0;
  if (!f->closed)
    add_all(f, cfg, rows, n);
  for (size_t i = 0; i < n; i++)
    if (rows[i].id > f->newest)
      f->newest = rows[i].id;
  f->made_at = ns_mono_us();
}

static ns_status make_queues(const nsh_config *cfg, ns_db *db, ns_err *err) {
  ns_status st = NS_OK;
  int64_t id;
  for (size_t i = 0; i < cfg->nqueues && st == NS_OK; i++)
    st = ns_queue_id(db, cfg->queues[i].name, true, &id, err);
  for (size_t i = 0; i < cfg->nreserves && st == NS_OK; i++)
    if (!nsh_config_is_adopted(cfg, cfg->reserves[i].name))
      st = ns_queue_id(db, cfg->reserves[i].name, true, &id, err);
  return st;
}

ns_status nsh_feeds_open(nsh_feeds *f, const nsh_config *cfg, ns_db *db,
                         ns_err *err) {
  ns_queue_row *rows;
  size_t n;
  ns_status st = make_queues(cfg, db, err);
  if (st != NS_OK)
    return st;
  if ((st = ns_queues(db, &rows, &n, err)) == NS_OK)
    nsh_feeds_make(f, cfg, rows, n);
  free(rows);
  return st;
}

size_t nsh_feeds_limit(nsh_feeds *f, const nsh_room *room) {
  size_t limit = room->open;
  for (size_t i = 0; i < f->n; i++) {
    f->items[i].reserve = f->pools[i] > 0 ? room->own[f->pools[i]] : 0;
    limit += f->items[i].reserve;
  }
  return f->n > 0 ? limit : 0;
}
