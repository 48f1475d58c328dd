/*
** A process that forks children on command, reaps them and passes signals on
** to them. The seed, the keepers and the zygotes are such processes. Each
** command is answered with one report, so that a silence can be told.
**
** Invariants: a child is named by its index, never by its process id, and a
** signal goes only to a child that has not been reaped, so it can never hit a
** stranger. What a dead child leaves behind is cleared away before its end is
** reported, so whoever is told of it may use what the child used.
*/
#ifndef NSH_PROCESS_SPAWNER_H
#define NSH_PROCESS_SPAWNER_H

#include <sys/types.h>

#include "process/control.h"

typedef struct nsh_spawner {
  int ctl;         /* to the host */
  size_t max;      /* children: indexes below this */
  const char *name; /* of the children, as ps shows them */
  /* The life of a child; does not return. 'fd' came with the command. */
  void (*child)(void *arg, uint32_t index, int fd);
  void *arg;
  bool mute; /* children need no 'fd', and get -1 */
  /* Children lead a process group and die with us, by the kernel's hand;
  ** otherwise they lead a session and do not. */
  bool bound;
  /* A child is dead and not reaped yet: kills what it leaves behind. 'others'
  ** are the living children, with gaps of 0. */
  void (*clear)(pid_t dead, const pid_t *others, size_t n);
} nsh_spawner;

/* Obeys commands until the host closes the socket, then ends all children;
** does not return. */
void nsh_spawner_serve(const nsh_spawner *n) __attribute__((noreturn));

/*
** What every process of the host does after its fork: has default signal
** dispositions, no blocked signals, and the name 'name'. It is killed when
** 'parent' dies; 0: it is not.
*/
void nsh_child_begin(pid_t parent, const char *name);

/* Ignores the signals that are meant for the host alone, with a handler, so
** that programs started from here do not inherit it. */
void nsh_child_deaf(void);

#endif
