/*
** Birth and death of workers. What a death means for the running job depends
** on who wanted it.
*/
#include "pool/lifecycle.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "ns_log.h"
#include "ns_number.h"
#include "ns_time.h"
#include "pool/escalation.h"
#include "pool/messages.h"
#include "pool/pool.h"

#define FORK_RETRY NS_SECOND
/* Statuses of workers that died with their zygote. */
#define OWN_FAULT (-1)       /* one job was running: it did it */
#define SOMEBODYS_FAULT (-2) /* one of several did */

void nsh_lifecycle_resigned(nsh_process *s) {
  nsh_pool_enter(s, NSH_DOOMED);
  nsh_process_recall(s);
}

void nsh_lifecycle_doom(nsh_process *s) {
  nsh_pool_lock(s->table);
  nsh_lifecycle_resigned(s);
  nsh_pool_unlock(s->table);
}

void nsh_lifecycle_kill(nsh_process *s, int sig) {
  s->forced = s->forced || sig == SIGKILL;
  nsh_zygote_kill(s->zygote, s->index, sig);
}

void nsh_lifecycle_distrust(nsh_process *s) {
  ns_log(NS_LOG_ERROR, "worker.nonsense", NS_FIELDS(ns_fi("pid", s->pid)));
  nsh_pool_enter(s, NSH_DOOMED);
  s->blame = "what it wrote to us made no sense";
  if (s->pid > 0)
    nsh_lifecycle_kill(s, SIGKILL);
}

void nsh_lifecycle_leave(nsh_process *s) {
  nsh_lifecycle_doom(s);
  nsh_process_quit(s);
}

void nsh_lifecycle_generation(nsh_pools *t, nsh_zygote *z) {
  t->zygote = z;
  for (size_t i = 0; i < t->nseats; i++) {
    nsh_process *s = &t->seats[i];
    if (s->phase == NSH_EMPTY)
      continue;
    nsh_pool_age(s, strcmp(s->zygote->version, z->version) != 0);
    if (s->phase == NSH_UP && s->zygote != z)
      nsh_lifecycle_leave(s);
  }
  nsh_lifecycle_fill(t);
}

static bool may_fork(const nsh_pools *t, int64_t now) {
  return t->zygote != NULL && !t->closing && now >= t->fork_at;
}

void nsh_lifecycle_fill(nsh_pools *t) {
  if (!may_fork(t, ns_mono_us()))
    return;
  for (size_t i = 0; i < t->nseats; i++)
    if (t->seats[i].phase == NSH_EMPTY)
      nsh_process_fork(&t->seats[i], t->zygote);
}

/* The worker exists; one of a generation that is over leaves at once. */
void nsh_lifecycle_forked(nsh_pools *t, uint32_t index, pid_t pid, int why) {
  nsh_process *s;
  if (index >= t->nseats || t->seats[index].phase == NSH_EMPTY)
    return;
  s = &t->seats[index];
  if (pid == 0) {
    ns_log(NS_LOG_ERROR, "worker.no_fork", NS_FIELDS(ns_fs("error",
                                                           strerror(why))));
    nsh_process_bury(s);
    nsh_pool_enter(s, NSH_EMPTY);
    t->fork_at = ns_mono_us() + FORK_RETRY;
    return;
  }
  s->pid = pid;
  t->tally.forks++;
  if (s->phase != NSH_STARTING)
    return;
  nsh_pool_enter(s, NSH_UP);
  if (s->zygote != t->zygote)
    nsh_lifecycle_leave(s);
  nsh_pool_list(s, true);
  nsh_pool_hand_out(t);
}

void nsh_lifecycle_describe(char out[96], int status) {
  if (status < 0)
    snprintf(out, 96, "lost together with the process that forked it");
  else if (WIFSIGNALED(status))
    snprintf(out, 96, "killed by signal %d (%s)", WTERMSIG(status),
             strsignal(WTERMSIG(status)));
  else
    snprintf(out, 96, "exited with status %d", WEXITSTATUS(status));
}

/* How a job failed that was killed to stop it: in its worker's words, if it
** found any. */
static ns_bytes failure_text(nsh_process *s, char out[160]) {
  char seconds[NS_NUMBER_SIZE];
  const nsh_task *task = nsh_process_task(s, 0);
  ns_bytes said = nsh_slot_said(s->slot, task->seq);
  if (said.p != NULL)
    return said;
  if (s->why == NSH_WHY_MEMORY)
    return ns_str("memory limit");
  snprintf(out, 160, "timeout after %s s", ns_number_seconds(task->timeout, seconds));
  return ns_str(out);
}

