/*
** How worker processes begin and end. The meaning of an end for the running job depends on the
** side that wanted it.
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
