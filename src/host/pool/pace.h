/*
** How far ahead to claim and to send, and how fast to replace dying workers:
** pure arithmetic on what was measured.
**
** Invariant: work is fetched ahead only as far as it hides a wait that exists.
** Claiming ahead hides the database cycle, sending ahead hides the way through
** the host; for handlers much longer than either, both are zero, so no job
** waits behind another while a worker somewhere is idle.
*/
#ifndef NSH_POOL_PACE_H
#define NSH_POOL_PACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nsh_pace {
  double micros; /* running mean of a handler's wall time; < 0: unknown */
  double bytes;  /* the same of a payload's size */
} nsh_pace;

#define NSH_PACE_INIT ((nsh_pace){-1, -1})

void nsh_pace_ran(nsh_pace *p, int64_t micros);
void nsh_pace_claimed(nsh_pace *p, size_t bytes);

/* Jobs one worker may have in its hands, the running one included: 1..64. */
uint32_t nsh_pace_window(const nsh_pace *p);

/* Jobs the host may hold for 'workers' workers, running ones included. */
size_t nsh_pace_target(const nsh_pace *p, size_t workers);

/* A handler known to be so short that finished verdicts may wait for it. */
bool nsh_pace_brief(const nsh_pace *p);

/* Workers that die one after the other without finishing anything. */
typedef struct nsh_storm {
  int crashes;      /* since a job was completed */
  int64_t since;    /* of the first of them, monotonic µs */
  int64_t wary;     /* until when those that kill workers are reckoned with */
} nsh_storm;

void nsh_storm_crash(nsh_storm *s, int64_t now);
void nsh_storm_over(nsh_storm *s); /* a job was completed */
/* A storm is on, or one has been within the last minute. */
bool nsh_storm_wary(const nsh_storm *s, int64_t now);
/* µs to wait before the next fork; 0: fork at once. */
int64_t nsh_storm_delay(const nsh_storm *s);

#endif