/* How a job crashed. */
static ns_bytes crash_text(const nsh_process *s, int status, char out[160]) {
  char how[96];
  nsh_lifecycle_describe(how, status);
  if (s->blame != NULL && status >= 0 && WIFSIGNALED(status) &&
      WTERMSIG(status) == SIGKILL)
    snprintf(out, 160, "worker killed by the host: %s", s->blame);
  else
    snprintf(out, 160, "worker %s", how);
  return ns_str(out);
}

/* The verdict of the job that was running when its worker died: by our hand, by
** its own fault, or by that of another ('status' SOMEBODYS_FAULT). */
static void end_running(nsh_process *s, int64_t since, int status) {
  char text[160];
  nsh_why why = nsh_escalation_killed(s) ? s->why : NSH_WHY_NONE;
  ns_verdict v = {.kind = NS_RELEASE, .delay = -1};
  if (why == NSH_WHY_TIMEOUT || why == NSH_WHY_MEMORY) {
    v.kind = NS_FAIL;
    v.error = failure_text(s, text);
  } else if (why == NSH_WHY_NONE) {
    v.kind = status == SOMEBODYS_FAULT ? NS_LOST : NS_CRASH;
    v.error = crash_text(s, status, text);
  }
  nsh_messages_end(s, &v, ns_mono_us() - since);
}

/* What becomes of the tasks of a worker that is gone. */
static void end_tasks(nsh_process *s, int status) {
  int64_t since;
  nsh_pool_lock(s->table);
  if (nsh_process_running(s, &since))
    end_running(s, since, status);
  while (s->n > 0)
    nsh_messages_end(s, &(ns_verdict){.kind = NS_RELEASE, .delay = -1, .go_on = 1}, 0);
  nsh_pool_unlock(s->table);
}

/* A death nobody ordered; many of them in a row slow the forking down. */
static void mourn(nsh_process *s, int status) {
  nsh_pools *t = s->table;
  int64_t now = ns_mono_us();
  int64_t delay;
  char how[96];
  nsh_lifecycle_describe(how, status);
  ns_log(NS_LOG_WARN, "worker.died",
         NS_FIELDS(ns_fi("pid", s->pid), ns_fs("how", how)));
  nsh_storm_crash(&t->storm, now);
  delay = nsh_storm_delay(&t->storm);
  if (delay > 0) {
    ns_log(NS_LOG_ERROR, "worker.crash_loop",
           NS_FIELDS(ns_fi("crashes", t->storm.crashes),
                     ns_fi("wait_ms", delay / 1000)));
    t->fork_at = now + delay;
  }
}

static void bury(nsh_process *s, int status) {
  nsh_pools *t = s->table;
  bool expected;
  nsh_process_bury(s); /* its last words may be that it leaves */
  expected = s->phase == NSH_DOOMED;
  end_tasks(s, status);
  if (!expected && !t->closing)
    mourn(s, status);
  nsh_pool_enter(s, NSH_EMPTY);
  s->pid = 0;
}

void nsh_lifecycle_exited(nsh_pools *t, uint32_t index, int status) {
  if (index >= t->nseats || t->seats[index].phase == NSH_EMPTY)
    return;
  bury(&t->seats[index], status);
  if (may_fork(t, ns_mono_us()))
    nsh_process_fork(&t->seats[index], t->zygote);
  nsh_pool_hand_out(t);
}

void nsh_lifecycle_orphaned(nsh_pools *t, nsh_zygote *z) {
  size_t running = 0;
  int64_t since;
  for (size_t i = 0; i < t->nseats; i++)
    running += t->seats[i].phase != NSH_EMPTY && t->seats[i].zygote == z &&
               nsh_process_running(&t->seats[i], &since);
  for (size_t i = 0; i < t->nseats; i++)
    if (t->seats[i].phase != NSH_EMPTY && t->seats[i].zygote == z) {
      nsh_pool_enter(&t->seats[i], NSH_DOOMED); /* one death is logged, not all */
      bury(&t->seats[i], running > 1 || z->condemned ? SOMEBODYS_FAULT
                                                     : OWN_FAULT);
    }
}
