/*
** The processes that a host starts: a seed, which forks a keeper, which forks a zygote per
** generation of the scripts. A zygote loads the handlers and forks the workers. Also how the
** host speaks to them, and the host's own process.
**
** Invariants: all of them descend from the host's first state, without a thread, a loop or a
** connection. Seed and keeper stay in that state, so that a later generation starts as clean as
** the first. Each level clears up after its dead children. The zygote kills a worker's process
** group, the keeper a zygote's orphans, the seed a keeper's whole session. The seed is there
** only so that a job that kills its keeper does not end the host; a keeper lives on without it.
** A zygote is reported dead only after every report it sent, and after all its workers are
** dead. So the exits of its workers are known by then; exits that it could not report died with
** it. A keeper that dies is replaced and its zygotes are reported dead, unless the seed died
** before it. A process that owes an answer for some seconds is killed, so it counts as dead.
** (Asserted where a report comes in; specs of the host cause the deaths.)
*/
#ifndef NSH_PROCESS_PROCESS_H
#define NSH_PROCESS_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <uv.h>

#include "base.h"
#include "config.h"
#include "ipc/ipc.h"

/* ------------------------------------------------ what they share: spawner.c */

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
** dispositions, no blocked signals, the name 'name' and a title. It is killed when
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

/* ------------------------------------------------------------- starting them */

#define NSH_ZYGOTES 32 /* generations that may exist at the same time */

/* Forks the seed; '*ctl' is the host's socket to it, 'wakeup' the workers' end of
** theirs. Errors: NOMEM. */
ns_status nsh_seed_start(const nsh_config *cfg, nsh_slots *slots, int wakeup, pid_t *pid, int *ctl,
                         ns_err *err);

/* The seed's socket is closed, so it ends by itself, unless it is stopped or stuck. Then its
** work is done here: to kill the rest of the keeper's session. 0: the keeper is not known. */
void nsh_seed_await(pid_t seed, pid_t keeper);

/* "killed by signal 9 (Killed)", "exited with status 3"; of a status as wait
** gives it, or negative: it died with its parent. */
void nsh_exit_describe(char out[96], int status);

/* --------------------------------------------------- the host's view of them */

#define NSH_VERSION_SIZE 9 /* bytes of a version of scripts, with its zero */

/* Keeps the hexadecimal digits that 's' begins with: a script may have meddled with it. */
void nsh_version_copy(char to[NSH_VERSION_SIZE], ns_bytes s);

typedef enum nsh_stage {
  NSH_ABSENT,  /* there is no such process */
  NSH_LOADING, /* reads the scripts */
  NSH_READY,   /* forks workers */
  NSH_LEAVING  /* told to go, or did not load */
} nsh_stage;

/* The handlers and scripts that a zygote has loaded. */
typedef struct nsh_loaded {
  int64_t count;  /* of its handlers */
  ns_bytes names; /* theirs, a line each; the last of 'count' may be left out */
  ns_bytes files; /* [["name","version"],…] of the files read */
  ns_bytes schedules; /* that they declare, [{…},…]; absent: none */
  ns_bytes on_dead;   /* jobs to push for dead ones, the same */
  ns_bytes batched;   /* handlers that take batches, "jobs µs name", a line each; absent: none */
} nsh_loaded;

typedef struct nsh_zygote {
  struct nsh_family *family;
  nsh_stage stage;
  uint32_t index;
  nsh_peer peer;
  size_t workers;                 /* forks asked for, less exits and failures */
  bool condemned;                 /* killed for its silence: no job did it */
  char version[NSH_VERSION_SIZE]; /* of its scripts, a short hash */
  ns_buf schedules, on_dead;      /* told while it loads: "[{…},{…}" */
  ns_buf batched;                 /* the same, lines */
} nsh_zygote;

typedef struct nsh_family {
  uv_loop_t *loop;
  uv_timer_t watch; /* runs while an answer is owed */
  int64_t watched;  /* µs, when it last ran */
  pid_t seed_pid;
  nsh_peer seed;
  nsh_peer keeper;
  pid_t keeper_pid; /* also the number of its session; 0: not known */
  nsh_zygote zygotes[NSH_ZYGOTES];
  /* The events; 'arg' is the owner's. */
  void *arg;
  void (*loaded)(void *arg, nsh_zygote *z, const nsh_loaded *what);
  /* Without a message it died of 'status'; negative: with its keeper. */
  void (*failed)(void *arg, nsh_zygote *z, ns_bytes message, int status);
  void (*forked)(void *arg, nsh_zygote *z, uint32_t worker, pid_t pid, int why);
  void (*exited)(void *arg, nsh_zygote *z, uint32_t worker, int status);
  void (*died)(void *arg, nsh_zygote *z, int status);
  void (*keeper_died)(void *arg, bool replaced); /* false: no more workers */
} nsh_family;

/* Callbacks and seed_pid are set already; 'ctl' is the seed's socket, handed over. */
void nsh_family_open(nsh_family *b, uv_loop_t *loop, int ctl);
void nsh_family_close(nsh_family *b);

/* How many zygotes there are. */
size_t nsh_family_alive(const nsh_family *b);

/* Asks the zygotes to show that they live: a stopped one would not report the deaths of its
** workers. */
void nsh_family_ping(nsh_family *b);

/* Retires all of them. */
void nsh_family_retire(nsh_family *b);

/* A new generation; NULL: too many are alive. It ends in loaded or failed. */
nsh_zygote *nsh_family_load(nsh_family *b);

void nsh_zygote_fork(nsh_zygote *z, uint32_t index);
void nsh_zygote_kill(nsh_zygote *z, uint32_t index, int sig);

/* No new workers from here; the process goes when its last one has gone. */
void nsh_zygote_retire(nsh_zygote *z);

/* Signals the zygote itself. */
void nsh_zygote_signal(nsh_zygote *z, int sig);

/* ------------------------------------------------------------------ sessions */

/*
** Kills all processes of 'session' except the caller and the 'n' processes of 'spared' (0:
** none). Their descendants and the processes in their process groups are spared, too. Returns
** when no other process is left alive, at the latest after 5 s, since one may hang in the
** kernel. Zombies are their parents' to reap. The session's number should still be taken: its
** leader is the caller, or has not been reaped, or only just.
*/
void nsh_session_kill(pid_t session, const pid_t *spared, size_t n);

/* ----------------------------------------------------- one host on a machine */

/*
** Takes a name for this process, until it ends, however it ends; the processes that a
** host forks do not keep it. 1: it is ours; 0: another process has it; -1: it is not
** known, and errno says why.
*/
int nsh_single_take(ns_bytes name);

/* ----------------------------------------------------------- the host itself */

/* From here on this process and all it starts leave no core: the URL with its
** password is in memory. */
void nsh_no_core(void);

/* Replaces 'argv' items by copies and blanks the value of --url in the original. Moves
** $NIGHTSHIFT_URL and $MYSQL_PWD off the block that the kernel shows. Call it first, once,
** while there is one thread. False: no memory. */
bool nsh_secrets_hide(int argc, char **argv);

#endif
