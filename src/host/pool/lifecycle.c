/*
** The life of worker processes: how they begin and end, and what is looked after in between. The
** meaning of an end for the running job depends on the side that wanted it.
**
** A job is expected to be short until it has been seen to be long. Then the tasks behind it are
** taken back, and other workers run the jobs claimed for its worker. Jobs that no worker can
** start go back to the database. The dump is a few lines of log: the host, its reserved workers,
** its busy workers.
**
** Invariant: a place is filled again only after its last process was reported dead, so a
** shared slot has one worker at a time.
*/
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "base.h"
#include "pool/pool.h"

#define FORK_RETRY NS_SECOND
/* Statuses of workers that died with their zygote. */
#define OWN_FAULT (-1)    /* one job was running: it is the cause */
#define SHARED_FAULT (-2) /* one of several workers is at fault */
#define STUCK_US 20000          /* a job behind one this old is taken back */
#define LONG_US 100000          /* nothing is claimed ahead for its worker */
#define UNRESPONSIVE_US (10 * NS_SECOND) /* until a worker has to start its tasks, or leave */
#define MOMENT_US (NS_SECOND / 2) /* the backlog waits so long for a worker */
#define TICK_FINE 20000           /* period while a worker works */
#define TICK_COARSE 100000      /* with many workers */
#define FINE_WORKERS 256

/* ------------------------------------------------------------- birth and end */

void nsh_lifecycle_generation(nsh_pools *t, nsh_zygote *z) {
  t->zygote = z;
  for (size_t i = 0; i < t->nworkers; i++) {
    nsh_process *w = &t->workers[i];
    if (w->phase == NSH_EMPTY)
      continue;
    nsh_pool_age(w, strcmp(w->zygote->version, z->version) != 0);
    if (w->phase == NSH_UP && w->zygote != z)
      nsh_process_leave(w);
  }
  nsh_lifecycle_fill(t);
}

static bool may_fork(const nsh_pools *t, int64_t now) {
  return t->zygote != NULL && !t->closing && now >= t->fork_at;
}

/* How many places are taken by workers that count. */
static size_t count_taken(const nsh_pools *t) {
  size_t n = 0;
  for (size_t i = 0; i < t->nworkers; i++)
    n += t->workers[i].phase != NSH_EMPTY && !t->workers[i].surplus;
  return n;
}

/* The places of reserved workers come first, so they are filled first. */
void nsh_lifecycle_fill(nsh_pools *t) {
  size_t taken = count_taken(t);
  if (taken >= t->wanted || !may_fork(t, ns_mono_us()))
    return;
  for (size_t i = 0; i < t->nworkers && taken < t->wanted; i++)
    if (t->workers[i].phase == NSH_EMPTY) {
      nsh_process_fork(&t->workers[i], t->zygote);
      taken++;
    }
  for (; taken < t->wanted; taken++) {
    nsh_process *w = nsh_pool_add_place(t);
    if (w == NULL)
      return; /* workers that are to leave still have the places */
    nsh_process_fork(w, t->zygote);
  }
}

/* Who is to leave first? Workers that leave anyway, then workers without a job. */
static int cost_of(const nsh_process *w) {
  return w->phase == NSH_RETIRING ? 0 : w->n == 0 ? 1 : 2;
}

/* Has up to 'n' workers of this cost leave; returns how many are left to find. */
static size_t dismiss_some(nsh_pools *t, size_t n, int cost) {
  for (size_t i = t->nworkers; i-- > 0 && n > 0;) {
    nsh_process *w = &t->workers[i];
    if (w->pool != 0 || w->phase == NSH_EMPTY || w->surplus || cost_of(w) != cost)
      continue;
    w->surplus = true;
    n--;
    if (w->phase == NSH_UP)
      nsh_process_leave(w);
  }
  return n;
}

void nsh_lifecycle_resize(nsh_pools *t, size_t n) {
  size_t taken = count_taken(t);
  size_t many = taken > n ? taken - n : 0;
  t->wanted = n;
  for (int cost = 0; cost <= 2; cost++)
    many = dismiss_some(t, many, cost);
  nsh_lifecycle_fill(t);
}

