/*
** A few lines of log: the host, its reserved workers, its busy workers.
*/
#include "dump.h"

#include "clock.h"
#include "log.h"

static void dump_host(const nsh_pools *t) {
  const nsh_tally *tally = &t->tally;
  ns_counters c;
  int64_t outstanding;
  int64_t unsettled;
  nsh_exchange_lock(t->exchange);
  c = t->exchange->counters;
  outstanding = (int64_t)t->exchange->outstanding;
  unsettled = (int64_t)t->exchange->unsettled;
  nsh_exchange_unlock(t->exchange);
  ns_log(NS_LOG_INFO, "dump.host",
         NS_FIELDS(ns_fi("workers", (int64_t)t->up),
                   ns_fi("outstanding", outstanding),
                   ns_fi("backlog", (int64_t)t->backlog),
                   ns_fi("unsettled", unsettled), ns_fi("done", tally->done),
                   ns_fi("failed", tally->failed), ns_fi("again", tally->again),
                   ns_fi("crashed", tally->crashed),
                   ns_fi("timeouts", tally->timeouts), ns_fi("forks", tally->forks),
                   ns_fi("claimed", c.claimed), ns_fi("settled", c.settled),
                   ns_fi("stale", c.stale), ns_fi("sweeps", c.sweeps),
                   ns_fi("swept_us", c.swept), ns_fi("deadlocks", c.deadlocks),
                   ns_fi("lock_waits", c.lock_waits),
                   ns_fi("reconnects", c.reconnects)));
}

/* The exchange is locked. */
static void dump_pool(const nsh_pools *t, size_t pool) {
  const nsh_reserve *r = &t->cfg->reserves[pool - 1];
  ns_log(NS_LOG_INFO, "dump.reserve",
         NS_FIELDS(ns_fb("queue", r->name), ns_fi("workers", (int64_t)r->workers),
                   ns_fi("up", (int64_t)t->pools[pool].up),
                   ns_fi("jobs", (int64_t)t->pools[pool].tasks),
                   ns_fi("backlog", (int64_t)t->pools[pool].backlog.n)));
}

static void dump_pools(nsh_pools *t) {
  nsh_exchange_lock(t->exchange);
  for (size_t i = 1; i < t->npools; i++)
    dump_pool(t, i);
  nsh_exchange_unlock(t->exchange);
}

static void dump_workers(nsh_pools *t, int64_t now) {
  for (size_t i = 0; i < t->nworkers; i++) {
    nsh_process *w = &t->workers[i];
    int64_t since;
    nsh_task *task;
    if (!nsh_process_running(w, &since))
      continue;
    task = nsh_process_task(w, 0);
    ns_log(NS_LOG_INFO, "dump.worker",
           NS_FIELDS(ns_fi("pid", w->pid), ns_fi("id", task->id), ns_fs("name", task->name->text),
                     ns_fi("ms", (now - since) / 1000), ns_fi("ahead", w->n - 1),
                     ns_fs("scripts", w->zygote->version)));
  }
}

void nsh_dump(nsh_pools *t) {
  dump_host(t);
  dump_pools(t);
  dump_workers(t, ns_mono_us());
}
