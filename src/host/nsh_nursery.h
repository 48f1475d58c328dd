/*
** A process that forks children on command, reaps them and passes signals on
** to them. The keeper and the zygotes are such processes.
**
** Invariants: a child is named by its index, never by its process id, and a
** signal goes only to a child that has not been reaped, so it can never hit a
** stranger. No process outlives its parent: each asks the kernel to be killed
** with it, and looks whether it was already too late.
*/
#ifndef NSH_NURSERY_H
#define NSH_NURSERY_H

#include <sys/types.h>

#include "nsh_ctl.h"

typedef struct nsh_nursery {
  int ctl;         /* to the host */
  size_t max;      /* children: indexes below this */
  const char *name; /* of the children, as ps shows them */
  /* The life of a child; does not return. 'fd' came with the command. */
  void (*child)(void *arg, uint32_t index, int fd);
  void *arg;
} nsh_nursery;

/* Obeys commands until the host closes the socket; does not return. */
void nsh_nursery_serve(const nsh_nursery *n) __attribute__((noreturn));

/*
** What every process of the host does after its fork: dies with 'parent', has
** default signal dispositions and no blocked signals, and the name 'name'.
*/
void nsh_child_begin(pid_t parent, const char *name);

/* Ignores the signals that are meant for the host alone, with a handler, so
** that programs started from here do not inherit it. */
void nsh_child_deaf(void);

#endif
