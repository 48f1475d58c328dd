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

#include "buf.h"
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
** numbers), run (called per job), reset (behind each) and finish. [-4, +0, m] */
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

#endif
