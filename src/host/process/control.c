/*
** Control sockets are SOCK_SEQPACKET: message borders are kept and the end of
** the peer is seen.
*/
#include "process/control.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Room for one descriptor, aligned as a control message must be. */
typedef union passenger {
  struct cmsghdr head;
  char room[CMSG_SPACE(sizeof(int))];
} passenger;

bool nsh_control_pair(int fds[2]) {
  return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0;
}

static void attach(struct msghdr *m, passenger *p, int fd) {
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
    attach(&m, &p, fd);
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
  struct msghdr m = {.msg_iov = &room, .msg_iovlen = 1,
                     .msg_control = p.room, .msg_controllen = sizeof p.room};
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
  if (nsh_next(bytes, (size_t)n, f) == n)
    return 1;
  if (*fd >= 0)
    close(*fd);
  *fd = -1;
  return 0;
}
