/*
** Control sockets, and the processes that fork children on command.
**
** One loop over two descriptors: the control socket and a signalfd for SIGCHLD. Exits are
** reported after all earlier events, because reports and commands are handled one at a time.
*/
#include "process/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base.h"

/* ----------------------------------------------------------- control sockets */

/* Room for one descriptor, aligned as a control message must be. */
typedef union passenger {
  struct cmsghdr head;
  char room[CMSG_SPACE(sizeof(int))];
} passenger;

bool nsh_control_pair(int fds[2]) {
  return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0;
}

static void attach_descriptor(struct msghdr *m, passenger *p, int fd) {
  struct cmsghdr *c;
  memset(p, 0, sizeof *p);
  m->msg_control = p->room;
  m->msg_controllen = sizeof p->room;
  c = CMSG_FIRSTHDR(m);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(c), &fd, sizeof fd);
}

bool nsh_control_send(int ctl, const ns_buf *frame, int fd, bool wait) {
  struct iovec bytes = {frame->p, frame->n};
  struct msghdr m = {.msg_iov = &bytes, .msg_iovlen = 1};
  passenger p;
  ssize_t sent;
  if (fd >= 0)
    attach_descriptor(&m, &p, fd);
  do
    sent = sendmsg(ctl, &m, MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT));
  while (sent < 0 && errno == EINTR);
  return sent >= 0;
}

static int passed_fd(struct msghdr *m) {
  struct cmsghdr *c = CMSG_FIRSTHDR(m);
  int fd = -1;
  if (c != NULL && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
      c->cmsg_len == CMSG_LEN(sizeof fd))
    memcpy(&fd, CMSG_DATA(c), sizeof fd);
  return fd;
}

int nsh_control_receive(int ctl, char *bytes, nsh_frame *f, int *fd, bool wait) {
  passenger p;
  struct iovec room = {bytes, NSH_CONTROL_MAX};
  struct msghdr m = {
      .msg_iov = &room, .msg_iovlen = 1, .msg_control = p.room, .msg_controllen = sizeof p.room};
  ssize_t n;
  *fd = -1;
  do
    n = recvmsg(ctl, &m, MSG_CMSG_CLOEXEC | (wait ? 0 : MSG_DONTWAIT));
  while (n < 0 && errno == EINTR);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
    return -1;
  if (n <= 0)
    return 0;
  *fd = passed_fd(&m);
  ns_assert(*fd < 0 || (fcntl(*fd, F_GETFD) & FD_CLOEXEC) != 0);
  if (nsh_next(bytes, (size_t)n, f) == n)
    return 1;
  if (*fd >= 0)
    close(*fd);
  *fd = -1;
  return 0;
}

/* ------------------------------------------------------------------ spawners */

/* A spawner while it serves. */
typedef struct server {
  const nsh_spawner *n;
  pid_t *pids;  /* by index; 0: no child */
  int signals;  /* signalfd */
  pid_t self;
} server;

/* ------------------------------------------------------- after every fork */

void nsh_child_begin(pid_t parent, const char *name) {
  sigset_t none;
  if (parent != 0 &&
      (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent))
    _exit(0); /* it died before we could ask */
  prctl(PR_SET_NAME, name);
  nsh_title_set(name + sizeof "ns-" - 1);
  for (int sig = 1; sig < NSIG; sig++)
    signal(sig, SIG_DFL);
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
}

static void ignore_signal(int sig) {
  (void)sig;
}

void nsh_child_ignore_signals(void) {
  static const int sigs[] = {SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGTTIN, SIGTTOU};
  struct sigaction act = {.sa_handler = ignore_signal, .sa_flags = SA_RESTART};
  for (size_t i = 0; i < sizeof sigs / sizeof sigs[0]; i++)
    sigaction(sigs[i], &act, NULL);
}

/* ---------------------------------------------------------------- reports */

static void send_message(server *h, nsh_type type, int64_t a, int64_t b, int64_t c) {
  char room[64];
  ns_buf out = {room, 0, sizeof room, false};
  size_t start = nsh_begin(&out, type);
  nsh_put_int(&out, a);
  nsh_put_int(&out, b);
  nsh_put_int(&out, c);
  if (nsh_end(&out, start))
    nsh_control_send(h->n->ctl, &out, -1, true);
}

/* --------------------------------------------------------------- commands */

static void close_inherited(server *h) {
  close(h->n->ctl);
  close(h->signals);
}

