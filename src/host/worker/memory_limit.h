/*
** The memory a job may use, in a worker: what the Lua state may grow while the
** job runs and, as a back-stop for C code, what the process may have.
**
** Invariant: without a quota the allocator is Lua's own. Memory that came from
** either may be given back to the other.
*/
#ifndef NSH_WORKER_MEMORY_LIMIT_H
#define NSH_WORKER_MEMORY_LIMIT_H

#include <lua.h>

#include "ipc/shared_slot.h"
#include "ns_buf.h"

/* From now on, in job 'seq', the state may grow by 'bytes'. When it is over,
** 'slot' says so at once, for the handler may go on. [-0, +0, -] */
void nsh_memory_limit_begin(lua_State *L, int64_t bytes, nsh_slot *slot, uint32_t seq);

/* A new job begins, with a quota or without. */
void nsh_memory_limit_forget(void);

/* Lifts it. True: it was hit since it began. Safe to repeat. [-0, +0, -] */
bool nsh_memory_limit_end(lua_State *L);

/* Did the job, whose quota may be lifted already, fail of a refusal, when
** 'error' is how it failed? */
bool nsh_memory_limit_blamed(ns_bytes error);

/* "memory limit of 64 MiB" */
ns_bytes nsh_memory_limit_text(void);

#endif