/* The worker exists; a worker of an earlier generation, or one too many, leaves at once. */
void nsh_lifecycle_forked(nsh_pools *t, uint32_t index, pid_t pid, int why) {
  nsh_process *w;
  if (index >= t->nworkers || t->workers[index].phase == NSH_EMPTY)
    return;
  w = &t->workers[index];
  if (pid == 0) {
    ns_log(NS_LOG_ERROR, "worker.no_fork", NS_FIELDS(ns_fs("error",
                                                           strerror(why))));
    nsh_process_release(w);
    nsh_pool_enter(w, NSH_EMPTY);
    t->fork_at = ns_mono_us() + FORK_RETRY;
    return;
  }
  ns_assert(w->pid == 0); /* one worker at a time */
  w->pid = pid;
  t->tally.forks++;
  if (w->phase != NSH_STARTING)
    return;
  nsh_pool_enter(w, NSH_UP);
  if (w->zygote != t->zygote || w->surplus)
    nsh_process_leave(w);
  nsh_pool_list(w, true);
  nsh_pool_hand_out(t);
}

/* How a job failed that was killed to stop it: in its worker's words, if it
** found any. */
static ns_bytes failure_text(nsh_process *w, char out[160]) {
  char seconds[NS_NUMBER_SIZE];
  const nsh_task *task = nsh_process_task(w, 0);
  ns_bytes said = nsh_slot_said(w->slot, task->seq);
  if (said.p != NULL)
    return said;
  if (w->why == NSH_WHY_MEMORY)
    return ns_str("memory limit");
  snprintf(out, 160, "timeout after %s s", ns_number_seconds(nsh_process_timeout(w), seconds));
  return ns_str(out);
}