static void do_fork(server *h, uint32_t index, int fd) {
  bool may = index < h->n->max && h->pids[index] == 0 &&
             (fd >= 0 || h->n->mute);
  pid_t pid;
  int why;
  fflush(NULL); /* or the child would write it once more */
  pid = may ? fork() : -1;
  why = may ? errno : EINVAL;
  if (pid == 0) {
    if (h->n->bound)
      setpgid(0, 0);
    else
      setsid();
    nsh_child_begin(h->n->bound ? h->self : 0, h->n->name);
    close_inherited(h);
    h->n->child(h->n->arg, index, fd);
    _exit(0);
  }
  if (fd >= 0)
    close(fd);
  if (pid > 0 && h->n->bound)
    setpgid(pid, pid); /* parent and child both: the group exists from now on */
  if (pid > 0)
    h->pids[index] = pid;
  send_message(h, NSH_FORKED, index, pid > 0 ? pid : 0, pid > 0 ? 0 : why);
}

static void do_kill(server *h, uint32_t index, int sig) {
  if (index < h->n->max && h->pids[index] > 0)
    kill(h->pids[index], sig);
  send_message(h, NSH_HEARD, index, 0, 0);
}

/* Obeys one command; false: the host is gone. */
static bool obey_command(server *h) {
  static char bytes[NSH_CONTROL_MAX];
  nsh_frame f;
  int fd;
  uint32_t index;
  int got = nsh_control_receive(h->n->ctl, bytes, &f, &fd, false);
  if (got <= 0)
    return got < 0;
  index = (uint32_t)nsh_get_int(&f);
  if (f.type == NSH_FORK)
    do_fork(h, index, fd);
  else if (f.type == NSH_KILL)
    do_kill(h, index, (int)nsh_get_int(&f));
  return true;
}

/* Clears up after child 'index', which is dead, and takes its status. */
static int release_child(server *h, size_t index) {
  pid_t dead = h->pids[index];
  int status = 0;
  ns_assert(dead > 0); /* it has not been reaped: its number is not reused */
  h->pids[index] = 0;
  h->n->clear(dead, h->pids, h->n->max);
  while (waitpid(dead, &status, 0) < 0 && errno == EINTR)
    ;
  return status;
}

static void child_died(server *h, pid_t pid) {
  size_t i = 0;
  while (i < h->n->max && h->pids[i] != pid)
    i++;
  if (i == h->n->max)
    waitpid(pid, NULL, 0); /* an orphan that came to us */
  else
    send_message(h, NSH_EXITED, (int64_t)i, pid, release_child(h, i));
}

/* A dead child is looked at before it is reaped: until then its number, which
** is also that of its group, is not reused. */
static void reap_children(server *h) {
  struct signalfd_siginfo info;
  siginfo_t dead = {0};
  while (read(h->signals, &info, sizeof info) == (ssize_t)sizeof info)
    ;
  while (waitid(P_ALL, 0, &dead, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         dead.si_pid > 0) {
    child_died(h, dead.si_pid);
    dead.si_pid = 0;
  }
}

/* The host is gone. */
static void end_children(server *h) {
  for (size_t i = 0; i < h->n->max; i++)
    if (h->pids[i] > 0) {
      kill(h->pids[i], SIGKILL);
      release_child(h, i);
    }
}

static bool begin_spawner(server *h, const nsh_spawner *n) {
  sigset_t chld;
  h->n = n;
  h->self = getpid();
  h->pids = calloc(n->max, sizeof *h->pids);
  sigemptyset(&chld);
  sigaddset(&chld, SIGCHLD);
  sigprocmask(SIG_BLOCK, &chld, NULL);
  h->signals = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
  nsh_child_ignore_signals();
  return h->pids != NULL && h->signals >= 0;
}

void nsh_spawner_serve(const nsh_spawner *n) {
  server h;
  struct pollfd fds[2];
  if (!begin_spawner(&h, n))
    _exit(1);
  fds[0] = (struct pollfd){n->ctl, POLLIN, 0};
  fds[1] = (struct pollfd){h.signals, POLLIN, 0};
  for (;;) {
    if (poll(fds, 2, -1) < 0)
      continue;
    if (fds[1].revents != 0)
      reap_children(&h);
    if (fds[0].revents != 0 && !obey_command(&h)) {
      end_children(&h);
      _exit(0);
    }
  }
}
