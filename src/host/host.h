/*
** The host: the process that `nightshift work` is. It puts loop, dispatcher, zygotes and
** workers together and answers signals. The files beside the folders declare here the functions
** that they share. The configuration has a header of its own, which folders use.
*/
#ifndef NSH_HOST_H
#define NSH_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <uv.h>

#include "config.h"
#include "dispatcher/dispatcher.h"
#include "exchange/exchange.h"
#include "http/http.h"
#include "pool/pool.h"
#include "process/process.h"

/* ------------------------------------------ limits of the machine: rlimits.c */

/*
** The resources that the machine lets a host have: processes, files, memory. Asked before
** anything is started, so that a limit is named in one message and not met by
** the ten-thousandth worker.
**
** Invariant: a limit that cannot be read is none. (Not asserted: each reader says so by
** itself.)
*/

#define NSH_UNLIMITED INT64_MAX

/* The room that is left. */
typedef struct nsh_limits {
  int64_t files;       /* descriptors of one process */
  int64_t user_tasks;  /* processes and threads of the workers' user */
  int64_t group_tasks; /* of our control group and its parents */
  int64_t pids;        /* numbers for processes */
  int64_t tasks;       /* of the kernel */
  int64_t memory;      /* bytes that are available */
  int64_t group_memory; /* bytes, of our control group */
} nsh_limits;

/* Reads them; 'root' is in front of /proc and /sys, "" on a machine. */
void nsh_limits_read(nsh_limits *have, const char *root, const nsh_config *cfg);

/* Do 'workers' workers fit? Errors: INVALID, with the amount needed, the amount there is and
** the limit to raise. */
ns_status nsh_limits_check(const nsh_limits *have, size_t workers, ns_err *err);

/* Raises our own soft limit of processes as far as we may; workers inherit it. */
void nsh_limits_raise(void);

/* ---------------------------------------------------- the scripts: scripts.c */

/*
** The handler scripts. A new generation of them is loaded at the start, after a HUP, and after
** the death of the zygote that had the last one. And HUP for other hosts of this machine.
**
** Invariant: one generation is read at a time. A request that comes meanwhile is obeyed
** afterwards; a load that does not end does not delay it.
*/

typedef struct nsh_scripts {
  nsh_family *family;
  uv_timer_t look;     /* runs while a generation is being read */
  nsh_zygote *loading; /* that generation; NULL: none */
  int64_t since;       /* monotonic µs: it has been read from */
  bool again;          /* HUP came meanwhile */
  bool dropped;        /* 'loading' was killed, to begin anew */
  bool refused;        /* there was no place for it: it is tried again */
  int64_t due, wait;   /* monotonic µs: when to load after a death, or after having
                       ** been refused, 0: there is no need; and after how long */
} nsh_scripts;

void nsh_scripts_open(nsh_scripts *s, uv_loop_t *loop, nsh_family *family);

/* Begins a new generation: now, or when the present one has been read. With too many
** generations alive it waits until one has ended. */
void nsh_scripts_load(nsh_scripts *s);

/* There is none to go on with: a little later, each time a little more. */
void nsh_scripts_load_later(nsh_scripts *s);

/* The generation being read has ended, in some way. */
void nsh_scripts_over(nsh_scripts *s);

/* Why one did not load: 'message', or when that is absent, because the process
** died of 'status', from 'text'. */
ns_bytes nsh_scripts_why(char text[160], ns_bytes message, int status);

/*
** HUP for another host of this machine. A process that does not expect that signal dies of it,
** so only known hosts get it. The kernel's handle on the process is taken first, so that no
** other process can get its number meanwhile.
*/
typedef enum nsh_hup {
  NSH_HUP_SENT,
  NSH_HUP_AWAY,  /* it is not of this place: another machine, or container */
  NSH_HUP_GONE,  /* there is no such process any more */
  NSH_HUP_DEAF,  /* it does not listen to that signal */
  NSH_HUP_FAILED /* errno says why */
} nsh_hup;

