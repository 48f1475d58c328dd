/*
** Verdicts that callers of the library make of a claimed job.
**
** Invariant: all that a verdict does not say has the value that changes nothing.
*/
#include "nightshift.h"

static ns_verdict verdict_of(const ns_job *job, ns_kind kind) {
  return (ns_verdict){.id = job->id, .run = job->run, .lease = job->lease, .kind = kind,
                      .delay = -1, .max_phases = -1, .heard = job->heard};
}

ns_verdict ns_ack(const ns_job *job, ns_bytes result) {
  ns_verdict v = verdict_of(job, NS_ACK);
  v.result = result;
  return v;
}

ns_verdict ns_failed(const ns_job *job, ns_bytes error) {
  ns_verdict v = verdict_of(job, NS_FAIL);
  v.error = error;
  return v;
}

ns_verdict ns_again(const ns_job *job, int64_t delay, ns_bytes state) {
  ns_verdict v = verdict_of(job, NS_AGAIN);
  v.delay = delay;
  v.state = state;
  return v;
}

ns_verdict ns_discard(const ns_job *job, ns_bytes reason) {
  ns_verdict v = verdict_of(job, NS_DISCARD);
  v.error = reason;
  return v;
}

ns_verdict ns_release(const ns_job *job) {
  return verdict_of(job, NS_RELEASE);
}
