/*
** The ladder. What was sent to the worker behind the job is taken back first,
** so that nobody else's job is stopped.
*/
#include "pool/escalation.h"

#include <signal.h>
#include <stdio.h>

#include "ns_log.h"
#include "ns_time.h"
#include "pool/lifecycle.h"

static void log_start(const nsh_process *s, const nsh_task *task, const char *said) {
  static const char *const reasons[] = {
      [NSH_WHY_TIMEOUT] = "timeout", [NSH_WHY_LOST] = "the claim is lost",
      [NSH_WHY_STOP] = "the host stops", [NSH_WHY_MEMORY] = "memory limit",
      [NSH_WHY_CANCELLED] = "cancelled"};
  char why[288];
  snprintf(why, sizeof why, "%s%s%s", reasons[s->why], said[0] != '\0' ? ": " : "", said);
  ns_log(NS_LOG_WARN, s->why == NSH_WHY_TIMEOUT ? "job.timeout" : "job.stop",
         NS_FIELDS(ns_fi("id", task->id), ns_fs("name", task->name->text),
                   ns_fi("pid", s->pid), ns_fs("why", why)));
}

void nsh_escalation_start(nsh_process *s, nsh_why why, int64_t step, const char *said) {
  nsh_task *task = nsh_process_task(s, 0);
  if (s->rung != NSH_CALM)
    return;
  s->rung = NSH_TOLD;
  s->why = why;
  s->step = step;
  s->next_at = ns_mono_us() + step;
  nsh_process_recall(s);
  s->table->tally.timeouts += why == NSH_WHY_TIMEOUT;
  nsh_slot_tell(s->slot, task->seq, why);
  log_start(s, task, said);
}

void nsh_escalation_climb(nsh_process *s, int64_t now) {
  if (now < s->next_at || s->rung == NSH_KILLED)
    return;
  s->step *= 2;
  s->next_at = now + s->step;
  s->rung++;
  if (s->rung == NSH_TERMED)
    nsh_lifecycle_doom(s);
  nsh_lifecycle_kill(s, s->rung == NSH_HALTED   ? NSH_INTERRUPT_SIGNAL
                        : s->rung == NSH_TERMED ? SIGTERM
                                                : SIGKILL);
}

/* A worker that got SIGTERM is as good as dead: it is not to be seen again. */
void nsh_escalation_leave(nsh_process *s) {
  if (nsh_escalation_killed(s))
    return;
  s->rung = NSH_CALM;
  s->why = NSH_WHY_NONE;
}

bool nsh_escalation_killed(const nsh_process *s) {
  return s->rung >= NSH_TERMED;
}
