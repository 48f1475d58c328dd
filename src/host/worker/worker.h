/*
** A worker: one process, one Lua state, one job at a time.
**
** Invariant: every job that the gate lets start gets exactly one verdict frame or the worker
** dies. Verdicts are sent in the order of the jobs. A worker has no connection: it asks the
** host for data of the database. (The host asserts that each job has one verdict:
** exchange/exchange.c.)
*/
#ifndef NSH_WORKER_WORKER_H
#define NSH_WORKER_WORKER_H

#include <lua.h>
#include <stdbool.h>

#include "base.h"
#include "config.h"
#include "ipc/ipc.h"

/* ------------------------------------------------------------------- workers */

/* The inheritance of a worker from its zygote. */
typedef struct nsh_worker_setup {
  lua_State *L;
  const nsh_config *cfg;
  nsh_slots *slots;
  int wakeup;
} nsh_worker_setup;

/* Zygote: pushes the table of C functions that nightshift.worker uses. They
** work in a worker, while a handler runs. [-0, +1, m] */
void nsh_worker_pushapi(lua_State *L);

/* Zygote: keeps the functions begin (called once per worker, with two random
** numbers), run (called per job), run_batch, reset (behind each) and finish. [-5, +0, m] */
void nsh_worker_keep(lua_State *L);

/* The life of worker 'index'; 'arg' an nsh_worker_setup, 'fd' unused. */
void nsh_worker_main(void *arg, uint32_t index, int fd);

/* ---------------------------------------------------------------- Lua states */

/* Lua states as the program makes them: all standard libraries, with the modules
** nightshift.core and nightshift.host built in. In front of package.path stands the folder of
** our Lua files, found relative to the program. */

/* NULL: no memory. */
lua_State *nsh_lua_new(void);

/* The string or number at 'idx', NUL and all; else absent. Borrowed. [-0, +0, m] */
ns_bytes nsh_lua_text(lua_State *L, int idx);

/* Message handler: error object -> text with traceback. [-1, +1] */
int nsh_lua_traceback(lua_State *L);

/* The loader of `require "nightshift.host"` in states that are made from here on, in this
** process and its children. */
void nsh_lua_offer(lua_CFunction host);

/* ------------------------------------------------- before scripts are loaded */

/* Zygote: replaces functions of the library coroutine, and debug.sethook.
** [-0, +0, m] */
void nsh_interrupt_install(lua_State *L);

/* Remembers the parts of its process that a job may change. Runs in the process that all
** workers are forked from. */
void nsh_restore_begin(void);

/* Zygote, before its Lua state is made: stdout and stderr are streams of ours. */
void nsh_output_install(void);

/* ------------ between the files of a worker: channel.c, interrupt.c, lua_state.c */

/*
** The channel of a worker, which is its end of its two rings (frames from the host, frames to
** it). And the other parts that a worker's files share.
**
** Invariant: a frame in the ring is not lost, however the worker ends. The host drops a frame
** that the worker died in the middle of. A worker without its host leaves. (Not asserted: specs
** of the host cause the deaths.)
*/

/* --------------------------------------------------------------- the channel */

typedef struct nsh_channel {
  nsh_slots *slots;
  nsh_slot *slot;
  uint32_t index;
  nsh_waker waker;
  ns_buf in;       /* received */
  size_t at;       /* of the first frame not taken yet */
  ns_buf frame;    /* the one being built, to be posted */
  bool untold;     /* the host does not know of all frames in the ring */
  int64_t waiting; /* monotonic µs: since when a verdict is among it; 0: none is */
  int64_t *ids;    /* for children: next first */
  size_t nids, atid, capids;
  size_t block; /* how many to ask for next time */
} nsh_channel;

void nsh_channel_open(nsh_channel *w, nsh_slots *slots, uint32_t index, int wakeup);

/* Sends a verdict that is in 'frame'. The host hears of it with the next flush. */
void nsh_channel_post(nsh_channel *w, int64_t now);

/* Sends any other frame, which the host is to get at once. */
void nsh_channel_post_now(nsh_channel *w);

/* Sends a frame that can wait for the next one. */
void nsh_channel_put(nsh_channel *w);

void nsh_channel_flush(nsh_channel *w);

