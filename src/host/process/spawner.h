/*
** The common parts of a host's processes that fork: control sockets, the host's ends of them
** (peers), and spawners. The seed, the keepers and the
** zygotes are spawners: processes that fork children on command, reap them and pass signals on
** to them. Each command is answered with one report, so that a silence can be told.
**
** Invariants: a descriptor that travels belongs to the receiver from then on; all descriptors
** are close-on-exec. A child is named by its index, never by its process id. A signal goes only
** to a child that has not been reaped, so it can never hit a stranger. The processes that a
** dead child leaves behind are killed before its end is reported. So the process that is told
** may use the child's resources.
*/
#ifndef NSH_PROCESS_SPAWNER_H
#define NSH_PROCESS_SPAWNER_H

#include <sys/types.h>
#include <uv.h>

#include "config.h"
#include "ipc/ipc.h"

/* ----------------------------------------------------------- control sockets */

#define NSH_CONTROL_MAX 65536 /* bytes of one message */

/* A pair of control sockets; ours in [0]. False: errno says why. */
bool nsh_control_pair(int fds[2]);

/* Sends one frame; 'fd' -1: none, otherwise it is sent along and stays open
** here. 'wait' false: false with errno EAGAIN when the peer is behind. */
bool nsh_control_send(int ctl, const ns_buf *frame, int fd, bool wait);

/*
** Receives one frame into 'bytes' (NSH_CONTROL_MAX of them), which '*f' reads.
** '*fd' gets a descriptor or -1. 1: a frame; 0: the peer is gone (or talks
** nonsense, which is the same); -1: nothing yet (when not 'wait').
*/
int nsh_control_receive(int ctl, char *bytes, nsh_frame *f, int *fd, bool wait);

/* --------------------------------------------------------------------- peers */

/* The loop's end of a control socket: commands to a keeper or zygote, reports from it. Nothing
** here blocks; commands wait in a queue while the peer is behind. */

/* A command that waits. */
typedef struct nsh_command {
  nsh_type type;
  uint32_t index;
  int64_t arg;
  int fd; /* owned; -1: none */
} nsh_command;

typedef struct nsh_peer {
  int ctl;         /* -1: closed */
  uv_poll_t *poll; /* freed by its close callback */
  nsh_command *queue;
  size_t n, cap;
  bool gone;       /* the end was seen */
  size_t asked;    /* commands that were not answered yet */
  int64_t silence; /* µs of waiting since the last frame; its owner counts */
  void (*frame)(void *arg, nsh_frame *f);
  void (*end)(void *arg); /* once, when the peer is gone; may be NULL */
  void *arg;
} nsh_peer;

/* ------------------------------------------------------------------ spawners */

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
  /* A child is dead and not reaped yet: kills the processes that it leaves behind. 'others' has
  ** the living children, with gaps of 0. */
  void (*clear)(pid_t dead, const pid_t *others, size_t n);
} nsh_spawner;

/* Obeys commands until the host closes the socket, then ends all children;
** does not return. */
void nsh_spawner_serve(const nsh_spawner *n) __attribute__((noreturn));

/*
** Every process of the host calls this after its fork: it gets default signal
** dispositions, no blocked signals, and the name 'name'. It is killed when
** 'parent' dies; 0: it is not.
*/
void nsh_child_begin(pid_t parent, const char *name);

/* Ignores the signals that are meant for the host alone, with a handler, so
** that programs started from here do not inherit it. */
void nsh_child_ignore_signals(void);

/* ---------------------------------------------------------------- privileges */

/* Confines this process and all it will start. Errors: DENIED (the user of the
** configuration cannot be taken on). */
ns_status nsh_confine(const nsh_config *cfg, ns_err *err);

/* Takes the secrets out of the environment of this process, and so of its children. */
void nsh_secrets_drop(void);

#endif
