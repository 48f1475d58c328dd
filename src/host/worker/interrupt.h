/*
** Stopping a handler's Lua code from outside, in a worker.
**
** The host says which job is to stop (nsh_slot_tell), later it has the zygote
** send NSH_INTERRUPT_SIGNAL. The signal's handler sets a hook on the coroutine that
** runs, and the hook raises an error that names the place. It raises again and
** again, after fewer and fewer instructions, so that a handler has time to
** clean up and no pcall can swallow it for ever.
**
** Invariant: nothing is hooked while nobody asks; the coroutine that runs is
** known at any moment, because resume, wrap and close are ours. Code that runs
** in C, or in a coroutine that a C module resumed, is out of reach: for that
** there is SIGTERM.
*/
#ifndef NSH_WORKER_INTERRUPT_H
#define NSH_WORKER_INTERRUPT_H

#include <lua.h>

#include "ipc/shared_slot.h"
#include "ns_buf.h"

/* Zygote: replaces functions of the library coroutine, and debug.sethook.
** [-0, +0, m] */
void nsh_interrupt_install(lua_State *L);

/* Worker: from now on the signal is heard. */
void nsh_interrupt_listen(lua_State *L, nsh_slot *slot);

/* The handler of job 'seq' is about to run; 'timeout' for the message, µs. */
void nsh_interrupt_begin(uint32_t seq, int64_t timeout);

/* Is its Lua code about to be stopped? Then C code that waits returns to it. */
bool nsh_interrupt_asked(void);

/* It has ended. Why it was stopped; NONE: it was not. Safe to repeat. */
nsh_why nsh_interrupt_end(void);

/* "timeout after 5 s at jobs.lua:7" and a traceback; of the last job that was
** stopped. */
ns_bytes nsh_interrupt_text(void);

#endif