/* 'place': of the host, as ns_wake_place has it; 'age': µs that it has been known for. */
nsh_hup nsh_hup_send(pid_t pid, ns_bytes place, int64_t age);

/* ---------------------------------------------------------- the loop: loop.c */

/*
** The loop of the host: libuv's, with one timer, one wake-up that any thread may send, and the
** signals that a host handles.
**
** Invariant: once the host has jobs no signal ends it in that signal's default way, with a
** status that is not ours. Signals that are not handled at the moment wait. (Not asserted:
** specs of the host send each of them.)
*/

#define NSH_SIGNALS 9

typedef struct nsh_loop {
  uv_loop_t uv;
  uv_async_t async;
  uv_timer_t timer;
  uv_signal_t signals[NSH_SIGNALS];
  /* The events; 'arg' is the owner's. */
  void *arg;
  void (*on_timer)(void *arg);
  void (*on_wake)(void *arg);
  void (*on_signal)(void *arg, int sig);
} nsh_loop;

/* HUP, USR1, TTIN and TTOU, which would end or stop a host that does not listen yet, wait from
** now on. With 'all' every signal waits, as none is handled any more. */
void nsh_loop_hold_signals(bool all);

/* The callbacks are set already. Signals are not heard yet. */
void nsh_loop_open(nsh_loop *l);

/* Hears these. */
void nsh_loop_hear_first_signals(nsh_loop *l);

/* There are jobs: handles the other signals as well. Until now they ended the host like any
** program. */
void nsh_loop_hear_signals(nsh_loop *l);

/* Until nsh_loop_stop. */
void nsh_loop_run(nsh_loop *l);
void nsh_loop_stop(nsh_loop *l);

/* Until over(arg), for 'ms' at most; in place of the timer. */
void nsh_loop_run_until(nsh_loop *l, bool (*over)(void *arg), uint64_t ms);

/* Has on_timer called in so many µs, or sooner if that was asked for; negative: not at all. */
void nsh_loop_arm(nsh_loop *l, int64_t wait);

/* From any thread: has on_wake called. 'arg' is the loop. */
void nsh_loop_wake(void *arg);

/* Closes all handles of the loop. */
void nsh_loop_close(nsh_loop *l);

/* ------------------------------------------------ the service manager: loop.c */

/*
** What the service manager above us is told, by the protocol of sd_notify(3). Without one all of it
** does nothing. Only the loop's thread uses it.
**
** Invariant: no process that the host starts knows of the manager. (Not asserted: a spec reads the
** environment of a handler.)
*/

#define NSH_STATUS 400 /* bytes of a status, with the zero at the end */

typedef struct nsh_service {
  int fd; /* -1: there is no manager */
  struct sockaddr_un at;
  socklen_t n;       /* of 'at'; 0: there is no manager */
  int64_t watchdog;  /* µs between two beats, at most; 0: none are wanted */
  uint64_t every;    /* ms between two beats */
  uv_timer_t beat;
  bool ready, reloading, stopping; /* that it was told so */
  bool unheard;                    /* the last datagram was not taken */
  char status[NSH_STATUS];         /* the last that it was told */
  /* At each beat; 'arg' is the owner's. False: the host does not move at the moment. */
  void *arg;
  bool (*on_beat)(void *arg);
} nsh_service;

/* Reads where the manager is, and takes that out of the environment: before the first fork. */
void nsh_service_take(nsh_service *s);

/* 'on_beat' is set. To be closed; the timer closes with the loop. */
void nsh_service_open(nsh_service *s, uv_loop_t *loop);
void nsh_service_close(nsh_service *s);

/* It is told that the host claims jobs. Then that it reads its scripts again, until it is ready
** anew. Then that it ends, in 'us' µs at most. A status is one line. */
void nsh_service_ready(nsh_service *s, const char *status);
void nsh_service_reloading(nsh_service *s, const char *status);
void nsh_service_stopping(nsh_service *s, int64_t us, const char *status);

