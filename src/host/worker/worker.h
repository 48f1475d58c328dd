/*
** A worker: one process, one Lua state, one job at a time.
**
** Invariant: every job that the gate lets start gets exactly one verdict frame
** or the worker dies; verdicts are sent in the order of the jobs. A worker has
** no connection: what it needs from the database it asks the host for.
*/
#ifndef NSH_WORKER_WORKER_H
#define NSH_WORKER_WORKER_H

#include <lua.h>

#include "config.h"
#include "ipc/shared_slot.h"

/* What a worker inherits from its zygote. */
typedef struct nsh_worker_setup {
  lua_State *L;
  const nsh_config *cfg;
  nsh_slots *slots;
  int bell;
} nsh_worker_setup;

/* Zygote: pushes the table of C functions that nightshift.worker uses. They
** work in a worker, while a handler runs. [-0, +1, m] */
void nsh_worker_pushapi(lua_State *L);

/* Zygote: keeps the functions begin (called once per worker, with two random
** numbers), run (called per job), reset (behind each) and finish. [-4, +0, m] */
void nsh_worker_keep(lua_State *L);

/* The life of worker 'index'; 'arg' an nsh_worker_setup, 'fd' unused. */
void nsh_worker_main(void *arg, uint32_t index, int fd);

#endif
