/*
** Control sockets in the loop.
*/
#include "process/peer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/alloc.h"

void nsh_uv_free(uv_handle_t *h) {
  free(h);
}

/* False: the peer is behind, the command stays. */
static bool send_one(nsh_peer *p, const nsh_command *c) {
  char room[64];
  ns_buf out = {room, 0, sizeof room, false};
  size_t start = nsh_begin(&out, c->type);
  nsh_put_int(&out, c->index);
  nsh_put_int(&out, c->arg);
  nsh_must(nsh_end(&out, start));
  if (!nsh_control_send(p->ctl, &out, c->fd, false) &&
      (errno == EAGAIN || errno == EWOULDBLOCK || errno == ETOOMANYREFS))
    return false; /* any other error: the end of the peer is seen by reading */
  if (c->fd >= 0)
    close(c->fd);
  return true;
}

static void on_ready(uv_poll_t *poll, int status, int events);

static void flush(nsh_peer *p) {
  size_t sent = 0;
  while (sent < p->n && send_one(p, &p->queue[sent]))
    sent++;
  p->n -= sent;
  memmove(p->queue, p->queue + sent, p->n * sizeof *p->queue);
  uv_poll_start(p->poll, UV_READABLE | (p->n > 0 ? UV_WRITABLE : 0), on_ready);
}

void nsh_peer_read(nsh_peer *p) {
  static char bytes[NSH_CONTROL_MAX];
  nsh_frame f;
  int fd;
  int got = -1;
  while (p->ctl >= 0 && !p->gone &&
         (got = nsh_control_receive(p->ctl, bytes, &f, &fd, false)) > 0) {
    if (fd >= 0)
      close(fd); /* nobody sends us one */
    p->silence = 0;
    if (p->asked > 0 && (f.type == NSH_FORKED || f.type == NSH_HEARD))
      p->asked--;
    p->frame(p->arg, &f);
  }
  if (p->ctl < 0 || p->gone || got < 0)
    return;
  p->gone = true;
  uv_poll_stop(p->poll);
  if (p->end != NULL)
    p->end(p->arg);
}

static void on_ready(uv_poll_t *poll, int status, int events) {
  nsh_peer *p = poll->data;
  if (events & UV_WRITABLE)
    flush(p);
  if ((events & UV_READABLE) || status < 0)
    nsh_peer_read(p);
}

void nsh_peer_open(nsh_peer *p, uv_loop_t *loop, int ctl) {
  p->ctl = ctl;
  p->gone = false;
  p->poll = nsh_alloc(sizeof *p->poll);
  nsh_must(uv_poll_init(loop, p->poll, ctl) == 0);
  p->poll->data = p;
  uv_poll_start(p->poll, UV_READABLE, on_ready);
}

void nsh_peer_send(nsh_peer *p, nsh_type type, uint32_t index, int64_t arg,
                   int fd) {
  if (p->ctl < 0 || p->gone) {
    if (fd >= 0)
      close(fd);
    return;
  }
  nsh_must(ns_grow(&p->queue, &p->cap, p->n + 1, sizeof *p->queue));
  if (p->asked++ == 0)
    p->silence = 0;
  p->queue[p->n++] = (nsh_command){type, index, arg, fd};
  if (p->n == 1)
    flush(p);
}

bool nsh_peer_owes(const nsh_peer *p) {
  return p->ctl >= 0 && !p->gone && p->asked > 0;
}

void nsh_peer_close(nsh_peer *p) {
  if (p->ctl < 0)
    return;
  for (size_t i = 0; i < p->n; i++)
    if (p->queue[i].fd >= 0)
      close(p->queue[i].fd);
  free(p->queue);
  p->queue = NULL;
  p->n = p->cap = 0;
  uv_close((uv_handle_t *)p->poll, nsh_uv_free);
  p->poll = NULL;
  close(p->ctl);
  p->ctl = -1;
}