/* The status, when it is another one. */
void nsh_service_status(nsh_service *s, const char *status);

/* The same, and that the host moves. */
void nsh_service_beat(nsh_service *s, const char *status);

/* ------------------------------------------- threads with a Lua state: runners.c */

/* A runner, which its owner fills up to 'L'. */
typedef struct nsh_runner {
  const nsh_config *cfg;
  nsh_exchange *exchange;
  pthread_cond_t *wakes; /* of the exchange: it waits here */
  const char *module;    /* with open(db, host, mapping), which gives an object with run() */
  ns_bytes mapping;      /* of an adopted table, JSON; borrowed; may be absent */
  void (*push_host)(lua_State *L, struct nsh_runner *r); /* functions for it; [-0, +1, m] */
  void (*main)(struct nsh_runner *r);                           /* the life of the thread */
  lua_State *L;
  pthread_t thread;
  bool running;
  bool ends, ended; /* asked to end; has ended; the exchange's lock guards these */
} nsh_runner;

/* Makes the Lua state, and connects. Errors: as of open(). */
ns_status nsh_runner_open(nsh_runner *r, ns_err *err);

/* Runs what was opened, until the host ends. Errors: INVALID, its error. */
ns_status nsh_runner_run(nsh_runner *r, ns_err *err);

/* Closes the Lua state, if there is one. */
void nsh_runner_forget(nsh_runner *r);

/* The lock of the exchange is held. Sleeps once, until then at most. False: it is then, or the
** host ends. */
bool nsh_runner_sleep(nsh_runner *r, int64_t until);

/* The function "log" of a host. */
int nsh_runner_log(lua_State *L);

/* Starts the thread, with all signals blocked. Errors: NOMEM. */
ns_status nsh_runner_start(nsh_runner *r, ns_err *err);

/* Asks it to end. */
void nsh_runner_end(nsh_runner *r);

/* Ends it, and waits for that. False: it is stuck, and all that it uses has to stay. */
bool nsh_runner_close(nsh_runner *r);

/* ------------------------------------------------- adopted tables: runners.c */

/*
** The runners of adopted tables: a thread for each takes its rows in as jobs, and writes debts
** to them.
**
** Invariant: a table that is locked, slow or altered keeps only its own runner waiting. (Not
** asserted: it is about time.)
*/

typedef struct nsh_runners nsh_runners;

/* Connects and checks the mappings. '*out' is to be closed, on errors, too. Errors: as
** db:adopt. */
ns_status nsh_runners_open(nsh_runners **out, const nsh_config *cfg, nsh_exchange *exchange,
                           ns_err *err);

/* Starts the threads, with all signals blocked. Errors: NOMEM. */
ns_status nsh_runners_start(nsh_runners *all, ns_err *err);

/* When no verdict is left to write: rows that were not begun are given back, debts are written,
** and the threads end. False: one is stuck, and all that it uses has to stay. NULL is allowed. */
bool nsh_runners_close(nsh_runners *all);

/* ----------------------------------------------- recurring jobs: schedules.c */

/*
** The thread of schedules in a host: it pushes the jobs of ticks, and declares the schedules of
** the host's scripts.
**
** Invariant: a host without schedules has neither a Lua state nor a connection for them. (Not
** asserted: a Lua state does not know its use.)
*/

typedef struct nsh_schedules nsh_schedules;

/* Starts the thread, with all signals blocked. '*out' is to be closed, on errors, too.
** Errors: NOMEM. */
ns_status nsh_schedules_start(nsh_schedules **out, const nsh_config *cfg, nsh_exchange *exchange,
                              ns_err *err);

/* Ends the thread, after the transaction that it is at. False: it is stuck, and all that it uses
** has to stay. NULL is allowed. */
bool nsh_schedules_close(nsh_schedules *s);