/* How a job crashed. */
static ns_bytes crash_text(const nsh_process *w, int status, char out[160]) {
  char how[96];
  nsh_exit_describe(how, status);
  if (w->blame != NULL && status >= 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
    snprintf(out, 160, "worker killed by the host: %s", w->blame);
  else
    snprintf(out, 160, "worker %s", how);
  return ns_str(out);
}

/* Ends the job that was running when its worker died: by our hand, by its own fault, or by
** another's ('status' SHARED_FAULT). */
static void end_running(nsh_process *w, int64_t since, int status) {
  char text[160];
  nsh_why why = nsh_process_terminated(w) ? w->why : NSH_WHY_NONE;
  ns_verdict v = {.kind = NS_RELEASE, .delay = -1};
  if (why == NSH_WHY_TIMEOUT || why == NSH_WHY_MEMORY) {
    v.kind = NS_FAIL;
    v.error = failure_text(w, text);
    v.most = nsh_process_attempts(w);
  } else if (why == NSH_WHY_NONE) {
    v.kind = status == SHARED_FAULT ? NS_LOST : NS_CRASH;
    v.error = crash_text(w, status, text);
  }
  nsh_messages_end(w, &v, ns_mono_us() - since);
}

/* Ends the tasks of a worker that is gone. */
static void end_tasks(nsh_process *w, int status) {
  int64_t since;
  uint32_t seq;
  nsh_pool_lock(w->pools);
  if (nsh_process_running(w, &since)) {
    seq = nsh_process_task(w, 0)->seq;
    while (w->n > 0 && nsh_process_task(w, 0)->seq == seq)
      end_running(w, since, status);
  }
  while (w->n > 0)
    nsh_messages_end(w, &(ns_verdict){.kind = NS_RELEASE, .delay = -1, .go_on = 1}, 0);
  nsh_pool_unlock(w->pools);
}

/* An end that was not ordered; many of them in a row slow the forking down. 'ran': a job, with a
** line that tells of it. */
static void note_crash(nsh_process *w, int status, bool ran) {
  nsh_pools *t = w->pools;
  int64_t now = ns_mono_us();
  int64_t delay;
  char how[96];
  char seconds[NS_NUMBER_SIZE];
  nsh_exit_describe(how, status);
  ns_log(ran ? NS_LOG_DEBUG : NS_LOG_WARN, "worker.died",
         NS_FIELDS(ns_fi("pid", w->pid), ns_fs("how", how)));
  nsh_crash_loop_crash(&t->crash_loop, now);
  delay = nsh_crash_loop_delay(&t->crash_loop);
  if (delay > 0) {
    ns_log(NS_LOG_ERROR, "worker.crash_loop",
           NS_FIELDS(ns_fi("crashes", t->crash_loop.crashes),
                     ns_fn("wait_seconds", ns_number_seconds(delay, seconds))));
    t->fork_at = now + delay;
  }
}

static void release_worker(nsh_process *w, int status) {
  nsh_pools *t = w->pools;
  bool expected;
  bool ran;
  int64_t since;
  nsh_process_release(w); /* its last words may be that it leaves */
  expected = w->phase == NSH_RETIRING;
  ran = nsh_process_running(w, &since);
  end_tasks(w, status);
  if (!expected && !t->closing)
    note_crash(w, status, ran);
  nsh_pool_enter(w, NSH_EMPTY);
  w->pid = 0;
}

void nsh_lifecycle_exited(nsh_pools *t, uint32_t index, int status) {
  bool replaced;
  if (index >= t->nworkers || t->workers[index].phase == NSH_EMPTY)
    return;
  replaced = !t->workers[index].surplus;
  release_worker(&t->workers[index], status);
  if (replaced && may_fork(t, ns_mono_us()))
    nsh_process_fork(&t->workers[index], t->zygote);
  nsh_pool_hand_out(t);
}

void nsh_lifecycle_orphaned(nsh_pools *t, nsh_zygote *z) {
  size_t running = 0;
  int64_t since;
  for (size_t i = 0; i < t->nworkers; i++)
    running += t->workers[i].phase != NSH_EMPTY && t->workers[i].zygote == z &&
               nsh_process_running(&t->workers[i], &since);
  for (size_t i = 0; i < t->nworkers; i++)
    if (t->workers[i].phase != NSH_EMPTY && t->workers[i].zygote == z) {
      nsh_pool_enter(&t->workers[i], NSH_RETIRING); /* one death is logged, not all */
      release_worker(&t->workers[i], running > 1 || z->condemned ? SHARED_FAULT : OWN_FAULT);
    }
}

/* ------------------------------------------------------ the watch: a worker */

/* Does it attend to a long job? */
static bool watch_job(nsh_process *w, int64_t now) {
  nsh_pools *t = w->pools;
  int64_t since;
  int64_t timeout;
  bool late = false;
  nsh_pool_lock(t);
  if (nsh_process_running(w, &since) && now - since > STUCK_US &&
      atomic_load(&w->slot->current) != nsh_process_task(w, 0)->seq)
    nsh_pool_read(w); /* the job behind its verdicts was expected to be short */
  if (nsh_process_running(w, &since)) {
    timeout = nsh_process_timeout(w);
    if (timeout > 0 && now - since > timeout)
      nsh_process_stop(w, NSH_WHY_TIMEOUT, NSH_STEP, "");
    if (atomic_load(&w->slot->over) == nsh_process_task(w, 0)->seq + 1)
      nsh_process_stop(w, NSH_WHY_MEMORY, NSH_STEP, "");
    w->stuck = now - since > STUCK_US;
    if (w->n > 1 && w->stuck)
      nsh_process_recall(w);
    late = now - since > LONG_US && nsh_pool_attends(w);
    if (t->exchange->ntouches < NSH_TOUCHES_MAX && nsh_messages_due(w, since, now))
      nsh_messages_touch(w, now);
  }
  nsh_pool_unlock(t);
  return late;
}

/* Has an idle worker been given a job and not started it for long, or been told to leave
** and not left? It is stopped or stuck, and no timeout of a job would ever end that. */
static bool is_unresponsive(nsh_process *w, int64_t now) {
  int64_t since;
  bool asked = w->phase == NSH_UP ? w->n > 0 : w->phase == NSH_RETIRING && !w->forced;
  uint32_t seq = w->n > 0 ? nsh_process_task(w, 0)->seq : w->next_seq;
  if (!asked || nsh_process_running(w, &since)) {
    w->idle_at = 0;
    return false;
  }
  if (w->idle_at == 0 || w->idle_seq != seq) {
    w->idle_seq = seq;
    w->idle_at = now;
  }
  return now - w->idle_at > UNRESPONSIVE_US;
}

/* Replaces a worker: its jobs were not started, so they go back without blame. */
static void replace_worker(nsh_process *w) {
  ns_log(NS_LOG_WARN, "worker.unresponsive", NS_FIELDS(ns_fi("pid", w->pid)));
  nsh_process_retire(w);
  nsh_process_kill(w, SIGKILL);
}

/* -------------------------------------------------------- the watch: a line */

/* Is there no worker that may take the jobs of a line? */
static bool is_unattended(const nsh_pools *t, size_t line) {
  return t->pools[line].backlog.n > 0 && t->pools[line].up == 0 &&
         t->pools[0].up == 0;
}

/* Has a line no worker to start it, and none for a moment? Other hosts may have its jobs. */
static bool is_any_stranded(nsh_pools *t, int64_t now) {
  bool any = false;
  for (size_t i = 0; i < t->npools; i++)
    any = any || is_unattended(t, i);
  if (!any) {
    t->down_at = 0;
    return false;
  }
  if (t->down_at == 0)
    t->down_at = now;
  return t->fork_at - now > MOMENT_US || now - t->down_at > MOMENT_US;
}

/* Has every worker that takes jobs of a line a long one? Then jobs claimed ahead for them may
** as well run elsewhere. */
static bool is_overtaken(const nsh_pools *t, size_t line) {
  const nsh_pool *p = &t->pools[line];
  return p->backlog.n > 0 && p->late >= nsh_pool_attending(t, line) &&
         t->pools[0].late >= nsh_pool_attending(t, 0);
}

/* ------------------------------------------------------------ the watch: all */

void nsh_watchdog_tick(nsh_pools *t, int64_t now) {
  size_t late[NSH_POOLS_MAX] = {0};
  bool strand;
  for (size_t i = 0; i < t->nworkers; i++) {
    nsh_process *w = &t->workers[i];
    if (w->n > 0)
      late[w->pool] += watch_job(w, now);
    if (w->stop_step != NSH_STOP_NONE)
      nsh_process_escalate(w, now);
    if (is_unresponsive(w, now))
      replace_worker(w);
  }
  for (size_t i = 0; i < t->npools; i++)
    t->pools[i].late = late[i];
  strand = is_any_stranded(t, now);
  nsh_pool_lock(t);
  for (size_t i = 0; i < t->npools; i++)
    if (is_unattended(t, i) ? strand : is_overtaken(t, i))
      nsh_pool_release(t, i);
  nsh_pool_unlock(t);
  nsh_lifecycle_fill(t);
  nsh_gather_ready(t, now);
  nsh_pool_hand_out(t);
  if (t->told.more > 0)
    nsh_messages_sum_up(t, now);
}

/* The sooner of two waits; -1: none. */
static int64_t sooner(int64_t a, int64_t b) {
  return a < 0 || (b >= 0 && b < a) ? b : a;
}

static int64_t next_look(const nsh_pools *t, int64_t now) {
  if (t->busy + t->backlog > 0)
    return t->nworkers <= FINE_WORKERS ? TICK_FINE : TICK_COARSE;
  if (t->closing || (t->up >= t->wanted && t->leaving == 0))
    return t->closing || t->told.more > 0 ? TICK_COARSE : -1;
  return t->fork_at > now ? t->fork_at - now : TICK_COARSE;
}

int64_t nsh_watchdog_next(const nsh_pools *t, int64_t now) {
  return sooner(next_look(t, now), nsh_gather_next(t, now));
}

/* ------------------------------------------------------------------- the dump */

static void dump_host(const nsh_pools *t) {
  const nsh_tally *tally = &t->tally;
  ns_counters c;
  int64_t outstanding;
  int64_t unsettled;
  char seconds[NS_NUMBER_SIZE];
  nsh_exchange_lock(t->exchange);
  c = t->exchange->counters;
  outstanding = (int64_t)t->exchange->outstanding;
  unsettled = (int64_t)t->exchange->unsettled;
  nsh_exchange_unlock(t->exchange);
  ns_log(NS_LOG_INFO, "dump.host",
         NS_FIELDS(ns_fi("workers", (int64_t)t->up), ns_fi("outstanding", outstanding),
                   ns_fi("backlog", (int64_t)t->backlog), ns_fi("unsettled", unsettled),
                   ns_fi("done", tally->done), ns_fi("failed", tally->failed),
                   ns_fi("again", tally->again), ns_fi("crashed", tally->crashed),
                   ns_fi("timeouts", tally->timeouts), ns_fi("forks", tally->forks),
                   ns_fi("claimed", c.claimed), ns_fi("settled", c.settled),
                   ns_fi("stale", c.stale), ns_fi("sweeps", c.sweeps),
                   ns_fn("swept_seconds", ns_number_seconds(c.swept, seconds)),
                   ns_fi("deadlocks", c.deadlocks), ns_fi("lock_waits", c.lock_waits),
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
    char seconds[NS_NUMBER_SIZE];
    if (!nsh_process_running(w, &since))
      continue;
    task = nsh_process_task(w, 0);
    ns_log(NS_LOG_INFO, "dump.worker",
           NS_FIELDS(ns_fi("pid", w->pid), ns_fi("id", task->id), ns_fs("name", task->name->text),
                     ns_fn("seconds", ns_number_seconds(now - since, seconds)),
                     ns_fi("ahead", w->n - 1),
                     ns_fs("scripts", w->zygote->version)));
  }
}

void nsh_watchdog_dump(nsh_pools *t) {
  dump_host(t);
  dump_pools(t);
  dump_workers(t, ns_mono_us());
}