/* Waits for more bytes; the frames not taken stay at the same distance from 'at'. */
void nsh_channel_receive(nsh_channel *w);

/* Looks at the frame at 'at'; its bytes, 0: it is not complete. */
size_t nsh_channel_peek(nsh_channel *w, size_t at, nsh_frame *f);

/* Takes the 'n' bytes at 'at' out from among the rest. */
void nsh_channel_drop(nsh_channel *w, size_t at, size_t n);

/* An id for a child, from the host when there is none left here. False: the job is to stop. */
bool nsh_channel_take_id(nsh_channel *w, int64_t *id);

/* Ends the worker; its output is not lost. */
void nsh_channel_leave(int status) __attribute__((noreturn));

/* ------------------------------------------------------------------- reports */

/* The call of a handler, for one job or for a batch. */
typedef struct nsh_call {
  nsh_channel *channel;
  int64_t max_json;       /* bytes of a result or state */
  uint32_t seq;           /* of the job, or of the batch */
  size_t members;         /* jobs of the batch; 0: a job by itself */
  size_t unreported;      /* its jobs behind the one that is being reported */
  int64_t started, ended; /* monotonic µs */
  bool spent;             /* the state is not to be trusted with another job, or has had as many as
                          ** it may have */
  /* how it ended */
  bool ok;        /* its results are on the stack, from 1 on: a result, or nil and a verdict. Of a
                  ** batch: results, verdicts, (spent), whose verdicts are the handler's own */
  bool limited;   /* it was over its memory limit */
  bool over;      /* the same, as its verdict shows */
  nsh_why why;    /* it was stopped */
  ns_bytes error; /* not ok: on the stack */
  ns_bytes left;  /* the attempt has failed for what it has left behind: on the stack */
} nsh_call;

/* Posts a report of the job; one for each job of the batch, in their order. [-all, +0, -] */
void nsh_report_job(lua_State *L, nsh_call *call);
void nsh_report_batch(lua_State *L, nsh_call *call);

/* -------------------------------------------------------------- memory limit */

/* From now on, in job 'seq', the state may grow by 'bytes'. When it is over,
** 'slot' says so at once, for the handler may go on. [-0, +0, -] */
void nsh_memory_limit_begin(lua_State *L, int64_t bytes, nsh_slot *slot, uint32_t seq);

/* A new job begins, with a limit or without. */
void nsh_memory_limit_forget(void);

/* Lifts it. True: it was hit since it began. Safe to repeat. [-0, +0, -] */
bool nsh_memory_limit_end(lua_State *L);

/* Did the job, its limit perhaps lifted already, fail of a refusal, when
** 'error' is how it failed? */
bool nsh_memory_limit_blamed(ns_bytes error);

/* "memory limit of 64 MiB" */
ns_bytes nsh_memory_limit_text(void);

/* -------------------------------------------------------------------- output */

/* From now on 'fn' is called with what stdio writes, in pieces. True: it goes nowhere else; false:
** it goes to its descriptor. */
void nsh_output_to(bool (*fn)(int fd, ns_bytes piece));

/* The host has a line of progress on its terminal. What is written there clears the rest of it. */
void nsh_output_over_line(void);

/* ---------------------------------------------------------------- interrupts */

/* Worker: from now on the signal is heard. */
void nsh_interrupt_listen(lua_State *L, nsh_slot *slot);

/* The handler of job 'seq' is about to run; 'timeout' for the message, µs. */
void nsh_interrupt_begin(uint32_t seq, int64_t timeout);

/* Its handler has another one. */
void nsh_interrupt_timeout(int64_t timeout);

/* Is its Lua code about to be stopped? Then C code that waits returns to it. */
bool nsh_interrupt_asked(void);

/* The handler has ended. Returns why it was stopped; NONE: it was not. Safe to repeat. */
nsh_why nsh_interrupt_end(void);

/* "timeout after 5 s at jobs.lua:7" and a traceback; of the last job that was
** stopped. */
ns_bytes nsh_interrupt_text(void);

/* ----------------------------------------------------------------- restoring */

/* Remembers how it is now. Once per worker. */
void nsh_restore_note(void);

/* Makes it so again; false: that failed, and the process is not to run another job. */
bool nsh_restore(void);

#endif
