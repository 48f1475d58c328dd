/*
** A job is expected to be short until it has been seen to be long. Then what was
** sent behind it is taken back, what was claimed for its worker is run by others,
** and what nobody can start goes back to the database.
*/
#include "pool/watchdog.h"

#include <signal.h>

#include "ns_log.h"
#include "ns_time.h"
#include "pool/escalation.h"
#include "pool/lifecycle.h"
#include "pool/messages.h"

#define STUCK_US 20000          /* a job behind one this old is taken back */
#define LONG_US 100000          /* nothing is claimed ahead for its worker */
#define DEAF_US (10 * NS_SECOND) /* a worker that does not start what it has, or leave */
#define MOMENT_US (NS_SECOND / 2) /* the backlog waits so long for a worker */
#define TICK_FINE 20000         /* period while somebody works */
#define TICK_COARSE 100000      /* with many workers */
#define FINE_SEATS 256
#define TOUCHES_MAX 1000        /* waiting to be written; the others come later */

/* ---------------------------------------------------------------- a worker */

/* Does it attend to a long job? */
static bool look(nsh_process *s, int64_t now) {
  nsh_pools *t = s->table;
  int64_t since;
  int64_t timeout;
  bool late = false;
  nsh_pool_lock(t);
  if (nsh_process_running(s, &since) && now - since > STUCK_US &&
      atomic_load(&s->slot->current) != nsh_process_task(s, 0)->seq)
    nsh_pool_hear_process(s); /* the job behind those verdicts was expected to be short */
  if (nsh_process_running(s, &since)) {
    timeout = nsh_process_task(s, 0)->timeout;
    if (timeout > 0 && now - since > timeout)
      nsh_escalation_start(s, NSH_WHY_TIMEOUT, NSH_STEP, "");
    if (atomic_load(&s->slot->over) == nsh_process_task(s, 0)->seq + 1)
      nsh_escalation_start(s, NSH_WHY_MEMORY, NSH_STEP, "");
    s->stuck = now - since > STUCK_US;
    if (s->n > 1 && s->stuck)
      nsh_process_recall(s);
    late = now - since > LONG_US && nsh_pool_attends(s);
    if (t->mail->ntouches < TOUCHES_MAX && nsh_messages_due(s, since, now))
      nsh_messages_touch(s, now);
  }
  nsh_pool_unlock(t);
  return late;
}

/* Has an idle worker been given a job and not started it for long, or been told to leave
** and not left? It is stopped or stuck, and no timeout of a job would ever end that. */
static bool is_deaf(nsh_process *s, int64_t now) {
  int64_t since;
  bool asked = s->phase == NSH_UP ? s->n > 0 : s->phase == NSH_DOOMED && !s->forced;
  uint32_t seq = s->n > 0 ? nsh_process_task(s, 0)->seq : s->next_seq;
  if (!asked || nsh_process_running(s, &since)) {
    s->idle_at = 0;
    return false;
  }
  if (s->idle_at == 0 || s->idle_seq != seq) {
    s->idle_seq = seq;
    s->idle_at = now;
  }
  return now - s->idle_at > DEAF_US;
}

/* Its jobs were not started: they go back, and nothing is blamed. */
static void replace(nsh_process *s) {
  ns_log(NS_LOG_WARN, "worker.deaf", NS_FIELDS(ns_fi("pid", s->pid)));
  nsh_lifecycle_doom(s);
  nsh_lifecycle_kill(s, SIGKILL);
}

/* ------------------------------------------------------------------ a line */

/* Does nobody live who may take the jobs of a line? */
static bool unattended(const nsh_pools *t, size_t line) {
  return t->pools[line].backlog.n > 0 && t->pools[line].up == 0 &&
         t->pools[0].up == 0;
}

/* Nobody is there to start a line, and nobody will be for a moment: others may
** have it. */
static bool stranded(nsh_pools *t, int64_t now) {
  bool any = false;
  for (size_t i = 0; i < t->npools; i++)
    any = any || unattended(t, i);
  if (!any) {
    t->down_at = 0;
    return false;
  }
  if (t->down_at == 0)
    t->down_at = now;
  return t->fork_at - now > MOMENT_US || now - t->down_at > MOMENT_US;
}

/* Has every worker that takes jobs of a line a long one? What was claimed ahead
** for them may then as well run elsewhere. */
static bool overtaken(const nsh_pools *t, size_t line) {
  const nsh_pool *p = &t->pools[line];
  return p->backlog.n > 0 && p->late >= nsh_pool_attending(t, line) &&
         t->pools[0].late >= nsh_pool_attending(t, 0);
}

/* --------------------------------------------------------------------- all */

void nsh_watch_tick(nsh_pools *t, int64_t now) {
  size_t late[NSH_POOLS_MAX] = {0};
  bool strand;
  for (size_t i = 0; i < t->nseats; i++) {
    nsh_process *s = &t->seats[i];
    if (s->n > 0)
      late[s->pool] += look(s, now);
    if (s->rung != NSH_CALM)
      nsh_escalation_climb(s, now);
    if (is_deaf(s, now))
      replace(s);
  }
  for (size_t i = 0; i < t->npools; i++)
    t->pools[i].late = late[i];
  strand = stranded(t, now);
  nsh_pool_lock(t);
  for (size_t i = 0; i < t->npools; i++)
    if (unattended(t, i) ? strand : overtaken(t, i))
      nsh_pool_release(t, i);
  nsh_pool_unlock(t);
  nsh_lifecycle_fill(t);
  nsh_pool_hand_out(t);
}

int64_t nsh_watch_next(const nsh_pools *t, int64_t now) {
  if (t->busy + t->backlog > 0)
    return t->nseats <= FINE_SEATS ? TICK_FINE : TICK_COARSE;
  if (t->closing || t->up == t->nseats)
    return t->closing ? TICK_COARSE : -1;
  return t->fork_at > now ? t->fork_at - now : TICK_COARSE;
}
