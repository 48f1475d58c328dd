/*
** Debug hooks while a verb waits: for the server, or for a lock. Ctrl-C in the
** stand-alone interpreter is such a hook.
*/
#ifndef NSL_HOOKS_H
#define NSL_HOOKS_H

#include <lua.h>

#include <stdbool.h>

/* One verb at a time that may wait. */
typedef struct nsl_wait {
  lua_State *L; /* the coroutine whose verb it is; NULL: no hooks run */
  bool inside;  /* hooks run: no other verb may use what waits */
  bool stopped; /* a hook has raised an error, which nsl_raise throws */
} nsl_wait;

/*
** Runs the hooks of the coroutine, or else those of the main one, for some
** instructions; a function of Lua without effect is what they interrupt. True: one
** has raised an error, and the wait is to end. 'wait' is an nsl_wait. Raises nothing.
*/
bool nsl_hooks(void *wait);

/* Throws what a hook has raised; returns when none has. [-0, +0, v] */
void nsl_raise(lua_State *L, nsl_wait *w);

/* Part of opening the module. [-0, +0, m] */
void nsl_openhooks(lua_State *L);

#endif
