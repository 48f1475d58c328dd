/*
** Pacing. Means are exponential; one very long job counts as CAP_US, so that
** the mean of short ones recovers within some hundred jobs.
*/
#include "pool/pace.h"

#define CAP_US 100000.0   /* a sample counts at most this much */
#define AHEAD_US 4000.0   /* work claimed ahead, per worker: a few cycles */
#define AHEAD_MAX 256.0
#define NO_AHEAD_US 50000.0 /* longer handlers: nothing is claimed ahead */
#define SEND_US 1000.0    /* work sent ahead to one worker */
#define WINDOW_MAX 64.0
#define BRIEF_US 200.0
#define TARGET_MAX 4096   /* ... unless there are more workers than that */
#define BYTES_MAX (64.0 * 1024 * 1024) /* of jobs held by the host */
#define STORM 5           /* crashes without a result that are normal */
#define STORM_US INT64_C(10000000)
#define WARY_US INT64_C(60000000)
#define STORM_DELAY INT64_C(100000)
#define STORM_DELAY_MAX INT64_C(10000000)

static double mean(double old, double sample) {
  return old < 0 ? sample : old + (sample - old) / 64;
}

void nsh_pace_ran(nsh_pace *p, int64_t micros) {
  double us = micros < 1 ? 1 : (double)micros;
  p->micros = mean(p->micros, us > CAP_US ? CAP_US : us);
}

void nsh_pace_claimed(nsh_pace *p, size_t bytes) {
  p->bytes = mean(p->bytes, (double)bytes);
}

uint32_t nsh_pace_window(const nsh_pace *p) {
  double n;
  if (p->micros < 0)
    return 1;
  n = 1 + SEND_US / p->micros;
  return (uint32_t)(n > WINDOW_MAX ? WINDOW_MAX : n);
}

static double ahead(const nsh_pace *p) {
  double n;
  if (p->micros < 0 || p->micros > NO_AHEAD_US)
    return 0;
  n = AHEAD_US / p->micros;
  return n < 1 ? 1 : n > AHEAD_MAX ? AHEAD_MAX : n;
}

size_t nsh_pace_target(const nsh_pace *p, size_t workers) {
  size_t most = workers > TARGET_MAX ? workers : TARGET_MAX;
  size_t n = (size_t)((double)workers * (1 + ahead(p)));
  if (n > most)
    n = most;
  if (p->bytes > 0 && (double)n * p->bytes > BYTES_MAX)
    n = (size_t)(BYTES_MAX / p->bytes);
  return n < workers ? workers : n;
}

bool nsh_pace_brief(const nsh_pace *p) {
  return p->micros >= 0 && p->micros < BRIEF_US;
}

void nsh_storm_crash(nsh_storm *s, int64_t now) {
  if (s->crashes > 0 && s->crashes <= STORM && now - s->since > STORM_US)
    s->crashes = 0;
  if (s->crashes == 0)
    s->since = now;
  if (s->crashes < 1000)
    s->crashes++;
  if (s->crashes > STORM)
    s->wary = now + WARY_US;
}

bool nsh_storm_wary(const nsh_storm *s, int64_t now) {
  return now < s->wary;
}

void nsh_storm_over(nsh_storm *s) {
  s->crashes = 0;
}

int64_t nsh_storm_delay(const nsh_storm *s) {
  int64_t delay = STORM_DELAY;
  if (s->crashes <= STORM)
    return 0;
  for (int i = STORM + 1; i < s->crashes && delay < STORM_DELAY_MAX; i++)
    delay *= 2;
  return delay > STORM_DELAY_MAX ? STORM_DELAY_MAX : delay;
}