/* ----------------------------------------- figures of the database: figures.c */

/*
** The thread that reads the figures of the database for /metrics: as `status` has them, when a
** request asks, with a connection of its own.
**
** Invariant: a host that is not asked has neither a Lua state nor a connection for it. (Not
** asserted: a Lua state does not know its use.)
*/

typedef struct nsh_figures nsh_figures;

/* Starts the thread, with all signals blocked. '*out' is to be closed, on errors, too; it is NULL
** without a server. Errors: NOMEM. */
ns_status nsh_figures_start(nsh_figures **out, const nsh_config *cfg, nsh_exchange *exchange,
                            nsh_http *http, ns_err *err);

/* Ends the thread. False: it is stuck, and all that it uses has to stay. NULL is allowed. */
bool nsh_figures_close(nsh_figures *f);

/* ------------------------------------------------------------- modes: mode.c */

/*
** A host from the inside, and the modes of its life.
**
** Invariant: modes go one way only, from LOADING to OVER. nsh_mode_check has the condition that
** each mode waits for. Only the loop's thread uses it.
*/

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
  nsh_service service;
  nsh_slots *slots;
  int wakeup[2]; /* workers write to [1] */
  pid_t seed;
  int terminal; /* of the host; -1: none, or it does not matter */
  nsh_family family;
  nsh_exchange exchange;
  nsh_dispatch *dispatch;
  nsh_runners *runners;
  nsh_schedules *schedules;
  nsh_http *http; /* NULL: there is no server */
  nsh_figures *figures;
  nsh_pools pools;
  nsh_mode mode;
  int code;         /* exit code */
  int64_t deadline; /* of DRAINING, STOPPING, FINISHING */
  nsh_scripts scripts;
  int64_t handlers;
  int64_t pinged; /* when the zygotes were */
  bool drained;   /* nothing was left to do */
  int64_t shown_from, shown_at; /* monotonic: since when progress is shown, and last; 0: never */
  bool keeper_gone;
  bool ready; /* host.ready has been logged */
  unsigned told; /* the service manager: mode and facts as of its last status */
} nsh_host;

/* Of the scripts that run; absent: no zygote is there to run any. */
ns_bytes nsh_mode_version(const nsh_host *h);

/* Sets the handlers that the host can run; both texts are malloc'd; no 'handlers': as before. */
void nsh_mode_serve(nsh_host *h, char *handlers, char *names);

/* One worker more (1) or fewer (-1), for a signal; the log has the outcome. */
void nsh_mode_step(nsh_host *h, int step);

/* Has the number of workers that another process has asked for, if one has. The log has the
** outcome, and our row in the database. */
void nsh_mode_obey(nsh_host *h);

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

/* A beat for the service manager, with what the host is at; 'arg' is the host. False: the claim
** loop does not move, so there was none. */
bool nsh_mode_beat(void *arg);

/* ----------------------------------------------------- birth and end: host.c */

/* Exit codes of the program. */
#define NSH_EXIT_OK 0
#define NSH_EXIT_FAILURE 1
#define NSH_EXIT_USAGE 2
#define NSH_EXIT_DATABASE 69
#define NSH_EXIT_CONFIG 78

/* Runs a host until it is told to stop or, with cfg->drain, has nothing left
** to do. Returns the exit code; messages go to stderr. '*known' (the caller frees it):
** empty, or when there was nothing left to do the names that it could run, a line each. */
int nsh_host_run(const nsh_config *cfg, ns_buf *known);

/* ------------------------------------------------ the server of pages: web.c */

/* Loads the library of servers, nsh_mhd, which stays NULL where that fails. [-0, +0, m] */
void nsh_web_load(lua_State *L);

/*
** The function `listen` of nightshift.host. Its argument: {address = "127.0.0.1:7878", body_max =
** bytes}. A server, or nil, message, code: INVALID, NOMEM. Raises for other types.
*/
int nsh_web_listen(lua_State *L);

#endif
