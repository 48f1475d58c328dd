/*
** A host from the inside, and the modes of its life.
**
** Invariant: modes go one way only, from LOADING to OVER. nsh_mode_check has the condition that
** each mode waits for. Only the loop's thread uses it.
*/
#ifndef NSH_MODE_H
#define NSH_MODE_H

#include "dispatcher/dispatcher.h"
#include "runners.h"
#include "host.h"
#include "loop.h"
#include "pool/pool.h"
#include "process/process.h"
#include "schedules.h"
#include "scripts.h"

#define NSH_FLUSH_US (2 * NS_SECOND) /* for the last lines of the log */

typedef enum nsh_mode {
  NSH_MODE_LOADING, /* the first handlers are read */
  NSH_MODE_RUNNING,
  NSH_MODE_DRAINING,  /* claims nothing more, lets handlers finish */
  NSH_MODE_STOPPING,  /* workers are being killed */
  NSH_MODE_FINISHING, /* everything is settled: the threads end */
  NSH_MODE_OVER
} nsh_mode;

typedef struct nsh_host {
  const nsh_config *cfg;
  nsh_loop loop;
  nsh_slots *slots;
  int wakeup[2]; /* workers write to [1] */
  pid_t seed;
  nsh_family family;
  nsh_exchange exchange;
  nsh_dispatch *dispatch;
  nsh_runners *runners;
  nsh_schedules *schedules;
  nsh_pools pools;
  nsh_mode mode;
  int code;         /* exit code */
  int64_t deadline; /* of DRAINING, STOPPING, FINISHING */
  nsh_scripts scripts;
  int64_t handlers;
  int64_t pinged; /* when the zygotes were */
  bool drained;   /* nothing was left to do */
  bool keeper_gone;
  bool ready; /* host.ready has been logged */
} nsh_host;

/* Of the scripts that run; absent: no zygote is there to run any. */
ns_bytes nsh_mode_version(const nsh_host *h);

/* Sets the handlers that the host can run; both texts are malloc'd; no 'handlers': as before. */
void nsh_mode_serve(nsh_host *h, char *handlers, char *names);

/* Claims nothing more, and ends when handlers are done and all is written. */
void nsh_mode_drain(nsh_host *h, const char *why);

/* Kills the workers, and ends when all is written. */
void nsh_mode_stop(nsh_host *h, const char *why);

/* Ends without waiting for the server any more. */
void nsh_mode_leave_now(nsh_host *h);

/* The server does not help: leaves claims and unwritten verdicts to the rescuers. */
void nsh_mode_give_up(nsh_host *h);

/* Ends the process at once: a thread is stuck in the client library. */
void nsh_mode_exit(int code);

/* After every event: is it time for the next mode? Sets the timer of the loop. */
void nsh_mode_check(nsh_host *h);

#endif
